//! Audit: one line for each request and each response, or nothing happens.
//!
//! Contract: an entry counts when at least one enabled device took it in time; when none did the caller gets an
//! error and must not go on. A device that does not answer delays a caller once, by at most the write timeout.

mod device;
pub mod entry;
mod file;
mod line;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use holdfast_ops::Tasks;
use parking_lot::Mutex;
use tokio::time::{Instant, timeout_at};

use crate::auth::token::Token;
use crate::barrier::seal::{STORE_KEY, SealRecord};
use crate::cached::Cached;
use crate::error::ApiError;
use crate::logical::{Request, Response};
use crate::metrics::{DeviceState, Metrics};
use crate::relay::work::Work;
use crate::storage::{Storage, StorageError};
use crate::wall;
use device::Device;
use entry::DeviceEntry;
use line::Stage;
pub use line::hash;

/// Where the devices are stored, by path.
pub(crate) const DEVICES: &str = "sys/audit/";
/// How long a device may take, unless configured.
const WRITE_TIMEOUT: Duration = Duration::from_secs(1);

/// No enabled device took the entry.
#[derive(Debug, thiserror::Error)]
#[error("no audit device took the entry")]
pub struct NotAudited;

/// What is to be recorded.
#[derive(Clone, Copy, Debug)]
pub struct AuditEntry<'a> {
    /// The request.
    pub request: &'a Request,
    /// Who asks, when known.
    pub token: Option<&'a Token>,
    /// The type of the mount that serves it.
    pub mount_type: &'a str,
    /// Names of outermost fields that are shown in clear.
    pub clear: &'a [&'a str],
    /// What is answered.
    pub response: Option<&'a Response>,
    /// Why it failed.
    pub error: Option<&'a ApiError>,
    /// What a spoke did for it.
    pub relay: Option<&'a Work>,
}

/// The audit devices of this node.
pub struct Audit {
    storage: Storage,
    tasks: Tasks,
    metrics: Metrics,
    write_timeout: Duration,
    /// The seal that this node opened.
    seal: Option<SealRecord>,
    /// Running devices by path: kept over a reload when their configuration did not change.
    running: Mutex<BTreeMap<String, Arc<Device>>>,
    devices: Cached<Vec<Arc<Device>>>,
}

impl Audit {
    /// Over the whole store, with the default time limit and tasks and metrics of its own.
    pub fn new(storage: Storage) -> Self {
        Self::with(storage, Tasks::new("audit"), Metrics::new(), WRITE_TIMEOUT)
    }

    /// Over the whole store. `write_timeout` is what one device may take for one entry.
    pub fn with(storage: Storage, tasks: Tasks, metrics: Metrics, write_timeout: Duration) -> Self {
        let devices = Cached::watching(&storage, &[DEVICES]);
        Self { storage, tasks, metrics, write_timeout, seal: None, running: Mutex::default(), devices }
    }

    /// The same for a node that opened this seal. Once the store holds another one, after a restore, what is stored is
    /// not for this node's keys: its devices stay as they are until the node went over to that seal.
    #[must_use]
    pub fn under(self, seal: SealRecord) -> Self {
        Self { seal: Some(seal), ..self }
    }

    /// The store below.
    pub fn storage(&self) -> &Storage {
        &self.storage
    }

    /// Whether any device is enabled.
    pub fn enabled(&self) -> Result<bool, ApiError> {
        Ok(!self.devices()?.is_empty())
    }

    /// Whether requests can be recorded as far as this node knows: no device is enabled, or one did not fail.
    pub fn works(&self) -> bool {
        let running = self.running.lock();
        running.is_empty() || running.values().any(|device| device.state() == DeviceState::Working)
    }

    /// Makes every device open its file anew, after a rotation.
    pub fn reopen(&self) {
        self.running.lock().values().for_each(|device| device.reopen());
    }

    /// Records a request before it is executed. With an error nothing may be executed.
    pub async fn request(&self, entry: &AuditEntry<'_>) -> Result<(), ApiError> {
        self.record(Stage::Request, entry).await
    }

    /// Records an answer before it is sent. With an error what was made must be revoked.
    pub async fn response(&self, entry: &AuditEntry<'_>) -> Result<(), ApiError> {
        self.record(Stage::Response, entry).await
    }

    /// Sees whether the file of a device to be can be written. Pipes are not tried: that could block.
    pub async fn check(&self, entry: &DeviceEntry) -> Result<(), ApiError> {
        let (path, mode) = (entry.options.file_path.clone(), entry.options.mode);
        let trial = self.tasks.spawn_blocking("audit-check", move || file::check(&path, mode)).join();
        let error = match tokio::time::timeout(self.write_timeout, trial).await {
            Ok(Some(Ok(()))) => return Ok(()),
            Ok(Some(Err(error))) => error.to_string(),
            Ok(None) | Err(_) => "the file does not answer".to_owned(),
        };
        Err(ApiError::invalid(format!(
            "the audit file {:?} cannot be written: {error}",
            entry.options.file_path
        )))
    }

    async fn record(&self, stage: Stage, entry: &AuditEntry<'_>) -> Result<(), ApiError> {
        let devices = self.devices()?;
        if devices.is_empty() {
            return Ok(());
        }
        let started = Instant::now();
        let deadline = started + self.write_timeout;
        let lines = self.lines(&devices, stage, entry)?;
        let offers = devices.iter().zip(lines).map(|(device, line)| offer(device, line, deadline));
        let taken = join_all(offers).await;
        self.metrics.audit_seconds.observe(started.elapsed().as_secs_f64());
        let missed = taken.iter().filter(|taken| !**taken).count();
        self.metrics.audit_failures.inc_by(u64::try_from(missed).unwrap_or(u64::MAX));
        if missed == taken.len() {
            return Err(refused());
        }
        Ok(())
    }

    /// The line for each device; devices with the same options share one.
    fn lines(
        &self,
        devices: &[Arc<Device>],
        stage: Stage,
        entry: &AuditEntry<'_>,
    ) -> Result<Vec<Bytes>, ApiError> {
        let time = wall::rfc3339(wall::now());
        let mut made: Vec<((bool, bool, &str), Bytes)> = Vec::new();
        let line = |device: &Arc<Device>| {
            let options = &device.entry().options;
            line::render(self.storage.barrier(), options, stage, &time, entry).map(Bytes::from)
        };
        let mut lines = Vec::with_capacity(devices.len());
        for device in devices {
            let options = &device.entry().options;
            let style = (options.log_raw, options.hmac_accessor, options.prefix.as_str());
            let bytes = match made.iter().find(|(made, _)| *made == style) {
                Some((_, bytes)) => bytes.clone(),
                None => line(device).map_err(|source| {
                    ApiError::from(StorageError::Barrier { key: DEVICES.to_owned(), source })
                })?,
            };
            made.push((style, bytes.clone()));
            lines.push(bytes);
        }
        Ok(lines)
    }

    fn devices(&self) -> Result<Arc<Vec<Arc<Device>>>, StorageError> {
        self.devices.load(|| {
            // Read under the lock: of two loads at once the later one ends with the newer configuration.
            let mut running = self.running.lock();
            if self.is_replaced()? {
                return Ok(running.values().cloned().collect());
            }
            let stored = self.storage.scan::<DeviceEntry>(DEVICES, None, usize::MAX)?;
            let devices: Vec<_> =
                stored.into_iter().map(|(_, stored)| self.keep_or_start(&running, stored.value)).collect();
            *running = devices.iter().map(|d| (d.entry().path.clone(), Arc::clone(d))).collect();
            Ok(devices)
        })
    }

    /// Whether a restore brought another seal, and so data under other keys.
    fn is_replaced(&self) -> Result<bool, StorageError> {
        let Some(seal) = &self.seal else { return Ok(false) };
        let Some(found) = self.storage.store().read(STORE_KEY)? else { return Ok(false) };
        Ok(SealRecord::from_bytes(STORE_KEY, &found.value).map_or(true, |stored| stored != *seal))
    }

    fn keep_or_start(&self, running: &BTreeMap<String, Arc<Device>>, entry: DeviceEntry) -> Arc<Device> {
        match running.get(&entry.path).filter(|device| *device.entry() == entry) {
            Some(device) => Arc::clone(device),
            None => Device::start(entry, &self.tasks, self.metrics.clone()),
        }
    }
}

/// The text of the error is the contract of clients; why stands beside it.
fn refused() -> ApiError {
    let mut error = ApiError::internal(NotAudited);
    error.warnings.push(format!("{NotAudited}: nothing is done that cannot be recorded"));
    error
}

/// Whether the device took the line by the deadline.
async fn offer(device: &Device, line: Bytes, deadline: Instant) -> bool {
    let Some(answer) = device.offer(line) else { return false };
    match timeout_at(deadline, answer).await {
        Ok(answer) => answer.unwrap_or(false),
        Err(_) => {
            device.overdue();
            false
        }
    }
}

#[cfg(test)]
#[path = "audit_tests.rs"]
mod tests;
