//! H-44: what `relay token create` prints can be piped.

use holdfast_tests::cli::Cli;
use holdfast_tests::hub::Options;

use super::h42_join::Trusted;

#[tokio::test(flavor = "multi_thread")]
async fn the_warning_is_not_in_what_is_piped() {
    let trusted = Trusted::start(Options { nodes: 1, ..Options::default() }).await;
    let operator = Cli::new(&trusted.cluster.nodes[0].url()).with_token(&trusted.cluster.root);
    let made =
        operator.run("relay token create -allowed-spoke-name=spoke-1 -ttl=1h -max-uses=2").await.expect(0);
    assert!(made.err.contains("WARNING") && made.err.contains("shown once"), "{}", made.err);
    assert!(!made.out.to_lowercase().contains("warning") && !made.out.contains("shown once"), "{}", made.out);
    let rows: Vec<Vec<&str>> = made.out.lines().skip(2).map(|l| l.split_whitespace().collect()).collect();
    let keys: Vec<&str> = rows.iter().map(|row| row[0]).collect();
    assert_eq!(keys, ["token", "id", "expiration", "allowed_spoke"]);
    assert_eq!((rows[0][1].split('.').next(), rows[3][1]), (Some(rows[1][1]), "spoke-1"));
    assert!(!made.err.contains(rows[0][1]), "the token is on standard output alone");

    let json = operator.run("relay token create --json -ttl=-1").await.expect(0);
    assert_eq!(json.json()["expiration_unix"], 0);
    let listed = operator.run("relay token list").await.expect(0).out;
    assert!(listed.contains(rows[1][1]) && listed.contains("never") && listed.contains("0 of 2"), "{listed}");
    assert!(!listed.contains(rows[0][1].split('.').nth(1).unwrap()), "{listed}");
    let json = operator.run("relay token list -json").await.expect(0).json();
    assert!(json["keys"].as_array().unwrap().contains(&rows[1][1].into()), "{json}");
    operator.run(&format!("relay token revoke {}", rows[0][1])).await.expect(0);
    let listed = operator.run("relay token list").await.expect(0).out;
    assert!(!listed.contains(rows[1][1]), "{listed}");

    // The other commands on trust.
    let status = operator.run("relay ca status").await.expect(0).out;
    assert!(status.contains(&trusted.pin) && status.contains("CN=holdfast-hub"), "{status}");
    let json = operator.run("relay ca status -format=json").await.expect(0).json();
    assert_eq!(json["listener_port"], trusted.port);
    let yaml = operator.run("relay ca status -format=yaml").await.expect(0).out;
    assert!(yaml.contains(&format!("ca_cert_hash: \"{}\"", trusted.pin)), "{yaml}");
    for line in ["relay deny spoke-9 -reason=lost -json", "relay allow spoke-9 -json"] {
        assert_eq!(operator.run(line).await.expect(0).json(), serde_json::json!({"ok": true}), "{line}");
    }
    let refused = operator.run("relay ca rotate -full").await.expect(1);
    assert!(refused.err.contains("-yes"), "{}", refused.err);
    let hub =
        operator.run("relay ca rotate -format=json -hub-dns-sans=a.example,b.example").await.expect(0).json();
    assert_eq!(
        (hub["rotated"].as_str(), hub["ca_cert_hash"].as_str()),
        (Some("hub"), Some(trusted.pin.as_str()))
    );
    let full = operator.run("relay ca rotate -full -yes").await.expect(0);
    assert!(full.err.contains("every spoke must join again") && full.out.contains("ca+hub"), "{}", full.err);
    assert!(!full.out.contains(&trusted.pin), "{}", full.out);
    trusted.cluster.check_logs(&[]);
}
