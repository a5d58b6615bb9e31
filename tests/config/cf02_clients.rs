//! CF-02: the example of the guide, by curl and by a v1 client that knows nothing of our additions, over TLS and a Unix
//! socket.

use std::path::Path;
use std::process::Command;

use holdfast_tests::config::{Replica, TOKEN};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};

/// An authority and a certificate for 127.0.0.1, in the replica's folder.
fn certificates(replica: &Replica) {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    // Else both would have the library's default name, and OpenSSL take the server's for a self-signed one.
    params.distinguished_name.push(DnType::CommonName, "authority of the test");
    params.key_usages = vec![rcgen::KeyUsagePurpose::KeyCertSign, rcgen::KeyUsagePurpose::CrlSign];
    let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(vec!["127.0.0.1".to_owned(), "localhost".to_owned()]).unwrap();
    params.use_authority_key_identifier_extension = true;
    let own = params.signed_by(&key, &authority).unwrap();
    replica.write("ca.pem", &authority.pem());
    replica.write("tls.crt", &own.pem());
    replica.write("tls.key", &key.serialize_pem());
}

fn run(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success(),
        "{program} {arguments:?}: {text}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    text
}

async fn replica() -> Replica {
    let mut replica = Replica::prepare("");
    certificates(&replica);
    replica.write("files/watched", "before");
    replica.write("files/empty", "");
    replica.write("files/db.json", r#"{"password":"nested"}"#);
    replica.configure(
        "bind_files = [\"bindings.yaml\"]\n\
         [[listener]]\nkind = \"tcp\"\naddr = \"127.0.0.1:PORT\"\ntls = { cert = \"tls.crt\", key = \"tls.key\" }\n\
         [[listener]]\nkind = \"unix\"\npath = \"DIR/config.sock\"\n\
         [[policy.rule]]\nsubjects = [\"reader\"]\nnames = [\"**\"]\n[[policy.rule]]\neveryone = true\nnames = [\"hidden\"]\neffect = \"deny\"\n\
         [upstream.disk]\ntype = \"file\"\nroots = [\"DIR/files\"]\n\
         [bindings]\ntext = \"static:hello\"\nhidden = \"static:x\"\nsecret = { ref = \"static:x\", sensitive = true }\n",
    );
    let bindings = "bindings:\n  watched: file://DIR/files/watched\n  empty: file://DIR/files/empty\n  orders/db: file://DIR/files/db.json#password\n";
    replica.write("bindings.yaml", &bindings.replace("DIR", &replica.dir().display().to_string()));
    replica.run();
    let (ca, url) = (
        replica.path("ca.pem").display().to_string(),
        format!("https://127.0.0.1:{}/v1/readyz", replica.port),
    );
    holdfast_tests::eventually(holdfast_tests::hub::PATIENCE, "the replica is ready", || {
        let ended = replica.process().exited();
        assert!(ended.is_none(), "{}", replica.log());
        Command::new("curl")
            .args(["-sf", "--cacert", &ca, &url])
            .output()
            .unwrap()
            .status
            .success()
            .then_some(())
    });
    replica
}

fn suite(endpoint: &str, replica: &Replica) {
    replica.write("files/watched", "before");
    let suite = Path::new(env!("CARGO_MANIFEST_DIR")).join("clients/v1/suite.py");
    let (file, ca) = (replica.path("files/watched"), replica.path("ca.pem"));
    let told = run(
        "python3",
        &[suite.to_str().unwrap(), endpoint, TOKEN, file.to_str().unwrap(), ca.to_str().unwrap()],
    );
    assert!(told.ends_with("all passed\n"), "{told}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_v1_client_works_unchanged_over_tls_and_over_a_socket() {
    let replica = replica().await;
    suite(&format!("https://127.0.0.1:{}", replica.port), &replica);
    // A change of before is still being noticed: the suite begins with what it finds.
    let (socket, base) = (replica.path("config.sock"), format!("https://127.0.0.1:{}", replica.port));
    let ca = replica.path("ca.pem").display().to_string();
    let bearer = format!("authorization: Bearer {TOKEN}");
    replica.write("files/watched", "before");
    holdfast_tests::eventually(holdfast_tests::hub::PATIENCE, "the file is as before", || {
        let url = format!("{base}/v1/values/watched");
        run("curl", &["-s", "--cacert", &ca, "-H", &bearer, &url])
            .contains("\"bytes\":\"YmVmb3Jl\"")
            .then_some(())
    });
    suite(&format!("unix://{}", socket.display()), &replica);
}

#[tokio::test(flavor = "multi_thread")]
async fn curl_gets_the_shapes_over_http_1_and_2() {
    let replica = replica().await;
    let (ca, base) =
        (replica.path("ca.pem").display().to_string(), format!("https://127.0.0.1:{}", replica.port));
    let bearer = format!("authorization: Bearer {TOKEN}");
    for version in ["--http1.1", "--http2"] {
        let get = |path: &str, more: &[&str]| {
            let url = format!("{base}{path}");
            run("curl", &[&["-s", version, "--cacert", &ca, "-H", &bearer, &url], more].concat())
        };
        assert!(get("/v1/values/text", &[]).starts_with(r#"{"name":"text","bytes":"aGVsbG8=","#));
        let head = get("/v1/values/text", &["-I"]);
        assert!(
            head.contains("200") && head.to_lowercase().contains("content-type: application/json"),
            "{head}"
        );
        let batch = get("/v1/values", &["-d", r#"{"names":["text","nothing"]}"#]);
        assert!(batch.starts_with(r#"{"values":[{"name":"text","#) && batch.ends_with("]}"), "{batch}");
        // Ended by curl after two seconds, which is its exit code 28.
        let url = format!("{base}/v1/watch?name=text");
        let output = Command::new("curl")
            .args(["-sN", version, "--max-time", "2", "--cacert", &ca, "-H", &bearer, &url])
            .output()
            .unwrap();
        let stream = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(stream.starts_with("retry: 1000\n\nevent: update\ndata: {\"name\":\"text\","), "{stream}");
        assert!(stream.contains("event: synced\nid: "), "{stream}");
    }
}
