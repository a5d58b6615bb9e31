//! The loader as a role uses it.

use std::collections::BTreeMap;

use secrecy::{ExposeSecret as _, SecretString};
use serde::Deserialize;

use super::*;
use crate::{ByteSize, Duration};

#[derive(Debug, Deserialize)]
#[serde(default)]
struct Hub {
    node_id: String,
    data_dir: Option<PathBuf>,
    api: Api,
    raft: Raft,
    lease: Lease,
    body: ByteSize,
    wait: Duration,
    token: Option<SecretString>,
    seal: Seal,
    tags: BTreeMap<String, String>,
}

impl Default for Hub {
    fn default() -> Self {
        Self {
            node_id: "host".into(),
            data_dir: None,
            api: Api::default(),
            raft: Raft::default(),
            lease: Lease::default(),
            body: ByteSize::mib(32),
            wait: Duration::from_secs(2),
            token: None,
            seal: Seal::Shamir,
            tags: BTreeMap::new(),
        }
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Api {
    listen: String,
    ports: Vec<u16>,
    plaintext: bool,
}

#[derive(Debug, Deserialize)]
#[serde(default)]
struct Raft {
    heartbeat_ms: u64,
    retry_join: Vec<Join>,
}

impl Default for Raft {
    fn default() -> Self {
        Self { heartbeat_ms: 100, retry_join: Vec::new() }
    }
}

#[derive(Debug, Deserialize)]
struct Join {
    leader_api_addr: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Lease {
    revoke_workers: u32,
}

#[derive(Debug, Deserialize, Eq, PartialEq)]
#[serde(rename_all = "lowercase")]
enum Seal {
    Shamir,
    Keyfile,
}

impl Validate for Hub {
    fn validate(&self, at: &mut Checker<'_>) {
        at.require("data_dir", self.data_dir.as_ref(), "set it to a directory of this node's own");
        at.range("raft.heartbeat_ms", self.raft.heartbeat_ms, 20..=2000);
    }
}

fn loader(environment: &[(&str, &str)]) -> Loader {
    Loader::new("hub").environment(environment.iter().copied()).set("data_dir", "/var/lib/h")
}

fn file(name: &str, text: &str) -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(name);
    std::fs::write(&path, text).unwrap();
    (dir, path)
}

fn keys(problems: &Problems) -> Vec<&str> {
    problems.iter().map(|p| p.key.as_str()).collect()
}

#[test]
fn toml_and_yaml_say_the_same() {
    let toml = "[server.hub]\nnode_id = 'a'\nbody = '1MiB'\nwait = 5\nseal = 'keyfile'\n\
                [[server.hub.raft.retry_join]]\nleader_api_addr = 'https://b:8200'\n[server.hub.tags]\nx = 'y'\n\
                [server.pair]\nanything = 1\n";
    let yaml = "server:\n  hub:\n    node_id: a\n    body: 1MiB\n    wait: 5s\n    seal: keyfile\n    raft:\n      \
                retry_join:\n        - leader_api_addr: https://b:8200\n    tags: {x: y}\n";
    for (name, text) in [("h.toml", toml), ("h.yaml", yaml)] {
        let (_dir, path) = file(name, text);
        let hub: Hub = loader(&[]).path(path).load().unwrap();
        assert_eq!(
            (hub.node_id.as_str(), hub.body, hub.wait),
            ("a", ByteSize::mib(1), Duration::from_secs(5))
        );
        assert_eq!(hub.raft.retry_join[0].leader_api_addr, "https://b:8200");
        assert_eq!(hub.seal, Seal::Keyfile);
        assert_eq!(hub.tags["x"], "y");
        assert_eq!(hub.raft.heartbeat_ms, 100, "what is not named keeps its default");
    }
}

#[test]
fn the_environment_beats_the_file_and_a_flag_beats_both() {
    let (_dir, path) =
        file("h.toml", "[server.hub]\nnode_id = 'file'\nbody = 1\n[server.hub.api]\nlisten = 'file'\n");
    let environment = [
        ("HOLDFAST__SERVER__HUB__NODE_ID", "env"),
        ("HOLDFAST__SERVER__HUB__API__LISTEN", "env"),
        ("HOLDFAST__SERVER__HUB__API__PORTS", "1, 2"),
        ("HOLDFAST__SERVER__HUB__API__PLAINTEXT", "true"),
        ("HOLDFAST__SERVER__HUB__TOKEN", "hunter2"),
        ("HOLDFAST__SERVER__CONFIG__OTHER", "not ours"),
        ("BAO_WORKERS", "7"),
    ];
    let hub: Hub = loader(&environment)
        .path(path)
        .alias("HOLDFAST_WORKERS", "lease.revoke_workers")
        .alias("BAO_WORKERS", "lease.revoke_workers")
        .flag("server.hub.node_id=flag")
        .flag("raft.retry_join=[{leader_api_addr = 'x'}]")
        .load()
        .unwrap();
    assert_eq!((hub.node_id.as_str(), hub.api.listen.as_str()), ("flag", "env"));
    assert_eq!(hub.body, ByteSize::bytes(1));
    assert_eq!(hub.api.ports, [1, 2]);
    assert!(hub.api.plaintext);
    assert_eq!(hub.lease.revoke_workers, 7);
    assert_eq!(hub.raft.retry_join.len(), 1);
    assert_eq!(hub.token.unwrap().expose_secret(), "hunter2");
}

#[test]
fn a_directory_is_merged_in_name_order() {
    let (dir, _) = file("20-site.yaml", "server: {hub: {node_id: second, api: {ports: [3]}}}");
    std::fs::write(
        dir.path().join("10-base.toml"),
        "[server.hub]\nnode_id='first'\nwait='9s'\napi.ports=[1,2]\n",
    )
    .unwrap();
    std::fs::write(dir.path().join("README"), "not a configuration").unwrap();
    std::fs::write(dir.path().join(".hidden.toml"), "nonsense").unwrap();
    let hub: Hub = loader(&[]).path(dir.path()).load().unwrap();
    assert_eq!(hub.node_id, "second");
    assert_eq!(hub.wait, Duration::from_secs(9), "tables are merged");
    assert_eq!(hub.api.ports, [3], "lists are replaced");
}

#[test]
fn all_problems_are_told_together_with_key_source_and_remedy() {
    let (_dir, path) = file(
        "h.toml",
        "other = 1\n[server.hubb]\nx=1\n[server.hub]\nnode_idd = 'a'\nbody = '1MB'\nseal = 'hsm'\napi.ports = [70000]\n\
         api.listen = 5\n[server.hub.raft]\nheartbeat_ms = 5\n[[server.hub.raft.retry_join]]\n",
    );
    let environment = [("HOLDFAST__SERVER__HUB__WAIT", "soon")];
    let problems = Loader::new("hub").environment(environment).path(&path).load::<Hub>().unwrap_err();
    let mut found = keys(&problems);
    found.sort_unstable();
    let expected = [
        "other",
        "server.hub.api.listen",
        "server.hub.api.ports.0",
        "server.hub.body",
        "server.hub.data_dir",
        "server.hub.node_idd",
        "server.hub.raft.heartbeat_ms",
        "server.hub.raft.retry_join.0.leader_api_addr",
        "server.hub.seal",
        "server.hub.wait",
        "server.hubb",
    ];
    assert_eq!(found, expected, "{problems}");
    let text = problems.to_string();
    assert!(text.starts_with("the configuration has 11 problems\n"), "{text}");
    assert!(text.contains("did you mean node_id?"), "{text}");
    assert!(
        text.contains("environment HOLDFAST__SERVER__HUB__WAIT: server.hub.wait is not a duration"),
        "{text}"
    );
    assert!(text.contains("server.hub.raft.heartbeat_ms is 5, out of bounds: use 20 to 2000"), "{text}");
    assert!(text.contains("server.hub.data_dir is required: set it to a directory"), "{text}");
    assert!(
        text.contains(&format!("{}: server.hub.seal is none of shamir, keyfile", path.display())),
        "{text}"
    );
    assert_eq!(problems.exit_code(), 64);
}

#[test]
fn a_syntax_error_names_the_line_and_never_quotes_the_file() {
    for (name, text) in
        [("h.toml", "[server.hub]\ntoken = hunter2\n"), ("h.yaml", "server: {hub: {token: [hunter2\n")]
    {
        let (_dir, path) = file(name, text);
        let shown = loader(&[]).path(&path).load::<Hub>().unwrap_err().to_string();
        assert!(shown.contains(name) && shown.contains("line"), "{shown}");
        assert!(!shown.contains("hunter2"), "{shown}");
    }
}

#[test]
fn a_secret_of_the_wrong_type_is_not_shown() {
    let (_dir, path) = file("h.toml", "[server.hub]\ntoken = 831415\n");
    let problems = loader(&[]).path(path).load::<Hub>().unwrap_err();
    assert_eq!(keys(&problems), ["server.hub.token"]);
    assert!(!problems.to_string().contains("831415"), "{problems}");
}

#[test]
fn files_that_cannot_be_used_are_problems_not_panics() {
    let empty = tempfile::tempdir().unwrap();
    let (_dir, ini) = file("h.ini", "");
    for path in [empty.path(), &ini, Path::new("/nonexistent/h.toml")] {
        let problems = loader(&[]).path(path).load::<Hub>().unwrap_err();
        assert_eq!(problems.iter().count(), 1, "{problems}");
    }
    let (_dir, path) = file("h.yaml", "\n# nothing\n");
    loader(&[]).path(path).load::<Hub>().unwrap();
}

#[test]
fn a_flag_that_is_no_key_and_one_through_a_value_are_told() {
    let problems = loader(&[]).flag("=5").flag("node_id=a").flag("node_id.x=b").load::<Hub>().unwrap_err();
    assert_eq!(problems.iter().count(), 2, "{problems}");
}

proptest::proptest! {
    #[test]
    fn no_file_and_no_variable_panics(text in "(?s).{0,200}", lines in "([a-z]{1,4}[=:.\\[\\]{}' \n-]{1,3}){0,40}", value in ".{0,40}") {
        for (name, text) in [("h.toml", &text), ("h.yaml", &text), ("h.toml", &lines), ("h.yaml", &lines)] {
            let (_dir, path) = file(name, text);
            let _ = loader(&[]).path(path).load::<Hub>();
        }
        for key in ["HOLDFAST__SERVER__HUB__API__PORTS", "HOLDFAST__SERVER__HUB__RAFT", "HOLDFAST__SERVER__HUB__BODY"] {
            let _ = loader(&[(key, value.replace('\0', "").as_str())]).load::<Hub>();
        }
    }
}
