//! Making logins: the outcomes of the intent protocol, and crashes at every step of it.

use std::time::Duration;

use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::world::{World, field, logical, polled, text};
use crate::auth::token::Token;
use crate::database::fake::Behave;
use crate::logical::Operation;
use crate::store::CommitError;

#[tokio::test(start_paused = true)]
async fn a_login_is_made_and_works_under_its_lease() {
    let world = World::new().await;
    let answer = world.creds().await.unwrap();
    let lease = answer.lease.clone().unwrap();
    assert_eq!((lease.duration, lease.renewable), (3600, true));
    assert!(lease.id.starts_with("database/creds/r/"));
    let user = world.database.user(&text(&answer, "username")).unwrap();
    assert_eq!(user.password, text(&answer, "password"));
    world.check();
    assert_eq!(world.leases().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn checks_come_in_order_with_their_texts() {
    let world = World::new().await;
    let failed = |path: &'static str| async { world.read(path).await.unwrap_err() };
    let error = failed("creds/none").await;
    assert_eq!((error.status(), error.to_string()), (400, "unknown role: none".into()));
    world.write("roles/lost", json!({"db_name": "nodb", "creation_statements": "X"})).await.unwrap();
    let error = failed("creds/lost").await;
    let text = "failed to find entry for connection with name: \"nodb\"";
    assert_eq!((error.status(), error.to_string()), (500, text.into()));
    world.write("config/db", json!({"allowed_roles": "other-*"})).await.unwrap();
    let error = failed("creds/r").await;
    assert_eq!((error.status(), error.to_string()), (500, "\"r\" is not an allowed role".into()));
    world.write("config/db", json!({"allowed_roles": "r"})).await.unwrap();
    world.write("roles/r", json!({"creation_statements": []})).await.unwrap();
    let error = failed("creds/r").await;
    assert_eq!((error.status(), error.to_string()), (400, "empty creation statements".into()));
    let bad = json!({"db_name": "db", "creation_statements": "X", "credential_type": "rsa_private_key"});
    let error = world.write("roles/x", bad).await.unwrap_err();
    assert_eq!(error.to_string(), "unsupported credential_type: \"rsa_private_key\"");
    world.check();
}

#[tokio::test(start_paused = true)]
async fn a_token_on_its_last_use_gets_no_leased_secret() {
    let world = World::new().await;
    let token = Token { num_uses: 1, accessor: "a".into(), ..Token::default() };
    let answer = world.call_as(&world.cx(), Some(token), Operation::Read, "creds/r", json!({})).await;
    assert_eq!(answer.unwrap_err().status(), 400);
    assert_eq!(world.database.users().len(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_lease_is_capped_by_its_token_with_a_warning() {
    let world = World::new().await;
    let ends = jiff::Timestamp::now().as_second() + 100;
    let token = Token { id: "t".into(), expires: Some(ends), renewable: false, ..Token::default() };
    let answer = world.call_as(&world.cx(), Some(token), Operation::Read, "creds/r", json!({})).await;
    let answer = logical(answer.unwrap());
    assert!(answer.lease.unwrap().duration <= 101);
    assert_eq!(answer.warnings.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_token_that_was_revoked_meanwhile_gets_no_login() {
    let mut world = World::new().await;
    world.start();
    // Its accessor has no record: the token is gone or being revoked.
    let token = Token { id: "t".into(), accessor: "gone".into(), ..Token::default() };
    let answer = world.call_as(&world.cx(), Some(token), Operation::Read, "creds/r", json!({})).await;
    assert_eq!(answer.unwrap_err().status(), 403);
    world.eventually("swept", |w| w.intents() == 0).await;
    world.check();
    assert_eq!(world.leases().len(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_definite_failure_leaves_nothing_and_shows_the_drivers_text() {
    let world = World::new().await;
    world.database.create(&[Behave::Refuse]);
    let error = world.creds().await.unwrap_err();
    assert_eq!((error.status(), error.to_string()), (500, "permission denied for table x".into()));
    world.check();
    assert_eq!(world.database.deletes(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_failure_whose_clean_up_fails_is_swept() {
    let mut world = World::new().await;
    world.start();
    world.database.create(&[Behave::Refuse]);
    world.database.delete(&[Behave::Refuse, Behave::Refuse]);
    assert_eq!(world.creds().await.unwrap_err().status(), 500);
    assert_eq!(world.intents(), 1);
    world.eventually("swept", |w| w.intents() == 0).await;
    world.check();
}

#[tokio::test(start_paused = true)]
async fn unknown_outcomes_are_503_and_swept() {
    for behave in [Behave::LoseAnswer, Behave::LoseRequest, Behave::Hang] {
        let mut world = World::new().await;
        world.start();
        world.database.create(&[behave]);
        assert_eq!(world.creds().await.unwrap_err().status(), 503, "{behave:?}");
        assert_eq!(world.intents(), 1);
        world.eventually("swept", |w| w.intents() == 0).await;
        world.check();
    }
}

#[tokio::test(start_paused = true)]
async fn a_database_that_cannot_be_reached_leaves_no_intent() {
    let world = World::new().await;
    world.database.create(&[Behave::Unreachable]);
    let error = world.creds().await.unwrap_err();
    assert_eq!((error.status(), error.to_string()), (503, "connection refused".into()));
    assert_eq!(error.retry_after, Some(1));
    world.check();
    assert_eq!(world.database.deletes(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_user_of_someone_else_is_never_removed() {
    let mut world = World::new().await;
    world.start();
    world.write("config/db", json!({"username_template": "fixed"})).await.unwrap();
    world.database.add("fixed", "theirs");
    let error = world.creds().await.unwrap_err();
    assert_eq!(error.status(), 500);
    assert_eq!(world.intents(), 0);
    assert_eq!(world.database.user("fixed").unwrap().password, "theirs");
}

#[tokio::test(start_paused = true)]
async fn a_template_without_randomness_never_gives_out_a_name_twice() {
    let world = World::new().await;
    world.write("config/db", json!({"username_template": "fixed"})).await.unwrap();
    let first = world.creds().await.unwrap();
    let error = world.creds().await.unwrap_err();
    assert_eq!(error.status(), 500);
    assert!(error.to_string().contains("username_template"), "{error}");
    assert_eq!(world.database.user("fixed").unwrap().password, text(&first, "password"));
    world.check();
}

#[tokio::test(start_paused = true)]
async fn store_failures_at_either_commit_leave_no_stray_user() {
    for commit in 0..3 {
        for lost in [false, true] {
            let mut world = World::new().await;
            world.start();
            let mut request = Box::pin(world.creds());
            // The commits of a creation: its intent, then its lease. Polled up to just before the chosen one.
            let mut polls = 0;
            let answer = loop {
                if polls == commit * 4 {
                    let error = if lost { CommitError::Unknown } else { CommitError::NotLeader };
                    world.store.fail_next(error);
                }
                polls += 1;
                match futures_util::poll!(request.as_mut()) {
                    std::task::Poll::Ready(answer) => break answer,
                    std::task::Poll::Pending => tokio::task::yield_now().await,
                }
            };
            if let Err(error) = answer {
                assert_eq!(error.status(), 503);
            }
            drop(request);
            world.eventually("quiet", |w| w.intents() == 0).await;
            world.check();
        }
    }
}

/// The oracle: whatever point a creation is dropped at, and whatever the database did, the users of the database are
/// those of live leases once the sweeper has run, on this node or on the next.
#[tokio::test(start_paused = true)]
async fn a_crash_at_every_step_leaves_only_users_of_leases() {
    let behaviours =
        [Behave::Well, Behave::Refuse, Behave::LoseAnswer, Behave::LoseRequest, Behave::Unreachable];
    for behave in behaviours {
        for takes_over in [false, true] {
            let mut steps = 0;
            loop {
                let mut world = World::new().await;
                if !takes_over {
                    world.start();
                }
                world.database.create(&[behave]);
                let done = polled(steps, world.creds()).await;
                if takes_over {
                    world.take_over().await;
                    world.start();
                }
                world.eventually("swept", |w| w.intents() == 0).await;
                world.check();
                world.stop().await;
                if done.is_some() {
                    break;
                }
                steps += 1;
                assert!(steps < 100, "a creation has that many steps?");
            }
            assert!(steps >= 3, "only {steps} steps for {behave:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_that_goes_away_leaves_it_to_the_sweeper_at_once() {
    let mut world = World::new().await;
    world.start();
    world.database.create(&[Behave::Hang]);
    let cancel = CancellationToken::new();
    let cx = world.cx_until(cancel.clone());
    let request = world.call_as(&cx, None, Operation::Read, "creds/r", json!({}));
    let gone = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        cancel.cancel();
    };
    let (answer, ()) = tokio::join!(request, gone);
    assert_eq!(answer.unwrap_err().status(), 503);
    world.eventually("swept", |w| w.intents() == 0).await;
    world.check();
}

#[tokio::test(start_paused = true)]
async fn a_lost_term_leaves_the_record_to_the_next_leader() {
    let mut world = World::new().await;
    world.database.create(&[Behave::Hang]);
    let cancel = CancellationToken::new();
    let cx = world.cx_until(cancel.clone());
    let request = world.call_as(&cx, None, Operation::Read, "creds/r", json!({}));
    let lost = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        world.cluster.lose_leader();
        cancel.cancel();
    };
    let (answer, ()) = tokio::join!(request, lost);
    assert_eq!(answer.unwrap_err().status(), 503);
    assert_eq!(world.intents(), 1);
    world.take_over().await;
    world.start();
    world.eventually("swept", |w| w.intents() == 0).await;
    world.check();
}

#[tokio::test(start_paused = true)]
async fn a_former_leader_writes_no_lease() {
    let mut world = World::new().await;
    let cx = world.cx();
    world.take_over().await;
    world.start();
    let answer = world.call_as(&cx, None, Operation::Read, "creds/r", json!({})).await;
    assert_eq!(answer.unwrap_err().status(), 503);
    world.check();
    assert_eq!(world.leases().len(), 0);
}

#[tokio::test(start_paused = true)]
async fn configurations_merge_mask_and_refuse() {
    let world = World::bare();
    let bad = json!({"plugin_name": "oracle", "connection_url": "x"});
    let error = world.write("config/x", bad).await.unwrap_err();
    assert!(
        error
            .to_string()
            .starts_with("error creating database object: unknown plugin \"oracle\"; supported: ")
    );
    world.database.set_down(true);
    let config = json!({"plugin_name": "postgresql-database-plugin", "connection_url": super::world::URL,
        "username": "root", "password": "root-password", "allowed_roles": ["*"]});
    let error = world.write("config/db", config.clone()).await.unwrap_err();
    assert_eq!(
        (error.status(), error.to_string()),
        (400, "error creating database object: connection refused".into())
    );
    assert_eq!(world.read("config/db").await.unwrap_err().status(), 404);
    world.database.set_down(false);
    world.write("config/db", config).await.unwrap();
    world.write("config/db", json!({"max_open_connections": 3})).await.unwrap();
    let read = logical(world.read("config/db").await.unwrap());
    assert_eq!(field(&read, "connection_details")["max_open_connections"], json!(3));
    assert!(!format!("{:?}", read.data).contains("root-password"));
    let with_password = json!({"connection_url": "postgresql://root:root-password@db/x"});
    let answer = world.write("config/db", with_password).await.unwrap();
    assert_eq!(logical(answer).warnings.len(), 1);
    let keys = logical(world.call(Operation::List, "config", json!({})).await.unwrap());
    assert_eq!(field(&keys, "keys"), json!(["db"]));
}

/// The login of a request that a mount let in before it was disabled would outlive the mount.
#[tokio::test(start_paused = true)]
async fn a_creation_under_way_makes_no_lease_once_its_mount_is_being_removed() {
    for polls in 0..12 {
        let mut world = World::new().await;
        world.start();
        let mut request = Box::pin(world.creds());
        let mut early = None;
        for _ in 0..polls {
            match futures_util::poll!(request.as_mut()) {
                std::task::Poll::Ready(answer) => {
                    early = Some(answer);
                    break;
                }
                std::task::Poll::Pending => tokio::task::yield_now().await,
            }
        }
        let before = world.leases().len();
        world.storage.put("sys/mount-gone/m-1", &0).await.unwrap();
        let answer = match early {
            Some(answer) => answer,
            None => request.await,
        };
        if let Err(error) = answer {
            assert_eq!(error.status(), 404, "{error}");
        }
        assert_eq!(world.leases().len(), before, "after {polls} polls");
        world.eventually("swept", |w| w.intents() == 0).await;
        world.check();
    }
}

#[tokio::test(start_paused = true)]
async fn a_lease_of_a_batch_token_ends_with_the_token_that_made_it() {
    use crate::auth::token::{NewToken, TokenType};
    let mut world = World::new().await;
    world.start();
    let cx = world.cx();
    let limits = crate::mount::LeaseTtls::default();
    let parent = world.hub.tokens.create(&cx, NewToken::orphan("auth/x/login", limits)).await.unwrap().token;
    let batch = NewToken {
        token_type: TokenType::Batch,
        parent: Some(parent.clone()),
        ttl: 600,
        ..NewToken::orphan("auth/token/create", limits)
    };
    let batch = world.hub.tokens.create(&cx, batch).await.unwrap().token;
    let ask = || world.call_as(&cx, Some(batch.clone()), Operation::Read, "creds/r", json!({}));
    ask().await.unwrap();
    let lease = world.leases().remove(0);
    assert_eq!(lease.token, parent.id);
    assert_eq!(lease.issued.secs_until(lease.expires), 600, "and never outlives the batch token itself");
    world.hub.tokens.revoke_tree(&cx, &parent.id).await.unwrap();
    world.eventually("revoked", |w| w.leases().is_empty()).await;
    assert_eq!(ask().await.unwrap_err().status(), 403);
    world.check();
}
