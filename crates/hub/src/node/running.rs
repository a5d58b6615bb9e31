//! An unsealed node: services, gate, forwarding, and the order in which they go away.

use std::sync::Arc;
use std::time::Duration;

use holdfast_ops::Tasks;
use tokio::sync::Notify;

use super::Shared;
use super::backend::{BackendError, Opened, Opening, Peers};
use super::gate::Gates;
use crate::api::forward::Forwarding;
use crate::audit::Audit;
use crate::auth::token::Tokens;
use crate::barrier::keyring::SecretKey;
use crate::barrier::seal::{STORE_KEY, SealRecord};
use crate::barrier::{Barrier, Keyring};
use crate::hub::Hub;
use crate::lease::{LeaseSettings, Leases};
use crate::metrics::Metrics;
use crate::mount::{LeaseTtls, Mounts};
use crate::policy::Policies;
use crate::quota::Quotas;
use crate::relay::spokes::{Parts, Spokes};
use crate::relay::{Relay, leave};
use crate::storage::Storage;

/// How long requests may go on once the node seals.
const DRAIN: Duration = Duration::from_secs(10);
/// How long handing leadership over may take.
const HAND_OVER: Duration = Duration::from_secs(2);
/// How long background tasks may take to end.
const STOP: Duration = Duration::from_secs(5);

/// An unsealed node.
pub struct Running {
    /// The services.
    pub hub: Arc<Hub>,
    /// What runs only while this node is active.
    pub gates: Arc<Gates>,
    /// The way to the active node.
    pub forward: Arc<Forwarding>,
    /// The seal in force.
    pub record: SealRecord,
    /// Opens the seal; wiped when this value is dropped.
    pub root: SecretKey,
    /// The requests under way, and nothing else.
    pub requests: Tasks,
    barrier: Arc<Barrier>,
    peers: Arc<dyn Peers>,
    tasks: Tasks,
    /// Told when the seal in the store may differ from ours.
    pub(super) seal_changed: Arc<Notify>,
}

impl Running {
    /// Opens the store under an opened seal and starts the services.
    pub(super) async fn start(
        shared: &Shared,
        record: SealRecord,
        root: SecretKey,
        keyring: Keyring,
        opening: Opening,
    ) -> Result<Arc<Self>, BackendError> {
        let (tasks, metrics) = (opening.tasks.clone(), opening.metrics.clone());
        let door = Arc::clone(&opening.relay);
        let opened = shared.backend.open(opening).await?;
        let barrier = Barrier::opened(keyring);
        let hub = services(shared, &opened, (&record, &barrier), metrics, &tasks);
        crate::relay::start::start(&hub, Arc::clone(&opened.peers), &door, &tasks);
        let gates = Arc::new(Gates::new(Arc::clone(&hub), &tasks));
        let hold = shared.config.limits.forward_hold.get();
        let forward = Forwarding::new(Arc::clone(&hub), Arc::clone(&opened.peers), hold);
        let seal_changed = Arc::new(Notify::new());
        let changed = Arc::clone(&seal_changed);
        opened.store.on_applied(Arc::new(move |keys| {
            if keys.is_empty() || keys.contains(STORE_KEY) {
                changed.notify_one();
            }
        }));
        tasks.spawn_until_cancelled("gate", Arc::clone(&gates).follow());
        tasks.spawn_until_cancelled("forward", Arc::clone(&forward).run());
        tasks.spawn_until_cancelled("warm", crate::warm::run(Arc::clone(&hub), tasks.child("warm")));
        if !hub.audit.enabled().unwrap_or(true) {
            tracing::warn!("no audit device is enabled; requests are not recorded");
        }
        let peers = opened.peers;
        let requests = tasks.child("requests");
        Ok(Arc::new(Self {
            hub,
            gates,
            forward,
            record,
            root,
            requests,
            barrier,
            peers,
            tasks,
            seal_changed,
        }))
    }

    /// The owner of everything that runs while the node is unsealed.
    pub fn tasks(&self) -> &Tasks {
        &self.tasks
    }

    /// Hands leadership over when this node leads, within 2 s.
    pub async fn hand_over(&self) {
        if self.hub.cluster.view().active.is_none() {
            return;
        }
        match tokio::time::timeout(HAND_OVER, self.hub.handover.step_down(&*self.hub.cluster, 0)).await {
            Ok(Ok(())) => {}
            // A node alone has nobody to hand over to.
            Ok(Err(error)) => tracing::info!(%error, "leadership was not handed over"),
            Err(_) => tracing::warn!("handing leadership over took too long"),
        }
    }

    /// Stops: leadership, requests, background work, consensus, port, keys. New requests must be refused before.
    pub(super) async fn stop(&self) {
        self.hand_over().await;
        // Spokes first: what the next active node runs on them needs this node until they have moved.
        leave::tell(&self.hub, "hub node sealed");
        leave::end(&self.hub, "hub node sealed").await;
        self.gates.close();
        if let Err(error) = self.requests.stop(DRAIN).await {
            tracing::warn!(%error, "requests were cut");
        }
        self.peers.shutdown().await;
        self.hub.cluster.shutdown().await;
        if let Err(error) = self.tasks.stop(STOP).await {
            tracing::warn!(%error, "background tasks were cut");
        }
        self.barrier.seal();
    }

    /// Forgets the keys and nothing else: the end of a process that must not wait.
    pub fn wipe(&self) {
        self.barrier.seal();
    }
}

fn services(
    shared: &Shared,
    opened: &Opened,
    (record, barrier): (&SealRecord, &Arc<Barrier>),
    metrics: Metrics,
    tasks: &Tasks,
) -> Arc<Hub> {
    // Without the folder only backups fail, and say so.
    let scratch = shared.dir.scratch().unwrap_or_else(|_| shared.dir.path().to_owned());
    let storage = Storage::new(Arc::clone(&opened.store), Arc::clone(barrier));
    let config = &shared.config;
    let (default, max) = (config.lease.default_ttl.get(), config.lease.max_ttl.get());
    let ttls = LeaseTtls { default: default.as_secs(), max: max.as_secs() };
    let settings =
        LeaseSettings { revoke_workers: usize::try_from(config.lease.revoke_workers).unwrap_or(usize::MAX) };
    let spokes = Spokes::new(Parts {
        settings: config.relay.clone(),
        address: shared.address.cluster.clone(),
        cluster: Arc::clone(&opened.cluster),
        metrics: metrics.relay.clone(),
        tasks: tasks.child("streams"),
    });
    Arc::new(Hub {
        spokes,
        handover: crate::handover::Handover::default(),
        cluster: Arc::clone(&opened.cluster),
        mounts: Mounts::with_ttls(storage.clone(), ttls),
        policies: Policies::new(storage.clone()),
        tokens: Tokens::new(storage.clone()),
        leases: Leases::with_settings(storage.clone(), settings),
        audit: Audit::with(
            storage.clone(),
            tasks.child("audit"),
            metrics.clone(),
            config.audit.write_timeout.get(),
        )
        .under(record.clone()),
        quotas: Quotas::with_metrics(storage.clone(), metrics.clone()),
        relay: Relay::new(&storage, config.relay.clone()),
        metrics,
        scratch,
        storage,
    })
}
