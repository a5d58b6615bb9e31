//! The scripted provider, the virtual clock, and configurations made of a few words.

use std::collections::{BTreeMap, VecDeque};
use std::path::Path;
use std::sync::atomic::{AtomicI64, Ordering};

use async_trait::async_trait;
use holdfast_core::freshness::{Failure, Outcome, Served, State};
use holdfast_core::{AnswerKind, Mono, Now, Wall};
use tokio::time::Instant;

pub use super::super::*;
use crate::binding::scheme::UpstreamKind;
use crate::config::{Scheme, UpstreamSettings};
use crate::digest::Digest;
use crate::provider::{Fetched, Lease, Pace, Sink, WatchGuard};
use crate::reference::Reference;
use crate::value::{Secret, Value};

pub const SEC: Duration = Duration::from_secs(1);
pub const MS: Duration = Duration::from_millis(1);

/// Both clocks, driven by tokio's time.
pub struct Virtual {
    origin: Instant,
    /// How far the wall clock was set, in microseconds.
    pub set: AtomicI64,
}

impl Clock for Virtual {
    fn now(&self) -> Now {
        let since = self.origin.elapsed();
        let wall = Wall::from_micros(1_000_000_000_000_000 + self.set.load(Ordering::Relaxed)).after(since);
        Now { mono: Mono::ZERO.after(since), wall }
    }
}

/// How one call is answered.
#[derive(Clone)]
pub enum Step {
    Give(Outcome<Value>),
    Slow(Duration, Outcome<Value>),
    Leased(Outcome<Value>, Lease),
    Hang,
    Panic,
    /// What the upstream holds when it is asked, told so much later.
    Truth(Duration),
}

#[derive(Default)]
struct Inner {
    steps: BTreeMap<String, VecDeque<Step>>,
    calls: Vec<(Duration, String)>,
    renewals: VecDeque<Result<Lease, AnswerKind>>,
    renewed: Vec<Duration>,
    revoked: Vec<String>,
    sinks: BTreeMap<String, Vec<Arc<dyn Sink>>>,
    truth: BTreeMap<String, u64>,
    watches: usize,
    under_way: usize,
    most: usize,
}

/// A provider that does what it is told. The last step of an object is repeated.
pub struct Scripted {
    origin: Instant,
    inner: Mutex<Inner>,
    pub pace: Mutex<Pace>,
    pub watching: std::sync::atomic::AtomicBool,
    pub minting: std::sync::atomic::AtomicBool,
}

impl Scripted {
    fn new() -> Self {
        Self {
            origin: Instant::now(),
            inner: Mutex::default(),
            pace: Mutex::default(),
            watching: false.into(),
            minting: false.into(),
        }
    }

    pub fn script(&self, path: &str, steps: impl IntoIterator<Item = Step>) {
        self.inner.lock().steps.insert(path.to_owned(), steps.into_iter().collect());
    }

    pub fn script_renewals(&self, renewals: impl IntoIterator<Item = Result<Lease, AnswerKind>>) {
        self.inner.lock().renewals.extend(renewals);
    }

    /// When an object was asked for, since the last time this was called.
    pub fn calls(&self, path: &str) -> Vec<Duration> {
        let mut inner = self.inner.lock();
        let (own, others) = std::mem::take(&mut inner.calls).into_iter().partition(|(_, of)| of == path);
        inner.calls = others;
        let own: Vec<(Duration, String)> = own;
        own.into_iter().map(|(at, _)| at).collect()
    }

    /// All calls since the last time any were taken.
    pub fn all_calls(&self) -> usize {
        std::mem::take(&mut self.inner.lock().calls).len()
    }

    pub fn renewed(&self) -> Vec<Duration> {
        std::mem::take(&mut self.inner.lock().renewed)
    }

    pub fn revoked(&self) -> Vec<String> {
        self.inner.lock().revoked.clone()
    }

    /// The sink of the newest watch.
    pub fn sink(&self, path: &str) -> Arc<dyn Sink> {
        Arc::clone(self.inner.lock().sinks[path].last().unwrap())
    }

    /// The sink of the newest watch, if there is one.
    pub fn newest_sink(&self, path: &str) -> Option<Arc<dyn Sink>> {
        self.inner.lock().sinks.get(path).and_then(|sinks| sinks.last()).map(Arc::clone)
    }

    /// The revision that the upstream holds.
    pub fn truth(&self, path: &str) -> u64 {
        self.inner.lock().truth.get(path).copied().unwrap_or_default()
    }

    /// The upstream's object changes; its newest watch, if there is one.
    pub fn change(&self, path: &str) -> Option<Arc<dyn Sink>> {
        *self.inner.lock().truth.entry(path.to_owned()).or_default() += 1;
        self.newest_sink(path)
    }

    pub fn forget_sinks(&self) {
        let gone = std::mem::take(&mut self.inner.lock().sinks);
        drop(gone);
    }

    pub fn watches(&self) -> usize {
        self.inner.lock().watches
    }

    pub fn under_way(&self) -> usize {
        self.inner.lock().under_way
    }

    pub fn most_under_way(&self) -> usize {
        self.inner.lock().most
    }
}

/// Counts a call as long as it is not dropped.
struct UnderWay<'a>(&'a Scripted);

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.inner.lock().under_way -= 1;
    }
}

#[async_trait]
impl Provider for Scripted {
    async fn fetch(&self, object: &ObjectKey, _held: Option<&Value>) -> Fetched {
        let step = {
            let mut inner = self.inner.lock();
            inner.calls.push((self.origin.elapsed(), object.path.clone()));
            inner.under_way += 1;
            inner.most = inner.most.max(inner.under_way);
            match inner.steps.get_mut(&object.path) {
                Some(steps) if steps.len() > 1 => steps.pop_front().unwrap(),
                Some(steps) => steps[0].clone(),
                None => Step::Give(value("")),
            }
        };
        let _counted = UnderWay(self);
        match step {
            Step::Give(outcome) => outcome.into(),
            Step::Slow(time, outcome) => {
                tokio::time::sleep(time).await;
                outcome.into()
            }
            Step::Leased(outcome, lease) => Fetched { outcome, lease: Some(lease) },
            Step::Hang => std::future::pending().await,
            Step::Panic => panic!("as scripted"),
            Step::Truth(time) => {
                let truth = self.truth(&object.path);
                tokio::time::sleep(time).await;
                revision(&truth.to_string(), truth).into()
            }
        }
    }

    fn watch(&self, object: &ObjectKey, sink: Arc<dyn Sink>) -> Option<WatchGuard> {
        if !self.watching.load(Ordering::Relaxed) {
            return None;
        }
        let mut inner = self.inner.lock();
        inner.watches += 1;
        inner.sinks.entry(object.path.clone()).or_default().push(sink);
        Some(WatchGuard::new(()))
    }

    async fn renew(&self, _lease: &Lease) -> Result<Lease, AnswerKind> {
        let mut inner = self.inner.lock();
        inner.renewed.push(self.origin.elapsed());
        inner.renewals.pop_front().unwrap_or(Err(AnswerKind::Invalid))
    }

    async fn revoke(&self, lease: &Lease) {
        self.inner.lock().revoked.push(lease.id.clone());
    }

    fn mints(&self, _object: &ObjectKey) -> bool {
        self.minting.load(Ordering::Relaxed)
    }

    fn pace(&self) -> Pace {
        *self.pace.lock()
    }
}

pub fn value(text: &str) -> Outcome<Value> {
    let value = Value { bytes: Secret::new(text.as_bytes().to_vec()), ..Value::default() };
    Outcome::Value { value, passed: None }
}

/// A value with a revision.
pub fn revision(text: &str, order: u64) -> Outcome<Value> {
    match value(text) {
        Outcome::Value { value, passed } => {
            Outcome::Value { value: Value { order: Some(order), ..value }, passed }
        }
        other => other,
    }
}

pub fn error(kind: AnswerKind) -> Outcome<Value> {
    Outcome::Error(Failure::of(kind))
}

pub fn give(outcome: Outcome<Value>) -> Step {
    Step::Give(outcome)
}

/// A binding as `path` or `path#key`.
pub fn binding(name: &str, reference: &str) -> Binding {
    let (path, fragment) = match reference.split_once('#') {
        Some((path, key)) => (path, Some(Fragment::Key(key.to_owned()))),
        None => (reference, None),
    };
    let object = ObjectKey {
        upstream: "up".into(),
        scheme: Scheme::Vault,
        path: path.to_owned(),
        options: BTreeMap::new(),
    };
    Binding {
        name: name.into(),
        reference: Reference { object, fragment },
        rules: BindingRules::default(),
        declared: "test:1".into(),
        ref_digest: Digest::of(reference.as_bytes()),
    }
}

pub fn upstream() -> Upstream {
    Upstream {
        name: "up".into(),
        kind: UpstreamKind::Vault,
        concurrency: 16,
        confirm: 60 * SEC,
        watch_idle: 45 * SEC,
        settings: UpstreamSettings::default(),
    }
}

/// What every configuration must say, without bindings and upstreams.
const BASE: &str = r#"
    allow_empty = true
    auth = { methods = ["none"] }
    policy = { allow_all = true }
    listener = [{ kind = "unix", path = "socket" }]
"#;

pub fn configuration(bindings: impl IntoIterator<Item = Binding>) -> Configuration {
    static LOADED: std::sync::OnceLock<Arc<Configuration>> = std::sync::OnceLock::new();
    let base = LOADED.get_or_init(|| {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("config.toml");
        std::fs::write(&file, BASE).unwrap();
        crate::load::load(&file, &crate::load::Overrides::default()).unwrap()
    });
    let bindings = bindings.into_iter().map(|binding| (Arc::clone(&binding.name), binding));
    Configuration {
        bindings: bindings.collect(),
        upstreams: BTreeMap::from([("up".into(), upstream())]),
        ..Configuration::clone(base)
    }
}

/// Everything that one test has.
pub struct Rig {
    pub provider: Arc<Scripted>,
    pub clock: Arc<Virtual>,
    pub board: Arc<Board>,
    pub tasks: Tasks,
    changes: Mutex<tokio::sync::broadcast::Receiver<crate::fanout::board::Change>>,
}

impl Rig {
    pub fn new() -> Self {
        let board = Arc::new(Board::default());
        let changes = Mutex::new(board.follow());
        let clock = Arc::new(Virtual { origin: Instant::now(), set: AtomicI64::new(0) });
        Self { provider: Arc::new(Scripted::new()), clock, board, tasks: Tasks::new("test"), changes }
    }

    pub fn start(&self, configuration: Configuration) -> Engine {
        let provider = Arc::clone(&self.provider) as Arc<dyn Provider>;
        let clock = Arc::clone(&self.clock) as Arc<dyn Clock>;
        let builder: Arc<Builder> = Arc::new(move |_: &Upstream, _: &Tasks| Ok(Arc::clone(&provider)));
        let setup = Setup { clock, seed: 7, builder, ..Setup::default() };
        Engine::start(&Arc::new(configuration), Arc::clone(&self.board), &self.tasks, setup).unwrap()
    }

    pub fn state(&self, name: &str) -> State<Value> {
        self.board.get(name).unwrap().load().state.clone()
    }

    /// The text that is served, and as what it is stale.
    pub fn served(&self, name: &str) -> Result<(String, Option<AnswerKind>), AnswerKind> {
        let state = self.state(name);
        match state.served {
            Served::Value { stale } => {
                let text = String::from_utf8(state.value.unwrap().bytes.expose().to_vec()).unwrap();
                Ok((text, stale))
            }
            Served::Refused(kind, _) => Err(kind),
        }
    }

    pub fn fresh(&self, name: &str) -> String {
        match self.served(name) {
            Ok((text, None)) => text,
            other => panic!("{name}: {other:?}"),
        }
    }

    /// How often a name was published since the last time, in all and visibly.
    pub fn published(&self, name: &str) -> (usize, usize) {
        let mut changes = self.changes.lock();
        let own: Vec<_> = std::iter::from_fn(|| changes.try_recv().ok())
            .filter(|change| &**change.entry.name() == name)
            .map(|change| change.visible)
            .collect();
        (own.len(), own.iter().filter(|visible| **visible).count())
    }

    pub async fn after(&self, time: Duration) {
        tokio::time::sleep(time).await;
        // Those that woke at this very moment come first.
        for _ in 0..50 {
            tokio::task::yield_now().await;
        }
    }
}

/// The gaps between calls.
pub fn gaps(calls: &[Duration]) -> Vec<Duration> {
    calls.windows(2).map(|pair| pair[1] - pair[0]).collect()
}

/// A key file for `lkg.key_file`.
pub fn key_file(dir: &Path) -> std::path::PathBuf {
    let file = dir.join("key");
    crate::upstream::tests::scripted::secret(&file, &"0f".repeat(32));
    file
}
