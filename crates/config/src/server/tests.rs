//! A whole replica in this process, asked over sockets.

use std::net::SocketAddr;
use std::time::Duration;

use holdfast_ops::shutdown::{Request, Signals};
use holdfast_ops::tasks::TaskHandle;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::watch;

use super::*;
use crate::load;

const SOON: Duration = Duration::from_secs(20);
const TOKEN: &str = "hfc_app";
const OPERATOR: &str = "hfc_operator";

struct Rig {
    dir: TempDir,
    address: SocketAddr,
    ask: watch::Sender<Request>,
    end: TaskHandle<u8>,
    _tasks: Tasks,
}

fn sha256(text: &str) -> String {
    hex::encode(aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, text.as_bytes()))
}

/// A directory with a configuration: a token for an application, one for an operator, and what else is given.
fn directory(more: &str) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    let tokens = format!(
        "[[token]]\nid = \"a\"\nsha256 = \"{}\"\nsubject = \"app\"\n\n\
         [[token]]\nid = \"o\"\nsha256 = \"{}\"\nsubject = \"operator\"\n",
        sha256(TOKEN),
        sha256(OPERATOR)
    );
    std::fs::write(dir.path().join("tokens.toml"), tokens).unwrap();
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::set_permissions(dir.path().join("tokens.toml"), std::fs::Permissions::from_mode(0o600)).unwrap();
    write(&dir, more);
    dir
}

fn write(dir: &TempDir, more: &str) {
    let text = format!(
        r#"node_id = "secret-node"
audit = {{ sink = "off" }}
auth = {{ methods = ["token"], token = {{ file = "tokens.toml" }} }}
listener = [{{ kind = "tcp", addr = "127.0.0.1:0" }}]
policy.rule = [
  {{ subjects = ["app"], names = ["db-*", "empty", "file", "new"] }},
  {{ subjects = ["operator"], names = ["**"], verbs = ["status", "metrics"] }},
]
{more}
"#
    );
    std::fs::write(dir.path().join("config.toml"), text).unwrap();
}

const BINDINGS: &str = r#"
[bindings]
db-password = "static:hunter2"
empty = "static:"
hidden = "static:secret"
"#;

async fn start(more: &str) -> Rig {
    let dir = directory(more);
    let source = Source { path: dir.path().join("config.toml"), overrides: load::Overrides::default() };
    let configuration = load::load(&source.path, &source.overrides).unwrap_or_else(|p| panic!("{p}"));
    let tasks = Tasks::new("config");
    let replica = Replica::start(configuration, source, &tasks).await.unwrap();
    let Some(Bound::Tcp(address)) = replica.bound().first().cloned() else { panic!("no port") };
    let mut ready = replica.readiness();
    let (ask, signals) = Signals::manual();
    let end = Tasks::new("main").spawn("serve", replica.serve(signals));
    tokio::time::timeout(SOON, ready.wait_for(|answer| *answer == Answer::Ready)).await.unwrap().unwrap();
    Rig { dir, address, ask, end, _tasks: tasks }
}

/// A status, the headers in lower case without the request id and the date, and the body.
type Answered = (u16, Vec<String>, Vec<u8>);

impl Rig {
    async fn raw(&self, text: &str) -> Answered {
        let mut client = TcpStream::connect(self.address).await.unwrap();
        client.write_all(text.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        tokio::time::timeout(SOON, client.read_to_end(&mut answer)).await.unwrap().unwrap();
        let end = answer.windows(4).position(|w| w == b"\r\n\r\n").unwrap();
        let head = String::from_utf8(answer[..end].to_vec()).unwrap();
        let mut lines = head.split("\r\n");
        let status = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
        let other = |line: &String| !line.starts_with("holdfast-request-id") && !line.starts_with("date:");
        let headers = lines.map(str::to_lowercase).filter(other).collect();
        (status, headers, answer[end + 4..].to_vec())
    }

    async fn ask(&self, method: &str, path: &str, token: &str, body: &str) -> Answered {
        self.raw(&format!(
            "{method} {path} HTTP/1.1\r\nhost: a\r\nauthorization: Bearer {token}\r\nconnection: close\r\n\
             content-length: {}\r\n\r\n{body}",
            body.len()
        ))
        .await
    }

    async fn get(&self, path: &str) -> (u16, String) {
        let (status, _, body) = self.ask("GET", path, TOKEN, "").await;
        (status, String::from_utf8(body).unwrap())
    }

    /// A stream that is read line by line.
    async fn watch(&self, path: &str) -> Lines {
        let mut client = TcpStream::connect(self.address).await.unwrap();
        let text = format!("GET {path} HTTP/1.0\r\nauthorization: bearer {TOKEN}\r\n\r\n");
        client.write_all(text.as_bytes()).await.unwrap();
        Lines { client, text: String::new() }
    }

    async fn eventually(&self, path: &str, expected: (u16, &str)) {
        let seen = tokio::time::timeout(SOON, async {
            loop {
                let (status, body) = self.get(path).await;
                if status == expected.0 && body.contains(expected.1) {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        });
        assert!(seen.await.is_ok(), "{path} never was {expected:?}: {:?}", self.get(path).await);
    }

    async fn ended(self) -> u8 {
        tokio::time::timeout(SOON, self.end.join()).await.unwrap().unwrap()
    }
}

struct Lines {
    client: TcpStream,
    text: String,
}

impl Lines {
    /// Reads until a text was seen, and returns everything up to it.
    async fn until(&mut self, wanted: &str) -> String {
        let read = async {
            loop {
                if let Some(at) = self.text.find(wanted) {
                    let rest = self.text.split_off(at + wanted.len());
                    return std::mem::replace(&mut self.text, rest);
                }
                let mut part = [0; 4096];
                let read = self.client.read(&mut part).await.unwrap();
                assert!(read > 0, "ended before {wanted:?}: {:?}", self.text);
                self.text += std::str::from_utf8(&part[..read]).unwrap();
            }
        };
        tokio::time::timeout(SOON, read).await.unwrap_or_else(|_| panic!("no {wanted:?}"))
    }

    async fn end(mut self) -> String {
        tokio::time::timeout(SOON, self.client.read_to_string(&mut self.text)).await.unwrap().unwrap();
        self.text
    }
}

#[tokio::test]
async fn values_as_a_first_version_client_sees_them() {
    let rig = start(BINDINGS).await;
    let (status, headers, body) = rig.ask("GET", "/v1/values/db-password", TOKEN, "").await;
    let text = String::from_utf8(body.clone()).unwrap();
    assert_eq!(status, 200);
    assert!(
        text.starts_with(r#"{"name":"db-password","bytes":"aHVudGVyMg==","metadata":{},"resolved_at":"2"#),
        "{text}"
    );
    for header in ["content-type: application/json", "cache-control: no-store"] {
        assert!(headers.iter().any(|line| line == header), "{header} in {headers:?}");
    }
    assert!(headers.iter().any(|line| line.starts_with("holdfast-config: ")), "{headers:?}");
    let mut head = rig.ask("HEAD", "/v1/values/db-password", TOKEN, "").await;
    head.1.sort();
    let mut sorted = headers;
    sorted.sort();
    assert_eq!(head, (200, sorted, Vec::new()));
    let (_, empty) = rig.get("/v1/values/empty").await;
    assert!(empty.starts_with(r#"{"name":"empty","metadata":{},"resolved_at":"#), "{empty}");
    assert_eq!(
        rig.get("/v1/values/db-none").await,
        (404, r#"{"error":{"kind":"not_found","message":"binding not found"}}"#.to_owned())
    );
    assert_eq!(rig.get("/v1/values/a/b").await, (404, "404 page not found".to_owned()));
    let (status, headers, body) = rig.ask("DELETE", "/v1/values/db-password", TOKEN, "").await;
    assert_eq!((status, &*body), (405, &b"Method Not Allowed"[..]));
    assert!(headers.contains(&"allow: get, head".to_owned()), "{headers:?}");
    let (status, headers, body) = rig.ask("GET", "/v1/values/db-password", "wrong", "").await;
    assert_eq!(status, 401);
    assert_eq!(body, br#"{"error":{"kind":"unauthenticated","message":"unauthenticated"}}"#);
    assert!(headers.contains(&"www-authenticate: bearer".to_owned()), "{headers:?}");
}

#[tokio::test]
async fn a_denied_name_answers_alike_whatever_it_is() {
    let rig = start(BINDINGS).await;
    let expected = rig.ask("GET", "/v1/values/hidden", TOKEN, "").await;
    assert_eq!(expected.0, 403);
    for odd in ["none", "%FF%FE", "a%00b", "%2F%2F", &"x".repeat(5000), "..%2Fhidden"] {
        assert_eq!(rig.ask("GET", &format!("/v1/values/{odd}"), TOKEN, "").await, expected, "{odd}");
    }
}

#[tokio::test]
async fn a_batch_in_the_order_of_the_request() {
    let rig = start(BINDINGS).await;
    let body = r#"{"names":["empty","hidden","db-none","empty"]}"#;
    let (status, _, answer) = rig.ask("POST", "/v1/values", TOKEN, body).await;
    assert_eq!(status, 200);
    // Dechunked: one chunk.
    let text = String::from_utf8(answer).unwrap();
    let json = text.split("\r\n").find(|line| line.starts_with('{')).unwrap();
    let values: serde_json::Value = serde_json::from_str(json).unwrap();
    let kinds: Vec<_> =
        values["values"].as_array().unwrap().iter().map(|v| v["error"]["kind"].as_str()).collect();
    assert_eq!(kinds, [None, Some("permission_denied"), Some("not_found"), None]);
    let (_, _, answer) = rig.ask("POST", "/v1/values", TOKEN, "null").await;
    assert!(String::from_utf8(answer).unwrap().contains(r#"{"values":[]}"#));
    let malformed = rig.ask("POST", "/v1/values", TOKEN, "{").await;
    assert_eq!(malformed.2, br#"{"error":{"kind":"invalid","message":"malformed request body"}}"#);
    let large = rig.ask("POST", "/v1/values", TOKEN, &" ".repeat((1 << 20) + 1)).await;
    assert_eq!((large.0, large.2), (400, malformed.2));
}

#[tokio::test]
async fn probes_say_a_bare_status_and_name_nothing() {
    let rig = start(BINDINGS).await;
    for (path, body) in [("healthz", r#"{"status":"ok"}"#), ("readyz", r#"{"status":"ready"}"#)] {
        let text = format!("GET /v1/{path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n");
        let (status, headers, answer) = rig.raw(&text).await;
        assert_eq!((status, &*answer), (200, body.as_bytes()));
        assert!(
            !headers.iter().any(|line| line.starts_with("holdfast-") || line.starts_with("server:")),
            "{headers:?}"
        );
        let cached = headers.contains(&"cache-control: no-store".to_owned());
        assert_eq!(cached, path == "readyz");
    }
}

#[tokio::test]
async fn a_watch_follows_a_reload_and_a_bad_one_changes_nothing() {
    let rig = start(&format!("reload = {{ debounce = \"50ms\" }}\n{BINDINGS}")).await;
    let mut lines = rig.watch("/v1/watch?name=db-password&name=hidden&name=new").await;
    let opened = lines.until("event: synced\n").await;
    for part in [
        "content-type: text/event-stream\r\n",
        "x-accel-buffering: no\r\n",
        "\r\n\r\nretry: 1000\n\nevent: update\ndata: {\"name\":\"db-password\",\"bytes\":\"aHVudGVyMg==\"",
        "event: error\ndata: {\"name\":\"hidden\",\"metadata\":{},\"error\":{\"kind\":\"permission_denied\"",
        "event: error\ndata: {\"name\":\"new\",\"metadata\":{},\"error\":{\"kind\":\"not_found\"",
    ] {
        assert!(opened.contains(part), "{part} in {opened}");
    }
    write(&rig.dir, "[bindings\n");
    tokio::time::timeout(SOON, async {
        loop {
            let status = rig.ask("GET", "/v1/status", OPERATOR, "").await.2;
            let status: serde_json::Value = serde_json::from_slice(&status).unwrap();
            if !status["last_reload_error"].is_null() {
                assert_eq!(status["config"]["generation"], 1);
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await
    .unwrap();
    assert_eq!(rig.get("/v1/values/db-password").await.0, 200);
    write(
        &rig.dir,
        "reload = { debounce = \"50ms\" }\n[bindings]\ndb-password = \"static:changed\"\nnew = \"static:n\"\n",
    );
    let text = lines.until("\"Y2hhbmdlZA==\"").await + &lines.text;
    rig.eventually("/v1/values/new", (200, "\"bg==\"")).await;
    rig.eventually("/v1/values/empty", (404, "binding not found")).await;
    assert!(!text.contains("retry:"), "the stream was kept");
}

#[tokio::test]
async fn a_file_that_changes_is_seen_on_a_stream() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("v"), "one").unwrap();
    let root = dir.path().display();
    let rig = start(&format!(
        "upstream.files = {{ type = \"file\", roots = [\"{root}\"] }}\n[bindings]\nfile = \"file://{root}/v\"\n"
    ))
    .await;
    let mut lines = rig.watch("/v1/watch?name=file").await;
    assert!(lines.until("event: synced\n").await.contains("\"b25l\""));
    std::fs::write(dir.path().join("v"), "two").unwrap();
    let text = lines.until("\"dHdv\"").await;
    assert!(text.contains("event: update\nid: "), "{text}");
}

#[tokio::test]
async fn an_operator_sees_the_node_and_nobody_else_does() {
    let rig = start(BINDINGS).await;
    for path in ["/v1/status", "/metrics"] {
        assert_eq!(rig.get(path).await.0, 403, "{path}");
    }
    let (status, _, body) = rig.ask("GET", "/v1/status", OPERATOR, "").await;
    let seen: serde_json::Value = serde_json::from_slice(&body).unwrap();
    assert_eq!((status, &seen["node"], &seen["state"]), (200, &"secret-node".into(), &"ready".into()));
    assert_eq!(seen["bindings"][0]["name"], "db-password");
    assert_eq!(seen["bindings"][0]["state"], "fresh");
    assert!(!String::from_utf8(body).unwrap().contains("hunter2"));
    let (_, _, body) = rig.ask("GET", "/metrics", OPERATOR, "").await;
    let text = String::from_utf8(body).unwrap();
    assert!(text.contains("holdfast_config_bindings{state=\"fresh\"} 3"), "{text}");
    assert!(text.contains(
        "holdfast_config_requests_total{route=\"status\",status=\"403\",kind=\"permission_denied\"} 1"
    ));
}

#[tokio::test]
async fn the_grace_serves_on_and_the_end_is_clean() {
    let rig = start(&format!("drain_grace = \"700ms\"\n{BINDINGS}")).await;
    let mut lines = rig.watch("/v1/watch?name=db-password").await;
    lines.until("event: synced\n").await;
    rig.ask.send_replace(Request::Graceful);
    let told = lines.until("within_ms\":350}\n\n").await;
    assert!(told.contains("event: goaway\ndata: {\"reason\":\"draining\""), "{told}");
    let text = "GET /v1/readyz HTTP/1.1\r\nhost: a\r\n\r\n";
    let (status, headers, body) = rig.raw(text).await;
    assert_eq!((status, &*body), (503, &br#"{"status":"draining"}"#[..]));
    assert!(headers.contains(&"connection: close".to_owned()), "{headers:?}");
    assert_eq!(rig.get("/v1/values/db-password").await.0, 200);
    assert!(lines.end().await.is_empty(), "nothing but the end follows");
    assert_eq!(rig.ended().await, 0);
}

#[tokio::test]
async fn without_a_grace_streams_do_not_hold_the_process() {
    let rig = start(BINDINGS).await;
    let mut streams = Vec::new();
    for _ in 0..50 {
        let mut lines = rig.watch("/v1/watch?name=db-password").await;
        lines.until("event: synced\n").await;
        streams.push(lines);
    }
    let began = tokio::time::Instant::now();
    rig.ask.send_replace(Request::Graceful);
    for lines in streams {
        assert!(lines.end().await.contains("\"within_ms\":0}"));
    }
    assert_eq!(rig.ended().await, 0);
    assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
}

#[tokio::test]
async fn a_path_that_another_process_serves_fails_the_start_and_undoes_the_rest() {
    let dir = directory("");
    let (first, second) = (dir.path().join("a.sock"), dir.path().join("b.sock"));
    let _served = tokio::net::UnixListener::bind(&second).unwrap();
    let sockets = format!(
        "{{ kind = \"unix\", path = \"{}\" }}, {{ kind = \"unix\", path = \"{}\" }}",
        first.display(),
        second.display()
    );
    write(&dir, BINDINGS);
    let text = std::fs::read_to_string(dir.path().join("config.toml")).unwrap();
    std::fs::write(
        dir.path().join("config.toml"),
        text.replace("addr = \"127.0.0.1:0\" }", &format!("addr = \"127.0.0.1:0\" }}, {sockets}")),
    )
    .unwrap();
    let source = Source { path: dir.path().join("config.toml"), overrides: load::Overrides::default() };
    let configuration = load::load(&source.path, &source.overrides).unwrap_or_else(|p| panic!("{p}"));
    let error = Replica::start(configuration, source, &Tasks::new("config")).await.err().unwrap();
    assert_eq!(error.to_string(), format!("socket {} is served by another process", second.display()));
    assert_eq!(error.exit_code(), 64);
    assert!(!first.exists());
}
