//! What the tests share: one server of each sort for all of them, and requests with sensible values.

use std::sync::Arc;
use std::time::Duration;

use holdfast_dbdriver::{
    Call, DeleteUser, Dialect, Driver, DriverConfig, IdempotencyKey, NameContext, NewUser, PasswordPolicy,
    PluginName, UsernameSource,
};
use holdfast_tests::db::{ADMIN, ADMIN_PASSWORD, MariaDbServer, PostgresServer};
use jiff::Timestamp;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
};
use secrecy::ExposeSecret as _;
use tokio::sync::OnceCell;

/// The shared PostgreSQL. Statics are never dropped; the server dies with the process that started it.
pub async fn postgres() -> &'static PostgresServer {
    static SERVER: OnceCell<PostgresServer> = OnceCell::const_new();
    SERVER.get_or_init(PostgresServer::start).await
}

/// The shared MariaDB.
pub async fn mariadb() -> &'static MariaDbServer {
    static SERVER: OnceCell<MariaDbServer> = OnceCell::const_new();
    SERVER.get_or_init(MariaDbServer::start).await
}

pub fn postgres_config(server: &PostgresServer) -> DriverConfig {
    with_login(DriverConfig::new(PluginName::Postgres, server.url_template()))
}

pub fn mysql_config(server: &MariaDbServer) -> DriverConfig {
    with_login(DriverConfig::new(PluginName::Mysql, server.url_template()))
}

fn with_login(mut config: DriverConfig) -> DriverConfig {
    config.username = ADMIN.to_owned();
    config.password = ADMIN_PASSWORD.to_owned().into();
    config
}

pub fn open(config: &DriverConfig) -> Arc<dyn Driver> {
    holdfast_dbdriver::open(config).unwrap()
}

pub fn call() -> Call {
    Call::within(Duration::from_secs(30))
}

pub fn new_user(dialect: Dialect, statements: &[&str]) -> NewUser {
    let context = NameContext { display_name: "token".to_owned(), role_name: "testing".to_owned() };
    let now = Timestamp::now();
    NewUser {
        key: IdempotencyKey::random(),
        resent: false,
        username: UsernameSource::new(dialect, "").unwrap().generate(&context, now).unwrap(),
        password: PasswordPolicy::standard().generate(),
        expiration: now + Duration::from_secs(3600),
        statements: statements.iter().map(|s| (*s).to_owned()).collect(),
        rollback_statements: Vec::new(),
    }
}

pub fn delete(user: &NewUser) -> DeleteUser {
    DeleteUser {
        key: Some(user.key),
        username: user.username.clone(),
        statements: Vec::new(),
        terminate_sessions: false,
    }
}

pub fn password(user: &NewUser) -> &str {
    user.password.expose_secret()
}

/// A certificate authority made for the test.
pub struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    pub fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, "test authority");
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    pub fn pem(&self) -> String {
        self.0.pem()
    }

    /// A certificate with its key, both as PEM.
    pub fn issue(
        &self,
        common_name: &str,
        names: &[&str],
        usage: ExtendedKeyUsagePurpose,
    ) -> (String, String) {
        let names: Vec<_> = names.iter().map(|n| (*n).to_owned()).collect();
        let mut params = CertificateParams::new(names).unwrap();
        params.distinguished_name.push(DnType::CommonName, common_name);
        params.extended_key_usages = vec![usage];
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.0).unwrap();
        (certificate.pem(), key.serialize_pem())
    }
}
