//! Reads: whom they ask, whom they believe, and what becomes of each name of a batch.

use std::time::Duration;

use holdfast_core::AnswerKind;
use tokio::time::Instant;

use super::{FakePlay, World, dated, entry_error, envelope, update};
use crate::config::{Answer, Client, Error};

fn bytes(answer: &Answer) -> Option<&[u8]> {
    answer.as_ref().unwrap().as_ref().map(|value| value.bytes.expose())
}

fn batch(entries: &[String]) -> String {
    format!(r#"{{"values":[{}]}}"#, entries.join(","))
}

fn body(world: &World, endpoint: usize, call: usize) -> String {
    let call = world.calls(endpoint)[call].clone();
    String::from_utf8(call.body.unwrap().to_vec()).unwrap()
}

async fn endpoint_of(client: &Client) -> String {
    client.get("a").await.unwrap().endpoint.to_string()
}

#[tokio::test(start_paused = true)]
async fn a_laggard_is_asked_after_and_never_believed() {
    let world = World::new(2);
    world.says(0, 200, &update("a", "bmV3", &dated(-10)));
    assert_eq!(world.client.get("a").await.unwrap().bytes.expose(), b"new");
    // The first dies, the second lags.
    world.play(0, |_| FakePlay::Dead);
    world.says(1, 200, &update("a", "b2xk", &dated(-60)));
    let again = world.client.get("a").await.unwrap();
    assert_eq!((again.bytes.expose(), again.behind, &*again.endpoint), (&b"new"[..], true, "e0"));
    world.says(1, 200, &update("a", "bmV3ZXI=", &dated(-1)));
    let newer = world.client.get("a").await.unwrap();
    assert_eq!((newer.bytes.expose(), newer.behind, &*newer.endpoint), (&b"newer"[..], false, "e1"));
}

#[tokio::test(start_paused = true)]
async fn a_laggard_before_a_fresh_one_costs_one_more_request() {
    let world = World::new(2);
    let date = dated(-10);
    world.says(0, 200, &update("a", "bmV3", &date));
    world.client.get("a").await.unwrap();
    world.says(0, 200, &update("a", "b2xk", &dated(-60)));
    world.says(1, 200, &update("a", "bmV3", &date));
    let value = world.client.get("a").await.unwrap();
    assert_eq!((&*value.endpoint, value.behind, world.count(0), world.count(1)), ("e1", false, 2, 1));
    // One that lags is in order: it is asked first again.
    world.client.get("a").await.unwrap();
    assert_eq!((world.count(0), world.count(1)), (3, 2));
}

#[tokio::test(start_paused = true)]
async fn what_is_undated_stale_or_dated_ahead_passes() {
    let world = World::new(1);
    world.says(0, 200, &update("a", "bmV3", &dated(-10)));
    world.client.get("a").await.unwrap();
    world.says(0, 200, r#"{"name":"a","bytes":"eA==","metadata":{}}"#);
    assert_eq!(world.client.get("a").await.unwrap().bytes.expose(), b"x");
    let rest = r#""metadata":{},"kind":"unavailable","stale":true"#;
    world.says(0, 200, &format!(r#"{{"name":"a","bytes":"eQ==",{rest},"resolved_at":"{}"}}"#, dated(-10)));
    let value = world.client.get("a").await.unwrap();
    assert_eq!((value.stale, value.kind, value.behind), (true, Some(AnswerKind::Unavailable), false));
    // A clock an hour ahead raises no mark.
    world.says(0, 200, &update("a", "eg==", &dated(3600)));
    assert_eq!(world.client.get("a").await.unwrap().bytes.expose(), b"z");
    world.says(0, 200, &update("a", "dw==", &dated(-5)));
    let value = world.client.get("a").await.unwrap();
    assert_eq!((value.bytes.expose(), value.behind), (&b"w"[..], false));
}

#[tokio::test(start_paused = true)]
async fn an_endpoint_that_failed_is_tried_last_until_one_request_finds_it_again() {
    let world = World::new(2);
    world.play(0, |_| FakePlay::Hang);
    world.says(1, 200, &update("a", "eA==", &dated(-1)));
    let began = Instant::now();
    assert_eq!(endpoint_of(&world.client).await, "e1");
    assert_eq!(began.elapsed().as_secs(), 3, "the deadline of an attempt");
    assert_eq!(endpoint_of(&world.client).await, "e1");
    assert_eq!((world.count(0), began.elapsed().as_secs()), (1, 3));
    world.says(0, 200, &update("a", "eA==", &dated(-1)));
    tokio::time::advance(Duration::from_secs(1)).await;
    assert_eq!(endpoint_of(&world.client).await, "e0");
    assert_eq!(endpoint_of(&world.client).await, "e0");
}

#[tokio::test(start_paused = true)]
async fn the_deadline_of_the_caller_ends_it() {
    let world = World::new(3);
    (0..3).for_each(|n| world.play(n, |_| FakePlay::Hang));
    let began = Instant::now();
    let error = world.client.within(Duration::from_secs(4)).get("a").await.unwrap_err();
    assert!(matches!(error, Error::Deadline(after) if after.as_secs() == 4), "{error}");
    assert_eq!((began.elapsed().as_secs(), world.count(1), world.count(2)), (4, 1, 0));
    assert_eq!(error.to_string(), "no answer within 4000ms");
}

#[tokio::test(start_paused = true)]
async fn a_closed_client_ends_what_is_under_way() {
    let world = World::new(1);
    world.play(0, |_| FakePlay::Hang);
    let client = world.client.clone();
    let closing = async {
        tokio::task::yield_now().await;
        client.close();
        client.close();
    };
    let (error, ()) = tokio::join!(world.client.get("a"), closing);
    assert!(matches!(error, Err(Error::Closed)));
    assert!(matches!(world.client.get_many(["a"]).await[0], Err(Error::Closed)));
    assert_eq!(world.count(0), 1);
}

#[tokio::test(start_paused = true)]
async fn a_batch_is_matched_by_name_in_the_order_asked_for() {
    let world = World::new(1);
    let date = dated(-1);
    let entries = [
        update("x", "eA==", &date),
        entry_error("denied", "permission_denied"),
        update("b", "Yg==", &date),
        update("a", "YQ==", &date),
        entry_error("none", "not_found"),
    ];
    world.says(0, 200, &batch(&entries));
    let answers = world.client.get_many(["a", "none", "b", "denied", "a", ""]).await;
    assert_eq!(bytes(&answers[0]), Some(&b"a"[..]));
    assert_eq!((bytes(&answers[1]), bytes(&answers[2])), (None, Some(&b"b"[..])));
    assert_eq!(answers[3].as_ref().unwrap_err().answer_kind(), AnswerKind::PermissionDenied);
    assert_eq!(bytes(&answers[4]), Some(&b"a"[..]));
    assert!(matches!(answers[5], Err(Error::Reference(_))));
    assert_eq!(body(&world, 0, 0), r#"{"names":["a","none","b","denied"]}"#);
    assert!(world.client.get_many([]).await.is_empty());
    assert_eq!(world.count(0), 1);
}

#[tokio::test(start_paused = true)]
async fn a_batch_is_sent_again_for_what_is_still_open() {
    let world = World::new(4);
    let date = dated(-1);
    let lacks = [update("a", "YQ==", &date), entry_error("b", "unavailable")];
    world.says(1, 200, &batch(&lacks));
    world.says(2, 200, &batch(&[update("b", "Yg==", &date)]));
    world.says(3, 200, &batch(&[update("c", "Yw==", &date)]));
    let answers = world.client.get_many(["a", "b", "c"]).await;
    let bytes: Vec<_> = answers.iter().map(bytes).collect();
    assert_eq!(bytes, [Some(&b"a"[..]), Some(&b"b"[..]), Some(&b"c"[..])]);
    let sent: Vec<_> = (0..4).map(|n| body(&world, n, 0)).collect();
    let names = [r#"["a","b","c"]"#, r#"["a","b","c"]"#, r#"["b","c"]"#, r#"["c"]"#];
    assert_eq!(sent, names.map(|names| format!(r#"{{"names":{names}}}"#)));
}

#[tokio::test(start_paused = true)]
async fn a_refusal_of_a_whole_batch_is_each_name_s() {
    let world = World::new(2);
    world.says(0, 401, &envelope("unauthenticated"));
    for answer in world.client.get_many(["a", "b"]).await {
        assert_eq!(answer.unwrap_err().answer_kind(), AnswerKind::Unauthenticated);
    }
    assert_eq!((world.count(0), world.count(1)), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn references_to_one_name_with_different_steps_stay_apart() {
    let world = World::new(1);
    world.says(0, 200, &batch(&[update("a", "IDc4IA==", &dated(-1))]));
    let references = [
        "holdfast://a",
        "mamori://a?decode=trim",
        "holdfast://a?decode=trim,hex",
        "x://a",
        "holdfast://a?decode=hex",
    ];
    let answers = world.client.resolve_many(references).await;
    let first: Vec<_> = answers[..3].iter().map(bytes).collect();
    assert_eq!(first, [Some(&b" 78 "[..]), Some(&b"78"[..]), Some(&b"x"[..])]);
    assert!(matches!(answers[3], Err(Error::Reference(_))) && matches!(answers[4], Err(Error::Decode(_))));
    assert_eq!(body(&world, 0, 0), r#"{"names":["a"]}"#);
}

#[tokio::test(start_paused = true)]
async fn a_reference_that_is_refused_sends_nothing() {
    let world = World::new(1);
    assert!(matches!(world.client.resolve("holdfast://a#b").await, Err(Error::Reference(_))));
    assert!(matches!(world.client.get("").await, Err(Error::Reference(_))));
    assert!(world.client.watch([]).is_err() && world.client.watch(["a", ""]).is_err());
    assert_eq!(world.count(0), 0);
    world.says(0, 200, &update("a", "NzgK", &dated(-1)));
    let value = world.client.resolve("holdfast://a?decode=trim,hex").await.unwrap();
    assert_eq!(value.bytes.expose(), b"x");
}

#[tokio::test(start_paused = true)]
async fn names_of_dots_are_no_steps_of_a_path() {
    let world = World::new(1);
    world.says(0, 200, &batch(&[update("..", "eA==", &dated(-1))]));
    assert_eq!(world.client.get("..").await.unwrap().bytes.expose(), b"x");
    assert_eq!(
        (world.calls(0)[0].target.as_str(), body(&world, 0, 0).as_str()),
        ("/v1/values", r#"{"names":[".."]}"#)
    );
    world.says(0, 200, &batch(&[entry_error(".", "not_found")]));
    assert_eq!(world.client.get(".").await.unwrap_err().answer_kind(), AnswerKind::NotFound);
}

#[tokio::test(start_paused = true)]
async fn the_status_is_asked_of_one_endpoint() {
    let world = World::new(2);
    let status = r#"{"node":"n1","state":"ready","config":{"generation":3,"digest":"ab"},
        "bindings":[{"name":"a","state":"fresh","age_ms":12,"later":1}],"later":{}}"#;
    world.says(1, 200, status);
    let status = world.client.status(1).await.unwrap();
    assert_eq!(
        (status.node.as_str(), status.config.generation, status.bindings[0].age_ms),
        ("n1", 3, Some(12))
    );
    assert!(matches!(world.client.status(0).await, Err(Error::Unreachable { .. })));
    world.says(0, 403, &envelope("permission_denied"));
    assert_eq!(world.client.status(0).await.unwrap_err().answer_kind(), AnswerKind::PermissionDenied);
    assert_eq!((world.count(0), world.count(1)), (2, 1));
}
