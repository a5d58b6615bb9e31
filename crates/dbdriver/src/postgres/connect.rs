//! Opens connections to PostgreSQL and owns the tasks that drive them.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::{Stream, stream};
use secrecy::{ExposeSecret, SecretString};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_postgres::tls::MakeTlsConnect;
use tokio_postgres::{AsyncMessage, CancelToken, Client, Config, NoTls, Socket};
use tokio_postgres_rustls::MakeRustlsConnect;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::address::{Address, SslMode};
use super::errors;
use crate::config::DriverConfig;
use crate::error::{DriverError, Reason};
use crate::pool::Connect;
use crate::tls::{Material, Verification, client_config};

/// How long a host may take to answer before the next one is tried.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a request to cancel a statement may take.
const CANCEL_TIMEOUT: Duration = Duration::from_secs(2);
/// How long connections may take to say good-bye once the driver is closed.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// Opens connections for one configuration.
#[derive(Clone)]
pub(super) struct Connector {
    config: Arc<Config>,
    tls: Option<NamedTls>,
    tasks: TaskTracker,
    stop: CancellationToken,
}

/// An open connection.
pub(super) struct Connection {
    pub(super) client: Client,
    canceller: CancelToken,
    tls: Option<NamedTls>,
}

impl Connection {
    /// Asks the server to end the statement that runs. That it was asked proves nothing.
    pub(super) async fn cancel_statement(&self) {
        let asked = async {
            match &self.tls {
                Some(tls) => self.canceller.cancel_query(tls.clone()).await,
                None => self.canceller.cancel_query(NoTls).await,
            }
        };
        match tokio::time::timeout(CANCEL_TIMEOUT, asked).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::debug!(%error, "cancel request failed"),
            Err(_) => tracing::debug!("cancel request got no answer in time"),
        }
    }
}

impl Connector {
    pub(super) fn new(config: &DriverConfig) -> Result<Self, DriverError> {
        let mut address = Address::of(config)?;
        if address.config.get_user().is_none() && !config.username.is_empty() {
            address.config.user(&config.username);
        }
        if address.config.get_password().is_none() && !config.password.expose_secret().is_empty() {
            address.config.password(config.password.expose_secret());
        }
        if address.config.get_connect_timeout().is_none() {
            address.config.connect_timeout(CONNECT_TIMEOUT);
        }
        if address.config.get_application_name().is_none() {
            address.config.application_name("holdfast");
        }
        let tls = tls(config, &mut address)?;
        Ok(Self {
            config: Arc::new(address.config),
            tls,
            tasks: TaskTracker::new(),
            stop: CancellationToken::new(),
        })
    }

    /// The same database with another login.
    pub(super) fn as_user(&self, username: &str, password: &SecretString) -> Self {
        let mut config = Config::clone(&self.config);
        config.user(username).password(password.expose_secret());
        Self { config: Arc::new(config), ..self.clone() }
    }

    /// Ends the tasks of all connections: gently, then at once.
    pub(super) async fn close(&self) {
        self.tasks.close();
        if tokio::time::timeout(CLOSE_TIMEOUT, self.tasks.wait()).await.is_err() {
            self.stop.cancel();
            self.tasks.wait().await;
        }
    }

    /// A connection that its owner drives, by polling the messages: for who wants to hear notifications.
    pub(super) async fn connect_undriven(&self) -> Result<(Client, Messages), tokio_postgres::Error> {
        Ok(match &self.tls {
            Some(tls) => {
                let (client, connection) = self.config.connect(tls.clone()).await?;
                (client, messages(connection))
            }
            None => {
                let (client, connection) = self.config.connect(NoTls).await?;
                (client, messages(connection))
            }
        })
    }

    fn drive<C>(&self, connection: C)
    where
        C: Future<Output = Result<(), tokio_postgres::Error>> + Send + 'static,
    {
        let stop = self.stop.clone();
        self.tasks.spawn(async move {
            tokio::select! {
                done = connection => if let Err(error) = done {
                    tracing::debug!(%error, "connection to PostgreSQL ended");
                },
                () = stop.cancelled() => {}
            }
        });
    }
}

#[async_trait]
impl Connect for Connector {
    type Conn = Connection;

    async fn connect(&self) -> Result<Connection, DriverError> {
        let client = match &self.tls {
            Some(tls) => {
                let (client, connection) =
                    self.config.connect(tls.clone()).await.map_err(|e| errors::connecting(&e))?;
                self.drive(connection);
                client
            }
            None => {
                let (client, connection) =
                    self.config.connect(NoTls).await.map_err(|e| errors::connecting(&e))?;
                self.drive(connection);
                client
            }
        };
        Ok(Connection { canceller: client.cancel_token(), client, tls: self.tls.clone() })
    }

    fn is_alive(conn: &Connection) -> bool {
        !conn.client.is_closed()
    }
}

/// What the server says on its own. The connection lives as long as this is polled.
pub type Messages = Pin<Box<dyn Stream<Item = Result<AsyncMessage, tokio_postgres::Error>> + Send>>;

fn messages<S, T>(mut connection: tokio_postgres::Connection<S, T>) -> Messages
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    Box::pin(stream::poll_fn(move |cx| connection.poll_message(cx)))
}

fn tls(config: &DriverConfig, address: &mut Address) -> Result<Option<NamedTls>, DriverError> {
    let material = Material {
        ca: text_or_file(&config.tls_ca, address.root_file.as_deref())?,
        certificate: text_or_file(&config.tls_certificate, address.certificate_file.as_deref())?,
        key: text_or_file(config.private_key.expose_secret(), address.key_file.as_deref())?.into(),
    };
    let both = config.tls_certificate_key.expose_secret();
    let material = if material.certificate.is_empty() && !both.is_empty() {
        Material { certificate: both.to_owned(), key: config.tls_certificate_key.clone(), ..material }
    } else {
        material
    };
    let wants_tls = !material.ca.is_empty() || !material.certificate.is_empty();
    let mode = match address.sslmode {
        Some(mode) => mode,
        None if wants_tls && !config.tls_skip_verify => SslMode::VerifyFull,
        None if wants_tls || config.tls_skip_verify => SslMode::Require,
        None => SslMode::Prefer,
    };
    let verification = match mode {
        SslMode::Disable => {
            address.config.ssl_mode(tokio_postgres::config::SslMode::Disable);
            return Ok(None);
        }
        _ if config.tls_skip_verify => Verification::Nothing,
        SslMode::Prefer => Verification::Nothing,
        // As with other clients: certificates that were given are checked even by `require`.
        SslMode::Require if material.ca.is_empty() => Verification::Nothing,
        SslMode::Require | SslMode::VerifyCa => Verification::Chain,
        SslMode::VerifyFull => Verification::Full,
    };
    address.config.ssl_mode(match mode {
        SslMode::Prefer => tokio_postgres::config::SslMode::Prefer,
        _ => tokio_postgres::config::SslMode::Require,
    });
    let inner = MakeRustlsConnect::new(client_config(&material, verification)?);
    let name = (!config.tls_server_name.is_empty()).then(|| config.tls_server_name.clone());
    Ok(Some(NamedTls { inner, name }))
}

fn text_or_file(text: &str, file: Option<&str>) -> Result<String, DriverError> {
    match file {
        Some(path) if text.is_empty() => std::fs::read_to_string(path).map_err(|_| {
            DriverError::new(Reason::Invalid, format!("file \"{path}\" of connection_url cannot be read"))
        }),
        _ => Ok(text.to_owned()),
    }
}

/// TLS that may expect another name than that of the host.
#[derive(Clone)]
pub(super) struct NamedTls {
    inner: MakeRustlsConnect,
    name: Option<String>,
}

impl MakeTlsConnect<Socket> for NamedTls {
    type Stream = <MakeRustlsConnect as MakeTlsConnect<Socket>>::Stream;
    type TlsConnect = <MakeRustlsConnect as MakeTlsConnect<Socket>>::TlsConnect;
    type Error = <MakeRustlsConnect as MakeTlsConnect<Socket>>::Error;

    fn make_tls_connect(&mut self, host: &str) -> Result<Self::TlsConnect, Self::Error> {
        <MakeRustlsConnect as MakeTlsConnect<Socket>>::make_tls_connect(
            &mut self.inner,
            self.name.as_deref().unwrap_or(host),
        )
    }
}
