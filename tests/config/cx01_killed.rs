//! CX-01 and CX-02: replicas die and come while clients read.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use holdfast_tests::backends::EtcdServer;
use holdfast_tests::config::{Replica, TOKEN, client};
use holdfast_tests::eventually_async;
use holdfast_tests::hub::PATIENCE;
use holdfast_tests::nginx::Nginx;
use holdfast_tests::upstream::{Script, Upstream};

/// Three replicas with a polled value `p`, and a value `v` whose revisions are ordered: two dates within a second say
/// nothing about which is newer.
async fn three(upstream: &Upstream, etcd: &EtcdServer) -> Vec<Replica> {
    let lines = format!(
        "{}[upstream.etcd]\ntype = \"etcd\"\naddrs = [\"{}\"]\n[bindings]\nv = \"etcd://v\"\n\
         p = {{ ref = \"https://web/p\", poll = \"1s\" }}\n",
        upstream.lines(),
        etcd.url()
    );
    let mut replicas = Vec::new();
    for _ in 0..3 {
        replicas.push(Replica::start(&lines).await);
    }
    replicas
}

/// The peers of the process's connections, as the kernel lists them.
fn peers(pid: u32) -> Vec<u16> {
    let table = std::fs::read_to_string(format!("/proc/{pid}/net/tcp")).unwrap();
    let inodes: Vec<String> = std::fs::read_dir(format!("/proc/{pid}/fd"))
        .unwrap()
        .filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok()?.to_str().map(str::to_owned))
        .filter_map(|link| link.strip_prefix("socket:[")?.strip_suffix(']').map(str::to_owned))
        .collect();
    let rows = table.lines().skip(1).map(|line| line.split_whitespace().collect::<Vec<_>>());
    let own = rows.filter(|row| inodes.iter().any(|inode| inode == row[9]));
    own.map(|row| u16::from_str_radix(row[2].rsplit(':').next().unwrap(), 16).unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn killing_each_in_turn_fails_no_read_and_moves_nobody_back() {
    let upstream = Upstream::start().await;
    upstream.set("/p", Script::ok("polled"));
    let etcd = EtcdServer::start().await;
    etcd.put("v", "0").await;
    let mut replicas = three(&upstream, &etcd).await;
    let (stop, endpoints) =
        (Arc::new(AtomicBool::new(false)), replicas.iter().map(Replica::url).collect::<Vec<_>>());
    let mut readers = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let (stop, endpoints) = (Arc::clone(&stop), endpoints.clone());
        readers.spawn(async move {
            let client = client(endpoints);
            let (mut reads, mut newest) = (0_u32, 0_u64);
            while !stop.load(Ordering::Relaxed) {
                let value = client.get("v").await.unwrap_or_else(|error| panic!("read {reads}: {error}"));
                let number: u64 = std::str::from_utf8(value.bytes.expose()).unwrap().parse().unwrap();
                assert!(number >= newest, "{newest} and then {number}");
                (reads, newest) = (reads + 1, number);
            }
            reads
        });
    }
    for (round, victim) in [0, 1, 2].into_iter().enumerate() {
        etcd.put("v", &(round + 1).to_string()).await;
        for replica in &replicas {
            replica.wait_value("v", &(round + 1).to_string()).await;
        }
        let ports: Vec<_> = replicas.iter().map(|replica| replica.port).collect();
        for replica in &mut replicas {
            let pid = replica.process().pid();
            assert!(peers(pid).iter().all(|port| !ports.contains(port)), "a replica talks to a replica");
        }
        replicas[victim].kill();
        let calls = upstream.count("/p");
        eventually_async(PATIENCE, "the others poll on", || async {
            (upstream.count("/p") > calls + 2).then_some(())
        })
        .await;
        replicas[victim].run();
        replicas[victim].wait_ready().await;
    }
    stop.store(true, Ordering::Relaxed);
    let reads: Vec<u32> = readers.join_all().await;
    assert!(reads.iter().all(|reads| *reads > 10), "{reads:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cold_replica_behind_a_balancer_gets_nothing_before_it_is_ready() {
    let upstream = Upstream::start().await;
    upstream.set("/v", Script::ok("v"));
    let lines = format!("{}[bindings]\nv = \"https://web/v\"\n", upstream.lines());
    let warm = Replica::start(&lines).await;
    let mut cold = Replica::prepare(&lines);
    upstream.then("/v", Script::Late(Duration::from_secs(3), "v".to_owned()));
    cold.run();
    cold.wait_listening().await;
    // The balancer's health check, made here: it lists who is ready, as a scheduler does.
    let mut served: BTreeMap<u16, usize> = BTreeMap::new();
    while cold.ready().await.unwrap().0 != 200 {
        let mut in_rotation = Vec::new();
        for replica in [&warm, &cold] {
            if replica.ready().await.unwrap().0 == 200 {
                in_rotation.push(replica.port);
            }
        }
        let nginx = Nginx::balance(&in_rotation);
        for port in &in_rotation {
            *served.entry(*port).or_default() += 1;
        }
        let api = holdfast_tests::api::Api::bare(nginx.url());
        api.with_header("authorization", &format!("Bearer {TOKEN}")).get("v1/values/v").await.expect(200);
    }
    assert!(served.contains_key(&warm.port), "the warm one served while the cold one primed");
    assert!(cold.audit().is_empty(), "the cold one was asked nothing: {:?}", cold.audit());
    cold.value("v").await.expect(200);
}
