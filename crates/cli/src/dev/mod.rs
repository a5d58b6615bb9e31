//! `holdfast dev`: hub nodes as processes of their own on loopback, so that one of them can be killed and seen to be
//! replaced.

mod nodes;
mod setup;
mod steps;
mod watch;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::json;

use crate::args::DevArgs;
use crate::output::{Failure, Printer, table};
use nodes::Nodes;
use setup::Access;
use steps::Steps;

/// Where the platform keeps its files, and whether they outlive it.
struct Home {
    path: PathBuf,
    temporary: Option<tempfile::TempDir>,
}

impl Home {
    fn open(data: Option<PathBuf>) -> Result<Self> {
        match data {
            Some(path) => {
                std::fs::create_dir_all(&path).with_context(|| format!("cannot make {path:?}"))?;
                Ok(Self { path: path.canonicalize()?, temporary: None })
            }
            None => {
                let dir = tempfile::Builder::new().prefix("holdfast-dev-").tempdir()?;
                Ok(Self { path: dir.path().to_owned(), temporary: Some(dir) })
            }
        }
    }
}

/// Runs the platform until it is interrupted.
pub fn run(args: DevArgs, print: Printer) -> Result<ExitCode, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(serve(args, print))
}

async fn serve(args: DevArgs, print: Printer) -> Result<ExitCode, Failure> {
    let home = Home::open(args.data.clone())?;
    let mut interrupt = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::interrupt())?;
    let mut terminate = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
    let stop = async {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    };
    tokio::pin!(stop);
    let mut nodes = Nodes::prepare(&home.path, &args)?;
    let started = tokio::select! {
        access = start(&args, &home, &mut nodes, print) => Some(access),
        () = &mut stop => None,
    };
    let outcome = match started {
        Some(Ok(access)) => {
            announce(&args, &home, &nodes, &access, print);
            tokio::select! {
                outcome = watch::run(&mut nodes, print) => outcome,
                () = &mut stop => Ok(()),
            }
        }
        Some(Err(error)) => Err(error),
        None => Ok(()),
    };
    if outcome.is_ok() {
        print.progress(match home.temporary {
            Some(_) => "\nStopping the nodes and removing their data …".to_owned(),
            None => format!("\nStopping the nodes; their data stays in {} …", home.path.display()),
        });
    }
    nodes.stop(Duration::from_secs(12)).await;
    outcome?;
    Ok(ExitCode::SUCCESS)
}

async fn start(args: &DevArgs, home: &Home, nodes: &mut Nodes, print: Printer) -> Result<Access> {
    let mut steps = Steps::new(print);
    for index in 0..nodes.len() {
        nodes.start(index)?;
    }
    nodes.wait_listening(0).await?;
    steps.done("the first node listens");
    let access = setup::initialise(nodes, &home.path, args.root_token.as_deref()).await?;
    steps.done("the cluster is initialised and unsealed");
    setup::wait_voters(nodes, &access).await?;
    steps.done(&format!("{} of {} nodes vote", nodes.len(), nodes.len()));
    setup::mounts(nodes, &access).await?;
    steps.done("secret/ (kv, version 2) and database/ are mounted");
    if let Some(url) = &args.postgres {
        setup::postgres(nodes, &access, url).await?;
        steps.done("database/config/pg and database/roles/app are written");
    }
    Ok(access)
}

fn announce(args: &DevArgs, home: &Home, nodes: &Nodes, access: &Access, print: Printer) {
    if print.json {
        let list: Vec<_> = nodes
            .iter()
            .map(|n| json!({"node": n.id, "api": n.api(), "cluster": n.cluster(), "pid": n.pid(), "log": n.log()}))
            .collect();
        let text = json!({"nodes": list, "root_token": access.root_token(), "data": home.path});
        print.line(text.to_string());
        return;
    }
    let rows = nodes.iter().map(|n| {
        let pid = n.pid().map_or_else(|| "-".to_owned(), |pid| pid.to_string());
        vec![n.id.clone(), n.api(), n.cluster(), pid, n.log().display().to_string()]
    });
    print.line(format!("\n{}", table(&["Node", "API", "Cluster port", "Process", "Log"], rows)));
    print.line(
        "\nThis is for trying things out, NOT FOR PRODUCTION: no TLS on the API, the key beside the data.",
    );
    let addresses: Vec<_> = nodes.iter().map(nodes::Node::api).collect();
    print.line(format!("\n  export HOLDFAST_ADDR={}", addresses.join(",")));
    print.line(format!("  export HOLDFAST_TOKEN={}", access.root_token()));
    print.line("  holdfast status");
    match &args.postgres {
        Some(url) => {
            print.line("  holdfast read database/creds/app");
            // The part after the superuser's own login.
            let place = url.rsplit_once('@').map_or(url.as_str(), |(_, place)| place);
            print.line(format!("  psql postgresql://USERNAME:PASSWORD@{place}"));
        }
        None => print.line("  holdfast kv put secret/hello who=world"),
    }
    print.line("\nKill a node with `kill -9 PROCESS` and ask again: what happens is shown below. Ctrl-C ends everything.\n");
}
