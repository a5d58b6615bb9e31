//! From the settings to an authenticator, with all that is wrong at once.

use std::sync::Arc;

use http::header::{AUTHORIZATION, COOKIE, HOST};
use http::{HeaderName, HeaderValue};

use super::identity::Method;
use super::jwt::Verifier;
use super::tokens::Tokens;
use super::{Authenticator, Check, Empty, jwt, tokens};
use crate::config::{AuthMode, AuthSettings, ListenerSettings};
use crate::problem::Problem;

const METHODS: &str = "auth.methods";

impl Authenticator {
    /// Reads the files that the settings name. Paths are taken as they are.
    ///
    /// # Errors
    /// All that is wrong. A file without entries is not: see [`Authenticator::empty`].
    pub fn new(
        settings: Option<&AuthSettings>,
        listeners: &[ListenerSettings],
    ) -> Result<Self, Vec<Problem>> {
        let Some(settings) = settings.filter(|settings| !settings.methods.is_empty()) else {
            return Err(vec![Problem::new(METHODS, "no authentication configured: set auth.methods")]);
        };
        let mut problems = Vec::new();
        let methods = methods(settings, &mut problems);
        check_listeners(&methods, listeners, &mut problems);
        check_mode(settings.mode, &methods, &mut problems);
        let tokens = read_tokens(settings, &methods, &mut problems);
        let checks: Vec<Check> =
            methods.iter().filter_map(|method| check(*method, settings, &tokens, &mut problems)).collect();
        if problems.is_empty() {
            let (challenges, empty) = (challenges(&methods), empty(settings, &checks));
            Ok(Self { mode: settings.mode, checks, challenges, empty })
        } else {
            Err(problems)
        }
    }
}

impl Empty {
    /// It as a problem of the start.
    pub fn problem(&self) -> Problem {
        Problem::new(self.key, format!("{} holds no entry", self.path.display()))
    }
}

fn methods(settings: &AuthSettings, problems: &mut Vec<Problem>) -> Vec<Method> {
    let mut list = Vec::new();
    for name in &settings.methods {
        match Method::ALL.iter().find(|method| method.label() == name) {
            None => problems.push(Problem::new(METHODS, format!("auth.methods: unknown method {name:?}"))),
            Some(method) if list.contains(method) => {
                problems.push(Problem::new(METHODS, format!("auth.methods: {name:?} stands there twice")));
            }
            Some(method) => list.push(*method),
        }
    }
    if list.contains(&Method::None) && list.len() > 1 {
        problems.push(Problem::new(METHODS, "auth \"none\" stands alone or not at all"));
    }
    list
}

fn check_listeners(methods: &[Method], listeners: &[ListenerSettings], problems: &mut Vec<Problem>) {
    let mut need = |method: Method, holds: bool, what: &str| {
        if methods.contains(&method) && !holds {
            problems.push(Problem::new(METHODS, what));
        }
    };
    let tcp = listeners.iter().any(|listener| listener.kind == "tcp");
    need(Method::None, !tcp, "auth \"none\" is refused with a TCP listener");
    let client_ca =
        |listener: &ListenerSettings| listener.tls.as_ref().is_some_and(|tls| tls.client_ca.is_some());
    let verified = listeners.iter().any(client_ca);
    need(Method::Mtls, verified, "auth \"mtls\" needs a TLS listener with client_ca");
    let unix = listeners.iter().any(|listener| listener.kind == "unix");
    need(Method::Peercred, unix, "auth \"peercred\" needs a Unix listener");
}

/// One request has one `Authorization` header, so it cannot satisfy two methods that read it.
fn check_mode(mode: AuthMode, methods: &[Method], problems: &mut Vec<Problem>) {
    let reads = |method: &&Method| matches!(method, Method::Token | Method::Basic | Method::Jwt);
    let readers: Vec<&str> = methods.iter().filter(reads).map(|method| method.label()).collect();
    if mode == AuthMode::All && readers.len() > 1 {
        let what = format!(
            "auth.mode \"all\" cannot hold: {} read the one Authorization header",
            readers.join(" and ")
        );
        problems.push(Problem::new("auth.mode", what));
    }
}

/// The token file, once for all methods that need it; empty where it cannot be read, which is a problem then.
fn read_tokens(settings: &AuthSettings, methods: &[Method], problems: &mut Vec<Problem>) -> Arc<Tokens> {
    let needs = |method: &&Method| matches!(method, Method::Token | Method::Header | Method::Basic);
    let Some(method) = methods.iter().find(needs) else { return Arc::default() };
    let read = match &settings.token {
        Some(token) => Tokens::read(&token.file),
        None => {
            let what = format!("auth {:?} needs auth.token.file", method.label());
            Err(vec![Problem::new(tokens::KEY, what)])
        }
    };
    read.map(Arc::new).unwrap_or_else(|faults| {
        problems.extend(faults);
        Arc::default()
    })
}

fn check(
    method: Method,
    settings: &AuthSettings,
    tokens: &Arc<Tokens>,
    problems: &mut Vec<Problem>,
) -> Option<Check> {
    Some(match method {
        Method::Token => Check::Token(Arc::clone(tokens)),
        Method::Header => Check::Header(header_name(settings, problems)?, Arc::clone(tokens)),
        Method::Basic => Check::Basic(Arc::clone(tokens)),
        Method::Mtls => Check::Mtls(settings.mtls.clone()),
        Method::Peercred => Check::Peercred(settings.peercred.clone()),
        Method::Jwt => Check::Jwt(Box::new(verifier(settings, problems)?)),
        Method::None => Check::None,
    })
}

fn header_name(settings: &AuthSettings, problems: &mut Vec<Problem>) -> Option<HeaderName> {
    const KEY: &str = "auth.header.name";
    let Some(header) = &settings.header else {
        problems.push(Problem::new(KEY, "auth \"header\" needs auth.header.name"));
        return None;
    };
    let name = HeaderName::try_from(&header.name).ok();
    let name = name.filter(|name| ![AUTHORIZATION, COOKIE, HOST].contains(name));
    if name.is_none() {
        let what = format!("auth.header.name: {:?} cannot carry a token", header.name);
        problems.push(Problem::new(KEY, what));
    }
    name
}

fn verifier(settings: &AuthSettings, problems: &mut Vec<Problem>) -> Option<Verifier> {
    let Some(jwt) = &settings.jwt else {
        problems.push(Problem::new("auth.jwt", "auth \"jwt\" needs auth.jwt"));
        return None;
    };
    Verifier::new(jwt).map_err(|faults| problems.extend(faults)).ok()
}

fn challenges(methods: &[Method]) -> Vec<HeaderValue> {
    let mut list = Vec::new();
    for method in methods {
        let challenge = match method {
            Method::Token | Method::Jwt => HeaderValue::from_static("Bearer"),
            Method::Basic => HeaderValue::from_static("Basic realm=\"holdfast\""),
            Method::Header | Method::Mtls | Method::Peercred | Method::None => continue,
        };
        if !list.contains(&challenge) {
            list.push(challenge);
        }
    }
    list
}

fn empty(settings: &AuthSettings, checks: &[Check]) -> Vec<Empty> {
    let mut list = Vec::new();
    for check in checks {
        let (key, path) = match check {
            Check::Token(tokens) | Check::Header(_, tokens) | Check::Basic(tokens) if tokens.is_empty() => {
                (tokens::KEY, settings.token.as_ref().map(|token| &token.file))
            }
            Check::Jwt(verifier) if verifier.is_empty() => {
                (jwt::KEY, settings.jwt.as_ref().map(|jwt| &jwt.jwks_file))
            }
            _ => continue,
        };
        let found = path.map(|path| Empty { key, path: path.clone() });
        list.extend(found.filter(|found| !list.contains(found)));
    }
    list
}
