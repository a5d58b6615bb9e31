//! Cuts SQL into what the splitter needs: semicolons, words, and everything else, with quotes and comments skipped.

use super::Dialect;

/// A piece of SQL outside comments.
#[derive(Debug, Eq, PartialEq)]
pub(super) enum Token<'a> {
    /// A semicolon and its byte offset.
    Semicolon(usize),
    /// A bare word: a keyword or an unquoted name.
    Word(&'a str),
    /// A quoted piece or a character of punctuation.
    Other,
}

/// The tokens of `text`; an item is an error with the name of the construct in which the text ends.
pub(super) fn tokens(text: &str, dialect: Dialect) -> Tokens<'_> {
    Tokens { text, at: 0, dialect, failed: false }
}

/// Iterator over the tokens of a text.
pub(super) struct Tokens<'a> {
    text: &'a str,
    at: usize,
    dialect: Dialect,
    failed: bool,
}

impl<'a> Iterator for Tokens<'a> {
    type Item = Result<Token<'a>, &'static str>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed {
            return None;
        }
        let token = self.step().transpose();
        self.failed = matches!(token, Some(Err(_)));
        token
    }
}

impl<'a> Tokens<'a> {
    fn rest(&self) -> &'a str {
        self.text.get(self.at..).unwrap_or_default()
    }

    fn step(&mut self) -> Result<Option<Token<'a>>, &'static str> {
        loop {
            let rest = self.rest();
            let Some(c) = rest.chars().next() else { return Ok(None) };
            if c.is_whitespace() {
                self.at += c.len_utf8();
            } else if let Some(length) = self.comment(rest)? {
                self.at += length;
            } else {
                return self.token(rest, c).map(Some);
            }
        }
    }

    fn comment(&self, rest: &str) -> Result<Option<usize>, &'static str> {
        let mysql = self.dialect == Dialect::Mysql;
        // MySQL wants a space after the two dashes; `5--3` is arithmetic there.
        let dashes = rest.strip_prefix("--").is_some_and(|after| {
            !mysql || after.chars().next().is_none_or(|c| c.is_whitespace() || c.is_control())
        });
        if dashes || (mysql && rest.starts_with('#')) {
            return Ok(Some(rest.find('\n').map_or(rest.len(), |n| n + 1)));
        }
        if !rest.starts_with("/*") || (mysql && (rest.starts_with("/*!") || rest.starts_with("/*M!"))) {
            return Ok(None);
        }
        let (mut at, mut depth) = (2, 1usize);
        while depth > 0 {
            let inner = rest.get(at..).unwrap_or_default();
            let Some(c) = inner.chars().next() else { return Err("a comment") };
            if inner.starts_with("*/") {
                (at, depth) = (at + 2, depth - 1);
            } else if !mysql && inner.starts_with("/*") {
                (at, depth) = (at + 2, depth + 1);
            } else {
                at += c.len_utf8();
            }
        }
        Ok(Some(at))
    }

    fn token(&mut self, rest: &'a str, c: char) -> Result<Token<'a>, &'static str> {
        let start = self.at;
        let mysql = self.dialect == Dialect::Mysql;
        match c {
            ';' => {
                self.at += 1;
                Ok(Token::Semicolon(start))
            }
            '\'' => self.quoted(rest, '\'', mysql, "a string"),
            '"' => self.quoted(rest, '"', mysql, "a quoted name"),
            '`' if mysql => self.quoted(rest, '`', false, "a quoted name"),
            '$' if !mysql => self.dollar(rest),
            _ if is_word(c) => Ok(self.word(rest)),
            _ => {
                self.at += c.len_utf8();
                Ok(Token::Other)
            }
        }
    }

    fn quoted(
        &mut self,
        rest: &str,
        quote: char,
        escapes: bool,
        what: &'static str,
    ) -> Result<Token<'a>, &'static str> {
        let mut chars = rest.char_indices().skip(1);
        while let Some((at, c)) = chars.next() {
            if escapes && c == '\\' {
                chars.next();
            } else if c == quote {
                // A doubled quote reads as two strings in a row, which splits nothing.
                self.at += at + quote.len_utf8();
                return Ok(Token::Other);
            }
        }
        Err(what)
    }

    fn dollar(&mut self, rest: &str) -> Result<Token<'a>, &'static str> {
        let tag = rest
            .get(1..)
            .and_then(|t| t.split_once('$'))
            .map(|(tag, _)| tag)
            .filter(|tag| tag.chars().all(is_word) && !tag.starts_with(|c: char| c.is_ascii_digit()));
        let Some(tag) = tag else {
            self.at += 1;
            return Ok(Token::Other);
        };
        let fence = format!("${tag}$");
        let body = rest.get(fence.len()..).unwrap_or_default();
        let end = body.find(&fence).ok_or("a dollar-quoted string")?;
        self.at += fence.len() * 2 + end;
        Ok(Token::Other)
    }

    fn word(&mut self, rest: &'a str) -> Token<'a> {
        // `$` belongs to a name once it has begun, so `a$b$` opens no quote.
        let length = rest.find(|c: char| !is_word(c) && c != '$').unwrap_or(rest.len());
        let word = rest.get(..length).unwrap_or_default();
        self.at += length;
        if self.dialect == Dialect::Postgres
            && word.eq_ignore_ascii_case("e")
            && self.rest().starts_with('\'')
            && let Ok(token) = self.quoted(self.rest(), '\'', true, "a string")
        {
            return token;
        }
        Token::Word(word)
    }
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}
