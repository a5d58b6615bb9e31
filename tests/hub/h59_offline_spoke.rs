//! H-59: leases wait for a spoke that is away, and are revoked as soon as it is back.

use std::time::{Duration, Instant};

use holdfast_tests::api::Api;
use holdfast_tests::db::PostgresServer;
use holdfast_tests::eventually_async;
use holdfast_tests::hub::{Cluster, Options, PATIENCE};
use holdfast_tests::oracle::{Login, leases};
use holdfast_tests::spoke::{Relay, owned, remote_config, setup_remote};

async fn attempts(api: &Api, outcome: &str) -> u64 {
    api.metric(&format!("holdfast_hub_revoke_total{{outcome=\"{outcome}\"}}")).await
}

#[tokio::test(flavor = "multi_thread")]
async fn leases_wait_for_an_offline_spoke_and_go_when_it_is_back() {
    let (cluster, database) = (Cluster::start_with(Options::calm()).await, PostgresServer::start().await);
    let relay = Relay::set_up(&cluster).await;
    let active = cluster.active().await;
    let standbys = cluster.others(active);
    let mut spoke = relay.spoke_on(&cluster, "spoke-1", standbys[0]).await;
    setup_remote(&cluster, active, &database, "spoke-1", "2s").await;
    let api = cluster.api(active);
    let login = Login::issue(&api, "database/creds/app").await.expect("a login");
    spoke.kill();

    let text = "spoke not connected: \"spoke-1\"";
    let refused = || async {
        let reply = api.get("database/creds/app").await;
        (reply.status == 503 && reply.errors().iter().any(|error| error.contains(text))).then_some(())
    };
    eventually_async(PATIENCE, "a login is refused with the name of the spoke", refused).await;
    let reply = api.put("database/config/other", remote_config(&database, "spoke-1")).await;
    reply.expect_error(400, &format!("error creating database object: {text}"));
    api.get("database/config/other").await.expect(404);

    // By the fifth try the pause between tries is so long that only the spoke's return can explain what comes.
    let tried = || async { (attempts(&api, "deferred").await >= 5).then_some(()) };
    eventually_async(PATIENCE * 3, "the revocation was put off five times", tried).await;
    assert_eq!(leases(&api, "database/creds/").await, [login.lease.as_str()]);
    assert_eq!(database.users("v-").await.len(), 1);
    for outcome in ["failed", "irrevocable", "revoked"] {
        assert_eq!(attempts(&api, outcome).await, 0, "{outcome}");
    }

    relay.balancer.pick(standbys[1]);
    spoke.start(&relay.shared(), &[]);
    owned(&cluster, "spoke-1", standbys[1]).await;
    let back = Instant::now();
    let gone = || async {
        let left = leases(&api, "database/creds/").await.len() + database.users("v-").await.len();
        (left == 0).then_some(())
    };
    // The product promises to begin within a second; a shared machine gets some more.
    eventually_async(Duration::from_secs(5), "lease and user are gone", gone).await;
    println!("revoked {:?} after the spoke was routable", back.elapsed());
    assert_eq!(attempts(&api, "failed").await, 0);
    cluster.check_logs(&[]);
}
