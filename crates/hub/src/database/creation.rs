//! One creation by the intent protocol: the shell of [`holdfast_core::intent::Creation`].
//!
//! What must hold: whenever this future is dropped, or its node dies, the user it may have made belongs to an
//! intent in the store, and on this node the sweeper is told at once.

use std::collections::VecDeque;
use std::time::Duration;

use holdfast_core::intent::creating::{Effect, Event};
use holdfast_core::intent::{Batch, Creation as Machine, Key, Next, Outcome, UserMade, Written};
use holdfast_dbdriver::{Call, DeleteUser, DriverError, NewUser, Reason};
use tokio_util::sync::CancellationToken;

use super::connection::{Named, pointer_key};
use super::instances::Instance;
use super::intent::{self, Intent, With};
use super::paths::{Place, driver_error};
use super::sweep::{self, Note};
use crate::auth::token::{Token, Tokens};
use crate::error::ApiError;
use crate::lease::{Lease, Mail, Wall};
use crate::storage::{StorageError, Stored};

/// The longest clean-up after a failed creation while its client waits.
const CLEAN_UP: Duration = Duration::from_secs(10);

/// Why no login was made.
pub enum Failure {
    /// The user name is held by another lease, intent or static role.
    NameTaken,
    /// Anything else.
    Api(ApiError),
}

impl From<ApiError> for Failure {
    fn from(error: ApiError) -> Self {
        Self::Api(error)
    }
}

/// A creation that is ready to begin.
pub struct Creation<'a> {
    /// Names it.
    pub key: Key,
    /// The driver.
    pub instance: &'a Instance,
    /// The configuration, which must still have its name when the intent is written.
    pub named: &'a Named,
    /// The user to make.
    pub user: NewUser,
    /// The record to write first.
    pub intent: Intent,
    /// The lease to write last.
    pub lease: Lease,
}

/// A creation under way.
struct Run<'a> {
    creation: Creation<'a>,
    place: &'a Place<'a>,
    token: Option<&'a Token>,
    /// The record as it was written.
    record: Option<Stored<Intent>>,
    refused: Option<StorageError>,
    failed: Option<DriverError>,
    answer: Option<Outcome>,
    abandon: Abandon<'a>,
}

/// Tells the sweeper when the creation is dropped half-way.
struct Abandon<'a> {
    place: &'a Place<'a>,
    note: Option<Note>,
}

impl Drop for Abandon<'_> {
    fn drop(&mut self) {
        if let Some(note) = self.note.take() {
            self.place.databases().sweeper.send(note.now());
        }
    }
}

impl<'a> Creation<'a> {
    /// Makes the user and the lease, or leaves the rest to the sweeper.
    pub async fn run(self, place: &'a Place<'a>, token: Option<&'a Token>) -> Result<Lease, Failure> {
        let deadline = self.intent.deadline.mono();
        let mut machine = Machine::new(self.key, place.cx.term, deadline);
        let abandon = Abandon { place, note: None };
        let mut run = Run {
            creation: self,
            place,
            token,
            record: None,
            refused: None,
            failed: None,
            answer: None,
            abandon,
        };
        let (mut out, mut todo) = (Vec::new(), VecDeque::from([Event::Begin]));
        while let Some(event) = todo.pop_front() {
            machine.on(Wall::now().mono(), event, &mut out);
            for effect in std::mem::take(&mut out) {
                todo.extend(run.perform(effect).await);
            }
        }
        run.outcome()
    }
}

impl Run<'_> {
    async fn perform(&mut self, effect: Effect) -> Option<Event> {
        match effect {
            Effect::Write(batch) => Some(self.write(batch).await),
            Effect::MakeUser(..) => Some(self.make().await),
            Effect::CancelUser(_) => {
                self.creation.instance.driver().cancel_key(self.creation.user.key).await;
                None
            }
            Effect::RemoveUser(_) => Some(Event::Removed(self.remove().await)),
            // The pipeline audits the answer, and revokes the lease when no device takes the entry.
            Effect::Audit(_) => Some(Event::Audited(true)),
            Effect::RevokeLease(_) => None,
            Effect::Entrust(key, at) => {
                self.abandon.note = None;
                let note = sweep::note(key, &self.creation.intent, Wall::from_mono(at));
                self.place.databases().sweeper.send(note);
                None
            }
            Effect::Answer(outcome) => {
                self.answer = Some(outcome);
                None
            }
        }
    }

    async fn write(&mut self, batch: Batch) -> Event {
        let result = match batch.from {
            None => self.open().await,
            Some(_) => self.advance(batch).await,
        };
        match result {
            Ok(()) => Event::Written(Written::Applied),
            Err(error) => {
                let written = intent::written(&error);
                self.refused = Some(error);
                Event::Written(written)
            }
        }
    }

    async fn open(&mut self) -> Result<(), StorageError> {
        let cx = self.place.cx;
        let Creation { key, intent, named, .. } = &self.creation;
        let pointer = format!("{}{}", self.place.storage.prefix(), pointer_key(&intent.login.config));
        let version = named.pointer.version;
        // From the moment this is sent, the record may be there.
        self.abandon.note = Some(sweep::note(*key, intent, Wall::now()));
        let opened = intent::open(&cx.storage, *key, intent, |txn| {
            txn.require_version(&pointer, version);
            self.place.mount.require_mounted(txn);
        })
        .await;
        match opened {
            Ok(record) => {
                let due = record.value.deadline.after(sweep::SWEEP_AFTER);
                self.place.databases().sweeper.send(sweep::note(*key, intent, due));
                self.record = Some(record);
                Ok(())
            }
            Err(error) => {
                if intent::written(&error) == Written::Refused {
                    self.abandon.note = None;
                }
                Err(error)
            }
        }
    }

    async fn advance(&mut self, batch: Batch) -> Result<(), StorageError> {
        let cx = self.place.cx;
        let Some(record) = &self.record else { return Ok(()) };
        let lease = &self.creation.lease;
        let token = self.token.filter(|_| batch.to == Next::Lease);
        let with = if batch.to == Next::Lease { With::Lease(lease) } else { With::Nothing };
        let mount = (batch.to == Next::Lease).then_some(self.place.mount);
        let live = |txn: &mut crate::storage::Txn<'_>| {
            if let Some(mount) = mount {
                mount.require_mounted(txn);
            }
            if let Some(token) = token {
                Tokens::require_live(txn, token);
            }
        };
        intent::advance(&cx.storage, batch, record, with, live).await?;
        self.abandon.note = None;
        self.place.databases().sweeper.send(Note::gone(batch.key));
        if batch.to == Next::Lease {
            cx.hub.leases.tell(Mail::Due(lease.due));
        }
        Ok(())
    }

    /// Why nobody wants the outcome any more, if so.
    fn gone(&self) -> Option<Event> {
        let cx = self.place.cx;
        if !cx.cancel.is_cancelled() {
            return None;
        }
        let leads = cx.hub.cluster.view().active == Some(cx.term);
        Some(if leads { Event::Abandoned } else { Event::TermOver })
    }

    async fn make(&mut self) -> Event {
        if let Some(gone) = self.gone() {
            return gone;
        }
        let now = Wall::now();
        let deadline = tokio::time::Instant::now() + now.until(self.creation.intent.deadline);
        let call = Call::new(deadline, self.place.cx.cancel.child_token());
        let made = self.creation.instance.new_user(&call, &self.creation.user).await;
        if let Some(gone) = self.gone() {
            return gone;
        }
        match made {
            Ok(()) => Event::Made(UserMade::Done),
            Err(error) => {
                let told = !matches!(error.reason(), Reason::Deadline | Reason::Cancelled);
                let made = if error.is_definite() && told { UserMade::Failed } else { UserMade::Unknown };
                self.failed = Some(error);
                Event::Made(made)
            }
        }
    }

    /// Removes what a failed creation may have left, once. Where the driver says that the creation was never
    /// tried, or that the name belongs to a user that is not ours, nothing of ours is there.
    async fn remove(&self) -> bool {
        let never = |e: &DriverError| {
            e.could_not_be_tried() || matches!(e.reason(), Reason::Exists | Reason::Invalid)
        };
        if self.failed.as_ref().is_some_and(never) {
            return true;
        }
        let Creation { instance, user, intent, .. } = &self.creation;
        let limit = instance.timeout.min(CLEAN_UP);
        let call = Call::new(tokio::time::Instant::now() + limit, CancellationToken::new());
        let delete = DeleteUser {
            key: Some(user.key),
            username: user.username.clone(),
            statements: intent.login.revocation_statements.clone(),
            terminate_sessions: instance.terminate_sessions,
        };
        instance.delete_user(&call, &delete).await.is_ok()
    }

    fn outcome(mut self) -> Result<Lease, Failure> {
        let name = super::creds::name_key(&self.creation.intent.login);
        match self.answer {
            Some(Outcome::Created) => Ok(self.creation.lease),
            Some(Outcome::NotBegun) => match self.refused.take() {
                Some(error) if intent::name_is_taken(&error, &name) => Err(Failure::NameTaken),
                Some(error) if crate::mount::is_gone(&error) => Err(Failure::Api(self.no_mount())),
                Some(error) => Err(Failure::Api(error.into())),
                None => Err(Failure::Api(ApiError::outcome_unknown())),
            },
            Some(Outcome::DriverFailed) => Err(Failure::Api(self.driver_error())),
            Some(Outcome::AuditFailed) => Err(Failure::Api(ApiError::failed("internal error"))),
            Some(Outcome::Unknown) | None => Err(Failure::Api(self.unknown())),
        }
    }

    /// The mount was disabled meanwhile.
    fn no_mount(&self) -> ApiError {
        ApiError::no_route(&self.creation.lease.path)
    }

    fn driver_error(&mut self) -> ApiError {
        self.failed.take().map_or_else(ApiError::outcome_unknown, |error| driver_error(&error))
    }

    fn unknown(&mut self) -> ApiError {
        match (self.refused.take(), self.failed.take()) {
            (Some(error), _) if crate::mount::is_gone(&error) => self.no_mount(),
            // Refused for another reason than the term: the token was revoked meanwhile.
            (Some(error), _) if error.is_conflict() => ApiError::denied().caused_by(error),
            (Some(error), _) => ApiError::outcome_unknown().caused_by(error),
            (None, Some(error)) => ApiError::unavailable(error.client_text().to_owned()),
            (None, None) => ApiError::outcome_unknown(),
        }
    }
}
