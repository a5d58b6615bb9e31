//! Through which config servers a value goes from here to those that ask us for it.
//!
//! What must hold: a ring of servers that ask each other for one value is found, since a request for it names those
//! that wait behind; servers that ask each other for different values are no ring, and many that ask one are none.
//!
//! A server answers from its own cells, so a request that comes in never goes out again by itself. The longest way that
//! came in with a name is remembered for a while, and sent along when the object behind that name is asked for: around a
//! ring it grows until it meets itself.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use holdfast_core::Mono;
use holdfast_ops::MonoClock;
use http::{HeaderMap, HeaderName, HeaderValue};
use parking_lot::Mutex;

use crate::config::Scheme;
use crate::load::Configuration;
use crate::reference::ObjectKey;

/// The header that lists the servers, nearest first.
pub const VIA: HeaderName = HeaderName::from_static("holdfast-via");
/// A request with so many is refused, so that more need not be remembered.
const MOST: usize = 8;
/// How long a way counts after it was heard; a watched object is asked for each minute.
const REMEMBERED: Duration = Duration::from_secs(150);

/// A way, and when it was heard last.
type Heard = (Vec<String>, Mono);

/// Who asks whom.
#[derive(Default)]
pub struct Hops {
    own: String,
    clock: MonoClock,
    /// By name of a binding.
    heard: Mutex<BTreeMap<Arc<str>, Heard>>,
    /// Which bindings an object feeds.
    feeds: ArcSwap<BTreeMap<ObjectKey, Vec<Arc<str>>>>,
}

impl Hops {
    /// Of the process that is called `own` on the wire.
    pub fn new(own: &str) -> Arc<Self> {
        Arc::new(Self { own: own.to_owned(), ..Self::default() })
    }

    /// Takes a configuration that is applied.
    pub fn apply(&self, configuration: &Configuration) {
        let bindings =
            configuration.bindings.values().map(|binding| (&binding.name, &binding.reference.object));
        self.follow(bindings.filter(|(_, object)| object.scheme == Scheme::Holdfast));
    }

    /// Takes the bindings that come from other config servers now, each with its object.
    pub fn follow<'a>(&self, bindings: impl IntoIterator<Item = (&'a Arc<str>, &'a ObjectKey)>) {
        let mut feeds: BTreeMap<ObjectKey, Vec<Arc<str>>> = BTreeMap::new();
        for (name, object) in bindings {
            feeds.entry(object.clone()).or_default().push(Arc::clone(name));
        }
        let names: std::collections::BTreeSet<&Arc<str>> = feeds.values().flatten().collect();
        self.heard.lock().retain(|name, _| names.contains(name));
        drop(names);
        self.feeds.store(Arc::new(feeds));
    }

    /// Remembers the way of a request that was allowed to ask for this name. Only names that come from another config
    /// server are of interest.
    pub fn hear(&self, name: &[u8], headers: &HeaderMap) {
        let feeds = self.feeds.load();
        let mut names = feeds.values().flatten();
        let Some(binding) = names.find(|known| known.as_bytes() == name) else { return };
        let way: Vec<String> = hops(headers).map(str::to_owned).collect();
        if way.is_empty() {
            return;
        }
        let now = self.clock.now();
        let mut heard = self.heard.lock();
        let known = heard.get(binding);
        if known.is_none_or(|(known, at)| way.len() >= known.len() || now.since(*at) >= REMEMBERED) {
            heard.insert(Arc::clone(binding), (way, now));
        }
    }

    /// What goes along with a request for an object; of one for many, only our own name.
    pub fn header(&self, object: Option<&ObjectKey>) -> Option<HeaderValue> {
        let now = self.clock.now();
        let feeds = self.feeds.load();
        let names = object.and_then(|object| feeds.get(object));
        let heard = self.heard.lock();
        let ways = names.into_iter().flatten().filter_map(|name| heard.get(name));
        let fresh = ways.filter(|(_, at)| now.since(*at) < REMEMBERED).map(|(way, _)| way);
        let longest = fresh.max_by_key(|way| way.len()).cloned().unwrap_or_default();
        drop(heard);
        let all: Vec<String> = std::iter::once(self.own.clone()).chain(longest).take(MOST).collect();
        HeaderValue::try_from(all.join(",")).ok().filter(|_| !self.own.is_empty())
    }
}

/// The servers that a request names.
fn hops(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    let texts = headers.get_all(VIA).into_iter().filter_map(|text| text.to_str().ok());
    let fits =
        |hop: &&str| !hop.is_empty() && hop.len() <= 16 && hop.bytes().all(|b| b.is_ascii_alphanumeric());
    texts.flat_map(|text| text.split(',').map(str::trim)).filter(fits).take(MOST)
}

#[cfg(test)]
mod tests {
    use super::super::testing::object;
    use super::*;

    fn headers(via: &str) -> HeaderMap {
        [(VIA, HeaderValue::try_from(via).unwrap())].into_iter().collect()
    }

    fn sent(hops: &Hops, object: &ObjectKey) -> String {
        hops.header(Some(object)).unwrap().to_str().unwrap().to_owned()
    }

    #[test]
    fn a_request_names_the_longest_way_behind_the_same_value_and_no_other() {
        let hops = Hops::new("self");
        let (x, y) = (object(Scheme::Holdfast, "x"), object(Scheme::Holdfast, "y"));
        let names: [Arc<str>; 3] = ["a".into(), "b".into(), "c".into()];
        hops.follow([(&names[0], &x), (&names[1], &x), (&names[2], &y)]);
        assert_eq!(sent(&hops, &x), "self");
        hops.hear(b"a", &headers("one, two"));
        hops.hear(b"b", &headers("three,\u{20}"));
        hops.hear(b"c", &HeaderMap::new());
        assert_eq!((sent(&hops, &x), sent(&hops, &y)), ("self,one,two".to_owned(), "self".to_owned()));
        hops.hear(b"a", &headers("four"));
        assert_eq!(sent(&hops, &x), "self,one,two", "a shorter way hides no ring");
        assert_eq!(hops.header(None).unwrap(), "self");
        // A binding that is gone is forgotten with what was heard of it.
        hops.follow([(&names[1], &x)]);
        assert_eq!(sent(&hops, &x), "self,three");
        assert_eq!(Hops::default().header(Some(&x)), None);
    }

    #[test]
    fn many_that_ask_one_are_no_ring_and_what_is_remembered_is_bounded() {
        let hops = Hops::new("self");
        let (x, name) = (object(Scheme::Holdfast, "x"), Arc::from("a"));
        hops.follow([(&name, &x)]);
        for n in 0..100 {
            hops.hear(b"a", &headers(&format!("hop{n}")));
        }
        hops.hear(b"a", &headers(&"z".repeat(17)));
        assert_eq!(sent(&hops, &x), "self,hop99");
        hops.hear(b"a", &headers("1,2,3,4,5,6,7,8,9,10"));
        assert_eq!(sent(&hops, &x), "self,1,2,3,4,5,6,7");
    }

    #[test]
    fn a_ring_is_found_by_the_server_that_began_it() {
        // a asks b, b asks c, c asks a, all for one value: each tells on what it heard.
        let (x, name) = (object(Scheme::Holdfast, "x"), Arc::<str>::from("x"));
        let ring = ["a", "b", "c"].map(Hops::new);
        ring.iter().for_each(|hops| hops.follow([(&name, &x)]));
        let mut found = false;
        for step in 0..6 {
            let (from, to) = (&ring[step % 3], &ring[(step + 1) % 3]);
            let header = from.header(Some(&x)).unwrap();
            found = found || header.to_str().unwrap().split(',').any(|hop| hop == to.own);
            to.hear(b"x", &[(VIA, header)].into_iter().collect());
        }
        assert!(found);
    }
}
