//! Completions and man pages, made from the same definitions as the commands.

use std::path::Path;
use std::process::ExitCode;

use clap::CommandFactory;

use super::Outcome;
use crate::args::Cli;

/// Prints a completion script.
pub fn completions(shell: clap_complete::Shell) -> Outcome {
    clap_complete::generate(shell, &mut Cli::command(), "holdfast", &mut std::io::stdout());
    Ok(ExitCode::SUCCESS)
}

/// Writes a man page for every command.
pub fn man_pages(dir: &Path) -> Outcome {
    std::fs::create_dir_all(dir)?;
    clap_mangen::generate_to(Cli::command(), dir)?;
    Ok(ExitCode::SUCCESS)
}
