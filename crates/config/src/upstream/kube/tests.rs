//! Against a stand-in with the semantics of the API as far as they matter here: no Kubernetes is installed where the
//! tests run.
//!
//! Objects by name, lists and watches with a field selector, versions that grow, bookmarks, 410 for a cursor that is
//! too old, bearer tokens, rights on namespaces, and watches that carry metadata only when that is asked for.

use std::collections::BTreeMap;
use std::convert::Infallible;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use http::{Request, Response};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use serde_json::{Value as Json, json};
use tokio::net::TcpListener;
use tokio::sync::watch;

use holdfast_tests::backends::secret_file;
use holdfast_tests::eventually_async;

use super::super::testing::{Heard, Recorder, failure, object, value};
use super::super::tests::scripted::crypto;
use super::*;

const SOON: Duration = Duration::from_secs(20);

type Body = BoxBody<Bytes, Infallible>;

#[derive(Clone, Default)]
struct State {
    version: u64,
    /// What happened, oldest first: version, kind of event, name, and the data.
    events: Vec<(u64, &'static str, String, Json)>,
    objects: BTreeMap<String, (u64, Json)>,
    token: String,
}

struct Server {
    url: String,
    state: watch::Sender<State>,
    asked: Mutex<Vec<String>>,
}

impl Server {
    async fn start() -> Arc<Self> {
        crypto();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let state = State { version: 100, token: "token-1".to_owned(), ..State::default() };
        let server = Arc::new(Self { url, state: watch::Sender::new(state), asked: Mutex::default() });
        let serving = Arc::clone(&server);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let server = Arc::clone(&serving);
                let service = service_fn(move |request| Arc::clone(&server).serve(request));
                let http = hyper::server::conn::http1::Builder::new();
                tokio::spawn(async move { http.serve_connection(TokioIo::new(stream), service).await });
            }
        });
        server
    }

    fn happen(&self, kind: &'static str, name: &str, data: Json) {
        self.state.send_modify(|state| {
            state.version += 1;
            let version = state.version;
            state.events.push((version, kind, name.to_owned(), data.clone()));
            match kind {
                "DELETED" => drop(state.objects.remove(name)),
                "BOOKMARK" | "ERROR" => {}
                _ => drop(state.objects.insert(name.to_owned(), (version, data))),
            }
        });
    }

    async fn serve(self: Arc<Self>, request: Request<Incoming>) -> Result<Response<Body>, Infallible> {
        let uri = request.uri().clone();
        self.asked.lock().push(uri.to_string());
        let state = self.state.borrow().clone();
        let header =
            |name: &str| request.headers().get(name).map_or("", |text| text.to_str().unwrap()).to_owned();
        if header("authorization") != format!("Bearer {}", state.token) {
            return Ok(status(401));
        }
        let parts: Vec<&str> = uri.path().split('/').skip(4).collect();
        let query: BTreeMap<&str, &str> =
            uri.query().unwrap_or_default().split('&').filter_map(|pair| pair.split_once('=')).collect();
        match parts.as_slice() {
            ["closed", ..] => Ok(status(403)),
            ["odd", ..] => Ok(status(422)),
            ["prod", "secrets" | "configmaps", name] => Ok(match state.objects.get(*name) {
                Some((version, data)) => full(200, &whole(name, *version, data)),
                None => status(404),
            }),
            ["prod", "secrets" | "configmaps"] => {
                let name = query["fieldSelector"].strip_prefix("metadata.name%3D").unwrap().to_owned();
                assert!(header("accept").starts_with("application/json;as=PartialObjectMetadata"));
                match query.get("resourceVersion") {
                    None => Ok(full(
                        200,
                        &json!({"metadata": {"resourceVersion": state.version.to_string()}, "items": []}),
                    )),
                    Some(cursor) => Ok(self.watch(name, cursor.parse().unwrap())),
                }
            }
            _ => Ok(status(404)),
        }
    }

    fn watch(&self, name: String, cursor: u64) -> Response<Body> {
        let changes = self.state.subscribe();
        let events = stream::unfold((changes, cursor, name), move |(mut changes, cursor, name)| async move {
            let about = |state: &State| {
                let next = state.events.iter().find(|(version, kind, of, _)| {
                    *version > cursor && (*of == name || ["BOOKMARK", "ERROR"].contains(kind))
                });
                next.map(|(version, kind, _, _)| (*version, *kind))
            };
            let found = {
                let state = changes.wait_for(|state| about(state).is_some()).await.ok()?;
                about(&state)?
            };
            // Metadata only, as was asked for.
            let object = match found.1 {
                "ERROR" => json!({"kind": "Status", "code": 410, "metadata": {}}),
                _ => json!({"metadata": {"name": name, "resourceVersion": found.0.to_string()}}),
            };
            let line = format!("{}\n", json!({"type": found.1, "object": object}));
            Some((Ok(Frame::data(Bytes::from(line))), (changes, found.0, name)))
        });
        Response::new(BoxBody::new(StreamBody::new(events.boxed_send())))
    }
}

/// Makes a stream one that a body can be made of.
trait BoxedSend: Sized {
    fn boxed_send(self) -> SyncStream;
}

type SyncStream =
    std::pin::Pin<Box<dyn futures_util::Stream<Item = Result<Frame<Bytes>, Infallible>> + Send + Sync>>;

impl<S> BoxedSend for S
where
    S: futures_util::Stream<Item = Result<Frame<Bytes>, Infallible>> + Send + 'static,
{
    fn boxed_send(self) -> SyncStream {
        let (send, receive) = tokio::sync::mpsc::channel(16);
        tokio::spawn(async move {
            let mut events = Box::pin(self);
            while let Some(event) = events.next().await {
                if send.send(event).await.is_err() {
                    return;
                }
            }
        });
        Box::pin(stream::unfold(receive, |mut receive| async move {
            let event: Option<Result<Frame<Bytes>, Infallible>> = receive.recv().await;
            event.map(|event| (event, receive))
        }))
    }
}

fn full(status: u16, body: &Json) -> Response<Body> {
    Response::builder().status(status).body(Full::from(body.to_string()).boxed()).unwrap()
}

fn status(code: u16) -> Response<Body> {
    full(code, &json!({"kind": "Status", "code": code}))
}

fn whole(name: &str, version: u64, data: &Json) -> Json {
    json!({"metadata": {"name": name, "resourceVersion": version.to_string()}, "data": data})
}

fn coded(text: &str) -> String {
    BASE64_STANDARD.encode(text)
}

fn secret(path: &str) -> ObjectKey {
    object(Scheme::K8sSecret, path)
}

async fn heard(recorder: &Recorder, what: &str, condition: impl Fn(&[Heard]) -> bool) {
    eventually_async(SOON, what, || async { condition(&recorder.heard()).then_some(()) }).await;
}

fn provider(server: &Server, dir: &std::path::Path) -> (Arc<dyn Provider>, Tasks) {
    let config = format!(
        "current-context: x\ncontexts: [{{name: x, context: {{cluster: c, user: u}}}}]\n\
         clusters: [{{name: c, cluster: {{server: '{}'}}}}]\nusers: [{{name: u, user: {{tokenFile: token}}}}]\n",
        server.url
    );
    std::fs::write(dir.join("token"), "token-1").unwrap();
    let tasks = Tasks::new("test");
    let kubeconfig = Some(secret_file(dir, "config", &config));
    let settings = UpstreamSettings { kind: "kube".to_owned(), kubeconfig, ..UpstreamSettings::default() };
    (super::super::build("u", &settings, &tasks).unwrap(), tasks)
}

#[tokio::test(flavor = "multi_thread")]
async fn objects_are_read_whole_and_refusals_mean_what_the_table_says() {
    let server = Server::start().await;
    let dir = tempfile::tempdir().unwrap();
    let (provider, _tasks) = provider(&server, dir.path());
    let fetch = async |key: ObjectKey| provider.fetch(&key, None).await;
    assert_eq!(fetch(secret("prod/db")).await.outcome, Outcome::Absent);
    server.happen("ADDED", "db", json!({"password": coded("hunter2"), "a": coded("1")}));
    let got = value(fetch(secret("prod/db")).await);
    assert_eq!(got.bytes.expose(), br#"{"a":"1","password":"hunter2"}"#);
    assert_eq!((got.version.as_deref(), got.order, got.sensitive), (Some("101"), None, true));
    server.happen("ADDED", "app", json!({"level": "info"}));
    let got = value(fetch(object(Scheme::K8sCm, "prod/app")).await);
    assert_eq!((got.bytes.expose(), got.sensitive), (&br#"{"level":"info"}"#[..], false));
    for (path, kind) in [
        ("closed/db", AnswerKind::PermissionDenied),
        ("odd/db", AnswerKind::Invalid),
        ("prod/../x", AnswerKind::Invalid),
        ("prod/Upper", AnswerKind::Invalid),
    ] {
        assert_eq!(failure(fetch(secret(path)).await), Failure::of(kind), "{path}");
    }
    // A replaced token is read anew; before that, the refusal is the replica's own.
    server.state.send_modify(|state| state.token = "token-2".to_owned());
    assert_eq!(failure(fetch(secret("prod/db")).await), Failure::own_login());
    std::fs::write(dir.path().join("token"), "token-2\n").unwrap();
    value(fetch(secret("prod/db")).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_tells_of_changes_and_begins_anew_when_its_cursor_is_gone() {
    let server = Server::start().await;
    let dir = tempfile::tempdir().unwrap();
    let (provider, tasks) = provider(&server, dir.path());
    server.happen("ADDED", "db", json!({}));
    let recorder = Recorder::new();
    let guard = provider.watch(&secret("prod/db"), recorder.clone()).unwrap();
    heard(&recorder, "it stands", |heard| heard == [Heard::Subscribed]).await;
    server.happen("MODIFIED", "other", json!({}));
    server.happen("MODIFIED", "db", json!({}));
    heard(&recorder, "the change", |heard| heard == [Heard::Subscribed, Heard::Changed]).await;
    server.happen("BOOKMARK", "", json!({}));
    eventually_async(SOON, "the confirmation", || async { (recorder.confirmations() == 1).then_some(()) })
        .await;
    server.happen("DELETED", "db", json!({}));
    heard(&recorder, "the end", |heard| heard.len() == 3).await;
    // The server forgets where the watch was: a new list, a new beginning.
    server.happen("ERROR", "", json!({}));
    let twice = |heard: &[Heard]| heard.iter().filter(|heard| **heard == Heard::Subscribed).count() == 2;
    heard(&recorder, "it stands anew", twice).await;
    server.happen("ADDED", "db", json!({}));
    heard(&recorder, "a change after that", |heard| heard.last() == Some(&Heard::Changed)).await;
    assert_eq!(recorder.count(&Heard::Lost(AnswerKind::Unavailable)), 0);
    let closed = Recorder::new();
    let _closed = provider.watch(&secret("closed/db"), closed.clone()).unwrap();
    heard(&closed, "the refusal", |heard| heard == [Heard::Lost(AnswerKind::PermissionDenied)]).await;
    drop((guard, _closed, provider));
    tasks.wait(SOON).await.unwrap();
}
