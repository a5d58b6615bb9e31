//! CP-01, CP-02 and CP-11: reads by wrk, against nginx that serves the same bytes from a file.

use std::process::Command;
use std::time::Duration;

use holdfast_tests::config::{Replica, TOKEN};
use holdfast_tests::nginx::Nginx;
use holdfast_tests::upstream::{Script, Upstream};

use crate::load::percentile;
use crate::report::{Row, ms};

/// What one run of wrk saw.
#[derive(Clone, Copy, Debug, Default)]
struct Run {
    rate: f64,
    p99: Duration,
    failed: u64,
}

/// Starts wrk with one thread and 64 connections; on one core where it is named.
fn wrk(url: &str, time: Duration, core: Option<usize>) -> Command {
    let mut words: Vec<String> = Vec::new();
    if let Some(core) = core {
        words.extend(["taskset".into(), "-c".into(), core.to_string()]);
    }
    words.extend(["wrk", "-t1", "-c64", "--latency"].map(str::to_owned));
    words.extend([
        format!("-d{}s", time.as_secs()),
        "-H".into(),
        format!("Authorization: Bearer {TOKEN}"),
        url.to_owned(),
    ]);
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]);
    command
}

async fn measure(mut command: Command) -> Run {
    let output = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    let number = |line: &str| line.split_whitespace().last().unwrap().to_owned();
    let find = |start: &str| text.lines().map(str::trim).find(|line| line.starts_with(start)).map(number);
    let p99 = find("99%").unwrap();
    let split = p99.find(|c: char| c.is_alphabetic()).unwrap();
    let unit = match &p99[split..] {
        "us" => 1e-6,
        "ms" => 1e-3,
        _ => 1.0,
    };
    Run {
        rate: find("Requests/sec:").unwrap().parse().unwrap(),
        p99: Duration::from_secs_f64(p99[..split].parse::<f64>().unwrap() * unit),
        failed: find("Non-2xx or 3xx responses:").map_or(0, |n| n.parse().unwrap()),
    }
}

fn median(mut runs: Vec<Run>) -> Run {
    runs.sort_by(|a, b| a.rate.total_cmp(&b.rate));
    let mut p99: Vec<_> = runs.iter().map(|run| run.p99).collect();
    p99.sort();
    Run {
        p99: percentile(&p99, 50.0),
        failed: runs.iter().map(|run| run.failed).sum(),
        ..runs[runs.len() / 2]
    }
}

/// A policy of fifty rules of which the last one allows.
fn rules() -> String {
    let deny: String = (0..49)
        .map(|i| {
            format!(
                "[[policy.rule]]\nsubjects = [\"svc-{i}\"]\nnames = [\"team-{i}/**\", \"shared-?-{i}\"]\n"
            )
        })
        .collect();
    deny + "[[policy.rule]]\nsubjects = [\"reader\"]\nnames = [\"**\"]\n"
}

/// A replica whose value object of `v` has so many bytes, and those bytes.
async fn replica(size: usize, audit: &str, wrap: &[&str]) -> (Replica, Vec<u8>) {
    let mut filler = size;
    loop {
        let text = "x".repeat(filler);
        let lines = format!("{audit}{}[bindings]\nv = \"static:{text}\"\n", rules());
        let mut replica = Replica::prepare(&lines);
        replica.wrap(wrap);
        replica.run();
        replica.wait_ready().await;
        let body = replica.value("v").await.expect(200).bytes;
        match body.len().cmp(&size) {
            // The encoding grows by four bytes for three.
            std::cmp::Ordering::Greater => filler -= (body.len() - size).div_ceil(4) * 3,
            _ => return (replica, body),
        }
    }
}

fn nginx(body: &[u8], workers: &str) -> Nginx {
    let dir = std::env::temp_dir().join(format!("holdfast-bench-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    std::fs::write(dir.join("value.json"), body).unwrap();
    Nginx::with_workers(
        workers,
        &format!(
            "sendfile on;\ntcp_nopush on;\nkeepalive_requests 100000000;\nopen_file_cache max=100;\nopen_file_cache_valid 60s;\n\
             types {{ application/json json; }}\nserver {{\nlisten 127.0.0.1:PORT;\nroot {};\n}}",
            dir.display()
        ),
    )
}

const ROUNDS: usize = 3;

/// CP-01.
pub async fn against_nginx(time: Duration) -> Vec<Row> {
    let mut rows = Vec::new();
    for (audit, what, share) in [
        ("audit = { sink = \"off\" }\n", "audit off", 0.5),
        ("audit = { sink = \"file\", path = \"DIR/audit.log\" }\n", "audit to a file", 0.4),
    ] {
        let (replica, body) = replica(320, audit, &[]).await;
        let nginx = nginx(&body, "2");
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            ours.push(measure(wrk(&format!("{}/v1/values/v", replica.url()), time, None)).await);
            theirs.push(measure(wrk(&format!("{}/value.json", nginx.url()), time, None)).await);
        }
        let (ours, theirs) = (median(ours), median(theirs));
        let (ratio, slower) = (ours.rate / theirs.rate, ours.p99.as_secs_f64() / theirs.p99.as_secs_f64());
        rows.push(Row::new(
            "CP-01",
            &format!("cached reads of {} bytes, token, 50 rules, metrics, {what}", body.len()),
            format!("{:.0}/s, p99 {}, {} failed", ours.rate, ms(ours.p99), ours.failed),
            format!("nginx {:.0}/s, p99 {}: {ratio:.2} x, p99 {slower:.1} x", theirs.rate, ms(theirs.p99)),
            &format!(">= {share} x nginx's rate, <= 2 x its p99"),
            ratio >= share && slower <= 2.0 && ours.failed == 0,
        ));
    }
    rows
}

/// CP-02.
pub async fn on_one_core(time: Duration) -> Vec<Row> {
    let (replica, body) = replica(2048, "audit = { sink = \"off\" }\n", &["taskset", "-c", "0"]).await;
    let nginx = nginx(&body, "1;\nworker_cpu_affinity 01");
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        ours.push(measure(wrk(&format!("{}/v1/values/v", replica.url()), time, Some(1))).await);
        theirs.push(measure(wrk(&format!("{}/value.json", nginx.url()), time, Some(1))).await);
    }
    let (ours, theirs) = (median(ours), median(theirs));
    let ratio = ours.rate / theirs.rate;
    vec![Row::new(
        "CP-02",
        &format!("cached reads of {} bytes, each server on one core", body.len()),
        format!("{:.0}/s, p99 {}, {} failed", ours.rate, ms(ours.p99), ours.failed),
        format!(
            "nginx {:.0}/s: {ratio:.2} x; the nearest peer in Rust states 32 to 39 thousand a core",
            theirs.rate
        ),
        ">= 0.55 x nginx's",
        ratio >= 0.55 && ours.failed == 0,
    )]
}

/// CP-11.
pub async fn reloaded(time: Duration) -> Vec<Row> {
    let upstream = Upstream::start().await;
    for i in 0..1001 {
        upstream.set(&format!("/{i}"), Script::ok(&format!("value {i}")));
    }
    let lines = |last: usize| {
        let bindings: String = (0..999).map(|i| format!("n{i} = \"https://web/{i}\"\n")).collect();
        format!(
            "audit = {{ sink = \"off\" }}\n{}{}[defaults]\npoll = \"1h\"\n[bindings]\n{bindings}v = \"https://web/{last}\"\n",
            upstream.lines(),
            rules()
        )
    };
    let mut replica = Replica::start(&lines(999)).await;
    let mut watchers = super::watchers::Watchers::open(&replica, 100, |i| format!("n{i}"), None).await;
    watchers.synced().await;
    let url = format!("{}/v1/values/v", replica.url());
    let before = measure(wrk(&url, time, None)).await;
    let calls = upstream.asked().len();
    let under = tokio::spawn(measure(wrk(&url, time, None)));
    tokio::time::sleep(time / 4).await;
    replica.configure(&lines(1000));
    replica.reload();
    replica.wait_value("v", "value 1000").await;
    let during = under.await.unwrap();
    let calls = upstream.asked().len() - calls;
    let closed = watchers.closed();
    let ratio = during.p99.as_secs_f64() / before.p99.as_secs_f64();
    vec![Row::new(
        "CP-11",
        "reload with 1 of 1000 bindings changed, under reads and 100 streams",
        format!(
            "{calls} upstream calls, {closed} streams closed, p99 {}, {} failed",
            ms(during.p99),
            during.failed
        ),
        format!("p99 before {}: {ratio:.2} x", ms(before.p99)),
        "1 call, no stream closed, p99 <= 2 x",
        calls == 1 && closed == 0 && ratio <= 2.0 && during.failed == 0,
    )]
}
