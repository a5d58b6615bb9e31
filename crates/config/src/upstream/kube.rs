//! Kubernetes: Secrets and ConfigMaps, read one by one, each with a watch of the one object.
//!
//! What must hold: a watch tells only that something changed, since versions of Kubernetes have no order; the value is
//! then read, so that no older one can follow a newer; no value travels on a watch.

mod cluster;
mod map;
mod watching;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use holdfast_core::AnswerKind;
use holdfast_core::freshness::{Failure, Outcome};
use holdfast_ops::Tasks;
use http::StatusCode;
use reqwest::{Response, Url};

use self::cluster::Cluster;
use super::subscriptions::keep_alone;
use super::{BuildError, http_answer};
use crate::config::{Scheme, UpstreamSettings};
use crate::provider::{Fetched, Provider, Sink, WatchGuard};
use crate::reference::ObjectKey;
use crate::value::Value;

/// `type = "kube"`
pub struct Kube {
    api: Arc<Api>,
    tasks: Tasks,
}

impl Kube {
    /// Reads the kubeconfig, or what the cluster gave to this pod.
    ///
    /// # Errors
    /// When it cannot be used.
    pub fn build(name: &str, settings: &UpstreamSettings, tasks: &Tasks) -> Result<Self, BuildError> {
        let cluster = match &settings.kubeconfig {
            Some(file) => Cluster::of_kubeconfig(file),
            None => Cluster::of_this_pod(),
        };
        let cluster = cluster.map_err(|problem| BuildError::setting(name, "kubeconfig", problem))?;
        let idle = settings.watch_idle.map_or(Duration::from_secs(45), Into::into);
        let http = cluster.http(idle).map_err(|problem| BuildError::setting(name, "kubeconfig", problem))?;
        Ok(Self { api: Arc::new(Api { http, cluster }), tasks: tasks.child(name) })
    }
}

impl Drop for Kube {
    fn drop(&mut self) {
        self.tasks.cancel();
    }
}

#[async_trait]
impl Provider for Kube {
    async fn fetch(&self, object: &ObjectKey, _held: Option<&Value>) -> Fetched {
        let outcome = match Place::of(object) {
            Some(place) => self.api.read(&place).await.unwrap_or_else(Outcome::Error),
            None => Outcome::Error(Failure::of(AnswerKind::Invalid)),
        };
        outcome.into()
    }

    fn watch(&self, object: &ObjectKey, sink: Arc<dyn Sink>) -> Option<WatchGuard> {
        let place = Place::of(object)?;
        let api = Arc::clone(&self.api);
        Some(keep_alone(&self.tasks, sink, move |sink| {
            let (api, place) = (Arc::clone(&api), place.clone());
            async move { watching::session(&api, &place, sink.as_ref()).await }
        }))
    }
}

/// One object.
#[derive(Clone, Debug, Eq, PartialEq)]
struct Place {
    secret: bool,
    namespace: String,
    name: String,
}

impl Place {
    /// Of `NAMESPACE/NAME`; none when that is something else.
    fn of(object: &ObjectKey) -> Option<Self> {
        let (namespace, name) = object.path.split_once('/')?;
        // What Kubernetes allows in names; anything else could lead to another path.
        let fits = |part: &str| {
            let allowed = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'-' | b'.');
            !part.is_empty() && part.len() <= 253 && !part.starts_with('.') && part.bytes().all(allowed)
        };
        let place = Self {
            secret: object.scheme == Scheme::K8sSecret,
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        };
        (fits(namespace) && fits(name)).then_some(place)
    }

    const fn collection(&self) -> &'static str {
        if self.secret { "secrets" } else { "configmaps" }
    }
}

/// The API server, and who we are to it.
struct Api {
    http: reqwest::Client,
    cluster: Cluster,
}

impl Api {
    async fn read(&self, place: &Place) -> Result<Outcome<Value>, Failure> {
        let path = format!("api/v1/namespaces/{}/{}/{}", place.namespace, place.collection(), place.name);
        let response = self.get(&path, "", "application/json").await?;
        if let Some(outcome) = meaning(&response) {
            return Ok(outcome);
        }
        let body = http_answer::body(response).await.map_err(Failure::of)?;
        map::value(&body, place.secret)
    }

    /// A request as we are; the token is read anew each time, since it is replaced before it ends.
    async fn get(&self, path: &str, query: &str, accept: &str) -> Result<Response, Failure> {
        let mut url: Url = self.cluster.server().join(path).map_err(|_| Failure::of(AnswerKind::Invalid))?;
        url.set_query((!query.is_empty()).then_some(query));
        let mut request = self.http.get(url).header(http::header::ACCEPT, accept);
        if let Some(token) = self.cluster.token()? {
            request = request.bearer_auth(token.as_str());
        }
        request.send().await.map_err(|error| {
            tracing::debug!(connect = error.is_connect(), "no answer from Kubernetes");
            Failure::of(AnswerKind::Unavailable)
        })
    }
}

/// What an answer means; none when it is a success.
fn meaning(response: &Response) -> Option<Outcome<Value>> {
    match response.status() {
        StatusCode::UNPROCESSABLE_ENTITY => Some(Outcome::Error(Failure::of(AnswerKind::Invalid))),
        status => http_answer::meaning(status, response.headers()),
    }
}

#[cfg(test)]
mod tests;
