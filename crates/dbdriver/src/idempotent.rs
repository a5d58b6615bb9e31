//! Makes creations idempotent: one key, one outcome, and none once the key is cancelled.
//!
//! A creation runs in a task of its own, so that a caller that goes away leaves nothing running unowned: when the last
//! one waiting for a key is gone, its creation is cancelled. Outcomes and cancelled keys are kept for ten minutes, at
//! most 4096 of each. A full table of outcomes forgets the oldest that is finished; when all are running, a new key is
//! refused as busy. Several drivers may share one [`Ledger`], so that a key keeps its outcome, and its creation can be
//! cancelled, when the driver is exchanged for one with another configuration.

mod table;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use secrecy::SecretString;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::config::PluginName;
use crate::driver::{Call, DeleteUser, Driver, IdempotencyKey, NewUser, UpdateUser};
use crate::error::{DriverError, Reason};
use table::{Entry, Table};

/// What a creation came to; `None` while it runs.
type Outcome = Option<Result<(), DriverError>>;

/// What is known of each key. Clones are the same ledger.
#[derive(Clone, Debug, Default)]
pub struct Ledger(Arc<Mutex<Table>>);

/// A [`Driver`] whose creations are idempotent.
#[derive(Debug)]
pub struct Idempotent {
    inner: Arc<dyn Driver>,
    table: Arc<Mutex<Table>>,
    tasks: TaskTracker,
    closed: CancellationToken,
}

/// One creation as its callers see it.
struct Run {
    outcome: watch::Receiver<Outcome>,
    entry: Entry,
}

/// Waits for an outcome.
async fn settled(outcome: &mut watch::Receiver<Outcome>) -> Result<(), DriverError> {
    match outcome.wait_for(Option::is_some).await.map(|found| found.clone()) {
        Ok(Some(result)) => result,
        // The sender goes only after it has sent.
        Ok(None) | Err(_) => Err(DriverError::new(Reason::Internal, "no outcome").with_unknown_effect()),
    }
}

impl Idempotent {
    /// Stands before `inner`, with a ledger of its own.
    pub fn new(inner: Arc<dyn Driver>) -> Self {
        Self::sharing(inner, &Ledger::default())
    }

    /// Stands before `inner`, with a ledger that other drivers use too.
    pub fn sharing(inner: Arc<dyn Driver>, ledger: &Ledger) -> Self {
        let table = Arc::clone(&ledger.0);
        Self { inner, table, tasks: TaskTracker::new(), closed: CancellationToken::new() }
    }

    /// The driver behind.
    pub fn inner(&self) -> &Arc<dyn Driver> {
        &self.inner
    }

    /// The run of this key: the one there is, or a new one.
    fn run_of(&self, call: &Call, user: &NewUser) -> Result<Run, DriverError> {
        let mut table = self.table.lock();
        table.expire();
        if table.is_cancelled(user.key) {
            return Err(DriverError::new(Reason::Cancelled, "this creation was cancelled"));
        }
        if let Some(entry) = table.entry(user.key) {
            return Ok(Run { outcome: entry.outcome.subscribe(), entry });
        }
        call.check()?;
        if self.closed.is_cancelled() {
            return Err(DriverError::closed());
        }
        // A child, so that closing this driver stops its own creations and no other's.
        let entry = Entry::running(self.closed.child_token());
        let run = Run { outcome: entry.outcome.subscribe(), entry: entry.clone() };
        table.insert(user.key, entry.clone())?;
        self.start(Call::new(call.deadline, entry.stop.clone()), user.clone(), entry);
        Ok(run)
    }

    fn start(&self, call: Call, user: NewUser, entry: Entry) {
        let (inner, table) = (Arc::clone(&self.inner), Arc::clone(&self.table));
        self.tasks.spawn(async move {
            let mut guard = Abandoned { table: &table, key: user.key, entry: &entry, armed: true };
            let result = create(&*inner, &call, &user).await;
            // What was never tried may be tried again under the same key.
            let forget = matches!(&result, Err(e) if e.could_not_be_tried());
            if forget {
                table.lock().remove(user.key);
            } else {
                table.lock().finished(user.key);
            }
            entry.outcome.send_replace(Some(result));
            guard.armed = false;
        });
    }

    /// Cancels the key and waits until its creation, if one runs, is over.
    async fn settle(&self, call: &Call, key: IdempotencyKey) -> Result<(), DriverError> {
        let running = self.table.lock().cancel(key);
        let Some(mut outcome) = running else { return Ok(()) };
        match call.run(settled(&mut outcome)).await {
            // Whatever it came to, it is over.
            Ok(_) => Ok(()),
            Err(e) if e.reason() == Reason::Deadline => {
                Err(DriverError::new(Reason::Busy, "the creation of this user has not ended yet"))
            }
            Err(e) => Err(e),
        }
    }
}

/// Stands for a task that ended without an outcome, which only a panic or the end of the process does.
struct Abandoned<'a> {
    table: &'a Mutex<Table>,
    key: IdempotencyKey,
    entry: &'a Entry,
    armed: bool,
}

impl Drop for Abandoned<'_> {
    fn drop(&mut self) {
        if !self.armed {
            return;
        }
        self.table.lock().finished(self.key);
        let lost =
            DriverError::new(Reason::Internal, "the creation ended without an outcome").with_unknown_effect();
        self.entry.outcome.send_replace(Some(Err(lost)));
    }
}

async fn create(driver: &dyn Driver, call: &Call, user: &NewUser) -> Result<(), DriverError> {
    match driver.new_user(call, user).await {
        // The user is from an earlier run of this key, before this process started. Nobody was given it.
        Err(e) if user.resent && e.reason() == Reason::Exists => {
            let delete = DeleteUser {
                key: None,
                username: user.username.clone(),
                statements: Vec::new(),
                terminate_sessions: true,
            };
            driver.delete_user(call, &delete).await?;
            driver.new_user(call, user).await
        }
        other => other,
    }
}

#[async_trait]
impl Driver for Idempotent {
    fn plugin(&self) -> PluginName {
        self.inner.plugin()
    }

    async fn initialize(&self, call: &Call, verify: bool) -> Result<(), DriverError> {
        self.inner.initialize(call, verify).await
    }

    async fn new_user(&self, call: &Call, user: &NewUser) -> Result<(), DriverError> {
        let Run { mut outcome, entry } = self.run_of(call, user)?;
        let waiting = Waiting { table: &self.table, key: user.key, entry };
        let decided = tokio::select! {
            biased;
            decided = settled(&mut outcome) => Some(decided),
            () = call.cancel.cancelled() => None,
            () = tokio::time::sleep_until(call.deadline + GRACE) => None,
        };
        if let Some(result) = decided {
            return result;
        }
        // This caller gives up. If it was the last, that stops the creation, and how that ends is worth a short wait.
        drop(waiting);
        match tokio::time::timeout(GRACE, settled(&mut outcome)).await {
            // It came too late to be wanted; the user is there.
            Ok(Ok(())) | Err(_) => Err(DriverError::cancelled().with_unknown_effect()),
            Ok(Err(error)) => Err(error),
        }
    }

    async fn update_user(&self, call: &Call, update: &UpdateUser) -> Result<(), DriverError> {
        self.inner.update_user(call, update).await
    }

    async fn delete_user(&self, call: &Call, user: &DeleteUser) -> Result<(), DriverError> {
        if let Some(key) = user.key {
            self.settle(call, key).await?;
        }
        self.inner.delete_user(call, user).await
    }

    async fn verify_password(
        &self,
        call: &Call,
        username: &str,
        password: &SecretString,
    ) -> Result<bool, DriverError> {
        self.inner.verify_password(call, username, password).await
    }

    async fn cancel_key(&self, key: IdempotencyKey) {
        drop(self.table.lock().cancel(key));
    }

    async fn close(&self) {
        self.closed.cancel();
        self.tasks.close();
        // Every run has a deadline and was told to stop; closing the driver ends what still waits for it.
        if tokio::time::timeout(GRACE, self.tasks.wait()).await.is_err() {
            tracing::warn!(plugin = %self.inner.plugin(), "creations still under way while their driver closes");
        }
        self.inner.close().await;
    }
}

/// How long after its deadline or cancellation a creation may take to clean up.
const GRACE: Duration = Duration::from_secs(5);

/// A caller that waits for a creation. When the last one goes, the creation is stopped.
struct Waiting<'a> {
    table: &'a Mutex<Table>,
    key: IdempotencyKey,
    entry: Entry,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if self.table.lock().left(self.key, &self.entry) {
            self.entry.stop.cancel();
        }
    }
}

#[cfg(test)]
mod tests;
