//! `vault:` and `hub:`: secrets of a Vault, an OpenBao or our hub, by its HTTP API.
//!
//! What must hold: a key-value secret is the whole data map with its keys in order; a leased one is never asked for twice
//! where once would do; 403 counts as the answer for the object only while the own token is alive.

mod answer;
mod link;
mod login;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::time::Duration;

use async_trait::async_trait;
use holdfast_core::freshness::{Failure, Outcome};
use holdfast_core::{AnswerKind, Mono};
use http::{Method, StatusCode};
use parking_lot::Mutex;
use serde::Serialize;

use self::answer::Store;
use self::link::{Ask, Link, Reply};
use self::login::{Token, Tokens};
use super::{BuildError, http_answer};
use crate::clock::{Clock as _, SystemClock};
use crate::config::UpstreamSettings;
use crate::provider::{Fetched, Lease, Provider};
use crate::reference::ObjectKey;
use crate::value::Value;

/// How long it is believed what a mount is, once something below it is missing.
const BELIEVED: Duration = Duration::from_secs(300);
/// The provider's own option: `true` says that reading makes a lease, `false` that leases are not renewed.
const RENEW: &str = "renew";

/// One Vault, OpenBao or hub.
pub struct Vault {
    link: Link,
    tokens: Tokens,
    clock: SystemClock,
    mounts: Mutex<BTreeMap<String, (Store, Mono)>>,
}

/// Where an object may be read.
struct Place {
    path: String,
    store: Store,
}

impl Vault {
    /// From `[upstream.NAME]`.
    ///
    /// # Errors
    /// When a setting cannot be used.
    pub fn new(name: &str, settings: &UpstreamSettings) -> Result<Self, BuildError> {
        Ok(Self {
            link: Link::new(name, settings)?,
            tokens: Tokens::new(name, settings)?,
            clock: SystemClock::default(),
            mounts: Mutex::default(),
        })
    }

    async fn get(&self, object: &ObjectKey) -> Result<Fetched, Failure> {
        let path = object.path.trim_matches('/');
        let known = |key: &str| matches!(key, RENEW | "via" | "optional");
        let odd = path.split('/').any(|segment| matches!(segment, "" | "." | ".."));
        if odd || !object.options.keys().all(|key| known(key)) {
            return Err(Failure::of(AnswerKind::Invalid));
        }
        let token = self.tokens.current(&self.link).await?;
        match self.read(object, path, &token).await? {
            Some(fetched) => Ok(fetched),
            // Refused: by the policy, or because the token is no longer one.
            None if self.is_alive(&token).await? => Err(Failure::of(AnswerKind::PermissionDenied)),
            None => {
                let token = self.tokens.replace(&self.link, &token).await?;
                let again = self.read(object, path, &token).await?;
                again.ok_or(Failure::of(AnswerKind::PermissionDenied))
            }
        }
    }

    /// Reads wherever the object may be; none when it is refused.
    async fn read(&self, object: &ObjectKey, path: &str, token: &Token) -> Result<Option<Fetched>, Failure> {
        let (mut refused, mut missing) = (false, false);
        for place in self.places(path, token).await? {
            let once = self.mints(object);
            let ask = Ask::new(Method::GET, &place.path).token(token).once(once);
            let reply = self.link.send(ask).await?;
            match reply.status {
                StatusCode::FORBIDDEN => refused = true,
                // A deleted version is a 404 as well.
                StatusCode::NOT_FOUND => missing = true,
                _ => match self.understand(object, path, &place, &reply)? {
                    Some(fetched) => return Ok(Some(fetched)),
                    None => missing = true,
                },
            }
        }
        if missing {
            self.doubt(path);
            return Ok(Some(Outcome::Absent.into()));
        }
        Ok((!refused).then(|| Outcome::Absent.into()))
    }

    /// What an answer holds; none when it is not what this place would hold.
    fn understand(
        &self,
        object: &ObjectKey,
        path: &str,
        place: &Place,
        reply: &Reply,
    ) -> Result<Option<Fetched>, Failure> {
        if let Some(outcome) = http_answer::meaning(reply.status, &reply.headers) {
            return Ok(Some(outcome.into()));
        }
        let renewable = object.options.get(RENEW).is_none_or(|text| text != "false");
        let read = match place.store {
            Store::Versioned => answer::versioned(&reply.body),
            Store::Plain => answer::plain(&reply.body, renewable),
            // A guess: only an answer of that very shape confirms it.
            Store::Unknown => match answer::versioned(&reply.body) {
                Err(_) => return Ok(None),
                read => {
                    self.learn(first_segment(path), Store::Versioned);
                    read
                }
            },
        };
        read.map(Some).map_err(Failure::of)
    }

    /// Where a path is read, after what its mount is.
    async fn places(&self, path: &str, token: &Token) -> Result<Vec<Place>, Failure> {
        let known = self.known(path);
        let (mount, store) = match known {
            Some(known) => known,
            None => self.ask_mount(path, token).await?,
        };
        let plain = Place { path: path.to_owned(), store: Store::Plain };
        let rest = path.strip_prefix(&mount).unwrap_or_default().trim_start_matches('/');
        let rest = rest.strip_prefix("data/").unwrap_or(rest);
        let data = |store| Place { path: format!("{mount}/data/{rest}"), store };
        Ok(match store {
            Store::Plain => vec![plain],
            Store::Versioned => vec![data(Store::Versioned)],
            Store::Unknown => vec![data(Store::Unknown), plain],
        })
    }

    fn known(&self, path: &str) -> Option<(String, Store)> {
        let mounts = self.mounts.lock();
        let below = |mount: &str| path.strip_prefix(mount).is_some_and(|rest| rest.starts_with('/'));
        mounts.iter().rev().find(|(mount, _)| below(mount)).map(|(mount, (store, _))| (mount.clone(), *store))
    }

    /// Asks what the mount of a path is. Who may not ask has to guess.
    async fn ask_mount(&self, path: &str, token: &Token) -> Result<(String, Store), Failure> {
        let asked = format!("sys/internal/ui/mounts/{path}");
        let reply = self.link.send(Ask::new(Method::GET, &asked).token(token)).await?;
        let guess = (first_segment(path).to_owned(), Store::Unknown);
        if reply.status.is_server_error() || reply.status == StatusCode::TOO_MANY_REQUESTS {
            let meaning = http_answer::meaning(reply.status, &reply.headers);
            let Some(Outcome::Error(failure)) = meaning else { return Ok(guess) };
            return Err(failure);
        }
        if !reply.status.is_success() {
            return Ok(guess);
        }
        let Some((mount, store)) = answer::mount(&reply.body) else { return Ok(guess) };
        self.learn(&mount, store);
        Ok((mount, store))
    }

    fn learn(&self, mount: &str, store: Store) {
        self.mounts.lock().insert(mount.to_owned(), (store, self.clock.now().mono));
    }

    /// Something is missing: its mount may have become another one, so it is asked again before long.
    fn doubt(&self, path: &str) {
        let now = self.clock.now().mono;
        let Some((mount, _)) = self.known(path) else { return };
        let mut mounts = self.mounts.lock();
        if mounts.get(&mount).is_some_and(|(_, since)| now.since(*since) > BELIEVED) {
            mounts.remove(&mount);
        }
    }

    async fn is_alive(&self, token: &Token) -> Result<bool, Failure> {
        let ask = Ask::new(Method::GET, "auth/token/lookup-self").token(token);
        let reply = self.link.send(ask).await?;
        if reply.status.is_server_error() {
            return Err(Failure::of(AnswerKind::Unavailable));
        }
        Ok(reply.status.is_success())
    }

    async fn lease_call(&self, path: &str, body: &impl Serialize) -> Result<Reply, Failure> {
        let token = self.tokens.current(&self.link).await?;
        let ask = Ask::new(Method::PUT, path).token(&token).once(true);
        self.link.send(ask.json(body)).await
    }
}

#[async_trait]
impl Provider for Vault {
    async fn fetch(&self, object: &ObjectKey, _held: Option<&Value>) -> Fetched {
        self.get(object).await.unwrap_or_else(|failure| Outcome::Error(failure).into())
    }

    async fn renew(&self, lease: &Lease) -> Result<Lease, AnswerKind> {
        #[derive(Serialize)]
        struct Body<'a> {
            lease_id: &'a str,
            increment: u64,
        }
        let body = Body { lease_id: &lease.id, increment: lease.ttl.as_secs() };
        let reply = self.lease_call("sys/leases/renew", &body).await.map_err(|failure| failure.kind)?;
        match http_answer::meaning(reply.status, &reply.headers) {
            None => answer::lease(&reply.body),
            Some(Outcome::Error(failure)) => Err(failure.kind),
            Some(_) => Err(AnswerKind::NotFound),
        }
    }

    async fn revoke(&self, lease: &Lease) {
        #[derive(Serialize)]
        struct Body<'a> {
            lease_id: &'a str,
        }
        let done = self.lease_call("sys/leases/revoke", &Body { lease_id: &lease.id }).await;
        if !done.is_ok_and(|reply| reply.status.is_success()) {
            tracing::info!("a lease could not be given back; it expires by itself");
        }
    }

    fn mints(&self, object: &ObjectKey) -> bool {
        let says = object.options.get(RENEW).is_some_and(|text| text == "true");
        says || object.path.split('/').any(|segment| segment == "creds")
    }
}

fn first_segment(path: &str) -> &str {
    path.split('/').next().unwrap_or(path)
}
