//! Clients that were written for other servers do their whole table through every node.

use std::path::Path;
use std::process::Command;

use holdfast_tests::db::PostgresServer;
use holdfast_tests::hub::Cluster;

/// The output of the Python table through one node, with what differs by node taken out.
async fn table(cluster: &Cluster, index: usize, database: &PostgresServer) -> String {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("clients/table.py");
    let tag = format!("t{index}");
    let mut command = Command::new("python3");
    command.arg(script).arg(cluster.nodes[index].url()).arg(&cluster.root);
    command.arg(format!("127.0.0.1:{}", database.port())).arg(&tag);
    let output = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "node {index}:\n{out}\n{err}");
    out.replace(&tag, "TAG")
}

#[tokio::test(flavor = "multi_thread")]
async fn hvac_does_its_table_through_each_of_three_nodes_alike() {
    let (cluster, database) = (Cluster::start(3).await, PostgresServer::start().await);
    database.execute("CREATE ROLE root_of_db SUPERUSER LOGIN PASSWORD 'root-pw'").await;
    let first = table(&cluster, 0, &database).await;
    assert!(first.ends_with("table done\n"));
    for index in 1..3 {
        assert_eq!(table(&cluster, index, &database).await, first);
    }
    assert_eq!(database.users("v-").await, [""; 0], "every lease was revoked");
    cluster.check_logs(&[]);
}

#[tokio::test(flavor = "multi_thread")]
async fn hvac_does_its_table_on_a_single_node() {
    let (cluster, database) = (Cluster::start(1).await, PostgresServer::start().await);
    database.execute("CREATE ROLE root_of_db SUPERUSER LOGIN PASSWORD 'root-pw'").await;
    assert!(table(&cluster, 0, &database).await.ends_with("table done\n"));
    cluster.check_logs(&[]);
}
