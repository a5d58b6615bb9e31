//! How a node takes leave of its spokes: they are told to go elsewhere, have a moment for it, and are ended then.

use std::sync::Arc;
use std::time::Duration;

use tonic::Status;

use super::pin::tell_to_move;
use crate::hub::Hub;

/// How long spokes have to open a stream elsewhere.
const GRACE: Duration = Duration::from_secs(3);
/// How often it is looked whether they have.
const LOOK: Duration = Duration::from_millis(20);
/// How long what is under way on streams that have moved may go on after that, and last words to the others.
const FINISH: Duration = Duration::from_secs(5);

/// Tells every spoke to move, and takes no new ones: the port closes.
pub fn tell(hub: &Arc<Hub>, reason: &str) {
    if hub.spokes.is_draining() {
        return;
    }
    hub.spokes.set_draining();
    hub.relay.listener.close();
    let grace = u64::try_from(grace(hub).as_millis()).unwrap_or(0);
    for stream in hub.spokes.streams() {
        tell_to_move(&stream, reason, grace, String::new());
    }
    let (hub, reason) = (Arc::clone(hub), reason.to_owned());
    let tasks = hub.spokes.tasks.clone();
    tasks.spawn_until_cancelled("leave", async move { end(&hub, &reason).await });
}

/// Waits until the spokes have moved, for a moment, and ends the streams of those that have not.
pub async fn end(hub: &Hub, reason: &str) {
    drop(tokio::time::timeout(grace(hub), gone(hub)).await);
    for stream in hub.spokes.streams() {
        hub.spokes.end(&stream, Status::unavailable(reason));
    }
    drop(tokio::time::timeout(FINISH, gone(hub)).await);
}

async fn gone(hub: &Hub) {
    while hub.spokes.open_streams() > 0 {
        tokio::time::sleep(LOOK).await;
    }
}

/// A node alone has nobody to send its spokes to.
fn grace(hub: &Hub) -> Duration {
    let others = hub.cluster.members().iter().any(|m| m.node != *hub.cluster.node() && m.reachable);
    if others { GRACE } else { Duration::ZERO }
}
