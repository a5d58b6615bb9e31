//! Renewing the spoke's certificate: with a new key, over the open stream or in a call of its own.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use holdfast_ops::Tasks;
use holdfast_proto::relay::v1 as proto;
use rustls_pki_types::ServerName;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, timeout};

use crate::address::Address;
use crate::credentials::{Credentials, CredentialsError, KeyRequest};
use crate::link::{self, Keepalive, Target};
use crate::session::Order;

/// How long the hub may take to sign.
const SIGN_WITHIN: Duration = Duration::from_secs(30);

/// When a certificate is renewed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Schedule {
    /// Between looks at the certificate; 1 h.
    pub check_every: Duration,
    /// It is renewed when less than this part of its life is left; 0.5.
    pub threshold: f64,
}

impl Default for Schedule {
    fn default() -> Self {
        Self { check_every: Duration::from_hours(1), threshold: 0.5 }
    }
}

/// Why a certificate was not renewed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No hub could be asked.
    #[error("no hub could be asked: {0}")]
    Unreachable(String),
    /// The hub refused.
    #[error("the hub refused: {0}")]
    Refused(String),
    /// The key or the files.
    #[error(transparent)]
    Credentials(#[from] CredentialsError),
}

/// When the daemon looks at its certificate next.
#[derive(Debug)]
pub(crate) struct Renewals {
    schedule: Option<Schedule>,
    next: Instant,
    running: bool,
}

impl Renewals {
    /// The first look is due at once.
    pub(crate) fn new(schedule: Option<Schedule>) -> Self {
        Self { schedule, next: Instant::now(), running: false }
    }

    /// Resolves when it is time for a look; never while a renewal is under way.
    pub(crate) async fn due(&self) {
        if self.schedule.is_none() || self.running {
            return std::future::pending().await;
        }
        tokio::time::sleep_until(self.next).await;
    }

    /// Looks at the certificate. Whether it is to be renewed now; then [`Renewals::ended`] must follow.
    pub(crate) fn begin(&mut self, credentials: &Credentials) -> bool {
        let Some(schedule) = self.schedule else { return false };
        self.next = Instant::now() + schedule.check_every;
        self.running = credentials.life_left(unix_now()) < schedule.threshold;
        self.running
    }

    /// Whether a renewal is under way.
    pub(crate) const fn is_running(&self) -> bool {
        self.running
    }

    /// The renewal is over, one way or the other.
    pub(crate) const fn ended(&mut self) {
        self.running = false;
    }
}

/// Renews over an open stream.
pub(crate) async fn on_stream(
    held: Arc<Credentials>,
    orders: &mpsc::Sender<Order>,
) -> Result<Credentials, Error> {
    let request = KeyRequest::new(&held.name)?;
    let (answer, answered) = oneshot::channel();
    let gone = || Error::Unreachable("the stream ended".to_owned());
    orders.send(Order::Renew { csr_pem: request.csr_pem.clone(), answer }).await.map_err(|_| gone())?;
    let answered = timeout(SIGN_WITHIN, answered).await;
    let renewed = answered.map_err(|_| Error::Unreachable("no answer came in time".to_owned()))?;
    let signed = renewed.map_err(|_| gone())?.map_err(Error::Refused)?;
    keep(held, request, signed.cert_pem).await
}

/// Writing waits for the disk, which must not hold up the streams.
async fn keep(held: Arc<Credentials>, request: KeyRequest, cert_pem: String) -> Result<Credentials, Error> {
    let tasks = Tasks::new("renewal");
    let kept = tasks.spawn_blocking("write", move || held.replace(&request.key_pem, &cert_pem));
    let kept = kept.join().await.ok_or_else(|| Error::Refused("the files were not written".to_owned()))?;
    Ok(kept?)
}

/// Renews in one call of its own, at the first of the hub nodes that answers; 0 asks for the usual life.
///
/// # Errors
/// When no node could be asked, the hub refuses, or the files cannot be replaced.
pub async fn once(
    dir: &Path,
    servers: &[Address],
    server_name: Option<ServerName<'static>>,
    ttl: i64,
) -> Result<Credentials, Error> {
    let held = Arc::new(Credentials::load(dir)?);
    let request = KeyRequest::new(&held.name)?;
    let message = proto::RenewCertRequest { csr_pem: request.csr_pem.clone(), ttl_seconds: ttl };
    let mut failed = Vec::new();
    for address in servers {
        let (server_name, keepalive) = (server_name.clone(), Keepalive::default());
        let target = Target { address: address.clone(), server_name, tls: held.client_config()?, keepalive };
        match ask(&target, &message).await {
            Ok(signed) => return keep(held, request, signed.cert_pem).await,
            Err(Error::Unreachable(why)) => failed.push(format!("{address}: {why}")),
            Err(refused) => return Err(refused),
        }
    }
    Err(Error::Unreachable(failed.join("; ")))
}

async fn ask(target: &Target, message: &proto::RenewCertRequest) -> Result<proto::RenewCertResponse, Error> {
    let tasks = Tasks::new("renewal");
    let connected = link::connect(target, &tasks).await;
    let mut client = connected.map_err(|error| Error::Unreachable(error.to_string()))?;
    let answered = timeout(SIGN_WITHIN, client.renew_cert(message.clone())).await;
    tasks.cancel();
    let status = match answered {
        Ok(Ok(response)) => return Ok(response.into_inner()),
        Ok(Err(status)) => status,
        Err(_) => return Err(Error::Unreachable("no answer came in time".to_owned())),
    };
    let text = status.message().to_owned();
    Err(match status.code() {
        tonic::Code::Unavailable | tonic::Code::Unknown | tonic::Code::Cancelled => Error::Unreachable(text),
        _ => Error::Refused(text),
    })
}

fn unix_now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}
