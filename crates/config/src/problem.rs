//! What is wrong with a part of the configuration, for the collector that shows all problems at once.

use holdfast_ops::config::{Place, Position};

/// One thing that is wrong.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Problem {
    /// The key, with dots, from the top of the configuration; the collector finds its line.
    pub key: String,
    /// What is wrong, as the operator reads it.
    pub what: String,
    /// Where, when the fault is in another file that the key names.
    pub at: Option<Place>,
}

impl Problem {
    /// A problem of a key.
    pub fn new(key: impl Into<String>, what: impl Into<String>) -> Self {
        Self { key: key.into(), what: what.into(), at: None }
    }

    /// The same, in another file.
    #[must_use]
    pub fn at(self, place: Place) -> Self {
        Self { at: Some(place), ..self }
    }
}

/// The message of a TOML error and where it is. Neither the excerpt nor a value that does not fit is in it: it may be a secret
/// in the wrong place.
pub(crate) fn toml_fault(text: &str, error: &toml::de::Error) -> (String, Position) {
    let at = Position::of(text, error.span().map_or(0, |span| span.start));
    let message = error.message().lines().next().unwrap_or_default();
    let what = match (message.starts_with("invalid "), message.rsplit_once(", expected ")) {
        (true, Some((_, expected))) => format!("does not fit, expected {expected}"),
        _ => message.to_owned(),
    };
    (what, at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_in_toml_is_told_without_what_stands_there() {
        #[derive(Debug, serde::Deserialize)]
        struct File {
            #[allow(dead_code, reason = "only its type counts")]
            groups: Vec<String>,
        }
        let text = "\ngroups = \"hunter2\"";
        let (what, at) = toml_fault(text, &toml::from_str::<File>(text).unwrap_err());
        assert_eq!((&*what, at), ("does not fit, expected a sequence", Position { line: 2, column: 10 }));
    }
}
