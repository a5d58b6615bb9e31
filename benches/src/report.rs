//! The table and the file of results.

use std::path::Path;
use std::time::Duration;

use comfy_table::Table;
use serde::{Deserialize, Serialize};

/// One measured row.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Row {
    /// The id of the ledger, such as P-01.
    pub id: String,
    /// What was done.
    pub what: String,
    /// What was measured.
    pub measured: String,
    /// What it was measured against, in the same run.
    pub against: String,
    /// The bound.
    pub bound: String,
    /// Whether the bound was kept.
    pub kept: bool,
}

impl Row {
    /// A row.
    pub fn new(id: &str, what: &str, measured: String, against: String, bound: &str, kept: bool) -> Self {
        let (id, what, bound) = (id.to_owned(), what.to_owned(), bound.to_owned());
        Self { id, what, measured, against, bound, kept }
    }
}

/// A duration in milliseconds.
pub fn ms(d: Duration) -> String {
    let millis = d.as_secs_f64() * 1000.0;
    if millis < 10.0 { format!("{millis:.2} ms") } else { format!("{millis:.0} ms") }
}

/// Prints the table and writes the file; rows of earlier runs that were not measured now are kept.
pub fn publish(role: &str, rows: &[Row]) {
    let path = format!("benches/results/{role}.json");
    let earlier: Results =
        std::fs::read(&path).ok().and_then(|b| serde_json::from_slice(&b).ok()).unwrap_or_default();
    let mut all: Vec<Row> =
        earlier.rows.into_iter().filter(|old| !rows.iter().any(|new| same(new, old))).collect();
    all.extend(rows.iter().cloned());
    all.sort_by(|a, b| a.id.cmp(&b.id));
    let results = Results { machine: machine(), rows: all };
    let mut table = Table::new();
    table.set_header(["id", "load", "measured", "against", "bound", "kept"]);
    for row in rows {
        let kept = if row.kept { "yes" } else { "NO" };
        table.add_row([&row.id, &row.what, &row.measured, &row.against, &row.bound, kept]);
    }
    println!("\n{table}\n{}", results.machine);
    if Path::new("benches").is_dir() {
        std::fs::create_dir_all("benches/results").unwrap();
        std::fs::write(&path, serde_json::to_string_pretty(&results).unwrap() + "\n").unwrap();
        println!("written to {path}");
    }
}

#[derive(Default, Deserialize, Serialize)]
struct Results {
    machine: String,
    rows: Vec<Row>,
}

fn same(a: &Row, b: &Row) -> bool {
    (&a.id, &a.what) == (&b.id, &b.what)
}

fn machine() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model =
        info.lines().find_map(|l| l.strip_prefix("model name")?.split_once(": ").map(|(_, m)| m.to_owned()));
    let cores = info.lines().filter(|l| l.starts_with("processor")).count();
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    format!("{cores} cores, {}, Linux {}", model.unwrap_or_else(|| "unknown processor".into()), kernel.trim())
}
