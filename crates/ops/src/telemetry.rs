//! Logs: text on a terminal, one JSON object a line elsewhere, and panics in the same stream.

use std::io::IsTerminal as _;
use std::str::FromStr;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::writer::BoxMakeWriter;

/// The environment variable that overrides the filter, for example `info,holdfast_hub=debug`.
pub const FILTER_ENV: &str = "HOLDFAST_LOG";

/// What is always quieter than asked for: the consensus library reports its normal life at INFO and every message to
/// a member that is away as an ERROR; its owner says what an operator must know.
const QUIET: [&str; 2] = ["openraft=off", "hyper_util=info"];

/// How log lines look.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Format {
    /// Text on a terminal, JSON elsewhere.
    #[default]
    Auto,
    /// Text for people.
    Text,
    /// One JSON object a line.
    Json,
}

/// The text names no log format.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("not a log format; use auto, text or json")]
pub struct BadFormat;

impl FromStr for Format {
    type Err = BadFormat;

    fn from_str(text: &str) -> Result<Self, BadFormat> {
        match text {
            "auto" => Ok(Self::Auto),
            "text" => Ok(Self::Text),
            "json" => Ok(Self::Json),
            _ => Err(BadFormat),
        }
    }
}

/// Why logging could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The filter cannot be read.
    #[error("log filter {filter:?} cannot be read; write for example \"info,holdfast_hub=debug\"")]
    Filter {
        /// The filter as given.
        filter: String,
        /// What the parser said.
        #[source]
        source: tracing_subscriber::filter::ParseError,
    },
    /// It was set up before.
    #[error("logging was set up already")]
    Twice,
}

/// Sets up logging to standard error for the whole process, and reports panics there.
///
/// `filter` is a list of `target=level`; [`FILTER_ENV`] wins over it, and `info` is the default.
///
/// # Errors
/// When the filter cannot be read or logging was set up before.
pub fn init(format: Format, filter: Option<&str>) -> Result<(), Error> {
    let asked = std::env::var(FILTER_ENV).ok().filter(|text| !text.is_empty());
    let filter = parse_filter(asked.as_deref().or(filter).unwrap_or("info"))?;
    let terminal = std::io::stderr().is_terminal();
    let json = match format {
        Format::Auto => !terminal,
        Format::Text => false,
        Format::Json => true,
    };
    let writer = BoxMakeWriter::new(std::io::stderr);
    let base = tracing_subscriber::fmt().with_env_filter(filter).with_writer(writer);
    let done = if json {
        base.json().flatten_event(true).with_current_span(true).with_span_list(false).try_init()
    } else {
        base.with_ansi(terminal && std::env::var_os("NO_COLOR").is_none()).try_init()
    };
    done.map_err(|_| Error::Twice)?;
    report_panics();
    Ok(())
}

fn parse_filter(text: &str) -> Result<EnvFilter, Error> {
    let mut all = text.to_owned();
    for quiet in QUIET {
        let target = quiet.split('=').next().unwrap_or(quiet);
        // Who names the target means it.
        if !text.contains(target) {
            all = format!("{all},{quiet}");
        }
    }
    EnvFilter::builder().parse(&all).map_err(|source| Error::Filter { filter: text.to_owned(), source })
}

fn report_panics() {
    std::panic::set_hook(Box::new(|panic| {
        let place = panic.location().map(ToString::to_string).unwrap_or_default();
        let text = panic.payload_as_str().unwrap_or("no text");
        let thread = std::thread::current().name().unwrap_or("unnamed").to_owned();
        let backtrace = std::backtrace::Backtrace::capture();
        tracing::error!(place, thread, %backtrace, "panic: {text}");
    }));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_noise_of_a_library_is_kept_down_unless_named() {
        let filter = parse_filter("info").unwrap().to_string();
        assert!(filter.contains("openraft=off"), "{filter}");
        let filter = parse_filter("info,openraft=debug").unwrap().to_string();
        assert!(filter.contains("openraft=debug") && !filter.contains("openraft=off"), "{filter}");
    }

    #[test]
    fn a_filter_that_cannot_be_read_is_shown() {
        let error = parse_filter("info,hub=loud").unwrap_err();
        assert!(error.to_string().contains("hub=loud"), "{error}");
        assert_eq!("xml".parse::<Format>(), Err(BadFormat));
    }
}
