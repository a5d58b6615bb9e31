//! The board: the current record of every binding, which readers load and streams follow.
//!
//! What must hold: a record is one immutable whole; `seq` grows with every visible change of any record of the process;
//! whoever looks after a change was announced sees that change or a later one.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use arc_swap::ArcSwap;
use holdfast_core::Mono;
use holdfast_core::freshness::State;
pub use holdfast_core::stream::Seq;
use holdfast_ops::MonoClock;
use parking_lot::Mutex;
use tokio::sync::broadcast;

use crate::value::Value;
use crate::wire::{self, Encoded};

/// What readers see of one binding.
#[derive(Clone, Debug)]
pub struct Record {
    /// The state of its cell.
    pub state: State<Value>,
    /// The number of its last visible change.
    pub seq: Seq,
    /// When it was published.
    pub published: Mono,
    /// Made when the first reader wants it, for all of them.
    encoded: OnceLock<Encoded>,
}

impl Record {
    fn new(state: State<Value>, seq: Seq) -> Self {
        Self { state, seq, published: MonoClock.now(), encoded: OnceLock::new() }
    }
}

/// The place of one binding on the board; it outlives every change of its record.
#[derive(Debug)]
pub struct Entry {
    name: Arc<str>,
    record: ArcSwap<Record>,
}

impl Entry {
    /// The name of the binding.
    pub fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// The current record.
    pub fn load(&self) -> Arc<Record> {
        self.record.load_full()
    }

    /// What a record of this entry is on the wire; encoded once, whoever asks.
    pub fn encoded<'a>(&self, record: &'a Record) -> &'a Encoded {
        record.encoded.get_or_init(|| wire::encode(&self.name, &record.state))
    }
}

/// One record changed.
#[derive(Clone, Debug)]
pub struct Change {
    /// Whose.
    pub entry: Arc<Entry>,
    /// Whether a reader sees a difference; else only dates moved.
    pub visible: bool,
    /// The number of the last visible change, of any entry, when this one was announced. Announcements come in the order
    /// of these numbers.
    pub seq: Seq,
}

/// All bindings of the running configuration.
#[derive(Debug)]
pub struct Board {
    entries: ArcSwap<BTreeMap<Arc<str>, Arc<Entry>>>,
    next: Mutex<u64>,
    changes: broadcast::Sender<Change>,
}

/// Changes that a follower may be behind before it has to look at everything.
const BACKLOG: usize = 4096;

impl Default for Board {
    fn default() -> Self {
        Self { entries: ArcSwap::default(), next: Mutex::new(0), changes: broadcast::Sender::new(BACKLOG) }
    }
}

impl Board {
    /// The entry of a name.
    pub fn get(&self, name: &str) -> Option<Arc<Entry>> {
        self.entries.load().get(name).cloned()
    }

    /// All entries by name.
    pub fn entries(&self) -> Arc<BTreeMap<Arc<str>, Arc<Entry>>> {
        self.entries.load_full()
    }

    /// The number of the last visible change.
    pub fn seq(&self) -> Seq {
        Seq::new(*self.next.lock())
    }

    /// Follows changes from now on. Whoever falls behind gets `Lagged` and looks at everything.
    pub fn follow(&self) -> broadcast::Receiver<Change> {
        self.changes.subscribe()
    }

    /// Makes the names exactly these; the records of names that stay are kept, new ones begin unsettled. Those that are
    /// gone are announced as visible changes.
    pub fn set_names<'a>(&self, names: impl IntoIterator<Item = &'a str>) {
        let before = self.entries.load_full();
        let after: BTreeMap<Arc<str>, Arc<Entry>> = names
            .into_iter()
            .map(|name| match before.get_key_value(name) {
                Some((name, entry)) => (Arc::clone(name), Arc::clone(entry)),
                None => {
                    let name: Arc<str> = name.into();
                    let record = ArcSwap::from_pointee(Record::new(State::default(), self.seq()));
                    (Arc::clone(&name), Arc::new(Entry { name, record }))
                }
            })
            .collect();
        let gone: Vec<_> = before.iter().filter(|(name, _)| !after.contains_key(*name)).collect();
        let gone: Vec<_> = gone.into_iter().map(|(_, entry)| Arc::clone(entry)).collect();
        self.entries.store(Arc::new(after));
        let next = self.next.lock();
        for entry in gone {
            let _ = self.changes.send(Change { entry, visible: true, seq: Seq::new(*next) });
        }
    }

    /// Replaces a record and announces it; a name that is gone is ignored.
    pub fn publish(&self, name: &str, state: State<Value>, visible: bool) {
        let Some(entry) = self.get(name) else { return };
        // Held over the store, so that whoever reads a number finds the records of all changes up to it.
        let mut next = self.next.lock();
        *next += u64::from(visible);
        let seq = if visible { Seq::new(*next) } else { entry.load().seq };
        entry.record.store(Arc::new(Record::new(state, seq)));
        // Announced under the same lock, so that whoever followed up to a number was told of all changes up to it.
        let _ = self.changes.send(Change { entry, visible, seq: Seq::new(*next) });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_spent_on_what_a_reader_sees_only() {
        let board = Board::default();
        board.set_names(["a", "b"]);
        let mut changes = board.follow();
        board.publish("a", State { settled: true, ..State::default() }, true);
        board.publish("a", State { settled: true, ..State::default() }, false);
        board.publish("b", State::default(), true);
        board.publish("c", State::default(), true);
        let seqs = ["a", "b"].map(|name| board.get(name).unwrap().load().seq.get());
        assert_eq!((seqs, board.seq().get()), ([1, 2], 2));
        let seen: Vec<_> = std::iter::from_fn(|| changes.try_recv().ok()).map(|c| c.visible).collect();
        assert_eq!(seen, [true, false, true]);
    }

    #[test]
    fn a_name_that_stays_keeps_its_record() {
        let board = Board::default();
        board.set_names(["a", "b"]);
        board.publish("a", State { settled: true, ..State::default() }, true);
        let mut changes = board.follow();
        board.set_names(["a", "c"]);
        assert!(board.get("a").unwrap().load().state.settled);
        assert!(board.get("b").is_none() && board.get("c").is_some());
        assert_eq!(&**changes.try_recv().unwrap().entry.name(), "b");
    }
}
