//! H-42: a spoke joins only a hub that it can trust, and writes nothing before it knows.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use holdfast_tests::api::{Api, Reply};
use holdfast_tests::cli::Cli;
use holdfast_tests::hub::{Cluster, Options};
use holdfast_tests::process::free_port;
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// A cluster whose relay has an authority, and what `relay init` said.
pub struct Trusted {
    pub cluster: Cluster,
    pub active: usize,
    pub port: u16,
    pub pin: String,
}

impl Trusted {
    pub async fn start(options: Options) -> Self {
        let cluster = Cluster::start_with(options).await;
        let active = cluster.active().await;
        let root = cluster.api(active);
        root.put("sys/mounts/relay", json!({"type": "relay"})).await.expect(204);
        let port = free_port();
        let body = json!({"hub_endpoint": format!("localhost:{port}")});
        let pin = root.put("relay/ca/init", body).await.expect(200).text("ca_cert_hash");
        Self { cluster, active, port, pin }
    }

    /// A new bootstrap token.
    pub async fn token(&self, body: Value) -> String {
        self.cluster.api(self.active).put("relay/bootstrap-tokens", body).await.expect(200).text("token")
    }

    /// The metadata of a token.
    pub async fn uses(&self, token: &str) -> u64 {
        let id = token.split('.').next().unwrap();
        let reply = self.cluster.api(self.active).get(&format!("relay/bootstrap-tokens/{id}")).await;
        reply.expect(200).data()["uses"].as_u64().unwrap()
    }
}

/// A certificate request for a name, of a fresh key.
pub fn csr(name: &str) -> String {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    params.serialize_request(&KeyPair::generate().unwrap()).unwrap().pem().unwrap()
}

/// What a caller sees, but for the date.
fn seen(reply: &Reply) -> (u16, Vec<(String, String)>, Vec<u8>) {
    let mut headers: Vec<_> = reply
        .headers
        .iter()
        .filter(|(name, _)| *name != http::header::DATE)
        .map(|(name, value)| (name.to_string(), value.to_str().unwrap_or_default().to_owned()))
        .collect();
    headers.sort();
    (reply.status, headers, reply.bytes.clone())
}

fn names(dir: &Path) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(dir) else { return Vec::new() };
    let mut names: Vec<_> = entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// The command with which a spoke joins.
pub fn line(dir: &Path, pin: &str, token: &str, name: &str) -> String {
    format!(
        "relay join -hub-cert-hash={pin} -token={token} -spoke-name={name} -credentials-dir={}",
        dir.display()
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn the_printed_command_joins_through_any_node() {
    let cluster = Cluster::start(3).await;
    let active = cluster.active().await;
    let standby = cluster.others(active)[0];
    let port = free_port();
    let operator = Cli::new(&cluster.nodes[standby].url()).with_token(&cluster.root);
    let asked = operator.run("relay init").await.expect(1);
    assert!(asked.err.contains("-hub-endpoint"), "{}", asked.err);
    let init =
        format!("relay init -hub-endpoint=localhost:{port} -allowed-spoke-name=spoke-1 -print-join-only");
    let printed = operator.run(&init).await.expect(0).out;
    let (address, command) = printed.trim().split_once(" holdfast ").unwrap();
    assert_eq!(address, format!("HOLDFAST_ADDR={}", cluster.nodes[standby].url()));

    // A second time: the same authority, another token.
    let again = operator.run("relay init -allowed-spoke-name=spoke-2 -print-join-only").await.expect(0).out;
    let pin =
        |text: &str| text.split_whitespace().find(|w| w.starts_with("-hub-cert-hash=")).unwrap().to_owned();
    assert_eq!(pin(&again), pin(&printed));

    let spoke = Cli::new(&cluster.nodes[cluster.others(active)[1]].url());
    let dir = spoke.home().join("credentials");
    let joined = spoke.run(&format!("{command} -credentials-dir={}", dir.display())).await.expect(0);
    assert!(
        joined.out.contains(&format!(
            "holdfast relay run -server=localhost:{port} -credentials-dir={}",
            dir.display()
        )),
        "{}",
        joined.out
    );
    assert_eq!(names(&dir), ["ca.pem", "cert.pem", "key.pem"]);
    let before = std::fs::read(dir.join("key.pem")).unwrap();

    // Occupied by any one of the three files: refused before anything is asked.
    for gone in [["cert.pem", "key.pem"], ["ca.pem", "key.pem"], ["ca.pem", "cert.pem"]] {
        let part = spoke.home().join("part");
        std::fs::create_dir(&part).unwrap();
        for name in names(&dir).iter().filter(|name| !gone.contains(&name.as_str())) {
            std::fs::copy(dir.join(name), part.join(name)).unwrap();
        }
        let refused = spoke.run(&format!("{command} -credentials-dir={}", part.display())).await.expect(1);
        assert!(refused.err.contains("exists already"), "{}", refused.err);
        assert_eq!(names(&part).len(), 1);
        std::fs::remove_dir_all(&part).unwrap();
    }
    spoke.run(&format!("{command} -force -credentials-dir={}", dir.display())).await.expect(0);
    assert_ne!(std::fs::read(dir.join("key.pem")).unwrap(), before);
    assert_eq!(names(&dir), ["ca.pem", "cert.pem", "key.pem"]);
    cluster.check_logs(&[]);
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_is_not_the_hub_gets_no_file_written() {
    let trusted = Trusted::start(Options { nodes: 1, ..Options::default() }).await;
    let token = trusted.token(json!({})).await;
    let node = &trusted.cluster.nodes[0];
    let spoke = Cli::new(&node.url());
    let dir = spoke.home().join("c");
    let refused = async |spoke: &Cli, line: String, text: &str| {
        let ended = spoke.run(&line).await.expect(1);
        assert!(ended.err.contains(text), "{}", ended.err);
        assert_eq!(names(&dir), [""; 0], "{text}");
    };
    let wrong = format!("sha256:{}", "0".repeat(64));
    let pins = [wrong.as_str(), "sha256:", "md5:00", &trusted.pin[..70]];
    for pin in pins {
        refused(&spoke, line(&dir, pin, &token, "spoke-1"), "not the pinned one").await;
    }
    let forged = format!("{}.0000000000000000", token.split('.').next().unwrap());
    refused(&spoke, line(&dir, &trusted.pin, &forged, "spoke-1"), "does not fit the token").await;
    let unpinned =
        format!("relay join -token={token} -spoke-name=spoke-1 -credentials-dir={}", dir.display());
    refused(&spoke, unpinned.clone(), "-hub-cert-hash is needed").await;
    refused(&spoke, line(&dir, &trusted.pin, "abc", "spoke-1"), "not of the form").await;
    refused(&spoke, line(&dir, &trusted.pin, &token, "holdfast-hub"), "must not be a reserved name").await;

    // Somebody between the two, who changes what the hub says.
    let stranger = rcgen::generate_simple_self_signed(vec!["x".to_owned()]).unwrap().cert.pem();
    let swap = |field: &'static str, value: String| {
        move |body: &mut Value| {
            if body["data"].get(field).is_some() {
                body["data"][field] = Value::from(value.clone());
            }
        }
    };
    let other_ca = Between::start(node.api(), swap("ca_cert_pem", stranger.clone())).await;
    refused(
        &Cli::new(&other_ca),
        line(&dir, &trusted.pin, &token, "spoke-1"),
        "another certificate authority",
    )
    .await;
    let other_cert = Between::start(node.api(), swap("cert_pem", stranger)).await;
    refused(&Cli::new(&other_cert), line(&dir, &trusted.pin, &token, "spoke-1"), "is not the key of").await;
    let payload = json!({"ca_cert_pem": "x", "hub_endpoint": "evil:1"}).to_string();
    let other_payload = Between::start(node.api(), swap("payload", payload)).await;
    refused(&Cli::new(&other_payload), line(&dir, &trusted.pin, &token, "spoke-1"), "does not fit the token")
        .await;
    let none = format!("{}..", none_header());
    let other_alg = Between::start(node.api(), swap("signature", none)).await;
    refused(&Cli::new(&other_alg), line(&dir, &trusted.pin, &token, "spoke-1"), "does not fit the token")
        .await;

    // The pin in capitals, the token from standard input; then without a pin, and the token from the environment.
    let upper = trusted.pin.to_uppercase();
    spoke.run_with(&line(&dir, &upper, "-", "spoke-1"), &format!("{token}\n")).await.expect(0);
    let careless = Cli::new(&node.url()).with_env("HOLDFAST_RELAY_TOKEN", &token);
    let dir = careless.home().join("d").display().to_string();
    let command = format!("relay join -skip-cert-hash-check -spoke-name=spoke-2 -credentials-dir={dir}");
    let warned = careless.run(&command).await.expect(0);
    assert!(warned.err.contains("WARNING") && !warned.out.contains("WARNING"), "{}", warned.err);
    trusted.cluster.check_logs(&[]);
}

/// `{"alg":"none","kid":"…"}` in its encoding.
fn none_header() -> String {
    use base64::Engine as _;
    base64::engine::general_purpose::URL_SAFE_NO_PAD.encode("{\"alg\":\"none\"}")
}

#[tokio::test(flavor = "multi_thread")]
async fn faults_of_a_token_look_alike_through_every_node() {
    let trusted =
        Trusted::start(Options { extra: "relay.unauth_rate = 0".into(), ..Options::default() }).await;
    let good = trusted.token(json!({})).await;
    let once = trusted.token(json!({"max_uses": 1})).await;
    let other = trusted.token(json!({"allowed_spoke_name": "spoke-2"})).await;
    let signing = trusted.token(json!({"usages": ["signing"]})).await;
    let revoked = trusted.token(json!({})).await;
    let id = |token: &str| token.split('.').next().unwrap().to_owned();
    let root = trusted.cluster.api(trusted.active);
    root.delete(&format!("relay/bootstrap-tokens/{}", id(&revoked))).await.expect(204);
    let csr = csr("spoke-1");
    let sign = |token: &str| json!({"token": token, "spoke_name": "spoke-1", "csr_pem": csr});
    trusted.cluster.nodes[0].api().put("relay/sign-csr", sign(&once)).await.expect(200);
    assert_eq!((trusted.uses(&once).await, trusted.uses(&good).await), (1, 0));
    let wrong = format!("{}.0000000000000000", id(&good));
    let expected = seen(&trusted.cluster.nodes[0].api().put("relay/sign-csr", sign("x")).await);
    assert_eq!(expected.0, 400);
    assert_eq!(expected.2.trim_ascii_end(), b"{\"errors\":[\"token unknown or expired\"]}");
    for node in &trusted.cluster.nodes {
        for token in ["zzzzzz.0000000000000000", &wrong, &once, &other, &signing, &revoked] {
            let reply = node.api().put("relay/sign-csr", sign(token)).await;
            assert_eq!(seen(&reply), expected, "{token}");
        }
        for id in ["zzzzzz".to_owned(), String::new(), id(&revoked), id(&once)] {
            let reply = node.api().get(&format!("relay/cluster-info?token_id={id}")).await;
            assert_eq!(seen(&reply), expected, "{id}");
        }
        node.api().get("relay/ca/info").await.expect(403);
    }
    trusted.cluster.check_logs(&[]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_secret_on_the_open_paths_is_nowhere_in_clear() {
    let trusted = Trusted::start(Options { nodes: 1, ..Options::default() }).await;
    let root = trusted.cluster.api(0);
    let audit = trusted.cluster.dir().join("audit.log");
    let device = json!({"type": "file", "options": {"file_path": audit.to_str().unwrap()}});
    root.put("sys/audit/main", device).await.expect(204);
    let token = trusted.token(json!({})).await;
    let node = &trusted.cluster.nodes[0];
    let spoke = Cli::new(&node.url());
    spoke.run(&line(&spoke.home().join("c"), &trusted.pin, &token, "spoke-1")).await.expect(0);
    let secret = token.split('.').nth(1).unwrap();
    let text = std::fs::read_to_string(&audit).unwrap();
    let entries: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(!text.contains(secret) && !text.contains("BEGIN CERTIFICATE"), "{text}");
    assert!(!node.log().contains(secret));
    let signed: Vec<&Value> =
        entries.iter().filter(|entry| entry["request"]["path"] == "relay/certificates").collect();
    assert_eq!(signed.len(), 1);
    let data = &signed[0]["request"]["data"];
    assert_eq!((&data["spoke_name"], &data["node_id"]), (&json!("spoke-1"), &json!("n0")));
    assert_eq!(data["serial"].as_str().unwrap().len(), 32);
    let asked = entries.iter().filter(|entry| entry["request"]["path"] == "relay/sign-csr").count();
    assert_eq!(asked, 2, "the request and its answer");
    trusted.cluster.check_logs(&[]);
}

/// Somebody between spoke and hub who passes everything on but changes the answers.
struct Between;

impl Between {
    /// Returns the URL to talk to.
    async fn start(hub: Api, change: impl Fn(&mut Value) + Send + Sync + 'static) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let change = Arc::new(change);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (hub, change) = (hub.clone(), Arc::clone(&change));
                tokio::spawn(async move {
                    tokio::time::timeout(Duration::from_secs(60), pass(stream, hub, &*change)).await
                });
            }
        });
        url
    }
}

async fn pass(mut stream: TcpStream, hub: Api, change: &(dyn Fn(&mut Value) + Send + Sync)) {
    let mut bytes = Vec::new();
    let head = loop {
        let mut buffer = [0; 4096];
        let read = stream.read(&mut buffer).await.unwrap();
        bytes.extend_from_slice(&buffer[..read]);
        if let Some(at) = bytes.windows(4).position(|w| w == b"\r\n\r\n") {
            break at + 4;
        }
        assert!(read > 0, "the request ended early");
    };
    let text = String::from_utf8_lossy(&bytes[..head]).to_ascii_lowercase();
    let length =
        text.lines().find_map(|l| l.strip_prefix("content-length: ")?.trim().parse().ok()).unwrap_or(0);
    while bytes.len() < head + length {
        let mut buffer = [0; 4096];
        let read = stream.read(&mut buffer).await.unwrap();
        assert!(read > 0, "the body ended early");
        bytes.extend_from_slice(&buffer[..read]);
    }
    let first = String::from_utf8_lossy(&bytes[..head]).lines().next().unwrap().to_owned();
    let mut words = first.split(' ');
    let (method, path) = (words.next().unwrap(), words.next().unwrap().trim_start_matches("/v1/"));
    let body = (length > 0).then(|| bytes[head..].to_vec());
    let mut reply = hub.try_send(method, path, body).await.unwrap();
    change(&mut reply.body);
    let body = reply.body.to_string();
    let answer = format!(
        "HTTP/1.1 {} X\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
        reply.status,
        body.len()
    );
    stream.write_all(answer.as_bytes()).await.unwrap();
}
