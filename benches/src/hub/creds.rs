//! P-03 and P-04: how fast logins are issued, against the same statements over plain connections.

use std::sync::Arc;
use std::time::Duration;

use holdfast_tests::api::{Api, CREATE_ROLE};
use holdfast_tests::db::PostgresServer;
use holdfast_tests::hub::Cluster;
use holdfast_tests::oracle::Login;
use serde_json::json;
use tokio::sync::Mutex;

use crate::load::{Load, closed_loop};
use crate::report::{Row, ms};

/// Where a login is asked for whose rights come from a group: nothing is shared with other logins but the group.
pub const GROUP: &str = "database/creds/group";
/// Its creation statements, the way that PostgreSQL's manual grants rights to many users.
pub const IN_GROUP: &str = "CREATE ROLE \"{{name}}\" LOGIN PASSWORD '{{password}}' VALID UNTIL '{{expiration}}' IN ROLE bench_group;";

/// A database mount with the roles `app`, whose logins are granted a shared schema, and `group`.
pub async fn setup(api: &Api, database: &PostgresServer) {
    let session = database.session(holdfast_tests::db::ADMIN, holdfast_tests::db::ADMIN_PASSWORD).await;
    session
        .batch_execute("CREATE ROLE bench_group; GRANT USAGE ON SCHEMA public TO bench_group")
        .await
        .unwrap();
    api.setup_postgres(database, "1h").await;
    let role =
        json!({"db_name": "pg", "default_ttl": "1h", "max_ttl": "24h", "creation_statements": IN_GROUP});
    api.put("database/roles/group", role).await.expect(204);
}

/// A PostgreSQL that keeps what it acknowledges, as a real one does.
async fn durable_postgres() -> PostgresServer {
    PostgresServer::with_settings(&["fsync=on", "full_page_writes=on", "synchronous_commit=on"]).await
}

/// The same statements over 16 plain connections: what the database itself can do.
async fn floor(database: &PostgresServer, statements: &'static str, time: Duration) -> Load {
    let mut sessions = Vec::new();
    for _ in 0..16 {
        let session = database.session(holdfast_tests::db::ADMIN, holdfast_tests::db::ADMIN_PASSWORD).await;
        sessions.push(Arc::new(Mutex::new(session)));
    }
    closed_loop(16, time, move |client, round| {
        let session = sessions[client].clone();
        async move {
            let name = format!("floor-{client}-{round}");
            let sql = statements.replace("{{name}}", &name).replace("{{password}}", "Aa1-0123456789abcdef");
            let sql = sql.replace("{{expiration}}", "2099-01-01 00:00:00+00:00");
            let session = session.lock().await;
            // Concurrent grants on one schema collide; a sensible plain client waits a little and tries again.
            for attempt in 0..20 {
                if session.batch_execute(&format!("BEGIN; {sql} COMMIT;")).await.is_ok() {
                    return true;
                }
                let _ = session.batch_execute("ROLLBACK").await;
                let spread = rand::random::<u64>() % (2 << attempt.min(5));
                tokio::time::sleep(Duration::from_millis(1 + spread)).await;
            }
            false
        }
    })
    .await
}

async fn issue(nodes: usize, database: &PostgresServer, path: &'static str, time: Duration) -> Load {
    let cluster = Cluster::start(nodes).await;
    let active = cluster.active().await;
    let api = cluster.api(active);
    let audit = json!({"type": "file", "options": {"file_path": cluster.dir().join("audit.log")}});
    api.put("sys/audit/file", audit).await.expect(204);
    setup(&api, database).await;
    let load = closed_loop(32, time, move |_, _| {
        let api = api.clone();
        async move { Login::issue(&api, path).await.is_some() }
    })
    .await;
    drop(cluster);
    load
}

/// P-03.
pub async fn throughput(quick: bool) -> Vec<Row> {
    let time = Duration::from_secs(if quick { 2 } else { 15 });
    let mut rows = Vec::new();
    for (nodes, bound, text) in
        [(1, 0.60, "one node >= 60 % of the floor"), (3, 0.45, "three nodes >= 45 % of the floor")]
    {
        for (path, statements, sort) in [
            (GROUP, IN_GROUP, "rights by a group"),
            ("database/creds/app", CREATE_ROLE, "rights on a shared schema"),
        ] {
            let database = durable_postgres().await;
            let ours = issue(nodes, &database, path, time).await;
            let floor = floor(&database, statements, time).await;
            let ratio = ours.rate() / floor.rate();
            rows.push(Row::new(
                "P-03",
                &format!("logins, {sort}, 32 clients, fsync and audit on, nodes: {nodes}"),
                format!("{:.0}/s, p50 {}, {} failed", ours.rate(), ms(ours.percentile(50.0)), ours.failed),
                format!("same SQL over 16 connections {:.0}/s: {:.0} %", floor.rate(), ratio * 100.0),
                text,
                ratio >= bound && ours.failed == 0,
            ));
            eprintln!("P-03 nodes {nodes}, {sort}: {:.0} % of {:.0}/s", ratio * 100.0, floor.rate());
        }
    }
    rows
}

/// P-04.
pub async fn parallel(quick: bool) -> Vec<Row> {
    let (cluster, database) = (Cluster::start(1).await, PostgresServer::start().await);
    let api = cluster.api(0);
    api.setup_postgres(&database, "1h").await;
    let slow = format!("SELECT pg_sleep(0.2); {CREATE_ROLE}");
    api.put(
        "database/roles/slow",
        json!({"db_name": "pg", "creation_statements": slow, "default_ttl": "1h"}),
    )
    .await
    .expect(204);
    let measure = |clients: usize| {
        let api = api.clone();
        let time = Duration::from_secs(if quick { 1 } else { 5 });
        closed_loop(clients, time, move |_, _| {
            let api = api.clone();
            async move { Login::issue(&api, "database/creds/slow").await.is_some() }
        })
    };
    let (one, many) = (measure(1).await, measure(16).await);
    let ratio = many.percentile(50.0).as_secs_f64() / one.percentile(50.0).as_secs_f64();
    vec![Row::new(
        "P-04",
        "creation that sleeps 0.2 s, 16 at once",
        format!("p50 {}, {} failed", ms(many.percentile(50.0)), many.failed),
        format!("a single one p50 {}: {ratio:.2} x", ms(one.percentile(50.0))),
        "<= 2.5 x",
        ratio <= 2.5 && many.failed == 0,
    )]
}
