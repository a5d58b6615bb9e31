//! Who owns which stream, across nodes.

use std::sync::atomic::Ordering;

use bytes::Bytes;
use holdfast_core::SpokeName;
use holdfast_core::ownership::{Lookup, NodeName};
use holdfast_proto::relay::v1::Method;
use holdfast_proto::relay::v1::hub_frame::Frame;
use serde_json::Value;

use super::spoke::TestSpoke;
use super::world::{SOON, World};
use crate::cluster::Cluster as _;
use crate::relay::stream::Order;
use crate::relay::{RelaySettings, forward, views};

fn name(text: &str) -> SpokeName {
    SpokeName::parse(text).unwrap()
}

#[tokio::test]
async fn a_connect_and_a_drop_on_a_standby_are_known_at_once() {
    // The interval is a minute, so only the announce of the change itself can do it.
    let world = World::new(3).await;
    let spoke = world.spoke("spoke-1", 2, 1, 1).await;
    world.routable("spoke-1").await;
    let lookup = world.nodes[0].hub.spokes.lookup(&name("spoke-1"));
    assert!(matches!(lookup, Lookup::Remote(node, _) if node.as_str() == "n2"));
    drop(spoke);
    world.until(|w| w.nodes[0].hub.spokes.lookup(&name("spoke-1")) == Lookup::Unknown { lately: true }).await;
}

#[tokio::test]
async fn announces_that_were_blocked_are_made_good() {
    let world = World::new(2).await;
    world.nodes[1].peers.mute.store(true, Ordering::SeqCst);
    let _spoke = world.spoke("spoke-1", 1, 1, 1).await;
    tokio::time::sleep(std::time::Duration::from_millis(300)).await;
    assert!(!matches!(world.nodes[0].hub.spokes.lookup(&name("spoke-1")), Lookup::Remote(..)));
    world.nodes[1].peers.mute.store(false, Ordering::SeqCst);
    world.routable("spoke-1").await;
}

#[tokio::test]
async fn the_newest_stream_wins_wherever_it_is_and_the_former_owner_ends_its_own() {
    let world = World::new(3).await;
    let credentials = world.credentials("spoke-1");
    let mut old = TestSpoke::connect(&credentials, 1, world.port, 1, 1).await.unwrap();
    world.routable("spoke-1").await;
    let mut newer = TestSpoke::connect(&credentials, 2, world.port, 2, 1).await.unwrap();
    let Some(Frame::Superseded(superseded)) = old.next().await.unwrap() else { panic!() };
    assert_eq!(superseded.by_epoch, 2);
    assert!(old.end().await.is_none());
    let owner = |w: &World| match w.nodes[0].hub.spokes.lookup(&name("spoke-1")) {
        Lookup::Remote(node, _) => node.to_string(),
        Lookup::Local(_) => "n0".into(),
        _ => String::new(),
    };
    world.until(|w| owner(w) == "n2").await;
    // The active node's own stream is no better than another's.
    let _own = TestSpoke::connect(&credentials, 0, world.port, 3, 1).await.unwrap();
    assert!(matches!(newer.next().await.unwrap(), Some(Frame::Superseded(_))));
    world.until(|w| owner(w) == "n0").await;
    let _back = TestSpoke::connect(&credentials, 1, world.port, 4, 1).await.unwrap();
    world.until(|w| owner(w) == "n1").await;
    world.until(|w| w.nodes.iter().map(|n| n.hub.spokes.open_streams()).sum::<usize>() == 1).await;
}

#[tokio::test]
async fn a_new_leader_pulls_every_stream_and_no_stream_notices() {
    let world = World::new(3).await;
    let mut streams = Vec::new();
    for node in 0..3 {
        streams.push(world.spoke(&format!("spoke-{node}"), node, 1, 1).await);
    }
    world.lead(Some(1), 2);
    for node in 0..3 {
        let spoke = name(&format!("spoke-{node}"));
        let known = move |w: &World| {
            matches!(w.nodes[1].hub.spokes.lookup(&spoke), Lookup::Local(_) | Lookup::Remote(..))
        };
        world.until(known).await;
    }
    // Demotion forgets what was pulled, not what is there.
    world.until(|w| w.nodes[0].hub.spokes.lookup(&name("spoke-2")) == Lookup::NotActive).await;
    assert!(matches!(world.nodes[0].hub.spokes.lookup(&name("spoke-0")), Lookup::Local(_)));
    for stream in &mut streams {
        assert!(stream.is_quiet().await);
    }
}

#[tokio::test]
async fn a_new_leader_uses_its_own_streams_before_it_has_heard_of_any_other() {
    let world = World::new(3).await;
    let _commands = world.spoke("spoke-1", 1, 1, 1).await.echo();
    world.routable("spoke-1").await;
    // Nobody answers its pulls: the priming goes on for its second.
    world.nodes[1].peers.cut.store(true, Ordering::SeqCst);
    world.lead(Some(1), 2);
    let spokes = &world.nodes[1].hub.spokes;
    world.until(|w| w.nodes[1].hub.spokes.with_registry(|registry, _| registry.active().is_some())).await;
    let order = Order { method: Method::Type, payload: Bytes::from_static(b"payload"), key: None };
    let answer = forward::run(spokes, &name("spoke-1"), order, tokio::time::Instant::now() + SOON).await;
    assert_eq!(answer.unwrap(), "payload");
    assert_eq!(world.nodes[1].peers.runs.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn one_announce_tells_a_new_leader_that_cannot_ask() {
    // The interval is a minute: it is the change of the leader that makes the other standby tell.
    let world = World::new(3).await;
    let mut stream = world.spoke("spoke-2", 2, 1, 1).await;
    world.routable("spoke-2").await;
    world.nodes[1].peers.cut.store(true, Ordering::SeqCst);
    world.lead(Some(1), 2);
    let known = |w: &World| {
        let lookup = w.nodes[1].hub.spokes.lookup(&name("spoke-2"));
        matches!(lookup, Lookup::Remote(node, _) if node.as_str() == "n2")
    };
    world.until(known).await;
    assert!(stream.is_quiet().await);
}

#[tokio::test]
async fn at_worst_a_new_leader_waits_one_interval_for_the_streams_of_others() {
    let often =
        |settings| RelaySettings { announce_interval: holdfast_ops::Duration::from_millis(500), ..settings };
    let world = World::with(3, often).await;
    let mut streams = Vec::new();
    for node in 1..3 {
        streams.push(world.spoke(&format!("spoke-{node}"), node, 1, 1).await);
        world.routable(&format!("spoke-{node}")).await;
    }
    // Neither the pull nor the announce of the change gets through.
    world.nodes[1].peers.cut.store(true, Ordering::SeqCst);
    world.nodes[2].peers.mute.store(true, Ordering::SeqCst);
    world.lead(Some(1), 2);
    world.until(|w| w.nodes[1].hub.spokes.with_registry(|r, _| r.active().is_some() && !r.priming())).await;
    let lookup = |w: &World, spoke: &str| w.nodes[1].hub.spokes.lookup(&name(spoke));
    assert!(matches!(lookup(&world, "spoke-1"), Lookup::Local(_)), "its own is there throughout");
    assert!(matches!(lookup(&world, "spoke-2"), Lookup::Unknown { .. }));
    world.nodes[2].peers.mute.store(false, Ordering::SeqCst);
    world.until(|w| matches!(lookup(w, "spoke-2"), Lookup::Remote(..))).await;
    for stream in &mut streams {
        assert!(stream.is_quiet().await, "no stream is asked for anything");
    }
}

#[tokio::test]
async fn the_view_shows_every_node_and_the_owner_of_each_spoke() {
    let world = World::new(3).await;
    let _a = world.spoke("spoke-b", 0, 1, 1).await;
    let _b = world.spoke("spoke-a", 2, 9, 1).await;
    world.routable("spoke-a").await;
    let view = Value::Object(views::view(&world.nodes[0].hub));
    assert_eq!(view["connected_count"], 2);
    assert_eq!((&view["healthy_count"], &view["stale_after_seconds"]), (&2.into(), &45.into()));
    assert_eq!((&view["listener_port"], &view["partial"]), (&world.port.into(), &false.into()));
    let spokes = view["spokes"].as_array().unwrap();
    let shown: Vec<_> = spokes
        .iter()
        .map(|s| (s["name"].as_str().unwrap(), s["node_id"].as_str().unwrap(), s["node_is_active"] == true))
        .collect();
    assert_eq!(shown, [("spoke-a", "n2", false), ("spoke-b", "n0", true)]);
    let remote = &spokes[0];
    assert_eq!((&remote["session_epoch"], &remote["node_reachable"]), (&9.into(), &true.into()));
    assert_eq!(remote["node_cluster_addr"], world.nodes[2].address);
    assert!(remote["cert_not_after"].as_i64().unwrap() > crate::wall::now_unix());
    assert!(remote["connected_at_unix"].as_i64().unwrap() <= crate::wall::now_unix());
    let nodes = view["hub_nodes"].as_array().unwrap();
    let shown: Vec<_> = nodes
        .iter()
        .map(|n| (n["node_id"].as_str().unwrap(), n["spoke_count"].as_u64().unwrap(), n["is_active"] == true))
        .collect();
    assert_eq!(shown, [("n0", 1, true), ("n1", 0, false), ("n2", 1, false)]);
    assert_eq!(view["hub_node_count"], 3);
    // A standby asks the active node, and shows its own streams when that does not answer.
    let calls = world.nodes[2].hub.spokes.calls().unwrap();
    let listed = calls.list(&world.nodes[0].address, holdfast_core::Term::new(1)).await.unwrap();
    let listed: Value = serde_json::from_slice(&listed).unwrap();
    assert_eq!(listed["connected_count"], 2);
    let partial = Value::Object(views::view(&world.nodes[2].hub));
    assert_eq!((&partial["partial"], &partial["connected_count"]), (&true.into(), &1.into()));
    assert_eq!(partial["hub_node_count"], 3);
}

#[tokio::test]
async fn what_a_removed_member_said_is_forgotten_by_every_leader() {
    let place = |settings: &RelaySettings| format!("{}:7443", settings.bind);
    let world = World::with(3, |s| RelaySettings { advertise: Some(place(&s)), ..s }).await;
    let known = |w: &World, node: usize| w.nodes[node].hub.spokes.endpoints();
    let all = ["127.0.0.1:7443", "127.0.0.2:7443", "127.0.0.3:7443"];
    // The active node passes on what it knows with its next answer.
    world.until(|w| known(w, 0) == all).await;
    let _spoke = world.spoke("spoke-1", 1, 1, 1).await;
    world.until(|w| known(w, 1) == all).await;
    world.nodes[0].hub.spokes.note(&NodeName::new("n2"), all[2], "no port");
    world.lead(Some(1), 2);
    world.until(|w| known(w, 1) == all).await;
    for node in &world.nodes {
        let mut members = node.cluster.members();
        members.retain(|member| member.node.0 != "n2");
        node.cluster.set_members(members);
    }
    world.until(|w| known(w, 1) == all[..2]).await;
    world.until(|w| w.nodes[0].hub.spokes.listener_error(&NodeName::new("n2")).is_empty()).await;
}
