//! Versioned secrets through every node, with writers on three nodes that race for one version.

use holdfast_tests::hub::Cluster;
use serde_json::{Value, json};

#[tokio::test(flavor = "multi_thread")]
async fn versions_live_and_die_alike_through_every_node() {
    let cluster = Cluster::start(3).await;
    let root = cluster.api(cluster.active().await);
    root.put("sys/mounts/secret", json!({"type": "kv", "options": {"version": "2"}})).await.expect(204);
    root.put("sys/mounts/alias", json!({"type": "kv-v2"})).await.expect(204);
    for index in 0..3 {
        let api = cluster.api(index);
        // Each step is read back through another node.
        let other = cluster.api((index + 1) % 3);
        let (data, metadata) = (format!("secret/data/a/n{index}"), format!("secret/metadata/a/n{index}"));
        other.get(&data).await.expect_missing();
        let made = api.put(&data, json!({"data": {"v": 1}})).await.expect(200);
        assert_eq!((&made.data()["version"], &made.data()["destroyed"]), (&json!(1), &json!(false)));
        assert_eq!(made.text("deletion_time"), "");
        api.send("POST", &data, Some(json!({"data": {"v": 2, "w": "x"}, "options": {"cas": 1}})))
            .await
            .expect(200);
        let read = other.get(&data).await.expect(200);
        assert_eq!(read.data()["data"], json!({"v": 2, "w": "x"}));
        assert_eq!(read.data()["metadata"]["version"], 2);
        assert_eq!(other.get(&format!("{data}?version=1")).await.expect(200).data()["data"], json!({"v": 1}));
        other.get(&format!("{data}?version=9")).await.expect_missing();

        let merge = api.with_header("Content-Type", "application/merge-patch+json");
        let patch = json!({"data": {"w": null, "z": true}});
        assert_eq!(merge.send("PATCH", &data, Some(patch)).await.expect(200).data()["version"], 3);
        assert_eq!(other.get(&data).await.expect(200).data()["data"], json!({"v": 2, "z": true}));
        merge.send("PATCH", "secret/data/none", Some(json!({"data": {"a": 1}}))).await.expect(404);

        api.delete(&data).await.expect(204);
        let gone = other.get(&data).await.expect(404);
        assert_eq!(gone.data()["data"], Value::Null);
        assert!(!gone.data()["metadata"]["deletion_time"].as_str().unwrap().is_empty(), "{}", gone.body);
        api.put(&format!("secret/undelete/a/n{index}"), json!({"versions": [3]})).await.expect(204);
        other.get(&data).await.expect(200);
        api.put(&format!("secret/delete/a/n{index}"), json!({"versions": [2]})).await.expect(204);
        other.get(&format!("{data}?version=2")).await.expect(404);
        api.put(&format!("secret/destroy/a/n{index}"), json!({"versions": [1, 2]})).await.expect(204);
        api.put(&format!("secret/undelete/a/n{index}"), json!({"versions": [1, 2]})).await.expect(204);
        let destroyed = other.get(&format!("{data}?version=1")).await.expect(404);
        assert_eq!(destroyed.data()["metadata"]["destroyed"], true);
        api.put(&format!("secret/destroy/a/n{index}"), json!({}))
            .await
            .expect_error(400, "No version number provided");

        api.put(&metadata, json!({"max_versions": 2, "custom_metadata": {"owner": "ann"}})).await.expect(204);
        api.put(&data, json!({"data": {"v": 4}})).await.expect(200);
        let shown = other.get(&metadata).await.expect(200);
        assert_eq!(
            (&shown.data()["current_version"], &shown.data()["oldest_version"]),
            (&json!(4), &json!(3))
        );
        assert_eq!(shown.data()["custom_metadata"], json!({"owner": "ann"}));
        assert_eq!(shown.data()["versions"].as_object().unwrap().len(), 2);
        other.get(&format!("{data}?version=2")).await.expect_missing();
    }
    assert_eq!(root.list("secret/metadata/a").await.expect(200).data()["keys"], json!(["n0", "n1", "n2"]));
    assert_eq!(root.list("secret/metadata").await.expect(200).data()["keys"], json!(["a/"]));
    for index in 0..3 {
        cluster.api(index).delete(&format!("secret/metadata/a/n{index}")).await.expect(204);
    }
    root.list("secret/metadata").await.expect_missing();
    cluster.check_logs(&[]);
}

#[tokio::test(flavor = "multi_thread")]
async fn of_writers_on_three_nodes_one_gets_each_version() {
    let cluster = Cluster::start(3).await;
    let root = cluster.api(cluster.active().await);
    root.put("sys/mounts/secret", json!({"type": "kv", "options": {"version": "2"}})).await.expect(204);
    for version in 0..12u64 {
        let writers = (0..6).map(|writer| {
            let api = cluster.api(writer % 3);
            async move {
                let body = json!({"data": {"writer": writer}, "options": {"cas": version}});
                let reply = api.put("secret/data/raced", body).await;
                if reply.status == 200 {
                    assert_eq!(reply.data()["version"], version + 1);
                    return Some(writer);
                }
                let text = "check-and-set parameter did not match the current version";
                reply.expect_error(400, text);
                None
            }
        });
        let won: Vec<usize> = futures_util::future::join_all(writers).await.into_iter().flatten().collect();
        assert_eq!(won.len(), 1, "version {}", version + 1);
        for index in 0..3 {
            let read = cluster.api(index).get("secret/data/raced").await.expect(200);
            assert_eq!(read.data()["data"]["writer"], won[0]);
        }
    }
    cluster.check_logs(&[]);
}

#[tokio::test(flavor = "multi_thread")]
async fn bounds_and_texts_are_those_that_clients_match() {
    let cluster = Cluster::start(1).await;
    let api = cluster.api(0);
    api.put("sys/mounts/secret", json!({"type": "kv", "options": {"version": "2"}})).await.expect(204);
    api.put("secret/data/a", json!({"options": {}})).await.expect_error(400, "no data provided");
    let mismatch = "check-and-set parameter did not match the current version";
    api.put("secret/data/a", json!({"data": {}, "options": {"cas": 3}})).await.expect_error(400, mismatch);
    api.put("secret/data/a", json!({"data": {"x": 1}, "options": {"cas": 0}})).await.expect(200);
    api.put("secret/data/a", json!({"data": {"x": 1}, "options": {"cas": 0}}))
        .await
        .expect_error(400, mismatch);
    api.put("secret/config", json!({"cas_required": true, "max_versions": 3})).await.expect(204);
    let required = "check-and-set parameter required for this call";
    api.put("secret/data/a", json!({"data": {"x": 2}})).await.expect_error(400, required);
    for version in 1..6 {
        api.put("secret/data/a", json!({"data": {"x": 2}, "options": {"cas": version}})).await.expect(200);
    }
    let shown = api.get("secret/metadata/a").await.expect(200);
    assert_eq!(shown.data()["versions"].as_object().unwrap().len(), 3);
    assert_eq!(api.get("secret/config").await.expect(200).data()["max_versions"], 3);

    let many: serde_json::Map<_, _> = (0..65).map(|i| (format!("k{i}"), json!("v"))).collect();
    for bad in [json!(many), json!({"k".repeat(129): "v"}), json!({"k": "v".repeat(513)})] {
        api.put("secret/metadata/a", json!({"custom_metadata": bad})).await.expect(400);
    }
    api.put("secret/metadata/b", json!({"delete_version_after": "1s"})).await.expect(204);
    api.put("secret/data/b", json!({"data": {"x": 1}, "options": {"cas": 0}})).await.expect(200);
    let gone = || async { (api.get("secret/data/b").await.status == 404).then_some(()) };
    holdfast_tests::eventually_async(holdfast_tests::hub::PATIENCE, "the version deletes itself", gone).await;
    cluster.check_logs(&[]);
}
