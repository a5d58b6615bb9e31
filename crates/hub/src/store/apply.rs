//! What an entry does to the state. Pure of time and chance: every node comes to the same state.

use std::collections::BTreeSet;

use openraft::EntryPayload;
use rusqlite::{OptionalExtension as _, Transaction, params};
use serde::{Deserialize, Serialize};

use super::db;
use super::types::{Command, Entry, LogId, Membership, Outcome, Reply, Row};
use super::{Batch, Condition, Op};

/// What the state knows of itself; written in the same transaction as what it describes.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub(super) struct Head {
    /// The last applied entry.
    pub applied: Option<LogId>,
    /// The last applied membership.
    pub membership: Membership,
    /// The version of the newest batch: grows with every batch, also of those that share an entry.
    pub version: u64,
    /// The highest number that any member ever had.
    pub top_member: u64,
    /// The restore that is under way, and how many rows of it there are.
    pub restore: Option<(u64, u64)>,
}

impl Head {
    /// Reads the head of a state; `None` when it has none yet, an error when it fails its checksum.
    pub(super) fn read(connection: &rusqlite::Connection) -> rusqlite::Result<Option<Self>> {
        let sealed: Option<Vec<u8>> = connection
            .query_row("SELECT value FROM meta WHERE name = 'head'", [], |row| row.get(0))
            .optional()?;
        sealed.map(|sealed| db::unseal(&sealed).ok_or(rusqlite::Error::InvalidQuery)).transpose()
    }

    pub(super) fn write(&self, transaction: &Transaction<'_>) -> rusqlite::Result<()> {
        let sealed =
            db::seal(self).map_err(|error| rusqlite::Error::ToSqlConversionFailure(Box::new(error)))?;
        transaction
            .prepare_cached("INSERT OR REPLACE INTO meta (name, value) VALUES ('head', ?1)")?
            .execute([sealed])?;
        Ok(())
    }

    pub(super) fn take_membership(&mut self, membership: Membership) {
        let top = membership.nodes().map(|(id, _)| *id).max().unwrap_or(0);
        self.top_member = self.top_member.max(top);
        self.membership = membership;
    }
}

/// What an applied run of entries changed, for the hooks.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Changed {
    /// The keys of the batches that were applied.
    pub keys: BTreeSet<String>,
    /// Whether the whole state was replaced.
    pub everything: bool,
}

/// Applies `entries` within one transaction.
pub(super) fn entries(
    transaction: &Transaction<'_>,
    head: &mut Head,
    entries: &[Entry],
    changed: &mut Changed,
) -> rusqlite::Result<Vec<Reply>> {
    let mut replies = Vec::with_capacity(entries.len());
    for entry in entries {
        head.applied = Some(entry.log_id);
        replies.push(match &entry.payload {
            EntryPayload::Blank => Reply::default(),
            EntryPayload::Membership(membership) => {
                head.take_membership(Membership::new(Some(entry.log_id), membership.clone()));
                Reply::default()
            }
            EntryPayload::Normal(command) => {
                let term = entry.log_id.leader_id.term;
                Reply { outcomes: run(transaction, head, term, command, changed)? }
            }
        });
    }
    head.write(transaction)?;
    Ok(replies)
}

fn run(
    transaction: &Transaction<'_>,
    head: &mut Head,
    term: u64,
    command: &Command,
    changed: &mut Changed,
) -> rusqlite::Result<Vec<Outcome>> {
    match command {
        Command::Group { batches, .. } => {
            batches.iter().map(|batch| apply_batch(transaction, head, term, batch, changed)).collect()
        }
        Command::RestoreBegin { id } => {
            transaction.execute("DELETE FROM staged", [])?;
            head.restore = Some((*id, 0));
            Ok(Vec::new())
        }
        Command::RestoreRows { id, rows } => {
            if let Some((current, count)) = &mut head.restore
                && current == id
            {
                *count += stage(transaction, rows)?;
            }
            Ok(Vec::new())
        }
        Command::RestoreEnd { id, rows } => {
            if head.restore.take() != Some((*id, *rows)) {
                return Ok(vec![Outcome::Refused(0)]);
            }
            head.version += 1;
            transaction.execute("DELETE FROM kv", [])?;
            transaction.execute(
                "INSERT INTO kv (key, version, value) SELECT key, ?1, value FROM staged ORDER BY key",
                [sql(head.version)],
            )?;
            transaction.execute("DELETE FROM staged", [])?;
            changed.everything = true;
            Ok(vec![Outcome::Applied(head.version)])
        }
    }
}

fn stage(transaction: &Transaction<'_>, rows: &[Row]) -> rusqlite::Result<u64> {
    let mut insert =
        transaction.prepare_cached("INSERT OR REPLACE INTO staged (key, value) VALUES (?1, ?2)")?;
    for row in rows {
        insert.execute(params![row.key.as_bytes(), row.value])?;
    }
    Ok(u64::try_from(rows.len()).unwrap_or(u64::MAX))
}

fn apply_batch(
    transaction: &Transaction<'_>,
    head: &mut Head,
    term: u64,
    batch: &Batch,
    changed: &mut Changed,
) -> rusqlite::Result<Outcome> {
    for (place, condition) in batch.conditions.iter().enumerate() {
        if !holds(transaction, term, condition)? {
            return Ok(Outcome::Refused(u32::try_from(place).unwrap_or(u32::MAX)));
        }
    }
    head.version += 1;
    for op in &batch.ops {
        match op {
            Op::Put { key, value } => {
                transaction
                    .prepare_cached("INSERT OR REPLACE INTO kv (key, version, value) VALUES (?1, ?2, ?3)")?
                    .execute(params![key.as_bytes(), sql(head.version), value])?;
            }
            Op::Delete { key } => {
                transaction.prepare_cached("DELETE FROM kv WHERE key = ?1")?.execute([key.as_bytes()])?;
            }
        }
        changed.keys.insert(op.key().to_owned());
    }
    Ok(Outcome::Applied(head.version))
}

fn holds(transaction: &Transaction<'_>, term: u64, condition: &Condition) -> rusqlite::Result<bool> {
    let version = |key: &str| -> rusqlite::Result<Option<i64>> {
        transaction
            .prepare_cached("SELECT version FROM kv WHERE key = ?1")?
            .query_row([key.as_bytes()], |row| row.get(0))
            .optional()
    };
    Ok(match condition {
        Condition::Absent(key) => version(key)?.is_none(),
        Condition::Present(key) => version(key)?.is_some(),
        Condition::Version(key, expected) => version(key)? == Some(sql(*expected)),
        Condition::Term(expected) => expected.into_inner() == term,
    })
}

fn sql(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
