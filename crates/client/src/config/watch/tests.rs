use std::time::Duration;

use holdfast_core::AnswerKind;
use tokio::sync::mpsc::Sender;
use tokio::time::{Instant, timeout};

use super::*;
use crate::config::tests::{FakePlay, World, dated, entry_error, envelope, frame, update};

const LONG: Duration = Duration::from_secs(3600);
const SHORT: Duration = Duration::from_millis(1);

fn synced(id: &str) -> String {
    format!("event: synced\nid: {id}\ndata: {{}}\n\n")
}

/// What an event says, in short.
fn short(event: &Event) -> String {
    let text = |value: &Value| String::from_utf8(value.bytes.expose().to_vec()).unwrap();
    match event {
        Event::Update(value) => format!("{}={} {}", value.name, text(value), value.endpoint),
        Event::Fresh { name, endpoint, .. } => format!("{name} fresh {endpoint}"),
        Event::Error { name, kind, endpoint, .. } => format!("{name} {kind} {endpoint}"),
        Event::State(State::Live { endpoint }) => format!("live {endpoint}"),
        Event::State(State::Reconnecting { .. }) => "reconnecting".to_owned(),
        Event::State(State::Refused { error }) => format!("refused {}", error.answer_kind()),
        Event::ConfigDiffers { between: [a, b] } => format!("{} {} / {} {}", a.0, a.1, b.0, b.1),
        Event::Closed => "closed".to_owned(),
    }
}

async fn next(watch: &mut Watch) -> String {
    let event = timeout(LONG, watch.next()).await.expect("an event comes");
    event.as_ref().map_or("over".to_owned(), short)
}

async fn several<const N: usize>(watch: &mut Watch) -> [String; N] {
    let mut events = [const { String::new() }; N];
    for event in &mut events {
        *event = next(watch).await;
    }
    events
}

/// No event comes, although what was sent is read.
async fn quiet(watch: &mut Watch) {
    if let Ok(event) = timeout(SHORT, watch.next()).await {
        panic!("{event:?}");
    }
}

async fn send(to: &Sender<String>, text: String) {
    to.send(text).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn two_dead_endpoints_cost_no_time() {
    let world = World::new(3);
    let third = world.streams(2);
    let mut watch = world.client.watch(["a"]).unwrap();
    send(&third, frame("update", &update("a", "eA==", &dated(-1))) + &synced("i1")).await;
    let began = Instant::now();
    assert_eq!(several(&mut watch).await, ["reconnecting", "live e2", "a=x e2"]);
    assert_eq!(began.elapsed(), Duration::ZERO);
    assert_eq!(world.times(), [(0, 0), (0, 1), (0, 2)]);
}

#[tokio::test(start_paused = true)]
async fn pauses_come_between_full_cycles_only_and_grow() {
    let world = World::new(3);
    let mut watch = world.client.watch(["a"]).unwrap();
    assert_eq!(next(&mut watch).await, "reconnecting");
    assert!(timeout(Duration::from_secs(200), watch.next()).await.is_err());
    let times = world.times();
    let cycles: Vec<_> = times.chunks(3).filter(|cycle| cycle.len() == 3).collect();
    let mut expected = 100;
    for pair in cycles.windows(2) {
        assert!(pair[0].iter().all(|(at, _)| *at == pair[0][0].0), "no sleep in a cycle: {pair:?}");
        let gap = pair[1][0].0 - pair[0][0].0;
        assert!((expected / 2..=expected + 1).contains(&gap), "{gap} of {expected}");
        expected = (expected * 2).min(30_000);
    }
    assert_eq!(expected, 30_000);
    // One comes back: it has the stream after one cycle at most.
    let began = Instant::now();
    let _third = world.streams(1);
    assert_eq!(next(&mut watch).await, "live e1");
    assert!(began.elapsed() <= Duration::from_secs(30), "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn the_last_id_is_kept_until_another_stream_gives_one() {
    let world = World::new(2);
    let first = world.streams(0);
    let mut watch = world.client.watch(["a", "b"]).unwrap();
    let baseline =
        frame("update", &update("a", "eA==", &dated(-1))) + &frame("error", &entry_error("b", "not_found"));
    send(&first, baseline + &synced("boot.1.7.set")).await;
    assert_eq!(several(&mut watch).await, ["live e0", "a=x e0", "b not_found e0"]);
    quiet(&mut watch).await;
    drop(first);
    assert_eq!(next(&mut watch).await, "reconnecting");
    // The next one dies before its baseline is complete.
    let second = world.streams(1);
    send(&second, frame("update", &update("a", "eQ==", &dated(0)))).await;
    assert_eq!(several(&mut watch).await, ["live e1", "a=y e1"]);
    drop(second);
    let third = world.streams(0);
    assert_eq!(several(&mut watch).await, ["reconnecting", "live e0"]);
    let ids: Vec<_> = world.calls(0).into_iter().map(|call| call.last_event_id).collect();
    assert_eq!(ids.first(), Some(&None));
    assert!(ids[1..].iter().all(|id| id.as_deref() == Some("boot.1.7.set")), "{ids:?}");
    let body = String::from_utf8(world.calls(0)[0].body.clone().unwrap().to_vec()).unwrap();
    assert_eq!(body, r#"{"names":["a","b"],"last_event_id":"","fresh":true,"max_frame":25165760}"#);
    drop(third);
}

#[tokio::test(start_paused = true)]
async fn a_resumed_stream_goes_on_from_what_the_giver_of_its_id_had_said() {
    let world = World::new(2);
    let first = world.streams(0);
    let mut watch = world.client.watch(["a"]).unwrap();
    send(&first, frame("update", &update("a", "bmV3", &dated(0))) + &synced("boot.1.7.set")).await;
    assert_eq!(several(&mut watch).await, ["live e0", "a=new e0"]);
    quiet(&mut watch).await;
    drop(first);
    assert_eq!(next(&mut watch).await, "reconnecting");
    // The next one holds something older, gives no id, and asks to go.
    let second = world.streams(1);
    let go = frame("goaway", r#"{"reason":"draining","within_ms":0}"#);
    send(&second, frame("update", &update("a", "b2xk", &dated(-60))) + &go).await;
    assert_eq!(next(&mut watch).await, "live e1");
    // The first replica takes the id, so it repeats nothing; the date that it gives is not one of the older value.
    let third = world.streams(0);
    let fresh = frame("fresh", &format!(r#"{{"names":{{"a":"{}"}}}}"#, dated(30)));
    send(&third, synced("boot.1.7.set") + &fresh).await;
    assert_eq!(several(&mut watch).await, ["live e0", "a fresh e0"]);
    drop(second);
}

#[tokio::test(start_paused = true)]
async fn silence_of_three_heartbeats_is_death() {
    let world = World::new(2);
    let first = world.streams(0);
    let mut watch = world.client.watch(["a"]).unwrap();
    assert_eq!(next(&mut watch).await, "live e0");
    send(&first, ": heartbeat\n\n".to_owned()).await;
    tokio::time::advance(Duration::from_secs(30)).await;
    quiet(&mut watch).await;
    let (began, _second) = (Instant::now(), world.streams(1));
    assert_eq!(several(&mut watch).await, ["reconnecting", "live e1"]);
    let waited = began.elapsed().as_secs();
    assert!((44..=46).contains(&waited), "{waited}");
}

#[tokio::test(start_paused = true)]
async fn who_is_told_to_go_opens_the_next_stream_first() {
    let world = World::new(2);
    let first = world.streams(0);
    let mut watch = world.client.watch(["a"]).unwrap();
    send(&first, frame("update", &update("a", "eA==", &dated(-9))) + &synced("i1")).await;
    assert_eq!(several(&mut watch).await, ["live e0", "a=x e0"]);
    let second = world.streams(1);
    send(&first, frame("goaway", r#"{"reason":"draining","within_ms":0}"#)).await;
    quiet(&mut watch).await;
    assert_eq!((world.count(0), world.count(1)), (1, 1));
    // Both are read until the new one is complete.
    send(&first, frame("update", &update("a", "eQ==", &dated(-8)))).await;
    assert_eq!(next(&mut watch).await, "a=y e0");
    send(&second, frame("update", &update("a", "eA==", &dated(-20)))).await;
    quiet(&mut watch).await;
    assert!(!first.is_closed());
    send(&second, synced("i2")).await;
    assert_eq!(next(&mut watch).await, "live e1");
    assert!(first.is_closed());
    // What the new one said stays held until its replica confirms it.
    send(&second, frame("fresh", &format!(r#"{{"names":{{"a":"{}"}}}}"#, dated(0)))).await;
    assert_eq!(next(&mut watch).await, "a=x e1");
}

#[tokio::test(start_paused = true)]
async fn a_refusal_slows_down_and_does_not_rotate() {
    let world = World::new(2);
    world.says(0, 403, &envelope("permission_denied"));
    let mut watch = world.client.watch(["a"]).unwrap();
    assert_eq!(next(&mut watch).await, "refused permission_denied");
    assert!(timeout(Duration::from_secs(40), watch.next()).await.is_err());
    let seconds: Vec<_> = world.times().into_iter().map(|(at, of)| (at / 1000, of)).collect();
    assert_eq!(seconds, [(0, 0), (5, 0), (15, 0), (35, 0)]);
    let retry: &[(&str, &str)] = &[("retry-after", "7")];
    world.play(0, move |_| FakePlay::Reply(429, retry, envelope("rate_limited")));
    assert_eq!(next(&mut watch).await, "refused rate_limited");
    let asked = world.times().len();
    assert!(timeout(Duration::from_millis(6900), watch.next()).await.is_err());
    assert_eq!(world.times().len(), asked);
    let _stream = world.streams(0);
    assert_eq!(next(&mut watch).await, "live e0");
    assert_eq!(world.count(1), 0);
}

#[tokio::test(start_paused = true)]
async fn a_laggard_is_held_until_a_newer_date_lifts_it() {
    let world = World::new(2);
    let first = world.streams(0);
    let mut watch = world.client.watch(["a", "b"]).unwrap();
    let date = dated(-10);
    let both = frame("update", &update("a", "MQ==", &date)) + &frame("update", &update("b", "MQ==", &date));
    send(&first, both + &synced("i1")).await;
    assert_eq!(several(&mut watch).await, ["live e0", "a=1 e0", "b=1 e0"]);
    let second = world.streams(1);
    drop(first);
    let old = dated(-60);
    let both = frame("update", &update("a", "MA==", &old)) + &frame("update", &update("b", "MA==", &old));
    send(&second, both + &synced("i2")).await;
    assert_eq!(several(&mut watch).await, ["reconnecting", "live e1"]);
    quiet(&mut watch).await;
    // A read of the same client is held back by the same mark.
    world.says(0, 200, &update("a", "MA==", &old));
    let read = world.client.get("a").await.unwrap();
    assert_eq!((read.bytes.expose(), read.behind), (&b"1"[..], true));
    // Not new enough, then new enough; and an update with a newer date lifts as well.
    send(&second, frame("fresh", &format!(r#"{{"names":{{"a":"{}"}}}}"#, dated(-30)))).await;
    quiet(&mut watch).await;
    send(&second, frame("fresh", &format!(r#"{{"names":{{"a":"{}","b":"{}"}}}}"#, dated(-2), dated(-30))))
        .await;
    assert_eq!(next(&mut watch).await, "a=0 e1");
    send(&second, frame("update", &update("b", "MA==", &dated(-1)))).await;
    assert_eq!(next(&mut watch).await, "b=0 e1");
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_stays_behind_is_left_for_a_better_one() {
    let world = World::new(2);
    let first = world.streams(0);
    let mut watch = world.client.watch(["a"]).unwrap();
    send(&first, frame("update", &update("a", "MQ==", &dated(-10))) + &synced("i1")).await;
    assert_eq!(several(&mut watch).await, ["live e0", "a=1 e0"]);
    let laggard = world.streams(1);
    drop(first);
    send(&laggard, frame("update", &update("a", "MA==", &dated(-60))) + &synced("i2")).await;
    assert_eq!(several(&mut watch).await, ["reconnecting", "live e1"]);
    let (began, better) = (Instant::now(), world.streams(0));
    send(&better, frame("update", &update("a", "Mg==", &dated(-1))) + &synced("i3")).await;
    // The laggard lives: a heartbeat in the middle.
    assert!(timeout(Duration::from_secs(30), watch.next()).await.is_err());
    send(&laggard, ": heartbeat\n\n".to_owned()).await;
    let events = several::<2>(&mut watch).await;
    assert!(events == ["a=2 e0", "live e0"] || events == ["live e0", "a=2 e0"], "{events:?}");
    assert!((59..=61).contains(&began.elapsed().as_secs()), "{:?}", began.elapsed());
    assert!(laggard.is_closed());
}

#[tokio::test(start_paused = true)]
async fn a_confirmed_date_raises_the_mark_without_bytes() {
    let world = World::new(2);
    let first = world.streams(0);
    let mut watch = world.client.watch(["a"]).unwrap();
    send(&first, frame("update", &update("a", "MQ==", &dated(-90))) + &synced("i1")).await;
    assert_eq!(several(&mut watch).await, ["live e0", "a=1 e0"]);
    let date = dated(-5);
    let fresh = frame("fresh", &format!(r#"{{"names":{{"a":"{date}","other":"{date}"}}}}"#));
    send(&first, fresh.clone() + &fresh).await;
    assert_eq!(next(&mut watch).await, "a fresh e0");
    quiet(&mut watch).await;
    world.says(1, 200, &update("a", "MA==", &dated(-60)));
    let read = world.client.get("a").await.unwrap();
    assert_eq!((read.bytes.expose(), read.behind), (&b"1"[..], true));
}

#[tokio::test(start_paused = true)]
async fn errors_stale_and_undated_values_pass() {
    let world = World::new(1);
    let first = world.streams(0);
    let mut watch = world.client.watch(["a"]).unwrap();
    send(&first, frame("update", &update("a", "MQ==", &dated(-1)))).await;
    assert_eq!(several(&mut watch).await, ["live e0", "a=1 e0"]);
    send(&first, frame("error", &entry_error("a", "unavailable"))).await;
    send(&first, frame("update", r#"{"name":"a","bytes":"Mg==","metadata":{}}"#)).await;
    send(&first, frame("update", &update("zz", "MQ==", &dated(-1)))).await;
    send(&first, frame("later", "?")).await;
    assert_eq!(several(&mut watch).await, ["a unavailable e0", "a=2 e0"]);
    quiet(&mut watch).await;
}

#[tokio::test(start_paused = true)]
async fn a_frame_that_cannot_be_read_ends_the_stream() {
    for bad in ["{}".to_owned(), format!(r#"{{"name":"a","bytes":"{}"}}"#, "A".repeat(25 << 20))] {
        let world = World::new(2);
        let first = world.streams(0);
        let mut watch = world.client.watch(["a"]).unwrap();
        assert_eq!(next(&mut watch).await, "live e0");
        let _second = world.streams(1);
        send(&first, frame("update", &bad)).await;
        assert_eq!(several(&mut watch).await, ["reconnecting", "live e1"]);
        assert!(first.is_closed());
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_knows_no_post_is_asked_by_get() {
    for status in [404, 405] {
        let world = World::new(1);
        let (send_to, receive) = tokio::sync::mpsc::channel(8);
        let mut receive = Some(receive);
        world.play(0, move |call| match call.method == http::Method::POST {
            true => FakePlay::Reply(status, &[], "404 page not found".to_owned()),
            false => receive.take().map_or(FakePlay::Dead, |receive| FakePlay::Stream(&[], receive)),
        });
        let mut watch = world.client.watch(["a/b", "c"]).unwrap();
        send(&send_to, frame("update", &update("c", "eA==", &dated(-1)))).await;
        assert_eq!(several(&mut watch).await, ["live e0", "c=x e0"]);
        let targets: Vec<_> = world.calls(0).into_iter().map(|call| call.target).collect();
        assert_eq!(targets, ["/v1/watch", "/v1/watch?fresh=1&name=a%2Fb&name=c"]);
    }
}

#[tokio::test(start_paused = true)]
async fn names_that_do_not_fit_one_address_go_on_several_streams() {
    let world = World::new(1);
    let mut kept = Vec::new();
    world.play(0, move |call| {
        if call.method == http::Method::POST {
            return FakePlay::Reply(405, &[], "Method Not Allowed".to_owned());
        }
        let (keep, receive) = tokio::sync::mpsc::channel(1);
        kept.push(keep);
        FakePlay::Stream(&[], receive)
    });
    let names: Vec<_> = (0..300).map(|n| format!("{n:0>50}")).collect();
    let mut watch = world.client.watch(names.iter().map(String::as_str)).unwrap();
    assert_eq!(next(&mut watch).await, "live e0");
    quiet(&mut watch).await;
    let calls = world.calls(0);
    let streams: Vec<_> = calls.iter().filter(|call| call.method == http::Method::GET).collect();
    assert_eq!(streams.len(), 3);
    assert!(streams.iter().all(|call| call.target.len() <= 8000));
    let asked: usize = streams.iter().map(|call| call.target.matches("&name=").count()).sum();
    assert_eq!(asked, 300);
}

#[tokio::test(start_paused = true)]
async fn a_thousand_names_are_one_stream() {
    let world = World::new(1);
    let mut kept = Vec::new();
    world.play(0, move |_| {
        let (keep, receive) = tokio::sync::mpsc::channel(1);
        kept.push(keep);
        FakePlay::Stream(&[], receive)
    });
    let names: Vec<_> = (0..1001).map(|n| n.to_string()).collect();
    let twice = names.iter().chain(&names).map(String::as_str);
    let mut watch = world.client.watch(twice).unwrap();
    assert_eq!(next(&mut watch).await, "live e0");
    quiet(&mut watch).await;
    let lengths: Vec<_> = world.calls(0).iter().map(|call| call.body.as_ref().unwrap().len()).collect();
    assert_eq!(lengths.len(), 2);
    assert!(lengths[1] < 100, "{lengths:?}");
}

#[tokio::test(start_paused = true)]
async fn two_replicas_with_different_configurations_are_told_once() {
    let world = World::new(2);
    let digest: &[(&str, &str)] = &[("holdfast-config", "aaaa1111")];
    let first = world.streams_with(0, digest);
    let mut watch = world.client.watch(["a"]).unwrap();
    assert_eq!(next(&mut watch).await, "live e0");
    // The second is reached by a read, since the first answers none.
    let other: &[(&str, &str)] = &[("holdfast-config", "bbbb2222")];
    world.says(0, 503, &envelope("unavailable"));
    world.play(1, move |_| FakePlay::Reply(200, other, update("a", "eA==", &dated(-1))));
    world.client.get("a").await.unwrap();
    let began = Instant::now();
    send(&first, ": heartbeat\n\n".to_owned()).await;
    assert_eq!(next(&mut watch).await, "e0 aaaa1111 / e1 bbbb2222");
    assert!((29..=31).contains(&began.elapsed().as_secs()), "{:?}", began.elapsed());
    send(&first, ": heartbeat\n\n".to_owned()).await;
    quiet(&mut watch).await;
}

#[tokio::test(start_paused = true)]
async fn a_closed_client_ends_its_watches() {
    let world = World::new(1);
    let first = world.streams(0);
    let mut watch = world.client.watch(["a"]).unwrap();
    assert_eq!(next(&mut watch).await, "live e0");
    world.client.close();
    assert_eq!(several(&mut watch).await, ["closed", "over", "over"]);
    assert!(first.is_closed());
    let mut late = world.client.watch(["a"]).unwrap();
    assert_eq!(next(&mut late).await, "closed");
    assert_eq!(world.count(0), 1);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_dropped_loses_nothing() {
    let world = World::new(1);
    let first = world.streams(0);
    let mut watch = world.client.watch(["a"]).unwrap();
    let text =
        frame("update", &update("a", "MQ==", &dated(-1))) + &frame("update", &update("a", "Mg==", &dated(0)));
    let sending = async {
        for piece in text.as_bytes().chunks(7) {
            send(&first, String::from_utf8(piece.to_vec()).unwrap()).await;
            tokio::time::advance(Duration::from_millis(1)).await;
        }
    };
    let reading = async {
        let mut events = Vec::new();
        while events.len() < 3 {
            let event = tokio::select! {
                biased;
                event = watch.next() => event,
                () = tokio::task::yield_now() => continue,
            };
            events.push(short(&event.unwrap()));
        }
        events
    };
    let (events, ()) = tokio::join!(reading, sending);
    assert_eq!(events, ["live e0", "a=1 e0", "a=2 e0"]);
}

#[tokio::test(start_paused = true)]
async fn a_kind_that_is_refused_stays_a_kind() {
    let world = World::new(1);
    world.says(0, 401, &envelope("unauthenticated"));
    let mut watch = world.client.watch(["a"]).unwrap();
    match watch.next().await {
        Some(Event::State(State::Refused { error })) => {
            assert_eq!(error.answer_kind(), AnswerKind::Unauthenticated);
        }
        other => panic!("{other:?}"),
    }
}
