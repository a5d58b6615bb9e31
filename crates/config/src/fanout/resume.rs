//! Resume ids: `boot.generation.seq.set`, opaque to clients, at most 64 ASCII characters.
//!
//! What must hold: an id that does not fit this process, this configuration, these names and these rights is as good as
//! none; no id is ever an error.

use std::fmt;

use holdfast_core::stream::Seq;

/// The longest id that is looked at.
const MAX: usize = 64;
const ALPHABET: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";

/// Names a process on the wire without naming the node: 8 random characters, made at its start.
#[derive(Clone, Copy, Eq, Hash, PartialEq)]
pub struct Boot([u8; 8]);

impl Boot {
    /// A new one.
    pub fn random() -> Self {
        let bytes: [u8; 8] = holdfast_ops::rand::bytes();
        Self(bytes.map(|byte| ALPHABET.get(usize::from(byte & 31)).copied().unwrap_or(b'a')))
    }

    /// One that a test knows.
    pub const fn of(text: [u8; 8]) -> Self {
        Self(text)
    }

    /// As text.
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0).unwrap_or_default()
    }
}

impl fmt::Debug for Boot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What the names of a stream are, and which of them are allowed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct NameSet(u32);

impl NameSet {
    /// Of names with their rights, in any order.
    pub fn of<'a>(names: impl IntoIterator<Item = (&'a [u8], bool)>) -> Self {
        let mut names: Vec<_> = names.into_iter().collect();
        names.sort_unstable();
        let mut hash = aws_lc_rs::digest::Context::new(&aws_lc_rs::digest::SHA256);
        for (name, allowed) in names {
            hash.update(&(name.len() as u64).to_be_bytes());
            hash.update(name);
            hash.update(&[u8::from(allowed)]);
        }
        let digest = hash.finish();
        let first = digest.as_ref().first_chunk::<4>().copied().unwrap_or_default();
        Self(u32::from_be_bytes(first))
    }
}

/// What an id of a stream says besides the number.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Domain {
    /// The process.
    pub boot: Boot,
    /// The number of the configuration within the process.
    pub generation: u64,
    /// The names and rights.
    pub set: NameSet,
}

impl Domain {
    /// The id of a number.
    pub fn id(&self, seq: Seq) -> String {
        format!("{}.{}.{}.{:08x}", self.boot.as_str(), self.generation, seq.get(), self.set.0)
    }

    /// The number in an id, if the rest of it is this.
    pub fn read(&self, id: &[u8]) -> Option<Seq> {
        if id.len() > MAX {
            return None;
        }
        let seq = std::str::from_utf8(id).ok()?.split('.').nth(2)?;
        let seq = Seq::new(seq.parse().ok()?);
        // Written again and compared: whatever is not exactly ours, such as a sign or a leading zero, does not fit.
        (self.id(seq).as_bytes() == id).then_some(seq)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn domain() -> Domain {
        let set = NameSet::of([(&b"a"[..], true), (b"b", false)]);
        Domain { boot: Boot::of(*b"abcdefgh"), generation: 3, set }
    }

    #[test]
    fn an_id_reads_back_in_its_own_domain_only() {
        let (own, id) = (domain(), domain().id(Seq::new(42)));
        assert!(id.starts_with("abcdefgh.3.42.") && id.len() == "abcdefgh.3.42.".len() + 8, "{id}");
        assert_eq!(own.read(id.as_bytes()), Some(Seq::new(42)));
        for other in [
            Domain { boot: Boot::of(*b"abcdefgi"), ..own },
            Domain { generation: 4, ..own },
            Domain { set: NameSet::of([(&b"a"[..], true), (b"b", true)]), ..own },
        ] {
            assert_eq!(other.read(id.as_bytes()), None);
        }
    }

    #[test]
    fn garbage_is_as_good_as_none() {
        let id = domain().id(Seq::new(42));
        let long = format!("{id}{}", "0".repeat(64));
        for bad in ["", "x", "a.b.c.d", "....", &long, &id.replace("42", "+42"), &id.replace("42", "042")] {
            assert_eq!(domain().read(bad.as_bytes()), None, "{bad}");
        }
        assert_eq!(domain().read(b"\xff.1.2.3"), None);
        assert_eq!(domain().read(format!("{id}.x").as_bytes()), None);
    }

    #[test]
    fn the_largest_id_fits() {
        let own = Domain { generation: u64::MAX, ..domain() };
        let id = own.id(Seq::new(u64::MAX));
        assert!(id.len() <= MAX, "{id}");
        assert_eq!(own.read(id.as_bytes()), Some(Seq::new(u64::MAX)));
    }

    #[test]
    fn order_of_names_does_not_count_and_their_ends_do() {
        let set = |names: &[&str]| NameSet::of(names.iter().map(|name| (name.as_bytes(), true)));
        assert_eq!(set(&["a", "b"]), set(&["b", "a"]));
        assert_ne!(set(&["ab", "c"]), set(&["a", "bc"]));
    }

    #[test]
    fn a_boot_is_eight_base32_characters() {
        let boot = Boot::random();
        assert!(boot.as_str().len() == 8 && boot.as_str().bytes().all(|b| ALPHABET.contains(&b)));
    }
}
