//! The text of tokens: random for service tokens, a sealed record for batch tokens.

use aws_lc_rs::rand;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use zeroize::Zeroizing;

use super::{Token, TokenType, barrier_error};
use crate::barrier::{Barrier, BarrierError, MacPurpose};
use crate::error::ApiError;

/// Characters in the random part of a service token and in an accessor.
const RANDOM: usize = 24;
const BASE62: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
/// What the sealed text of a batch token is bound to, in place of a storage key.
const BATCH_SEAL: &str = "token/batch";

/// `len` random characters of `0-9A-Za-z`, each equally likely.
pub fn base62(len: usize) -> Result<Zeroizing<String>, ApiError> {
    let mut out = Zeroizing::new(String::with_capacity(len));
    let mut bytes = Zeroizing::new([0u8; 64]);
    while out.len() < len {
        rand::fill(bytes.as_mut()).map_err(|_| ApiError::internal(BarrierError::Library))?;
        // 248 is the largest multiple of 62 that a byte can hold; above it some characters would be likelier.
        let fair = bytes.iter().filter(|b| **b < 248);
        let wanted = len - out.len();
        out.extend(fair.filter_map(|b| BASE62.get(usize::from(b % 62))).map(|b| char::from(*b)).take(wanted));
    }
    Ok(out)
}

/// The text of a new service token.
pub(super) fn service() -> Result<Zeroizing<String>, ApiError> {
    Ok(Zeroizing::new(format!("hvs.{}", base62(RANDOM)?.as_str())))
}

/// A new accessor.
pub(super) fn accessor() -> Result<String, ApiError> {
    Ok(base62(RANDOM)?.to_string())
}

/// Whether the text can be an accessor; keeps callers' text out of storage keys.
pub(super) fn is_accessor(text: &str) -> bool {
    text.len() == RANDOM && text.bytes().all(|b| b.is_ascii_alphanumeric())
}

/// The text of a batch token: its whole record, sealed.
pub(super) fn seal_batch(barrier: &Barrier, token: &Token) -> Result<Zeroizing<String>, ApiError> {
    let plain = Zeroizing::new(serde_json::to_vec(token).map_err(ApiError::internal)?);
    let sealed = barrier.encrypt(BATCH_SEAL, &plain).map_err(barrier_error)?;
    Ok(Zeroizing::new(format!("hvb.{}", URL_SAFE_NO_PAD.encode(sealed))))
}

/// The batch token with this text; none when the text is not that of a batch token of this cluster.
pub(super) fn open_batch(barrier: &Barrier, text: &str) -> Result<Option<Token>, ApiError> {
    let Some(blob) = text.strip_prefix("hvb.").or_else(|| text.strip_prefix("b.")) else { return Ok(None) };
    let Ok(sealed) = URL_SAFE_NO_PAD.decode(blob.trim_end_matches('=')) else { return Ok(None) };
    let plain = match barrier.decrypt(BATCH_SEAL, &sealed) {
        Ok(plain) => plain,
        Err(BarrierError::Sealed) => return Err(ApiError::sealed()),
        Err(_) => return Ok(None),
    };
    let Ok(mut token) = serde_json::from_slice::<Token>(&plain) else { return Ok(None) };
    let mac = barrier.mac(MacPurpose::Token, text.as_bytes()).map_err(barrier_error)?;
    token.id = hex::encode(mac);
    Ok((token.token_type == TokenType::Batch).then_some(token))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::*;
    use crate::barrier::Keyring;

    fn barrier() -> Arc<Barrier> {
        Barrier::opened(Keyring::generate().unwrap())
    }

    #[test]
    fn random_texts_have_the_shape_that_clients_know() {
        let text = service().unwrap();
        let (prefix, rest) = text.split_at(4);
        assert_eq!(prefix, "hvs.");
        assert!(is_accessor(rest));
        assert_ne!(service().unwrap(), text);
        assert_eq!(base62(200).unwrap().len(), 200);
    }

    #[test]
    fn a_batch_token_opens_only_unchanged_and_at_home() {
        let barrier = barrier();
        let token =
            Token { token_type: TokenType::Batch, policies: vec!["default".into()], ..Token::default() };
        let text = seal_batch(&barrier, &token).unwrap();
        let opened = open_batch(&barrier, &text).unwrap().unwrap();
        assert_eq!(opened.policies, token.policies);
        let short = text.replacen("hvb.", "b.", 1);
        assert!(open_batch(&barrier, &short).unwrap().is_some());
        let mut bytes = text.as_bytes().to_vec();
        bytes[30] = if bytes[30] == b'A' { b'B' } else { b'A' };
        assert!(open_batch(&barrier, std::str::from_utf8(&bytes).unwrap()).unwrap().is_none());
        assert!(open_batch(&super::tests::barrier(), &text).unwrap().is_none());
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "(hvb\\.|hvs\\.|b\\.|s\\.)?\\PC{0,80}", blob in "[A-Za-z0-9_=-]{0,120}") {
            let barrier = barrier();
            let _ = open_batch(&barrier, &text);
            let _ = open_batch(&barrier, &format!("hvb.{blob}"));
            let _ = is_accessor(&text);
        }
    }
}
