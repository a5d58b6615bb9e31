//! What every Holdfast socket shares: TLS identities, the cluster port and the connections to its peers.

pub mod cluster;
