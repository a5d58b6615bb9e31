//! From files, environment and flags to a configuration that passed all checks.
//!
//! What must hold: nothing of a configuration is used before all of it is good; every problem is told, not the first one.

pub(crate) mod bounds;
pub mod explain;
pub mod key_file;
pub mod listeners;
mod paths;
mod problems;
mod read;
pub(crate) mod report;
mod upstreams;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use holdfast_ops::config::{Place, Tree};

pub use self::problems::{Problem, Problems, Severity};
use self::report::Report;
use crate::auth::Authenticator;
use crate::binding::scheme::UpstreamKind;
use crate::binding::{Binding, table};
use crate::config::{ConfigSettings, UpstreamSettings};
use crate::digest::Digests;
use crate::policy::Policy;

/// What the command line adds to the files.
#[derive(Clone, Debug, Default)]
pub struct Overrides {
    /// The name of the replica.
    pub node_id: Option<String>,
    /// `KEY=VALUE` of any key.
    pub set: Vec<String>,
    /// Another environment than the process's.
    pub environment: Option<Vec<(OsString, OsString)>>,
}

/// A configuration that passed all checks. Paths in it are absolute, or relative to the working directory.
#[derive(Clone, Debug)]
pub struct Configuration {
    /// The keys, with defaults.
    pub settings: ConfigSettings,
    /// All bindings, of whatever file.
    pub bindings: BTreeMap<Arc<str>, Binding>,
    /// All upstreams, with the implicit `static`.
    pub upstreams: BTreeMap<Arc<str>, Upstream>,
    /// What callers may do.
    pub policy: Arc<Policy>,
    /// Who callers are.
    pub authenticator: Arc<Authenticator>,
    /// What replicas must have in common.
    pub digest: Digests,
    /// Every file and directory whose change is a reason to load again.
    pub files: Vec<PathBuf>,
    /// What is allowed, and probably not meant.
    pub warnings: Vec<Problem>,
}

/// An upstream that passed all checks.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Upstream {
    /// Its name, `[upstream.NAME]`.
    pub name: Arc<str>,
    /// Its type.
    pub kind: UpstreamKind,
    /// Calls at once; 16 (1-256).
    pub concurrency: usize,
    /// How often a watched object is confirmed; 60 s (5 s-1 h).
    pub confirm: Duration,
    /// After how much silence a watch connection is rebuilt; 45 s (5 s-10 m).
    pub watch_idle: Duration,
    /// The keys of its type: the mandatory ones are there, those of other types are not.
    pub settings: UpstreamSettings,
}

/// Reads and checks everything that `path`, a file or a directory of `*.toml`, leads to.
///
/// # Errors
/// All problems at once; the process prints them and exits with [`holdfast_ops::exit::CONFIG`].
pub fn load(path: &Path, overrides: &Overrides) -> Result<Arc<Configuration>, Problems> {
    let read::Read { mut settings, tree, wrong, beside } = read::read(path, overrides)?;
    let mut report = Report::new(&tree, &wrong, path);
    let mut files = tree.files().to_vec();
    files.extend(path.is_dir().then(|| path.to_owned()));
    files.extend(paths::resolve(&mut settings, &mut report));
    bounds::check(&settings, &mut report);
    listeners::check(&settings, &mut report);
    let upstreams = upstreams::check(&settings, &mut report);
    let bindings = table::build(&settings, &mut report);
    let policy = policy(&settings, &tree, &mut report);
    let authenticator = Authenticator::new(settings.auth.as_ref(), &settings.listener)
        .map_err(|faults| faults.into_iter().for_each(|fault| report.problem(fault)));
    let mut problems = beside;
    problems.append(report.into_problems());
    let problems = problems.sorted();
    match (policy, authenticator) {
        (Some(policy), Ok(authenticator)) if !problems.has_errors() => {
            let usual = table::defaults(&settings.defaults);
            let digest = Digests::new(&bindings, &policy, &usual, &settings.limits);
            settings.node_id.get_or_insert_with(host_name);
            Ok(Arc::new(Configuration {
                settings,
                bindings,
                upstreams,
                policy: Arc::new(policy),
                authenticator: Arc::new(authenticator),
                digest,
                files,
                warnings: problems.into_iter().collect(),
            }))
        }
        _ => Err(problems),
    }
}

/// The rules of the policy's file were read with the rest.
fn policy(settings: &ConfigSettings, tree: &Tree, report: &mut Report<'_>) -> Option<Policy> {
    let place = |index: usize| {
        let place = tree.place(&["policy", "rule", &index.to_string()]);
        place.unwrap_or_else(|| Place::whole("policy.rule"))
    };
    let policy = Policy::new(settings.policy.as_ref(), place);
    policy.map_err(|faults| faults.into_iter().for_each(|fault| report.problem(fault))).ok()
}

/// What the system calls this machine.
fn host_name() -> String {
    let name = nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok());
    name.filter(|name| !name.is_empty()).unwrap_or_else(|| "localhost".to_owned())
}

#[cfg(test)]
mod tests;
