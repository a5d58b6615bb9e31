//! Go's way to write a time format: the reference time `Mon Jan 2 15:04:05 MST 2006`, written as wished.

use jiff::Timestamp;

/// Layout pieces and what they stand for, longest first where one begins another.
const PIECES: [(&str, &str); 28] = [
    ("January", "%B"),
    ("Jan", "%b"),
    ("Monday", "%A"),
    ("Mon", "%a"),
    ("MST", "UTC"),
    ("2006", "%Y"),
    ("Z07:00", "Z"),
    ("Z0700", "Z"),
    ("-07:00", "+00:00"),
    ("-0700", "+0000"),
    ("-07", "+00"),
    ("002", "%j"),
    ("01", "%m"),
    ("02", "%d"),
    ("03", "%I"),
    ("04", "%M"),
    ("05", "%S"),
    ("06", "%y"),
    ("15", "%H"),
    (".000000000", ".%9f"),
    (".000000", ".%6f"),
    (".000", ".%3f"),
    ("_2", "%e"),
    ("PM", "%p"),
    ("pm", "%P"),
    ("1", "%-m"),
    ("2", "%-d"),
    ("3", "%-I"),
];

pub(super) fn format(layout: &str, now: Timestamp) -> Result<String, String> {
    let layout = if layout.is_empty() { "2006-01-02T15:04:05Z" } else { layout };
    let mut out = String::new();
    let mut rest = layout;
    while let Some(c) = rest.chars().next() {
        match PIECES.iter().find(|(piece, _)| rest.starts_with(piece)) {
            Some((piece, meaning)) => {
                out.push_str(&piece_text(meaning, now)?);
                rest = rest.get(piece.len()..).unwrap_or_default();
            }
            None => {
                out.push(c);
                rest = rest.get(c.len_utf8()..).unwrap_or_default();
            }
        }
    }
    Ok(out)
}

fn piece_text(meaning: &str, now: Timestamp) -> Result<String, String> {
    jiff::fmt::strtime::format(meaning, now).map_err(|e| e.to_string())
}
