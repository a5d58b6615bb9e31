//! A fuzzer for what reads bytes of strangers, on the stable toolchain.
//!
//! Inputs are mutations of a corpus. It is guided by what a target did: an input that was answered as none before it
//! joins the corpus, so that mutations get behind the first check that refuses. The ordinary run tries the same
//! few thousand inputs each time; `./dev soak fuzz MINUTES` goes on with fresh ones.

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher as _};
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

/// Inputs of an ordinary run.
const USUAL: u64 = 3000;
/// The longest input.
const MAX_BYTES: usize = 16 * 1024;
/// The most inputs that are kept as a start for others.
const MAX_CORPUS: usize = 4096;
/// What breaks readers of numbers and texts.
const NASTY: [&[u8]; 14] = [
    b"18446744073709551616",
    b"-9223372036854775809",
    b"-1",
    b"1e999",
    b"0x",
    b"\0",
    b"\r\n",
    b"\xff\xfe",
    b"\xc3",
    "\u{202e}\u{0301}".as_bytes(),
    b"%00",
    b"%2e%2e/",
    b"\\u0000",
    b"[[[[[[[[[[[[[[[[{{{{{{{{{{{{{{{{((((((((((((((((",
];

/// The inputs for one target.
pub struct Fuzzer {
    rng: StdRng,
    corpus: Vec<Vec<u8>>,
    seeds: usize,
    words: Vec<Vec<u8>>,
    seen: HashSet<u64>,
    made: u64,
    until: Option<Instant>,
}

/// Prints the input if the target panics.
pub struct Watched<'a>(&'a [u8]);

impl Drop for Watched<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the input was {:?}, in hex {}", String::from_utf8_lossy(self.0), hex::encode(self.0));
        }
    }
}

impl Fuzzer {
    /// Starts with `seeds`; `words` are what the format is made of.
    pub fn new(seeds: &[&[u8]], words: &[&str]) -> Self {
        let text = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
        let seconds = text("HOLDFAST_FUZZ_SECONDS");
        let given = text("HOLDFAST_SEED").or(text("HOLDFAST_SOAK_ROUND"));
        let seed = given.unwrap_or_else(|| if seconds.is_some() { rand::random() } else { 0 });
        println!("HOLDFAST_SEED={seed}");
        let words = words.iter().map(|word| word.as_bytes().to_vec());
        Self {
            rng: StdRng::seed_from_u64(seed),
            corpus: seeds.iter().map(|seed| seed.to_vec()).collect(),
            seeds: seeds.len(),
            words: words.chain(NASTY.iter().map(|bytes| bytes.to_vec())).collect(),
            seen: HashSet::new(),
            made: 0,
            until: seconds.map(|seconds| Instant::now() + Duration::from_secs(seconds)),
        }
    }

    /// The next input: first the seeds as they are, then mutations; none when it is enough.
    pub fn input(&mut self) -> Option<Vec<u8>> {
        let enough = match self.until {
            Some(until) => Instant::now() >= until,
            None => self.made >= USUAL,
        };
        if enough {
            println!("{} inputs, {} sorts of behaviour", self.made, self.seen.len());
            return None;
        }
        let seed = usize::try_from(self.made).ok().filter(|n| *n < self.seeds);
        self.made += 1;
        Some(match seed {
            Some(n) => self.corpus[n].clone(),
            None => self.mutation(),
        })
    }

    /// For as long as the target reads an input.
    pub fn watch(input: &[u8]) -> Watched<'_> {
        Watched(input)
    }

    /// What the target did with an input. Numbers in texts say where it stopped and not what it did.
    pub fn learn(&mut self, input: Vec<u8>, behaviour: &str) {
        let mut hasher = DefaultHasher::new();
        behaviour.chars().filter(|c| !c.is_ascii_digit()).take(200).collect::<String>().hash(&mut hasher);
        if self.seen.insert(hasher.finish()) && self.corpus.len() < MAX_CORPUS {
            self.corpus.push(input);
        }
    }

    fn below(&mut self, limit: usize) -> usize {
        self.rng.random_range(0..limit.max(1))
    }

    fn mutation(&mut self) -> Vec<u8> {
        let pick = self.below(self.corpus.len());
        let mut bytes = self.corpus[pick].clone();
        for _ in 0..=self.below(6) {
            self.mutate(&mut bytes);
        }
        bytes.truncate(MAX_BYTES);
        bytes
    }

    fn mutate(&mut self, bytes: &mut Vec<u8>) {
        let at = self.below(bytes.len() + 1);
        let end = (at + self.below(32)).min(bytes.len());
        match self.below(8) {
            0 if at < bytes.len() => bytes[at] ^= 1 << self.below(8),
            1 if at < bytes.len() => bytes[at] = self.rng.random(),
            2 => drop(bytes.drain(at..end)),
            3 => bytes.truncate(at),
            4 => {
                let again = bytes[at..end].to_vec();
                bytes.splice(at..at, again);
            }
            5 => {
                let other = self.below(self.corpus.len());
                let from = self.below(self.corpus[other].len() + 1);
                bytes.truncate(at);
                bytes.extend_from_slice(&self.corpus[other][from..]);
            }
            6 => {
                let word = self.below(self.words.len());
                bytes.splice(at..end, self.words[word].clone());
            }
            _ => {
                let word = self.below(self.words.len());
                bytes.splice(at..at, self.words[word].clone());
            }
        }
    }
}

/// Tries a target that reads bytes and says what it made of them.
pub fn fuzz(seeds: &[&[u8]], words: &[&str], target: impl Fn(&[u8]) -> String) {
    let mut fuzzer = Fuzzer::new(seeds, words);
    while let Some(input) = fuzzer.input() {
        let watched = Fuzzer::watch(&input);
        let behaviour = target(&input);
        drop(watched);
        fuzzer.learn(input, &behaviour);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_input_that_behaves_as_none_before_is_where_others_start() {
        let mut fuzzer = Fuzzer::new(&[b"seed"], &[]);
        assert_eq!(fuzzer.input().unwrap(), b"seed", "first the seeds as they are");
        fuzzer.learn(b"seed".to_vec(), "refused at 1");
        fuzzer.learn(b"same".to_vec(), "refused at 27");
        assert_eq!(fuzzer.corpus.len(), 2, "numbers in texts are no other behaviour");
        fuzzer.learn(b"further".to_vec(), "accepted");
        assert!(fuzzer.corpus.contains(&b"further".to_vec()));
        let mut made = 1;
        while let Some(input) = fuzzer.input() {
            assert!(input.len() <= MAX_BYTES);
            made += 1;
        }
        assert_eq!(made, USUAL);
    }
}
