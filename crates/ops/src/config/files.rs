//! Configuration files: one, or all of a directory in name order.

use std::path::{Path, PathBuf};
use std::rc::Rc;

use super::node::Node;
use super::place::{Place, Position};
use super::problems::Problems;
use super::{parse_toml, parse_yaml};

/// A configuration file is written by hand; a larger one is the wrong file.
const MAX_BYTES: u64 = 4 << 20;

#[derive(Clone, Copy, Eq, PartialEq)]
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

/// What a file says, and what is wrong with how it says it.
pub(super) struct Parsed {
    pub(super) node: Node,
    pub(super) faults: Vec<Fault>,
    pub(super) duplicates: Vec<Duplicate>,
}

/// A text that does not follow its format.
pub(super) struct Fault {
    pub(super) at: Option<Position>,
    pub(super) text: String,
}

/// A key that one file sets twice.
pub(super) struct Duplicate {
    pub(super) path: Vec<String>,
    pub(super) first: Position,
    pub(super) second: Position,
}

/// The files that `path` stands for; of a directory those with a known ending, in name order.
///
/// # Errors
/// When the directory cannot be read or has none.
pub(super) fn list(path: &Path, toml_only: bool) -> std::io::Result<Vec<PathBuf>> {
    if !std::fs::metadata(path)?.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let mut files = Vec::new();
    for entry in std::fs::read_dir(path)? {
        let file = entry?.path();
        // Names with a dot in front are an editor's or a Kubernetes volume's own business.
        let hidden = file.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
        let known = format_of(&file).is_some_and(|format| !toml_only || format == Format::Toml);
        if !hidden && known && file.is_file() {
            files.push(file);
        }
    }
    files.sort();
    if files.is_empty() {
        let endings = if toml_only { ".toml" } else { ".toml, .yaml or .yml" };
        return Err(std::io::Error::other(format!("the directory has no {endings} file")));
    }
    Ok(files)
}

/// Reads one file. The error says what is wrong with the file as a whole.
pub(super) fn read(file: &Path) -> Result<Parsed, String> {
    let format = format_of(file).ok_or("has an unknown ending, not .toml, .yaml or .yml")?;
    let unreadable = |error: std::io::Error| format!("cannot be read ({error})");
    if std::fs::metadata(file).map_err(unreadable)?.len() > MAX_BYTES {
        return Err("is larger than 4 MiB".to_owned());
    }
    let text = std::fs::read_to_string(file).map_err(unreadable)?;
    let source: Rc<str> = file.display().to_string().into();
    Ok(match format {
        Format::Toml => parse_toml::parse(&text, &source),
        Format::Yaml => parse_yaml::parse(&text, &source),
    })
}

/// Reads one file and reports what is wrong with it; `None` when it cannot be used.
pub(super) fn read_whole(file: &Path, every_fault: bool, problems: &mut Problems) -> Option<Parsed> {
    let source = file.display().to_string();
    let parsed = match read(file) {
        Ok(parsed) => parsed,
        Err(what) => {
            problems.push(&Place::whole(source), "", what, "correct the file");
            return None;
        }
    };
    let format = if format_of(file) == Some(Format::Toml) { "TOML" } else { "YAML" };
    let faults = parsed.faults.iter().take(if every_fault { usize::MAX } else { 1 });
    for Fault { at, text } in faults {
        let line = at.map(|at| format!("line {}: ", at.line)).filter(|_| !text.starts_with("line "));
        let what = format!("is not {format} ({}{text})", line.unwrap_or_default());
        problems.push(&Place { source: source.clone(), at: *at }, "", what, "correct the file");
    }
    parsed.faults.is_empty().then_some(parsed)
}
