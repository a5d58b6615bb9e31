//! `config token new`: a token for its bearer, and an entry with its hash for the token file.

use std::process::ExitCode;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use holdfast_config::digest::Digest;
use holdfast_config::{clock, date};
use holdfast_core::Wall;
use serde_json::json;

use crate::args::config::{ConfigToken, TokenNewArgs};
use crate::cmd::Outcome;
use crate::output::Printer;

/// What every token of a config server begins with, so that scanners of sources find lost ones.
const PREFIX: &str = "hfc_";

pub fn run(print: Printer, command: &ConfigToken) -> Outcome {
    match command {
        ConfigToken::New(args) => new(print, args),
    }
}

fn new(print: Printer, args: &TokenNewArgs) -> Outcome {
    if args.subject.trim().is_empty() {
        return Err(anyhow::anyhow!("--subject is empty").into());
    }
    let token = format!("{PREFIX}{}", URL_SAFE_NO_PAD.encode(holdfast_ops::rand::bytes::<32>()));
    let entry = Entry::new(args, &token, clock::wall());
    if print.json {
        print.value(&json!({
            "token": token,
            "id": entry.id,
            "sha256": entry.sha256,
            "subject": args.subject,
            "groups": args.group,
            "expires": entry.expires,
            "stanza": entry.stanza(args),
        }));
    } else {
        print.line(&token);
        print.note("\nIt is shown this once. Add this to the token file:\n");
        print.line(entry.stanza(args));
    }
    Ok(ExitCode::SUCCESS)
}

struct Entry {
    id: String,
    sha256: String,
    expires: Option<String>,
}

impl Entry {
    fn new(args: &TokenNewArgs, token: &str, now: Wall) -> Self {
        let whole_second = |ttl: Duration| {
            let ends = now.after(ttl).as_micros();
            Wall::from_micros(ends - ends.rem_euclid(1_000_000))
        };
        Self {
            id: format!("{}-{}", args.subject, holdfast_ops::rand::hex(4)),
            sha256: Digest::of(token.as_bytes()).to_string(),
            expires: args.ttl.map(|ttl| date::show(whole_second(ttl))),
        }
    }

    fn stanza(&self, args: &TokenNewArgs) -> String {
        let text = |text: &str| toml::Value::String(text.to_owned()).to_string();
        let mut lines = vec![
            "[[token]]".to_owned(),
            format!("id = {}", text(&self.id)),
            format!("sha256 = {}", text(&self.sha256)),
            format!("subject = {}", text(&args.subject)),
        ];
        if !args.group.is_empty() {
            let groups: Vec<_> = args.group.iter().map(|group| text(group)).collect();
            lines.push(format!("groups = [{}]", groups.join(", ")));
        }
        if let Some(expires) = &self.expires {
            lines.push(format!("expires = {}", text(expires)));
        }
        lines.join("\n")
    }
}

#[cfg(test)]
mod tests {
    use holdfast_config::auth::{Authenticator, PeerFacts, RequestFacts};
    use holdfast_config::config::{AuthSettings, TokenSettings};
    use http::header::{AUTHORIZATION, HeaderMap, HeaderValue};

    use super::*;

    #[test]
    fn the_bearer_of_a_token_is_who_its_entry_says_until_it_ends() {
        let args = TokenNewArgs {
            subject: "svc \"x\"".into(),
            group: vec!["a".into(), "b".into()],
            ttl: Some(Duration::from_secs(90 * 86_400)),
        };
        let now = Wall::from_micros(1_700_000_000_500_000);
        let entry = Entry::new(&args, "hfc_abc", now);
        assert_eq!(entry.expires.as_deref(), Some("2024-02-12T22:13:20Z"));
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("tokens.toml");
        std::fs::write(&file, entry.stanza(&args)).unwrap();
        let settings = AuthSettings {
            methods: vec!["token".into()],
            token: Some(TokenSettings { file }),
            ..AuthSettings::default()
        };
        let authenticator = Authenticator::new(Some(&settings), &[]).unwrap();
        let mut headers = HeaderMap::new();
        headers.insert(AUTHORIZATION, HeaderValue::from_static("Bearer hfc_abc"));
        let facts = RequestFacts { headers: &headers, peer: &PeerFacts::default() };
        let identity = authenticator.authenticate(&facts, now).unwrap();
        assert_eq!(&*identity.subject, "svc \"x\"");
        assert_eq!(identity.groups.iter().map(|group| &**group).collect::<Vec<_>>(), ["a", "b"]);
        let later = now.after(Duration::from_secs(91 * 86_400));
        assert!(authenticator.authenticate(&facts, later).is_err());
    }

    #[test]
    fn an_entry_without_groups_and_end_has_neither() {
        let args = TokenNewArgs { subject: "s".into(), group: Vec::new(), ttl: None };
        let stanza = Entry::new(&args, "t", Wall::default()).stanza(&args);
        let keys: Vec<_> = stanza.lines().map(|line| line.split(' ').next().unwrap()).collect();
        assert_eq!(keys, ["[[token]]", "id", "sha256", "subject"]);
    }
}
