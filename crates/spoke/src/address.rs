//! Addresses of hub nodes: `host:port`, an IPv6 address in brackets.

use std::fmt;
use std::net::Ipv6Addr;
use std::str::FromStr;

use rustls_pki_types::ServerName;

/// Where a hub node is dialled.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Address {
    host: String,
    port: u16,
}

/// The text is no address.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("{0:?} is not host:port; an IPv6 address stands in brackets")]
pub struct BadAddress(String);

impl Address {
    /// The host without brackets, for resolving it.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// The port.
    pub const fn port(&self) -> u16 {
        self.port
    }

    /// The name that the certificate of this address must bear.
    ///
    /// # Errors
    /// When the host can be no such name.
    pub fn server_name(&self) -> Result<ServerName<'static>, BadAddress> {
        ServerName::try_from(self.host.clone()).map_err(|_| BadAddress(self.host.clone()))
    }
}

impl FromStr for Address {
    type Err = BadAddress;

    fn from_str(text: &str) -> Result<Self, BadAddress> {
        let bad = || BadAddress(text.chars().take(256).collect());
        let (host, port) = text.trim().rsplit_once(':').ok_or_else(bad)?;
        let bracketed = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
        let host = match bracketed {
            Some(inside) => inside.parse::<Ipv6Addr>().map_err(|_| bad())?.to_string(),
            None if host.contains([':', '[', ']', '/', '@']) || host.contains(char::is_whitespace) => {
                return Err(bad());
            }
            None => host.to_owned(),
        };
        let port = port.parse().ok().filter(|port| *port != 0).ok_or_else(bad)?;
        if host.is_empty() { Err(bad()) } else { Ok(Self { host, port }) }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

/// Reads addresses, each of which may be a list with commas.
///
/// # Errors
/// For the first that is none, or when there is none at all.
pub fn parse_list<'a>(texts: impl IntoIterator<Item = &'a str>) -> Result<Vec<Address>, BadAddress> {
    let parts =
        texts.into_iter().flat_map(|text| text.split(',')).map(str::trim).filter(|part| !part.is_empty());
    let list: Vec<Address> = parts.map(str::parse).collect::<Result<_, _>>()?;
    if list.is_empty() { Err(BadAddress(String::new())) } else { Ok(list) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_addresses_of_both_kinds_are_read() {
        for (text, host, shown) in [
            ("localhost:50053", "localhost", "localhost:50053"),
            (" hub-1.example.org:1 ", "hub-1.example.org", "hub-1.example.org:1"),
            ("127.0.0.1:65535", "127.0.0.1", "127.0.0.1:65535"),
            ("[::1]:50053", "::1", "[::1]:50053"),
            ("[2001:DB8:0:0::1]:7", "2001:db8::1", "[2001:db8::1]:7"),
        ] {
            let address: Address = text.parse().unwrap();
            assert_eq!((address.host(), address.to_string().as_str()), (host, shown));
            address.server_name().unwrap();
        }
    }

    #[test]
    fn what_is_no_address_is_refused() {
        for text in [
            "",
            "hub",
            "hub:",
            ":1",
            "hub:0",
            "hub:65536",
            "::1:50053",
            "[hub]:1",
            "[::1]",
            "[]:1",
            "https://hub:1",
            "a b:1",
        ] {
            assert!(text.parse::<Address>().is_err(), "{text}");
        }
    }

    #[test]
    fn lists_may_be_repeated_and_have_commas() {
        let list = parse_list(["a:1, b:2", "[::1]:3,"]).unwrap();
        assert_eq!(list.iter().map(ToString::to_string).collect::<Vec<_>>(), ["a:1", "b:2", "[::1]:3"]);
        assert!(parse_list(["a:1,b"]).is_err());
        assert!(parse_list([" , "]).is_err());
    }
}
