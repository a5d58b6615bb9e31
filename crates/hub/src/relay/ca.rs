//! The certificates of the relay: its own authority, the hub's, the spokes'.

use std::collections::BTreeSet;

use rcgen::{
    BasicConstraints, Certificate, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose,
    IsCa, Issuer, KeyPair, KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, PublicKeyData, SerialNumber,
    SignatureAlgorithm, SigningKey, SubjectPublicKeyInfo,
};
use rustls_pki_types::PrivateKeyDer;
use rustls_pki_types::pem::PemObject as _;
use secrecy::{ExposeSecret as _, SecretString};
use x509_parser::time::ASN1Time;
use zeroize::{Zeroize as _, Zeroizing};

use holdfast_core::SpokeName;

/// A day in seconds.
pub const DAY: i64 = 86_400;
/// The organisation in the certificates of authority and spokes.
const ORGANISATION: &str = "holdfast-spokes";
/// The authority's common name.
const CA_NAME: &str = "holdfast-spoke-ca";
/// The hub's common name.
const HUB_NAME: &str = "holdfast-hub";
/// How long the authority lives, in seconds: ten years.
const CA_LIFE: i64 = 3650 * DAY;
/// How long a certificate of the hub lives, in seconds: a year.
const HUB_LIFE: i64 = 365 * DAY;
/// How far before now a certificate begins, for clocks that are behind, in seconds.
const BEFORE: i64 = 300;

/// A certificate could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CaError {
    /// The library refused.
    #[error("making a certificate failed")]
    Library(#[from] rcgen::Error),
    /// No calendar holds the time.
    #[error("a certificate cannot end at {0}")]
    Time(i64),
}

/// A private key whose bytes are wiped when it goes.
pub struct Key(KeyPair);

impl Key {
    /// A new one of P-256.
    pub fn generate() -> Result<Self, CaError> {
        Ok(Self(KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?))
    }

    /// From PKCS#8 PEM; none where that is no such key.
    pub fn from_pem(pem: &SecretString) -> Option<Self> {
        let der = PrivateKeyDer::from_pem_slice(pem.expose_secret().as_bytes()).ok()?;
        KeyPair::try_from(&*Zeroizing::new(der)).ok().map(Self)
    }

    /// As PKCS#8 PEM.
    pub fn pem(&self) -> SecretString {
        // Copied to its exact size: a shrinking string may leave its former place behind.
        let pem = Zeroizing::new(self.0.serialize_pem());
        SecretString::from(pem.as_str())
    }
}

impl Drop for Key {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

impl PublicKeyData for Key {
    fn der_bytes(&self) -> &[u8] {
        self.0.der_bytes()
    }

    fn algorithm(&self) -> &'static SignatureAlgorithm {
        self.0.algorithm()
    }
}

impl SigningKey for Key {
    fn sign(&self, message: &[u8]) -> Result<Vec<u8>, rcgen::Error> {
        self.0.sign(message)
    }
}

/// The authority with its key.
pub type Authority = Issuer<'static, Key>;

/// A certificate that was made for a spoke.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct SpokeCertificate {
    /// PEM.
    pub pem: String,
    /// The serial number in hexadecimal.
    pub serial: String,
    /// When it ends, in seconds since 1970.
    pub not_after: i64,
}

/// A new authority, self-signed: its certificate and key.
pub fn authority(now: i64) -> Result<(Certificate, Key), CaError> {
    let key = Key::generate()?;
    let mut params = params(CA_NAME, Some(ORGANISATION), now, now.saturating_add(CA_LIFE))?;
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages =
        vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign, KeyUsagePurpose::DigitalSignature];
    Ok((params.self_signed(&key)?, key))
}

/// A certificate for the hub under these hosts, with a key of its own. `until` is the end of the authority.
pub fn hub(
    authority: &Authority,
    hosts: &BTreeSet<String>,
    now: i64,
    until: i64,
) -> Result<(Certificate, Key), CaError> {
    let key = Key::generate()?;
    let mut params = params(HUB_NAME, None, now, now.saturating_add(HUB_LIFE).min(until))?;
    params.subject_alt_names =
        CertificateParams::new(hosts.iter().cloned().collect::<Vec<_>>())?.subject_alt_names;
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    Ok((params.signed_by(&key, authority)?, key))
}

/// A certificate for a spoke with this public key, for `ttl` seconds. `until` is the end of the authority.
pub fn spoke(
    authority: &Authority,
    name: &SpokeName,
    key: &SubjectPublicKeyInfo,
    now: i64,
    ttl: i64,
    until: i64,
) -> Result<SpokeCertificate, CaError> {
    let not_after = now.saturating_add(ttl).min(until);
    let mut params = params(name.as_str(), Some(ORGANISATION), now, not_after)?;
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    let serial = serial();
    params.serial_number = Some(SerialNumber::from_slice(&serial));
    let made = params.signed_by(key, authority)?;
    Ok(SpokeCertificate { pem: made.pem(), serial: hex::encode(serial), not_after })
}

fn params(
    name: &str,
    organisation: Option<&str>,
    now: i64,
    not_after: i64,
) -> Result<CertificateParams, CaError> {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    if let Some(organisation) = organisation {
        params.distinguished_name.push(DnType::OrganizationName, organisation);
    }
    let time = |at: i64| ASN1Time::from_timestamp(at).map_err(|_| CaError::Time(at));
    params.not_before = time(now.saturating_sub(BEFORE))?.to_datetime();
    params.not_after = time(not_after)?.to_datetime();
    params.serial_number = Some(SerialNumber::from_slice(&serial()));
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.use_authority_key_identifier_extension = true;
    Ok(params)
}

/// 128 unpredictable bits that are not 0.
fn serial() -> [u8; 16] {
    loop {
        let bytes = holdfast_ops::rand::bytes::<16>();
        if bytes != [0; 16] {
            return bytes;
        }
    }
}
