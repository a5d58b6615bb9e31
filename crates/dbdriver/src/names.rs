//! Names of generated users: the default shapes, and an operator's template.

use jiff::Timestamp;
use rand::RngExt as _;

use crate::password::is_forbidden;
use crate::statement::Dialect;
use crate::template::{Template, TemplateError};

const ALPHANUMERIC: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
/// PostgreSQL cuts names off here, in bytes, without an error.
const POSTGRES_BYTES: usize = 63;
/// MySQL's limit; only the default shape keeps to it, since MariaDB takes more.
const MYSQL_CHARS: usize = 32;
/// MariaDB's limit in characters.
const MARIADB_CHARS: usize = 80;

/// What a name is made from.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct NameContext {
    /// The display name of the token that asks.
    pub display_name: String,
    /// The name of the database role.
    pub role_name: String,
}

/// Where names of generated users come from.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum UsernameSource {
    /// The database's default shape.
    Default(Dialect),
    /// A template of the operator's.
    Template(Dialect, Template),
}

impl UsernameSource {
    /// The source for a database; `template` empty = the default shape.
    ///
    /// # Errors
    /// When the template cannot be read.
    pub fn new(dialect: Dialect, template: &str) -> Result<Self, TemplateError> {
        if template.trim().is_empty() {
            return Ok(Self::Default(dialect));
        }
        Ok(Self::Template(dialect, Template::parse(template)?))
    }

    /// A new name. Whether it is free is the caller's to find out.
    ///
    /// # Errors
    /// When a template renders to a name that the database could not hold, or that would break a statement.
    pub fn generate(&self, context: &NameContext, now: Timestamp) -> Result<String, TemplateError> {
        let context = NameContext {
            display_name: harmless(&context.display_name),
            role_name: harmless(&context.role_name),
        };
        match self {
            Self::Default(dialect) => Ok(default_shape(*dialect, &context, now)),
            Self::Template(dialect, template) => {
                let name = template.render(&context, now)?;
                check(&name, *dialect)?;
                Ok(name)
            }
        }
    }
}

fn default_shape(dialect: Dialect, context: &NameContext, now: Timestamp) -> String {
    let part = |text: &str, length: usize| -> String {
        text.chars().take(length).map(|c| if c.is_ascii() { c } else { '_' }).collect()
    };
    let role = part(&context.role_name, 8);
    match dialect {
        Dialect::Postgres => {
            let display = part(&context.display_name, 8);
            let name = format!("v-{display}-{role}-{}-{}", random_text(20), now.as_second());
            name.chars().take(POSTGRES_BYTES).collect()
        }
        Dialect::Mysql => {
            let display = part(&context.display_name, 4);
            format!("v-{display}-{role}-{}", random_text(16)).chars().take(MYSQL_CHARS).collect()
        }
    }
}

/// Display names come from whoever logged in; what could break a statement is replaced.
fn harmless(text: &str) -> String {
    text.chars().map(|c| if is_forbidden(c) { '_' } else { c }).collect()
}

fn check(name: &str, dialect: Dialect) -> Result<(), TemplateError> {
    let unusable = |problem: String| Err(TemplateError::Unusable(problem));
    if name.trim().is_empty() {
        return unusable("the name is empty".to_owned());
    }
    if name.chars().any(is_forbidden) {
        return unusable("the name contains a quote, backslash or control character".to_owned());
    }
    match dialect {
        Dialect::Postgres if name.len() > POSTGRES_BYTES => {
            unusable(format!("the name is longer than {POSTGRES_BYTES} bytes"))
        }
        Dialect::Mysql if name.chars().count() > MARIADB_CHARS => {
            unusable(format!("the name is longer than {MARIADB_CHARS} characters"))
        }
        _ => Ok(()),
    }
}

/// `length` random characters out of letters and digits.
pub(crate) fn random_text(length: usize) -> String {
    let mut rng = rand::rng();
    (0..length)
        .filter_map(|_| ALPHANUMERIC.get(rng.random_range(0..ALPHANUMERIC.len())).copied().map(char::from))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashSet;

    fn context(display: &str, role: &str) -> NameContext {
        NameContext { display_name: display.to_owned(), role_name: role.to_owned() }
    }

    fn now() -> Timestamp {
        Timestamp::from_second(1_770_000_000).unwrap()
    }

    #[test]
    fn default_shapes() {
        let c = context("userpass-alice", "reporting-role");
        let pg = UsernameSource::new(Dialect::Postgres, "").unwrap().generate(&c, now()).unwrap();
        let parts = pg.strip_prefix("v-userpass-reportin-").unwrap().split_once('-').unwrap();
        assert_eq!((parts.0.len(), parts.1), (20, "1770000000"));
        let my = UsernameSource::new(Dialect::Mysql, "").unwrap().generate(&c, now()).unwrap();
        assert_eq!(my.strip_prefix("v-user-reportin-").unwrap().len(), 16);
        assert_eq!(my.len(), 32);
    }

    #[test]
    fn ten_thousand_names_without_a_clash() {
        for dialect in [Dialect::Postgres, Dialect::Mysql] {
            let source = UsernameSource::new(dialect, "").unwrap();
            let c = context("token", "r");
            let names: HashSet<_> = (0..10_000).map(|_| source.generate(&c, now()).unwrap()).collect();
            assert_eq!(names.len(), 10_000);
        }
    }

    #[test]
    fn unusable_names_are_refused() {
        let long = "x".repeat(64);
        for template in ["{{ `it's` }}", "{{ `a\\b` }}", "   {{ `` }} ", long.as_str()] {
            let source = UsernameSource::new(Dialect::Postgres, template).unwrap();
            assert!(source.generate(&context("a", "b"), now()).is_err(), "{template}");
        }
    }

    proptest! {
        #[test]
        fn names_never_break_a_statement(display in "\\PC*|[\\x00-\\x7f]*", role in "\\PC*") {
            for dialect in [Dialect::Postgres, Dialect::Mysql] {
                let default = UsernameSource::new(dialect, "").unwrap().generate(&context(&display, &role), now()).unwrap();
                prop_assert!(!default.chars().any(is_forbidden));
                let most = if dialect == Dialect::Postgres { 63 } else { 32 };
                prop_assert!(default.len() <= most);
                let own = UsernameSource::new(dialect, "{{.DisplayName}}-{{.RoleName | truncate 12}}").unwrap();
                if let Ok(name) = own.generate(&context(&display, &role), now()) {
                    prop_assert!(!name.chars().any(is_forbidden));
                }
            }
        }
    }
}
