//! Clients that were written for other servers do their whole table through every node.

use std::path::Path;
use std::process::Command;

use holdfast_tests::db::PostgresServer;
use holdfast_tests::hub::Cluster;

/// The output of a client's table through one node, with what differs by node taken out.
async fn table(
    (program, script): (&str, &str),
    cluster: &Cluster,
    index: usize,
    database: &PostgresServer,
) -> String {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("clients").join(script);
    let tag = format!("t{index}");
    let mut command = Command::new(program);
    command.arg(script).arg(cluster.nodes[index].url()).arg(&cluster.root);
    command.arg(format!("127.0.0.1:{}", database.port())).arg(&tag);
    let output = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "node {index}:\n{out}\n{err}");
    out.replace(&tag, "TAG")
}

const HVAC: (&str, &str) = ("python3", "table.py");
const CURL: (&str, &str) = ("bash", "table.sh");

async fn alike_through(client: (&str, &str), nodes: usize) {
    let (cluster, database) = (Cluster::start(nodes).await, PostgresServer::start().await);
    database.execute("CREATE ROLE root_of_db SUPERUSER LOGIN PASSWORD 'root-pw'").await;
    let first = table(client, &cluster, 0, &database).await;
    assert!(first.ends_with("table done\n"));
    for index in 1..nodes {
        assert_eq!(table(client, &cluster, index, &database).await, first);
    }
    assert_eq!(database.users("v-").await, [""; 0], "every lease was revoked");
    cluster.check_logs(&[]);
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
