//! Proposing batches: all that wait share one log entry, one sync on each node and one round of messages.
//!
//! The library writes one entry at a time and waits for the disk each time, so this is where concurrent writers
//! come to share a sync. What must hold: an error that says "nothing was proposed" is true.

use std::sync::Arc;
use std::time::Duration;

use holdfast_core::Term;
use holdfast_core::leadership::Event;
use openraft::raft::ClientWriteResponse;
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::time::timeout;

use super::core::Core;
use super::types::{Command, Outcome, TypeConfig};
use super::{Batch, CommitError, Committed, Condition};

/// How many writers may wait; more wait before the queue.
pub(super) const QUEUE: usize = 4096;
/// Bounds of one group, by number and by bytes.
const GROUP: usize = 512;
const GROUP_BYTES: usize = 1 << 20;
/// Groups under way at once: one is written while the one before it travels.
const UNDER_WAY: usize = 2;
/// How long a writer waits.
const DEADLINE: Duration = Duration::from_secs(10);

type Answer = Result<Committed, CommitError>;
type Written =
    Result<ClientWriteResponse<TypeConfig>, openraft::error::ClientWriteError<u64, super::types::Peer>>;

/// A batch that waits for its place in the log.
pub(super) struct Waiting {
    batch: Batch,
    answer: oneshot::Sender<Answer>,
}

/// Proposes one batch and waits until it is applied.
pub(super) async fn commit(core: &Core, batch: Batch) -> Answer {
    batch.check_size()?;
    if !core.gate.store_healthy() {
        return Err(CommitError::Unhealthy);
    }
    if core.gate.active().is_none() {
        return Err(CommitError::NotLeader);
    }
    let begun = core.gate.now();
    let (answer, outcome) = oneshot::channel();
    match core.proposals.send_timeout(Waiting { batch, answer }, DEADLINE).await {
        Ok(()) => {}
        Err(mpsc::error::SendTimeoutError::Timeout(_)) => return Err(CommitError::NotLeader),
        Err(mpsc::error::SendTimeoutError::Closed(_)) => return Err(CommitError::Closed),
    }
    let outcome = match timeout(DEADLINE, outcome).await {
        Ok(Ok(outcome)) => outcome,
        Ok(Err(_)) | Err(_) => Err(CommitError::Unknown),
    };
    if outcome.is_ok() {
        core.gate.batch_committed(core.gate.now().since(begun));
    }
    outcome
}

/// Groups what waits and proposes it, until the node closes.
pub(super) async fn run(core: Arc<Core>, mut queue: mpsc::Receiver<Waiting>) {
    let slots = Arc::new(Semaphore::new(UNDER_WAY));
    let mut number = 0;
    let mut left = None;
    loop {
        let first = match left.take() {
            Some(first) => first,
            None => match queue.recv().await {
                Some(first) => first,
                None => return,
            },
        };
        let Ok(slot) = Arc::clone(&slots).acquire_owned().await else { return };
        let group = gather(first, &mut queue, &mut left);
        number += 1;
        let (batches, answers): (Vec<_>, Vec<_>) =
            group.into_iter().map(|waiting| (waiting.batch, waiting.answer)).unzip();
        let group = Group { number, conditions: conditions(&batches), answers };
        let command = Command::Group { origin: core.origin, number, batches };
        match propose(&core, command).await {
            Ok(written) => {
                let core = Arc::clone(&core);
                core.clone().tasks.spawn_until_cancelled("store-group", async move {
                    let written = wait(&core, written).await;
                    drop(slot);
                    group.answer(&core, written);
                });
            }
            Err(error) => group.refuse(error),
        }
    }
}

/// Waits for what becomes of a group; not much longer than this node is active, since a disk or a leadership that
/// is gone may not come back for long.
async fn wait(core: &Core, mut written: oneshot::Receiver<Written>) -> Option<Written> {
    let mut views = core.gate.watch();
    tokio::select! {
        written = timeout(DEADLINE, &mut written) => return written.ok().and_then(Result::ok),
        _ = views.wait_for(|view| view.active.is_none()) => {}
    }
    timeout(core.timing.election_max(), written).await.ok().and_then(Result::ok)
}

fn gather(first: Waiting, queue: &mut mpsc::Receiver<Waiting>, left: &mut Option<Waiting>) -> Vec<Waiting> {
    let mut bytes = first.batch.size();
    let mut group = vec![first];
    while group.len() < GROUP
        && let Ok(next) = queue.try_recv()
    {
        bytes += next.batch.size();
        if bytes > GROUP_BYTES {
            *left = Some(next);
            break;
        }
        group.push(next);
    }
    group
}

fn conditions(batches: &[Batch]) -> Vec<Vec<Condition>> {
    batches.iter().map(|batch| batch.conditions.clone()).collect()
}

async fn propose(core: &Core, command: Command) -> Result<oneshot::Receiver<Written>, Refusal> {
    // A hand-over may have begun while the batch waited.
    if !core.gate.store_healthy() {
        return Err(Refusal::Unhealthy);
    }
    if core.gate.active().is_none() {
        return Err(Refusal::NotLeader);
    }
    let raft = core.raft().ok_or(Refusal::Closed)?;
    raft.client_write_ff(command).await.map_err(|_| Refusal::Closed)
}

#[derive(Clone, Copy)]
enum Refusal {
    Unhealthy,
    NotLeader,
    Closed,
}

struct Group {
    number: u64,
    conditions: Vec<Vec<Condition>>,
    answers: Vec<oneshot::Sender<Answer>>,
}

impl Group {
    fn refuse(self, refusal: Refusal) {
        for answer in self.answers {
            let error = match refusal {
                Refusal::Unhealthy => CommitError::Unhealthy,
                Refusal::NotLeader => CommitError::NotLeader,
                Refusal::Closed => CommitError::Closed,
            };
            _ = answer.send(Err(error));
        }
    }

    fn answer(self, core: &Core, written: Option<Written>) {
        match written {
            Some(Ok(written)) => {
                let term = Term::new(written.log_id.leader_id.term);
                let outcomes = written.data.outcomes;
                for (place, answer) in self.answers.into_iter().enumerate() {
                    let conditions = self.conditions.get(place).map(Vec::as_slice).unwrap_or_default();
                    _ = answer.send(outcome(outcomes.get(place), conditions, term));
                }
            }
            // The library says so both before it takes an entry and when it takes one out of the log again; in
            // the second case another node may still have it, and it may still come to be applied.
            Some(Err(_)) if core.log.proposed() < self.number => {
                if let Some(term) = core.gate.leading() {
                    tracing::debug!(term = term.into_inner(), "consensus takes no entries");
                    core.gate.feed(Event::Tick);
                }
                self.refuse(Refusal::NotLeader);
            }
            Some(Err(_)) | None => {
                for answer in self.answers {
                    _ = answer.send(Err(CommitError::Unknown));
                }
            }
        }
    }
}

fn outcome(outcome: Option<&Outcome>, conditions: &[Condition], term: Term) -> Answer {
    match outcome {
        Some(Outcome::Applied(version)) => Ok(Committed { version: *version, term }),
        Some(Outcome::Refused(place)) => {
            let failed = usize::try_from(*place).ok().and_then(|place| conditions.get(place));
            Err(failed.map_or(CommitError::Unknown, |failed| CommitError::Refused(failed.clone())))
        }
        None => Err(CommitError::Unknown),
    }
}
