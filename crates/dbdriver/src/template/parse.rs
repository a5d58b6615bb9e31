//! Reads template text into parts. Everything that can be known without values is checked here.

use std::iter::Peekable;
use std::vec::IntoIter;

use super::{Node, TemplateError, Value, functions};

/// Parentheses deeper than this are refused, so that no text can exhaust the stack.
const MAX_DEPTH: usize = 32;

/// A piece of a template.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum Part {
    Text(String),
    Action(Node),
}

#[derive(Clone, Debug, Eq, PartialEq)]
enum Token {
    Open,
    Close,
    Pipe,
    Field(String),
    Word(String),
    Literal(Value),
}

fn syntax<T>(problem: impl Into<String>) -> Result<T, TemplateError> {
    Err(TemplateError::Syntax(problem.into()))
}

pub(super) fn parse(text: &str) -> Result<Vec<Part>, TemplateError> {
    let mut parts = Vec::new();
    let mut rest = text;
    let mut trim_left = false;
    while let Some((before, after)) = rest.split_once("{{") {
        let (inside, behind) = action_end(after)?;
        let (inside, trims_before) = match inside.strip_prefix('-') {
            Some(trimmed) if trimmed.starts_with(char::is_whitespace) => (trimmed, true),
            _ => (inside, false),
        };
        push_text(&mut parts, before, trim_left, trims_before);
        let (inside, trims_after) = match inside.strip_suffix('-') {
            Some(trimmed) if trimmed.ends_with(char::is_whitespace) => (trimmed, true),
            _ => (inside, false),
        };
        trim_left = trims_after;
        rest = behind;
        if is_comment(inside) {
            continue;
        }
        let mut tokens = tokens(inside)?.into_iter().peekable();
        let node = pipeline(&mut tokens, 0)?;
        if tokens.next().is_some() {
            return syntax("unexpected \")\"");
        }
        parts.push(Part::Action(node));
    }
    push_text(&mut parts, rest, trim_left, false);
    Ok(parts)
}

fn push_text(parts: &mut Vec<Part>, text: &str, trim_start: bool, trim_end: bool) {
    let text = if trim_start { text.trim_start() } else { text };
    let text = if trim_end { text.trim_end() } else { text };
    if !text.is_empty() {
        parts.push(Part::Text(text.to_owned()));
    }
}

fn is_comment(inside: &str) -> bool {
    let inside = inside.trim();
    inside.starts_with("/*") && inside.ends_with("*/") && inside.len() >= 4
}

/// Finds the `}}` that is not inside a string.
fn action_end(after: &str) -> Result<(&str, &str), TemplateError> {
    let mut quote = None;
    let mut chars = after.char_indices();
    while let Some((at, c)) = chars.next() {
        match (quote, c) {
            (Some('"'), '\\') => {
                chars.next();
            }
            (Some(open), c) if c == open => quote = None,
            (None, '"' | '`') => quote = Some(c),
            (None, '}') if after.get(at..).is_some_and(|s| s.starts_with("}}")) => {
                return Ok((after.get(..at).unwrap_or_default(), after.get(at + 2..).unwrap_or_default()));
            }
            _ => {}
        }
    }
    syntax("unclosed action")
}

fn tokens(text: &str) -> Result<Vec<Token>, TemplateError> {
    let mut out = Vec::new();
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            _ if c.is_whitespace() => {}
            '(' => out.push(Token::Open),
            ')' => out.push(Token::Close),
            '|' => out.push(Token::Pipe),
            '"' => out.push(Token::Literal(Value::Text(quoted(&mut chars)?))),
            '`' => {
                let mut raw = String::new();
                loop {
                    match chars.next() {
                        Some('`') => break,
                        Some(c) => raw.push(c),
                        None => return syntax("unterminated raw string"),
                    }
                }
                out.push(Token::Literal(Value::Text(raw)));
            }
            _ => {
                let mut word = c.to_string();
                while let Some(c) = chars.next_if(|c| c.is_alphanumeric() || matches!(c, '_' | '.')) {
                    word.push(c);
                }
                out.push(word_token(word)?);
            }
        }
    }
    Ok(out)
}

fn quoted(chars: &mut impl Iterator<Item = char>) -> Result<String, TemplateError> {
    let mut out = String::new();
    loop {
        match chars.next() {
            Some('"') => return Ok(out),
            Some('\\') => match chars.next() {
                Some('n') => out.push('\n'),
                Some('t') => out.push('\t'),
                Some(c @ ('"' | '\\' | '\'')) => out.push(c),
                _ => return syntax("unknown escape in a string"),
            },
            Some(c) => out.push(c),
            None => return syntax("unterminated string"),
        }
    }
}

fn word_token(word: String) -> Result<Token, TemplateError> {
    if let Some(field) = word.strip_prefix('.') {
        return match field {
            "DisplayName" | "RoleName" => Ok(Token::Field(field.to_owned())),
            "" => syntax("\".\" on its own is not supported"),
            other => Err(TemplateError::UnknownField(other.to_owned())),
        };
    }
    if word.starts_with(|c: char| c.is_ascii_digit() || c == '-' || c == '+') {
        return match word.parse() {
            Ok(number) => Ok(Token::Literal(Value::Number(number))),
            Err(_) => syntax(format!("bad number \"{word}\"")),
        };
    }
    if !word.chars().all(|c| c.is_alphanumeric() || c == '_') {
        return syntax(format!("unexpected \"{word}\""));
    }
    Ok(Token::Word(word))
}

type Tokens = Peekable<IntoIter<Token>>;

fn pipeline(tokens: &mut Tokens, depth: usize) -> Result<Node, TemplateError> {
    if depth > MAX_DEPTH {
        return syntax("too many parentheses");
    }
    let mut commands = vec![command(tokens, depth)?];
    while tokens.next_if_eq(&Token::Pipe).is_some() {
        let next = command(tokens, depth)?;
        if !matches!(next, Node::Call { .. }) {
            return syntax("only a function can take the result of a pipeline");
        }
        commands.push(next);
    }
    match commands.pop() {
        Some(only) if commands.is_empty() => Ok(only),
        Some(last) => {
            commands.push(last);
            Ok(Node::Pipeline(commands))
        }
        None => syntax("missing value for command"),
    }
}

fn command(tokens: &mut Tokens, depth: usize) -> Result<Node, TemplateError> {
    if let Some(Token::Word(function)) = tokens.next_if(|t| matches!(t, Token::Word(_))) {
        if !functions::exists(&function) {
            return Err(TemplateError::UnknownFunction(function));
        }
        let mut arguments = Vec::new();
        while let Some(argument) = operand(tokens, depth)? {
            arguments.push(argument);
        }
        return Ok(Node::Call { function, arguments });
    }
    let Some(value) = operand(tokens, depth)? else { return syntax("missing value for command") };
    match operand(tokens, depth)? {
        None => Ok(value),
        Some(_) => syntax("a value takes no arguments"),
    }
}

fn operand(tokens: &mut Tokens, depth: usize) -> Result<Option<Node>, TemplateError> {
    match tokens.next_if(|t| !matches!(t, Token::Close | Token::Pipe)) {
        None => Ok(None),
        Some(Token::Literal(value)) => Ok(Some(Node::Literal(value))),
        Some(Token::Field(name)) => Ok(Some(Node::Field(name))),
        Some(Token::Word(function)) if functions::exists(&function) => {
            Ok(Some(Node::Call { function, arguments: Vec::new() }))
        }
        Some(Token::Word(function)) => Err(TemplateError::UnknownFunction(function)),
        Some(_) => {
            let inner = pipeline(tokens, depth + 1)?;
            match tokens.next() {
                Some(Token::Close) => Ok(Some(inner)),
                _ => syntax("unclosed left paren"),
            }
        }
    }
}
