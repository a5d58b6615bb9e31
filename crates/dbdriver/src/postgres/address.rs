//! Reads connection URLs and `key=value` texts the way other PostgreSQL clients do.
//!
//! The client library knows neither `verify-ca` nor certificate files, so what concerns TLS is taken out here.

use std::str::FromStr;

use secrecy::{ExposeSecret, SecretString};
use tokio_postgres::Config;

use crate::config::{DriverConfig, percent_decode, percent_encode};
use crate::error::DriverError;

/// The `sslmode` values of PostgreSQL.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum SslMode {
    Disable,
    Prefer,
    Require,
    VerifyCa,
    VerifyFull,
}

/// What a connection URL says.
#[derive(Debug)]
pub(super) struct Address {
    pub(super) config: Config,
    pub(super) sslmode: Option<SslMode>,
    /// Files named by `sslrootcert`, `sslcert` and `sslkey`.
    pub(super) root_file: Option<String>,
    pub(super) certificate_file: Option<String>,
    pub(super) key_file: Option<String>,
}

impl Address {
    /// The address of `config` with its placeholders filled in.
    pub(super) fn of(config: &DriverConfig) -> Result<Self, DriverError> {
        let url = rendered(config);
        let text = url.expose_secret();
        if is_url(text) { Self::from_url(text) } else { Self::from_pairs(text) }
    }

    fn from_url(url: &str) -> Result<Self, DriverError> {
        let (base, query) = url.split_once('?').unwrap_or((url, ""));
        let mut tls = Vec::new();
        let mut kept = Vec::new();
        for pair in query.split('&').filter(|p| !p.is_empty()) {
            match pair.split_once('=') {
                Some((key, value)) if is_ours(key) => tls.push((key.to_owned(), percent_decode(value))),
                _ => kept.push(pair),
            }
        }
        let rest = SecretString::from(format!("{base}?{}", kept.join("&")));
        Self::assemble(rest.expose_secret().trim_end_matches('?'), tls)
    }

    fn from_pairs(text: &str) -> Result<Self, DriverError> {
        let mut tls = Vec::new();
        let mut kept = String::new();
        for (key, value) in pairs(text)? {
            if is_ours(&key) {
                tls.push((key, value));
            } else {
                let value = value.replace('\\', "\\\\").replace('\'', "\\'");
                kept.push_str(&format!("{key}='{value}' "));
            }
        }
        Self::assemble(&kept, tls)
    }

    fn assemble(text: &str, tls: Vec<(String, String)>) -> Result<Self, DriverError> {
        let config = Config::from_str(text).map_err(|e| {
            DriverError::invalid(format!("connection_url cannot be understood: {}", cause(&e)))
        })?;
        let mut address =
            Self { config, sslmode: None, root_file: None, certificate_file: None, key_file: None };
        for (key, value) in tls {
            match key.as_str() {
                "sslmode" => address.sslmode = Some(sslmode(&value)?),
                "sslrootcert" => address.root_file = Some(value).filter(|v| v != "system"),
                "sslcert" => address.certificate_file = Some(value),
                "sslkey" => address.key_file = Some(value),
                _ => {}
            }
        }
        Ok(address)
    }
}

fn cause(error: &tokio_postgres::Error) -> String {
    std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string)
}

/// What is taken out of the text: what concerns TLS, and what only other clients know.
fn is_ours(key: &str) -> bool {
    matches!(
        key,
        "sslmode"
            | "sslrootcert"
            | "sslcert"
            | "sslkey"
            | "sslpassword"
            | "sslsni"
            | "sslcrl"
            | "sslcrldir"
            | "sslcompression"
            | "gssencmode"
            | "krbsrvname"
            | "statement_cache_capacity"
            | "default_query_exec_mode"
            | "pool_max_conns"
            | "pool_min_conns"
            | "binary_parameters"
            | "fallback_application_name"
    )
}

fn sslmode(value: &str) -> Result<SslMode, DriverError> {
    match value {
        "disable" => Ok(SslMode::Disable),
        "allow" | "prefer" => Ok(SslMode::Prefer),
        "require" => Ok(SslMode::Require),
        "verify-ca" => Ok(SslMode::VerifyCa),
        "verify-full" => Ok(SslMode::VerifyFull),
        other => Err(DriverError::invalid(format!("sslmode \"{other}\" is not supported"))),
    }
}

fn is_url(text: &str) -> bool {
    text.starts_with("postgres://") || text.starts_with("postgresql://")
}

/// The URL with user name and password in it, in the encoding that its form needs.
fn rendered(config: &DriverConfig) -> SecretString {
    let template = config.connection_url.expose_secret();
    let encode = |text: &str| {
        if config.disable_escaping {
            text.to_owned()
        } else if is_url(template) {
            percent_encode(text)
        } else {
            escape_pair(text)
        }
    };
    let username = encode(&config.username);
    let password = SecretString::from(encode(config.password.expose_secret()));
    let mut parts = template.split("{{password}}").map(|part| part.replace("{{username}}", &username));
    let mut out = parts.next().unwrap_or_default();
    for part in parts {
        out.push_str(password.expose_secret());
        out.push_str(&part);
    }
    out.into()
}

/// Escapes for a value that may stand in quotes or not.
fn escape_pair(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_whitespace() || matches!(c, '\'' | '\\') {
            out.push('\\');
        }
        out.push(c);
    }
    out
}

fn pairs(text: &str) -> Result<Vec<(String, String)>, DriverError> {
    let broken = || DriverError::invalid("connection_url is neither a URL nor a list of key=value");
    let mut out = Vec::new();
    let mut chars = text.chars().peekable();
    loop {
        while chars.next_if(|c| c.is_whitespace()).is_some() {}
        if chars.peek().is_none() {
            return Ok(out);
        }
        let mut key = String::new();
        while let Some(c) = chars.next_if(|c| !c.is_whitespace() && *c != '=') {
            key.push(c);
        }
        while chars.next_if(|c| c.is_whitespace()).is_some() {}
        if chars.next() != Some('=') || key.is_empty() {
            return Err(broken());
        }
        while chars.next_if(|c| c.is_whitespace()).is_some() {}
        let quoted = chars.next_if_eq(&'\'').is_some();
        let mut value = String::new();
        loop {
            match chars.next() {
                Some('\\') => value.extend(chars.next()),
                Some('\'') if quoted => break,
                Some(c) if !quoted && c.is_whitespace() => break,
                Some(c) => value.push(c),
                None if quoted => return Err(broken()),
                None => break,
            }
        }
        out.push((key, value));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::PluginName;
    use tokio_postgres::config::Host;

    fn address(url: &str, username: &str, password: &str) -> Address {
        let mut config = DriverConfig::new(PluginName::Postgres, url);
        config.username = username.to_owned();
        config.password = password.to_owned().into();
        Address::of(&config).unwrap()
    }

    #[test]
    fn urls_are_percent_encoded() {
        let a = address(
            "postgresql://{{username}}:{{password}}@h:6543/db?sslmode=verify-ca&application_name=x",
            "a@b",
            "p:/?#%'",
        );
        assert_eq!(a.config.get_user(), Some("a@b"));
        assert_eq!(a.config.get_password(), Some("p:/?#%'".as_bytes()));
        assert_eq!(a.config.get_hosts(), [Host::Tcp("h".to_owned())]);
        assert_eq!((a.config.get_ports(), a.sslmode), (&[6543][..], Some(SslMode::VerifyCa)));
        assert_eq!(a.config.get_application_name(), Some("x"));
    }

    #[test]
    fn disable_escaping_takes_values_as_they_are() {
        let mut config = DriverConfig::new(PluginName::Postgres, "postgres://{{username}}:{{password}}@h/db");
        config.username = "u".to_owned();
        config.password = "p%40q".to_owned().into();
        assert_eq!(
            Address::of(&config).unwrap().config.get_password(),
            Some("p%2540q".replace("%25", "%").as_bytes())
        );
        config.disable_escaping = true;
        assert_eq!(Address::of(&config).unwrap().config.get_password(), Some("p@q".as_bytes()));
    }

    #[test]
    fn key_value_texts_in_and_out_of_quotes() {
        for text in [
            "host=h user={{username}} password={{password}} sslmode=disable",
            "host = h user='{{username}}' password='{{password}}' sslmode='disable'",
        ] {
            let a = address(text, "a b", r"it's \ x");
            assert_eq!(a.config.get_user(), Some("a b"), "{text}");
            assert_eq!(a.config.get_password(), Some(r"it's \ x".as_bytes()), "{text}");
            assert_eq!(a.sslmode, Some(SslMode::Disable));
        }
    }

    #[test]
    fn nonsense_is_refused_without_showing_it() {
        for url in [
            "postgres://h:notaport/db",
            "host",
            "host='x",
            "nonsense=1 password=secretsecret",
            "postgres://h/db?sslmode=maybe",
        ] {
            let e = Address::of(&DriverConfig::new(PluginName::Postgres, url)).err().unwrap();
            assert!(!e.client_text().contains("secretsecret"), "{e}");
        }
    }
}
