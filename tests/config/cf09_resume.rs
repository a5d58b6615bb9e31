//! CF-09: a stream resumes on its replica, and begins anew elsewhere.

use holdfast_tests::config::{Replica, TOKEN, text};
use holdfast_tests::hub::PATIENCE;
use holdfast_tests::sse::Frames;

fn lines() -> String {
    let bindings: String = (0..50).map(|i| format!("n{i} = \"file://DIR/files/n{i}\"\n")).collect();
    format!("[upstream.disk]\ntype = \"file\"\nroots = [\"DIR/files\"]\n[bindings]\n{bindings}")
}

async fn replica() -> Replica {
    let mut replica = Replica::prepare(&lines());
    for i in 0..50 {
        replica.write(&format!("files/n{i}"), "before");
    }
    replica.run();
    replica.wait_ready().await;
    replica
}

async fn open(replica: &Replica, id: &str) -> Frames {
    let names: Vec<_> = (0..50).map(|i| format!("name=n{i}")).collect();
    let token = format!("Bearer {TOKEN}");
    let mut headers = vec![("authorization", token.as_str())];
    if !id.is_empty() {
        headers.push(("last-event-id", id));
    }
    Frames::open(&replica.url(), &format!("/v1/watch?{}", names.join("&")), &headers).await
}

#[tokio::test(flavor = "multi_thread")]
async fn one_frame_here_fifty_there() {
    let (a, b) = (replica().await, replica().await);
    let mut stream = open(&a, "").await;
    let baseline = stream.until("synced", PATIENCE).await;
    assert_eq!(baseline.len(), 51);
    let id = baseline[50].id.clone().unwrap();
    assert!(id.len() <= 64 && id.is_ascii());
    drop(stream);
    a.write("files/n7", "after");
    a.wait_value("n7", "after").await;
    let resumed = open(&a, &id).await.until("synced", PATIENCE).await;
    assert_eq!(resumed.len(), 2, "{resumed:?}");
    assert_eq!((resumed[0].data["name"].as_str(), text(&resumed[0].data).as_str()), (Some("n7"), "after"));
    let elsewhere = open(&b, &id).await.until("synced", PATIENCE).await;
    assert_eq!(elsewhere.len(), 51);
    for odd in ["x", "....", &"9".repeat(500), "~", &id.to_uppercase()] {
        let frames = open(&a, odd).await.until("synced", PATIENCE).await;
        assert_eq!(frames.len(), 51, "{odd:?} is no error and gives everything");
    }
    let now = resumed[1].id.clone().unwrap();
    assert_eq!(open(&a, &now).await.until("synced", PATIENCE).await.len(), 1, "nothing changed since");
}
