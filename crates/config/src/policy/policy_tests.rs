use std::sync::Arc;
use std::time::Duration;

use holdfast_ops::config::Position;

use super::*;
use crate::config::{RuleEffect, RuleSettings};

const NOW: Wall = Wall::from_micros(1_700_000_000_000_000);

fn place(source: &str, line: usize) -> Place {
    Place { source: source.to_owned(), at: Some(Position { line, column: 1 }) }
}

fn texts(list: &[&str]) -> Vec<String> {
    list.iter().map(|text| (*text).to_owned()).collect()
}

fn allow(subjects: &[&str], names: &[&str]) -> RuleSettings {
    RuleSettings { subjects: texts(subjects), names: texts(names), ..RuleSettings::default() }
}

fn deny(subjects: &[&str], names: &[&str]) -> RuleSettings {
    RuleSettings { effect: RuleEffect::Deny, ..allow(subjects, names) }
}

fn policy(rules: Vec<RuleSettings>) -> Result<Policy, Vec<Problem>> {
    let settings = PolicySettings { rule: rules, ..PolicySettings::default() };
    Policy::new(Some(&settings), |n| place("config.toml", n * 10 + 1))
}

fn faults(rule: RuleSettings) -> Vec<String> {
    policy(vec![rule]).unwrap_err().into_iter().map(|problem| problem.what).collect()
}

fn caller(subject: &str) -> Identity {
    Identity::supposed(subject, &[])
}

/// What `a` may read, in words.
fn read(policy: &Policy, subject: &str, name: &[u8]) -> String {
    policy.explain(policy.decide(&caller(subject), Verb::Read, name, NOW))
}

#[test]
fn denied_unless_allowed_and_a_denying_rule_wins_wherever_it_stands() {
    let rules = vec![
        allow(&["a", "b"], &["db-*", "orders/**"]),
        deny(&["b"], &["db-root"]),
        allow(&["b"], &["db-root"]),
    ];
    let policy = policy(rules).unwrap();
    for (subject, name, expected) in [
        ("a", "db-root", "allow: rule 1 (config.toml:1)"),
        ("b", "db-user", "allow: rule 1 (config.toml:1)"),
        ("b", "db-root", "deny: rule 2 (config.toml:11)"),
        ("b", "orders/a/b", "allow: rule 1 (config.toml:1)"),
        ("a", "db-a/b", "deny: no rule matched"),
        ("c", "db-root", "deny: no rule matched"),
        ("", "db-root", "deny: no rule matched"),
    ] {
        assert_eq!(read(&policy, subject, name.as_bytes()), expected, "{subject} {name}");
    }
}

#[test]
fn every_key_that_is_given_must_match_and_one_entry_of_it_suffices() {
    let rule = RuleSettings {
        groups: texts(&["g", "h"]),
        sans: texts(&["spiffe://x"]),
        uids: vec![1, 2],
        gids: vec![3],
        ..allow(&["s", "t"], &["**"])
    };
    let policy = policy(vec![rule]).unwrap();
    let mut full = Identity::supposed("t", &texts(&["other", "h"]));
    full.sans = Arc::new([Arc::from("spiffe://x")]);
    (full.uid, full.gid) = (Some(2), Some(3));
    let allowed = |identity: &Identity| policy.decide(identity, Verb::Read, b"n", NOW).allow;
    assert!(allowed(&full));
    let lacks: [fn(&mut Identity); 5] = [
        |caller| caller.subject = Arc::from("u"),
        |caller| caller.groups = Arc::default(),
        |caller| caller.sans = Arc::new([Arc::from("spiffe://y")]),
        |caller| caller.uid = None,
        |caller| caller.gid = Some(4),
    ];
    for (n, lack) in lacks.iter().enumerate() {
        let mut lacking = full.clone();
        lack(&mut lacking);
        assert!(!allowed(&lacking), "key {n}");
    }
}

#[test]
fn everyone_is_everyone_and_an_empty_subject_is_nobody() {
    let everyone = RuleSettings { everyone: true, ..allow(&[], &["pub"]) };
    let policy = policy(vec![everyone, allow(&[""], &["secret"])]).unwrap();
    assert_eq!(read(&policy, "", b"pub"), "allow: rule 1 (config.toml:1)");
    assert_eq!(read(&policy, "", b"secret"), "deny: no rule matched");
}

#[test]
fn verbs_are_read_and_watch_unless_said_and_operators_verbs_have_no_name() {
    let with =
        |verbs: &[Verb], names: &[&str]| RuleSettings { verbs: Some(verbs.to_vec()), ..allow(&["a"], names) };
    let policy =
        policy(vec![allow(&["a"], &["x"]), with(&[Verb::Read], &["y"]), with(&[Verb::Status], &[])]).unwrap();
    let allowed = |verb, name: &str| policy.decide(&caller("a"), verb, name.as_bytes(), NOW).allow;
    assert!(allowed(Verb::Read, "x") && allowed(Verb::Watch, "x"));
    assert!(allowed(Verb::Read, "y") && !allowed(Verb::Watch, "y"));
    assert!(allowed(Verb::Status, "") && allowed(Verb::Status, "whatever"));
    assert!(!allowed(Verb::Metrics, ""));
}

#[test]
fn a_rule_ends_at_its_date() {
    let until = |text: &str, rule| RuleSettings { until: Some(text.to_owned()), ..rule };
    let policy = policy(vec![
        until("2023-11-14T22:13:21Z", allow(&["a"], &["x"])),
        until("2023-11-15", deny(&["a"], &["y"])),
        allow(&["a"], &["y"]),
    ])
    .unwrap();
    let allowed = |name: &str, now| policy.decide(&caller("a"), Verb::Read, name.as_bytes(), now).allow;
    let (one, day) = (NOW.after(Duration::from_secs(1)), NOW.after(Duration::from_secs(86_400)));
    assert!(allowed("x", NOW) && !allowed("x", one));
    assert!(!allowed("y", one) && allowed("y", day));
    assert_eq!(policy.next_change(NOW), Some(one));
    assert_eq!(policy.next_change(one), date_of("2023-11-15"));
    assert_eq!(policy.next_change(day), None);
}

fn date_of(text: &str) -> Option<Wall> {
    crate::date::parse(text)
}

#[test]
fn odd_names_are_judged_as_bytes_and_long_ones_by_their_beginning() {
    let policy = policy(vec![allow(&["a"], &["ok?", "deep/**"])]).unwrap();
    assert_eq!(read(&policy, "a", b"ok\xff"), "allow: rule 1 (config.toml:1)");
    assert_eq!(read(&policy, "a", b"ok\0\0"), "deny: no rule matched");
    let long = [&b"deep/"[..], &[b'x'; 2_000_000]].concat();
    assert!(policy.decide(&caller("a"), Verb::Read, &long, NOW).allow);
    let long = [b'x'; 2_000_000];
    assert!(!policy.decide(&caller("a"), Verb::Read, &long, NOW).allow);
}

#[test]
fn allow_all_allows_what_no_rule_denies() {
    let settings = PolicySettings { allow_all: true, rule: vec![deny(&["b"], &["x"])], file: None };
    let policy = Policy::new(Some(&settings), |_| place("c", 1)).unwrap();
    assert_eq!(read(&policy, "", b"x"), "allow: policy.allow_all");
    assert_eq!(read(&policy, "b", b"x"), "deny: rule 1 (c:1)");
}

#[test]
fn the_exact_texts_of_faults() {
    let none = Policy::new(None, |_| Place::whole("")).unwrap_err();
    assert_eq!(
        none,
        [Problem::new("policy", "no policy configured: add [[policy.rule]] or policy.allow_all = true")]
    );
    assert_eq!(policy(vec![]).unwrap_err(), none);
    assert_eq!(
        faults(allow(&["a"], &["a", "[", "x\\"])),
        [r#"policy rule 1: bad glob "[""#, r#"policy rule 1: bad glob "x\""#,]
    );
    assert_eq!(faults(allow(&["a"], &[])), ["policy rule 1: names is empty"]);
    assert_eq!(
        faults(allow(&[], &["a"])),
        ["policy rule 1: no identity: set subjects, groups, sans, uids, gids or everyone = true"]
    );
    let both = RuleSettings { everyone: true, ..allow(&["a"], &["a"]) };
    assert_eq!(faults(both), ["policy rule 1: everyone = true stands beside other identity keys"]);
    let idle = RuleSettings { verbs: Some(vec![]), ..allow(&["a"], &["a"]) };
    assert_eq!(faults(idle), ["policy rule 1: verbs is empty"]);
    let late = RuleSettings { until: Some("soon".to_owned()), ..allow(&["a"], &["a"]) };
    assert_eq!(faults(late), [r#"policy rule 1: until is not a date: "soon""#]);
    let two =
        policy(vec![allow(&["a"], &["["]), allow(&["a"], &["a"]), allow(&["a"], &["]", "[^]"])]).unwrap_err();
    let two: Vec<_> = two.into_iter().map(|problem| (problem.key, problem.what)).collect();
    assert_eq!(
        two,
        [
            ("policy.rule.0".to_owned(), r#"policy rule 1: bad glob "[""#.to_owned()),
            ("policy.rule.2".to_owned(), r#"policy rule 3: bad glob "[^]""#.to_owned()),
        ]
    );
}

#[test]
fn equal_policies_look_equal_whatever_the_order_in_lists() {
    let rule = |subjects: &[&str]| RuleSettings { verbs: None, ..allow(subjects, &["x"]) };
    let said = RuleSettings { verbs: Some(vec![Verb::Watch, Verb::Read]), ..rule(&["a", "b"]) };
    let canonical = |rules| policy(rules).unwrap().canonical().to_string();
    assert_eq!(canonical(vec![rule(&["b", "a", "b"])]), canonical(vec![said]));
    let (one, two) = (rule(&["a"]), deny(&["a"], &["x"]));
    assert_ne!(canonical(vec![one.clone(), two.clone()]), canonical(vec![two, one]), "rules have an order");
}
