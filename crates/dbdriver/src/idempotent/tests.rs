use super::*;
use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A database in memory whose creations take until they are let go.
#[derive(Debug, Default)]
struct Fake {
    users: Mutex<HashSet<String>>,
    created: AtomicUsize,
    /// Held creations wait for this; none = they finish at once.
    gate: Option<CancellationToken>,
    failure: Mutex<Option<DriverError>>,
}

#[async_trait]
impl Driver for Fake {
    fn plugin(&self) -> PluginName {
        PluginName::Postgres
    }

    async fn initialize(&self, _: &Call, _: bool) -> Result<(), DriverError> {
        Ok(())
    }

    async fn new_user(&self, call: &Call, user: &NewUser) -> Result<(), DriverError> {
        self.created.fetch_add(1, Ordering::SeqCst);
        if let Some(gate) = &self.gate {
            call.run(gate.cancelled()).await?;
        }
        if let Some(error) = self.failure.lock().clone() {
            return Err(error);
        }
        match self.users.lock().insert(user.username.clone()) {
            true => Ok(()),
            false => Err(DriverError::new(Reason::Exists, "exists")),
        }
    }

    async fn update_user(&self, _: &Call, _: &UpdateUser) -> Result<(), DriverError> {
        Ok(())
    }

    async fn delete_user(&self, _: &Call, user: &DeleteUser) -> Result<(), DriverError> {
        self.users.lock().remove(&user.username);
        Ok(())
    }

    async fn verify_password(&self, _: &Call, _: &str, _: &SecretString) -> Result<bool, DriverError> {
        Ok(true)
    }

    async fn close(&self) {}
}

fn rig(gate: Option<CancellationToken>) -> (Arc<Fake>, Arc<Idempotent>) {
    let fake = Arc::new(Fake { gate, ..Fake::default() });
    (Arc::clone(&fake), Arc::new(Idempotent::new(fake)))
}

fn user(key: u8) -> NewUser {
    NewUser {
        key: IdempotencyKey::from_bytes([key; 16]),
        resent: false,
        username: format!("u{key}"),
        password: "secret".to_owned().into(),
        expiration: jiff::Timestamp::UNIX_EPOCH,
        statements: vec!["x".to_owned()],
        rollback_statements: Vec::new(),
    }
}

fn delete(key: u8) -> DeleteUser {
    DeleteUser {
        key: Some(user(key).key),
        username: format!("u{key}"),
        statements: Vec::new(),
        terminate_sessions: false,
    }
}

fn call() -> Call {
    Call::within(Duration::from_secs(10))
}

#[tokio::test]
async fn the_same_key_again_returns_the_first_result() {
    let (fake, driver) = rig(None);
    driver.new_user(&call(), &user(1)).await.unwrap();
    driver.new_user(&call(), &user(1)).await.unwrap();
    assert_eq!(fake.created.load(Ordering::SeqCst), 1);
    *fake.failure.lock() = Some(DriverError::new(Reason::Statement, "no"));
    assert_eq!(driver.new_user(&call(), &user(2)).await.unwrap_err().client_text(), "no");
    *fake.failure.lock() = None;
    assert_eq!(driver.new_user(&call(), &user(2)).await.unwrap_err().client_text(), "no");
    assert_eq!(fake.created.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn what_could_not_be_tried_may_be_tried_again() {
    let (fake, driver) = rig(None);
    *fake.failure.lock() = Some(DriverError::new(Reason::Unreachable, "down"));
    assert!(driver.new_user(&call(), &user(1)).await.unwrap_err().could_not_be_tried());
    *fake.failure.lock() = None;
    driver.new_user(&call(), &user(1)).await.unwrap();
}

#[tokio::test]
async fn the_same_key_at_once_waits_for_the_first() {
    let gate = CancellationToken::new();
    let (fake, driver) = rig(Some(gate.clone()));
    let mut set = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let driver = Arc::clone(&driver);
        set.spawn(async move { driver.new_user(&call(), &user(1)).await });
    }
    while driver.table.lock().waiting(user(1).key) < 8 {
        tokio::task::yield_now().await;
    }
    gate.cancel();
    while let Some(done) = set.join_next().await {
        done.unwrap().unwrap();
    }
    assert_eq!(fake.created.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a_cancelled_or_late_key_is_refused() {
    let (fake, driver) = rig(None);
    driver.cancel_key(user(1).key).await;
    assert_eq!(driver.new_user(&call(), &user(1)).await.unwrap_err().reason(), Reason::Cancelled);
    let late = Call::within(Duration::ZERO);
    assert_eq!(driver.new_user(&late, &user(2)).await.unwrap_err().reason(), Reason::Deadline);
    assert_eq!(fake.created.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn a_removal_stops_the_creation_first_and_for_good() {
    let (fake, driver) = rig(Some(CancellationToken::new()));
    let creation = tokio::task::JoinSet::from_iter([{
        let driver = Arc::clone(&driver);
        async move { driver.new_user(&call(), &user(1)).await }
    }]);
    while fake.created.load(Ordering::SeqCst) == 0 {
        tokio::task::yield_now().await;
    }
    driver.delete_user(&call(), &delete(1)).await.unwrap();
    let error = creation.join_all().await.remove(0).unwrap_err();
    assert_eq!((error.reason(), error.is_definite()), (Reason::Cancelled, true));
    assert!(driver.new_user(&call(), &user(1)).await.is_err());
    assert!(fake.users.lock().is_empty());
}

#[tokio::test]
async fn a_ledger_outlives_the_driver_that_wrote_it() {
    let ledger = Ledger::default();
    let with = |gate| {
        let fake = Arc::new(Fake { gate, ..Fake::default() });
        (Arc::clone(&fake), Arc::new(Idempotent::sharing(fake, &ledger)))
    };
    let (old_fake, old) = with(Some(CancellationToken::new()));
    let (new_fake, new) = with(None);
    let running = tokio::task::JoinSet::from_iter([{
        let old = Arc::clone(&old);
        async move { old.new_user(&call(), &user(1)).await }
    }]);
    while old_fake.created.load(Ordering::SeqCst) == 0 {
        tokio::task::yield_now().await;
    }
    new.new_user(&call(), &user(2)).await.unwrap();
    // The removal reaches the creation that runs in the other driver, and waits for its end.
    new.delete_user(&call(), &delete(1)).await.unwrap();
    assert_eq!(running.join_all().await.remove(0).unwrap_err().reason(), Reason::Cancelled);
    assert!(new.new_user(&call(), &user(1)).await.is_err());
    new.close().await;
    // What one driver made is known to the next; closing the first stopped nothing of it.
    let (third_fake, third) = with(None);
    third.new_user(&call(), &user(2)).await.unwrap();
    assert_eq!(third_fake.created.load(Ordering::SeqCst) + new_fake.created.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn closing_one_driver_stops_its_own_creations_only() {
    let ledger = Ledger::default();
    let gate = CancellationToken::new();
    let fake = || Arc::new(Fake { gate: Some(gate.clone()), ..Fake::default() });
    let (one, other) = (Idempotent::sharing(fake(), &ledger), Idempotent::sharing(fake(), &ledger));
    let (first, second) = (call(), call());
    let (mine, theirs) = (user(1), user(2));
    let close = async {
        let waits = |key| ledger.0.lock().waiting(key) == 1;
        while !(waits(mine.key) && waits(theirs.key)) {
            tokio::task::yield_now().await;
        }
        one.close().await;
        gate.cancel();
    };
    let (stopped, made, ()) =
        tokio::join!(one.new_user(&first, &mine), other.new_user(&second, &theirs), close);
    assert_eq!(stopped.unwrap_err().reason(), Reason::Cancelled);
    made.unwrap();
}

#[tokio::test]
async fn a_creation_ends_when_its_last_caller_goes() {
    let (fake, driver) = rig(Some(CancellationToken::new()));
    let cancelled = call();
    cancelled.cancel.cancel();
    let error = driver.new_user(&cancelled, &user(1)).await.unwrap_err();
    assert_eq!(error.reason(), Reason::Cancelled);
    {
        let dropped = call();
        let gone = user(2);
        let attempt = driver.new_user(&dropped, &gone);
        let started = async {
            while fake.created.load(Ordering::SeqCst) == 0 {
                tokio::task::yield_now().await;
            }
        };
        tokio::select! { _ = attempt => panic!("ended"), () = started => {} }
    }
    driver.tasks.close();
    driver.tasks.wait().await;
    assert!(fake.users.lock().is_empty());
}

#[tokio::test]
async fn a_key_sent_again_after_a_restart_makes_the_user_anew() {
    let (fake, driver) = rig(None);
    driver.new_user(&call(), &user(1)).await.unwrap();
    let restarted = Idempotent::new(Arc::<Fake>::clone(&fake));
    let error = restarted.new_user(&call(), &user(1)).await.unwrap_err();
    assert_eq!(error.reason(), Reason::Exists, "a first sending never removes what is there");
    let restarted = Idempotent::new(Arc::<Fake>::clone(&fake));
    restarted.new_user(&call(), &NewUser { resent: true, ..user(1) }).await.unwrap();
    assert_eq!(fake.users.lock().len(), 1);
}

#[test]
fn both_tables_are_bounded_in_number_and_time() {
    let mut table = Table::default();
    let key = |n: u32| IdempotencyKey::from_bytes(u128::from(n).to_be_bytes());
    for n in 0..5000 {
        table.insert(key(n), Entry::running(CancellationToken::new())).unwrap();
        table.finished(key(n));
        table.cancel(key(n));
    }
    assert_eq!(table.sizes(), (table::MOST, table::MOST));
    assert!(!table.is_cancelled(key(0)) && table.is_cancelled(key(4999)));
    table.expire_at(tokio::time::Instant::now() + table::KEPT);
    assert_eq!(table.sizes(), (0, 0));
    for n in 0..4096 {
        table.insert(key(n), Entry::running(CancellationToken::new())).unwrap();
    }
    assert_eq!(
        table.insert(key(9999), Entry::running(CancellationToken::new())).unwrap_err().reason(),
        Reason::Busy
    );
}
