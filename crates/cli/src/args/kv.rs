//! The flags of `kv`.

use clap::Subcommand;

#[derive(Debug, Subcommand)]
pub enum Kv {
    /// Read a secret.
    #[command(
        after_help = "Examples:\n  holdfast kv get secret/app\n  holdfast kv get -version=2 -field=password secret/app"
    )]
    Get {
        /// Print only this field, bare.
        #[arg(long)]
        field: Option<String>,
        /// An older version.
        #[arg(long)]
        version: Option<u64>,
        /// mount/path
        path: String,
    },
    /// Write a new version of a secret.
    #[command(
        after_help = "Examples:\n  holdfast kv put secret/app user=app password=@pw.txt\n  holdfast kv put -cas=0 secret/app a=1"
    )]
    Put {
        /// Write only if the current version is this one; 0 means there is none.
        #[arg(long)]
        cas: Option<i64>,
        /// mount/path
        path: String,
        /// key=value, key=@file or key=- (both without one line end), @file or - (a JSON object).
        fields: Vec<String>,
    },
    /// Change some fields of the newest version.
    #[command(after_help = "Example:\n  holdfast kv patch secret/app user=app")]
    Patch {
        /// mount/path
        path: String,
        /// key=value, key=@file or key=- (both without one line end), @file or - (a JSON object).
        fields: Vec<String>,
    },
    /// List secrets.
    #[command(after_help = "Example:\n  holdfast kv list secret")]
    List {
        /// mount/path
        path: String,
    },
    /// Delete versions; they can be undeleted.
    #[command(
        after_help = "Examples:\n  holdfast kv delete secret/app\n  holdfast kv delete -versions=1,2 secret/app"
    )]
    Delete {
        /// Versions, separated by commas; the newest unless given.
        #[arg(long, value_delimiter = ',')]
        versions: Vec<u64>,
        /// mount/path
        path: String,
    },
    /// Bring deleted versions back.
    #[command(after_help = "Example:\n  holdfast kv undelete -versions=2 secret/app")]
    Undelete {
        /// Versions, separated by commas.
        #[arg(long, value_delimiter = ',', required = true)]
        versions: Vec<u64>,
        /// mount/path
        path: String,
    },
    /// Destroy versions for good.
    #[command(after_help = "Example:\n  holdfast kv destroy -versions=1,2 secret/app")]
    Destroy {
        /// Versions, separated by commas.
        #[arg(long, value_delimiter = ',', required = true)]
        versions: Vec<u64>,
        /// mount/path
        path: String,
    },
    /// Work with a secret's metadata.
    #[command(
        subcommand,
        after_help = "Examples:\n  holdfast kv metadata get secret/app\n  holdfast kv metadata put secret/app max_versions=5"
    )]
    Metadata(KvMetadata),
}

#[derive(Debug, Subcommand)]
pub enum KvMetadata {
    /// Show versions and settings.
    #[command(after_help = "Example:\n  holdfast kv metadata get secret/app")]
    Get {
        /// mount/path
        path: String,
    },
    /// Change settings: max_versions, cas_required, delete_version_after.
    #[command(after_help = "Example:\n  holdfast kv metadata put secret/app max_versions=5")]
    Put {
        /// mount/path
        path: String,
        /// key=value
        fields: Vec<String>,
    },
    /// Delete every version and the metadata.
    #[command(after_help = "Example:\n  holdfast kv metadata delete secret/app")]
    Delete {
        /// mount/path
        path: String,
    },
}
