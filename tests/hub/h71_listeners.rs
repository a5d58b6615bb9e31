//! What a hub refuses to start with.

use std::path::Path;
use std::time::Duration;

use holdfast_tests::hub::{Cluster, Node, Options};

/// Starts a node whose API listens on every address, with more lines of configuration.
fn started(dir: &Path, extra: &str) -> Node {
    let mut node = Node::prepare(dir, 0, &Options { extra: extra.to_owned(), ..Options::default() }, &[]);
    let text = std::fs::read_to_string(node.config()).unwrap();
    let wide = text.replace("api.listen = \"127.0.0.1:", "api.listen = \"0.0.0.0:");
    assert_ne!(text, wide);
    let advertise = format!("api.advertise = \"http://127.0.0.1:{}\"\n", node.api_port);
    std::fs::write(node.config(), wide + &advertise).unwrap();
    node.start();
    node
}

#[tokio::test(flavor = "multi_thread")]
async fn plain_text_off_loopback_is_refused_before_anything_is_bound() {
    let cluster = Cluster::prepare(Options::default());
    let mut node = started(cluster.dir(), "");
    assert_eq!(node.process().wait(Duration::from_secs(30)).code(), Some(64));
    assert!(node.log().contains("api.i_accept_plaintext"), "it says what to do: {}", node.log());
    assert!(!node.dir.join("data").exists(), "nothing was made");
}

#[tokio::test(flavor = "multi_thread")]
async fn plain_text_off_loopback_is_served_for_who_insists() {
    let cluster = Cluster::prepare(Options::default());
    let mut node = started(cluster.dir(), "api.i_accept_plaintext = true");
    node.wait_listening().await;
}
