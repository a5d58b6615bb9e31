//! `config policy test`: what the policy says, without a server.

use std::process::ExitCode;

use holdfast_config::auth::Identity;
use holdfast_config::clock;
use holdfast_config::config::Verb;
use serde_json::json;

use super::check;
use crate::args::config::{ConfigPolicy, PolicyTestArgs, PolicyVerb};
use crate::cmd::Outcome;
use crate::output::Printer;

/// The policy says no.
const DENIED: u8 = 1;

pub fn run(print: Printer, command: &ConfigPolicy) -> Outcome {
    match command {
        ConfigPolicy::Test(args) => test(print, args),
    }
}

fn test(print: Printer, args: &PolicyTestArgs) -> Outcome {
    let policy = match check::load(print, &args.config) {
        Ok(configuration) => std::sync::Arc::clone(&configuration.policy),
        Err(code) => return Ok(code),
    };
    let verb = match args.verb {
        PolicyVerb::Read => Verb::Read,
        PolicyVerb::Watch => Verb::Watch,
        PolicyVerb::Status => Verb::Status,
        PolicyVerb::Metrics => Verb::Metrics,
    };
    if args.name.is_empty() && matches!(verb, Verb::Read | Verb::Watch) {
        return Err(anyhow::anyhow!("give the name that is to be read or watched").into());
    }
    let identity = Identity::supposed(&args.subject, &args.group);
    let decision = policy.decide(&identity, verb, args.name.as_bytes(), clock::wall());
    let words = policy.explain(decision);
    if print.json {
        print.value(&json!({"allow": decision.allow, "rule": decision.rule, "text": words}));
    } else {
        print.line(words);
    }
    Ok(ExitCode::from(if decision.allow { 0 } else { DENIED }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_decide_and_the_exit_code_tells() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("c.toml");
        let text = "auth.methods = ['none']\nallow_empty = true\nlistener = [{ kind = 'unix', path = 's' }]\n\
                    [[policy.rule]]\nsubjects = ['svc']\nnames = ['db-*']\n\
                    [[policy.rule]]\ngroups = ['ops']\nverbs = ['status']\n\
                    [[policy.rule]]\nsubjects = ['svc']\nnames = ['db-root']\neffect = 'deny'\n";
        std::fs::write(&path, text).unwrap();
        let code = |subject: &str, group: &str, verb, name: &str| {
            let args = PolicyTestArgs {
                config: path.clone(),
                subject: subject.to_owned(),
                group: vec![group.to_owned()],
                verb,
                name: name.to_owned(),
            };
            format!("{:?}", test(Printer { json: true }, &args).unwrap())
        };
        let codes = [0, 1].map(|code: u8| format!("{:?}", ExitCode::from(code)));
        for (subject, group, verb, name, expected) in [
            ("svc", "", PolicyVerb::Read, "db-a", 0),
            ("svc", "", PolicyVerb::Watch, "db-a", 0),
            ("svc", "", PolicyVerb::Read, "db-root", 1),
            ("other", "", PolicyVerb::Read, "db-a", 1),
            ("ann", "ops", PolicyVerb::Status, "", 0),
            ("ann", "ops", PolicyVerb::Metrics, "", 1),
        ] {
            assert_eq!(code(subject, group, verb, name), codes[expected], "{subject} {name}");
        }
    }
}
