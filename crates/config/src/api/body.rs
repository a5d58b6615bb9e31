//! Bodies of requests.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt as _;
use hyper::body::{Body as _, Incoming};
use serde::Deserialize;

use crate::wire::Fault;

/// The largest body.
const MOST: usize = 1 << 20;
/// It must be there within this time.
const WITHIN: Duration = Duration::from_secs(15);

/// What a batch or a watch asks for. Unknown fields and what follows the first JSON value are not looked at.
#[derive(Debug, Default, Deserialize, Eq, PartialEq)]
#[serde(default)]
pub(super) struct Asked {
    /// The names, in order.
    pub(super) names: Option<Vec<Option<String>>>,
    /// The id of the last frame that was seen.
    pub(super) last_event_id: Option<String>,
    /// Whether dates alone come as dates.
    pub(super) fresh: Option<bool>,
    /// The longest `data:` line.
    pub(super) max_frame: Option<u64>,
}

impl Asked {
    /// The names; a `null` among them is an empty one.
    pub(super) fn take_names(&mut self) -> Vec<Box<[u8]>> {
        let names = self.names.take().unwrap_or_default();
        names.into_iter().map(|name| name.unwrap_or_default().into_bytes().into()).collect()
    }
}

/// Reads a body and what it asks for.
pub(super) async fn read(body: Incoming) -> Result<Asked, Fault> {
    let bytes = tokio::time::timeout(WITHIN, collect(body)).await.map_err(|_| Fault::MALFORMED)??;
    parse(&bytes)
}

async fn collect(mut body: Incoming) -> Result<Bytes, Fault> {
    if body.size_hint().lower() > MOST as u64 {
        return Err(Fault::MALFORMED);
    }
    let mut bytes = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame.map_err(|_| Fault::MALFORMED)?.into_data() else { continue };
        if bytes.len() + data.len() > MOST {
            return Err(Fault::MALFORMED);
        }
        bytes.extend_from_slice(&data);
    }
    Ok(bytes.freeze())
}

/// What a body asks for.
fn parse(bytes: &[u8]) -> Result<Asked, Fault> {
    let mut reader = serde_json::Deserializer::from_slice(bytes);
    // The end is not asked for: what follows is ignored.
    let asked = Option::<Asked>::deserialize(&mut reader).map_err(|_| Fault::MALFORMED)?;
    Ok(asked.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(text: &str) -> Option<Vec<String>> {
        let mut asked = parse(text.as_bytes()).ok()?;
        let names = asked.take_names().into_iter();
        Some(names.map(|name| String::from_utf8(name.into_vec()).unwrap()).collect())
    }

    #[test]
    fn what_a_first_version_client_may_send() {
        for empty in ["{}", "null", r#"{"names":null}"#, "[]", r#"{"names":[]}"#, " {} trailing"] {
            assert_eq!(names(empty), Some(vec![]), "{empty}");
        }
        let both = Some(vec!["a".to_owned(), "a".to_owned()]);
        assert_eq!(names(r#"{"more":{"x":[1]},"names":["a","a"]}{"#), both);
        for bad in [
            "",
            "{",
            "5",
            "\"a\"",
            r#"{"names":"a"}"#,
            r#"{"names":[1]}"#,
            "\u{1}",
            "{\"names\":[\"\\ud800\"]}",
        ] {
            assert_eq!(names(bad), None, "{bad}");
        }
    }

    #[test]
    fn what_a_watch_may_ask_for() {
        let asked = parse(br#"{"names":["a"],"last_event_id":"x","fresh":true,"max_frame":5}"#).unwrap();
        assert_eq!(
            (asked.last_event_id.as_deref(), asked.fresh, asked.max_frame),
            (Some("x"), Some(true), Some(5))
        );
    }

    #[test]
    fn deep_and_strange_bodies_are_refused_without_harm() {
        assert_eq!(names(&"[".repeat(100_000)), None);
        assert_eq!(names(&format!("{{\"x\":{}", "[".repeat(100_000))), None);
        for seed in 0..2000_u64 {
            let mut spread = holdfast_core::time::Spread::new(seed);
            let mut text = br#"{"names":["a","b"],"fresh":true,"max_frame":10}"#.to_vec();
            for _ in 0..=spread.below(6) {
                let at = spread.below(text.len() as u64) as usize;
                text[at] = spread.bits() as u8;
            }
            let _ = parse(&text);
        }
    }
}
