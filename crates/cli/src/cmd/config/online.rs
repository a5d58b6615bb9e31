//! `config check --online`: what each upstream gave when it was asked once; never a value.

use std::time::Duration;

use holdfast_config::load::Configuration;
use holdfast_config::upstream::engine::Setup;
use holdfast_config::upstream::meter::Ending;
use holdfast_config::upstream::online::{Attempted, attempt_all};
use holdfast_ops::Tasks;
use serde_json::{Value, json};

use crate::output::{Failure, table};

/// How long connections may take to end.
const END: Duration = Duration::from_secs(1);

/// Asks for every object. An upstream that cannot be built is a wrong configuration.
pub async fn attempt(configuration: &Configuration) -> Result<Vec<Attempted>, Failure> {
    let tasks = Tasks::new("check");
    let attempted = attempt_all(configuration, &tasks, Setup::default()).await;
    // What does not end by then ends with the process.
    let _ = tasks.stop(END).await;
    attempted.map_err(|error| Failure::from(anyhow::Error::from(error)).coded(holdfast_ops::exit::CONFIG))
}

/// Whether every object is there.
pub fn all_there(attempted: &[Attempted]) -> bool {
    attempted.iter().all(|one| one.ending == Ending::Value)
}

/// For people.
pub fn rows(attempted: &[Attempted]) -> String {
    let row = |one: &Attempted| {
        let bytes = one.bytes.map(|bytes| bytes.to_string()).unwrap_or_default();
        vec![one.object.to_string(), one.ending.label().to_owned(), bytes, one.bindings.join(" ")]
    };
    table(&["OBJECT", "RESULT", "BYTES", "BINDINGS"], attempted.iter().map(row))
}

/// For machines.
pub fn json(attempted: &[Attempted]) -> Value {
    let one = |one: &Attempted| {
        let bindings: Vec<&str> = one.bindings.iter().map(|name| &**name).collect();
        json!({"object": one.object.to_string(), "result": one.ending.label(), "bytes": one.bytes, "bindings": bindings})
    };
    attempted.iter().map(one).collect()
}
