//! One request on the authenticated routes: who asks, what the audit says, and the headers that only these routes have.

use std::net::SocketAddr;
use std::sync::Arc;

use holdfast_core::{AnswerKind, Now};
use holdfast_net::serve::{Body, Connection, Peer};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, header};
use hyper::body::Incoming;

use super::route::Path;
use super::{Api, Refused, World, answer, status, values, watch};
use crate::audit::{Line, Message};
use crate::auth::{ClientCertificate, Identity, PeerFacts, RequestFacts, UnixCredentials};
use crate::config::Verb;
use crate::fanout::board::Record;
use crate::metrics::AuthLabels;
use crate::upstream::hops::VIA;
use crate::wire::{Fault, message};

/// The most servers that a request may have passed.
const HOPS: usize = 8;

/// A request.
pub(super) struct Exchange {
    pub(super) api: Arc<Api>,
    pub(super) world: Arc<World>,
    pub(super) path: Path,
    pub(super) peer: Peer,
    pub(super) parts: Parts,
    pub(super) id: String,
    pub(super) began: Now,
    /// None until it is known.
    pub(super) identity: Option<Identity>,
}

/// What an audit line says of an answer.
#[derive(Clone, Copy, Default)]
pub(super) struct Note<'a> {
    pub(super) name: &'a [u8],
    pub(super) allow: bool,
    pub(super) kind: Option<AnswerKind>,
    pub(super) status: u16,
    pub(super) reason: &'a str,
    pub(super) record: Option<&'a Record>,
}

impl Exchange {
    /// Answers it.
    pub(super) async fn run(
        api: Arc<Api>,
        path: Path,
        peer: Peer,
        request: Request<Incoming>,
    ) -> Response<Body> {
        let (parts, body) = request.into_parts();
        let (world, id, began) = (api.world(), api.request_id(), api.parts.clock.now());
        let mut this = Self { api, world, path, peer, parts, id, began, identity: None };
        let (id, tag) = (this.id.clone(), this.world.configuration.digest.whole.short());
        let (api, route) = (Arc::clone(&this.api), this.path.route());
        let (mut response, kind) = match this.admit() {
            Ok(()) => this.serve(body).await,
            Err(refused) => this.refuse(&refused),
        };
        let headers = response.headers_mut();
        for (name, text) in [("holdfast-request-id", &id), ("holdfast-config", &tag)] {
            if let Ok(value) = HeaderValue::from_str(text) {
                headers.insert(name, value);
            }
        }
        let took = api.parts.clock.now().mono.since(began.mono);
        api.parts.meters.request(route, response.status().as_u16(), kind, took);
        response
    }

    /// Who asks, and whether it is not too much.
    fn admit(&mut self) -> Result<(), Refused> {
        let facts = self.peer.connection.facts(facts);
        let none = PeerFacts::default();
        let peer = facts.as_deref().unwrap_or(&none);
        let facts = RequestFacts { headers: &self.parts.headers, peer };
        let identity = self.world.configuration.authenticator.authenticate(&facts, self.began.wall).map_err(
            |rejection| {
                for refusal in &rejection.refusals {
                    let method = refusal.method.map_or("", |method| method.label());
                    let labels = AuthLabels { method, reason: refusal.reason.label() };
                    self.api.parts.meters.auth_failures.get_or_create(&labels).inc();
                }
                let (kind, message) = rejection.answer();
                Refused { fault: Fault::new(kind, message), retry_after: None, reason: rejection.reason() }
            },
        )?;
        let limited = self.api.parts.limits.request(&identity.subject, self.began.mono);
        self.identity = Some(identity);
        limited.map_err(|limited| self.limited(limited))?;
        self.check_loop()
    }

    pub(super) fn limited(&self, limited: crate::ratelimit::Limited) -> Refused {
        self.api.parts.meters.limited(limited.limit);
        let reason = limited.limit.label().to_owned();
        Refused { fault: Fault::RATE_LIMITED, retry_after: Some(limited.retry_after), reason }
    }

    /// A request that passed this server before, or too many of them, would go round for ever.
    fn check_loop(&self) -> Result<(), Refused> {
        let own = self.api.parts.boot;
        let mut hops = 0;
        for value in self.parts.headers.get_all(VIA) {
            for hop in value.as_bytes().split(|byte| *byte == b',') {
                hops += 1;
                if hop.trim_ascii() == own.as_str().as_bytes() || hops >= HOPS {
                    return Err(Fault::new(AnswerKind::Invalid, message::CHAINING_LOOP).into());
                }
            }
        }
        Ok(())
    }

    async fn serve(self, body: Incoming) -> (Response<Body>, Option<AnswerKind>) {
        match &self.path {
            Path::Value(name) => values::one(&self, name),
            Path::Batch => values::batch(self, body).await,
            Path::Watch => watch::open(self, body).await,
            Path::Status => self.operator(Verb::Status, status::answer),
            _ => {
                self.operator(Verb::Metrics, |exchange| status::metrics(exchange.api.parts.status.metrics()))
            }
        }
    }

    /// A route for operators.
    fn operator(
        &self,
        verb: Verb,
        answer: impl FnOnce(&Self) -> Response<Body>,
    ) -> (Response<Body>, Option<AnswerKind>) {
        if !self.allows(verb, b"") {
            return self.refuse(&Fault::DENIED.into());
        }
        let _ = self.record(Note { allow: true, status: 200, ..Note::default() });
        (answer(self), None)
    }

    /// Whether the policy lets the caller do this to a name.
    pub(super) fn allows(&self, verb: Verb, name: &[u8]) -> bool {
        let policy = &self.world.configuration.policy;
        let decide = |identity: &Identity| policy.decide(identity, verb, name, self.began.wall).allow;
        let allowed = self.identity.as_ref().is_some_and(decide);
        if allowed && self.parts.headers.contains_key(VIA) {
            self.api.parts.hops.hear(name, &self.parts.headers);
        }
        allowed
    }

    /// Refuses the request as a whole.
    pub(super) fn refuse(&self, refused: &Refused) -> (Response<Body>, Option<AnswerKind>) {
        let fault = refused.fault;
        let mut response = answer::refusal(fault);
        let headers = response.headers_mut();
        if let Some(seconds) = refused.retry_after {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if fault.kind == AnswerKind::Unauthenticated {
            for challenge in self.world.configuration.authenticator.challenges() {
                headers.append(header::WWW_AUTHENTICATE, challenge.clone());
            }
        }
        let name = if let Path::Value(name) = &self.path { name } else { &b""[..] };
        let status = response.status().as_u16();
        let reason = refused.reason.as_str();
        let _ = self.record(Note { name, kind: Some(fault.kind), status, reason, ..Note::default() });
        (response, Some(fault.kind))
    }

    /// Records an answer. False when it must not be given out without its line.
    pub(super) fn record(&self, note: Note<'_>) -> bool {
        let now = self.api.parts.clock.now();
        let latency = now.mono.since(self.began.mono);
        let remote = remote(&self.peer);
        let state = note.record.map(|record| &record.state);
        let line = Line {
            time: now.wall,
            message: Message::Request,
            request_id: &self.id,
            identity: self.identity.as_ref(),
            name: note.name,
            allow: note.allow,
            kind: note.kind,
            status: note.status,
            method: self.parts.method.as_str(),
            path: self.parts.uri.path(),
            latency,
            remote: &remote,
            reason: note.reason,
            user_agent: user_agent(&self.parts.headers),
            version: state.and_then(|state| state.value.as_ref()).and_then(|value| value.version.as_deref()),
            resolved_at: state.and_then(|state| state.resolved_at),
            stale: state.is_some_and(|state| state.trouble.is_some()),
        };
        self.api.parts.audit.record(&line).is_ok()
    }

    /// Refuses values while their audit lines cannot be written and must be.
    pub(super) fn audit_ready(&self) -> Result<(), Refused> {
        let unavailable = Fault::new(AnswerKind::Unavailable, message::AUDIT);
        self.api.parts.audit.ready().map_err(|_| unavailable.into())
    }
}

/// The status of a kind.
pub(super) fn status_of(kind: Option<AnswerKind>) -> StatusCode {
    let code = kind.map_or(200, AnswerKind::http_status);
    StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
}

/// What is proven of a peer, as authentication wants it.
fn facts(connection: &Connection) -> PeerFacts {
    let own = connection.certificates().and_then(|chain| chain.first());
    let certificate = own.and_then(|der| match ClientCertificate::of_verified(der) {
        Ok(certificate) => Some(Arc::new(certificate)),
        Err(error) => {
            tracing::info!(%error, "a verified client certificate is not used");
            None
        }
    });
    let credentials = connection.credentials().map(|peer| UnixCredentials {
        uid: peer.uid,
        gid: peer.gid,
        // A kernel that does not tell it is none that we run on.
        pid: peer.pid.unwrap_or_default(),
    });
    PeerFacts { certificate, credentials }
}

/// The far end, for records.
pub(super) fn remote(peer: &Peer) -> String {
    let nowhere = peer.address == SocketAddr::from(([0, 0, 0, 0], 0));
    if nowhere { "unix".to_owned() } else { peer.address.to_string() }
}

pub(super) fn user_agent(headers: &HeaderMap) -> &[u8] {
    headers.get(header::USER_AGENT).map(HeaderValue::as_bytes).unwrap_or_default()
}
