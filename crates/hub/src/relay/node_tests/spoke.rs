//! A spoke that does what a test says.

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::{Stream as _, StreamExt as _};
use holdfast_ops::Tasks;
use holdfast_proto::relay::v1 as proto;
use holdfast_proto::relay::v1::hub_frame::Frame;
use holdfast_proto::relay::v1::spoke_frame::Frame as Out;
use holdfast_proto::relay::v1::spoke_gateway_client::SpokeGatewayClient;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio_rustls::TlsConnector;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming};
use tower_service::Service;

use super::world::SOON;

pub struct Credentials {
    pub ca: CertificateDer<'static>,
    pub cert: CertificateDer<'static>,
    pub key: Vec<u8>,
}

pub struct TestSpoke {
    pub out: mpsc::Sender<proto::SpokeFrame>,
    pub frames: Streaming<proto::HubFrame>,
    pub welcome: proto::Welcome,
}

#[derive(Clone)]
struct Channel(http2::SendRequest<tonic::body::Body>);

impl Service<http::Request<tonic::body::Body>> for Channel {
    type Response = http::Response<hyper::body::Incoming>;
    type Error = hyper::Error;
    type Future = BoxFuture<'static, Result<Self::Response, hyper::Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), hyper::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<tonic::body::Body>) -> Self::Future {
        let mut sender = self.0.clone();
        Box::pin(async move { sender.send_request(request).await })
    }
}

fn tls(credentials: &Credentials) -> ClientConfig {
    let mut roots = RootCertStore::empty();
    roots.add(credentials.ca.clone()).unwrap();
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(credentials.key.clone()));
    let mut config = ClientConfig::builder_with_provider(holdfast_net::server_tls::provider())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_client_auth_cert(vec![credentials.cert.clone()], key)
        .unwrap();
    config.alpn_protocols = vec![b"h2".to_vec()];
    config
}

async fn channel(credentials: &Credentials, node: usize, port: u16) -> Channel {
    let host = format!("127.0.0.{}", node + 1);
    let tcp = TcpStream::connect(format!("{host}:{port}")).await.unwrap();
    let name = ServerName::try_from(host).unwrap();
    let stream = TlsConnector::from(Arc::new(tls(credentials))).connect(name, tcp).await.unwrap();
    let (sender, connection) =
        http2::Builder::new(TokioExecutor::new()).handshake(TokioIo::new(stream)).await.unwrap();
    Tasks::new("test").spawn("connection", async move { drop(connection.await) });
    Channel(sender)
}

/// Whether a node's port for spokes talks to whoever shows these credentials.
pub async fn is_let_in(credentials: &Credentials, node: usize, port: u16) -> bool {
    use tokio::io::AsyncReadExt as _;
    let host = format!("127.0.0.{}", node + 1);
    let tcp = TcpStream::connect(format!("{host}:{port}")).await.unwrap();
    let name = ServerName::try_from(host).unwrap();
    let Ok(mut stream) = TlsConnector::from(Arc::new(tls(credentials))).connect(name, tcp).await else {
        return false;
    };
    // Under TLS 1.3 the refusal of a certificate is the first that the client reads; else it is the hub's settings.
    let read = tokio::time::timeout(SOON, stream.read_u8()).await.expect("neither refused nor greeted");
    read.is_ok()
}

/// Sends first frames of the caller's own on a new stream.
pub async fn dial(
    credentials: &Credentials,
    node: usize,
    port: u16,
    first: Option<proto::SpokeFrame>,
) -> Result<(mpsc::Sender<proto::SpokeFrame>, Streaming<proto::HubFrame>), Status> {
    let channel = channel(credentials, node, port).await;
    let origin = http::Uri::from_static("https://hub");
    let (out, frames) = mpsc::channel(64);
    if let Some(first) = first {
        out.send(first).await.unwrap();
    }
    let mut client = SpokeGatewayClient::with_origin(channel, origin);
    let connected = client.connect(ReceiverStream::new(frames)).await?;
    Ok((out, connected.into_inner()))
}

/// Asks for a new certificate without a stream.
pub async fn renew(
    credentials: &Credentials,
    node: usize,
    port: u16,
    csr_pem: String,
) -> Result<proto::RenewCertResponse, Status> {
    let channel = channel(credentials, node, port).await;
    let mut client = SpokeGatewayClient::with_origin(channel, http::Uri::from_static("https://hub"));
    let request = proto::RenewCertRequest { csr_pem, ttl_seconds: 0 };
    Ok(client.renew_cert(request).await?.into_inner())
}

/// Asks for new certificates on one connection until the node answers on it no more; the answers' codes.
pub async fn renew_until_cut(credentials: &Credentials, node: usize, port: u16) -> Vec<tonic::Code> {
    let channel = channel(credentials, node, port).await;
    let mut client = SpokeGatewayClient::with_origin(channel, http::Uri::from_static("https://hub"));
    let mut codes = Vec::new();
    let cut = async {
        loop {
            let refused = client.renew_cert(proto::RenewCertRequest::default()).await.unwrap_err();
            // What the connection itself fails with has a source; what the node says has none.
            if std::error::Error::source(&refused).is_some() {
                return;
            }
            codes.push(refused.code());
        }
    };
    tokio::time::timeout(SOON, cut).await.expect("the connection stays open");
    codes
}

pub fn hello(epoch: u64, boot: u8) -> proto::SpokeFrame {
    let hello = proto::Hello {
        protocol: 1,
        version: "test".into(),
        session_epoch: epoch,
        boot_id: Bytes::from(vec![boot; 16]),
        max_concurrency: 4,
        plugins: Vec::new(),
    };
    proto::SpokeFrame { frame: Some(Out::Hello(hello)) }
}

impl TestSpoke {
    pub async fn connect(
        credentials: &Credentials,
        node: usize,
        port: u16,
        epoch: u64,
        boot: u8,
    ) -> Result<Self, Status> {
        let (out, mut frames) = dial(credentials, node, port, Some(hello(epoch, boot))).await?;
        match frames.message().await?.unwrap().frame {
            Some(Frame::Welcome(welcome)) => Ok(Self { out, frames, welcome }),
            other => panic!("{other:?}"),
        }
    }

    pub async fn send(&self, frame: Out) {
        self.out.send(proto::SpokeFrame { frame: Some(frame) }).await.unwrap();
    }

    /// The next frame; none at the end of the stream.
    pub async fn next(&mut self) -> Result<Option<Frame>, Status> {
        let frame = tokio::time::timeout(SOON, self.frames.message()).await.unwrap()?;
        Ok(frame.map(|frame| frame.frame.unwrap()))
    }

    pub async fn command(&mut self) -> proto::Command {
        match self.next().await.unwrap() {
            Some(Frame::Command(command)) => command,
            other => panic!("{other:?}"),
        }
    }

    pub async fn reply(&self, request_id: String, outcome: proto::reply::Outcome) {
        self.send(Out::Reply(proto::Reply { request_id, outcome: Some(outcome) })).await;
    }

    /// Answers every command with its own payload, and gives the methods that came.
    pub fn echo(mut self) -> mpsc::Receiver<proto::Command> {
        let (seen, commands) = mpsc::channel(256);
        Tasks::new("test").spawn("echo", async move {
            while let Some(Ok(frame)) = self.frames.next().await {
                if let Some(Frame::Command(command)) = frame.frame {
                    let output = proto::reply::Outcome::Output(command.payload.clone());
                    self.reply(command.request_id.clone(), output).await;
                    drop(seen.try_send(command));
                }
            }
        });
        commands
    }

    /// How the stream ends, whatever else comes before.
    pub async fn end(&mut self) -> Option<Status> {
        let ended = async {
            loop {
                match self.frames.message().await {
                    Ok(Some(_)) => {}
                    Ok(None) => return None,
                    Err(status) => return Some(status),
                }
            }
        };
        tokio::time::timeout(SOON, ended).await.unwrap()
    }

    /// Nothing came within a moment.
    pub async fn is_quiet(&mut self) -> bool {
        let (low, _) = self.frames.size_hint();
        low == 0 && tokio::time::timeout(Duration::from_millis(100), self.frames.message()).await.is_err()
    }
}
