//! Takes secrets out of texts that leave the driver.
//!
//! A server may quote a statement back and cut it off in the middle of a password, so a long enough beginning or end of
//! a secret is taken out as well as the whole.

use secrecy::{ExposeSecret, SecretString};

/// A beginning or end of a secret of this many characters is treated like the secret itself.
const PART: usize = 6;
const MASK: &str = "[redacted]";

/// A set of values that no text may show.
#[derive(Clone, Default)]
pub struct Scrubber {
    secrets: Vec<SecretString>,
}

impl std::fmt::Debug for Scrubber {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Scrubber").field("secrets", &self.secrets.len()).finish()
    }
}

impl Scrubber {
    /// Knows no secret yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a value, together with its percent-encoded form.
    pub fn add(&mut self, secret: &str) {
        if secret.is_empty() {
            return;
        }
        let encoded = crate::config::percent_encode(secret);
        if encoded != secret {
            self.secrets.push(encoded.into());
        }
        self.secrets.push(secret.to_owned().into());
        // The longest goes first, so that a secret inside another does not leave half of it behind.
        self.secrets.sort_by_key(|s| std::cmp::Reverse(s.expose_secret().len()));
    }

    /// This set and one value more.
    pub fn with(&self, secret: &str) -> Self {
        let mut more = self.clone();
        more.add(secret);
        more
    }

    /// The text without any of the values.
    pub fn scrub(&self, text: &str) -> String {
        let mut out = text.to_owned();
        for secret in &self.secrets {
            let secret = secret.expose_secret();
            out = out.replace(secret, MASK);
            out = without_parts(out, secret);
        }
        out
    }
}

fn without_parts(text: String, secret: &str) -> String {
    let (Some(head), Some(tail)) = (first_chars(secret, PART), last_chars(secret, PART)) else { return text };
    let text = replace_grown(&text, head, |rest| common_prefix(rest, secret));
    if !text.contains(tail) {
        return text;
    }
    // The end of a secret is looked for from behind.
    let backwards = |s: &str| s.chars().rev().collect::<String>();
    let (turned, secret, tail) = (backwards(&text), backwards(secret), backwards(tail));
    let mask = backwards(MASK);
    backwards(&replace_with(&turned, &tail, &mask, |rest| common_prefix(rest, &secret)))
}

fn replace_grown(text: &str, needle: &str, length: impl Fn(&str) -> usize) -> String {
    replace_with(text, needle, MASK, length)
}

fn replace_with(text: &str, needle: &str, mask: &str, length: impl Fn(&str) -> usize) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, _)) = rest.split_once(needle) {
        out.push_str(before);
        let found = rest.get(before.len()..).unwrap_or_default();
        out.push_str(mask);
        rest = found.get(length(found).max(needle.len())..).unwrap_or_default();
    }
    out.push_str(rest);
    out
}

fn common_prefix(a: &str, b: &str) -> usize {
    a.chars().zip(b.chars()).take_while(|(x, y)| x == y).map(|(x, _)| x.len_utf8()).sum()
}

fn first_chars(s: &str, n: usize) -> Option<&str> {
    let (at, _) = s.char_indices().nth(n)?;
    s.get(..at)
}

fn last_chars(s: &str, n: usize) -> Option<&str> {
    let count = s.chars().count().checked_sub(n).filter(|rest| *rest > 0)?;
    let (at, _) = s.char_indices().nth(count)?;
    s.get(at..)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scrubber(secrets: &[&str]) -> Scrubber {
        let mut s = Scrubber::new();
        for secret in secrets {
            s.add(secret);
        }
        s
    }

    #[test]
    fn whole_values_go_in_plain_and_percent_encoded_form() {
        let s = scrubber(&["p@ss/word"]);
        assert_eq!(s.scrub("x p@ss/word y p%40ss%2Fword z"), "x [redacted] y [redacted] z");
    }

    #[test]
    fn a_value_that_was_cut_off_goes_as_well() {
        let s = scrubber(&["Abcdefghij-0123456789"]);
        assert_eq!(
            s.scrub("near 'IDENTIFIED BY 'Abcdefghij-01' at line 1"),
            "near 'IDENTIFIED BY '[redacted]' at line 1"
        );
        assert_eq!(s.scrub("...ghij-0123456789' rest"), "...[redacted]' rest");
    }

    #[test]
    fn other_text_stays() {
        assert_eq!(scrubber(&["secretsecret", ""]).scrub("permission denied"), "permission denied");
        assert_eq!(format!("{:?}", scrubber(&["secretsecret"])), "Scrubber { secrets: 1 }");
    }
}
