//! A private network in which each node is a host of its own, so that packets between nodes can be dropped.
//!
//! The calling thread moves into a network namespace that dies with the process; each node gets another one, joined
//! to it by a bridge. Needs root.

use std::process::Command;

use nix::sched::{CloneFlags, unshare};

/// The network.
pub struct Network {
    hosts: Vec<String>,
}

impl Network {
    /// Moves the calling thread into a fresh network with so many hosts. Call it before any runtime is made: only
    /// threads that are started later come along.
    pub fn enter(hosts: usize) -> Self {
        unshare(CloneFlags::CLONE_NEWNET).expect("a network namespace of one's own needs root");
        run("ip", "link set lo up");
        run("ip", "link add br0 type bridge");
        run("ip", "addr add 10.77.0.254/24 dev br0");
        run("ip", "link set br0 up");
        let hosts: Vec<_> = (0..hosts).map(|i| format!("hft-{}-{i}", std::process::id())).collect();
        let network = Self { hosts };
        for (i, host) in network.hosts.iter().enumerate() {
            run("ip", &format!("netns add {host}"));
            run("ip", &format!("link add v{i} type veth peer name e0 netns {host}"));
            run("ip", &format!("link set v{i} master br0 up"));
            network.on(i, &format!("ip addr add {}/24 dev e0", Self::address(i)));
            network.on(i, "ip link set e0 up");
            network.on(i, "ip link set lo up");
        }
        network
    }

    /// The address of a host.
    pub fn address(index: usize) -> String {
        format!("10.77.0.{}", index + 1)
    }

    /// The words that run a program on a host.
    pub fn wrapper(&self, index: usize) -> Vec<String> {
        ["ip", "netns", "exec", &self.hosts[index]].map(str::to_owned).to_vec()
    }

    /// Drops every packet between a host and the others; the test itself still reaches it.
    pub fn isolate(&self, index: usize) {
        for other in (0..self.hosts.len()).filter(|other| *other != index) {
            self.cut(index, other);
        }
    }

    /// Drops every packet between two hosts.
    pub fn cut(&self, from: usize, to: usize) {
        let peer = Self::address(to);
        self.on(from, "nft add table inet cut");
        self.on(from, "nft add chain inet cut in { type filter hook input priority 0; }");
        self.on(from, "nft add chain inet cut out { type filter hook output priority 0; }");
        self.on(from, &format!("nft add rule inet cut in ip saddr {peer} drop"));
        self.on(from, &format!("nft add rule inet cut out ip daddr {peer} drop"));
    }

    /// Drops every packet from a host to a port of another one; what the other one dials still passes.
    pub fn block(&self, from: usize, to: usize, port: u16) {
        let peer = Self::address(to);
        self.on(from, "nft add table inet cut");
        self.on(from, "nft add chain inet cut out { type filter hook output priority 0; }");
        self.on(from, &format!("nft add rule inet cut out ip daddr {peer} tcp dport {port} drop"));
    }

    /// Lets packets of a host pass again.
    pub fn heal(&self, index: usize) {
        self.on(index, "nft delete table inet cut");
    }

    fn on(&self, index: usize, command: &str) {
        run("ip", &format!("netns exec {} {command}", self.hosts[index]));
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for host in &self.hosts {
            let _ = Command::new("ip").args(["netns", "del", host]).status();
        }
    }
}

fn run(program: &str, args: &str) {
    let output = Command::new(program).args(args.split_whitespace()).output().unwrap();
    assert!(output.status.success(), "{program} {args}: {}", String::from_utf8_lossy(&output.stderr));
}
