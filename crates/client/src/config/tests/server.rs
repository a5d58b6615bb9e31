//! The client over real sockets: what a server may do wrong, and what never leaves the machine.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use holdfast_core::AnswerKind;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, UnixListener};

use super::{envelope, update};
use crate::config::{Client, Config, Error, Event, HeaderEditor, Tls};

const DATE: &str = "2026-07-26T21:04:11Z";

/// What a server does with each request: writes these bytes and closes, or keeps silent.
#[derive(Clone)]
enum Play {
    Write(Vec<u8>),
    Silence,
}

/// A server that plays one answer over and over.
struct Server {
    endpoint: String,
    play: Arc<Mutex<Play>>,
    heads: Arc<Mutex<Vec<String>>>,
}

fn answer(status: &str, headers: &str, body: &str) -> Play {
    let head = format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\nconnection: close\r\n", body.len());
    Play::Write(format!("{head}{headers}\r\n{body}").into_bytes())
}

fn good(name: &str) -> Play {
    answer("200 OK", "content-type: application/json\r\n", &update(name, "eA==", DATE))
}

async fn converse<S: AsyncRead + AsyncWrite + Unpin>(
    mut stream: S,
    play: Arc<Mutex<Play>>,
    heads: Arc<Mutex<Vec<String>>>,
) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let Ok(byte) = stream.read_u8().await else { return };
        head.push(byte);
    }
    heads.lock().push(String::from_utf8(head).unwrap());
    let play = play.lock().clone();
    match play {
        Play::Write(bytes) => {
            let _ = stream.write_all(&bytes).await;
            let _ = stream.shutdown().await;
        }
        Play::Silence => std::future::pending().await,
    }
}

impl Server {
    async fn tcp(play: Play) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let server = Self { endpoint, play: Arc::new(Mutex::new(play)), heads: Arc::default() };
        let (play, heads) = (Arc::clone(&server.play), Arc::clone(&server.heads));
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(converse(stream, Arc::clone(&play), Arc::clone(&heads)));
            }
        });
        server
    }

    fn unix(path: &Path, play: Play) -> Self {
        let listener = UnixListener::bind(path).unwrap();
        let endpoint = format!("unix://{}", path.display());
        let server = Self { endpoint, play: Arc::new(Mutex::new(play)), heads: Arc::default() };
        let (play, heads) = (Arc::clone(&server.play), Arc::clone(&server.heads));
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(converse(stream, Arc::clone(&play), Arc::clone(&heads)));
            }
        });
        server
    }

    /// A server whose certificate is its own authority.
    async fn tls(play: Play, key: &rcgen::CertifiedKey<rcgen::KeyPair>) -> Self {
        let certificates = vec![key.cert.der().clone()];
        let private = rustls_pki_types::PrivateKeyDer::try_from(key.signing_key.serialize_der()).unwrap();
        let config = rustls::ServerConfig::builder().with_no_client_auth();
        let config = config.with_single_cert(certificates, private).unwrap();
        let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = format!("https://localhost:{}", listener.local_addr().unwrap().port());
        let server = Self { endpoint, play: Arc::new(Mutex::new(play)), heads: Arc::default() };
        let (play, heads) = (Arc::clone(&server.play), Arc::clone(&server.heads));
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (acceptor, play, heads) = (acceptor.clone(), Arc::clone(&play), Arc::clone(&heads));
                tokio::spawn(async move {
                    if let Ok(stream) = acceptor.accept(stream).await {
                        converse(stream, play, heads).await;
                    }
                });
            }
        });
        server
    }

    fn count(&self) -> usize {
        self.heads.lock().len()
    }

    fn head(&self) -> String {
        self.heads.lock().last().unwrap().clone()
    }
}

fn certificate() -> rcgen::CertifiedKey<rcgen::KeyPair> {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap()
}

fn client(endpoints: &[&str]) -> Client {
    Client::new(Config {
        endpoints: endpoints.iter().map(|endpoint| (*endpoint).to_owned()).collect(),
        insecure_no_tls: true,
        attempt_timeout: Duration::from_millis(700),
        ..Config::default()
    })
    .unwrap()
}

/// An address at which nobody listens.
async fn dead() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    format!("http://{}", listener.local_addr().unwrap())
}

#[tokio::test]
async fn a_client_that_cannot_be_made_sends_nothing() {
    let a = Server::tcp(good("a")).await;
    let make = |endpoint: Option<&str>, endpoints: &[&str]| {
        let config = Config {
            endpoint: endpoint.map(str::to_owned),
            endpoints: endpoints.iter().map(|text| (*text).to_owned()).collect(),
            insecure_no_tls: true,
            ..Config::default()
        };
        Client::new(config).map(drop).map_err(|error| error.to_string())
    };
    assert_eq!(
        make(Some(&a.endpoint), &[&a.endpoint]),
        Err("set exactly one of endpoint and endpoints".into())
    );
    assert_eq!(make(None, &[]), Err("no endpoint".into()));
    let bad = "endpoint 2 of 3 \"tcp://x\": the scheme is not https, unix or http";
    assert_eq!(make(None, &[&a.endpoint, "tcp://x", "unix:///s"]), Err(bad.into()));
    let repeat = "endpoint 2 of 2 repeats endpoint 1";
    assert_eq!(make(None, &[&a.endpoint, &format!("{}/", a.endpoint)]), Err(repeat.into()));
    assert_eq!(make(None, &[&a.endpoint, "unix:///nowhere/s"]), Ok(()));
    assert_eq!(a.count(), 0);
}

#[tokio::test]
async fn files_and_tokens_that_cannot_be_used_are_told_when_the_client_is_made() {
    let make = |tls: Tls, token: Option<&str>| {
        let endpoint = Some("https://localhost:1".to_owned());
        let token = token.map(Into::into);
        Client::new(Config { endpoint, tls, token, ..Config::default() }).unwrap_err().to_string()
    };
    let file = |path: &str| Some(path.into());
    let nowhere = Tls { ca_file: file("/nowhere/ca.pem"), ..Tls::default() };
    assert_eq!(make(nowhere, None), "cannot use /nowhere/ca.pem for TLS");
    let empty = Tls { ca_file: file("/dev/null"), ..Tls::default() };
    assert_eq!(make(empty, None), "cannot use /dev/null for TLS");
    let half = Tls { cert_file: file("/dev/null"), ..Tls::default() };
    assert_eq!(make(half, None), "a client certificate needs both its file and the file of its key");
    let text = make(Tls::default(), Some("gehe\nim"));
    assert_eq!(text, "the token holds characters that no header can carry");
}

#[tokio::test]
async fn what_is_no_answer_of_the_api_moves_to_the_next_endpoint() {
    let cut = b"HTTP/1.1 200 OK\r\ncontent-length: 500\r\n\r\n{\"name\":\"a\"".to_vec();
    let plays = [
        ("silent", Play::Silence),
        ("503", answer("503 Service Unavailable", "", &envelope("unavailable"))),
        ("unknown", answer("500 Internal Server Error", "", &envelope("unknown"))),
        ("bare 500", answer("500 Internal Server Error", "", "")),
        ("bare 403", answer("403 Forbidden", "content-type: text/html\r\n", "<html>no</html>")),
        ("404 of a router", answer("404 Not Found", "", "404 page not found")),
        ("redirect", answer("302 Found", "location: /v1/values/b\r\n", &envelope("not_found"))),
        ("truncated", Play::Write(cut)),
        ("not JSON", answer("200 OK", "", "<html>welcome</html>")),
        ("another name", good("b")),
        ("long error", answer("403 Forbidden", "", &(envelope("permission_denied") + &" ".repeat(9000)))),
        ("no HTTP", Play::Write(b"SSH-2.0-OpenSSH\r\n".to_vec())),
        ("closed", Play::Write(Vec::new())),
    ];
    for (what, play) in plays {
        let (a, b) = (Server::tcp(play).await, Server::tcp(good("a")).await);
        let value = client(&[&a.endpoint, &b.endpoint]).get("a").await;
        let value = value.unwrap_or_else(|error| panic!("{what}: {error}"));
        assert_eq!((value.bytes.expose(), &*value.endpoint), (&b"x"[..], &*b.endpoint), "{what}");
        assert_eq!((a.count(), b.count()), (1, 1), "{what}");
    }
}

#[tokio::test]
async fn a_refused_dial_and_a_certificate_that_nobody_trusts_move_on_too() {
    let b = Server::tcp(good("a")).await;
    let value = client(&[&dead().await, &b.endpoint]).get("a").await.unwrap();
    assert_eq!(&*value.endpoint, &*b.endpoint);
    let a = Server::tls(good("a"), &certificate()).await;
    let other = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(other.path(), certificate().cert.pem()).unwrap();
    let made = Client::new(Config {
        endpoints: vec![a.endpoint.clone(), b.endpoint.clone()],
        insecure_no_tls: true,
        tls: Tls { ca_file: Some(other.path().to_owned()), ..Tls::default() },
        ..Config::default()
    });
    let value = made.unwrap().get("a").await.unwrap();
    assert_eq!((&*value.endpoint, a.count(), b.count()), (&*b.endpoint, 0, 2));
}

#[tokio::test]
async fn an_answer_that_every_replica_would_give_is_asked_for_once() {
    for (kind, status) in [
        (AnswerKind::NotFound, "404 Not Found"),
        (AnswerKind::PermissionDenied, "403 Forbidden"),
        (AnswerKind::Unauthenticated, "401 Unauthorized"),
        (AnswerKind::Invalid, "400 Bad Request"),
        (AnswerKind::RateLimited, "429 Too Many Requests"),
    ] {
        let a = Server::tcp(answer(status, "retry-after: 7\r\n", &envelope(kind.label()))).await;
        let b = Server::tcp(good("a")).await;
        let error = client(&[&a.endpoint, &b.endpoint]).get("a").await.unwrap_err();
        assert_eq!((error.answer_kind(), error.retry_after()), (kind, Some(Duration::from_secs(7))));
        assert_eq!(error.to_string(), format!("{}: {kind}: {kind}!", a.endpoint));
        assert_eq!((a.count(), b.count()), (1, 0), "{kind}");
    }
}

#[tokio::test]
async fn sockets_prefixes_and_tls_are_all_spoken_to() {
    let dir = tempfile::tempdir().unwrap();
    let socket = Server::unix(&dir.path().join("s"), good("a/b"));
    client(&[&socket.endpoint]).get("a/b").await.unwrap();
    assert!(socket.head().starts_with("GET /v1/values/a%2Fb HTTP/1.1\r\n"), "{}", socket.head());
    let tcp = Server::tcp(good("ä?")).await;
    client(&[&format!("{}/config/", tcp.endpoint)]).get("ä?").await.unwrap();
    assert!(tcp.head().starts_with("GET /config/v1/values/%C3%A4%3F HTTP/1.1\r\n"), "{}", tcp.head());
    let key = certificate();
    let ca = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(ca.path(), key.cert.pem()).unwrap();
    let tls = Server::tls(good("a"), &key).await;
    let made = Client::new(Config {
        endpoint: Some(tls.endpoint.clone()),
        tls: Tls { ca_file: Some(ca.path().to_owned()), ..Tls::default() },
        ..Config::default()
    });
    assert_eq!(&*made.unwrap().get("a").await.unwrap().endpoint, &*tls.endpoint);
}

#[tokio::test]
async fn credentials_go_with_each_request_and_are_not_shown() {
    let a = Server::tcp(good("a")).await;
    let made = Client::new(Config {
        endpoint: Some(a.endpoint.clone()),
        insecure_no_tls: true,
        token: Some("geheim".into()),
        headers: Some(HeaderEditor::new(|headers| {
            headers.insert("holdfast-via", http::HeaderValue::from_static("abcd"));
        })),
        ..Config::default()
    });
    let made = made.unwrap();
    made.get("a").await.unwrap();
    let head = a.head().to_ascii_lowercase();
    assert!(head.contains("\r\nauthorization: bearer geheim\r\n"), "{head}");
    assert!(head.contains("\r\nholdfast-via: abcd\r\n"), "{head}");
    assert!(head.contains("\r\nuser-agent: holdfast/"), "{head}");
    assert!(!format!("{made:?}").contains("geheim"));
}

#[tokio::test]
async fn all_fail_with_the_last_error_and_one_endpoint_gets_one_request() {
    let a = Server::tcp(answer("503 Service Unavailable", "", &envelope("unavailable"))).await;
    let b = Server::tcp(answer("500 Internal Server Error", "", &envelope("unknown"))).await;
    let error = client(&[&a.endpoint, &b.endpoint]).get("a").await.unwrap_err();
    assert_eq!(error.to_string(), format!("{}: unknown: unknown!", b.endpoint));
    let error = client(&[&a.endpoint]).get("a").await.unwrap_err();
    assert_eq!((error.answer_kind(), a.count()), (AnswerKind::Unavailable, 2));
}

#[tokio::test]
async fn a_watch_reads_a_real_stream() {
    let body = format!("retry: 1000\n\nevent: update\ndata: {}\n\n", update("a", "eA==", DATE));
    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n";
    let a = Server::tcp(Play::Write(format!("{head}{body}").into_bytes())).await;
    let client = client(&[&a.endpoint]);
    let mut watch = client.watch(["a"]).unwrap();
    assert!(matches!(watch.next().await, Some(Event::State(_))));
    let event = watch.next().await;
    assert!(matches!(&event, Some(Event::Update(value)) if value.bytes.expose() == b"x"), "{event:?}");
    client.close();
    assert!(matches!(watch.next().await, Some(Event::Closed)));
    assert!(matches!(client.get("a").await, Err(Error::Closed)));
}
