//! How long a lease lasts: what was asked for, capped by role, mount and token.

use crate::auth::token::{Token, Tokens};
use crate::lease::Wall;

/// The times that hold for a role, in seconds.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Times {
    /// When nothing else is asked for.
    pub default: u64,
    /// At most, since the issue.
    pub max: u64,
}

impl Times {
    /// A role's own times where set, never above the mount's maximum.
    pub fn of(role_default: u64, role_max: u64, mount: crate::mount::LeaseTtls) -> Self {
        let max = if role_max == 0 { mount.max } else { role_max.min(mount.max) };
        let default = if role_default == 0 { mount.default } else { role_default };
        Self { default, max }
    }
}

/// A life that was granted, with what the client should know about it.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Granted {
    /// Seconds.
    pub ttl: u64,
    /// What was capped, and why.
    pub warnings: Vec<String>,
}

/// Grants `wanted` seconds from `now` on, for a lease that may last until `limit` and belongs to `token`.
pub fn grant(wanted: u64, now: Wall, limit: Wall, token: Option<&Token>) -> Granted {
    let mut granted = Granted { ttl: wanted, warnings: Vec::new() };
    let left = now.secs_until(limit);
    if wanted > left {
        granted.ttl = left;
        granted.warnings.push(format!(
            "TTL of {wanted}s exceeded the effective max_ttl of {left}s; TTL value is capped accordingly"
        ));
    }
    if let Some(token) = token {
        cap_by_token(&mut granted, now, token);
    }
    granted
}

/// The end of the longest life that a token can have. It never moves out, so it holds for renewals too.
pub fn token_limit(now: Wall, token: &Token) -> Option<Wall> {
    Tokens::longest_life(token, now.millis().div_euclid(1000)).map(|longest| now.after_secs(longest))
}

fn cap_by_token(granted: &mut Granted, now: Wall, token: &Token) {
    let now = now.millis().div_euclid(1000);
    if let Some(longest) = Tokens::longest_life(token, now)
        && granted.ttl > longest
    {
        granted.ttl = longest;
        granted.warnings.push(format!(
            "TTL of the lease is capped to {longest}s: a lease never outlives the longest life of its token"
        ));
    } else if let Some(ends) = token.expires {
        let left = u64::try_from(ends.saturating_sub(now)).unwrap_or(0);
        if granted.ttl > left {
            granted.warnings.push(format!(
                "TTL of {}s is longer than the token's remaining {left}s; the lease ends with the token unless it is \
                 renewed",
                granted.ttl
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mount::LeaseTtls;

    fn at(seconds: i64) -> Wall {
        Wall::from_millis(seconds * 1000)
    }

    #[test]
    fn a_role_stays_below_its_mount() {
        let mount = LeaseTtls { default: 100, max: 200 };
        assert_eq!(Times::of(0, 0, mount), Times { default: 100, max: 200 });
        assert_eq!(Times::of(50, 60, mount), Times { default: 50, max: 60 });
        assert_eq!(Times::of(500, 600, mount), Times { default: 500, max: 200 });
    }

    #[test]
    fn the_maximum_caps_with_a_warning() {
        assert_eq!(grant(10, at(0), at(20), None), Granted { ttl: 10, warnings: vec![] });
        let capped = grant(30, at(0), at(20), None);
        assert_eq!((capped.ttl, capped.warnings.len()), (20, 1));
        assert_eq!(grant(30, at(25), at(20), None).ttl, 0);
    }

    #[test]
    fn a_lease_never_outlives_its_token() {
        let token = Token { expires: Some(60), renewable: false, ..Token::default() };
        let capped = grant(100, at(0), at(1000), Some(&token));
        assert_eq!((capped.ttl, capped.warnings.len()), (60, 1));
        // A token that can be renewed can outlive its present end: the client is only told.
        let renewable = Token { renewable: true, ..token };
        let told = grant(100, at(0), at(1000), Some(&renewable));
        assert_eq!((told.ttl, told.warnings.len()), (100, 1));
        let bounded = Token { renewable: true, explicit_max_ttl: 80, expires: Some(60), ..Token::default() };
        assert_eq!(grant(100, at(0), at(1000), Some(&bounded)).ttl, 80);
        assert_eq!(grant(100, at(0), at(1000), Some(&Token::default())).warnings.len(), 0);
    }
}
