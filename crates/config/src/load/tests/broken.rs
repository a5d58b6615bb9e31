//! Broken files, one sort of damage each, with everything that is told.

use super::*;

/// The first lines of a configuration that is good but for what follows.
const GOOD: &str = "auth.methods = ['none']\npolicy.allow_all = true\nallow_empty = true\nlistener = [{ kind = 'unix', path = 's.sock' }]\n";

#[test]
fn broken_files() {
    for (damage, expected) in [
        (
            "x = \n",
            &[
                "5:5: error: is not TOML (string values must be quoted, expected literal string): correct the file",
            ][..],
        ),
        (
            "[watch\n[limits]\nburst = 1 2\n",
            &[
                "5:7: error: is not TOML (unclosed table, expected `]`): correct the file",
                "7:9: error: is not TOML (string values must be quoted, expected literal string): correct the file",
            ],
        ),
        ("node_id = 7\n", &["5:11: error: node_id is a number, not a string: correct the value"]),
        ("node_id = ' '\n", &["5:11: error: node_id is empty"]),
        ("drain_grace = '2h'\n", &["5:15: error: drain_grace is 2h, out of bounds: use 0s to 1h"]),
        (
            "[watch]\nheartbeat = '61s'\nwrite_stall = '11m'\nmax_age = '59s'\nredate = '2h'\n",
            &[
                "6:13: error: watch.heartbeat is 61s, out of bounds: use 1s to 60s",
                "7:15: error: watch.write_stall is 11m, out of bounds: use 1s to 10m",
                "8:11: error: watch.max_age is 59s, out of bounds: use 0s for none, or 1m to 24h",
                "9:10: error: watch.redate is 2h, out of bounds: use 10s to 1h",
            ],
        ),
        (
            "readiness = { priming_deadline = '500ms', require = ['a', '['] }\n",
            &[
                "5:34: error: readiness.priming_deadline is 500ms, out of bounds: use 1s to 10m",
                "5:59: error: readiness.require: bad glob \"[\"",
            ],
        ),
        (
            "[lkg]\ndir = 'd'\nmax_age = '31d'\n",
            &[
                "6:7: error: lkg.key_file is required with lkg.dir",
                "7:11: error: lkg.max_age is 31d, out of bounds: use 1m to 30d",
            ],
        ),
        (
            "reload.debounce = '10ms'\n",
            &["5:19: error: reload.debounce is 10ms, out of bounds: use 50ms to 10s"],
        ),
        (
            "audit.sink = 'fiel'\n",
            &["5:14: error: audit.sink is none of stdout, file, off: correct the value"],
        ),
        ("audit.sink = 'file'\n", &["5:14: error: audit.path is required with audit.sink = \"file\""]),
        (
            "limits.streams = 5\nlimits.burst = -1\n",
            &[
                "5:8: error: limits.streams is not a known key: remove it, or use one of requests_per_second, burst, streams_per_subject, streams_total, connections, names_per_stream, batch_names",
                "6:16: error: limits.burst is a number that does not fit; it must be u32: correct the value",
            ],
        ),
        (
            "metrics.addr = ':9100'\nprobe.addr = 'host'\n",
            &[
                "5:16: error: metrics.addr: \":9100\" is not HOST:PORT",
                "6:14: error: probe.addr: \"host\" is not HOST:PORT",
            ],
        ),
        (
            "[defaults]\npoll = '500ms'\ntimeout = '3m'\nmax_stale = '31d'\non_absent = 'forget'\nmax_value_bytes = 100\n",
            &[
                "6:8: error: defaults: poll is 500ms, out of bounds: use 1s to 24h",
                "7:11: error: defaults: timeout is 3m, out of bounds: use 100ms to 120s",
                "8:13: error: defaults: max_stale is 31d, out of bounds: use 0s for none, to 30d",
                "9:13: error: defaults.on_absent is none of keep, drop: correct the value",
                "10:19: error: defaults: max_value_bytes is 100, out of bounds: use 1KiB to 16MiB",
            ],
        ),
        (
            "[upstream.a]\nroots = ['/x']\n[upstream.b]\ntype = 'aws'\n[upstream.static]\ntype = 'file'\n",
            &[
                "5:1: error: upstream \"a\": type is required",
                "8:8: error: upstream \"b\": type \"aws\" is not built in",
                "9:11: error: upstream \"static\": the name is taken",
            ],
        ),
        (
            "[upstream.a]\ntype = 'etcd'\nconcurrency = 257\nconfirm = '4s'\nwatch_idle = '11m'\nroots = ['/x']\n",
            &[
                "5:1: error: upstream \"a\": addrs is required",
                "7:15: error: upstream \"a\": concurrency is 257, out of bounds: use 1 to 256",
                "8:11: error: upstream \"a\": confirm is 4s, out of bounds: use 5s to 1h",
                "9:14: error: upstream \"a\": watch_idle is 11m, out of bounds: use 5s to 10m",
                "10:1: error: upstream \"a\": roots is not for type \"etcd\"",
            ],
        ),
        (
            "[upstream.h]\ntype = 'hub'\naddrs = ['https://h']\ntoken_fiel = 'x'\n",
            &[
                "5:1: error: upstream \"h\": set one of token_file, approle, kubernetes, cert",
                "8:1: error: upstream.h.token_fiel is not a known key: did you mean token_file?",
            ],
        ),
        (
            "[upstream]\nf = { type = 'file', roots = [] }\ne = { type = 'env', allow = ['['] }\nx = { type = 'exec', allow = ['echo'] }\n",
            &[
                "6:30: error: upstream \"f\": roots is empty",
                "7:30: error: upstream \"e\": bad glob \"[\"",
                "8:31: error: upstream \"x\": \"echo\" is not an absolute path",
            ],
        ),
        (
            "[bindings]\na = 5\nb = { ref = 'static:', persist = 'yes', sensitiv = true }\n",
            &[
                "6:5: error: bindings.a is a number, not a ref, or a table with one: correct the value",
                "7:34: error: bindings.b.persist is text, not a boolean: correct the value",
                "7:41: error: bindings.b.sensitiv is not a known key: did you mean sensitive?",
            ],
        ),
        (
            "[bindings]\na = 'redis://k'\nb = 'etcd://k?via=x'\nc = 'https://h/p'\nd = 'static:x?token=hunter2'\n",
            &[
                "6:5: error: binding \"a\": no upstream of type \"redis\"",
                "7:5: error: binding \"b\": no upstream \"x\"",
                "8:5: error: binding \"c\": no upstream \"h\"",
                "9:5: error: binding \"d\": option \"token\" is a secret: put it into a file that the upstream names",
            ],
        ),
        (
            "[server]\nconfig = { node_id = 'x', drain_grace = 1 }\nhubb = {}\n[server.hub]\nanything = 1\n",
            &["7:1: error: server.hubb is not a known key: did you mean hub?"],
        ),
        (
            "node_id = 'a'\n[server.config]\nnode_id = 'b'\n",
            &["7:1: error: node_id is set twice (config.toml:5 and config.toml:7)"],
        ),
        (
            "bind_files = ['none.yaml']\n",
            &["!none.yaml: error: cannot be read (No such file or directory (os error 2)): correct the file"],
        ),
    ] {
        let expected: Vec<_> = expected
            .iter()
            .map(|line| line.strip_prefix('!').map_or_else(|| format!("config.toml:{line}"), str::to_owned))
            .collect();
        assert_eq!(told(&format!("{GOOD}{damage}")).lines().collect::<Vec<_>>(), expected, "{damage}");
    }
}

#[test]
fn broken_listeners() {
    for (listener, expected) in [
        ("{}", "4:13: error: listener: kind is required: tcp or unix"),
        ("{ kind = 'udp' }", "4:22: error: listener: unknown kind \"udp\": use tcp or unix"),
        ("{ kind = 'tcp' }", "4:13: error: listener: addr is required for kind \"tcp\""),
        ("{ kind = 'tcp', addr = '80' }", "4:36: error: listener 80: not HOST:PORT"),
        (
            "{ kind = 'tcp', addr = '[::1]:0', mode = '0600' }",
            "4:47: error: listener: mode is not for kind \"tcp\"",
        ),
        ("{ kind = 'unix' }", "4:13: error: listener: path is required for kind \"unix\""),
        (
            "{ kind = 'unix', path = 's', mode = 'rw' }",
            "4:49: error: listener: mode \"rw\" is not octal, such as 0600",
        ),
        ("{ kind = 'unix', path = 's', addr = 'x' }", "4:42: error: listener: addr is not for kind \"unix\""),
        (
            "{ kind = 'tcp', addr = '[::]:1', tls = { cert = '/dev/null', key = '/dev/null', client_auth = 'require' } }",
            "4:107: error: listener [::]:1: client_auth needs client_ca",
        ),
        (
            "{ kind = 'tcp', addr = '[::]:1', tls = { cert = '/dev/null' } }",
            "4:52: error: listener.0.tls.key is required: set it",
        ),
    ] {
        let text = format!(
            "auth.methods = ['token']\nauth.token.file = 'tokens.toml'\npolicy.allow_all = true\nlistener = [{listener}]\nallow_empty = true\n"
        );
        let told = loaded(&[("config.toml", &text), ("tokens.toml", &token_file())]).unwrap_err();
        assert_eq!(told, format!("config.toml:{expected}"), "{listener}");
    }
}

#[test]
fn broken_bind_files() {
    let main = format!("{GOOD}bind_files = ['b.yaml']\n");
    for (text, expected) in [
        ("", "b.yaml: error: has no key bindings: correct the file"),
        ("# only a comment\n", "b.yaml: error: has no key bindings: correct the file"),
        (
            "binding:\n  a: 'static:'\n",
            "b.yaml: error: has no key bindings: correct the file\nb.yaml:1:1: warning: \"binding\" is ignored: a bind file has one key, bindings",
        ),
        ("bindings:\n", "b.yaml:1:9: error: bindings is empty, not a map: correct the value"),
        ("- a\n", "b.yaml:1:1: error: is not YAML (is not a table at its top): correct the file"),
        ("bindings:\n  /a: 'static:'\n", "b.yaml:2:3: error: binding \"/a\": bad name"),
    ] {
        let told = loaded(&[("config.toml", &main), ("b.yaml", text)]).unwrap_err();
        assert_eq!(told, expected, "{text:?}");
    }
    let told = loaded(&[("config.toml", &main), ("b.yaml", "bindings: {a: [\n")]).unwrap_err();
    assert!(told.starts_with("b.yaml:") && told.contains(": error: is not YAML ("), "{told}");
    assert_eq!(told.lines().count(), 1, "what is missing may stand there: {told}");
}

#[test]
fn broken_policy_and_token_files() {
    let main = "auth.methods = ['token']\nauth.token.file = 't.toml'\nallow_empty = true\nlistener = [{ kind = 'unix', path = 's' }]\npolicy.file = 'p.toml'\n";
    let rules = "[[rule]]\neveryone = true\nnames = ['*']\n";
    for (policy, tokens, expected) in [
        ("", token_file(), "p.toml: error: has no key rule: correct the file"),
        (
            "[[rule]]\neveryone = 1\nnames = ['*']\n",
            token_file(),
            "p.toml:2:12: error: policy.rule.0.everyone is a number, not a boolean: correct the value",
        ),
        (
            "rules = 1\n[[rule]]\neveryone = true\nnames = ['*']\n",
            token_file(),
            "p.toml:1:1: error: rules is not a known key: a policy file has [[rule]] only",
        ),
    ] {
        let told = loaded(&[("config.toml", main), ("p.toml", policy), ("t.toml", &tokens)]).unwrap_err();
        assert_eq!(told.lines().next(), Some(expected), "{told}");
    }
    let told = loaded(&[("config.toml", main), ("p.toml", rules)]).unwrap_err();
    assert!(told.starts_with("config.toml:2:19: error: ") && told.contains("t.toml"), "{told}");
}
