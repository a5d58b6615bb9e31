//! The names under which spokes may reach the hub: what its certificate is made for.

use std::collections::BTreeSet;
use std::net::IpAddr;

use super::identity::{Endpoint, is_host};
use super::record::CaRecord;
use crate::cluster::Member;
use crate::error::ApiError;
use crate::logical::Data;

/// Names and addresses that an operator asks for beside the endpoint and the members.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Extra {
    /// Names.
    pub dns: Vec<String>,
    /// Addresses.
    pub ip: Vec<String>,
}

impl Extra {
    /// From a request; what it does not mention stays as it is in `former`.
    pub fn parse(data: &Data, former: Option<&CaRecord>) -> Result<Self, ApiError> {
        let dns = data.strings("hub_dns_sans")?;
        let ip = data.strings("hub_ip_sans")?;
        if let Some(bad) = dns.iter().flatten().find(|name| !is_host(name) || is_address(name)) {
            return Err(ApiError::invalid(format!("hub_dns_sans: {bad:?} is not a DNS name")));
        }
        if let Some(bad) = ip.iter().flatten().find(|text| !is_address(text)) {
            return Err(ApiError::invalid(format!("hub_ip_sans: {bad:?} is not an IP address")));
        }
        let kept = |former: Option<&Vec<String>>| former.cloned().unwrap_or_default();
        Ok(Self {
            dns: dns.unwrap_or_else(|| kept(former.map(|record| &record.hub_dns_sans))),
            ip: ip.unwrap_or_else(|| kept(former.map(|record| &record.hub_ip_sans))),
        })
    }
}

/// The endpoint of a request.
pub fn endpoint(data: &Data) -> Result<Endpoint, ApiError> {
    let text = data.required("hub_endpoint", "hub_endpoint is required")?;
    Endpoint::parse(&text)
        .map_err(|cause| ApiError::invalid(format!("hub_endpoint must be host:port ({cause})")))
}

/// The hosts of the members: those of their cluster ports, and those that they told for their relay ports.
pub fn of_members(members: &[Member], told: &BTreeSet<String>) -> BTreeSet<String> {
    let cluster = members.iter().filter_map(|member| Endpoint::parse(&member.address.cluster).ok());
    let told = told.iter().filter(|host| is_host(host)).cloned();
    let unspecified = |host: &str| host.parse::<IpAddr>().is_ok_and(|ip| ip.is_unspecified());
    cluster.map(|endpoint| endpoint.host).chain(told).filter(|host| !unspecified(host)).collect()
}

/// All that the hub's certificate is for.
pub fn all(endpoint: &Endpoint, extra: &Extra, members: &BTreeSet<String>) -> BTreeSet<String> {
    let mut all = members.clone();
    all.insert(endpoint.host.clone());
    all.extend(extra.dns.iter().chain(&extra.ip).cloned());
    all
}

fn is_address(text: &str) -> bool {
    text.parse::<IpAddr>().is_ok()
}
