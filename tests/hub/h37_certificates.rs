//! H-37, H-43: certificates change on both sides while the stream stays.

use std::path::Path;
use std::time::Duration;

use holdfast_tests::cli::{Cli, Ended};
use holdfast_tests::eventually_async;
use holdfast_tests::hub::{Cluster, Options, PATIENCE};
use holdfast_tests::spoke::{Relay, Spoke, entry, owned};
use serde_json::{Value, json};

const DAY: i64 = 24 * 3600;

/// What the audit file says of certificates that were signed.
fn signed(file: &Path, reason: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(file).unwrap();
    let entries = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    entries
        .filter(|e| e["request"]["path"] == "relay/certificates" && e["request"]["data"]["reason"] == reason)
        .collect()
}

/// `holdfast relay renew` at one address.
async fn renew(spoke: &Spoke, address: &str, ttl: &str) -> Ended {
    let dir = spoke.credentials.display();
    let line = format!("relay renew -server={address} -credentials-dir={dir} -ttl={ttl}");
    Cli::new("http://127.0.0.1:1").run(&line).await
}

fn now() -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    i64::try_from(since.as_secs()).unwrap()
}

/// Waits until the view tells that the spoke's certificate ends about then, and gives the entry.
async fn ends_in(cluster: &Cluster, active: usize, days: i64) -> Value {
    eventually_async(PATIENCE, "the view tells of the renewed certificate", || async {
        let entry = entry(cluster, active, "spoke-1").await?;
        let left = entry["cert_not_after"].as_i64().unwrap() - now();
        ((days - 1) * DAY < left && left <= days * DAY).then_some(entry)
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn certificates_change_and_the_stream_stays() {
    let cluster = Cluster::start_with(Options::calm()).await;
    let relay = Relay::set_up(&cluster).await;
    let active = cluster.active().await;
    let standby = cluster.others(active)[0];
    let audit = cluster.dir().join("audit.log");
    let device = json!({"type": "file", "options": {"file_path": audit}});
    cluster.api(active).put("sys/audit/main", device).await.expect(204);

    // So short that the daemon renews it at once, on its stream.
    let mut spoke = relay.join(&cluster, "spoke-1").await;
    let address = relay.address(&cluster, standby);
    renew(&spoke, &address, "60s").await.expect(0);
    relay.balancer.pick(standby);
    spoke.start(&relay.shared(), &[]);
    owned(&cluster, "spoke-1", standby).await;
    let first = ends_in(&cluster, active, 30).await;
    let files = || std::fs::read(spoke.credentials.join("cert.pem")).unwrap();
    eventually_async(PATIENCE, "the daemon has the new certificate", || async {
        spoke.log().contains("certificate renewed").then_some(())
    })
    .await;
    let on_stream = files();

    // By hand, while the daemon runs.
    renew(&spoke, &address, "80d").await.expect(0);
    assert_ne!(files(), on_stream);
    let second = ends_in(&cluster, active, 80).await;
    // A negative life is refused, and a long one is cut.
    let json = renew(&spoke, &address, "200d --json").await.expect(0).json();
    let until = json["cert_not_after"].as_str().unwrap();
    assert!(json["spoke_name"] == "spoke-1" && until.starts_with("20") && until.ends_with('Z'), "{json}");
    let third = ends_in(&cluster, active, 90).await;

    for later in [&second, &third] {
        assert_eq!(later["session_epoch"], first["session_epoch"]);
        assert_eq!(later["node_id"], cluster.nodes[standby].id.as_str());
        let began = |entry: &Value| entry["connected_at_unix"].as_i64().unwrap();
        assert!((began(later) - began(&first)).abs() <= 1, "{first} {later}");
    }
    assert_eq!(spoke.log().matches("stream up").count(), 1, "{}", spoke.log());
    let entries = signed(&audit, "renew");
    let serials: std::collections::BTreeSet<_> =
        entries.iter().map(|e| e["request"]["data"]["serial"].to_string()).collect();
    assert_eq!((entries.len(), serials.len()), (4, 4), "one entry a renewal");
    for entry in &entries {
        assert_eq!(entry["request"]["data"]["node_id"], cluster.nodes[standby].id.as_str());
        assert_eq!(entry["request"]["data"]["spoke_name"], "spoke-1");
    }

    the_hub_rotates(&cluster, &relay, &spoke, active, &third).await;

    // The next dial is with what was renewed by hand.
    relay.balancer.cut();
    eventually_async(PATIENCE, "the spoke has dialled again", || async {
        let entry = entry(&cluster, active, "spoke-1").await?;
        (entry["session_epoch"] != third["session_epoch"]).then_some(())
    })
    .await;
    ends_in(&cluster, active, 90).await;
    assert_eq!(spoke.stop(), Some(0));
    cluster.check_logs(&[]);
}

/// A rotation of the hub's own certificate keeps pin and streams, and every node serves the new one soon.
async fn the_hub_rotates(cluster: &Cluster, relay: &Relay, spoke: &Spoke, active: usize, before: &Value) {
    let ca = std::fs::read(spoke.credentials.join("ca.pem")).unwrap();
    let serves = async |node: usize| relay.served_certificate(cluster, node, &ca).await;
    let mut old = Vec::new();
    for node in 0..3 {
        old.push(serves(node).await);
    }
    assert_eq!(old[0], old[1]);
    let operator = Cli::new(&cluster.nodes[(active + 1) % 3].url()).with_token(&cluster.root);
    operator.run("relay ca rotate").await.expect(0);
    let changed = async || {
        for node in 0..3 {
            if serves(node).await == old[0] {
                return None;
            }
        }
        Some(())
    };
    // A second is promised.
    eventually_async(Duration::from_secs(5), "every node serves the new certificate", &changed).await;
    let info = cluster.api(active).get("relay/ca/info").await.expect(200);
    assert_eq!(info.text("ca_cert_hash"), relay.pin);
    let after = entry(cluster, active, "spoke-1").await.expect("the spoke is there");
    assert_eq!(after["session_epoch"], before["session_epoch"]);
    assert_eq!(spoke.log().matches("stream up").count(), 1, "{}", spoke.log());
}

/// Streams outlive the authority that let them in; what cannot come back says so once, and not at each dial.
#[tokio::test(flavor = "multi_thread")]
async fn a_replaced_authority_keeps_streams_and_a_spoke_tells_of_it_once() {
    let cluster = Cluster::start(1).await;
    let relay = Relay::set_up(&cluster).await;
    let mut spoke = relay.join(&cluster, "spoke-1").await;
    relay.balancer.pick(0);
    spoke.start(&relay.shared(), &["-log=info,holdfast_spoke=debug"]);
    owned(&cluster, "spoke-1", 0).await;
    let operator = Cli::new(&cluster.nodes[0].url()).with_token(&cluster.root);
    operator.run("relay ca rotate -full -yes").await.expect(0);
    assert!(entry(&cluster, 0, "spoke-1").await.is_some(), "the stream stays");
    relay.balancer.cut();
    let dials = || spoke.log().matches("\"dialling\"").count();
    eventually_async(PATIENCE, "the spoke dials again and again", || async { (dials() > 4).then_some(()) })
        .await;
    let log = spoke.log();
    assert_eq!(log.matches("not of the authority that this spoke joined").count(), 1, "{log}");
    assert!(!log.contains("no stream to this hub node"), "{log}");
    assert_eq!(spoke.stop(), Some(0));
}
