//! The drivers of this node, one for each connection configuration in use, with their pools.
//!
//! What must hold: a driver belongs to one version of its configuration; a driver that was replaced, or whose node
//! is no longer active, is closed within 5 s, after its users have finished if they do so in time.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use holdfast_core::Term;
use holdfast_dbdriver::{
    Call, DeleteUser, Driver, DriverConfig, DriverError, Idempotent, NewUser, PluginName, UpdateUser,
};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::connection::Connection;
use crate::metrics::{Database, DatabaseOp, DatabasePlugin, Metrics};
use crate::storage::Stored;

/// How long the users of a replaced driver may finish before it is closed under them.
const FINISH: Duration = Duration::from_secs(4);

/// Makes the driver of a configuration. Contacts nothing.
pub type Opener = Arc<dyn Fn(&DriverConfig) -> Result<Arc<dyn Driver>, DriverError> + Send + Sync>;

/// Makes the driver of a configuration, which has the id given, for a spoke. Contacts nothing.
pub type RemoteOpener =
    Arc<dyn Fn(&str, &DriverConfig) -> Result<Arc<dyn Driver>, DriverError> + Send + Sync>;

/// A driver for one version of a configuration.
pub struct Instance {
    driver: Arc<dyn Driver>,
    version: u64,
    metrics: Metrics,
    /// How long one operation may take.
    pub timeout: Duration,
    /// Whether a revocation ends sessions.
    pub terminate_sessions: bool,
}

/// The drivers of this node.
pub struct Instances {
    state: Mutex<State>,
    opener: Mutex<Opener>,
    remote: OnceLock<RemoteOpener>,
}

#[derive(Default)]
struct State {
    current: HashMap<String, Arc<Instance>>,
    retired: Vec<(Arc<Instance>, Instant)>,
    /// No driver is opened for work of this term or an earlier one any more ...
    over: Option<Term>,
    /// ... unless this node is active in it: it may have stopped being so and come back in the same term. How often
    /// it began and has not ended yet, since an end may come after the next beginning.
    serving: BTreeMap<Term, usize>,
}

impl State {
    fn is_over(&self, term: Term) -> bool {
        self.over.is_some_and(|over| term <= over) && !self.serving.contains_key(&term)
    }
}

impl Default for Instances {
    fn default() -> Self {
        let open = |config: &DriverConfig| {
            let driver = holdfast_dbdriver::open(config)?;
            Ok(Arc::new(Idempotent::new(driver)) as Arc<dyn Driver>)
        };
        Self { state: Mutex::default(), opener: Mutex::new(Arc::new(open)), remote: OnceLock::new() }
    }
}

impl Instances {
    /// Replaces what makes drivers: another executor behind the same trait.
    pub fn set_opener(&self, opener: Opener) {
        *self.opener.lock() = opener;
    }

    /// Says what makes the drivers that run on spokes; once.
    pub fn set_remote(&self, opener: RemoteOpener) {
        drop(self.remote.set(opener));
    }

    /// Makes a driver that is not kept, for the configuration with this id.
    pub fn open(&self, id: &str, config: &DriverConfig) -> Result<Arc<dyn Driver>, DriverError> {
        if let Some(remote) = self.remote.get().filter(|_| config.plugin_name.is_remote()) {
            return remote(id, config);
        }
        let opener = Arc::clone(&*self.opener.lock());
        opener(config)
    }

    /// The driver for this version of a configuration, for work in `term`.
    pub fn acquire(
        &self,
        term: Term,
        metrics: &Metrics,
        connection: &Stored<Connection>,
    ) -> Result<Arc<Instance>, DriverError> {
        {
            let state = self.state.lock();
            if state.is_over(term) {
                return Err(DriverError::closed());
            }
            let held = state.current.get(&connection.value.id);
            if let Some(instance) = held.filter(|held| held.version >= connection.version) {
                return Ok(Arc::clone(instance));
            }
        }
        let driver = self.open(&connection.value.id, &connection.value.config)?;
        Ok(self.install(term, metrics, connection, driver))
    }

    /// Keeps a driver for a version of a configuration; an older one is retired.
    pub fn install(
        &self,
        term: Term,
        metrics: &Metrics,
        connection: &Stored<Connection>,
        driver: Arc<dyn Driver>,
    ) -> Arc<Instance> {
        let config = &connection.value.config;
        let instance = Arc::new(Instance {
            driver,
            version: connection.version,
            metrics: metrics.clone(),
            timeout: config.operation_timeout,
            terminate_sessions: config.terminate_sessions_on_revoke,
        });
        let mut state = self.state.lock();
        let id = connection.value.id.clone();
        if state.is_over(term) {
            // It serves its caller and closes when dropped.
            return instance;
        }
        if let Some(newer) = state.current.get(&id).filter(|held| held.version >= connection.version).cloned()
        {
            state.retired.push((instance, Instant::now()));
            return newer;
        }
        if let Some(old) = state.current.insert(id, Arc::clone(&instance)) {
            state.retired.push((old, Instant::now()));
        }
        instance
    }

    /// Retires the driver of a configuration; the next user opens another.
    pub fn retire(&self, config_id: &str) {
        let mut state = self.state.lock();
        if let Some(old) = state.current.remove(config_id) {
            state.retired.push((old, Instant::now()));
        }
    }

    /// This node is active in `term`, until [`Instances::end_term`].
    pub fn begin_term(&self, term: Term) {
        let mut state = self.state.lock();
        let begun = state.serving.entry(term).or_default();
        *begun = begun.saturating_add(1);
    }

    /// Retires every driver and opens none for `term` any more; unless this node has become active again already,
    /// which goes on with them.
    pub fn end_term(&self, term: Term) {
        let mut state = self.state.lock();
        state.over = state.over.max(Some(term));
        if let Some(begun) = state.serving.get_mut(&term) {
            *begun = begun.saturating_sub(1);
        }
        state.serving.retain(|_, begun| *begun > 0);
        if !state.serving.is_empty() {
            return;
        }
        let now = Instant::now();
        let all: Vec<_> = state.current.drain().map(|(_, instance)| (instance, now)).collect();
        state.retired.extend(all);
    }

    /// Closes retired drivers that nobody uses, and those whose users had their time. Says whether some are left.
    pub async fn close_retired(&self) -> bool {
        let (closing, left) = {
            let mut state = self.state.lock();
            let retired = std::mem::take(&mut state.retired);
            let (closing, waiting): (Vec<_>, Vec<_>) = retired
                .into_iter()
                .partition(|(held, since)| Arc::strong_count(held) == 1 || since.elapsed() >= FINISH);
            state.retired.extend(waiting);
            (closing, !state.retired.is_empty())
        };
        for (instance, _) in closing {
            if tokio::time::timeout(FINISH, instance.driver.close()).await.is_err() {
                tracing::warn!(plugin = %instance.driver.plugin(), "a database driver did not close in time");
            }
        }
        left
    }
}

impl Instance {
    /// The driver itself, for calls that are not timed.
    pub fn driver(&self) -> &Arc<dyn Driver> {
        &self.driver
    }

    /// Makes a user.
    pub async fn new_user(&self, call: &Call, user: &NewUser) -> Result<(), DriverError> {
        self.timed(DatabaseOp::NewUser, self.driver.new_user(call, user)).await
    }

    /// Changes a user.
    pub async fn update_user(&self, call: &Call, update: &UpdateUser) -> Result<(), DriverError> {
        self.timed(DatabaseOp::UpdateUser, self.driver.update_user(call, update)).await
    }

    /// Removes a user.
    pub async fn delete_user(&self, call: &Call, user: &DeleteUser) -> Result<(), DriverError> {
        self.timed(DatabaseOp::DeleteUser, self.driver.delete_user(call, user)).await
    }

    async fn timed<T>(&self, op: DatabaseOp, work: impl Future<Output = T>) -> T {
        timed(&self.metrics, &*self.driver, op, work).await
    }
}

/// Does work of a driver and counts how long it took.
pub(super) async fn timed<T>(
    metrics: &Metrics,
    driver: &dyn Driver,
    op: DatabaseOp,
    work: impl Future<Output = T>,
) -> T {
    let plugin = match driver.plugin() {
        PluginName::Postgres => DatabasePlugin::Postgresql,
        PluginName::Mysql => DatabasePlugin::Mysql,
        PluginName::RemotePostgres | PluginName::RemoteMysql => DatabasePlugin::Remote,
    };
    let start = Instant::now();
    let done = work.await;
    metrics.db_seconds.get_or_create(&Database { op, plugin }).observe(start.elapsed().as_secs_f64());
    done
}

#[cfg(test)]
mod tests {
    use super::*;

    fn over(instances: &Instances, term: u64) -> bool {
        instances.state.lock().is_over(Term::new(term))
    }

    #[test]
    fn a_node_that_is_active_again_in_the_same_term_opens_drivers_again() {
        let (instances, term) = (Instances::default(), Term::new(4));
        assert!(!over(&instances, 4));
        instances.begin_term(term);
        instances.end_term(term);
        assert!(over(&instances, 4) && over(&instances, 3) && !over(&instances, 5));
        instances.begin_term(term);
        assert!(!over(&instances, 4), "leadership was only not acknowledged for a moment");
        assert!(over(&instances, 3));
        // The next beginning may come before the end of the former one.
        instances.begin_term(term);
        instances.end_term(term);
        assert!(!over(&instances, 4));
        instances.end_term(term);
        assert!(over(&instances, 4));
    }
}
