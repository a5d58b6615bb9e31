//! An answer in the form in which it is stored while it is wrapped.

use std::collections::BTreeMap;

use secrecy::{ExposeSecret as _, SecretString};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::logical::{AuthGrant, Body, LeaseTicket, Logical, Response};

/// An answer with an envelope or with plain JSON.
#[derive(Deserialize, Serialize)]
pub(super) struct Answer {
    status: Option<u16>,
    body: Stored,
}

#[derive(Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
enum Stored {
    Json(Value),
    Logical(Box<Envelope>),
}

#[derive(Deserialize, Serialize)]
struct Envelope {
    lease: Option<Ticket>,
    data: Option<Map<String, Value>>,
    auth: Option<Grant>,
    warnings: Vec<String>,
    mirror: bool,
}

#[derive(Deserialize, Serialize)]
struct Ticket {
    id: String,
    duration: u64,
    renewable: bool,
}

#[derive(Deserialize, Serialize)]
struct Grant {
    client_token: String,
    accessor: String,
    policies: Vec<String>,
    token_policies: Vec<String>,
    metadata: BTreeMap<String, String>,
    lease_duration: u64,
    renewable: bool,
    batch: bool,
    orphan: bool,
    num_uses: i64,
}

impl From<Response> for Answer {
    fn from(response: Response) -> Self {
        let body = match response.body {
            Body::Json(value) => Stored::Json(value),
            Body::Logical(logical) => Stored::Logical(Box::new(Envelope::from(*logical))),
            Body::Empty | Body::Bytes { .. } | Body::File { .. } => Stored::Json(Value::Null),
        };
        Self { status: response.status, body }
    }
}

impl From<Answer> for Response {
    fn from(answer: Answer) -> Self {
        let body = match answer.body {
            Stored::Json(value) => Body::Json(value),
            Stored::Logical(envelope) => Body::Logical(Box::new(Logical::from(*envelope))),
        };
        Self { status: answer.status, body }
    }
}

impl From<Logical> for Envelope {
    fn from(logical: Logical) -> Self {
        let ticket = |t: LeaseTicket| Ticket { id: t.id, duration: t.duration, renewable: t.renewable };
        Self {
            lease: logical.lease.map(ticket),
            data: logical.data,
            auth: logical.auth.map(|auth| Grant::from(*auth)),
            warnings: logical.warnings,
            mirror: logical.mirror,
        }
    }
}

impl From<Envelope> for Logical {
    fn from(envelope: Envelope) -> Self {
        let ticket = |t: Ticket| LeaseTicket { id: t.id, duration: t.duration, renewable: t.renewable };
        Self {
            lease: envelope.lease.map(ticket),
            data: envelope.data,
            auth: envelope.auth.map(|grant| Box::new(AuthGrant::from(grant))),
            wrap_info: None,
            warnings: envelope.warnings,
            mirror: envelope.mirror,
        }
    }
}

impl From<AuthGrant> for Grant {
    fn from(auth: AuthGrant) -> Self {
        Self {
            client_token: auth.client_token.expose_secret().to_owned(),
            accessor: auth.accessor,
            policies: auth.policies,
            token_policies: auth.token_policies,
            metadata: auth.metadata,
            lease_duration: auth.lease_duration,
            renewable: auth.renewable,
            batch: auth.token_type == "batch",
            orphan: auth.orphan,
            num_uses: auth.num_uses,
        }
    }
}

impl From<Grant> for AuthGrant {
    fn from(grant: Grant) -> Self {
        Self {
            client_token: SecretString::from(grant.client_token),
            accessor: grant.accessor,
            policies: grant.policies,
            token_policies: grant.token_policies,
            metadata: grant.metadata,
            lease_duration: grant.lease_duration,
            renewable: grant.renewable,
            token_type: if grant.batch { "batch" } else { "service" },
            orphan: grant.orphan,
            num_uses: grant.num_uses,
        }
    }
}
