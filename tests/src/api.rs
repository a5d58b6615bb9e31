//! A deliberately plain HTTP client: it shows statuses, headers and bodies as they are and repeats nothing.

use std::time::Duration;

use http::{HeaderMap, Method};
use serde_json::{Value, json};

use crate::db::{ADMIN, ADMIN_PASSWORD, PostgresServer};

/// One node's API as one caller sees it.
#[derive(Clone)]
pub struct Api {
    http: reqwest::Client,
    base: String,
    prefix: &'static str,
    token: Option<String>,
    headers: Vec<(String, String)>,
}

/// An answer as it came.
#[derive(Debug)]
pub struct Reply {
    /// The status.
    pub status: u16,
    /// The headers.
    pub headers: HeaderMap,
    /// The body's bytes.
    pub bytes: Vec<u8>,
    /// The body, null when it is empty or not JSON.
    pub body: Value,
}

impl Reply {
    /// The texts of `errors`.
    pub fn errors(&self) -> Vec<String> {
        let list = self.body["errors"].as_array().cloned().unwrap_or_default();
        list.iter().map(|e| e.as_str().unwrap_or_default().to_owned()).collect()
    }

    /// Fails unless the status is the expected one.
    #[track_caller]
    pub fn expect(self, status: u16) -> Self {
        assert_eq!(self.status, status, "body: {}", String::from_utf8_lossy(&self.bytes));
        self
    }

    /// Fails unless status and first error text are the expected ones.
    #[track_caller]
    pub fn expect_error(self, status: u16, text: &str) {
        assert_eq!((self.status, self.errors()), (status, vec![text.to_owned()]));
    }

    /// Fails unless nothing is there: 404 without a text.
    #[track_caller]
    pub fn expect_missing(self) {
        assert_eq!((self.status, self.errors().len()), (404, 0), "body: {}", self.body);
    }

    /// `data` of the envelope.
    pub fn data(&self) -> &Value {
        &self.body["data"]
    }

    /// A text in `data`.
    #[track_caller]
    pub fn text(&self, name: &str) -> String {
        self.data()[name].as_str().unwrap_or_else(|| panic!("no {name} in {}", self.body)).to_owned()
    }
}

impl Api {
    /// The API at a base URL, without a token.
    pub fn new(base: impl Into<String>) -> Self {
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let http = reqwest::Client::builder()
            .timeout(Duration::from_secs(60))
            .redirect(reqwest::redirect::Policy::none())
            .build()
            .unwrap();
        Self { http, base: base.into(), prefix: "/v1", token: None, headers: Vec::new() }
    }

    /// Another product's API at a base URL: paths have no prefix.
    pub fn bare(base: impl Into<String>) -> Self {
        Self { prefix: "", ..Self::new(base) }
    }

    /// The same API with a token.
    pub fn with_token(&self, token: impl Into<String>) -> Self {
        Self { token: Some(token.into()), ..self.clone() }
    }

    /// The same API with one more header on each request.
    pub fn with_header(&self, name: &str, value: &str) -> Self {
        let mut api = self.clone();
        api.headers.push((name.to_owned(), value.to_owned()));
        api
    }

    /// The base URL.
    pub fn base(&self) -> &str {
        &self.base
    }

    /// Sends a request; an error means that no answer came.
    pub async fn try_send(&self, method: &str, path: &str, body: Option<Vec<u8>>) -> reqwest::Result<Reply> {
        let method = Method::from_bytes(method.as_bytes()).unwrap();
        let mut request = self.http.request(method, format!("{}{}/{path}", self.base, self.prefix));
        if let Some(token) = &self.token {
            request = request.header("X-Vault-Token", token);
        }
        for (name, value) in &self.headers {
            request = request.header(name, value);
        }
        if let Some(body) = body {
            request = request.body(body);
        }
        let response = request.send().await?;
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        let bytes = response.bytes().await?.to_vec();
        let body = serde_json::from_slice(&bytes).unwrap_or(Value::Null);
        Ok(Reply { status, headers, bytes, body })
    }

    /// Sends a request and expects an answer.
    pub async fn send(&self, method: &str, path: &str, body: Option<Value>) -> Reply {
        let body = body.map(|b| b.to_string().into_bytes());
        self.try_send(method, path, body).await.unwrap_or_else(|e| panic!("{method} {path}: {e:?}"))
    }

    /// `GET`.
    pub async fn get(&self, path: &str) -> Reply {
        self.send("GET", path, None).await
    }

    /// `PUT` with a JSON body.
    pub async fn put(&self, path: &str, body: Value) -> Reply {
        self.send("PUT", path, Some(body)).await
    }

    /// `LIST`.
    pub async fn list(&self, path: &str) -> Reply {
        self.send("LIST", path, None).await
    }

    /// `DELETE`.
    pub async fn delete(&self, path: &str) -> Reply {
        self.send("DELETE", path, None).await
    }

    /// The code of `sys/health`; none when the node does not answer within a second.
    pub async fn health(&self) -> Option<u16> {
        let answer =
            tokio::time::timeout(Duration::from_secs(1), self.try_send("GET", "sys/health", None)).await;
        answer.ok()?.ok().map(|reply| reply.status)
    }

    /// The value of a metric of the node with all its labels, such as `name{outcome="failed"}`; 0 when it was never
    /// counted.
    pub async fn metric(&self, name: &str) -> u64 {
        let reply = self.get("sys/metrics?format=prometheus").await.expect(200);
        let text = String::from_utf8(reply.bytes).unwrap();
        let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        value.map_or(0, |value| value.parse::<f64>().unwrap() as u64)
    }

    /// Mounts `database/`, connects it to a PostgreSQL as `pg` and writes a role `app` with a lease of `ttl`.
    pub async fn setup_postgres(&self, database: &PostgresServer, ttl: &str) {
        self.put("sys/mounts/database", json!({"type": "database"})).await.expect(204);
        let config = json!({
            "plugin_name": "postgresql-database-plugin", "connection_url": database.url_template(),
            "allowed_roles": "*", "username": ADMIN, "password": ADMIN_PASSWORD,
        });
        self.put("database/config/pg", config).await.expect(204);
        self.put(
            "database/roles/app",
            json!({
                "db_name": "pg", "default_ttl": ttl, "max_ttl": "24h", "creation_statements": CREATE_ROLE,
            }),
        )
        .await
        .expect(204);
    }
}

/// Creation statements of an ordinary role.
pub const CREATE_ROLE: &str = "CREATE ROLE \"{{name}}\" LOGIN PASSWORD '{{password}}' VALID UNTIL '{{expiration}}'; \
                               GRANT USAGE ON SCHEMA public TO \"{{name}}\";";
