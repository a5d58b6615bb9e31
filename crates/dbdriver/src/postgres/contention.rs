//! Which kinds of transaction met conflicts of late, and where the next ones of their kind queue up.
//!
//! `GRANT` on a shared object fails when another transaction just changed the same catalogue row, however long it
//! waited for that row. Transactions of a kind that met this take an advisory lock, so that they queue up in the
//! server, across all our nodes, instead of failing one another. They take it as late as possible, just before the
//! first statement that changes something shared: what comes before, which may be slow, still runs side by side.
//!
//! Two locks keep their order: the one at the start is always taken before the one in the middle, and both have keys
//! of their own. So a transaction that queued early never waits for a row of one that holds what it waits for.

use std::collections::HashMap;
use std::time::Duration;

use aws_lc_rs::digest::{SHA256, digest};
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::statement::{Dialect, first_words};

/// How long after a conflict transactions of the same kind queue up instead of colliding.
const HOT: Duration = Duration::from_secs(5);
/// Kinds of transaction remembered as hot.
const HOT_KINDS: usize = 256;

/// Which kinds of transaction met conflicts of late.
#[derive(Debug, Default)]
pub(super) struct Contention(Mutex<HashMap<i64, Instant>>);

/// The advisory locks of one attempt.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) struct Locks {
    /// Taken before any statement.
    pub(super) at_start: Option<i64>,
    /// Taken before the statement at this place.
    pub(super) before: Option<(usize, i64)>,
}

impl Contention {
    /// Names a kind of transaction by the statement templates it runs.
    pub(super) fn key(templates: &[String]) -> i64 {
        let digest = digest(&SHA256, templates.join("\n").as_bytes());
        digest.as_ref().first_chunk().map_or(0, |bytes| i64::from_be_bytes(*bytes))
    }

    /// The locks for an attempt (0 for the first) of a kind whose first change of something shared is `shared`.
    ///
    /// Where nothing shared is seen, or the late lock did not help, the conflict came from elsewhere: from a function
    /// that a statement calls, say. Only the whole transaction can queue up then.
    pub(super) fn locks(&self, kind: i64, attempt: u32, shared: Option<usize>) -> Locks {
        if attempt == 0 && !self.is_hot(kind) {
            return Locks::default();
        }
        let early = attempt > 1 || shared.is_none();
        Locks { at_start: early.then_some(!kind), before: shared.map(|place| (place, kind)) }
    }

    /// Notes a conflict.
    pub(super) fn met(&self, kind: i64) {
        let mut kinds = self.0.lock();
        let now = Instant::now();
        if kinds.len() >= HOT_KINDS {
            kinds.retain(|_, until| *until > now);
        }
        if kinds.len() < HOT_KINDS || kinds.contains_key(&kind) {
            kinds.insert(kind, now + HOT);
        }
    }

    fn is_hot(&self, kind: i64) -> bool {
        self.0.lock().get(&kind).is_some_and(|until| *until > Instant::now())
    }
}

/// The place of the first statement that changes an object others may be changing too.
pub(super) fn first_shared(statements: &[String]) -> Option<usize> {
    statements.iter().position(|statement| changes_shared(statement))
}

fn changes_shared(statement: &str) -> bool {
    let words = first_words(statement, Dialect::Postgres, 3);
    match words.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        // A role of this creation's own; nobody else changes it.
        ["ALTER", "ROLE" | "USER" | "GROUP", ..] => false,
        ["GRANT" | "REVOKE" | "ALTER" | "COMMENT" | "SECURITY" | "REASSIGN", ..]
        | ["DROP", "OWNED", ..]
        | ["CREATE", "OR", "REPLACE"] => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_changes_shared_objects_is_known_by_its_first_words() {
        for shared in [
            "GRANT USAGE ON SCHEMA a TO b",
            "  /* why */ revoke ALL ON SCHEMA a FROM b",
            "-- why\nALTER DEFAULT PRIVILEGES GRANT SELECT ON TABLES TO b",
            "ALTER TABLE a OWNER TO b",
            "COMMENT ON SCHEMA a IS 'b'",
            "DROP OWNED BY b",
            "CREATE OR REPLACE FUNCTION f() RETURNS int LANGUAGE sql RETURN 1",
        ] {
            assert!(changes_shared(shared), "{shared}");
        }
        for own in [
            "CREATE ROLE \"GRANT\" LOGIN",
            "ALTER ROLE b SET search_path = a",
            "SELECT pg_sleep(1) /* GRANT */",
            "DO $$ BEGIN GRANT a TO b; END $$",
            "DROP ROLE b",
            "",
        ] {
            assert!(!changes_shared(own), "{own}");
        }
        let creation = ["SELECT 1", "CREATE ROLE b", "GRANT a TO b", "GRANT c TO b"].map(str::to_owned);
        assert_eq!(first_shared(&creation), Some(2));
    }

    #[test]
    fn a_kind_that_collided_queues_late_and_early_only_when_that_did_not_help() {
        let contention = Contention::default();
        let late = Locks { at_start: None, before: Some((2, 7)) };
        let early = Locks { at_start: Some(!7), before: Some((2, 7)) };
        assert_eq!(contention.locks(7, 0, Some(2)), Locks::default());
        assert_eq!(contention.locks(7, 1, Some(2)), late);
        contention.met(7);
        assert_eq!(contention.locks(7, 0, Some(2)), late);
        assert_eq!(contention.locks(7, 2, Some(2)), early);
        assert_eq!(contention.locks(7, 0, None), Locks { at_start: Some(!7), before: None });
        assert_eq!(contention.locks(8, 0, Some(2)), Locks::default());
        contention.0.lock().insert(7, Instant::now());
        assert_eq!(contention.locks(7, 0, Some(2)), Locks::default());
    }
}
