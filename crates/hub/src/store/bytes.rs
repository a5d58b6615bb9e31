//! Byte strings in one piece, for `#[serde(with = "bytes")]`.
//!
//! Serde takes a `Vec<u8>` for a list of numbers and goes through it one by one, several times for each write and each
//! follower: for a value of a megabyte that takes longer than a follower waits for its leader. The encoding in the log
//! is the same either way.

use std::fmt;

use serde::de::{Deserializer, Error, Visitor};
use serde::ser::Serializer;

pub(super) fn serialize<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_bytes(bytes)
}

pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
    deserializer.deserialize_byte_buf(Bytes)
}

struct Bytes;

impl Visitor<'_> for Bytes {
    type Value = Vec<u8>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("bytes")
    }

    fn visit_bytes<E: Error>(self, bytes: &[u8]) -> Result<Vec<u8>, E> {
        Ok(bytes.to_vec())
    }

    fn visit_byte_buf<E: Error>(self, bytes: Vec<u8>) -> Result<Vec<u8>, E> {
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use crate::store::Op;

    #[derive(serde::Deserialize, serde::Serialize)]
    enum ByNumbers {
        Put { key: String, value: Vec<u8> },
    }

    #[test]
    fn the_encoding_is_that_of_a_list_of_numbers() {
        for length in [0, 1, 127, 128, 70_000] {
            let value: Vec<u8> = (0..length).map(|n: u32| n.to_le_bytes()[0]).collect();
            let op = Op::Put { key: "k".into(), value: value.clone() };
            let bytes = postcard::to_stdvec(&op).unwrap();
            assert_eq!(bytes, postcard::to_stdvec(&ByNumbers::Put { key: "k".into(), value }).unwrap());
            assert_eq!(postcard::from_bytes::<Op>(&bytes).unwrap(), op);
        }
    }
}
