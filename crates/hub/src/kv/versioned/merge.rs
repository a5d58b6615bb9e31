//! The merge patch of RFC 7396.

use serde_json::{Map, Value};

/// Members of `patch` replace those of `target`, objects merge, null removes.
pub(super) fn merge(target: &mut Map<String, Value>, patch: &Map<String, Value>) {
    for (key, change) in patch {
        match change {
            Value::Null => {
                target.remove(key);
            }
            Value::Object(inner) => {
                let mut merged = match target.remove(key) {
                    Some(Value::Object(old)) => old,
                    _ => Map::new(),
                };
                merge(&mut merged, inner);
                target.insert(key.clone(), Value::Object(merged));
            }
            other => {
                target.insert(key.clone(), other.clone());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_cases_of_the_rfc_with_objects() {
        for (target, patch, expected) in [
            (json!({"a": "b"}), json!({"a": "c"}), json!({"a": "c"})),
            (json!({"a": "b"}), json!({"b": "c"}), json!({"a": "b", "b": "c"})),
            (json!({"a": "b"}), json!({"a": null}), json!({})),
            (json!({"a": "b", "b": "c"}), json!({"a": null}), json!({"b": "c"})),
            (json!({"a": ["b"]}), json!({"a": "c"}), json!({"a": "c"})),
            (json!({"a": "c"}), json!({"a": ["b"]}), json!({"a": ["b"]})),
            (json!({"a": {"b": "c"}}), json!({"a": {"b": "d", "c": null}}), json!({"a": {"b": "d"}})),
            (json!({"a": [{"b": "c"}]}), json!({"a": [1]}), json!({"a": [1]})),
            (json!({"e": null}), json!({"a": 1}), json!({"e": null, "a": 1})),
            (json!({}), json!({"a": {"bb": {"ccc": null}}}), json!({"a": {"bb": {}}})),
        ] {
            let mut merged = target.as_object().unwrap().clone();
            merge(&mut merged, patch.as_object().unwrap());
            assert_eq!(Value::Object(merged), expected, "{target} {patch}");
        }
    }
}
