//! A driver's requests, configuration and failures as the messages that hub and spokes exchange.
//!
//! Both ends use this one place, so that they cannot come to mean different things. What must hold: whatever a driver
//! says of what is left in the database survives the way; a failure that cannot be read claims nothing.

use bytes::Bytes;
use holdfast_proto::relay::v1 as proto;
use holdfast_proto::relay::v1::Method;
use jiff::Timestamp;
use prost::Message as _;
use secrecy::{ExposeSecret as _, SecretString};

use crate::config::{ConfigError, DriverConfig, PluginName};
use crate::driver::{Change, DeleteUser, IdempotencyKey, NewUser, UpdateUser};
use crate::error::{DriverError, Effect, Reason};

/// Every reason with its name on the wire.
const REASONS: [(Reason, &str); 15] = [
    (Reason::Invalid, "invalid"),
    (Reason::Statement, "statement"),
    (Reason::Policy, "policy"),
    (Reason::Denied, "denied"),
    (Reason::Login, "login"),
    (Reason::Dependent, "dependent"),
    (Reason::Exists, "exists"),
    (Reason::Missing, "missing"),
    (Reason::Unreachable, "unreachable"),
    (Reason::Busy, "busy"),
    (Reason::Lost, "lost"),
    (Reason::Deadline, "deadline"),
    (Reason::Cancelled, "cancelled"),
    (Reason::Closed, "closed"),
    (Reason::Internal, "internal"),
];

/// A failure as it crosses the wire.
pub fn to_wire(error: &DriverError) -> proto::DriverFailure {
    let name =
        REASONS.iter().find(|(reason, _)| *reason == error.reason()).map_or("internal", |(_, name)| name);
    proto::DriverFailure {
        text: error.client_text().to_owned(),
        sqlstate: error.sqlstate().unwrap_or_default().to_owned(),
        reason: name.to_owned(),
        maybe_done: error.effect() == Effect::Unknown,
    }
}

/// A failure that crossed the wire. A reason of a newer version counts as a fault within, and proves nothing.
pub fn from_wire(failure: &proto::DriverFailure) -> DriverError {
    let known = REASONS.iter().find(|(_, name)| *name == failure.reason).map(|(reason, _)| *reason);
    let mut error = DriverError::new(known.unwrap_or(Reason::Internal), failure.text.as_str());
    if failure.maybe_done || known.is_none() {
        error = error.with_unknown_effect();
    }
    if failure.sqlstate.is_empty() { error } else { error.with_sqlstate(failure.sqlstate.as_str()) }
}

/// The configuration as it travels with a command: JSON, with its secrets, without the spoke's name.
///
/// # Errors
/// Never for a configuration that came from a client; the form of the result belongs to the serialiser.
pub fn encode_config(config: &DriverConfig) -> Result<Vec<u8>, ConfigError> {
    let config = DriverConfig { spoke_name: String::new(), ..config.clone() };
    // The parser's own words could quote a secret.
    serde_json::to_vec(&config).map_err(|_| ConfigError("the configuration cannot be written".to_owned()))
}

/// The configuration that travelled with a command.
///
/// # Errors
/// When it is not the JSON of a configuration, or asks for more than any configuration may.
pub fn decode_config(json: &[u8]) -> Result<DriverConfig, ConfigError> {
    let unreadable = |_| ConfigError("the configuration cannot be read".to_owned());
    let config: DriverConfig = serde_json::from_slice(json).map_err(unreadable)?;
    config.check_limits()?;
    Ok(config)
}

/// The name of the plugin that a spoke runs for a configuration.
pub const fn spoke_plugin(config: &DriverConfig) -> PluginName {
    match config.plugin_name {
        PluginName::Postgres | PluginName::RemotePostgres => PluginName::Postgres,
        PluginName::Mysql | PluginName::RemoteMysql => PluginName::Mysql,
    }
}

/// What a driver is asked, whichever process it runs in.
#[derive(Clone, Debug)]
pub enum Request {
    /// Make sure that the driver can work.
    Initialize {
        /// Also that the database accepts its login.
        verify: bool,
    },
    /// Make a user.
    NewUser(NewUser),
    /// Change a user.
    UpdateUser(UpdateUser),
    /// Remove a user.
    DeleteUser(DeleteUser),
    /// Try a password.
    VerifyPassword {
        /// The name of the user.
        username: String,
        /// The password.
        password: SecretString,
    },
    /// Let go of the connections of an instance.
    Close {
        /// The instance.
        instance_id: String,
        /// Only when this version of its configuration is held; 0: whichever is.
        config_version: u64,
    },
    /// Tell which plugins there are.
    Type,
}

/// A request as the fields of a command.
#[derive(Clone)]
pub struct Encoded {
    /// What is asked.
    pub method: Method,
    /// The message that belongs to it.
    pub payload: Bytes,
    /// The creation that is meant, if one is.
    pub key: Option<IdempotencyKey>,
}

/// What a request that succeeded brings.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Output {
    /// Nothing but that it is done.
    Done,
    /// Whether the database took the password.
    Accepted(bool),
    /// The plugins that there are.
    Plugins(Vec<String>),
}

impl Output {
    /// The output of a reply.
    pub fn encode(&self) -> Bytes {
        match self {
            Self::Done => Bytes::new(),
            Self::Accepted(accepted) => {
                proto::VerifyPasswordResponse { accepted: *accepted }.encode_to_vec().into()
            }
            Self::Plugins(plugins) => proto::TypeResponse { plugins: plugins.clone() }.encode_to_vec().into(),
        }
    }

    /// Reads the output of a reply to a command of `method`.
    ///
    /// # Errors
    /// When it is not the message that belongs to the method.
    pub fn decode(method: Method, output: &[u8]) -> Result<Self, WireError> {
        Ok(match method {
            Method::VerifyPassword => {
                let message = proto::VerifyPasswordResponse::decode(output).map_err(|_| UNREADABLE)?;
                Self::Accepted(message.accepted)
            }
            Method::Type => {
                Self::Plugins(proto::TypeResponse::decode(output).map_err(|_| UNREADABLE)?.plugins)
            }
            _ => Self::Done,
        })
    }
}

/// Why a command's fields are no request.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("{0}")]
pub struct WireError(&'static str);

/// Writes a request for an instance. [`Request::Close`] and [`Request::Type`] take no instance with them.
pub fn encode(request: &Request, instance: proto::Instance) -> Encoded {
    let instance = Some(instance);
    let (method, payload, key) = match request {
        Request::Initialize { verify } => {
            let message = proto::InitializeRequest { instance, verify_connection: *verify };
            (Method::Initialize, message.encode_to_vec(), None)
        }
        Request::NewUser(user) => (Method::NewUser, new_user(user, instance).encode_to_vec(), Some(user.key)),
        Request::UpdateUser(update) => {
            (Method::UpdateUser, update_user(update, instance).encode_to_vec(), None)
        }
        Request::DeleteUser(user) => {
            let message = proto::DeleteUserRequest {
                instance,
                username: user.username.clone(),
                statements: user.statements.clone(),
                terminate_sessions: user.terminate_sessions,
            };
            (Method::DeleteUser, message.encode_to_vec(), user.key)
        }
        Request::VerifyPassword { username, password } => {
            let message = proto::VerifyPasswordRequest {
                instance,
                username: username.clone(),
                password: password.expose_secret().to_owned(),
            };
            (Method::VerifyPassword, message.encode_to_vec(), None)
        }
        Request::Close { instance_id, config_version } => {
            let message =
                proto::CloseRequest { instance_id: instance_id.clone(), config_version: *config_version };
            (Method::Close, message.encode_to_vec(), None)
        }
        Request::Type => (Method::Type, proto::TypeRequest {}.encode_to_vec(), None),
    };
    Encoded { method, payload: payload.into(), key }
}

fn new_user(user: &NewUser, instance: Option<proto::Instance>) -> proto::NewUserRequest {
    proto::NewUserRequest {
        instance,
        username: user.username.clone(),
        password: user.password.expose_secret().to_owned(),
        expiration_unix: user.expiration.as_second(),
        statements: user.statements.clone(),
        rollback_statements: user.rollback_statements.clone(),
        resent: user.resent,
    }
}

fn update_user(update: &UpdateUser, instance: Option<proto::Instance>) -> proto::UpdateUserRequest {
    use proto::update_user_request::Change as Wire;
    let change = match &update.change {
        Change::Password(password) => Wire::NewPassword(password.expose_secret().to_owned()),
        Change::Expiration(at) => Wire::NewExpirationUnix(at.as_second()),
    };
    proto::UpdateUserRequest {
        instance,
        username: update.username.clone(),
        change: Some(change),
        statements: update.statements.clone(),
    }
}

/// Reads a command's fields. The instance is there for every request that needs one.
///
/// # Errors
/// When the payload is not the message of the method, or lacks what the method needs.
pub fn decode(command: &proto::Command) -> Result<(Request, Option<proto::Instance>), WireError> {
    let payload = &*command.payload;
    let key = key_of(&command.idempotency_key)?;
    Ok(match command.method() {
        Method::Unspecified => return Err(WireError("unknown method")),
        Method::Initialize => {
            let message = proto::InitializeRequest::decode(payload).map_err(|_| UNREADABLE)?;
            (Request::Initialize { verify: message.verify_connection }, needed(message.instance)?)
        }
        Method::NewUser => {
            let message = proto::NewUserRequest::decode(payload).map_err(|_| UNREADABLE)?;
            let user = NewUser {
                key: key.ok_or(WireError("a creation needs an idempotency key"))?,
                resent: message.resent,
                username: message.username,
                password: message.password.into(),
                expiration: instant(message.expiration_unix)?,
                statements: message.statements,
                rollback_statements: message.rollback_statements,
            };
            (Request::NewUser(user), needed(message.instance)?)
        }
        Method::UpdateUser => {
            let message = proto::UpdateUserRequest::decode(payload).map_err(|_| UNREADABLE)?;
            let change = change(message.change)?;
            let (username, statements) = (message.username, message.statements);
            (Request::UpdateUser(UpdateUser { username, change, statements }), needed(message.instance)?)
        }
        Method::DeleteUser => {
            let message = proto::DeleteUserRequest::decode(payload).map_err(|_| UNREADABLE)?;
            let user = DeleteUser {
                key,
                username: message.username,
                statements: message.statements,
                terminate_sessions: message.terminate_sessions,
            };
            (Request::DeleteUser(user), needed(message.instance)?)
        }
        Method::VerifyPassword => {
            let message = proto::VerifyPasswordRequest::decode(payload).map_err(|_| UNREADABLE)?;
            let (username, password) = (message.username, message.password.into());
            (Request::VerifyPassword { username, password }, needed(message.instance)?)
        }
        Method::Close => {
            let message = proto::CloseRequest::decode(payload).map_err(|_| UNREADABLE)?;
            let (instance_id, config_version) = (message.instance_id, message.config_version);
            (Request::Close { instance_id, config_version }, None)
        }
        Method::Type => (Request::Type, None),
    })
}

const UNREADABLE: WireError = WireError("the payload cannot be read");

fn needed(instance: Option<proto::Instance>) -> Result<Option<proto::Instance>, WireError> {
    match instance {
        Some(instance) if !instance.instance_id.is_empty() => Ok(Some(instance)),
        _ => Err(WireError("instance missing")),
    }
}

fn key_of(bytes: &[u8]) -> Result<Option<IdempotencyKey>, WireError> {
    if bytes.is_empty() {
        return Ok(None);
    }
    let bytes = bytes.try_into().map_err(|_| WireError("an idempotency key has 16 bytes"))?;
    Ok(Some(IdempotencyKey::from_bytes(bytes)))
}

fn instant(seconds: i64) -> Result<Timestamp, WireError> {
    Timestamp::from_second(seconds).map_err(|_| WireError("the expiration is out of range"))
}

fn change(change: Option<proto::update_user_request::Change>) -> Result<Change, WireError> {
    use proto::update_user_request::Change as Wire;
    Ok(match change.ok_or(WireError("the change is missing"))? {
        Wire::NewPassword(password) => Change::Password(password.into()),
        Wire::NewExpirationUnix(seconds) => Change::Expiration(instant(seconds)?),
    })
}

#[cfg(test)]
mod tests;
