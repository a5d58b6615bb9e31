//! Username templates: the part of Go's template language that operators use to shape names.
//!
//! Text with `{{ … }}` actions; an action is a pipeline of calls, the result of one being the last argument of the
//! next. There are no conditions, loops or variables.

mod functions;
mod layout;
mod parse;

use std::fmt;

use jiff::Timestamp;

use crate::names::NameContext;
use parse::{Part, parse};

/// Why a template cannot be read or rendered.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum TemplateError {
    /// The text is not a template.
    #[error("username template: {0}")]
    Syntax(String),
    /// A function that does not exist.
    #[error("username template: function \"{0}\" not defined")]
    UnknownFunction(String),
    /// A field that does not exist.
    #[error("username template: field \".{0}\" not defined; there are .DisplayName and .RoleName")]
    UnknownField(String),
    /// A function was called with what it does not take.
    #[error("username template: {function}: {problem}")]
    Call {
        /// The function.
        function: String,
        /// What was wrong.
        problem: String,
    },
    /// The rendered name cannot be used.
    #[error("username template: {0}")]
    Unusable(String),
}

/// A value while a template is rendered.
#[derive(Clone, Debug, Eq, PartialEq)]
enum Value {
    Text(String),
    Number(i64),
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => f.write_str(text),
            Self::Number(number) => number.fmt(f),
        }
    }
}

/// An argument or command of a pipeline.
#[derive(Clone, Debug, Eq, PartialEq)]
enum Node {
    Literal(Value),
    Field(String),
    Call { function: String, arguments: Vec<Node> },
    Pipeline(Vec<Node>),
}

/// A template that was read and whose functions and fields all exist.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Template {
    parts: Vec<Part>,
}

impl Template {
    /// Reads a template.
    ///
    /// # Errors
    /// For bad syntax, unknown functions and unknown fields.
    pub fn parse(text: &str) -> Result<Self, TemplateError> {
        Ok(Self { parts: parse(text)? })
    }

    /// Renders the template for `context` at the instant `now`.
    ///
    /// # Errors
    /// When a function is called with what it does not take.
    pub fn render(&self, context: &NameContext, now: Timestamp) -> Result<String, TemplateError> {
        let mut out = String::new();
        for part in &self.parts {
            match part {
                Part::Text(text) => out.push_str(text),
                Part::Action(node) => out.push_str(&evaluate(node, None, context, now)?.to_string()),
            }
        }
        Ok(out)
    }
}

fn evaluate(
    node: &Node,
    piped: Option<Value>,
    context: &NameContext,
    now: Timestamp,
) -> Result<Value, TemplateError> {
    match node {
        Node::Literal(_) | Node::Field(_) if piped.is_some() => {
            Err(TemplateError::Syntax("only a function can take the result of a pipeline".to_owned()))
        }
        Node::Literal(value) => Ok(value.clone()),
        Node::Field(name) => match name.as_str() {
            "DisplayName" => Ok(Value::Text(context.display_name.clone())),
            "RoleName" => Ok(Value::Text(context.role_name.clone())),
            other => Err(TemplateError::UnknownField(other.to_owned())),
        },
        Node::Call { function, arguments } => {
            let mut values = Vec::with_capacity(arguments.len() + 1);
            for argument in arguments {
                values.push(evaluate(argument, None, context, now)?);
            }
            values.extend(piped);
            functions::call(function, &values, now)
        }
        Node::Pipeline(commands) => {
            let mut value = piped;
            for command in commands {
                value = Some(evaluate(command, value, context, now)?);
            }
            value.ok_or_else(|| TemplateError::Syntax("empty pipeline".to_owned()))
        }
    }
}

#[cfg(test)]
mod tests;
