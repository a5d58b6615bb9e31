//! One stream to one hub node, from the hello to the end.
//!
//! One task reads every frame, hands commands to the runner without waiting, and sends the heartbeats, so that an
//! answered heartbeat proves that commands are being taken. What must hold: hello is the first frame and welcome the
//! first answer; a full outgoing queue ends the stream, since a reply must not be dropped; nothing that a hub sends
//! makes this side panic.

#[cfg(test)]
mod fuzz;
mod outgoing;

use std::collections::HashMap;
use std::error::Error as StdError;
use std::time::Duration;

use bytes::Bytes;
use holdfast_core::Epoch;
use holdfast_core::epoch::dialer::{End, Goodbye};
use holdfast_core::ownership::{BootId, Stamp};
use holdfast_ops::{Tasks, rand};
use holdfast_proto::redirect_of;
use holdfast_proto::relay::v1 as proto;
use holdfast_proto::relay::v1::hub_frame::Frame as FromHub;
use holdfast_proto::relay::v1::spoke_frame::Frame as ToHub;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use tonic::{Status, Streaming};

use crate::link::{self, Keepalive, Target};
use crate::pulse::{Beat, Pulse};
use crate::runner::{Lane, PLUGINS, Runner};
use outgoing::Outgoing;

/// The version of the protocol.
const PROTOCOL: u32 = 1;
/// Frames that wait for the stream's writer.
const QUEUE: usize = 64;
/// How long the commands of a stream that was left for another may go on.
pub(crate) const MOVED_WITHIN: Duration = Duration::from_secs(30);
/// How long the hub may take for its welcome.
const WELCOME_WITHIN: Duration = Duration::from_secs(10);
/// How long the hub may take to end a stream that this side has ended.
const END_WITHIN: Duration = Duration::from_secs(2);
/// Renewals under way on one stream.
const RENEWALS: usize = 8;

/// What a stream is made from.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    /// The hub node.
    pub target: Target,
    /// This dial and this start of the daemon.
    pub stamp: Stamp,
    /// Between heartbeats; none: no heartbeats.
    pub heartbeat: Option<Duration>,
    /// Told to the hub.
    pub concurrency: usize,
    /// Runs the commands.
    pub runner: Runner,
}

/// What a stream tells its daemon.
#[derive(Debug)]
pub(crate) enum Told {
    /// The welcome came.
    Opened(Welcome),
    /// The hub asks to leave, for this address when it names one.
    Drain(Option<String>),
    /// It is over, or never began; the last thing that is told.
    Ended(End, String),
}

/// What a hub says in its welcome.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Welcome {
    pub node: String,
    pub endpoints: Vec<String>,
    pub keepalive: Keepalive,
}

/// What a daemon tells a stream.
#[derive(Debug)]
pub(crate) enum Order {
    /// Say goodbye, finish what runs within this time, end.
    Close(Goodbye, Duration),
    /// Have a request for a certificate signed.
    Renew { csr_pem: String, answer: oneshot::Sender<Result<proto::Renewed, String>> },
}

/// Where a stream's news go, with the epoch of its dial.
pub(crate) type News = mpsc::Sender<(Epoch, Told)>;

/// Why a stream is over.
#[derive(Debug)]
struct Over {
    end: End,
    why: String,
}

impl Over {
    fn failed(why: impl Into<String>) -> Self {
        Self { end: End::Failed, why: why.into() }
    }
}

/// Dials and serves one stream. Everything that belongs to it lives in `tasks`, which end with it.
pub(crate) async fn run(setup: Setup, orders: mpsc::Receiver<Order>, news: News, tasks: Tasks) {
    let over = match open(&setup, &tasks).await {
        Ok((stream, welcome)) => {
            // The daemon's queue is only closed when the daemon is gone.
            let _ = news.send((setup.stamp.epoch, Told::Opened(welcome))).await;
            stream.serve(orders, &news).await
        }
        Err(over) => over,
    };
    let _ = news.send((setup.stamp.epoch, Told::Ended(over.end, over.why))).await;
    tasks.cancel();
}

async fn open(setup: &Setup, tasks: &Tasks) -> Result<(Stream, Welcome), Over> {
    let connected = link::connect(&setup.target, tasks).await;
    let mut client = connected.map_err(|error| Over::failed(chain(&error)))?;
    let (out, frames) = mpsc::channel(QUEUE);
    let finish = CancellationToken::new();
    push(&out, ToHub::Hello(hello(setup)))?;
    let outgoing = Outgoing::new(frames, finish.clone());
    let opened = timeout(WELCOME_WITHIN, async {
        let mut inbound = client.connect(outgoing).await?.into_inner();
        let first = inbound.message().await?;
        Ok::<_, Status>((inbound, first))
    });
    let (inbound, first) =
        opened.await.map_err(|_| Over::failed("no welcome came in time"))?.map_err(|status| over(&status))?;
    let welcome = welcome_of(first)?;
    Ok(begin(setup, inbound, out, finish, welcome, tasks))
}

/// What the first frame must be.
fn welcome_of(first: Option<proto::HubFrame>) -> Result<proto::Welcome, Over> {
    match first.and_then(|frame| frame.frame) {
        Some(FromHub::Welcome(welcome)) => Ok(welcome),
        Some(FromHub::Superseded(by)) => Err(superseded(&by)),
        Some(_) => Err(Over::failed("the first frame is no welcome")),
        None => Err(Over::failed("the stream ended before a welcome")),
    }
}

/// The stream that a welcome opens.
fn begin(
    setup: &Setup,
    inbound: Streaming<proto::HubFrame>,
    out: mpsc::Sender<proto::SpokeFrame>,
    finish: CancellationToken,
    welcome: proto::Welcome,
    tasks: &Tasks,
) -> (Stream, Welcome) {
    let lane = setup.runner.lane(out.clone(), tasks);
    let pulse = interval(setup.heartbeat, welcome.heartbeat_interval_ms)
        .map(|interval| Pulse::new(interval, Instant::now()));
    let stream = Stream {
        stamp: setup.stamp,
        inbound,
        out,
        finish,
        lane,
        pulse,
        renewals: HashMap::new(),
        runner: setup.runner.clone(),
    };
    let keepalive = Keepalive::told(welcome.keepalive_interval_ms, welcome.keepalive_timeout_ms);
    (stream, Welcome { node: welcome.node_id, endpoints: welcome.hub_endpoints, keepalive })
}

fn hello(setup: &Setup) -> proto::Hello {
    proto::Hello {
        protocol: PROTOCOL,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        session_epoch: setup.stamp.epoch.into_inner(),
        boot_id: Bytes::copy_from_slice(setup.stamp.boot.as_bytes()),
        max_concurrency: u32::try_from(setup.concurrency).unwrap_or(u32::MAX),
        plugins: PLUGINS.map(str::to_owned).to_vec(),
    }
}

/// The shorter of what is configured and what the hub asks for, so that the hub never finds a live stream stale.
fn interval(configured: Option<Duration>, told_ms: u64) -> Option<Duration> {
    let configured = configured?;
    let told = Duration::from_millis(told_ms).max(Duration::from_secs(1));
    Some(if told_ms == 0 { configured } else { configured.min(told) })
}

/// An open stream.
struct Stream {
    stamp: Stamp,
    inbound: Streaming<proto::HubFrame>,
    out: mpsc::Sender<proto::SpokeFrame>,
    finish: CancellationToken,
    lane: Lane,
    pulse: Option<Pulse>,
    renewals: HashMap<String, oneshot::Sender<Result<proto::Renewed, String>>>,
    runner: Runner,
}

/// What a frame leads to.
enum Step {
    Go,
    /// A newer stream of this very daemon has taken over.
    Moved,
    Drain(Option<String>),
}

impl Stream {
    async fn serve(mut self, mut orders: mpsc::Receiver<Order>, news: &News) -> Over {
        loop {
            let due = self.pulse.as_ref().map(Pulse::due);
            let stepped = tokio::select! {
                frame = self.inbound.message() => self.read(frame),
                Some(order) = orders.recv() => match order {
                    Order::Close(goodbye, grace) => return self.wind_down(goodbye, grace).await,
                    Order::Renew { csr_pem, answer } => self.renew(csr_pem, answer),
                },
                () = at(due) => self.beat(),
            };
            match stepped {
                Ok(Step::Go) => {}
                // The daemon's word may come later than the hub's; what runs here is no less wanted.
                Ok(Step::Moved) => return self.wind_down(Goodbye::Moved, MOVED_WITHIN).await,
                Ok(Step::Drain(redirect)) => {
                    let _ = news.send((self.stamp.epoch, Told::Drain(redirect))).await;
                }
                Err(over) => return over,
            }
        }
    }

    fn read(&mut self, frame: Result<Option<proto::HubFrame>, Status>) -> Result<Step, Over> {
        match frame {
            Ok(Some(frame)) => self.on(frame),
            Ok(None) => Err(Over { end: End::Closed, why: "the hub ended the stream".to_owned() }),
            Err(status) => Err(over(&status)),
        }
    }

    fn on(&mut self, frame: proto::HubFrame) -> Result<Step, Over> {
        match frame.frame {
            Some(FromHub::Command(command)) => {
                if let Some(reply) = self.lane.take(&command) {
                    queue(&self.out, reply)?;
                }
            }
            Some(FromHub::Cancel(cancel)) => self.lane.cancel(&cancel.request_id),
            Some(FromHub::HeartbeatAck(ack)) => {
                if let Some(pulse) = &mut self.pulse {
                    pulse.acked(ack.seq, Instant::now());
                }
            }
            Some(FromHub::Renewed(renewed)) => {
                if let Some(answer) = self.renewals.remove(&renewed.request_id) {
                    // Who asked may have given up.
                    let _ =
                        answer.send(if renewed.error.is_empty() { Ok(renewed) } else { Err(renewed.error) });
                }
            }
            Some(FromHub::Drain(drain)) => {
                tracing::info!(
                    reason = drain.reason,
                    grace_ms = drain.grace_ms,
                    "the hub asks this stream to leave"
                );
                return Ok(Step::Drain(Some(drain.redirect).filter(|redirect| !redirect.is_empty())));
            }
            Some(FromHub::Superseded(by)) if *by.by_boot_id == *self.stamp.boot.as_bytes() => {
                return Ok(Step::Moved);
            }
            Some(FromHub::Superseded(by)) => return Err(superseded(&by)),
            Some(FromHub::Welcome(_)) => return Err(Over::failed("a second welcome")),
            // Tokens are for another role; a frame of a newer version is passed over.
            Some(FromHub::Token(_)) | None => {}
        }
        Ok(Step::Go)
    }

    fn beat(&mut self) -> Result<Step, Over> {
        let Some(pulse) = &mut self.pulse else { return Ok(Step::Go) };
        match pulse.beat(Instant::now()) {
            Beat::Rest => {}
            Beat::Dead => return Err(Over::failed("the hub did not answer a heartbeat")),
            Beat::Send(seq) => {
                let load = self.runner.load();
                let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
                let (running, queued) = (count(load.running), count(load.queued));
                push(&self.out, ToHub::Heartbeat(proto::Heartbeat { seq, running, queued }))?;
            }
        }
        Ok(Step::Go)
    }

    fn renew(
        &mut self,
        csr_pem: String,
        answer: oneshot::Sender<Result<proto::Renewed, String>>,
    ) -> Result<Step, Over> {
        self.renewals.retain(|_, waiting| !waiting.is_closed());
        if self.renewals.len() >= RENEWALS {
            let _ = answer.send(Err("too many renewals are under way".to_owned()));
            return Ok(Step::Go);
        }
        let request_id = rand::hex(12);
        self.renewals.insert(request_id.clone(), answer);
        push(&self.out, ToHub::Renew(proto::Renew { request_id, csr_pem, ttl_seconds: 0 }))?;
        Ok(Step::Go)
    }

    /// Says goodbye, lets the commands end, then ends the stream. New commands are refused meanwhile.
    async fn wind_down(mut self, goodbye: Goodbye, grace: Duration) -> Over {
        let why = match goodbye {
            Goodbye::Moved => "moved to another stream",
            Goodbye::Stopping => "this spoke goes down",
        };
        let over = || Over { end: End::Closed, why: why.to_owned() };
        if push(&self.out, ToHub::Goodbye(proto::Goodbye { reason: why.to_owned() })).is_err() {
            return over();
        }
        self.lane.refuse();
        let finished = self.lane.finished(grace);
        tokio::pin!(finished);
        let done = loop {
            tokio::select! {
                done = &mut finished => break done,
                frame = self.inbound.message() => match frame {
                    Ok(Some(frame)) => pass(&self.lane, &self.out, frame),
                    // Nobody is left to read a reply.
                    Ok(None) | Err(_) => return over(),
                },
            }
        };
        if !done {
            tracing::warn!(commands = self.lane.live(), "cancelling commands that did not end in time");
        }
        // The hub ends the stream when it has every reply. What it sent before it knew is refused, not forgotten.
        let (inbound, lane, out) = (&mut self.inbound, &self.lane, &self.out);
        let ended = async {
            while let Ok(Some(frame)) = inbound.message().await {
                pass(lane, out, frame);
            }
        };
        // One that does not is left all the same.
        let _ = timeout(END_WITHIN, ended).await;
        self.finish.cancel();
        over()
    }
}

/// What still matters on a stream that is going down.
fn pass(lane: &Lane, out: &mpsc::Sender<proto::SpokeFrame>, frame: proto::HubFrame) {
    match frame.frame {
        Some(FromHub::Command(command)) => {
            // When the queue is full the stream is about to be cut, which tells the hub as well.
            lane.take(&command).into_iter().for_each(|reply| drop(out.try_send(reply)));
        }
        Some(FromHub::Cancel(cancel)) => lane.cancel(&cancel.request_id),
        _ => {}
    }
}

fn push(out: &mpsc::Sender<proto::SpokeFrame>, frame: ToHub) -> Result<(), Over> {
    queue(out, proto::SpokeFrame { frame: Some(frame) })
}

fn queue(out: &mpsc::Sender<proto::SpokeFrame>, frame: proto::SpokeFrame) -> Result<(), Over> {
    out.try_send(frame).map_err(|_| Over::failed("the hub takes no frames"))
}

fn over(status: &Status) -> Over {
    match redirect_of(status) {
        Some(to) => Over { why: format!("redirected to {to}"), end: End::Redirected(to) },
        None => Over::failed(format!("{:?}: {}", status.code(), shortened(status.message()))),
    }
}

fn superseded(by: &proto::Superseded) -> Over {
    let Ok(boot) = BootId::try_from(&*by.by_boot_id) else {
        return Over::failed("superseded by a stream without an identity");
    };
    let stamp = Stamp { epoch: Epoch::new(by.by_epoch), boot };
    let why = format!("superseded by session {} of daemon {boot}", stamp.epoch);
    Over { end: End::Superseded { by: stamp, alive: by.alive }, why }
}

/// The text of an error with its causes.
fn chain(error: &dyn StdError) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(next) = cause {
        let more = next.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = next.source();
    }
    text
}

/// A peer's words, in a length that does a log no harm.
fn shortened(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(512).collect()
}

async fn at(due: Option<Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due).await,
        None => std::future::pending().await,
    }
}
