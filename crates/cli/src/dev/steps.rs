//! The list of steps that a start goes through, with times.

use std::io::IsTerminal;
use std::time::Instant;

use owo_colors::OwoColorize;

use crate::output::Printer;

/// Prints each step as it is done.
pub struct Steps {
    print: Printer,
    started: Instant,
}

impl Steps {
    /// The clock starts now.
    pub fn new(print: Printer) -> Self {
        Self { print, started: Instant::now() }
    }

    /// A step is done.
    pub fn done(&mut self, what: &str) {
        let seconds = self.started.elapsed().as_secs_f64();
        let mark = if std::io::stdout().is_terminal() { "✓".green().to_string() } else { "✓".to_owned() };
        self.print.progress(format!("{mark} {seconds:6.2} s  {what}"));
    }
}
