//! The replica's own token: from a file, or by a login.
//!
//! What must hold: one login at a time, however many objects need it; a refused login is not repeated at once; a token is
//! replaced before it ends, and a dead one once.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use holdfast_core::freshness::Failure;
use holdfast_core::time::doubling;
use holdfast_core::{AnswerKind, Mono};
use http::Method as Verb;
use serde_json::json;
use tokio::sync::Mutex;
use zeroize::Zeroizing;

use super::answer;
use super::link::{Ask, Link};
use crate::clock::{Clock as _, SystemClock};
use crate::config::UpstreamSettings;
use crate::upstream::{BuildError, credential};

/// Where Kubernetes puts the token of a pod's service account.
const SERVICE_ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount/token";
/// The pause after a refused login, and the longest.
const PAUSE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// A token of the backend; clones share it.
#[derive(Clone, Eq, PartialEq)]
pub(super) struct Token(Arc<Zeroizing<String>>);

impl Token {
    pub(super) fn expose(&self) -> &str {
        &self.0
    }
}

enum Method {
    TokenFile(PathBuf),
    AppRole { mount: String, role_id: String, secret_id_file: PathBuf },
    Kubernetes { mount: String, role: String, jwt_file: PathBuf },
    Cert,
}

/// Gives the token that is good now.
pub(super) struct Tokens {
    method: Method,
    clock: SystemClock,
    /// Held over a login, so that there is one.
    held: Mutex<Held>,
}

#[derive(Default)]
struct Held {
    token: Option<Token>,
    /// From when on another login replaces it.
    renew_at: Option<Mono>,
    /// Until when no login is tried after one that was refused, and how many were.
    pause: Option<Mono>,
    refusals: u32,
}

impl Tokens {
    pub(super) fn new(name: &str, settings: &UpstreamSettings) -> Result<Self, BuildError> {
        let mount = |given: &Option<String>, usual: &str| {
            given.as_deref().unwrap_or(usual).trim_matches('/').to_owned()
        };
        let method = if let Some(file) = &settings.token_file {
            Method::TokenFile(file.clone())
        } else if let Some(approle) = &settings.approle {
            Method::AppRole {
                mount: mount(&approle.mount, "approle"),
                role_id: approle.role_id.clone(),
                secret_id_file: approle.secret_id_file.clone(),
            }
        } else if let Some(login) = &settings.kubernetes {
            let jwt_file = login.jwt_file.clone().unwrap_or_else(|| PathBuf::from(SERVICE_ACCOUNT));
            Method::Kubernetes {
                mount: mount(&login.mount, "kubernetes"),
                role: login.role.clone(),
                jwt_file,
            }
        } else if settings.cert.is_some() {
            Method::Cert
        } else {
            return Err(BuildError::setting(name, "token_file", "or another way to log in is missing"));
        };
        Ok(Self { method, clock: SystemClock::default(), held: Mutex::default() })
    }

    /// The token, after a login if one is due.
    pub(super) async fn current(&self, link: &Link) -> Result<Token, Failure> {
        if let Method::TokenFile(file) = &self.method {
            return Ok(Token(Arc::new(credential::text(file)?)));
        }
        let mut held = self.held.lock().await;
        let now = self.clock.now().mono;
        let good = held.token.clone().filter(|_| held.renew_at.is_none_or(|at| now < at));
        match good {
            Some(token) => Ok(token),
            // One that is due to be replaced works on while no login succeeds.
            None => self.log_in(link, &mut held).await.or_else(|failure| held.token.clone().ok_or(failure)),
        }
    }

    /// Another token than the one that is dead.
    pub(super) async fn replace(&self, link: &Link, dead: &Token) -> Result<Token, Failure> {
        if matches!(self.method, Method::TokenFile(_)) {
            let token = self.current(link).await?;
            return if token == *dead { Err(Failure::own_login()) } else { Ok(token) };
        }
        let mut held = self.held.lock().await;
        match held.token.clone() {
            // Somebody else was first.
            Some(token) if token != *dead => Ok(token),
            _ => {
                held.token = None;
                self.log_in(link, &mut held).await
            }
        }
    }

    async fn log_in(&self, link: &Link, held: &mut Held) -> Result<Token, Failure> {
        let now = self.clock.now().mono;
        if held.pause.is_some_and(|until| now < until) {
            return Err(Failure::own_login());
        }
        let (mount, body) = self.request()?;
        let path = format!("auth/{mount}/login");
        let ask = Ask::new(Verb::POST, &path).once(true);
        let reply = link.send(ask.json(&body)).await?;
        if reply.status.is_server_error() {
            return Err(Failure::of(AnswerKind::Unavailable));
        }
        let auth = reply.status.is_success().then(|| answer::auth(&reply.body)).flatten();
        let Some((token, ttl)) = auth else {
            let (first, longest) = PAUSE;
            held.pause = Some(now.after(doubling(first, longest, held.refusals)));
            held.refusals = held.refusals.saturating_add(1);
            tracing::info!(status = reply.status.as_u16(), "the login at an upstream was refused");
            return Err(Failure::own_login());
        };
        let token = Token(Arc::new(token));
        let renew_at = (!ttl.is_zero()).then(|| now.after(ttl.mul_f64(0.66)));
        *held = Held { token: Some(token.clone()), renew_at, ..Held::default() };
        Ok(token)
    }

    fn request(&self) -> Result<(&str, serde_json::Value), Failure> {
        Ok(match &self.method {
            Method::AppRole { mount, role_id, secret_id_file } => {
                let secret_id = credential::text(secret_id_file)?;
                (mount, json!({ "role_id": role_id, "secret_id": secret_id.as_str() }))
            }
            Method::Kubernetes { mount, role, jwt_file } => {
                let jwt = credential::projected(jwt_file)?;
                (mount, json!({ "role": role, "jwt": jwt.as_str() }))
            }
            Method::Cert | Method::TokenFile(_) => ("cert", json!({})),
        })
    }
}
