//! The engine: a task for each object that the bindings need, a gate for each upstream, one set of cells.
//!
//! What must hold: bindings that differ in their fragment only share one object, one call and one watch; a new
//! configuration leaves the objects of unchanged bindings alone; nothing of it is applied when a part cannot be built.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use holdfast_core::polling::smallest;
use holdfast_core::readiness::Answer;
use holdfast_core::time::Spread;
use holdfast_ops::Tasks;
use parking_lot::Mutex;
use tokio::sync::watch;

use super::cells::{Cells, Tally};
use super::gate::{self, Gate, UpstreamStatus};
use super::meter::Meter;
use super::object::{Control, Object, Plan, Shared};
use super::{BuildError, ObjectId};
use crate::binding::{Binding, BindingRules};
use crate::clock::{Clock, SystemClock};
use crate::fanout::board::Board;
use crate::lkg::{Keeper, Source};
use crate::load::{Configuration, Upstream};
use crate::policy::glob::Glob;
use crate::provider::Provider;
use crate::reference::{Fragment, ObjectKey};

/// Makes the provider of an upstream.
pub type Builder = dyn Fn(&Upstream, &Tasks) -> Result<Arc<dyn Provider>, BuildError> + Send + Sync;

/// What an engine takes from outside.
pub struct Setup {
    /// The time; the machine's clocks.
    pub clock: Arc<dyn Clock>,
    /// Who counts; nobody.
    pub meter: Arc<dyn Meter>,
    /// What all jitter follows from; random.
    pub seed: u64,
    /// Makes providers; [`super::build`].
    pub builder: Arc<Builder>,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            clock: Arc::new(SystemClock::default()),
            meter: Arc::new(()),
            seed: u64::from_le_bytes(holdfast_ops::rand::bytes()),
            builder: Arc::new(|upstream, tasks| super::build(&upstream.name, &upstream.settings, tasks)),
        }
    }
}

/// The running engine.
pub struct Engine {
    shared: Shared,
    builder: Arc<Builder>,
    /// The objects' tasks end before the others.
    objects: Tasks,
    others: Tasks,
    keeper: Option<Keeper>,
    running: Mutex<Running>,
}

#[derive(Default)]
struct Running {
    upstreams: BTreeMap<Arc<str>, Arc<Gate>>,
    objects: BTreeMap<ObjectKey, Handle>,
    last: ObjectId,
    seeds: Option<Spread>,
}

/// A running object.
struct Handle {
    id: ObjectId,
    gate: Arc<Gate>,
    control: Arc<Control>,
    tasks: Tasks,
    members: Members,
}

/// The bindings of an object, with everything on which what they make of it depends.
type Members = BTreeMap<Arc<str>, (Option<Fragment>, BindingRules)>;

/// An object as a configuration wants it.
#[derive(Default)]
struct Wanted<'a> {
    bindings: Vec<&'a Binding>,
}

impl Engine {
    /// Starts everything that the configuration asks for. The board has all its names when this returns.
    ///
    /// # Errors
    /// When an upstream cannot be built; nothing was started then.
    pub fn start(
        configuration: &Arc<Configuration>,
        board: Arc<Board>,
        tasks: &Tasks,
        setup: Setup,
    ) -> Result<Self, BuildError> {
        let Setup { clock, meter, seed, builder } = setup;
        let required = required(configuration);
        let priming = configuration.settings.readiness.priming_deadline.get();
        let cells = Arc::new(Cells::new(board, Arc::clone(&clock), priming, required));
        let others = tasks.child("upstream");
        let source: Arc<dyn Source> = Arc::clone(&cells) as Arc<dyn Source>;
        let engine = Self {
            keeper: Keeper::open(&configuration.settings, source, Arc::clone(&clock), &others),
            shared: Shared { cells, clock, meter },
            builder,
            objects: others.child("objects"),
            others,
            running: Mutex::new(Running { seeds: Some(Spread::new(seed)), ..Running::default() }),
        };
        engine.take(configuration, true).inspect_err(|_| engine.others.cancel())?;
        let cells = Arc::clone(&engine.shared.cells);
        engine.others.spawn_until_cancelled("cells", async move { cells.drive().await });
        if let Some(keeper) = &engine.keeper {
            engine.others.spawn_until_cancelled("last-known-good", keeper.clone().keep());
        }
        Ok(engine)
    }

    /// Applies another configuration.
    ///
    /// # Errors
    /// When an upstream cannot be built; nothing was changed then.
    pub fn apply(&self, configuration: &Arc<Configuration>) -> Result<(), BuildError> {
        self.take(configuration, false)
    }

    /// What `/v1/readyz` answers, from now on.
    pub fn readiness(&self) -> watch::Receiver<Answer> {
        self.shared.cells.readiness()
    }

    /// Begins to go down: `/v1/readyz` says so at once, and everything else goes on.
    pub fn drain(&self) {
        self.shared.cells.drain();
    }

    /// All upstreams, by name.
    pub fn upstreams(&self) -> Vec<UpstreamStatus> {
        let running = self.running.lock();
        let bindings = |gate: &Arc<Gate>| {
            let own = running.objects.values().filter(|handle| Arc::ptr_eq(&handle.gate, gate));
            own.map(|handle| handle.members.len()).sum()
        };
        running.upstreams.values().map(|gate| gate.status(bindings(gate))).collect()
    }

    /// What became of the values in the last-known-good file.
    pub fn restored(&self) -> Tally {
        self.shared.cells.tally()
    }

    /// Ends all tasks, gives leases back where that is wished, and writes the last-known-good file. What does not end
    /// within `deadline` is aborted.
    pub async fn stop(&self, deadline: Duration) {
        for handle in self.running.lock().objects.values() {
            handle.control.stopping.store(true, Ordering::Relaxed);
        }
        if let Err(unfinished) = self.objects.stop(deadline).await {
            tracing::info!(%unfinished, "upstream tasks were aborted");
        }
        let _ = self.others.stop(deadline).await;
        if let Some(keeper) = &self.keeper {
            keeper.write_last().await;
        }
    }

    fn take(&self, configuration: &Configuration, first: bool) -> Result<(), BuildError> {
        let mut running = self.running.lock();
        let upstreams = self.gates(&running, configuration)?;
        let mut wanted = BTreeMap::<&ObjectKey, Wanted<'_>>::new();
        for binding in configuration.bindings.values() {
            wanted.entry(&binding.reference.object).or_default().bindings.push(binding);
        }
        for key in wanted.keys() {
            if !upstreams.contains_key(&*key.upstream) {
                return Err(BuildError::setting(&key.upstream, "type", "is missing"));
            }
        }
        running.upstreams = upstreams;
        let mut before = std::mem::take(&mut running.objects);
        let (mut assigned, mut started, mut told) = (Vec::new(), Vec::new(), Vec::new());
        for (key, wanted) in wanted {
            let Some(gate) = running.upstreams.get(&*key.upstream).cloned() else { continue };
            let (plan, members) = (wanted.plan(&gate), wanted.members());
            let same = before.get(key).is_some_and(|handle| Arc::ptr_eq(&handle.gate, &gate));
            let handle = match same.then(|| before.remove(key)).flatten() {
                Some(handle) => {
                    let joined = members.iter().any(|(name, own)| handle.members.get(name) != Some(own));
                    told.push((Arc::clone(&handle.control), plan, joined));
                    Handle { members, ..handle }
                }
                None => {
                    let handle = self.handle(&mut running, gate, members);
                    started.push((key.clone(), plan));
                    handle
                }
            };
            assigned.extend(wanted.bindings.into_iter().map(|binding| (binding, handle.id)));
            running.objects.insert(key.clone(), handle);
        }
        for gate in running.upstreams.values() {
            gate.set_objects(
                running.objects.values().filter(|handle| Arc::ptr_eq(&handle.gate, gate)).count(),
            );
        }
        // From here on outcomes of objects that are gone reach nobody.
        self.shared.cells.assign(assigned);
        match first {
            true => self.restore(),
            false => self.shared.cells.expect(required(configuration).collect()),
        }
        told.into_iter().for_each(|(control, plan, joined)| control.set(plan, joined));
        for (key, plan) in started {
            self.spawn(&mut running, key, plan);
        }
        drop(running);
        // Also those whose upstream is another one now.
        before.into_values().for_each(|handle| handle.tasks.cancel());
        Ok(())
    }

    /// The gates of a configuration; those of unchanged upstreams stay.
    fn gates(
        &self,
        running: &Running,
        configuration: &Configuration,
    ) -> Result<BTreeMap<Arc<str>, Arc<Gate>>, BuildError> {
        let gates = configuration.upstreams.iter().map(|(name, upstream)| {
            let files = gate::files(&upstream.settings);
            let same = running.upstreams.get(name);
            let same = same.filter(|gate| gate.upstream == *upstream && gate.files == files);
            let gate = match same {
                Some(gate) => Arc::clone(gate),
                None => {
                    let provider = (self.builder)(upstream, &self.others)?;
                    Arc::new(Gate::new(upstream.clone(), provider, files, Arc::clone(&self.shared.clock)))
                }
            };
            Ok((Arc::clone(name), gate))
        });
        gates.collect()
    }

    fn handle(&self, running: &mut Running, gate: Arc<Gate>, members: Members) -> Handle {
        running.last = running.last.next();
        Handle {
            id: running.last,
            gate,
            control: Arc::default(),
            tasks: self.objects.child("object"),
            members,
        }
    }

    fn spawn(&self, running: &mut Running, key: ObjectKey, plan: Plan) {
        let seed = running.seeds.as_mut().map(Spread::bits).unwrap_or_default();
        let Some(handle) = running.objects.get(&key) else { return };
        let (gate, control) = (Arc::clone(&handle.gate), Arc::clone(&handle.control));
        let object = Object::new(handle.id, key, gate, self.shared.clone(), control, (plan, seed));
        handle.tasks.spawn("read", object.run(handle.tasks.clone()));
    }

    fn restore(&self) {
        if let Some(keeper) = &self.keeper {
            self.shared.cells.restore(keeper.read());
        }
    }
}

impl Wanted<'_> {
    fn plan(&self, gate: &Gate) -> Plan {
        let rules = || self.bindings.iter().map(|binding| &binding.rules);
        let floor = gate.provider.pace().poll_floor;
        let default = BindingRules::default();
        Plan {
            poll: smallest(rules().map(|rules| rules.poll), floor).unwrap_or(default.poll),
            timeout: rules().map(|rules| rules.timeout).max().unwrap_or(default.timeout),
        }
    }

    fn members(&self) -> Members {
        let members = self
            .bindings
            .iter()
            .map(|binding| (Arc::clone(&binding.name), (binding.reference.fragment.clone(), binding.rules)));
        members.collect()
    }
}

/// All bindings, each with whether it matches `readiness.require`.
fn required(configuration: &Configuration) -> impl Iterator<Item = (Arc<str>, bool)> {
    let globs: Vec<Glob> =
        configuration.settings.readiness.require.iter().filter_map(|text| Glob::new(text).ok()).collect();
    configuration.bindings.keys().map(move |name| {
        let required = globs.iter().any(|glob| glob.matches(name.as_bytes()));
        (Arc::clone(name), required)
    })
}

#[cfg(test)]
mod tests;
