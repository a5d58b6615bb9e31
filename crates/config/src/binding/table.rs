//! The table of bindings: every declared name with a reference that can be followed and rules within their bounds.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use holdfast_ops::ByteSize;

use super::reference::{BadReference, Upstreams, Written};
use super::{Binding, BindingRules, name};
use crate::config::{BindingDefaults, BindingEntry, BindingTable, ConfigSettings, OnAbsent};
use crate::load::bounds::Bounds;
use crate::load::report::Report;
use crate::reference::Reference;

const POLL: Bounds = Bounds::new(Duration::from_secs(1), Duration::from_secs(86_400), "1s to 24h");
const TIMEOUT: Bounds = Bounds::new(Duration::from_millis(100), Duration::from_secs(120), "100ms to 120s");
const MAX_STALE: Bounds =
    Bounds::new(Duration::ZERO, Duration::from_secs(30 * 86_400), "0s for none, to 30d");
const LEAST_MAX_VALUE: u64 = 1 << 10;
const MOST_MAX_VALUE: u64 = 16 << 20;
/// What fits into a frame of a stream in base64, with the fields around it.
const FITS_A_FRAME: u64 = 700_000;

/// The rules of `defaults.`, with ours where it says nothing.
pub fn defaults(settings: &BindingDefaults) -> BindingRules {
    Own::from(settings).over(&BindingRules::default())
}

/// Checks all bindings. Those that are wrong are left out, since the whole configuration is refused then.
pub fn build(settings: &ConfigSettings, report: &mut Report<'_>) -> BTreeMap<Arc<str>, Binding> {
    if settings.bindings.is_empty() && !settings.allow_empty && !report.is_wrong(&["bindings"]) {
        report.error(&["bindings"], "no bindings (allow_empty = true permits this)");
    }
    let usual = defaults(&settings.defaults);
    Own::from(&settings.defaults).check(&["defaults"], "defaults: ", report);
    let mut table = BTreeMap::new();
    for (name, entry) in &settings.bindings {
        let shown = format!("binding \"{}\": ", name.escape_debug());
        if !name::is_name(name) {
            report.error_at_key(&["bindings", name], format!("{shown}bad name"));
        }
        let path = ["bindings", name, "ref"];
        let (text, own) = match entry {
            BindingEntry::Reference(text) => (text, Own::default()),
            BindingEntry::Table(table) => (&table.reference, Own::from(&**table)),
        };
        own.check(&["bindings", name], &shown, report);
        match read(&text.0, settings) {
            Ok((written, reference)) => {
                let binding = Binding {
                    name: Arc::from(name.as_str()),
                    reference,
                    rules: own.over(&usual),
                    declared: report.place(&["bindings", name]).line(),
                    ref_digest: written.digest(),
                };
                table.insert(Arc::clone(&binding.name), binding);
            }
            // It follows from what is reported of an upstream.
            Err(BadReference::NoUpstream(_) | BadReference::UnknownUpstream(_)) if report.is_doubtful() => {}
            Err(error) => report.error(&path, format!("{shown}{error}")),
        }
    }
    table
}

fn read(text: &str, settings: &ConfigSettings) -> Result<(Written, Reference), BadReference> {
    let written = Written::parse(text)?;
    let reference = written.resolve(&Upstreams::new(&settings.upstream), settings.allow_chaining)?;
    Ok((written, reference))
}

/// The rules that were written.
#[derive(Clone, Copy, Default)]
struct Own {
    poll: Option<holdfast_ops::Duration>,
    timeout: Option<holdfast_ops::Duration>,
    max_stale: Option<holdfast_ops::Duration>,
    on_absent: Option<OnAbsent>,
    sensitive: Option<bool>,
    persist: Option<bool>,
    max_value_bytes: Option<ByteSize>,
}

impl From<&BindingTable> for Own {
    fn from(table: &BindingTable) -> Self {
        Self {
            poll: table.poll,
            timeout: table.timeout,
            max_stale: table.max_stale,
            on_absent: table.on_absent,
            sensitive: table.sensitive,
            persist: table.persist,
            max_value_bytes: table.max_value_bytes,
        }
    }
}

impl From<&BindingDefaults> for Own {
    fn from(defaults: &BindingDefaults) -> Self {
        Self {
            poll: defaults.poll,
            timeout: defaults.timeout,
            max_stale: defaults.max_stale,
            on_absent: defaults.on_absent,
            sensitive: defaults.sensitive,
            persist: defaults.persist,
            max_value_bytes: defaults.max_value_bytes,
        }
    }
}

impl Own {
    /// These rules, and the usual ones where nothing was written.
    fn over(self, usual: &BindingRules) -> BindingRules {
        let max_stale = |span: holdfast_ops::Duration| Some(span.get()).filter(|span| !span.is_zero());
        BindingRules {
            poll: self.poll.map_or(usual.poll, holdfast_ops::Duration::get),
            timeout: self.timeout.map_or(usual.timeout, holdfast_ops::Duration::get),
            max_stale: self.max_stale.map_or(usual.max_stale, max_stale),
            on_absent: self.on_absent.unwrap_or(usual.on_absent),
            sensitive: self.sensitive.or(usual.sensitive),
            persist: self.persist.unwrap_or(usual.persist),
            max_value_bytes: self.max_value_bytes.map_or(usual.max_value_bytes, ByteSize::as_usize),
        }
    }

    fn check(self, at: &[&str], shown: &str, report: &mut Report<'_>) {
        let path = |key: &'static str| [at, &[key]].concat();
        let spans = [
            ("poll", self.poll, POLL),
            ("timeout", self.timeout, TIMEOUT),
            ("max_stale", self.max_stale, MAX_STALE),
        ];
        for (key, value, bounds) in spans {
            if let Some(complaint) = value.and_then(|value| bounds.complaint(value.get())) {
                report.error(&path(key), format!("{shown}{key} {complaint}"));
            }
        }
        let Some(size) = self.max_value_bytes else { return };
        let at = path("max_value_bytes");
        if !(LEAST_MAX_VALUE..=MOST_MAX_VALUE).contains(&size.get()) {
            let text = format!("{shown}max_value_bytes is {size}, out of bounds: use 1KiB to 16MiB");
            report.error(&at, text);
        } else if size.get() > FITS_A_FRAME {
            let text = format!(
                "{shown}max_value_bytes is over 700000: streams leave such values out unless the client raises max_frame"
            );
            report.warning(&at, text);
        }
    }
}
