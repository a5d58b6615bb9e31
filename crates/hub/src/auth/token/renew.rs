//! Renewing tokens.

use super::{Token, TokenType, Tokens, after, keys};
use crate::error::ApiError;
use crate::logical::Cx;

impl Tokens {
    /// Gives a token `increment` seconds from now (0: what it got at creation), within its limits. Returns the
    /// token as it is now, and what the client should know.
    pub async fn renew(
        &self,
        cx: &Cx,
        token: &Token,
        increment: u64,
    ) -> Result<(Token, Vec<String>), ApiError> {
        if token.token_type == TokenType::Batch {
            return Err(ApiError::invalid("batch tokens cannot be renewed"));
        }
        loop {
            let Some(mut stored) = self.record(&cx.storage, &token.id)? else {
                return Err(ApiError::denied());
            };
            let now = self.now();
            if !stored.value.is_alive(now) {
                return Err(ApiError::denied());
            }
            let (Some(old), true) = (stored.value.expires, stored.value.renewable) else {
                return Err(ApiError::invalid("lease is not renewable"));
            };
            let (until, warnings) = renewed_until(&stored.value, increment, now);
            stored.value.expires = Some(until);
            stored.value.renewed = Some(now);
            let key = keys::id(&token.id);
            let mut txn = cx.storage.txn();
            txn.require_version(&key, stored.version);
            txn.delete(&keys::expiry(old, &token.id));
            txn.put(&keys::expiry(until, &token.id), &())?;
            txn.put(&key, &stored.value)?;
            match txn.commit().await {
                Err(error) if error.is_conflict() => {}
                done => return done.map(|_| (stored.value, warnings)).map_err(ApiError::from),
            }
        }
    }
}

/// The end that a renewal at `now` gives.
fn renewed_until(token: &Token, increment: u64, now: i64) -> (i64, Vec<String>) {
    let seconds = match (token.period, increment) {
        (0, 0) => token.creation_ttl,
        (0, increment) => increment,
        (period, _) => period,
    };
    let wanted = after(now, seconds);
    let explicit = (token.explicit_max_ttl > 0).then(|| after(token.created, token.explicit_max_ttl));
    let mount = (token.period == 0 && token.max_ttl > 0).then(|| after(token.created, token.max_ttl));
    let cap = explicit.into_iter().chain(mount).min().unwrap_or(i64::MAX);
    if wanted <= cap {
        return (wanted, Vec::new());
    }
    let left = cap.saturating_sub(now).max(0);
    (
        cap,
        vec![format!("TTL of {seconds} seconds is over the token's maximum; it is capped to {left} seconds")],
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token() -> Token {
        Token { created: 1000, creation_ttl: 60, max_ttl: 600, renewable: true, ..Token::default() }
    }

    #[test]
    fn a_renewal_counts_from_now_within_the_limits() {
        assert_eq!(renewed_until(&token(), 0, 1100).0, 1160);
        assert_eq!(renewed_until(&token(), 100, 1100).0, 1200);
        let (until, warnings) = renewed_until(&token(), 1000, 1100);
        assert_eq!((until, warnings.len()), (1600, 1));
        let periodic = Token { period: 30, ..token() };
        assert_eq!(renewed_until(&periodic, 1000, 9000).0, 9030);
        let bounded = Token { explicit_max_ttl: 120, ..periodic };
        assert_eq!(renewed_until(&bounded, 0, 1110).0, 1120);
    }
}
