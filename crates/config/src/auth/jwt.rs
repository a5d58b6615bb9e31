//! JSON web tokens: the token never chooses its algorithm, nor the type of its key.
//!
//! Times are judged by the clock that the caller hands in, not by the library's.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use holdfast_core::Wall;
use jsonwebtoken::errors::ErrorKind;
use jsonwebtoken::{Algorithm, AlgorithmFamily, Validation};
use serde::Deserialize;
use serde_json::Value;

use super::identity::{Evidence, Identity, Method};
use super::jwks::{Key, Keys};
use super::rejection::Reason;
use crate::config::JwtSettings;
use crate::problem::Problem;

/// The key of the configuration that names the JWKS.
pub(super) const KEY: &str = "auth.jwt.jwks_file";
/// How far clocks may differ.
const LEEWAY: Duration = Duration::from_secs(30);
/// A longer token is none.
const MAX_TOKEN: usize = 16 * 1024;
/// A larger JWKS is the wrong file.
const MAX_BYTES: u64 = 1 << 20;
/// Unless `auth.jwt.algorithms` says otherwise.
const DEFAULT: [Algorithm; 3] = [Algorithm::RS256, Algorithm::ES256, Algorithm::EdDSA];

/// Verifies tokens.
#[derive(Debug)]
pub(super) struct Verifier {
    keys: Keys,
    algorithms: Vec<Algorithm>,
    issuer: String,
    audience: String,
    groups_claim: Option<String>,
}

/// A token that was let in: what is needed to judge it again, without the token.
#[derive(Eq, PartialEq)]
pub(super) struct Accepted {
    key: [u8; 32],
    algorithm: Algorithm,
    issuer: String,
    audiences: Vec<String>,
    groups_claim: Option<String>,
    subject: Arc<str>,
    groups: Arc<[Arc<str>]>,
    expires: Wall,
}

#[derive(Deserialize)]
struct Claims {
    iss: Option<String>,
    sub: Option<String>,
    aud: Option<Audience>,
    exp: Option<f64>,
    nbf: Option<f64>,
    #[serde(flatten)]
    more: serde_json::Map<String, Value>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Audience {
    One(String),
    Many(Vec<String>),
}

impl Verifier {
    /// Reads the JWKS of these settings.
    pub(super) fn new(settings: &JwtSettings) -> Result<Self, Vec<Problem>> {
        let mut problems = Vec::new();
        let algorithms = algorithms(&settings.algorithms, &mut problems);
        for (key, value) in [("issuer", &settings.issuer), ("audience", &settings.audience)] {
            if value.is_empty() {
                problems.push(Problem::new(
                    format!("auth.jwt.{key}"),
                    format!("auth.jwt.{key} must not be empty"),
                ));
            }
        }
        // Without its algorithms a file cannot be judged.
        if !problems.is_empty() {
            return Err(problems);
        }
        let path = settings.jwks_file.display();
        let faulty = |what: String| Problem::new(KEY, format!("JWKS file {path} {what}"));
        let text = read(&settings.jwks_file, &algorithms).map_err(|why| vec![faulty(why)])?;
        let keys = Keys::parse(&text, &algorithms);
        let keys = keys.map_err(|faults| faults.into_iter().map(faulty).collect::<Vec<_>>())?;
        Ok(Self {
            keys,
            algorithms,
            issuer: settings.issuer.clone(),
            audience: settings.audience.clone(),
            groups_claim: settings.groups_claim.clone(),
        })
    }

    /// Whether no token can be verified.
    pub(super) fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// Who shows this token.
    pub(super) fn find(&self, token: &[u8], now: Wall) -> Result<Identity, Reason> {
        if token.len() > MAX_TOKEN {
            return Err(Reason::Malformed);
        }
        let header = jsonwebtoken::decode_header(token).map_err(|_| Reason::Malformed)?;
        if !self.algorithms.contains(&header.alg) {
            return Err(Reason::Algorithm);
        }
        let mut reason = Reason::UnknownKey;
        for key in self.keys.for_token(header.kid.as_deref(), header.alg) {
            match verified(token, key, header.alg) {
                Ok(claims) => return self.judge(claims, key, header.alg, now),
                Err(Reason::Signature) => reason = Reason::Signature,
                Err(other) => return Err(other),
            }
        }
        Err(reason)
    }

    /// Whether a token that was let in would be let in now.
    pub(super) fn again(&self, accepted: &Arc<Accepted>, now: Wall) -> Result<Identity, Reason> {
        if !self.algorithms.contains(&accepted.algorithm) {
            return Err(Reason::Algorithm);
        }
        if !self.keys.holds(&accepted.key, accepted.algorithm) {
            return Err(Reason::UnknownKey);
        }
        if accepted.issuer != self.issuer {
            return Err(Reason::Issuer);
        }
        if !accepted.audiences.contains(&self.audience) {
            return Err(Reason::Audience);
        }
        // What another claim says of groups is not known any more.
        if accepted.groups_claim != self.groups_claim {
            return Err(Reason::Method);
        }
        if now >= accepted.expires { Err(Reason::Expired) } else { Ok(accepted.identity()) }
    }

    fn judge(&self, claims: Claims, key: &Key, algorithm: Algorithm, now: Wall) -> Result<Identity, Reason> {
        let issuer = claims.iss.filter(|issuer| *issuer == self.issuer).ok_or(Reason::Issuer)?;
        let audiences = match claims.aud.ok_or(Reason::Audience)? {
            Audience::One(audience) => vec![audience],
            Audience::Many(audiences) => audiences,
        };
        if !audiences.contains(&self.audience) {
            return Err(Reason::Audience);
        }
        let end = seconds(claims.exp.ok_or(Reason::MissingClaim)?);
        if now >= end.after(LEEWAY) {
            return Err(Reason::Expired);
        }
        if claims.nbf.is_some_and(|begin| now.after(LEEWAY) < seconds(begin)) {
            return Err(Reason::NotYet);
        }
        let subject = claims.sub.filter(|subject| !subject.is_empty()).ok_or(Reason::MissingClaim)?;
        let groups = match &self.groups_claim {
            Some(claim) => groups(claims.more.get(claim))?,
            None => Arc::default(),
        };
        // Where only the leeway let it in, its streams may use the leeway up.
        let expires = if end > now { end } else { end.after(LEEWAY) };
        let accepted = Accepted {
            key: key.id,
            algorithm,
            issuer,
            audiences,
            groups_claim: self.groups_claim.clone(),
            subject: Arc::from(subject),
            groups,
            expires,
        };
        Ok(Arc::new(accepted).identity())
    }
}

impl Accepted {
    fn identity(self: &Arc<Self>) -> Identity {
        let evidence = Evidence::Jwt(Arc::clone(self));
        let identity = Identity::found(Method::Jwt, Arc::clone(&self.subject), evidence);
        Identity { groups: Arc::clone(&self.groups), expires: Some(self.expires), ..identity }
    }
}

/// The claims of a token that this key signed. They are not judged here.
fn verified(token: &[u8], key: &Key, algorithm: Algorithm) -> Result<Claims, Reason> {
    let mut only_signature = Validation::new(algorithm);
    only_signature.required_spec_claims.clear();
    only_signature.validate_exp = false;
    only_signature.validate_aud = false;
    match jsonwebtoken::decode(token, &key.decoding, &only_signature) {
        Ok(data) => Ok(data.claims),
        Err(error) => Err(match error.kind() {
            ErrorKind::InvalidSignature => Reason::Signature,
            ErrorKind::InvalidAlgorithm | ErrorKind::InvalidKeyFormat => Reason::Algorithm,
            _ => Reason::Malformed,
        }),
    }
}

/// A claim that names groups: a text or a list of texts. Anything else is refused, since a rule may deny a group that
/// would go unseen.
fn groups(claim: Option<&Value>) -> Result<Arc<[Arc<str>]>, Reason> {
    let text = |value: &Value| value.as_str().map(Arc::from).ok_or(Reason::Malformed);
    match claim {
        None | Some(Value::Null) => Ok(Arc::default()),
        Some(Value::Array(list)) => list.iter().map(text).collect(),
        Some(one) => Ok(Arc::new([text(one)?])),
    }
}

/// RFC 7519's NumericDate.
fn seconds(number: f64) -> Wall {
    #[allow(clippy::cast_possible_truncation, reason = "a cast from a float saturates")]
    let micros = (number * 1e6) as i64;
    Wall::from_micros(micros)
}

fn algorithms(names: &[String], problems: &mut Vec<Problem>) -> Vec<Algorithm> {
    if names.is_empty() {
        return DEFAULT.to_vec();
    }
    let mut list = Vec::new();
    for name in names {
        match name.parse() {
            Ok(algorithm) => list.push(algorithm),
            Err(_) => {
                let what = format!("auth.jwt.algorithms: {name:?} is not supported");
                problems.push(Problem::new("auth.jwt.algorithms", what));
            }
        }
    }
    list
}

/// A file with a shared secret is one that only its owner may read.
fn read(path: &Path, algorithms: &[Algorithm]) -> Result<zeroize::Zeroizing<Vec<u8>>, String> {
    if algorithms.iter().any(|algorithm| algorithm.family() == AlgorithmFamily::Hmac) {
        let secret =
            holdfast_ops::secret_file::read(path).map_err(|error| format!("cannot be used: {error}"))?;
        return Ok(secrecy::ExposeSecret::expose_secret(&secret).to_vec().into());
    }
    super::read_file(path, MAX_BYTES).map(|text| text.into_bytes().into())
}

#[cfg(test)]
#[path = "jwt_tests.rs"]
mod tests;
