//! Globs over the bytes of names.
//!
//! `*` and `?` do not cross `/`, `**` does; a class such as `[a-z0-9]` or `[^x]` stands for one byte that is not `/`;
//! `\` takes the next character as it is. Matching takes a time of at most length times length, whatever the glob.

/// A compiled glob.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Glob {
    /// What every match begins with.
    prefix: Box<[u8]>,
    rest: Box<[Token]>,
}

#[derive(Clone, Debug, Eq, PartialEq)]
enum Token {
    Byte(u8),
    One,
    Class { negated: bool, ranges: Box<[(u8, u8)]> },
    Star,
    Deep,
}

/// The text is no glob.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("not a glob")]
pub struct BadGlob;

impl Glob {
    /// Compiles a glob.
    ///
    /// # Errors
    /// For an empty one, a `\` at the end, and a class that is empty, not closed, reversed, holds `/`, or is not ASCII.
    pub fn new(text: &str) -> Result<Self, BadGlob> {
        let mut tokens = parse(text.as_bytes())?.into_iter().peekable();
        let mut prefix = Vec::new();
        while let Some(Token::Byte(byte)) = tokens.next_if(|token| matches!(token, Token::Byte(_))) {
            prefix.push(byte);
        }
        Ok(Self { prefix: prefix.into(), rest: tokens.collect() })
    }

    /// Whether a name matches, whole.
    pub fn matches(&self, name: &[u8]) -> bool {
        let Some(name) = name.strip_prefix(&*self.prefix) else { return false };
        match &*self.rest {
            [] => name.is_empty(),
            [Token::Deep] => true,
            [Token::Star] => !name.contains(&b'/'),
            tokens => walk(tokens, name),
        }
    }
}

impl Token {
    /// Whether it stands for this one byte.
    fn takes(&self, byte: u8) -> bool {
        match self {
            Self::Byte(own) => *own == byte,
            Self::One => byte != b'/',
            Self::Class { negated, ranges } => {
                let within = ranges.iter().any(|(low, high)| (*low..=*high).contains(&byte));
                byte != b'/' && within != *negated
            }
            Self::Star | Self::Deep => false,
        }
    }
}

/// Takes the shortest for each `*` and `**` and goes back to the last of each only: what an earlier one could take
/// in addition, the last one can too.
fn walk(tokens: &[Token], name: &[u8]) -> bool {
    let (mut token, mut at) = (0, 0);
    let (mut star, mut deep) = (None, None);
    loop {
        match tokens.get(token) {
            Some(Token::Star) => {
                token += 1;
                star = Some((token, at));
                continue;
            }
            Some(Token::Deep) => {
                token += 1;
                (star, deep) = (None, Some((token, at)));
                continue;
            }
            Some(one) if name.get(at).is_some_and(|byte| one.takes(*byte)) => {
                (token, at) = (token + 1, at + 1);
                continue;
            }
            None if at == name.len() => return true,
            _ => {}
        }
        if let Some((after, from)) =
            star.filter(|(_, from)| name.get(*from).is_some_and(|byte| *byte != b'/'))
        {
            (token, at) = (after, from + 1);
            star = Some((after, at));
        } else if let Some((after, from)) = deep.filter(|(_, from)| *from < name.len()) {
            (token, at) = (after, from + 1);
            (star, deep) = (None, Some((after, at)));
        } else {
            return false;
        }
    }
}

fn parse(text: &[u8]) -> Result<Vec<Token>, BadGlob> {
    let mut tokens = Vec::new();
    let mut rest = text.iter().copied().peekable();
    while let Some(byte) = rest.next() {
        tokens.push(match byte {
            b'*' if rest.next_if_eq(&b'*').is_some() => Token::Deep,
            b'*' => Token::Star,
            b'?' => Token::One,
            b'[' => class(&mut rest)?,
            b'\\' => Token::Byte(rest.next().ok_or(BadGlob)?),
            byte => Token::Byte(byte),
        });
    }
    if tokens.is_empty() { Err(BadGlob) } else { Ok(tokens) }
}

/// What follows a `[`, to its `]`. A `-` that is first or last stands for itself.
fn class(rest: &mut std::iter::Peekable<impl Iterator<Item = u8> + Clone>) -> Result<Token, BadGlob> {
    let negated = rest.next_if_eq(&b'^').is_some();
    let mut ranges = Vec::new();
    while rest.next_if_eq(&b']').is_none() {
        let low = member(rest)?;
        let mut ahead = rest.clone();
        let is_range = ahead.next() == Some(b'-') && ahead.next().is_some_and(|byte| byte != b']');
        let high = if is_range {
            rest.next();
            member(rest)?
        } else {
            low
        };
        if low > high {
            return Err(BadGlob);
        }
        ranges.push((low, high));
    }
    if ranges.is_empty() { Err(BadGlob) } else { Ok(Token::Class { negated, ranges: ranges.into() }) }
}

fn member(rest: &mut impl Iterator<Item = u8>) -> Result<u8, BadGlob> {
    let byte = match rest.next() {
        Some(b'\\') => rest.next(),
        other => other,
    };
    byte.filter(|byte| byte.is_ascii() && *byte != b'/').ok_or(BadGlob)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn matches(glob: &str, name: &[u8]) -> bool {
        Glob::new(glob).unwrap().matches(name)
    }

    #[test]
    fn the_table() {
        for (glob, yes, no) in [
            ("db", &["db"][..], &["", "d", "dbx", "xdb", "DB"][..]),
            ("db-*", &["db-", "db-a", "db-a.b"], &["db", "db-a/b", "xdb-a"]),
            ("*", &["", "a"], &["a/b", "/"]),
            ("**", &["", "a", "a/b", "/"], &[]),
            ("orders/**", &["orders/a", "orders/a/b"], &["orders", "orderss/a"]),
            ("**/password", &["a/password", "a/b/password"], &["password", "a/passwords"]),
            ("a?c", &["abc", "a?c"], &["a/c", "ac", "abbc"]),
            ("a/*/c", &["a/b/c", "a//c"], &["a/b/b/c", "a/c"]),
            ("a/**/c", &["a/b/c", "a/b/b/c", "a//c"], &["a/c"]),
            ("[a-c]x", &["ax", "cx"], &["dx", "Ax", "x"]),
            ("[^a-c]x", &["dx", "^x"], &["ax", "/x"]),
            ("[.-0]", &[".", "0"], &["/"]),
            ("[a^]", &["a", "^"], &["b"]),
            ("[-a]", &["-", "a"], &["b"]),
            ("[a-]", &["-", "a"], &["b"]),
            (r"[\]\\]", &["]", r"\"], &["a"]),
            (r"\*\?\[", &["*?["], &["a?["]),
            ("a]", &["a]"], &["a"]),
            ("{a,b}", &["{a,b}"], &["a"]),
            ("*a*b", &["ab", "xaxb", "aab", "abab"], &["ba", "a/b"]),
            ("**a*b", &["x/aab", "a/ab", "a/xab"], &["ab/", "a/b"]),
            ("***", &["", "a/b"], &[]),
            ("*/*", &["a/b", "/"], &["a", "a/b/c"]),
        ] {
            for name in yes {
                assert!(matches(glob, name.as_bytes()), "{glob} matches {name}");
            }
            for name in no {
                assert!(!matches(glob, name.as_bytes()), "{glob} does not match {name}");
            }
        }
    }

    #[test]
    fn names_that_are_no_text_are_names() {
        assert!(matches("a?", b"a\xff"));
        assert!(matches("a*", b"a\xff\0\n"));
        assert!(matches("[^a]", b"\xff"));
        assert!(!matches("a", b"a\0"));
        assert!(!matches("é", b"\xc3"));
        assert!(matches("é", "é".as_bytes()));
    }

    #[test]
    fn what_is_no_glob() {
        for bad in [
            "", "[", "[a", "[]", "[]a]", "[^]", "[z-a]", "a\\", "[\\", "[a-", "[/]", "[a\\/]", "[é]", "[+-/]",
        ] {
            assert_eq!(Glob::new(bad), Err(BadGlob), "{bad}");
        }
    }

    #[test]
    fn the_worst_glob_on_the_longest_name_is_no_work() {
        let name = [b'a'; 254];
        assert!(!matches(&format!("**{}b", "*a".repeat(60)), &name));
        assert!(!matches(&format!("{}b", "**a".repeat(60)), &name));
    }

    /// The same by the definition: every way to split the name is tried.
    fn naive(tokens: &[Token], name: &[u8]) -> bool {
        let Some((token, later)) = tokens.split_first() else { return name.is_empty() };
        match token {
            Token::Star | Token::Deep => {
                let crosses = *token == Token::Deep;
                let reach = name.iter().take_while(|byte| crosses || **byte != b'/').count();
                (0..=reach).any(|taken| naive(later, &name[taken..]))
            }
            one => name.split_first().is_some_and(|(byte, rest)| one.takes(*byte) && naive(later, rest)),
        }
    }

    #[test]
    fn it_agrees_with_the_definition_on_everything_small() {
        let one = Token::Class { negated: true, ranges: Box::new([(b'a', b'a')]) };
        let alphabet = [Token::Byte(b'a'), Token::Byte(b'/'), Token::One, one, Token::Star, Token::Deep];
        let names: Vec<Vec<u8>> = (0..=5).flat_map(|length| words(b"ab/", length)).collect();
        for glob in (1..=4).flat_map(|length| words(&alphabet, length)) {
            for name in &names {
                assert_eq!(walk(&glob, name), naive(&glob, name), "{glob:?} on {name:?}");
            }
        }
    }

    fn words<T: Clone>(alphabet: &[T], length: u32) -> Vec<Vec<T>> {
        let longer = |words: Vec<Vec<T>>| {
            let longer = words
                .iter()
                .flat_map(|word| alphabet.iter().map(|last| [&**word, std::slice::from_ref(last)].concat()));
            longer.collect()
        };
        (0..length).fold(vec![Vec::new()], |words, _| longer(words))
    }

    proptest! {
        #[test]
        fn it_agrees_with_the_definition(glob in r"(a|b|/|\*|\*\*|\?|\[ab\]|\[\^a\]){1,9}", name in "[ab/]{0,9}") {
            let tokens = parse(glob.as_bytes()).unwrap();
            prop_assert_eq!(matches(&glob, name.as_bytes()), naive(&tokens, name.as_bytes()));
        }

        #[test]
        fn an_escaped_text_matches_itself_alone(text in "[ -~]{1,12}", other in "[ -~]{0,12}") {
            let escaped: String = text.chars().flat_map(|c| ['\\', c]).collect();
            prop_assert!(matches(&escaped, text.as_bytes()));
            prop_assert_eq!(matches(&escaped, other.as_bytes()), text == other);
        }

        #[test]
        fn no_text_makes_it_panic(text in "\\PC{0,20}", name in proptest::collection::vec(any::<u8>(), 0..20)) {
            if let Ok(glob) = Glob::new(&text) {
                glob.matches(&name);
            }
        }
    }
}
