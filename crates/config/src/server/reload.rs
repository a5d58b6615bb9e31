//! Reading the configuration again: when, and what it changes.
//!
//! What must hold: a configuration that is bad in any part changes nothing; one that is good counts as a whole, but for what
//! needs a restart, which is told; certificates that are bad stay out by themselves.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use aws_lc_rs::digest;
use holdfast_net::serve::WriteStall;
use holdfast_net::server_tls::ServerTls;
use holdfast_ops::Tasks;
use tokio::sync::Notify;

use super::{Core, Source, hub_settings, inside};
use crate::api::World;
use crate::clock::wall;
use crate::config::ConfigSettings;
use crate::load::{self, Configuration};
use crate::metrics::Reload;
use crate::upstream::file::watch::{Directories, Subscription};

/// The files are looked at this often even when nothing tells of a change.
const LOOK: Duration = Duration::from_secs(30);

/// Everything about reloads.
pub(super) struct Reloads {
    source: Source,
    /// As it was at the start: what needs a restart is compared with it.
    first: Arc<Configuration>,
    current: Arc<Configuration>,
    generation: u64,
    tls: Vec<Arc<ServerTls>>,
    write_stall: WriteStall,
    directories: Arc<Directories>,
    /// Of the contents that were read last.
    seen: Option<Seen>,
}

type Seen = [u8; 32];

impl Reloads {
    pub(super) fn new(
        source: Source,
        configuration: Arc<Configuration>,
        (tls, write_stall): (Vec<Arc<ServerTls>>, WriteStall),
    ) -> Self {
        let seen = Some(contents(&configuration.files));
        let first = Arc::clone(&configuration);
        let directories = Arc::default();
        Self { source, first, current: configuration, generation: 1, tls, write_stall, directories, seen }
    }

    /// What counts now.
    pub(super) const fn current(&self) -> &Arc<Configuration> {
        &self.current
    }

    /// Watches the files of what counts now.
    pub(super) fn watch(&self) -> Watching {
        let settings = &self.current.settings.reload;
        let dirty = Arc::new(Notify::new());
        let mut held = Vec::new();
        if settings.watch {
            for file in &self.current.files {
                match self.directories.subscribe_with(Arc::clone(&dirty)) {
                    Ok(mut subscription) => {
                        // Events name whole paths.
                        let file = std::path::absolute(file).unwrap_or_else(|_| file.clone());
                        if let Err(error) = subscription.aim(&file, file.is_dir()) {
                            tracing::warn!(file = %file.display(), %error, "a file of the configuration cannot be watched");
                        }
                        held.push(subscription);
                    }
                    Err(error) => tracing::warn!(%error, "the configuration cannot be watched"),
                }
            }
        }
        Watching { watch: settings.watch, debounce: settings.debounce.get(), dirty, _held: held }
    }

    /// Whether the files differ from what was read last.
    pub(super) async fn has_changed(&mut self, tasks: &Tasks) -> bool {
        let files = self.current.files.clone();
        let now = tasks.spawn_blocking("look", move || contents(&files)).join().await;
        now.is_some() && now != self.seen
    }

    /// Resolves when a rule of the policy ceases to count.
    pub(super) async fn rule_ends(&self) {
        let now = wall();
        match self.current.policy.next_change(now) {
            Some(at) => tokio::time::sleep(at.since(now) + Duration::from_millis(1)).await,
            None => std::future::pending().await,
        }
    }

    /// Reads everything again and applies it. Whether it counts.
    pub(super) async fn run(&mut self, core: &Core, tasks: &Tasks) -> bool {
        for tls in &self.tls {
            if let Err(error) = tls.reload() {
                tracing::error!(%error, "the TLS files cannot be used; the former ones stay");
            }
        }
        let (source, files) = (self.source.clone(), self.current.files.clone());
        let read = tasks.spawn_blocking("load", move || {
            let seen = contents(&files);
            (load::load(&source.path, &source.overrides), seen)
        });
        let Some((loaded, seen)) = read.join().await else { return false };
        self.seen = Some(seen);
        let applied = match loaded {
            Ok(configuration) => self.apply(core, configuration).await,
            Err(problems) => Err(problems.to_string()),
        };
        core.meters.reload(if applied.is_ok() { Reload::Applied } else { Reload::Rejected });
        if let Err(problem) = &applied {
            tracing::error!(problem, "the configuration is bad; the former one counts on");
            core.inside.rejected(problem.clone());
        }
        applied.is_ok()
    }

    async fn apply(&mut self, core: &Core, configuration: Arc<Configuration>) -> Result<(), String> {
        let settings = &configuration.settings;
        let fleet_key = inside::fleet_key(settings).map_err(|error| error.to_string())?;
        core.audit.apply(&settings.audit).map_err(|error| format!("the audit cannot be written: {error}"))?;
        if let Err(error) = core.engine.apply(&configuration) {
            // What worked before works again.
            let _ = core.audit.apply(&self.current.settings.audit);
            return Err(error.to_string());
        }
        core.hops.apply(&configuration);
        for empty in configuration.authenticator.empty() {
            tracing::error!(problem = empty.problem().what, "nobody can log in with it");
        }
        core.limits.apply(&settings.limits);
        core.hub.set(hub_settings(&settings.watch));
        self.write_stall.set(settings.watch.write_stall.get());
        self.generation += 1;
        let restart_required = needs_restart(&self.first.settings, settings);
        if !restart_required.is_empty() {
            tracing::warn!(keys = restart_required.join(", "), "changed keys count after a restart");
        }
        self.seen = Some(contents(&configuration.files));
        self.current = Arc::clone(&configuration);
        core.api.apply(World { generation: self.generation, configuration });
        core.inside.applied(restart_required, fleet_key);
        core.meters.generation.set(i64::try_from(self.generation).unwrap_or(i64::MAX));
        core.hub.applied(self.generation).await;
        tracing::info!(
            generation = self.generation,
            digest = self.current.digest.whole.short(),
            "configuration applied"
        );
        Ok(())
    }
}

/// Waits for changes of files.
pub(super) struct Watching {
    watch: bool,
    debounce: Duration,
    dirty: Arc<Notify>,
    _held: Vec<Subscription>,
}

impl Watching {
    /// Resolves when files may have changed and are quiet again.
    pub(super) async fn changed(&self) {
        if !self.watch {
            return std::future::pending().await;
        }
        if tokio::time::timeout(LOOK, self.dirty.notified()).await.is_err() {
            return;
        }
        while tokio::time::timeout(self.debounce, self.dirty.notified()).await.is_ok() {}
    }
}

/// The keys that differ and count only after a restart.
fn needs_restart(first: &ConfigSettings, now: &ConfigSettings) -> Vec<String> {
    let shown = |settings: &ConfigSettings| {
        [
            ("listener", format!("{:?}", settings.listener)),
            ("node_id", format!("{:?}", settings.node_id)),
            ("lkg.dir", format!("{:?}", settings.lkg.dir)),
            ("metrics.addr", format!("{:?}", settings.metrics.addr)),
            ("probe.addr", format!("{:?}", settings.probe.addr)),
        ]
    };
    let both = shown(first).into_iter().zip(shown(now));
    both.filter(|(before, after)| before.1 != after.1).map(|(before, _)| before.0.to_owned()).collect()
}

/// A digest of what the files hold and of what the directories list. What cannot be read counts as what it says.
fn contents(files: &[PathBuf]) -> Seen {
    let mut hash = digest::Context::new(&digest::SHA256);
    let mut add = |bytes: &[u8]| {
        hash.update(&(bytes.len() as u64).to_be_bytes());
        hash.update(bytes);
    };
    for file in files {
        add(file.as_os_str().as_encoded_bytes());
        match read(file) {
            Ok(bytes) => add(&bytes),
            Err(error) => add(error.kind().to_string().as_bytes()),
        }
    }
    let mut seen = [0; 32];
    seen.iter_mut().zip(hash.finish().as_ref()).for_each(|(to, from)| *to = *from);
    seen
}

fn read(path: &Path) -> std::io::Result<zeroize::Zeroizing<Vec<u8>>> {
    if !path.is_dir() {
        return std::fs::read(path).map(zeroize::Zeroizing::new);
    }
    let mut names: Vec<_> =
        std::fs::read_dir(path)?.filter_map(Result::ok).map(|entry| entry.file_name()).collect();
    names.sort();
    Ok(zeroize::Zeroizing::new(
        names.iter().flat_map(|name| [name.as_encoded_bytes(), b"\0"].concat()).collect(),
    ))
}
