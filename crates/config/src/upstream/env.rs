//! `env:`: a variable of the server's own environment. Which ones a reference may name is checked when it is loaded.

use std::os::unix::ffi::OsStringExt as _;

use async_trait::async_trait;
use holdfast_core::freshness::Outcome;

use super::content;
use crate::provider::{Fetched, Pace, Provider};
use crate::reference::ObjectKey;
use crate::value::Value;

/// Gives variables of the process, which never change while it runs.
#[derive(Clone, Copy, Debug, Default)]
pub struct Env;

#[async_trait]
impl Provider for Env {
    async fn fetch(&self, object: &ObjectKey, _held: Option<&Value>) -> Fetched {
        match std::env::var_os(&object.path) {
            Some(text) => content::hashed(text.into_vec(), false).into(),
            None => Outcome::Absent.into(),
        }
    }

    fn pace(&self) -> Pace {
        Pace { shared_fate: false, ..Pace::default() }
    }
}
