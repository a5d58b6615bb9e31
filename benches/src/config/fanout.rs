//! CP-03, CP-04 and CP-05: thousands of streams.

use std::collections::HashMap;
use std::io::Write as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use holdfast_tests::config::Replica;
use holdfast_tests::sse::Frames;
use rcgen::{CertificateParams, KeyPair};
use rustls::pki_types::CertificateDer;
use tokio::io::AsyncReadExt as _;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsConnector;

use super::watchers::{Seen, Watchers};
use crate::etcd::{Etcd, EtcdApi, put};
use crate::load::percentile;
use crate::report::{Row, ms};

/// Processor time and resident memory of a process so far.
fn usage(pid: u32) -> (Duration, u64) {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks: u64 = fields.iter().skip(11).take(2).filter_map(|f| f.parse::<u64>().ok()).sum();
    (Duration::from_millis(ticks * 10), resident_kib(pid))
}

/// Resident memory of a process.
pub fn resident_kib(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|text| text.split_whitespace().next()?.parse().ok()).unwrap_or_default()
}

fn lines(etcd: &Etcd, names: usize) -> String {
    let bindings: String = (0..names).map(|i| format!("k{i} = \"etcd://k{i}\"\n")).collect();
    format!(
        "audit = {{ sink = \"off\" }}\n[upstream.etcd]\ntype = \"etcd\"\naddrs = [\"{}\"]\n[bindings]\n{bindings}",
        etcd.url(0)
    )
}

/// CP-03.
pub async fn many_names(streams: usize, time: Duration) -> Vec<Row> {
    let names = (streams / 10).max(1);
    let etcd = Etcd::start().await;
    for i in 0..names {
        assert!(etcd.put(0, &format!("k{i}"), "before").await);
    }
    let replica = Replica::start(&lines(&etcd, names)).await;
    let mut watchers = Watchers::open(&replica, streams, |i| format!("k{}", i % names), None).await;
    watchers.synced().await;
    let api = EtcdApi::new(etcd.url(0));
    let (begun, mut acknowledged, mut sent) = (Instant::now(), HashMap::new(), 0_u32);
    let mut seen: Vec<Seen> = Vec::new();
    while begun.elapsed() < time {
        let due = begun + Duration::from_millis(20) * sent;
        tokio::time::sleep_until(due.into()).await;
        let text = format!("change-{sent}");
        assert!(put(&api, &format!("k{}", sent as usize % names), &text).await);
        acknowledged.insert(text, Instant::now());
        sent += 1;
        while let Ok(one) = watchers.seen.try_recv() {
            seen.push(one);
        }
    }
    let expected = sent as usize * streams / names;
    while let Ok(Some(one)) = tokio::time::timeout(Duration::from_secs(2), watchers.seen.recv()).await {
        seen.push(one);
    }
    // A change may reach its client before its writer has heard that it was made.
    let late = |one: &Seen| one.at.saturating_duration_since(*acknowledged.get(&one.text)?).into();
    let mut delays: Vec<Duration> = seen.iter().filter_map(late).collect();
    delays.sort();
    let (p50, p99) = (percentile(&delays, 50.0), percentile(&delays, 99.0));
    vec![Row::new(
        "CP-03",
        &format!("{streams} streams, {names} names, etcd, 50 changes/s"),
        format!("p50 {} p99 {}, {} of {expected} delivered", ms(p50), ms(p99), delays.len()),
        "from the acknowledged write; a server that polls every 200 ms is above 100 ms on average".to_owned(),
        "p50 < 3 ms, p99 < 10 ms, all delivered",
        p50 < Duration::from_millis(3) && p99 < Duration::from_millis(10) && delays.len() >= expected,
    )]
}

/// How long a bare loop of writes takes until the last of so many readers has the bytes.
async fn floor(streams: usize, bytes: usize, rounds: usize) -> Duration {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (send, mut seen) = tokio::sync::mpsc::channel(streams);
    let (mut sockets, mut readers) = (Vec::new(), tokio::task::JoinSet::new());
    for _ in 0..streams {
        let (dialled, accepted) = tokio::join!(TcpStream::connect(address), listener.accept());
        sockets.push(accepted.unwrap().0.into_std().unwrap());
        let (mut stream, send) = (dialled.unwrap(), send.clone());
        readers.spawn(async move {
            let mut buffer = vec![0; bytes];
            while stream.read_exact(&mut buffer).await.is_ok() {
                let _ = send.send(Instant::now()).await;
            }
        });
    }
    let frame = vec![b'x'; bytes];
    let mut took = Vec::new();
    for _ in 0..rounds {
        let begun = Instant::now();
        let writing = sockets.iter().map(|socket| socket.try_clone().unwrap()).collect::<Vec<_>>();
        let own = frame.clone();
        let writer = tokio::task::spawn_blocking(move || {
            for mut socket in writing {
                socket.write_all(&own).unwrap();
            }
        });
        let mut last = begun;
        for _ in 0..streams {
            last = last.max(seen.recv().await.unwrap());
        }
        writer.await.unwrap();
        took.push(last - begun);
    }
    readers.abort_all();
    took.sort();
    percentile(&took, 50.0)
}

/// CP-04.
pub async fn one_name(streams: usize, rounds: usize) -> Vec<Row> {
    let etcd = Etcd::start().await;
    assert!(etcd.put(0, "k0", "before").await);
    let replica = Replica::start(&lines(&etcd, 1)).await;
    let token = format!("Bearer {}", holdfast_tests::config::TOKEN);
    let mut sample = Frames::open(&replica.url(), "/v1/watch?name=k0", &[("authorization", &token)]).await;
    let frame = sample.next_of("update", Duration::from_secs(10)).await.raw.len() + 2;
    let mut watchers = Watchers::open(&replica, streams, |_| "k0".to_owned(), None).await;
    watchers.synced().await;
    let (api, mut took) = (EtcdApi::new(etcd.url(0)), Vec::new());
    for round in 0..rounds {
        let text = format!("change-{round}");
        assert!(put(&api, "k0", &text).await);
        let (acknowledged, mut missing) = (Instant::now(), streams);
        let mut last = acknowledged;
        while missing > 0 {
            let one =
                tokio::time::timeout(Duration::from_secs(20), watchers.seen.recv()).await.unwrap().unwrap();
            if one.text == text {
                (missing, last) = (missing - 1, last.max(one.at));
            }
        }
        took.push(last - acknowledged);
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    drop(watchers);
    took.sort();
    let (ours, floor) = (percentile(&took, 50.0), floor(streams, frame, rounds).await);
    let ratio = ours.as_secs_f64() / floor.as_secs_f64();
    vec![Row::new(
        "CP-04",
        &format!("one name, {streams} streams, {rounds} changes: the last delivery"),
        format!("p50 {}", ms(ours)),
        format!("a bare loop of writes of {frame} bytes {}: {ratio:.2} x", ms(floor)),
        "<= 2.5 x",
        ratio <= 2.5,
    )]
}

/// A replica with TLS, and a connector that trusts it.
async fn with_tls(lines: &str) -> (Replica, TlsConnector) {
    let key = KeyPair::generate().unwrap();
    let cert = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap().self_signed(&key).unwrap();
    let tls = "[[listener]]\nkind = \"tcp\"\naddr = \"127.0.0.1:PORT\"\ntls = { cert = \"tls.crt\", key = \"tls.key\" }\n";
    let mut replica = Replica::prepare(&format!("{lines}{tls}"));
    replica.write("tls.crt", &cert.pem());
    replica.write("tls.key", &key.serialize_pem());
    replica.run();
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from(cert.der().to_vec())).unwrap();
    let config = rustls::ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    let port = replica.port;
    holdfast_tests::eventually_async(Duration::from_secs(30), "the replica listens", || async move {
        TcpStream::connect(("127.0.0.1", port)).await.ok()
    })
    .await;
    (replica, TlsConnector::from(Arc::new(config)))
}

/// CP-05.
pub async fn idle(streams: usize, time: Duration) -> Vec<Row> {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let lines = "audit = { sink = \"off\" }\n[bindings]\nv = \"static:hello\"\n";
    let mut rows = Vec::new();
    for (tls, what, most) in [(false, "plain", 12.0), (true, "over TLS", 32.0)] {
        let (mut replica, connector) = match tls {
            true => with_tls(lines).await,
            false => (Replica::start(lines).await, TlsConnector::from(Arc::new(unused_tls()))),
        };
        let pid = replica.process().pid();
        let before = usage(pid).1;
        let mut watchers =
            Watchers::open(&replica, streams, |_| "v".to_owned(), tls.then_some(connector)).await;
        watchers.synced().await;
        tokio::time::sleep(time / 6).await;
        let (begun, (cpu, _)) = (Instant::now(), usage(pid));
        tokio::time::sleep(time).await;
        let (later, memory) = usage(pid);
        let share = (later - cpu).as_secs_f64() / begun.elapsed().as_secs_f64() * 100.0;
        let each = memory.saturating_sub(before) as f64 / streams as f64;
        rows.push(Row::new(
            "CP-05",
            &format!("{streams} idle streams, {what}"),
            format!("{share:.1} % of a core, {each:.1} KiB a stream, {} closed", watchers.closed()),
            format!("before them {before} KiB"),
            &format!("<= 2 % of a core, <= {most} KiB a stream"),
            share <= 2.0 && each <= most && watchers.closed() == 0,
        ));
    }
    rows
}

fn unused_tls() -> rustls::ClientConfig {
    rustls::ClientConfig::builder()
        .with_root_certificates(rustls::RootCertStore::empty())
        .with_no_client_auth()
}
