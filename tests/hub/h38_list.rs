//! H-38, H-39: one list of every spoke and every node, through whichever node; part of it when the active one is mute.

use std::collections::BTreeSet;

use holdfast_tests::cli::{Cli, Ended};
use holdfast_tests::eventually_async;
use holdfast_tests::hub::{Cluster, Options, PATIENCE};
use holdfast_tests::spoke::Relay;
use serde_json::{Value, json};

const HEADER: &str = "NAME NODE LAST SEEN UPTIME CERT EXP HEALTH";

async fn list(cluster: &Cluster, through: usize, more: &str) -> Ended {
    let cli = Cli::new(&cluster.nodes[through].url()).with_token(&cluster.root);
    cli.run(&format!("relay list {more}")).await.expect(0)
}

/// A printed list with single blanks between columns, and `T` for durations that go on while one looks.
fn lines(text: &str) -> Vec<String> {
    let word = |word: &str| {
        let digits = word.trim_end_matches(['s', 'm', 'h']);
        let passes = digits.len() < word.len() && !digits.is_empty();
        let passes = passes && digits.bytes().all(|byte| byte.is_ascii_digit());
        // A certificate that was made within this second has its 30 days whole.
        match word {
            "30d" => "29d".to_owned(),
            _ if passes => "T".to_owned(),
            _ => word.to_owned(),
        }
    };
    let row = |line: &str| line.split_whitespace().map(word).collect::<Vec<_>>().join(" ");
    // What stands above the table is exact.
    text.lines().enumerate().map(|(i, line)| if i < 2 { line.to_owned() } else { row(line) }).collect()
}

/// What a view says of a spoke.
const SPOKE: [&str; 11] = [
    "cert_not_after",
    "connected_at_unix",
    "healthy",
    "last_seen_seconds",
    "last_seen_unix",
    "name",
    "node_cluster_addr",
    "node_id",
    "node_is_active",
    "node_reachable",
    "session_epoch",
];
/// What a view says of a node.
const NODE: [&str; 7] = [
    "cluster_addr",
    "is_active",
    "last_announce_seconds",
    "listener_error",
    "node_id",
    "reachable",
    "spoke_count",
];
/// What a view says.
const VIEW: [&str; 8] = [
    "connected_count",
    "healthy_count",
    "hub_node_count",
    "hub_nodes",
    "listener_port",
    "partial",
    "spokes",
    "stale_after_seconds",
];

/// The names in an object, sorted.
fn keys(value: &Value) -> Vec<&str> {
    let names: BTreeSet<_> = value.as_object().unwrap().keys().map(String::as_str).collect();
    names.into_iter().collect()
}

/// What a view says of each node: its id, its address, whether it is active, and how many spokes it has.
fn nodes(view: &Value) -> Vec<(String, String, bool, u64, bool)> {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let row = |node: &Value| {
        let count = node["spoke_count"].as_u64().unwrap();
        let (active, reachable) = (node["is_active"] == true, node["reachable"] == true);
        (text(&node["node_id"]), text(&node["cluster_addr"]), active, count, reachable)
    };
    view["hub_nodes"].as_array().unwrap().iter().map(row).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_list_has_every_spoke_and_node_and_part_of_it_when_the_active_node_is_mute() {
    let mut cluster = Cluster::start_with(Options::calm()).await;
    let relay = Relay::set_up(&cluster).await;
    let active = cluster.active().await;
    let (with, without) = (cluster.others(active)[0], cluster.others(active)[1]);
    let _first = relay.spoke_on(&cluster, "spoke-1", active).await;
    let _second = relay.spoke_on(&cluster, "spoke-2", with).await;
    let ids: Vec<_> = cluster.nodes.iter().map(|node| node.id.clone()).collect();
    let printed = [
        format!("Listener: :{}   Nodes: 3 (this node is active)", relay.port),
        "Connected: 2 total, 2 healthy (stale after 45s)".to_owned(),
        String::new(),
        HEADER.to_owned(),
        format!("spoke-1 {} (active) T ago T 29d OK", ids[active]),
        format!("spoke-2 {} (standby) T ago T 29d OK", ids[with]),
    ];
    for through in 0..3 {
        let told = list(&cluster, through, "").await;
        assert_eq!((lines(&told.out), told.err.as_str()), (printed.to_vec(), ""));
        the_view_is_whole(&cluster, &relay, through, active, with).await;
        assert_eq!(list(&cluster, through, "-format=json").await.json()["connected_count"], 2);
    }

    cluster.nodes[without].kill();
    eventually_async(PATIENCE, "the stopped node shows as such", || async {
        let reply = cluster.api(with).get("relay/spokes").await.expect(200);
        let of = nodes(reply.data()).swap_remove(without);
        (of.0 == ids[without] && (of.2, of.3, of.4) == (false, 0, false)).then_some(())
    })
    .await;
    assert_eq!(lines(&list(&cluster, with, "").await.out), printed, "it still counts");
    // With one node stopped the last one cannot take over from the paused one.
    cluster.nodes[active].pause();
    a_part_is_shown(&cluster, &relay, with).await;
    cluster.nodes[active].resume();
    eventually_async(3 * PATIENCE, "the list is whole again", || async {
        let reply = cluster.api(with).get("relay/spokes").await;
        (reply.body["data"]["partial"] == false && reply.body["data"]["connected_count"] == 2).then_some(())
    })
    .await;
}

async fn the_view_is_whole(cluster: &Cluster, relay: &Relay, through: usize, active: usize, with: usize) {
    let reply = cluster.api(through).list("relay/spokes").await.expect(200);
    assert_eq!(reply.body["warnings"], Value::Null);
    let view = reply.data();
    assert_eq!((keys(view), keys(&view["hub_nodes"][0])), (VIEW.to_vec(), NODE.to_vec()));
    let counts = ["connected_count", "healthy_count", "hub_node_count", "listener_port", "partial"];
    assert_eq!(
        counts.map(|key| view[key].clone()),
        [json!(2), json!(2), json!(3), json!(relay.port), json!(false)]
    );
    let address = |node: usize| format!("127.0.0.1:{}", cluster.nodes[node].cluster_port);
    let want: Vec<_> = (0..3)
        .map(|i| {
            (cluster.nodes[i].id.clone(), address(i), i == active, u64::from(i == active || i == with), true)
        })
        .collect();
    assert_eq!(nodes(view), want);
    for (spoke, (name, node)) in
        view["spokes"].as_array().unwrap().iter().zip([("spoke-1", active), ("spoke-2", with)])
    {
        assert_eq!((&spoke["name"], &spoke["node_id"]), (&json!(name), &json!(cluster.nodes[node].id)));
        assert_eq!(spoke["node_cluster_addr"], address(node));
        assert_eq!(spoke["node_is_active"], node == active);
        assert_eq!((&spoke["node_reachable"], &spoke["healthy"]), (&true.into(), &true.into()));
        let number = |key: &str| spoke[key].as_i64().unwrap_or_else(|| panic!("{key} in {spoke}"));
        assert!(number("connected_at_unix") <= number("last_seen_unix"));
        assert!(number("last_seen_seconds") < 45 && number("session_epoch") > 0);
        let day = 86_400;
        let left = number("cert_not_after") - number("last_seen_unix");
        assert!((29 * day..=30 * day + 60).contains(&left), "{left}");
        assert_eq!(keys(spoke), SPOKE);
    }
}

async fn a_part_is_shown(cluster: &Cluster, relay: &Relay, through: usize) {
    let reply = cluster.api(through).get("relay/spokes").await.expect(200);
    assert_eq!(reply.data()["partial"], true);
    let warnings = reply.body["warnings"].as_array().unwrap();
    assert_eq!(warnings.len(), 1);
    let spokes = reply.data()["spokes"].as_array().unwrap();
    assert_eq!(spokes.len(), 1);
    assert_eq!(spokes[0]["name"], "spoke-2");
    assert_eq!(nodes(reply.data()).len(), 3, "every member is there");
    let told = tokio::time::timeout(3 * PATIENCE, list(cluster, through, "")).await.unwrap();
    let printed = [
        format!("Listener: :{}   Nodes: 3 (this node is standby; partial view)", relay.port),
        "Connected: 1 total, 1 healthy (stale after 45s)".to_owned(),
        String::new(),
        HEADER.to_owned(),
        format!("spoke-2 {} (standby) T ago T 29d OK", cluster.nodes[through].id),
    ];
    assert_eq!(lines(&told.out), printed);
    assert!(told.err.contains("WARNING") && told.err.contains(warnings[0].as_str().unwrap()), "{}", told.err);
}
