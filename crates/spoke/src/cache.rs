//! The drivers of the databases that the hub has named so far: one slot an instance.
//!
//! Configuration travels with every command, so the first command after a start opens the driver, once for all who
//! wait. What must hold: a driver is closed exactly once, when it has been displaced and its last user is done, since
//! closing is what dropping the last handle does; an attempt to open that failed leaves nothing.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use aws_lc_rs::digest::{SHA256, digest};
use holdfast_dbdriver::{
    Call, ConfigError, Driver, DriverConfig, DriverError, Idempotent, Ledger, PluginName, wire,
};
use holdfast_ops::Tasks;
use holdfast_ops::tasks::Unfinished;
use holdfast_proto::relay::v1 as proto;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;

/// A driver that nobody used for so long is closed.
pub const IDLE: Duration = Duration::from_hours(24);
/// Unused drivers are looked for this often at most.
const SWEEP_FLOOR: Duration = Duration::from_mins(1);
/// How long a driver may take to close.
const CLOSE_WITHIN: Duration = Duration::from_secs(10);

/// Makes drivers.
pub trait Opener: Send + Sync + fmt::Debug {
    /// Makes the driver for a configuration; contacts nothing.
    ///
    /// # Errors
    /// When the configuration makes no sense.
    fn open(&self, config: &DriverConfig) -> Result<Arc<dyn Driver>, DriverError>;
}

/// Makes the drivers of real databases.
#[derive(Clone, Copy, Debug)]
pub struct Databases;

impl Opener for Databases {
    fn open(&self, config: &DriverConfig) -> Result<Arc<dyn Driver>, DriverError> {
        holdfast_dbdriver::open_beside_database(config)
    }
}

/// Why there is no driver for a command.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Refused {
    /// The command brought no configuration, and none is held.
    #[error("instance config missing")]
    ConfigMissing,
    /// The plugin is none of ours.
    #[error("unknown plugin {0:?}")]
    UnknownPlugin(String),
    /// The configuration cannot be read.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The driver does not open.
    #[error(transparent)]
    Driver(#[from] DriverError),
}

/// An instance as a command names it.
#[derive(Clone)]
pub struct Wanted {
    id: String,
    version: u64,
    config: Option<Configured>,
}

#[derive(Clone)]
struct Configured {
    print: Print,
    config: Arc<DriverConfig>,
}

/// Tells configurations apart without keeping them.
type Print = [u8; 32];

impl Wanted {
    /// Reads what a command says of its instance.
    ///
    /// # Errors
    /// When the plugin is unknown or the configuration cannot be read.
    pub fn parse(instance: &proto::Instance) -> Result<Self, Refused> {
        let plugin = PluginName::parse(&instance.plugin)
            .map_err(|_| Refused::UnknownPlugin(instance.plugin.chars().take(128).collect()))?;
        let config = if instance.config.is_empty() {
            None
        } else {
            let config = DriverConfig { plugin_name: plugin, ..wire::decode_config(&instance.config)? };
            Some(Configured { print: print(plugin, &instance.config), config: Arc::new(config) })
        };
        Ok(Self { id: instance.instance_id.clone(), version: instance.config_version, config })
    }

    /// The instance's id.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// How many connections the database may be asked for at once, when the command says so.
    pub fn pool(&self) -> Option<usize> {
        let open = self.config.as_ref()?.config.max_open_connections;
        Some(usize::try_from(open).unwrap_or(usize::MAX).max(1))
    }
}

fn print(plugin: PluginName, config: &[u8]) -> Print {
    let mut print = Print::default();
    let sum = digest(&SHA256, &[plugin.as_str().as_bytes(), b"\n", config].concat());
    print.iter_mut().zip(sum.as_ref()).for_each(|(to, from)| *to = *from);
    print
}

/// What opening came to; `None` while it goes on.
type Ready = Option<Result<Arc<Opened>, DriverError>>;

struct Slot {
    version: u64,
    print: Print,
    pool: usize,
    ready: watch::Receiver<Ready>,
    touched: Instant,
}

/// An open driver. Dropping the last handle closes it.
struct Opened {
    driver: Arc<Idempotent>,
    users: AtomicUsize,
    used: Mutex<Instant>,
    tasks: Tasks,
}

impl Drop for Opened {
    fn drop(&mut self) {
        // Without a runtime the process is at its end, and the connections end with it.
        if tokio::runtime::Handle::try_current().is_err() {
            return;
        }
        let driver = Arc::clone(&self.driver);
        self.tasks.spawn("close", async move {
            if tokio::time::timeout(CLOSE_WITHIN, driver.close()).await.is_err() {
                tracing::warn!(plugin = %driver.plugin(), "a database driver did not close in time");
            }
        });
    }
}

/// A driver while a command uses it.
pub struct User {
    opened: Arc<Opened>,
}

impl User {
    fn of(opened: Arc<Opened>) -> Self {
        opened.users.fetch_add(1, Ordering::Relaxed);
        Self { opened }
    }

    /// The driver.
    pub fn driver(&self) -> &Idempotent {
        &self.opened.driver
    }
}

impl Drop for User {
    fn drop(&mut self) {
        *self.opened.used.lock() = Instant::now();
        self.opened.users.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The drivers of one spoke. Clones are the same cache.
#[derive(Clone)]
pub struct Cache {
    shared: Arc<Shared>,
}

struct Shared {
    opener: Arc<dyn Opener>,
    ledger: Ledger,
    slots: Mutex<HashMap<String, Slot>>,
    tasks: Tasks,
}

impl Cache {
    /// An empty cache whose drivers are made by `opener`.
    pub fn new(opener: Arc<dyn Opener>, tasks: &Tasks) -> Self {
        let (ledger, slots, tasks) = (Ledger::default(), Mutex::default(), tasks.child("drivers"));
        Self { shared: Arc::new(Shared { opener, ledger, slots, tasks }) }
    }

    /// The driver for a command, opened when there is none or its configuration is another. Nothing is verified.
    ///
    /// # Errors
    /// When the driver does not open, or the call ends before it has.
    pub async fn acquire(&self, wanted: &Wanted, call: &Call) -> Result<User, Refused> {
        let mut ready = self.shared.ready(wanted)?;
        let opened = call.run(ready.wait_for(Option::is_some)).await?;
        match opened.ok().and_then(|opened| opened.clone()) {
            Some(opened) => Ok(User::of(opened?)),
            // The task that opens always tells, unless everything ends.
            None => Err(DriverError::closed().into()),
        }
    }

    /// Makes sure that the database accepts a configuration, and only then puts it in the place of the former one.
    ///
    /// # Errors
    /// As [`Cache::acquire`], and when the database refuses.
    pub async fn verify(&self, wanted: &Wanted, call: &Call) -> Result<(), Refused> {
        let Some(configured) = wanted.config.as_ref().filter(|asked| !self.shared.holds(wanted, asked))
        else {
            return Ok(self.acquire(wanted, call).await?.driver().initialize(call, true).await?);
        };
        let candidate = self.shared.open(&configured.config)?;
        candidate.driver.initialize(call, true).await?;
        self.shared.install(wanted, configured, candidate);
        Ok(())
    }

    /// Forgets an instance when this version of its configuration is held, or whichever for 0: a hub that lets go of an
    /// older one must not take the newer away. The driver closes when its last user is done.
    pub fn close(&self, id: &str, version: u64) {
        let mut slots = self.shared.slots.lock();
        let held = slots.get(id).is_some_and(|slot| version == 0 || slot.version == version);
        let slot = if held { slots.remove(id) } else { None };
        // Dropped after the lock is let go: closing starts in there.
        drop(slots);
        drop(slot);
    }

    /// How many connections an instance may be asked for at once, as far as is known.
    pub fn pool(&self, wanted: &Wanted) -> Option<usize> {
        wanted.pool().or_else(|| self.shared.slots.lock().get(&wanted.id).map(|slot| slot.pool))
    }

    /// How many instances are held.
    pub fn len(&self) -> usize {
        self.shared.slots.lock().len()
    }

    /// Whether none is held.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Closes what nobody used for `idle`, for ever.
    pub async fn sweep(&self, idle: Duration) {
        loop {
            tokio::time::sleep((idle / 4).max(SWEEP_FLOOR)).await;
            self.sweep_at(Instant::now(), idle);
        }
    }

    fn sweep_at(&self, now: Instant, idle: Duration) {
        let mut unused = Vec::new();
        let mut slots = self.shared.slots.lock();
        let ids: Vec<_> =
            slots.iter().filter(|(_, slot)| slot.is_unused(now, idle)).map(|(id, _)| id.clone()).collect();
        unused.extend(ids.iter().filter_map(|id| slots.remove(id)));
        drop(slots);
        if !unused.is_empty() {
            tracing::info!(instances = unused.len(), "closing database drivers that nobody used");
        }
    }

    /// Closes every driver.
    ///
    /// # Errors
    /// Names what had not closed by then.
    pub async fn close_all(&self, deadline: Duration) -> Result<(), Unfinished> {
        let slots = std::mem::take(&mut *self.shared.slots.lock());
        drop(slots);
        self.shared.tasks.wait(deadline).await
    }
}

impl Slot {
    fn is_unused(&self, now: Instant, idle: Duration) -> bool {
        match &*self.ready.borrow() {
            Some(Ok(opened)) => {
                let last = self.touched.max(*opened.used.lock());
                opened.users.load(Ordering::Relaxed) == 0 && now.saturating_duration_since(last) >= idle
            }
            _ => false,
        }
    }
}

impl Shared {
    fn holds(&self, wanted: &Wanted, asked: &Configured) -> bool {
        self.slots.lock().get(&wanted.id).is_some_and(|slot| slot.print == asked.print)
    }

    /// Where to wait for the driver of an instance; begins to open it when there is none for this configuration.
    fn ready(self: &Arc<Self>, wanted: &Wanted) -> Result<watch::Receiver<Ready>, Refused> {
        let mut slots = self.slots.lock();
        let held = slots.get_mut(&wanted.id);
        let Some(configured) = &wanted.config else {
            let slot = held.filter(|slot| slot.version == wanted.version).ok_or(Refused::ConfigMissing)?;
            slot.touched = Instant::now();
            return Ok(slot.ready.clone());
        };
        if let Some(slot) = held.filter(|slot| slot.print == configured.print) {
            (slot.version, slot.touched) = (wanted.version, Instant::now());
            return Ok(slot.ready.clone());
        }
        let (done, ready) = watch::channel(None);
        let displaced = slots.insert(wanted.id.clone(), Slot::new(wanted, configured, ready.clone()));
        drop(slots);
        drop(displaced);
        let (shared, wanted, config) = (Arc::clone(self), wanted.id.clone(), Arc::clone(&configured.config));
        // Not the caller's: who gives up must not make the others begin anew.
        self.tasks.spawn("open", async move {
            let opened = shared.opened(&config).await;
            if opened.is_err() {
                shared.forget(&wanted, &done);
            }
            done.send_replace(Some(opened));
        });
        Ok(ready)
    }

    async fn opened(self: &Arc<Self>, config: &DriverConfig) -> Result<Arc<Opened>, DriverError> {
        let opened = self.open(config)?;
        opened.driver.initialize(&Call::within(config.operation_timeout), false).await?;
        Ok(opened)
    }

    fn open(self: &Arc<Self>, config: &DriverConfig) -> Result<Arc<Opened>, DriverError> {
        let driver = Arc::new(Idempotent::sharing(self.opener.open(config)?, &self.ledger));
        let (users, used) = (AtomicUsize::new(0), Mutex::new(Instant::now()));
        Ok(Arc::new(Opened { driver, users, used, tasks: self.tasks.clone() }))
    }

    fn forget(&self, id: &str, done: &watch::Sender<Ready>) {
        let mut slots = self.slots.lock();
        if slots.get(id).is_some_and(|slot| slot.ready.same_channel(&done.subscribe())) {
            slots.remove(id);
        }
    }

    fn install(&self, wanted: &Wanted, configured: &Configured, opened: Arc<Opened>) {
        let (_, ready) = watch::channel(Some(Ok(opened)));
        let displaced = self.slots.lock().insert(wanted.id.clone(), Slot::new(wanted, configured, ready));
        drop(displaced);
    }
}

impl Slot {
    fn new(wanted: &Wanted, configured: &Configured, ready: watch::Receiver<Ready>) -> Self {
        let pool = usize::try_from(configured.config.max_open_connections).unwrap_or(usize::MAX).max(1);
        Self { version: wanted.version, print: configured.print, pool, ready, touched: Instant::now() }
    }
}

impl fmt::Debug for Wanted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Wanted").field("id", &self.id).field("version", &self.version).finish_non_exhaustive()
    }
}

impl fmt::Debug for User {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("User").field("plugin", &self.opened.driver.plugin()).finish()
    }
}

impl fmt::Debug for Cache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cache").field("instances", &self.len()).finish()
    }
}
