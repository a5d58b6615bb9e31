//! The port and the pool against each other, over loopback.

use std::net::SocketAddr;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use holdfast_ops::Tasks;
use http::{Request, Response};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;

use super::{ClusterIdentity, ClusterPort, PeerBody, PeerError, PeerPool, PeerService, full};

const ECHO: &str = "test-echo/1";

struct Echo;

impl PeerService for Echo {
    fn call(
        self: Arc<Self>,
        _peer: SocketAddr,
        request: Request<Incoming>,
    ) -> BoxFuture<'static, Response<PeerBody>> {
        Box::pin(async move {
            if request.uri().path() == "/hang" {
                std::future::pending::<()>().await;
            }
            let body = request.into_body().collect().await.unwrap().to_bytes();
            Response::new(full(body))
        })
    }
}

async fn listening(identity: &ClusterIdentity, tasks: &Tasks) -> String {
    let mut port = ClusterPort::bind("127.0.0.1:0", identity.clone()).await.unwrap();
    port.register(ECHO, Arc::new(Echo));
    let address = port.local_addr().to_string();
    port.serve(tasks).unwrap();
    address
}

fn post(path: &str, body: &'static str) -> Request<PeerBody> {
    Request::post(format!("http://peer{path}")).body(full(body)).unwrap()
}

#[tokio::test]
async fn peers_of_one_cluster_share_one_connection() {
    let (identity, tasks) = (ClusterIdentity::generate().unwrap(), Tasks::new("test"));
    let address = listening(&identity, &tasks).await;
    let pool = PeerPool::new(identity, &tasks);
    let first = pool.connection(&address, ECHO).await.unwrap();
    let answer = pool.send(&address, ECHO, post("/", "hello")).await.unwrap();
    assert_eq!(answer.into_body().collect().await.unwrap().to_bytes(), "hello");
    assert_eq!(pool.connection(&address, ECHO).await.unwrap().id(), first.id());
    tasks.cancel();
}

#[tokio::test]
async fn a_foreign_identity_and_an_unknown_protocol_are_refused() {
    let (identity, tasks) = (ClusterIdentity::generate().unwrap(), Tasks::new("test"));
    let address = listening(&identity, &tasks).await;
    let foreign = PeerPool::new(ClusterIdentity::generate().unwrap(), &tasks);
    assert!(foreign.send(&address, ECHO, post("/", "x")).await.is_err());
    let own = PeerPool::new(identity, &tasks);
    let refused = own.send(&address, "unknown/1", post("/", "x")).await.unwrap_err();
    assert!(refused.did_not_start(), "{refused:?}");
    tasks.cancel();
}

#[tokio::test]
async fn closing_a_connection_fails_what_is_under_way_and_the_next_request_dials_again() {
    let (identity, tasks) = (ClusterIdentity::generate().unwrap(), Tasks::new("test"));
    let address = listening(&identity, &tasks).await;
    let pool = PeerPool::new(identity, &tasks);
    let first = pool.connection(&address, ECHO).await.unwrap();
    let hanging = first.send(post("/hang", ""));
    let cut = async { pool.close(&address, None) };
    let (cut_off, ()) = tokio::join!(hanging, cut);
    assert!(matches!(cut_off.unwrap_err(), PeerError::Cut { .. } | PeerError::NotSent { .. }));
    assert_ne!(pool.connection(&address, ECHO).await.unwrap().id(), first.id());
    tasks.cancel();
}

#[tokio::test]
async fn a_dial_that_nobody_answers_did_not_start() {
    let tasks = Tasks::new("test");
    let pool = PeerPool::new(ClusterIdentity::generate().unwrap(), &tasks);
    let refused = pool.send("127.0.0.1:1", ECHO, post("/", "")).await.unwrap_err();
    assert!(matches!(refused, PeerError::Dial { .. }));
}
