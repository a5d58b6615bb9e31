//! One attempt for each object of a configuration, for `holdfast config check --online`: how it ends and how large it is.
//!
//! What must hold: no value leaves this place; what an attempt made is given back.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use holdfast_core::freshness::Outcome;
use holdfast_ops::Tasks;

use super::engine::Setup;
use super::gate::{self, Ended, Gate};
use super::meter::Ending;
use super::{BuildError, ObjectId};
use crate::load::Configuration;
use crate::reference::ObjectKey;

/// How the attempt for one object ended.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Attempted {
    /// The object.
    pub object: ObjectKey,
    /// The bindings that come from it.
    pub bindings: Vec<Arc<str>>,
    /// How it ended.
    pub ending: Ending,
    /// How many bytes the whole object has, before any fragment is cut out.
    pub bytes: Option<usize>,
}

/// Asks for each object once, with the concurrency of its upstream.
///
/// # Errors
/// When an upstream cannot be built; nobody was asked then.
pub async fn attempt_all(
    configuration: &Configuration,
    tasks: &Tasks,
    setup: Setup,
) -> Result<Vec<Attempted>, BuildError> {
    let mut gates = BTreeMap::new();
    for (name, upstream) in &configuration.upstreams {
        let provider = (setup.builder)(upstream, tasks)?;
        let files = gate::files(&upstream.settings);
        let gate = Gate::new(upstream.clone(), provider, files, Arc::clone(&setup.clock));
        gates.insert(Arc::clone(name), Arc::new(gate));
    }
    let mut objects = BTreeMap::<&ObjectKey, (Vec<Arc<str>>, Duration)>::new();
    for binding in configuration.bindings.values() {
        let (names, timeout) = objects.entry(&binding.reference.object).or_default();
        names.push(Arc::clone(&binding.name));
        *timeout = (*timeout).max(binding.rules.timeout);
    }
    let attempts = objects.into_iter().enumerate().filter_map(|(number, (object, (bindings, timeout)))| {
        let gate = Arc::clone(gates.get(&*object.upstream)?);
        let id = ObjectId(u64::try_from(number).unwrap_or(u64::MAX));
        Some(attempt(gate, id, object.clone(), bindings, timeout))
    });
    Ok(join_all(attempts).await)
}

async fn attempt(
    gate: Arc<Gate>,
    id: ObjectId,
    object: ObjectKey,
    bindings: Vec<Arc<str>>,
    timeout: Duration,
) -> Attempted {
    // No breaker here: every object is asked for.
    let fetch = gate.provider.fetch(&object, None);
    let ended = gate.call(id, timeout, fetch, |_| None).await;
    let (ending, bytes, lease) = match ended {
        Ended::Answer(fetched) => {
            let bytes = match &fetched.outcome {
                Outcome::Value { value, .. } => Some(value.bytes.len()),
                Outcome::Error(_) | Outcome::Absent => None,
            };
            ((&fetched.outcome).into(), bytes, fetched.lease)
        }
        Ended::Panicked => (Ending::Error(holdfast_core::AnswerKind::Unknown), None, None),
        Ended::TimedOut | Ended::Refused => {
            (Ending::Error(holdfast_core::AnswerKind::Unavailable), None, None)
        }
    };
    if let Some(lease) = lease {
        let _ = tokio::time::timeout(timeout, gate.provider.revoke(&lease)).await;
    }
    Attempted { object, bindings, ending, bytes }
}
