//! What a watch asks for, from its query or its body.

use std::collections::HashSet;

use http::HeaderMap;
use percent_encoding::percent_decode;

use super::body::Asked;
use crate::wire::{Fault, message};
use holdfast_core::AnswerKind;

/// The cap of a frame's `data:` line unless a stream asks for more, and the most that it may ask for, in bytes.
const CAP: u64 = 1_000_000;
const MOST: u64 = 24 << 20;

/// A watch.
#[derive(Debug, Eq, PartialEq)]
pub(super) struct Watch {
    /// Each name once, at its first place.
    pub(super) names: Vec<Box<[u8]>>,
    pub(super) last_event_id: Option<Vec<u8>>,
    pub(super) fresh: bool,
    pub(super) max_frame: usize,
}

impl Watch {
    /// From the query of a GET.
    pub(super) fn of_query(query: &str, headers: &HeaderMap, most: usize) -> Result<Self, Fault> {
        let (mut names, mut id, mut fresh, mut cap) = (Vec::new(), None, false, None);
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            let value = decoded(value);
            match &*decoded(key) {
                b"name" => names.push(value.into_boxed_slice()),
                b"last_event_id" => id = Some(value),
                b"fresh" => fresh = value == b"1" || value == b"true",
                b"max_frame" => cap = std::str::from_utf8(&value).ok().and_then(|text| text.parse().ok()),
                _ => {}
            }
        }
        Self::new(names, id, fresh, cap, headers, most)
    }

    /// From the body of a POST.
    pub(super) fn of_body(mut asked: Asked, headers: &HeaderMap, most: usize) -> Result<Self, Fault> {
        let names = asked.take_names();
        let id = asked.last_event_id.map(String::into_bytes);
        Self::new(names, id, asked.fresh.unwrap_or(false), asked.max_frame, headers, most)
    }

    fn new(
        names: Vec<Box<[u8]>>,
        id: Option<Vec<u8>>,
        fresh: bool,
        cap: Option<u64>,
        headers: &HeaderMap,
        most: usize,
    ) -> Result<Self, Fault> {
        let mut seen = HashSet::new();
        let names: Vec<_> = names.into_iter().filter(|name| seen.insert(name.clone())).collect();
        if names.is_empty() {
            return Err(Fault::new(AnswerKind::Invalid, message::NAME_REQUIRED));
        }
        if most > 0 && names.len() > most {
            return Err(Fault::new(AnswerKind::Invalid, message::TOO_MANY_NAMES));
        }
        let header = headers.get("last-event-id").map(|id| id.as_bytes().to_vec());
        let max_frame = usize::try_from(cap.unwrap_or(CAP).clamp(CAP, MOST)).unwrap_or(usize::MAX);
        let last_event_id = header.or(id).filter(|id| !id.is_empty());
        Ok(Self { names, last_event_id, fresh, max_frame })
    }
}

/// A part of a query: `+` is a blank, then percent-decoded.
fn decoded(text: &str) -> Vec<u8> {
    let blanks: Vec<u8> = text.bytes().map(|byte| if byte == b'+' { b' ' } else { byte }).collect();
    percent_decode(&blanks).collect()
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn query(text: &str) -> Result<Watch, Fault> {
        Watch::of_query(text, &HeaderMap::new(), 3)
    }

    fn names(watch: &Watch) -> Vec<&[u8]> {
        watch.names.iter().map(|name| &**name).collect()
    }

    #[test]
    fn a_repeated_name_counts_once_at_its_first_place() {
        let watch = query("name=b&name=a&&name=b&other=x&name=orders%2Fdb").unwrap();
        assert_eq!(names(&watch), [&b"b"[..], b"a", b"orders/db"]);
        assert_eq!((watch.last_event_id, watch.fresh, watch.max_frame), (None, false, 1_000_000));
    }

    #[test]
    fn without_a_name_or_with_too_many_it_is_refused() {
        for none in ["", "x=y", "names=a"] {
            assert_eq!(query(none).unwrap_err().message, message::NAME_REQUIRED);
        }
        assert_eq!(query("name=a&name=b&name=c&name=d").unwrap_err().message, message::TOO_MANY_NAMES);
        let body = Watch::of_body(Asked::default(), &HeaderMap::new(), 3);
        assert_eq!(body.unwrap_err().message, message::NAME_REQUIRED);
    }

    #[test]
    fn the_header_names_the_last_frame_and_wins() {
        let headers: HeaderMap =
            [(http::HeaderName::from_static("last-event-id"), HeaderValue::from_static("h"))]
                .into_iter()
                .collect();
        let watch = Watch::of_query("name=a&last_event_id=q", &headers, 0).unwrap();
        assert_eq!(watch.last_event_id.as_deref(), Some(&b"h"[..]));
        let watch = query("name=a&last_event_id=q&fresh=1").unwrap();
        assert_eq!((watch.last_event_id.as_deref(), watch.fresh), (Some(&b"q"[..]), true));
    }

    #[test]
    fn the_cap_can_be_raised_within_bounds_only() {
        for (asked, expected) in [
            ("5", 1_000_000),
            ("2000000", 2_000_000),
            ("99999999999", 24 << 20),
            ("x", 1_000_000),
            ("-1", 1_000_000),
        ] {
            assert_eq!(query(&format!("name=a&max_frame={asked}")).unwrap().max_frame, expected, "{asked}");
        }
    }
}
