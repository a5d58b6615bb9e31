//! A watch session: the subscriptions of one connection, and the pings that prove it alive.

use std::collections::BTreeMap;
use std::time::Duration;

use holdfast_core::AnswerKind;
use tokio::time::{Instant, timeout};

use super::super::subscriptions::{Subscriptions, WatchId};
use super::connection::{Link, Server, channel};
use super::errors::failure;

/// Between two pings.
const PING: Duration = Duration::from_secs(15);
/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// When a server that sends no events is asked again whether it does.
const SILENT: Duration = Duration::from_secs(300);

/// Keeps all subscriptions on the connection until it breaks; returns how.
pub(super) async fn session(server: &Server, subscriptions: &Subscriptions, idle: Duration) -> AnswerKind {
    let link = match server.link().await {
        Ok(link) => link,
        Err(failure) => return failure.kind,
    };
    let session = Session { link: &link, subscriptions, held: BTreeMap::new(), patience: PATIENCE.min(idle) };
    let kind = session.run().await;
    server.leave(&link);
    kind
}

struct Session<'a> {
    link: &'a Link,
    subscriptions: &'a Subscriptions,
    held: BTreeMap<String, Held>,
    patience: Duration,
}

/// A channel that was subscribed to.
struct Held {
    /// Whether the server refused.
    refused: bool,
    /// The watches that were told.
    ids: Vec<WatchId>,
}

impl Session<'_> {
    async fn run(mut self) -> AnswerKind {
        if !self.sends_events().await {
            tracing::warn!(
                "this Redis sends no keyspace events of strings and expiry (notify-keyspace-events, such as KA): \
                 its keys are read by poll"
            );
            self.subscriptions.all_lost(AnswerKind::Unavailable);
            let _ = timeout(SILENT, self.link.over.cancelled()).await;
            return AnswerKind::Unavailable;
        }
        let mut changes = self.subscriptions.changes();
        let mut ping = tokio::time::interval_at(Instant::now() + PING, PING);
        ping.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            if let Err(kind) = self.reconcile().await {
                return kind;
            }
            tokio::select! {
                changed = changes.changed() => if changed.is_err() { return AnswerKind::Unavailable },
                () = self.link.over.cancelled() => return AnswerKind::Unavailable,
                _ = ping.tick() => {
                    if let Err(kind) = self.ping().await { return kind; }
                    self.subscriptions.all().iter().for_each(|subscription| subscription.sink.alive());
                }
            }
        }
    }

    /// Whether events of what we watch are on. A server that does not let us ask is believed.
    async fn sends_events(&self) -> bool {
        let mut connection = self.link.connection.clone();
        let asked = redis::cmd("CONFIG").arg("GET").arg("notify-keyspace-events").clone();
        let asked = asked.query_async::<BTreeMap<String, String>>(&mut connection);
        let Ok(Ok(settings)) = timeout(self.patience, asked).await else { return true };
        settings.get("notify-keyspace-events").is_none_or(|flags| covers(flags))
    }

    /// Subscribes to what is new and unsubscribes from what is gone.
    async fn reconcile(&mut self) -> Result<(), AnswerKind> {
        let mut wanted: BTreeMap<String, Vec<WatchId>> = BTreeMap::new();
        for subscription in self.subscriptions.all() {
            let channel = channel(self.link.database, &subscription.object.path);
            wanted.entry(channel).or_default().push(subscription.id);
        }
        let gone: Vec<String> =
            self.held.keys().filter(|held| !wanted.contains_key(*held)).cloned().collect();
        for channel in gone {
            self.held.remove(&channel);
            let mut connection = self.link.connection.clone();
            self.ask(connection.unsubscribe(&channel)).await?;
        }
        for (channel, ids) in wanted {
            let known = match self.held.remove(&channel) {
                Some(known) => known,
                None => Held { refused: self.subscribe(&channel, &ids).await?, ids: Vec::new() },
            };
            let new = ids.iter().filter(|id| !known.refused && !known.ids.contains(id));
            new.for_each(|id| self.subscriptions.subscribed(*id));
            self.held.insert(channel, Held { ids, ..known });
        }
        Ok(())
    }

    /// Subscribes; whether that is refused. These channels may be closed to us while the keys are not, which are then
    /// read by poll.
    async fn subscribe(&self, channel: &str, ids: &[WatchId]) -> Result<bool, AnswerKind> {
        let mut connection = self.link.connection.clone();
        match self.ask(connection.subscribe(channel)).await {
            Err(AnswerKind::PermissionDenied) => {
                ids.iter().for_each(|id| self.subscriptions.lost(*id, AnswerKind::PermissionDenied));
                Ok(true)
            }
            other => other.map(|()| false),
        }
    }

    async fn ping(&self) -> Result<(), AnswerKind> {
        let mut connection = self.link.connection.clone();
        let ping = async { redis::cmd("PING").query_async::<()>(&mut connection).await };
        self.ask(ping).await
    }

    async fn ask(&self, question: impl Future<Output = redis::RedisResult<()>>) -> Result<(), AnswerKind> {
        match timeout(self.patience, question).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(failure(&error).kind),
            Err(_) => Err(AnswerKind::Unavailable),
        }
    }
}

/// Whether keyspace events (`K`) of all that can happen to a string are sent: of strings (`$`), of any type (`g`, such as
/// removal), of expiry (`x`) and of eviction (`e`); `A` stands for all of them.
fn covers(flags: &str) -> bool {
    flags.contains('K')
        && (flags.contains('A') || ['$', 'g', 'x', 'e'].iter().all(|flag| flags.contains(*flag)))
}

#[cfg(test)]
mod tests {
    use super::covers;

    #[test]
    fn all_that_can_happen_to_a_string_must_be_told() {
        for flags in ["KA", "AKE", "K$gxe"] {
            assert!(covers(flags), "{flags}");
        }
        for flags in ["", "A", "EA", "K", "K$g", "K$gx"] {
            assert!(!covers(flags), "{flags}");
        }
    }
}
