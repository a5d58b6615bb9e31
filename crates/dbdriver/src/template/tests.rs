use super::*;
use proptest::prelude::*;

fn context() -> NameContext {
    NameContext { display_name: "token-with-a-long-name".to_owned(), role_name: "ReadOnly".to_owned() }
}

fn now() -> Timestamp {
    "2026-03-04T05:06:07.089Z".parse().unwrap()
}

fn render(text: &str) -> String {
    Template::parse(text).unwrap().render(&context(), now()).unwrap()
}

#[test]
fn the_shapes_that_operators_write() {
    let name = render(
        r#"{{ printf "v-%s-%s-%s-%s" (.DisplayName | truncate 8) (.RoleName | truncate 8) (random 20) (unix_time) | truncate 63 }}"#,
    );
    assert!(name.starts_with("v-token-wi-ReadOnly-"), "{name}");
    assert!(name.ends_with(&format!("-{}", now().as_second())), "{name}");
    assert_eq!(name.len(), 2 + 8 + 1 + 8 + 1 + 20 + 1 + 10);
    assert_eq!(render("{{.RoleName}}_{{.DisplayName | truncate 5 | uppercase}}"), "ReadOnly_TOKEN");
    assert_eq!(render("{{ printf `%s_%04d%%` (lowercase .RoleName) 7 }}"), "readonly_0007%");
}

#[test]
fn functions_do_what_they_say() {
    assert_eq!(render("{{ .RoleName | replace \"Only\" \"Write\" }}"), "ReadWrite");
    assert_eq!(render("{{ unix_time_millis }}"), now().as_millisecond().to_string());
    assert_eq!(render("{{ timestamp \"2006-01-02T15:04:05Z\" }}"), "2026-03-04T05:06:07Z");
    assert_eq!(render("{{ timestamp \"060102 Jan _2 3PM .000\" }}"), "260304 Mar  4 5AM .089");
    assert_eq!(render("{{ base64 \"ab\" }}"), "YWI=");
    assert_eq!(render("{{ \"abc\" | sha256 | truncate 8 }}"), "ba7816bf");
    assert_eq!(render("{{ uuid }}").len(), 36);
    assert_eq!(render("{{ random 12 }}").len(), 12);
    assert_eq!(render("{{ truncate_sha256 30 .DisplayName }}"), context().display_name);
    let short = render("{{ .DisplayName | truncate_sha256 12 }}");
    assert!(short.starts_with("toke") && short.len() == 12, "{short}");
}

#[test]
fn white_space_and_comments() {
    assert_eq!(render("a  {{- \" \" -}}  b{{/* note */}}c"), "a bc");
    assert_eq!(render("{{ \"}}\" }}"), "}}");
}

#[test]
fn mistakes_are_found_when_the_template_is_read() {
    for text in [
        "{{ .Other }}",
        "{{ nosuch }}",
        "{{ .RoleName",
        "{{ (.RoleName }}",
        "{{ .RoleName ) }}",
        "{{ }}",
        "{{ | truncate 3 }}",
        "{{ if true }}",
        "{{ .RoleName .RoleName }}",
        "{{ random 3 | .RoleName }}",
        "{{ \"a }}",
        "{{ 1x }}",
        "{{ $x }}",
    ] {
        assert!(Template::parse(text).is_err(), "{text}");
    }
    assert!(Template::parse(&format!("{{{{ {}1{} }}}}", "(".repeat(10000), ")".repeat(10000))).is_err());
}

#[test]
fn mistakes_in_values_are_found_when_it_is_rendered() {
    for text in [
        "{{ random 0 }}",
        "{{ random 100000 }}",
        "{{ random }}",
        "{{ truncate 3 }}",
        "{{ truncate_sha256 8 .RoleName }}",
        "{{ printf \"%s\" }}",
        "{{ printf \"a\" 1 }}",
        "{{ printf \"%q\" 1 }}",
        "{{ printf 1 }}",
        "{{ printf \"%99999d\" 1 }}",
    ] {
        assert!(Template::parse(text).unwrap().render(&context(), now()).is_err(), "{text}");
    }
}

proptest! {
    #[test]
    fn any_text_is_read_or_refused(text in "[a-zR.{}()|\"` 0-9%/*-]{0,60}") {
        if let Ok(template) = Template::parse(&text) {
            let _ = template.render(&context(), now());
        }
    }
}
