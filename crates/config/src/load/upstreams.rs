//! `[upstream.NAME]`: which keys a type has, which of them it must have, and their bounds.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use holdfast_ops::config::closest;

use super::Upstream;
use super::bounds::Bounds;
use super::report::Report;
use crate::binding::scheme::UpstreamKind;
use crate::config::{ConfigSettings, UpstreamSettings};
use crate::policy::glob::Glob;

const COMMON: [&str; 4] = ["type", "concurrency", "confirm", "watch_idle"];
const LOGINS: [&str; 4] = ["token_file", "approle", "kubernetes", "cert"];
const CONCURRENCY: u32 = 16;
const CONFIRM: Duration = Duration::from_secs(60);
const WATCH_IDLE: Duration = Duration::from_secs(45);
const CONFIRM_BOUNDS: Bounds = Bounds::new(Duration::from_secs(5), Duration::from_secs(3600), "5s to 1h");
const WATCH_IDLE_BOUNDS: Bounds = Bounds::new(Duration::from_secs(5), Duration::from_secs(600), "5s to 10m");

/// The keys of a type besides those that all have; the first list is mandatory.
const fn keys(kind: UpstreamKind) -> (&'static [&'static str], &'static [&'static str]) {
    match kind {
        UpstreamKind::Vault | UpstreamKind::Hub => (
            &["addrs"],
            &["namespace", "ca_file", "token_file", "approle", "kubernetes", "cert", "revoke_on_exit"],
        ),
        UpstreamKind::Http => {
            (&["base_url"], &["headers", "bearer_file", "basic_file", "sensitive", "allow_insecure"])
        }
        UpstreamKind::Etcd | UpstreamKind::Redis => (&["addrs"], &["user", "password_file", "tls"]),
        UpstreamKind::Consul => (&["addrs"], &["token_file", "tls"]),
        UpstreamKind::Postgres => (&["dsn_file"], &["channel", "sensitive"]),
        UpstreamKind::Kube => (&[], &["kubeconfig"]),
        UpstreamKind::File => (&["roots"], &[]),
        UpstreamKind::Env => (&["allow"], &[]),
        UpstreamKind::Exec => (&["allow"], &["enabled", "env"]),
        UpstreamKind::Holdfast => (&["endpoints"], &["token_file", "tls"]),
        UpstreamKind::Test => (&["socket"], &[]),
        UpstreamKind::Aws | UpstreamKind::Static => (&[], &[]),
    }
}

/// Checks all upstreams. One whose type is wrong is left out.
pub fn check(settings: &ConfigSettings, report: &mut Report<'_>) -> BTreeMap<Arc<str>, Upstream> {
    let mut all = BTreeMap::new();
    for (name, upstream) in &settings.upstream {
        let Some(kind) = kind_of(name, upstream, report) else {
            report.doubt_upstreams();
            continue;
        };
        check_keys(name, kind, report);
        check_rules(name, kind, upstream, report);
        let checked = checked(name, kind, upstream, report);
        all.insert(Arc::clone(&checked.name), checked);
    }
    let literal = implicit();
    all.insert(Arc::clone(&literal.name), literal);
    all
}

/// What answers `static:`.
fn implicit() -> Upstream {
    let settings =
        UpstreamSettings { kind: UpstreamKind::Static.name().to_owned(), ..UpstreamSettings::default() };
    Upstream {
        name: UpstreamKind::Static.name().into(),
        kind: UpstreamKind::Static,
        concurrency: usize::try_from(CONCURRENCY).unwrap_or(usize::MAX),
        confirm: CONFIRM,
        watch_idle: WATCH_IDLE,
        settings,
    }
}

fn kind_of(name: &str, upstream: &UpstreamSettings, report: &mut Report<'_>) -> Option<UpstreamKind> {
    let path = ["upstream", name, "type"];
    if name == UpstreamKind::Static.name() {
        report.error_at_key(&["upstream", name], "upstream \"static\": the name is taken");
        return None;
    }
    if upstream.kind.is_empty() {
        if !report.is_wrong(&path) {
            report.error(&["upstream", name], format!("upstream \"{name}\": type is required"));
        }
        return None;
    }
    let known = UpstreamKind::DECLARABLE.map(UpstreamKind::name);
    let kind = UpstreamKind::of(&upstream.kind);
    match kind {
        None => {
            let hint = closest(&upstream.kind, &known).map(|name| format!(": did you mean {name}?"));
            let (kind, hint) = (upstream.kind.escape_debug(), hint.unwrap_or_default());
            report.error(&path, format!("upstream \"{name}\": unknown type \"{kind}\"{hint}"));
            None
        }
        Some(kind) if !kind.is_built_in() => {
            let kind = kind.name();
            report.error(&path, format!("upstream \"{name}\": type \"{kind}\" is not built in"));
            None
        }
        kind => kind,
    }
}

fn check_keys(name: &str, kind: UpstreamKind, report: &mut Report<'_>) {
    let (mandatory, others) = keys(kind);
    for key in report.tree().keys(&["upstream", name]) {
        let known = [&COMMON[..], mandatory, others].iter().any(|keys| keys.contains(&key.as_str()));
        let path = ["upstream", name, &key];
        // A key that no type has was reported by the parser.
        if !known && !report.is_told(&path) {
            let text = format!("upstream \"{name}\": {key} is not for type \"{}\"", kind.name());
            report.error_at_key(&path, text);
        }
    }
    for key in mandatory {
        let path = ["upstream", name, key];
        if !report.tree().is_set(&path) && !report.is_wrong(&path) {
            report.error(&["upstream", name], format!("upstream \"{name}\": {key} is required"));
        }
    }
}

fn check_rules(name: &str, kind: UpstreamKind, upstream: &UpstreamSettings, report: &mut Report<'_>) {
    let path = ["upstream", name];
    let empty = match kind {
        UpstreamKind::File => upstream.roots.is_empty().then_some("roots"),
        UpstreamKind::Env => upstream.allow.is_empty().then_some("allow"),
        UpstreamKind::Holdfast => upstream.endpoints.is_empty().then_some("endpoints"),
        _ => None,
    };
    if let Some(key) = empty.filter(|key| report.tree().is_set(&["upstream", name, key])) {
        let at = ["upstream", name, key];
        if !report.is_wrong(&at) {
            report.error(&at, format!("upstream \"{name}\": {key} is empty"));
        }
    }
    match kind {
        UpstreamKind::Vault | UpstreamKind::Hub => {
            let set = LOGINS.iter().filter(|key| report.tree().is_set(&["upstream", name, key])).count();
            if set != 1 {
                let logins = LOGINS.join(", ");
                report.error(&path, format!("upstream \"{name}\": set one of {logins}"));
            }
        }
        UpstreamKind::Http if upstream.bearer_file.is_some() && upstream.basic_file.is_some() => {
            report.error(&path, format!("upstream \"{name}\": set one of bearer_file, basic_file"));
        }
        UpstreamKind::Env => {
            for (index, glob) in
                upstream.allow.iter().enumerate().filter(|(_, glob)| Glob::new(glob).is_err())
            {
                let at = ["upstream", name, "allow", &index.to_string()];
                let text = format!("upstream \"{name}\": bad glob \"{}\"", glob.escape_debug());
                report.error(&at, text);
            }
        }
        UpstreamKind::Exec => {
            for (index, program) in
                upstream.allow.iter().enumerate().filter(|(_, path)| !path.starts_with('/'))
            {
                let at = ["upstream", name, "allow", &index.to_string()];
                let program = program.escape_debug();
                report.error(&at, format!("upstream \"{name}\": \"{program}\" is not an absolute path"));
            }
        }
        _ => {}
    }
}

fn checked(name: &str, kind: UpstreamKind, upstream: &UpstreamSettings, report: &mut Report<'_>) -> Upstream {
    let concurrency = upstream.concurrency.unwrap_or(CONCURRENCY);
    if !(1..=256).contains(&concurrency) {
        let text = format!("upstream \"{name}\": concurrency is {concurrency}, out of bounds: use 1 to 256");
        report.error(&["upstream", name, "concurrency"], text);
    }
    let mut span = |key: &str, value: Option<holdfast_ops::Duration>, usual, bounds: &Bounds| {
        let value = value.map_or(usual, holdfast_ops::Duration::get);
        if let Some(complaint) = bounds.complaint(value) {
            report.error(&["upstream", name, key], format!("upstream \"{name}\": {key} {complaint}"));
        }
        value
    };
    let confirm = span("confirm", upstream.confirm, CONFIRM, &CONFIRM_BOUNDS);
    let watch_idle = span("watch_idle", upstream.watch_idle, WATCH_IDLE, &WATCH_IDLE_BOUNDS);
    Upstream {
        name: name.into(),
        kind,
        concurrency: usize::try_from(concurrency).unwrap_or(usize::MAX),
        confirm,
        watch_idle,
        settings: upstream.clone(),
    }
}
