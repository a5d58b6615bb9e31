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

/// What a handshake by this configuration ends with: an error on either side, or a byte of the peer.
async fn handshake(address: &str, config: rustls::ClientConfig) -> std::io::Result<u8> {
    use tokio::io::AsyncReadExt as _;
    let name = rustls_pki_types::ServerName::try_from(super::identity::tls_name()).unwrap();
    let stream = tokio::net::TcpStream::connect(address).await?;
    let mut stream = tokio_rustls::TlsConnector::from(Arc::new(config)).connect(name, stream).await?;
    // With TLS 1.3 the client is done before it hears what the server thinks of it.
    stream.read_u8().await
}

#[tokio::test]
async fn only_tls_13_with_the_certificate_of_the_cluster_gets_in() {
    let (identity, tasks) = (ClusterIdentity::generate().unwrap(), Tasks::new("test"));
    let mut port = ClusterPort::bind("[::1]:0", identity.clone()).await.unwrap();
    port.register(ECHO, Arc::new(Echo));
    let address = port.local_addr().to_string();
    assert!(address.starts_with("[::1]:"), "{address}");
    port.serve(&tasks).unwrap();
    let own = PeerPool::new(identity.clone(), &tasks);
    own.send(&address, ECHO, post("/", "x")).await.unwrap();

    let config = |versions: &[&'static rustls::SupportedProtocolVersion]| {
        let mut roots = rustls::RootCertStore::empty();
        roots.add(identity.certificate()).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let builder = rustls::ClientConfig::builder_with_provider(provider).with_protocol_versions(versions);
        builder.unwrap().with_root_certificates(roots)
    };
    let alpn = |mut config: rustls::ClientConfig| {
        config.alpn_protocols = vec![ECHO.as_bytes().to_vec()];
        config
    };
    let old = config(&[&rustls::version::TLS12]);
    let old = alpn(old.with_client_auth_cert(vec![identity.certificate()], identity.key()).unwrap());
    let refused = handshake(&address, old).await.unwrap_err().to_string();
    assert!(refused.to_lowercase().contains("version"), "{refused}");
    let nameless = alpn(config(&[&rustls::version::TLS13]).with_no_client_auth());
    let refused = handshake(&address, nameless).await.unwrap_err().to_string();
    assert!(refused.to_lowercase().contains("certificate"), "{refused}");
    tasks.cancel();
}

/// Forwards until it is told to stop; then it holds both connections open and passes nothing.
async fn stalling(to: String, tasks: &Tasks) -> (String, tokio_util::sync::CancellationToken) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (address, stall) =
        (listener.local_addr().unwrap().to_string(), tokio_util::sync::CancellationToken::new());
    let stalled = stall.clone();
    tasks.spawn_until_cancelled("stalling", async move {
        let (mut client, _) = listener.accept().await.unwrap();
        let mut server = tokio::net::TcpStream::connect(to).await.unwrap();
        tokio::select! {
            _ = tokio::io::copy_bidirectional(&mut client, &mut server) => {}
            () = stalled.cancelled() => std::future::pending().await,
        }
    });
    (address, stall)
}

#[tokio::test]
async fn a_peer_that_vanishes_without_a_word_is_noticed_by_the_keepalive() {
    let (identity, tasks) = (ClusterIdentity::generate().unwrap(), Tasks::new("test"));
    let (address, stall) = stalling(listening(&identity, &tasks).await, &tasks).await;
    let pool = PeerPool::new(identity, &tasks);
    let connection = pool.connection(&address, ECHO).await.unwrap();
    pool.send(&address, ECHO, post("/", "x")).await.unwrap();
    stall.cancel();
    // Nobody closes anything; a request that waits learns of it within two intervals.
    let waiting = tokio::time::timeout(super::KEEPALIVE * 6, connection.send(post("/hang", "")));
    assert!(waiting.await.expect("the connection is given up").is_err());
    assert!(connection.is_closed());
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
async fn closing_reaches_what_is_under_way_on_a_connection_that_was_replaced() {
    let (identity, tasks) = (ClusterIdentity::generate().unwrap(), Tasks::new("test"));
    let address = listening(&identity, &tasks).await;
    let pool = PeerPool::new(identity, &tasks);
    for retire in [false, true] {
        let first = pool.connection(&address, ECHO).await.unwrap();
        let hanging = first.send(post("/hang", ""));
        let cut = async {
            // As after a request that failed: the next one dials again, and the former connection stays open.
            first.spend();
            let second = pool.connection(&address, ECHO).await.unwrap();
            assert_ne!(second.id(), first.id());
            pool.send(&address, ECHO, post("/", "x")).await.unwrap();
            match retire {
                true => pool.retire(&address, ECHO, std::time::Duration::ZERO),
                false => pool.close(&address, None),
            }
            second
        };
        let both = async { tokio::join!(hanging, cut) };
        let (cut_off, second) = tokio::time::timeout(super::KEEPALIVE * 30, both).await.expect("it is cut");
        assert!(matches!(cut_off.unwrap_err(), PeerError::Cut { .. }), "retired: {retire}");
        assert!(second.is_closed());
    }
    tasks.cancel();
}

#[tokio::test]
async fn a_dial_that_nobody_answers_did_not_start() {
    let tasks = Tasks::new("test");
    let pool = PeerPool::new(ClusterIdentity::generate().unwrap(), &tasks);
    let refused = pool.send("127.0.0.1:1", ECHO, post("/", "")).await.unwrap_err();
    assert!(matches!(refused, PeerError::Dial { .. }));
}
