//! The API as the two ports see it: the clients' port, and the cluster port with forwarded requests.

use std::sync::{Arc, Weak};

use async_trait::async_trait;
use holdfast_net::serve::{Answer, Body, Peer, Service};
use http::{Request, Response};
use hyper::body::Incoming;

use super::{Api, Origin, body, wire};
use crate::node::backend::Forwarded;

impl Service for Api {
    fn call(self: Arc<Self>, peer: Peer, request: Request<Incoming>) -> Answer {
        let origin = self.direct(peer.address.ip(), peer.tls);
        Box::pin(async move { self.answer(origin, request.map(body::boxed)).await })
    }
}

/// The API for requests that other nodes forward.
pub struct RemoteApi(Weak<Api>);

impl RemoteApi {
    /// Does not keep the API alive: the API's node owns this.
    pub fn new(api: &Arc<Api>) -> Self {
        Self(Arc::downgrade(api))
    }
}

#[async_trait]
impl Forwarded for RemoteApi {
    async fn answer(&self, request: Request<Body>) -> Response<Body> {
        let Some(api) = self.0.upgrade() else { return wire::not_active() };
        let Some(from) = wire::forwarded(request.headers(), api.longest()) else {
            return super::envelope::render_error(&crate::error::ApiError::invalid(
                "not a forwarded request",
            ));
        };
        let origin = Origin { remote: from.remote, deadline: from.deadline, forwarded: true, tls: false };
        api.answer(origin, request).await
    }
}
