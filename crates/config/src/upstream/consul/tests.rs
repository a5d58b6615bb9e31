//! Against a stand-in with the semantics of Consul's key-value routes: no Consul is installed where the tests run.
//!
//! It answers a read at once with the store's index, holds a query until the key's index passes the one that is waited
//! behind, tells of absence by 404 with an index, and judges tokens.

use std::collections::BTreeMap;
use std::convert::Infallible;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::net::TcpListener;
use tokio::sync::watch;

use holdfast_tests::backends::secret_file;
use holdfast_tests::eventually_async;
use holdfast_tests::process::free_port;

use super::super::testing::{Heard, Recorder, failure, object, value};
use super::super::tests::scripted::crypto;
use super::*;
use crate::config::Scheme;

const SOON: Duration = Duration::from_secs(20);
const TOKEN: &str = "consul-token-1";

#[derive(Clone, Default)]
struct State {
    index: u64,
    pairs: BTreeMap<String, (String, u64)>,
    /// Answered instead of everything.
    status: Option<(u16, &'static str)>,
}

struct Agent {
    port: u16,
    state: watch::Sender<State>,
    asked: Mutex<Vec<String>>,
}

impl Agent {
    async fn start() -> Arc<Self> {
        crypto();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let state = State { index: 10, ..State::default() };
        let agent = Arc::new(Self { port, state: watch::Sender::new(state), asked: Mutex::default() });
        let serving = Arc::clone(&agent);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let agent = Arc::clone(&serving);
                let service = service_fn(move |request| Arc::clone(&agent).serve(request));
                let http = hyper::server::conn::http1::Builder::new();
                tokio::spawn(async move { http.serve_connection(TokioIo::new(stream), service).await });
            }
        });
        agent
    }

    fn put(&self, key: &str, text: &str) -> u64 {
        self.state.send_modify(|state| {
            state.index += 1;
            state.pairs.insert(key.to_owned(), (text.to_owned(), state.index));
        });
        self.state.borrow().index
    }

    fn delete(&self, key: &str) {
        self.state.send_modify(|state| {
            state.index += 1;
            state.pairs.remove(key);
        });
    }

    async fn serve(self: Arc<Self>, request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
        let path = request.uri().path().to_owned();
        let query = request.uri().query().unwrap_or_default().to_owned();
        self.asked.lock().push(format!("{path}?{query}"));
        let key = path.strip_prefix("/v1/kv/").unwrap().to_owned();
        let token = request.headers().get("X-Consul-Token").cloned();
        let behind: u64 = query
            .split('&')
            .find_map(|pair| pair.strip_prefix("index="))
            .map_or(0, |text| text.parse().unwrap());
        let mut changes = self.state.subscribe();
        let index_of = |state: &State| state.pairs.get(&key).map_or(state.index, |(_, index)| *index);
        if behind > 0 {
            let passed = changes
                .wait_for(|state| state.status.is_some() || index_of(state) > behind || state.index < behind);
            let _ = tokio::time::timeout(WAIT, passed).await;
        }
        let state = self.state.borrow().clone();
        let answer = |status: u16, body: String| {
            let index = index_of(&state).to_string();
            Ok(Response::builder().status(status).header("X-Consul-Index", index).body(body.into()).unwrap())
        };
        if let Some((status, body)) = state.status {
            return answer(status, body.to_owned());
        }
        match token {
            Some(token) if token != TOKEN => return answer(403, "ACL not found".to_owned()),
            None if key.starts_with("closed/") => return answer(403, "Permission denied".to_owned()),
            _ => {}
        }
        let Some((text, index)) = state.pairs.get(&key) else { return answer(404, String::new()) };
        let text = (!text.is_empty()).then(|| BASE64_STANDARD.encode(text));
        let pair = serde_json::json!([{"Key": key, "Value": text, "ModifyIndex": index, "CreateIndex": 1, "Flags": 0}]);
        answer(200, pair.to_string())
    }
}

fn provider(addrs: Vec<String>, token_file: Option<PathBuf>) -> (Arc<dyn Provider>, Tasks) {
    let tasks = Tasks::new("test");
    let kind = "consul".to_owned();
    let settings = UpstreamSettings { kind, addrs, token_file, ..UpstreamSettings::default() };
    (super::super::build("u", &settings, &tasks).unwrap(), tasks)
}

fn key(path: &str) -> ObjectKey {
    object(Scheme::Consul, path)
}

async fn heard(recorder: &Recorder, what: &str, condition: impl Fn(&[Heard]) -> bool) {
    eventually_async(SOON, what, || async { condition(&recorder.heard()).then_some(()) }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn values_have_their_index_and_changes_end_the_held_query() {
    let agent = Agent::start().await;
    let dead = format!("127.0.0.1:{}", free_port());
    let (provider, tasks) = provider(vec![dead, format!("http://127.0.0.1:{}", agent.port)], None);
    assert_eq!(provider.fetch(&key("app/a"), None).await.outcome, Outcome::Absent);
    let first = agent.put("app/a", "one");
    agent.put("empty", "");
    let got = value(provider.fetch(&key("app/a"), None).await);
    assert_eq!((got.bytes.expose(), got.order), (&b"one"[..], Some(first)));
    assert_eq!(got.version, Some(first.to_string()));
    assert!(value(provider.fetch(&key("empty"), None).await).bytes.is_empty());
    agent.put("sp%20ace/a%23b", "odd");
    assert_eq!(value(provider.fetch(&key("sp ace/a#b"), None).await).bytes.expose(), b"odd");
    assert_eq!(failure(provider.fetch(&key("a/../b"), None).await), Failure::of(AnswerKind::Invalid));

    let recorder = Recorder::new();
    let guard = provider.watch(&key("app/a"), recorder.clone()).unwrap();
    heard(&recorder, "it stands", |heard| heard == [Heard::Subscribed]).await;
    let second = agent.put("app/a", "two");
    heard(&recorder, "the change", |heard| heard.len() == 2).await;
    let Heard::Event(Outcome::Value { value: told, .. }) = &recorder.heard()[1] else { panic!("no value") };
    assert_eq!((told.bytes.expose(), told.order), (&b"two"[..], Some(second)));
    agent.delete("app/a");
    heard(&recorder, "the end", |heard| heard.last() == Some(&Heard::Changed)).await;
    drop((guard, provider));
    tasks.wait(SOON).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_index_that_goes_back_is_forgotten_and_returns_are_bounded() {
    let agent = Agent::start().await;
    agent.put("a", "one");
    let (provider, _tasks) = provider(vec![format!("127.0.0.1:{}", agent.port)], None);
    let recorder = Recorder::new();
    let _guard = provider.watch(&key("a"), recorder.clone()).unwrap();
    heard(&recorder, "it stands", |heard| heard == [Heard::Subscribed]).await;
    // As after a restore of an older snapshot: indexes begin anew below.
    agent.state.send_modify(|state| {
        state.index = 3;
        state.pairs.insert("a".to_owned(), ("restored".to_owned(), 3));
    });
    heard(&recorder, "it stands anew", |heard| {
        heard.iter().filter(|h| **h == Heard::Subscribed).count() == 2
    })
    .await;
    agent.asked.lock().clear();
    let began = std::time::Instant::now();
    for n in 0..30 {
        let told = agent.put("a", &n.to_string());
        eventually_async(SOON, "the change", || async {
            let last = recorder.heard().into_iter().rev().find_map(|heard| match heard {
                Heard::Event(Outcome::Value { value, .. }) => value.order,
                _ => None,
            });
            (last >= Some(told)).then_some(())
        })
        .await;
    }
    let (asked, tenths) = (agent.asked.lock().len() as u128, began.elapsed().as_millis() / 100);
    assert!(asked <= tenths + 2, "{asked} queries in {tenths} tenths of a second");
}

#[tokio::test(flavor = "multi_thread")]
async fn refusals_are_told_and_an_unknown_token_is_the_replicas_own() {
    let agent = Agent::start().await;
    let dir = tempfile::tempdir().unwrap();
    let addrs = vec![format!("127.0.0.1:{}", agent.port)];
    let (nobody, _tasks) = provider(addrs.clone(), None);
    assert_eq!(
        failure(nobody.fetch(&key("closed/a"), None).await),
        Failure::of(AnswerKind::PermissionDenied)
    );
    let refused = Recorder::new();
    let _refused = nobody.watch(&key("closed/a"), refused.clone()).unwrap();
    heard(&refused, "the refusal", |heard| heard == [Heard::Lost(AnswerKind::PermissionDenied)]).await;
    let (wrong, _tasks) = provider(addrs.clone(), Some(secret_file(dir.path(), "wrong", "hunter2")));
    assert_eq!(failure(wrong.fetch(&key("closed/a"), None).await), Failure::own_login());
    let (known, _tasks) = provider(addrs, Some(secret_file(dir.path(), "right", TOKEN)));
    assert_eq!(known.fetch(&key("closed/a"), None).await.outcome, Outcome::Absent);
    agent.state.send_modify(|state| state.status = Some((500, "No cluster leader")));
    assert_eq!(failure(known.fetch(&key("closed/a"), None).await), Failure::of(AnswerKind::Unavailable));
    agent.state.send_modify(|state| state.status = Some((429, "")));
    assert_eq!(failure(known.fetch(&key("a"), None).await), Failure::of(AnswerKind::RateLimited));
}

#[test]
fn the_index_is_forgotten_when_it_goes_back_or_is_none() {
    assert_eq!((next_index(0, Some(7)), next_index(7, Some(7)), next_index(7, Some(9))), (7, 7, 9));
    assert_eq!((next_index(7, Some(6)), next_index(7, None)), (0, 0));
}

#[test]
fn more_watches_than_an_agent_allows_are_not_begun() {
    let watches = Arc::default();
    let places: Vec<_> = (0..MOST).map(|_| Place::take(&watches).unwrap()).collect();
    assert!(Place::take(&watches).is_none());
    drop(places);
    assert!(Place::take(&watches).is_some());
}
