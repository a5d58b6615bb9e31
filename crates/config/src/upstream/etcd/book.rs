//! Which watch stands on which stream of a connection: the decisions of a watch session, without its IO.
//!
//! What must hold: each wanted watch is asked for on exactly one stream, until it stands, is refused or is no longer
//! wanted; what a refused watch costs, no other watch pays.
//!
//! etcd before 3.5 reads nothing more from a stream on which it refused a watch. So a stream that leaves a request
//! unanswered takes no more of them, and what waited on it is asked for on another one.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use holdfast_core::freshness::Failure;
use holdfast_proto::etcd::event::EventType;
use holdfast_proto::etcd::watch_request::RequestUnion;
use holdfast_proto::etcd::{
    Event, KeyValue, WatchCancelRequest, WatchCreateRequest, WatchProgressRequest, WatchRequest,
    WatchResponse,
};
use tokio::time::Instant;

use super::super::subscriptions::WatchId;
use super::errors::of_reason;

/// How long a request may stay unanswered.
const PATIENCE: Duration = Duration::from_secs(3);
/// When a refused watch is asked for again.
const REFUSED: Duration = Duration::from_secs(60);

/// Names no watch: of an answer about the whole stream, and of the refusal of a watch, which answers the oldest request
/// that is unanswered.
const NOT_ONE: i64 = -1;

/// One of the streams of a connection.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) struct StreamId(pub(super) u32);

/// What the session does, in order.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Step {
    /// Open a stream.
    Open(StreamId),
    /// Send on a stream.
    Send(StreamId, WatchRequest),
    /// Get a new token before the next stream is opened.
    LogIn,
    /// The watch stands.
    Subscribed(WatchId),
    /// The key has this value now, in the cluster of this id.
    Put(WatchId, KeyValue, u64),
    /// The key changed, and must be read.
    Changed(WatchId),
    /// The watch was refused.
    Refused(WatchId, Failure),
    /// All events of the stream up to this revision were told to these.
    Progress(i64, Vec<WatchId>),
    /// Nothing answers; begin anew.
    End,
}

#[derive(Debug)]
struct Watch {
    subscription: WatchId,
    key: String,
    stream: StreamId,
    /// Until it is answered.
    asked: Option<Instant>,
}

#[derive(Debug, Default)]
struct Stream {
    answered: bool,
}

/// The watches of one session.
#[derive(Debug, Default)]
pub(super) struct Book {
    streams: BTreeMap<StreamId, Stream>,
    /// The one that takes new watches.
    open: Option<StreamId>,
    watches: BTreeMap<i64, Watch>,
    /// Not asked for before this.
    refused: BTreeMap<WatchId, Instant>,
    last_watch: i64,
    last_stream: u32,
}

impl Book {
    /// Takes the watches that are wanted now.
    pub(super) fn want(&mut self, wanted: &[(WatchId, String)], now: Instant, out: &mut Vec<Step>) {
        let ids: BTreeSet<WatchId> = wanted.iter().map(|(id, _)| *id).collect();
        let is_wanted = |id: WatchId| ids.contains(&id);
        self.refused.retain(|id, until| is_wanted(*id) && *until > now);
        let gone: Vec<i64> =
            self.watches.iter().filter(|(_, w)| !is_wanted(w.subscription)).map(|(id, _)| *id).collect();
        for watch_id in gone {
            if let Some(watch) = self.watches.remove(&watch_id) {
                out.push(Step::Send(watch.stream, cancel(watch_id)));
            }
        }
        let held: BTreeSet<WatchId> = self.watches.values().map(|watch| watch.subscription).collect();
        for (id, key) in wanted {
            if !held.contains(id) && !self.refused.contains_key(id) {
                self.ask(*id, key.clone(), now, out);
            }
        }
    }

    /// Takes what a stream says.
    pub(super) fn on(&mut self, stream: StreamId, answer: WatchResponse, now: Instant, out: &mut Vec<Step>) {
        self.streams.entry(stream).or_default().answered = true;
        let watch_id = match answer.watch_id {
            NOT_ONE if answer.canceled => self.oldest_asked(stream).unwrap_or(NOT_ONE),
            NOT_ONE => return self.progress(stream, &answer, out),
            one => one,
        };
        let Some(watch) = self.watches.get_mut(&watch_id).filter(|watch| watch.stream == stream) else {
            // Answered after it was moved or given up.
            if answer.created && !answer.canceled {
                out.push(Step::Send(stream, cancel(watch_id)));
            }
            return;
        };
        let id = watch.subscription;
        if answer.canceled {
            return self.cancelled(watch_id, &answer, now, out);
        }
        if answer.created && watch.asked.take().is_some() {
            out.push(Step::Subscribed(id));
        }
        let cluster = answer.header.map(|header| header.cluster_id);
        out.extend(answer.events.into_iter().next_back().map(|event| told(id, event, cluster)));
    }

    /// Looks at what was left unanswered.
    pub(super) fn tick(&mut self, now: Instant, out: &mut Vec<Step>) {
        let late = |watch: &Watch| watch.asked.is_some_and(|asked| now.duration_since(asked) >= PATIENCE);
        let Some(stream) = self.watches.values().find(|watch| late(watch)).map(|watch| watch.stream) else {
            return;
        };
        if !self.streams.get(&stream).is_some_and(|stream| stream.answered) {
            out.push(Step::End);
            return;
        }
        self.leave(stream, now, out);
    }

    /// Asks each stream how far it has told.
    pub(super) fn ask_progress(&self, out: &mut Vec<Step>) {
        let request =
            || WatchRequest { request_union: Some(RequestUnion::ProgressRequest(WatchProgressRequest {})) };
        out.extend(self.streams.keys().map(|stream| Step::Send(*stream, request())));
    }

    /// When [`Book::tick`] has something to do.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.watches.values().filter_map(|watch| watch.asked).min().map(|asked| asked + PATIENCE)
    }

    /// When a refused watch may be asked for again.
    pub(super) fn next_retry(&self) -> Option<Instant> {
        self.refused.values().min().copied()
    }

    /// The key of a watch that stands, for a question about all of them; another one each time.
    pub(super) fn some_key(&self, turn: usize) -> Option<&str> {
        let standing = || self.watches.values().filter(|watch| watch.asked.is_none());
        let count = standing().count();
        standing().nth(turn.checked_rem(count)?).map(|watch| watch.key.as_str())
    }

    fn oldest_asked(&self, stream: StreamId) -> Option<i64> {
        let asked = |watch: &Watch| watch.stream == stream && watch.asked.is_some();
        self.watches.iter().find(|(_, watch)| asked(watch)).map(|(id, _)| *id)
    }

    fn progress(&self, stream: StreamId, answer: &WatchResponse, out: &mut Vec<Step>) {
        let Some(header) = &answer.header else { return };
        let of = |watch: &&Watch| watch.stream == stream && watch.asked.is_none();
        let told = self.watches.values().filter(of).map(|watch| watch.subscription).collect();
        out.push(Step::Progress(header.revision, told));
    }

    fn ask(&mut self, subscription: WatchId, key: String, now: Instant, out: &mut Vec<Step>) {
        let stream = self.open.unwrap_or_else(|| {
            self.last_stream += 1;
            let new = StreamId(self.last_stream);
            self.streams.insert(new, Stream::default());
            out.push(Step::Open(new));
            new
        });
        self.open = Some(stream);
        self.last_watch += 1;
        let watch_id = self.last_watch;
        out.push(Step::Send(stream, create(watch_id, &key)));
        self.watches.insert(watch_id, Watch { subscription, key, stream, asked: Some(now) });
    }

    fn cancelled(&mut self, watch_id: i64, answer: &WatchResponse, now: Instant, out: &mut Vec<Step>) {
        let Some(watch) = self.watches.remove(&watch_id) else { return };
        if answer.compact_revision != 0 {
            // What it missed is read once it stands again.
            return self.ask(watch.subscription, watch.key, now, out);
        }
        let failure = of_reason(&answer.cancel_reason);
        if failure.own_login {
            out.push(Step::LogIn);
            self.open = None;
        }
        let pause = if failure.own_login { PATIENCE } else { REFUSED };
        self.refused.insert(watch.subscription, now + pause);
        out.push(Step::Refused(watch.subscription, failure));
    }

    /// Moves what a stream left unanswered to another one.
    fn leave(&mut self, stream: StreamId, now: Instant, out: &mut Vec<Step>) {
        self.open = self.open.filter(|open| *open != stream);
        let of = |watch: &Watch| watch.stream == stream && watch.asked.is_some();
        let moved: Vec<i64> = self.watches.iter().filter(|(_, watch)| of(watch)).map(|(id, _)| *id).collect();
        for watch_id in moved {
            if let Some(watch) = self.watches.remove(&watch_id) {
                self.ask(watch.subscription, watch.key, now, out);
            }
        }
    }
}

fn told(id: WatchId, event: Event, cluster: Option<u64>) -> Step {
    match (event.kv, cluster) {
        (Some(kv), Some(cluster)) if event.r#type == i32::from(EventType::Put) => Step::Put(id, kv, cluster),
        // Absence has no order by which an older one could be told from a newer value.
        _ => Step::Changed(id),
    }
}

fn create(watch_id: i64, key: &str) -> WatchRequest {
    let create = WatchCreateRequest {
        key: key.to_owned().into(),
        watch_id,
        progress_notify: true,
        fragment: true,
        ..WatchCreateRequest::default()
    };
    WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) }
}

fn cancel(watch_id: i64) -> WatchRequest {
    WatchRequest { request_union: Some(RequestUnion::CancelRequest(WatchCancelRequest { watch_id })) }
}

#[cfg(test)]
mod tests;
