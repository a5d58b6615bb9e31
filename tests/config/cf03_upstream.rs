//! CF-03: readers cost no upstream call, and each replica makes its own.

use std::time::Duration;

use holdfast_tests::config::Replica;
use holdfast_tests::eventually_async;
use holdfast_tests::hub::PATIENCE;
use holdfast_tests::upstream::{Script, Upstream};

#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_readers_cost_no_call_and_two_replicas_cost_twice() {
    let upstream = Upstream::start().await;
    upstream.set("/db", Script::ok(r#"{"user":"u","password":"p"}"#));
    let lines = format!(
        "{}[defaults]\npoll = \"2s\"\n[bindings]\nuser = \"https://web/db#user\"\npassword = \"https://web/db#password\"\n",
        upstream.lines()
    );
    let (a, b) = (Replica::start(&lines).await, Replica::start(&lines).await);
    let before = upstream.count("/db");
    assert_eq!(before, 2, "one object for two bindings, on each replica");
    let reading = |replica: &Replica| {
        let api = replica.api();
        async move {
            let mut tasks = tokio::task::JoinSet::new();
            for reader in 0..100 {
                let (api, name) = (api.clone(), if reader % 2 == 0 { "user" } else { "password" });
                tasks.spawn(async move {
                    for _ in 0..20 {
                        api.get(&format!("v1/values/{name}")).await.expect(200);
                    }
                });
            }
            tasks.join_all().await;
        }
    };
    let begun = std::time::Instant::now();
    tokio::join!(reading(&a), reading(&b));
    // Polls come every 2 s, less 20 %: nothing but them may have asked.
    let polls = 2 * (begun.elapsed().as_millis() as usize / 1600 + 1);
    assert!(upstream.count("/db") <= before + polls, "{} calls", upstream.count("/db"));
    let polled = || async { (upstream.count("/db") >= before + 6).then_some(()) };
    eventually_async(PATIENCE, "both replicas go on polling", polled).await;
    let dates = [&a, &b].map(|replica| replica.value("user"));
    let [first, second] = futures_util::future::join_all(dates).await.try_into().unwrap();
    assert_ne!(first.body["resolved_at"], second.body["resolved_at"], "each has its own date");
    let gaps: Vec<_> = upstream.asked().iter().map(|asked| asked.at).collect();
    assert!(gaps.last().unwrap().duration_since(gaps[0]) > Duration::from_secs(1));
}
