//! Environment variables: `HOLDFAST__SERVER__HUB__NODE_ID` for any key, and the aliases a role names.

use super::node::{Node, Value};
use super::place::Place;
use super::problems::Problems;
use super::{Loader, ROLES};

const PREFIX: &str = "HOLDFAST__";

/// Lays the variables over `tree`. An alias is weaker than the same key spelt out.
pub(super) fn read_into(loader: &Loader, tree: &mut Node, problems: &mut Problems) {
    // The first alias that is set wins, so they are applied last to first.
    for (variable, key) in loader.aliases.iter().rev() {
        if let Some(text) = get(loader, variable, problems) {
            put(tree, &loader.full(key), variable, text, problems);
        }
    }
    let mut names: Vec<&str> = loader.environment.iter().filter_map(|(name, _)| name.to_str()).collect();
    names.sort_unstable();
    for name in names {
        let of_role = loader.variables.and_then(|prefix| name.strip_prefix(prefix));
        let Some(rest) = of_role.or_else(|| name.strip_prefix(PREFIX)) else { continue };
        let mut key = rest.split("__").map(str::to_ascii_lowercase).collect::<Vec<_>>().join(".");
        if of_role.is_some() {
            key = loader.full(&key);
        }
        let role = key.strip_prefix("server.").and_then(|k| k.split('.').next());
        if role.is_some_and(|role| role != loader.role && ROLES.contains(&role)) {
            continue;
        }
        if let Some(text) = get(loader, name, problems) {
            put(tree, &key, name, text, problems);
        }
    }
}

fn get(loader: &Loader, name: &str, problems: &mut Problems) -> Option<String> {
    let (_, value) = loader.environment.iter().find(|(n, _)| n == name)?;
    let text = value.to_str().map(str::to_owned);
    if text.is_none() {
        problems.push(
            &Place::whole(format!("environment {name}")),
            "",
            "is not UTF-8 text",
            "set it to text",
        );
    }
    text
}

fn put(tree: &mut Node, key: &str, variable: &str, text: String, problems: &mut Problems) {
    let source = format!("environment {variable}");
    let place = Place::whole(source.as_str());
    let leaf = Node::whole(source.as_str().into(), Value::Loose(text));
    if key.split('.').any(str::is_empty) {
        problems.push(&place, key, "is not a key", "put two underscores between its parts");
    } else if let Err(at) = tree.put(key, leaf) {
        problems.push(
            &place,
            key,
            format!("cannot be set: {at} holds a value or a table"),
            "remove one of the two",
        );
    }
}
