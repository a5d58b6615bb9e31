//! What a fresh platform is given: a root token, mounts, a database.

use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use holdfast_client::{Client, ClientError};
use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::nodes::Nodes;

const PATIENCE: Duration = Duration::from_secs(60);
/// Shorter than the default, so that at the end a login that a killed node left half-made is waited for briefly.
const OPERATION_TIMEOUT: &str = "10s";
const ROLE: &str = "CREATE ROLE \"{{name}}\" LOGIN PASSWORD '{{password}}' VALID UNTIL '{{expiration}}'; \
                    GRANT USAGE ON SCHEMA public TO \"{{name}}\"; GRANT SELECT ON ALL TABLES IN SCHEMA public TO \"{{name}}\";";

/// How the platform is entered.
pub struct Access {
    root: SecretString,
}

impl Access {
    /// The root token, which this command exists to print.
    pub fn root_token(&self) -> &str {
        self.root.expose_secret()
    }

    /// A client as root, of all nodes.
    pub fn client(&self, nodes: &Nodes) -> Result<Client> {
        let addresses: Vec<_> = nodes.iter().map(super::nodes::Node::api).collect();
        self.client_of(addresses)
    }

    /// Clients as root, of one node each.
    pub fn each(&self, nodes: &Nodes) -> Result<Vec<Client>> {
        nodes.iter().map(|node| self.client_of(vec![node.api()])).collect()
    }

    fn client_of(&self, addresses: Vec<String>) -> Result<Client> {
        Ok(Client::builder()
            .addresses(addresses)
            .token(Some(self.root.clone()))
            .timeout(Duration::from_secs(20))
            .build()?)
    }
}

/// Initialises a new cluster, or takes up the one that is in the data directory.
pub async fn initialise(nodes: &Nodes, home: &Path, wanted: Option<&str>) -> Result<Access> {
    let first = nodes.iter().next().context("there is no node")?;
    let client = Client::builder().addresses([first.api()]).timeout(Duration::from_secs(20)).build()?;
    let file = home.join("root-token");
    if client.read("sys/init").await?.member("initialized").as_bool() == Some(true) {
        let text = std::fs::read_to_string(&file).with_context(|| {
            format!("the data directory holds a cluster, but {file:?} with its root token is not there")
        })?;
        let access = Access { root: SecretString::from(text.trim().to_owned()) };
        wait_active(nodes, &access).await?;
        return Ok(access);
    }
    let answer = client.write("sys/init", &json!({})).await?;
    let text = answer.member("root_token").as_str().context("init gave no root token")?;
    let mut access = Access { root: SecretString::from(text.to_owned()) };
    // At once: nobody gives this token a second time.
    keep(&file, &access)?;
    wait_active(nodes, &access).await?;
    if let Some(id) = wanted {
        let old = access.client(nodes)?;
        old.write("auth/token/create-orphan", &json!({"id": id, "policies": ["root"], "ttl": 0})).await?;
        access = Access { root: SecretString::from(id.to_owned()) };
        keep(&file, &access)?;
        old.write("auth/token/revoke-self", &json!({})).await?;
    }
    Ok(access)
}

/// Makes the root token last: the file holds the former one or this one, whenever it ends.
fn keep(file: &Path, access: &Access) -> Result<()> {
    let partial = file.with_extension("partial");
    let write = || {
        let mut out =
            std::fs::File::options().write(true).create(true).truncate(true).mode(0o600).open(&partial)?;
        out.write_all(access.root_token().as_bytes())?;
        out.sync_all()?;
        std::fs::rename(&partial, file)?;
        std::fs::File::open(file.parent().unwrap_or(Path::new(".")))?.sync_all()
    };
    write().with_context(|| format!("cannot keep the root token in {file:?}"))
}

/// Waits until some node is active.
async fn wait_active(nodes: &Nodes, access: &Access) -> Result<()> {
    let client = access.client(nodes)?;
    until("a node to become active", async || match client.read("auth/token/lookup-self").await {
        Ok(_) => Ok(Some(())),
        Err(error) if retriable(&error) => Ok(None),
        Err(error) => Err(error.into()),
    })
    .await
}

/// Waits until every node votes.
pub async fn wait_voters(nodes: &Nodes, access: &Access) -> Result<()> {
    let client = access.client(nodes)?;
    until("every node to vote", async || {
        let answer = match client.read("sys/storage/raft/configuration").await {
            Ok(answer) => answer,
            Err(error) if retriable(&error) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let servers =
            answer.data().pointer("/config/servers").and_then(Value::as_array).cloned().unwrap_or_default();
        let voters = servers.iter().filter(|s| s.get("voter") == Some(&Value::Bool(true))).count();
        Ok((voters == nodes.len()).then_some(()))
    })
    .await
}

/// Mounts what is not mounted yet.
pub async fn mounts(nodes: &Nodes, access: &Access) -> Result<()> {
    let client = access.client(nodes)?;
    let mounted = client.read("sys/mounts").await?;
    for (path, body) in [
        ("secret", json!({"type": "kv", "options": {"version": "2"}})),
        ("database", json!({"type": "database"})),
    ] {
        if mounted.data().get(format!("{path}/")).is_none() {
            client.write(&format!("sys/mounts/{path}"), &body).await?;
        }
    }
    Ok(())
}

/// A role that gives logins, and the spoke that they are made through.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Login {
    /// Where a login is read.
    pub path: String,
    /// The spoke; none when the hub reaches the database itself.
    pub spoke: Option<String>,
}

/// Connects the database mount to a PostgreSQL, through each spoke and directly, with a role for each way. The role `app`
/// goes through the first spoke, or directly if there is none.
pub async fn postgres(nodes: &Nodes, access: &Access, url: &str, spokes: usize) -> Result<Vec<Login>> {
    let client = access.client(nodes)?;
    let through = |number: usize| match number {
        1 => ("pg".to_owned(), "app".to_owned(), Some("spoke-1".to_owned())),
        n => (format!("pg-{n}"), format!("app-{n}"), Some(format!("spoke-{n}"))),
    };
    let direct = match spokes {
        0 => ("pg".to_owned(), "app".to_owned(), None),
        _ => ("direct".to_owned(), "direct".to_owned(), None),
    };
    let mut logins = Vec::new();
    for (connection, role, spoke) in (1..=spokes).map(through).chain([direct]) {
        let mut config =
            json!({"connection_url": url, "allowed_roles": "*", "operation_timeout": OPERATION_TIMEOUT});
        if let Some(members) = config.as_object_mut() {
            let plugin =
                if spoke.is_some() { "remote-postgres-plugin" } else { "postgresql-database-plugin" };
            members.insert("plugin_name".to_owned(), plugin.into());
            members.extend(spoke.clone().map(|name| ("spoke_name".to_owned(), name.into())));
        }
        client.write(&format!("database/config/{connection}"), &config).await?;
        let body = json!({"db_name": connection, "creation_statements": ROLE, "default_ttl": "1h", "max_ttl": "24h"});
        client.write(&format!("database/roles/{role}"), &body).await?;
        logins.push(Login { path: format!("database/creds/{role}"), spoke });
    }
    Ok(logins)
}

pub fn retriable(error: &ClientError) -> bool {
    matches!(error, ClientError::Unreachable { .. }) || matches!(error.status(), Some(503 | 429 | 400 | 501))
}

/// Waits for a condition, a minute at most.
pub async fn until(what: &str, mut condition: impl AsyncFnMut() -> Result<Option<()>>) -> Result<()> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if condition().await?.is_some() {
            return Ok(());
        }
        if Instant::now() > deadline {
            bail!("waited a minute for {what}; the logs of the nodes tell more");
        }
        sleep(Duration::from_millis(50)).await;
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn the_root_token_is_replaced_whole_and_for_its_owner_only() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("root-token");
        for token in ["a-long-first-token", "root"] {
            keep(&file, &Access { root: SecretString::from(token) }).unwrap();
            assert_eq!(std::fs::read_to_string(&file).unwrap(), token);
        }
        assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}
