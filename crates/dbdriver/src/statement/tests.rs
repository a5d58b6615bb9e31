use super::*;
use proptest::prelude::*;

fn pg(items: &[&str]) -> Vec<String> {
    parse(items, Dialect::Postgres)
}

fn parse(items: &[&str], dialect: Dialect) -> Vec<String> {
    let items: Vec<_> = items.iter().map(|s| (*s).to_owned()).collect();
    Statements::parse(&items, dialect).unwrap().0
}

#[test]
fn plain_lists_are_split_on_semicolons() {
    assert_eq!(
        pg(&["CREATE ROLE a; GRANT x TO a;", " SELECT 1 "]),
        ["CREATE ROLE a", "GRANT x TO a", "SELECT 1"]
    );
    assert_eq!(pg(&["", " ; ;; ", "-- only a comment"]), Vec::<String>::new());
}

#[test]
fn base64_and_json_arrays_are_read() {
    assert_eq!(pg(&[&STANDARD.encode("SELECT 1; SELECT 2")]), ["SELECT 1", "SELECT 2"]);
    assert_eq!(pg(&[r#"["SELECT 1", "SELECT ';'; SELECT 3"]"#]), ["SELECT 1", "SELECT ';'", "SELECT 3"]);
    assert_eq!(pg(&[&STANDARD.encode(r#"["SELECT 1;","SELECT 2"]"#)]), ["SELECT 1", "SELECT 2"]);
}

#[test]
fn semicolons_in_quotes_and_comments_do_not_split() {
    let whole = [
        "SELECT 'a;b', 'it''s;'",
        r"SELECT E'it\'s;', 'back\'",
        "SELECT \"a;b\"\"c;\"",
        "DO $$ BEGIN PERFORM 1; PERFORM 2; END $$",
        "DO $body$ SELECT '$$;'; $body$",
        "SELECT 1 /* a; /* b; */ c; */ + 1",
        "SELECT 1 -- a; b\n + 1",
    ];
    for sql in whole {
        assert_eq!(pg(&[&format!("{sql}; SELECT 9")]), [sql, "SELECT 9"], "{sql}");
    }
}

#[test]
fn mysql_quotes_and_comments_are_its_own() {
    let whole = [
        r"SELECT 'it\'s;'",
        r#"SELECT "a\";b""#,
        "SELECT `a;b\\`",
        "SELECT 1 # a; b\n + 1",
        "SELECT 1 -- a; b\n + 1",
        "SELECT 5--3",
        "SELECT 1 /* a; /* b; */",
    ];
    for sql in whole {
        assert_eq!(parse(&[&format!("{sql}; SELECT 9")], Dialect::Mysql), [sql, "SELECT 9"], "{sql}");
    }
}

#[test]
fn blocks_that_end_in_end_run_whole() {
    let atomic =
        "CREATE FUNCTION f() RETURNS int BEGIN ATOMIC SELECT CASE WHEN true THEN 1 ELSE 2 END; SELECT 2; END";
    assert_eq!(pg(&[&format!("SELECT 0; {atomic}; SELECT 9;")]), ["SELECT 0", atomic, "SELECT 9"]);
    let procedure = "CREATE PROCEDURE p() BEGIN IF 1 THEN SELECT 1; END IF; SELECT 2; END";
    assert_eq!(parse(&[&format!("{procedure}; SELECT 9")], Dialect::Mysql), [procedure, "SELECT 9"]);
    let anonymous = "BEGIN NOT ATOMIC SELECT 1; SELECT 2; END";
    assert_eq!(parse(&[anonymous], Dialect::Mysql), [anonymous]);
}

#[test]
fn a_transaction_around_the_statements_is_ours_already() {
    assert_eq!(pg(&["BEGIN; CREATE ROLE a; COMMIT;"]), ["CREATE ROLE a"]);
    assert_eq!(pg(&["START TRANSACTION; CREATE ROLE a; END"]), ["CREATE ROLE a"]);
    assert_eq!(pg(&["SAVEPOINT a; SELECT 1; ROLLBACK TO a"]).len(), 3);
    for sql in ["ROLLBACK", "SELECT 1; ABORT", "COMMIT PREPARED 'x'", "/* x */ rollback work"] {
        assert!(Statements::parse(&[sql.to_owned()], Dialect::Postgres).is_err(), "{sql}");
    }
}

#[test]
fn text_that_ends_in_a_quote_is_refused() {
    for sql in ["SELECT 'a", "SELECT \"a", "DO $$ x", "SELECT 1 /* /* */"] {
        assert!(Statements::parse(&[sql.to_owned()], Dialect::Postgres).is_err(), "{sql}");
    }
}

#[test]
fn values_go_in_once() {
    let statements = Statements::parse(
        &["CREATE ROLE \"{{name}}\" PASSWORD '{{password}}' VALID UNTIL '{{expiration}}'; -- {{ username }} {{other}} {{"
            .to_owned() + "\nSELECT 1"],
        Dialect::Postgres,
    )
    .unwrap();
    let values = Values { username: "{{password}}", password: Some("p"), expiration: Some("e") };
    let rendered = statements.render(&values);
    assert_eq!(rendered[0], "CREATE ROLE \"{{password}}\" PASSWORD 'p' VALID UNTIL 'e'");
    assert_eq!(rendered[1], "-- {{password}} {{other}} {{\nSELECT 1");
}

#[test]
fn expirations_are_utc_with_an_offset() {
    let at: Timestamp = "2026-01-02T03:04:05.678+02:00".parse().unwrap();
    assert_eq!(expiration(at), "2026-01-02 01:04:05+00:00");
}

proptest! {
    #[test]
    fn any_text_is_split_or_refused(text in "[a-z$'\"`;/*# \\n\\\\{}-]{0,60}") {
        let item = [text];
        let _ = Statements::parse(&item, Dialect::Postgres);
        let _ = Statements::parse(&item, Dialect::Mysql);
    }

    #[test]
    fn quoted_text_never_splits(inside in "[^']{0,40}") {
        prop_assert_eq!(pg(&[&format!("SELECT '{inside}'; SELECT 2")]).len(), 2);
        prop_assume!(!inside.contains("$q$"));
        prop_assert_eq!(pg(&[&format!("DO $q$'{inside}'$q$; SELECT 2")]).len(), 2);
    }
}
