//! Opens connections to MySQL and MariaDB.

use std::time::Duration;

use async_trait::async_trait;
use mysql_async::prelude::Queryable as _;
use mysql_async::{ClientIdentity, Conn, Opts, OptsBuilder, SslOpts};
use secrecy::{ExposeSecret, SecretString};
use tokio_util::task::TaskTracker;

use super::address::{Address, Place, TlsWish};
use super::errors;
use crate::config::DriverConfig;
use crate::error::{DriverError, Reason};
use crate::pool::Connect;
use crate::tls::{Material, Verification, client_config, system_roots};

/// How long a server may take to answer.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// How long it may take to end a session of ours.
const KILL_TIMEOUT: Duration = Duration::from_secs(2);
/// How long connections may take to say good-bye once the driver is closed.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);
/// The server has no TLS, which only `preferred` takes.
const NO_TLS: &str = "server does not have this capability";

/// Opens connections for one configuration.
#[derive(Clone)]
pub(super) struct Connector {
    opts: Opts,
    /// Without TLS, for a server that has none, where that was allowed.
    fallback: Option<Opts>,
    tasks: TaskTracker,
}

/// An open connection, which says good-bye when it is dropped.
pub(super) struct Connection {
    conn: Option<Conn>,
    tasks: TaskTracker,
}

impl Connection {
    pub(super) fn conn(&mut self) -> Result<&mut Conn, DriverError> {
        self.conn.as_mut().ok_or_else(|| DriverError::new(Reason::Internal, "connection used after its end"))
    }

    /// The server's number of this session.
    pub(super) fn id(&self) -> Option<u32> {
        self.conn.as_ref().map(Conn::id)
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        let Some(conn) = self.conn.take() else { return };
        if tokio::runtime::Handle::try_current().is_err() {
            return;
        }
        self.tasks.spawn(async move {
            // Bounded, since the server may never answer; the socket closes either way.
            let _ = tokio::time::timeout(CLOSE_TIMEOUT, conn.disconnect()).await;
        });
    }
}

impl Connector {
    pub(super) fn new(config: &DriverConfig) -> Result<Self, DriverError> {
        let address = Address::of(config)?;
        let tls = tls(config, address.tls)?;
        let mut builder = OptsBuilder::default()
            .user(Some(address.user.as_deref().unwrap_or(&config.username)).filter(|u| !u.is_empty()))
            .db_name(address.database.clone())
            .prefer_socket(false)
            .stmt_cache_size(0)
            .tcp_keepalive(Some(Duration::from_secs(30)));
        builder = match &address.password {
            Some(password) => builder.pass(Some(password.expose_secret())),
            None if !config.password.expose_secret().is_empty() => {
                builder.pass(Some(config.password.expose_secret()))
            }
            None => builder,
        };
        builder = match &address.place {
            Place::Tcp { host, port } => builder.ip_or_hostname(host.as_str()).tcp_port(*port),
            Place::Socket(path) => builder.socket(Some(path.as_str())),
        };
        if !address.session.is_empty() {
            builder = builder.init(vec![format!("SET {}", address.session.join(", "))]);
        }
        let plain: Opts = builder.clone().into();
        let fallback =
            (tls.is_some() && address.tls == TlsWish::Preferred && !wants_tls(config)).then_some(plain);
        Ok(Self { opts: builder.ssl_opts(tls).into(), fallback, tasks: TaskTracker::new() })
    }

    /// The same server with another login.
    pub(super) fn as_user(&self, username: &str, password: &SecretString) -> Self {
        let login = |opts: &Opts| -> Opts {
            OptsBuilder::from_opts(opts.clone())
                .user(Some(username))
                .pass(Some(password.expose_secret()))
                .into()
        };
        Self {
            opts: login(&self.opts),
            fallback: self.fallback.as_ref().map(login),
            tasks: self.tasks.clone(),
        }
    }

    /// Ends a session of ours, and so rolls back what it was doing. Says whether the server confirmed it.
    pub(super) async fn kill(&self, session: u32) -> bool {
        let killed = async {
            let mut connection = self.connect().await?;
            let conn = connection.conn()?;
            match conn.query_drop(format!("KILL CONNECTION {session}")).await {
                Ok(()) => Ok(()),
                // There is no such session any more.
                Err(mysql_async::Error::Server(e)) if e.code == 1094 => Ok(()),
                Err(e) => Err(errors::statement(&e)),
            }
        };
        match tokio::time::timeout(KILL_TIMEOUT, killed).await {
            Ok(Ok(())) => true,
            Ok(Err(error)) => {
                tracing::debug!(%error, "session could not be ended");
                false
            }
            Err(_) => false,
        }
    }

    /// Waits until all connections have said good-bye.
    pub(super) async fn close(&self) {
        self.tasks.close();
        let _ = tokio::time::timeout(CLOSE_TIMEOUT * 2, self.tasks.wait()).await;
    }
}

#[async_trait]
impl Connect for Connector {
    type Conn = Connection;

    async fn connect(&self) -> Result<Connection, DriverError> {
        let opened = match open(&self.opts).await {
            Err(e) if e.client_text().contains(NO_TLS) => match &self.fallback {
                Some(plain) => open(plain).await,
                None => Err(e),
            },
            other => other,
        };
        Ok(Connection { conn: Some(opened?), tasks: self.tasks.clone() })
    }

    fn is_alive(conn: &Connection) -> bool {
        conn.conn.is_some()
    }
}

async fn open(opts: &Opts) -> Result<Conn, DriverError> {
    match tokio::time::timeout(CONNECT_TIMEOUT, Conn::new(opts.clone())).await {
        Ok(done) => done.map_err(|e| errors::connecting(&e)),
        Err(_) => Err(DriverError::new(Reason::Unreachable, "the database did not answer in time")),
    }
}

fn wants_tls(config: &DriverConfig) -> bool {
    !config.tls_ca.is_empty()
        || !config.tls_certificate.is_empty()
        || !config.tls_certificate_key.expose_secret().is_empty()
        || config.tls_skip_verify
}

fn tls(config: &DriverConfig, wish: TlsWish) -> Result<Option<SslOpts>, DriverError> {
    if wish == TlsWish::Off && !wants_tls(config) {
        return Ok(None);
    }
    // The client library takes the process's provider, and there may be none yet.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let unchecked = config.tls_skip_verify
        || (config.tls_ca.is_empty() && matches!(wish, TlsWish::SkipVerify | TlsWish::Preferred));
    let mut opts = SslOpts::default();
    if !config.tls_ca.is_empty() {
        let ca = config.tls_ca.clone().into_bytes();
        opts = opts.with_root_certs(vec![ca.into()]).with_disable_built_in_roots(true);
    } else if !unchecked {
        opts = opts.with_root_certs(system_roots().iter().map(|root| root.to_vec().into()).collect());
    }
    let both = config.tls_certificate_key.expose_secret();
    let (certificate, key) = if config.tls_certificate.is_empty() {
        (both, both)
    } else {
        (config.tls_certificate.as_str(), config.private_key.expose_secret())
    };
    let (ca, key_pem) = (config.tls_ca.clone(), key.to_owned().into());
    let material = Material { ca, certificate: certificate.to_owned(), key: key_pem };
    let checked = if config.tls_ca.is_empty() { Verification::Nothing } else { Verification::Full };
    // The library reads it at the first login only; whoever writes the configuration should be told.
    client_config(&material, checked)?;
    if !certificate.is_empty() {
        let (certificate, key) = (certificate.as_bytes().to_vec(), key.as_bytes().to_vec());
        opts = opts.with_client_identity(Some(ClientIdentity::new(certificate.into(), key.into())));
    }
    if !config.tls_server_name.is_empty() {
        opts = opts.with_danger_tls_hostname_override(Some(config.tls_server_name.clone()));
    }
    if unchecked {
        opts = opts.with_danger_accept_invalid_certs(true).with_danger_skip_domain_validation(true);
    }
    Ok(Some(opts))
}
