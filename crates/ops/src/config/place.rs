//! Where in the sources of a configuration something stands.

use std::fmt;

/// A position in a file; both count from 1.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct Position {
    /// The line.
    pub line: usize,
    /// The column, in characters.
    pub column: usize,
}

impl Position {
    /// The position of a byte of a text; the last one when the byte lies behind it.
    pub fn of(text: &str, byte: usize) -> Self {
        let mut byte = byte.min(text.len());
        while !text.is_char_boundary(byte) {
            byte -= 1;
        }
        let before = text.get(..byte).unwrap_or_default();
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
        Self { line, column }
    }
}

/// A source, and where in it: `FILE:LINE:COLUMN`, or the source alone.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct Place {
    /// A file, an environment variable, a flag, or `default` when nobody set the value.
    pub source: String,
    /// Where in the file.
    pub at: Option<Position>,
}

impl Place {
    /// A whole source.
    pub fn whole(source: impl Into<String>) -> Self {
        Self { source: source.into(), at: None }
    }

    /// `FILE:LINE`, for texts that name a second place.
    pub fn line(&self) -> String {
        match self.at {
            Some(at) => format!("{}:{}", self.source, at.line),
            None => self.source.clone(),
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.at {
            Some(at) => write!(f, "{}:{}:{}", self.source, at.line, at.column),
            None => f.write_str(&self.source),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_count_characters_from_one() {
        let text = "a\nbü = x\n";
        let at = |line, column| Position { line, column };
        assert_eq!(Position::of(text, 0), at(1, 1));
        assert_eq!(Position::of(text, 2), at(2, 1));
        assert_eq!(Position::of(text, text.find('x').unwrap()), at(2, 6));
        assert_eq!(Position::of(text, 4), at(2, 2), "inside a character is its begin");
        assert_eq!(Position::of(text, 99), at(3, 1));
    }

    #[test]
    fn a_place_shows_as_compilers_show_it() {
        let place = Place { source: "a.toml".into(), at: Some(Position { line: 4, column: 7 }) };
        assert_eq!((place.to_string(), place.line()), ("a.toml:4:7".into(), "a.toml:4".into()));
        assert_eq!(Place::whole("environment X").to_string(), "environment X");
    }
}
