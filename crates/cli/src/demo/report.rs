//! What was seen, as a timeline for people and as an object for machines.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

use super::probe::{Attempt, Place, Seen};
use crate::dev::platform::{Card, NodeCard};

/// How it was before.
pub struct Before {
    /// The active node, which is to be killed.
    pub victim: NodeCard,
    /// Who held which spoke.
    pub places: BTreeMap<String, Place>,
}

impl Before {
    /// As people read it.
    pub fn text(&self) -> String {
        let mut parts = vec![format!("{} is active", self.victim.node)];
        parts
            .extend(self.places.iter().map(|(name, place)| format!("{name} is connected to {}", place.node)));
        format!("before      {}", parts.join(", "))
    }
}

/// A way to a login, afterwards.
struct Way<'a> {
    path: &'a str,
    spoke: Option<&'a str>,
    first: Option<&'a Attempt>,
}

/// All that there is to tell.
pub struct Report<'a> {
    before: &'a Before,
    seen: &'a Seen,
    killed: Instant,
    ways: Vec<Way<'a>>,
    recovered: bool,
}

impl<'a> Report<'a> {
    /// None if the node was not killed.
    pub fn new(card: &'a Card, before: &'a Before, seen: &'a Seen, recovered: bool) -> Option<Self> {
        let (_, killed) = seen.killed.as_ref()?;
        let way = |login: &'a crate::dev::platform::Login| Way {
            path: &login.path,
            spoke: login.spoke.as_deref(),
            first: seen.routable(&login.path),
        };
        let ways = card.logins.iter().map(way).collect();
        Some(Self { before, seen, killed: *killed, ways, recovered })
    }

    /// The timeline.
    pub fn text(&self) -> String {
        let mut events: Vec<(Duration, String)> = Vec::new();
        let mut at = |when: Instant, text: String| events.push((self.after(when), text));
        let pid = self.before.victim.pid.unwrap_or_default();
        at(self.killed, format!("{} (process {pid}) is killed", self.before.victim.node));
        if let Some((node, when)) = &self.seen.leader {
            at(*when, format!("{node} is active"));
        }
        for (name, (place, when)) in &self.seen.known {
            let stayed = if self.stayed(name, place) { "its stream never broke" } else { "it dialled again" };
            at(*when, format!("the new leader knows {name} on {}: {stayed}", place.node));
        }
        for way in &self.ways {
            if let Some(first) = way.first {
                let through = way.spoke.map_or("directly".to_owned(), |name| format!("through {name}"));
                at(first.answered, format!("{} gives a login again, {through}", way.path));
            }
        }
        events.sort_by_key(|(when, _)| *when);
        let mut lines: Vec<_> =
            events.iter().map(|(when, text)| format!("{:8.2} s  {text}", when.as_secs_f64())).collect();
        lines.push(format!(
            "logins      {} asked for, {} failed, the slowest took {:.2} s",
            self.seen.logins.len(),
            self.failures().count(),
            self.slowest().as_secs_f64()
        ));
        lines.extend(
            self.failures().map(|(when, text)| format!("  failed    {:.2} s  {text}", seconds(when))),
        );
        if !self.recovered {
            lines.push("not everything worked again within a minute".to_owned());
        }
        lines.join("\n")
    }

    /// The same for machines; times in milliseconds after the kill.
    pub fn json(&self) -> Value {
        let spokes: Vec<_> = self.before.places.iter().map(|(name, held)| self.spoke(name, held)).collect();
        let logins: Vec<_> = self
            .ways
            .iter()
            .map(|way| {
                let routable = way.first.map(|first| self.millis(first.answered));
                json!({"path": way.path, "spoke": way.spoke, "routable_ms": routable})
            })
            .collect();
        let failures: Vec<_> =
            self.failures().map(|(when, text)| json!({"asked_ms": when, "error": text})).collect();
        let leader = self.seen.leader.as_ref();
        json!({
            "recovered": self.recovered,
            "killed": {"node": self.before.victim.node, "pid": self.before.victim.pid},
            "active": leader.map(|(node, when)| json!({"node": node, "after_ms": self.millis(*when)})),
            "spokes": spokes,
            "roles": logins,
            "logins": {
                "asked": self.seen.logins.len(),
                "failed": failures.len(),
                "slowest_ms": u64::try_from(self.slowest().as_millis()).unwrap_or(u64::MAX),
                "failures": failures,
            },
        })
    }

    fn spoke(&self, name: &str, held: &Place) -> Value {
        let known = self.seen.known.get(name);
        json!({
            "name": name,
            "before": held.node,
            "after": known.map(|(place, _)| &place.node),
            "known_ms": known.map(|(_, when)| self.millis(*when)),
            "stream_stayed": known.is_some_and(|(place, _)| self.stayed(name, place)),
        })
    }

    fn stayed(&self, name: &str, now: &Place) -> bool {
        self.before.places.get(name) == Some(now)
    }

    /// Logins without an answer: when they were asked for, in milliseconds after the kill, and why.
    fn failures(&self) -> impl Iterator<Item = (i64, &str)> {
        let failed =
            |login: &'a Attempt| login.outcome.as_ref().err().map(|text| (login.asked, text.as_str()));
        self.seen.logins.iter().filter_map(failed).map(|(asked, text)| (self.millis(asked), text))
    }

    fn slowest(&self) -> Duration {
        let took = self.seen.logins.iter().map(|login| login.answered.duration_since(login.asked));
        took.max().unwrap_or_default()
    }

    fn after(&self, when: Instant) -> Duration {
        when.saturating_duration_since(self.killed)
    }

    fn millis(&self, when: Instant) -> i64 {
        let whole = |time: Duration| i64::try_from(time.as_millis()).unwrap_or(i64::MAX);
        whole(self.after(when)) - whole(self.killed.saturating_duration_since(when))
    }
}

fn seconds(millis: i64) -> f64 {
    Duration::from_millis(millis.unsigned_abs()).as_secs_f64() * if millis < 0 { -1.0 } else { 1.0 }
}
