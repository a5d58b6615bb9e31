//! Commands on their way to a spoke, and the remote driver over them.

use std::sync::atomic::Ordering;

use bytes::Bytes;
use holdfast_core::SpokeName;
use holdfast_dbdriver::IdempotencyKey;
use holdfast_proto::relay::v1 as proto;
use holdfast_proto::relay::v1::hub_frame::Frame;
use holdfast_proto::relay::v1::spoke_frame::Frame as Out;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::spoke::TestSpoke;
use super::world::{SOON, World};
use crate::error::ApiError;
use crate::logical::{Data, Operation, Response};
use crate::mount::MountEntry;
use crate::mount::change::{Family, enable};
use crate::relay::failure::CommandFailure;
use crate::relay::forward;
use crate::relay::stream::{Answer, Order};
use crate::testing::request;

fn spoke() -> SpokeName {
    SpokeName::parse("spoke-1").unwrap()
}

fn order() -> Order {
    let key = Some(IdempotencyKey::from_bytes([3; 16]));
    Order { method: proto::Method::NewUser, payload: Bytes::from_static(b"payload"), key }
}

async fn run(world: &World) -> Answer {
    forward::run(&world.nodes[0].hub.spokes, &spoke(), order(), Instant::now() + SOON).await
}

fn runs(world: &World) -> usize {
    world.nodes[0].peers.runs.load(Ordering::SeqCst)
}

#[tokio::test]
async fn frames_are_the_same_local_and_forwarded() {
    let mut seen = Vec::new();
    for (nodes, at) in [(1, 0), (3, 0), (3, 2)] {
        let world = World::new(nodes).await;
        let mut commands = world.spoke("spoke-1", at, 1, 1).await.echo();
        world.routable("spoke-1").await;
        assert_eq!(run(&world).await.unwrap(), "payload");
        assert_eq!(runs(&world), usize::from(at != 0));
        let mut command = commands.recv().await.unwrap();
        assert_eq!(command.request_id.len(), 24);
        assert!(command.deadline_ms > 0 && command.deadline_ms <= 30_000);
        (command.request_id, command.deadline_ms) = (String::new(), 0);
        seen.push(prost::Message::encode_to_vec(&command));
    }
    assert!(seen.iter().all(|bytes| *bytes == seen[0]));
}

#[tokio::test]
async fn a_spoke_of_this_node_costs_no_look_elsewhere() {
    for nodes in [1, 3] {
        let world = World::new(nodes).await;
        let _commands = world.spoke("spoke-1", 0, 1, 1).await.echo();
        world.routable("spoke-1").await;
        world.until(|w| !w.nodes[0].hub.spokes.with_registry(|r, _| r.priming())).await;
        let sent = world.nodes[0].peers.sent.load(Ordering::SeqCst);
        // Whoever looked into the registry, or waited for it, would wait for this.
        world.nodes[0].hub.spokes.with_registry(|_, _| {
            let run = std::pin::pin!(run(&world));
            let mut context = std::task::Context::from_waker(std::task::Waker::noop());
            assert!(run.poll(&mut context).is_pending(), "the frame is queued and the answer awaited");
        });
        assert_eq!(run(&world).await.unwrap(), "payload");
        assert_eq!(world.nodes[0].peers.sent.load(Ordering::SeqCst), sent, "another node was asked");
    }
}

#[tokio::test]
async fn a_caller_that_goes_away_cancels_the_command_on_the_other_node() {
    let world = World::new(2).await;
    let mut stream = world.spoke("spoke-1", 1, 1, 1).await;
    world.routable("spoke-1").await;
    let command = {
        let mut run = std::pin::pin!(run(&world));
        tokio::select! {
            _ = &mut run => panic!("nobody answered"),
            command = stream.command() => command,
        }
    };
    let Some(Frame::Cancel(cancel)) = stream.next().await.unwrap() else { panic!() };
    assert_eq!(cancel.request_id, command.request_id);
}

#[tokio::test]
async fn an_unknown_spoke_is_an_error_at_once() {
    let world = World::new(2).await;
    world.until(|w| !w.nodes[0].hub.spokes.with_registry(|r, _| r.priming())).await;
    let failure = run(&world).await.unwrap_err();
    assert!(matches!(failure, CommandFailure::NotConnected), "{failure:?}");
    let text = failure.into_driver_error(&spoke());
    assert_eq!(text.client_text(), "spoke not connected: \"spoke-1\"");
    assert_eq!(runs(&world), 0);
}

#[tokio::test]
async fn a_stale_entry_is_resolved_once_more_and_finds_the_new_owner() {
    let world = World::new(3).await;
    let credentials = world.credentials("spoke-1");
    let old = TestSpoke::connect(&credentials, 1, world.port, 1, 1).await.unwrap();
    world.routable("spoke-1").await;
    // The old owner says nothing of its loss, the new one nothing of its gain.
    for node in [1, 2] {
        world.nodes[node].peers.mute.store(true, Ordering::SeqCst);
    }
    drop(old);
    world.until(|w| w.nodes[1].hub.spokes.open_streams() == 0).await;
    let _commands = TestSpoke::connect(&credentials, 2, world.port, 2, 1).await.unwrap().echo();
    assert_eq!(run(&world).await.unwrap(), "payload");
    assert_eq!(runs(&world), 2);
}

#[tokio::test]
async fn a_stale_entry_without_another_owner_is_not_connected_after_one_send() {
    let world = World::new(2).await;
    let old = world.spoke("spoke-1", 1, 1, 1).await;
    world.routable("spoke-1").await;
    world.nodes[1].peers.mute.store(true, Ordering::SeqCst);
    drop(old);
    world.until(|w| w.nodes[1].hub.spokes.open_streams() == 0).await;
    assert!(matches!(run(&world).await.unwrap_err(), CommandFailure::NotConnected));
    assert_eq!(runs(&world), 1);
}

#[tokio::test]
async fn two_stale_owners_one_after_the_other_are_the_end_of_it() {
    let world = World::new(3).await;
    let credentials = world.credentials("spoke-1");
    let old = TestSpoke::connect(&credentials, 1, world.port, 1, 1).await.unwrap();
    world.routable("spoke-1").await;
    for node in [1, 2] {
        world.nodes[node].peers.mute.store(true, Ordering::SeqCst);
    }
    drop(old);
    world.until(|w| w.nodes[1].hub.spokes.open_streams() == 0).await;
    let _next = TestSpoke::connect(&credentials, 2, world.port, 2, 1).await.unwrap().echo();
    world.until(|w| w.nodes[2].hub.spokes.local(&spoke()).is_some()).await;
    // The second owner loses the stream between its being found and the command's arrival.
    let hub = world.nodes[2].hub.clone();
    let lose = move || hub.spokes.streams().iter().for_each(|stream| hub.spokes.unroute(stream));
    *world.nodes[0].peers.before_second.lock() = Some(Box::new(lose));
    let failure = run(&world).await.unwrap_err();
    assert!(matches!(failure, CommandFailure::NotConnected), "{failure:?}");
    assert_eq!(runs(&world), 2);
}

#[tokio::test]
async fn an_owner_that_cannot_be_reached_is_named_and_stays_in_the_view() {
    let world = World::new(2).await;
    let _stream = world.spoke("spoke-1", 1, 1, 1).await;
    world.routable("spoke-1").await;
    world.nodes[0].peers.cut.store(true, Ordering::SeqCst);
    let failure = run(&world).await.unwrap_err();
    let text = failure.into_driver_error(&spoke()).client_text().to_owned();
    assert_eq!(text, format!("cannot reach spoke owner {}: the wire is cut", world.nodes[1].address));
    let view = Value::Object(crate::relay::views::view(&world.nodes[0].hub));
    assert_eq!(view["spokes"][0]["node_id"], "n1");
    assert_eq!(view["spokes"][0]["node_reachable"], false);
}

#[tokio::test]
async fn a_command_that_was_under_way_is_not_sent_again() {
    let world = World::new(2).await;
    let mut stream = world.spoke("spoke-1", 1, 1, 1).await;
    world.routable("spoke-1").await;
    let lost = async {
        stream.command().await;
        drop(stream);
    };
    let (answer, ()) = tokio::join!(run(&world), lost);
    let failure = answer.unwrap_err();
    assert!(matches!(failure, CommandFailure::Lost { reconnected: false }), "{failure:?}");
    assert!(!failure.into_driver_error(&spoke()).is_definite());
    assert_eq!(runs(&world), 1);
}

#[tokio::test]
async fn an_older_term_is_refused_by_the_owner() {
    let world = World::new(2).await;
    let _stream = world.spoke("spoke-1", 1, 1, 1).await;
    world.routable("spoke-1").await;
    world.nodes[1].hub.spokes.admit(holdfast_core::Term::new(9)).unwrap();
    assert!(matches!(run(&world).await.unwrap_err(), CommandFailure::NotActive));
}

struct Database<'a> {
    world: &'a World,
    mount: MountEntry,
}

impl<'a> Database<'a> {
    async fn new(world: &'a World) -> Self {
        let data = Data::new(json!({"type": "database"}).as_object().cloned().unwrap());
        let cx = world.cx();
        enable(&cx, Family::Secret, "database", &data).await.unwrap();
        let mount = cx.hub.mounts.route("database/x").unwrap().unwrap().mount.as_ref().clone();
        Self { world, mount }
    }

    async fn write(&self, rest: &str, body: Value) -> Result<Response, ApiError> {
        let request = request(Operation::Write, "database/", rest, body);
        crate::database::engine().handle(&self.world.cx(), &self.mount, &request).await
    }

    async fn config(&self) -> Result<Response, ApiError> {
        let config = json!({
            "plugin_name": "remote-postgres-plugin", "spoke_name": "spoke-1", "allowed_roles": "*",
            "connection_url": "postgresql://{{username}}:{{password}}@db/x", "username": "root",
            "password": "root-password",
        });
        self.write("config/db", config).await
    }

    async fn read(&self, rest: &str) -> Result<Response, ApiError> {
        let request = request(Operation::Read, "database/", rest, json!({}));
        crate::database::engine().handle(&self.world.cx(), &self.mount, &request).await
    }
}

#[tokio::test]
async fn a_config_is_not_saved_while_its_spoke_is_away() {
    let world = World::new(2).await;
    world.until(|w| !w.nodes[0].hub.spokes.with_registry(|r, _| r.priming())).await;
    let database = Database::new(&world).await;
    let refused = database.config().await.err().unwrap();
    assert_eq!(refused.status(), 400);
    assert_eq!(refused.to_string(), "error creating database object: spoke not connected: \"spoke-1\"");
    assert_eq!(database.read("config/db").await.err().unwrap().status(), 404);
}

#[tokio::test]
async fn a_login_is_made_through_a_spoke_on_a_standby() {
    let world = World::new(2).await;
    let mut commands = world.spoke("spoke-1", 1, 1, 1).await.echo();
    world.routable("spoke-1").await;
    let database = Database::new(&world).await;
    database.config().await.unwrap();
    let initialize = commands.recv().await.unwrap();
    assert_eq!(initialize.method(), proto::Method::Initialize);
    let message: proto::InitializeRequest = prost::Message::decode(initialize.payload).unwrap();
    let instance = message.instance.unwrap();
    assert_eq!((message.verify_connection, instance.plugin.as_str()), (true, "postgresql-database-plugin"));
    let config: Value = serde_json::from_slice(&instance.config).unwrap();
    assert_eq!((&config["password"], config.get("spoke_name")), (&"root-password".into(), None));
    let role = json!({"db_name": "db", "creation_statements": "CREATE", "default_ttl": "1h"});
    database.write("roles/r", role).await.unwrap();
    database.read("creds/r").await.unwrap();
    let new_user = commands.recv().await.unwrap();
    let message: proto::NewUserRequest = prost::Message::decode(new_user.payload).unwrap();
    let same = message.instance.unwrap();
    assert_eq!((same.instance_id, same.config_version), (instance.instance_id, instance.config_version));
    assert_eq!(
        (message.statements.as_slice(), new_user.idempotency_key.len()),
        (&["CREATE".to_owned()][..], 16)
    );
    assert!(message.username.starts_with("v-") && message.password.len() == 20);
}

#[tokio::test]
async fn what_a_spoke_says_of_a_failure_reaches_the_client_scrubbed() {
    let world = World::new(1).await;
    let mut stream = world.spoke("spoke-1", 0, 1, 1).await;
    let database = Database::new(&world).await;
    let failing = async {
        let command = stream.command().await;
        let failure = proto::DriverFailure {
            text: "login failed for root-password".into(),
            reason: "login".into(),
            ..proto::DriverFailure::default()
        };
        let error = proto::CommandError { kind: Some(proto::command_error::Kind::Driver(failure)) };
        stream.reply(command.request_id, proto::reply::Outcome::Error(error)).await;
    };
    let (refused, ()) = tokio::join!(database.config(), failing);
    let text = refused.err().unwrap().to_string();
    assert!(text.starts_with("error creating database object: login failed for"), "{text}");
    assert!(!text.contains("root-password"), "{text}");
}

#[tokio::test]
async fn a_spoke_that_moves_finishes_what_it_has_begun() {
    let world = World::new(2).await;
    let credentials = world.credentials("spoke-1");
    let mut old = TestSpoke::connect(&credentials, 1, world.port, 1, 1).await.unwrap();
    world.routable("spoke-1").await;
    let moves = async {
        let command = old.command().await;
        let new = TestSpoke::connect(&credentials, 0, world.port, 2, 1).await.unwrap();
        let Some(Frame::Superseded(_)) = old.next().await.unwrap() else { panic!() };
        old.send(Out::Heartbeat(proto::Heartbeat::default())).await;
        old.reply(command.request_id, proto::reply::Outcome::Output(Bytes::from_static(b"late"))).await;
        assert!(old.end().await.is_none());
        drop(new);
    };
    let (answer, ()) = tokio::join!(run(&world), moves);
    assert_eq!(answer.unwrap(), "late");
}

#[tokio::test]
async fn busy_is_told_from_the_owner() {
    let few = |settings| crate::relay::RelaySettings { max_in_flight: 1, ..settings };
    let world = World::with(2, few).await;
    let mut stream = world.spoke("spoke-1", 1, 1, 1).await;
    world.routable("spoke-1").await;
    let mut first = std::pin::pin!(run(&world));
    let command = tokio::select! {
        _ = &mut first => panic!(),
        command = stream.command() => command,
    };
    assert!(matches!(run(&world).await.unwrap_err(), CommandFailure::Busy));
    stream.reply(command.request_id, proto::reply::Outcome::Output(Bytes::new())).await;
    tokio::time::timeout(SOON, first).await.unwrap().unwrap();
}

#[tokio::test]
async fn the_active_node_hears_of_a_user_that_came_late_elsewhere() {
    use proto::reply::Outcome;
    let world = World::new(2).await;
    let mut stream = world.spoke("spoke-1", 1, 1, 1).await;
    world.routable("spoke-1").await;
    let database = Database::new(&world).await;
    let initialized = async {
        let command = stream.command().await;
        stream.reply(command.request_id, Outcome::Output(command.payload)).await;
    };
    tokio::join!(database.config(), initialized).0.unwrap();
    let role = json!({"db_name": "db", "creation_statements": "CREATE", "default_ttl": "1h"});
    database.write("roles/r", role).await.unwrap();
    let sweeper = &world.nodes[0].hub.leases.databases().sweeper;
    sweeper.open();
    let asked = tokio::select! {
        _ = database.read("creds/r") => panic!(),
        command = stream.command() => command,
    };
    assert_eq!(asked.method(), proto::Method::NewUser);
    // The client gave up; what the creation itself told is out of the way.
    let Some(Frame::Cancel(_)) = stream.next().await.unwrap() else { panic!() };
    sweeper.take().await;
    stream.reply(asked.request_id, Outcome::Output(Bytes::new())).await;
    let (told, lost) = tokio::time::timeout(SOON, sweeper.take()).await.unwrap();
    assert_eq!((told.len(), lost), (1, false));
}
