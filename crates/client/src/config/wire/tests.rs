use super::*;

fn value(body: &str) -> Value {
    match entry(body.as_bytes()) {
        Ok(Entry::Value(value)) => *value,
        other => panic!("{other:?}"),
    }
}

fn refused(entry: &Entry) -> (&str, AnswerKind, &str) {
    match entry {
        Entry::Error { name, refusal } => (name, refusal.kind, &refusal.message),
        Entry::Value(value) => panic!("{value:?}"),
    }
}

#[test]
fn a_full_value_is_read() {
    let value = value(
        r#"{"name":"db-password","bytes":"aHVudGVyMg==","version":"4","sensitive":true,
        "not_after":"2026-07-26T22:00:00Z","metadata":{"a":"b"},"kind":"unavailable",
        "resolved_at":"2026-07-26T21:04:11.25Z","stale":true,"order":7,"epoch":"cluster","new":[{}]}"#,
    );
    assert_eq!(&*value.name, "db-password");
    assert_eq!(value.bytes.expose(), b"hunter2");
    assert_eq!((value.version.as_deref(), value.sensitive, value.stale), (Some("4"), true, true));
    assert_eq!(value.not_after, Some(Wall::from_micros(1_785_103_200_000_000)));
    assert_eq!(value.resolved_at, Some(Wall::from_micros(1_785_099_851_250_000)));
    assert_eq!(value.metadata, BTreeMap::from([("a".to_owned(), "b".to_owned())]));
    assert_eq!(value.kind, Some(AnswerKind::Unavailable));
    assert_eq!((value.order, value.epoch.as_deref()), (Some(7), Some("cluster")));
}

#[test]
fn what_is_left_out_has_its_meaning() {
    let bare = value(r#"{"name":"a","metadata":{}}"#);
    assert!(bare.bytes.is_empty() && bare.metadata.is_empty() && !bare.stale && !bare.sensitive);
    assert_eq!((bare.version, bare.kind, bare.resolved_at), (None, None, None));
    let nulls = value(r#"{"name":"a","bytes":null,"metadata":null,"error":null,"resolved_at":null}"#);
    assert!(nulls.bytes.is_empty() && nulls.resolved_at.is_none());
}

#[test]
fn an_error_wins_over_bytes() {
    let body = br#"{"name":"a","bytes":"eA==","metadata":{},"error":{"kind":"not_found","message":"binding not found"}}"#;
    assert_eq!(refused(&entry(body).unwrap()), ("a", AnswerKind::NotFound, "binding not found"));
    let newer = br#"{"name":"a","error":{"kind":"teapot"}}"#;
    assert_eq!(refused(&entry(newer).unwrap()), ("a", AnswerKind::Unknown, ""));
}

#[test]
fn what_is_no_value_is_malformed_and_shows_nothing() {
    for body in [
        "",
        "{}",
        "[]",
        r#"["a"]"#,
        "null",
        r#"{"name":"a""#,
        r#"{"name":1}"#,
        r#"{"name":"a","bytes":"geheim!"}"#,
        r#"{"name":"a","bytes":"Z2VoZWlt","metadata":{"a":1}}"#,
        r#"{"name":"a","bytes":"Z2VoZWlt","resolved_at":"yesterday"}"#,
        r#"{"name":"a"} trailing"#,
    ] {
        let error = entry(body.as_bytes()).unwrap_err();
        assert_eq!(error.to_string(), "the answer is malformed: no value object", "{body}");
    }
    assert!(!format!("{:?}", entry(br#"{"name":"a","bytes":"Z2VoZWlt"}"#)).contains("geheim"));
}

#[test]
fn a_batch_is_read_entry_by_entry() {
    let body = br#"{"values":[{"name":"a","bytes":"eA==","metadata":{}},
        {"name":"b","metadata":{},"error":{"kind":"permission_denied","message":"permission denied"}}]}"#;
    let entries = batch(body).unwrap();
    assert!(matches!(&entries[0], Entry::Value(value) if value.bytes.expose() == b"x"));
    assert_eq!(refused(&entries[1]), ("b", AnswerKind::PermissionDenied, "permission denied"));
    assert_eq!(batch(br#"{"values":[]}"#), Ok(Vec::new()));
    assert_eq!(batch(br#"{"values":null}"#), Ok(Vec::new()));
    assert!(batch(br#"{"values":[{}]}"#).is_err());
}

#[test]
fn only_the_envelope_has_a_kind() {
    let refusal = envelope(br#"{"error":{"kind":"rate_limited","message":"rate limited"}}"#).unwrap();
    assert_eq!((refusal.kind, refusal.message.as_str()), (AnswerKind::RateLimited, "rate limited"));
    for body in ["404 page not found", "<html>", "{}", r#"{"error":"no"}"#, r#"{"errors":[]}"#] {
        assert_eq!(envelope(body.as_bytes()), None, "{body}");
    }
}

#[test]
fn a_text_for_people_is_cut_and_holds_no_controls() {
    let long = format!(r#"{{"error":{{"kind":"invalid","message":"\u001b[2J{}"}}}}"#, "ä".repeat(1000));
    let refusal = envelope(long.as_bytes()).unwrap();
    assert!(refusal.message.starts_with("[2Jä") && refusal.message.len() <= MAX_MESSAGE);
}

#[test]
fn events_of_a_stream_are_told_apart() {
    assert!(matches!(event("update", br#"{"name":"a"}"#), Ok(StreamEvent::Entry(Entry::Value(_)))));
    let error = br#"{"name":"a","metadata":{},"error":{"kind":"invalid","message":"m"}}"#;
    assert!(matches!(event("error", error), Ok(StreamEvent::Entry(Entry::Error { .. }))));
    assert_eq!(event("synced", b"{}"), Ok(StreamEvent::Synced));
    let fresh = event("fresh", br#"{"names":{"a":"1970-01-01T00:00:01Z"}}"#);
    assert_eq!(fresh, Ok(StreamEvent::Fresh([("a".to_owned(), Wall::from_micros(1_000_000))].into())));
    let away = event("goaway", br#"{"reason":"draining","within_ms":3000}"#);
    assert_eq!(away, Ok(StreamEvent::GoAway(Duration::from_secs(3))));
    assert_eq!(event("goaway", b"?"), Ok(StreamEvent::GoAway(Duration::ZERO)));
    assert_eq!(event("later", b"?"), Ok(StreamEvent::Other));
    assert!(event("update", b"{}").is_err() && event("fresh", b"[]").is_err());
}

#[test]
fn dates_have_up_to_nine_digits_and_any_offset() {
    for (text, micros) in [
        ("1970-01-01T00:00:00Z", 0),
        ("1970-01-01T00:00:01.5Z", 1_500_000),
        ("1970-01-01T00:00:01.123456789Z", 1_123_456),
        ("1970-01-01T02:00:00+02:00", 0),
        ("1970-01-01t00:00:00z", 0),
        ("0001-01-01T00:00:00Z", -62_135_596_800_000_000),
        ("9999-12-30T22:00:00.999999Z", 253_402_207_200_999_999),
    ] {
        assert_eq!(date(text), Some(Wall::from_micros(micros)), "{text}");
    }
    for text in ["", "1970-01-01", "1970-01-01T00:00:00", "19700101T000000Z", "1970-13-01T00:00:00Z", "now"] {
        assert_eq!(date(text), None, "{text}");
    }
}
