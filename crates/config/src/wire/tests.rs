use std::sync::Arc;
use std::time::Duration;

use holdfast_core::freshness::Trouble;
use holdfast_core::stream::Reason;

use super::*;
use crate::value::Secret;

const AT: Wall = Wall::from_micros(1_785_099_851_000_000);

fn state(value: Value, stale: Option<AnswerKind>) -> State<Value> {
    State {
        value: Some(value),
        resolved_at: Some(AT),
        checked_at: Some(AT),
        trouble: stale.map(|kind| Trouble { kind, since: AT }),
        settled: true,
        served: Served::Value { stale },
    }
}

fn value(bytes: &str) -> Value {
    Value { bytes: Secret::new(bytes.as_bytes().to_vec()), ..Value::default() }
}

fn text(state: &State<Value>) -> String {
    String::from_utf8(encode("db-password", state).entry.to_vec()).unwrap()
}

#[test]
fn a_healthy_value() {
    assert_eq!(
        text(&state(value("hunter2"), None)),
        r#"{"name":"db-password","bytes":"aHVudGVyMg==","metadata":{},"resolved_at":"2026-07-26T21:04:11Z"}"#
    );
}

#[test]
fn an_empty_value_is_a_value_without_bytes() {
    let encoded = encode("a", &state(value(""), None));
    assert_eq!(encoded.fault, None);
    assert_eq!(encoded.entry, r#"{"name":"a","metadata":{},"resolved_at":"2026-07-26T21:04:11Z"}"#);
}

#[test]
fn every_field_in_its_order() {
    let full = Value {
        version: Some("v7".to_owned()),
        order: Some(41),
        epoch: Some(Arc::from("c1")),
        sensitive: true,
        not_after: Some(Wall::from_micros(1_785_099_851_120_000)),
        metadata: [("b".to_owned(), "2".to_owned()), ("a".to_owned(), "<1>".to_owned())].into(),
        ..value("x")
    };
    assert_eq!(
        text(&state(full, Some(AnswerKind::Unavailable))),
        concat!(
            r#"{"name":"db-password","bytes":"eA==","version":"v7","sensitive":true,"#,
            r#""not_after":"2026-07-26T21:04:11.12Z","metadata":{"a":"<1>","b":"2"},"kind":"unavailable","#,
            r#""resolved_at":"2026-07-26T21:04:11Z","stale":true,"order":41,"epoch":"c1"}"#
        )
    );
}

#[test]
fn what_does_not_apply_is_left_out() {
    let odd = Value { version: Some(String::new()), epoch: Some(Arc::from("c1")), ..value("x") };
    let state = State { resolved_at: None, ..state(odd, None) };
    assert_eq!(text(&state), r#"{"name":"db-password","bytes":"eA==","metadata":{}}"#);
}

#[test]
fn what_is_not_served_is_an_entry_of_three_fields() {
    for (kind, refusal, status, message) in [
        (AnswerKind::Unknown, Refusal::ResolveFailed, 500, "binding resolve failed"),
        (AnswerKind::NotFound, Refusal::ResolveFailed, 404, "binding resolve failed"),
        (AnswerKind::Unavailable, Refusal::TooOld, 503, "value too old"),
        (AnswerKind::Unavailable, Refusal::Expired, 503, "value expired"),
    ] {
        let state = State { served: Served::Refused(kind, refusal), ..state(value("secret"), None) };
        let encoded = encode("a", &state);
        assert_eq!(encoded.fault, Some(Fault::new(kind, message)));
        assert_eq!(kind.http_status(), status);
        let expected =
            format!(r#"{{"name":"a","metadata":{{}},"error":{{"kind":"{kind}","message":"{message}"}}}}"#);
        assert_eq!(encoded.entry, expected);
    }
}

#[test]
fn envelopes_and_probes() {
    assert_eq!(envelope(Fault::NOT_BOUND), r#"{"error":{"kind":"not_found","message":"binding not found"}}"#);
    assert_eq!(
        envelope(Fault::DENIED),
        r#"{"error":{"kind":"permission_denied","message":"permission denied"}}"#
    );
    assert_eq!(status("priming"), r#"{"status":"priming"}"#);
}

#[test]
fn dates_have_up_to_six_digits_and_none_when_zero() {
    for (micros, expected) in [
        (0, "1970-01-01T00:00:00Z"),
        (1, "1970-01-01T00:00:00.000001Z"),
        (1_500_000, "1970-01-01T00:00:01.5Z"),
        (1_785_099_851_000_000, "2026-07-26T21:04:11Z"),
    ] {
        assert_eq!(date(Wall::from_micros(micros)), expected);
    }
}

#[test]
fn names_are_escaped_and_what_is_not_utf8_is_shown_as_near_as_can_be() {
    assert_eq!(
        error_entry(b"a\"\xff\0", Fault::DENIED),
        concat!(
            "{\"name\":\"a\\\"\u{fffd}\\u0000\",\"metadata\":{},",
            "\"error\":{\"kind\":\"permission_denied\",\"message\":\"permission denied\"}}"
        )
    );
}

#[test]
fn frames() {
    let mut out = BytesMut::new();
    frame(&mut out, Event::Update, None, b"{}");
    frame(&mut out, Event::Synced, Some("abcdefgh.1.2.00000000"), b"{}");
    assert_eq!(out, "event: update\ndata: {}\n\nevent: synced\nid: abcdefgh.1.2.00000000\ndata: {}\n\n");
    assert_eq!(
        fresh([("b", AT), ("a", AT)]),
        r#"{"names":{"a":"2026-07-26T21:04:11Z","b":"2026-07-26T21:04:11Z"}}"#
    );
    assert_eq!(
        goaway(Reason::Draining, Duration::from_millis(7500)),
        r#"{"reason":"draining","within_ms":7500}"#
    );
    assert_eq!(goaway(Reason::MaxAge, Duration::ZERO), r#"{"reason":"max_age","within_ms":0}"#);
    assert_eq!(data_line(10), 16);
}

#[test]
fn a_record_shows_no_bytes_when_printed() {
    assert!(!format!("{:?}", encode("a", &state(value("hunter2"), None))).contains("aHVudGVyMg"));
}
