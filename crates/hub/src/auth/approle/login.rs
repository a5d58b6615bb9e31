//! Logging in with a role id and a secret id.

use super::Place;
use super::role::{self, Role};
use super::secret::{self, Key, SecretId};
use crate::auth::params::Login;
use crate::auth::token::in_networks;
use crate::error::ApiError;
use crate::logical::Response;

/// Where a token's notes hold the role.
pub(super) const ROLE_NAME: &str = "role_name";

/// One text for whatever is wrong: the caller learns nothing of what exists.
fn refused() -> ApiError {
    ApiError::invalid("invalid role or secret ID")
}

/// Answers `login`.
pub(super) async fn handle(place: &Place<'_>) -> Result<Response, ApiError> {
    let data = &place.request.data;
    let role_id = data.required("role_id", "missing role_id")?;
    let text = data.string("secret_id")?.filter(|text| !text.is_empty());
    let found = role::by_id(&place.storage, &role_id)?;
    if text.is_none() && found.as_ref().is_none_or(|(_, role)| role.bind_secret_id) {
        return Err(ApiError::invalid("missing secret_id"));
    }
    let (name, role) = found.ok_or_else(refused)?;
    let remote = place.request.remote;
    if !in_networks(&role.secret_id_bound_cidrs, remote) || !role.params.allows_from(remote) {
        return Err(refused());
    }
    let mut login = Login { display_name: display_name(place), ..Login::default() };
    if let (true, Some(text)) = (role.bind_secret_id, text) {
        let secret = use_up(place, &role, &text).await?;
        login.metadata = secret.metadata;
        login.bound_cidrs = secret.token_bound_cidrs;
    }
    login.metadata.insert(ROLE_NAME.to_owned(), name);
    role.params.log_in(place.cx, place.mount, &place.request.path, login).await
}

/// The mount's path without `auth/` and slashes at the ends.
fn display_name(place: &Place<'_>) -> String {
    let path = place.mount.path.trim_matches('/');
    path.strip_prefix("auth/").unwrap_or(path).replace('/', "-")
}

/// Takes one use of a secret id; of several callers only as many succeed as there are uses.
async fn use_up(place: &Place<'_>, role: &Role, text: &str) -> Result<SecretId, ApiError> {
    let key = Key::of(&place.storage, role, text)?;
    loop {
        let mut stored = secret::read(place, &key)?.ok_or_else(refused)?;
        let secret = &mut stored.value;
        if !in_networks(&secret.cidr_list, place.request.remote)
            || !in_networks(&secret.token_bound_cidrs, place.request.remote)
        {
            return Err(refused());
        }
        if secret.num_uses == 0 {
            return Ok(stored.value);
        }
        let mut txn = place.storage.txn();
        txn.require_version(&key.record(), stored.version);
        if secret.num_uses == 1 {
            key.remove(&mut txn, secret);
        } else {
            secret.num_uses -= 1;
            secret.updated = place.cx.hub.tokens.now();
            txn.put(&key.record(), secret)?;
        }
        match txn.commit().await {
            Err(error) if error.is_conflict() && !crate::mount::is_gone(&error) => {}
            done => return done.map(|_| stored.value).map_err(ApiError::from),
        }
    }
}
