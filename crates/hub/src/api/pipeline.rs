//! The checks that a request passes on the node that answers it, in their order, and what follows its answer.
//!
//! What must hold: the first check that fails answers; nothing is executed that could not be recorded; what was
//! made and could not be recorded is revoked; a caller without rights never learns whether a route exists.

use std::sync::Arc;

use holdfast_core::Kind;
use secrecy::ExposeSecret as _;

use super::body;
use super::tracked::Tracked;
use crate::audit::AuditEntry;
use crate::auth::token::Tokens;
use crate::error::ApiError;
use crate::logical::{Body, Cx, Operation, Request, Response};
use crate::mount::{self, Route};
use crate::policy::Decision;
use crate::relay::work::{self, Work};

/// How many unknown fields a warning names, and how much of each.
const SHOWN_FIELDS: usize = 16;
const SHOWN_CHARS: usize = 64;

/// What answers a request after its checks, in place of the mount: the paths that each node answers itself.
pub type Local =
    Box<dyn FnOnce() -> futures_util::future::BoxFuture<'static, Result<Response, ApiError>> + Send>;

/// What answers a request once its checks are passed.
pub enum Handler {
    /// The mount that the path leads to, after the body was written to disk where it is a file.
    Mount(Option<Upload>),
    /// This node, in place of the mount.
    Local(Local),
}

/// A body that is not JSON and is written to disk once the caller was let in.
pub struct Upload {
    /// The body.
    pub body: holdfast_net::serve::Body,
    /// Where it is written to.
    pub dir: std::path::PathBuf,
}

/// A request with all that its checks need.
pub struct Exchange {
    /// The services, and the store fenced by the term in which the request was let in.
    pub cx: Cx,
    /// The request.
    pub request: Request,
    /// Whether the namespace named is the only one there is.
    pub root_namespace: bool,
    /// Whether this node answers for itself: not counted by the cluster's quotas.
    pub local: bool,
    /// Whether the path needs no token here, whatever its mount says.
    pub open: bool,
    /// Sees what the request changes.
    pub tracked: Arc<Tracked>,
    /// What a spoke did for it so far.
    pub relay: Option<Work>,
}

/// How a request ended.
pub enum Outcome {
    /// It was answered, well or not.
    Answered(Result<Response, ApiError>),
    /// Leadership was gone before it changed anything: it may be sent to the next leader.
    NotStarted(ApiError),
}

/// What an answer made, in case it has to be revoked.
#[derive(Default)]
struct Made {
    lease: Option<String>,
    token: Option<String>,
}

impl Exchange {
    /// Runs all checks, the handler and what follows it.
    pub async fn run(mut self, handler: Handler) -> Outcome {
        let result = self.checked(handler).await;
        match result {
            Err(error) if error.kind() == Kind::NotLeader && !self.tracked.touched() => {
                Outcome::NotStarted(error)
            }
            result => Outcome::Answered(result),
        }
    }

    /// The order is the contract: see the numbers of the API's specification.
    async fn checked(&mut self, handler: Handler) -> Result<Response, ApiError> {
        let route = self.route()?;
        self.check_rate(route.as_ref())?; // 5
        if let Err(refusal) = self.admit(route.as_ref()).await {
            self.audit_refusal(route.as_ref(), &refusal).await;
            return Err(refusal);
        }
        self.audit_request(route.as_ref()).await?; // 11
        let result = self.execute(route.as_ref(), handler).await; // 12, 13, 14
        let result = self.audit_response(route.as_ref(), result).await; // 15
        let result = self.wrap(result).await; // 16
        self.finish_use().await;
        result
    }

    /// Whether the caller may do this at all.
    async fn admit(&mut self, route: Option<&Route>) -> Result<(), ApiError> {
        self.check_namespace()?; // 6
        let mut decision = None;
        if !self.is_open(route) {
            // 7
            self.authenticate()?; // 8
            if !self.is_for_any_token(route) {
                decision = Some(self.authorize(route).await?); // 9
            }
        }
        self.check_wrap(route, decision.as_ref()) // 10
    }

    /// Records who was refused what. Nothing is executed either way, so a device that fails changes no answer; what
    /// the next leader will judge is left to it.
    async fn audit_refusal(&self, route: Option<&Route>, refusal: &ApiError) {
        if refusal.kind() == Kind::NotLeader {
            return;
        }
        let audit = &self.cx.hub.audit;
        let entry = self.entry(route, None, Some(refusal));
        let recorded = match audit.request(&entry).await {
            Ok(()) => audit.response(&entry).await,
            failed => failed,
        };
        if let Err(error) = recorded {
            tracing::warn!(request = %self.request.id, %error, "a refusal was not recorded");
        }
    }

    fn route(&mut self) -> Result<Option<Route>, ApiError> {
        let route = self.cx.hub.mounts.route(&self.request.path)?;
        if let Some(route) = &route {
            self.request.mount.clone_from(&route.mount.path);
            self.request.rest.clone_from(&route.rest);
        }
        Ok(route)
    }

    fn check_rate(&self, route: Option<&Route>) -> Result<(), ApiError> {
        if self.local {
            // Counted on the active node only.
            return Ok(());
        }
        let mount = route.map(|route| route.mount.path.as_str());
        self.cx.hub.quotas.check_rate(&self.request.path, mount, self.request.remote)?;
        route.map_or(Ok(()), |route| route.engine.check_rate(&self.cx.hub, &self.request))
    }

    fn check_namespace(&self) -> Result<(), ApiError> {
        if self.root_namespace { Ok(()) } else { Err(ApiError::no_route(&self.request.path)) }
    }

    fn is_open(&self, route: Option<&Route>) -> bool {
        let open = |route: &Route| route.engine.unauthenticated(self.request.operation, &route.rest);
        self.open || route.is_some_and(open)
    }

    fn is_for_any_token(&self, route: Option<&Route>) -> bool {
        route.is_some_and(|route| route.engine.any_token(&route.rest))
    }

    fn authenticate(&mut self) -> Result<(), ApiError> {
        let text = self.request.client_token.as_ref().ok_or_else(ApiError::denied)?;
        let found = self.cx.hub.tokens.lookup(&self.cx.storage, text.expose_secret())?;
        let token = found.ok_or_else(ApiError::denied)?;
        if !Tokens::allowed_from(&token, self.request.remote) {
            return Err(ApiError::denied());
        }
        self.request.token = Some(Arc::new(token));
        Ok(())
    }

    async fn authorize(&self, route: Option<&Route>) -> Result<Decision, ApiError> {
        let (request, hub) = (&self.request, &self.cx.hub);
        let policies = request.token.as_ref().map_or(&[][..], |token| &token.policies);
        let decide = |exists| {
            hub.policies.decide(&self.cx.storage, policies, &request.path, request.operation, exists)
        };
        let mut decision = decide(true)?;
        if !decision.root
            && request.operation == Operation::Write
            && let Some(route) = route
        {
            // An error here must not tell a caller without rights that something is there.
            let exists = route.engine.exists(&self.cx, &route.mount, request).await.unwrap_or(true);
            decision = decide(exists)?;
        }
        let sudo = route.is_some_and(|route| route.engine.sudo(&route.rest));
        let allowed = decision.allowed
            && (!sudo || decision.sudo)
            && decision.parameters_allowed(request.operation, &request.data);
        if allowed { Ok(decision) } else { Err(ApiError::denied()) }
    }

    fn check_wrap(&self, route: Option<&Route>, decision: Option<&Decision>) -> Result<(), ApiError> {
        if let Some(ttl) = self.request.wrap_ttl {
            let mounts = &self.cx.hub.mounts;
            let max = route.map_or_else(|| mounts.system_ttls(), |route| mounts.ttls(&route.mount)).max;
            if u64::try_from(ttl).map_or(true, |ttl| ttl > max) {
                return Err(ApiError::invalid(format!("the wrapping TTL must be from 1 to {max} seconds")));
            }
        }
        decision.map_or(Ok(()), |decision| decision.check_wrap(self.request.wrap_ttl))
    }

    async fn audit_request(&self, route: Option<&Route>) -> Result<(), ApiError> {
        self.cx.hub.audit.request(&self.entry(route, None, None)).await
    }

    async fn execute(&mut self, route: Option<&Route>, handler: Handler) -> Result<Response, ApiError> {
        let exempt = self.is_for_any_token(route);
        if let Some(token) = self.request.token.as_mut().filter(|_| !exempt) {
            let uses = self.cx.hub.tokens.consume_use(&self.cx, token).await?; // 12
            if uses > 0 {
                // Other requests may have taken theirs since the token was looked up.
                Arc::make_mut(token).num_uses = uses;
            }
        }
        let upload = match handler {
            Handler::Local(local) => return local().await,
            Handler::Mount(upload) => upload,
        };
        let route = route.ok_or_else(|| ApiError::no_route(&self.request.path))?; // 13
        if let Some(upload) = upload {
            let file = body::spool(upload.body, &upload.dir, self.request.deadline).await?;
            self.request.upload = Some(Arc::new(file));
        }
        let handled = route.engine.handle(&self.cx, &route.mount, &self.request); // 14
        let (result, relay) = work::noting(handled).await;
        self.relay = relay;
        // The mount was removed meanwhile: what it would have written was refused.
        result.map(|response| self.with_unknown_fields(route, response)).map_err(
            |error| match mount::was_gone(&error) {
                true => ApiError::no_route(&self.request.path).caused_by(error),
                false => error,
            },
        )
    }

    /// A field that nobody reads is most often one that was misspelt.
    fn with_unknown_fields(&self, route: &Route, response: Response) -> Response {
        if !matches!(self.request.operation, Operation::Write | Operation::Patch) {
            return response;
        }
        let Some(known) = route.engine.fields(&route.mount, &route.rest) else { return response };
        let data = &self.request.data;
        let unknown = data.as_map().keys().filter(|name| data.has(name) && !known.contains(&name.as_str()));
        let shown: Vec<String> =
            unknown.take(SHOWN_FIELDS).map(|name| name.chars().take(SHOWN_CHARS).collect()).collect();
        if shown.is_empty() {
            return response;
        }
        response.warn(format!("unknown fields were ignored: {}", shown.join(", ")))
    }

    async fn audit_response(
        &self,
        route: Option<&Route>,
        result: Result<Response, ApiError>,
    ) -> Result<Response, ApiError> {
        let entry = self.entry(route, result.as_ref().ok(), result.as_ref().err());
        let audited = self.cx.hub.audit.response(&entry).await;
        match (audited, result) {
            (Ok(()), result) => result,
            // What failed and was not recorded is told as what it is: it made nothing.
            (Err(_), Err(error)) => Err(error),
            (Err(error), Ok(response)) => {
                self.revoke(self.made(&response)).await;
                Err(error)
            }
        }
    }

    async fn wrap(&self, result: Result<Response, ApiError>) -> Result<Response, ApiError> {
        let response = result?;
        let Some(ttl) = self.request.wrap_ttl.and_then(|ttl| u64::try_from(ttl).ok()) else {
            return Ok(response);
        };
        let made = self.made(&response);
        match crate::wrapping::wrap(&self.cx, response, ttl, &self.request.path).await {
            Ok(wrapped) => Ok(wrapped),
            Err(error) => {
                self.revoke(made).await;
                Err(error)
            }
        }
    }

    async fn finish_use(&self) {
        let Some(token) = &self.request.token else { return };
        if let Err(error) = self.cx.hub.tokens.finish_use(&self.cx, token).await {
            // The index of expiry finds a used-up token again.
            tracing::warn!(request = %self.request.id, %error, "revoking a used-up token failed");
        }
    }

    fn made(&self, response: &Response) -> Made {
        let renews = ["sys/leases/renew", "sys/renew", "auth/token/renew"];
        let Body::Logical(logical) = &response.body else { return Made::default() };
        if renews.iter().any(|path| self.request.path.starts_with(path)) {
            return Made::default();
        }
        let lease = logical.lease.as_ref().map(|lease| lease.id.clone()).filter(|id| !id.is_empty());
        let token = logical
            .auth
            .as_ref()
            .and_then(|grant| Tokens::id_of(&self.cx.storage, grant.client_token.expose_secret()).ok());
        Made { lease, token }
    }

    /// The caller will never learn of these.
    async fn revoke(&self, made: Made) {
        let hub = &self.cx.hub;
        let mut failed = Vec::new();
        if let Some(lease) = &made.lease {
            failed.extend(hub.leases.revoke_now(&self.cx, lease).await.err());
        }
        if let Some(token) = &made.token {
            failed.extend(hub.tokens.revoke_tree(&self.cx, token).await.err());
        }
        for error in failed {
            tracing::error!(request = %self.request.id, %error, "revoking what could not be recorded failed");
        }
    }

    fn entry<'a>(
        &'a self,
        route: Option<&'a Route>,
        response: Option<&'a Response>,
        error: Option<&'a ApiError>,
    ) -> AuditEntry<'a> {
        AuditEntry {
            request: &self.request,
            token: self.request.token.as_deref(),
            mount_type: route.map_or("", |route| route.mount.kind.as_str()),
            clear: route.map_or(&[], |route| route.engine.audit_clear()),
            response,
            error,
            relay: self.relay.as_ref(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::token::NewToken;
    use crate::mount::LeaseTtls;

    /// Two requests look a token up while it has two uses left; one of them is on its last use.
    #[tokio::test]
    async fn a_request_knows_the_use_that_it_took() {
        let (store, hub, cx) = crate::testing::hub();
        let new = NewToken { num_uses: 2, ..NewToken::orphan("auth/test/login", LeaseTtls::default()) };
        let token = Arc::new(hub.tokens.create(&cx, new).await.unwrap().token);
        let mut taken = Vec::new();
        for _ in 0..2 {
            let mut request = crate::testing::request(Operation::Read, "sys/", "x", serde_json::Value::Null);
            request.token = Some(Arc::clone(&token));
            let tracked = Tracked::new(store.clone());
            let cx = hub.cx(cx.term, cx.deadline, cx.cancel.clone());
            let mut exchange = Exchange {
                cx,
                request,
                root_namespace: true,
                local: false,
                open: false,
                tracked,
                relay: None,
            };
            let handler = Handler::Local(Box::new(|| Box::pin(async { Ok(Response::no_content()) })));
            exchange.execute(None, handler).await.unwrap();
            let token = exchange.request.token.unwrap();
            taken.push((token.num_uses, crate::auth::token::check_leased(&token).is_ok()));
        }
        assert_eq!(taken, [(2, true), (1, false)]);
    }
}
