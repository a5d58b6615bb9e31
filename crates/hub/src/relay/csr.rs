//! Judging what a spoke asks to have signed. Only the name and the public key of a request are ever used, and a
//! request that asks for anything else is refused rather than trimmed.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use holdfast_core::SpokeName;
use rcgen::SubjectPublicKeyInfo;
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::cri_attributes::ParsedCriAttribute;
use x509_parser::oid_registry::{
    OID_EC_P256, OID_KEY_TYPE_EC_PUBLIC_KEY, OID_NIST_EC_P384, OID_PKCS1_RSAENCRYPTION,
    OID_PKCS1_SHA1WITHRSA, OID_SHA1_WITH_RSA,
};
use x509_parser::prelude::FromDer as _;
use x509_parser::public_key::PublicKey;

/// The largest request that is read, in bytes of PEM.
const LARGEST: usize = 16 * 1024;
/// The least modulus of an RSA key, in bits.
const RSA_BITS: usize = 2048;
/// The largest one: what it takes to check a signature grows with it.
const RSA_BITS_MOST: usize = 8192;

/// Why a request is refused. The text is for the spoke.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum CsrError {
    /// Not exactly one PEM block of the right kind.
    #[error("csr_pem must be one PEM block CERTIFICATE REQUEST and nothing else")]
    Pem,
    /// The block holds no request.
    #[error("csr_pem is not a certificate request")]
    Der,
    /// Whoever asks does not hold the key.
    #[error("the signature of the certificate request is not valid")]
    Signature,
    /// The key is of a kind that is not signed.
    #[error("the key of the certificate request must be ECDSA P-256 or P-384, or RSA of 2048 to 8192 bits")]
    Key,
    /// It is for another name.
    #[error("the common name of the certificate request must be the spoke's name")]
    Name,
    /// It asks for more than a name.
    #[error("the certificate request must not ask for alternative names or other extensions")]
    Extension,
}

/// The public key of a request that is in order and for this name.
pub fn check(pem: &str, name: &SpokeName) -> Result<SubjectPublicKeyInfo, CsrError> {
    let der = decode(pem)?;
    let (rest, request) = X509CertificationRequest::from_der(&der).map_err(|_| CsrError::Der)?;
    if !rest.is_empty() {
        return Err(CsrError::Der);
    }
    check_key(&request)?;
    request.verify_signature().map_err(|_| CsrError::Signature)?;
    check_name(&request, name)?;
    check_attributes(&request)?;
    SubjectPublicKeyInfo::from_der(request.certification_request_info.subject_pki.raw)
        .map_err(|_| CsrError::Key)
}

/// The bytes of the one block, in its strict form.
fn decode(pem: &str) -> Result<Vec<u8>, CsrError> {
    if pem.len() > LARGEST {
        return Err(CsrError::Pem);
    }
    let block = |label: &str| {
        let body = pem.trim().strip_prefix(&format!("-----BEGIN {label}-----"))?;
        body.strip_suffix(&format!("-----END {label}-----"))
    };
    let body = block("CERTIFICATE REQUEST").or_else(|| block("NEW CERTIFICATE REQUEST"));
    let body = body.filter(|body| body.starts_with(['\n', '\r'])).ok_or(CsrError::Pem)?;
    let text: String = body.chars().filter(|c| !matches!(c, '\n' | '\r')).collect();
    BASE64.decode(text).map_err(|_| CsrError::Pem)
}

fn check_key(request: &X509CertificationRequest<'_>) -> Result<(), CsrError> {
    let spki = &request.certification_request_info.subject_pki;
    let algorithm = &spki.algorithm;
    if algorithm.algorithm == OID_KEY_TYPE_EC_PUBLIC_KEY {
        let curve = algorithm.parameters.as_ref().and_then(|any| any.as_oid().ok());
        let known = curve.is_some_and(|oid| oid == OID_EC_P256 || oid == OID_NIST_EC_P384);
        return if known { Ok(()) } else { Err(CsrError::Key) };
    }
    let signed = &request.signature_algorithm.algorithm;
    let sha1 = *signed == OID_PKCS1_SHA1WITHRSA || *signed == OID_SHA1_WITH_RSA;
    if algorithm.algorithm != OID_PKCS1_RSAENCRYPTION || sha1 {
        return Err(CsrError::Key);
    }
    match spki.parsed() {
        Ok(PublicKey::RSA(key)) if (RSA_BITS..=RSA_BITS_MOST).contains(&bits(key.modulus)) => Ok(()),
        _ => Err(CsrError::Key),
    }
}

/// The length of a big-endian number, without leading zeros.
fn bits(number: &[u8]) -> usize {
    let significant = number.iter().position(|byte| *byte != 0).map_or(&[][..], |at| number.split_at(at).1);
    let first = significant.first().map_or(0, |byte| byte.leading_zeros());
    (significant.len() * 8).saturating_sub(usize::try_from(first).unwrap_or(8))
}

fn check_name(request: &X509CertificationRequest<'_>, name: &SpokeName) -> Result<(), CsrError> {
    let mut names = request.certification_request_info.subject.iter_common_name();
    let first = names.next().and_then(|name| name.as_str().ok());
    if first == Some(name.as_str()) && names.next().is_none() { Ok(()) } else { Err(CsrError::Name) }
}

/// Every attribute is looked at: a parsed request shows the extensions of the first one only.
fn check_attributes(request: &X509CertificationRequest<'_>) -> Result<(), CsrError> {
    let harmless = |attribute: &ParsedCriAttribute<'_>| match attribute {
        ParsedCriAttribute::ExtensionRequest(asked) => asked.extensions.is_empty(),
        ParsedCriAttribute::ChallengePassword(_) => true,
        ParsedCriAttribute::UnsupportedAttribute => false,
    };
    let attributes = request.certification_request_info.attributes();
    if attributes.iter().all(|attribute| harmless(attribute.parsed_attribute())) {
        Ok(())
    } else {
        Err(CsrError::Extension)
    }
}
