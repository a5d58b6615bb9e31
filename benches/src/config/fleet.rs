//! CP-06 and CP-07: replicas that are restarted and killed under clients that read and follow.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use holdfast_client::config::{Client, Event};
use holdfast_tests::config::{Replica, client};
use holdfast_tests::eventually_async;
use parking_lot::Mutex;
use tokio::task::JoinSet;

use crate::etcd::{Etcd, EtcdApi, put};
use crate::load::percentile;
use crate::report::{Row, ms};

const NAMES: usize = 20;
const READERS: usize = 32;
const STREAMS: usize = 100;

/// What the clients saw.
#[derive(Default)]
struct Saw {
    failed: usize,
    backward: usize,
    slowest: Duration,
    longest_gap: Duration,
    reads: Vec<Duration>,
}

/// What one stream was told: the newest number of each name, and when it last was told anything.
type Told = (HashMap<String, u64>, Instant);

struct Rig {
    replicas: Vec<Replica>,
    api: EtcdApi,
    saw: Arc<Mutex<Saw>>,
    stop: Arc<AtomicBool>,
    told: Arc<Mutex<Vec<Told>>>,
    tasks: JoinSet<()>,
    _etcd: Etcd,
}

fn number(bytes: &[u8]) -> u64 {
    std::str::from_utf8(bytes).ok().and_then(|text| text.parse().ok()).unwrap_or_default()
}

impl Rig {
    async fn start(grace: &str) -> Self {
        let etcd = Etcd::start().await;
        for i in 0..NAMES {
            assert!(etcd.put(0, &format!("k{i}"), "0").await);
        }
        let bindings: String = (0..NAMES).map(|i| format!("k{i} = \"etcd://k{i}\"\n")).collect();
        let lines = format!(
            "drain_grace = \"{grace}\"\naudit = {{ sink = \"off\" }}\n[upstream.etcd]\ntype = \"etcd\"\naddrs = [\"{}\"]\n[bindings]\n{bindings}",
            etcd.url(0)
        );
        let mut replicas = Vec::new();
        for _ in 0..3 {
            replicas.push(Replica::start(&lines).await);
        }
        let mut rig = Self {
            api: EtcdApi::new(etcd.url(0)),
            replicas,
            saw: Arc::default(),
            stop: Arc::default(),
            told: Arc::new(Mutex::new(vec![(HashMap::new(), Instant::now()); STREAMS])),
            tasks: JoinSet::new(),
            _etcd: etcd,
        };
        rig.readers();
        rig.streams();
        rig
    }

    fn client(&self, first: usize) -> Client {
        let mut endpoints: Vec<_> = self.replicas.iter().map(Replica::url).collect();
        endpoints.rotate_left(first % 3);
        client(endpoints)
    }

    /// 32 clients that read 200 times a second in all.
    fn readers(&mut self) {
        for reader in 0..READERS {
            let (client, saw, stop) = (self.client(reader), Arc::clone(&self.saw), Arc::clone(&self.stop));
            self.tasks.spawn(async move {
                let (mut newest, mut last, mut round) = (HashMap::new(), Instant::now(), reader);
                while !stop.load(Ordering::Relaxed) {
                    tokio::time::sleep(Duration::from_millis(160)).await;
                    let (name, asked) = (format!("k{}", round % NAMES), Instant::now());
                    round += 7;
                    let read = client.get(&name).await;
                    let mut saw = saw.lock();
                    saw.slowest = saw.slowest.max(asked.elapsed());
                    saw.reads.push(asked.elapsed());
                    let Ok(value) = read else {
                        saw.failed += 1;
                        continue;
                    };
                    saw.longest_gap = saw.longest_gap.max(last.elapsed());
                    last = Instant::now();
                    let (got, before) = (number(value.bytes.expose()), newest.entry(name).or_insert(0));
                    saw.backward += usize::from(got < *before);
                    *before = got.max(*before);
                }
            });
        }
    }

    fn streams(&mut self) {
        for stream in 0..STREAMS {
            let (client, saw, told) = (self.client(stream), Arc::clone(&self.saw), Arc::clone(&self.told));
            self.tasks.spawn(async move {
                let names: Vec<String> = (0..NAMES).map(|i| format!("k{i}")).collect();
                let mut watch = client.watch(names.iter().map(String::as_str)).unwrap();
                while let Some(event) = watch.next().await {
                    let Event::Update(value) = event else { continue };
                    let (got, mut told) = (number(value.bytes.expose()), told.lock());
                    let (newest, at) = &mut told[stream];
                    let before = newest.entry(value.name.to_string()).or_insert(0);
                    saw.lock().backward += usize::from(got < *before);
                    (*before, *at) = (got.max(*before), Instant::now());
                }
            });
        }
    }

    /// Ten changes a second for so long; the last number of each name.
    async fn change(api: EtcdApi, time: Duration) -> HashMap<String, u64> {
        let (begun, mut last) = (Instant::now(), HashMap::new());
        for change in 1.. {
            tokio::time::sleep_until((begun + Duration::from_millis(100) * change).into()).await;
            let name = format!("k{}", change as usize % NAMES);
            if put(&api, &name, &change.to_string()).await {
                last.insert(name, u64::from(change));
            }
            if begun.elapsed() > time {
                break;
            }
        }
        last
    }

    /// How many last values some stream was never told.
    async fn lost(&self, last: &HashMap<String, u64>) -> usize {
        let missing = || {
            let told = self.told.lock();
            let lacks = |(newest, _): &Told| {
                last.iter().filter(|(name, number)| newest.get(*name) != Some(*number)).count()
            };
            told.iter().map(lacks).sum::<usize>()
        };
        let begun = Instant::now();
        while missing() > 0 && begun.elapsed() < Duration::from_secs(10) {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        missing()
    }
}

/// CP-06.
pub async fn rolling_restart(time: Duration) -> Vec<Row> {
    let mut rig = Rig::start("2s").await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    *rig.saw.lock() = Saw::default();
    let changes = tokio::spawn(Rig::change(rig.api.clone(), time));
    let mut restarts = 0;
    while !changes.is_finished() {
        let victim = restarts % 3;
        rig.replicas[victim].terminate();
        rig.replicas[victim].process().wait(Duration::from_secs(30));
        rig.replicas[victim].run();
        rig.replicas[victim].wait_ready().await;
        restarts += 1;
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    let last = changes.await.unwrap();
    let lost = rig.lost(&last).await;
    rig.stop.store(true, Ordering::Relaxed);
    let saw = rig.saw.lock();
    vec![Row::new(
        "CP-06",
        &format!(
            "rolling restart for {} s, {restarts} restarts, {READERS} readers, {STREAMS} streams",
            time.as_secs()
        ),
        format!(
            "{} failed reads of {}, {} backward, {lost} lost last values, longest gap of a reader {}",
            saw.failed,
            saw.reads.len(),
            saw.backward,
            ms(saw.longest_gap)
        ),
        "-".to_owned(),
        "0, 0, 0, gap <= 500 ms",
        saw.failed + saw.backward + lost == 0 && saw.longest_gap <= Duration::from_millis(500),
    )]
}

/// CP-07.
pub async fn killed(time: Duration) -> Vec<Row> {
    let mut rig = Rig::start("0s").await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    *rig.saw.lock() = Saw::default();
    let changes = tokio::spawn(Rig::change(rig.api.clone(), time));
    tokio::time::sleep(time / 2).await;
    let killed = Instant::now();
    rig.replicas[0].kill();
    // Live again: every stream was told something after the kill.
    let told = Arc::clone(&rig.told);
    eventually_async(Duration::from_secs(30), "all streams are told again", || async {
        told.lock().iter().all(|(_, at)| *at > killed).then_some(())
    })
    .await;
    let live = killed.elapsed();
    let last = changes.await.unwrap();
    let lost = rig.lost(&last).await;
    rig.stop.store(true, Ordering::Relaxed);
    let mut saw = rig.saw.lock();
    saw.reads.sort();
    let slowest = saw.slowest;
    vec![Row::new(
        "CP-07",
        "kill -9 of one of three under the same load",
        format!(
            "{} failed reads, slowest {}, p99 {}, streams told again after {}, {lost} lost last values",
            saw.failed,
            ms(slowest),
            ms(percentile(&saw.reads, 99.0)),
            ms(live)
        ),
        "-".to_owned(),
        "0 failed, slowest <= 3.1 s, live <= 1 s",
        saw.failed + lost + saw.backward == 0
            && slowest <= Duration::from_millis(3100)
            && live <= Duration::from_secs(1),
    )]
}
