//! Which config servers a command talks to, as whom, and what their errors mean to a script.

use std::path::PathBuf;

use anyhow::{Context as _, anyhow};
use holdfast_client::config::{Client, Config, Error, Tls};
use holdfast_core::AnswerKind;

use super::{ABSENT, REFUSED, UNREACHABLE, USAGE};
use crate::args::Global;
use crate::args::config::Replicas;
use crate::output::Failure;
use crate::session;

/// The variable that names the file with the token.
const TOKEN_FILE: &str = "HOLDFAST_CONFIG_TOKEN_FILE";

/// A client of these replicas. Nothing is sent.
pub fn client(global: &Global, replicas: &Replicas) -> Result<Client, Failure> {
    if replicas.endpoints.is_empty() {
        let hint = "no endpoint: give --endpoint, or set HOLDFAST_CONFIG_ENDPOINTS";
        return Err(Failure::from(anyhow!(hint)).coded(USAGE));
    }
    let variable = || std::env::var_os(TOKEN_FILE).filter(|file| !file.is_empty()).map(PathBuf::from);
    let file = global.token_file.clone().or_else(variable);
    let token = file.as_deref().map(session::token_in).transpose();
    let config = Config {
        endpoints: replicas.endpoints.clone(),
        token: token.map_err(|failure| failure.coded(USAGE))?,
        tls: Tls {
            ca_file: replicas.ca.clone(),
            cert_file: replicas.cert.clone(),
            key_file: replicas.key.clone(),
        },
        insecure_no_tls: replicas.insecure_no_tls,
        total_timeout: replicas.timeout,
        ..Config::default()
    };
    Client::new(config).context("no client").map_err(|error| Failure::from(error).coded(USAGE))
}

/// The exit code that tells a script of an error.
pub const fn code(error: &Error) -> u8 {
    match error.answer_kind() {
        AnswerKind::NotFound => ABSENT,
        AnswerKind::PermissionDenied | AnswerKind::Unauthenticated => REFUSED,
        _ => UNREACHABLE,
    }
}

/// Of two exit codes the one that says more: a refusal before an outage before what is merely absent.
pub fn worse(a: u8, b: u8) -> u8 {
    a.max(b)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_says_more_than_an_outage_and_that_more_than_an_absence() {
        assert_eq!([worse(0, ABSENT), worse(ABSENT, UNREACHABLE), worse(REFUSED, UNREACHABLE)], [1, 69, 77]);
    }
}
