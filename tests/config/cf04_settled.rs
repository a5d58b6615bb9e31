//! CF-04: every outcome settles its binding, beside a good one.

use holdfast_tests::config::{Replica, text};
use holdfast_tests::upstream::{Script, Upstream};

#[tokio::test(flavor = "multi_thread")]
async fn whatever_the_upstream_says_settles_the_binding() {
    let upstream = Upstream::start().await;
    upstream.set("/good", Script::ok("value"));
    upstream.set("/empty", Script::ok(""));
    upstream.set("/json", Script::ok(r#"{"key":"text","null":null}"#));
    for (path, status) in [
        ("/403", 403),
        ("/401", 401),
        ("/429", 429),
        ("/400", 400),
        ("/500", 500),
        ("/410", 410),
        ("/418", 418),
    ] {
        upstream.set(path, Script::status(status));
    }
    upstream.set("/hangup", Script::Hangup);
    upstream.set("/silent", Script::Silence);
    let cases = [
        ("good", "https://web/good", 200, ""),
        ("empty", "https://web/empty", 200, ""),
        ("key", "https://web/json#key", 200, ""),
        ("null", "https://web/json#null", 200, ""),
        ("missing-key", "https://web/json#other", 404, "not_found"),
        ("not-json", "https://web/good#key", 400, "invalid"),
        ("absent", "https://web/nothing", 404, "not_found"),
        ("gone", "https://web/410", 404, "not_found"),
        ("denied", "https://web/403", 403, "permission_denied"),
        ("own-login", "https://web/401", 503, "unavailable"),
        ("throttled", "https://web/429", 429, "rate_limited"),
        ("bad", "https://web/400", 400, "invalid"),
        ("broken", "https://web/500", 503, "unavailable"),
        ("teapot", "https://web/418", 500, "unknown"),
        ("hangup", "https://web/hangup", 503, "unavailable"),
        ("silent", "https://web/silent", 503, "unavailable"),
        ("file", "file://DIR/files/there", 200, ""),
        ("no-file", "file://DIR/files/not-there", 404, "not_found"),
        ("variable", "env:CF04_SET", 200, ""),
        ("no-variable", "env:CF04_UNSET", 404, "not_found"),
        ("text", "static:hello", 200, ""),
    ];
    let bindings: String =
        cases.iter().map(|(name, reference, ..)| format!("\"{name}\" = \"{reference}\"\n")).collect();
    let lines = format!(
        "{}[upstream.disk]\ntype = \"file\"\nroots = [\"DIR/files\"]\n[upstream.vars]\ntype = \"env\"\nallow = [\"CF04_*\"]\n\
         [defaults]\ntimeout = \"1s\"\n[bindings]\n{bindings}",
        upstream.lines()
    );
    let mut replica = Replica::prepare(&lines);
    replica.write("files/there", "content");
    replica.env("CF04_SET", "set");
    replica.run();
    replica.wait_ready().await;
    for (name, _, status, kind) in cases {
        let reply = replica.value(name).await;
        assert_eq!(reply.status, status, "{name}: {}", reply.body);
        if status == 200 {
            assert_eq!(reply.body["name"], name);
        } else {
            let want = format!(r#"{{"error":{{"kind":"{kind}","message":"binding resolve failed"}}}}"#);
            assert_eq!(String::from_utf8_lossy(&reply.bytes), want, "{name}");
        }
    }
    assert_eq!(text(&replica.value("key").await.body), "text");
    assert_eq!(text(&replica.value("file").await.body), "content");
    assert!(replica.value("null").await.body.get("bytes").is_none());
    let reply = replica.value("unbound").await.expect(404);
    assert_eq!(reply.bytes, br#"{"error":{"kind":"not_found","message":"binding not found"}}"#);
    replica.check_log(&[]);
}
