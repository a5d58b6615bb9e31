//! What goes over the wire comes back the same, and nothing that comes is trusted.

use std::time::Duration;

use proptest::prelude::*;

use super::*;

fn command(encoded: Encoded) -> proto::Command {
    proto::Command {
        request_id: "0".repeat(24),
        method: encoded.method.into(),
        payload: encoded.payload,
        deadline_ms: 1,
        idempotency_key: encoded.key.map(|key| Bytes::copy_from_slice(key.as_bytes())).unwrap_or_default(),
    }
}

fn instance() -> proto::Instance {
    proto::Instance {
        instance_id: "pg".into(),
        config_version: 3,
        config: vec![1].into(),
        plugin: "p".into(),
    }
}

fn there_and_back(request: &Request) -> Request {
    let (back, of) = decode(&command(encode(request, instance()))).unwrap();
    match back {
        Request::Close { .. } | Request::Type => assert_eq!(of, None),
        _ => assert_eq!(of, Some(instance())),
    }
    back
}

#[test]
fn failures_keep_their_reason_and_what_they_left() {
    for (reason, name) in REASONS {
        for unknown in [false, true] {
            let mut error = DriverError::new(reason, "words").with_sqlstate("42501");
            if unknown {
                error = error.with_unknown_effect();
            }
            let wire = to_wire(&error);
            assert_eq!((wire.reason.as_str(), wire.maybe_done), (name, unknown));
            let back = from_wire(&wire);
            assert_eq!((back.reason(), back.effect()), (reason, error.effect()));
            assert_eq!((back.client_text(), back.sqlstate()), ("words", Some("42501")));
        }
    }
}

#[test]
fn a_reason_of_a_newer_version_proves_nothing() {
    let back = from_wire(&proto::DriverFailure { reason: "melted".into(), ..Default::default() });
    assert_eq!((back.reason(), back.effect(), back.sqlstate()), (Reason::Internal, Effect::Unknown, None));
}

#[test]
fn a_configuration_travels_with_its_secrets_and_without_the_spoke() {
    let mut config = DriverConfig::new(PluginName::RemotePostgres, "postgres://u:{{password}}@db/x");
    (config.password, config.spoke_name) = ("geheim".to_owned().into(), "spoke-1".into());
    let json = encode_config(&config).unwrap();
    assert!(!String::from_utf8(json.clone()).unwrap().contains("spoke"));
    let back = decode_config(&json).unwrap();
    assert_eq!(back.password.expose_secret(), "geheim");
    assert_eq!(back.connection_url.expose_secret(), config.connection_url.expose_secret());
    assert_eq!((back.spoke_name.as_str(), spoke_plugin(&back)), ("", PluginName::Postgres));
    assert_eq!(back.operation_timeout, config.operation_timeout);
    let error = decode_config(b"{\"password\":\"geheim\"}").unwrap_err();
    assert!(!error.to_string().contains("geheim"), "{error}");
}

#[test]
fn limits_that_no_client_can_set_are_refused() {
    let decoded = |change: fn(&mut DriverConfig)| {
        let mut config = DriverConfig::new(PluginName::Postgres, "postgres://u@db/x");
        change(&mut config);
        decode_config(&encode_config(&config).unwrap()).map_err(|error| error.to_string())
    };
    decoded(|config| config.operation_timeout = Duration::from_secs(90)).unwrap();
    decoded(|config| config.max_open_connections = 256).unwrap();
    let longer = decoded(|config| config.operation_timeout = Duration::MAX);
    let none = decoded(|config| config.operation_timeout = Duration::ZERO);
    for refused in [longer, none] {
        assert!(refused.unwrap_err().contains("operation_timeout"));
    }
    let none = decoded(|config| config.max_open_connections = 0);
    let more = decoded(|config| config.max_open_connections = 257);
    for refused in [none, more] {
        assert!(refused.unwrap_err().contains("max_open_connections"));
    }
    assert!(crate::driver::Call::within(Duration::MAX).left() > Duration::from_secs(60));
}

#[test]
fn requests_come_back_as_they_were() {
    let user = NewUser {
        key: IdempotencyKey::from_bytes([7; 16]),
        resent: true,
        username: "v-app".into(),
        password: "geheim".to_owned().into(),
        expiration: Timestamp::from_second(1_770_000_000).unwrap(),
        statements: vec!["CREATE".into(), "GRANT".into()],
        rollback_statements: vec!["DROP".into()],
    };
    let Request::NewUser(back) = there_and_back(&Request::NewUser(user.clone())) else { panic!() };
    assert_eq!((back.key, back.resent, &back.username), (user.key, true, &user.username));
    assert_eq!(back.password.expose_secret(), "geheim");
    assert_eq!((back.expiration, &back.statements), (user.expiration, &user.statements));
    assert_eq!(back.rollback_statements, user.rollback_statements);

    let gone = DeleteUser {
        key: Some(user.key),
        username: "v-app".into(),
        statements: vec!["DROP".into()],
        terminate_sessions: true,
    };
    let Request::DeleteUser(back) = there_and_back(&Request::DeleteUser(gone)) else { panic!() };
    assert_eq!((back.key, back.terminate_sessions, back.statements.len()), (Some(user.key), true, 1));

    let change = |change| UpdateUser { username: "u".into(), change, statements: Vec::new() };
    let new = there_and_back(&Request::UpdateUser(change(Change::Password("neu".to_owned().into()))));
    let Request::UpdateUser(UpdateUser { change: Change::Password(password), .. }) = new else { panic!() };
    assert_eq!(password.expose_secret(), "neu");
    let new = there_and_back(&Request::UpdateUser(change(Change::Expiration(user.expiration))));
    let Request::UpdateUser(UpdateUser { change: Change::Expiration(at), .. }) = new else { panic!() };
    assert_eq!(at, user.expiration);

    let ask = Request::VerifyPassword { username: "u".into(), password: "p".to_owned().into() };
    assert!(matches!(there_and_back(&ask), Request::VerifyPassword { username, .. } if username == "u"));
    assert!(matches!(
        there_and_back(&Request::Initialize { verify: true }),
        Request::Initialize { verify: true }
    ));
    let close = Request::Close { instance_id: "pg".into(), config_version: 7 };
    let back = there_and_back(&close);
    assert!(matches!(back, Request::Close { instance_id, config_version: 7 } if instance_id == "pg"));
    assert!(matches!(there_and_back(&Request::Type), Request::Type));
}

#[test]
fn outputs_come_back_as_they_were() {
    for (method, output) in [
        (Method::NewUser, Output::Done),
        (Method::VerifyPassword, Output::Accepted(true)),
        (Method::VerifyPassword, Output::Accepted(false)),
        (Method::Type, Output::Plugins(vec!["postgresql-database-plugin".into()])),
    ] {
        assert_eq!(Output::decode(method, &output.encode()), Ok(output));
    }
}

#[test]
fn what_lacks_a_part_is_refused() {
    let mut none = command(encode(&Request::Initialize { verify: false }, proto::Instance::default()));
    assert_eq!(decode(&none).unwrap_err().to_string(), "instance missing");
    none.method = 99;
    assert_eq!(decode(&none).unwrap_err().to_string(), "unknown method");
    none.idempotency_key = vec![1; 15].into();
    assert_eq!(decode(&none).unwrap_err().to_string(), "an idempotency key has 16 bytes");
    let user = proto::NewUserRequest { instance: Some(instance()), ..Default::default() };
    let payload = user.encode_to_vec().into();
    let keyless = proto::Command { method: Method::NewUser.into(), payload, ..Default::default() };
    assert_eq!(decode(&keyless).unwrap_err().to_string(), "a creation needs an idempotency key");
}

proptest! {
    #[test]
    fn no_bytes_make_it_panic(
        method in -1i32..12,
        payload in prop::collection::vec(any::<u8>(), 0..64),
        idempotency_key in prop::collection::vec(any::<u8>(), 0..20),
    ) {
        let _ = decode(&proto::Command {
            method,
            payload: payload.clone().into(),
            idempotency_key: idempotency_key.into(),
            ..Default::default()
        });
        let _ = decode_config(&payload);
    }
}

/// What a spoke makes of a command: the request, the configuration that came along, and the driver for it.
fn take(command: &proto::Command) -> String {
    let (request, instance) = match decode(command) {
        Ok(read) => read,
        Err(error) => return error.to_string(),
    };
    let back = decode(&self::command(encode(&request, instance.clone().unwrap_or_default())));
    assert!(back.is_ok(), "what was read cannot be written and read again: {request:?}");
    let config = instance.as_ref().map(|instance| decode_config(&instance.config));
    let opened = match &config {
        Some(Ok(config)) => match crate::open_beside_database(config) {
            Ok(_) => "opened".to_owned(),
            Err(error) => error.client_text().to_owned(),
        },
        Some(Err(error)) => error.to_string(),
        None => "no instance".to_owned(),
    };
    format!("{:?} {opened}", command.method())
}

#[test]
fn fuzz_commands() {
    let config = |plugin, url: &str| encode_config(&DriverConfig::new(plugin, url)).unwrap();
    let postgres = config(
        PluginName::RemotePostgres,
        "postgresql://{{username}}:{{password}}@[::1]:5432/app?sslmode=disable",
    );
    let mysql =
        config(PluginName::RemoteMysql, "{{username}}:{{password}}@tcp(127.0.0.1:3306)/app?tls=skip-verify");
    let user = NewUser {
        key: IdempotencyKey::from_bytes([7; 16]),
        resent: true,
        username: "v-app-1".into(),
        password: "secret".to_owned().into(),
        expiration: Timestamp::UNIX_EPOCH,
        statements: vec!["CREATE ROLE \"{{name}}\"".into()],
        rollback_statements: vec!["DROP ROLE \"{{name}}\"".into()],
    };
    let requests = [
        Request::Initialize { verify: true },
        Request::NewUser(user),
        Request::UpdateUser(UpdateUser {
            username: "u".into(),
            change: Change::Expiration(Timestamp::UNIX_EPOCH),
            statements: Vec::new(),
        }),
        Request::VerifyPassword { username: "u".into(), password: "p".to_owned().into() },
        Request::Close { instance_id: "pg".into(), config_version: 1 },
        Request::Type,
    ];
    let seeds: Vec<_> = [postgres, mysql]
        .into_iter()
        .flat_map(|config| {
            let instance = proto::Instance { config: config.into(), ..instance() };
            requests.iter().map(move |request| command(encode(request, instance.clone())).encode_to_vec())
        })
        .collect();
    let seeds: Vec<_> = seeds.iter().map(Vec::as_slice).collect();
    let words = [
        "\"connection_url\":",
        "postgresql://",
        "@tcp(",
        "sslmode=",
        "{{username}}",
        "[::1]",
        "%2",
        "\"-1\"",
    ];
    holdfast_tests::fuzz::fuzz(&seeds, &words, |input| match proto::Command::decode(input) {
        Ok(command) => take(&command),
        Err(error) => error.to_string(),
    });
}

#[test]
fn fuzz_configurations() {
    let of = |plugin, url: &str| encode_config(&DriverConfig::new(plugin, url)).unwrap();
    let seeds = [
        of(
            PluginName::Postgres,
            "postgresql://{{username}}:{{password}}@/app?host=/tmp,[::1]&port=1,2&sslmode=verify-full",
        ),
        of(
            PluginName::Postgres,
            "host=localhost port=5432 user={{username}} password={{password}} connect_timeout=3",
        ),
        of(PluginName::Mysql, "{{username}}:{{password}}@unix(/tmp/sock)/app?tls=true&timeout=3s"),
    ];
    let seeds: Vec<_> = seeds.iter().map(Vec::as_slice).collect();
    let words = [
        "postgresql://",
        "@tcp(",
        ")/",
        "sslmode=",
        "{{password}}",
        "[::1]",
        "%2",
        "\\\\",
        "port=",
        "timeout=",
        "'",
    ];
    holdfast_tests::fuzz::fuzz(&seeds, &words, |input| match decode_config(input) {
        Ok(config) => {
            let again = encode_config(&config).unwrap();
            assert!(decode_config(&again).is_ok(), "what was read cannot be read again");
            match crate::open_beside_database(&config) {
                Ok(_) => "opened".to_owned(),
                Err(error) => error.client_text().to_owned(),
            }
        }
        Err(error) => error.to_string(),
    });
}

#[test]
fn fuzz_outcomes() {
    use proto::reply::Outcome;
    let failure =
        to_wire(&DriverError::new(Reason::Busy, "busy").with_sqlstate("53300").with_unknown_effect());
    let driver = proto::command_error::Kind::Driver(failure);
    let error = proto::CommandError { kind: Some(driver) };
    let replies = [
        Outcome::Error(error),
        Outcome::Output(Output::Accepted(true).encode()),
        Outcome::Output(Output::Plugins(vec!["a".into()]).encode()),
    ];
    let replies = replies
        .map(|outcome| proto::Reply { request_id: "0".repeat(24), outcome: Some(outcome) }.encode_to_vec());
    let seeds: Vec<_> = replies.iter().map(Vec::as_slice).collect();
    let names: Vec<_> = REASONS.iter().map(|(_, name)| *name).collect();
    holdfast_tests::fuzz::fuzz(&seeds, &names, |input| {
        let reply = match proto::Reply::decode(input) {
            Ok(reply) => reply,
            Err(error) => return error.to_string(),
        };
        match reply.outcome {
            Some(Outcome::Output(output)) => {
                format!(
                    "{:?}",
                    [Method::VerifyPassword, Method::Type, Method::NewUser]
                        .map(|m| Output::decode(m, &output).is_ok())
                )
            }
            Some(Outcome::Error(proto::CommandError {
                kind: Some(proto::command_error::Kind::Driver(failure)),
            })) => {
                let error = from_wire(&failure);
                let again = from_wire(&to_wire(&error));
                assert_eq!((again.reason(), again.effect()), (error.reason(), error.effect()));
                format!("{:?} {:?}", error.reason(), error.effect())
            }
            other => format!("{:?}", other.is_some()),
        }
    });
}
