//! From a policy's text to its rules. What is not understood is an error, never ignored.

use serde_json::Value;

use super::node::{self, Members, Node};
use super::rule::{Capabilities, Capability, Parameters, Rule};
use crate::error::ApiError;
use crate::logical::data::parse_seconds;

/// The rules of a policy.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Policy {
    /// In the order of the text.
    pub rules: Vec<Rule>,
}

/// Why a text is no policy.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("failed to parse policy: {0}")]
pub struct PolicyError(String);

impl From<PolicyError> for ApiError {
    fn from(error: PolicyError) -> Self {
        Self::invalid(error.to_string())
    }
}

/// Reads a policy in HCL or JSON.
pub fn parse(text: &str) -> Result<Policy, PolicyError> {
    let stanzas = node::stanzas(text).map_err(PolicyError)?;
    let rules = stanzas.into_iter().map(|(path, fields)| {
        rule(&path, fields).map_err(|why| PolicyError(format!("path {path:?}: {why}")))
    });
    Ok(Policy { rules: rules.collect::<Result<_, _>>()? })
}

fn rule(path: &str, fields: Members) -> Result<Rule, String> {
    check_path(path)?;
    let mut rule = Rule::new(path, Capabilities::default());
    let mut seen: Vec<String> = Vec::new();
    for (name, node) in fields {
        if seen.contains(&name) {
            return Err(format!("{name:?} stands twice"));
        }
        match name.as_str() {
            "capabilities" => rule.capabilities = capabilities(node)?,
            "allowed_parameters" => rule.allowed = parameters(&name, node)?,
            "denied_parameters" => rule.denied = parameters(&name, node)?,
            "required_parameters" => {
                rule.required = texts(&name, node)?.iter().map(|text| text.to_lowercase()).collect();
            }
            "min_wrapping_ttl" => rule.min_wrap = seconds(&name, node)?,
            "max_wrapping_ttl" => rule.max_wrap = seconds(&name, node)?,
            _ => return Err(format!("unknown key {name:?}")),
        }
        seen.push(name);
    }
    match (rule.min_wrap, rule.max_wrap) {
        (Some(min), Some(max)) if min > max => {
            Err("max_wrapping_ttl cannot be less than min_wrapping_ttl".into())
        }
        _ => Ok(rule),
    }
}

fn check_path(path: &str) -> Result<(), String> {
    if path.contains("+*") {
        return Err("invalid use of wildcards (\"+*\" is forbidden)".into());
    }
    if path.contains("{{") {
        return Err("templated paths are not supported".into());
    }
    if path.chars().any(char::is_control) {
        return Err("control characters are not possible".into());
    }
    Ok(())
}

fn capabilities(node: Node) -> Result<Capabilities, String> {
    let mut set = Capabilities::default();
    for name in texts("capabilities", node)? {
        set.add(Capability::named(&name).ok_or_else(|| format!("invalid capability {name:?}"))?);
    }
    Ok(set)
}

fn texts(field: &str, node: Node) -> Result<Vec<String>, String> {
    let Node::List(items) = node else { return Err(format!("{field} must be a list of strings")) };
    let texts = items.into_iter().map(|item| match item {
        Node::Text(text) => Ok(text),
        _ => Err(format!("{field} must be a list of strings")),
    });
    texts.collect()
}

fn parameters(field: &str, node: Node) -> Result<Parameters, String> {
    let Node::Object(members) = node else { return Err(format!("{field} must be an object of lists")) };
    let mut out = Parameters::new();
    for (name, values) in members {
        let Node::List(values) = values else { return Err(format!("{field} must be an object of lists")) };
        let values: Vec<Value> = values.into_iter().map(Node::into_value).collect();
        if out.insert(name.to_lowercase(), values).is_some() {
            return Err(format!("{field}: {name:?} stands twice"));
        }
    }
    Ok(out)
}

fn seconds(field: &str, node: Node) -> Result<Option<u64>, String> {
    let seconds = match node {
        Node::Number(number) => number.as_u64(),
        Node::Text(text) => parse_seconds(&text).and_then(|s| u64::try_from(s).ok()),
        _ => None,
    };
    seconds.map(Some).ok_or_else(|| format!("{field} must be a duration in seconds or like 1h30m"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    const FULL: &str = r#"
        # a comment with "quotes" and { brackets
        path "secret/data/+/x*" {
          capabilities = ["read", "list",
            "create"] // trailing
          allowed_parameters = { "*" = [], ttl = ["1h", 3600, true] }
          denied_parameters = { "no" = [] }
          required_parameters = ["Why"]
          min_wrapping_ttl = "1m"
          max_wrapping_ttl = 120
        }
        /* between */
        path "sys/*" { capabilities = ["deny"] }
    "#;

    #[test]
    fn hcl_and_json_say_the_same() {
        let hcl = parse(FULL).unwrap();
        let json = json!({"path": {
            "secret/data/+/x*": {
                "capabilities": ["read", "list", "create"],
                "allowed_parameters": {"*": [], "ttl": ["1h", 3600, true]},
                "denied_parameters": {"no": []},
                "required_parameters": ["Why"],
                "min_wrapping_ttl": "1m",
                "max_wrapping_ttl": 120
            },
            "sys/*": {"capabilities": ["deny"]}
        }});
        assert_eq!(parse(&json.to_string()).unwrap(), hcl);
        assert_eq!(hcl.rules.len(), 2);
        let first = &hcl.rules[0];
        assert_eq!(first.capabilities.names(), ["create", "list", "read"]);
        assert_eq!((first.min_wrap, first.max_wrap), (Some(60), Some(120)));
        assert_eq!(first.required, ["why"]);
        assert_eq!(first.allowed["ttl"], [json!("1h"), json!(3600), json!(true)]);
        assert!(parse("").unwrap().rules.is_empty());
        let list = r#"{"path": [{"a": {"capabilities": ["read"]}}, {"a": {"capabilities": ["list"]}}]}"#;
        assert_eq!(parse(list).unwrap().rules.len(), 2);
    }

    #[test]
    fn what_is_not_understood_is_an_error() {
        for bad in [
            r#"name = "x""#,
            r#"policy "x" { capabilities = ["read"] }"#,
            r#"path "x" "y" { capabilities = ["read"] }"#,
            r#"path { capabilities = ["read"] }"#,
            r#"path "x" { capabilities = ["fly"] }"#,
            r#"path "x" { capabilities = "read" }"#,
            r#"path "x" { capability = ["read"] }"#,
            r#"path "x" { policy = "read" }"#,
            r#"path "x" { more { a = 1 } }"#,
            r#"path "x" { capabilities = ["read"] capabilities = ["list"] }"#,
            "path \"x\" {\n capabilities = [\"read\"]\n capabilities = [\"list\"]\n}",
            "path \"x\" {\n allowed_parameters = { a = [1], \"a\" = [2] }\n}",
            r#"path "x" { allowed_parameters = ["a"] }"#,
            r#"path "x" { allowed_parameters = { a = 1 } }"#,
            r#"path "x" { min_wrapping_ttl = "soon" }"#,
            r#"path "x" { min_wrapping_ttl = 2, max_wrapping_ttl = 1 }"#,
            "path \"x\" {\n min_wrapping_ttl = 2\n max_wrapping_ttl = 1\n}",
            r#"path "x/+*" { capabilities = ["read"] }"#,
            r#"path "{{identity.entity.id}}" { capabilities = ["read"] }"#,
            r#"path "${a}" { capabilities = ["read"] }"#,
            r#"path "x" { capabilities = [upper("read")] }"#,
            r#"path "x" { capabilities = true ? ["read"] : [] }"#,
            r#"path "x" { capabilities = ["read" "#,
            r#"path "x { capabilities"#,
            r#"{"path": {"x": {"capabilities": ["read"], "capabilities": ["list"]}}}"#,
            r#"{"paths": {}}"#,
            r#"{"path": "x"}"#,
            "[]",
            "/* open",
            "/",
        ] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn no_depth_of_nesting_overflows() {
        for open in ["[", "{", "{\"a\":", "(", "!", "-", "a=[", "a?", "${", "\"${", "path \"x\" { a = ["] {
            let _ = parse(&open.repeat(100_000));
            let _ = parse(&format!("path \"x\" {{ capabilities = {} }}", open.repeat(50_000)));
        }
    }

    #[test]
    fn fuzz_policies() {
        let seeds = [
            FULL.as_bytes(),
            br#"{"path": {"json/+/x": {"capabilities": ["read"], "min_wrapping_ttl": "1m"}}}"#,
        ];
        let words = [
            "path",
            "capabilities",
            "\"",
            "${",
            "<<EOT\n",
            "/*",
            "#",
            "=",
            "{",
            "[",
            "for x in",
            " ? ",
            "%{ if",
        ];
        holdfast_tests::fuzz::fuzz(&seeds, &words, |input| {
            let text = String::from_utf8_lossy(input);
            match parse(&text) {
                Ok(policy) => format!("{} chars", format!("{policy:?}").len() / 64),
                // The part of the text that such an error quotes differs each time.
                Err(error) => error.to_string().lines().last().unwrap_or_default().to_owned(),
            }
        });
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "\\PC{0,200}") {
            let _ = parse(&text);
        }

        #[test]
        fn nothing_like_a_policy_panics(text in r#"(path|"x"|\{|\}|\[|\]|=|,|:| |\n|"|capabilities|#|//|/\*|\*/|<<|\$|\{\{|a|1|-|\.|\\){0,60}"#) {
            let _ = parse(&text);
        }

        #[test]
        fn no_cut_or_changed_policy_panics(at in 0usize..700, c in proptest::char::any()) {
            let mut text: Vec<char> = FULL.chars().collect();
            let at = at.min(text.len() - 1);
            let _ = parse(&text[..at].iter().collect::<String>());
            text[at] = c;
            let _ = parse(&text.iter().collect::<String>());
        }
    }
}
