//! Who calls: the methods of `auth.methods`, each on its own, and how they count together.
//!
//! What must hold: a request is let in only with an identity; a client learns from a refusal neither which check failed nor
//! whether a name exists; an authenticator is one immutable whole, and a reload puts another one in its place.

mod combine;
mod credential;
mod identity;
mod jwks;
mod jwt;
mod load;
mod peer;
mod rejection;
mod tokens;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use holdfast_core::Wall;
use http::{HeaderMap, HeaderName, HeaderValue};

pub use self::identity::{Identity, Method};
pub use self::peer::{BadCertificate, ClientCertificate, PeerFacts, UnixCredentials};
pub use self::rejection::{Reason, Refusal, Rejection};

use self::combine::combine;
use self::credential::{Authorization, only};
use self::identity::Evidence;
use self::jwt::Verifier;
use self::tokens::Tokens;
use crate::config::{AuthMode, MtlsSettings, PeercredSettings, SubjectFrom};

/// What a request shows of its caller.
#[derive(Clone, Copy, Debug)]
pub struct RequestFacts<'a> {
    /// Its headers.
    pub headers: &'a HeaderMap,
    /// The far end of its connection.
    pub peer: &'a PeerFacts,
}

/// The configured methods with the files they read.
#[derive(Debug)]
pub struct Authenticator {
    mode: AuthMode,
    checks: Vec<Check>,
    challenges: Vec<HeaderValue>,
    /// Files that hold no entry.
    empty: Vec<Empty>,
}

/// A file that is good and holds nothing: the start fails with it, a reload applies it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Empty {
    /// The key that names it.
    pub key: &'static str,
    /// The file.
    pub path: PathBuf,
}

#[derive(Debug)]
enum Check {
    Token(Arc<Tokens>),
    Header(HeaderName, Arc<Tokens>),
    Basic(Arc<Tokens>),
    Mtls(MtlsSettings),
    Peercred(PeercredSettings),
    Jwt(Box<Verifier>),
    None,
}

impl Authenticator {
    /// Finds out who calls. `now` is the time of day, for what expires.
    ///
    /// # Errors
    /// What to answer, and for the audit line why.
    pub fn authenticate(&self, facts: &RequestFacts<'_>, now: Wall) -> Result<Identity, Rejection> {
        if let [Check::None] = *self.checks {
            return Ok(Identity::nobody());
        }
        let authorization = Authorization::of(facts.headers).map_err(|reason| Rejection {
            forbidden: false,
            refusals: vec![Refusal { method: None, reason }],
        })?;
        let attempt = |check: &Check| (check.method(), check.ask(facts, authorization, now));
        combine(self.mode, self.checks.iter().map(attempt))
    }

    /// Judges an identity again, that this authenticator or one before it found: after a reload, and when it expires. What
    /// it found is the identity as of now; its groups may differ.
    ///
    /// # Errors
    /// When its credential has ended, or is not one any more.
    pub fn again(&self, identity: &Identity, now: Wall) -> Result<Identity, Rejection> {
        let attempt = |check: &Check| (check.method(), check.again(identity, now));
        combine(self.mode, self.checks.iter().map(attempt))
    }

    /// The values of `WWW-Authenticate` for a 401, one header each; none when no method can challenge.
    pub fn challenges(&self) -> &[HeaderValue] {
        &self.challenges
    }

    /// The files without entries. At the start each is a problem; at a reload the new authenticator counts, nobody of that
    /// file is let in, and that is worth one ERROR.
    pub fn empty(&self) -> &[Empty] {
        &self.empty
    }
}

impl Check {
    const fn method(&self) -> Method {
        match self {
            Self::Token(_) => Method::Token,
            Self::Header(..) => Method::Header,
            Self::Basic(_) => Method::Basic,
            Self::Mtls(_) => Method::Mtls,
            Self::Peercred(_) => Method::Peercred,
            Self::Jwt(_) => Method::Jwt,
            Self::None => Method::None,
        }
    }

    fn ask(
        &self,
        facts: &RequestFacts<'_>,
        authorization: Authorization<'_>,
        now: Wall,
    ) -> Result<Identity, Reason> {
        match self {
            Self::Token(tokens) => tokens.find(Method::Token, authorization.bearer()?, now),
            Self::Header(name, tokens) => tokens.find(Method::Header, only(facts.headers, name)?, now),
            Self::Basic(tokens) => {
                let both = authorization.basic()?;
                let identity = tokens.find(Method::Basic, both.password(), now)?;
                let own = identity.subject.as_bytes() == both.user();
                if own { Ok(identity) } else { Err(Reason::WrongSubject) }
            }
            Self::Mtls(settings) => {
                by_certificate(settings, facts.peer.certificate.as_ref().ok_or(Reason::NoCredential)?, now)
            }
            Self::Peercred(settings) => {
                by_peer(settings, facts.peer.credentials.ok_or(Reason::NoCredential)?)
            }
            Self::Jwt(verifier) => verifier.find(authorization.bearer()?, now),
            Self::None => Ok(Identity::nobody()),
        }
    }

    fn again(&self, identity: &Identity, now: Wall) -> Result<Identity, Reason> {
        let evidence = identity.evidence.iter().find(|evidence| evidence.method() == self.method());
        match (self, evidence.ok_or(Reason::Method)?) {
            (Self::Token(tokens) | Self::Header(_, tokens), Evidence::Token { method, sha256, .. }) => {
                tokens.find_hash(*method, sha256, now)
            }
            (Self::Basic(tokens), Evidence::Token { method, sha256, subject }) => {
                let identity = tokens.find_hash(*method, sha256, now)?;
                if identity.subject == *subject { Ok(identity) } else { Err(Reason::WrongSubject) }
            }
            (Self::Mtls(settings), Evidence::Certificate(certificate)) => {
                by_certificate(settings, certificate, now)
            }
            (Self::Peercred(settings), Evidence::Peer(peer)) => by_peer(settings, *peer),
            (Self::Jwt(verifier), Evidence::Jwt(accepted)) => verifier.again(accepted, now),
            (Self::None, Evidence::Nobody) => Ok(Identity::nobody()),
            _ => Err(Reason::Method),
        }
    }
}

fn by_certificate(
    settings: &MtlsSettings,
    certificate: &Arc<ClientCertificate>,
    now: Wall,
) -> Result<Identity, Reason> {
    // The handshake may be long ago.
    if now >= certificate.not_after {
        return Err(Reason::Expired);
    }
    let subject = match settings.subject_from {
        SubjectFrom::Cn => certificate.cn.as_ref(),
        SubjectFrom::DnsSan => certificate.dns.first(),
        SubjectFrom::UriSan => certificate.uris.first(),
    };
    let subject = subject.filter(|subject| !subject.is_empty()).ok_or(Reason::NoSubject)?;
    let listed = |list: &[String], name: &Arc<str>| list.iter().any(|own| **own == **name);
    let any = settings.allow_cn.is_empty() && settings.allow_san.is_empty();
    let by_cn = || certificate.cn.iter().any(|cn| listed(&settings.allow_cn, cn));
    let by_san = || certificate.sans.iter().any(|san| listed(&settings.allow_san, san));
    if !any && !by_cn() && !by_san() {
        return Err(Reason::NotAllowed);
    }
    let evidence = Evidence::Certificate(Arc::clone(certificate));
    let identity = Identity::found(Method::Mtls, Arc::clone(subject), evidence);
    Ok(Identity { sans: Arc::clone(&certificate.sans), expires: Some(certificate.not_after), ..identity })
}

fn by_peer(settings: &PeercredSettings, peer: UnixCredentials) -> Result<Identity, Reason> {
    let any = settings.uids.is_empty() && settings.gids.is_empty();
    if !any && !settings.uids.contains(&peer.uid) && !settings.gids.contains(&peer.gid) {
        return Err(Reason::NotAllowed);
    }
    let subject = Arc::from(format!("uid:{}", peer.uid));
    let identity = Identity::found(Method::Peercred, subject, Evidence::Peer(peer));
    Ok(Identity { uid: Some(peer.uid), gid: Some(peer.gid), pid: Some(peer.pid), ..identity })
}

/// Reads a text file of a plausible size.
fn read_file(path: &Path, max_bytes: u64) -> Result<String, String> {
    use std::io::Read as _;
    use std::os::unix::fs::OpenOptionsExt as _;
    let unreadable = |error: std::io::Error| format!("cannot be read: {error}");
    // A pipe would hold the reload up for as long as nobody writes to it.
    let mut options = std::fs::OpenOptions::new();
    let file = options.read(true).custom_flags(nix::libc::O_NONBLOCK).open(path).map_err(unreadable)?;
    if !file.metadata().map_err(unreadable)?.is_file() {
        return Err("is not a regular file".to_owned());
    }
    let mut text = String::new();
    file.take(max_bytes.saturating_add(1)).read_to_string(&mut text).map_err(unreadable)?;
    if u64::try_from(text.len()).is_ok_and(|length| length <= max_bytes) {
        Ok(text)
    } else {
        Err(format!("has more than {max_bytes} bytes"))
    }
}

#[cfg(test)]
#[path = "auth/auth_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "auth/certificate_tests.rs"]
mod certificate_tests;
