//! What a started platform tells about itself.

use serde_json::json;

use super::nodes::Node;
use super::platform::{Platform, Ready};
use crate::args::DevArgs;
use crate::output::{Printer, table};

/// Prints where everything is and what can be tried.
pub fn all(args: &DevArgs, platform: &Platform, ready: &Ready, print: Printer) {
    if print.json {
        return print.line(as_json(platform, ready));
    }
    let rows = platform.nodes.iter().map(|n| {
        vec![
            n.id().to_owned(),
            n.api(),
            n.cluster(),
            n.relay().to_owned(),
            n.daemon.shown_pid(),
            log(&n.daemon),
        ]
    });
    let header = ["Node", "API", "Cluster port", "Relay port", "Process", "Log"];
    print.line(format!("\n{}", table(&header, rows)));
    if platform.spokes.len() > 0 {
        let rows = platform
            .spokes
            .iter()
            .map(|spoke| vec![spoke.daemon.id.clone(), spoke.daemon.shown_pid(), log(&spoke.daemon)]);
        print.line(format!("\n{}", table(&["Spoke", "Process", "Log"], rows)));
    }
    print.line(
        "\nThis is for trying things out, NOT FOR PRODUCTION: no TLS on the API, the key beside the data.",
    );
    let addresses: Vec<_> = platform.nodes.iter().map(Node::api).collect();
    print.line(format!("\n  export HOLDFAST_ADDR={}", addresses.join(",")));
    print.line(format!("  export HOLDFAST_TOKEN={}", ready.access.root_token()));
    print.line("  holdfast status");
    to_try(args, platform, ready, print);
    print.line("\nKill a process with `kill -9 PROCESS` and ask again: what happens is shown below. Ctrl-C ends everything.\n");
}

fn to_try(args: &DevArgs, platform: &Platform, ready: &Ready, print: Printer) {
    let Some(url) = &args.postgres else {
        return print.line("  holdfast kv put secret/hello who=world");
    };
    let ways = ready.logins.iter().map(|login| {
        let way = login.spoke.as_ref().map_or("directly".to_owned(), |name| format!("through {name}"));
        (format!("  holdfast read {}", login.path), way)
    });
    ways.for_each(|(command, way)| print.line(format!("{command:<40} # {way}")));
    // The part after the superuser's own login.
    let place = url.rsplit_once('@').map_or(url.as_str(), |(_, place)| place);
    print.line(format!("  psql postgresql://USERNAME:PASSWORD@{place}"));
    if platform.spokes.len() > 0 {
        print.line("  holdfast relay list");
    }
    if platform.nodes.len() > 2 {
        print.line(format!("  holdfast demo failover --platform {}", platform.home().display()));
    }
}

fn log(daemon: &super::process::Daemon) -> String {
    daemon.log().display().to_string()
}

fn as_json(platform: &Platform, ready: &Ready) -> String {
    let node = |n: &Node| {
        json!({"node": n.id(), "api": n.api(), "cluster": n.cluster(), "relay": n.relay(), "pid": n.daemon.pid(),
            "log": n.daemon.log()})
    };
    let spoke = |s: &super::spokes::Spoke| json!({"spoke": s.daemon.id, "pid": s.daemon.pid(), "log": s.daemon.log()});
    json!({
        "nodes": platform.nodes.iter().map(node).collect::<Vec<_>>(),
        "spokes": platform.spokes.iter().map(spoke).collect::<Vec<_>>(),
        "logins": ready.logins,
        "root_token": ready.access.root_token(),
        "data": platform.home(),
    })
    .to_string()
}
