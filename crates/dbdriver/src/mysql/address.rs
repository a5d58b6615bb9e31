//! Reads MySQL addresses: `user:password@protocol(address)/database?options` as Go programs write it, and URLs.

use secrecy::{ExposeSecret, SecretString};

use crate::config::{DriverConfig, percent_decode, percent_encode};
use crate::error::DriverError;

const DEFAULT_PORT: u16 = 3306;

/// How much TLS the address asks for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum TlsWish {
    /// None.
    Off,
    /// If the server can; its certificate is not checked.
    Preferred,
    /// Yes, with any certificate.
    SkipVerify,
    /// Yes, with the certificate checked.
    Verified,
}

/// Where the server listens.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum Place {
    Tcp { host: String, port: u16 },
    Socket(String),
}

/// What an address says.
#[derive(Debug)]
pub(super) struct Address {
    pub(super) user: Option<String>,
    pub(super) password: Option<SecretString>,
    pub(super) place: Place,
    pub(super) database: Option<String>,
    pub(super) tls: TlsWish,
    /// Session variables to set, as the rest of a `SET` statement.
    pub(super) session: Vec<String>,
}

impl Address {
    /// The address of `config` with its placeholders filled in.
    pub(super) fn of(config: &DriverConfig) -> Result<Self, DriverError> {
        let template = config.connection_url.expose_secret();
        if let Some(rest) = template.strip_prefix("mysql://").or_else(|| template.strip_prefix("mariadb://"))
        {
            return Self::from_url(rest, config);
        }
        Self::from_dsn(template, config)
    }

    /// The parts are taken apart before values go in, so no value can be taken for a separator.
    fn from_dsn(template: &str, config: &DriverConfig) -> Result<Self, DriverError> {
        let broken = || {
            DriverError::invalid("connection_url is not of the form user:password@tcp(host:port)/database")
        };
        let (before, after) = template.rsplit_once('/').ok_or_else(broken)?;
        let (user, network) = before.rsplit_once('@').map_or((None, before), |(user, net)| (Some(user), net));
        let (user, password) = match user.map(|u| u.split_once(':').unwrap_or((u, ""))) {
            Some((user, password)) => (Some(fill(user, config)), Some(fill(password, config))),
            None => (None, None),
        };
        let (protocol, address) = match network.split_once('(') {
            Some((protocol, rest)) => (protocol, rest.strip_suffix(')').ok_or_else(broken)?),
            None => (network, ""),
        };
        let place = match protocol {
            "" | "tcp" | "tcp4" | "tcp6" => tcp(address)?,
            "unix" if !address.is_empty() => Place::Socket(address.to_owned()),
            _ => return Err(broken()),
        };
        let (database, options) = after.split_once('?').unwrap_or((after, ""));
        let mut out = Self {
            user: user.filter(|u| !u.is_empty()),
            password: password.filter(|p| !p.is_empty()).map(Into::into),
            place,
            database: Some(percent_decode(database)).filter(|d| !d.is_empty()),
            tls: TlsWish::Off,
            session: Vec::new(),
        };
        out.options(options)?;
        Ok(out)
    }

    fn from_url(template: &str, config: &DriverConfig) -> Result<Self, DriverError> {
        let (rest, options) = template.split_once('?').unwrap_or((template, ""));
        let (user, rest) = rest.rsplit_once('@').map_or((None, rest), |(user, rest)| (Some(user), rest));
        let (address, database) = rest.split_once('/').unwrap_or((rest, ""));
        let value = |part: &str| -> String {
            if config.disable_escaping {
                fill(part, config)
            } else {
                percent_decode(&fill_encoded(part, config))
            }
        };
        let (user, password) = user.map_or((None, None), |user| match user.split_once(':') {
            Some((user, password)) => (Some(value(user)), Some(value(password))),
            None => (Some(value(user)), None),
        });
        let mut out = Self {
            user: user.filter(|u| !u.is_empty()),
            password: password.filter(|p| !p.is_empty()).map(Into::into),
            place: tcp(address)?,
            database: Some(percent_decode(database)).filter(|d| !d.is_empty()),
            tls: TlsWish::Off,
            session: Vec::new(),
        };
        out.options(options)?;
        Ok(out)
    }

    fn options(&mut self, options: &str) -> Result<(), DriverError> {
        for pair in options.split('&').filter(|p| !p.is_empty()) {
            let Some((key, value)) = pair.split_once('=') else { continue };
            let value = percent_decode(value);
            match key {
                "tls" | "ssl-mode" | "sslmode" => self.tls = tls_wish(&value),
                "require_ssl" if value == "true" => self.tls = TlsWish::Verified,
                _ if is_for_the_client(key) => {}
                _ if key.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') => {
                    self.session.push(session_variable(key, &value)?);
                }
                _ => {
                    return Err(DriverError::invalid(format!(
                        "option \"{key}\" of connection_url is not supported"
                    )));
                }
            }
        }
        Ok(())
    }
}

fn tls_wish(value: &str) -> TlsWish {
    match value.to_ascii_lowercase().as_str() {
        "false" | "0" | "disabled" | "disable" | "" => TlsWish::Off,
        "preferred" | "prefer" => TlsWish::Preferred,
        "skip-verify" | "required" | "require" => TlsWish::SkipVerify,
        _ => TlsWish::Verified,
    }
}

/// What steers other client libraries and means nothing to the server.
fn is_for_the_client(key: &str) -> bool {
    const KNOWN: [&str; 24] = [
        "allowAllFiles",
        "allowCleartextPasswords",
        "allowFallbackToPlaintext",
        "allowNativePasswords",
        "allowOldPasswords",
        "checkConnLiveness",
        "clientFoundRows",
        "columnsWithAlias",
        "collation",
        "charset",
        "compress",
        "connectionAttributes",
        "interpolateParams",
        "loc",
        "maxAllowedPacket",
        "multiStatements",
        "parseTime",
        "readTimeout",
        "rejectReadOnly",
        "serverPubKey",
        "timeTruncate",
        "timeout",
        "writeTimeout",
        "require_ssl",
    ];
    KNOWN.contains(&key)
}

/// Other options are session variables, which the value must not break out of.
fn session_variable(key: &str, value: &str) -> Result<String, DriverError> {
    let bare = value.strip_prefix('\'').and_then(|v| v.strip_suffix('\'')).unwrap_or(value);
    let harmless =
        |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | ',' | '-' | '.' | '+' | ':' | '/' | ' ');
    if !bare.chars().all(harmless) {
        return Err(DriverError::invalid(format!(
            "the value of option \"{key}\" of connection_url is not supported"
        )));
    }
    let number = !bare.is_empty() && bare.chars().all(|c| c.is_ascii_digit());
    Ok(if number { format!("{key} = {bare}") } else { format!("{key} = '{bare}'") })
}

fn tcp(address: &str) -> Result<Place, DriverError> {
    let bad_port = || DriverError::invalid("connection_url has a port that is no port");
    let (host, port) = match address.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((host, rest)) => (host, rest.strip_prefix(':')),
        None => address.rsplit_once(':').map_or((address, None), |(host, port)| (host, Some(port))),
    };
    let port = port.map_or(Ok(DEFAULT_PORT), |p| p.parse().map_err(|_| bad_port()))?;
    let host = if host.is_empty() { "127.0.0.1" } else { host };
    Ok(Place::Tcp { host: host.to_owned(), port })
}

fn fill(template: &str, config: &DriverConfig) -> String {
    replace(template, &config.username, config.password.expose_secret())
}

fn fill_encoded(template: &str, config: &DriverConfig) -> String {
    replace(template, &percent_encode(&config.username), &percent_encode(config.password.expose_secret()))
}

fn replace(template: &str, username: &str, password: &str) -> String {
    let parts: Vec<_> =
        template.split("{{password}}").map(|part| part.replace("{{username}}", username)).collect();
    parts.join(password)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::PluginName;

    fn address(url: &str) -> Result<Address, DriverError> {
        let mut config = DriverConfig::new(PluginName::Mysql, url);
        config.username = "ro:ot@x".to_owned();
        config.password = "p@ss/w(o)rd:?&%41".to_owned().into();
        Address::of(&config)
    }

    fn tcp(host: &str, port: u16) -> Place {
        Place::Tcp { host: host.to_owned(), port }
    }

    #[test]
    fn go_style_addresses() {
        let a = address(
            "{{username}}:{{password}}@tcp(127.0.0.1:3307)/app?tls=skip-verify&parseTime=true&sql_mode=ANSI",
        )
        .unwrap();
        assert_eq!(a.user.as_deref(), Some("ro:ot@x"));
        assert_eq!(a.password.unwrap().expose_secret(), "p@ss/w(o)rd:?&%41");
        assert_eq!((a.place, a.database.as_deref()), (tcp("127.0.0.1", 3307), Some("app")));
        assert_eq!((a.tls, a.session), (TlsWish::SkipVerify, vec!["sql_mode = 'ANSI'".to_owned()]));
        assert_eq!(address("u:p@w/d@tcp([::1]:1)/").unwrap().password.unwrap().expose_secret(), "p@w/d");
        assert_eq!(address("u@tcp([::1])/").unwrap().place, tcp("::1", 3306));
        assert_eq!(
            address("u@unix(/run/my.sock)/db").unwrap().place,
            Place::Socket("/run/my.sock".to_owned())
        );
        assert_eq!(address("u@/db").unwrap().place, tcp("127.0.0.1", 3306));
        assert_eq!(address("/").unwrap().user, None);
    }

    #[test]
    fn urls() {
        let a = address("mysql://{{username}}:{{password}}@db.example:3307/app?tls=true").unwrap();
        assert_eq!(a.user.as_deref(), Some("ro:ot@x"));
        assert_eq!(a.password.unwrap().expose_secret(), "p@ss/w(o)rd:?&%41");
        assert_eq!((a.place, a.tls), (tcp("db.example", 3307), TlsWish::Verified));
        assert_eq!(address("mysql://u:p%40@h").unwrap().password.unwrap().expose_secret(), "p@");
    }

    #[test]
    fn nonsense_is_refused() {
        for url in [
            "host",
            "u@pipe(x)/",
            "u@tcp(h:port)/",
            "u@tcp(h/",
            "u@tcp(h)/?sql_mode=';DROP",
            "u@tcp(h)/?a-b=c",
        ] {
            assert!(address(url).is_err(), "{url}");
        }
    }
}
