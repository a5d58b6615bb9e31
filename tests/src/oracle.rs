//! The oracle: at rest, the database users that we made are exactly those of live leases.

use std::time::{Duration, Instant};

use crate::api::Api;
use crate::db::PostgresServer;

/// The ids of all leases below a prefix, folders followed.
pub async fn leases(api: &Api, prefix: &str) -> Vec<String> {
    let mut ids = Vec::new();
    let mut folders = vec![prefix.to_owned()];
    while let Some(folder) = folders.pop() {
        let reply = api.list(&format!("sys/leases/lookup/{folder}")).await;
        let keys = reply.body["data"]["keys"].as_array().cloned().unwrap_or_default();
        for key in keys.iter().filter_map(|k| k.as_str()) {
            match key.ends_with('/') {
                true => folders.push(format!("{folder}{key}")),
                false => ids.push(format!("{folder}{key}")),
            }
        }
    }
    ids
}

/// Waits until as many users of ours exist as there are leases below `database/creds/`.
pub async fn settled(api: &Api, database: &PostgresServer, deadline: Duration) {
    let begun = Instant::now();
    loop {
        let (users, leases) = (database.users("v-").await.len(), leases(api, "database/creds/").await.len());
        if users == leases {
            return;
        }
        assert!(begun.elapsed() < deadline, "not within {deadline:?}: {users} users and {leases} leases");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// A login as the hub issued it.
#[derive(Clone, Debug)]
pub struct Login {
    /// Its lease.
    pub lease: String,
    /// The database user.
    pub username: String,
    /// Its password.
    pub password: String,
}

impl Login {
    /// Asks for one; none when the answer was not 200.
    pub async fn issue(api: &Api, path: &str) -> Option<Self> {
        let reply = api.try_send("GET", path, None).await.ok().filter(|reply| reply.status == 200)?;
        let lease = reply.body["lease_id"].as_str()?.to_owned();
        Some(Self { lease, username: reply.text("username"), password: reply.text("password") })
    }

    /// Whether it works.
    pub async fn works(&self, database: &PostgresServer) -> bool {
        database.can_log_in(&self.username, &self.password).await
    }
}
