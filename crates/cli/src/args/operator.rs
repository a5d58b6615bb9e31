//! The flags of `operator`: a cluster's beginning, its seal, its members and its backups.

use std::path::PathBuf;

use clap::{Args, Subcommand};

#[derive(Debug, Subcommand)]
pub enum Operator {
    /// Initialise a new cluster; prints key shares and the root token once.
    #[command(
        after_help = "Examples:\n  holdfast operator init\n  holdfast operator init -key-shares=1 -key-threshold=1"
    )]
    Init(InitArgs),
    /// Give a key share to a sealed node.
    #[command(after_help = "Examples:\n  holdfast operator unseal\n  holdfast operator unseal -reset")]
    Unseal(UnsealArgs),
    /// Seal the addressed node.
    #[command(after_help = "Example:\n  holdfast operator seal")]
    Seal,
    /// Make the active node hand leadership over.
    #[command(after_help = "Example:\n  holdfast operator step-down")]
    StepDown,
    /// Membership and backups.
    #[command(
        subcommand,
        after_help = "Examples:\n  holdfast operator raft list-peers\n  holdfast operator raft snapshot save backup.tgz"
    )]
    Raft(Raft),
}

#[derive(Args, Debug)]
pub struct InitArgs {
    /// Number of key shares (5 unless given).
    #[arg(long, visible_alias = "n")]
    pub key_shares: Option<u16>,
    /// Number of shares that open the seal (3 unless given).
    #[arg(long, visible_alias = "t")]
    pub key_threshold: Option<u16>,
    /// For a keyfile seal: number of recovery shares.
    #[arg(long)]
    pub recovery_shares: Option<u16>,
    /// For a keyfile seal: how many recovery shares are needed.
    #[arg(long)]
    pub recovery_threshold: Option<u16>,
    /// Only tell whether the cluster is initialised: exit code 0 yes, 2 no.
    #[arg(long)]
    pub status: bool,
}

#[derive(Args, Debug)]
pub struct UnsealArgs {
    /// The share; `-` or nothing reads it from standard input, at a terminal without showing it.
    pub key: Option<String>,
    /// Forget the shares given so far.
    #[arg(long)]
    pub reset: bool,
}

#[derive(Debug, Subcommand)]
pub enum Raft {
    /// Let the addressed node join the cluster of a leader.
    #[command(after_help = "Example:\n  holdfast operator raft join https://hub-1:8200")]
    Join {
        /// API URL of any unsealed node of the cluster.
        leader: String,
        /// PEM file with the authority of the leader's certificate.
        #[arg(long, value_name = "FILE")]
        leader_ca_cert: Option<PathBuf>,
        /// Join without a vote.
        #[arg(long)]
        non_voter: bool,
    },
    /// Wipe the addressed node, which its cluster has removed, and let it join again.
    #[command(after_help = "Example:\n  holdfast operator raft rejoin https://hub-1:8200 -yes")]
    Rejoin {
        /// API URL of any unsealed node of the cluster.
        leader: String,
        /// PEM file with the authority of the leader's certificate.
        #[arg(long, value_name = "FILE")]
        leader_ca_cert: Option<PathBuf>,
        /// Really wipe it.
        #[arg(long)]
        yes: bool,
    },
    /// Show the members.
    #[command(after_help = "Example:\n  holdfast operator raft list-peers")]
    ListPeers,
    /// Remove a member.
    #[command(after_help = "Example:\n  holdfast operator raft remove-peer hub-3")]
    RemovePeer {
        /// Its node id.
        id: String,
    },
    /// Make a learner a voter.
    #[command(after_help = "Example:\n  holdfast operator raft promote hub-4")]
    Promote {
        /// Its node id.
        id: String,
    },
    /// Make a voter a learner.
    #[command(after_help = "Example:\n  holdfast operator raft demote hub-4")]
    Demote {
        /// Its node id.
        id: String,
    },
    /// Save and restore backups.
    #[command(
        subcommand,
        after_help = "Examples:\n  holdfast operator raft snapshot save backup.tgz\n  \
            holdfast operator raft snapshot restore backup.tgz"
    )]
    Snapshot(Snapshot),
}

#[derive(Debug, Subcommand)]
pub enum Snapshot {
    /// Save a backup of the whole cluster into a file.
    #[command(after_help = "Example:\n  holdfast operator raft snapshot save backup.tgz")]
    Save {
        /// The file; only its owner can read it.
        file: PathBuf,
        /// Replace a file that is there.
        #[arg(long)]
        force: bool,
    },
    /// Restore a backup onto the whole cluster.
    #[command(after_help = "Example:\n  holdfast operator raft snapshot restore backup.tgz")]
    Restore {
        /// The file.
        file: PathBuf,
        /// Also when it was made by another cluster.
        #[arg(long)]
        force: bool,
        /// Do not ask at a terminal.
        #[arg(long)]
        yes: bool,
    },
}
