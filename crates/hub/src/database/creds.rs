//! `creds/<role>`: a new login under a lease.
//!
//! The checks come in a fixed order; nothing is made before all of them passed. The making itself follows the
//! intent protocol, see [`super::creation`].

use std::sync::Arc;

use holdfast_core::intent::Key;
use holdfast_dbdriver::{IdempotencyKey, NameContext, NewUser, UsernameSource};
use secrecy::{ExposeSecret, SecretString};
use serde_json::Map;

use super::connection::Named;
use super::creation::{Creation, Failure};
use super::instances::Instance;
use super::intent::{self, Intent};
use super::paths::Place;
use super::role::{self, Role};
use super::ttl::{self, Granted, Times};
use super::{config, names, passwords};
use crate::auth::token::Token;
use crate::error::ApiError;
use crate::lease::{Lease, LeaseId, Login, Revocation, Wall};
use crate::logical::{LeaseTicket, Logical, Operation, Request, Response};
use crate::quota::LeaseRoom;

/// How often a new name is tried when one is taken.
const NAMES: u32 = 3;
/// A login stays valid in the database for this long after its lease ends, so that the lease decides.
pub const VALIDITY_MARGIN_SECS: u64 = 5;

/// What the checks found.
struct Checked {
    role: Role,
    name: String,
    named: Named,
    times: Times,
    instance: Arc<Instance>,
    /// The token with which the lease ends.
    owner: Option<Token>,
    /// Counts this lease against its quota until it is in the store.
    _room: LeaseRoom,
}

/// Answers `creds/<role>`.
pub async fn handle(place: &Place<'_>, request: &Request, name: &str) -> Result<Response, ApiError> {
    if request.operation != Operation::Read || name.is_empty() {
        return Err(ApiError::unsupported_operation());
    }
    let token = request.token.as_deref();
    let checked = check(place, request, name, token)?;
    let mut tries = 1;
    loop {
        match issue(place, request, &checked, token).await {
            Ok(response) => return Ok(response),
            Err(Failure::NameTaken) if tries < NAMES => tries += 1,
            Err(Failure::NameTaken) => {
                return Err(ApiError::failed(
                    "no free user name was found in three tries; the username_template may hold nothing random",
                ));
            }
            Err(Failure::Api(error)) => return Err(error),
        }
    }
}

fn check(
    place: &Place<'_>,
    request: &Request,
    name: &str,
    token: Option<&Token>,
) -> Result<Checked, ApiError> {
    if let Some(token) = token {
        crate::auth::token::check_leased(token)?;
    }
    let role =
        role::read(place, name)?.ok_or_else(|| ApiError::invalid(format!("unknown role: {name}")))?.value;
    let named = config::required(place, &role.db_name)?;
    let connection = &named.connection.value;
    if !connection.config.allows_role(name) {
        return Err(ApiError::failed(format!("{name:?} is not an allowed role")));
    }
    if role.creation_statements.is_empty() {
        return Err(ApiError::invalid("empty creation statements"));
    }
    let room = place.cx.hub.quotas.check_leases(place.cx, &request.path, Some(name))?;
    let times = Times::of(role.default_ttl, role.max_ttl, place.cx.hub.mounts.ttls(place.mount));
    let tokens = &place.cx.hub.tokens;
    let owner = token.map(|token| tokens.owner_of_leases(&place.cx.storage, token)).transpose()?;
    let instance = place.acquire(&named.connection)?;
    Ok(Checked { role, name: name.to_owned(), named, times, instance, owner, _room: room })
}

async fn issue(
    place: &Place<'_>,
    request: &Request,
    checked: &Checked,
    token: Option<&Token>,
) -> Result<Response, Failure> {
    let now = Wall::now();
    let Granted { ttl, warnings } =
        ttl::grant(checked.times.default, now, now.after_secs(checked.times.max), token);
    let creation = prepare(place, request, checked, now, ttl)?;
    let (username, password) = (creation.user.username.clone(), creation.user.password.clone());
    let lease = creation.run(place, checked.owner.as_ref()).await?;
    Ok(answer(&lease, username, &password, warnings))
}

fn prepare<'a>(
    place: &Place<'_>,
    request: &Request,
    checked: &'a Checked,
    now: Wall,
    ttl: u64,
) -> Result<Creation<'a>, ApiError> {
    let cx = place.cx;
    let config = &checked.named.connection.value.config;
    let policy = checked.role.credential_config.get("password_policy").unwrap_or(&config.password_policy);
    let password: SecretString = passwords::generate(&cx.storage, policy)?;
    let username = username(request, checked, now)?;
    let bits: [u8; 16] = holdfast_ops::rand::bytes();
    let key = Key::new(u128::from_be_bytes(bits));
    let left = cx.deadline.saturating_duration_since(tokio::time::Instant::now());
    let deadline = now.after(left.min(checked.instance.timeout));
    let login = Login {
        mount_uuid: place.mount.uuid.clone(),
        config_id: checked.named.connection.value.id.clone(),
        config: checked.role.db_name.clone(),
        role: checked.name.clone(),
        username: username.clone(),
        key: intent::key_text(key),
        revocation_statements: checked.role.revocation_statements.clone(),
        renew_statements: checked.role.renew_statements.clone(),
    };
    let user = NewUser {
        key: IdempotencyKey::from_bytes(bits),
        resent: false,
        username,
        password,
        expiration: now.after_secs(ttl.saturating_add(VALIDITY_MARGIN_SECS)).timestamp(),
        statements: checked.role.creation_statements.clone(),
        rollback_statements: checked.role.rollback_statements.clone(),
    };
    let intent = Intent {
        state: holdfast_core::intent::State::Open,
        term: cx.term,
        opened: now,
        deadline,
        spoke: config.spoke_name.clone(),
        login: login.clone(),
    };
    let lease = lease_of(place, request, checked, login, now, ttl);
    Ok(Creation { key, instance: &checked.instance, named: &checked.named, user, intent, lease })
}

fn lease_of(
    place: &Place<'_>,
    request: &Request,
    checked: &Checked,
    login: Login,
    now: Wall,
    ttl: u64,
) -> Lease {
    let expires = now.after_secs(ttl);
    Lease {
        id: LeaseId::below(&request.path),
        mount: place.mount.path.clone(),
        path: request.path.clone(),
        token: checked.owner.as_ref().map(|token| token.id.clone()).unwrap_or_default(),
        issued: now,
        expires,
        renewed: None,
        default_ttl: checked.times.default,
        max_ttl: checked.times.max,
        not_after: request.token.as_deref().and_then(|token| ttl::token_limit(now, token)),
        renewable: true,
        due: expires,
        revocation: Revocation::default(),
        login,
    }
}

fn username(request: &Request, checked: &Checked, now: Wall) -> Result<String, ApiError> {
    let config = &checked.named.connection.value.config;
    let context = NameContext {
        display_name: request.token.as_ref().map(|token| token.display_name.clone()).unwrap_or_default(),
        role_name: checked.name.clone(),
    };
    UsernameSource::new(config.plugin_name.dialect(), &config.username_template)
        .and_then(|source| source.generate(&context, now.timestamp()))
        .map_err(|error| ApiError::failed(format!("failed to generate a user name: {error}")))
}

fn answer(lease: &Lease, username: String, password: &SecretString, warnings: Vec<String>) -> Response {
    let data = Map::from_iter([
        ("username".to_owned(), username.into()),
        ("password".to_owned(), password.expose_secret().into()),
    ]);
    let ticket = LeaseTicket {
        id: lease.id.to_string(),
        duration: lease.remaining(Wall::now()),
        renewable: lease.renewable,
    };
    Logical { lease: Some(ticket), data: Some(data), warnings, ..Logical::default() }.into()
}

/// The name index entry of a creation, for telling a taken name from other conflicts.
pub fn name_key(login: &Login) -> String {
    names::key_of(login)
}
