use super::*;

fn binding(name: &str, reference: &str, value: &str, age_ms: u64) -> Json {
    json!({ "name": name, "ref_digest": reference, "value_digest": value, "age_ms": age_ms, "state": "fresh" })
}

fn replica(node: &str, state: &str, digests: [&str; 3], bindings: &[Json]) -> Replica {
    let [digest, bindings_digest, policy_digest] = digests;
    let status = json!({
        "node": node, "state": state, "boot": format!("boot-{node}"), "bindings": bindings,
        "config": { "generation": 2, "digest": digest, "bindings_digest": bindings_digest,
            "policy_digest": policy_digest },
    });
    Replica { endpoint: format!("https://{node}:8443"), said: Ok(serde_json::from_value(status).unwrap()) }
}

fn gone(node: &str, error: Error) -> Replica {
    Replica { endpoint: format!("https://{node}:8443"), said: Err(error) }
}

fn unreachable() -> Error {
    Error::Unreachable { endpoint: "https://c:8443".into(), reason: "connection refused".into() }
}

fn refused() -> Error {
    let kind = holdfast_core::AnswerKind::PermissionDenied;
    Error::Refused { endpoint: "e".into(), kind, message: "permission denied".into(), retry_after: None }
}

fn texts(replicas: &[Replica]) -> (Vec<String>, u8) {
    let differences = compare(replicas);
    let code = exit_code(replicas, &differences);
    (differences.into_iter().map(|difference| difference.text).collect(), code)
}

const SAME: [&str; 3] = ["d1", "b1", "p1"];

#[test]
fn replicas_that_are_alike_and_ready_are_so() {
    let bindings = [binding("a", "r1", "v1", 10)];
    let replicas = [replica("n1", "ready", SAME, &bindings), replica("n2", "ready", SAME, &bindings)];
    assert_eq!(texts(&replicas), (vec![], 0));
    assert_eq!(cells(&replicas[0]), ["n1", "ready", "2", "d1", "1", "0", "10ms"]);
}

#[test]
fn each_difference_names_the_binding_and_the_nodes() {
    let replicas = [
        replica(
            "n1",
            "ready",
            ["d1", "b1", "p1"],
            &[binding("a", "r1", "v1", 0), binding("b", "r2", "v1", 0)],
        ),
        replica("n2", "priming", ["d2", "b2", "p2"], &[binding("a", "r9", "v1", 0)]),
        replica(
            "n3",
            "ready",
            ["d1", "b1", "p1"],
            &[binding("a", "r1", "v1", 0), binding("b", "r2", "v2", 0)],
        ),
    ];
    let expected = [
        "n2 is priming",
        "policy differs: n1 p1, n2 p2, n3 p1",
        "binding a: ref differs: n1 r1, n2 r9, n3 r1",
        "binding b: missing on n2",
        "binding b: value differs: n1 v1, n3 v2",
    ];
    assert_eq!(texts(&replicas), (expected.map(str::to_owned).to_vec(), 1));
}

#[test]
fn other_digests_alone_are_defaults_or_limits() {
    let replicas = [replica("n1", "ready", SAME, &[]), replica("n2", "ready", ["d2", "b1", "p1"], &[])];
    assert_eq!(texts(&replicas), (vec!["defaults or limits differ: n1 d1, n2 d2".to_owned()], 1));
    let replicas = [replica("n1", "ready", SAME, &[]), replica("n2", "ready", ["d2", "b2", "p1"], &[])];
    assert_eq!(texts(&replicas), (vec!["options of bindings differ: n1 d1, n2 d2".to_owned()], 1));
}

#[test]
fn a_lag_and_one_process_at_two_endpoints_are_told_and_do_not_count() {
    let replicas = [
        replica("n1", "ready", SAME, &[binding("a", "r1", "v1", 1000)]),
        replica("n2", "ready", SAME, &[binding("a", "r1", "v1", 122_000)]),
        replica("n1", "ready", SAME, &[binding("a", "r1", "v1", 1000)]),
    ];
    let expected = ["n1 answers at more than one endpoint", "binding a: n2 is 2m behind n1"];
    assert_eq!(texts(&replicas), (expected.map(str::to_owned).to_vec(), 0));
}

#[test]
fn the_exit_code_tells_an_outage_from_a_refusal() {
    let good = || replica("n1", "ready", SAME, &[]);
    let text = "no status: https://c:8443: connection refused".to_owned();
    assert_eq!(texts(&[good(), gone("c", unreachable())]), (vec![text], 1));
    assert_eq!(texts(&[gone("b", unreachable()), gone("c", unreachable())]).1, 69);
    assert_eq!(texts(&[good(), gone("c", refused())]).1, 77);
    assert_eq!(cells(&gone("c", unreachable()))[..2], ["https://c:8443", "unreachable"]);
    assert_eq!(cells(&gone("c", refused()))[1], "refused");
}

#[test]
fn an_age_is_no_news() {
    let report = |age| {
        let replicas = [
            replica("n1", "ready", SAME, &[binding("a", "r1", "v1", 0)]),
            replica("n2", "ready", SAME, &[binding("a", "r1", "v1", age)]),
        ];
        let differences = compare(&replicas);
        json(&replicas, &differences, exit_code(&replicas, &differences))
    };
    assert_ne!(report(130_000), report(190_000));
    assert_eq!(without_ages(&report(130_000)), without_ages(&report(190_000)));
    assert_ne!(without_ages(&report(0)), without_ages(&report(190_000)));
}
