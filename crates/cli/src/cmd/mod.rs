//! One file a group of commands; here only the choice between them.

mod config;
mod kv;
mod leases;
mod login;
mod mounts;
mod operator;
mod paths;
mod policies;
mod relay;
mod shell;
mod status;
mod tokens;

use std::process::ExitCode;

use holdfast_client::Client;

use crate::args::relay::Relay;
use crate::args::{Cli, Command, Global};
use crate::output::{Failure, Printer};
use crate::{hints, session};

type Outcome = Result<ExitCode, Failure>;

/// What every client command needs.
struct Session {
    global: Global,
    client: Client,
    print: Printer,
}

/// Runs the command.
pub fn run(cli: Cli) -> Outcome {
    match cli.command {
        Command::Dev(args) => crate::dev::run(args, Printer { json: cli.global.json }),
        Command::Demo(demo) => crate::demo::run(demo, Printer { json: cli.global.json }),
        Command::Server(args) => crate::server::run(&args),
        Command::Config(command) => config::run(&cli.global, command),
        Command::Relay(Relay::Run(args)) => crate::spoke::run(&args),
        Command::Relay(Relay::Renew(args)) => crate::spoke::renew(&args, Printer { json: cli.global.json }),
        Command::Completions { shell } => shell::completions(shell),
        Command::Man { dir } => shell::man_pages(&dir),
        command => talk(cli.global, command),
    }
}

/// Commands that talk to a server.
fn talk(global: Global, command: Command) -> Outcome {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let print = Printer { json: global.json };
    let session = Session { client: session::client(&global)?, print, global };
    // Of these the token is an argument.
    let own = matches!(command, Command::Login(_) | Command::Unwrap(_));
    runtime.block_on(dispatch(&session, command)).map_err(|failure| {
        let anonymous = !own && session.global.token_file.is_none() && session::token().is_none();
        if anonymous && failure.status() == Some(403) { failure.hinted(hints::NO_TOKEN) } else { failure }
    })
}

async fn dispatch(session: &Session, command: Command) -> Outcome {
    match command {
        Command::Operator(command) => operator::run(session, command).await,
        Command::Status => status::run(session).await,
        Command::Login(args) => login::run(session, args).await,
        Command::Read(args) => paths::read(session, args).await,
        Command::Write(args) => paths::write(session, args).await,
        Command::Patch(args) => paths::patch(session, args).await,
        Command::List(args) => paths::list(session, args).await,
        Command::Delete(args) => paths::delete(session, args).await,
        Command::Kv(command) => kv::run(session, command).await,
        Command::Lease(command) => leases::run(session, command).await,
        Command::Policy(command) => policies::run(session, command).await,
        Command::Secrets(command) => mounts::run(session, mounts::Class::Secrets, command).await,
        Command::Auth(command) => mounts::run(session, mounts::Class::Auth, command).await,
        Command::Audit(command) => mounts::audit(session, command).await,
        Command::Token(command) => tokens::run(session, command).await,
        Command::Relay(command) => relay::run(session, command).await,
        Command::Unwrap(args) => tokens::unwrap(session, args).await,
        Command::Server(_)
        | Command::Config(_)
        | Command::Dev(_)
        | Command::Demo(_)
        | Command::Completions { .. }
        | Command::Man { .. } => Ok(ExitCode::SUCCESS),
    }
}
