//! The token file: `[[token]]` with the SHA-256 of each token, so that the file holds no credential.
//!
//! What must hold: a token is found by its hash and its hash is compared in constant time; no two entries share one.

use std::collections::HashMap;
use std::fmt;
use std::path::Path;
use std::sync::Arc;

use aws_lc_rs::digest::{SHA256, digest};
use holdfast_core::Wall;
use holdfast_ops::config::{Place, Position};
use serde::Deserialize;
use subtle::ConstantTimeEq as _;
use toml::Spanned;

use super::identity::{Evidence, Identity, Method};
use super::rejection::Reason;
use crate::date::{self, DateText};
use crate::problem::{Problem, toml_fault};

/// The key of the configuration that names the file.
pub(super) const KEY: &str = "auth.token.file";
/// A larger file is the wrong file.
const MAX_BYTES: u64 = 16 << 20;

/// The entries of a token file.
#[derive(Default)]
pub(super) struct Tokens {
    by_hash: HashMap<[u8; 32], Token>,
}

struct Token {
    sha256: [u8; 32],
    token: Identity,
    header: Identity,
    basic: Identity,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    token: Vec<Spanned<Entry>>,
}

/// `[[token]]`
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    /// What the operator calls it; unique.
    id: String,
    /// 64 hexadecimal digits.
    sha256: String,
    /// Who it makes the caller.
    subject: String,
    /// The caller's groups.
    #[serde(default)]
    groups: Vec<String>,
    /// When it ends; never unless given.
    expires: Option<DateText>,
}

impl Tokens {
    /// Reads a file.
    pub(super) fn read(path: &Path) -> Result<Self, Vec<Problem>> {
        let shown = path.display();
        let text = super::read_file(path, MAX_BYTES);
        let text = text.map_err(|why| vec![Problem::new(KEY, format!("token file {shown} {why}"))])?;
        Self::parse(&text).map_err(|faults| {
            let source = shown.to_string();
            let problem = |(at, what)| {
                let place = Place { source: source.clone(), at: Some(at) };
                Problem::new(KEY, format!("token file: {what}")).at(place)
            };
            faults.into_iter().map(problem).collect()
        })
    }

    /// Reads a text; faults with where they stand.
    fn parse(text: &str) -> Result<Self, Vec<(Position, String)>> {
        let file: File = toml::from_str(text).map_err(|error| {
            let (what, at) = toml_fault(text, &error);
            vec![(at, what)]
        })?;
        let mut faults = Vec::new();
        let mut by_hash = HashMap::with_capacity(file.token.len());
        let mut lines = HashMap::new();
        for entry in file.token {
            let at = Position::of(text, entry.span().start);
            let entry = entry.into_inner();
            for (what, value) in [("id", &entry.id), ("sha256", &entry.sha256.to_ascii_lowercase())] {
                if let Some(first) = lines.insert((what, value.clone()), at.line) {
                    faults.push((at, format!("duplicate {what} (lines {first} and {})", at.line)));
                }
            }
            match Token::new(&entry) {
                Ok(token) => drop(by_hash.insert(token.sha256, token)),
                Err(what) => faults.push((at, format!("token {:?}: {what}", entry.id))),
            }
        }
        if faults.is_empty() { Ok(Self { by_hash }) } else { Err(faults) }
    }

    /// Whether there is none.
    pub(super) fn is_empty(&self) -> bool {
        self.by_hash.is_empty()
    }

    /// Who shows this token.
    pub(super) fn find(&self, method: Method, token: &[u8], now: Wall) -> Result<Identity, Reason> {
        if token.is_empty() {
            return Err(Reason::Empty);
        }
        let hash = digest(&SHA256, token);
        let hash: [u8; 32] = hash.as_ref().try_into().map_err(|_| Reason::UnknownToken)?;
        self.find_hash(method, &hash, now)
    }

    /// Who shows the token with this hash.
    pub(super) fn find_hash(&self, method: Method, hash: &[u8; 32], now: Wall) -> Result<Identity, Reason> {
        let token = self.by_hash.get(hash).ok_or(Reason::UnknownToken)?;
        if !bool::from(token.sha256.ct_eq(hash)) {
            return Err(Reason::UnknownToken);
        }
        let identity = match method {
            Method::Header => &token.header,
            Method::Basic => &token.basic,
            _ => &token.token,
        };
        if identity.expires.is_some_and(|end| now >= end) {
            Err(Reason::Expired)
        } else {
            Ok(identity.clone())
        }
    }
}

impl fmt::Debug for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{} tokens]", self.by_hash.len())
    }
}

impl Token {
    fn new(entry: &Entry) -> Result<Self, String> {
        let mut sha256 = [0; 32];
        hex::decode_to_slice(&entry.sha256, &mut sha256)
            .map_err(|_| "sha256 is not 64 hexadecimal digits")?;
        if entry.id.is_empty() || entry.subject.is_empty() {
            return Err("id and subject must not be empty".to_owned());
        }
        let expires = match &entry.expires {
            None => None,
            Some(text) => Some(date::parse(&text.to_string()).ok_or("expires is not a date of RFC 3339")?),
        };
        let subject: Arc<str> = Arc::from(&*entry.subject);
        let groups: Arc<[Arc<str>]> = entry.groups.iter().map(|group| Arc::from(&**group)).collect();
        let by = |method| {
            let evidence = Evidence::Token { method, sha256, subject: Arc::clone(&subject) };
            let identity = Identity::found(method, Arc::clone(&subject), evidence);
            Identity { groups: Arc::clone(&groups), expires, ..identity }
        };
        let (token, header, basic) = (by(Method::Token), by(Method::Header), by(Method::Basic));
        Ok(Self { sha256, token, header, basic })
    }
}

#[cfg(test)]
mod tests {
    use holdfast_tests::fuzz::fuzz;

    use super::*;

    const NOW: Wall = Wall::from_micros(1_700_000_000_000_000);

    fn stanza(id: &str, token: &str, more: &str) -> String {
        let sha256 = hex::encode(digest(&SHA256, token.as_bytes()));
        format!("[[token]]\nid = \"{id}\"\nsha256 = \"{sha256}\"\nsubject = \"svc-{id}\"\n{more}\n")
    }

    fn find(tokens: &Tokens, token: &str, now: Wall) -> Result<String, Reason> {
        tokens.find(Method::Token, token.as_bytes(), now).map(|identity| identity.subject.to_string())
    }

    #[test]
    fn a_token_makes_its_subject_until_it_expires() {
        let text = stanza("a", "hfc_a", "groups = [\"x\", \"y\"]\nexpires = 2023-11-14T22:13:21Z")
            + &stanza("b", "hfc_b", "expires = \"2030-01-01\"")
            + &stanza("c", "hfc_c", "")
                .to_uppercase()
                .replace("[[TOKEN]]", "[[token]]")
                .replace("ID =", "id =")
                .replace("SHA256 =", "sha256 =")
                .replace("SUBJECT =", "subject =");
        let tokens = Tokens::parse(&text).unwrap();
        assert_eq!(find(&tokens, "hfc_a", NOW), Ok("svc-a".into()));
        assert_eq!(
            find(&tokens, "hfc_a", NOW.after(std::time::Duration::from_secs(1))),
            Err(Reason::Expired)
        );
        assert_eq!(find(&tokens, "hfc_b", NOW), Ok("svc-b".into()));
        assert_eq!(find(&tokens, "hfc_c", NOW), Ok("SVC-C".into()), "a hash counts in any case");
        for wrong in ["hfc_d", "hfc_A", "hfc_a ", "hfc_", &hex::encode(digest(&SHA256, b"hfc_a"))] {
            assert_eq!(find(&tokens, wrong, NOW), Err(Reason::UnknownToken), "{wrong}");
        }
        let identity = tokens.find(Method::Basic, b"hfc_a", NOW).unwrap();
        assert_eq!((identity.method, identity.groups.len()), (Method::Basic, 2));
        assert_eq!(format!("{:?}", identity.evidence), "[basic]", "no hash is shown");
    }

    #[test]
    fn an_empty_credential_matches_nothing_not_even_its_own_hash() {
        let tokens = Tokens::parse(&stanza("a", "", "")).unwrap();
        assert_eq!(find(&tokens, "", NOW), Err(Reason::Empty));
    }

    #[test]
    fn a_file_without_entries_is_a_file() {
        assert!(Tokens::parse("").unwrap().is_empty());
        assert!(Tokens::parse("# none\ntoken = []\n").unwrap().is_empty());
    }

    #[test]
    fn every_fault_is_told_with_its_line_and_without_the_hash() {
        let text = stanza("a", "x", "")
            + &stanza("a", "y", "")
            + &stanza("c", "x", "")
            + &stanza("d", "z", "expires = \"soon\"");
        let text = text + "[[token]]\nid = \"\"\nsha256 = \"abc\"\nsubject = \"s\"\n";
        let faults = Tokens::parse(&text).unwrap_err();
        let faults: Vec<_> = faults.into_iter().map(|(at, what)| (at.line, what)).collect();
        assert_eq!(
            faults,
            [
                (6, "duplicate id (lines 1 and 6)".to_owned()),
                (11, "duplicate sha256 (lines 1 and 11)".to_owned()),
                (16, "token \"d\": expires is not a date of RFC 3339".to_owned()),
                (21, "token \"\": sha256 is not 64 hexadecimal digits".to_owned()),
            ]
        );
        for (text, line) in [
            ("[[token]]\nid = 1", 2),
            ("\n[token]\n", 2),
            ("[[token]]\nid = \"a\"\nsubject = \"a\"", 1),
            ("[[token]]\nsecret = \"a\"", 2),
            ("[[tokens]]", 1),
            ("[[token]\n", 1),
        ] {
            let faults = Tokens::parse(text).unwrap_err();
            assert_eq!(faults.iter().map(|(at, _)| at.line).collect::<Vec<_>>(), [line], "{text} {faults:?}");
        }
    }

    #[test]
    fn fuzz_token_files() {
        let seeds =
            [stanza("a", "a", "groups = [\"x\"]\nexpires = 2030-01-01T00:00:00Z"), stanza("b", "b", "")];
        let words = [
            "[[token]]\n",
            "id = ",
            "sha256 = ",
            "\"",
            "groups = [",
            "expires = 2030-01-01\n",
            "'''",
            "{",
            "=",
        ];
        fuzz(&[seeds[0].as_bytes(), seeds[1].as_bytes()], &words, |input| {
            match Tokens::parse(&String::from_utf8_lossy(input)) {
                Ok(tokens) => format!("{:?} {:?}", tokens.is_empty(), find(&tokens, "a", NOW)),
                Err(faults) => faults.first().map(|(_, what)| what.clone()).unwrap_or_default(),
            }
        });
    }
}
