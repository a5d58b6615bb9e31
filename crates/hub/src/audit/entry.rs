//! The stored configuration of an audit device.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::error::ApiError;
use crate::logical::Data;

/// A device as it is stored below `sys/audit/`.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(default)]
pub struct DeviceEntry {
    /// Its name with a trailing slash.
    pub path: String,
    /// The type of the device; `file` is the only one.
    pub kind: String,
    /// For people.
    pub description: String,
    /// Accepted and shown; no other effect.
    pub local: bool,
    /// What it writes where.
    pub options: DeviceOptions,
    /// The options as they were given, for display.
    pub given: BTreeMap<String, String>,
}

/// The options of a `file` device.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(default)]
pub struct DeviceOptions {
    /// A file, `stdout` or `discard`.
    pub file_path: String,
    /// Permission bits of the file; 0600 by default.
    pub mode: u32,
    /// Whether values are written as they are; off by default.
    pub log_raw: bool,
    /// Whether accessors are hashed; on by default.
    pub hmac_accessor: bool,
    /// Written before each line.
    pub prefix: String,
}

impl Default for DeviceOptions {
    fn default() -> Self {
        Self {
            file_path: String::new(),
            mode: 0o600,
            log_raw: false,
            hmac_accessor: true,
            prefix: String::new(),
        }
    }
}

impl DeviceEntry {
    /// Reads the fields of a request to enable a device.
    pub fn parse(path: &str, data: &Data) -> Result<Self, ApiError> {
        let kind = data.required("type", "the type of the audit device must be given")?;
        if kind != "file" {
            return Err(ApiError::invalid(format!("unknown audit device type {kind:?}; supported: file")));
        }
        Ok(Self {
            path: format!("{}/", path.trim_matches('/')),
            kind,
            description: data.string("description")?.unwrap_or_default(),
            local: data.bool("local")?.unwrap_or_default(),
            options: DeviceOptions::parse(&data.object("options")?.unwrap_or_default())?,
            given: data.string_map("options")?.unwrap_or_default(),
        })
    }
}

impl DeviceOptions {
    fn parse(data: &Data) -> Result<Self, ApiError> {
        let file_path = data.string("file_path")?.or(data.string("path")?).filter(|p| !p.is_empty());
        let file_path = file_path.ok_or_else(|| ApiError::invalid("file_path is required"))?;
        if data.string("format")?.is_some_and(|format| format != "json") {
            return Err(ApiError::invalid("the only format of audit entries is json"));
        }
        let mode = match data.string("mode")?.filter(|mode| !mode.is_empty()) {
            None => 0o600,
            Some(text) => u32::from_str_radix(&text, 8)
                .ok()
                .filter(|mode| *mode <= 0o777)
                .ok_or_else(|| ApiError::invalid(format!("mode {text:?} is not an octal file mode")))?,
        };
        Ok(Self {
            file_path,
            // The mode 0000 stands for the default in other implementations.
            mode: if mode == 0 { 0o600 } else { mode },
            log_raw: data.bool("log_raw")?.unwrap_or(false),
            hmac_accessor: data.bool("hmac_accessor")?.unwrap_or(true),
            prefix: data.string("prefix")?.unwrap_or_default(),
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn parse(value: Value) -> Result<DeviceEntry, ApiError> {
        DeviceEntry::parse("main/", &Data::new(value.as_object().unwrap().clone()))
    }

    #[test]
    fn options_come_as_text_or_as_values() {
        let options = json!({"file_path": "/a", "mode": "0640", "log_raw": "true", "hmac_accessor": false});
        let entry = parse(json!({"type": "file", "options": options})).unwrap();
        assert_eq!((entry.path.as_str(), entry.options.mode), ("main/", 0o640));
        assert!(entry.options.log_raw && !entry.options.hmac_accessor);
        assert_eq!(entry.given.get("log_raw").unwrap(), "true");
    }

    #[test]
    fn what_no_device_can_do_is_refused() {
        for bad in [
            json!({}),
            json!({"type": "syslog"}),
            json!({"type": "file"}),
            json!({"type": "file", "options": {"file_path": "/a", "mode": "9"}}),
            json!({"type": "file", "options": {"file_path": "/a", "format": "jsonx"}}),
        ] {
            assert_eq!(parse(bad.clone()).unwrap_err().status(), 400, "{bad}");
        }
    }
}
