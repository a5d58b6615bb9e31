//! Statement templates: reading them in their three written forms, splitting them, and filling in values.
//!
//! Splitting happens on the template, before values go in, so a value can never open or close a statement. The
//! splitter knows quotes, PostgreSQL dollar quotes, comments, and blocks that end in `END`.

mod lexer;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;

use crate::error::DriverError;
use lexer::{Token, tokens};

/// The SQL that a database speaks, as far as splitting and quoting differ.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Dialect {
    /// PostgreSQL: dollar quotes, nested comments, backslashes only in `E''` strings.
    Postgres,
    /// MySQL and MariaDB: back-ticks, `#` comments, backslash escapes in strings.
    Mysql,
}

/// Values for the placeholders of a statement.
#[derive(Clone, Copy, Debug, Default)]
pub struct Values<'a> {
    /// For `{{name}}` and `{{username}}`.
    pub username: &'a str,
    /// For `{{password}}`; left as written when there is none.
    pub password: Option<&'a str>,
    /// For `{{expiration}}`; left as written when there is none.
    pub expiration: Option<&'a str>,
}

/// Single statements, in order, with their placeholders still in them.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Statements(Vec<String>);

impl Statements {
    /// Reads a list whose items are plain SQL, base64 of such, or JSON arrays of such.
    ///
    /// # Errors
    /// For SQL that ends inside a quote or comment, and for PostgreSQL statements that would end the transaction.
    pub fn parse(items: &[String], dialect: Dialect) -> Result<Self, DriverError> {
        let mut out = Vec::new();
        for item in items {
            for text in written_forms(item) {
                split(&text, dialect, &mut out)?;
            }
        }
        Ok(Self(out))
    }

    /// Whether there is no statement.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The statements with `values` filled in. A value is never looked at again for placeholders.
    pub fn render(&self, values: &Values<'_>) -> Vec<String> {
        self.0.iter().map(|s| fill(s, values)).collect()
    }
}

/// Formats an expiration the way statements expect it.
pub fn expiration(at: Timestamp) -> String {
    format!("{}+00:00", at.strftime("%Y-%m-%d %H:%M:%S"))
}

/// The first words of a statement in upper case, at most `count`, up to where something else than a word comes.
pub(crate) fn first_words(statement: &str, dialect: Dialect, count: usize) -> Vec<String> {
    let word = |token: Result<Token<'_>, _>| match token {
        Ok(Token::Word(word)) => Some(word.to_ascii_uppercase()),
        _ => None,
    };
    tokens(statement, dialect).map_while(word).take(count).collect()
}

fn written_forms(item: &str) -> Vec<String> {
    let text = item.trim();
    if let Some(list) = json_array(text) {
        return list;
    }
    // SQL of more than one word is never valid base64, so nothing plain is taken for encoded.
    match STANDARD.decode(text).ok().and_then(|bytes| String::from_utf8(bytes).ok()) {
        Some(plain) if !text.is_empty() => json_array(plain.trim()).unwrap_or_else(|| vec![plain]),
        _ => vec![text.to_owned()],
    }
}

fn json_array(text: &str) -> Option<Vec<String>> {
    text.starts_with('[').then(|| serde_json::from_str(text).ok()).flatten()
}

/// What a statement is, as far as the driver cares.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Control {
    /// Work for the database.
    None,
    /// `BEGIN` or `COMMIT` on its own: the driver has its own transaction.
    Dropped,
    /// Would take the transaction away from the driver.
    Refused,
}

fn split(text: &str, dialect: Dialect, out: &mut Vec<String>) -> Result<(), DriverError> {
    let mut from = 0;
    let mut block = Block::default();
    let mut any = false;
    for token in tokens(text, dialect) {
        let token = token.map_err(|open| DriverError::invalid(format!("statement ends inside {open}")))?;
        match token {
            Token::Semicolon(at) if block.is_closed() => {
                push(text.get(from..at).unwrap_or_default(), any, &block, dialect, out)?;
                from = at + 1;
                (block, any) = (Block::default(), false);
            }
            Token::Semicolon(_) => block.word(";"),
            Token::Word(word) => {
                any = true;
                block.word(&word.to_ascii_uppercase());
            }
            Token::Other => {
                any = true;
                block.word("");
            }
        }
    }
    push(text.get(from..).unwrap_or_default(), any, &block, dialect, out)
}

fn push(
    text: &str,
    any: bool,
    block: &Block,
    dialect: Dialect,
    out: &mut Vec<String>,
) -> Result<(), DriverError> {
    if !any {
        return Ok(());
    }
    match control(&block.words, dialect) {
        Control::None => out.push(text.trim().to_owned()),
        Control::Dropped => {}
        Control::Refused => {
            return Err(DriverError::invalid(
                "statements may not end or roll back the transaction that they run in",
            ));
        }
    }
    Ok(())
}

/// Follows `BEGIN … END` and `CASE … END` inside a statement, where a semicolon does not end it.
#[derive(Default)]
struct Block {
    /// The first words of the statement, in upper case; enough to tell what it is.
    words: Vec<String>,
    depth: usize,
    /// The word before was an `END` that closed something.
    ended: bool,
    /// `BEGIN` was the word before; whether it opens a block is decided by what follows.
    pending: bool,
}

impl Block {
    fn is_closed(&self) -> bool {
        self.depth == 0
    }

    fn word(&mut self, word: &str) {
        if std::mem::take(&mut self.pending) && opens_block(word) {
            self.depth += 1;
        }
        let first = self.words.first().map(String::as_str);
        match word {
            "BEGIN" if matches!(first, None | Some("CREATE" | "ALTER" | "DO")) || self.depth > 0 => {
                self.pending = true;
            }
            "CASE" if self.depth > 0 && !self.ended => self.depth += 1,
            "END" if self.depth > 0 => {
                self.depth -= 1;
                self.ended = true;
                return;
            }
            // `END IF` and its like close what was never counted.
            "IF" | "LOOP" | "WHILE" | "REPEAT" if self.ended => self.depth += 1,
            _ => {}
        }
        self.ended = false;
        if self.words.len() < 4 && !word.is_empty() && word != ";" {
            self.words.push(word.to_owned());
        }
    }
}

/// `BEGIN` starts a transaction when one of these follows, or nothing.
fn opens_block(next: &str) -> bool {
    !matches!(next, ";" | "WORK" | "TRANSACTION" | "ISOLATION" | "READ" | "DEFERRABLE")
}

fn control(words: &[String], dialect: Dialect) -> Control {
    if dialect == Dialect::Mysql {
        return Control::None;
    }
    let words: Vec<_> = words.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["BEGIN" | "COMMIT" | "END"]
        | ["BEGIN" | "COMMIT" | "END", "WORK" | "TRANSACTION"]
        | ["START", "TRANSACTION"] => Control::Dropped,
        ["ROLLBACK", "TO", ..] | ["ROLLBACK", "WORK" | "TRANSACTION", "TO", ..] => Control::None,
        ["COMMIT" | "END" | "ROLLBACK" | "ABORT", ..] | ["PREPARE", "TRANSACTION", ..] => Control::Refused,
        _ => Control::None,
    }
}

fn fill(template: &str, values: &Values<'_>) -> String {
    let mut out = String::with_capacity(template.len() + 64);
    let mut rest = template;
    while let Some((before, after)) = rest.split_once("{{") {
        out.push_str(before);
        let Some((inside, behind)) = after.split_once("}}") else {
            out.push_str("{{");
            rest = after;
            continue;
        };
        let value = match inside.trim() {
            "name" | "username" => Some(values.username),
            "password" => values.password,
            "expiration" => values.expiration,
            _ => None,
        };
        match value {
            Some(value) => {
                out.push_str(value);
                rest = behind;
            }
            None => {
                out.push_str("{{");
                rest = after;
            }
        }
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests;
