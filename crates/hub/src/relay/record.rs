//! What the store holds of the relay. All of it goes with the mount.

use secrecy::{ExposeSecret as _, SecretString};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Below this is everything.
pub const ALL: &str = "relay/";
/// The authority, with the hub's certificate.
pub const CA: &str = "relay/ca";
/// Bootstrap tokens by id.
pub const TOKENS: &str = "relay/token/";
/// A bootstrap token that nobody has: read in place of one that is not there, so that both take the same work.
pub const PLACEHOLDER: &str = "relay/placeholder";
/// Denied spokes by name.
pub const DENIED: &str = "relay/denied/";

/// The authority of the spokes, and the certificate that it gave the hub.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct CaRecord {
    /// The authority's certificate, PEM.
    pub ca_cert_pem: String,
    /// Its key, PKCS#8 PEM.
    #[serde(serialize_with = "stored", deserialize_with = "restored")]
    pub ca_key_pem: SecretString,
    /// The hub's certificate, PEM.
    pub hub_cert_pem: String,
    /// Its key, PKCS#8 PEM.
    #[serde(serialize_with = "stored", deserialize_with = "restored")]
    pub hub_key_pem: SecretString,
    /// `host:port` that spokes dial.
    pub hub_endpoint: String,
    /// Further names in the hub's certificate, as they were asked for.
    pub hub_dns_sans: Vec<String>,
    /// Further addresses in it, as they were asked for.
    pub hub_ip_sans: Vec<String>,
    /// The hosts of the members that are in it.
    pub member_hosts: Vec<String>,
    /// When the authority was made, in seconds since 1970.
    pub created_unix: i64,
}

/// Why a name is denied.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct DeniedRecord {
    /// For people.
    pub reason: String,
    /// Since when, in seconds since 1970.
    pub created_unix: i64,
}

/// Records are encrypted as a whole; a secret type does not write itself.
pub(super) fn stored<S: Serializer>(secret: &SecretString, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(secret.expose_secret())
}

pub(super) fn restored<'de, D: Deserializer<'de>>(from: D) -> Result<SecretString, D::Error> {
    String::deserialize(from).map(SecretString::from)
}
