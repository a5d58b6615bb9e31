//! Clients, hub nodes and the database are killed while logins are made; at rest no user is left without a lease.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use holdfast_tests::api::Api;
use holdfast_tests::db::{ADMIN, ADMIN_PASSWORD, MariaDbServer, PostgresServer};
use holdfast_tests::eventually_async;
use holdfast_tests::hub::{Cluster, Options, PATIENCE};
use holdfast_tests::oracle::{Login, leases};
use holdfast_tests::soak::{Seed, scaled};
use serde_json::json;
use tokio::task::JoinSet;

/// A swept user is looked for once more after a minute, and its database may have been away before that.
const QUIET: Duration = Duration::from_secs(180);

#[derive(Clone, Copy, Debug)]
enum Victim {
    Clients,
    Active,
    Standby,
    Database,
}

/// Clients that ask for logins until they are told to stop or are dropped, each request within 5 s.
fn clients(cluster: &Cluster, stop: &Arc<AtomicBool>, issued: &Arc<AtomicUsize>) -> JoinSet<()> {
    let mut set = JoinSet::new();
    for index in 0..6 {
        let (api, stop, issued) = (cluster.api(index % 3), stop.clone(), issued.clone());
        set.spawn(async move {
            while !stop.load(Ordering::Relaxed) {
                let asked = Login::issue(&api, "database/creds/app");
                match tokio::time::timeout(Duration::from_secs(5), asked).await {
                    Ok(Some(_)) => drop(issued.fetch_add(1, Ordering::Relaxed)),
                    // sleep: a node that is down refuses at once.
                    Ok(None) | Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
                }
            }
        });
    }
    set
}

/// The database of a scenario.
enum Database {
    Postgres(PostgresServer),
    MariaDb(MariaDbServer),
}

impl Database {
    async fn setup(&self, api: &Api) {
        let server = match self {
            Self::Postgres(server) => return api.setup_postgres(server, "1h").await,
            Self::MariaDb(server) => server,
        };
        api.put("sys/mounts/database", json!({"type": "database"})).await.expect(204);
        let config = json!({
            "plugin_name": "mysql-database-plugin", "connection_url": server.url_template(),
            "allowed_roles": "app", "username": ADMIN, "password": ADMIN_PASSWORD,
        });
        api.put("database/config/my", config).await.expect(204);
        // Each of these commits by itself, so a creation can stop half-way.
        let create = [
            "CREATE USER '{{name}}'@'%' IDENTIFIED BY '{{password}}'",
            "CREATE USER '{{name}}'@'localhost'",
            "GRANT SELECT ON *.* TO '{{name}}'@'%'",
        ];
        let role = json!({"db_name": "my", "creation_statements": create, "default_ttl": "1h"});
        api.put("database/roles/app", role).await.expect(204);
    }

    fn kill(&mut self) {
        match self {
            Self::Postgres(server) => server.kill(),
            Self::MariaDb(server) => server.kill(),
        }
    }

    async fn resume(&mut self) {
        match self {
            Self::Postgres(server) => server.resume().await,
            Self::MariaDb(server) => server.resume().await,
        }
    }

    /// The users that we made, each once.
    async fn users(&self) -> Vec<String> {
        match self {
            Self::Postgres(server) => server.users("v-").await,
            Self::MariaDb(server) => {
                let sql = "SELECT DISTINCT User FROM mysql.user WHERE User LIKE 'v-%'";
                server.query(sql).await
            }
        }
    }

    /// Waits until there are as many users as leases.
    async fn settled(&self, api: &Api) {
        let begun = Instant::now();
        loop {
            let (users, leases) = (self.users().await.len(), leases(api, "database/creds/").await.len());
            if users == leases {
                return;
            }
            assert!(begun.elapsed() < QUIET, "not within {QUIET:?}: {users} users and {leases} leases");
            // sleep: between two looks.
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn kills_at_random_points_of_creation_leave_no_stray_user() {
    // A database that acknowledges what a crash takes back would leave leases without users.
    let database = PostgresServer::with_settings(&["synchronous_commit=on"]).await;
    kills(Database::Postgres(database), Seed::new("kills_at_random_points_of_creation")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn kills_at_random_points_of_creation_leave_no_stray_user_on_mariadb() {
    let mut database = MariaDbServer::start().await;
    database.stop();
    database.configure(&["innodb-flush-log-at-trx-commit=1".to_owned()]);
    database.resume().await;
    kills(Database::MariaDb(database), Seed::new("kills_on_mariadb")).await;
}

async fn kills(mut database: Database, mut seed: Seed) {
    let mut cluster = Cluster::start_with(Options::calm()).await;
    database.setup(&cluster.api(cluster.active().await)).await;
    let (stop, issued) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    for point in 0..scaled(20, 200) {
        let mut running = clients(&cluster, &stop, &issued);
        let begun = issued.load(Ordering::Relaxed);
        let flows = || async { (issued.load(Ordering::Relaxed) > begun).then_some(()) };
        let flowing = tokio::time::timeout(PATIENCE, eventually_async(PATIENCE * 2, "logins flow", flows));
        if flowing.await.is_err() {
            let reply = cluster.api(0).get("database/creds/app").await;
            panic!("no logins at point {point}: {} {}\n{}", reply.status, reply.body, cluster.log_ends(40));
        }
        let victim = [Victim::Clients, Victim::Active, Victim::Standby, Victim::Database][point % 4];
        seed.moment(Duration::from_micros(60_000)).await;
        match victim {
            // Dropping a request closes its connection, as the death of its process does.
            Victim::Clients => running.abort_all(),
            Victim::Active | Victim::Standby => {
                let active = cluster.active().await;
                let index = match victim {
                    Victim::Active => active,
                    _ => cluster.others(active)[0],
                };
                cluster.nodes[index].kill();
                seed.moment(Duration::from_micros(1_000_000)).await;
                cluster.nodes[index].start();
                cluster.nodes[index].wait_listening().await;
            }
            Victim::Database => {
                database.kill();
                seed.moment(Duration::from_micros(500_000)).await;
                database.resume().await;
            }
        }
        running.shutdown().await;
    }
    stop.store(true, Ordering::Relaxed);
    cluster.wait_complete().await;
    let issued = issued.load(Ordering::Relaxed);
    println!("{issued} logins were issued");
    let api = cluster.api(cluster.active().await);
    database.settled(&api).await;
    let left = database.users().await.len();
    assert!(left >= issued, "{left} users are left of {issued} logins that clients hold");
    cluster.check_logs(&[]);
}
