//! The replicated store with several nodes in one process, over real cluster ports on loopback.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::disallowed_methods
)]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use holdfast_core::Term;
use holdfast_hub::cluster::{Cluster, ClusterError, NodeAddress, NodeName};
use holdfast_hub::store::{
    Batch, CommitError, Condition, NoObserver, Op, OpenStore, RAFT_ALPN, RaftStore, RaftTiming, Store, open,
    peek,
};
use holdfast_net::cluster::{ClusterIdentity, ClusterPort, PeerPool};
use holdfast_ops::Tasks;
use tempfile::TempDir;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

const SOON: Duration = Duration::from_secs(20);

struct Rig {
    identity: ClusterIdentity,
    folder: TempDir,
    timing: RaftTiming,
}

struct Node {
    name: NodeName,
    store: RaftStore,
    tasks: Tasks,
    pool: PeerPool,
    address: NodeAddress,
    cut: watch::Sender<bool>,
    port: String,
}

impl Rig {
    fn new() -> Self {
        Self::with(RaftTiming::default())
    }

    fn with(timing: RaftTiming) -> Self {
        if std::env::var_os("HOLDFAST_LOG").is_some() {
            drop(holdfast_ops::telemetry::init(holdfast_ops::telemetry::Format::Text, None));
        }
        Self { identity: ClusterIdentity::generate().unwrap(), folder: TempDir::new().unwrap(), timing }
    }

    fn dir(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    async fn start(&self, name: &str) -> Node {
        self.start_at(name, &self.dir(name), None).await
    }

    /// Starts a node in `dir`; `before` is the node that it was, whose addresses it takes over.
    async fn start_at(&self, name: &str, dir: &Path, before: Option<&Node>) -> Node {
        let tasks = Tasks::new(name);
        let bind = before.map_or("127.0.0.1:0", |node| node.port.as_str());
        let mut port = ClusterPort::bind(bind, self.identity.clone()).await.unwrap();
        let port_address = port.local_addr().to_string();
        let (cut, is_cut) = watch::channel(false);
        let front = TcpListener::bind(before.map_or("127.0.0.1:0", |node| node.address.cluster.as_str()));
        let front = front.await.unwrap();
        let address = NodeAddress {
            cluster: front.local_addr().unwrap().to_string(),
            api: format!("http://{name}.example:8200"),
        };
        tasks.spawn_until_cancelled("front", proxy(front, port_address.clone(), is_cut, tasks.clone()));
        let pool = PeerPool::new(self.identity.clone(), &tasks);
        let store = open(OpenStore {
            data_dir: dir.to_owned(),
            node: NodeName(name.into()),
            address: address.clone(),
            pool: pool.clone(),
            timing: self.timing,
            observer: Arc::new(NoObserver),
            tasks: tasks.clone(),
        })
        .await
        .unwrap();
        port.register(RAFT_ALPN, store.service());
        port.serve(&tasks).unwrap();
        Node { name: NodeName(name.into()), store, tasks, pool, address, cut, port: port_address }
    }

    /// Three voters; the first one leads.
    async fn three(&self) -> [Node; 3] {
        let first = self.start("a").await;
        first.store.initialize().await.unwrap();
        let (second, third) = (self.start("b").await, self.start("c").await);
        for node in [&second, &third] {
            first.store.add(node.name.clone(), node.address.clone(), false).await.unwrap();
        }
        eventually("three voters everywhere", || {
            [&first, &second, &third].iter().all(|node| voters(&node.store).len() == 3)
        })
        .await;
        // Returns only once the change that made the last one a voter has left its joint phase.
        first.store.promote(&third.name).await.unwrap();
        let index = first.store.membership_index();
        eventually("one membership everywhere", || {
            [&second, &third].iter().all(|node| node.store.membership_index() == index)
        })
        .await;
        [first, second, third]
    }
}

/// Forwards to the node's port, unless it is cut: then nothing passes, and nothing is closed.
async fn proxy(front: TcpListener, back: String, cut: watch::Receiver<bool>, tasks: Tasks) {
    loop {
        let Ok((client, _)) = front.accept().await else { return };
        let (back, mut cut) = (back.clone(), cut.clone());
        tasks.spawn_until_cancelled("proxy", async move {
            let Ok(server) = TcpStream::connect(back).await else { return };
            let (mut client, mut server) = (client, server);
            loop {
                let _ = cut.wait_for(|cut| !cut).await;
                let mut stop = cut.clone();
                tokio::select! {
                    _ = tokio::io::copy_bidirectional(&mut client, &mut server) => return,
                    _ = stop.wait_for(|cut| *cut) => {}
                }
            }
        });
    }
}

impl Node {
    fn isolate(&self, isolated: bool) {
        self.cut.send_replace(isolated);
        self.pool.isolate(isolated);
    }

    /// Ends the node without handing anything over.
    async fn kill(&self) {
        self.pool.isolate(true);
        self.store.shutdown().await;
        self.tasks.cancel();
        self.tasks.wait(Duration::from_secs(15)).await.unwrap();
    }

    fn is_active(&self) -> bool {
        self.store.view().active.is_some()
    }
}

fn voters(store: &RaftStore) -> BTreeSet<String> {
    store.members().into_iter().filter(|member| member.voter).map(|member| member.node.0).collect()
}

async fn eventually(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + SOON;
    while !condition() {
        assert!(Instant::now() < deadline, "never came true: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn put(key: &str, value: &str) -> Batch {
    Batch { conditions: vec![], ops: vec![Op::Put { key: key.into(), value: value.into() }] }
}

fn value(store: &RaftStore, key: &str) -> Option<String> {
    store.read(key).unwrap().map(|found| String::from_utf8(found.value).unwrap())
}

/// Writes through whichever node is active until it succeeds.
async fn write(nodes: &[&Node], key: &str, text: &str) {
    let deadline = Instant::now() + SOON;
    loop {
        for node in nodes.iter().filter(|node| node.is_active()) {
            if node.store.commit(put(key, text)).await.is_ok() {
                return;
            }
        }
        assert!(Instant::now() < deadline, "nobody took the write of {key}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn active<'a>(nodes: &[&'a Node]) -> Option<&'a Node> {
    nodes.iter().find(|node| node.is_active()).copied()
}

#[tokio::test(flavor = "multi_thread")]
async fn one_node_keeps_what_it_acknowledged() {
    let rig = Rig::new();
    let node = rig.start("a").await;
    assert!(matches!(node.store.commit(put("k", "v")).await, Err(CommitError::NotLeader)));
    node.store.initialize().await.unwrap();
    let first = node.store.commit(put("k", "1")).await.unwrap();
    let second = Batch { conditions: vec![Condition::Version("k".into(), first.version)], ..put("k", "2") };
    assert!(node.store.commit(second.clone()).await.unwrap().version > first.version);
    assert!(matches!(node.store.commit(second).await, Err(CommitError::Refused(Condition::Version(..)))));
    let late = Batch { conditions: vec![Condition::Term(Term::new(99))], ..put("late", "x") };
    assert!(matches!(node.store.commit(late).await, Err(CommitError::Refused(Condition::Term(_)))));
    assert!(node.store.initialize().await.is_err());
    node.kill().await;
    assert_eq!(peek(&rig.dir("a"), "k").unwrap().unwrap(), b"2");

    let again = rig.start_at("a", &rig.dir("a"), Some(&node)).await;
    eventually("active again", || again.is_active()).await;
    assert_eq!(value(&again.store, "k").as_deref(), Some("2"));
    assert_eq!(value(&again.store, "late"), None);
    again.kill().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn writers_share_syncs() {
    let rig = Rig::new();
    let node = rig.start("a").await;
    node.store.initialize().await.unwrap();
    let before = node.store.log_commits();
    let writers: Vec<_> = (0..32)
        .map(|writer| {
            let store = node.store.clone();
            node.tasks.spawn("writer", async move {
                for n in 0..20 {
                    store.commit(put(&format!("w/{writer}/{n}"), "v")).await.unwrap();
                }
            })
        })
        .collect();
    for writer in writers {
        writer.join().await.unwrap();
    }
    let commits = node.store.log_commits() - before;
    assert!(commits < 320, "{commits} syncs for 640 writes");
    assert_eq!(node.store.count("w/").unwrap(), 640);
    node.kill().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_leader_is_replaced_and_nothing_acknowledged_is_lost() {
    let rig = Rig::new();
    let [a, b, c] = rig.three().await;
    let changes = Arc::new(AtomicU64::new(0));
    let seen = Arc::clone(&changes);
    b.store.on_applied(Arc::new(move |keys| _ = seen.fetch_add(keys.len() as u64, Ordering::Relaxed)));
    for n in 0..50 {
        a.store.commit(put(&format!("k/{n}"), "v")).await.unwrap();
    }
    eventually("hooks of the follower", || changes.load(Ordering::Relaxed) == 50).await;
    let leader = b.store.view().leader.unwrap();
    assert_eq!((leader.node, leader.address.api), (a.name.clone(), a.address.api.clone()));
    let term = a.store.view().active.unwrap();
    let killed = Instant::now();
    a.kill().await;
    eventually("a new leader", || active(&[&b, &c]).is_some()).await;
    println!("new leader after {:?}", killed.elapsed());
    let new = active(&[&b, &c]).unwrap();
    assert!(new.store.view().active.unwrap() > term);
    assert_eq!(new.store.count("k/").unwrap(), 50);
    write(&[&b, &c], "after", "1").await;

    let again = rig.start_at("a", &rig.dir("a"), Some(&a)).await;
    eventually("the killed node follows", || value(&again.store, "after").is_some()).await;
    assert_eq!(again.store.count("k/").unwrap(), 50);
    let term = new.store.view().active;
    tokio::time::sleep(Duration::from_millis(1500)).await;
    assert_eq!(new.store.view().active, term, "the returning node disturbed the leader");
    for node in [&again, &b, &c] {
        node.kill().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_isolated_leader_is_inactive_within_a_second_and_does_not_disturb_on_return() {
    let rig = Rig::new();
    let [a, b, c] = rig.three().await;
    let before = a.store.view().active.unwrap();
    a.isolate(true);
    let cut = Instant::now();
    eventually("the old leader steps back", || !a.is_active()).await;
    assert!(cut.elapsed() < Duration::from_secs(1), "{:?}", cut.elapsed());
    eventually("a new leader", || active(&[&b, &c]).is_some()).await;
    println!("inactive and replaced after {:?}", cut.elapsed());
    let new = active(&[&b, &c]).unwrap();
    let term = new.store.view().active.unwrap();
    assert!(term > before);
    eventually("the isolated node knows of no leader", || a.store.view().leader.is_none()).await;
    write(&[&b, &c], "k", "1").await;
    // Long enough for several elections, if the isolated node held any.
    tokio::time::sleep(Duration::from_secs(3)).await;
    a.isolate(false);
    eventually("the returned node follows", || value(&a.store, "k").is_some()).await;
    assert_eq!(new.store.view().active, Some(term), "the returning node deposed the leader");

    // The same with a follower.
    let follower = [&b, &c].into_iter().find(|node| !node.is_active()).unwrap();
    follower.isolate(true);
    tokio::time::sleep(Duration::from_secs(3)).await;
    follower.isolate(false);
    write(&[&a, &b, &c], "k", "2").await;
    eventually("the follower is back", || value(&follower.store, "k").as_deref() == Some("2")).await;
    assert_eq!(new.store.view().active, Some(term), "the returning follower deposed the leader");
    for node in [&a, &b, &c] {
        node.kill().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn stepping_down_under_writers_is_short_and_loses_nothing() {
    let rig = Rig::new();
    let [a, b, c] = rig.three().await;
    let stores: Vec<_> = [&a, &b, &c].iter().map(|node| node.store.clone()).collect();
    let stop = a.tasks.token().child_token();
    let longest = Arc::new(AtomicU64::new(0));
    let writers: Vec<_> = (0..32)
        .map(|writer| {
            let (stores, stop, longest) = (stores.clone(), stop.clone(), Arc::clone(&longest));
            b.tasks.spawn("writer", async move {
                let (mut acknowledged, mut last) = (Vec::new(), Instant::now());
                for n in 0.. {
                    if stop.is_cancelled() {
                        break;
                    }
                    let key = format!("w/{writer}/{n}");
                    let active = stores.iter().find(|store| store.view().active.is_some());
                    let taken = match active {
                        Some(store) => store.commit(put(&key, "v")).await.is_ok(),
                        None => false,
                    };
                    if taken {
                        let gap = u64::try_from(last.elapsed().as_millis()).unwrap();
                        longest.fetch_max(gap, Ordering::Relaxed);
                        last = Instant::now();
                        acknowledged.push(key);
                    } else {
                        tokio::time::sleep(Duration::from_millis(5)).await;
                    }
                }
                acknowledged
            })
        })
        .collect();
    tokio::time::sleep(Duration::from_millis(1000)).await;
    for _ in 0..3 {
        eventually("somebody is active", || active(&[&a, &b, &c]).is_some()).await;
        let leader = active(&[&a, &b, &c]).unwrap();
        let asked = Instant::now();
        leader.store.step_down().await.unwrap();
        println!("step-down answered after {:?}", asked.elapsed());
        assert!(asked.elapsed() < Duration::from_secs(2) && !leader.is_active());
        tokio::time::sleep(Duration::from_millis(1000)).await;
    }
    stop.cancel();
    println!("longest gap {} ms", longest.load(Ordering::Relaxed));
    eventually("somebody is active", || active(&[&a, &b, &c]).is_some()).await;
    let leader = active(&[&a, &b, &c]).unwrap();
    for writer in writers {
        for key in writer.join().await.unwrap() {
            assert!(leader.store.read(&key).unwrap().is_some(), "{key} was acknowledged and is gone");
        }
    }
    for node in [&a, &b, &c] {
        node.kill().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn who_stepped_down_leaves_the_lead_to_the_others() {
    let rig = Rig::new();
    let [a, b, c] = rig.three().await;
    a.store.step_down().await.unwrap();
    let relieved = Instant::now();
    eventually("a successor", || active(&[&b, &c]).is_some()).await;
    let successor = active(&[&b, &c]).unwrap();
    let third = if successor.name == b.name { &c } else { &b };
    successor.kill().await;
    eventually("the next one", || active(&[&a, third]).is_some()).await;
    // Ten seconds are promised; a machine that took longer than that for all of this has shown nothing.
    if relieved.elapsed() < Duration::from_secs(8) {
        assert!(!a.is_active() && third.is_active(), "the node that stepped down stood again");
    }
    for node in [&a, third] {
        node.kill().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn members_come_and_go() {
    let rig = Rig::new();
    let [a, b, c] = rig.three().await;
    let d = rig.start("d").await;
    a.store.add(d.name.clone(), d.address.clone(), true).await.unwrap();
    // One that cannot be reached holds nothing, and never votes.
    let away = NodeAddress { cluster: "127.0.0.1:1".into(), api: "http://away.example".into() };
    a.store.add(NodeName("away".into()), away, false).await.unwrap();
    a.store.commit(put("k", "v")).await.unwrap();
    eventually("the learner has the state", || value(&d.store, "k").is_some()).await;
    assert_eq!(voters(&a.store).len(), 3);
    a.store.promote(&d.name).await.unwrap();
    assert_eq!(voters(&a.store).len(), 4);
    a.store.demote(&d.name).await.unwrap();
    assert_eq!(voters(&a.store).len(), 3);
    assert!(matches!(b.store.remove(&d.name).await, Err(ClusterError::NotLeader)));
    assert!(matches!(a.store.remove(&NodeName("x".into())).await, Err(ClusterError::UnknownMember(_))));

    a.store.remove(&d.name).await.unwrap();
    assert!(a.store.members().iter().all(|member| member.node != d.name));
    eventually("the removed node knows", || d.store.view().removed).await;
    d.kill().await;
    std::fs::remove_dir_all(rig.dir("d")).unwrap();
    let d = rig.start("d").await;
    let added = Instant::now();
    a.store.add(d.name.clone(), d.address.clone(), false).await.unwrap();
    assert!(!voters(&a.store).contains("d"), "it learns first");
    eventually("the node is back as a voter", || voters(&a.store).contains("d")).await;
    assert!(added.elapsed() >= Duration::from_secs(1), "it was close for a second: {:?}", added.elapsed());
    assert!(!voters(&a.store).contains("away"));
    a.store.remove(&NodeName("away".into())).await.unwrap();

    a.store.remove(&a.name).await.unwrap();
    eventually("the old leader knows", || a.store.view().removed).await;
    assert!(!a.is_active());
    write(&[&b, &c, &d], "k", "2").await;
    for node in [&a, &b, &c, &d] {
        node.kill().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn changes_of_membership_wait_for_each_other() {
    let rig = Rig::new();
    let node = rig.start("a").await;
    node.store.initialize().await.unwrap();
    let names: Vec<_> = (0..6).map(|n| NodeName(format!("m{n}"))).collect();
    let add = |n: usize| {
        let address = NodeAddress { cluster: format!("127.0.0.1:{}", n + 1), api: "http://m.example".into() };
        node.store.add(names[n].clone(), address, true)
    };
    // At once, each of them would refuse the others; one after the other all of them are done.
    let done = tokio::join!(add(0), add(1), add(2), add(3), add(4), add(5));
    for added in [done.0, done.1, done.2, done.3, done.4, done.5] {
        added.unwrap();
    }
    assert_eq!(node.store.members().len(), 7);
    let gone = tokio::join!(node.store.remove(&names[0]), node.store.remove(&names[1]));
    gone.0.unwrap();
    gone.1.unwrap();
    assert_eq!(node.store.members().len(), 5);
    node.kill().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_acknowledged_is_in_the_log_file() {
    let rig = Rig::new();
    let node = rig.start("a").await;
    node.store.initialize().await.unwrap();
    let path = find(&rig.dir("a"), "log.db");
    let reader = rusqlite::Connection::open_with_flags(path, rusqlite::OpenFlags::SQLITE_OPEN_READ_ONLY);
    let reader = reader.unwrap();
    for n in 0..50 {
        let text = format!("value-{n}-of-many");
        node.store.commit(put(&format!("k/{n}"), &text)).await.unwrap();
        let holds = "SELECT count(*) FROM log WHERE instr(entry, CAST(?1 AS BLOB)) > 0";
        let found: i64 = reader.query_row(holds, [&text], |row| row.get(0)).unwrap();
        assert_eq!(found, 1, "{text} was acknowledged before it was written");
    }
    node.kill().await;
}

/// The file of this name in a folder or below.
fn find(folder: &Path, name: &str) -> PathBuf {
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap().flatten() {
            match entry.path() {
                path if path.is_dir() => folders.push(path),
                path if path.ends_with(name) => return path,
                _ => {}
            }
        }
    }
    panic!("there is no {name}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_node_gets_an_image_when_the_log_is_gone_and_a_restore_reaches_all() {
    let rig = Rig::with(RaftTiming { compact_after: 50, keep_entries: 10, ..RaftTiming::default() });
    let [a, b, c] = rig.three().await;
    for n in 0..400 {
        a.store.commit(put(&format!("k/{n:03}"), "v")).await.unwrap();
    }
    let image = rig.dir("backup.hfi");
    let (index, _) = a.store.save_image(&image).await.unwrap();
    assert!(index >= 400);
    a.store.compact().await.unwrap();
    let d = rig.start("d").await;
    let everything = Arc::new(AtomicU64::new(0));
    let seen = Arc::clone(&everything);
    d.store
        .on_applied(Arc::new(move |keys| _ = seen.fetch_add(u64::from(keys.is_empty()), Ordering::Relaxed)));
    a.store.add(d.name.clone(), d.address.clone(), false).await.unwrap();
    eventually("the new node has everything", || d.store.count("k/").unwrap() == 400).await;
    assert!(everything.load(Ordering::Relaxed) >= 1, "the state came without an image");
    eventually("and votes", || voters(&d.store).len() == 4).await;

    a.store.commit(put("later", "x")).await.unwrap();
    a.store
        .commit(Batch { conditions: vec![], ops: vec![Op::Delete { key: "k/000".into() }] })
        .await
        .unwrap();
    a.store.restore_image(&image).await.unwrap();
    eventually("all nodes have the restored state", || {
        [&a, &b, &c, &d]
            .iter()
            .all(|node| node.store.count("k/").unwrap() == 400 && value(&node.store, "later").is_none())
    })
    .await;
    a.store.commit(put("k/new", "v")).await.unwrap();
    eventually("all nodes go on", || {
        [&a, &b, &c, &d].iter().all(|node| node.store.count("k/").unwrap() == 401)
    })
    .await;
    for node in [&a, &b, &c, &d] {
        node.kill().await;
    }
    let again = rig.start_at("d", &rig.dir("d"), Some(&d)).await;
    assert_eq!(again.store.count("k/").unwrap(), 401);
    again.kill().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_that_is_restarted_whole_has_lost_nothing() {
    let rig = Rig::new();
    let [a, b, c] = rig.three().await;
    for n in 0..20 {
        a.store.commit(put(&format!("k/{n}"), "v")).await.unwrap();
    }
    let term = a.store.view().active.unwrap();
    for node in [&a, &b, &c] {
        node.kill().await;
    }
    let mut again = Vec::new();
    for node in [&a, &b, &c] {
        again.push(rig.start_at(&node.name.0, &rig.dir(&node.name.0), Some(node)).await);
    }
    let all: Vec<_> = again.iter().collect();
    eventually("a leader", || active(&all).is_some()).await;
    let leader = active(&all).unwrap();
    assert!(leader.store.view().active.unwrap() > term);
    assert_eq!(leader.store.count("k/").unwrap(), 20);
    write(&all, "k/20", "v").await;
    eventually("all have all", || all.iter().all(|node| node.store.count("k/").unwrap() == 21)).await;
    for node in &all {
        node.kill().await;
    }
}

/// A small disk of its own.
struct SmallDisk(PathBuf);

impl SmallDisk {
    /// None where this process may not mount.
    fn mount(at: PathBuf) -> Option<Self> {
        std::fs::create_dir_all(&at).unwrap();
        let mounted = std::process::Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=6m,mode=0700", "tmpfs"])
            .arg(&at)
            .status();
        mounted.is_ok_and(|status| status.success()).then_some(Self(at))
    }

    fn fill(&self) {
        use std::io::Write as _;
        let mut filler = std::fs::File::create(self.0.join("filler")).unwrap();
        while filler.write(&[0; 4096]).is_ok_and(|written| written > 0) {}
    }

    fn free(&self) {
        std::fs::remove_file(self.0.join("filler")).unwrap();
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        drop(std::process::Command::new("umount").arg("-l").arg(&self.0).status());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_hands_leadership_over_and_heals() {
    let rig = Rig::new();
    let Some(disk) = SmallDisk::mount(rig.dir("a")) else {
        println!("skipped: mounting a small disk needs root");
        return;
    };
    let [a, b, c] = rig.three().await;
    a.store.commit(put("k", "1")).await.unwrap();
    let term = a.store.view().active.unwrap();
    disk.fill();
    let filled = Instant::now();
    let large = "x".repeat(200_000);
    let refused = a.store.commit(put("large", &large)).await;
    assert!(refused.is_err(), "the disk took it");
    eventually("the full node says so", || !a.store.view().storage_healthy).await;
    assert!(!a.is_active());
    eventually("another leader", || active(&[&b, &c]).is_some()).await;
    println!("handed over after {:?}", filled.elapsed());
    assert!(active(&[&b, &c]).unwrap().store.view().active.unwrap() > term);
    assert!(matches!(a.store.commit(put("k", "x")).await, Err(CommitError::Unhealthy)));
    eventually("the full node knows its successor", || {
        a.store.view().leader.is_some_and(|leader| leader.node != a.name)
    })
    .await;
    write(&[&b, &c], "k", "2").await;
    // Its vote is what the last sound node would need now, and it gives none.
    let leader = active(&[&b, &c]).unwrap();
    let other = if leader.name == b.name { &c } else { &b };
    leader.kill().await;
    let silent = Instant::now();
    while silent.elapsed() < Duration::from_secs(3) {
        assert!(!other.is_active(), "a node that cannot write voted");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    disk.free();
    eventually("the node is healthy again", || a.store.view().storage_healthy).await;
    eventually("and votes", || active(&[&a, other]).is_some()).await;
    eventually("and follows", || value(&a.store, "k").as_deref() == Some("2")).await;
    for node in [&a, other] {
        node.kill().await;
    }
}
