//! References of a client, `holdfast://NAME[?decode=STEP,STEP]`, and the steps that turn served bytes into usable ones.
//!
//! What must hold: a reference that is not understood whole is refused, never half obeyed; no step gives more than
//! 16 MiB; no error holds a part of a value.

use std::io::Read as _;
use std::str::FromStr;
use std::sync::Arc;

use base64::Engine as _;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use flate2::read::MultiGzDecoder;
use zeroize::Zeroizing;

use super::value::Secret;

/// The most that a step may give: 16 MiB.
pub const MAX_DECODED: usize = 16 * 1024 * 1024;

const LENIENT: GeneralPurposeConfig =
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent);
const STANDARD: GeneralPurpose = GeneralPurpose::new(&alphabet::STANDARD, LENIENT);
const URL_SAFE: GeneralPurpose = GeneralPurpose::new(&alphabet::URL_SAFE, LENIENT);

/// What is asked for, and how its bytes are decoded.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub struct Reference {
    /// The name of the binding.
    pub name: Arc<str>,
    /// The steps, in order.
    pub steps: Vec<Step>,
}

/// One step of decoding.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum Step {
    /// Standard base64, padded or not.
    Base64,
    /// URL-safe base64, padded or not.
    Base64Url,
    /// Hexadecimal digits of either case.
    Hex,
    /// A gzip stream.
    Gzip,
    /// Drops ASCII white space at both ends.
    Trim,
}

/// Why a reference is refused.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("the reference is refused: {0}")]
pub struct BadReference(pub &'static str);

/// Why bytes cannot be decoded.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum DecodeError {
    /// They are not in the form that a step expects.
    #[error("the value is not {0}")]
    Form(&'static str),
    /// A step would give more than [`MAX_DECODED`] bytes.
    #[error("the decoded value is larger than 16 MiB")]
    TooLarge,
}

impl FromStr for Reference {
    type Err = BadReference;

    fn from_str(text: &str) -> Result<Self, BadReference> {
        let (scheme, rest) = text.trim().split_once("://").ok_or(BadReference("no scheme"))?;
        if !["holdfast", "mamori"].iter().any(|known| scheme.eq_ignore_ascii_case(known)) {
            return Err(BadReference("the scheme is not holdfast"));
        }
        let (name, query) = rest.split_once('?').map_or((rest, None), |(name, query)| (name, Some(query)));
        if rest.contains('#') {
            return Err(BadReference("a fragment is the server's to cut: declare a binding for it"));
        }
        if name.is_empty() {
            return Err(BadReference("no name"));
        }
        let steps = query.map(pipeline).transpose()?.unwrap_or_default();
        Ok(Self { name: name.into(), steps })
    }
}

/// Reads the one option that a client knows.
fn pipeline(query: &str) -> Result<Vec<Step>, BadReference> {
    let steps = query.strip_prefix("decode=").ok_or(BadReference("the only option is decode"))?;
    if steps.contains('&') {
        return Err(BadReference("the only option is decode, once"));
    }
    steps.split(',').map(Step::named).collect()
}

impl Step {
    fn named(name: &str) -> Result<Self, BadReference> {
        Ok(match name {
            "base64" => Self::Base64,
            "base64url" => Self::Base64Url,
            "hex" => Self::Hex,
            "gzip" => Self::Gzip,
            "trim" => Self::Trim,
            _ => return Err(BadReference("decode takes base64, base64url, hex, gzip and trim")),
        })
    }

    fn apply(self, bytes: &[u8]) -> Result<Zeroizing<Vec<u8>>, DecodeError> {
        let mut out = Zeroizing::new(Vec::new());
        match self {
            Self::Base64 => {
                STANDARD.decode_vec(bytes, &mut out).map_err(|_| DecodeError::Form("base64"))?;
            }
            Self::Base64Url => {
                URL_SAFE.decode_vec(bytes, &mut out).map_err(|_| DecodeError::Form("base64url"))?;
            }
            Self::Hex => *out = hex::decode(bytes).map_err(|_| DecodeError::Form("hex"))?,
            Self::Gzip => {
                let limit = u64::try_from(MAX_DECODED).unwrap_or(u64::MAX).saturating_add(1);
                let unpacked = MultiGzDecoder::new(bytes).take(limit).read_to_end(&mut out);
                unpacked.map_err(|_| DecodeError::Form("gzip"))?;
            }
            Self::Trim => out.extend_from_slice(bytes.trim_ascii()),
        }
        if out.len() > MAX_DECODED { Err(DecodeError::TooLarge) } else { Ok(out) }
    }
}

/// Applies the steps from left to right.
///
/// # Errors
/// When the bytes are not in the form that a step expects, or grow too large.
pub fn decode(steps: &[Step], bytes: &Secret) -> Result<Secret, DecodeError> {
    let mut steps = steps.iter();
    let Some(first) = steps.next() else { return Ok(bytes.clone()) };
    let mut current = first.apply(bytes.expose())?;
    for step in steps {
        current = step.apply(&current)?;
    }
    Ok(Secret::new(std::mem::take(&mut *current)))
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use flate2::Compression;
    use flate2::write::GzEncoder;

    use super::*;

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    fn run(reference: &str, bytes: &[u8]) -> Result<Vec<u8>, DecodeError> {
        let reference: Reference = reference.parse().unwrap();
        decode(&reference.steps, &Secret::new(bytes.to_vec())).map(|secret| secret.expose().to_vec())
    }

    #[test]
    fn a_reference_is_a_name_and_its_steps() {
        let parsed: Reference = "holdfast://orders/db:main@eu?decode=trim,base64,gzip".parse().unwrap();
        assert_eq!(&*parsed.name, "orders/db:main@eu");
        assert_eq!(parsed.steps, [Step::Trim, Step::Base64, Step::Gzip]);
        for same in ["mamori://a", "HoldFast://a", " holdfast://a "] {
            assert_eq!(same.parse(), Ok(Reference { name: "a".into(), steps: vec![] }), "{same}");
        }
    }

    #[test]
    fn what_is_not_understood_is_refused() {
        for (text, reason) in [
            ("a", "no scheme"),
            ("vault://a", "the scheme is not holdfast"),
            ("holdfast://", "no name"),
            ("holdfast://a#b", "a fragment is the server's to cut: declare a binding for it"),
            ("holdfast://a?decode=hex#b", "a fragment is the server's to cut: declare a binding for it"),
            ("holdfast://a?poll=1s", "the only option is decode"),
            ("holdfast://a?", "the only option is decode"),
            ("holdfast://a?decode=hex&decode=hex", "the only option is decode, once"),
            ("holdfast://a?decode=", "decode takes base64, base64url, hex, gzip and trim"),
            ("holdfast://a?decode=rot13", "decode takes base64, base64url, hex, gzip and trim"),
            ("holdfast://a?decode=HEX", "decode takes base64, base64url, hex, gzip and trim"),
        ] {
            assert_eq!(text.parse::<Reference>(), Err(BadReference(reason)), "{text}");
        }
    }

    #[test]
    fn steps_run_from_left_to_right() {
        assert_eq!(run("holdfast://a", b" x ").unwrap(), b" x ");
        assert_eq!(run("holdfast://a?decode=trim", b" \nx y\t").unwrap(), b"x y");
        assert_eq!(run("holdfast://a?decode=base64", b"+/8=").unwrap(), [0xfb, 0xff]);
        assert_eq!(run("holdfast://a?decode=base64", b"+/8").unwrap(), [0xfb, 0xff]);
        assert_eq!(run("holdfast://a?decode=base64url", b"-_8").unwrap(), [0xfb, 0xff]);
        assert_eq!(run("holdfast://a?decode=hex", b"fbFF").unwrap(), [0xfb, 0xff]);
        let packed = hex::encode(gzip(b" text ")) + "\n";
        assert_eq!(run("holdfast://a?decode=trim,hex,gzip,trim", packed.as_bytes()).unwrap(), b"text");
        assert_eq!(run("holdfast://a?decode=trim", b"").unwrap(), b"");
    }

    #[test]
    fn bytes_of_another_form_are_an_error_that_shows_nothing() {
        for (step, form) in
            [("base64", "base64"), ("base64url", "base64url"), ("hex", "hex"), ("gzip", "gzip")]
        {
            let error = run(&format!("holdfast://a?decode={step}"), b"geheim!").unwrap_err();
            assert_eq!(error, DecodeError::Form(form));
            assert!(!error.to_string().contains("geheim"));
        }
        let cut = gzip(b"text");
        assert_eq!(run("holdfast://a?decode=gzip", &cut[..cut.len() - 3]), Err(DecodeError::Form("gzip")));
    }

    #[test]
    fn a_gzip_bomb_stops_at_the_cap() {
        let whole = gzip(&vec![0; MAX_DECODED]);
        assert_eq!(run("holdfast://a?decode=gzip", &whole).unwrap().len(), MAX_DECODED);
        let bomb = gzip(&vec![0; MAX_DECODED + 1]);
        assert_eq!(run("holdfast://a?decode=gzip", &bomb), Err(DecodeError::TooLarge));
    }
}
