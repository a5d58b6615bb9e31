//! P-10: reads against the cheapest answer of the same node, writes against one client and against etcd.

use std::time::Duration;

use holdfast_tests::api::Api;
use holdfast_tests::hub::Cluster;
use serde_json::json;

use crate::etcd::{Etcd, EtcdApi, put};
use crate::load::{Load, closed_loop};
use crate::report::{Row, ms};

async fn reads(api: &Api, path: &'static str, time: Duration) -> Load {
    let api = api.clone();
    closed_loop(32, time, move |_, _| {
        let api = api.clone();
        async move { api.try_send("GET", path, None).await.is_ok_and(|reply| reply.status == 200) }
    })
    .await
}

async fn writes(api: &Api, clients: usize, time: Duration) -> Load {
    let api = api.clone();
    closed_loop(clients, time, move |client, round| {
        let api = api.clone();
        async move {
            let body = json!({"value": "x".repeat(256)}).to_string().into_bytes();
            let path = format!("kv/w{client}-{}", round % 100);
            api.try_send("PUT", &path, Some(body)).await.is_ok_and(|reply| reply.status == 204)
        }
    })
    .await
}

async fn etcd_writes(time: Duration) -> Load {
    let etcd = Etcd::start().await;
    let api = EtcdApi::new(etcd.url(etcd.leader().await));
    let load = closed_loop(32, time, move |client, round| {
        let api = api.clone();
        async move { put(&api, &format!("w{client}-{}", round % 100), &"x".repeat(256)).await }
    })
    .await;
    drop(etcd);
    load
}

/// P-10.
pub async fn rates(quick: bool) -> Vec<Row> {
    let time = Duration::from_secs(if quick { 1 } else { 10 });
    let cluster = Cluster::start(3).await;
    let api = cluster.api(cluster.active().await);
    api.put("sys/mounts/kv", json!({"type": "kv"})).await.expect(204);
    api.put("kv/hot", json!({"value": "x".repeat(256)})).await.expect(204);
    let (health, read) = (reads(&api, "sys/health", time).await, reads(&api, "kv/hot", time).await);
    let (single, many) = (writes(&api, 1, time).await, writes(&api, 32, time).await);
    drop(cluster);
    let etcd = etcd_writes(time).await;
    let read_ratio = read.rate() / health.rate();
    let (gain, peer) = (many.rate() / single.rate(), many.rate() / etcd.rate());
    vec![
        Row::new(
            "P-10",
            "kv reads, 32 clients, three nodes",
            format!("{:.0}/s, p50 {}, {} failed", read.rate(), ms(read.percentile(50.0)), read.failed),
            format!("sys/health {:.0}/s: {:.0} %", health.rate(), read_ratio * 100.0),
            ">= 40 %",
            read_ratio >= 0.4 && read.failed == 0,
        ),
        Row::new(
            "P-10",
            "kv writes, 32 clients, three nodes",
            format!("{:.0}/s, p50 {}, {} failed", many.rate(), ms(many.percentile(50.0)), many.failed),
            format!(
                "1 client {:.0}/s: {gain:.1} x; etcd puts {:.0}/s: {peer:.2} x",
                single.rate(),
                etcd.rate()
            ),
            ">= 4 x and >= 0.5 x",
            gain >= 4.0 && peer >= 0.5 && many.failed == 0,
        ),
    ]
}
