//! From what the methods say to what the server says: `auth.mode`.

use super::identity::{Identity, Method};
use super::rejection::{Reason, Refusal, Rejection};
use crate::config::AuthMode;

/// What one method made of a request.
pub(super) type Attempt = (Method, Result<Identity, Reason>);

/// Any: the first success, and methods behind it are not asked. All: every method must succeed.
///
/// When nobody is let in, `any` answers 403 if some method knows the caller and refuses it; `all` answers 403 only if
/// every method that failed does so, since otherwise the caller has not said who it is.
pub(super) fn combine(
    mode: AuthMode,
    attempts: impl Iterator<Item = Attempt>,
) -> Result<Identity, Rejection> {
    let mut refusals = Vec::new();
    let mut found: Option<Identity> = None;
    for (method, attempt) in attempts {
        match attempt {
            Ok(identity) if mode == AuthMode::Any => return Ok(identity),
            Ok(identity) => {
                found = Some(match found {
                    Some(first) => first.united(&identity),
                    None => identity,
                });
            }
            Err(reason) => refusals.push(Refusal { method: Some(method), reason }),
        }
    }
    let forbidden = match mode {
        AuthMode::Any => refusals.iter().any(|refusal| refusal.reason.forbids()),
        AuthMode::All => !refusals.is_empty() && refusals.iter().all(|refusal| refusal.reason.forbids()),
    };
    match found {
        Some(identity) if refusals.is_empty() => Ok(identity),
        _ => Err(Rejection { forbidden, refusals }),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use holdfast_core::Wall;

    use super::*;
    use crate::auth::identity::Evidence;

    const MTLS: Method = Method::Mtls;
    const TOKEN: Method = Method::Token;
    const NONE: Reason = Reason::NoCredential;
    const REFUSED: Reason = Reason::NotAllowed;

    fn named(subject: &str, group: &str, expires: Option<i64>) -> Identity {
        let identity = Identity::found(MTLS, Arc::from(subject), Evidence::Nobody);
        let groups = Arc::new([Arc::from(group), Arc::from("both")]);
        Identity { groups, expires: expires.map(Wall::from_micros), ..identity }
    }

    #[test]
    fn the_table_of_both_modes() {
        let good = |name: &str| Ok(named(name, name, None));
        // attempts; subject or status in mode any; the same in mode all
        let table: [(Vec<Attempt>, &str, &str); 11] = [
            (vec![], "401", "401"),
            (vec![(MTLS, good("a"))], "a", "a"),
            (vec![(MTLS, Err(NONE))], "401", "401"),
            (vec![(MTLS, Err(REFUSED))], "403", "403"),
            (vec![(MTLS, good("a")), (TOKEN, good("b"))], "a", "a"),
            (vec![(MTLS, Err(NONE)), (TOKEN, good("b"))], "b", "401"),
            (vec![(MTLS, Err(REFUSED)), (TOKEN, good("b"))], "b", "403"),
            (vec![(MTLS, good("a")), (TOKEN, Err(NONE))], "a", "401"),
            (vec![(MTLS, Err(REFUSED)), (TOKEN, Err(NONE))], "403", "401"),
            (vec![(MTLS, Err(NONE)), (TOKEN, Err(Reason::UnknownToken))], "401", "401"),
            (vec![(MTLS, Err(REFUSED)), (TOKEN, Err(REFUSED))], "403", "403"),
        ];
        for (attempts, any, all) in table {
            for (mode, expected) in [(AuthMode::Any, any), (AuthMode::All, all)] {
                let answer = match combine(mode, attempts.iter().cloned()) {
                    Ok(identity) => identity.subject.to_string(),
                    Err(rejection) => rejection.answer().0.http_status().to_string(),
                };
                assert_eq!(answer, expected, "{mode:?} of {attempts:?}");
            }
        }
    }

    #[test]
    fn any_asks_no_method_behind_a_success() {
        let asked = std::cell::Cell::new(0);
        let attempts = (0..3).map(|n| {
            asked.set(asked.get() + 1);
            (MTLS, if n == 1 { Ok(named("a", "g", None)) } else { Err(NONE) })
        });
        combine(AuthMode::Any, attempts).unwrap();
        assert_eq!(asked.get(), 2);
    }

    #[test]
    fn all_unites_groups_and_takes_the_earlier_end() {
        let attempts = [named("a", "x", Some(9)), named("b", "y", Some(7)), named("c", "z", None)];
        let both = combine(AuthMode::All, attempts.into_iter().map(|found| (MTLS, Ok(found)))).unwrap();
        let groups: Vec<&str> = both.groups.iter().map(|group| &**group).collect();
        assert_eq!((&*both.subject, groups), ("a", vec!["x", "both", "y", "z"]));
        assert_eq!(both.expires, Some(Wall::from_micros(7)));
    }

    #[test]
    fn the_reason_names_every_method_that_was_asked() {
        let attempts = [(MTLS, Err(NONE)), (TOKEN, Err(Reason::Expired))];
        let rejection = combine(AuthMode::Any, attempts.into_iter()).unwrap_err();
        assert_eq!(rejection.reason(), "mtls=no_credential,token=expired");
    }
}
