//! The shell that walks a daemon down: it feeds signals, time and the number of open requests to
//! [`holdfast_core::shutdown::Shutdown`] and performs what comes back, in order.

use std::future::Future;

use holdfast_core::shutdown::{Effect, Event, Phase, Shutdown, Timing};
use tokio::sync::watch;

use crate::clock::MonoClock;
use crate::shutdown::{Request, Signals};
use crate::tasks::{Failure, Tasks};

/// What a role can do on its way down. The order and the bounds are the machine's business.
pub trait Parts: Send {
    /// Hands leadership over; ends when that is done or pointless. It is dropped when the machine goes on without it.
    fn hand_over(&self) -> impl Future<Output = ()> + Send + 'static;
    /// Tells long streams to move to another node.
    fn tell_streams(&self);
    /// Closes the listeners.
    fn close_listeners(&self);
    /// Cuts what is still open.
    fn cut(&self);
    /// Wipes keys from memory.
    fn wipe_keys(&self);
}

/// Why the daemon went down.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Ended {
    /// Someone asked for it.
    Asked,
    /// A component failed; the process must exit with a code that is not zero.
    Failed(Failure),
}

/// Serves until a signal or a failed task, then walks through the phases, published on `phases`.
///
/// `open` is the number of requests and streams in flight. Ends when the process may exit.
pub async fn walk_down<P: Parts>(
    tasks: &Tasks,
    signals: &Signals,
    timing: Timing,
    mut open: watch::Receiver<usize>,
    phases: &watch::Sender<Phase>,
    parts: P,
) -> Ended {
    let clock = MonoClock::new();
    let mut machine = Shutdown::new(timing);
    let (mut request, mut seen) = (signals.watch(), Request::Serve);
    let mut failure = None;
    let mut hand_over = None;
    loop {
        let event = tokio::select! {
            Ok(asked) = request.wait_for(|asked| *asked > seen) => {
                // One signal at a time, also when both came before this loop looked.
                seen = if seen == Request::Serve { Request::Graceful } else { *asked };
                Event::Signal
            }
            failed = tasks.failed(), if failure.is_none() => {
                failure = Some(failed);
                Event::Signal
            }
            Ok(()) = open.changed() => Event::Open(*open.borrow_and_update()),
            () = wait_for(&mut hand_over), if hand_over.is_some() => {
                hand_over = None;
                Event::HandedOver
            }
            () = clock.sleep_until(machine.next_deadline()) => Event::Tick,
        };
        // The count may have been set before this loop subscribed to its changes.
        let mut effects = Vec::new();
        machine.on(clock.now(), Event::Open(*open.borrow()), &mut effects);
        machine.on(clock.now(), event, &mut effects);
        for effect in effects {
            match effect {
                Effect::HandOver => hand_over = Some(Box::pin(parts.hand_over())),
                Effect::Enter(phase) => {
                    tracing::info!(phase = phase.name(), "going down");
                    phases.send_replace(phase);
                }
                Effect::TellStreams => parts.tell_streams(),
                Effect::CloseListeners => parts.close_listeners(),
                Effect::Cut => parts.cut(),
                Effect::WipeKeys => parts.wipe_keys(),
                Effect::Exit => return failure.map_or(Ended::Asked, Ended::Failed),
            }
        }
        if machine.phase() != Phase::Serving {
            hand_over = None;
        }
    }
}

async fn wait_for<F: Future<Output = ()> + Unpin>(future: &mut Option<F>) {
    match future {
        Some(future) => future.await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use parking_lot::Mutex;

    use super::*;

    const SOON: Duration = Duration::from_secs(10);

    #[derive(Clone, Default)]
    struct Log {
        steps: Arc<Mutex<Vec<&'static str>>>,
        stuck: bool,
    }

    impl Parts for Log {
        fn hand_over(&self) -> impl Future<Output = ()> + Send + 'static {
            self.steps.lock().push("hand over");
            let stuck = self.stuck;
            async move {
                if stuck {
                    std::future::pending::<()>().await;
                }
            }
        }
        fn tell_streams(&self) {
            self.steps.lock().push("tell");
        }
        fn close_listeners(&self) {
            self.steps.lock().push("close");
        }
        fn cut(&self) {
            self.steps.lock().push("cut");
        }
        fn wipe_keys(&self) {
            self.steps.lock().push("wipe");
        }
    }

    struct Rig {
        tasks: Tasks,
        ask: watch::Sender<Request>,
        open: watch::Sender<usize>,
        phase: watch::Receiver<Phase>,
        log: Log,
        end: crate::tasks::TaskHandle<Ended>,
    }

    /// A walk in a tree of its own, as the process's main task is.
    fn start(open: usize, stuck: bool) -> Rig {
        let tasks = Tasks::new("hub");
        let (ask, signals) = Signals::manual();
        let (open, open_in) = watch::channel(open);
        let (phases, phase) = watch::channel(Phase::Serving);
        let log = Log { stuck, ..Log::default() };
        let (watched, parts) = (tasks.clone(), log.clone());
        let end = Tasks::new("main").spawn("walk", async move {
            let timing = Timing { hand_over: Duration::from_millis(50), ..Timing::default() };
            walk_down(&watched, &signals, timing, open_in, &phases, parts).await
        });
        Rig { tasks, ask, open, phase, log, end }
    }

    async fn end(rig: Rig) -> (Ended, Vec<&'static str>) {
        let ended = tokio::time::timeout(SOON, rig.end.join()).await.unwrap().unwrap();
        let steps = rig.log.steps.lock().clone();
        (ended, steps)
    }

    #[tokio::test]
    async fn a_signal_leads_through_all_phases_once_nothing_is_open() {
        let mut rig = start(2, false);
        rig.ask.send_replace(Request::Graceful);
        tokio::time::timeout(SOON, rig.phase.wait_for(|p| matches!(p, Phase::Draining(_))))
            .await
            .unwrap()
            .unwrap();
        rig.open.send_replace(0);
        assert_eq!(end(rig).await, (Ended::Asked, vec!["hand over", "tell", "close", "wipe"]));
    }

    #[tokio::test]
    async fn a_hand_over_that_hangs_is_left_behind() {
        let rig = start(0, true);
        rig.ask.send_replace(Request::Graceful);
        assert_eq!(end(rig).await, (Ended::Asked, vec!["hand over", "tell", "close", "wipe"]));
    }

    #[tokio::test]
    async fn two_signals_skip_to_the_end_even_when_they_come_together() {
        let rig = start(7, true);
        rig.ask.send_replace(Request::Immediate);
        assert_eq!(end(rig).await, (Ended::Asked, vec!["hand over", "cut", "wipe"]));
    }

    #[tokio::test]
    async fn a_failed_task_takes_the_process_down_and_is_named() {
        let rig = start(0, false);
        rig.tasks.spawn("writer", async { panic!("disk on fire") });
        let (ended, steps) = end(rig).await;
        assert!(matches!(ended, Ended::Failed(f) if f.task == "hub/writer"));
        assert_eq!(steps.last(), Some(&"wipe"));
    }
}
