//! P-05 and P-06: what a login costs through a spoke, here and on a standby, against the direct plugin.

use std::time::Duration;

use holdfast_tests::api::Api;
use holdfast_tests::db::PostgresServer;
use holdfast_tests::hub::Cluster;
use holdfast_tests::oracle::Login;
use holdfast_tests::spoke::{Relay, owned, remote_config};
use serde_json::json;

use super::creds;
use crate::load::{Load, closed_loop, percentile};
use crate::report::{Row, ms};

/// One client's logins through each path in turn, so that whatever slows the machine down slows all of them.
async fn in_turn(api: &Api, paths: [&'static str; 3], time: Duration) -> [Load; 3] {
    let api = api.clone();
    let mut loads = [Load::default(), Load::default(), Load::default()];
    let begun = std::time::Instant::now();
    while begun.elapsed() < time {
        for (load, path) in loads.iter_mut().zip(paths) {
            let asked = std::time::Instant::now();
            match Login::issue(&api, path).await {
                Some(_) => load.latencies.push(asked.elapsed()),
                None => load.failed += 1,
            }
        }
    }
    loads.iter_mut().for_each(|load| load.latencies.sort());
    loads
}

/// A connection and a role in a group behind a spoke.
async fn behind(api: &Api, database: &PostgresServer, spoke: &str) {
    api.put(&format!("database/config/{spoke}"), remote_config(database, spoke)).await.expect(204);
    let role = json!({"db_name": spoke, "default_ttl": "1h", "max_ttl": "24h", "creation_statements": creds::IN_GROUP});
    api.put(&format!("database/roles/{spoke}"), role).await.expect(204);
}

/// P-05 and P-06.
pub async fn paths(quick: bool) -> Vec<Row> {
    let (cluster, database) = (Cluster::start(3).await, PostgresServer::start().await);
    let relay = Relay::set_up(&cluster).await;
    let active = cluster.active().await;
    let standby = cluster.others(active)[0];
    let _here = relay.spoke_on(&cluster, "here", active).await;
    let _there = relay.spoke_on(&cluster, "there", standby).await;
    owned(&cluster, "here", active).await;
    owned(&cluster, "there", standby).await;
    let api = cluster.api(active);
    creds::setup(&api, &database).await;
    behind(&api, &database, "here").await;
    behind(&api, &database, "there").await;
    let paths = [creds::GROUP, "database/creds/here", "database/creds/there"];
    drop(in_turn(&api, paths, Duration::from_secs(1)).await);
    let time = Duration::from_secs(if quick { 3 } else { 30 });
    let [direct, here, there] = in_turn(&api, paths, time).await;
    let busy = {
        let api = api.clone();
        closed_loop(16, time / 3, move |_, _| {
            let api = api.clone();
            async move { Login::issue(&api, "database/creds/there").await.is_some() }
        })
        .await
    };
    assert_eq!(cluster.active().await, active, "leadership moved: measure again");
    let p50 = |load: &Load| percentile(&load.latencies, 50.0);
    let (d, h, t) = (p50(&direct), p50(&here), p50(&there));
    let failed = direct.failed + here.failed + there.failed + busy.failed;
    let more = t.saturating_sub(h);
    let share = more.as_secs_f64() / h.as_secs_f64() * 100.0;
    let ratio = h.as_secs_f64() / d.as_secs_f64();
    vec![
        Row::new(
            "P-05",
            "login through a spoke on a standby, one client",
            format!("p50 {}, {failed} failed; 16 clients {:.0}/s", ms(t), busy.rate()),
            format!("spoke on the active node p50 {}: {} more, {share:.0} %", ms(h), ms(more)),
            "<= 2 ms and <= 10 % more",
            more <= Duration::from_millis(2) && share <= 10.0 && failed == 0,
        ),
        Row::new(
            "P-06",
            "login through a spoke on the active node, one client",
            format!("p50 {}", ms(h)),
            format!("direct plugin p50 {}: {ratio:.2} x", ms(d)),
            "<= 1.2 x",
            ratio <= 1.2 && failed == 0,
        ),
    ]
}
