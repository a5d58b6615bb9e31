//! TLS of the API as curl sees it: client certificates, joining with one, and new files on SIGHUP.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use holdfast_tests::eventually_async;
use holdfast_tests::hub::{Cluster, Node, Options, PATIENCE};
use nix::sys::signal::Signal;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
};
use serde_json::{Value, json};

struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    fn new(name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    /// Writes a certificate that is good for both sides, and its key.
    fn issue(&self, cert: &Path, key: &Path) {
        let mut params = CertificateParams::new(vec!["127.0.0.1".to_owned(), "localhost".into()]).unwrap();
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let own = KeyPair::generate().unwrap();
        std::fs::write(cert, params.signed_by(&own, &self.0).unwrap().pem()).unwrap();
        std::fs::write(key, own.serialize_pem()).unwrap();
        restrict(key, 0o600);
    }
}

fn restrict(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

/// The files of one place of work.
struct Files {
    cert: PathBuf,
    key: PathBuf,
    ca: PathBuf,
    next_ca: PathBuf,
}

impl Files {
    fn new(dir: &Path) -> Self {
        let at = |name: &str| dir.join(name);
        Self { cert: at("api.pem"), key: at("api.key"), ca: at("ca.pem"), next_ca: at("next-ca.pem") }
    }

    fn options(&self) -> Options {
        let mut options = Options::calm();
        options.extra.push_str(&format!(
            "\napi.tls.cert = {:?}\napi.tls.key = {:?}\napi.tls.client_ca = {:?}\n",
            self.cert, self.key, self.ca
        ));
        options
    }

    /// Status, HTTP version and body as curl tells them; the status is 0 when there is no answer.
    async fn curl(&self, port: u16, ca: &Path, certified: bool, more: &[&str]) -> (u16, String, Value) {
        let (path, more) = more.split_first().unwrap();
        let mut command = tokio::process::Command::new("curl");
        command.args(["--silent", "--max-time", "20", "--write-out", "\n%{http_code} %{http_version}"]);
        command.arg("--cacert").arg(ca).args(more);
        if certified {
            command.arg("--cert").arg(&self.cert).arg("--key").arg(&self.key);
        }
        let output = command.arg(format!("https://127.0.0.1:{port}/v1/{path}")).output().await.unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let (body, told) = text.rsplit_once('\n').unwrap();
        let (status, version) = told.split_once(' ').unwrap();
        (status.parse().unwrap(), version.to_owned(), serde_json::from_str(body).unwrap_or(Value::Null))
    }

    async fn wait(&self, port: u16, status: u16) {
        let health =
            || async { (self.curl(port, &self.ca, true, &["sys/health"]).await.0 == status).then_some(()) };
        eventually_async(PATIENCE, &format!("health says {status}"), health).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_private_key_that_others_can_read_is_refused() {
    let home = Cluster::prepare(Options::default());
    let files = Files::new(home.dir());
    Authority::new("one").issue(&files.cert, &files.key);
    std::fs::copy(&files.cert, &files.ca).unwrap();
    restrict(&files.key, 0o640);
    let mut node = Node::prepare(home.dir(), 0, &files.options(), &[]);
    node.start();
    assert_eq!(node.process().wait(Duration::from_secs(30)).code(), Some(64));
    assert!(node.log().contains("api.key"), "the file is named: {}", node.log());
    assert!(!node.dir.join("data").exists(), "nothing was made");
}

#[tokio::test(flavor = "multi_thread")]
async fn certificates_are_asked_for_and_new_files_count_after_sighup() {
    let home = Cluster::prepare(Options::default());
    let (files, one, two) = (Files::new(home.dir()), Authority::new("one"), Authority::new("two"));
    one.issue(&files.cert, &files.key);
    std::fs::write(&files.ca, one.0.pem()).unwrap();
    std::fs::write(&files.next_ca, two.0.pem()).unwrap();
    let mut first = Node::prepare(home.dir(), 0, &files.options(), &[]);
    first.start();
    files.wait(first.api_port, 501).await;
    let (nobody, ..) = files.curl(first.api_port, &files.ca, false, &["sys/health"]).await;
    assert_eq!(nobody, 0, "a client without a certificate got an answer");
    let made = files.curl(first.api_port, &files.ca, true, &["sys/init", "--request", "PUT"]).await;
    assert_eq!((made.0, made.1.as_str()), (200, "2"));
    let token = format!("X-Vault-Token: {}", made.2["root_token"].as_str().unwrap());
    files.wait(first.api_port, 200).await;

    // It stays until the end: the first one alone is no majority any more.
    let _second = second_node_joins(&home, &files, first.api_port).await;
    audit_file_is_reopened(&home, &files, &mut first, &token).await;

    // Another authority, a new pair of files: they count from the signal on, for new connections.
    let trusts = async |ca: &Path| files.curl(first.api_port, ca, false, &["sys/health"]).await.0;
    assert_eq!(trusts(&files.next_ca).await, 0);
    std::fs::write(&files.ca, format!("{}{}", one.0.pem(), two.0.pem())).unwrap();
    two.issue(&files.cert, &files.key);
    first.process().signal(Signal::SIGHUP);
    let renewed = || async {
        let answer = files.curl(first.api_port, &files.next_ca, true, &["sys/health"]).await;
        (answer.0 == 200).then_some(())
    };
    eventually_async(PATIENCE, "the new certificate is shown", renewed).await;

    // A key that others can read now, then files that are none: the ones in use stay.
    restrict(&files.key, 0o644);
    first.process().signal(Signal::SIGHUP);
    let told = |text: &'static str, node: &Node| {
        let log = node.log();
        async move { log.contains(text).then_some(()) }
    };
    eventually_async(PATIENCE, "the open key is told of", || told("0644", &first)).await;
    std::fs::write(&files.ca, "no certificate").unwrap();
    restrict(&files.key, 0o600);
    first.process().signal(Signal::SIGHUP);
    eventually_async(PATIENCE, "the bad file is told of", || told("holds no certificate", &first)).await;
    let served = files.curl(first.api_port, &files.next_ca, true, &["sys/health"]).await;
    assert_eq!(served.0, 200);
}

async fn second_node_joins(home: &Cluster, files: &Files, leader: u16) -> Node {
    let mut options = files.options();
    options.extra.push_str(&format!(
        "raft.retry_join = [{{ leader_api_addr = \"https://127.0.0.1:{leader}\", ca_cert = {:?}, client_cert = {:?}, \
         client_key = {:?} }}]\n",
        files.ca, files.cert, files.key
    ));
    let mut second = Node::prepare(home.dir(), 1, &options, &[]);
    // The rig's own empty list would be a second definition.
    let text = std::fs::read_to_string(second.config()).unwrap();
    std::fs::write(second.config(), text.replace("raft.retry_join = []\n", "")).unwrap();
    second.start();
    files.wait(second.api_port, 429).await;
    let expected = json!(format!("https://127.0.0.1:{leader}"));
    eventually_async(PATIENCE, "the second node names the leader's address", || async {
        let (status, _, body) = files.curl(second.api_port, &files.ca, true, &["sys/leader"]).await;
        (status == 200 && body["leader_address"] == expected).then_some(())
    })
    .await;
    second
}

async fn audit_file_is_reopened(home: &Cluster, files: &Files, node: &mut Node, token: &str) {
    let (log, kept) = (home.dir().join("audit.log"), home.dir().join("audit.log.1"));
    let options = json!({"type": "file", "options": {"file_path": log}}).to_string();
    let enable = ["sys/audit/file", "--request", "PUT", "--header", token, "--data", &options];
    assert_eq!(files.curl(node.api_port, &files.ca, true, &enable).await.0, 204);
    let ask = ["auth/token/lookup-self", "--header", token];
    assert_eq!(files.curl(node.api_port, &files.ca, true, &ask).await.0, 200);
    std::fs::rename(&log, &kept).unwrap();
    node.process().signal(Signal::SIGHUP);
    let reopened = || async {
        assert_eq!(files.curl(node.api_port, &files.ca, true, &ask).await.0, 200);
        std::fs::read_to_string(&log).ok()?.contains("auth/token/lookup-self").then_some(())
    };
    eventually_async(PATIENCE, "the audit goes to the new file", reopened).await;
    assert!(std::fs::read_to_string(&kept).unwrap().contains("auth/token/lookup-self"));
}
