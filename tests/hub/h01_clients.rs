//! Clients that were written for other servers do their whole table through every node.

use std::path::Path;
use std::process::Command;

use holdfast_tests::db::PostgresServer;
use holdfast_tests::hub::{Cluster, Node, Options, Seal};
use holdfast_tests::process::binary;

/// Runs a client's script to its end.
async fn run(program: &str, script: &str, args: Vec<String>) -> String {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("clients").join(script);
    let mut command = Command::new(program);
    command.arg(script).args(args);
    let output = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{out}\n{err}");
    out.into_owned()
}

/// The output of a client's table through one node, with what differs by node taken out.
async fn table(
    (program, _, script): Client,
    cluster: &Cluster,
    index: usize,
    database: &PostgresServer,
) -> String {
    let tag = format!("t{index}");
    let place = format!("127.0.0.1:{}", database.port());
    let args = vec![cluster.nodes[index].url(), cluster.root.clone(), place, tag.clone()];
    run(program, script, args).await.replace(&tag, "TAG")
}

/// A client: the program, and its scripts that open a cluster and that do the table.
type Client = (&'static str, &'static str, &'static str);
const HVAC: Client = ("python3", "open.py", "table.py");
const CURL: Client = ("bash", "open.sh", "table.sh");

/// Lets the client initialise and unseal a cluster from its very beginning. What it prints is the same for all.
async fn opened((program, script, _): Client, nodes: usize) -> Cluster {
    let options = Options { nodes, seal: Seal::Shamir(3, 2), ..Options::default() };
    let mut cluster = Cluster::start_unopened(options).await;
    let args = cluster.nodes.iter().map(Node::url).collect();
    let out = run(program, script, args).await;
    let mut lines: Vec<_> = out.lines().collect();
    cluster.root = lines.pop().expect("the root token comes last").to_owned();
    let each = ["it knows what it is to open", "progress: 1 of 2", "sealed: false", "it serves"];
    assert_eq!(lines, [&["init: 3 shares"][..], &each.repeat(nodes)].concat());
    cluster.wait_complete().await;
    cluster
}

async fn alike_through(client: Client, nodes: usize) {
    let (cluster, database) = (opened(client, nodes).await, PostgresServer::start().await);
    database.execute("CREATE ROLE root_of_db SUPERUSER LOGIN PASSWORD 'root-pw'").await;
    let first = table(client, &cluster, 0, &database).await;
    assert!(first.ends_with("table done\n"));
    for index in 1..nodes {
        assert_eq!(table(client, &cluster, index, &database).await, first);
    }
    if nodes == 1 && client == HVAC {
        same_by_our_commands(&cluster, &database, &first).await;
    }
    assert_eq!(database.users("v-").await, [""; 0], "every lease was revoked");
    cluster.check_logs(&[]);
}

/// Our own commands do their table too, and are told what the other client was told.
async fn same_by_our_commands(cluster: &Cluster, database: &PostgresServer, hvac: &str) {
    let place = format!("127.0.0.1:{}", database.port());
    let binary = binary().display().to_string();
    let args = vec![cluster.nodes[0].url(), cluster.root.clone(), place, "t9".into(), binary];
    let own = run("bash", "table_cli.sh", args).await.replace("t9", "TAG");
    assert!(own.ends_with("table done\n") && own.lines().count() >= 25, "{own}");
    let strange: Vec<_> = own.lines().filter(|line| !hvac.lines().any(|known| known == *line)).collect();
    assert!(strange.is_empty(), "hvac was told otherwise: {strange:?}\n{hvac}");
}

#[tokio::test(flavor = "multi_thread")]
async fn hvac_does_its_table_through_each_of_three_nodes_alike() {
    alike_through(HVAC, 3).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn hvac_does_its_table_on_a_single_node() {
    alike_through(HVAC, 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn curl_does_its_table_through_each_of_three_nodes_alike() {
    alike_through(CURL, 3).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn curl_does_its_table_on_a_single_node() {
    alike_through(CURL, 1).await;
}
