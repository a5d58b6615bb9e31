//! A successful answer.

use serde_json::Value;

/// A successful answer: its status and its JSON, null when there was none.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    /// The HTTP status.
    pub status: u16,
    /// The whole body.
    pub body: Value,
}

impl Answer {
    /// `data` of the envelope; null when absent.
    pub fn data(&self) -> &Value {
        self.member("data")
    }

    /// `auth` of the envelope; null when absent.
    pub fn auth(&self) -> &Value {
        self.member("auth")
    }

    /// A member of the body; null when absent.
    pub fn member(&self, name: &str) -> &Value {
        self.body.get(name).unwrap_or(&Value::Null)
    }

    /// The `keys` of a list.
    pub fn keys(&self) -> Vec<String> {
        let keys = self.data().get("keys").and_then(Value::as_array);
        keys.into_iter().flatten().filter_map(|k| k.as_str().map(str::to_owned)).collect()
    }

    /// The warnings.
    pub fn warnings(&self) -> Vec<String> {
        let list = self.member("warnings").as_array();
        list.into_iter().flatten().filter_map(|w| w.as_str().map(str::to_owned)).collect()
    }
}
