//! Where the server may listen.

use std::net::IpAddr;

use super::report::Report;
use crate::config::{ClientAuth, ConfigSettings, ListenerSettings};

const TCP_KEYS: [&str; 3] = ["addr", "tls", "insecure_no_tls"];
const UNIX_KEYS: [&str; 5] = ["path", "mode", "owner", "group", "takeover"];

/// Checks all listeners, the extra ones too.
pub fn check(settings: &ConfigSettings, report: &mut Report<'_>) {
    if settings.listener.is_empty() && !report.is_wrong(&["listener"]) {
        report.error(&["listener"], "no listeners");
    }
    for (index, listener) in settings.listener.iter().enumerate() {
        let index = index.to_string();
        let at = ["listener", &index];
        match listener.kind.as_str() {
            "tcp" => {
                check_keys(&index, "tcp", &UNIX_KEYS, report);
                check_tcp(&at, listener, report);
            }
            "unix" => {
                check_keys(&index, "unix", &TCP_KEYS, report);
                check_unix(&at, listener, report);
            }
            "" => report.error(&at, "listener: kind is required: tcp or unix"),
            kind => {
                let text = format!("listener: unknown kind \"{}\": use tcp or unix", kind.escape_debug());
                report.error(&["listener", &index, "kind"], text);
            }
        }
    }
    for (key, extra) in [("metrics", &settings.metrics), ("probe", &settings.probe)] {
        if let Some(addr) = &extra.addr
            && host_of(addr).is_none()
        {
            report.error(&[key, "addr"], format!("{key}.addr: \"{}\" is not HOST:PORT", addr.escape_debug()));
        }
    }
}

/// A key of the other kind would have no effect.
fn check_keys(index: &str, kind: &str, others: &[&str], report: &mut Report<'_>) {
    for key in others {
        let path = ["listener", index, key];
        if report.tree().is_set(&path) {
            report.error_at_key(&path, format!("listener: {key} is not for kind \"{kind}\""));
        }
    }
}

fn check_tcp(at: &[&str; 2], listener: &ListenerSettings, report: &mut Report<'_>) {
    let [_, index] = at;
    let path = ["listener", index, "addr"];
    let Some(addr) = &listener.addr else {
        return report.error(at, "listener: addr is required for kind \"tcp\"");
    };
    let Some(host) = host_of(addr) else {
        return report.error(&path, format!("listener {}: not HOST:PORT", addr.escape_debug()));
    };
    match &listener.tls {
        None if listener.insecure_no_tls
            || is_loopback(host)
            || report.is_wrong(&["listener", index, "tls"]) => {}
        None => report.error(&path, format!("listener {addr}: TLS required (or insecure_no_tls = true)")),
        Some(tls) if tls.client_auth != ClientAuth::None && tls.client_ca.is_none() => {
            let path = ["listener", index, "tls", "client_auth"];
            report.error(&path, format!("listener {addr}: client_auth needs client_ca"));
        }
        Some(tls) if tls.client_auth == ClientAuth::None && tls.client_ca.is_some() => {
            let path = ["listener", index, "tls", "client_ca"];
            report.warning(
                &path,
                format!("listener {addr}: client_ca has no effect with client_auth = \"none\""),
            );
        }
        Some(_) => {}
    }
}

fn check_unix(at: &[&str; 2], listener: &ListenerSettings, report: &mut Report<'_>) {
    let [_, index] = at;
    if listener.path.is_none() {
        report.error(at, "listener: path is required for kind \"unix\"");
    }
    if let Some(mode) = &listener.mode
        && mode_of(mode).is_none()
    {
        let text = format!("listener: mode \"{}\" is not octal, such as 0600", mode.escape_debug());
        report.error(&["listener", index, "mode"], text);
    }
}

/// The permission bits that a text such as `0600` means.
pub fn mode_of(text: &str) -> Option<u32> {
    let digits = text.strip_prefix("0o").unwrap_or(text);
    u32::from_str_radix(digits, 8).ok().filter(|mode| *mode <= 0o777)
}

/// The host of `HOST:PORT`, without the brackets of an IPv6 address; none when the text is something else.
fn host_of(addr: &str) -> Option<&str> {
    let (host, port) = addr.rsplit_once(':')?;
    port.parse::<u16>().ok()?;
    let bare = match host.strip_prefix('[') {
        Some(rest) => rest.strip_suffix(']').filter(|host| host.parse::<std::net::Ipv6Addr>().is_ok())?,
        None if host.contains(':') => return None,
        None => host,
    };
    (!bare.is_empty() && !bare.contains(char::is_whitespace)).then_some(bare)
}

fn is_loopback(host: &str) -> bool {
    host.eq_ignore_ascii_case("localhost") || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_and_what_is_loopback() {
        for (addr, host, loopback) in [
            ("127.0.0.1:0", Some("127.0.0.1"), true),
            ("[::1]:80", Some("::1"), true),
            ("localhost:80", Some("localhost"), true),
            ("0.0.0.0:8443", Some("0.0.0.0"), false),
            ("[::]:8443", Some("::"), false),
            ("example.com:1", Some("example.com"), false),
            ("localhost.example.com:1", Some("localhost.example.com"), false),
            (":80", None, false),
            ("127.0.0.1", None, false),
            ("::1:80", None, false),
            ("[x]:80", None, false),
            ("h:65536", None, false),
            ("", None, false),
        ] {
            assert_eq!(host_of(addr), host, "{addr}");
            assert_eq!(host.is_some_and(is_loopback), loopback, "{addr}");
        }
    }

    #[test]
    fn modes_are_octal() {
        let modes = [
            ("0600", Some(0o600)),
            ("660", Some(0o660)),
            ("0o777", Some(0o777)),
            ("1777", None),
            ("rw", None),
        ];
        for (text, mode) in modes {
            assert_eq!(mode_of(text), mode, "{text}");
        }
    }
}
