//! What is read from references, and the exact words for what is refused.

use proptest::prelude::*;

use super::*;

fn parse(text: &str) -> Written {
    Written::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn refused(text: &str) -> String {
    match Written::parse(text) {
        Ok(read) => panic!("{text} was read as {read}"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn golden_refs() {
    for (text, shown) in [
        ("file:///etc/app/p", "file:///etc/app/p"),
        ("  FILE:///etc/app/p\n", "file:///etc/app/p"),
        ("file:/etc/app/p", "file:///etc/app/p"),
        ("file://rel/p?debounce=50ms", "file://rel/p?debounce=50ms"),
        ("file:////p", "file:////p"),
        ("env:HOME", "env:HOME"),
        ("env://HOME", "env:HOME"),
        ("exec:/bin/echo 'a b' --x=y", "exec:/bin/echo 'a b' --x=y"),
        ("static:some: text, or so", "static:some: text, or so"),
        ("static:", "static:"),
        ("hub://kv/prod/db#password", "hub://kv/prod/db#password"),
        ("vault://kv/a#/data/x~1y?renew=true&via=v1", "vault://kv/a#/data/x~1y?via=v1&renew=true"),
        ("https://api/v1/doc?b=2&a=x%20y", "https://api/v1/doc?a=x y&b=2"),
        ("etcd:///key", "etcd:///key"),
        ("etcd://key#a#b", "etcd://key#a#b"),
        ("k8s-secret://ns/name#ca.crt", "k8s-secret://ns/name#ca.crt"),
        ("K8s-CM://ns/name?optional", "k8s-cm://ns/name"),
        ("consul://a/b", "consul://a/b"),
        ("postgres://app.config/a/b?key_col=k&val_col=v", "postgres://app.config/a/b?key_col=k&val_col=v"),
        ("redis://k", "redis://k"),
        ("mamori://name/x", "holdfast://name/x"),
    ] {
        let read = parse(text);
        assert_eq!(read.to_string(), shown, "{text}");
        assert_eq!(parse(&read.to_string()), read, "what is shown reads back: {text}");
        assert_eq!(format!("{read:?}"), shown);
    }
    assert_eq!(parse("etcd:///key").path, "/key");
    assert_eq!(parse("etcd://key#a#b").fragment, Some(Fragment::Key("a#b".into())));
    assert_eq!(parse("https://api/v1?a=x%20y&b").options["a"], "x y");
}

#[test]
fn what_is_refused_in_these_words() {
    for (text, words) in [
        ("s3://bucket/x", "unknown scheme \"s3\""),
        ("S3://bucket/x", "unknown scheme \"s3\""),
        (":x", "unknown scheme \"\""),
        ("aws-sm://prod/db", "scheme \"aws-sm\" is not built in"),
        ("AWS-PS:///a", "scheme \"aws-ps\" is not built in"),
        ("plain", "a ref is SCHEME://PATH or SCHEME:TEXT"),
        ("", "a ref is SCHEME://PATH or SCHEME:TEXT"),
        ("etcd://k?decode=base64", "decoding is the consuming client's job: drop ?decode="),
        ("etcd://k?x=1&DECODE", "decoding is the consuming client's job: drop ?decode="),
        ("env:A,file:///b", "chained refs are not supported"),
        ("env:A , s3://b", "chained refs are not supported"),
        ("static:a,ENV:b", "chained refs are not supported"),
        ("file:///a?debounce=1ms,env:B", "chained refs are not supported"),
        ("file:///${HOME}/x", "variables are not supported"),
        ("${SCHEME}:x", "variables are not supported"),
        ("etcd://k?a=1#frag", "fragment must come before '?'"),
        ("etcd://k#", "empty fragment"),
        ("etcd://k#/a~2", "bad escape in fragment"),
        ("etcd://k?TOKEN=x", "option \"TOKEN\" is a secret: put it into a file that the upstream names"),
        (
            "https://a/b?%70assword=x",
            "option \"password\" is a secret: put it into a file that the upstream names",
        ),
        ("etcd://k?x=y", "unknown option \"x\" of scheme \"etcd\""),
        ("etcd://k?debounce=1s", "unknown option \"debounce\" of scheme \"etcd\""),
        ("static:x?via=y", "unknown option \"via\" of scheme \"static\""),
        ("https://u/p?via=y", "unknown option \"via\" of scheme \"https\""),
        ("https://u/p?a=1&a=2", "option \"a\" is given twice"),
        ("https://u/p?a=%ff", "bad percent-encoding in the options"),
        ("file:///p?debounce=soon", "option \"debounce\" must be a duration such as 20ms"),
        ("hub://kv/p?renew=yes", "option \"renew\" must be true or false"),
        ("postgres://t/k?key_col=a-b", "option \"key_col\" must be a column's name"),
        ("file://", "bad path: there is none"),
        ("env:", "bad path: there is none"),
        ("env:A=B", "bad path: there is none"),
        ("exec:", "bad path: there is no program"),
        ("exec:/bin/sh -c 'x", "bad path: a quote is not closed"),
        ("https://", "bad path: it must be UPSTREAM/PATH"),
        ("https:///x", "bad path: it must be UPSTREAM/PATH"),
        ("https://u/a/../b", "bad path: '..' is refused"),
        ("https://u/a/%2e%2E/b", "bad path: '..' is refused"),
        ("hub://kv", "bad path: it must be MOUNT/PATH"),
        ("vault://kv/a/../b", "bad path: it must be MOUNT/PATH"),
        ("k8s-secret://name", "bad path: it must be NAMESPACE/NAME"),
        ("k8s-cm://a/b/c", "bad path: it must be NAMESPACE/NAME"),
        ("postgres://t", "bad path: it must be TABLE/KEY or SCHEMA.TABLE/KEY"),
        ("postgres://a.b.c/k", "bad path: it must be TABLE/KEY or SCHEMA.TABLE/KEY"),
        ("postgres://t;drop/k", "bad path: it must be TABLE/KEY or SCHEMA.TABLE/KEY"),
        ("holdfast://a b", "bad path: it must be the name of a binding"),
    ] {
        assert_eq!(refused(text), words, "{text}");
    }
    let longest = format!("postgres://{}/k", "a".repeat(63));
    parse(&longest);
    assert_eq!(refused(&longest.replace("/k", "a/k")), "bad path: it must be TABLE/KEY or SCHEMA.TABLE/KEY");
}

fn upstreams() -> BTreeMap<String, UpstreamSettings> {
    let of = |kind: &str| UpstreamSettings { kind: kind.to_owned(), ..UpstreamSettings::default() };
    let strings = |list: &[&str]| list.iter().map(ToString::to_string).collect();
    BTreeMap::from([
        ("disk".into(), UpstreamSettings { roots: vec!["/data".into(), "/srv/app".into()], ..of("file") }),
        ("vars".into(), UpstreamSettings { allow: strings(&["APP_*"]), ..of("env") }),
        ("run".into(), UpstreamSettings { allow: strings(&["/bin/echo"]), enabled: true, ..of("exec") }),
        ("api".into(), of("http")),
        ("e1".into(), of("etcd")),
        ("e2".into(), of("etcd")),
        ("peers".into(), of("holdfast")),
    ])
}

#[test]
fn upstreams_are_found_and_allow_paths() {
    let all = upstreams();
    let resolve =
        |text: &str| parse(text).resolve(&Upstreams::new(&all), true).map_err(|error| error.to_string());
    for (text, shown) in [
        ("file:///data/x", "file:///data/x?via=disk"),
        ("file:///srv/app", "file:///srv/app?via=disk"),
        ("file://rel/x/", "file://rel/x/?via=disk"),
        ("env:APP_KEY", "env:APP_KEY?via=vars"),
        ("exec:/bin/echo a", "exec:/bin/echo a?via=run"),
        ("static:a?optional", "static:a"),
        ("https://api/v1/x", "https://api/v1/x"),
        ("etcd://k?via=e2", "etcd://k?via=e2"),
        ("mamori://n", "holdfast://n?via=peers"),
    ] {
        assert_eq!(resolve(text).unwrap().to_string(), shown, "{text}");
    }
    assert_eq!(resolve("https://api/v1/x").unwrap().object.path, "v1/x");
    assert_eq!(resolve("https://api").unwrap().object.path, "");
    for (text, words) in [
        ("file:///etc/passwd", "/etc/passwd is outside upstream.disk.roots"),
        ("file:///data2/x", "/data2/x is outside upstream.disk.roots"),
        ("file:///data/../etc/passwd", "/data/../etc/passwd is outside upstream.disk.roots"),
        ("file://../x", "../x is outside upstream.disk.roots"),
        ("env:HOME", "HOME is not in upstream.vars.allow"),
        ("exec:/bin/sh -c x", "/bin/sh is not in upstream.run.allow"),
        ("exec:echo", "echo is not in upstream.run.allow"),
        ("etcd://k", "several upstreams of type \"etcd\": name one with ?via="),
        ("etcd://k?via=e3", "no upstream \"e3\""),
        ("etcd://k?via=disk", "upstream \"disk\" is not of type \"etcd\""),
        ("https://disk/x", "upstream \"disk\" is not of type \"http\""),
        ("https://example.com/x", "no upstream \"example.com\""),
        ("redis://k", "no upstream of type \"redis\""),
    ] {
        assert_eq!(resolve(text), Err(words.to_owned()), "{text}");
    }
}

#[test]
fn what_is_off_unless_it_is_enabled() {
    let (mut all, none) = (upstreams(), BTreeMap::new());
    all.get_mut("run").unwrap().enabled = false;
    let resolve = |all, text: &str| parse(text).resolve(&Upstreams::new(all), false).unwrap_err().to_string();
    assert_eq!(resolve(&all, "exec:/bin/echo"), "exec is not enabled");
    assert_eq!(resolve(&none, "exec:/bin/echo"), "exec is not enabled");
    assert_eq!(resolve(&all, "holdfast://n"), "chaining is not enabled");
    assert_eq!(resolve(&all, "MAMORI://n"), "chaining is not enabled");
}

#[test]
fn secrets_in_options_are_shown_nowhere() {
    for secret in SECRETS {
        let text = format!("https://u/p?a=1&{}=hunter2&b=2", secret.to_ascii_uppercase());
        assert_eq!(redact(&text), text.replace("hunter2", HIDDEN));
        assert!(!refused(&text).contains("hunter2"));
        let object = ObjectKey {
            upstream: "u".into(),
            scheme: Scheme::Https,
            path: "p".into(),
            options: BTreeMap::from([(secret.to_owned(), "hunter2".to_owned())]),
        };
        let reference = Reference { object: object.clone(), fragment: None };
        let shown = format!("{object} {object:?} {reference} {reference:?}");
        assert_eq!(shown.matches(HIDDEN).count(), 4, "{shown}");
        assert!(!shown.contains("hunter2"), "{shown}");
    }
    assert_eq!(redact("env:A?%74oken=x"), "env:A?%74oken=[redacted]");
    assert_eq!(redact("env:A?x=token"), "env:A?x=token");
}

#[test]
fn the_digest_is_of_what_it_says() {
    let same = |a: &str, b: &str| parse(a).digest() == parse(b).digest();
    assert!(same("FILE:/a?debounce=1s&optional", " file:///a?debounce=1s"));
    assert!(same("https://u/p?a=1&b=2", "https://u/p?b=2&a=%31"));
    assert!(same("mamori://n", "holdfast://n"));
    assert!(!same("etcd://a#b", "etcd://a"));
    assert!(!same("etcd://a#b", "etcd://a#/b"));
    assert!(!same("etcd://a?via=x", "etcd://a"));
    assert!(!same("etcd:///a", "etcd://a"));
}

proptest! {
    #[test]
    fn what_is_shown_reads_back(
        scheme in prop::sample::select(&Scheme::ALL[..]),
        path in "[a-z]{1,4}/[a-z_]{1,5}",
        fragment in prop::option::of("/?[a-z~1/]{1,4}"),
        options in prop::collection::btree_map("[a-c]{1,2}", "[a-z0-9 ]{0,3}", 0..3),
    ) {
        let fragment = fragment.map(|text| format!("#{text}")).unwrap_or_default();
        let options: Vec<_> = options.iter().map(|(key, text)| format!("{key}={text}")).collect();
        let text = format!("{}://{path}{fragment}?{}", scheme.name(), options.join("&"));
        if let Ok(read) = Written::parse(&text) {
            prop_assert_eq!(Written::parse(&read.to_string()), Ok(read));
        }
    }

    #[test]
    fn no_text_panics_and_no_secret_shows(text in "(file|static|https|etcd|exec)://\\PC{0,30}", value in "[A-Z]{12}") {
        let text = format!("{text}?x=1&token={value}");
        if let Err(error) = Written::parse(&text) {
            prop_assert!(!error.to_string().contains(&value));
        }
        prop_assert!(!redact(&text).contains(&value));
    }
}

#[test]
fn fuzz_refs() {
    let seeds: [&[u8]; 7] = [
        b"file:///data/x#/a/0?debounce=20ms",
        b"hub://kv/prod/db#password?renew=true&via=e1",
        b"https://api/v1/doc?a=x%20y",
        b"postgres://app.config/k?key_col=k",
        b"exec:/bin/echo 'a b' \"c\"",
        b"env:APP_X",
        b"mamori://a/b",
    ];
    let words = [
        "://",
        "?via=",
        "#/",
        "~1",
        "%2e%2e",
        "${",
        ",env:",
        "decode=",
        "token=",
        "k8s-secret://",
        "&optional",
    ];
    let all = upstreams();
    holdfast_tests::fuzz::fuzz(&seeds, &words, |input| {
        let text = String::from_utf8_lossy(input);
        let _ = redact(&text);
        match Written::parse(&text) {
            Err(error) => error.to_string(),
            Ok(read) => {
                assert_eq!(read.digest(), read.clone().digest());
                match read.resolve(&Upstreams::new(&all), true) {
                    Ok(reference) => reference.object.scheme.name().to_owned(),
                    Err(error) => error.to_string(),
                }
            }
        }
    });
}
