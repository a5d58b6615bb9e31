//! Reads: one request after the other until a replica gives an answer that counts.
//!
//! What must hold: an answer that every replica would give ends the read; a value that is older than what the
//! application has is no answer while another replica may have the newer one; nothing waits between two replicas.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use holdfast_core::AnswerKind;
use holdfast_core::failover::Ended;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use super::decode::BadReference;
use super::error::Error;
use super::marks::wall;
use super::shared::Shared;
use super::transport::{Call, MAX_BODY, MAX_ERROR_BODY, Reply, collect};
use super::value::Value;
use super::wire::{self, Entry, Malformed, Refusal};

/// What stands in one segment of a path as it is.
const SEGMENT: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');
/// The most names of one request.
const BATCH: usize = 1000;

/// What one name ends in: its value, that there is none, or why that is not known.
pub type Answer = Result<Option<Value>, Error>;

/// A name as one segment of a path.
pub fn segment(name: &str) -> String {
    utf8_percent_encode(name, SEGMENT).to_string()
}

/// How one request to one endpoint ended.
enum Attempt<T> {
    /// With an answer of the API.
    Answer(T),
    /// With a refusal of the API.
    Refused(Error),
    /// With none: the endpoint is not there, or is no config server.
    Broken(Error, Ended),
}

/// One name on its way.
#[derive(Default)]
struct Wanted {
    answer: Option<Answer>,
    last: Option<Error>,
    behind: bool,
}

/// How a read is sent.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Form {
    /// One name, by the route for one: that there is none is an error.
    One,
    /// Any number of names, by the route for many.
    Many,
}

/// All names of one read.
struct Batch {
    form: Form,
    names: HashMap<Arc<str>, Wanted>,
    order: Vec<Arc<str>>,
}

impl Batch {
    fn new(names: &[Arc<str>], form: Form) -> Self {
        let mut seen = HashSet::new();
        let order: Vec<_> = names.iter().filter(|name| seen.insert(Arc::clone(name))).cloned().collect();
        let names = order.iter().map(|name| (Arc::clone(name), Wanted::default())).collect();
        Self { form, names, order }
    }

    /// The names that no answer counts for yet.
    fn open(&self) -> Vec<Arc<str>> {
        let open = |name: &&Arc<str>| self.names.get(*name).is_some_and(|wanted| wanted.answer.is_none());
        self.order.iter().filter(open).cloned().collect()
    }

    /// How the attempt ended, for a batch of which an endpoint gave what it could.
    fn ended(&self) -> Ended {
        let mut open = self.names.values().filter(|wanted| wanted.answer.is_none()).peekable();
        if open.peek().is_none() {
            return Ended::Answered;
        }
        match open.find_map(|wanted| wanted.last.as_ref().filter(|_| !wanted.behind)) {
            Some(error) => Ended::Refused(error.answer_kind()),
            None => Ended::Behind,
        }
    }

    fn fail(&mut self, names: &[Arc<str>], error: &Error) {
        for name in names {
            if let Some(wanted) = self.names.get_mut(name) {
                wanted.last = Some(error.clone());
            }
        }
    }

    fn end(&mut self, names: &[Arc<str>], error: &Error) {
        for name in names {
            if let Some(wanted) = self.names.get_mut(name) {
                wanted.answer = Some(Err(error.clone()));
            }
        }
    }
}

impl Shared {
    /// Reads names; an answer for each, in their order.
    pub async fn read(&self, names: &[Arc<str>], form: Form, total: Duration) -> Vec<Answer> {
        let mut batch = Batch::new(names, form);
        let mut closed = self.closed.subscribe();
        let over = tokio::select! {
            biased;
            _ = closed.wait_for(|closed| *closed) => Some(Error::Closed),
            ended = tokio::time::timeout(total, self.walk(&mut batch)) => {
                ended.is_err().then_some(Error::Deadline(total))
            }
        };
        let now = wall();
        let answer = |name: &Arc<str>| {
            let wanted = batch.names.get(name)?;
            if let Some(answer) = &wanted.answer {
                return Some(answer.clone());
            }
            if wanted.behind && !matches!(over, Some(Error::Closed)) {
                // A replica answered, and knew less than the application does.
                if let Some(newest) = self.marks.newest(now, name) {
                    return Some(Ok(Some(newest)));
                }
            }
            Some(Err(over.clone().or_else(|| wanted.last.clone())?))
        };
        names.iter().map(|name| answer(name).unwrap_or(Err(Error::Closed))).collect()
    }

    /// Asks one endpoint after the other for what is still open.
    async fn walk(&self, batch: &mut Batch) {
        if batch.order.is_empty() {
            return;
        }
        let (mut walk, mut endpoint) = self.begin_walk();
        loop {
            let mut broken = None;
            for names in batch.open().chunks(BATCH) {
                broken = self.ask(endpoint, names, batch).await;
                if broken.is_some() {
                    break;
                }
            }
            let ended = broken.unwrap_or_else(|| batch.ended());
            match self.go_on(&mut walk, endpoint, ended) {
                Some(next) => endpoint = next,
                None => return,
            }
        }
    }

    /// Asks one endpoint for some names; says how that ended when the endpoint is of no use.
    async fn ask(&self, endpoint: usize, names: &[Arc<str>], batch: &mut Batch) -> Option<Ended> {
        match self.attempt(endpoint, names, batch.form).await {
            Attempt::Answer(entries) => self.take(endpoint, names, entries, batch),
            Attempt::Refused(error) if error.answer_kind().is_authoritative() => batch.end(names, &error),
            Attempt::Refused(error) => batch.fail(names, &error),
            Attempt::Broken(error, ended) => {
                batch.fail(&batch.open(), &error);
                return Some(ended);
            }
        }
        None
    }

    /// Takes the entries of an answer, matched by name.
    fn take(&self, endpoint: usize, names: &[Arc<str>], entries: Vec<Entry>, batch: &mut Batch) {
        let mut by_name: HashMap<Arc<str>, Entry> =
            entries.into_iter().map(|entry| (Arc::clone(entry.name()), entry)).collect();
        for name in names {
            let Some(wanted) = batch.names.get_mut(name) else { continue };
            match by_name.remove(name) {
                Some(Entry::Value(value)) => {
                    let value = Value { endpoint: self.name(endpoint), ..*value };
                    if self.marks.hand_over(wall(), &value) {
                        wanted.answer = Some(Ok(Some(value)));
                    } else {
                        wanted.behind = true;
                    }
                }
                Some(Entry::Error { refusal, .. })
                    if refusal.kind == AnswerKind::NotFound && batch.form == Form::Many =>
                {
                    wanted.answer = Some(Ok(None));
                }
                Some(Entry::Error { refusal, .. }) => {
                    let error = self.refused(endpoint, refusal, None);
                    if error.answer_kind().is_authoritative() {
                        wanted.answer = Some(Err(error));
                    } else {
                        wanted.last = Some(error);
                    }
                }
                None => wanted.last = Some(self.unreachable(endpoint, "the answer leaves the name out")),
            }
        }
    }

    /// One request to one endpoint, within the deadline of an attempt.
    async fn attempt(&self, endpoint: usize, names: &[Arc<str>], form: Form) -> Attempt<Vec<Entry>> {
        let Some(link) = self.links.get(endpoint) else {
            return self.broken(endpoint, "there is no such endpoint");
        };
        // Dots would be taken for steps of the path.
        let single = match names {
            [name] if form == Form::One && !matches!(&**name, "." | "..") => Some(name),
            _ => None,
        };
        let call = match single {
            Some(name) => Call::get(format!("/v1/values/{}", segment(name))),
            None => match serde_json::to_vec(&wire::BatchRequest { names }) {
                Ok(body) => Call::post("/v1/values", body),
                Err(_) => return self.broken(endpoint, "the names cannot be sent"),
            },
        };
        let sent = link.send(call);
        let work = async {
            match sent.await {
                Ok(reply) => self.judge(endpoint, reply, single).await,
                Err(error) => {
                    let error = self.unreachable(endpoint, &error.to_string());
                    Attempt::Broken(error, Ended::Unreachable)
                }
            }
        };
        tokio::time::timeout(self.attempt_timeout, work).await.unwrap_or_else(|_| {
            let error = self.unreachable(endpoint, "the deadline of the attempt passed");
            Attempt::Broken(error, Ended::TimedOut)
        })
    }

    async fn judge(&self, endpoint: usize, reply: Reply, single: Option<&Arc<str>>) -> Attempt<Vec<Entry>> {
        self.heard(endpoint, &reply.headers);
        if reply.status != 200 {
            let error = self.refusal(endpoint, reply).await;
            return match error {
                Error::Refused { .. } => Attempt::Refused(error),
                error => Attempt::Broken(error, Ended::Broken),
            };
        }
        let body = match collect(reply, MAX_BODY).await {
            Ok(body) => body,
            Err(error) => return self.broken(endpoint, &error.to_string()),
        };
        let entries = match single {
            None => wire::batch(&body),
            Some(name) => match wire::entry(&body) {
                Ok(entry) if entry.name() != name => Err(Malformed("it is for another name")),
                read => read.map(|entry| vec![entry]),
            },
        };
        entries.map_or_else(|error| self.broken(endpoint, &error.to_string()), Attempt::Answer)
    }

    fn broken<T>(&self, endpoint: usize, reason: &str) -> Attempt<T> {
        Attempt::Broken(self.unreachable(endpoint, reason), Ended::Broken)
    }

    /// What an answer that is no success says: a refusal of the API, or nothing that counts.
    pub async fn refusal(&self, endpoint: usize, reply: Reply) -> Error {
        let (status, headers) = (reply.status, reply.headers.clone());
        let envelope = match status {
            // A redirection is never followed, and never an answer.
            300..=399 => None,
            _ => collect(reply, MAX_ERROR_BODY).await.ok().and_then(|body| wire::envelope(&body)),
        };
        match envelope {
            Some(refusal) => self.refused(endpoint, refusal, Some(&headers)),
            None => self.unreachable(endpoint, &format!("status {status} without an answer of the API")),
        }
    }

    fn refused(&self, endpoint: usize, refusal: Refusal, headers: Option<&http::HeaderMap>) -> Error {
        Error::Refused {
            endpoint: self.name(endpoint),
            kind: refusal.kind,
            message: refusal.message.into(),
            retry_after: headers.and_then(retry_after),
        }
    }

    /// An endpoint gave no answer of the API.
    pub fn unreachable(&self, endpoint: usize, reason: &str) -> Error {
        Error::Unreachable { endpoint: self.name(endpoint), reason: reason.into() }
    }
}

/// How long a refusal asks to be left alone: whole seconds, an hour at most.
fn retry_after(headers: &http::HeaderMap) -> Option<Duration> {
    let seconds: u64 = headers.get(http::header::RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()?;
    Some(Duration::from_secs(seconds.min(3600)))
}

/// Names that can be asked for.
///
/// # Errors
/// When one is empty, which no binding is.
pub fn names<'a>(names: impl IntoIterator<Item = &'a str>) -> Result<Vec<Arc<str>>, BadReference> {
    let check = |name: &'a str| if name.is_empty() { Err(BadReference("no name")) } else { Ok(name.into()) };
    names.into_iter().map(check).collect()
}
