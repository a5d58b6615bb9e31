//! What the command line says to a person: what went wrong, what to do, and nothing of a secret that is typed.

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use holdfast_tests::cli::Cli;
use holdfast_tests::eventually;
use holdfast_tests::hub::{Cluster, Options, PATIENCE, Seal};
use holdfast_tests::process::binary;
use holdfast_tests::spoke::Relay;
use serde_json::json;

/// Runs a command whose standard input is a terminal, types each line when it is asked for; gives the exit code, what
/// it printed, and what the terminal showed.
fn typed(cli: &Cli, url: &str, token: &str, line: &str, lines: &[&str]) -> (i32, String, String) {
    let terminal = nix::pty::openpty(None, None).unwrap();
    let said = cli.home().join("said");
    let mut child = Command::new(binary())
        .args(line.split_whitespace())
        .env_clear()
        .envs([("HOME", cli.home()), ("HOLDFAST_ADDR", Path::new(url)), ("HOLDFAST_TOKEN", Path::new(token))])
        .stdin(Stdio::from(terminal.slave))
        .stdout(Stdio::piped())
        .stderr(File::create(&said).unwrap())
        .spawn()
        .unwrap();
    let mut master = File::from(terminal.master);
    for (index, line) in lines.iter().enumerate() {
        let asked = || {
            let text = std::fs::read_to_string(&said).unwrap();
            (text.matches(": ").count() > index).then_some(())
        };
        eventually(PATIENCE, "it asks", asked);
        master.write_all(format!("{line}\n").as_bytes()).unwrap();
    }
    let mut out = String::new();
    child.stdout.take().unwrap().read_to_string(&mut out).unwrap();
    let code = child.wait().unwrap().code().unwrap_or(-1);
    let mut shown = Vec::new();
    // The last end of the terminal is closed: reading ends with an error behind what was shown.
    let _ = master.read_to_end(&mut shown);
    (code, out, String::from_utf8_lossy(&shown).into_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_secret_that_is_typed_at_a_terminal_is_not_shown() {
    let cluster =
        Cluster::start_with(Options { nodes: 1, seal: Seal::Shamir(1, 1), ..Options::default() }).await;
    let (url, root) = (cluster.nodes[0].url(), cluster.root.as_str());
    let cli = Cli::new(&url).with_token(root);
    cli.run("auth enable userpass").await.expect(0);
    let run = |token: &str, line: &str, lines: &[&str]| {
        let (code, out, shown) = typed(&cli, &url, token, line, lines);
        assert_eq!(code, 0, "{line}: {out}\n{shown}");
        for secret in lines.iter().filter(|line| line.len() > 4) {
            assert!(!shown.contains(secret), "{line}: the terminal shows {shown:?}");
        }
    };
    run(root, "write auth/userpass/users/ann password=-", &["pw-of-ann"]);
    run("", "login", &[root]);
    assert_eq!(std::fs::read_to_string(cli.home().join(".holdfast-token")).unwrap(), root);
    run("", "login -method=userpass", &["ann", "pw-of-ann"]);
    cli.run("operator seal").await.expect(0);
    run("", "operator unseal", &[&cluster.keys[0]]);
    cli.run("status").await.expect(0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_says_what_to_do() {
    let cluster = Cluster::start(1).await;
    let url = cluster.nodes[0].url();
    let root = Cli::new(&url).with_token(&cluster.root);
    root.run("secrets enable -path=secret -version=2 kv").await.expect(0);
    let join = "relay join -hub-cert-hash=sha256:00 -token=a1b2c3.0123456789abcdef -spoke-name=s";
    for (line, code, word) in [
        ("kv get nosuch/x", 2, "No kv engine"),
        ("kv get sys/x", 1, "not kv"),
        ("kv put secret/a", 1, "give fields"),
        ("kv get secret/a", 2, "Nothing is there"),
        ("write nosuch/x a=1", 2, "Nothing is mounted there"),
        ("relay list", 2, "relay init"),
        ("relay run -credentials-dir=absent", 1, "join the hub first"),
        (&format!("{join} -hub-addr=hub.example"), 1, "hub.example:50053"),
    ] {
        let ended = root.run(line).await.expect(code);
        assert!(ended.err.contains(word), "{line}: {}", ended.err);
    }
    let nobody = Cli::new(&url);
    assert!(nobody.run("kv get secret/a").await.expect(2).err.contains("HOLDFAST_TOKEN"));
    let told = nobody.run("read secret/a -json").await.expect(2).err;
    let told: serde_json::Value = serde_json::from_str(&told).unwrap_or_else(|e| panic!("{e}: {told}"));
    assert_eq!((&told["status"], &told["exit_code"]), (&json!(403), &json!(2)));
    let encrypted = Cli::new(&url.replace("http:", "https:"));
    assert!(encrypted.run("status").await.expect(1).err.contains("http:// instead of https://"));
}

#[tokio::test(flavor = "multi_thread")]
async fn tables_are_tables_and_a_backup_is_private() {
    let cluster = Cluster::start(1).await;
    let root = Cli::new(&cluster.nodes[0].url()).with_token(&cluster.root);
    root.run("secrets enable -path=secret -version=2 kv").await.expect(0);
    for _ in 0..2 {
        root.run("kv put secret/a b=1").await.expect(0);
    }
    for line in ["read sys/ha-status", "kv metadata get secret/a"] {
        let shown = root.run(line).await.expect(0).out;
        assert!(!shown.contains('{') && shown.lines().count() > 3, "{line}: {shown}");
    }
    let warned = root.run("write secret/config max_version=3").await.expect(0);
    assert!(warned.err.contains("max_version"), "{}", warned.err);

    let file = root.home().join("backup.tgz");
    root.run("operator raft snapshot save backup.tgz").await.expect(0);
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    assert!(root.run("operator raft snapshot save backup.tgz").await.expect(1).err.contains("-force"));
    root.run("operator raft snapshot save -force backup.tgz").await.expect(0);
    root.run("operator raft snapshot save -").await.expect(1);
    let left = std::fs::read_dir(root.home()).unwrap().count();
    assert_eq!(left, 1, "nothing is left beside the backup");
    for shell in ["bash", "zsh", "fish"] {
        let script = root.run(&format!("completions {shell}")).await.expect(0).out;
        assert!(script.contains("snapshot") && !script.contains("end-with-parent"), "{shell}");
    }
}

/// A line of a log: an object whose keys differ, at every depth.
struct Line(Vec<(String, String)>);

impl<'de> serde::Deserialize<'de> for Line {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(Keys)
    }
}

struct Keys;

impl<'de> serde::de::Visitor<'de> for Keys {
    type Value = Line;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a field of a log")
    }

    fn visit_map<A: serde::de::MapAccess<'de>>(self, mut map: A) -> Result<Line, A::Error> {
        let mut fields: Vec<(String, String)> = Vec::new();
        let mut keys = std::collections::BTreeSet::new();
        while let Some(key) = map.next_key::<String>()? {
            let below: Line = map.next_value()?;
            fields.extend(below.0.into_iter().map(|(_, value)| (key.clone(), value)));
            if !keys.insert(key.clone()) {
                return Err(serde::de::Error::custom(format!("{key} is there twice")));
            }
        }
        Ok(Line(fields))
    }

    fn visit_str<E>(self, text: &str) -> Result<Line, E> {
        Ok(Line(vec![(String::new(), format!("{text:?}"))]))
    }

    fn visit_bool<E>(self, flag: bool) -> Result<Line, E> {
        Ok(Line(vec![(String::new(), flag.to_string())]))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Line, E> {
        Ok(Line(vec![(String::new(), number.to_string())]))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Line, E> {
        Ok(Line(vec![(String::new(), number.to_string())]))
    }

    fn visit_f64<E>(self, number: f64) -> Result<Line, E> {
        Ok(Line(vec![(String::new(), number.to_string())]))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn logs_are_for_machines() {
    let mut cluster = Cluster::start(1).await;
    let relay = Relay::set_up(&cluster).await;
    let mut spoke = relay.spoke_on(&cluster, "spoke-1", 0).await;
    assert_eq!(spoke.stop(), Some(0));
    cluster.nodes[0].process().signal(nix::sys::signal::Signal::SIGTERM);
    cluster.nodes[0].process().wait(PATIENCE);
    let (mut terms, mut phases) = (0, 0);
    for line in format!("{}{}", cluster.nodes[0].log(), spoke.log()).lines() {
        let Line(fields) = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
        for (key, value) in fields {
            let strange = ["Mono(", "Some(", "[\\\"", "{"].iter().any(|notation| value.contains(notation));
            assert!(!strange, "{key}: {line}");
            let number = matches!(key.as_str(), "term" | "epoch");
            assert!(!number || value.parse::<u64>().is_ok(), "{key}: {line}");
            terms += usize::from(number);
            phases += usize::from(key == "phase");
        }
    }
    assert!(terms > 1 && phases > 2, "{terms} {phases}");
}
