//! CF-17: what the manifests say about probes and about going down.

use std::path::Path;

use serde_json::Value;

fn documents() -> Vec<Value> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/kubernetes/config-server.yaml");
    let text = std::fs::read_to_string(path).unwrap();
    text.split("\n---\n").map(|document| serde_saphyr::from_str(document).unwrap()).collect()
}

fn of_kind(kind: &str) -> Value {
    documents().into_iter().find(|document| document["kind"] == kind).unwrap()
}

#[test]
fn probes_are_those_of_the_page() {
    let container = of_kind("Deployment")["spec"]["template"]["spec"]["containers"][0].clone();
    let (ready, alive) = (&container["readinessProbe"], &container["livenessProbe"]);
    for (probe, path) in [(ready, "/v1/readyz"), (alive, "/v1/healthz")] {
        let http = &probe["httpGet"];
        assert_eq!(
            (&http["path"], &http["port"], &http["scheme"]),
            (&path.into(), &8443.into(), &"HTTPS".into())
        );
    }
    assert_eq!((&ready["periodSeconds"], &ready["failureThreshold"]), (&5.into(), &2.into()));
    assert_eq!(alive["periodSeconds"], 10);
}

#[test]
fn the_grace_covers_the_probe_and_fits_into_the_termination_period() {
    let pod = of_kind("Deployment")["spec"]["template"]["spec"].clone();
    let text = of_kind("ConfigMap")["data"]["config.toml"].as_str().unwrap().to_owned();
    let config: toml::Table = text.parse().unwrap();
    let grace: u64 = config["drain_grace"].as_str().unwrap().trim_end_matches('s').parse().unwrap();
    let ready = &pod["containers"][0]["readinessProbe"];
    let notice = ready["periodSeconds"].as_u64().unwrap() * ready["failureThreshold"].as_u64().unwrap();
    assert!(grace >= notice, "{grace} s of grace, {notice} s until the probe has noticed");
    let period = pod["terminationGracePeriodSeconds"].as_u64().unwrap();
    assert!(period > grace + 5, "{period} s in all");
    assert_eq!((grace, period), (15, 30));
}
