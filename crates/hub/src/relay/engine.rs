//! The mount type `relay`: its paths.

use std::sync::Arc;

use async_trait::async_trait;
use serde_json::{Value, json};
use x509_parser::prelude::FromDer as _;

use super::change::{self, Rotated};
use super::identity::Identity;
use super::record::{ALL, CA, CaRecord};
use super::{bootstrap, deny, not_initialised, open, views};
use crate::error::ApiError;
use crate::hub::Hub;
use crate::logical::{Cx, Engine, Operation, Request, Response};
use crate::mount::MountEntry;

/// The engine behind the relay mount.
pub fn engine() -> Arc<dyn Engine> {
    Arc::new(RelayEngine)
}

struct RelayEngine;

#[async_trait]
impl Engine for RelayEngine {
    fn unauthenticated(&self, operation: Operation, rest: &str) -> bool {
        open::is_open(operation, rest)
    }

    fn check_rate(&self, hub: &Hub, request: &Request) -> Result<(), ApiError> {
        if open::is_open(request.operation, &request.rest) {
            hub.relay.rate.check(hub, &request.path, request.remote)?;
        }
        Ok(())
    }

    fn audit_clear(&self) -> &'static [&'static str] {
        &[
            "allowed_spoke_name",
            "ca_cert_hash",
            "description",
            "hub_dns_sans",
            "hub_endpoint",
            "hub_ip_sans",
            "id",
            "keys",
            "reason",
            "rotated",
            "spoke_name",
            "ttl",
            "usages",
        ]
    }

    async fn handle(&self, cx: &Cx, mount: &MountEntry, request: &Request) -> Result<Response, ApiError> {
        let rest = request.rest.as_str();
        let (head, name) = rest.split_once('/').unwrap_or((rest, ""));
        match head {
            views::PATH if name.is_empty() => views::handle(&cx.hub, request),
            "ca" => authority(cx, mount, request, name).await,
            "bootstrap-tokens" => bootstrap::handle(cx, mount, request, name).await,
            "denied-spokes" => deny::handle(cx, mount, request, name).await,
            "cluster-info" | "sign-csr" if !name.is_empty() => Err(ApiError::unsupported_path()),
            "cluster-info" if request.operation == Operation::Read => open::cluster_info(cx, request),
            "sign-csr" if request.operation == Operation::Write => open::sign_csr(cx, mount, request).await,
            "cluster-info" | "sign-csr" => Err(ApiError::unsupported_operation()),
            _ => Err(ApiError::unsupported_path()),
        }
    }

    async fn unmounted(&self, cx: &Cx, _mount: &MountEntry) -> Result<(), ApiError> {
        Ok(cx.storage.delete_prefix(ALL).await?)
    }
}

async fn authority(cx: &Cx, mount: &MountEntry, request: &Request, name: &str) -> Result<Response, ApiError> {
    match (name, request.operation) {
        ("info", Operation::Read) => info(cx),
        ("init", Operation::Write) => {
            let made = change::init(cx, mount, request).await?;
            Ok(data(json!({
                "ca_cert_pem": made.ca_pem,
                "ca_cert_hash": made.ca_hash,
                "hub_endpoint": request.data.string("hub_endpoint")?,
            })))
        }
        ("update-endpoint", Operation::Write) => {
            change::update_endpoint(cx, mount, request).await?;
            info(cx)
        }
        ("rotate", Operation::Write) => {
            let (rotated, now) = change::rotate(cx, mount, request).await?;
            Ok(rotation(rotated, &now))
        }
        ("info" | "init" | "update-endpoint" | "rotate", _) => Err(ApiError::unsupported_operation()),
        _ => Err(ApiError::unsupported_path()),
    }
}

fn rotation(rotated: Rotated, now: &Identity) -> Response {
    let name = match rotated {
        Rotated::Hub => "hub",
        Rotated::All => "ca+hub",
    };
    let fields = json!({ "rotated": name, "ca_cert_hash": now.ca_hash, "ca_cert_pem": now.ca_pem });
    match rotated {
        Rotated::Hub => data(fields),
        Rotated::All => data(fields)
            .warn("the certificate authority was replaced: every spoke must join again, with the new hash"),
    }
}

fn info(cx: &Cx) -> Result<Response, ApiError> {
    let record = cx.storage.get::<CaRecord>(CA)?.ok_or_else(not_initialised)?.value;
    let identity = Identity::open(&record).map_err(ApiError::internal)?;
    let hub = identity.hub_key();
    Ok(data(json!({
        "ca_cert_pem": record.ca_cert_pem,
        "ca_cert_hash": identity.ca_hash,
        "ca_subject": subject(&identity.ca),
        "ca_not_after": identity.ca_not_after,
        "hub_endpoint": record.hub_endpoint,
        "hub_cert_subject": hub.cert.first().map(|cert| subject(cert)),
        "hub_cert_not_after": identity.hub_not_after,
        "hub_dns_sans": record.hub_dns_sans,
        "hub_ip_sans": record.hub_ip_sans,
        "created_unix": record.created_unix,
        "listener_port": cx.hub.relay.listener.port().unwrap_or(0),
    })))
}

fn subject(der: &[u8]) -> String {
    let parsed = x509_parser::certificate::X509Certificate::from_der(der);
    parsed.map(|(_, cert)| cert.subject().to_string()).unwrap_or_default()
}

fn data(fields: Value) -> Response {
    Response::data(fields.as_object().cloned().unwrap_or_default())
}
