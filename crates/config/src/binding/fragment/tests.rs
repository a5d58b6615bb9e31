//! Golden cuts, and what holds for every document.

use std::collections::BTreeMap;

use holdfast_core::Wall;
use proptest::prelude::*;

use super::*;

fn cut_text(fragment: &str, document: &[u8]) -> Result<Option<String>, AnswerKind> {
    let value = Value { bytes: Secret::new(document.to_vec()), ..Value::default() };
    let found = cut(&Fragment::parse(fragment).unwrap(), &value).map_err(|failure| failure.kind)?;
    Ok(found.map(|value| String::from_utf8(value.bytes.expose().to_vec()).unwrap()))
}

fn value(text: &str) -> Result<Option<String>, AnswerKind> {
    Ok(Some(text.to_owned()))
}

const ABSENT: Result<Option<String>, AnswerKind> = Ok(None);
const INVALID: Result<Option<String>, AnswerKind> = Err(AnswerKind::Invalid);

#[test]
fn golden_cuts() {
    let document = r#" { "password": "p\u00e4\"ss", "ca.crt": "pem", "a/b": 1, "m~n": 2, "n": 1.50e+0, "t": true, "nil": null,
        "empty": "", "o": {"k": [10, {"x":"y"}, [ ] ], "": "no name"}, "twice": 1, "twice": "2", "list": ["a", "b"] } "#;
    for (fragment, expected) in [
        ("password", value("pä\"ss")),
        ("ca.crt", value("pem")),
        ("a/b", value("1")),
        ("m~n", value("2")),
        ("n", value("1.50e+0")),
        ("t", value("true")),
        ("nil", value("")),
        ("empty", value("")),
        ("o", value(r#"{"k": [10, {"x":"y"}, [ ] ], "": "no name"}"#)),
        ("o/k", ABSENT),
        ("missing", ABSENT),
        ("Password", ABSENT),
        ("twice", value("2")),
        ("/password", value("pä\"ss")),
        ("/a~1b", value("1")),
        ("/m~0n", value("2")),
        ("/o/k/0", value("10")),
        ("/o/k/1/x", value("y")),
        ("/o/k/2", value("[ ]")),
        ("/o/", value("no name")),
        ("/", ABSENT),
        ("/o/k/3", ABSENT),
        ("/o/k/99999999999999999999999", ABSENT),
        ("/o/k/2/0", ABSENT),
        ("/missing/more", ABSENT),
        ("/list/1", value("b")),
        ("/list/-", INVALID),
        ("/list/01", INVALID),
        ("/list/+1", INVALID),
        ("/list/-1", INVALID),
        ("/list/x", INVALID),
        ("/list/", INVALID),
        ("/password/x", INVALID),
        ("/n/0", INVALID),
        ("/nil/x", INVALID),
    ] {
        assert_eq!(cut_text(fragment, document.as_bytes()), expected, "{fragment}");
    }
}

#[test]
fn what_is_no_json_or_has_no_parts_is_invalid() {
    for document in [
        &b""[..],
        b"plain",
        b"{\"a\": 1",
        b"{\"a\": 1} x",
        b"{'a': 1}",
        b"{\"a\": \xff}",
        b"[1,]",
        b"{\"b\": [}",
    ] {
        assert_eq!(cut_text("a", document), INVALID, "{}", String::from_utf8_lossy(document));
        assert_eq!(cut_text("/a", document), INVALID, "{}", String::from_utf8_lossy(document));
    }
    for document in ["\"text\"", "1", "null", "true", "[1]"] {
        assert_eq!(cut_text("a", document.as_bytes()), INVALID, "{document}");
    }
    assert_eq!(cut_text("/0", b"[1]"), value("1"));
    assert_eq!(cut_text("a", br#"{"a": "\ud800"}"#), INVALID, "half a surrogate is no text");
}

#[test]
fn everything_but_the_bytes_stays() {
    let whole = Value {
        bytes: Secret::new(b"{\"a\":\"x\"}".to_vec()),
        version: Some("7".into()),
        order: Some(7),
        epoch: Some("e".into()),
        sensitive: true,
        not_after: Some(Wall::from_micros(1)),
        metadata: BTreeMap::from([("k".into(), "v".into())]),
    };
    let cut = cut(&Fragment::Key("a".into()), &whole).unwrap().unwrap();
    assert_eq!(cut, Value { bytes: Secret::new(b"x".to_vec()), ..whole });
}

#[test]
fn the_deepest_document_needs_no_stack() {
    let deep = format!("{{\"a\": {}1{}}}", "[".repeat(200_000), "]".repeat(200_000));
    assert_eq!(cut_text("b", deep.as_bytes()), ABSENT);
}

#[test]
fn fragments_are_read() {
    assert_eq!(Fragment::parse("ca.crt"), Ok(Fragment::Key("ca.crt".into())));
    assert_eq!(Fragment::parse("a~b"), Ok(Fragment::Key("a~b".into())));
    assert_eq!(Fragment::parse("/"), Ok(Fragment::Pointer(vec![String::new()])));
    assert_eq!(Fragment::parse("/~01/b"), Ok(Fragment::Pointer(vec!["~1".into(), "b".into()])));
    assert_eq!(Fragment::parse(""), Err(BadFragment::Empty));
    for text in ["/~", "/a~", "/~2", "/a/~x", "/~é"] {
        assert_eq!(Fragment::parse(text), Err(BadFragment::Escape), "{text}");
    }
}

fn document() -> impl Strategy<Value = serde_json::Value> {
    let leaf = prop_oneof![
        Just(serde_json::Value::Null),
        any::<bool>().prop_map(Into::into),
        any::<i64>().prop_map(Into::into),
        "\\PC{0,8}".prop_map(Into::into),
    ];
    leaf.prop_recursive(4, 40, 5, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Into::into),
            prop::collection::btree_map("[a-c~/]{0,2}", inner, 0..4)
                .prop_map(|map| serde_json::Value::Object(map.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn a_pointer_finds_what_the_library_finds(document in document(), parts in prop::collection::vec("[a-c~/]{0,2}|[0-3]", 1..4)) {
        let fragment = Fragment::Pointer(parts);
        let pointer = fragment.to_string();
        prop_assert_eq!(Fragment::parse(&pointer), Ok(fragment));
        let expected = document.pointer(&pointer).map(|found| match found {
            serde_json::Value::Null => String::new(),
            serde_json::Value::String(text) => text.clone(),
            other => other.to_string(),
        });
        match cut_text(&pointer, document.to_string().as_bytes()) {
            Ok(found) => prop_assert_eq!(found, expected),
            Err(_) => prop_assert_eq!(expected, None),
        }
    }

    #[test]
    fn what_is_shown_reads_back(text in "/?[a~01/.]{1,12}") {
        if let Ok(fragment) = Fragment::parse(&text) {
            prop_assert_eq!(Fragment::parse(&fragment.to_string()), Ok(fragment));
        }
    }
}

/// The input is a fragment, a line feed, and a document.
#[test]
fn fuzz_fragments() {
    let seeds: [&[u8]; 5] = [
        b"password\n{\"password\": \"x\", \"n\": 1}",
        b"/a/0/b~1c\n{\"a\": [{\"b/c\": null}]}",
        b"/0/1\n[[1, \"\\u00e4\"], 2]",
        b"ca.crt\n{\"ca.crt\": {\"a\": [1e5]}}",
        b"/\n{\"\": true}",
    ];
    holdfast_tests::fuzz::fuzz(&seeds, &["\"a\":", "~0", "~1", "/0", "null", "\\ud800", "{", "["], |input| {
        let split = input.iter().position(|byte| *byte == b'\n').unwrap_or(input.len());
        let Ok(text) = std::str::from_utf8(&input[..split]) else { return String::new() };
        let fragment = match Fragment::parse(text) {
            Ok(fragment) => fragment,
            Err(error) => return error.to_string(),
        };
        let document = input.get(split + 1..).unwrap_or_default();
        let value = Value { bytes: Secret::new(document.to_vec()), ..Value::default() };
        match cut(&fragment, &value) {
            Ok(None) => "absent".to_owned(),
            Err(failure) => failure.kind.label().to_owned(),
            Ok(Some(found)) => {
                assert!(found.bytes.len() <= document.len(), "what is cut out is no longer than the whole");
                format!("{} bytes", found.bytes.len().min(3))
            }
        }
    });
}
