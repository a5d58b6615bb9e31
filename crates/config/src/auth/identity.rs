//! Who a caller turned out to be.

use std::fmt;
use std::sync::Arc;

use holdfast_core::Wall;

use crate::label::label;

label! {
    /// A way to find out who calls; the names are those of `auth.methods`.
    Method {
        /// A bearer token of the token file.
        Token = "token",
        /// The same in a header of its own.
        Header = "header",
        /// The same as a password.
        Basic = "basic",
        /// A client certificate.
        Mtls = "mtls",
        /// The peer of a Unix socket.
        Peercred = "peercred",
        /// A JSON web token.
        Jwt = "jwt",
        /// Nobody is asked.
        None = "none",
    }
}

/// A caller, as the policy and the audit see it. Cheap to clone.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Identity {
    /// Its name; empty without authentication.
    pub subject: Arc<str>,
    /// Its groups.
    pub groups: Arc<[Arc<str>]>,
    /// The alternative names of its certificate.
    pub sans: Arc<[Arc<str>]>,
    /// The user at the far end of a Unix socket.
    pub uid: Option<u32>,
    /// Its primary group.
    pub gid: Option<u32>,
    /// Its process.
    pub pid: Option<i32>,
    /// The method that named the subject.
    pub method: Method,
    /// When the credential ends; its streams are judged again then.
    pub expires: Option<Wall>,
    /// What it was found by, to be judged again without the credential itself.
    pub(super) evidence: Arc<[Evidence]>,
}

impl Identity {
    /// The empty one, which only rules for everyone match.
    pub fn nobody() -> Self {
        Self::found(Method::None, Arc::from(""), Evidence::Nobody)
    }

    /// One that no credential stands behind: for asking the policy what somebody may.
    pub fn supposed(subject: &str, groups: &[String]) -> Self {
        let groups = groups.iter().map(|group| Arc::from(&**group)).collect();
        let nobody = Self { evidence: Arc::default(), ..Self::nobody() };
        Self { subject: Arc::from(subject), groups, ..nobody }
    }

    pub(super) fn found(method: Method, subject: Arc<str>, evidence: Evidence) -> Self {
        Self {
            subject,
            groups: Arc::default(),
            sans: Arc::default(),
            uid: None,
            gid: None,
            pid: None,
            method,
            expires: None,
            evidence: Arc::new([evidence]),
        }
    }

    /// Both at once: the first names the subject, groups and names are united, the earlier end counts.
    pub(super) fn united(self, other: &Self) -> Self {
        let evidence = self.evidence.iter().chain(&*other.evidence).cloned().collect();
        Self {
            groups: union(&self.groups, &other.groups),
            sans: union(&self.sans, &other.sans),
            uid: self.uid.or(other.uid),
            gid: self.gid.or(other.gid),
            pid: self.pid.or(other.pid),
            expires: [self.expires, other.expires].into_iter().flatten().min(),
            evidence,
            ..self
        }
    }
}

/// What an identity rests on. It names a credential and is none.
#[derive(Clone, Eq, PartialEq)]
pub(super) enum Evidence {
    Nobody,
    /// An entry of the token file, by the SHA-256 of the token.
    Token {
        method: Method,
        sha256: [u8; 32],
        subject: Arc<str>,
    },
    Certificate(Arc<super::peer::ClientCertificate>),
    Peer(super::peer::UnixCredentials),
    Jwt(Arc<super::jwt::Accepted>),
}

impl Evidence {
    pub(super) const fn method(&self) -> Method {
        match self {
            Self::Nobody => Method::None,
            Self::Token { method, .. } => *method,
            Self::Certificate(_) => Method::Mtls,
            Self::Peer(_) => Method::Peercred,
            Self::Jwt(_) => Method::Jwt,
        }
    }
}

impl fmt::Debug for Evidence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.method().label())
    }
}

fn union(a: &Arc<[Arc<str>]>, b: &Arc<[Arc<str>]>) -> Arc<[Arc<str>]> {
    if b.is_empty() {
        return Arc::clone(a);
    }
    a.iter().chain(b.iter().filter(|item| !a.contains(item))).cloned().collect()
}
