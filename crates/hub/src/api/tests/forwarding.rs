//! Requests that reach a node which is not the active one.

use std::io::Write;

use futures_util::future::join_all;
use http::header::{LOCATION, RETRY_AFTER};
use tracing_subscriber::fmt::MakeWriter;

use super::*;

const UNKNOWN: &str = "request outcome unknown";
const NOBODY: &str = "no active Vault instance found";

#[tokio::test]
async fn local_paths_are_answered_by_the_node_that_was_asked() {
    let pair = Pair::start().await;
    let (b, root) = (&pair.b, pair.root.as_str());
    pair.wires.take_sent();
    for (path, status) in [
        ("sys/health", 429),
        ("sys/seal-status", 200),
        ("sys/leader", 200),
        ("sys/init", 200),
        ("nowhere/x?help=1", 200),
        ("sys/metrics", 200),
    ] {
        b.as_token(root, "GET", path, Value::Null).await.expect(status);
    }
    let leader = b.as_token("", "GET", "sys/leader", Value::Null).await.body;
    assert_eq!((&leader["is_self"], &leader["leader_address"]), (&json!(false), &json!("http://a:8200")));
    let key = json!({"key": pair.keys[0]});
    assert_eq!(b.as_token("", "PUT", "sys/unseal", key).await.expect(200).body["sealed"], false);
    b.as_token(root, "PUT", "sys/seal", json!({})).await.expect(204);
    assert_eq!(pair.wires.take_sent(), [""; 0]);
    assert_eq!(b.as_token("", "GET", "sys/health", Value::Null).await.status, 503, "it sealed itself");
    assert_eq!(pair.a.as_token("", "GET", "sys/health", Value::Null).await.status, 200, "and nobody else");
    pair.stop().await;
}

#[tokio::test]
async fn all_else_goes_to_the_active_node_with_the_same_caps_and_answers() {
    let pair = Pair::start().await;
    let root = pair.root.as_str();
    pair.a.as_token(root, "PUT", "sys/mounts/kv", json!({"type": "kv"})).await.expect(204);
    pair.a.as_token(root, "PUT", "kv/a", json!({"v": 1})).await.expect(204);
    let large = json!({"v": "x".repeat(5000)});
    for (method, path, body, status) in [
        ("GET", "sys/mounts", Value::Null, 200),
        ("GET", "kv/a", Value::Null, 200),
        ("GET", "kv/none", Value::Null, 404),
        ("LIST", "kv", Value::Null, 200),
        ("PUT", "kv/a", json!({"v": 2}), 204),
        ("PATCH", "kv/a", json!({}), 415),
        ("PUT", "kv/a", json!("{"), 400),
        ("PUT", "kv/a", large, 413),
        ("GET", "auth/token/lookup-self", Value::Null, 200),
        ("GET", "sys/storage/raft/configuration", Value::Null, 200),
        ("GET", "nowhere/x", Value::Null, 404),
        ("DELETE", "sys/ha-status", Value::Null, 405),
        ("PUT", "sys/wrapping/lookup", json!({"token": "x"}), 400),
    ] {
        let mut answers = Vec::new();
        for rig in [&pair.a, &pair.b] {
            let reply = rig.as_token(root, method, path, body.clone()).await;
            assert_eq!(reply.status, status, "{method} {path}: {}", reply.text);
            let mut shown = reply.body.clone();
            shown["request_id"] = Value::Null;
            answers.push((shown, reply.headers.get("content-type").cloned()));
        }
        assert_eq!(answers[0], answers[1], "{method} {path}");
        // What cannot be parsed goes nowhere.
        let expected: &[&str] =
            if matches!(status, 415 | 413) || body.is_string() { &[] } else { &["a:8201"] };
        assert_eq!(pair.wires.take_sent(), expected, "{method} {path}");
    }
    pair.stop().await;
}

#[tokio::test]
async fn backups_stream_through_any_node_beyond_the_limit_of_bodies() {
    let pair = Pair::start().await;
    let root = pair.root.as_str();
    // Random, so that it stays larger than the limit of 4096 bytes when it is packed.
    let image: Vec<u8> = std::iter::repeat_with(rand::random::<u8>).take(100_000).collect();
    pair.a.cluster.set_image(image.clone());
    let download = pair.b.http.get(format!("{}sys/storage/raft/snapshot", pair.b.url));
    let download = download.header("x-vault-token", root).send().await.unwrap();
    assert_eq!(download.status(), 200);
    let archive = download.bytes().await.unwrap();
    assert!(archive.len() > 90_000);
    pair.a.cluster.set_image(b"something else".to_vec());
    assert_eq!(pair.wires.take_sent(), ["a:8201"]);
    let upload = pair.b.http.post(format!("{}sys/storage/raft/snapshot", pair.b.url)).body(archive.to_vec());
    let refused = upload.try_clone().unwrap().send().await.unwrap();
    assert_eq!(refused.status(), 403, "nothing is read before the caller was let in");
    let upload = upload.header("x-vault-token", root).send().await.unwrap();
    assert_eq!(upload.status(), 204, "{:?}", upload.text().await);
    assert_eq!(pair.a.cluster.image(), image);
    pair.stop().await;
}

#[tokio::test]
async fn the_clients_address_travels_along_and_cannot_be_claimed() {
    let mut pair = Pair::start().await;
    let root = pair.root.clone();
    let role = json!({"token_bound_cidrs": "127.0.0.2/32", "allowed_policies": "default"});
    pair.a.as_token(&root, "PUT", "auth/token/roles/bound", role).await.expect(204);
    let made = pair.a.as_token(&root, "PUT", "auth/token/create/bound", json!({})).await.expect(200);
    let token = made.body["auth"]["client_token"].as_str().unwrap().to_owned();
    let file = pair.a._dir.path().join("audit.log");
    let device = json!({"type": "file", "options": {"file_path": file}});
    pair.a.as_token(&root, "PUT", "sys/audit/main", device).await.expect(204);
    let own = "auth/token/lookup-self";
    for rig in [&pair.a, &pair.b] {
        rig.as_token(&token, "GET", own, Value::Null).await.expect_error(403, "permission denied");
        for header in ["x-holdfast-remote", "x-forwarded-for"] {
            let headers = [("x-vault-token", token.as_str()), (header, "127.0.0.2")];
            rig.send("GET", own, &headers, Value::Null).await.expect(403);
        }
    }
    let there = client().local_address(std::net::IpAddr::from([127, 0, 0, 2])).build().unwrap();
    for rig in [&mut pair.a, &mut pair.b] {
        rig.http = there.clone();
        rig.as_token(&token, "GET", own, Value::Null).await.expect(200);
    }
    let lines = std::fs::read_to_string(&file).unwrap();
    let last: Value = serde_json::from_str(lines.lines().last().unwrap()).unwrap();
    assert_eq!(last["request"]["remote_address"], "127.0.0.2");
    pair.stop().await;
}

/// A request as the port would hand it over, without a connection.
fn direct(path: &str, token: &str) -> Request<Body> {
    let request = Request::get(format!("/v1/{path}")).header("x-vault-token", token);
    request.body(crate::api::body::empty()).unwrap()
}

#[tokio::test]
async fn so_many_requests_are_held_and_no_more() {
    let rig = Rig::one_with(|config| {
        config.limits.forward_hold = holdfast_ops::Duration::from_secs(600);
    })
    .await;
    let (_, root) = rig.open().await;
    rig.follow(None, None);
    let origin = rig.api.direct("127.0.0.1".parse().unwrap(), false);
    let ask = || Box::pin(rig.api.answer(origin, direct("auth/token/lookup-self", &root)));
    let mut held: Vec<_> = std::iter::repeat_with(ask).take(1024).collect();
    for request in &mut held {
        assert!(futures_util::poll!(request).is_pending());
    }
    let refused = tokio::time::timeout(Duration::from_secs(10), ask()).await.expect("refused at once");
    assert_eq!((refused.status().as_u16(), &refused.headers()[RETRY_AFTER]), (503, &"1".parse().unwrap()));
    rig.lead(1);
    for served in join_all(held).await {
        assert_eq!(served.status(), 200);
    }
    rig.stop().await;
}

#[tokio::test]
async fn a_request_is_sent_again_only_when_nothing_can_happen_twice() {
    let pair = Pair::start().await;
    let (b, root) = (&pair.b, pair.root.as_str());
    b.as_token(root, "PUT", "sys/mounts/kv", json!({"type": "kv-v2"})).await.expect(204);
    pair.wires.take_sent();
    let sends = || pair.wires.take_sent().len();
    let value = json!({"data": {"v": 1}});

    for failure in [Failure::DialFailed, Failure::StreamRefused] {
        pair.wires.plant(Fault::Before(failure));
        b.as_token(root, "PUT", "kv/data/a", value.clone()).await.expect(200);
        assert_eq!(sends(), 2, "it provably did not start");
    }
    pair.wires.plant(Fault::After);
    let lost = b.as_token(root, "PUT", "kv/data/a", value).await;
    lost.expect_error(503, UNKNOWN);
    assert_eq!((&lost.headers[RETRY_AFTER], sends()), (&"1".parse().unwrap(), 1));
    let read = b.as_token(root, "GET", "kv/data/a", Value::Null).await.expect(200);
    assert_eq!(read.data()["metadata"]["version"], 3, "each write happened once");
    sends();

    for (method, path) in [("GET", "kv/data/a"), ("LIST", "kv/metadata"), ("GET", "sys/mounts")] {
        pair.wires.plant(Fault::After);
        b.as_token(root, method, path, Value::Null).await.expect(200);
        assert_eq!(sends(), 2, "{method} {path}");
    }
    // Reads that make something, or use something up, are no reads.
    let few = json!({"policies": ["root"], "num_uses": 5, "ttl": "1h"});
    let few = b.as_token(root, "PUT", "auth/token/create", few).await.expect(200);
    let (few, accessor) = (&few.body["auth"]["client_token"], &few.body["auth"]["accessor"]);
    let few = few.as_str().unwrap();
    let wrapping = [("x-vault-token", root), ("x-vault-wrap-ttl", "60")];
    let counted = [("x-vault-token", few)];
    let wrapped = b.send("GET", "kv/data/a", &wrapping, Value::Null).await.expect(200);
    let opening = [("x-vault-token", wrapped.body["wrap_info"]["token"].as_str().unwrap())];
    sends();
    for (path, headers) in [
        ("kv/data/a", &wrapping[..]),
        ("kv/data/a", &counted[..]),
        ("sys/wrapping/unwrap", &opening[..]),
        ("database/creds/x", &wrapping[..1]),
    ] {
        pair.wires.plant(Fault::After);
        b.send("GET", path, headers, Value::Null).await.expect_error(503, UNKNOWN);
        assert_eq!(sends(), 1, "{path}");
    }
    let left = b.as_token(root, "PUT", "auth/token/lookup-accessor", json!({"accessor": accessor})).await;
    assert_eq!(left.data()["num_uses"], 4);
    pair.stop().await;
}

#[tokio::test]
async fn resends_go_to_the_present_leader_and_end_at_the_deadline() {
    let pair = Pair::start_with(|config| {
        config.limits.forward_hold = holdfast_ops::Duration::from_secs(600);
        config.limits.request_deadline = holdfast_ops::Duration::from_secs(3);
    })
    .await;
    let (b, root) = (&pair.b, pair.root.as_str());
    b.as_token(root, "PUT", "sys/mounts/kv", json!({"type": "kv"})).await.expect(204);
    // The leader is gone; while the request is tried again another one takes over.
    let handler = pair.wires.0.lock().handlers.remove("a:8201").unwrap();
    pair.wires.0.lock().handlers.insert("c:8201".to_owned(), handler.clone());
    pair.wires.take_sent();
    let moves = async {
        while pair.wires.0.lock().sent.len() < 2 {
            tokio::task::yield_now().await;
        }
        b.follow(Some("c"), None);
    };
    let (reply, ()) = tokio::join!(b.as_token(root, "PUT", "kv/a", json!({"v": 1})), moves);
    reply.expect(204);
    let sent = pair.wires.take_sent();
    assert_eq!((sent[0].as_str(), sent.last().unwrap().as_str()), ("a:8201", "c:8201"));
    assert_eq!(sent.iter().filter(|to| *to == "c:8201").count(), 1);
    assert_eq!(pair.wires.0.lock().closed, ["a:8201"], "nothing more goes to the former leader");
    // Nobody is there, and it would be held for ten minutes: the request's own deadline ends it.
    b.follow(Some("d"), None);
    b.as_token(root, "PUT", "kv/a", json!({"v": 2})).await.expect_error(503, NOBODY);
    assert!(pair.wires.take_sent().len() > 2, "it was tried until then");
    pair.stop().await;
}

#[tokio::test]
async fn who_is_not_active_says_so_and_sends_nothing_on() {
    let pair = Pair::start().await;
    let (b, root) = (&pair.b, pair.root.as_str());
    b.as_token(root, "PUT", "sys/mounts/kv", json!({"type": "kv"})).await.expect(204);
    // Each believes that the other leads.
    pair.a.follow(Some("b"), None);
    pair.wires.take_sent();
    let reply = b.as_token(root, "PUT", "kv/a", json!({"v": 1})).await;
    reply.expect_error(503, NOBODY);
    assert!(!reply.headers.keys().any(|name| name.as_str().starts_with("x-holdfast")), "{:?}", reply.headers);
    let sent = pair.wires.take_sent();
    assert!(sent.len() > 1 && sent.iter().all(|to| to == "a:8201"), "{sent:?}");
    // A leader that is ourselves while we are not active is nobody.
    b.follow(Some("b"), None);
    b.as_token(root, "GET", "kv/a", Value::Null).await.expect_error(503, NOBODY);
    assert_eq!(pair.wires.take_sent(), [""; 0]);

    let port = pair.wires.handler("a:8201").unwrap();
    let forwarded = || {
        let mut request = direct("kv/a", root);
        request.headers_mut().insert("x-holdfast-remote", "192.0.2.1".parse().unwrap());
        request.headers_mut().insert("x-holdfast-deadline-ms", "5000".parse().unwrap());
        request
    };
    assert!(crate::api::wire::is_not_active(&port.answer(forwarded()).await), "a standby");
    pair.a.lead(3);
    assert_eq!(port.answer(forwarded()).await.status(), 404, "the active node; the write never happened");
    pair.a.as_token(root, "PUT", "sys/seal", json!({})).await.expect(204);
    assert!(crate::api::wire::is_not_active(&port.answer(forwarded()).await), "a sealed node");
    pair.stop().await;
}

#[tokio::test]
async fn who_asks_not_to_be_forwarded_is_sent_to_the_leader() {
    let pair = Pair::start().await;
    let (b, root) = (&pair.b, pair.root.as_str());
    let headers = [("x-vault-token", root), ("x-vault-no-request-forwarding", "true")];
    pair.wires.take_sent();
    for (method, target) in
        [("GET", "kv/a%20b?list=true&x=%2F"), ("PUT", "sys/mounts/kv"), ("GET", "no/where")]
    {
        let reply = b.send(method, target, &headers, Value::Null).await.expect(307);
        assert_eq!(reply.headers[LOCATION], format!("http://a:8200/v1/{target}"));
    }
    b.cluster.change(|view| view.leader.as_mut().unwrap().address.api = "https://a.example:443/".into());
    let reply = b.send("GET", "sys/mounts", &headers, Value::Null).await.expect(307);
    assert_eq!(reply.headers[LOCATION], "https://a.example:443/v1/sys/mounts");
    b.send("GET", "sys/seal-status", &headers, Value::Null).await.expect(200);
    b.follow(None, None);
    b.send("GET", "sys/mounts", &headers, Value::Null).await.expect_error(503, NOBODY);
    assert_eq!(pair.wires.take_sent(), [""; 0]);
    pair.a.send("GET", "sys/mounts", &headers, Value::Null).await.expect(200);
    pair.stop().await;
}

/// Log lines in memory.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl MakeWriter<'_> for Lines {
    type Writer = Self;

    fn make_writer(&self) -> Self {
        self.clone()
    }
}

#[tokio::test]
async fn log_lines_about_forwarding_name_peer_and_cause() {
    let lines = Lines::default();
    let subscriber = tracing_subscriber::fmt().json().with_writer(lines.clone()).finish();
    // For this thread, on which the whole test runs.
    let _logging = tracing::subscriber::set_default(subscriber);
    let pair = Pair::start().await;
    pair.wires.plant(Fault::Before(Failure::DialFailed));
    pair.b.as_token(&pair.root, "GET", "sys/mounts", Value::Null).await.expect(200);
    let text = String::from_utf8(lines.0.lock().clone()).unwrap();
    let line = text.lines().find(|line| line.contains("forwarding")).expect("a line about it");
    let line: Value = serde_json::from_str(line).unwrap();
    let fields = &line["fields"];
    assert_eq!((&line["level"], &fields["peer"]), (&json!("WARN"), &json!("a")));
    assert_eq!((&fields["address"], &fields["cause"]), (&json!("a:8201"), &json!("a planted failure")));
    assert!(!text.contains(&pair.root), "and no secret");
    pair.stop().await;
}
