//! The functions of username templates. The piped value is always the last argument.

use aws_lc_rs::digest::{SHA256, digest};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;

use super::{TemplateError, Value, layout};
use crate::names::random_text;

/// Names longer than any database takes are refused early.
const MAX_LENGTH: i64 = 1024;
/// How many characters of the digest `truncate_sha256` keeps.
const DIGEST_CHARS: usize = 8;

/// The functions that exist.
const FUNCTIONS: [&str; 14] = [
    "random",
    "truncate",
    "truncate_sha256",
    "uppercase",
    "lowercase",
    "replace",
    "timestamp",
    "unix_time",
    "unix_time_millis",
    "uuid",
    "base64",
    "sha256",
    "printf",
    "print",
];

pub(super) fn exists(function: &str) -> bool {
    FUNCTIONS.contains(&function)
}

pub(super) fn call(function: &str, arguments: &[Value], now: Timestamp) -> Result<Value, TemplateError> {
    let fail = |problem: String| TemplateError::Call { function: function.to_owned(), problem };
    apply(function, arguments, now).map(Value::Text).map_err(fail)
}

fn apply(function: &str, arguments: &[Value], now: Timestamp) -> Result<String, String> {
    use Value::{Number, Text};
    match (function, arguments) {
        ("random", [n]) => Ok(random_text(count(n)?)),
        ("truncate", [n, text]) => Ok(text.to_string().chars().take(count(n)?).collect()),
        ("truncate_sha256", [n, text]) => truncate_sha256(count(n)?, &text.to_string()),
        ("uppercase", [text]) => Ok(text.to_string().to_uppercase()),
        ("lowercase", [text]) => Ok(text.to_string().to_lowercase()),
        ("replace", [from, to, text]) => Ok(text.to_string().replace(&from.to_string(), &to.to_string())),
        ("timestamp", [Text(layout)]) => layout::format(layout, now),
        ("unix_time", []) => Ok(now.as_second().to_string()),
        ("unix_time_millis", []) => Ok(now.as_millisecond().to_string()),
        ("uuid", []) => Ok(uuid::Uuid::new_v4().to_string()),
        ("base64", [text]) => Ok(STANDARD.encode(text.to_string())),
        ("sha256", [text]) => Ok(sha256(&text.to_string())),
        ("printf", [Text(format), rest @ ..]) => printf(format, rest),
        ("printf", [Number(_), ..]) => Err("the format must be a string".to_owned()),
        ("print", values) => Ok(values.iter().map(ToString::to_string).collect()),
        _ => Err(format!("does not take these {} arguments", arguments.len())),
    }
}

fn count(value: &Value) -> Result<usize, String> {
    let number = match value {
        Value::Number(number) => *number,
        Value::Text(text) => text.parse().map_err(|_| format!("\"{text}\" is not a number"))?,
    };
    if !(1..=MAX_LENGTH).contains(&number) {
        return Err(format!("the length must be between 1 and {MAX_LENGTH}"));
    }
    usize::try_from(number).map_err(|e| e.to_string())
}

fn sha256(text: &str) -> String {
    hex::encode(digest(&SHA256, text.as_bytes()))
}

/// Cuts to `max` characters, the last eight of which are a digest of what was cut off.
fn truncate_sha256(max: usize, text: &str) -> Result<String, String> {
    let Some(keep) = max.checked_sub(DIGEST_CHARS).filter(|keep| *keep > 0) else {
        return Err(format!("the length must be more than {DIGEST_CHARS}"));
    };
    if text.chars().count() <= max {
        return Ok(text.to_owned());
    }
    let cut: String = text.chars().skip(keep).collect();
    let digest: String = sha256(&cut).chars().take(DIGEST_CHARS).collect();
    Ok(text.chars().take(keep).chain(digest.chars()).collect())
}

fn printf(format: &str, arguments: &[Value]) -> Result<String, String> {
    let mut out = String::new();
    let mut arguments = arguments.iter();
    let mut chars = format.chars().peekable();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let (mut left, mut zero, mut width) = (false, false, String::new());
        while let Some(flag) = chars.next_if(|c| c.is_ascii_digit() || *c == '-') {
            match flag {
                '-' => left = true,
                '0' if width.is_empty() => zero = true,
                digit => width.push(digit),
            }
        }
        let verb = chars.next().ok_or("the format ends in %")?;
        if verb == '%' {
            out.push('%');
            continue;
        }
        let value = arguments.next().ok_or("more verbs than arguments")?;
        let width: usize = if width.is_empty() { 0 } else { width.parse().map_err(|_| "bad width")? };
        if i64::try_from(width).map_or(true, |w| w > MAX_LENGTH) {
            return Err("width too large".to_owned());
        }
        out.push_str(&padded(
            &verb_text(verb, value)?,
            width,
            left,
            zero && matches!(value, Value::Number(_)),
        ));
    }
    if arguments.next().is_some() {
        return Err("more arguments than verbs".to_owned());
    }
    Ok(out)
}

fn verb_text(verb: char, value: &Value) -> Result<String, String> {
    match (verb, value) {
        ('s' | 'v', _) | ('d', Value::Number(_)) => Ok(value.to_string()),
        // What other implementations keep as a number is text here; a verb for numbers takes it all the same.
        ('d', Value::Text(text)) if text.parse::<i64>().is_ok() => Ok(text.clone()),
        ('x', Value::Number(number)) => Ok(format!("{number:x}")),
        ('x', Value::Text(text)) => Ok(hex::encode(text)),
        ('X', Value::Number(number)) => Ok(format!("{number:X}")),
        ('X', Value::Text(text)) => Ok(hex::encode_upper(text)),
        _ => Err(format!("verb %{verb} does not fit its argument")),
    }
}

fn padded(text: &str, width: usize, left: bool, zero: bool) -> String {
    let fill = width.saturating_sub(text.chars().count());
    match (left, zero) {
        (true, _) => format!("{text}{}", " ".repeat(fill)),
        (false, true) => format!("{}{text}", "0".repeat(fill)),
        (false, false) => format!("{}{text}", " ".repeat(fill)),
    }
}
