//! The oracle: at rest, the database users that we made are exactly those of live leases.

use std::collections::BTreeSet;
use std::time::Duration;

use tokio_postgres::NoTls;

use crate::api::Api;
use crate::eventually_async;

/// Runs one query as a superuser and gives the first column.
pub async fn query(url: &str, sql: &str) -> Result<Vec<String>, tokio_postgres::Error> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    let driver = tokio::spawn(connection);
    let rows = client.simple_query(sql).await;
    driver.abort();
    let text = |message: &tokio_postgres::SimpleQueryMessage| match message {
        tokio_postgres::SimpleQueryMessage::Row(row) => Some(row.get(0).unwrap_or_default().to_owned()),
        _ => None,
    };
    Ok(rows?.iter().filter_map(text).collect())
}

/// The users that the hub made.
pub async fn users(url: &str) -> BTreeSet<String> {
    let names = query(url, "SELECT rolname FROM pg_roles WHERE rolname LIKE 'v-%'").await.unwrap();
    names.into_iter().collect()
}

/// Whether a login works now.
pub async fn can_log_in(url: &str, username: &str, password: &str) -> bool {
    let mut config: tokio_postgres::Config = url.parse().unwrap();
    config.user(username).password(password).connect_timeout(Duration::from_secs(5));
    match config.connect(NoTls).await {
        Ok((client, connection)) => {
            let driver = tokio::spawn(connection);
            let works = client.simple_query("SELECT 1").await.is_ok();
            driver.abort();
            works
        }
        Err(_) => false,
    }
}

/// The ids of all leases below a prefix, folders followed.
pub async fn leases(api: &Api, prefix: &str) -> Vec<String> {
    let mut ids = Vec::new();
    let mut folders = vec![prefix.to_owned()];
    while let Some(folder) = folders.pop() {
        let reply = api.list(&format!("sys/leases/lookup/{folder}")).await;
        let keys = reply.body["data"]["keys"].as_array().cloned().unwrap_or_default();
        for key in keys.iter().filter_map(|k| k.as_str()) {
            match key.ends_with('/') {
                true => folders.push(format!("{folder}{key}")),
                false => ids.push(format!("{folder}{key}")),
            }
        }
    }
    ids
}

/// Waits until as many users exist as there are leases below `database/creds/`.
pub async fn settled(api: &Api, url: &str, deadline: Duration) {
    eventually_async(deadline, "users equal live leases", || async {
        let (users, leases) = (users(url).await.len(), leases(api, "database/creds/").await.len());
        (users == leases).then_some(())
    })
    .await;
}
