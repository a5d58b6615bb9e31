use holdfast_tests::fuzz::Fuzzer;
use proptest::prelude::*;

use super::*;

type Plain = (String, String, Option<String>, Option<u64>);

fn plain(frame: &Frame) -> Plain {
    let data = String::from_utf8_lossy(&frame.data).into_owned();
    let retry = frame.retry.map(|retry| u64::try_from(retry.as_millis()).unwrap());
    (frame.event.clone(), data, frame.id.clone(), retry)
}

/// The frames of these chunks, up to an error.
fn read(cap: usize, chunks: &[&[u8]]) -> (Vec<Plain>, Option<TooLong>) {
    let mut decoder = Decoder::with_cap(cap);
    let failed = chunks.iter().find_map(|chunk| decoder.push(chunk).err());
    (std::iter::from_fn(|| decoder.next_frame()).map(|frame| plain(&frame)).collect(), failed)
}

fn frames(text: &str) -> Vec<Plain> {
    let (frames, failed) = read(MAX_FRAME, &[text.as_bytes()]);
    assert_eq!(failed, None);
    frames
}

fn event(event: &str, data: &str) -> Plain {
    (event.to_owned(), data.to_owned(), None, None)
}

#[test]
fn a_frame_has_type_id_and_data() {
    let text = "retry: 1000\n\nevent: update\nid: abcd.1.7.0\ndata: {\"name\":\"a\"}\n\n: heartbeat\n\n";
    let update = ("update".to_owned(), "{\"name\":\"a\"}".to_owned(), Some("abcd.1.7.0".to_owned()), None);
    assert_eq!(frames(text), [(String::new(), String::new(), None, Some(1000)), update]);
}

#[test]
fn all_three_ends_of_a_line_and_a_mark_at_the_start_are_taken() {
    for text in ["event: u\ndata: x\n\n", "event: u\r\ndata: x\r\n\r\n", "event: u\rdata: x\r\r"] {
        assert_eq!(frames(text), [event("u", "x")], "{text:?}");
        assert_eq!(frames(&format!("\u{feff}{text}")), [event("u", "x")], "{text:?}");
    }
    assert_eq!(
        frames("\u{feff}\u{feff}data: x\n\ndata: y\n\n"),
        [event("", "y")],
        "only one mark is skipped"
    );
    assert_eq!(read(9, &[b"\xEF\xBBdata: x\n\n"]).0, [], "half a mark is no mark");
}

#[test]
fn one_blank_behind_the_colon_is_dropped_and_data_lines_are_joined() {
    assert_eq!(frames("data:x\n\ndata:  y\n\n"), [event("", "x"), event("", " y")]);
    assert_eq!(frames("data: a\ndata\ndata: b\n\n"), [event("", "a\n\nb")]);
}

#[test]
fn what_is_not_understood_is_skipped() {
    assert_eq!(frames("event: x\n\nfoo: bar\n: c\ndata: 1\nretry: 1s\n\n"), [event("", "1")]);
    assert_eq!(
        frames("id: a\0b\ndata: 1\n\nretry: 99999999999999999999999\ndata: 2\n\n"),
        [event("", "1"), event("", "2")]
    );
}

#[test]
fn an_id_without_data_counts_and_an_unfinished_frame_does_not() {
    assert_eq!(frames("id: 7\n\ndata: x\n"), [(String::new(), String::new(), Some("7".to_owned()), None)]);
    assert_eq!(frames("id\ndata: x\n\n"), [(String::new(), "x".to_owned(), Some(String::new()), None)]);
}

#[test]
fn a_line_or_a_frame_over_the_cap_ends_it() {
    assert_eq!(read(10, &[b"data: 1234\n\n"]), (vec![event("", "1234")], None));
    assert_eq!(read(10, &[b"data: 1\n\ndata: 12345\n\n"]), (vec![event("", "1")], Some(TooLong(10))));
    assert_eq!(read(10, &[b"0123456789", b"0"]).1, Some(TooLong(10)));
    assert_eq!(read(10, &[b"data: 1234\ndata: 5678\ndata: 9\n\n"]).1, Some(TooLong(10)));
    assert_eq!(read(10, &[b"data\ndata\ndata\ndata\ndata\ndata\ndata\ndata\ndata\ndata\ndata\n\n"]).1, None);
}

#[test]
fn data_is_never_shown() {
    let mut decoder = Decoder::default();
    decoder.push(b"event: update\ndata: geheim\n\ndata: gehei").unwrap();
    let shown = format!("{decoder:?} {:?}", decoder.next_frame());
    assert!(!shown.contains("gehei"), "{shown}");
}

fn line() -> impl Strategy<Value = String> {
    prop_oneof![
        Just(String::new()),
        "(event|data|id|retry|)(: ?)?[a-z0-9\u{e4}:]{0,8}",
        Just(": heartbeat".to_owned()),
    ]
}

proptest! {
    #[test]
    fn where_chunks_end_changes_nothing(
        lines in prop::collection::vec((line(), prop::sample::select(vec!["\n", "\r", "\r\n"])), 0..40),
        mark in any::<bool>(),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..12),
        cap in 4usize..40,
    ) {
        let mut text = if mark { "\u{feff}".to_owned() } else { String::new() };
        lines.iter().for_each(|(line, end)| { text.push_str(line); text.push_str(end); });
        let bytes = text.as_bytes();
        let whole = read(cap, &[bytes]);
        let mut cuts: Vec<_> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
        cuts.sort_unstable();
        let mut chunks = Vec::new();
        let mut from = 0;
        for cut in cuts {
            chunks.push(&bytes[from..cut]);
            from = cut;
        }
        chunks.push(&bytes[from..]);
        prop_assert_eq!(&read(cap, &chunks), &whole);
        let single: Vec<_> = bytes.chunks(1).collect();
        prop_assert_eq!(&read(cap, &single), &whole);
    }
}

#[test]
fn fuzz_streams() {
    let seeds: [&[u8]; 4] = [
        b"retry: 1000\n\nevent: update\ndata: {\"name\":\"a\",\"bytes\":\"eA==\",\"metadata\":{}}\n\n",
        b"event: synced\nid: abcdefgh.1.9.0badcafe\ndata: {}\n\n: heartbeat\n\n",
        b"event: fresh\ndata: {\"names\":{\"a\":\"2026-07-26T21:04:11Z\"}}\n\n",
        b"\xEF\xBB\xBFevent: error\r\ndata: {\"name\":\"a\",\"metadata\":{},\"error\":{\"kind\":\"invalid\",\"message\":\"m\"}}\r\n\r\n",
    ];
    let words =
        ["event:", "data:", "id:", "retry:", "update", "\n\n", "\r", "{\"names\":", "\"error\":", ": "];
    let mut fuzzer = Fuzzer::new(&seeds, &words);
    while let Some(input) = fuzzer.input() {
        let watched = Fuzzer::watch(&input);
        let half = input.len() / 2;
        let whole = read(512, &[&input]);
        assert_eq!(read(512, &[&input[..half], &input[half..]]), whole);
        let read: Vec<_> = whole
            .0
            .iter()
            .map(|(event, data, ..)| format!("{:?}", crate::config::wire::event(event, data.as_bytes())))
            .collect();
        drop(watched);
        fuzzer.learn(input, &format!("{read:?} {:?}", whole.1));
    }
}
