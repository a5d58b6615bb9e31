//! Writing a configuration, and reading it back without its secrets.

use secrecy::{ExposeSecret, SecretString};
use serde_json::{Map, Value, json};

use super::fields::Fields;
use super::{
    ConfigError, DEFAULT_OPEN, DriverConfig, MAX_OPEN, MAX_OPERATION_TIMEOUT, PasswordAuthentication,
    PluginName, mask,
};
use crate::names::UsernameSource;

/// The fields of a connection that a client may write.
pub const FIELDS: [&str; 25] = [
    "plugin_name",
    "plugin_version",
    "connection_url",
    "username",
    "password",
    "disable_escaping",
    "verify_connection",
    "spoke_name",
    "password_authentication",
    "max_open_connections",
    "max_idle_connections",
    "max_connection_lifetime",
    "operation_timeout",
    "tls_ca",
    "tls_certificate",
    "private_key",
    "tls_certificate_key",
    "tls_server_name",
    "tls_skip_verify",
    "allowed_roles",
    "root_credentials_rotate_statements",
    "root_rotation_statements",
    "password_policy",
    "username_template",
    "terminate_sessions_on_revoke",
];

impl DriverConfig {
    /// Merges what a client wrote with what is stored; fields that it did not write keep their values.
    ///
    /// # Errors
    /// When a value is out of bounds or missing; nothing is changed then.
    pub fn merged(stored: Option<&Self>, written: &Map<String, Value>) -> Result<Self, ConfigError> {
        let fields = Fields(written);
        let plugin = fields.text("plugin_name")?.filter(|name| !name.is_empty());
        let mut config = match (stored, plugin) {
            (Some(stored), None) => stored.clone(),
            (Some(stored), Some(name)) => Self { plugin_name: PluginName::parse(&name)?, ..stored.clone() },
            (None, Some(name)) => Self::new(PluginName::parse(&name)?, ""),
            (None, None) => return Err(ConfigError("empty plugin name".to_owned())),
        };
        config.merge_connection(&fields)?;
        config.merge_limits(&fields)?;
        config.merge_tls(&fields)?;
        config.merge_roles(&fields)?;
        config.check()?;
        Ok(config)
    }

    fn merge_connection(&mut self, fields: &Fields<'_>) -> Result<(), ConfigError> {
        if let Some(url) = fields.text("connection_url")? {
            // Whoever reads a configuration and writes it back must not save the mask as the password.
            if url != mask::masked(self.connection_url.expose_secret()) {
                self.connection_url = url.into();
            }
        }
        set(&mut self.username, fields.text("username")?);
        set_secret(&mut self.password, fields.text("password")?);
        set(&mut self.disable_escaping, fields.flag("disable_escaping")?);
        set(&mut self.verify_connection, fields.flag("verify_connection")?);
        set(&mut self.spoke_name, fields.text("spoke_name")?);
        if let Some(way) = fields.text("password_authentication")? {
            self.password_authentication = match way.as_str() {
                "" | "password" => PasswordAuthentication::Password,
                "scram-sha-256" => PasswordAuthentication::ScramSha256,
                other => {
                    return Err(ConfigError(format!(
                        "\"{other}\" is not a valid password authentication type; supported: password, scram-sha-256"
                    )));
                }
            };
        }
        Ok(())
    }

    fn merge_limits(&mut self, fields: &Fields<'_>) -> Result<(), ConfigError> {
        if let Some(open) = fields.number("max_open_connections")? {
            self.max_open_connections = match u32::try_from(open) {
                Ok(0) => DEFAULT_OPEN,
                Ok(open) if open <= MAX_OPEN => open,
                _ => {
                    return Err(ConfigError(format!(
                        "max_open_connections must be between 0 and {MAX_OPEN}"
                    )));
                }
            };
        }
        if let Some(idle) = fields.number("max_idle_connections")? {
            self.max_idle_connections = i32::try_from(idle)
                .map_err(|_| ConfigError("max_idle_connections is out of bounds".to_owned()))?;
        }
        set(&mut self.max_connection_lifetime, fields.duration("max_connection_lifetime")?);
        if let Some(timeout) = fields.duration("operation_timeout")? {
            if timeout.as_secs() < 1 || timeout > MAX_OPERATION_TIMEOUT {
                return Err(ConfigError("operation_timeout must be between 1s and 90s".to_owned()));
            }
            self.operation_timeout = timeout;
        }
        Ok(())
    }

    fn merge_tls(&mut self, fields: &Fields<'_>) -> Result<(), ConfigError> {
        set(&mut self.tls_ca, fields.text("tls_ca")?);
        set(&mut self.tls_certificate, fields.text("tls_certificate")?);
        set_secret(&mut self.private_key, fields.text("private_key")?);
        set_secret(&mut self.tls_certificate_key, fields.text("tls_certificate_key")?);
        set(&mut self.tls_server_name, fields.text("tls_server_name")?);
        set(&mut self.tls_skip_verify, fields.flag("tls_skip_verify")?);
        Ok(())
    }

    fn merge_roles(&mut self, fields: &Fields<'_>) -> Result<(), ConfigError> {
        set(&mut self.allowed_roles, fields.names("allowed_roles")?);
        set(&mut self.root_rotation_statements, fields.list("root_credentials_rotate_statements")?);
        set(&mut self.root_rotation_statements, fields.list("root_rotation_statements")?);
        set(&mut self.password_policy, fields.text("password_policy")?);
        set(&mut self.username_template, fields.text("username_template")?);
        set(&mut self.terminate_sessions_on_revoke, fields.flag("terminate_sessions_on_revoke")?);
        Ok(())
    }

    fn check(&self) -> Result<(), ConfigError> {
        let problem = |text: &str| Err(ConfigError(text.to_owned()));
        let url = self.connection_url.expose_secret();
        if url.trim().is_empty() {
            return problem("connection_url cannot be empty");
        }
        if self.plugin_name.is_remote() && self.spoke_name.is_empty() {
            return problem("spoke_name is required for remote plugins");
        }
        if !self.plugin_name.is_remote() && !self.spoke_name.is_empty() {
            return problem("spoke_name is only for remote plugins");
        }
        if url.contains("{{username}}") && self.username.is_empty() {
            return problem("connection_url uses {{username}} but username is not set");
        }
        UsernameSource::new(self.plugin_name.dialect(), &self.username_template)
            .map_err(|e| ConfigError(format!("unable to initialize username template: {e}")))?;
        Ok(())
    }

    /// What a reader of the configuration sees: never a password or key, and the URL with its password masked.
    pub fn view(&self) -> Map<String, Value> {
        let mut view = Map::new();
        view.insert("plugin_name".to_owned(), json!(self.plugin_name.as_str()));
        view.insert("plugin_version".to_owned(), json!(""));
        view.insert("allowed_roles".to_owned(), json!(self.allowed_roles));
        view.insert("root_credentials_rotate_statements".to_owned(), json!(self.root_rotation_statements));
        view.insert("password_policy".to_owned(), json!(self.password_policy));
        view.insert("verify_connection".to_owned(), json!(self.verify_connection));
        view.insert("connection_details".to_owned(), Value::Object(self.details()));
        view
    }

    fn details(&self) -> Map<String, Value> {
        let mut details = Map::new();
        let mut put = |name: &str, value: Value| {
            let unset = matches!(&value, Value::String(s) if s.is_empty()) || value == Value::Bool(false);
            if !unset {
                details.insert(name.to_owned(), value);
            }
        };
        put("connection_url", json!(mask::masked(self.connection_url.expose_secret())));
        put("username", json!(self.username));
        put("max_open_connections", json!(self.max_open_connections));
        put("max_idle_connections", json!(self.max_idle_connections));
        put("max_connection_lifetime", json!(format!("{}s", self.max_connection_lifetime.as_secs())));
        put("username_template", json!(self.username_template));
        put("password_authentication", json!(self.password_authentication));
        put("disable_escaping", json!(self.disable_escaping));
        put("tls_ca", json!(self.tls_ca));
        put("tls_certificate", json!(self.tls_certificate));
        put("tls_server_name", json!(self.tls_server_name));
        put("tls_skip_verify", json!(self.tls_skip_verify));
        put("operation_timeout", json!(self.operation_timeout.as_secs()));
        put("terminate_sessions_on_revoke", json!(self.terminate_sessions_on_revoke));
        put("spoke_name", json!(self.spoke_name));
        details
    }
}

fn set<T>(target: &mut T, written: Option<T>) {
    if let Some(value) = written {
        *target = value;
    }
}

fn set_secret(target: &mut SecretString, written: Option<String>) {
    if let Some(value) = written {
        *target = value.into();
    }
}
