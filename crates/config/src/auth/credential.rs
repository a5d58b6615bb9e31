//! The credential of an `Authorization` header. Nothing here copies it into an error.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use http::header::AUTHORIZATION;
use http::{HeaderMap, HeaderName};
use zeroize::Zeroizing;

use super::rejection::Reason;

/// What stands in the header, its scheme word in any case.
#[derive(Clone, Copy, Eq, PartialEq)]
pub(super) enum Authorization<'a> {
    /// The text after `Bearer`.
    Bearer(&'a [u8]),
    /// The text after `Basic`.
    Basic(&'a [u8]),
    /// Another scheme, or no header.
    Absent,
}

/// A user and a password.
pub(super) struct UserPassword {
    bytes: Zeroizing<Vec<u8>>,
    colon: usize,
}

impl<'a> Authorization<'a> {
    /// Reads the one header. More than one is refused whatever they say: who reads another one than we do would see
    /// another caller.
    pub(super) fn of(headers: &'a HeaderMap) -> Result<Self, Reason> {
        let mut values = headers.get_all(AUTHORIZATION).iter();
        let Some(value) = values.next() else { return Ok(Self::Absent) };
        if values.next().is_some() {
            return Err(Reason::Ambiguous);
        }
        let value = value.as_bytes().trim_ascii();
        let end = value.iter().position(|byte| *byte == b' ').unwrap_or(value.len());
        let (scheme, rest) = value.split_at_checked(end).unwrap_or((value, &[]));
        let rest = rest.trim_ascii();
        Ok(if scheme.eq_ignore_ascii_case(b"bearer") {
            Self::Bearer(rest)
        } else if scheme.eq_ignore_ascii_case(b"basic") {
            Self::Basic(rest)
        } else {
            Self::Absent
        })
    }

    /// The bearer token.
    pub(super) fn bearer(self) -> Result<&'a [u8], Reason> {
        match self {
            Self::Bearer([]) => Err(Reason::Empty),
            Self::Bearer(token) => Ok(token),
            Self::Basic(_) | Self::Absent => Err(Reason::NoCredential),
        }
    }

    /// User and password.
    pub(super) fn basic(self) -> Result<UserPassword, Reason> {
        let Self::Basic(text) = self else { return Err(Reason::NoCredential) };
        if text.is_empty() {
            return Err(Reason::Empty);
        }
        let bytes = Zeroizing::new(BASE64_STANDARD.decode(text).map_err(|_| Reason::Malformed)?);
        let colon = bytes.iter().position(|byte| *byte == b':').ok_or(Reason::Malformed)?;
        let both = UserPassword { bytes, colon };
        if both.password().is_empty() { Err(Reason::Empty) } else { Ok(both) }
    }
}

impl UserPassword {
    pub(super) fn user(&self) -> &[u8] {
        self.bytes.get(..self.colon).unwrap_or_default()
    }

    pub(super) fn password(&self) -> &[u8] {
        self.bytes.get(self.colon + 1..).unwrap_or_default()
    }
}

/// The value of a header that must come once.
pub(super) fn only<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Result<&'a [u8], Reason> {
    let mut values = headers.get_all(name).iter();
    let value = values.next().ok_or(Reason::NoCredential)?.as_bytes().trim_ascii();
    match (values.next(), value) {
        (Some(_), _) => Err(Reason::Ambiguous),
        (None, []) => Err(Reason::Empty),
        (None, value) => Ok(value),
    }
}

#[cfg(test)]
mod tests {
    use holdfast_tests::fuzz::fuzz;
    use http::HeaderValue;

    use super::*;

    fn headers(values: &[&str]) -> HeaderMap {
        values.iter().map(|value| (AUTHORIZATION, HeaderValue::from_str(value).unwrap())).collect()
    }

    #[test]
    fn the_scheme_word_counts_in_any_case_and_only_as_a_word() {
        for (value, bearer) in [
            ("Bearer abc", Ok(&b"abc"[..])),
            ("bearer abc", Ok(b"abc")),
            ("BEARER   abc  ", Ok(b"abc")),
            ("Bearer", Err(Reason::Empty)),
            ("Bearer ", Err(Reason::Empty)),
            ("Bearerabc", Err(Reason::NoCredential)),
            ("abc", Err(Reason::NoCredential)),
            ("", Err(Reason::NoCredential)),
            ("Basic YTpi", Err(Reason::NoCredential)),
        ] {
            let headers = headers(&[value]);
            assert_eq!(Authorization::of(&headers).and_then(Authorization::bearer), bearer, "{value}");
        }
    }

    #[test]
    fn two_headers_are_refused_even_when_they_are_alike() {
        let headers = headers(&["Bearer abc", "Bearer abc"]);
        assert!(matches!(Authorization::of(&headers), Err(Reason::Ambiguous)));
    }

    #[test]
    fn a_password_may_hold_colons_and_a_user_may_be_empty() {
        for (text, both) in [
            ("a:b", Ok(("a", "b"))),
            ("a:b:c", Ok(("a", "b:c"))),
            (":b", Ok(("", "b"))),
            ("a:", Err(Reason::Empty)),
            ("a", Err(Reason::Malformed)),
        ] {
            let headers = headers(&[&format!("bAsIc {}", BASE64_STANDARD.encode(text))]);
            let read = Authorization::of(&headers).and_then(Authorization::basic);
            let read = read.as_ref().map(|read| (read.user(), read.password())).map_err(|reason| *reason);
            assert_eq!(read, both.map(|(user, password)| (user.as_bytes(), password.as_bytes())), "{text}");
        }
        let headers = headers(&["Basic !!!"]);
        assert_eq!(Authorization::of(&headers).and_then(Authorization::basic).err(), Some(Reason::Malformed));
    }

    #[test]
    fn a_header_of_its_own_must_come_once() {
        let name = HeaderName::from_static("x-api-key");
        let with = |values: &[&'static str]| -> HeaderMap {
            values.iter().map(|value| (name.clone(), HeaderValue::from_static(value))).collect()
        };
        assert_eq!(only(&with(&[]), &name), Err(Reason::NoCredential));
        assert_eq!(only(&with(&["", "a"]), &name), Err(Reason::Ambiguous));
        assert_eq!(only(&with(&[" "]), &name), Err(Reason::Empty));
        assert_eq!(only(&with(&[" a "]), &name), Ok(&b"a"[..]));
    }

    #[test]
    fn fuzz_authorization_headers() {
        let basic = format!("Basic {}", BASE64_STANDARD.encode("user:password"));
        let seeds: [&[u8]; 4] = [b"Bearer abc", b"bearer", basic.as_bytes(), b"Digest username=\"a\""];
        fuzz(&seeds, &["Bearer ", "Basic ", "\t", " ", "==", "YTpi", ":"], |input| {
            let Ok(value) = HeaderValue::from_bytes(input) else { return "no header".to_owned() };
            let mut headers = HeaderMap::new();
            headers.append(AUTHORIZATION, value);
            let read = Authorization::of(&headers).unwrap();
            let basic = read.basic();
            let shape = basic.as_ref().map(|both| (both.user().len().min(2), both.password().len().min(2)));
            format!("{:?} {shape:?}", read.bearer().map(|token| token.len().min(2)))
        });
    }
}
