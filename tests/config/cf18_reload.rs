//! CF-18: the configuration is read again under open streams.

use std::time::Duration;

use holdfast_tests::config::{Replica, TOKEN, text};
use holdfast_tests::eventually_async;
use holdfast_tests::hub::PATIENCE;
use holdfast_tests::sse::Frames;

async fn stream(replica: &Replica, names: &[&str]) -> Frames {
    let query: Vec<_> = names.iter().map(|name| format!("name={name}")).collect();
    let token = format!("Bearer {TOKEN}");
    Frames::open(&replica.url(), &format!("/v1/watch?{}", query.join("&")), &[("authorization", &token)])
        .await
}

#[tokio::test(flavor = "multi_thread")]
async fn bindings_come_change_and_go_and_unchanged_streams_stay() {
    let mut replica =
        Replica::start("[bindings]\nstays = \"static:1\"\nchanges = \"static:1\"\ngoes = \"static:1\"\n")
            .await;
    let mut unchanged = stream(&replica, &["stays"]).await;
    let mut touched = stream(&replica, &["changes", "goes", "comes"]).await;
    unchanged.until("synced", PATIENCE).await;
    touched.until("synced", PATIENCE).await;
    replica.configure("[bindings]\nstays = \"static:1\"\nchanges = \"static:2\"\ncomes = \"static:3\"\n");
    replica.reload();
    let mut missing = vec![("changes", "update", "2"), ("comes", "update", "3"), ("goes", "error", "")];
    while !missing.is_empty() {
        let frame = touched.next(PATIENCE).await.unwrap();
        let seen =
            (frame.data["name"].as_str().unwrap_or_default(), frame.event.as_str(), &*text(&frame.data));
        missing.retain(|wanted| *wanted != seen);
    }
    replica.value("goes").await.expect(404);
    let quiet = tokio::time::timeout(Duration::from_millis(500), unchanged.next_of("update", PATIENCE)).await;
    assert!(quiet.is_err(), "a stream of an unchanged name hears nothing");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bad_file_changes_nothing_and_a_file_change_is_seen_without_a_signal() {
    let mut replica = Replica::start("[bindings]\na = \"static:1\"\n").await;
    replica.configure("[bindings]\na = \"nonsense:1\"\nb = \"static:2\"\n");
    replica.reload();
    let told = || async {
        replica.api().get("v1/status").await.body["last_reload_error"].as_str().map(str::to_owned)
    };
    let error = eventually_async(PATIENCE, "the reload is refused", told).await;
    assert!(error.contains("unknown scheme \"nonsense\""), "{error}");
    replica.wait_value("a", "1").await;
    replica.value("b").await.expect(404);
    assert_eq!(replica.ready().await.unwrap().0, 200);
    replica.configure("[bindings]\na = \"static:9\"\n");
    replica.wait_value("a", "9").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_and_rules_count_from_the_next_request_and_judge_open_streams() {
    let rule = "[[policy.rule]]\nsubjects = [\"reader\"]\nnames = [\"a\", \"b\"]\n";
    let bindings = "[bindings]\na = \"static:1\"\nb = \"static:2\"\nc = \"static:3\"\n";
    let mut replica = Replica::start(&format!("{rule}{bindings}")).await;
    let mut frames = stream(&replica, &["a", "b", "c"]).await;
    let baseline = frames.until("synced", PATIENCE).await;
    assert_eq!(baseline[2].data["error"]["kind"], "permission_denied");
    replica.configure(&format!("{}{bindings}", rule.replace("\"a\", \"b\"", "\"a\", \"c\"")));
    replica.reload();
    let denied = frames.next_of("error", PATIENCE).await;
    assert_eq!(
        (denied.data["name"].as_str(), &denied.data["error"]["kind"]),
        (Some("b"), &"permission_denied".into())
    );
    let mut allowed = stream(&replica, &["c"]).await;
    assert_eq!(text(&allowed.next_of("update", PATIENCE).await.data), "3");
    replica.value("b").await.expect(403);
    // The token is gone: the stream is told and ends.
    replica.write(
        "tokens.toml",
        "[[token]]\nid = \"o\"\nsha256 = \"00\"\nsubject = \"o\"\n"
            .replace("\"00\"", &format!("\"{}\"", "ab".repeat(32)))
            .as_str(),
    );
    replica.reload();
    let gone = || async { (replica.value("a").await.status == 401).then_some(()) };
    eventually_async(PATIENCE, "the token counts no longer", gone).await;
    let last = frames.next_of("error", PATIENCE).await;
    assert_eq!(last.data["error"]["kind"], "unauthenticated");
    while let Some(frame) = frames.next(PATIENCE).await {
        assert!(frame.event != "update", "{frame:?}");
    }
}
