//! Reading: the files, those that they name, environment and flags, up to settings without checks.

use std::path::Path;

use holdfast_ops::config::{Draft, Loader, Place, Tree};

use super::Overrides;
use super::problems::Problems;
use super::report;
use crate::config::ConfigSettings;

/// What was read.
pub struct Read {
    /// The settings; defaults stand in for what is wrong.
    pub settings: ConfigSettings,
    /// Where everything stands.
    pub tree: Tree,
    /// What the parser found.
    pub wrong: holdfast_ops::config::Problems,
    /// What is odd about the files themselves.
    pub beside: Problems,
}

/// Reads everything.
///
/// # Errors
/// When a file cannot be read as a whole: what the others lack may stand there.
pub fn read(path: &Path, overrides: &Overrides) -> Result<Read, Problems> {
    let mut draft = loader(path, overrides).read();
    let mut beside = Problems::default();
    for (text, place) in draft.texts("bind_files") {
        let file = draft.resolve(&text, &place);
        for other in draft.include(&file, "bindings", "bindings") {
            let text = format!("\"{}\" is ignored: a bind file has one key, bindings", other.key);
            beside.warning(other.place, text);
        }
    }
    if let Some((text, place)) = draft.texts("policy.file").into_iter().next() {
        include_policy(&mut draft, &text, &place, &mut beside);
    }
    let broken = draft.is_broken();
    let (settings, tree, wrong) = draft.parse::<ConfigSettings>();
    match settings {
        Some(settings) if !broken => Ok(Read { settings, tree, wrong, beside }),
        _ => {
            let files = |problem: &&holdfast_ops::config::Problem| !broken || problem.key.is_empty();
            for problem in wrong.iter().filter(files) {
                beside.error(problem.place.clone(), report::text_of(problem));
            }
            Err(beside.sorted())
        }
    }
}

fn loader(path: &Path, overrides: &Overrides) -> Loader {
    let mut loader = Loader::new("config").own_files("HOLDFAST_CONFIG__", "bindings").path(path);
    if let Some(environment) = &overrides.environment {
        loader = loader.environment(environment.iter().cloned());
    }
    for text in &overrides.set {
        loader = loader.flag(text);
    }
    match &overrides.node_id {
        Some(node) => loader.set("node_id", node),
        None => loader,
    }
}

fn include_policy(draft: &mut Draft, text: &str, place: &Place, beside: &mut Problems) {
    let file = draft.resolve(text, place);
    for other in draft.include(&file, "rule", "policy.rule") {
        let text = format!("{} is not a known key: a policy file has [[rule]] only", other.key);
        beside.error(other.place, text);
    }
}
