use aws_lc_rs::rsa::KeySize;
use aws_lc_rs::signature::{EcdsaKeyPair, Ed25519KeyPair, KeyPair as _, RsaKeyPair};
use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use holdfast_tests::fuzz::fuzz;
use jsonwebtoken::{EncodingKey, Header};
use serde_json::json;

use super::*;

const NOW: i64 = 1_700_000_000;
const SECRET: &[u8; 32] = b"0123456789abcdef0123456789abcdef";

fn at(seconds: i64) -> Wall {
    Wall::from_micros(seconds * 1_000_000)
}

fn encoded(bytes: impl AsRef<[u8]>) -> String {
    BASE64_URL_SAFE_NO_PAD.encode(bytes)
}

/// A private key and its public half as a JWK.
struct Pair {
    key: EncodingKey,
    jwk: Value,
}

fn rsa(kid: &str) -> Pair {
    use aws_lc_rs::encoding::{AsDer as _, Pkcs8V1Der};
    let pair = aws_lc_rs::rsa::KeyPair::generate(KeySize::Rsa2048).unwrap();
    let der: Pkcs8V1Der<'_> = pair.as_der().unwrap();
    let pair = RsaKeyPair::from_pkcs8(der.as_ref()).unwrap();
    let (n, e) = (pair.public_key().modulus(), pair.public_key().exponent());
    let [n, e] = [n, e].map(|number| encoded(number.big_endian_without_leading_zero()));
    let jwk = json!({ "kty": "RSA", "kid": kid, "use": "sig", "n": n, "e": e });
    // The library signs with PKCS #1, which lies behind the 26 bytes that PKCS #8 puts before a key of this size.
    Pair { key: EncodingKey::from_rsa_der(&der.as_ref()[26..]), jwk }
}

fn ec(kid: &str) -> Pair {
    let algorithm = &aws_lc_rs::signature::ECDSA_P256_SHA256_FIXED_SIGNING;
    let der = EcdsaKeyPair::generate_pkcs8(algorithm, &aws_lc_rs::rand::SystemRandom::new()).unwrap();
    let pair = EcdsaKeyPair::from_pkcs8(algorithm, der.as_ref()).unwrap();
    let point = pair.public_key().as_ref();
    let jwk = json!({ "kty": "EC", "crv": "P-256", "kid": kid, "x": encoded(&point[1..33]), "y": encoded(&point[33..]) });
    Pair { key: EncodingKey::from_ec_der(der.as_ref()), jwk }
}

fn ed(kid: &str) -> Pair {
    let der = Ed25519KeyPair::generate_pkcs8(&aws_lc_rs::rand::SystemRandom::new()).unwrap();
    let pair = Ed25519KeyPair::from_pkcs8(der.as_ref()).unwrap();
    let jwk = json!({ "kty": "OKP", "crv": "Ed25519", "kid": kid, "x": encoded(pair.public_key()) });
    Pair { key: EncodingKey::from_ed_der(der.as_ref()), jwk }
}

fn oct(kid: &str) -> Value {
    json!({ "kty": "oct", "kid": kid, "k": encoded(SECRET) })
}

fn good() -> Value {
    json!({ "iss": "https://issuer", "aud": "holdfast", "sub": "svc", "exp": NOW + 60 })
}

/// The good claims with some replaced; null removes one.
fn claims(other: Value) -> Value {
    let mut claims = good();
    for (name, value) in other.as_object().unwrap() {
        claims[name] = value.clone();
        if value.is_null() {
            claims.as_object_mut().unwrap().remove(name);
        }
    }
    claims
}

fn signed(key: &EncodingKey, algorithm: Algorithm, kid: Option<&str>, claims: &Value) -> String {
    let header = Header { kid: kid.map(str::to_owned), ..Header::new(algorithm) };
    jsonwebtoken::encode(&header, claims, key).unwrap()
}

fn hmac(header: &Value, claims: &Value, secret: &[u8]) -> String {
    let message = format!("{}.{}", encoded(header.to_string()), encoded(claims.to_string()));
    let key = aws_lc_rs::hmac::Key::new(aws_lc_rs::hmac::HMAC_SHA256, secret);
    format!("{message}.{}", encoded(aws_lc_rs::hmac::sign(&key, message.as_bytes())))
}

fn try_verifier(
    keys: &[Value],
    algorithms: &[&str],
    groups_claim: Option<&str>,
) -> Result<Verifier, Vec<String>> {
    use std::os::unix::fs::PermissionsExt as _;
    let dir = tempfile::tempdir().unwrap();
    let jwks_file = dir.path().join("jwks.json");
    std::fs::write(&jwks_file, json!({ "keys": keys }).to_string()).unwrap();
    std::fs::set_permissions(&jwks_file, std::fs::Permissions::from_mode(0o600)).unwrap();
    let settings = JwtSettings {
        jwks_file,
        issuer: "https://issuer".into(),
        audience: "holdfast".into(),
        algorithms: algorithms.iter().map(|name| (*name).to_owned()).collect(),
        groups_claim: groups_claim.map(str::to_owned),
    };
    let shown = |problem: Problem| problem.what.replace(&settings.jwks_file.display().to_string(), "FILE");
    Verifier::new(&settings).map_err(|problems| problems.into_iter().map(shown).collect())
}

fn verifier(keys: &[&Pair]) -> Verifier {
    let keys: Vec<Value> = keys.iter().map(|pair| pair.jwk.clone()).collect();
    try_verifier(&keys, &[], None).unwrap()
}

fn find(verifier: &Verifier, token: &str) -> Result<String, Reason> {
    verifier.find(token.as_bytes(), at(NOW)).map(|identity| identity.subject.to_string())
}

fn subject() -> Result<String, Reason> {
    Ok("svc".to_owned())
}

#[test]
fn each_usual_algorithm_is_taken_with_its_own_key() {
    let (rsa, ec, ed) = (rsa("r"), ec("e"), ed("d"));
    let verifier = verifier(&[&rsa, &ec, &ed]);
    for (pair, kid, algorithm) in
        [(&rsa, "r", Algorithm::RS256), (&ec, "e", Algorithm::ES256), (&ed, "d", Algorithm::EdDSA)]
    {
        assert_eq!(find(&verifier, &signed(&pair.key, algorithm, Some(kid), &good())), subject(), "{kid}");
        assert_eq!(find(&verifier, &signed(&pair.key, algorithm, None, &good())), subject(), "{kid} unnamed");
    }
}

#[test]
fn a_token_without_a_key_id_may_be_of_any_key() {
    let [a, b] = ["a", "b"].map(ec);
    let two = verifier_of(&[a.jwk.clone(), b.jwk.clone()]);
    assert_eq!(
        find(&two, &signed(&b.key, Algorithm::ES256, None, &good())),
        subject(),
        "the second key of two"
    );
    assert_eq!(find(&two, &signed(&b.key, Algorithm::ES256, Some("a"), &good())), Err(Reason::Signature));
}

fn verifier_of(keys: &[Value]) -> Verifier {
    try_verifier(keys, &[], None).unwrap()
}

#[test]
fn a_token_chooses_neither_its_algorithm_nor_the_type_of_its_key() {
    let (rsa, ec, ed) = (rsa("r"), ec("e"), ed("d"));
    let verifier = verifier(&[&rsa, &ec, &ed]);
    // A public key used as a shared secret, in each form that an attacker has it.
    let n = BASE64_URL_SAFE_NO_PAD.decode(rsa.jwk["n"].as_str().unwrap()).unwrap();
    for secret in [&n[..], rsa.jwk["n"].as_str().unwrap().as_bytes(), rsa.jwk.to_string().as_bytes()] {
        let swapped = hmac(&json!({ "alg": "HS256", "kid": "r" }), &good(), secret);
        assert_eq!(find(&verifier, &swapped), Err(Reason::Algorithm));
    }
    // A key of one type named by a token of another.
    assert_eq!(
        find(&verifier, &signed(&ec.key, Algorithm::ES256, Some("r"), &good())),
        Err(Reason::UnknownKey)
    );
    assert_eq!(
        find(&verifier, &signed(&rsa.key, Algorithm::RS256, Some("d"), &good())),
        Err(Reason::UnknownKey)
    );
    // Not one of the configured ones, with a key that could verify it.
    assert_eq!(
        find(&verifier, &signed(&rsa.key, Algorithm::PS256, Some("r"), &good())),
        Err(Reason::Algorithm)
    );
    assert_eq!(
        find(&verifier, &signed(&rsa.key, Algorithm::RS512, Some("r"), &good())),
        Err(Reason::Algorithm)
    );
    for none in ["none", "None", "NONE", "nOnE", ""] {
        let message =
            format!("{}.{}", encoded(json!({ "alg": none }).to_string()), encoded(good().to_string()));
        for signature in ["", "AAAA"] {
            assert_eq!(find(&verifier, &format!("{message}.{signature}")), Err(Reason::Malformed), "{none}");
        }
    }
}

#[test]
fn what_a_header_brings_along_is_not_used() {
    let (own, foreign) = (ec("e"), ec("e"));
    let verifier = verifier(&[&own]);
    let embedded = Header {
        jwk: Some(serde_json::from_value(foreign.jwk.clone()).unwrap()),
        jku: Some("https://evil/jwks".into()),
        kid: Some("e".into()),
        ..Header::new(Algorithm::ES256)
    };
    let token = jsonwebtoken::encode(&embedded, &good(), &foreign.key).unwrap();
    assert_eq!(find(&verifier, &token), Err(Reason::Signature));
    let critical = Header { crit: Some(vec!["x".into()]), ..Header::new(Algorithm::ES256) };
    let token = jsonwebtoken::encode(&critical, &good(), &own.key).unwrap();
    assert_eq!(find(&verifier, &token), Err(Reason::Malformed), "an extension that must be understood");
}

#[test]
fn the_table_of_claims() {
    let pair = ec("e");
    let verifier = verifier(&[&pair]);
    for (other, expected) in [
        (json!({}), subject()),
        (json!({ "exp": null }), Err(Reason::MissingClaim)),
        (json!({ "exp": "1700000060" }), Err(Reason::Malformed)),
        (json!({ "exp": NOW }), subject()),
        (json!({ "exp": NOW - 29 }), subject()),
        (json!({ "exp": NOW - 30 }), Err(Reason::Expired)),
        (json!({ "exp": 0 }), Err(Reason::Expired)),
        (json!({ "exp": -1.5 }), Err(Reason::Expired)),
        (json!({ "exp": 1e300 }), subject()),
        (json!({ "exp": f64::from(i32::MAX) + 0.5 }), subject()),
        (json!({ "nbf": NOW + 30 }), subject()),
        (json!({ "nbf": NOW + 31 }), Err(Reason::NotYet)),
        (json!({ "aud": null }), Err(Reason::Audience)),
        (json!({ "aud": "other" }), Err(Reason::Audience)),
        (json!({ "aud": "holdfast2" }), Err(Reason::Audience)),
        (json!({ "aud": ["other", "holdfast"] }), subject()),
        (json!({ "aud": [] }), Err(Reason::Audience)),
        (json!({ "aud": 1 }), Err(Reason::Malformed)),
        (json!({ "iss": null }), Err(Reason::Issuer)),
        (json!({ "iss": "https://issuer/" }), Err(Reason::Issuer)),
        (json!({ "iss": ["https://issuer"] }), Err(Reason::Malformed)),
        (json!({ "sub": null }), Err(Reason::MissingClaim)),
        (json!({ "sub": "" }), Err(Reason::MissingClaim)),
        (json!({ "sub": 7 }), Err(Reason::Malformed)),
    ] {
        let token = signed(&pair.key, Algorithm::ES256, Some("e"), &claims(other.clone()));
        assert_eq!(find(&verifier, &token), expected, "{other}");
    }
    let token = signed(&pair.key, Algorithm::ES256, Some("other"), &good());
    assert_eq!(find(&verifier, &token), Err(Reason::UnknownKey));
    let stranger = ec("e");
    assert_eq!(
        find(&verifier, &signed(&stranger.key, Algorithm::ES256, Some("e"), &good())),
        Err(Reason::Signature)
    );
    let token = signed(&pair.key, Algorithm::ES256, Some("e"), &good());
    let (rest, signature) = token.rsplit_once('.').unwrap();
    let forged = encoded(claims(json!({ "sub": "root" })).to_string());
    let header = rest.split_once('.').unwrap().0;
    assert_eq!(find(&verifier, &format!("{header}.{forged}.{signature}")), Err(Reason::Signature));
    for bad in
        ["", ".", "..", "a.b.c", "a.b", rest, &format!("{token}."), &format!("{token}="), &"a".repeat(20_000)]
    {
        assert_eq!(find(&verifier, bad).err(), Some(Reason::Malformed), "{bad}");
    }
}

#[test]
fn groups_come_from_their_claim_or_the_token_is_refused() {
    let pair = ec("e");
    let verifier = try_verifier(std::slice::from_ref(&pair.jwk), &[], Some("roles")).unwrap();
    let groups = |other: Value| {
        let token = signed(&pair.key, Algorithm::ES256, None, &claims(other));
        let identity = verifier.find(token.as_bytes(), at(NOW))?;
        Ok(identity.groups.iter().map(|group| group.to_string()).collect::<Vec<_>>())
    };
    assert_eq!(groups(json!({})), Ok(vec![]));
    assert_eq!(groups(json!({ "roles": ["a", "b"] })), Ok(vec!["a".to_owned(), "b".to_owned()]));
    assert_eq!(groups(json!({ "roles": "a b" })), Ok(vec!["a b".to_owned()]));
    assert_eq!(groups(json!({ "groups": ["a"] })), Ok(vec![]));
    for bad in [json!(1), json!(["a", 1]), json!({ "a": true }), json!(true)] {
        assert_eq!(groups(json!({ "roles": bad })), Err(Reason::Malformed));
    }
}

#[test]
fn a_shared_secret_counts_only_when_listed_and_never_beside_a_public_key() {
    let header = json!({ "alg": "HS256", "kid": "s" });
    let token = hmac(&header, &good(), SECRET);
    let listed = try_verifier(&[oct("s")], &["HS256"], None).unwrap();
    assert_eq!(find(&listed, &token), subject());
    assert_eq!(find(&listed, &hmac(&header, &good(), b"other")), Err(Reason::Signature));
    let unlisted = try_verifier(&[oct("s")], &[], None).unwrap();
    assert!(unlisted.is_empty());
    assert_eq!(find(&unlisted, &token), Err(Reason::Algorithm));
    let beside = try_verifier(&[oct("s"), ec("e").jwk], &["ES256", "HS256"], None).unwrap_err();
    assert_eq!(beside, ["JWKS file FILE holds the public key \"e\" while algorithms lists HS*"]);
    let short = json!({ "kty": "oct", "k": encoded(b"short") });
    let short = try_verifier(&[short], &["HS512"], None).unwrap_err();
    assert_eq!(short, ["JWKS file FILE holds the key 1, which has fewer than 32 bytes"]);
}

#[test]
fn a_key_is_used_for_what_its_file_says_alone() {
    let pair = rsa("r");
    let token = signed(&pair.key, Algorithm::RS256, Some("r"), &good());
    let with = |name: &str, value: Value| {
        let mut jwk = pair.jwk.clone();
        jwk[name] = value;
        find(&verifier_of(&[jwk]), &token)
    };
    assert_eq!(with("alg", json!("RS256")), subject());
    assert_eq!(with("key_ops", json!(["verify"])), subject());
    for (name, value) in [
        ("alg", json!("RS512")),
        ("alg", json!("RSA-OAEP")),
        ("use", json!("enc")),
        ("key_ops", json!(["encrypt"])),
    ] {
        assert_eq!(with(name, value.clone()), Err(Reason::UnknownKey), "{name} {value}");
    }
}

#[test]
fn faults_of_a_jwks_are_told_without_its_keys() {
    for (key, fault) in [
        (
            json!({ "kty": "RSA", "kid": "r", "n": encoded([0xff; 256]) }),
            "holds the key \"r\", which is not complete",
        ),
        (json!({ "kty": "RSA", "n": "!!!", "e": "AQAB" }), "holds the key 1, which cannot be read"),
        (
            json!({ "kty": "RSA", "n": encoded([0xff; 128]), "e": "AQAB" }),
            "holds the key 1, which has fewer than 2048 bits",
        ),
        (json!({ "kty": "EC", "crv": "P-256", "x": "AAAA" }), "holds the key 1, which is not complete"),
        (json!({ "kid": "x" }), "holds the key \"x\", which is not complete"),
    ] {
        let faults = try_verifier(std::slice::from_ref(&key), &[], None).unwrap_err();
        assert_eq!(faults, [format!("JWKS file FILE {fault}")], "{key}");
    }
    for other in [json!({ "kty": "EC", "crv": "secp256k1", "x": "AA", "y": "AA" }), json!({ "kty": "new" })] {
        assert!(try_verifier(&[other], &[], None).unwrap().is_empty());
    }
    let faults = Keys::parse(b"{\"keys\": [{\"kty\": \"hunter2\"", &DEFAULT).unwrap_err();
    assert_eq!(faults, ["is not a JWKS (line 1, column 27)"]);
    assert!(Keys::parse(b"", &DEFAULT).is_err(), "an empty file is not one without keys");
    assert!(Keys::parse(b"{\"keys\": []}", &DEFAULT).unwrap().is_empty());
    let faults = try_verifier(&[], &["none", "ES256", "es256", "HS1"], None).unwrap_err();
    let faults: Vec<&str> = faults.iter().map(|fault| fault.rsplit(": ").next().unwrap()).collect();
    assert_eq!(
        faults,
        ["\"none\" is not supported", "\"es256\" is not supported", "\"HS1\" is not supported"]
    );
}

#[test]
fn an_identity_ends_with_its_token_its_key_or_its_rules() {
    let pair = ec("e");
    let first = verifier(&[&pair]);
    let token = signed(&pair.key, Algorithm::ES256, Some("e"), &good());
    let identity = first.find(token.as_bytes(), at(NOW)).unwrap();
    assert_eq!(identity.expires, Some(at(NOW + 60)));
    let [Evidence::Jwt(accepted)] = &*identity.evidence else { panic!() };
    assert_eq!(first.again(accepted, at(NOW + 59)).unwrap(), identity);
    assert_eq!(first.again(accepted, at(NOW + 60)), Err(Reason::Expired));
    let mut renamed = pair.jwk.clone();
    renamed["kid"] = json!("renamed");
    assert!(verifier_of(&[renamed]).again(accepted, at(NOW)).is_ok(), "the key counts, not its name");
    assert_eq!(verifier(&[&ec("e")]).again(accepted, at(NOW)), Err(Reason::UnknownKey));
    let jwk = std::slice::from_ref(&pair.jwk);
    assert_eq!(try_verifier(jwk, &["RS256"], None).unwrap().again(accepted, at(NOW)), Err(Reason::Algorithm));
    assert_eq!(try_verifier(jwk, &[], Some("g")).unwrap().again(accepted, at(NOW)), Err(Reason::Method));
    let other = Verifier { issuer: "other".into(), ..verifier(&[&pair]) };
    assert_eq!(other.again(accepted, at(NOW)), Err(Reason::Issuer));
    let other = Verifier { audience: "other".into(), ..verifier(&[&pair]) };
    assert_eq!(other.again(accepted, at(NOW)), Err(Reason::Audience));
    let late = first.find(token.as_bytes(), at(NOW + 70)).unwrap();
    assert_eq!(late.expires, Some(at(NOW + 90)), "what the leeway let in may use it up");
}

#[test]
fn fuzz_json_web_tokens() {
    let pair = ed("d");
    let verifier = verifier(&[&pair]);
    let token = signed(&pair.key, Algorithm::EdDSA, Some("d"), &good());
    let swapped = hmac(&json!({ "alg": "HS256", "kid": "d" }), &good(), SECRET);
    let words =
        ["eyJhbGciOiJub25lIn0", ".", "..", "eyJ", "=", "-_", &encoded("{\"alg\":\"EdDSA\"}"), &encoded("{}")];
    fuzz(&[token.as_bytes(), swapped.as_bytes(), b"a.b.c"], &words, |input| {
        let found = verifier.find(input, at(NOW));
        assert!(found.is_err() || input == token.as_bytes() || same_token(input, &token), "a forged token");
        format!("{:?}", found.map(|identity| identity.subject))
    });
}

/// Whether an input is the token in another spelling of its signature's last character, which base64 may allow.
fn same_token(input: &[u8], token: &str) -> bool {
    input.len() == token.len() && input[..input.len() - 1] == token.as_bytes()[..token.len() - 1]
}

#[test]
fn fuzz_jwks_files() {
    let jwks = json!({ "keys": [ec("e").jwk, ed("d").jwk, oct("s")] }).to_string();
    let words = [
        "\"kty\":",
        "\"RSA\"",
        "\"oct\"",
        "\"OKP\"",
        "\"crv\":",
        "\"k\":\"\"",
        "\"use\":\"enc\"",
        "null",
        "[",
        "{",
    ];
    let all = ["RS256", "ES256", "ES384", "EdDSA"].map(|name| name.parse().unwrap());
    let shared = ["HS256"].map(|name| name.parse().unwrap());
    fuzz(&[jwks.as_bytes(), b"{\"keys\":[]}"], &words, |input| {
        let by = |algorithms: &[Algorithm]| Keys::parse(input, algorithms).map(|keys| format!("{keys:?}"));
        format!("{:?} {:?}", by(&all).map(|keys| keys.len()), by(&shared).map(|keys| keys.len()))
    });
}
