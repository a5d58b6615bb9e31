//! TLS towards MariaDB, with a certificate authority made for the test.

use holdfast_dbdriver::{Dialect, DriverConfig, PluginName, Reason};
use holdfast_tests::db::MariaDbServer;
use rcgen::ExtendedKeyUsagePurpose;

use crate::support::*;

const PASSWORD: &str = "over-Tls-0nly";

/// A server with a certificate for `db.test`, a login that needs TLS, and one that needs a client's certificate.
async fn server(ours: &Authority) -> MariaDbServer {
    let (certificate, key) = ours.issue("db", &["db.test"], ExtendedKeyUsagePurpose::ServerAuth);
    let mut server = MariaDbServer::start().await;
    for (user, needs) in [("over_tls", "SSL"), ("known", "X509")] {
        server.execute(&format!("CREATE USER {user}@'%' IDENTIFIED BY '{PASSWORD}' REQUIRE {needs}")).await;
        server.execute(&format!("GRANT ALL ON *.* TO {user}@'%' WITH GRANT OPTION")).await;
    }
    server.stop();
    let paths = [
        ("ssl-cert", server.file("server.pem", &certificate)),
        ("ssl-key", server.file("server.key", &key)),
        ("ssl-ca", server.file("ca.pem", &ours.pem())),
    ];
    let settings: Vec<_> = paths.iter().map(|(name, path)| format!("{name}={}", path.display())).collect();
    server.configure(&settings);
    server.resume().await;
    server
}

fn config(server: &MariaDbServer, options: &str) -> DriverConfig {
    let mut config = DriverConfig::new(PluginName::Mysql, format!("{}{options}", server.url_template()));
    config.username = "over_tls".to_owned();
    config.password = PASSWORD.to_owned().into();
    config
}

/// Whether the login works; if not, why.
async fn connects(config: &DriverConfig) -> Result<(), Reason> {
    open(config).initialize(&call(), true).await.map_err(|error| error.reason())
}

#[tokio::test(flavor = "multi_thread")]
async fn every_mode_checks_what_it_promises() {
    let (ours, foreign) = (Authority::new(), Authority::new());
    let server = server(&ours).await;
    assert_eq!(connects(&config(&server, "")).await, Err(Reason::Login), "in the clear the login is refused");
    for mode in ["?tls=skip-verify", "?tls=preferred"] {
        assert_eq!(connects(&config(&server, mode)).await, Ok(()), "{mode}");
    }
    let unknown = connects(&config(&server, "?tls=true")).await;
    assert_eq!(unknown, Err(Reason::Unreachable), "the system knows no such authority");
    // (mode, authority, expected name, whether it connects)
    for (mode, authority, name, works) in [
        ("", &ours, "db.test", true),
        ("", &ours, "", false),
        ("", &foreign, "db.test", false),
        ("?tls=preferred", &foreign, "db.test", false),
        ("?tls=skip-verify", &foreign, "db.test", false),
        ("?tls=true", &ours, "db.test", true),
        ("?tls=true", &ours, "other.test", false),
    ] {
        let mut config = config(&server, mode);
        config.tls_ca = authority.pem();
        config.tls_server_name = name.to_owned();
        let wanted = if works { Ok(()) } else { Err(Reason::Unreachable) };
        assert_eq!(connects(&config).await, wanted, "{mode} {name}");
        config.tls_skip_verify = true;
        assert_eq!(connects(&config).await, Ok(()), "{mode} {name} unchecked");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_shows_its_certificate_and_users_come_and_go_over_tls() {
    let ours = Authority::new();
    let server = server(&ours).await;
    let (certificate, key) = ours.issue("hub", &[], ExtendedKeyUsagePurpose::ClientAuth);
    let mut config = config(&server, "?tls=true");
    config.username = "known".to_owned();
    (config.tls_ca, config.tls_server_name) = (ours.pem(), "db.test".to_owned());
    assert_eq!(connects(&config).await, Err(Reason::Login), "the server wants a certificate");
    config.tls_certificate_key = format!("{certificate}{key}").into();
    assert_eq!(connects(&config).await, Ok(()));
    config.tls_certificate_key = String::new().into();
    (config.tls_certificate, config.private_key) = (certificate, key.into());
    assert_eq!(connects(&config).await, Ok(()));

    let driver = open(&config);
    let user =
        new_user(Dialect::Mysql, &["CREATE USER '{{name}}'@'%' IDENTIFIED BY '{{password}}' REQUIRE SSL"]);
    driver.new_user(&call(), &user).await.unwrap();
    assert!(!server.can_log_in(&user.username, password(&user)).await, "in the clear");
    assert!(driver.verify_password(&call(), &user.username, &user.password).await.unwrap(), "over TLS");
    driver.delete_user(&call(), &delete(&user)).await.unwrap();
    assert_eq!(server.users(&user.username).await, Vec::<String>::new());
    config.private_key = "nonsense".to_owned().into();
    let broken = holdfast_dbdriver::open(&config);
    assert!(broken.is_err(), "told when the configuration is written, not at the first login");
}
