//! `auth/token/create*`: who may make which token.

use secrecy::SecretString;

use super::caller;
use super::roles::{self, Role};
use crate::auth::params;
use crate::auth::token::create::clean_policies;
use crate::auth::token::{NewToken, Token, TokenType};
use crate::error::ApiError;
use crate::logical::{Cx, Data, Logical, Operation, Request, Response};
use crate::mount::MountEntry;

/// What a client may write.
pub(super) const FIELDS: [&str; 15] = [
    "id",
    "policies",
    "meta",
    "no_parent",
    "no_default_policy",
    "renewable",
    "lease",
    "ttl",
    "type",
    "explicit_max_ttl",
    "display_name",
    "num_uses",
    "period",
    "entity_alias",
    "role_name",
];

/// What the caller may do beyond what any holder of the path may.
struct Rights<'a> {
    caller: &'a Token,
    /// Root, or `sudo` on the path.
    sudo: bool,
}

/// Answers `auth/token/create` and `auth/token/create-orphan`.
pub(super) async fn create(
    cx: &Cx,
    mount: &MountEntry,
    request: &Request,
    orphan: bool,
) -> Result<Response, ApiError> {
    let rights = rights(cx, request)?;
    let data = &request.data;
    let orphan = orphan || no_parent(data, &rights)?;
    let wanted = policies(data, &rights, None)?;
    let new = draft(cx, mount, request, &rights, wanted, orphan, None)?;
    answer(cx, new).await
}

/// Answers `auth/token/create/<role>`.
pub(super) async fn with_role(
    cx: &Cx,
    mount: &MountEntry,
    request: &Request,
    name: &str,
) -> Result<Response, ApiError> {
    let rights = rights(cx, request)?;
    let name = params::name(name)?;
    let role = roles::read(cx, &name)?.ok_or_else(|| ApiError::invalid(format!("unknown role {name}")))?;
    let orphan = role.orphan || no_parent(&request.data, &rights)?;
    let wanted = policies(&request.data, &rights, Some(&role))?;
    let mut new = draft(cx, mount, request, &rights, wanted, orphan, Some(&role))?;
    new.path = format!("{}create/{name}", request.mount);
    if !role.path_suffix.is_empty() {
        new.path = format!("{}/{}", new.path, role.path_suffix);
    }
    new.role = name;
    answer(cx, new).await
}

async fn answer(cx: &Cx, new: NewToken) -> Result<Response, ApiError> {
    let created = cx.hub.tokens.create(cx, new).await?;
    let auth = Some(Box::new(created.grant));
    Ok(Logical { auth, warnings: created.warnings, ..Logical::default() }.into())
}

fn rights<'a>(cx: &Cx, request: &'a Request) -> Result<Rights<'a>, ApiError> {
    let caller = caller(request)?;
    if caller.token_type == TokenType::Batch {
        return Err(ApiError::invalid("batch tokens cannot create more tokens"));
    }
    if caller.num_uses > 0 {
        return Err(ApiError::invalid("restricted use token cannot generate child tokens"));
    }
    let policies = &cx.hub.policies;
    let decision = policies.decide(&cx.storage, &caller.policies, &request.path, Operation::Write, true)?;
    Ok(Rights { caller, sudo: decision.sudo })
}

fn no_parent(data: &Data, rights: &Rights<'_>) -> Result<bool, ApiError> {
    let wanted = data.bool("no_parent")?.unwrap_or(false);
    if wanted && !rights.sudo {
        return Err(ApiError::invalid("root or sudo privileges required to create orphan token"));
    }
    Ok(wanted)
}

/// The policies of the new token, before `default` is added.
fn policies(data: &Data, rights: &Rights<'_>, role: Option<&Role>) -> Result<Vec<String>, ApiError> {
    let asked = clean_policies(&data.strings("policies")?.unwrap_or_default(), false);
    let parent = &rights.caller.policies;
    let allowed = role.map(|role| role.allowed_policies.as_slice()).filter(|allowed| !allowed.is_empty());
    let wanted = match (asked.is_empty(), allowed) {
        (false, _) => asked,
        (true, Some(allowed)) => allowed.to_vec(),
        (true, None) => parent.clone(),
    };
    if wanted.iter().any(|policy| policy == "root") && !rights.caller.is_root() {
        return Err(ApiError::invalid("root tokens may not be created without parent token being root"));
    }
    if let Some(allowed) = allowed {
        // `default` is on every token unless it is left out, so asking for it adds nothing.
        if wanted.iter().any(|policy| policy != "default" && !allowed.contains(policy)) {
            return Err(ApiError::invalid(format!(
                "token policies ({wanted:?}) must be subset of the role's allowed policies ({allowed:?})"
            )));
        }
    } else if !rights.sudo && wanted.iter().any(|policy| !parent.contains(policy)) {
        return Err(ApiError::invalid("child policies must be subset of parent"));
    }
    let banned = role.map(|role| role.disallowed_policies.as_slice()).unwrap_or_default();
    if let Some(policy) = wanted.iter().find(|policy| banned.contains(policy)) {
        return Err(ApiError::invalid(format!("token policy {policy:?} is disallowed by this role")));
    }
    Ok(wanted)
}

fn draft(
    cx: &Cx,
    mount: &MountEntry,
    request: &Request,
    rights: &Rights<'_>,
    policies: Vec<String>,
    orphan: bool,
    role: Option<&Role>,
) -> Result<NewToken, ApiError> {
    let data = &request.data;
    let times = times(data, rights, role)?;
    let bare = data.bool("no_default_policy")?.unwrap_or(false)
        || role.is_some_and(|role| {
            role.no_default_policy || role.disallowed_policies.iter().any(|policy| policy == "default")
        })
        || role.is_none() && !rights.sudo && !rights.caller.policies.iter().any(|policy| policy == "default");
    let new = NewToken {
        text: chosen_text(data, rights)?,
        token_type: token_type(data, role)?,
        policies,
        no_default_policy: bare,
        display_name: display_name(data)?,
        meta: data.string_map("meta")?.unwrap_or_default(),
        num_uses: num_uses(data, role)?,
        ttl: times.ttl,
        explicit_max_ttl: times.explicit_max_ttl,
        period: times.period,
        renewable: data.bool("renewable")?.unwrap_or(true) && role.is_none_or(|role| role.renewable),
        parent: (!orphan).then(|| rights.caller.clone()),
        bound_cidrs: role.map(|role| role.bound_cidrs.clone()).unwrap_or_default(),
        ..NewToken::orphan(request.path.clone(), cx.hub.mounts.ttls(mount))
    };
    check(&new, rights)?;
    Ok(new)
}

struct Times {
    ttl: u64,
    explicit_max_ttl: u64,
    period: u64,
}

fn times(data: &Data, rights: &Rights<'_>, role: Option<&Role>) -> Result<Times, ApiError> {
    let ttl = match data.duration("ttl")? {
        Some(ttl) => ttl,
        None => data.duration("lease")?.unwrap_or_default(),
    };
    let asked = data.duration("period")?.unwrap_or_default().as_secs();
    if asked > 0 && !rights.sudo {
        return Err(ApiError::invalid("root or sudo privileges required to create periodic token"));
    }
    let explicit = data.duration("explicit_max_ttl")?.unwrap_or_default().as_secs();
    let (of_role, role_period) = role.map_or((0, 0), |role| (role.explicit_max_ttl, role.period));
    let explicit_max_ttl = [explicit, of_role].into_iter().filter(|ttl| *ttl > 0).min().unwrap_or(0);
    let period = if role_period > 0 { role_period } else { asked };
    Ok(Times { ttl: ttl.as_secs(), explicit_max_ttl, period })
}

fn chosen_text(data: &Data, rights: &Rights<'_>) -> Result<Option<SecretString>, ApiError> {
    let Some(text) = data.string("id")?.filter(|text| !text.is_empty()) else { return Ok(None) };
    if !rights.caller.is_root() {
        return Err(ApiError::invalid("root privileges required to specify token id"));
    }
    let reserved = ["hvs.", "hvb.", "s.", "b."].iter().any(|prefix| text.starts_with(prefix));
    let odd = text.chars().any(|c| c.is_control() || c.is_whitespace());
    if reserved || odd || text.len() > 256 {
        return Err(ApiError::invalid(
            "a token id has at most 256 characters, no space, and none of the prefixes hvs., hvb., s. and b.",
        ));
    }
    Ok(Some(SecretString::from(text)))
}

fn token_type(data: &Data, role: Option<&Role>) -> Result<TokenType, ApiError> {
    let asked = match data.string("type")?.as_deref() {
        None | Some("") => None,
        Some("service") => Some(TokenType::Service),
        Some("batch") => Some(TokenType::Batch),
        Some(other) => return Err(ApiError::invalid(format!("invalid 'type' value {other:?}"))),
    };
    Ok(role.map_or(asked.unwrap_or_default(), |role| role.kind.choose(asked)))
}

fn display_name(data: &Data) -> Result<String, ApiError> {
    let name = data.string("display_name")?.unwrap_or_default();
    let clean: String =
        name.chars().map(|c| if c.is_ascii_alphanumeric() || c == '-' { c } else { '-' }).collect();
    let clean = clean.trim_matches('-');
    Ok(if clean.is_empty() { "token".to_owned() } else { format!("token-{clean}") })
}

fn num_uses(data: &Data, role: Option<&Role>) -> Result<i64, ApiError> {
    let asked = match data.int("num_uses")?.unwrap_or(0) {
        uses if uses < 0 => return Err(ApiError::invalid("number of uses cannot be negative")),
        uses => uses,
    };
    let limit = role.map_or(0, |role| role.num_uses);
    Ok([asked, limit].into_iter().filter(|uses| *uses > 0).min().unwrap_or(0))
}

/// What no right makes possible.
fn check(new: &NewToken, rights: &Rights<'_>) -> Result<(), ApiError> {
    if new.token_type == TokenType::Batch {
        let reason = match new {
            _ if new.text.is_some() => Some("batch tokens cannot have a chosen id"),
            _ if new.period > 0 => Some("batch tokens cannot be periodic"),
            _ if new.num_uses > 0 => Some("batch tokens cannot have \"num_uses\" set"),
            _ if new.explicit_max_ttl > 0 => Some("batch tokens cannot have an explicit max TTL"),
            _ => None,
        };
        if let Some(reason) = reason {
            return Err(ApiError::invalid(reason));
        }
    }
    let endless = new.ttl == 0 && new.period == 0 && new.explicit_max_ttl == 0;
    if endless && new.policies.iter().any(|p| p == "root") && rights.caller.expires.is_some() {
        return Err(ApiError::invalid("expiring root tokens cannot create non-expiring root tokens"));
    }
    Ok(())
}
