//! Whole configurations: what good ones come to, and every word about bad ones.

mod broken;
mod words;

use std::time::Duration;

use tempfile::TempDir;

use super::*;
use crate::binding::BindingRules;
use crate::config::OnAbsent;
use crate::reference::Fragment;

/// What every configuration needs, without bindings; on one line.
const BASE: &str =
    "auth.methods = ['none']\npolicy.allow_all = true\nlistener = [{ kind = 'unix', path = 's.sock' }]\n";

fn directory(files: &[(&str, &str)]) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    for (name, text) in files {
        let path = dir.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    dir
}

fn load_in(dir: &TempDir, name: &str, environment: &[(&str, &str)]) -> Result<Arc<Configuration>, Problems> {
    let environment = environment.iter().map(|(name, text)| (name.into(), text.into())).collect();
    load(&dir.path().join(name), &Overrides { environment: Some(environment), ..Overrides::default() })
}

/// Loads `config.toml` of these files; problems come with paths relative to the directory, one a line.
fn loaded(files: &[(&str, &str)]) -> Result<Arc<Configuration>, String> {
    let dir = directory(files);
    let shown = |problems: Problems| problems.to_string().replace(&format!("{}/", dir.path().display()), "");
    load_in(&dir, "config.toml", &[]).map_err(shown)
}

/// What is told about `config.toml` with this text.
fn told(text: &str) -> String {
    loaded(&[("config.toml", text)]).err().unwrap_or_default()
}

fn warnings(configuration: &Configuration) -> Vec<String> {
    configuration.warnings.iter().map(|warning| warning.text.clone()).collect()
}

#[test]
fn the_example_of_the_guide_is_whole() {
    let dir = directory(&[
        (
            "config.toml",
            r#"
node_id = "config-server-7"
drain_grace = "15s"
bind_files = ["more/bindings.yaml"]
auth = { methods = ["mtls", "token"], token = { file = "tokens.toml" } }
listener = [{ kind = "tcp", addr = "0.0.0.0:8443", tls = { cert = "tls.crt", key = "tls.key", client_ca = "clients.pem", client_auth = "request" } }]
policy.rule = [{ subjects = ["svc-orders"], names = ["db-*", "orders/**"] }]
upstream.hub = { type = "hub", addrs = ["https://hub-0:8200", "https://hub-1:8200"], token_file = "hub.token" }
upstream.disk = { type = "file", roots = ["data"], concurrency = 4, confirm = "10s" }
[defaults]
timeout = "5s"
[bindings]
db-password = "hub://kv/prod/db#password"
api-key = { ref = "hub://kv/api", poll = "5m", max_stale = "24h", on_absent = "drop" }
"#,
        ),
        (
            "more/bindings.yaml",
            "bindings:\n  orders/v1.key: {ref: 'file://a#/x', sensitive: true, max_value_bytes: 4KiB}\n",
        ),
        ("tokens.toml", &token_file()),
        ("tls.crt", ""),
        ("tls.key", ""),
        ("clients.pem", ""),
        ("hub.token", ""),
    ]);
    let loaded = load_in(&dir, "config.toml", &[]).unwrap_or_else(|problems| panic!("{problems}"));
    assert_eq!(warnings(&loaded), Vec::<String>::new());
    let settings = &loaded.settings;
    assert_eq!(
        (settings.node_id.as_deref(), settings.drain_grace.get()),
        (Some("config-server-7"), Duration::from_secs(15))
    );
    assert_eq!(settings.listener[0].tls.as_ref().unwrap().cert, dir.path().join("tls.crt"));
    assert_eq!(settings.upstream["hub"].token_file, Some(dir.path().join("hub.token")));
    let names: Vec<_> = loaded.bindings.keys().map(|name| &**name).collect();
    assert_eq!(names, ["api-key", "db-password", "orders/v1.key"]);
    let usual = BindingRules { timeout: Duration::from_secs(5), ..BindingRules::default() };
    let password = &loaded.bindings["db-password"];
    assert_eq!(password.rules, usual);
    assert_eq!(
        (password.reference.object.upstream.as_str(), password.reference.object.path.as_str()),
        ("hub", "kv/prod/db")
    );
    assert_eq!(password.reference.fragment, Some(Fragment::Key("password".into())));
    assert_eq!(password.declared, format!("{}:13", dir.path().join("config.toml").display()));
    let rules = BindingRules {
        poll: Duration::from_secs(300),
        max_stale: Some(Duration::from_secs(86_400)),
        on_absent: OnAbsent::Drop,
        ..usual
    };
    assert_eq!(loaded.bindings["api-key"].rules, rules);
    let more = &loaded.bindings["orders/v1.key"];
    assert_eq!(more.rules, BindingRules { sensitive: Some(true), max_value_bytes: 4096, ..usual });
    assert_eq!(more.declared, format!("{}:2", dir.path().join("more/bindings.yaml").display()));
    let upstreams: Vec<_> =
        loaded.upstreams.values().map(|upstream| (&*upstream.name, upstream.kind)).collect();
    let kinds = [("disk", UpstreamKind::File), ("hub", UpstreamKind::Hub), ("static", UpstreamKind::Static)];
    assert_eq!(upstreams, kinds);
    let disk = &loaded.upstreams["disk"];
    assert_eq!(
        (disk.concurrency, disk.confirm, disk.watch_idle),
        (4, Duration::from_secs(10), Duration::from_secs(45))
    );
    assert_eq!(disk.settings.roots, [dir.path().join("data")]);
    let mut files: Vec<_> = loaded.files.iter().map(|file| file.strip_prefix(dir.path()).unwrap()).collect();
    files.sort();
    let named = [
        "clients.pem",
        "config.toml",
        "hub.token",
        "more/bindings.yaml",
        "tls.crt",
        "tls.key",
        "tokens.toml",
    ];
    assert_eq!(files, named.map(Path::new));
}

fn token_file() -> String {
    format!("[[token]]\nid = 'a'\nsha256 = '{}'\nsubject = 's'\n", "0".repeat(64))
}

#[test]
fn the_environment_beats_the_files_and_flags_beat_both() {
    let dir = directory(&[(
        "config.toml",
        &format!("{BASE}node_id = 'file'\ndrain_grace = '1s'\n[bindings]\na = 'static:x'\n"),
    )]);
    let environment = vec![
        ("HOLDFAST_CONFIG__NODE_ID".into(), "env".into()),
        ("HOLDFAST_CONFIG__DRAIN_GRACE".into(), "2s".into()),
        ("HOLDFAST_CONFIG__WATCH__REDATE".into(), "30".into()),
        ("HOLDFAST_CONFIG__BINDINGS__B".into(), "static:y".into()),
        ("HOLDFAST_CONFIG_ENDPOINTS".into(), "of the client".into()),
    ];
    let overrides = Overrides {
        node_id: Some("flag".into()),
        set: vec!["watch.redate=40s".into()],
        environment: Some(environment),
    };
    let loaded =
        load(&dir.path().join("config.toml"), &overrides).unwrap_or_else(|problems| panic!("{problems}"));
    let settings = &loaded.settings;
    assert_eq!(settings.node_id.as_deref(), Some("flag"));
    assert_eq!(settings.drain_grace.get(), Duration::from_secs(2));
    assert_eq!(settings.watch.redate.get(), Duration::from_secs(40));
    assert_eq!(loaded.bindings["b"].reference.to_string(), "static:y");
    assert_eq!(loaded.bindings["b"].declared, "environment HOLDFAST_CONFIG__BINDINGS__B");
}

#[test]
fn the_node_is_called_as_its_host_unless_told() {
    let loaded = loaded(&[("config.toml", &format!("{BASE}allow_empty = true\n"))]).unwrap();
    assert_eq!(loaded.settings.node_id, Some(host_name()));
    assert!(!host_name().is_empty() && loaded.bindings.is_empty());
}

#[test]
fn the_layout_of_the_files_is_not_in_the_digest_and_what_they_mean_is() {
    let rule = "subjects = ['b', 'a']\nnames = ['**']\n";
    let one = loaded(&[(
        "config.toml",
        &format!(
            "auth.methods = ['none']\nnode_id = 'n1'\nlistener = [{{ kind = 'unix', path = 'x' }}]\n[[policy.rule]]\n{rule}\
             [bindings]\na = 'static:x'\n'b.c' = {{ ref = 'static:y', poll = '30s' }}\n"
        ),
    )]);
    let dir = directory(&[
        (
            "conf/10.toml",
            "auth.methods = ['none']\nbind_files = ['b.yaml', '../c.toml']\npolicy.file = 'p.toml' # comment\n",
        ),
        (
            "conf/20.toml",
            "[server.config]\nnode_id = 'n2'\n[[server.config.listener]]\nkind = 'unix'\npath = 'y'\n",
        ),
        ("conf/b.yaml", "bindings:\n  b.c: 'STATIC:y'\n"),
        ("conf/p.toml", "[[rule]]\nnames = ['**']\nverbs = ['watch', 'read']\nsubjects = ['a', 'b']\n"),
        ("c.toml", "[bindings.a]\nref = ' static:x'\n"),
    ]);
    // The policy's file must not be read as one of the directory's.
    std::fs::rename(dir.path().join("conf/p.toml"), dir.path().join("conf/p.rules")).unwrap();
    let text = std::fs::read_to_string(dir.path().join("conf/10.toml")).unwrap();
    std::fs::write(dir.path().join("conf/10.toml"), text.replace("p.toml", "../p.toml")).unwrap();
    std::fs::rename(dir.path().join("conf/p.rules"), dir.path().join("p.toml")).unwrap();
    let other = load_in(&dir, "conf", &[]).unwrap_or_else(|problems| panic!("{problems}"));
    let one = one.unwrap();
    assert_eq!(one.digest, other.digest);
    let files: Vec<_> = other.files.iter().map(|file| file.file_name().unwrap().to_str().unwrap()).collect();
    assert_eq!(
        files,
        ["10.toml", "20.toml", "b.yaml", "c.toml", "p.toml", "conf"],
        "the directory itself is watched"
    );
    let changed = |text: &str| loaded(&[("config.toml", text)]).unwrap().digest;
    let base = format!("{BASE}[bindings]\na = 'static:x'\n");
    let ground = changed(&base);
    assert_ne!(changed(&base.replace("static:x", "static:y")).bindings, ground.bindings);
    assert_ne!(changed(&base.replace("a =", "b =")).bindings, ground.bindings);
    assert_ne!(changed(&format!("defaults.poll = '31s'\n{base}")).bindings, ground.bindings);
    let limits = changed(&format!("limits.burst = 7\n{base}"));
    assert_eq!((limits.bindings, limits.policy), (ground.bindings, ground.policy));
    assert_ne!(limits.whole, ground.whole);
    assert_eq!(changed(&format!("drain_grace = '5s'\naudit.sink = 'off'\n{base}")), ground);
}

#[test]
fn what_is_odd_is_told_and_taken() {
    let text = format!(
        "{BASE}watch.heartbeat = '10s'\nbind_files = ['b.yaml']\nupstream.h = {{ type = 'hub', addrs = ['https://h'], token_file = 'none' }}\n\
         [bindings]\na = {{ ref = 'static:x', max_value_bytes = '1MiB' }}\n"
    );
    let loaded =
        loaded(&[("config.toml", &text), ("b.yaml", "version: 2\nbindings: {b: 'static:'}\n")]).unwrap();
    let lines: Vec<_> = loaded.warnings.iter().map(|w| (w.place.at.unwrap().line, w.severity)).collect();
    assert_eq!(lines, [1, 4, 6, 8].map(|line| (line, Severity::Warning)));
    let texts = warnings(&loaded);
    assert_eq!(texts[0], "\"version\" is ignored: a bind file has one key, bindings");
    assert_eq!(texts[1], "watch.heartbeat is not 15s: clients and balancers are set up for that");
    assert!(
        texts[2].starts_with("upstream.h.token_file: ") && texts[2].contains("/none cannot be read ("),
        "{texts:?}"
    );
    assert_eq!(
        texts[3],
        "binding \"a\": max_value_bytes is over 700000: streams leave such values out unless the client raises max_frame"
    );
}

#[test]
fn a_key_file_is_judged_when_the_configuration_is_loaded() {
    use std::os::unix::fs::PermissionsExt;
    let text =
        format!("{BASE}allow_empty = true\nlkg = {{ dir = 'lkg', key_file = 'k' }}\nfleet.key_file = 'k'\n");
    let dir = directory(&[("config.toml", &text), ("k", "0123456789abcdef0123456789abcdef")]);
    let mode =
        |mode| std::fs::set_permissions(dir.path().join("k"), std::fs::Permissions::from_mode(mode)).unwrap();
    mode(0o644);
    let told = load_in(&dir, "config.toml", &[]).unwrap_err().to_string();
    assert_eq!(told.lines().count(), 2, "{told}");
    assert!(
        told.contains("config.toml:5:33: error: lkg.key_file: secret file ") && told.contains("chmod 600"),
        "{told}"
    );
    mode(0o600);
    let loaded = load_in(&dir, "config.toml", &[]).unwrap();
    assert_eq!(loaded.settings.lkg.dir, Some(dir.path().join("lkg")));
    std::fs::write(dir.path().join("k"), "short").unwrap();
    let told = load_in(&dir, "config.toml", &[]).unwrap_err().to_string();
    assert!(told.contains("does not hold 32 bytes, raw, in hex or in base64"), "{told}");
}

#[test]
fn paths_outside_files_are_relative_to_the_working_directory() {
    let dir = directory(&[("config.toml", &format!("{BASE}allow_empty = true\naudit.sink = 'file'\n"))]);
    let loaded = load_in(&dir, "config.toml", &[("HOLDFAST_CONFIG__AUDIT__PATH", "a.log")]).unwrap();
    assert_eq!(loaded.settings.audit.path, Some(std::env::current_dir().unwrap().join("a.log")));
    assert_eq!(loaded.settings.listener[0].path, Some(dir.path().join("s.sock")));
}

proptest::proptest! {
    #[test]
    fn no_binding_that_is_refused_shows_a_secret(name in "[a-z/ é]{0,6}", before in "(etcd|file|exec|static|s3)://\\PC{0,12}", value in "[A-Z]{12}") {
        let text = toml::to_string(&std::collections::BTreeMap::from([(name, format!("{before}?token={value}"))])).unwrap();
        let told = told(&format!("{BASE}[bindings]\n{text}"));
        proptest::prop_assert!(!told.contains(&value), "{told}");
    }
}
