//! The gRPC service of the spoke port: the one stream of a spoke, and a renewal without one.
//!
//! What must hold: who a spoke is comes from its certificate alone; hello comes first and in time; a spoke that is not
//! taken leaves no trace; the task that reads a stream also hands out its replies, so that a stuck one shows.

use std::sync::Arc;

use holdfast_core::SpokeName;
use holdfast_proto::relay::v1 as proto;
use holdfast_proto::relay::v1::hub_frame::Frame;
use holdfast_proto::relay::v1::spoke_frame::Frame as FromSpoke;
use holdfast_proto::relay::v1::spoke_gateway_server::SpokeGateway;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, Streaming};

use super::settings::HELLO;
use super::stream::{Birth, End, Outgoing, Stream};
use super::{convert, late, pin, renew};
use crate::hub::Hub;

/// The protocol that is spoken.
const PROTOCOL: u32 = 1;

/// Who is at the far end of a connection.
#[derive(Clone)]
pub struct Session {
    /// By the certificate.
    pub spoke: SpokeName,
    /// When the certificate ends, in seconds since 1970; 0 when that is unknown.
    pub cert_not_after: i64,
    /// Where it comes from.
    pub address: std::net::SocketAddr,
    /// Ends the connection.
    pub cut: CancellationToken,
}

/// The service.
#[derive(Clone)]
pub struct Gateway {
    hub: Arc<Hub>,
}

impl Gateway {
    /// For one unsealed life of a node.
    pub fn new(hub: Arc<Hub>) -> Self {
        Self { hub }
    }

    /// Who asks; a denied spoke gets no further than this, whatever it asks for.
    fn session<T>(&self, request: &Request<T>) -> Result<Session, Status> {
        let session = request
            .extensions()
            .get::<Session>()
            .cloned()
            .ok_or_else(|| Status::unauthenticated("no certificate"))?;
        if self.hub.relay.authority.is_denied(&session.spoke) {
            // It was told why; its connection takes no place any longer.
            session.cut.cancel();
            return Err(denied_status(&session.spoke));
        }
        Ok(session)
    }

    /// Refuses a spoke that this node does not take now.
    fn admit(&self) -> Result<(), Status> {
        if self.hub.spokes.is_draining() {
            return Err(Status::unavailable("this node takes no more spokes"));
        }
        match pin::refusal(&self.hub.spokes, self.hub.relay.listener.port()) {
            Some(refusal) => Err(refusal),
            None => Ok(()),
        }
    }

    fn welcome(&self) -> proto::Welcome {
        let millis = |d: std::time::Duration| u64::try_from(d.as_millis()).unwrap_or(u64::MAX);
        let settings = &self.hub.spokes.settings;
        let mut hub_endpoints = self.hub.spokes.endpoints();
        let shared = self.hub.relay.authority.current().map(|identity| {
            let endpoint = &identity.endpoint;
            if endpoint.host.contains(':') {
                format!("[{}]:{}", endpoint.host, endpoint.port)
            } else {
                format!("{}:{}", endpoint.host, endpoint.port)
            }
        });
        hub_endpoints.extend(shared.filter(|shared| !hub_endpoints.contains(shared)));
        proto::Welcome {
            node_id: self.hub.spokes.own.to_string(),
            heartbeat_interval_ms: millis(settings.heartbeat()),
            keepalive_interval_ms: millis(settings.keepalive_interval.get()),
            keepalive_timeout_ms: millis(settings.keepalive_timeout.get()),
            hub_endpoints,
        }
    }

    async fn read(self, stream: Arc<Stream>, mut frames: Streaming<proto::SpokeFrame>) {
        let spokes = Arc::clone(&self.hub.spokes);
        let why = loop {
            let frame = tokio::select! {
                biased;
                () = stream.ended() => break "it was ended".to_owned(),
                frame = frames.message() => frame,
            };
            match frame {
                Ok(Some(frame)) => self.frame(&stream, frame),
                Ok(None) => break "the spoke closed it".to_owned(),
                Err(status) => break status.message().to_owned(),
            }
        };
        spokes.closed(&stream);
        stream.end(End::Gone);
        tracing::info!(spoke = %stream.spoke, epoch = stream.stamp.epoch.into_inner(), why, "a stream ended");
    }

    fn frame(&self, stream: &Arc<Stream>, frame: proto::SpokeFrame) {
        let spokes = &self.hub.spokes;
        stream.seen(spokes.now());
        match frame.frame {
            Some(FromSpoke::Reply(reply)) => {
                if let Some(key) = stream.answer(reply) {
                    late::tell(&self.hub, key);
                }
            }
            Some(FromSpoke::Heartbeat(heartbeat)) => {
                spokes.heard(stream);
                stream.tell(Frame::HeartbeatAck(proto::HeartbeatAck { seq: heartbeat.seq }));
            }
            Some(FromSpoke::Renew(renew)) => self.renew(stream, renew),
            Some(FromSpoke::TokenRequest(request)) => stream.tell(Frame::Token(proto::Token {
                audience: request.audience,
                error: "unknown audience".to_owned(),
                ..proto::Token::default()
            })),
            Some(FromSpoke::Goodbye(goodbye)) => {
                tracing::info!(spoke = %stream.spoke, reason = goodbye.reason, "a spoke says goodbye");
                spokes.unroute(stream);
                self.part(stream);
            }
            // A second hello changes nothing; a frame of a newer version is not for us.
            Some(FromSpoke::Hello(_)) | None => {}
        }
    }

    /// Ends the stream of a spoke that said goodbye as soon as nothing is under way on it: the spoke waits for that,
    /// so that no command is lost between the two.
    fn part(&self, stream: &Arc<Stream>) {
        let stream = Arc::clone(stream);
        self.hub.spokes.tasks.spawn_until_cancelled("part", async move {
            tokio::select! {
                () = stream.idle() => stream.end(End::Gone),
                () = stream.ended() => {}
            }
        });
    }

    /// Signs beside the reading, so that it holds nothing up.
    fn renew(&self, stream: &Arc<Stream>, request: proto::Renew) {
        if !stream.begin_renewal() {
            let error = "a renewal is under way".to_owned();
            let request_id = request.request_id;
            return stream.tell(Frame::Renewed(proto::Renewed {
                request_id,
                error,
                ..proto::Renewed::default()
            }));
        }
        let (hub, stream) = (Arc::clone(&self.hub), Arc::clone(stream));
        let tasks = self.hub.spokes.tasks.clone();
        tasks.spawn_until_cancelled("renew", async move {
            let signed = renew::sign(&hub, &stream.spoke, request.csr_pem, request.ttl_seconds).await;
            let mut renewed = proto::Renewed { request_id: request.request_id, ..proto::Renewed::default() };
            match signed {
                Ok(signed) => {
                    hub.spokes.renewed(&stream, signed.not_after_unix);
                    renewed.cert_pem = signed.cert_pem;
                    renewed.ca_cert_pem = signed.ca_cert_pem;
                }
                Err(error) => renewed.error = error,
            }
            stream.end_renewal();
            stream.tell(Frame::Renewed(renewed));
        });
    }
}

/// A spoke whose name an operator denied.
pub fn denied_status(spoke: &SpokeName) -> Status {
    Status::permission_denied(format!("spoke \"{spoke}\" is denied"))
}

/// The first frame of a spoke.
async fn hello(frames: &mut Streaming<proto::SpokeFrame>) -> Result<proto::Hello, Status> {
    let first = timeout(HELLO, frames.message()).await;
    match first.map_err(|_| Status::deadline_exceeded("hello did not come in time"))?? {
        Some(proto::SpokeFrame { frame: Some(FromSpoke::Hello(hello)) }) if hello.protocol == PROTOCOL => {
            Ok(hello)
        }
        Some(proto::SpokeFrame { frame: Some(FromSpoke::Hello(hello)) }) => {
            Err(Status::invalid_argument(format!("protocol {} is not spoken here", hello.protocol)))
        }
        _ => Err(Status::invalid_argument("hello must come first")),
    }
}

#[tonic::async_trait]
impl SpokeGateway for Gateway {
    type ConnectStream = Outgoing;

    async fn connect(
        &self,
        request: Request<Streaming<proto::SpokeFrame>>,
    ) -> Result<Response<Outgoing>, Status> {
        let session = self.session(&request)?;
        self.admit()?;
        let mut frames = request.into_inner();
        let hello = hello(&mut frames).await?;
        // Much may have happened meanwhile.
        self.admit()?;
        let spokes = &self.hub.spokes;
        let stamp = convert::stamp(hello.session_epoch, &hello.boot_id)
            .map_err(|error| Status::invalid_argument(error.to_string()))?;
        let (stream, outgoing) = Stream::new(Birth {
            spoke: session.spoke,
            stamp,
            now: spokes.now(),
            cert_not_after: session.cert_not_after,
            max_in_flight: usize::try_from(spokes.settings.max_in_flight).unwrap_or(usize::MAX),
            cut: session.cut,
        });
        stream.tell(Frame::Welcome(self.welcome()));
        spokes.open(&stream)?;
        tracing::info!(
            spoke = %stream.spoke, epoch = stamp.epoch.into_inner(), address = %session.address,
            version = hello.version, "a spoke connected"
        );
        // Whoever ends the streams of a denied name may have looked just before this one was there.
        if self.hub.relay.authority.is_denied(&stream.spoke) {
            spokes.end(&stream, denied_status(&stream.spoke));
        }
        let reader = self.clone().read(stream, frames);
        spokes.tasks.spawn_until_cancelled("read", reader);
        Ok(Response::new(outgoing))
    }

    async fn renew_cert(
        &self,
        request: Request<proto::RenewCertRequest>,
    ) -> Result<Response<proto::RenewCertResponse>, Status> {
        let session = self.session(&request)?;
        let request = request.into_inner();
        let signed = renew::sign(&self.hub, &session.spoke, request.csr_pem, request.ttl_seconds).await;
        let signed = signed.map_err(Status::failed_precondition)?;
        // Its stream stays; from its next dial on the spoke shows what it was given now.
        if let Some(stream) = self.hub.spokes.local(&session.spoke) {
            self.hub.spokes.renewed(&stream, signed.not_after_unix);
        }
        Ok(Response::new(proto::RenewCertResponse {
            cert_pem: signed.cert_pem,
            ca_cert_pem: signed.ca_cert_pem,
        }))
    }
}
