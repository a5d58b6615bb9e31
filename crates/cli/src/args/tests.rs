//! What holds for every command: it is explained with an example that works, and prints JSON on request.

use clap::{Command, CommandFactory, Parser as _};

use super::*;

/// Every command that does something, with the words that lead to it.
fn leaves(command: &Command, words: &[String], found: &mut Vec<(Vec<String>, Command)>) {
    let subs: Vec<_> = command.get_subcommands().filter(|sub| sub.get_name() != "help").collect();
    if subs.is_empty() {
        found.push((words.to_vec(), command.clone()));
    }
    for sub in subs {
        leaves(sub, &[words, &[sub.get_name().to_owned()]].concat(), found);
    }
}

fn every_command() -> Vec<(Vec<String>, Command)> {
    let mut whole = Cli::command();
    whole.build();
    let mut found = Vec::new();
    leaves(&whole, &[], &mut found);
    found
}

/// The words of a shell's line from our program's name on, up to a pipe or another file; none when it is not there.
fn words(line: &str) -> Vec<OsString> {
    let mut words = vec![String::new()];
    let mut quote = None;
    for c in line.trim().chars() {
        match (c, quote) {
            ('"' | '\'', None) => quote = Some(c),
            (c, Some(open)) if c == open => quote = None,
            (' ', None) => words.push(String::new()),
            (c, _) => words.last_mut().unwrap().push(c),
        }
    }
    let ours = words.into_iter().skip_while(|word| word != "holdfast");
    ours.take_while(|word| !["|", "<", ">"].contains(&word.as_str())).map(OsString::from).collect()
}

/// The examples of a command's help, as arguments.
fn examples(command: &Command) -> Vec<Vec<OsString>> {
    let text = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    text.lines().map(words).filter(|words| !words.is_empty()).collect()
}

/// The words that lead to the command of these arguments.
fn path_of(args: &[OsString]) -> Vec<String> {
    let matched = Cli::command().try_get_matches_from(normalise(args.iter().cloned()));
    let mut here = &matched.unwrap_or_else(|error| panic!("{args:?}: {error}"));
    let mut path = Vec::new();
    while let Some((name, below)) = here.subcommand() {
        path.push(name.to_owned());
        here = below;
    }
    path
}

#[test]
fn the_definition_is_sound() {
    Cli::command().debug_assert();
}

#[test]
fn every_command_explains_itself_with_an_example_that_works() {
    let all = every_command();
    assert!(all.len() > 50, "{}", all.len());
    for (path, command) in all {
        let about = command.get_about().map(ToString::to_string).unwrap_or_default();
        assert!(about.len() > 5, "{path:?} has no explanation");
        let help = command.clone().render_long_help().to_string();
        assert!(help.contains("Example"), "{path:?} has no example");
        let led: Vec<_> = examples(&command).iter().map(|example| path_of(example)).collect();
        assert!(led.contains(&path), "{path:?} has examples of {led:?}");
    }
}

#[test]
fn every_command_takes_the_flag_for_json() {
    for (path, command) in every_command() {
        let mut examples = examples(&command).into_iter();
        let example = examples.find(|example| path_of(example) == path).unwrap();
        for flag in ["-json", "--json"] {
            let args = example.iter().filter(|arg| !arg.to_str().unwrap().contains("json")).cloned();
            let parsed = Cli::try_parse_from(normalise(args.chain([flag.into()])));
            let parsed = parsed.unwrap_or_else(|error| panic!("{path:?} {flag}: {error}"));
            assert!(parsed.global.json, "{path:?} {flag}");
        }
    }
}

#[test]
fn long_flags_may_have_one_dash() {
    let args = ["holdfast", "-field=x", "--json", "-", "-f", "-1", "--", "-x=y"].map(OsString::from);
    let expected = ["holdfast", "--field=x", "--json", "-", "-f", "-1", "--", "-x=y"].map(OsString::from);
    assert_eq!(normalise(args), expected);
}

#[test]
fn no_secret_of_a_command_line_is_shown_by_debug() {
    for line in [
        "relay join --spoke-name s --token geheim",
        "dev --root-token geheim",
        "dev --postgres postgresql://u:geheim@h/d",
        "demo failover --postgres postgresql://u:geheim@h/d",
    ] {
        let parsed = Cli::try_parse_from(["holdfast"].into_iter().chain(line.split(' '))).unwrap();
        assert!(!format!("{parsed:?}").contains("geheim"), "{line}");
    }
}
