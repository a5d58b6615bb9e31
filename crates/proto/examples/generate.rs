//! Writes `src/generated/` from `proto/`. Run by `./dev proto`, from the root of the repository.

use std::error::Error;
use std::path::Path;

/// What holds passwords or credentials, bare or inside of bytes: `src/debug.rs` says what of it may be printed.
const SECRET: [&str; 9] = [
    "Command",
    "Instance",
    "NewUserRequest",
    "Reply",
    "RunCommandReply",
    "RunCommandRequest",
    "Token",
    "UpdateUserRequest",
    "VerifyPasswordRequest",
];

/// The same of etcd's.
const ETCD_SECRET: [&str; 3] = ["AuthenticateRequest", "AuthenticateResponse", "KeyValue"];

fn main() -> Result<(), Box<dyn Error>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let sources = ["spoke", "plugin", "cluster"].map(|name| format!("holdfast/relay/v1/{name}.proto"));
    let files = protox::compile(sources, [root.join("proto")])?;
    let out = root.join("src/generated");
    std::fs::create_dir_all(&out)?;
    tonic_prost_build::configure()
        .build_transport(false)
        .bytes(".")
        .skip_debug(SECRET.map(|name| format!("holdfast.relay.v1.{name}")))
        .out_dir(&out)
        .compile_fds(files)?;
    let etcd = protox::compile(["etcd/v3/rpc.proto"], [root.join("proto")])?;
    tonic_prost_build::configure()
        .build_transport(false)
        .build_server(false)
        .bytes(".")
        .skip_debug(ETCD_SECRET.map(|name| format!("etcdserverpb.{name}")))
        .out_dir(&out)
        .compile_fds(etcd)?;
    Ok(())
}
