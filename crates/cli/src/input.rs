//! Fields given on the command line: `key=value`, `key=@file`, `key=-`, `@file` and `-`.

use std::io::Read;

use anyhow::{Context, Result, bail};
use serde_json::{Map, Value};

use crate::terminal;

/// Turns command-line fields into the body of a request. A key given twice becomes a list.
pub fn fields(args: &[String]) -> Result<Map<String, Value>> {
    let mut map = Map::new();
    for arg in args {
        match arg.split_once('=') {
            Some((key, value)) if !key.is_empty() => add(&mut map, key, value_of(key, value)?),
            _ if arg == "-" || arg.starts_with('@') => map.extend(object(&text_of(arg)?)?),
            _ => bail!("{arg:?} is not key=value, @file or -"),
        }
    }
    Ok(map)
}

/// The text behind `-` (standard input) or `@file`; anything else is the text itself.
pub fn text_of(arg: &str) -> Result<String> {
    if arg == "-" {
        let mut text = String::new();
        std::io::stdin().read_to_string(&mut text).context("cannot read standard input")?;
        return Ok(text);
    }
    match arg.strip_prefix('@') {
        Some(file) => std::fs::read_to_string(file).with_context(|| format!("cannot read {file:?}")),
        None => Ok(arg.to_owned()),
    }
}

/// As [`text_of`], for one line that is secret: at a terminal `-` asks for it and does not show it. Without blanks and
/// line ends around it.
pub fn secret_of(arg: &str, what: &str) -> Result<String> {
    let text = if arg == "-" && terminal::is_there() { terminal::secret(what)? } else { text_of(arg)? };
    Ok(text.trim().to_owned())
}

/// What stands behind `key=`. Files and standard input lose one line end, which editors and commands put behind a secret.
fn value_of(key: &str, text: &str) -> Result<Value> {
    // A backslash keeps a leading @ or - from being special.
    if let Some(literal) = text.strip_prefix('\\').filter(|t| t.starts_with('@') || *t == "-") {
        return Ok(Value::from(literal));
    }
    if text == "-" && terminal::is_there() {
        return terminal::secret(&format!("{key} (not shown)")).map(Value::from);
    }
    let value = text_of(text)?;
    if text != "-" && !text.starts_with('@') {
        return Ok(Value::from(value));
    }
    let line = value.strip_suffix('\n').map(|line| line.strip_suffix('\r').unwrap_or(line));
    Ok(Value::from(line.unwrap_or(&value)))
}

fn add(map: &mut Map<String, Value>, key: &str, value: Value) {
    match map.get_mut(key) {
        None => {
            map.insert(key.to_owned(), value);
        }
        Some(Value::Array(list)) => list.push(value),
        Some(single) => *single = Value::Array(vec![single.take(), value]),
    }
}

fn object(text: &str) -> Result<Map<String, Value>> {
    match serde_json::from_str(text).context("the input is not JSON")? {
        Value::Object(map) => Ok(map),
        _ => bail!("the input is not a JSON object"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn keys_given_twice_become_a_list() {
        let args = ["a=1", "b=x=y", "a=2", "a=3", "c="].map(String::from);
        assert_eq!(Value::Object(fields(&args).unwrap()), json!({"a": ["1", "2", "3"], "b": "x=y", "c": ""}));
    }

    #[test]
    fn a_file_gives_a_value_or_the_whole_body() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("f");
        std::fs::write(&file, "{\"x\": 1}").unwrap();
        let path = file.display();
        let map = fields(&[format!("v=@{path}"), format!("@{path}"), "e=\\@home".into()]).unwrap();
        assert_eq!(Value::Object(map), json!({"v": "{\"x\": 1}", "x": 1, "e": "@home"}));
        assert!(fields(&["plain".into()]).is_err());
        assert!(fields(&["v=@/does/not/exist".into()]).is_err());
    }

    #[test]
    fn a_file_loses_one_line_end_and_what_is_given_loses_none() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("pw.txt");
        for (content, expected) in
            [("pw\n", "pw"), ("pw\r\n", "pw"), ("pw", "pw"), ("a\nb\n\n", "a\nb\n"), ("\n", "")]
        {
            std::fs::write(&file, content).unwrap();
            let map = fields(&[format!("v=@{}", file.display())]).unwrap();
            assert_eq!(map["v"], expected, "{content:?}");
        }
        assert_eq!(fields(&["v=x\n".into()]).unwrap()["v"], "x\n");
    }
}
