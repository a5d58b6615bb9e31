//! TLS towards PostgreSQL, with a certificate authority made for the test.

use holdfast_dbdriver::{DriverConfig, PluginName, Reason};
use holdfast_tests::db::{ADMIN, ADMIN_PASSWORD, PostgresServer};
use rcgen::ExtendedKeyUsagePurpose;

use crate::support::*;

fn config(server: &PostgresServer, sslmode: &str) -> DriverConfig {
    let url =
        format!("postgres://{{{{username}}}}:{{{{password}}}}@127.0.0.1:{}/app{sslmode}", server.port());
    let mut config = DriverConfig::new(PluginName::Postgres, url);
    config.username = ADMIN.to_owned();
    config.password = ADMIN_PASSWORD.to_owned().into();
    config
}

async fn connects(config: &DriverConfig) -> bool {
    match open(config).initialize(&call(), true).await {
        Ok(()) => true,
        Err(e) => {
            assert_eq!(e.reason(), Reason::Unreachable, "{e}");
            false
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_mode_checks_what_it_promises() {
    let (ours, foreign) = (Authority::new(), Authority::new());
    let (certificate, key) = ours.issue("db", &["db.test"], ExtendedKeyUsagePurpose::ServerAuth);
    let mut server = PostgresServer::start().await;
    server.stop();
    let paths = [
        ("ssl_cert_file", server.file("server.pem", &certificate)),
        ("ssl_key_file", server.file("server.key", &key)),
        ("ssl_ca_file", server.file("ca.pem", &ours.pem())),
    ];
    let mut settings = vec!["ssl=on".to_owned()];
    settings.extend(paths.iter().map(|(name, path)| format!("{name}={}", path.display())));
    server.configure(&settings);
    server.resume().await;

    for mode in ["", "?sslmode=disable", "?sslmode=prefer", "?sslmode=require"] {
        assert!(connects(&config(&server, mode)).await, "{mode}");
    }
    // (mode, authority, expected name, whether it connects)
    for (mode, authority, name, works) in [
        ("", &ours, "db.test", true),
        ("", &ours, "", false),
        ("", &foreign, "db.test", false),
        ("?sslmode=require", &foreign, "", false),
        ("?sslmode=verify-ca", &ours, "", true),
        ("?sslmode=verify-ca", &foreign, "", false),
        ("?sslmode=verify-full", &ours, "db.test", true),
        ("?sslmode=verify-full", &ours, "other.test", false),
    ] {
        let mut config = config(&server, mode);
        config.tls_ca = authority.pem();
        config.tls_server_name = name.to_owned();
        assert_eq!(connects(&config).await, works, "{mode} {name}");
        config.tls_skip_verify = true;
        assert!(connects(&config).await, "{mode} {name} unchecked");
    }
    assert!(!connects(&config(&server, "?sslmode=verify-full")).await, "the system knows no such authority");
    client_certificates(&mut server, &ours).await;
}

async fn client_certificates(server: &mut PostgresServer, ours: &Authority) {
    let (certificate, key) = ours.issue(ADMIN, &[], ExtendedKeyUsagePurpose::ClientAuth);
    server.stop();
    let rules = server.file("hba.conf", "hostssl all all 127.0.0.1/32 scram-sha-256 clientcert=verify-ca\nhost all all 127.0.0.1/32 scram-sha-256\n");
    server.configure(&[format!("hba_file={}", rules.display())]);
    server.resume().await;
    let mut config = config(server, "?sslmode=require");
    assert!(open(&config).initialize(&call(), true).await.is_err(), "the server wants a certificate");
    config.tls_certificate = certificate.clone();
    config.private_key = key.clone().into();
    assert!(connects(&config).await);
    config.tls_certificate = String::new();
    config.private_key = String::new().into();
    config.tls_certificate_key = format!("{certificate}{key}").into();
    assert!(connects(&config).await);
    config.tls_certificate_key = "nonsense".to_owned().into();
    assert!(holdfast_dbdriver::open(&config).is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_without_tls_is_refused_when_tls_is_asked_for() {
    let server = postgres().await;
    assert!(connects(&config(server, "?sslmode=prefer")).await);
    assert!(!connects(&config(server, "?sslmode=require")).await);
}
