//! From files, environment and flags to a configuration that passed all checks.
//!
//! What must hold: nothing of a configuration is used before all of it is good; every problem is told, not the first one.

mod problems;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

pub use self::problems::{Problem, Problems, Severity};
use crate::binding::Binding;
use crate::binding::scheme::UpstreamKind;
use crate::config::{ConfigSettings, UpstreamSettings};
use crate::digest::Digests;

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
pub fn load(path: &Path, _overrides: &Overrides) -> Result<Arc<Configuration>, Problems> {
    Err(Problems::of(path, "this build cannot load a configuration yet"))
}
