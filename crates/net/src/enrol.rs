//! How a spoke that has only a token and a pin comes to trust a hub: what both sides compute alike.
//!
//! The token is `<id>.<secret>`. The hub signs its description with the secret (HMAC-SHA-256 in the form of a
//! detached JWS, RFC 7515 appendix F), and the pin is the hash of its authority's public key. Every comparison of
//! something secret takes the same time whatever differs.

use aws_lc_rs::constant_time::verify_slices_are_equal;
use aws_lc_rs::{digest, hmac};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
use zeroize::Zeroizing;

const ID: usize = 6;
const SECRET: usize = 16;
const PIN: &str = "sha256:";

/// Something presented for trust is not what it must be.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum EnrolError {
    /// Not `<id>.<secret>`.
    #[error("the token is not of the form <6 characters>.<16 characters>")]
    Token,
    /// The certificate cannot be read.
    #[error("the certificate cannot be read")]
    Certificate,
    /// The signature is of another form, algorithm or secret.
    #[error("the signature of the hub's description does not fit the token")]
    Signature,
    /// The authority is not the pinned one.
    #[error("the hub's certificate authority is not the pinned one")]
    Pin,
}

/// A bootstrap token.
#[derive(Clone)]
pub struct BootstrapToken {
    id: String,
    secret: Zeroizing<String>,
}

/// Shows the id only.
impl std::fmt::Debug for BootstrapToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BootstrapToken").field("id", &self.id).finish_non_exhaustive()
    }
}

impl BootstrapToken {
    /// A fresh one.
    pub fn random() -> Self {
        Self {
            id: holdfast_ops::rand::hex(ID / 2),
            secret: Zeroizing::new(holdfast_ops::rand::hex(SECRET / 2)),
        }
    }

    /// Reads one, with nothing around it.
    ///
    /// # Errors
    /// When the text is of another form.
    pub fn parse(text: &str) -> Result<Self, EnrolError> {
        let (id, secret) = text.split_once('.').ok_or(EnrolError::Token)?;
        let plain = |text: &str| text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
        if !is_id(id) || secret.len() != SECRET || !plain(secret) {
            return Err(EnrolError::Token);
        }
        Ok(Self { id: id.to_owned(), secret: Zeroizing::new(secret.to_owned()) })
    }

    /// The part that names it.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The part that proves it.
    pub fn secret(&self) -> &str {
        &self.secret
    }

    /// The whole text.
    pub fn text(&self) -> Zeroizing<String> {
        Zeroizing::new(format!("{}.{}", self.id, self.secret.as_str()))
    }
}

/// Whether a text is the id of a token.
pub fn is_id(text: &str) -> bool {
    text.len() == ID && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit())
}

/// Whether two texts are the same; takes a time that depends on their lengths only.
pub fn same(a: &str, b: &str) -> bool {
    verify_slices_are_equal(a.as_bytes(), b.as_bytes()).is_ok()
}

/// The pin of a certificate: `sha256:` and the hash of its public key in hexadecimal.
///
/// # Errors
/// When the certificate cannot be read.
pub fn pin(cert_der: &[u8]) -> Result<String, EnrolError> {
    use std::fmt::Write as _;
    let (rest, cert) = x509_parser::parse_x509_certificate(cert_der).map_err(|_| EnrolError::Certificate)?;
    if !rest.is_empty() {
        return Err(EnrolError::Certificate);
    }
    let hash = digest::digest(&digest::SHA256, cert.public_key().raw);
    Ok(hash.as_ref().iter().fold(PIN.to_owned(), |mut text, byte| {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    }))
}

/// Whether a certificate is the pinned one. Every mismatch is the same error.
///
/// # Errors
/// When it is not, or the pin or the certificate cannot be read.
pub fn check_pin(given: &str, cert_der: &[u8]) -> Result<(), EnrolError> {
    let held = pin(cert_der).map_err(|_| EnrolError::Pin)?;
    if same(&given.trim().to_ascii_lowercase(), &held) { Ok(()) } else { Err(EnrolError::Pin) }
}

/// The signature of a payload that travels beside it: `<header>..<mac>`.
pub fn sign(id: &str, secret: &str, payload: &str) -> String {
    let header = BASE64.encode(header(id));
    let mac = hmac::sign(&key(secret), signed(&header, payload).as_bytes());
    format!("{header}..{}", BASE64.encode(mac.as_ref()))
}

/// Whether a payload was signed by whoever has the token.
///
/// # Errors
/// When it was not, or with another algorithm, or the signature names another token.
pub fn check_signature(token: &BootstrapToken, payload: &str, signature: &str) -> Result<(), EnrolError> {
    let wrong = EnrolError::Signature;
    let (encoded, mac) = signature.split_once("..").ok_or(wrong)?;
    let decoded = BASE64.decode(encoded).map_err(|_| wrong)?;
    // The header is the one we would write, byte for byte: any other algorithm, key or critical member is refused.
    if decoded != header(token.id()).as_bytes() {
        return Err(wrong);
    }
    let mac = BASE64.decode(mac).map_err(|_| wrong)?;
    hmac::verify(&key(token.secret()), signed(encoded, payload).as_bytes(), &mac).map_err(|_| wrong)
}

fn key(secret: &str) -> hmac::Key {
    hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes())
}

fn header(id: &str) -> String {
    format!("{{\"alg\":\"HS256\",\"kid\":\"{id}\"}}")
}

fn signed(header: &str, payload: &str) -> String {
    format!("{header}.{}", BASE64.encode(payload))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token() -> BootstrapToken {
        BootstrapToken::parse("abc123.0123456789abcdef").unwrap()
    }

    #[test]
    fn a_token_is_an_id_and_a_secret_and_nothing_else() {
        let token = BootstrapToken::random();
        assert_eq!(BootstrapToken::parse(&token.text()).unwrap().secret(), token.secret());
        assert!(!format!("{token:?}").contains(token.secret()));
        for bad in [
            "",
            "abc123",
            "abc123.",
            "abc12.0123456789abcdef",
            "ABC123.0123456789abcdef",
            "abc123.0123456789abcde",
            "abc123.0123456789abcdef ",
            "abc123.0123456789abcdef\n",
            "abc123.01234567.89abcdef",
        ] {
            assert_eq!(BootstrapToken::parse(bad).unwrap_err(), EnrolError::Token, "{bad:?}");
        }
    }

    #[test]
    fn a_signature_is_known_to_others() {
        // Computed by another implementation of HMAC-SHA-256.
        let signature = sign("abc123", "0123456789abcdef", "{\"a\":1}");
        assert_eq!(
            signature,
            "eyJhbGciOiJIUzI1NiIsImtpZCI6ImFiYzEyMyJ9..fmFRKyztRLHNCgcvReO3d7b9ehI9U33JOm6tkEhCY0w"
        );
        check_signature(&token(), "{\"a\":1}", &signature).unwrap();
    }

    #[test]
    fn another_secret_payload_algorithm_or_form_is_refused() {
        let payload = "{\"a\":1}";
        let good = sign("abc123", token().secret(), payload);
        let (head, mac) = good.split_once("..").unwrap();
        let none = BASE64.encode("{\"alg\":\"none\",\"kid\":\"abc123\"}");
        let h512 = BASE64.encode("{\"alg\":\"HS512\",\"kid\":\"abc123\"}");
        let other = sign("abc123", "0123456789abcdeX", payload);
        for bad in [
            other,
            sign("zzz123", token().secret(), payload),
            format!("{none}.."),
            format!("{none}..{mac}"),
            format!("{h512}..{mac}"),
            format!("{head}.{}.{mac}", BASE64.encode(payload)),
            format!("{head}..{mac}="),
            format!("{head}.."),
            String::new(),
        ] {
            assert_eq!(check_signature(&token(), payload, &bad), Err(EnrolError::Signature), "{bad}");
        }
        assert_eq!(check_signature(&token(), "{\"a\":2}", &good), Err(EnrolError::Signature));
    }

    #[test]
    fn a_pin_is_of_the_key_and_in_any_case() {
        let key = rcgen::KeyPair::generate().unwrap();
        let cert = |name: &str| {
            let params = rcgen::CertificateParams::new(vec![name.to_owned()]).unwrap();
            params.self_signed(&key).unwrap().der().to_vec()
        };
        let (one, two) = (cert("one"), cert("two"));
        let held = pin(&one).unwrap();
        assert_eq!((held.len(), held.starts_with("sha256:")), (71, true));
        check_pin(&held.to_uppercase(), &two).unwrap();
        let other = rcgen::generate_simple_self_signed(vec!["one".to_owned()]).unwrap();
        for (given, der) in
            [(held.as_str(), other.cert.der().as_ref()), ("sha256:", &one), ("", &one), (&held, b"x")]
        {
            assert_eq!(check_pin(given, der), Err(EnrolError::Pin), "{given}");
        }
    }
}
