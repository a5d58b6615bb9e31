//! `config check`: everything that is wrong with a configuration, and what it asks of its upstreams.

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use holdfast_config::load::explain::{self, Drain, Load};
use holdfast_config::load::{self, Configuration, Overrides, Problem, Problems, Severity};
use holdfast_ops::config::Place;
use serde_json::{Value, json};

use super::online;
use crate::args::config::CheckArgs;
use crate::cmd::Outcome;
use crate::output::{Printer, table};

/// An upstream did not give what a binding needs.
const NOT_THERE: u8 = 1;

pub async fn run(print: Printer, args: &CheckArgs) -> Outcome {
    let configuration = match load(print, &args.config) {
        Ok(configuration) => configuration,
        Err(code) => return Ok(code),
    };
    let attempted = if args.online { Some(online::attempt(&configuration).await?) } else { None };
    let loads = explain::load(&configuration);
    let grace = configuration.settings.drain_grace.get();
    let drain = Drain { grace, probe: args.probe, threshold: args.threshold };
    let explained = args.explain_load.then_some((&loads[..], &drain));
    if print.json {
        let mut answer = good(&configuration, explained, args.replicas);
        if let (Some(attempted), Some(members)) = (&attempted, answer.as_object_mut()) {
            members.insert("online".to_owned(), online::json(attempted));
        }
        print.value(&answer);
    } else {
        configuration.warnings.iter().for_each(|warning| print.note(warning.to_string()));
        let objects: usize = loads.iter().map(|load| load.objects).sum();
        print.line(format!(
            "{} is good: {} bindings of {objects} objects, digest {}",
            args.config.display(),
            configuration.bindings.len(),
            configuration.digest.whole
        ));
        if let Some(attempted) = &attempted {
            print.line(format!("\n{}", online::rows(attempted)));
        }
        if args.explain_load {
            print.line(format!("\n{}\n\n{}", load_table(&loads, args.replicas), drain.advice()));
        }
    }
    let there = attempted.is_none_or(|attempted| online::all_there(&attempted));
    Ok(if there { ExitCode::SUCCESS } else { ExitCode::from(NOT_THERE) })
}

/// Loads a configuration as the start of a server does; its problems are printed, and the exit code is the error.
pub fn load(print: Printer, path: &Path) -> Result<Arc<Configuration>, ExitCode> {
    let loaded = load::load(path, &Overrides::default()).and_then(|configuration| {
        // A reload would take a file without entries; a start does not.
        let mut problems = Problems::default();
        for empty in configuration.authenticator.empty() {
            let text = format!("{}: {}", empty.key, empty.problem().what);
            problems.error(Place::whole(path.display().to_string()), text);
        }
        if problems.has_errors() { Err(problems) } else { Ok(configuration) }
    });
    loaded.map_err(|problems| {
        if print.json {
            let problems: Vec<_> = problems.iter().map(problem).collect();
            print.value(&json!({"good": false, "problems": problems}));
        } else {
            print.note(problems.to_string());
        }
        ExitCode::from(problems.exit_code())
    })
}

fn problem(problem: &Problem) -> Value {
    let severity = match problem.severity {
        Severity::Error => "error",
        Severity::Warning => "warning",
    };
    let at = problem.place.at;
    json!({
        "source": problem.place.source,
        "line": at.map(|at| at.line),
        "column": at.map(|at| at.column),
        "severity": severity,
        "text": problem.text,
    })
}

fn good(configuration: &Configuration, explained: Option<(&[Load], &Drain)>, replicas: u32) -> Value {
    let mut answer = json!({
        "good": true,
        "problems": configuration.warnings.iter().map(problem).collect::<Vec<_>>(),
        "bindings": configuration.bindings.len(),
        "digest": configuration.digest.whole.to_string(),
        "bindings_digest": configuration.digest.bindings.to_string(),
        "policy_digest": configuration.digest.policy.to_string(),
    });
    if let (Some((loads, drain)), Some(members)) = (explained, answer.as_object_mut()) {
        let load = |load: &Load| {
            json!({
                "upstream": *load.upstream,
                "type": load.kind.name(),
                "bindings": load.bindings,
                "objects": load.objects,
                "calls_per_minute": load.per_minute,
                "calls_per_minute_all": load.per_minute * f64::from(replicas),
            })
        };
        members.insert("replicas".to_owned(), json!(replicas));
        members.insert("load".to_owned(), loads.iter().map(load).collect());
        members.insert("drain".to_owned(), json!({"enough": drain.is_enough(), "advice": drain.advice()}));
    }
    answer
}

fn load_table(loads: &[Load], replicas: u32) -> String {
    let all = format!("CALLS/MIN x{replicas}");
    let header = ["UPSTREAM", "TYPE", "BINDINGS", "OBJECTS", "CALLS/MIN", all.as_str()];
    let rows = loads.iter().map(|load| {
        vec![
            load.upstream.to_string(),
            load.kind.name().to_owned(),
            load.bindings.to_string(),
            load.objects.to_string(),
            number(load.per_minute),
            number(load.per_minute * f64::from(replicas)),
        ]
    });
    table(&header, rows)
}

/// With one digit of a fraction where it has one.
fn number(value: f64) -> String {
    let text = format!("{value:.1}");
    text.strip_suffix(".0").unwrap_or(&text).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn configuration(text: &str) -> (tempfile::TempDir, std::path::PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("c.toml");
        std::fs::write(&path, text).unwrap();
        (dir, path)
    }

    const GOOD: &str = "auth.methods = ['none']\npolicy.allow_all = true\nlistener = [{ kind = 'unix', path = 's' }]\n\
                        upstream.api = { type = 'http', base_url = 'https://h' }\n[bindings]\n\
                        a = { ref = 'https://api/x#a', poll = '7s' }\nb = 'https://api/x#b'\n";

    #[test]
    fn a_good_one_is_told_with_its_load() {
        let (_dir, path) = configuration(GOOD);
        let configuration = load(Printer { json: false }, &path).unwrap();
        let loads = explain::load(&configuration);
        let expected = "UPSTREAM    TYPE    BINDINGS    OBJECTS    CALLS/MIN    CALLS/MIN x3\n\
                        --------    ----    --------    -------    ---------    ------------\n\
                        api         http    2           1          8.6          25.7";
        assert_eq!(load_table(&loads, 3), expected);
        let drain = Drain {
            grace: std::time::Duration::ZERO,
            probe: std::time::Duration::from_secs(1),
            threshold: 2,
        };
        let answer = good(&configuration, Some((&loads, &drain)), 3);
        assert_eq!(
            (&answer["good"], &answer["bindings"], &answer["load"][0]["objects"]),
            (&json!(true), &json!(2), &json!(1))
        );
        assert_eq!(answer["drain"]["enough"], json!(false));
        assert_eq!(answer["digest"].as_str().unwrap().len(), 64);
    }

    #[test]
    fn a_bad_one_ends_with_the_code_of_a_wrong_configuration() {
        let (_dir, path) = configuration(&GOOD.replace("http'", "htpt'"));
        let code = load(Printer { json: true }, &path).unwrap_err();
        assert_eq!(format!("{code:?}"), format!("{:?}", ExitCode::from(64)));
        let problems = load::load(&path, &Overrides::default()).unwrap_err();
        let first = problem(problems.iter().next().unwrap());
        assert_eq!(
            (&first["line"], &first["column"], &first["severity"]),
            (&json!(4), &json!(25), &json!("error"))
        );
    }

    #[tokio::test]
    async fn what_an_upstream_does_not_give_is_told_by_the_code() {
        // As `main` does it.
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let text = GOOD.replace("[bindings]", "upstream.disk = { type = 'file', roots = ['.'] }\n[bindings]\nf = 'file://f#x'\ns = 'static:hello'");
        let (dir, path) = configuration(&text.replace("a = {", "#").replace("b = 'https", "#"));
        let code = async || {
            let args = CheckArgs {
                config: path.clone(),
                online: true,
                explain_load: true,
                replicas: 3,
                probe: std::time::Duration::from_secs(5),
                threshold: 2,
            };
            format!("{:?}", run(Printer { json: true }, &args).await.unwrap())
        };
        let codes = [0, 1].map(|code: u8| format!("{:?}", ExitCode::from(code)));
        assert_eq!(code().await, codes[1]);
        std::fs::write(dir.path().join("f"), "{\"x\": 1}").unwrap();
        assert_eq!(code().await, codes[0]);
        let attempted = online::attempt(&load(Printer { json: false }, &path).unwrap()).await.unwrap();
        let expected = "OBJECT               RESULT    BYTES    BINDINGS\n\
                        ------               ------    -----    --------\n\
                        file://f?via=disk    value     8        f\nstatic:hello         value     5        s";
        assert_eq!(online::rows(&attempted), expected);
    }

    #[test]
    fn a_token_file_without_entries_fails_the_check() {
        let (dir, path) = configuration(&GOOD.replace("['none']", "['token']\nauth.token.file = 't.toml'"));
        std::fs::write(dir.path().join("t.toml"), "").unwrap();
        assert!(load(Printer { json: true }, &path).is_err());
    }
}
