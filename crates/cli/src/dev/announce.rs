//! What a started platform tells about itself.

use secrecy::ExposeSecret as _;
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
    print.line(format!("  {} status", program()));
    to_try(args, platform, ready, print);
    print.line("\nKill a process with `kill -9 PROCESS` and ask again: what happens is shown below. Ctrl-C ends everything.\n");
}

fn to_try(args: &DevArgs, platform: &Platform, ready: &Ready, print: Printer) {
    let program = program();
    let Some(url) = &args.postgres else {
        return print.line(format!("  {program} kv put secret/hello who=world"));
    };
    let ways = ready.logins.iter().map(|login| {
        let way = login.spoke.as_ref().map_or("directly".to_owned(), |name| format!("through {name}"));
        (format!("  {program} read {}", login.path), way)
    });
    let width = 31 + program.len();
    ways.for_each(|(command, way)| print.line(format!("{command:<width$} # {way}")));
    if let Some(place) = place(url.expose_secret()) {
        print.line(format!("  psql postgresql://USERNAME:PASSWORD@{place}"));
    }
    if platform.spokes.len() > 0 {
        print.line(format!("  {program} relay list"));
    }
    if platform.nodes.len() > 2 {
        print.line(format!("  {program} demo failover --platform {}", platform.home().display()));
    }
}

/// What a shell has to be told to run this program: its name where the search path leads to it, else its place.
fn program() -> String {
    const NAME: &str = "holdfast";
    let Some(own) = std::env::current_exe().ok().and_then(|path| path.canonicalize().ok()) else {
        return NAME.to_owned();
    };
    let path = std::env::var_os("PATH").unwrap_or_default();
    let first = std::env::split_paths(&path).map(|dir| dir.join(NAME)).find(|file| file.is_file());
    match first.and_then(|file| file.canonicalize().ok()) {
        Some(found) if found == own => NAME.to_owned(),
        _ => own.display().to_string(),
    }
}

/// Host, port and database of a URL, and nothing else that may stand in it; none when it is of another form.
fn place(url: &str) -> Option<String> {
    let url: http::Uri = url.parse().ok()?;
    url.scheme_str().filter(|scheme| matches!(*scheme, "postgres" | "postgresql"))?;
    let host = url.host().filter(|host| !host.is_empty())?;
    let port = url.port_u16().map(|port| format!(":{port}")).unwrap_or_default();
    // A password with a slash in it reads as a port and a path.
    let path = Some(url.path()).filter(|path| !path.contains('@'))?;
    Some(format!("{host}{port}{path}"))
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

#[cfg(test)]
mod tests {
    use super::place;

    #[test]
    fn no_part_of_a_url_is_shown_that_may_hold_a_password() {
        for (url, shown) in [
            ("postgresql://u:pw@127.0.0.1:5432/postgres", Some("127.0.0.1:5432/postgres")),
            ("postgres://u@db/x?sslmode=disable", Some("db/x")),
            ("postgresql://db:1/x?user=u&password=pw", Some("db:1/x")),
            ("postgresql://[::1]:5/x#pw", Some("[::1]:5/x")),
            ("postgres://u:p@w@db/x", Some("db/x")),
            ("postgres://u:5/w@db/x", None),
            ("postgresql:///x?host=/run&password=pw", None),
            ("host=db user=u password=pw", None),
            ("u:pw@db/x", None),
        ] {
            assert_eq!(place(url).as_deref(), shown, "{url}");
        }
    }
}
