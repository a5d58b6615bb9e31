//! What the tests of several providers use: a sink that remembers what it heard.

use std::collections::BTreeMap;
use std::sync::Arc;

use holdfast_core::AnswerKind;
use holdfast_core::freshness::{Failure, Outcome};
use parking_lot::Mutex;

use crate::config::Scheme;
use crate::provider::{Fetched, Sink};
use crate::reference::ObjectKey;
use crate::value::Value;

/// What a sink was told, signs of life apart.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Heard {
    Subscribed,
    Changed,
    Event(Outcome<Value>),
    Lost(AnswerKind),
}

/// Remembers what it heard.
#[derive(Default)]
pub(crate) struct Recorder {
    heard: Mutex<Vec<Heard>>,
    alive: Mutex<u32>,
    confirmed: Mutex<u32>,
}

impl Recorder {
    pub(crate) fn new() -> Arc<Self> {
        Arc::default()
    }

    pub(crate) fn heard(&self) -> Vec<Heard> {
        self.heard.lock().clone()
    }

    #[allow(dead_code, reason = "of providers to come")]
    pub(crate) fn alive(&self) -> u32 {
        *self.alive.lock()
    }

    pub(crate) fn confirmations(&self) -> u32 {
        *self.confirmed.lock()
    }

    /// How often `what` was heard.
    pub(crate) fn count(&self, what: &Heard) -> usize {
        self.heard.lock().iter().filter(|heard| *heard == what).count()
    }
}

impl Sink for Recorder {
    fn subscribed(&self) {
        self.heard.lock().push(Heard::Subscribed);
    }

    fn changed(&self) {
        self.heard.lock().push(Heard::Changed);
    }

    fn event(&self, outcome: Outcome<Value>) {
        self.heard.lock().push(Heard::Event(outcome));
    }

    fn alive(&self) {
        *self.alive.lock() += 1;
    }

    fn confirmed(&self) {
        *self.confirmed.lock() += 1;
    }

    fn lost(&self, kind: AnswerKind) {
        self.heard.lock().push(Heard::Lost(kind));
    }
}

/// An object without options.
pub(crate) fn object(scheme: Scheme, path: &str) -> ObjectKey {
    ObjectKey { upstream: "u".to_owned(), scheme, path: path.to_owned(), options: BTreeMap::new() }
}

/// The value of an answer that has one.
pub(crate) fn value(fetched: Fetched) -> Value {
    match fetched.outcome {
        Outcome::Value { value, .. } => value,
        other => panic!("no value: {other:?}"),
    }
}

/// The failure of an answer that is one.
pub(crate) fn failure(fetched: Fetched) -> Failure {
    match fetched.outcome {
        Outcome::Error(failure) => failure,
        other => panic!("no failure: {other:?}"),
    }
}
