//! A database that fails when told to, for tests of what the hub makes of failures.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use holdfast_dbdriver::{
    Call, Change, DeleteUser, Driver, DriverConfig, DriverError, Idempotent, NewUser, PluginName, Reason,
    UpdateUser,
};
use jiff::Timestamp;
use parking_lot::Mutex;
use secrecy::{ExposeSecret as _, SecretString};

/// How the next call of a kind ends.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Behave {
    /// As asked.
    Well,
    /// Refused, nothing changed.
    Refuse,
    /// Refused with a text of a thousand characters, nothing changed.
    RefuseAtLength,
    /// Refused by the database's rules for passwords, nothing changed.
    RefusePolicy,
    /// Not reached, nothing changed.
    Unreachable,
    /// Done, but the answer is lost.
    LoseAnswer,
    /// Not done, and the answer is lost.
    LoseRequest,
    /// Nothing happens until the call is cancelled or late.
    Hang,
}

/// A user.
#[derive(Clone, Debug)]
pub struct User {
    /// Its password.
    pub password: String,
    /// Its end of validity.
    pub until: Option<Timestamp>,
}

/// The database.
#[derive(Debug, Default)]
pub struct FakeDatabase {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    users: BTreeMap<String, User>,
    create: VecDeque<Behave>,
    update: VecDeque<Behave>,
    delete: VecDeque<Behave>,
    down: bool,
    /// How long a caller waits until it knows that nothing reaches the database.
    silence: Duration,
    /// How long a change or a removal takes of a user whose name begins like this.
    slow: Option<(String, Duration)>,
    /// Users in the order of their removal.
    removed: Vec<String>,
    /// Users in the order in which their change was asked for.
    updated: Vec<String>,
    running: usize,
    peak: usize,
    closed: usize,
    opened: usize,
    deletes: usize,
}

impl FakeDatabase {
    /// An empty database with its root user.
    pub fn new() -> Arc<Self> {
        let database = Self::default();
        let root = User { password: "root-password".into(), until: None };
        database.state.lock().users.insert("root".into(), root);
        Arc::new(database)
    }

    /// Makes drivers of this database.
    pub fn opener(self: &Arc<Self>) -> super::instances::Opener {
        let database = Arc::clone(self);
        Arc::new(move |config: &DriverConfig| {
            database.state.lock().opened += 1;
            let (root, username) = (config.password.clone(), config.username.clone());
            let driver = FakeDriver { database: Arc::clone(&database), root, username };
            Ok(Arc::new(Idempotent::new(Arc::new(driver))) as Arc<dyn Driver>)
        })
    }

    /// The users but root.
    pub fn users(&self) -> Vec<String> {
        self.state.lock().users.keys().filter(|name| *name != "root").cloned().collect()
    }

    /// A user.
    pub fn user(&self, name: &str) -> Option<User> {
        self.state.lock().users.get(name).cloned()
    }

    /// Adds a user that someone else made.
    pub fn add(&self, name: &str, password: &str) {
        let user = User { password: password.into(), until: None };
        self.state.lock().users.insert(name.into(), user);
    }

    /// How the next creations end.
    pub fn create(&self, behave: &[Behave]) {
        self.state.lock().create.extend(behave);
    }

    /// How the next changes end.
    pub fn update(&self, behave: &[Behave]) {
        self.state.lock().update.extend(behave);
    }

    /// How the next removals end.
    pub fn delete(&self, behave: &[Behave]) {
        self.state.lock().delete.extend(behave);
    }

    /// Whether nothing reaches it.
    pub fn set_down(&self, down: bool) {
        self.state.lock().down = down;
    }

    /// Nothing reaches it, which callers notice only after this time.
    pub fn set_silent(&self, silence: Duration) {
        let mut state = self.state.lock();
        (state.down, state.silence) = (true, silence);
    }

    /// Changes and removals of users whose names begin with `prefix` take so long.
    pub fn set_slow(&self, prefix: &str, time: Duration) {
        self.state.lock().slow = Some((prefix.into(), time));
    }

    /// Users in the order of their removal.
    pub fn removed(&self) -> Vec<String> {
        self.state.lock().removed.clone()
    }

    /// Users in the order in which their change was asked for.
    pub fn updated(&self) -> Vec<String> {
        self.state.lock().updated.clone()
    }

    /// The most removals that ran at once.
    pub fn peak(&self) -> usize {
        self.state.lock().peak
    }

    /// How many removals were asked for.
    pub fn deletes(&self) -> usize {
        self.state.lock().deletes
    }

    /// How many drivers were made.
    pub fn opened(&self) -> usize {
        self.state.lock().opened
    }

    /// How many drivers were closed.
    pub fn closed(&self) -> usize {
        self.state.lock().closed
    }
}

#[derive(Debug)]
struct FakeDriver {
    database: Arc<FakeDatabase>,
    root: SecretString,
    username: String,
}

impl FakeDriver {
    /// Plays one call: `apply` is what it does to the users.
    async fn play(
        &self,
        call: &Call,
        queue: impl FnOnce(&mut State) -> &mut VecDeque<Behave>,
        apply: impl FnOnce(&mut BTreeMap<String, User>) -> Result<(), DriverError>,
    ) -> Result<(), DriverError> {
        let behave = queue(&mut self.database.state.lock()).pop_front().unwrap_or(Behave::Well);
        tokio::task::yield_now().await;
        self.reachable().await?;
        let lost = || DriverError::new(Reason::Lost, "connection lost").with_unknown_effect();
        match behave {
            Behave::Well => {
                call.check()?;
                apply(&mut self.database.state.lock().users)?;
                tokio::task::yield_now().await;
                Ok(())
            }
            Behave::Refuse => Err(DriverError::new(Reason::Statement, "permission denied for table x")),
            Behave::RefuseAtLength => Err(DriverError::new(Reason::Statement, "no".repeat(500))),
            Behave::RefusePolicy => Err(DriverError::new(Reason::Policy, "password too weak")),
            Behave::Unreachable => Err(DriverError::new(Reason::Unreachable, "connection refused")),
            Behave::LoseAnswer => {
                apply(&mut self.database.state.lock().users)?;
                Err(lost())
            }
            Behave::LoseRequest => Err(lost()),
            Behave::Hang => call.run(std::future::pending::<()>()).await,
        }
    }

    async fn take_time(&self, username: &str) {
        let slow = self.database.state.lock().slow.clone();
        if let Some((_, time)) = slow.filter(|(prefix, _)| username.starts_with(prefix.as_str())) {
            tokio::time::sleep(time).await;
        }
    }

    async fn reachable(&self) -> Result<(), DriverError> {
        let (down, silence) = {
            let state = self.database.state.lock();
            (state.down, state.silence)
        };
        if down {
            tokio::time::sleep(silence).await;
            return Err(DriverError::new(Reason::Unreachable, "connection refused"));
        }
        let state = self.database.state.lock();
        let root = state.users.get(&self.username).map(|user| user.password.as_str());
        if root != Some(self.root.expose_secret()) {
            return Err(DriverError::new(Reason::Login, "password authentication failed"));
        }
        Ok(())
    }
}

#[async_trait]
impl Driver for FakeDriver {
    fn plugin(&self) -> PluginName {
        PluginName::Postgres
    }

    async fn initialize(&self, _call: &Call, verify: bool) -> Result<(), DriverError> {
        if verify { self.reachable().await } else { Ok(()) }
    }

    async fn new_user(&self, call: &Call, user: &NewUser) -> Result<(), DriverError> {
        let apply = |users: &mut BTreeMap<String, User>| {
            if users.contains_key(&user.username) {
                return Err(DriverError::new(Reason::Exists, "role already exists"));
            }
            let password = user.password.expose_secret().to_owned();
            users.insert(user.username.clone(), User { password, until: Some(user.expiration) });
            Ok(())
        };
        self.play(call, |state| &mut state.create, apply).await
    }

    async fn update_user(&self, call: &Call, update: &UpdateUser) -> Result<(), DriverError> {
        self.database.state.lock().updated.push(update.username.clone());
        self.take_time(&update.username).await;
        let apply = |users: &mut BTreeMap<String, User>| {
            let user = users.get_mut(&update.username);
            let user = user.ok_or_else(|| DriverError::new(Reason::Missing, "role does not exist"))?;
            match &update.change {
                Change::Password(password) => password.expose_secret().clone_into(&mut user.password),
                Change::Expiration(until) => user.until = Some(*until),
            }
            Ok(())
        };
        self.play(call, |state| &mut state.update, apply).await
    }

    async fn delete_user(&self, call: &Call, user: &DeleteUser) -> Result<(), DriverError> {
        {
            let mut state = self.database.state.lock();
            state.deletes += 1;
            state.running += 1;
            state.peak = state.peak.max(state.running);
        }
        self.take_time(&user.username).await;
        let apply = |users: &mut BTreeMap<String, User>| {
            users.remove(&user.username);
            Ok(())
        };
        let done = self.play(call, |state| &mut state.delete, apply).await;
        let mut state = self.database.state.lock();
        state.running -= 1;
        if done.is_ok() {
            state.removed.push(user.username.clone());
        }
        drop(state);
        done
    }

    async fn verify_password(
        &self,
        call: &Call,
        username: &str,
        password: &SecretString,
    ) -> Result<bool, DriverError> {
        call.check()?;
        let state = self.database.state.lock();
        if state.down {
            return Err(DriverError::new(Reason::Unreachable, "connection refused"));
        }
        Ok(state.users.get(username).is_some_and(|user| user.password == password.expose_secret()))
    }

    async fn close(&self) {
        self.database.state.lock().closed += 1;
    }
}
