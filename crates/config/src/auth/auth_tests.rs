use std::path::Path;

use aws_lc_rs::digest::{SHA256, digest};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use http::header::AUTHORIZATION;

use super::*;
use crate::config::{
    AuthSettings, HeaderSettings, JwtSettings, ListenerSettings, ListenerTls, TokenSettings,
};
use crate::problem::Problem;

const NOW: Wall = Wall::from_micros(1_700_000_000_000_000);

fn listener(kind: &str) -> ListenerSettings {
    let tls = ListenerTls {
        cert: "c".into(),
        key: "k".into(),
        client_ca: Some("ca".into()),
        client_auth: crate::config::ClientAuth::None,
    };
    ListenerSettings {
        kind: kind.to_owned(),
        tls: (kind == "tcp").then_some(tls),
        ..ListenerSettings::default()
    }
}

fn stanza(id: &str, token: &str, more: &str) -> String {
    let sha256 = hex::encode(digest(&SHA256, token.as_bytes()));
    format!("[[token]]\nid = \"{id}\"\nsha256 = \"{sha256}\"\nsubject = \"svc-{id}\"\n{more}\n")
}

/// Tokens `t-a`, and `t-old`, which ended.
fn token_file() -> String {
    stanza("a", "t-a", "groups = [\"g\"]") + &stanza("old", "t-old", "expires = 2020-01-01")
}

fn settings(dir: &Path, methods: &[&str]) -> AuthSettings {
    AuthSettings {
        methods: methods.iter().map(|name| (*name).to_owned()).collect(),
        token: Some(TokenSettings { file: dir.join("tokens.toml") }),
        header: Some(HeaderSettings { name: "X-Api-Key".to_owned() }),
        ..AuthSettings::default()
    }
}

fn of(settings: &AuthSettings) -> Result<Authenticator, Vec<Problem>> {
    Authenticator::new(Some(settings), &[listener("tcp"), listener("unix")])
}

/// With the usual token file.
fn with(methods: &[&str], change: impl Fn(&mut AuthSettings)) -> Authenticator {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("tokens.toml"), token_file()).unwrap();
    let mut settings = settings(dir.path(), methods);
    change(&mut settings);
    of(&settings).unwrap()
}

fn headers(list: &[(&'static str, &str)]) -> HeaderMap {
    let header = |(name, value): &(&'static str, &str)| {
        (HeaderName::from_static(name), HeaderValue::from_str(value).unwrap())
    };
    list.iter().map(header).collect()
}

fn ask(authenticator: &Authenticator, headers: &HeaderMap, peer: &PeerFacts) -> Result<Identity, Rejection> {
    authenticator.authenticate(&RequestFacts { headers, peer }, NOW)
}

/// The subject, or status, message and the audit's reason.
fn answer(result: Result<Identity, Rejection>) -> String {
    match result {
        Ok(identity) => identity.subject.to_string(),
        Err(rejection) => {
            let (kind, message) = rejection.answer();
            format!("{} {message}: {}", kind.http_status(), rejection.reason())
        }
    }
}

fn by_headers(authenticator: &Authenticator, list: &[(&'static str, &str)]) -> String {
    answer(ask(authenticator, &headers(list), &PeerFacts::default()))
}

fn basic(text: &str) -> String {
    format!("Basic {}", BASE64_STANDARD.encode(text))
}

#[test]
fn tokens_come_by_three_ways() {
    let all = with(&["token", "header", "basic"], |_| {});
    for (name, value, expected) in [
        ("authorization", "Bearer t-a".to_owned(), "svc-a"),
        ("authorization", "bEARER t-a".to_owned(), "svc-a"),
        ("x-api-key", "t-a".to_owned(), "svc-a"),
        ("authorization", basic("svc-a:t-a"), "svc-a"),
        (
            "authorization",
            "Bearer t-b".to_owned(),
            "401 unauthenticated: token=unknown_token,header=no_credential,basic=no_credential",
        ),
        (
            "authorization",
            "Bearer t-old".to_owned(),
            "401 unauthenticated: token=expired,header=no_credential,basic=no_credential",
        ),
        (
            "authorization",
            "Bearer".to_owned(),
            "401 unauthenticated: token=empty,header=no_credential,basic=no_credential",
        ),
        (
            "x-api-key",
            "Bearer t-a".to_owned(),
            "401 unauthenticated: token=no_credential,header=unknown_token,basic=no_credential",
        ),
        (
            "authorization",
            basic("svc-b:t-a"),
            "401 unauthenticated: token=no_credential,header=no_credential,basic=wrong_subject",
        ),
        (
            "authorization",
            basic("svc-a:t-b"),
            "401 unauthenticated: token=no_credential,header=no_credential,basic=unknown_token",
        ),
    ] {
        assert_eq!(by_headers(&all, &[(name, &value)]), expected, "{name}: {value}");
    }
    let identity = ask(&all, &headers(&[("x-api-key", "t-a")]), &PeerFacts::default()).unwrap();
    assert_eq!((identity.method, &*identity.groups), (Method::Header, &[Arc::from("g")][..]));
}

#[test]
fn two_authorization_headers_are_refused_whatever_else_is_good() {
    for methods in [&["token"][..], &["header", "token"]] {
        let authenticator = with(methods, |_| {});
        let list = [("authorization", "Bearer t-a"), ("authorization", "Bearer t-a"), ("x-api-key", "t-a")];
        assert_eq!(by_headers(&authenticator, &list), "401 unauthenticated: ambiguous");
    }
    let mut list = headers(&[("authorization", "Bearer t-a")]);
    list.append(AUTHORIZATION, HeaderValue::from_static(""));
    assert!(ask(&with(&["token"], |_| {}), &list, &PeerFacts::default()).is_err());
}

#[test]
fn challenges_are_those_of_the_methods_in_order() {
    for (methods, expected) in [
        (&["token"][..], &["Bearer"][..]),
        (&["basic", "token", "mtls"], &["Basic realm=\"holdfast\"", "Bearer"]),
        (&["header", "mtls", "peercred"], &[]),
    ] {
        assert_eq!(with(methods, |_| {}).challenges(), expected);
    }
}

fn unix(uid: u32, gid: u32) -> PeerFacts {
    PeerFacts { credentials: Some(UnixCredentials { uid, gid, pid: 7 }), certificate: None }
}

#[test]
fn the_peer_of_a_socket_is_its_user() {
    let any = with(&["peercred"], |_| {});
    let identity = ask(&any, &HeaderMap::new(), &unix(1000, 100)).unwrap();
    assert_eq!(
        (&*identity.subject, identity.uid, identity.gid, identity.pid),
        ("uid:1000", Some(1000), Some(100), Some(7))
    );
    let listed =
        with(&["peercred"], |settings| (settings.peercred.uids, settings.peercred.gids) = (vec![1], vec![2]));
    for (uid, gid, expected) in
        [(1, 9, "uid:1"), (9, 2, "uid:9"), (2, 1, "403 forbidden: peercred=not_allowed")]
    {
        assert_eq!(answer(ask(&listed, &HeaderMap::new(), &unix(uid, gid))), expected);
    }
    let tcp = answer(ask(&any, &HeaderMap::new(), &PeerFacts::default()));
    assert_eq!(tcp, "401 unauthenticated: peercred=no_credential");
}

#[test]
fn nobody_is_asked_without_authentication() {
    let settings = AuthSettings { methods: vec!["none".to_owned()], ..AuthSettings::default() };
    let none = Authenticator::new(Some(&settings), &[listener("unix")]).unwrap();
    assert_eq!(
        ask(&none, &headers(&[("authorization", "Bearer x")]), &PeerFacts::default()),
        Ok(Identity::nobody())
    );
    assert_eq!(none.again(&Identity::nobody(), NOW), Ok(Identity::nobody()));
}

#[test]
fn all_methods_must_succeed_where_that_is_asked() {
    let both = with(&["peercred", "token"], |settings| settings.mode = AuthMode::All);
    let bearer = headers(&[("authorization", "Bearer t-a")]);
    let identity = ask(&both, &bearer, &unix(5, 6)).unwrap();
    assert_eq!(
        (&*identity.subject, identity.uid, &*identity.groups),
        ("uid:5", Some(5), &[Arc::from("g")][..])
    );
    assert_eq!(both.again(&identity, NOW).unwrap(), identity);
    assert!(ask(&both, &bearer, &PeerFacts::default()).is_err());
    assert!(ask(&both, &HeaderMap::new(), &unix(5, 6)).is_err());
}

#[test]
fn an_identity_is_judged_again_by_what_is_in_force_now() {
    let dir = tempfile::tempdir().unwrap();
    let write = |text: &str| std::fs::write(dir.path().join("tokens.toml"), text).unwrap();
    let load = |methods: &[&str]| of(&settings(dir.path(), methods)).unwrap();
    write(&token_file());
    let first = load(&["token", "basic"]);
    let by_token = ask(&first, &headers(&[("authorization", "Bearer t-a")]), &PeerFacts::default()).unwrap();
    let by_basic =
        ask(&first, &headers(&[("authorization", &basic("svc-a:t-a"))]), &PeerFacts::default()).unwrap();
    let again = |methods: &[&str], identity| answer(load(methods).again(identity, NOW));
    assert_eq!(again(&["token"], &by_token), "svc-a");
    assert_eq!(again(&["basic"], &by_token), "401 unauthenticated: basic=method", "its method is gone");
    write(&stanza("a", "t-a", "groups = [\"h\"]"));
    assert_eq!(&*load(&["token"]).again(&by_token, NOW).unwrap().groups, &[Arc::from("h")]);
    write(&stanza("renamed", "t-a", ""));
    assert_eq!(again(&["token"], &by_token), "svc-renamed");
    assert_eq!(again(&["basic"], &by_basic), "401 unauthenticated: basic=wrong_subject");
    write(&stanza("a", "t-a", "expires = 2023-11-14T22:13:20Z"));
    assert_eq!(again(&["token"], &by_token), "401 unauthenticated: token=expired");
    write(&stanza("a", "t-other", ""));
    assert_eq!(again(&["token"], &by_token), "401 unauthenticated: token=unknown_token");
    write("");
    assert_eq!(again(&["token"], &by_token), "401 unauthenticated: token=unknown_token");
}

#[test]
fn a_file_without_entries_loads_and_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let (tokens, jwks) = (dir.path().join("tokens.toml"), dir.path().join("jwks.json"));
    std::fs::write(&tokens, "").unwrap();
    std::fs::write(&jwks, "{\"keys\": []}").unwrap();
    let jwt = JwtSettings {
        jwks_file: jwks.clone(),
        issuer: "i".into(),
        audience: "a".into(),
        algorithms: vec![],
        groups_claim: None,
    };
    let settings = AuthSettings { jwt: Some(jwt), ..settings(dir.path(), &["token", "header", "jwt"]) };
    let authenticator = of(&settings).unwrap();
    let empty = [
        Empty { key: "auth.token.file", path: tokens.clone() },
        Empty { key: "auth.jwt.jwks_file", path: jwks.clone() },
    ];
    assert_eq!(authenticator.empty(), empty);
    assert_eq!(empty[0].problem().what, format!("{} holds no entry", tokens.display()));
    assert!(by_headers(&authenticator, &[("authorization", "Bearer t-a")]).starts_with("401"));
    for unusable in ["[[token]]", "not toml"] {
        std::fs::write(&tokens, unusable).unwrap();
        assert!(of(&settings).is_err());
    }
    std::fs::remove_file(&tokens).unwrap();
    let [problem] = &of(&settings).unwrap_err()[..] else { panic!() };
    assert!(
        problem.what.starts_with(&format!("token file {} cannot be read: ", tokens.display())),
        "{problem:?}"
    );
}

#[test]
fn the_exact_texts_of_faults() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("tokens.toml"), token_file()).unwrap();
    let texts = |settings: Option<&AuthSettings>, listeners: &[ListenerSettings]| -> Vec<String> {
        let problems = Authenticator::new(settings, listeners).unwrap_err();
        problems.into_iter().map(|problem| problem.what).collect()
    };
    let both = [listener("tcp"), listener("unix")];
    let plain = ListenerSettings { tls: None, ..listener("tcp") };
    let missing = "no authentication configured: set auth.methods";
    assert_eq!(texts(None, &both), [missing]);
    assert_eq!(texts(Some(&AuthSettings::default()), &both), [missing]);
    for (methods, listeners, expected) in [
        (&["none"][..], &both[..], &["auth \"none\" is refused with a TCP listener"][..]),
        (&["none", "token"], &both[1..], &["auth \"none\" stands alone or not at all"]),
        (&["mtls"], &both[1..], &["auth \"mtls\" needs a TLS listener with client_ca"]),
        (&["mtls"], &[plain], &["auth \"mtls\" needs a TLS listener with client_ca"]),
        (&["peercred"], &both[..1], &["auth \"peercred\" needs a Unix listener"]),
        (
            &["token", "tokens", "token"],
            &both,
            &["auth.methods: unknown method \"tokens\"", "auth.methods: \"token\" stands there twice"],
        ),
        (&["jwt"], &both, &["auth \"jwt\" needs auth.jwt"]),
    ] {
        assert_eq!(texts(Some(&settings(dir.path(), methods)), listeners), expected, "{methods:?}");
    }
    let bare = AuthSettings { token: None, header: None, ..settings(dir.path(), &["header"]) };
    assert_eq!(
        texts(Some(&bare), &both),
        ["auth \"header\" needs auth.token.file", "auth \"header\" needs auth.header.name"]
    );
    for name in ["Authorization", "a b", ""] {
        let header = Some(HeaderSettings { name: name.to_owned() });
        let settings = AuthSettings { header, ..settings(dir.path(), &["header"]) };
        assert_eq!(
            texts(Some(&settings), &both),
            [format!("auth.header.name: {name:?} cannot carry a token")]
        );
    }
    let all = AuthSettings { mode: AuthMode::All, ..settings(dir.path(), &["token", "mtls", "basic"]) };
    let expected = "auth.mode \"all\" cannot hold: token and basic read the one Authorization header";
    assert_eq!(texts(Some(&all), &both), [expected]);
}

#[test]
fn nothing_shows_a_credential() {
    let authenticator = with(&["token", "basic"], |_| {});
    let identity =
        ask(&authenticator, &headers(&[("authorization", "Bearer t-a")]), &PeerFacts::default()).unwrap();
    let hash = digest(&SHA256, b"t-a");
    let shown = format!("{identity:?} {authenticator:?}");
    for secret in ["t-a\"", &hex::encode(hash), &format!("{:?}", hash.as_ref())] {
        assert!(!shown.contains(secret), "{secret} in {shown}");
    }
}
