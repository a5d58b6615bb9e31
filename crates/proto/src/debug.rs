//! What may be printed of messages that hold passwords, certificates' tokens or whole commands: never those.

use std::fmt;

use crate::etcd::{AuthenticateRequest, AuthenticateResponse, KeyValue};
use crate::relay::v1::{
    Command, Instance, NewUserRequest, Reply, RunCommandReply, RunCommandRequest, Token, UpdateUserRequest,
    VerifyPasswordRequest,
};

macro_rules! debug {
    ($($message:ident { $($field:ident),* })*) => {$(
        impl fmt::Debug for $message {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($message))$(.field(stringify!($field), &self.$field))*.finish_non_exhaustive()
            }
        }
    )*};
}

debug! {
    AuthenticateRequest { name }
    AuthenticateResponse {}
    KeyValue { key, mod_revision, version, lease }
    Command { request_id, method, deadline_ms }
    Instance { instance_id, config_version, plugin }
    NewUserRequest { instance, username, expiration_unix, resent }
    Reply { request_id }
    RunCommandReply {}
    RunCommandRequest { term, spoke_name, method, deadline_ms }
    Token { audience, expires_unix, error }
    UpdateUserRequest { instance, username }
    VerifyPasswordRequest { instance, username }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_not_printed() {
        let user = NewUserRequest {
            instance: Some(Instance { config: "{\"password\":\"hunter2\"}".into(), ..Instance::default() }),
            username: "v-app".into(),
            password: "hunter2".into(),
            ..NewUserRequest::default()
        };
        let text = format!("{user:?}");
        assert!(text.contains("v-app") && !text.contains("hunter2"), "{text}");
    }
}
