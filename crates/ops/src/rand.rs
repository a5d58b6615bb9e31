//! Unpredictable bytes and identifiers, from the operating system through the one crypto library.

const BASE62: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

/// Fills `buffer` with unpredictable bytes.
///
/// # Aborts
/// When the system has no random source: a process that would go on could hand out keys that can be guessed.
pub fn fill(buffer: &mut [u8]) {
    if aws_lc_rs::rand::fill(buffer).is_err() {
        tracing::error!("the system's random source failed; stopping, since keys could be guessed");
        std::process::abort();
    }
}

/// `N` unpredictable bytes.
pub fn bytes<const N: usize>() -> [u8; N] {
    let mut buffer = [0; N];
    fill(&mut buffer);
    buffer
}

/// `length` characters of `[0-9A-Za-z]`, each equally likely.
pub fn base62(length: usize) -> String {
    let mut text = String::with_capacity(length);
    while text.len() < length {
        for byte in bytes::<64>() {
            // 248 is the largest multiple of 62 in a byte; what lies above would favour the first characters.
            if byte < 248
                && text.len() < length
                && let Some(c) = BASE62.get(usize::from(byte % 62))
            {
                text.push(char::from(*c));
            }
        }
    }
    text
}

/// `count` unpredictable bytes as lower-case hexadecimal digits, two for each.
pub fn hex(count: usize) -> String {
    use std::fmt::Write as _;
    let mut raw = vec![0; count];
    fill(&mut raw);
    raw.iter().fold(String::with_capacity(count * 2), |mut text, byte| {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// A number in `0.0..1.0` for jitter, the `unit` that [`holdfast_core::time::jittered`] takes.
pub fn unit() -> f64 {
    let bits = u64::from_le_bytes(bytes()) >> 11;
    #[allow(clippy::cast_precision_loss, reason = "53 bits fit a double exactly")]
    let unit = bits as f64 / (1u64 << 53) as f64;
    unit
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base62_uses_the_whole_alphabet_evenly() {
        let text = base62(62_000);
        assert_eq!(text.len(), 62_000);
        for c in BASE62 {
            let count = text.bytes().filter(|b| b == c).count();
            assert!((700..1300).contains(&count), "{} occurs {count} times", char::from(*c));
        }
    }

    #[test]
    fn ids_have_the_asked_length_and_differ() {
        assert_eq!(hex(12).len(), 24);
        assert_ne!(base62(24), base62(24));
        let unit = unit();
        assert!((0.0..1.0).contains(&unit));
    }
}
