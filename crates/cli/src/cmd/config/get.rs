//! `config get`: values by name.

use std::io::Write as _;
use std::process::ExitCode;

use anyhow::anyhow;
use holdfast_client::config::{Answer, Client, Error};
use serde_json::{Value as Json, json};

use super::super::Outcome;
use super::replicas::{self, code, worse};
use super::show::{self, Show};
use super::{ABSENT, USAGE};
use crate::args::Global;
use crate::args::config::GetArgs;
use crate::output::{Failure, Printer};

/// Runs the command.
pub async fn run(global: &Global, print: Printer, args: &GetArgs) -> Outcome {
    let client = replicas::client(global, &args.replicas)?;
    if args.raw {
        return raw(&client, &args.names).await;
    }
    let answers = client.get_many(args.names.iter().map(String::as_str)).await;
    let show = Show::new(args.show);
    let now = show::now();
    let mut worst = 0;
    let (mut rows, mut entries) = (Vec::new(), Vec::new());
    for (name, answer) in args.names.iter().zip(answers) {
        let (answer_code, error) = judged(name, &answer);
        worst = worse(worst, answer_code);
        match answer {
            Ok(Some(value)) => {
                entries.push(show.json(&value));
                let version = value.version.clone().unwrap_or_else(|| "-".to_owned());
                let cells = [show.text(&value), version, show::age(&value, now), show::stale(&value)];
                rows.push([name.clone()].into_iter().chain(cells).collect());
            }
            _ if print.json => entries.extend(error),
            answer => print.note(format!("{name}: {}", reason(&answer))),
        }
    }
    if print.json || !rows.is_empty() {
        print.rows(&Json::Array(entries), &["NAME", "VALUE", "VERSION", "AGE", "STALE"], rows);
    }
    Ok(ExitCode::from(worst))
}

/// The exit code of an answer, and its error as JSON.
fn judged(name: &str, answer: &Answer) -> (u8, Option<Json>) {
    let error = |kind: &str, message: String| {
        Some(json!({ "name": name, "error": { "kind": kind, "message": message } }))
    };
    match answer {
        Ok(Some(_)) => (0, None),
        Ok(None) => (ABSENT, error("not_found", reason(answer))),
        Err(why) => (code(why), error(why.answer_kind().label(), why.to_string())),
    }
}

fn reason(answer: &Answer) -> String {
    match answer {
        Err(error) => error.to_string(),
        Ok(_) => "there is no such value".to_owned(),
    }
}

async fn raw(client: &Client, names: &[String]) -> Outcome {
    let [name] = names else {
        return Err(Failure::from(anyhow!("--raw takes exactly one name")).coded(USAGE));
    };
    let value = client.get(name).await.map_err(|error: Error| {
        let code = code(&error);
        Failure::from(anyhow!("{name}: {error}")).coded(code)
    })?;
    let mut out = std::io::stdout().lock();
    out.write_all(value.bytes.expose())?;
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use holdfast_core::AnswerKind;

    use super::*;

    fn refused(kind: AnswerKind) -> Answer {
        Err(Error::Refused { endpoint: "e".into(), kind, message: "m".into(), retry_after: None })
    }

    #[test]
    fn a_script_can_tell_absent_from_refused_and_from_an_outage() {
        let gone = Err(Error::Unreachable { endpoint: "e".into(), reason: "connection refused".into() });
        for (answer, expected) in [
            (Ok(None), 1),
            (refused(AnswerKind::NotFound), 1),
            (refused(AnswerKind::PermissionDenied), 77),
            (refused(AnswerKind::Unauthenticated), 77),
            (refused(AnswerKind::Unavailable), 69),
            (refused(AnswerKind::RateLimited), 69),
            (gone, 69),
        ] {
            assert_eq!(judged("a", &answer).0, expected, "{answer:?}");
        }
    }

    #[test]
    fn an_error_is_json_with_its_kind() {
        let (_, error) = judged("a", &Ok(None));
        let expected =
            json!({ "name": "a", "error": { "kind": "not_found", "message": "there is no such value" } });
        assert_eq!(error, Some(expected));
        let (_, error) = judged("a", &refused(AnswerKind::PermissionDenied));
        assert_eq!(
            error.unwrap()["error"],
            json!({ "kind": "permission_denied", "message": "e: permission_denied: m" })
        );
    }
}
