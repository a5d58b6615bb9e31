//! The question for one row, and its answer as a value.

use std::error::Error as StdError;

use bytes::BytesMut;
use holdfast_core::AnswerKind;
use holdfast_core::freshness::{Failure, Outcome};
use tokio_postgres::types::{Format, FromSql, IsNull, ToSql, Type, to_sql_checked};
use tokio_postgres::{Client, Error, Row};

use super::super::content;
use crate::reference::ObjectKey;
use crate::value::Value;

/// Which column of which row of which table.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Question {
    table: String,
    key: String,
    key_column: String,
    value_column: String,
    order_column: Option<String>,
}

impl Question {
    /// Of `TABLE/KEY` and the options; none when a name is none.
    pub(super) fn of(object: &ObjectKey) -> Option<Self> {
        let (table, key) = object.path.split_once('/')?;
        let (schema, name) =
            table.split_once('.').map_or((None, table), |(schema, name)| (Some(schema), name));
        let parts = schema.into_iter().chain([name]).map(quoted).collect::<Option<Vec<_>>>()?;
        let column = |option: &str| object.options.get(option).map(String::as_str);
        Some(Self {
            table: parts.join("."),
            key: key.to_owned(),
            key_column: quoted(column("key_col").unwrap_or("key"))?,
            value_column: quoted(column("val_col").unwrap_or("value"))?,
            order_column: match column("order_col") {
                Some(name) => Some(quoted(name)?),
                None => None,
            },
        })
    }

    /// Asks. Two rows of one key are no answer.
    pub(super) async fn ask(&self, client: &Client, sensitive: bool) -> Result<Outcome<Value>, Error> {
        let rows = client.query_typed(&self.sql(""), &[(&Key(&self.key), Type::UNKNOWN)]).await?;
        let row = match &*rows {
            [] => return Ok(Outcome::Absent),
            [row] => row,
            _ => return Ok(Outcome::Error(Failure::of(AnswerKind::Invalid))),
        };
        if row.columns().first().is_some_and(|column| <Raw as FromSql<'_>>::accepts(column.type_())) {
            return Ok(outcome(row, sensitive));
        }
        // A number or a date: as its text.
        let rows = client.query_typed(&self.sql("::text"), &[(&Key(&self.key), Type::UNKNOWN)]).await?;
        Ok(rows.first().map_or(Outcome::Absent, |row| outcome(row, sensitive)))
    }

    fn sql(&self, cast: &str) -> String {
        let Self { table, key_column, value_column, order_column, .. } = self;
        let order = order_column.as_deref().unwrap_or("NULL");
        format!("SELECT {value_column}{cast}, {order}::int8 FROM {table} WHERE {key_column} = $1 LIMIT 2")
    }
}

fn outcome(row: &Row, sensitive: bool) -> Outcome<Value> {
    let (value, order) = match (row.try_get::<_, Option<Raw>>(0), row.try_get::<_, Option<i64>>(1)) {
        (Ok(value), Ok(order)) => (value, order),
        _ => return Outcome::Error(Failure::of(AnswerKind::Invalid)),
    };
    let Some(Raw(bytes)) = value else { return Outcome::Absent };
    let mut found = content::hashed(bytes, sensitive);
    if let (Outcome::Value { value, .. }, Some(order)) = (&mut found, order) {
        value.version = Some(order.to_string());
        value.order = u64::try_from(order).ok();
    }
    found
}

/// Whether this may stand for a table, a column or a channel.
pub(super) fn is_identifier(text: &str) -> bool {
    let first = text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    first && text.len() <= 63 && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// In quotes, so that it is never taken for a word of the language.
fn quoted(text: &str) -> Option<String> {
    is_identifier(text).then(|| format!("\"{text}\""))
}

/// A key as text, whatever the column's type is: the server reads it as that.
#[derive(Debug)]
struct Key<'a>(&'a str);

impl ToSql for Key<'_> {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn StdError + Sync + Send>> {
        out.extend_from_slice(self.0.as_bytes());
        Ok(IsNull::No)
    }

    fn accepts(_: &Type) -> bool {
        true
    }

    fn encode_format(&self, _: &Type) -> Format {
        Format::Text
    }

    to_sql_checked!();
}

/// The bytes of a text, a document or plain bytes.
struct Raw(Vec<u8>);

impl<'a> FromSql<'a> for Raw {
    fn from_sql(kind: &Type, raw: &'a [u8]) -> Result<Self, Box<dyn StdError + Sync + Send>> {
        match (kind == &Type::JSONB, raw.split_first()) {
            // The first byte is the version of the format, which is text.
            (true, Some((1, text))) => Ok(Self(text.to_vec())),
            (true, _) => Err("an unknown format of jsonb".into()),
            (false, _) => Ok(Self(raw.to_vec())),
        }
    }

    fn accepts(kind: &Type) -> bool {
        let text = [Type::TEXT, Type::VARCHAR, Type::BPCHAR, Type::NAME, Type::JSON, Type::JSONB, Type::XML];
        text.contains(kind) || *kind == Type::BYTEA || kind.name() == "citext"
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::testing::object;
    use super::*;
    use crate::config::Scheme;

    #[test]
    fn names_are_checked_and_the_key_is_not_in_the_text() {
        let mut key = object(Scheme::Postgres, "app.config/it's/a;key");
        let question = Question::of(&key).unwrap();
        assert_eq!(question.key, "it's/a;key");
        let sql = r#"SELECT "value", NULL::int8 FROM "app"."config" WHERE "key" = $1 LIMIT 2"#;
        assert_eq!(question.sql(""), sql);
        let options = [("key_col", "k"), ("val_col", "v"), ("order_col", "rev")];
        key.options = options.map(|(name, text)| (name.to_owned(), text.to_owned())).into();
        let sql = r#"SELECT "v"::text, "rev"::int8 FROM "app"."config" WHERE "k" = $1 LIMIT 2"#;
        assert_eq!(Question::of(&key).unwrap().sql("::text"), sql);
        for bad in ["config", "a.b.c/k", "1a/k", "a b/k", "a\"b/k", "/k", "a./k"] {
            assert_eq!(Question::of(&object(Scheme::Postgres, bad)), None, "{bad}");
        }
        key.options.insert("val_col".to_owned(), "v; DROP TABLE t".to_owned());
        assert_eq!(Question::of(&key), None);
        assert!(is_identifier(&"a".repeat(63)) && !is_identifier(&"a".repeat(64)) && !is_identifier(""));
    }
}
