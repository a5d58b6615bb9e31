//! A watch session: `LISTEN` on a connection of its own, asked every now and then whether it lives.

use std::collections::BTreeSet;
use std::pin::pin;
use std::time::Duration;

use futures_util::StreamExt as _;
use holdfast_core::AnswerKind;
use holdfast_dbdriver::Messages;
use tokio::time::{Instant, MissedTickBehavior, interval_at, timeout};
use tokio_postgres::{AsyncMessage, Client};

use super::super::subscriptions::{Subscriptions, WatchId};
use super::Server;
use super::errors::failure;

/// Between two questions whether the connection lives.
const PING: Duration = Duration::from_secs(15);
/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// Listens until the connection breaks; returns how.
pub(super) async fn session(
    server: &Server,
    subscriptions: &Subscriptions,
    channel: &str,
    idle: Duration,
) -> AnswerKind {
    let (client, messages) = match server.connect().await {
        Ok(made) => made,
        Err(failure) => return failure.kind,
    };
    let hearing = hear(messages, subscriptions);
    let asking = ask(&client, subscriptions, channel, PATIENCE.min(idle));
    // The connection lives only while its messages are polled, so both run side by side.
    tokio::select! {
        kind = hearing => kind,
        kind = asking => kind,
    }
}

async fn hear(mut messages: Messages, subscriptions: &Subscriptions) -> AnswerKind {
    loop {
        match messages.next().await {
            Some(Ok(AsyncMessage::Notification(told))) => tell(subscriptions, told.payload()),
            Some(Ok(_)) => {}
            Some(Err(error)) => return failure(&error).kind,
            None => return AnswerKind::Unavailable,
        }
    }
}

async fn ask(
    client: &Client,
    subscriptions: &Subscriptions,
    channel: &str,
    patience: Duration,
) -> AnswerKind {
    let mut changes = subscriptions.changes();
    // The name was checked when the settings were read.
    if let Err(kind) = run(client, &format!("LISTEN \"{channel}\""), patience).await {
        return kind;
    }
    let mut told = BTreeSet::new();
    let mut ping = interval_at(Instant::now() + PING, PING);
    ping.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        welcome(subscriptions, &mut told);
        tokio::select! {
            changed = changes.changed() => if changed.is_err() { return AnswerKind::Unavailable },
            _ = ping.tick() => {
                let asked = pin!(run(client, "SELECT 1", patience));
                if let Err(kind) = asked.await { return kind; }
                subscriptions.all().iter().for_each(|subscription| subscription.sink.alive());
            }
        }
    }
}

/// Tells watches that came since the last time that they stand: the channel is there for all of them.
fn welcome(subscriptions: &Subscriptions, told: &mut BTreeSet<WatchId>) {
    let all: BTreeSet<WatchId> =
        subscriptions.all().into_iter().map(|subscription| subscription.id).collect();
    all.difference(told).for_each(|id| subscriptions.subscribed(*id));
    *told = all;
}

fn tell(subscriptions: &Subscriptions, payload: &str) {
    for subscription in subscriptions.all() {
        if is_about(payload, &subscription.object.path) {
            subscription.sink.changed();
        }
    }
}

/// Whether a notification is about the row of a path `TABLE/KEY`.
fn is_about(payload: &str, path: &str) -> bool {
    let (table, key) = path.split_once('/').unwrap_or((path, ""));
    payload.is_empty() || [path, table, key].contains(&payload)
}

async fn run(client: &Client, sql: &str, patience: Duration) -> Result<(), AnswerKind> {
    match timeout(patience, client.batch_execute(sql)).await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(error)) => Err(failure(&error).kind),
        Err(_) => Err(AnswerKind::Unavailable),
    }
}

#[cfg(test)]
mod tests {
    use super::is_about;

    #[test]
    fn a_payload_names_a_row_a_key_a_table_or_everything() {
        for payload in ["", "app.config/a/b", "a/b", "app.config"] {
            assert!(is_about(payload, "app.config/a/b"), "{payload}");
        }
        for payload in ["a", "config", "app.config/a", "{\"key\":\"a/b\"}"] {
            assert!(!is_about(payload, "app.config/a/b"), "{payload}");
        }
    }
}
