//! A database that fails when told to, for tests of what the hub makes of failures.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

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
    running: usize,
    peak: usize,
    closed: usize,
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
            let driver = FakeDriver { database: Arc::clone(&database), root: config.password.clone() };
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

    /// The most removals that ran at once.
    pub fn peak(&self) -> usize {
        self.state.lock().peak
    }

    /// How many removals were asked for.
    pub fn deletes(&self) -> usize {
        self.state.lock().deletes
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
        self.reachable()?;
        let lost = || DriverError::new(Reason::Lost, "connection lost").with_unknown_effect();
        match behave {
            Behave::Well => {
                call.check()?;
                apply(&mut self.database.state.lock().users)?;
                tokio::task::yield_now().await;
                Ok(())
            }
            Behave::Refuse => Err(DriverError::new(Reason::Statement, "permission denied for table x")),
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

    fn reachable(&self) -> Result<(), DriverError> {
        let state = self.database.state.lock();
        if state.down {
            return Err(DriverError::new(Reason::Unreachable, "connection refused"));
        }
        let root = state.users.get("root").map(|user| user.password.as_str());
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
        if verify { self.reachable() } else { Ok(()) }
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
        let apply = |users: &mut BTreeMap<String, User>| {
            users.remove(&user.username);
            Ok(())
        };
        let done = self.play(call, |state| &mut state.delete, apply).await;
        self.database.state.lock().running -= 1;
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
