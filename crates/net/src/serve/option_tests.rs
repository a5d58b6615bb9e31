//! What a port does for a service that asks for more than the defaults.

use http::Version;
use http_body_util::{BodyExt as _, Empty, Full, StreamBody};
use hyper::body::Frame;
use hyper_util::rt::TokioExecutor;
use parking_lot::Mutex;
use rcgen::{BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::Instant;

use super::*;
use crate::server_tls::{ClientCertificate, TlsFiles, provider};

const SOON: Duration = Duration::from_secs(10);

/// Says who asks; `/stream` never ends, `/cut` is a stream that cuts itself after its first piece.
#[derive(Default)]
struct Who {
    cuts: Mutex<Vec<Cut>>,
}

impl Service for Who {
    fn call(self: Arc<Self>, peer: Peer, request: Request<Incoming>) -> Answer {
        Box::pin(async move {
            if request.uri().path() == "/plain" {
                let (chain, user) = (peer.connection.certificates(), peer.connection.credentials());
                let text = format!("chain={:?} uid={:?}", chain.map(|c| c.len()), user.map(|u| u.uid));
                return Response::new(Full::from(text).map_err(|never| match never {}).boxed_unsync());
            }
            self.cuts.lock().extend(stream_cut());
            let first =
                futures_util::stream::iter([Ok::<_, BodyError>(Frame::data(Bytes::from_static(b"first")))]);
            let body = futures_util::StreamExt::chain(first, futures_util::stream::pending());
            Response::new(StreamBody::new(body).boxed_unsync())
        })
    }
}

fn options(header: u64, idle: u64) -> Options {
    let (header, idle) = (Duration::from_millis(header), Some(Duration::from_millis(idle)));
    Options { header, idle, ..Options::default() }
}

async fn start(tasks: &Tasks, tls: Option<Arc<ServerTls>>, options: Options) -> (Server, Arc<Who>) {
    let listener = Listener::Tcp(TcpListener::bind("127.0.0.1:0").await.unwrap());
    let who = Arc::new(Who::default());
    let service = Arc::clone(&who) as Arc<dyn Service>;
    (Server::start_with(listener, tls, service, options, &tasks.child("api")).unwrap(), who)
}

/// Sends, and reads until the end.
async fn talk(server: &Server, text: &[u8]) -> (String, Duration) {
    let mut client = TcpStream::connect(server.address()).await.unwrap();
    let began = Instant::now();
    let _ = client.write_all(text).await;
    let mut answer = Vec::new();
    let _ = tokio::time::timeout(SOON, client.read_to_end(&mut answer)).await.unwrap();
    (String::from_utf8_lossy(&answer).into_owned(), began.elapsed())
}

#[tokio::test]
async fn headers_have_their_time_and_silence_its_own() {
    let tasks = Tasks::new("test");
    let (server, _) = start(&tasks, None, options(300, 900)).await;
    let slow = talk(&server, b"GET /plain HTTP/1.1\r\nhost:").await;
    assert!(slow.0.is_empty() && slow.1 >= Duration::from_millis(300), "{slow:?}");
    assert!(slow.1 < Duration::from_millis(900), "{slow:?}");
    let idle = talk(&server, b"GET /plain HTTP/1.1\r\nhost: a\r\n\r\n").await;
    assert!(idle.0.contains("200 OK") && idle.1 >= Duration::from_millis(900), "{idle:?}");
}

#[tokio::test]
async fn a_stream_outlives_both_limits() {
    let tasks = Tasks::new("test");
    let (server, _) = start(&tasks, None, options(50, 50)).await;
    let mut client = TcpStream::connect(server.address()).await.unwrap();
    client.write_all(b"GET /stream HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
    let mut answer = [0; 1024];
    assert!(client.read(&mut answer).await.unwrap() > 0);
    let more = tokio::time::timeout(Duration::from_millis(400), async {
        while client.read(&mut answer).await.unwrap() > 0 {}
    });
    assert!(more.await.is_err(), "it goes on");
}

#[tokio::test]
async fn headers_over_64_kib_are_431_and_http_1_0_ends_by_close() {
    let tasks = Tasks::new("test");
    let (server, _) = start(&tasks, None, options(2000, 2000)).await;
    let huge = format!("GET /plain HTTP/1.1\r\nhost: a\r\nx: {}\r\n\r\n", "x".repeat(66 * 1024));
    assert!(talk(&server, huge.as_bytes()).await.0.starts_with("HTTP/1.1 431 "));
    let (old, _) = talk(&server, b"GET /plain HTTP/1.0\r\n\r\n").await;
    assert!(old.starts_with("HTTP/1.0 200 OK") && old.ends_with("uid=None"), "{old}");
    let mut client = TcpStream::connect(server.address()).await.unwrap();
    client.write_all(b"GET /stream HTTP/1.0\r\n\r\n").await.unwrap();
    let mut answer = String::new();
    while !answer.contains("first") {
        let mut part = [0; 512];
        let read = client.read(&mut part).await.unwrap();
        answer += std::str::from_utf8(&part[..read]).unwrap();
    }
    assert!(answer.ends_with("\r\n\r\nfirst") && !answer.contains("chunked"), "{answer}");
}

#[tokio::test]
async fn the_peer_of_a_unix_socket_is_known() {
    let (tasks, dir) = (Tasks::new("test"), tempfile::tempdir().unwrap());
    let path = dir.path().join("s");
    let listener = UnixListener::bind(&path).unwrap();
    let service: Arc<dyn Service> = Arc::new(Who::default());
    let group = tasks.child("api");
    let _server =
        Server::start_with(Listener::Unix(listener), None, service, options(2000, 100), &group).unwrap();
    let mut client = UnixStream::connect(&path).await.unwrap();
    client.write_all(b"GET /plain HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
    let mut answer = String::new();
    client.read_to_string(&mut answer).await.unwrap();
    let me = std::os::unix::fs::MetadataExt::uid(&std::fs::metadata("/proc/self").unwrap());
    assert!(answer.ends_with(&format!("chain=None uid=Some({me})")), "{answer}");
}

struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

fn authority(name: &str) -> Authority {
    let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().unwrap();
    let pem = params.self_signed(&key).unwrap().pem();
    Authority { issuer: Issuer::new(params, key), pem }
}

fn leaf(by: &Authority, usage: ExtendedKeyUsagePurpose) -> (String, String) {
    let mut params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    params.extended_key_usages = vec![usage];
    let key = KeyPair::generate().unwrap();
    (params.signed_by(&key, &by.issuer).unwrap().pem(), key.serialize_pem())
}

fn server_tls(ca: &Authority, clients: ClientCertificate) -> (tempfile::TempDir, Arc<ServerTls>) {
    use std::os::unix::fs::PermissionsExt as _;
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        path
    };
    let (cert, key) = leaf(ca, ExtendedKeyUsagePurpose::ServerAuth);
    let files =
        TlsFiles { cert: file("cert", &cert), key: file("key", &key), client_ca: Some(file("ca", &ca.pem)) };
    let tls = ServerTls::load_for(files, clients).unwrap();
    (dir, tls)
}

/// What the service says of a client with this certificate; none when the connection does not come about.
async fn ask_as(server: &Server, ca: &Authority, own: Option<&(String, String)>) -> Option<String> {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(ca.pem.as_bytes()).unwrap()).unwrap();
    let config = rustls::ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots);
    let config = match own {
        None => config.with_no_client_auth(),
        Some((cert, key)) => {
            let chain = vec![CertificateDer::from_pem_slice(cert.as_bytes()).unwrap()];
            config
                .with_client_auth_cert(chain, PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap())
                .unwrap()
        }
    };
    let stream = TcpStream::connect(server.address()).await.unwrap();
    let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
    let mut stream = connector.connect(ServerName::try_from("localhost").unwrap(), stream).await.ok()?;
    stream.write_all(b"GET /plain HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").await.ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.ok()?;
    answer.rsplit("\r\n").next().map(str::to_owned)
}

#[tokio::test]
async fn only_a_verified_certificate_is_ever_told() {
    let (ours, other) = (authority("ours"), authority("other"));
    let good = leaf(&ours, ExtendedKeyUsagePurpose::ClientAuth);
    let wrong_usage = leaf(&ours, ExtendedKeyUsagePurpose::ServerAuth);
    let foreign = leaf(&other, ExtendedKeyUsagePurpose::ClientAuth);
    for (clients, without, with) in [
        (ClientCertificate::None, Some("chain=None uid=None"), Some("chain=None uid=None")),
        (ClientCertificate::Request, Some("chain=None uid=None"), Some("chain=Some(1) uid=None")),
        (ClientCertificate::Require, None, Some("chain=Some(1) uid=None")),
    ] {
        let tasks = Tasks::new("test");
        let (_dir, tls) = server_tls(&ours, clients);
        assert!(tls.expires() > 1_700_000_000);
        let (server, _) = start(&tasks, Some(tls), options(5000, 5000)).await;
        assert_eq!(ask_as(&server, &ours, None).await.as_deref(), without, "{clients:?}");
        assert_eq!(ask_as(&server, &ours, Some(&good)).await.as_deref(), with, "{clients:?}");
        for bad in [&wrong_usage, &foreign] {
            let told = ask_as(&server, &ours, Some(bad)).await;
            assert!(told.is_none_or(|told| told == "chain=None uid=None"), "{clients:?}");
        }
    }
}

async fn h2(server: &Server, tasks: &Tasks) -> hyper::client::conn::http2::SendRequest<Empty<Bytes>> {
    let stream = TcpStream::connect(server.address()).await.unwrap();
    let (sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    tasks.spawn("client", async move { drop(connection.await) });
    sender
}

fn get(server: &Server, path: &str) -> Request<Empty<Bytes>> {
    let uri = format!("http://{}{path}", server.address());
    Request::builder().uri(uri).version(Version::HTTP_2).body(Empty::new()).unwrap()
}

#[tokio::test]
async fn one_stream_of_a_connection_is_cut_and_the_other_goes_on() {
    let tasks = Tasks::new("test");
    let (server, who) = start(&tasks, None, options(5000, 5000)).await;
    let mut client = h2(&server, &tasks).await;
    let mut first = client.send_request(get(&server, "/stream")).await.unwrap().into_body();
    let mut second = client.send_request(get(&server, "/stream")).await.unwrap().into_body();
    for body in [&mut first, &mut second] {
        assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), "first");
    }
    who.cuts.lock()[0].now();
    let cut = tokio::time::timeout(SOON, first.frame()).await.unwrap();
    assert!(cut.is_none_or(|frame| frame.is_err()));
    assert!(tokio::time::timeout(Duration::from_millis(200), second.frame()).await.is_err());
    assert_eq!(client.send_request(get(&server, "/plain")).await.unwrap().status(), 200);
}

#[tokio::test]
async fn who_leaves_tells_http_2_clients_and_serves_them_on() {
    let tasks = Tasks::new("test");
    let (server, _) = start(&tasks, None, options(5000, 5000)).await;
    let mut client = h2(&server, &tasks).await;
    let mut body = client.send_request(get(&server, "/stream")).await.unwrap().into_body();
    body.frame().await.unwrap().unwrap();
    server.leave();
    let told = async { while client.send_request(get(&server, "/plain")).await.is_ok() {} };
    tokio::time::timeout(SOON, told).await.unwrap();
    assert!(tokio::time::timeout(Duration::from_millis(200), body.frame()).await.is_err(), "it goes on");
    let mut new = h2(&server, &tasks).await;
    assert_eq!(new.send_request(get(&server, "/plain")).await.unwrap().status(), 200);
    let kept = talk(&server, b"GET /plain HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").await;
    assert!(kept.0.contains("200 OK"));
}
