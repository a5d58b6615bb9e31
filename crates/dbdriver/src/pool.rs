//! A small pool of connections with a hard bound, used by every driver.
//!
//! Invariant: connections in use plus idle ones never exceed the bound. It holds because a slot is taken before an
//! idle connection is looked for, and a new connection is opened only when there is none. Only a connection that was
//! given back on purpose is used again; one that is dropped, for whatever reason, is closed.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::driver::Call;
use crate::error::{DriverError, Reason};

/// Opens the connections of a pool.
#[async_trait]
pub(crate) trait Connect: Send + Sync + 'static {
    /// What is pooled.
    type Conn: Send + 'static;

    /// Opens a connection. The caller bounds the time.
    async fn connect(&self) -> Result<Self::Conn, DriverError>;

    /// Whether an idle connection still looks alive.
    fn is_alive(conn: &Self::Conn) -> bool;
}

struct Idle<T> {
    conn: T,
    opened: Instant,
}

/// Connections of one configuration.
pub(crate) struct Pool<C: Connect> {
    connector: C,
    slots: Arc<Semaphore>,
    idle: Mutex<Vec<Idle<C::Conn>>>,
    idle_limit: usize,
    lifetime: Option<Duration>,
    closed: CancellationToken,
}

impl<C: Connect> Pool<C> {
    pub(crate) fn new(connector: C, open_limit: u32, idle_limit: usize, lifetime: Duration) -> Arc<Self> {
        Arc::new(Self {
            connector,
            slots: Arc::new(Semaphore::new(usize::try_from(open_limit.max(1)).unwrap_or(1))),
            idle: Mutex::new(Vec::new()),
            idle_limit,
            lifetime: (!lifetime.is_zero()).then_some(lifetime),
            closed: CancellationToken::new(),
        })
    }

    /// How many connections wait for work.
    pub(crate) fn idle_count(&self) -> usize {
        self.idle.lock().len()
    }

    /// Waits for a free slot and hands out a connection, an idle one if there is one.
    pub(crate) async fn take(self: &Arc<Self>, call: &Call) -> Result<Lease<C>, DriverError> {
        let slot = self.slot(call).await?;
        if let Some(Idle { conn, opened }) = self.pop_idle() {
            return Ok(Lease { pool: Arc::clone(self), conn: Some(conn), opened, reused: true, _slot: slot });
        }
        let conn = self.run(call, self.connector.connect()).await.map_err(while_connecting)??;
        Ok(Lease {
            pool: Arc::clone(self),
            conn: Some(conn),
            opened: Instant::now(),
            reused: false,
            _slot: slot,
        })
    }

    /// Takes a slot without a connection, for a caller that opens one of its own kind.
    pub(crate) async fn take_slot(&self, call: &Call) -> Result<OwnedSemaphorePermit, DriverError> {
        let slot = self.slot(call).await?;
        drop(self.pop_idle());
        Ok(slot)
    }

    async fn slot(&self, call: &Call) -> Result<OwnedSemaphorePermit, DriverError> {
        call.check()?;
        let waited = self.run(call, Arc::clone(&self.slots).acquire_owned()).await;
        match waited {
            Ok(slot) => slot.map_err(|_| DriverError::closed()),
            Err(e) if e.reason() == Reason::Deadline => Err(DriverError::new(
                Reason::Busy,
                "all connections to the database stayed in use until the deadline",
            )),
            Err(e) => Err(e),
        }
    }

    fn pop_idle(&self) -> Option<Idle<C::Conn>> {
        let mut idle = self.idle.lock();
        let now = Instant::now();
        while let Some(found) = idle.pop() {
            if C::is_alive(&found.conn) && !self.is_too_old(found.opened, now) {
                return Some(found);
            }
        }
        None
    }

    fn is_too_old(&self, opened: Instant, now: Instant) -> bool {
        self.lifetime.is_some_and(|lifetime| now.saturating_duration_since(opened) >= lifetime)
    }

    /// Waits for `work` as long as the call allows and the pool is open.
    pub(crate) async fn run<T>(&self, call: &Call, work: impl Future<Output = T>) -> Result<T, DriverError> {
        tokio::select! {
            biased;
            () = self.closed.cancelled() => Err(DriverError::closed()),
            done = call.run(work) => done,
        }
    }

    /// Closes idle connections now and those in use as they come back; hands out none any more.
    pub(crate) fn close(&self) {
        self.closed.cancel();
        self.slots.close();
        self.idle.lock().clear();
    }
}

/// A deadline that passes before a connection is made says that the database does not answer.
fn while_connecting(error: DriverError) -> DriverError {
    match error.reason() {
        Reason::Deadline => DriverError::new(
            Reason::Unreachable,
            "no connection to the database could be made before the deadline",
        ),
        _ => error,
    }
}

/// A connection in use. Dropping it closes it; [`Lease::give_back`] keeps it for the next caller.
pub(crate) struct Lease<C: Connect> {
    pool: Arc<Pool<C>>,
    conn: Option<C::Conn>,
    opened: Instant,
    reused: bool,
    _slot: OwnedSemaphorePermit,
}

impl<C: Connect> Lease<C> {
    /// The connection.
    pub(crate) fn conn(&mut self) -> Result<&mut C::Conn, DriverError> {
        self.conn
            .as_mut()
            .ok_or_else(|| DriverError::new(Reason::Internal, "connection used after it was given back"))
    }

    /// Whether the connection had been idle, and so may have died unnoticed.
    pub(crate) const fn is_reused(&self) -> bool {
        self.reused
    }

    /// Gives the connection back in good order.
    pub(crate) fn give_back(mut self) {
        let Some(conn) = self.conn.take() else { return };
        let pool = &self.pool;
        let mut idle = pool.idle.lock();
        if !pool.closed.is_cancelled()
            && C::is_alive(&conn)
            && idle.len() < pool.idle_limit
            && !pool.is_too_old(self.opened, Instant::now())
        {
            idle.push(Idle { conn, opened: self.opened });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[derive(Default)]
    struct Counted {
        open: Arc<AtomicUsize>,
        opened: AtomicUsize,
    }

    struct Conn(Arc<AtomicUsize>);

    impl Drop for Conn {
        fn drop(&mut self) {
            self.0.fetch_sub(1, Ordering::SeqCst);
        }
    }

    #[async_trait]
    impl Connect for Counted {
        type Conn = Conn;

        async fn connect(&self) -> Result<Conn, DriverError> {
            tokio::task::yield_now().await;
            self.opened.fetch_add(1, Ordering::SeqCst);
            self.open.fetch_add(1, Ordering::SeqCst);
            Ok(Conn(Arc::clone(&self.open)))
        }

        fn is_alive(_: &Conn) -> bool {
            true
        }
    }

    fn call() -> Call {
        Call::within(Duration::from_secs(5))
    }

    #[tokio::test]
    async fn never_more_connections_than_allowed() {
        let pool = Pool::new(Counted::default(), 3, 3, Duration::ZERO);
        let most = Arc::new(AtomicUsize::new(0));
        let mut set = tokio::task::JoinSet::new();
        for _ in 0..50 {
            let (pool, most) = (Arc::clone(&pool), Arc::clone(&most));
            set.spawn(async move {
                let lease = pool.take(&call()).await.unwrap();
                most.fetch_max(pool.connector.open.load(Ordering::SeqCst), Ordering::SeqCst);
                tokio::task::yield_now().await;
                lease.give_back();
            });
        }
        while let Some(done) = set.join_next().await {
            done.unwrap();
        }
        assert!(most.load(Ordering::SeqCst) <= 3);
        assert!(pool.connector.opened.load(Ordering::SeqCst) <= 3);
    }

    #[tokio::test]
    async fn a_dropped_connection_is_closed_and_frees_its_slot() {
        let pool = Pool::new(Counted::default(), 1, 1, Duration::ZERO);
        drop(pool.take(&call()).await.unwrap());
        assert_eq!((pool.idle_count(), pool.connector.open.load(Ordering::SeqCst)), (0, 0));
        pool.take(&call()).await.unwrap().give_back();
        assert_eq!(pool.idle_count(), 1);
    }

    #[tokio::test]
    async fn waiting_ends_at_the_deadline_as_busy_and_on_close() {
        let pool = Pool::new(Counted::default(), 1, 1, Duration::ZERO);
        let held = pool.take(&call()).await.unwrap();
        let short = Call::within(Duration::from_millis(20));
        assert_eq!(pool.take(&short).await.err().unwrap().reason(), Reason::Busy);
        pool.close();
        assert_eq!(pool.take(&call()).await.err().unwrap().reason(), Reason::Closed);
        held.give_back();
        assert_eq!((pool.idle_count(), pool.connector.open.load(Ordering::SeqCst)), (0, 0));
    }

    #[tokio::test]
    async fn old_connections_are_not_used_again() {
        let pool = Pool::new(Counted::default(), 1, 1, Duration::from_nanos(1));
        pool.take(&call()).await.unwrap().give_back();
        assert!(!pool.take(&call()).await.unwrap().is_reused());
    }
}
