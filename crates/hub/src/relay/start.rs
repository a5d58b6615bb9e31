//! Joins the relay to the rest of an unsealed node.

use std::sync::{Arc, Weak};
use std::time::Duration;

use holdfast_core::SpokeName;
use holdfast_ops::Tasks;

use super::calls::Calls;
use super::peers::Door;
use super::{accept, driver, leave, pin};
use crate::hub::Hub;
use crate::node::backend::Peers;

/// A revocation that failed in the moment in which its spoke came back waits no longer than this.
const ONCE_MORE: Duration = Duration::from_millis(500);

/// Starts what runs of the relay while the node is unsealed.
pub fn start(hub: &Arc<Hub>, peers: Arc<dyn Peers>, door: &Door, tasks: &Tasks) {
    let spokes = &hub.spokes;
    let (weak, told) = (Arc::downgrade(hub), tasks.clone());
    spokes.connect(Calls::new(peers), Box::new(move |spoke| returned(&weak, &told, spoke)));
    let remote = Arc::clone(spokes);
    let open = move |id: &str, config: &_| driver::open(&remote, id, config);
    hub.leases.databases().instances.set_remote(Arc::new(open));
    door.open(Arc::clone(hub));
    tasks.spawn_until_cancelled("spokes", Arc::clone(spokes).run());
    tasks.spawn("spoke-port", accept::run(Arc::clone(hub), tasks.child("spoke-port")));
    tasks.spawn_until_cancelled("removed", leave_when_removed(Arc::clone(hub)));
    let port = Arc::clone(hub);
    tasks.spawn_until_cancelled("pin", pin::run(Arc::clone(spokes), move || port.relay.listener.port()));
}

/// A node that is no member serves nobody, so its spokes go to those that are.
async fn leave_when_removed(hub: Arc<Hub>) {
    let mut views = hub.cluster.watch();
    if views.wait_for(|view| view.removed).await.is_ok() {
        leave::tell(&hub, "node was removed from the cluster");
    }
}

/// What waits for a spoke goes on.
fn returned(hub: &Weak<Hub>, tasks: &Tasks, spoke: &SpokeName) {
    let Some(hub) = hub.upgrade().filter(|hub| hub.cluster.view().active.is_some()) else { return };
    let spoke = spoke.clone();
    tasks.spawn_until_cancelled("spoke-back", async move {
        hub.leases.spoke_back(spoke.as_str());
        tokio::time::sleep(ONCE_MORE).await;
        hub.leases.spoke_back(spoke.as_str());
    });
}
