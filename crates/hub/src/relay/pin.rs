//! Keeping spokes at the active node, where that is asked for.
//!
//! What must hold: a node that is not active refuses a spoke before anything of it is recorded; streams that are on
//! such a node after a change of leader are told to move, a few at a time, and serve until they have moved.

use std::sync::Arc;
use std::time::Duration;

use holdfast_core::Term;
use holdfast_core::ownership::NodeName;
use holdfast_proto::relay::v1 as proto;
use holdfast_proto::relay::v1::hub_frame::Frame;
use tokio::sync::watch;
use tonic::Status;

use super::spokes::Spokes;
use super::stream::Stream;
use crate::cluster::{self, View};

/// Over how long the streams of a node are told to move.
const SPREAD: Duration = Duration::from_secs(5);
/// How long a stream that was told to move is left.
const GRACE_MS: u64 = 30_000;

/// Refuses a spoke that this node does not take. None when it does.
pub fn refusal(spokes: &Spokes, own_port: Option<u16>) -> Option<Status> {
    if !spokes.settings.pin_spokes_to_active || spokes.cluster.view().active.is_some() {
        return None;
    }
    Some(match active_endpoint(spokes, own_port) {
        Some(endpoint) => {
            spokes.metrics.redirects.inc();
            holdfast_proto::redirect(endpoint)
        }
        None => Status::unavailable("there is no active node now"),
    })
}

/// Where spokes dial the active node: as it said, or at its cluster address's host and our own port.
fn active_endpoint(spokes: &Spokes, own_port: Option<u16>) -> Option<String> {
    let leader = spokes.cluster.view().leader.filter(|l| l.node.0 != spokes.own.as_str())?;
    let told = spokes.endpoint_of(&NodeName::new(&leader.node.0));
    told.or_else(|| {
        let (host, _) = leader.address.cluster.rsplit_once(':')?;
        own_port.map(|port| format!("{host}:{port}"))
    })
}

/// Follows the leader and sends the streams of a node that is not active on, where that is asked for.
pub async fn run(spokes: Arc<Spokes>, own_port: impl Fn() -> Option<u16> + Send) {
    if !spokes.settings.pin_spokes_to_active {
        return;
    }
    let mut views = spokes.cluster.watch();
    loop {
        let view = views.borrow_and_update().clone();
        let other = view.leader.as_ref().filter(|leader| leader.node.0 != spokes.own.as_str());
        if view.active.is_none() && other.is_some() {
            let leader = other.map(|leader| (leader.node.clone(), leader.term));
            tokio::select! {
                () = send_away(&spokes, &own_port) => {}
                // Where they were told to move is not the place any more: all of them are told anew.
                followed = another(&mut views, leader) => match followed {
                    Ok(()) => continue,
                    Err(_) => return,
                },
            }
        }
        if views.changed().await.is_err() {
            return;
        }
    }
}

/// Resolves when the leader is not this one any more, or leads in another term.
async fn another(
    views: &mut watch::Receiver<View>,
    leader: Option<(cluster::NodeName, Term)>,
) -> Result<(), watch::error::RecvError> {
    loop {
        views.changed().await?;
        // The loop that follows has to see this change too.
        let now = views.borrow().leader.as_ref().map(|l| (l.node.clone(), l.term));
        if now != leader {
            return Ok(());
        }
    }
}

async fn send_away(spokes: &Spokes, own_port: &(impl Fn() -> Option<u16> + Send)) {
    let mut streams = spokes.streams();
    if streams.is_empty() {
        return;
    }
    streams.sort_by_key(|stream| stream.in_flight());
    let pause = SPREAD / u32::try_from(streams.len()).unwrap_or(u32::MAX);
    for stream in streams {
        if let Some(endpoint) = active_endpoint(spokes, own_port()) {
            tell_to_move(&stream, "spokes are kept at the active node", GRACE_MS, endpoint);
            spokes.metrics.redirects.inc();
        }
        tokio::time::sleep(pause).await;
    }
}

/// Tells a spoke to open a stream elsewhere and then to close this one.
pub fn tell_to_move(stream: &Stream, reason: &str, grace_ms: u64, redirect: String) {
    stream.send_away();
    stream.tell(Frame::Drain(proto::Drain { reason: reason.to_owned(), grace_ms, redirect }));
}
