//! What a lease promises, and all that is needed to keep the promise when roles, mounts and names are gone.

use serde::{Deserialize, Serialize};

use super::clock::Wall;
use super::id::LeaseId;

/// A lease.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Lease {
    /// Its name.
    pub id: LeaseId,
    /// The prefix of the mount that made it, with a trailing slash.
    pub mount: String,
    /// The path of the request that made it.
    pub path: String,
    /// The id of the token that asked for it; empty for none.
    pub token: String,
    /// When it was made.
    pub issued: Wall,
    /// When it ends.
    pub expires: Wall,
    /// When it was last renewed.
    pub renewed: Option<Wall>,
    /// Seconds that a renewal without an increment gives.
    pub default_ttl: u64,
    /// Seconds after `issued` beyond which no renewal goes.
    pub max_ttl: u64,
    /// The end of the longest life that its token can have, which no renewal passes; none when nothing bounds it.
    #[serde(default)]
    pub not_after: Option<Wall>,
    /// Whether it can be renewed.
    pub renewable: bool,
    /// Where it stands in the index of what is due: its end, or the time of the next attempt to revoke it.
    pub due: Wall,
    /// How far its revocation has come.
    pub revocation: Revocation,
    /// The database login behind it.
    pub login: Login,
}

/// How far a revocation has come.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(default)]
pub struct Revocation {
    /// Asked for before the lease's end.
    pub requested: bool,
    /// Failed attempts so far.
    pub attempts: u32,
    /// The last error, scrubbed; at most 240 characters.
    pub error: String,
    /// Attempts are used up: tried daily, listed and counted.
    pub irrevocable: bool,
}

/// A login in a database.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Login {
    /// The mount's unique id.
    pub mount_uuid: String,
    /// The unique id of the connection configuration, which survives its deletion and its name's reuse.
    pub config_id: String,
    /// The configuration's name when the login was made.
    pub config: String,
    /// The role's name.
    pub role: String,
    /// The user.
    pub username: String,
    /// The key of its creation, in hexadecimal.
    pub key: String,
    /// How the user is removed; empty for the driver's own way.
    pub revocation_statements: Vec<String>,
    /// How the user's end of validity is moved; empty for the driver's own way.
    pub renew_statements: Vec<String>,
}

impl Lease {
    /// Whether it may no longer be renewed or used.
    pub fn is_over(&self, now: Wall) -> bool {
        self.revocation.requested || self.revocation.irrevocable || self.expires <= now
    }

    /// What the index of due leases says of it.
    pub fn due_entry(&self) -> DueEntry {
        DueEntry { queue: self.login.queue(), attempts: self.revocation.attempts }
    }

    /// What is left, in seconds.
    pub fn remaining(&self, now: Wall) -> u64 {
        now.secs_until(self.expires)
    }
}

/// What the index of due leases says of a lease: enough to queue it without reading it.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct DueEntry {
    /// Where it waits.
    pub queue: Queue,
    /// Failed attempts so far.
    pub attempts: u32,
}

/// Where revocations wait: each connection configuration has a queue of its own.
#[derive(Clone, Debug, Deserialize, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize)]
pub struct Queue {
    /// The mount's unique id.
    pub mount_uuid: String,
    /// The configuration's unique id.
    pub config_id: String,
}

impl Login {
    /// The queue in which its revocation waits.
    pub fn queue(&self) -> Queue {
        Queue { mount_uuid: self.mount_uuid.clone(), config_id: self.config_id.clone() }
    }
}

/// Cuts a text for the record to 240 characters.
pub fn short(text: &str) -> String {
    text.chars().take(240).collect()
}
