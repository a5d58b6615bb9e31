//! What every Holdfast socket shares: TLS identities, the cluster port and the connections to its peers, and
//! accept loops that drain.

pub mod cluster;
pub mod enrol;
pub mod pings;
pub mod serve;
pub mod server_tls;
pub mod stall;
pub mod unix_socket;
