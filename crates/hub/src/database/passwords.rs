//! Password policies: how generated passwords look when the standard shape is not wanted.

use base64::Engine as _;
use holdfast_dbdriver::{CharsetRule, PasswordPolicy};
use secrecy::SecretString;
use serde::{Deserialize, Serialize};

use crate::error::ApiError;
use crate::storage::Storage;

/// All password policies.
pub const POLICIES: &str = "sys/password-policy/";

/// A password policy as it was written.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct StoredPolicy {
    /// The text.
    pub policy: String,
}

/// The key of a password policy.
pub fn key(name: &str) -> String {
    format!("{POLICIES}{name}")
}

/// A new password by the named policy; without a name, of the standard shape.
pub fn generate(storage: &Storage, policy: &str) -> Result<SecretString, ApiError> {
    if policy.is_empty() {
        return Ok(PasswordPolicy::standard().generate());
    }
    let stored = storage.get::<StoredPolicy>(&key(policy))?;
    let stored =
        stored.ok_or_else(|| ApiError::failed(format!("there is no password policy named {policy:?}")))?;
    Ok(parse(&stored.value.policy)?.generate())
}

/// Reads `length = 20` and `rule "charset" { charset = "..." min-chars = 1 }`; anything else is refused.
pub fn parse(text: &str) -> Result<PasswordPolicy, ApiError> {
    let decoded = base64::engine::general_purpose::STANDARD
        .decode(text.trim())
        .ok()
        .and_then(|bytes| String::from_utf8(bytes).ok());
    let body = hcl::parse(decoded.as_deref().unwrap_or(text))
        .map_err(|error| ApiError::invalid(format!("failed to parse the password policy: {error}")))?;
    let mut length = None;
    let mut rules = Vec::new();
    for part in body.into_inner() {
        match part {
            hcl::Structure::Attribute(a) if a.key.as_str() == "length" => {
                length = Some(number(&a.expr, "length")?);
            }
            hcl::Structure::Block(block) => rules.push(rule(&block)?),
            hcl::Structure::Attribute(a) => return Err(unknown(a.key.as_str())),
        }
    }
    let length = length.ok_or_else(|| ApiError::invalid("a password policy needs a length"))?;
    PasswordPolicy::new(length, rules).map_err(|error| ApiError::invalid(error.to_string()))
}

fn rule(block: &hcl::Block) -> Result<CharsetRule, ApiError> {
    let label = block.labels.first().map(hcl::BlockLabel::as_str);
    if block.identifier.as_str() != "rule" || label != Some("charset") || block.labels.len() != 1 {
        return Err(unknown(block.identifier.as_str()));
    }
    let mut rule = CharsetRule { charset: String::new(), min_chars: 0 };
    for part in block.body.iter() {
        match part {
            hcl::Structure::Attribute(a) if a.key.as_str() == "charset" => match &a.expr {
                hcl::Expression::String(charset) => rule.charset.clone_from(charset),
                _ => return Err(ApiError::invalid("charset must be a string")),
            },
            hcl::Structure::Attribute(a) if matches!(a.key.as_str(), "min-chars" | "min_chars") => {
                rule.min_chars = number(&a.expr, "min-chars")?;
            }
            hcl::Structure::Attribute(a) => return Err(unknown(a.key.as_str())),
            hcl::Structure::Block(b) => return Err(unknown(b.identifier.as_str())),
        }
    }
    Ok(rule)
}

fn number(value: &hcl::Expression, name: &str) -> Result<usize, ApiError> {
    let number = match value {
        hcl::Expression::Number(number) => number.as_u64(),
        _ => None,
    };
    let number = number.and_then(|n| usize::try_from(n).ok());
    number.ok_or_else(|| ApiError::invalid(format!("{name} must be a number that is not negative")))
}

fn unknown(name: &str) -> ApiError {
    ApiError::invalid(format!("{name:?} has no meaning in a password policy"))
}

#[cfg(test)]
mod tests {
    use secrecy::ExposeSecret as _;

    use super::*;

    const POLICY: &str = r#"
        length = 30
        rule "charset" {
            charset = "abc"
            min-chars = 1
        }
        rule "charset" {
            charset = "0123456789"
            min-chars = 5
        }
    "#;

    #[test]
    fn a_policy_is_read_and_obeyed() {
        let policy = parse(POLICY).unwrap();
        let password = policy.generate();
        assert!(policy.is_met_by(password.expose_secret()));
        assert_eq!(password.expose_secret().len(), 30);
        let encoded = base64::engine::general_purpose::STANDARD.encode(POLICY);
        assert_eq!(parse(&encoded).unwrap(), policy);
    }

    #[test]
    fn fuzz_password_policies() {
        let seeds = [POLICY.as_bytes(), b"length = 4\nrule \"charset\" { charset = \"\xc3\xa9\" }"];
        holdfast_tests::fuzz::fuzz(
            &seeds,
            &["length", "rule", "charset", "min-chars", "=", "{", "\"", "${"],
            |input| match parse(&String::from_utf8_lossy(input)) {
                Ok(policy) => {
                    let password = policy.generate();
                    assert!(policy.is_met_by(password.expose_secret()));
                    "made one".to_owned()
                }
                Err(error) => error.to_string().lines().last().unwrap_or_default().to_owned(),
            },
        );
    }

    #[test]
    fn anything_else_is_refused() {
        for bad in [
            "length = 20",
            "rule \"charset\" { charset = \"ab\" }",
            "length = 3\nrule \"charset\" { charset = \"ab\" }",
            "length = 101\nrule \"charset\" { charset = \"ab\" }",
            "length = 20\nrule \"charset\" { charset = \"ab\" max = 1 }",
            "length = 20\nrule \"other\" { charset = \"ab\" }",
            "length = 20\ncolour = \"red\"\nrule \"charset\" { charset = \"ab\" }",
            "length = -1\nrule \"charset\" { charset = \"ab\" }",
            "length = {",
        ] {
            assert_eq!(parse(bad).unwrap_err().status(), 400, "{bad}");
        }
    }
}
