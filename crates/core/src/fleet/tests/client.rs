//! One client: marks by name, one stream that moves between replicas, reads that walk.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;

use super::upstream::{Text, Upstream};
use super::{Breach, Climate, NAMES, Plant, wall};
use crate::failover::{EndpointId, Endpoints, Event, StreamId, StreamTiming, Streams, Timing};
use crate::freshness::{BAND, FUTURE, Offer, Verdict, Watermark};
use crate::stream::Seq;
use crate::time::Spread;
use crate::{Mono, Wall};

/// What a replica says of one name, with what only the world knows of it.
#[derive(Clone, Debug)]
pub struct Said {
    pub name: usize,
    pub seq: Seq,
    /// None of an error.
    pub value: Option<(Text, Offer)>,
    pub confirmed: Mono,
}

#[derive(Clone, Debug)]
pub enum Frame {
    Entry(Said),
    Synced,
    Fresh(Vec<(usize, Wall)>),
    GoAway(std::time::Duration),
}

/// The value that one stream said last of a name.
#[derive(Clone, Debug)]
struct Last {
    value: Text,
    offer: Offer,
    confirmed: Mono,
    /// The application took it; else it is held until a newer date lifts it.
    taken: bool,
}

/// What one stream said last of each name.
#[derive(Clone, Debug, Default)]
pub struct Heard {
    last: [Option<Last>; NAMES],
    /// The process and the number of the state of each name.
    mirror: [Option<(u64, Seq)>; NAMES],
    was_behind: bool,
}

/// What the application has of one name.
#[derive(Clone, Debug, Default)]
struct Has {
    highest: usize,
    confirmed: Mono,
    date: Option<Wall>,
}

#[derive(Debug)]
pub struct Client {
    skew: i64,
    pub streams: Streams,
    pub endpoints: Endpoints,
    pub marks: [Watermark; NAMES],
    has: [Has; NAMES],
    /// What came last by a stream.
    pub watched: [Option<usize>; NAMES],
    pub heard: BTreeMap<StreamId, Heard>,
    pub last_id: Option<(u64, Seq)>,
    /// Which stream gave the id, and what it had said by its end: a resume goes on from there and from nothing else.
    giver: Option<StreamId>,
    kept: Heard,
}

impl Client {
    pub fn new(replicas: usize, skew: i64, spread: &mut Spread) -> Self {
        let count = NonZeroUsize::new(replicas).unwrap();
        let first = EndpointId::new(spread.below(replicas as u64) as usize);
        Self {
            skew,
            streams: Streams::new(count, first, StreamTiming::default(), Spread::new(spread.bits())),
            endpoints: Endpoints::new(count, Timing::default()),
            marks: Default::default(),
            has: Default::default(),
            watched: [None; NAMES],
            heard: BTreeMap::new(),
            last_id: None,
            giver: None,
            kept: Heard::default(),
        }
    }

    pub fn opened(&mut self, stream: StreamId, plant: Plant) {
        let other = self.heard.values().next().filter(|_| plant == Plant::ResumeFromAny);
        let giver = self.giver.and_then(|giver| self.heard.get(&giver));
        let before = other.or(giver).unwrap_or(&self.kept).clone();
        self.heard.insert(stream, Heard { was_behind: false, ..before });
        if plant == Plant::MarksForgotten {
            self.marks = Default::default();
        }
    }

    pub fn closed(&mut self, stream: StreamId) {
        let heard = self.heard.remove(&stream);
        if let Some(heard) = heard.filter(|_| self.giver == Some(stream)) {
            self.kept = heard;
        }
    }

    /// Takes a frame; returns what the machine of the stream is told.
    pub fn take(
        &mut self,
        now: Mono,
        stream: StreamId,
        (frame, id): (Frame, Option<(u64, Seq)>),
        (boot, changes): (u64, &[Vec<u64>; NAMES]),
        (upstream, climate, plant): (&Upstream, Climate, Plant),
    ) -> Result<Vec<Event>, Breach> {
        let Some(mut heard) = self.heard.remove(&stream) else { return Ok(Vec::new()) };
        let mut told = Vec::new();
        let judge = (upstream, climate, plant);
        match frame {
            Frame::Synced => told.push(Event::Synced(stream)),
            Frame::GoAway(within) => told.push(Event::GoAway { stream, within }),
            Frame::Entry(said) => {
                heard.mirror[said.name] = Some((boot, said.seq));
                self.entry(now, &mut heard, said, judge)?;
            }
            Frame::Fresh(dates) => {
                for (name, date) in dates {
                    let last = &mut heard.last[name];
                    if let Some(held) = last.as_mut().filter(|last| !last.taken) {
                        held.offer.resolved_at = Some(date);
                        self.offer(now, last, name, judge)?;
                    }
                }
            }
        }
        let behind = heard.last.iter().flatten().any(|last| !last.taken);
        if behind != heard.was_behind && plant != Plant::StaysBehind {
            told.push(Event::Behind { stream, behind });
        }
        heard.was_behind = behind;
        if let Some((boot, seq)) = id {
            (self.last_id, self.giver) = (id, Some(stream));
            let complete = (0..NAMES).all(|name| {
                let newest = changes[name].iter().rev().find(|change| **change <= seq.get());
                heard.mirror[name]
                    .is_some_and(|(of, seen)| of == boot && newest.is_none_or(|newest| *newest <= seen.get()))
            });
            if !complete {
                return Err("resume-complete");
            }
        }
        self.heard.insert(stream, heard);
        Ok(told)
    }

    fn entry(
        &mut self,
        now: Mono,
        heard: &mut Heard,
        said: Said,
        judge: (&Upstream, Climate, Plant),
    ) -> Result<(), Breach> {
        let last = &mut heard.last[said.name];
        *last =
            said.value.map(|(value, offer)| Last { value, offer, confirmed: said.confirmed, taken: false });
        self.offer(now, last, said.name, judge)?;
        if judge.2 == Plant::NothingHeld {
            *last = last.take().filter(|last| last.taken);
        }
        Ok(())
    }

    fn offer(
        &mut self,
        now: Mono,
        last: &mut Option<Last>,
        name: usize,
        judge: (&Upstream, Climate, Plant),
    ) -> Result<(), Breach> {
        let Some(last) = last else { return Ok(()) };
        let verdict = self.marks[name].offer(wall(now, self.skew), &last.offer);
        last.taken = verdict == Verdict::Deliver || self.overrule(name, &last.offer, judge.2);
        if !last.taken {
            return Ok(());
        }
        self.watched[name] = Some(last.value.0);
        self.deliver(now, name, (last.value.clone(), last.offer.clone(), last.confirmed), judge)
    }

    /// Whether a wrong variant delivers without asking the mark.
    fn overrule(&self, name: usize, offer: &Offer, plant: Plant) -> bool {
        match plant {
            Plant::NoWatermark => true,
            Plant::OneSidedBand => offer.resolved_at > self.marks[name].mark(),
            _ => false,
        }
    }

    /// An answer to a read arrived; false when it is behind.
    pub fn answered(
        &mut self,
        now: Mono,
        said: Said,
        judge: (&Upstream, Climate, Plant),
    ) -> Result<bool, Breach> {
        let Some((value, offer)) = said.value else { return Ok(true) };
        let verdict = self.marks[said.name].offer(wall(now, self.skew), &offer);
        if verdict == Verdict::Behind && !self.overrule(said.name, &offer, judge.2) {
            return Ok(false);
        }
        self.deliver(now, said.name, (value, offer, said.confirmed), judge)?;
        Ok(true)
    }

    /// The application takes a value.
    fn deliver(
        &mut self,
        now: Mono,
        name: usize,
        (value, offer, confirmed): (Text, Offer, Mono),
        (upstream, climate, plant): (&Upstream, Climate, Plant),
    ) -> Result<(), Breach> {
        let clock = wall(now, self.skew);
        let has = &mut self.has[name];
        let date = offer.resolved_at.filter(|date| date.since(clock) <= FUTURE);
        if let (Some(date), Some(before)) = (date, has.date)
            && before.since(date) > BAND
        {
            return Err("no-backward-value");
        }
        // Where clocks are good and revisions ordered it holds without exception; else what is delivered was current no
        // longer ago than clocks may differ.
        if climate.strict && value.0 < has.highest {
            return Err("no-backward-value");
        }
        let slack = BAND + climate.skew * 2;
        if date.is_some()
            && !climate.stepping
            && upstream.superseded(name, value.0).after(slack) < has.confirmed
        {
            return Err("no-backward-value");
        }
        has.highest = has.highest.max(value.0);
        if date.is_some() {
            has.confirmed = has.confirmed.max(confirmed);
            has.date = has.date.max(date);
        }
        let clock = if plant == Plant::FutureRaises { Wall::from_micros(i64::MAX) } else { clock };
        self.marks[name].delivered(clock, &offer);
        Ok(())
    }
}
