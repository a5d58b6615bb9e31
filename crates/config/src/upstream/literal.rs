//! `static:`: the text of the reference is the value.

use async_trait::async_trait;
use holdfast_core::freshness::Outcome;

use crate::provider::{Fetched, Pace, Provider};
use crate::reference::ObjectKey;
use crate::value::{Secret, Value};

/// Gives what stands in the reference.
#[derive(Clone, Copy, Debug, Default)]
pub struct Literal;

#[async_trait]
impl Provider for Literal {
    async fn fetch(&self, object: &ObjectKey, _held: Option<&Value>) -> Fetched {
        let bytes = Secret::new(object.path.clone().into_bytes());
        Outcome::Value { value: Value { bytes, ..Value::default() }, passed: None }.into()
    }

    fn pace(&self) -> Pace {
        Pace { shared_fate: false, ..Pace::default() }
    }
}
