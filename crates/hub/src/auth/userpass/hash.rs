//! Password hashes: argon2id on threads of their own, a few at a time.

use std::sync::Arc;
use std::time::Duration;

use argon2::Argon2;
use argon2::password_hash::phc::PasswordHash;
use argon2::password_hash::{PasswordHasher, PasswordVerifier};
use holdfast_ops::Tasks;
use secrecy::{ExposeSecret as _, SecretString};
use tokio::sync::Semaphore;
use tokio::time::Instant;

use crate::error::ApiError;

/// Each hash takes 19 MiB and a core for tens of milliseconds.
const MOST_AT_ONCE: usize = 8;
/// Callers that may wait for their turn; more are refused.
const MOST_WAITING: usize = 256;

/// The hash of no password, with the parameters of a real one: what an unknown user is checked against.
const NOBODY: &str =
    "$argon2id$v=19$m=19456,t=2,p=1$AAAAAAAAAAAAAAAAAAAAAA$AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";

/// Hashing within two bounds.
pub(super) struct Hashing {
    tasks: Tasks,
    turns: Arc<Semaphore>,
    queue: Arc<Semaphore>,
}

impl Hashing {
    pub(super) fn new() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Self {
            tasks: Tasks::new("userpass"),
            turns: Arc::new(Semaphore::new(cores.clamp(1, MOST_AT_ONCE))),
            queue: Arc::new(Semaphore::new(MOST_WAITING)),
        }
    }

    /// A fresh hash of a password.
    pub(super) async fn hash(&self, password: SecretString, deadline: Instant) -> Result<String, ApiError> {
        let make = move || {
            let hash = Argon2::default().hash_password(password.expose_secret().as_bytes());
            hash.map(|hash| hash.to_string())
                .map_err(|error| ApiError::failed(format!("hashing failed: {error}")))
        };
        self.run(deadline, make).await?
    }

    /// Whether the password is the one that was hashed; the same effort when there is no hash.
    pub(super) async fn verify(
        &self,
        password: SecretString,
        hash: Option<String>,
        deadline: Instant,
    ) -> Result<bool, ApiError> {
        let check = move || {
            let known = hash.is_some();
            let text = hash.as_deref().unwrap_or(NOBODY);
            let parsed = PasswordHash::new(text).map_err(|error| ApiError::internal(error.to_string()))?;
            let right = Argon2::default().verify_password(password.expose_secret().as_bytes(), &parsed);
            Ok::<_, ApiError>(right.is_ok() && known)
        };
        self.run(deadline, check).await?
    }

    /// Runs on a blocking thread when it is this caller's turn. The turn is given back when the work is done, not
    /// when the caller goes away.
    async fn run<T: Send + 'static>(
        &self,
        deadline: Instant,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, ApiError> {
        let _place = self.queue.try_acquire().map_err(|_| busy())?;
        let deadline = deadline.min(Instant::now() + Duration::from_secs(30));
        let turn = tokio::time::timeout_at(deadline, Arc::clone(&self.turns).acquire_owned()).await;
        let turn = turn.map_err(|_| busy())?.map_err(ApiError::internal)?;
        let job = self.tasks.spawn_blocking("hash", move || {
            let _turn = turn;
            work()
        });
        job.join().await.ok_or_else(|| ApiError::internal("hashing a password did not end"))
    }
}

fn busy() -> ApiError {
    ApiError::unavailable("too many logins are under way")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(60)
    }

    #[tokio::test]
    async fn only_the_right_password_verifies() {
        let hashing = Hashing::new();
        let hash = hashing.hash("right".into(), soon()).await.unwrap();
        assert!(hashing.verify("right".into(), Some(hash.clone()), soon()).await.unwrap());
        assert!(!hashing.verify("wrong".into(), Some(hash), soon()).await.unwrap());
    }

    #[tokio::test]
    async fn nobody_costs_what_somebody_costs() {
        let hashing = Hashing::new();
        let hash = hashing.hash("x".into(), soon()).await.unwrap();
        let cost = |text: &str| text.split('$').take(4).collect::<Vec<_>>().join("$");
        assert_eq!(cost(&hash), cost(NOBODY));
        assert_eq!(hash.len(), NOBODY.len());
        assert!(!hashing.verify("".into(), None, soon()).await.unwrap());
    }

    #[tokio::test]
    async fn a_login_as_nobody_takes_its_turn_at_hashing_too() {
        use super::super::{PREFIX, User, UserPass};
        use crate::logical::{Engine as _, Operation};
        use crate::mount::MountEntry;
        let (_, _, cx) = crate::testing::hub();
        let mount = MountEntry { path: "auth/u/".into(), uuid: "u".into(), ..MountEntry::default() };
        let known = format!("{PREFIX}ann");
        mount
            .storage(&cx.storage)
            .put(&known, &User { hash: NOBODY.into(), ..User::default() })
            .await
            .unwrap();
        let full = UserPass { hashing: Hashing { queue: Arc::new(Semaphore::new(0)), ..Hashing::new() } };
        let free = UserPass { hashing: Hashing::new() };
        for name in ["ann", "nobody"] {
            let body = serde_json::json!({"password": "wrong"});
            let request =
                crate::testing::request(Operation::Write, "auth/u/", &format!("login/{name}"), body);
            assert_eq!(full.handle(&cx, &mount, &request).await.unwrap_err().status(), 503, "{name}");
            assert_eq!(free.handle(&cx, &mount, &request).await.unwrap_err().status(), 400, "{name}");
        }
    }

    #[tokio::test]
    async fn who_cannot_wait_is_refused() {
        let none = || Arc::new(Semaphore::new(0));
        let hashing = Hashing { turns: none(), ..Hashing::new() };
        let late = hashing.run(Instant::now(), || ()).await.unwrap_err();
        assert_eq!(late.status(), 503);
        let full = Hashing { queue: none(), ..Hashing::new() };
        assert_eq!(full.run(soon(), || ()).await.unwrap_err().status(), 503);
    }
}
