//! Names of bindings: 1 to 253 bytes of `A-Z a-z 0-9 . _ - / : @`, without a leading, trailing or doubled `/`. They compare
//! byte for byte.

/// The longest name, in bytes.
pub const MAX_NAME: usize = 253;

/// Whether a binding may be called so.
pub fn is_name(text: &str) -> bool {
    let may = |byte: u8| byte.is_ascii_alphanumeric() || b"._-/:@".contains(&byte);
    (1..=MAX_NAME).contains(&text.len())
        && text.bytes().all(may)
        && text.split('/').all(|part| !part.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_grammar() {
        let longest = "a".repeat(253);
        for name in ["a", "db-password", "orders/v1.2/KEY_1", "a:b@c", ".", "..", "-", &longest] {
            assert!(is_name(name), "{name}");
        }
        let over = "a".repeat(254);
        for name in ["", "/", "/a", "a/", "a//b", "a b", "a\0", "é", "a*", "a\n", "a%2Fb", &over] {
            assert!(!is_name(name), "{name:?}");
        }
    }
}
