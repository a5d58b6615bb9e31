//! Chains and rings of whole replicas.

use std::path::Path;
use std::time::Duration;

use holdfast_core::readiness::Answer;
use holdfast_ops::Tasks;
use holdfast_ops::shutdown::{Request, Signals};
use holdfast_ops::tasks::TaskHandle;
use holdfast_tests::backends::secret_file;
use holdfast_tests::eventually_async;
use holdfast_tests::process::free_port;
use serde_json::Value as Json;
use tempfile::TempDir;
use tokio::sync::watch;

use super::super::tests::scripted::crypto;
use crate::load;
use crate::server::{Replica, Source};

const SOON: Duration = Duration::from_secs(40);
const TOKEN: &str = "hfc_app";

struct Server {
    port: u16,
    dir: TempDir,
    _ask: watch::Sender<Request>,
    _end: TaskHandle<u8>,
    _tasks: Tasks,
}

impl Server {
    /// Starts a replica at a port; `above` are the ports of the servers that it asks.
    async fn start(port: u16, above: &[u16], bindings: &str) -> Self {
        crypto();
        let dir = tempfile::tempdir().unwrap();
        let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, TOKEN.as_bytes());
        let tokens =
            format!("[[token]]\nid = \"a\"\nsha256 = \"{}\"\nsubject = \"app\"\n", hex::encode(digest));
        secret_file(dir.path(), "tokens.toml", &tokens);
        secret_file(dir.path(), "up.token", TOKEN);
        let urls: Vec<_> = above.iter().map(|port| format!("http://127.0.0.1:{port}")).collect();
        let upstream = match urls.is_empty() {
            true => String::new(),
            false => format!(
                "upstream.up = {{ type = \"holdfast\", endpoints = {urls:?}, token_file = \"up.token\" }}"
            ),
        };
        let text = format!(
            "audit = {{ sink = \"off\" }}\nallow_chaining = true\npolicy = {{ allow_all = true }}\n\
             auth = {{ methods = [\"token\"], token = {{ file = \"tokens.toml\" }} }}\n\
             listener = [{{ kind = \"tcp\", addr = \"127.0.0.1:{port}\" }}]\n{upstream}\n{}\n",
            bindings.replace("DIR", &dir.path().display().to_string())
        );
        std::fs::write(dir.path().join("config.toml"), text).unwrap();
        let source = Source { path: dir.path().join("config.toml"), overrides: load::Overrides::default() };
        let configuration = load::load(&source.path, &source.overrides).unwrap_or_else(|p| panic!("{p}"));
        let tasks = Tasks::new("config");
        write(dir.path(), "one");
        let replica = Replica::start(configuration, source, &tasks).await.unwrap();
        let mut ready = replica.readiness();
        let (ask, signals) = Signals::manual();
        let end = Tasks::new("main").spawn("serve", replica.serve(signals));
        tokio::time::timeout(SOON, ready.wait_for(|answer| *answer == Answer::Ready)).await.unwrap().unwrap();
        Self { port, dir, _ask: ask, _end: end, _tasks: tasks }
    }

    async fn get(&self, name: &str, via: Option<&str>) -> (u16, Json) {
        let mut request = reqwest::Client::new()
            .get(format!("http://127.0.0.1:{}/v1/values/{name}", self.port))
            .bearer_auth(TOKEN);
        if let Some(via) = via {
            request = request.header("Holdfast-Via", via);
        }
        let answer = request.send().await.unwrap();
        (answer.status().as_u16(), answer.json().await.unwrap())
    }
}

fn write(dir: &Path, text: &str) {
    std::fs::write(dir.join("new"), text).unwrap();
    std::fs::rename(dir.join("new"), dir.join("value")).unwrap();
}

/// What of an answer must be the same at each server of a chain.
fn passed(answer: &(u16, Json)) -> Vec<Json> {
    let fields =
        ["bytes", "resolved_at", "stale", "kind", "version", "order", "epoch", "sensitive", "not_after"];
    fields.iter().map(|field| answer.1[*field].clone()).collect()
}

async fn same(first: &Server, last: &Server, name: &str, what: &str, wanted: impl Fn(&Json) -> bool) {
    eventually_async(SOON, what, || async {
        let (one, other) = (first.get(name, None).await, last.get(name, None).await);
        (wanted(&one.1) && one.0 == 200 && passed(&one) == passed(&other)).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_last_of_three_says_of_a_value_what_the_first_says() {
    let files =
        "upstream.files = { type = \"file\", roots = [\"DIR\"] }\n[bindings]\nv = \"file://DIR/value\"\n";
    let first = Server::start(free_port(), &[], files).await;
    let chained = "[bindings]\nv = \"holdfast://v\"\nnone = \"holdfast://nothing\"\n";
    let second = Server::start(free_port(), &[first.port], chained).await;
    let third = Server::start(free_port(), &[second.port], chained).await;
    same(&first, &third, "v", "the value", |one| one["bytes"] == "b25l" && one["stale"].is_null()).await;
    write(first.dir.path(), "two");
    same(&first, &third, "v", "the change", |one| one["bytes"] == "dHdv").await;
    std::fs::remove_file(first.dir.path().join("value")).unwrap();
    same(&first, &third, "v", "the trouble", |one| one["stale"] == true && one["kind"] == "not_found").await;
    write(first.dir.path(), "three");
    same(&first, &third, "v", "the recovery", |one| one["bytes"] == "dGhyZWU=" && one["stale"].is_null())
        .await;
    let (status, answer) = third.get("none", None).await;
    assert_eq!((status, &answer["error"]["kind"]), (404, &Json::from("not_found")));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_ring_is_refused_and_servers_that_ask_each_other_for_different_values_are_none() {
    let ports = [free_port(), free_port()];
    let bindings = |own: &str, other: &str| {
        format!(
            "[bindings]\nring = \"holdfast://ring\"\n{own} = \"static:{own}\"\n{other} = \"holdfast://{other}\"\n"
        )
    };
    let (left, right) = (bindings("a", "b"), bindings("b", "a"));
    let (above_left, above_right) = ([ports[1]], [ports[0]]);
    let (one, two) = tokio::join!(
        Server::start(ports[0], &above_left, &left),
        Server::start(ports[1], &above_right, &right),
    );
    for server in [&one, &two] {
        eventually_async(SOON, "the ring is found", || async {
            let (status, answer) = server.get("ring", None).await;
            (status == 400 && answer["error"]["kind"] == "invalid").then_some(())
        })
        .await;
        for (name, bytes) in [("a", "YQ=="), ("b", "Yg==")] {
            eventually_async(SOON, "what is no ring", || async {
                let (status, answer) = server.get(name, None).await;
                (status == 200 && answer["bytes"] == bytes).then_some(())
            })
            .await;
        }
    }
    let (status, answer) = one.get("a", Some("a,b,c,d,e,f,g,h")).await;
    assert_eq!((status, &answer["error"]["message"]), (400, &Json::from("chaining loop")));
}
