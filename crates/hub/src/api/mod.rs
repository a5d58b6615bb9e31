//! The HTTP API: from a socket to the mounts.
//!
//! A request is parsed and bounded, then judged by the state of the node; the active node runs the pipeline of
//! checks on it, any other node passes it on.

pub mod body;
pub mod envelope;
pub mod forward;
pub mod head;
mod local;
pub mod pipeline;
mod place;
mod service;
mod tracked;
mod wire;

#[cfg(test)]
mod tests;

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use holdfast_core::Kind;
use holdfast_core::retry::{Failure, Refusal, Work};
use holdfast_net::serve::Body;
use http::request::Parts;
use http::{HeaderValue, Response as HttpResponse, StatusCode, header};
use tokio::sync::Semaphore;
use tokio::time::Instant;

use self::body::{Budget, Collected};
use self::forward::{Step, Target};
use self::head::Head;
use self::pipeline::{Exchange, Handler, Local, Outcome, Upload};
use self::place::{Here, Place};
use self::tracked::Tracked;
use crate::error::ApiError;
use crate::logical::{Cx, Data, Request, Response};
use crate::metrics::{ForwardOutcome, Forwarded};
use crate::node::Node;
use crate::node::running::Running;
use crate::relay::views;

pub use local::VERSION;
pub use service::RemoteApi;

/// The ALPN name of forwarded requests on the cluster port.
pub const ALPN: &str = "holdfast-req/1";
/// Requests under way at once on one node.
const MAX_IN_FLIGHT: usize = 8192;
/// Memory for request bodies: several of the largest one.
const BODIES: usize = 4;
/// How often a request whose leadership went before it began is dispatched again, and the pause before it.
const RESTARTS: u32 = 40;
const RESTART_PAUSE: Duration = Duration::from_millis(25);

/// How long a standby waits for the active node's view of the spokes before it shows its own.
const VIEW: Duration = Duration::from_secs(10);

/// Where a request came from.
#[derive(Clone, Copy, Debug)]
pub struct Origin {
    /// The client's address.
    pub remote: IpAddr,
    /// When the answer is no longer wanted.
    pub deadline: Instant,
    /// Whether another node forwarded it.
    pub forwarded: bool,
    /// Whether the client's connection is encrypted.
    pub tls: bool,
}

/// The API of one node.
pub struct Api {
    node: Arc<Node>,
    budget: Budget,
    room: Arc<Semaphore>,
    draining: AtomicBool,
}

/// An answer on its way out.
enum Answer {
    /// Made here.
    Own(Response),
    /// Made by another node, or already on the wire's terms.
    Ready(HttpResponse<Body>),
}

/// A request's body after its first check.
enum Payload {
    /// Whole.
    Whole(Collected),
    /// A file that is not read before the caller was let in; gone once it was sent anywhere.
    File(Option<Body>),
}

/// A request on its way through the states of the node.
struct Call<'a> {
    id: &'a str,
    origin: Origin,
    parts: &'a Parts,
    head: &'a Head,
    data: Data,
    payload: Payload,
}

impl Api {
    /// The API of a node, which it tells to send forwarded requests here.
    pub fn new(node: Arc<Node>) -> Arc<Self> {
        let limit = node.shared.config.limits.body_bytes.as_usize();
        let api = Arc::new(Self {
            budget: Budget::new(limit.saturating_mul(BODIES).max(64 << 20)),
            room: Arc::new(Semaphore::new(MAX_IN_FLIGHT)),
            draining: AtomicBool::new(false),
            node,
        });
        api.node.serve_forwarded(Arc::new(RemoteApi::new(&api)));
        api
    }

    /// The node behind the API.
    pub fn node(&self) -> &Arc<Node> {
        &self.node
    }

    /// Lets health say from now on that the node is leaving.
    pub fn set_draining(&self) {
        self.draining.store(true, Ordering::Release);
    }

    /// The origin of a request that a client sent here.
    pub fn direct(&self, remote: IpAddr, tls: bool) -> Origin {
        let deadline = Instant::now() + self.longest();
        Origin { remote: remote.to_canonical(), deadline, forwarded: false, tls }
    }

    fn longest(&self) -> Duration {
        self.node.shared.config.limits.request_deadline.get()
    }

    /// Answers one request, whatever happens.
    pub async fn answer(&self, origin: Origin, request: http::Request<Body>) -> HttpResponse<Body> {
        let id = uuid::Uuid::new_v4().to_string();
        let (parts, body) = request.into_parts();
        let room = Arc::clone(&self.room).try_acquire_owned();
        let handled = match &room {
            Ok(_) => self.handle(&id, origin, &parts, body).await,
            Err(_) => Err(ApiError::unavailable("too many requests under way")),
        };
        let mut response = match handled {
            Ok(Answer::Own(response)) => envelope::render(&id, response),
            Ok(Answer::Ready(response)) => response,
            Err(error) => {
                log(&id, &parts, &error);
                envelope::render_error(&error)
            }
        };
        envelope::finish(&mut response, origin.tls);
        if parts.method == http::Method::HEAD {
            *response.body_mut() = body::empty();
        }
        // An answer that nobody reads still counts.
        response.map(|body| match room {
            Ok(room) => body::holding(body, room),
            Err(_) => body,
        })
    }

    /// The checks before a node is chosen, in their order.
    async fn handle(&self, id: &str, origin: Origin, parts: &Parts, body: Body) -> Result<Answer, ApiError> {
        let head = Head::parse(&parts.method, parts.uri.path(), parts.uri.query(), &parts.headers)?; // 1
        let (payload, data) = self.receive(&head, body, origin.deadline).await?; // 1
        let place = Place::of(&head);
        self.check_membership(place, &data)?; // 2
        let own = |response: Result<Response, ApiError>| response.map(Answer::Own);
        match place {
            Place::WrongVerb => return Err(ApiError::unsupported_operation()),
            Place::Open(open) => {
                let draining = self.draining.load(Ordering::Acquire);
                return own(local::answer(&self.node, draining, open, &head, &data).await);
            }
            _ => {}
        }
        let Some(running) = self.node.running() else {
            // 3
            return if origin.forwarded {
                Ok(Answer::Ready(wire::not_active()))
            } else {
                Err(ApiError::sealed())
            };
        };
        let call = Call { id, origin, parts, head: &head, data, payload };
        match place {
            Place::Here(Here::Help) => own(Ok(local::help(&head.path))),
            Place::Here(here) => own(self.answer_here(&running, call, here).await),
            _ => self.at_active(&running, call, place).await, // 4
        }
    }

    async fn receive(&self, head: &Head, body: Body, deadline: Instant) -> Result<(Payload, Data), ApiError> {
        if head.is_upload() {
            return Ok((Payload::File(Some(body)), Data::default()));
        }
        let limit = self.node.shared.config.limits.body_bytes.as_usize();
        let whole = self.budget.collect(body, limit, deadline).await?;
        let data = head.data(&whole.bytes)?;
        Ok((Payload::Whole(whole), data))
    }

    fn check_membership(&self, place: Place, data: &Data) -> Result<(), ApiError> {
        let rejoin = || data.bool("rejoin").ok().flatten().unwrap_or(false);
        match place {
            Place::Open(place::Open::Health) => Ok(()),
            Place::Open(place::Open::Join) if rejoin() => Ok(()),
            _ if self.node.is_removed() => {
                Err(ApiError::new(Kind::Unavailable, "node was removed from the cluster"))
            }
            _ => Ok(()),
        }
    }

    /// Paths that each node answers itself after the checks of token and policy, against its applied state.
    async fn answer_here(
        &self,
        running: &Arc<Running>,
        call: Call<'_>,
        here: Here,
    ) -> Result<Response, ApiError> {
        let term = running.hub.cluster.view().active.unwrap_or_default();
        let request = call.request(tokio_util::sync::CancellationToken::new());
        let (hub, asked) = (Arc::clone(&running.hub), request.clone());
        let seals = here == Here::Seal;
        let answer = move || match here {
            Here::Seal => Ok(Response::no_content()),
            Here::Spokes => Ok(views::partial(&hub)),
            _ => crate::sys::metrics::handle(&hub, &asked),
        };
        let local: Local = Box::new(move || Box::pin(async move { answer() }));
        let open = here == Here::Metrics && self.node.shared.config.metrics.unauthenticated;
        let (cx, tracked) = context(running, &request, term);
        let root_namespace = call.head.root_namespace;
        let exchange = Exchange { cx, request, root_namespace, local: true, open, tracked, relay: None };
        let node = Arc::clone(&self.node);
        // The task belongs to the node, not to its unsealed life: sealing ends that.
        let run = self.node.shared.tasks.spawn("local-request", async move {
            let outcome = exchange.run(Handler::Local(local)).await;
            // Only now: recording the answer needs the keys.
            if seals && matches!(outcome, Outcome::Answered(Ok(_))) {
                node.seal().await;
            }
            outcome
        });
        match run.join().await {
            Some(Outcome::Answered(result)) => result,
            Some(Outcome::NotStarted(error)) => Err(error),
            None => Err(ApiError::outcome_unknown()),
        }
    }

    /// Serves, forwards, holds or refuses, as the forwarding machine says.
    async fn at_active(
        &self,
        running: &Arc<Running>,
        mut call: Call<'_>,
        place: Place,
    ) -> Result<Answer, ApiError> {
        if call.head.redirect && !call.origin.forwarded && running.hub.cluster.view().active.is_none() {
            return redirect(running, call.parts);
        }
        let work = call.work(running, place);
        let asked = call.origin;
        let view = !asked.forwarded && views::is_view(&running.hub, call.head.operation, &call.head.path);
        if view {
            call.origin.deadline = asked.deadline.min(Instant::now() + VIEW);
        }
        let origin = call.origin;
        let arrive = || running.forward.arrive(work, origin.deadline, origin.forwarded);
        let (mut ticket, mut restarts) = (arrive(), 0);
        loop {
            match ticket.next().await {
                Step::Refuse(_) if view => {
                    call.origin = asked;
                    return self.answer_here(running, call, Here::Spokes).await.map(Answer::Own);
                }
                Step::Refuse(refusal) => {
                    if refusal == Refusal::NoActiveNode {
                        count(running, ForwardOutcome::NoLeader);
                    }
                    return call.refused(refusal);
                }
                Step::Send(target) => match self.relay(running, &mut call, &target).await {
                    Ok(response) => return Ok(Answer::Ready(response)),
                    Err(failure) => ticket.failed(failure),
                },
                Step::Serve => match self.serve(running, &mut call, place).await {
                    Outcome::Answered(result) => return result.map(Answer::Own),
                    Outcome::NotStarted(_) if origin.forwarded => {
                        return Ok(Answer::Ready(wire::not_active()));
                    }
                    Outcome::NotStarted(error) if restarts >= RESTARTS || call.payload.is_gone() => {
                        return Err(error);
                    }
                    Outcome::NotStarted(_) => {
                        restarts += 1;
                        tokio::time::sleep(RESTART_PAUSE).await;
                        ticket = arrive();
                    }
                },
            }
        }
    }

    /// Runs the pipeline here, as a task of its own that is told when the client goes away.
    async fn serve(&self, running: &Arc<Running>, call: &mut Call<'_>, place: Place) -> Outcome {
        let not_started = || Outcome::NotStarted(ApiError::no_leader());
        let Some(term) = running.hub.cluster.view().active else { return not_started() };
        let Some(gate) = running.gates.enter(term) else { return not_started() };
        let Some(_entered) = running.hub.handover.enter() else { return not_started() };
        let cancel = gate.child_token();
        let _gone = cancel.clone().drop_guard();
        let request = call.request(cancel);
        let (cx, tracked) = context(running, &request, term);
        let handler = match self.handler(call, place) {
            Ok(handler) => handler,
            Err(error) => return Outcome::Answered(Err(error)),
        };
        let open = matches!(handler, Handler::Local(_));
        let root_namespace = call.head.root_namespace;
        let exchange = Exchange { cx, request, root_namespace, local: false, open, tracked, relay: None };
        let run = running.requests.spawn("request", exchange.run(handler));
        match tokio::time::timeout_at(call.origin.deadline, run.join()).await {
            Ok(Some(outcome)) => outcome,
            Ok(None) | Err(_) => Outcome::Answered(Err(ApiError::outcome_unknown())),
        }
    }

    /// What answers the request here.
    fn handler(&self, call: &mut Call<'_>, place: Place) -> Result<Handler, ApiError> {
        if let Place::Bootstrap(step) = place {
            let (node, data) = (Arc::clone(&self.node), call.data.clone());
            let run = move || -> futures_util::future::BoxFuture<'static, _> {
                Box::pin(async move { local::bootstrap(&node, step, data).await })
            };
            return Ok(Handler::Local(Box::new(run)));
        }
        let Payload::File(body) = &mut call.payload else { return Ok(Handler::Mount(None)) };
        let body = body.take().ok_or_else(ApiError::no_leader)?;
        let dir = self.node.shared.dir.scratch().map_err(ApiError::internal)?;
        Ok(Handler::Mount(Some(Upload { body, dir })))
    }

    async fn relay(
        &self,
        running: &Arc<Running>,
        call: &mut Call<'_>,
        target: &Target,
    ) -> Result<HttpResponse<Body>, Failure> {
        let body = match &mut call.payload {
            Payload::Whole(whole) => body::full(whole.bytes.clone()),
            // Once a file was on its way nothing can bring it back.
            Payload::File(body) => body.take().ok_or(Failure::Broken)?,
        };
        let origin = call.origin;
        let request =
            wire::request(call.parts, body, origin.remote, origin.deadline).ok_or(Failure::Broken)?;
        match running.forward.send(target, request, origin.deadline).await {
            Ok(response) if wire::is_not_active(&response) => {
                count(running, ForwardOutcome::NotActive);
                Err(Failure::NotActive)
            }
            Ok(response) => {
                count(running, ForwardOutcome::Answered);
                Ok(wire::response(response))
            }
            Err(error) => {
                tracing::warn!(
                    request = call.id, peer = %target.node, address = %target.address,
                    cause = %error.cause, failure = ?error.failure, "forwarding a request failed"
                );
                let sent = !error.failure.did_not_start();
                count(running, if sent { ForwardOutcome::Unknown } else { ForwardOutcome::NotSent });
                Err(error.failure)
            }
        }
    }
}

impl Call<'_> {
    fn request(&self, cancel: tokio_util::sync::CancellationToken) -> Request {
        Request {
            id: self.id.to_owned(),
            operation: self.head.operation,
            path: self.head.path.clone(),
            mount: String::new(),
            rest: String::new(),
            data: self.data.clone(),
            query: self.head.query.clone(),
            client_token: self.head.token.clone(),
            token: None,
            wrap_ttl: self.head.wrap_ttl,
            upload: None,
            remote: self.origin.remote,
            deadline: self.origin.deadline,
            cancel,
        }
    }

    /// Whether the request can be repeated without harm, judged by this node's applied state.
    fn work(&self, running: &Running, place: Place) -> Work {
        use crate::logical::Operation::{List, Read};
        if place != Place::Active || self.head.wrap_ttl.is_some() {
            return Work::Effectful;
        }
        let hub = &running.hub;
        let counted = self.head.token.as_ref().is_some_and(|text| {
            let text = secrecy::ExposeSecret::expose_secret(text);
            let found = hub.tokens.lookup(&hub.storage, text);
            found.ok().flatten().is_some_and(|token| token.num_uses != 0)
        });
        let pure = match self.head.operation {
            List => true,
            Read => match hub.mounts.route(&self.head.path) {
                Ok(Some(route)) => !route.engine.read_has_effect(&route.rest),
                _ => false,
            },
            _ => false,
        };
        if pure && !counted { Work::Pure } else { Work::Effectful }
    }

    fn refused(&self, refusal: Refusal) -> Result<Answer, ApiError> {
        match refusal {
            Refusal::NotActive => Ok(Answer::Ready(wire::not_active())),
            Refusal::NoActiveNode => Err(ApiError::no_leader()),
            Refusal::OutcomeUnknown => Err(ApiError::outcome_unknown()),
        }
    }
}

impl Payload {
    fn is_gone(&self) -> bool {
        matches!(self, Self::File(None))
    }
}

fn count(running: &Running, outcome: ForwardOutcome) {
    running.hub.metrics.forwarded_requests.get_or_create(&Forwarded { outcome }).inc();
}

/// The context of a request, with a store that sees what it changes.
fn context(running: &Running, request: &Request, term: holdfast_core::Term) -> (Cx, Arc<Tracked>) {
    let storage = &running.hub.storage;
    let tracked = Tracked::new(Arc::clone(storage.store()));
    let cx = Cx {
        hub: Arc::clone(&running.hub),
        storage: storage.over(tracked.clone()).fenced(term),
        term,
        deadline: request.deadline,
        cancel: request.cancel.clone(),
    };
    (cx, tracked)
}

/// Sends the client to the active node.
fn redirect(running: &Running, parts: &Parts) -> Result<Answer, ApiError> {
    let view = running.hub.cluster.view();
    let leader = view.leader.filter(|leader| leader.node != *running.hub.cluster.node());
    let api = leader.map(|leader| leader.address.api).filter(|api| !api.is_empty());
    let api = api.ok_or_else(ApiError::no_leader)?;
    let target = parts.uri.path_and_query().map_or("/", |target| target.as_str());
    let location = HeaderValue::from_str(&format!("{}{target}", api.trim_end_matches('/')));
    let mut response = HttpResponse::new(body::empty());
    *response.status_mut() = StatusCode::TEMPORARY_REDIRECT;
    response.headers_mut().insert(header::LOCATION, location.map_err(ApiError::internal)?);
    Ok(Answer::Ready(response))
}

/// Faults of ours are for a human; the rest is the client's business.
fn log(id: &str, parts: &Parts, error: &ApiError) {
    let mut cause = String::new();
    let mut next = std::error::Error::source(error);
    while let Some(source) = next {
        cause.push_str(if cause.is_empty() { "" } else { ": " });
        cause.push_str(&source.to_string());
        next = source.source();
    }
    let (path, status) = (parts.uri.path(), error.status());
    match error.kind() {
        // A database that refuses, or a role that may not be used there: the client was told, and nothing here is broken.
        Kind::Internal if error.is_told() => tracing::warn!(request = id, path, status, cause, "{error}"),
        Kind::Internal | Kind::Corrupt => tracing::error!(request = id, path, status, cause, "{error}"),
        _ => tracing::debug!(request = id, path, status, cause, "{error}"),
    }
}
