//! The order of the checks: of two that fail, the earlier one answers.

use super::*;

const DENIED: &str = "permission denied";
const MALFORMED: &str = "error parsing JSON";

/// Puts the only audit device on a disk that takes nothing, or takes it away.
async fn break_audit(rig: &Rig, broken: bool) {
    let hub = rig.hub();
    if broken {
        let fields = json!({"type": "file", "options": {"file_path": "/dev/full", "mode": "0666"}});
        let data = crate::logical::Data::new(fields.as_object().unwrap().clone());
        let entry = crate::audit::entry::DeviceEntry::parse("full", &data).unwrap();
        hub.storage.put("sys/audit/full/", &entry).await.unwrap();
    } else {
        hub.storage.delete("sys/audit/full/").await.unwrap();
    }
}

#[tokio::test]
async fn of_two_checks_that_fail_the_earlier_one_answers() {
    let rig = Rig::one().await;
    let broken = || json!("{");
    // 1 size and syntax, before 3 initialised and unsealed.
    rig.as_token("", "PUT", "kv/x", broken()).await.expect_error(400, MALFORMED);
    rig.as_token("", "PUT", "kv/x", json!({})).await.expect_error(503, "Vault is sealed");
    let (_, root) = rig.open().await;
    let root = root.as_str();
    // 1 before 2 whether the node was removed, and that before all else.
    rig.cluster.change(|view| view.removed = true);
    rig.as_token("", "PUT", "kv/x", broken()).await.expect_error(400, MALFORMED);
    rig.as_token("", "PUT", "kv/x", json!({})).await.expect_error(503, "node was removed from the cluster");
    rig.cluster.change(|view| view.removed = false);
    // 4 who is active, before 5 and what follows.
    rig.follow(None, None);
    let nobody = "no active Vault instance found";
    rig.send("PUT", "kv/x", &[("x-vault-namespace", "team")], json!({})).await.expect_error(503, nobody);
    rig.lead(1);
    // 5 the rate, before 6 the namespace.
    let quota = json!({"rate": 1, "interval": "1h", "path": "limited"});
    rig.as_token(root, "PUT", "sys/mounts/limited", json!({"type": "kv"})).await.expect(204);
    rig.as_token(root, "PUT", "sys/quotas/rate-limit/q", quota).await.expect(204);
    rig.as_token(root, "GET", "limited/x", Value::Null).await.expect(404);
    let over = rig.send("GET", "limited/x", &[("x-vault-namespace", "team")], Value::Null).await;
    over.expect_error(429, "request path \"limited/x\": rate limit quota exceeded");
    assert!(over.headers.contains_key("retry-after"));
    // 6 before 8 the token.
    let missing = rig.send("GET", "kv/x", &[("x-vault-namespace", "team")], Value::Null).await;
    missing.expect_error(404, "no handler for route \"kv/x\". route entry not found.");
    // 7 what needs no token is not asked for one.
    let unwrap = rig.as_token("", "PUT", "sys/wrapping/unwrap", json!({"token": "x"})).await;
    unwrap.expect_error(400, "wrapping token is not valid or does not exist");
    // 8 and 9 token and policy, before 10 the bounds of wrapping and 13 the route.
    let poor = rig.token_with(root, "poor", "path \"other/*\" { capabilities = [\"read\"] }").await;
    for token in ["", "hvs.unknown", poor.as_str()] {
        let headers = [("x-vault-token", token), ("x-vault-wrap-ttl", "100000h")];
        for path in ["sys/mounts", "nowhere/x"] {
            rig.send("GET", path, &headers, Value::Null).await.expect_error(403, DENIED);
        }
    }
    // 10 before 11 the record of the request.
    break_audit(&rig, true).await;
    let headers = [("x-vault-token", root), ("x-vault-wrap-ttl", "100000h")];
    rig.send("GET", "sys/mounts", &headers, Value::Null).await.expect(400);
    rig.as_token(root, "GET", "sys/mounts", Value::Null).await.expect_error(500, "internal error");
    break_audit(&rig, false).await;
    rig.stop().await;
}

#[tokio::test]
async fn a_use_is_counted_after_the_record_and_before_the_route() {
    let rig = Rig::one().await;
    let (_, root) = rig.open().await;
    let root = root.as_str();
    let body = json!({"policies": ["root"], "num_uses": 2, "ttl": "1h"});
    let made = rig.as_token(root, "PUT", "auth/token/create", body).await.expect(200).body;
    let (token, accessor) = (made["auth"]["client_token"].as_str().unwrap(), &made["auth"]["accessor"]);
    let left = async || {
        let by = json!({"accessor": accessor});
        let found = rig.as_token(root, "PUT", "auth/token/lookup-accessor", by).await;
        (found.status == 200).then(|| found.data()["num_uses"].clone())
    };
    // 11 before 12: what cannot be recorded uses nothing up.
    break_audit(&rig, true).await;
    rig.as_token(token, "GET", "sys/mounts", Value::Null).await.expect_error(500, "internal error");
    break_audit(&rig, false).await;
    assert_eq!(left().await, Some(json!(2)));
    // 10 before 12.
    let headers = [("x-vault-token", token), ("x-vault-wrap-ttl", "100000h")];
    rig.send("GET", "sys/mounts", &headers, Value::Null).await.expect(400);
    assert_eq!(left().await, Some(json!(2)));
    // 12 before 13: a use is a use, whether or not there is a route.
    rig.as_token(token, "GET", "nowhere/x", Value::Null).await.expect(404);
    assert_eq!(left().await, Some(json!(1)));
    rig.as_token(token, "DELETE", "sys/ha-status", Value::Null).await.expect(405);
    assert_eq!(left().await, None);
    rig.as_token(token, "GET", "sys/mounts", Value::Null).await.expect_error(403, DENIED);
    // 13 before 14, and 14 before 16: a refusal is told, not wrapped.
    rig.as_token(root, "PUT", "sys/mounts/kv", json!({"type": "kv-v2"})).await.expect(204);
    let headers = [("x-vault-token", root), ("x-vault-wrap-ttl", "60")];
    rig.send("PUT", "kv/nothing/x", &headers, json!({})).await.expect(404);
    rig.send("PUT", "kv/data/x", &headers, json!({})).await.expect_error(400, "no data provided");
    rig.stop().await;
}
