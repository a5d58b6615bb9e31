//! Configuration files: one, or all of a directory in name order.

use std::path::{Path, PathBuf};
use std::rc::Rc;

use super::node::Node;
use super::problems::Problems;

/// A configuration file is written by hand; a larger one is the wrong file.
const MAX_BYTES: u64 = 4 << 20;

#[derive(Clone, Copy)]
enum Format {
    Toml,
    Yaml,
}

fn format_of(path: &Path) -> Option<Format> {
    match path.extension()?.to_str()? {
        "toml" => Some(Format::Toml),
        "yaml" | "yml" => Some(Format::Yaml),
        _ => None,
    }
}

/// Reads `path` and lays it over `tree`.
pub(super) fn read_into(path: &Path, tree: &mut Node, problems: &mut Problems) {
    let files = match list(path) {
        Ok(files) => files,
        Err(error) => {
            let fix = "name a file that ends in .toml, .yaml or .yml, or a directory with such files";
            problems.push(&path.display().to_string(), "", format!("cannot be read ({error})"), fix);
            return;
        }
    };
    for file in files {
        let source: Rc<str> = file.display().to_string().into();
        match read(&file, &source) {
            Ok(node) => tree.merge(node),
            Err(what) => problems.push(&source, "", what, "correct the file"),
        }
    }
}

fn list(path: &Path) -> std::io::Result<Vec<PathBuf>> {
    if !std::fs::metadata(path)?.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let mut files = Vec::new();
    for entry in std::fs::read_dir(path)? {
        let file = entry?.path();
        // Names with a dot in front are an editor's or a Kubernetes volume's own business.
        let hidden = file.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
        if !hidden && format_of(&file).is_some() && file.is_file() {
            files.push(file);
        }
    }
    files.sort();
    if files.is_empty() {
        return Err(std::io::Error::other("the directory has no .toml, .yaml or .yml file"));
    }
    Ok(files)
}

fn read(file: &Path, source: &Rc<str>) -> Result<Node, String> {
    let format = format_of(file).ok_or("has an unknown ending, not .toml, .yaml or .yml")?;
    let unreadable = |error: std::io::Error| format!("cannot be read ({error})");
    if std::fs::metadata(file).map_err(unreadable)?.len() > MAX_BYTES {
        return Err("is larger than 4 MiB".to_owned());
    }
    let text = std::fs::read_to_string(file).map_err(unreadable)?;
    match format {
        Format::Toml => match text.parse::<toml::Table>() {
            Ok(table) => Ok(Node::from_toml(toml::Value::Table(table), source)),
            Err(error) => Err(format!("is not TOML ({})", place(&text, &error))),
        },
        Format::Yaml if text.trim().is_empty() => Ok(Node::table(source)),
        Format::Yaml => match serde_saphyr::from_str_with_options::<serde_json::Value>(&text, yaml_options())
        {
            Ok(serde_json::Value::Null) => Ok(Node::table(source)),
            Ok(value @ serde_json::Value::Object(_)) => Ok(Node::from_json(value, source)),
            Ok(_) => Err("is not a table at its top".to_owned()),
            Err(error) => Err(format!("is not YAML ({})", first_line(&error.to_string()))),
        },
    }
}

/// YAML 1.2, in which `y` and `no` are text; and no message that quotes the file, which may hold a secret.
fn yaml_options() -> serde_saphyr::Options {
    serde_saphyr::options! { strict_booleans: true, with_snippet: false }
}

/// The message with its line, without quoting the file, which may hold a secret.
fn place(text: &str, error: &toml::de::Error) -> String {
    let message = first_line(error.message()).to_owned();
    match error.span().and_then(|span| text.get(..span.start)) {
        Some(before) => format!("line {}: {message}", before.matches('\n').count() + 1),
        None => message,
    }
}

fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or(text)
}
