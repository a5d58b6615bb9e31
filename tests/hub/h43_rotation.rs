//! H-43 and H-46 at every node: a rotated hub certificate and a denied name count on every node within
//! a second, and the authority's hash stays.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use holdfast_tests::cli::{Cli, Ended};
use holdfast_tests::eventually_async;
use holdfast_tests::hub::{Cluster, Options, PATIENCE};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use serde_json::json;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::h42_join::{Trusted, line};

/// What is promised within a second, on a machine that does other things too.
const SOON: Duration = Duration::from_secs(5);

/// TLS as the spoke with these files speaks it.
fn connector(dir: &Path) -> TlsConnector {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(dir.join("ca.pem")).unwrap()).unwrap();
    let cert = CertificateDer::from_pem_file(dir.join("cert.pem")).unwrap();
    let key = PrivateKeyDer::from_pem_file(dir.join("key.pem")).unwrap();
    let builder = rustls::ClientConfig::builder().with_root_certificates(roots);
    let mut config = builder.with_client_auth_cert(vec![cert], key).unwrap();
    config.alpn_protocols = vec![b"h2".to_vec()];
    TlsConnector::from(Arc::new(config))
}

/// The certificate of a node's port for spokes, when it lets this spoke in.
async fn served(cluster: &Cluster, index: usize, port: u16, spoke: &TlsConnector) -> Option<Vec<u8>> {
    let host = cluster.nodes[index].relay_host();
    let shake = async {
        let stream = TcpStream::connect((host.as_str(), port)).await.ok()?;
        let name = ServerName::try_from("localhost").unwrap();
        let mut stream = spoke.connect(name, stream).await.ok()?;
        let cert = stream.get_ref().1.peer_certificates()?.first()?.to_vec();
        // A client of TLS 1.3 is done before the server has judged it: only what the server then says tells.
        stream.read_u8().await.ok()?;
        Some(cert)
    };
    tokio::time::timeout(SOON, shake).await.ok().flatten()
}

/// What becomes of a call at one node's port with the files of this spoke.
async fn renewed(cli: &Cli, cluster: &Cluster, index: usize, port: u16, spoke: &str) -> Ended {
    let (host, dir) = (cluster.nodes[index].relay_host(), cli.home().join(spoke));
    cli.run(&format!(
        "relay renew -server={host}:{port} -server-name=localhost -credentials-dir={}",
        dir.display()
    ))
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rotation_and_a_denied_name_count_on_every_node() {
    let trusted = Trusted::start(Options::calm()).await;
    let (cluster, port) = (&trusted.cluster, trusted.port);
    let root = cluster.api(trusted.active);
    let cli = Cli::new(&cluster.nodes[0].url());
    let mut spokes = Vec::new();
    for name in ["spoke-1", "spoke-2"] {
        let dir = cli.home().join(name);
        let token = trusted.token(json!({"allowed_spoke_name": name})).await;
        cli.run(&line(&dir, &trusted.pin, &token, name)).await.expect(0);
        spokes.push(connector(&dir));
    }
    let mut before = Vec::new();
    for index in 0..3 {
        let listens = || served(cluster, index, port, &spokes[0]);
        before.push(eventually_async(PATIENCE, "the node takes the spoke", listens).await);
    }
    assert!(before.iter().all(|cert| *cert == before[0]), "all nodes have one certificate");

    let rotated = root.put("relay/ca/rotate", json!({})).await.expect(200);
    assert_eq!((rotated.text("rotated"), rotated.text("ca_cert_hash")), ("hub".into(), trusted.pin.clone()));
    let mut after = Vec::new();
    for index in 0..3 {
        let changed =
            || async { served(cluster, index, port, &spokes[0]).await.filter(|now| *now != before[0]) };
        after.push(eventually_async(SOON, "the new certificate is served", changed).await);
    }
    assert!(after.iter().all(|cert| *cert == after[0]));

    root.put("relay/denied-spokes/spoke-1", json!({"reason": "lost"})).await.expect(204);
    for index in 0..3 {
        let refused = || async {
            let answer = renewed(&cli, cluster, index, port, "spoke-1").await;
            (answer.code != 0 && answer.err.contains("denied")).then_some(())
        };
        eventually_async(SOON, "the denied spoke is refused and told why", refused).await;
        renewed(&cli, cluster, index, port, "spoke-2").await.expect(0);
    }
    root.delete("relay/denied-spokes/spoke-1").await.expect(204);
    for index in 0..3 {
        let taken =
            || async { (renewed(&cli, cluster, index, port, "spoke-1").await.code == 0).then_some(()) };
        eventually_async(SOON, "the spoke is taken again", taken).await;
    }

    // The mount goes, and the ports with it.
    root.delete("sys/mounts/relay").await.expect(204);
    for index in 0..3 {
        let host = cluster.nodes[index].relay_host();
        let closed = || async { TcpStream::connect((host.as_str(), port)).await.is_err().then_some(()) };
        eventually_async(PATIENCE, "the port is closed", closed).await;
    }
}
