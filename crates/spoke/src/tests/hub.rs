//! A hub node that a test holds in its hands: real TLS and HTTP/2, and frames as the test wants them.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use holdfast_core::SpokeName;
use holdfast_core::epoch::dialer::Timing;
use holdfast_ops::Tasks;
use holdfast_ops::shutdown::{Request as Ask, Signals};
use holdfast_proto::relay::v1 as proto;
use holdfast_proto::relay::v1::hub_frame::Frame as FromHub;
use holdfast_proto::relay::v1::spoke_frame::Frame as ToHub;
use holdfast_proto::relay::v1::spoke_gateway_server::{SpokeGateway, SpokeGatewayServer};
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use parking_lot::Mutex;
use rcgen::{
    BasicConstraints, CertificateParams, CertificateSigningRequestParams, DnType, ExtendedKeyUsagePurpose,
    IsCa, Issuer, KeyPair, KeyUsagePurpose,
};
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};
use tower_service::Service as _;

use super::fake::{Fakes, Opens, SOON};
use crate::credentials::{Credentials, KeyRequest};
use crate::daemon::{self, Options};
use crate::runner::Limits;

/// The authority that hubs and spokes of one test trust.
pub(super) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pub pem: String,
    der: CertificateDer<'static>,
}

impl Authority {
    pub fn new() -> Arc<Self> {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        params.distinguished_name.push(DnType::CommonName, "holdfast-spoke-ca");
        let cert = params.self_signed(&key).unwrap();
        Arc::new(Self { pem: cert.pem(), der: cert.der().clone(), issuer: Issuer::new(params, key) })
    }

    pub fn sign(&self, csr_pem: &str) -> String {
        let mut csr = CertificateSigningRequestParams::from_pem(csr_pem).unwrap();
        csr.params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        csr.signed_by(&self.issuer).unwrap().pem()
    }

    /// A directory with the credentials of spoke-1.
    pub fn spoke(&self) -> TempDir {
        let dir = tempfile::tempdir().unwrap();
        let name: SpokeName = "spoke-1".parse().unwrap();
        let request = KeyRequest::new(&name).unwrap();
        let cert = self.sign(&request.csr_pem);
        Credentials::create(dir.path(), &request.key_pem, &cert, &self.pem).unwrap();
        dir
    }

    fn tls(&self) -> TlsAcceptor {
        let key = KeyPair::generate().unwrap();
        let names = ["localhost".to_owned(), "127.0.0.1".to_owned()];
        let mut params = CertificateParams::new(names).unwrap();
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let cert = params.signed_by(&key, &self.issuer).unwrap();
        let mut roots = rustls::RootCertStore::empty();
        roots.add(self.der.clone()).unwrap();
        let provider = holdfast_net::server_tls::provider();
        let verifier =
            rustls::server::WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone());
        let mut config = rustls::ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .unwrap()
            .with_client_cert_verifier(verifier.build().unwrap())
            .with_single_cert(vec![cert.der().clone()], PrivateKeyDer::try_from(key.serialize_der()).unwrap())
            .unwrap();
        config.alpn_protocols = vec![b"h2".to_vec()];
        TlsAcceptor::from(Arc::new(config))
    }
}

/// A hub node. Dropping it cuts everything.
pub(super) struct Hub {
    pub address: String,
    /// What the next streams are refused with, before any is accepted.
    pub refusals: Arc<Mutex<VecDeque<Status>>>,
    /// The certificates with which streams and calls came.
    pub seen: Arc<Mutex<Vec<Vec<u8>>>>,
    streams: mpsc::Receiver<Stream>,
    accept: JoinHandle<()>,
}

impl Drop for Hub {
    fn drop(&mut self) {
        self.accept.abort();
    }
}

/// The hub's end of a stream.
pub(super) struct Stream {
    inbound: Streaming<proto::SpokeFrame>,
    out: mpsc::Sender<Result<proto::HubFrame, Status>>,
}

struct Gateway {
    authority: Arc<Authority>,
    refusals: Arc<Mutex<VecDeque<Status>>>,
    streams: mpsc::Sender<Stream>,
}

#[tonic::async_trait]
impl SpokeGateway for Gateway {
    type ConnectStream = ReceiverStream<Result<proto::HubFrame, Status>>;

    async fn connect(
        &self,
        request: Request<Streaming<proto::SpokeFrame>>,
    ) -> Result<Response<Self::ConnectStream>, Status> {
        if let Some(refusal) = self.refusals.lock().pop_front() {
            return Err(refusal);
        }
        let (out, frames) = mpsc::channel(256);
        let stream = Stream { inbound: request.into_inner(), out };
        self.streams.send(stream).await.map_err(|_| Status::unavailable("the test is over"))?;
        Ok(Response::new(ReceiverStream::new(frames)))
    }

    async fn renew_cert(
        &self,
        request: Request<proto::RenewCertRequest>,
    ) -> Result<Response<proto::RenewCertResponse>, Status> {
        if let Some(refusal) = self.refusals.lock().pop_front() {
            return Err(refusal);
        }
        let cert_pem = self.authority.sign(&request.into_inner().csr_pem);
        Ok(Response::new(proto::RenewCertResponse { cert_pem, ca_cert_pem: self.authority.pem.clone() }))
    }
}

impl Hub {
    pub async fn start(authority: &Arc<Authority>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (refusals, seen) = (Arc::default(), Arc::default());
        let (streams, taken) = mpsc::channel(16);
        let gateway = Gateway { authority: Arc::clone(authority), refusals: Arc::clone(&refusals), streams };
        let accept = tokio::spawn(accept(listener, authority.tls(), Arc::new(gateway), Arc::clone(&seen)));
        let address = SocketAddr::to_string(&address);
        Self { address, refusals, seen, streams: taken, accept }
    }

    /// The next stream, before its hello is read.
    pub async fn stream(&mut self) -> Stream {
        tokio::time::timeout(SOON, self.streams.recv()).await.expect("no stream came").unwrap()
    }

    /// The next stream with its hello, welcomed.
    pub async fn welcomed(&mut self) -> (Stream, proto::Hello) {
        let mut stream = self.stream().await;
        let hello = stream.hello().await;
        stream.welcome(&[]).await;
        (stream, hello)
    }

    pub fn no_stream(&mut self) -> bool {
        self.streams.try_recv().is_err()
    }
}

async fn accept(
    listener: TcpListener,
    tls: TlsAcceptor,
    gateway: Arc<Gateway>,
    seen: Arc<Mutex<Vec<Vec<u8>>>>,
) {
    // Ends with the listener, and cuts every connection.
    let mut connections = tokio::task::JoinSet::new();
    loop {
        let (socket, _) = listener.accept().await.unwrap();
        let (tls, gateway, seen) = (tls.clone(), Arc::clone(&gateway), Arc::clone(&seen));
        connections.spawn(async move {
            let Ok(stream) = tls.accept(socket).await else { return };
            let peer = stream.get_ref().1.peer_certificates().unwrap()[0].to_vec();
            seen.lock().push(peer);
            let service =
                service_fn(move |request| SpokeGatewayServer::from_arc(Arc::clone(&gateway)).call(request));
            let _ = http2::Builder::new(TokioExecutor::new())
                .serve_connection(TokioIo::new(stream), service)
                .await;
        });
    }
}

impl Stream {
    pub async fn send(&self, frame: FromHub) {
        self.out.send(Ok(proto::HubFrame { frame: Some(frame) })).await.unwrap();
    }

    /// The same, when the spoke may have left.
    pub async fn try_send(&self, frame: FromHub) -> Result<(), ()> {
        self.out.send(Ok(proto::HubFrame { frame: Some(frame) })).await.map_err(drop)
    }

    pub async fn fail(self, status: Status) {
        self.out.send(Err(status)).await.unwrap();
    }

    pub async fn welcome(&self, endpoints: &[&str]) {
        let hub_endpoints = endpoints.iter().map(|&e| e.to_owned()).collect();
        let welcome = proto::Welcome { node_id: "hub-0".into(), hub_endpoints, ..Default::default() };
        self.send(FromHub::Welcome(welcome)).await;
    }

    pub async fn command(&self, command: proto::Command) {
        self.send(FromHub::Command(command)).await;
    }

    /// The next frame; `None` when the spoke has ended the stream, in order or not.
    pub async fn next(&mut self) -> Option<ToHub> {
        let next = tokio::time::timeout(SOON, self.inbound.message()).await.expect("no frame came");
        next.ok().flatten().and_then(|frame| frame.frame)
    }

    pub async fn hello(&mut self) -> proto::Hello {
        match self.next().await {
            Some(ToHub::Hello(hello)) => hello,
            other => panic!("no hello: {other:?}"),
        }
    }

    pub async fn reply(&mut self) -> proto::Reply {
        loop {
            match self.next().await {
                Some(ToHub::Reply(reply)) => return reply,
                Some(ToHub::Heartbeat(_)) => {}
                other => panic!("no reply: {other:?}"),
            }
        }
    }
}

/// A daemon under test.
pub(super) struct Spoke {
    pub fakes: Arc<Fakes>,
    ask: watch::Sender<Ask>,
    run: JoinHandle<Result<u8, daemon::Error>>,
}

impl Spoke {
    pub fn start(options: Options) -> Self {
        let opens = Opens::default();
        let (ask, signals) = Signals::manual();
        let fakes = Arc::clone(&opens.0);
        let run = tokio::spawn(async move {
            daemon::run_with(options, Arc::new(opens), signals, &Tasks::new("spoke")).await
        });
        Self { fakes, ask, run }
    }

    /// Waits for the end that comes by itself.
    pub async fn ended(self) -> Result<u8, daemon::Error> {
        tokio::time::timeout(SOON, self.run).await.expect("it did not end").unwrap()
    }

    pub fn signal(&self) {
        self.ask.send_replace(Ask::Graceful);
    }

    pub async fn stop(self) -> u8 {
        self.signal();
        self.ended().await.unwrap()
    }
}

/// Options with short times.
pub(super) fn options(dir: &TempDir, hubs: &[&str]) -> Options {
    Options {
        servers: hubs.iter().map(|hub| hub.parse().unwrap()).collect(),
        credentials_dir: dir.path().to_owned(),
        server_name: None,
        heartbeat: None,
        limits: Limits::default(),
        renewal: None,
        once: false,
        timing: Timing {
            first: Duration::from_millis(5),
            ceiling: Duration::from_millis(50),
            redirect: Duration::from_millis(5),
            ..Timing::default()
        },
    }
}
