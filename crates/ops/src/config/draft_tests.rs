//! A role with files of its own: keys at the top, places, and what is set twice.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::*;

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Role {
    name: String,
    more: Vec<String>,
    inner: Inner,
    things: BTreeMap<String, String>,
    list: Vec<Inner>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Inner {
    size: u32,
    flag: bool,
}

fn loader(dir: &Path, environment: &[(&str, &str)]) -> Loader {
    Loader::new("config")
        .environment(environment.iter().copied())
        .own_files("HOLDFAST_CONFIG__", "things")
        .path(dir)
}

fn files(files: &[(&str, &str)]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    files.iter().for_each(|(name, text)| std::fs::write(dir.path().join(name), text).unwrap());
    dir
}

/// The place of a key of the file `name`.
fn at(dir: &tempfile::TempDir, name: &str, line: usize, column: usize) -> Place {
    Place { source: dir.path().join(name).display().to_string(), at: Some(Position { line, column }) }
}

#[test]
fn keys_stand_at_the_top_or_below_the_role_and_variables_beat_both() {
    let dir = files(&[(
        "a.toml",
        "name = 'top'\nthings.'a.b/c' = 'x'\n[server.config.inner]\nsize = 3\n[server.hub]\nnode_id = 'of others'\n",
    )]);
    let environment = [
        ("HOLDFAST_CONFIG__INNER__FLAG", "true"),
        ("HOLDFAST_CONFIG__MORE", "a, b"),
        ("HOLDFAST_CONFIG_ENDPOINTS", "x"),
    ];
    let draft = loader(dir.path(), &environment).flag("name=flag").read();
    let (role, tree, problems) = draft.parse::<Role>();
    let role = role.unwrap();
    assert!(problems.is_empty(), "{problems}");
    assert_eq!((role.name.as_str(), role.inner.size, role.inner.flag), ("flag", 3, true));
    assert_eq!(role.more, ["a", "b"]);
    assert_eq!(role.things["a.b/c"], "x", "a name with dots stays whole");
    assert_eq!(tree.key_place(&["things", "a.b/c"]), Some(at(&dir, "a.toml", 2, 8)));
    assert_eq!(tree.place(&["things", "a.b/c"]), Some(at(&dir, "a.toml", 2, 18)));
    assert_eq!(
        tree.place(&["inner", "flag"]),
        Some(Place::whole("environment HOLDFAST_CONFIG__INNER__FLAG"))
    );
    assert_eq!(tree.place(&["inner", "none"]), None);
}

#[test]
fn only_toml_of_a_directory_counts_and_a_key_set_twice_is_told_with_both_places() {
    let dir = files(&[
        ("a.toml", "name = 'a'\n[inner]\nsize = 1\n[things]\nx = '1'\ny = '2'\n"),
        ("b.toml", "more = ['z']\n\ninner.flag = true\ninner.size = 2\nthings.y = '3'\n"),
        ("c.yaml", "name: ignored"),
    ]);
    let (role, tree, problems) = loader(dir.path(), &[]).read().parse::<Role>();
    assert!(problems.is_empty(), "{problems}");
    let role = role.unwrap();
    assert_eq!(
        (role.inner.size, role.inner.flag, role.things["y"].as_str()),
        (1, true, "2"),
        "the first holds"
    );
    let twice: Vec<_> =
        tree.twice().iter().map(|t| (t.path.join("|"), t.first.clone(), t.second.clone())).collect();
    let (a, b) =
        (|line, column| at(&dir, "a.toml", line, column), |line, column| at(&dir, "b.toml", line, column));
    assert_eq!(
        twice,
        [("inner|size".to_owned(), a(3, 1), b(4, 7)), ("things|y".to_owned(), a(6, 1), b(5, 8))]
    );
    assert_eq!(tree.files().len(), 2);
}

#[test]
fn a_key_that_one_file_sets_twice_is_told_with_its_path() {
    for text in [
        "[things]\n\"a.b\" = '1'\nx = '2'\n'a.b' = '3'\n",
        "[server.config.things]\n\"a.b\" = '1'\nx = '2'\n'a.b' = '3'\n",
        "name = 'n'\nthings.'a.b' = '1'\ninner = { size = 1 }\nthings.\"a.b\" = '3'\n",
    ] {
        let dir = files(&[("a.toml", text)]);
        let (role, tree, problems) = loader(dir.path(), &[]).read().parse::<Role>();
        assert!(problems.is_empty(), "{problems}");
        assert_eq!(role.unwrap().things["a.b"], "1");
        let [twice] = tree.twice() else { panic!("{:?}", tree.twice()) };
        assert_eq!(twice.path, ["things", "a.b"]);
        assert_eq!((twice.first.at.unwrap().line, twice.second.at.unwrap().line), (2, 4));
    }
}

#[test]
fn an_included_file_adds_to_a_table_and_says_what_else_it_holds() {
    let dir = files(&[
        ("a.toml", "more = ['b.yaml']\n[things]\nx = '1'\n"),
        ("b.yaml", "# comment\nother: 1\nthing:\n  a.b: p\n  x: q\n  a.b: r\n"),
    ]);
    let mut draft = loader(dir.path(), &[]).read();
    let named = draft.texts("more");
    assert_eq!(named, [("b.yaml".to_owned(), at(&dir, "a.toml", 1, 9))]);
    let file = draft.resolve(&named[0].0, &named[0].1);
    assert_eq!(file, dir.path().join("b.yaml"));
    let beside = draft.include(&file, "thing", "things");
    assert_eq!(beside.len(), 1);
    assert_eq!((beside[0].key.as_str(), &beside[0].place), ("other", &at(&dir, "b.yaml", 2, 1)));
    let (role, tree, problems) = draft.parse::<Role>();
    assert!(problems.is_empty(), "{problems}");
    assert_eq!(role.unwrap().things.into_values().collect::<Vec<_>>(), ["p", "1"]);
    let mut twice: Vec<_> =
        tree.twice().iter().map(|t| (t.path.join("|"), t.first.line(), t.second.line())).collect();
    twice.sort();
    let line = |name, line| at(&dir, name, line, 1).line();
    assert_eq!(
        twice,
        [
            ("things|a.b".to_owned(), line("b.yaml", 4), line("b.yaml", 6)),
            ("things|x".to_owned(), line("a.toml", 3), line("b.yaml", 5)),
        ]
    );
    assert_eq!(tree.key_place(&["things", "a.b"]), Some(at(&dir, "b.yaml", 4, 3)));
    assert_eq!(tree.place(&["things", "a.b"]), Some(at(&dir, "b.yaml", 4, 8)));
}

#[test]
fn an_included_list_goes_on_where_the_own_ends() {
    let dir = files(&[("a.toml", "[[list]]\nsize = 1\n"), ("b.yaml", "- x"), ("b.toml.in", "")]);
    std::fs::write(dir.path().join("more.yml"), "item:\n- size: 2\n- size: bad\n").unwrap();
    let mut draft = loader(dir.path(), &[]).read();
    assert!(draft.include(&dir.path().join("more.yml"), "item", "list").is_empty());
    let (role, tree, problems) = draft.parse::<Role>();
    assert_eq!(
        problems.iter().map(|p| (p.key.as_str(), p.place.clone())).collect::<Vec<_>>(),
        [("server.config.list.2.size", at(&dir, "more.yml", 3, 9))]
    );
    assert_eq!(role.unwrap().list.iter().map(|item| item.size).collect::<Vec<_>>(), [1, 2, 0]);
    assert_eq!(tree.place(&["list", "1"]), Some(at(&dir, "more.yml", 2, 3)));
}

#[test]
fn an_included_file_without_the_key_or_that_cannot_be_read_makes_the_draft_broken() {
    for (name, text, what) in [
        ("b.yaml", "", "has no key thing"),
        ("b.yaml", "thing: [", "is not YAML (line 1: "),
        ("b.toml", "[thing]\nx = \n", "is not TOML (line 2: "),
        ("b.txt", "", "has an unknown ending"),
    ] {
        let dir = files(&[(name, text)]);
        let mut draft = Loader::new("config").environment(Vec::<(String, String)>::new()).read();
        draft.include(&dir.path().join(name), "thing", "things");
        assert!(draft.is_broken());
        let (_, _, problems) = draft.parse::<Role>();
        let problem = problems.iter().next().unwrap();
        assert!(problem.what.starts_with(what), "{problem}");
        assert_eq!(problem.place.source, dir.path().join(name).display().to_string());
    }
}

#[test]
fn every_fault_of_a_file_has_its_place() {
    let dir = files(&[("a.toml", "name = \n[inner]\nsize = = 2\n[things]\nx = 'ok'\n")]);
    let draft = loader(dir.path(), &[]).read();
    assert!(draft.is_broken());
    let (_, _, problems) = draft.parse::<Role>();
    let lines: Vec<_> = problems.iter().filter_map(|problem| problem.place.at).map(|at| at.line).collect();
    assert_eq!(lines, [1, 3], "{problems}");
}

#[test]
fn wrong_values_and_unknown_keys_have_the_place_where_they_stand() {
    let dir = files(&[(
        "a.toml",
        "nam = 1\n[inner]\nsize = 'x'\n[[list]]\nsize = 1\n[[list]]\n  flag = 7\n  sice = 1\n",
    )]);
    let (role, _, problems) = loader(dir.path(), &[]).read().parse::<Role>();
    assert!(role.is_some());
    let mut found: Vec<_> = problems.iter().map(|p| (p.key.as_str(), p.place.clone())).collect();
    found.sort();
    let expected = [
        ("server.config.inner.size", at(&dir, "a.toml", 3, 8)),
        ("server.config.list.1.flag", at(&dir, "a.toml", 7, 10)),
        ("server.config.list.1.sice", at(&dir, "a.toml", 8, 3)),
        ("server.config.nam", at(&dir, "a.toml", 1, 1)),
    ];
    assert_eq!(found, expected);
}
