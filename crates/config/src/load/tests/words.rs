//! The exact words of every error of a load, and where each is told.

use super::*;

/// A good configuration with more keys in front and these bindings.
fn with(keys: &str, bindings: &str) -> String {
    format!("{keys}\n{BASE}[bindings]\n{bindings}\n")
}

#[test]
fn policy_authentication_and_listeners() {
    for (text, expected) in [
        (
            "auth.methods = ['none']\nlistener = [{ kind = 'unix', path = 's' }]\nallow_empty = true\n",
            "config.toml: error: no policy configured: add [[policy.rule]] or policy.allow_all = true",
        ),
        (
            "auth.methods = ['none']\nlistener = [{ kind = 'unix', path = 's' }]\nallow_empty = true\n[policy]\n",
            "config.toml:4:1: error: no policy configured: add [[policy.rule]] or policy.allow_all = true",
        ),
        (
            "policy.allow_all = true\nlistener = [{ kind = 'unix', path = 's' }]\nallow_empty = true\n",
            "config.toml: error: no authentication configured: set auth.methods",
        ),
        (
            "auth.methods = ['none']\npolicy.allow_all = true\nlistener = [{ kind = 'tcp', addr = '127.0.0.1:0' }]\nallow_empty = true\n",
            "config.toml:1:16: error: auth \"none\" is refused with a TCP listener",
        ),
        (
            "auth.methods = ['peercred']\npolicy.allow_all = true\nallow_empty = true\nlistener = [{ kind = 'unix', path = 's' },\n{ kind = 'tcp', addr = '10.0.0.1:80' }]\n",
            "config.toml:5:24: error: listener 10.0.0.1:80: TLS required (or insecure_no_tls = true)",
        ),
        (
            "auth.methods = ['none']\npolicy.allow_all = true\nallow_empty = true\n",
            "config.toml: error: no listeners",
        ),
        (
            "auth.methods = ['none']\npolicy.allow_all = true\nallow_empty = true\nlistener = []\n",
            "config.toml:4:12: error: no listeners",
        ),
        (
            "auth.methods = ['none']\nallow_empty = true\nlistener = [{ kind = 'unix', path = 's' }]\n[[policy.rule]]\neveryone = true\nnames = ['*']\n[[policy.rule]]\neveryone = true\nnames = ['a[']\n",
            "config.toml:7:1: error: policy rule 2: bad glob \"a[\"",
        ),
        (
            "auth.methods = ['none']\npolicy.allow_all = true\nlistener = [{ kind = 'unix', path = 's' }]\n",
            "config.toml: error: no bindings (allow_empty = true permits this)",
        ),
        (
            "auth.methods = ['none']\npolicy.allow_all = true\nlistener = [{ kind = 'unix', path = 's' }]\n[bindings]\n",
            "config.toml:4:1: error: no bindings (allow_empty = true permits this)",
        ),
    ] {
        assert_eq!(told(text), expected);
    }
    for keys in ["tls = { cert = '/dev/null', key = '/dev/null' }", "insecure_no_tls = true"] {
        let text = format!(
            "auth.methods = ['jwt']\npolicy.allow_all = true\nallow_empty = true\nlistener = [{{ kind = 'tcp', addr = '10.0.0.1:80', {keys} }}]\n"
        );
        assert!(!told(&text).contains("TLS required"), "{}", told(&text));
    }
}

#[test]
fn bindings() {
    let files = "upstream.f = { type = 'file', roots = ['/data'] }\nupstream.e = { type = 'env', allow = ['APP_*'] }\n\
                 upstream.x = { type = 'exec', allow = ['/bin/echo'], enabled = true }";
    for (keys, entry, expected) in [
        ("", "s3://b/x", "unknown scheme \"s3\""),
        ("", "aws-sm://b", "scheme \"aws-sm\" is not built in"),
        ("", "exec:/bin/echo", "exec is not enabled"),
        ("upstream.x = { type = 'exec', allow = ['/bin/echo'] }", "exec:/bin/echo", "exec is not enabled"),
        ("", "holdfast://n", "chaining is not enabled"),
        ("", "mamori://n", "chaining is not enabled"),
        ("", "static:x?decode=hex", "decoding is the consuming client's job: drop ?decode="),
        ("", "static:x,env:A", "chained refs are not supported"),
        ("", "static:${X}", "variables are not supported"),
        ("", "static:x?a#b", "fragment must come before '?'"),
        (files, "file:///etc/shadow", "/etc/shadow is outside upstream.f.roots"),
        (files, "env:HOME", "HOME is not in upstream.e.allow"),
        (files, "exec:/bin/sh", "/bin/sh is not in upstream.x.allow"),
    ] {
        let line = keys.lines().count().max(1) + 5;
        let bare = told(&with(keys, &format!("n = '{entry}'")));
        assert_eq!(bare, format!("config.toml:{line}:5: error: binding \"n\": {expected}"));
        let table = told(&with(keys, &format!("n = {{ poll = '5s', ref = '{entry}' }}")));
        assert_eq!(table, format!("config.toml:{line}:26: error: binding \"n\": {expected}"));
    }
    for name in ["/x", "a b", "a//b", "", "a\\u0007"] {
        let shown = name.replace("\\u0007", "\\u{7}");
        let expected = format!("config.toml:6:1: error: binding \"{shown}\": bad name");
        assert_eq!(told(&with("", &format!("\"{name}\" = 'static:'"))), expected);
    }
}

#[test]
fn a_name_that_is_declared_twice_anywhere() {
    let one = with("", "'a.b' = 'static:1'\nc = 'static:2'\n\"a.b\" = { ref = 'static:3' }");
    let expected = "config.toml:8:1: error: duplicate binding name \"a.b\" (config.toml:6 and config.toml:8)";
    assert_eq!(told(&one), expected);

    let main = with("bind_files = ['x.yaml', 'y.toml']", "a = 'static:1'");
    let yaml = "bindings:\n  b: 'static:'\n  b: 'static:'\n  d/e: 'static:'\n";
    let toml = "[bindings]\na = { ref = 'static:2' }\n'd/e' = 'static:3'\n";
    let told = loaded(&[("config.toml", &main), ("x.yaml", yaml), ("y.toml", toml)]).unwrap_err();
    let expected = [
        "x.yaml:3:3: error: duplicate binding name \"b\" (x.yaml:2 and x.yaml:3)",
        "y.toml:2:1: error: duplicate binding name \"a\" (config.toml:6 and y.toml:2)",
        "y.toml:3:1: error: duplicate binding name \"d/e\" (x.yaml:4 and y.toml:3)",
    ];
    assert_eq!(told.lines().collect::<Vec<_>>(), expected);

    let dir = directory(&[
        ("c/1.toml", &with("", "a = { ref = 'static:1' }")),
        ("c/2.toml", "policy.allow_all = false\nbindings.a = { poll = '5s' }\n"),
    ]);
    let told =
        load_in(&dir, "c", &[]).unwrap_err().to_string().replace(&format!("{}/", dir.path().display()), "");
    let expected = [
        "c/2.toml:1:8: error: policy.allow_all is set twice (c/1.toml:3 and c/2.toml:1)",
        "c/2.toml:2:10: error: duplicate binding name \"a\" (c/1.toml:6 and c/2.toml:2)",
    ];
    assert_eq!(told.lines().collect::<Vec<_>>(), expected);
}

#[test]
fn all_problems_of_all_files_are_told_at_once_in_their_order() {
    let main = "drian_grace = '5s'\nauth.methods = ['tokn']\nbind_files = ['b.yaml']\nlistener = [{ kind = 'tcp', addr = '0.0.0.0:1' }]\n\
                watch = { redate = '1s', heartbeat = 'x' }\n[policy]\nfile = 'p.toml'\n[upstream.e]\ntype = 'etdc'\n[bindings]\n\
                a = { ref = 'etcd://k', pol = '5s' }\nb = { poll = '0s' }\n";
    let yaml = "bindings:\n  c: {ref: 's3://x', max_value_bytes: 17MiB}\n  d: [1]\n";
    let rules = "[[rule]]\nsubject = ['x']\nnames = ['[']\n";
    let told = loaded(&[("config.toml", main), ("b.yaml", yaml), ("p.toml", rules)]).unwrap_err();
    let expected = [
        "b.yaml:2:12: error: binding \"c\": unknown scheme \"s3\"",
        "b.yaml:2:39: error: binding \"c\": max_value_bytes is 17MiB, out of bounds: use 1KiB to 16MiB",
        "b.yaml:3:6: error: bindings.d is a list, not a ref, or a table with one: correct the value",
        "config.toml:1:1: error: drian_grace is not a known key: did you mean drain_grace?",
        "config.toml:2:16: error: auth.methods: unknown method \"tokn\"",
        "config.toml:4:36: error: listener 0.0.0.0:1: TLS required (or insecure_no_tls = true)",
        "config.toml:5:20: error: watch.redate is 1s, out of bounds: use 10s to 1h",
        "config.toml:5:38: error: watch.heartbeat is not a duration; write seconds as a number, or text such as \"30s\" or \"1h30m\": correct the value",
        "config.toml:9:8: error: upstream \"e\": unknown type \"etdc\": did you mean etcd?",
        "config.toml:11:25: error: bindings.a.pol is not a known key: did you mean poll?",
        "config.toml:12:5: error: bindings.b.ref is required: set it",
        "p.toml:1:1: error: policy rule 1: no identity: set subjects, groups, sans, uids, gids or everyone = true",
        "p.toml:1:1: error: policy rule 1: bad glob \"[\"",
        "p.toml:2:1: error: policy.rule.0.subject is not a known key: did you mean subjects?",
    ];
    assert_eq!(told.lines().collect::<Vec<_>>(), expected);
}
