//! From an object of the API to a value: its data as one JSON object with sorted keys.
//!
//! An entry that is not text cannot stand in JSON; it stays in base64 as Kubernetes gives it, and the value's metadata
//! lists it under `base64`.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use holdfast_core::AnswerKind;
use holdfast_core::freshness::{Failure, Outcome};
use serde::Deserialize;
use zeroize::Zeroizing;

use super::super::content;
use super::super::wiped::Wiped;
use crate::value::{Secret, Value};

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Object {
    metadata: Metadata,
    #[serde(default)]
    data: Option<BTreeMap<String, Wiped>>,
    #[serde(default)]
    binary_data: Option<BTreeMap<String, Wiped>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metadata {
    resource_version: String,
}

/// The value of an object; a Secret's texts come in base64, a `ConfigMap`'s plain.
pub(super) fn value(body: &[u8], secret: bool) -> Result<Outcome<Value>, Failure> {
    let unknown = |_| Failure::of(AnswerKind::Unknown);
    let object: Object = serde_json::from_slice(body).map_err(unknown)?;
    let (mut entries, mut left) = (BTreeMap::new(), Vec::new());
    let data = object.data.unwrap_or_default();
    let (plain, coded) =
        if secret { (BTreeMap::new(), data) } else { (data, object.binary_data.unwrap_or_default()) };
    entries.extend(plain);
    for (name, text) in coded {
        let decoded = BASE64_STANDARD.decode(text.as_bytes()).ok().map(Zeroizing::new);
        match decoded.as_deref().map(|bytes| std::str::from_utf8(bytes)) {
            Some(Ok(plain)) => {
                entries.insert(name, Wiped::new(plain.to_owned()));
            }
            _ => {
                left.push(name.clone());
                entries.insert(name, text);
            }
        }
    }
    let bytes = serde_json::to_vec(&entries).map_err(unknown)?;
    if bytes.len() > content::MAX_OBJECT {
        return Err(Failure::of(AnswerKind::Invalid));
    }
    let metadata = (!left.is_empty()).then(|| ("base64".to_owned(), left.join(",")));
    let value = Value {
        bytes: Secret::new(bytes),
        version: Some(object.metadata.resource_version),
        sensitive: secret,
        metadata: metadata.into_iter().collect(),
        ..Value::default()
    };
    Ok(Outcome::Value { value, passed: None })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(body: serde_json::Value, secret: bool) -> Value {
        match value(body.to_string().as_bytes(), secret) {
            Ok(Outcome::Value { value, .. }) => value,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn data_is_an_object_with_sorted_keys_and_what_is_no_text_stays_coded() {
        let secret = of(
            serde_json::json!({"metadata": {"resourceVersion": "12", "labels": {"x": "y"}},
                "data": {"b": "dHdv", "a": "b25l", "key": "/wA=", "empty": ""}}),
            true,
        );
        assert_eq!(secret.bytes.expose(), br#"{"a":"one","b":"two","empty":"","key":"/wA="}"#);
        assert_eq!((secret.version.as_deref(), secret.order, secret.sensitive), (Some("12"), None, true));
        assert_eq!(secret.metadata, [("base64".to_owned(), "key".to_owned())].into());
        let map = of(
            serde_json::json!({"metadata": {"resourceVersion": "13"}, "data": {"z": "dHdv"},
                "binaryData": {"a": "b25l"}}),
            false,
        );
        assert_eq!(map.bytes.expose(), br#"{"a":"one","z":"dHdv"}"#);
        assert!(!map.sensitive && map.metadata.is_empty());
        let empty = of(serde_json::json!({"metadata": {"resourceVersion": "1"}}), true);
        assert_eq!(empty.bytes.expose(), b"{}");
        assert_eq!(value(b"<html>", true).unwrap_err(), Failure::of(AnswerKind::Unknown));
    }
}
