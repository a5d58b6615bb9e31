//! Requests of strangers: whatever they send, they get an answer, and none of the answers is a fault of ours.

use std::net::{IpAddr, Ipv4Addr};

use http_body_util::BodyExt as _;

use super::*;
use crate::logical::Data;
use holdfast_tests::fuzz::{Fuzzer, fuzz};

/// Requests as `METHOD path`, lines of headers, an empty line and a body.
const REQUESTS: [&[u8]; 16] = [
    b"PUT /v1/kv/a\n\n{\"v\": 1, \"ttl\": \"1h\"}",
    b"GET /v1/kv/a?list=true&after=a&limit=1\nx-vault-namespace: root\n\n",
    b"PUT /v1/kv2/data/a\nx-vault-wrap-ttl: 60\n\n{\"data\": {\"v\": [1, null, 1.5e3]}, \"options\": {\"cas\": 0}}",
    b"PATCH /v1/kv2/data/a\ncontent-type: application/merge-patch+json\n\n{\"data\": {\"w\": {\"x\": null}}}",
    b"PUT /v1/kv2/destroy/a\n\n{\"versions\": [1, \"2\"]}",
    b"PUT /v1/kv2/metadata/a\n\n{\"max_versions\": \"3\", \"delete_version_after\": \"1h30m\", \"custom_metadata\": {\"k\": \"v\"}}",
    b"PUT /v1/sys/policies/acl/p\n\n{\"policy\": \"path \\\"a/+/b*\\\" { capabilities = [\\\"read\\\"] }\"}",
    b"PUT /v1/sys/policies/password/p\n\n{\"policy\": \"length = 20\\nrule \\\"charset\\\" { charset = \\\"abc\\\" }\"}",
    b"POST /v1/auth/token/create\nauthorization: Bearer x\n\n{\"policies\": \"a,b\", \"ttl\": \"1h\", \"meta\": {\"k\": \"v\"}, \"num_uses\": 3, \"period\": \"90s\"}",
    b"POST /v1/auth/token/roles/r\n\n{\"allowed_policies\": [\"a\"], \"token_bound_cidrs\": \"127.0.0.0/8,::1/128\", \"path_suffix\": \"x\"}",
    b"POST /v1/auth/approle/role/r\n\n{\"secret_id_ttl\": 60, \"secret_id_bound_cidrs\": [\"10.0.0.0/8\"], \"token_type\": \"batch\"}",
    b"POST /v1/auth/approle/login\n\n{\"role_id\": \"x\", \"secret_id\": \"y\"}",
    b"PUT /v1/sys/wrapping/unwrap\n\n{\"token\": \"hvs.x\"}",
    b"PUT /v1/sys/leases/renew\n\n{\"lease_id\": \"database/creds/x/y\", \"increment\": \"1h\"}",
    b"PUT /v1/sys/capabilities-self\n\n{\"paths\": [\"a\", \"b/+\", \"c*\"]}",
    b"POST /v1/sys/quotas/rate-limit/q\n\n{\"rate\": 1000000, \"interval\": \"1s\", \"path\": \"kv/\", \"block_interval\": 0}",
];

const WORDS: [&str; 24] = [
    "/v1/",
    "sys/",
    "auth/token/",
    "kv/",
    "kv2/",
    "data/",
    "metadata/",
    "cubbyhole/",
    "?list=true",
    "&after=",
    "LIST ",
    "DELETE ",
    "x-vault-token: ",
    "x-vault-wrap-ttl: ",
    "content-type: ",
    "{",
    "}",
    "[",
    "\":",
    "null",
    "\"ttl\"",
    "\"1h\"",
    "..",
    "*",
];

/// The request in an input; none when HTTP itself could not carry it.
fn request(input: &[u8], token: &str) -> Option<Request<Body>> {
    let text = String::from_utf8_lossy(input);
    let (head, body) = text.split_once("\n\n").unwrap_or((&text, ""));
    let mut lines = head.lines();
    let (method, target) = lines.next()?.split_once(' ')?;
    let mut request = Request::builder().method(method).uri(target).header("x-vault-token", token);
    for (name, value) in lines.filter_map(|line| line.split_once(": ")) {
        request = request.header(name, value);
    }
    request.body(crate::api::body::full(body.as_bytes().to_vec())).ok()
}

#[tokio::test]
async fn fuzz_requests() {
    let rig = Rig::one().await;
    let (_, root) = rig.open().await;
    for (path, kind) in [("mounts/kv", "kv"), ("mounts/kv2", "kv-v2"), ("auth/approle", "approle")] {
        rig.as_token(&root, "PUT", &format!("sys/{path}"), json!({"type": kind})).await.expect(204);
    }
    // All but what ends the test: sealing, handing over, and devices that write to disk.
    let all =
        "path \"*\" { capabilities = [\"create\", \"read\", \"update\", \"patch\", \"delete\", \"list\"] }";
    let barred = "path \"sys/storage/*\" { capabilities = [\"deny\"] }\npath \"sys/mounts*\" { capabilities = [\"deny\"] }\n\
                  path \"sys/policies/acl/fuzz\" { capabilities = [\"deny\"] }\n\
                  path \"sys/policy/fuzz\" { capabilities = [\"deny\"] }\npath \"auth/token/revoke*\" { capabilities = [\"deny\"] }\n\
                  path \"sys/quotas/*\" { capabilities = [\"read\"] }";
    let token = rig.token_with(&root, "fuzz", &format!("{all}\n{barred}")).await;
    let mut fuzzer = Fuzzer::new(&REQUESTS, &WORDS);
    let remote = IpAddr::V4(Ipv4Addr::LOCALHOST);
    while let Some(input) = fuzzer.input() {
        let watched = Fuzzer::watch(&input);
        let Some(request) = request(&input, &token) else { continue };
        let answer = rig.api.answer(rig.api.direct(remote, false), request).await;
        let status = answer.status().as_u16();
        let bytes = answer.into_body().collect().await.unwrap().to_bytes();
        let text = String::from_utf8_lossy(&bytes).into_owned();
        assert!(status != 500 && !text.contains("outcome unknown"), "{status} {text}");
        drop(watched);
        let told = if status == 200 { "" } else { text.as_str() };
        fuzzer.learn(input, &format!("{} {told}", ["a", "b", "c", "d", "e", "f"][usize::from(status / 100)]));
    }
    rig.as_token(&root, "GET", "sys/mounts", Value::Null).await.expect(200);
    rig.stop().await;
}

#[test]
fn fuzz_bodies() {
    let seeds: [&[u8]; 3] = [
        br#"{"a": "1h30m", "b": ["x", 1], "c": {"d": true}, "e": -1.5e3, "f": null, "g": "YWJj"}"#,
        br#"{"a": 10, "b": "x,y", "c": "k=v,l=w", "e": "0x10", "f": "true", "g": "\ud83d\ude00"}"#,
        b"",
    ];
    let head = crate::api::head::Head::parse(&http::Method::PUT, "/v1/x", None, &HeaderMap::new()).unwrap();
    fuzz(&seeds, &["\"a\":", "\"1h\"", "1d", "ms", "{", "[", ",", "\\ud800"], |input| {
        let data = match head.data(input) {
            Ok(data) => data,
            Err(error) => return error.to_string(),
        };
        let fields: Vec<String> = data.as_map().keys().cloned().collect();
        let read = |data: &Data, field: &str| {
            [
                data.string(field).err(),
                data.bool(field).err(),
                data.int(field).err(),
                data.duration(field).err(),
                data.seconds(field).err(),
                data.strings(field).err(),
                data.string_map(field).err(),
                data.object(field).err(),
            ]
            .map(|error| error.map_or(String::new(), |error| error.to_string()))
            .concat()
        };
        fields.iter().map(|field| read(&data, field).replace(field.as_str(), "")).collect()
    });
}

#[test]
fn fuzz_token_texts() {
    let (_, hub, _) = crate::testing::hub();
    let batch = crate::auth::token::Token::default();
    let blob = hub.storage.barrier().encrypt("token/batch", &serde_json::to_vec(&batch).unwrap()).unwrap();
    let batch = format!("hvb.{}", base64::Engine::encode(&base64::prelude::BASE64_URL_SAFE_NO_PAD, blob));
    let seeds: [&[u8]; 4] =
        [batch.as_bytes(), b"hvs.abcdefghijklmnopqrstuvwx", b"s.abcdefghijklmnopqrstuvwx", b"b.AAAA"];
    fuzz(&seeds, &["hvb.", "hvs.", "b.", "s.", "==", "_-"], |input| {
        let text = String::from_utf8_lossy(input);
        let found = hub.tokens.lookup(&hub.storage, &text).map(|token| token.is_some());
        let accessor = hub.tokens.lookup_accessor(&hub.storage, &text).map(|token| token.is_some());
        format!("{found:?} {accessor:?} {}", text.split('.').next().unwrap_or_default().len())
    });
}

#[test]
fn fuzz_seal_records_and_shares() {
    use crate::barrier::keyring::SecretKey;
    use crate::barrier::{seal, shamir};
    let root = SecretKey::random().unwrap();
    let record = seal::tests::record(&root).to_bytes().unwrap();
    let shares = shamir::split(root.as_bytes(), 3, 2).unwrap();
    let seeds: [&[u8]; 3] = [&record, &shares[0], &shares[1]];
    fuzz(&seeds, &["{", "\"", "null"], |input| {
        let read = seal::SealRecord::from_bytes("seal.bin", input);
        let opened = read.map(|record| record.open(&root).map(|_| ()).map_err(|e| e.to_string()));
        let share = shamir::combine(&[input, shares[0].as_slice()]).map(|_| ());
        format!("{:?} {share:?}", opened.map_err(|error| error.to_string()))
    });
}
