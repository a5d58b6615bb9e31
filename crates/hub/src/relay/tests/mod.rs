//! The paths of the relay mount, judged through its engine.

mod authority;
mod enrolment;
mod handshake;

use std::sync::Arc;

use holdfast_core::SpokeName;
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};
use serde_json::{Value, json};

use super::engine::engine;
use crate::hub::Hub;
use crate::logical::{Body, Cx, Data, Operation, Response};
use crate::mount::MountEntry;
use crate::mount::change::{Family, enable};
use crate::store::memory::MemoryStore;
use crate::testing;

/// A refusal as a client sees it.
type Refused = (u16, String);

/// An active node with a relay mount.
struct Fixture {
    store: Arc<MemoryStore>,
    hub: Arc<Hub>,
    cx: Cx,
    mount: MountEntry,
}

impl Fixture {
    async fn new() -> Self {
        let (store, hub, cx) = testing::hub();
        let data = Data::new(json!({"type": "relay"}).as_object().cloned().unwrap());
        enable(&cx, Family::Secret, "relay", &data).await.unwrap();
        let mount = hub.relay.authority.mount().unwrap();
        Self { store, hub, cx, mount }
    }

    /// With an authority at a free port.
    async fn ready() -> Self {
        let fixture = Self::new().await;
        let endpoint = format!("localhost:{}", free_port());
        fixture.write("ca/init", json!({"hub_endpoint": endpoint})).await.unwrap();
        fixture
    }

    async fn call(&self, operation: Operation, rest: &str, body: Value) -> Result<Value, Refused> {
        let request = testing::request(operation, "relay/", rest, body);
        match engine().handle(&self.cx, &self.mount, &request).await {
            Ok(Response { body: Body::Logical(logical), .. }) => {
                let mut data = Value::Object(logical.data.unwrap_or_default());
                if !logical.warnings.is_empty() {
                    data["warnings"] = json!(logical.warnings);
                }
                Ok(data)
            }
            Ok(_) => Ok(Value::Null),
            Err(error) => Err((error.status(), error.errors().join(";"))),
        }
    }

    async fn write(&self, rest: &str, body: Value) -> Result<Value, Refused> {
        self.call(Operation::Write, rest, body).await
    }

    async fn read(&self, rest: &str) -> Result<Value, Refused> {
        self.call(Operation::Read, rest, json!({})).await
    }

    /// A new bootstrap token: its id and its text.
    async fn token(&self, body: Value) -> (String, String) {
        let made = self.write("bootstrap-tokens", body).await.unwrap();
        (text(&made, "id"), text(&made, "token"))
    }

    /// Asks for a certificate.
    async fn enrol(&self, token: &str, name: &str, csr: &str) -> Result<Value, Refused> {
        self.write("sign-csr", json!({"token": token, "spoke_name": name, "csr_pem": csr})).await
    }
}

fn text(value: &Value, field: &str) -> String {
    value[field].as_str().unwrap_or_default().to_owned()
}

fn name(text: &str) -> SpokeName {
    text.parse().unwrap()
}

fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

fn subject(name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    params
}

/// A good request of a fresh key.
pub(super) fn csr(name: &str) -> (String, KeyPair) {
    let key = KeyPair::generate().unwrap();
    (subject(name).serialize_request(&key).unwrap().pem().unwrap(), key)
}

fn der(pem: &str) -> Vec<u8> {
    use rustls_pki_types::pem::PemObject as _;
    rustls_pki_types::CertificateDer::from_pem_slice(pem.as_bytes()).unwrap().to_vec()
}
