//! Generated passwords: the default shape, and policies of an operator.
//!
//! All characters come from the operating system's random source by way of a cryptographic generator, each chosen
//! uniformly. Passwords hold no quote, backslash or NUL, because they are put into statements as text.

use rand::RngExt as _;
use rand::rngs::ThreadRng;
use secrecy::SecretString;
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

const LOWER: &str = "abcdefghijklmnopqrstuvwxyz";
const UPPER: &str = "ABCDEFGHIJKLMNOPQRSTUVWXYZ";
const DIGITS: &str = "0123456789";
const DEFAULT_LENGTH: usize = 20;
/// How many candidates are drawn at random before the rules are met by construction instead.
const DRAWS: usize = 64;

/// At least `min_chars` characters of `charset`.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct CharsetRule {
    /// The characters; repeated ones count once.
    pub charset: String,
    /// How many of them a password must hold.
    #[serde(default)]
    pub min_chars: usize,
}

/// Why a password policy cannot be used.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum PolicyError {
    /// The length is out of bounds.
    #[error("password length must be between 4 and 100")]
    Length,
    /// There is no rule, or a rule has no characters.
    #[error("a password policy needs at least one charset with at least one character")]
    NoCharset,
    /// The rules want more characters than the length has room for.
    #[error("the rules need {0} characters, more than the length of the password")]
    TooManyRequired(usize),
    /// A character would break out of a statement.
    #[error("charset may not contain quotes, backslashes or control characters")]
    Forbidden,
    /// The charset is too poor for a password that is worth the name.
    #[error("the charsets must hold at least two different characters")]
    TooFewCharacters,
}

/// What passwords must look like.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
pub struct PasswordPolicy {
    length: usize,
    rules: Vec<CharsetRule>,
}

impl PasswordPolicy {
    /// A policy of `length` (4 to 100) characters drawn from the charsets of `rules`.
    ///
    /// # Errors
    /// When no password could meet the rules, or when one could break a statement.
    pub fn new(length: usize, mut rules: Vec<CharsetRule>) -> Result<Self, PolicyError> {
        if !(4..=100).contains(&length) {
            return Err(PolicyError::Length);
        }
        if rules.is_empty() || rules.iter().any(|r| r.charset.is_empty()) {
            return Err(PolicyError::NoCharset);
        }
        if rules.iter().flat_map(|r| r.charset.chars()).any(is_forbidden) {
            return Err(PolicyError::Forbidden);
        }
        let required = rules.iter().fold(0usize, |sum, r| sum.saturating_add(r.min_chars));
        if required > length {
            return Err(PolicyError::TooManyRequired(required));
        }
        for rule in &mut rules {
            rule.charset = distinct(rule.charset.chars()).into_iter().collect();
        }
        let policy = Self { length, rules };
        if policy.alphabet().len() < 2 {
            return Err(PolicyError::TooFewCharacters);
        }
        Ok(policy)
    }

    /// The shape used without a policy: 20 characters with at least one each of lower, upper, digit and `-`.
    pub fn standard() -> Self {
        let rule = |charset: &str| CharsetRule { charset: charset.to_owned(), min_chars: 1 };
        Self { length: DEFAULT_LENGTH, rules: [LOWER, UPPER, DIGITS, "-"].map(rule).into() }
    }

    /// A new password.
    pub fn generate(&self) -> SecretString {
        let alphabet = self.alphabet();
        let mut rng = rand::rng();
        for _ in 0..DRAWS {
            let candidate = Zeroizing::new(draw(&alphabet, self.length, &mut rng));
            if self.accepts(&candidate) && fits_statements(&candidate) {
                return candidate.iter().collect::<String>().into();
            }
        }
        self.construct(&alphabet, &mut rng)
    }

    /// Whether `password` meets the rules.
    pub fn is_met_by(&self, password: &str) -> bool {
        let chars: Vec<_> = password.chars().collect();
        chars.len() == self.length && self.accepts(&chars)
    }

    fn alphabet(&self) -> Vec<char> {
        distinct(self.rules.iter().flat_map(|r| r.charset.chars()))
    }

    fn accepts(&self, candidate: &[char]) -> bool {
        self.rules
            .iter()
            .all(|rule| candidate.iter().filter(|c| rule.charset.contains(**c)).count() >= rule.min_chars)
    }

    /// Rules that random draws rarely meet: what they ask for first, the rest at random, then shuffled.
    fn construct(&self, alphabet: &[char], rng: &mut ThreadRng) -> SecretString {
        let mut chars = Zeroizing::new(Vec::with_capacity(self.length));
        for rule in &self.rules {
            let charset: Vec<_> = rule.charset.chars().collect();
            chars.extend(draw(&charset, rule.min_chars, rng));
        }
        let missing = self.length.saturating_sub(chars.len());
        chars.extend(draw(alphabet, missing, rng));
        for last in (1..chars.len()).rev() {
            let other = rng.random_range(0..=last);
            chars.swap(last, other);
        }
        chars.iter().collect::<String>().into()
    }
}

fn draw(alphabet: &[char], count: usize, rng: &mut ThreadRng) -> Vec<char> {
    (0..count).filter_map(|_| alphabet.get(rng.random_range(0..alphabet.len().max(1))).copied()).collect()
}

fn distinct(chars: impl Iterator<Item = char>) -> Vec<char> {
    let mut all: Vec<_> = chars.collect();
    all.sort_unstable();
    all.dedup();
    all
}

/// Whether a character may not stand in a generated name or password.
pub(crate) fn is_forbidden(c: char) -> bool {
    matches!(c, '\'' | '"' | '`' | '\\') || c.is_control()
}

/// A password inside a dollar-quoted block must not close it.
fn fits_statements(candidate: &[char]) -> bool {
    !candidate.windows(2).any(|pair| pair == ['$', '$'])
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use secrecy::ExposeSecret as _;

    fn rule(charset: &str, min_chars: usize) -> CharsetRule {
        CharsetRule { charset: charset.to_owned(), min_chars }
    }

    #[test]
    fn the_standard_shape_has_one_of_each() {
        for _ in 0..2000 {
            let password = PasswordPolicy::standard().generate();
            let p = password.expose_secret();
            assert_eq!(p.len(), 20);
            for class in [LOWER, UPPER, DIGITS, "-"] {
                assert!(p.chars().any(|c| class.contains(c)), "{p}");
            }
            assert!(p.chars().all(|c| c.is_ascii_alphanumeric() || c == '-'), "{p}");
        }
    }

    #[test]
    fn characters_are_uniform() {
        let policy = PasswordPolicy::new(100, vec![rule("abcd", 0)]).unwrap();
        let mut counts = [0u32; 4];
        for _ in 0..200 {
            for c in policy.generate().expose_secret().bytes() {
                counts[usize::from(c - b'a')] += 1;
            }
        }
        // 20000 draws: five sigma around 5000 is about 306.
        assert!(counts.iter().all(|n| (4650..5350).contains(n)), "{counts:?}");
    }

    #[test]
    fn policies_are_checked() {
        assert_eq!(PasswordPolicy::new(3, vec![rule("ab", 1)]), Err(PolicyError::Length));
        assert_eq!(PasswordPolicy::new(101, vec![rule("ab", 1)]), Err(PolicyError::Length));
        assert_eq!(PasswordPolicy::new(8, vec![]), Err(PolicyError::NoCharset));
        assert_eq!(PasswordPolicy::new(8, vec![rule("", 0)]), Err(PolicyError::NoCharset));
        assert_eq!(PasswordPolicy::new(8, vec![rule("ab", 9)]), Err(PolicyError::TooManyRequired(9)));
        assert_eq!(PasswordPolicy::new(8, vec![rule("ab'", 1)]), Err(PolicyError::Forbidden));
        assert_eq!(PasswordPolicy::new(8, vec![rule("aa", 1)]), Err(PolicyError::TooFewCharacters));
    }

    #[test]
    fn a_password_closes_no_dollar_quote() {
        let policy = PasswordPolicy::new(20, vec![rule("$abcdefgh", 0), rule("$", 2)]).unwrap();
        for _ in 0..200 {
            assert!(!policy.generate().expose_secret().contains("$$"));
        }
    }

    proptest! {
        #[test]
        fn every_password_meets_its_policy(
            length in 4usize..=100,
            a in 0usize..=40, b in 0usize..=40, c in 0usize..=40,
        ) {
            let rules = vec![rule(LOWER, a), rule("0123", b), rule("#%", c)];
            match PasswordPolicy::new(length, rules) {
                Ok(policy) => prop_assert!(policy.is_met_by(policy.generate().expose_secret())),
                Err(e) => prop_assert_eq!(e, PolicyError::TooManyRequired(a + b + c)),
            }
        }
    }
}
