//! What the application has, by name: the watermark and the value of each, shared by all reads and watches of a client.
//!
//! What must hold: a mark rises only when its value is handed over; judging and raising are one step, so that two
//! readers never hand an older value over after a newer one.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use holdfast_core::Wall;
use holdfast_core::freshness::{Offer, Verdict, Watermark};
use parking_lot::Mutex;

use super::value::Value;

/// The marks of one client.
#[derive(Debug, Default)]
pub struct Marks {
    names: Mutex<HashMap<Arc<str>, Mark>>,
}

#[derive(Debug)]
struct Mark {
    watermark: Watermark,
    newest: Value,
}

impl Marks {
    /// Hands a value over; false, and nothing changes, when it is behind what the application has.
    pub fn hand_over(&self, now: Wall, value: &Value) -> bool {
        let offer = offer(value);
        let mut names = self.names.lock();
        if let Some(mark) = names.get_mut(&value.name) {
            if mark.watermark.offer(now, &offer) == Verdict::Behind {
                return false;
            }
            mark.watermark.delivered(now, &offer);
            mark.newest = value.clone();
        } else {
            let mut watermark = Watermark::new();
            watermark.delivered(now, &offer);
            names.insert(Arc::clone(&value.name), Mark { watermark, newest: value.clone() });
        }
        true
    }

    /// Whether the application has exactly this value already, whatever its date.
    pub fn has(&self, value: &Value) -> bool {
        let names = self.names.lock();
        names.get(&value.name).is_some_and(|mark| {
            let newest = &mark.newest;
            (&newest.bytes, &newest.version, newest.order) == (&value.bytes, &value.version, value.order)
                && (newest.stale, newest.kind, newest.not_after) == (value.stale, value.kind, value.not_after)
        })
    }

    /// The newest value that was handed over, unless its own life is over.
    pub fn newest(&self, now: Wall, name: &str) -> Option<Value> {
        let names = self.names.lock();
        let newest = names.get(name).map(|mark| &mark.newest)?;
        let live = newest.not_after.is_none_or(|end| end > now);
        live.then(|| Value { behind: true, ..newest.clone() })
    }
}

fn offer(value: &Value) -> Offer {
    Offer { resolved_at: value.resolved_at, order: value.order, epoch: value.epoch.clone() }
}

/// The time of day of this machine.
pub fn wall() -> Wall {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Wall::from_micros(i64::try_from(since.as_micros()).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::wire::{Entry, entry};

    const NOW: Wall = Wall::from_micros(1_000_000_000);

    fn value(bytes: &str, date: &str, rest: &str) -> Value {
        let body = format!(r#"{{"name":"a","bytes":"{bytes}","resolved_at":"1970-01-01T00:{date}Z"{rest}}}"#);
        match entry(body.as_bytes()).unwrap() {
            Entry::Value(value) => *value,
            Entry::Error { .. } => panic!("{body}"),
        }
    }

    /// Hands a value over that is written like this.
    fn hand(marks: &Marks, bytes: &str, date: &str, rest: &str) -> bool {
        marks.hand_over(NOW, &value(bytes, date, rest))
    }

    #[test]
    fn what_is_behind_changes_nothing() {
        let marks = Marks::default();
        assert_eq!(marks.newest(NOW, "a"), None);
        let (new, old) = (value("bmV3", "10:00", ""), value("b2xk", "09:58", ""));
        assert!(marks.hand_over(NOW, &new) && !marks.hand_over(NOW, &old));
        assert_eq!(marks.newest(NOW, "a"), Some(Value { behind: true, ..new.clone() }));
        assert!(marks.has(&new) && !marks.has(&old));
        assert!(hand(&marks, "b2xk", "09:59.5", ""));
        assert!(!hand(&marks, "b2xk", "09:58.9", ""), "the mark did not fall");
    }

    #[test]
    fn within_the_band_the_lower_order_of_one_domain_is_behind() {
        let marks = Marks::default();
        assert!(hand(&marks, "bmV3", "10:00", r#","order":7,"epoch":"x""#));
        assert!(!hand(&marks, "b2xk", "10:00.9", r#","order":6,"epoch":"x""#));
        assert!(hand(&marks, "eA==", "09:59.5", r#","order":6,"epoch":"y""#));
        assert!(hand(&marks, "eA==", "09:59.5", ""));
    }

    #[test]
    fn a_date_far_ahead_passes_and_holds_nobody_back() {
        let marks = Marks::default();
        for date in ["16:00", "59:00", "16:39"] {
            assert!(hand(&marks, "eA==", date, ""), "{date}");
        }
        assert!(!hand(&marks, "eA==", "16:00", ""));
    }

    #[test]
    fn a_value_whose_life_is_over_is_not_given_again() {
        let marks = Marks::default();
        hand(&marks, "eA==", "10:00", r#","not_after":"1970-01-01T00:16:40Z""#);
        assert_eq!(marks.newest(NOW, "a"), None);
        assert!(marks.newest(Wall::from_micros(999_999_999), "a").is_some());
    }
}
