//! What `/v1/status` shows of the parts that requests do not touch.

use std::sync::Arc;

use arc_swap::ArcSwap;
use aws_lc_rs::hmac;
use holdfast_core::{AnswerKind, Wall};
use parking_lot::Mutex;

use super::listen::Bound;
use crate::api::{StatusSource, UpstreamView};
use crate::clock::wall;
use crate::config::ConfigSettings;
use crate::load::key_file::{self, KeyError};
use crate::upstream::engine::Engine;
use crate::wire::date;

/// The state behind the view.
pub(crate) struct Inside {
    node: String,
    started_at: Wall,
    bound: Vec<Bound>,
    engine: Arc<Engine>,
    fleet_key: ArcSwap<Option<Arc<hmac::Key>>>,
    reloads: Mutex<Reloaded>,
    render: Mutex<Option<Arc<dyn Fn() -> String + Send + Sync>>>,
}

#[derive(Default)]
struct Reloaded {
    at: Option<Wall>,
    error: Option<String>,
    restart_required: Vec<String>,
}

impl Inside {
    pub(super) fn new(
        node: String,
        started_at: Wall,
        bound: Vec<Bound>,
        engine: Arc<Engine>,
        fleet_key: Option<Arc<hmac::Key>>,
    ) -> Self {
        let (reloads, render) = (Mutex::default(), Mutex::new(None));
        Self { node, started_at, bound, engine, fleet_key: ArcSwap::from_pointee(fleet_key), reloads, render }
    }

    /// Another configuration counts.
    pub(super) fn applied(&self, restart_required: Vec<String>, fleet_key: Option<Arc<hmac::Key>>) {
        self.fleet_key.store(Arc::new(fleet_key));
        *self.reloads.lock() = Reloaded { at: Some(wall()), error: None, restart_required };
    }

    /// A configuration was rejected.
    pub(super) fn rejected(&self, error: String) {
        self.reloads.lock().error = Some(error);
    }

    /// How meters are shown.
    pub(super) fn render_with(&self, render: Arc<dyn Fn() -> String + Send + Sync>) {
        *self.render.lock() = Some(render);
    }
}

/// The key of value digests, if the settings name one.
pub(super) fn fleet_key(settings: &ConfigSettings) -> Result<Option<Arc<hmac::Key>>, KeyError> {
    let Some(path) = &settings.fleet.key_file else { return Ok(None) };
    let key = key_file::read(path)?;
    Ok(Some(Arc::new(hmac::Key::new(hmac::HMAC_SHA256, &*key))))
}

impl StatusSource for Inside {
    fn node(&self) -> String {
        self.node.clone()
    }

    fn started_at(&self) -> Wall {
        self.started_at
    }

    fn loaded_at(&self) -> Wall {
        self.reloads.lock().at.unwrap_or(self.started_at)
    }

    fn restart_required(&self) -> Vec<String> {
        self.reloads.lock().restart_required.clone()
    }

    fn last_reload_error(&self) -> Option<String> {
        self.reloads.lock().error.clone()
    }

    fn listening(&self) -> Vec<String> {
        self.bound.iter().map(ToString::to_string).collect()
    }

    fn upstreams(&self) -> Vec<UpstreamView> {
        let view = |status: crate::upstream::UpstreamStatus| UpstreamView {
            name: status.name.to_string(),
            scheme: status.kind.name().to_owned(),
            state: if status.down { "down" } else { "up" },
            since: date(status.since),
            last_error_kind: status.last_error.map(AnswerKind::label),
            bindings: status.bindings,
            calls_per_minute: status.calls_per_minute,
        };
        self.engine.upstreams().into_iter().map(view).collect()
    }

    fn fleet_key(&self) -> Option<Arc<hmac::Key>> {
        Option::clone(&self.fleet_key.load())
    }

    fn metrics(&self) -> String {
        let render = self.render.lock().clone();
        render.map(|render| render()).unwrap_or_default()
    }
}
