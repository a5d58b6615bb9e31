//! CP-08 to CP-10 and CP-12: what upstreams bear, and how a replica starts.

use std::time::{Duration, Instant};

use holdfast_tests::config::Replica;
use holdfast_tests::eventually_async;
use holdfast_tests::upstream::{Script, Upstream};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::fanout::resident_kib;
use crate::load::closed_loop;
use crate::report::{Row, ms};

const OFF: &str = "audit = { sink = \"off\" }\n";

/// CP-08.
pub async fn upstream_load(time: Duration) -> Vec<Row> {
    let upstream = Upstream::start().await;
    let keys: String = (0..10).map(|i| format!("\"k{i}\":\"v{i}\",")).collect();
    for object in 0..20 {
        upstream.set(&format!("/o{object}"), Script::ok(&format!("{{{}}}", keys.trim_end_matches(','))));
    }
    let bindings: String =
        (0..200).map(|i| format!("n{i} = \"https://web/o{}#k{}\"\n", i % 20, i / 20)).collect();
    let lines = format!("{OFF}{}[defaults]\npoll = \"2s\"\n[bindings]\n{bindings}", upstream.lines());
    let calls = |replicas: usize| {
        let (lines, upstream) = (lines.clone(), &upstream);
        async move {
            let mut all = Vec::new();
            for _ in 0..replicas {
                all.push(Replica::start(&lines).await);
            }
            let before = upstream.asked().len();
            tokio::time::sleep(time).await;
            let quiet = upstream.asked().len() - before;
            let apis: Vec<_> = all.iter().map(Replica::api).collect();
            let before = upstream.asked().len();
            let load = closed_loop(1000, time, move |client, round| {
                let api = apis[client % apis.len()].clone();
                async move {
                    tokio::time::sleep(Duration::from_millis(200)).await;
                    api.get(&format!("v1/values/n{}", (client + round) % 200)).await.status == 200
                }
            })
            .await;
            (quiet, upstream.asked().len() - before, load)
        }
    };
    let (quiet, read, load) = calls(1).await;
    let (thrice, _, _) = calls(3).await;
    let minute = 60.0 / time.as_secs_f64();
    let (quiet, read, thrice) = (quiet as f64 * minute, read as f64 * minute, thrice as f64 * minute);
    let near = |calls: f64, wanted: f64| (calls / wanted - 1.0).abs() <= 0.2;
    vec![Row::new(
        "CP-08",
        "200 bindings on 20 objects, poll 2 s: upstream calls a minute",
        format!(
            "{quiet:.0} with no reader, {read:.0} with 1000 ({:.0} reads/s, {} failed)",
            load.rate(),
            load.failed
        ),
        format!("three replicas {thrice:.0}: {:.2} x", thrice / quiet),
        "600 +- 20 % for both, three times that for three",
        near(quiet, 600.0) && near(read, 600.0) && near(thrice, 1800.0) && load.failed == 0,
    )]
}

fn many(upstream: &Upstream, count: usize, more: &str) -> String {
    let bindings: String = (0..count).map(|i| format!("n{i} = \"https://web/{i}\"\n")).collect();
    format!("{OFF}{more}{}[bindings]\n{bindings}", upstream.lines())
}

/// From the start of the process until it is ready.
async fn until_ready(replica: &mut Replica) -> Duration {
    let begun = Instant::now();
    replica.run();
    eventually_async(Duration::from_secs(120), "the replica is ready", || async {
        (replica.ready().await?.0 == 200).then_some(())
    })
    .await;
    begun.elapsed()
}

/// CP-09.
pub async fn cold(count: usize) -> Vec<Row> {
    let upstream = Upstream::start().await;
    for i in 0..count {
        upstream.set(&format!("/{i}"), Script::Late(Duration::from_millis(20), format!("value {i}")));
    }
    let mut replica = Replica::prepare(&many(&upstream, count, ""));
    let took = until_ready(&mut replica).await;
    let bound =
        Duration::from_millis(20) * u32::try_from(count).unwrap() / 16 * 3 / 2 + Duration::from_millis(500);
    let (most, calls) = (upstream.most_at_once(), upstream.asked().len());
    vec![Row::new(
        "CP-09",
        &format!("cold start, {count} objects, upstream latency 20 ms"),
        format!("ready after {}, at most {most} connections, {calls} calls", ms(took)),
        format!(
            "{count}/16 x 20 ms = {}",
            ms(Duration::from_millis(20) * u32::try_from(count).unwrap() / 16)
        ),
        &format!("<= {}, <= 16 connections", ms(bound)),
        took <= bound && most <= 16,
    )]
}

/// CP-10.
pub async fn outage(count: usize) -> Vec<Row> {
    let upstream = Upstream::start().await;
    for i in 0..count {
        upstream.set(&format!("/{i}"), Script::ok(&format!("value {i}")));
    }
    let lkg = "lkg = { dir = \"DIR/lkg\", key_file = \"DIR/lkg.key\" }\n";
    let mut replica = Replica::prepare(&many(&upstream, count, lkg));
    std::fs::create_dir_all(replica.path("lkg")).unwrap();
    replica.write("lkg.key", &"0123456789abcdef".repeat(4));
    until_ready(&mut replica).await;
    replica.terminate();
    replica.process().wait(Duration::from_secs(30));
    for i in 0..count {
        upstream.set(&format!("/{i}"), Script::status(503));
    }
    let took = until_ready(&mut replica).await;
    let mut served = 0;
    for i in 0..count {
        let reply = replica.value(&format!("n{i}")).await;
        served += usize::from(reply.status == 200 && reply.body["stale"] == true);
    }
    vec![Row::new(
        "CP-10",
        &format!("cold start in an outage with {count} records of last-known-good values"),
        format!("ready after {}, {served} served as stale", ms(took)),
        "-".to_owned(),
        "<= 2 s, all served",
        took <= Duration::from_secs(2) && served == count,
    )]
}

/// Until the readiness probe answers at all, by a bare socket that is tried every millisecond.
async fn first_answer(port: u16) -> String {
    loop {
        if let Ok(mut stream) = tokio::net::TcpStream::connect(("127.0.0.1", port)).await {
            let asked = b"GET /v1/readyz HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n";
            let mut text = String::new();
            if stream.write_all(asked).await.is_ok() && stream.read_to_string(&mut text).await.is_ok() {
                return text;
            }
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// CP-12.
pub async fn idle() -> Vec<Row> {
    let upstream = Upstream::start().await;
    for i in 0..1000 {
        upstream.set(&format!("/{i}"), Script::Late(Duration::from_millis(300), "x".repeat(320)));
    }
    let mut starts = Vec::new();
    let mut replica = Replica::prepare(&many(&upstream, 1000, "[defaults]\npoll = \"1h\"\n"));
    let mut said = String::new();
    for _ in 0..5 {
        let begun = Instant::now();
        replica.run();
        said = first_answer(replica.port).await;
        starts.push(begun.elapsed());
    }
    starts.sort();
    assert!(said.contains("priming"), "{said}");
    replica.wait_ready().await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    let memory = resident_kib(replica.process().pid()) as f64 / 1024.0;
    let start = starts[starts.len() / 2];
    vec![Row::new(
        "CP-12",
        "1000 bindings of 320 bytes, idle",
        format!("{memory:.1} MiB, {} from its start to the first priming answer", ms(start)),
        "-".to_owned(),
        "<= 30 MiB, <= 100 ms",
        memory <= 30.0 && start <= Duration::from_millis(100),
    )]
}
