//! Which server a command talks to, and as whom.

use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use holdfast_client::Client;
use secrecy::{ExposeSecret, SecretString};

use crate::args::Global;
use crate::output::Failure;

const PREFIXES: [&str; 3] = ["HOLDFAST", "BAO", "VAULT"];
const TOKEN_FILES: [&str; 2] = [".holdfast-token", ".vault-token"];
const DEFAULT_ADDRESS: &str = "http://127.0.0.1:8200";

/// The first of the three variables that is set and not empty.
pub fn variable(name: &str) -> Option<String> {
    PREFIXES
        .iter()
        .filter_map(|prefix| std::env::var(format!("{prefix}_{name}")).ok())
        .find(|value| !value.is_empty())
}

/// The address that a command talks to.
pub fn address(global: &Global) -> String {
    global.address.clone().or_else(|| variable("ADDR")).unwrap_or_else(|| DEFAULT_ADDRESS.to_owned())
}

/// A client with the session's token.
pub fn client(global: &Global) -> Result<Client, Failure> {
    let token = match &global.token_file {
        Some(file) => Some(token_in(file)?),
        None => token(),
    };
    with_token(global, token)
}

/// A client with a given token.
pub fn with_token(global: &Global, token: Option<SecretString>) -> Result<Client, Failure> {
    let skip = variable("SKIP_VERIFY").is_some_and(|v| matches!(v.as_str(), "1" | "true" | "TRUE" | "True"));
    let client = Client::builder()
        .addresses([address(global)])
        .token(token)
        .ca_cert(global.ca_cert.clone().or_else(|| variable("CACERT").map(PathBuf::from)))
        .client_cert(client_cert(global)?)
        .skip_verify(global.tls_skip_verify || skip)
        .wrap_ttl(global.wrap_ttl.clone().or_else(|| variable("WRAP_TTL")))
        .build()?;
    Ok(client)
}

/// The certificate to present and its key: both or none.
fn client_cert(global: &Global) -> Result<Option<(PathBuf, PathBuf)>, Failure> {
    let file = |flag: &Option<PathBuf>, name| flag.clone().or_else(|| variable(name).map(PathBuf::from));
    match (file(&global.client_cert, "CLIENT_CERT"), file(&global.client_key, "CLIENT_KEY")) {
        (Some(cert), Some(key)) => Ok(Some((cert, key))),
        (None, None) => Ok(None),
        _ => Err(anyhow::anyhow!("a client certificate needs both its file and the file of its key").into()),
    }
}

/// The token in a file that was named.
pub fn token_in(file: &Path) -> Result<SecretString, Failure> {
    let text = std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    match text.trim() {
        "" => Err(anyhow::anyhow!("{} holds no token", file.display()).into()),
        text => Ok(SecretString::from(text.to_owned())),
    }
}

/// The session's token: from the environment, else from the files in the home directory.
pub fn token() -> Option<SecretString> {
    variable("TOKEN").map(SecretString::from).or_else(|| {
        let home = home()?;
        TOKEN_FILES.iter().find_map(|file| {
            let text = std::fs::read_to_string(home.join(file)).ok()?;
            let text = text.trim();
            (!text.is_empty()).then(|| SecretString::from(text.to_owned()))
        })
    })
}

/// Keeps a token for later commands, readable by its owner only.
pub fn keep_token(token: &SecretString) -> Result<PathBuf, Failure> {
    let home = home()
        .ok_or_else(|| anyhow::anyhow!("there is no home directory to keep the token in; use --no-store"))?;
    let path = home.join(".holdfast-token");
    let partial = home.join(".holdfast-token.partial");
    let _ = std::fs::remove_file(&partial);
    let mut file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&partial)?;
    file.write_all(token.expose_secret().as_bytes())?;
    file.sync_all()?;
    std::fs::rename(&partial, &path)?;
    Ok(path)
}

fn home() -> Option<PathBuf> {
    std::env::var_os("HOME").filter(|home| !home.is_empty()).map(PathBuf::from)
}
