//! Finds the password in a connection URL, in each of the forms that URLs are written in.

use std::fmt::Write as _;
use std::ops::Range;

const MASK: &str = "*****";

/// The URL with its password, if it holds one, replaced.
pub(super) fn masked(url: &str) -> String {
    let mut out = url.to_owned();
    // From the end, so that earlier ranges stay true.
    for range in password_ranges(url).into_iter().rev() {
        if out.get(range.clone()).is_some() {
            out.replace_range(range, MASK);
        }
    }
    out
}

/// The password that the URL holds; a placeholder is none.
pub(super) fn password_in_url(url: &str) -> Option<String> {
    password_ranges(url).into_iter().next().and_then(|range| url.get(range)).map(str::to_owned)
}

fn password_ranges(url: &str) -> Vec<Range<usize>> {
    let mut found = match url.find("://") {
        Some(at) => in_uri(url, at + 3),
        None if url.contains('@') && !looks_like_pairs(url) => in_go_dsn(url),
        None => in_pairs(url),
    };
    found.retain(|range| {
        url.get(range.clone()).is_some_and(|text| !text.is_empty() && text.trim() != "{{password}}")
    });
    found
}

fn in_uri(url: &str, from: usize) -> Vec<Range<usize>> {
    let rest = url.get(from..).unwrap_or_default();
    // A password that was not encoded may hold a slash; the last `@` before the query ends it.
    let authority_end = rest.find('?').unwrap_or(rest.len());
    let mut found = Vec::new();
    if let Some(at) = rest.get(..authority_end).and_then(|a| a.rfind('@'))
        && let Some(colon) = rest.get(..at).and_then(|user| user.find(':'))
    {
        found.push(from + colon + 1..from + at);
    }
    let mut offset = authority_end + 1;
    for pair in rest.get(offset..).unwrap_or_default().split('&') {
        if let Some((key, value)) = pair.split_once('=')
            && matches!(key.to_ascii_lowercase().as_str(), "password" | "sslpassword")
        {
            let start = from + offset + key.len() + 1;
            found.push(start..start + value.len());
        }
        offset += pair.len() + 1;
    }
    found
}

fn in_go_dsn(url: &str) -> Vec<Range<usize>> {
    let address_end = url.rfind('/').unwrap_or(url.len());
    let Some(at) = url.get(..address_end).and_then(|s| s.rfind('@')) else { return Vec::new() };
    url.get(..at).and_then(|user| user.find(':')).map(|colon| colon + 1..at).into_iter().collect()
}

fn looks_like_pairs(url: &str) -> bool {
    let rest = url.trim_start().trim_start_matches(|c: char| c.is_ascii_lowercase() || c == '_');
    rest.len() < url.len() && rest.trim_start().starts_with('=')
}

fn in_pairs(url: &str) -> Vec<Range<usize>> {
    let mut found = Vec::new();
    for key in ["password", "sslpassword"] {
        let mut from = 0;
        while let Some(at) = url.get(from..).and_then(|rest| rest.find(key)).map(|at| at + from) {
            from = at + key.len();
            let starts_word = url.get(..at).is_some_and(|b| b.is_empty() || b.ends_with(char::is_whitespace));
            let after = url.get(from..).unwrap_or_default();
            if let Some(value) = after.trim_start().strip_prefix('=').map(str::trim_start)
                && starts_word
            {
                let start = url.len() - value.len();
                found.push(value_range(value, start));
            }
        }
    }
    found.sort_by_key(|range| range.start);
    found
}

fn value_range(value: &str, start: usize) -> Range<usize> {
    let quoted = value.starts_with('\'');
    let skip = usize::from(quoted);
    let mut escaped = false;
    let inner = value.get(skip..).unwrap_or_default();
    let end = inner.find(|c: char| {
        if std::mem::take(&mut escaped) {
            return false;
        }
        escaped = c == '\\';
        if quoted { c == '\'' } else { c.is_whitespace() }
    });
    start + skip..start + skip + end.unwrap_or(inner.len())
}

/// Percent-encodes everything but letters, digits and `-._~`.
pub(crate) fn percent_encode(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            out.push(char::from(byte));
        } else {
            // Writing to a string cannot fail.
            let _ = write!(out, "%{byte:02X}");
        }
    }
    out
}

/// Undoes percent-encoding; what is no valid escape stays as it is.
pub(crate) fn percent_decode(text: &str) -> String {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let escape = (*first == b'%').then(|| after.get(..2)).flatten();
        let decoded = escape.and_then(|hex| hex::decode(hex).ok()).and_then(|bytes| bytes.first().copied());
        match decoded {
            Some(byte) => {
                out.push(byte);
                rest = after.get(2..).unwrap_or_default();
            }
            None => {
                out.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_are_found_in_every_form() {
        for (url, shown) in [
            ("postgres://u:s3cret@h:5432/db?sslmode=require", "postgres://u:*****@h:5432/db?sslmode=require"),
            ("postgresql://u:a/b@h/db", "postgresql://u:*****@h/db"),
            (
                "postgres://u@h/db?password=x&sslpassword=y",
                "postgres://u@h/db?password=*****&sslpassword=*****",
            ),
            (
                "root:p@ss:w@tcp(127.0.0.1:3306)/mysql?tls=true",
                "root:*****@tcp(127.0.0.1:3306)/mysql?tls=true",
            ),
            ("mysql://root:pw@h:3306/mysql", "mysql://root:*****@h:3306/mysql"),
            ("host=h user=u password='a\\' b' dbname=d", "host=h user=u password='*****' dbname=d"),
            ("password = a@b host=h", "password = ***** host=h"),
        ] {
            assert_eq!(masked(url), shown);
            assert!(password_in_url(url).is_some(), "{url}");
        }
    }

    #[test]
    fn placeholders_and_urls_without_password_stay() {
        for url in [
            "postgres://{{username}}:{{password}}@h/db",
            "{{username}}:{{password}}@tcp(127.0.0.1:3306)/",
            "host=h user={{username}} password={{password}}",
            "postgres://h/db",
            "host=h sslmode=disable",
            "",
        ] {
            assert_eq!(masked(url), url);
            assert_eq!(password_in_url(url), None);
        }
    }

    #[test]
    fn percent_encoding_round_trips() {
        for text in ["a b", "p@ss/%41:?#", "ünï", "%", "%zz"] {
            assert_eq!(percent_decode(&percent_encode(text)), text);
        }
        assert_eq!(percent_encode("a@b c"), "a%40b%20c");
    }
}
