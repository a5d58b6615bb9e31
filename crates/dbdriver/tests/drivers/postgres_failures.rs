//! PostgreSQL when things go wrong: nothing may be left behind, and the error must say what is known.

use std::sync::Arc;
use std::time::Duration;

use holdfast_dbdriver::{Call, Dialect, Driver, Effect, Idempotent, NewUser, Reason};
use holdfast_tests::db::{ADMIN, ADMIN_PASSWORD, PostgresServer};
use holdfast_tests::eventually_async;
use nix::sys::signal::Signal;
use tokio_util::sync::CancellationToken;

use crate::support::*;

const CREATE: &str = r#"CREATE ROLE "{{name}}" LOGIN PASSWORD '{{password}}'"#;
const LIMIT: Duration = Duration::from_secs(30);

fn user(statements: &[&str]) -> NewUser {
    new_user(Dialect::Postgres, statements)
}

/// Waits until the server runs a statement that holds `mark`.
async fn running(server: &PostgresServer, mark: &str) {
    let sql = format!(
        "SELECT 1 FROM pg_stat_activity WHERE query LIKE '%{mark}%' AND pid <> pg_backend_pid() AND state = 'active'"
    );
    eventually_async(LIMIT, "the statement runs", || async {
        (!server.query(&sql).await.is_empty()).then_some(())
    })
    .await;
}

async fn not_running(server: &PostgresServer, mark: &str) {
    let sql = format!(
        "SELECT 1 FROM pg_stat_activity WHERE query LIKE '%{mark}%' AND pid <> pg_backend_pid() AND state = 'active'"
    );
    eventually_async(LIMIT, "the statement ends", || async {
        server.query(&sql).await.is_empty().then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cancelling_ends_the_statement_and_leaves_no_user() {
    let server = postgres().await;
    let driver = open(&postgres_config(server));
    let user = user(&[CREATE, "SELECT pg_sleep(60) /* to-be-cancelled */"]);
    let call = Call::within(Duration::from_secs(50));
    let (done, ()) = tokio::join!(driver.new_user(&call, &user), async {
        running(server, "/* to-be-cancelled */").await;
        call.cancel.cancel();
    });
    let error = done.unwrap_err();
    assert_eq!((error.reason(), error.effect()), (Reason::Cancelled, Effect::Nothing));
    not_running(server, "/* to-be-cancelled */").await;
    assert_eq!(server.users(&user.username).await, Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deadline_before_commit_leaves_no_user() {
    let server = postgres().await;
    let driver = open(&postgres_config(server));
    // The time is for the statement, not for a connection.
    driver.initialize(&call(), true).await.unwrap();
    let user = user(&[CREATE, "SELECT pg_sleep(60) /* too-late */"]);
    let error = driver.new_user(&Call::within(Duration::from_secs(2)), &user).await.unwrap_err();
    assert_eq!((error.reason(), error.effect()), (Reason::Deadline, Effect::Nothing));
    not_running(server, "/* too-late */").await;
    assert_eq!(server.users(&user.username).await, Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn statements_share_one_transaction_in_utc_with_what_is_left_of_the_time() {
    let server = postgres().await;
    server.execute("ALTER DATABASE app SET timezone = 'America/New_York'").await;
    let facts = "SELECT current_setting('TimeZone') AS zone, pg_current_xact_id()::text AS id, \
                 (SELECT setting FROM pg_settings WHERE name = 'statement_timeout') AS timeout";
    let make = format!("CREATE TABLE public.facts AS {facts}");
    let user = user(&[&make, CREATE, &format!("INSERT INTO public.facts {facts}")]);
    let driver = open(&postgres_config(server));
    driver.new_user(&Call::within(Duration::from_secs(20)), &user).await.unwrap();
    assert_eq!(server.query("SELECT DISTINCT zone FROM public.facts").await, ["UTC"]);
    assert_eq!(server.query("SELECT count(DISTINCT id) FROM public.facts").await, ["1"]);
    let timeout: u64 =
        server.query("SELECT DISTINCT timeout FROM public.facts").await.remove(0).parse().unwrap();
    assert!((1..=20_000).contains(&timeout), "{timeout} ms");
    driver.delete_user(&self::call(), &delete(&user)).await.unwrap();
}

/// The statements end in time, but whoever runs them is held up until the deadline has passed.
#[tokio::test]
async fn a_deadline_that_passes_just_before_commit_leaves_no_user() {
    let server = postgres().await;
    let driver = open(&postgres_config(server));
    let holder = server.session(ADMIN, ADMIN_PASSWORD).await;
    holder.batch_execute("SELECT pg_advisory_lock(4712)").await.unwrap();
    let user = user(&[CREATE, "SELECT pg_advisory_xact_lock_shared(4712)", "SELECT pg_sleep(0.3)"]);
    let call = Call::within(Duration::from_secs(8));
    let (done, ()) = tokio::join!(driver.new_user(&call, &user), async {
        running(server, "xact_lock_shared(4712)").await;
        holder.batch_execute("SELECT pg_advisory_unlock(4712)").await.unwrap();
        // sleep: of the thread, so that the server's answer waits to be read until it is too late.
        std::thread::sleep(call.left() + Duration::from_millis(50));
    });
    let error = done.unwrap_err();
    assert_eq!((error.reason(), error.effect()), (Reason::Deadline, Effect::Nothing), "{error}");
    assert_eq!(server.users(&user.username).await, Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_caller_that_vanishes_leaves_no_user() {
    let server = postgres().await;
    let driver = Arc::new(Idempotent::new(open(&postgres_config(server))));
    let user = user(&[CREATE, "SELECT pg_sleep(60) /* vanished */"]);
    {
        let call = call();
        tokio::select! {
            _ = driver.new_user(&call, &user) => panic!("ended"),
            () = running(server, "/* vanished */") => {}
        }
    }
    not_running(server, "/* vanished */").await;
    driver.delete_user(&call(), &delete(&user)).await.unwrap();
    assert_eq!(driver.new_user(&call(), &user).await.unwrap_err().reason(), Reason::Cancelled);
    assert_eq!(server.users(&user.username).await, Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_sent_again_to_a_new_executor_makes_the_user_anew() {
    let server = postgres().await;
    let mut user = user(&[CREATE]);
    Idempotent::new(open(&postgres_config(server))).new_user(&call(), &user).await.unwrap();
    user.password = "another-Password-9".to_owned().into();
    user.resent = true;
    let restarted = Idempotent::new(open(&postgres_config(server)));
    restarted.new_user(&call(), &user).await.unwrap();
    assert!(server.can_log_in(&user.username, "another-Password-9").await);
    restarted.delete_user(&call(), &delete(&user)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failing_statement_rolls_everything_back_and_shows_no_secret() {
    let server = postgres().await;
    let driver = open(&postgres_config(server));
    let user = user(&[CREATE, "SELECT '{{password}}' FROM nosuchtable", "SELECT 1"]);
    let error = driver.new_user(&call(), &user).await.unwrap_err();
    assert_eq!(
        (error.reason(), error.effect(), error.sqlstate()),
        (Reason::Statement, Effect::Nothing, Some("42P01"))
    );
    assert_eq!(server.users(&user.username).await, Vec::<String>::new());

    let leaky = user_with(r#"DO $$ BEGIN RAISE EXCEPTION 'set {{password}} near'; END $$"#);
    let error = driver.new_user(&call(), &leaky).await.unwrap_err();
    assert_eq!(error.client_text(), "ERROR: set [redacted] near (SQLSTATE P0001)");
    let quoted = user_with("SELECT '{{password}}' '{{password}}' )");
    let error = driver.new_user(&call(), &quoted).await.unwrap_err();
    assert!(!error.client_text().contains(&password(&quoted)[..6]), "{error}");
}

fn user_with(statement: &str) -> NewUser {
    user(&[CREATE, statement])
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_that_make_no_sense_never_reach_the_database() {
    let mut config = postgres_config(postgres().await);
    config.connection_url = "postgres://{{username}}:{{password}}@127.0.0.1:1/db".to_owned().into();
    let driver = open(&config);
    for (statements, text) in
        [(vec![], "empty creation statements"), (vec![" ; -- nothing"], "empty creation statements")]
    {
        let error = driver.new_user(&call(), &user(&statements)).await.unwrap_err();
        assert_eq!((error.reason(), error.client_text()), (Reason::Invalid, text));
    }
    assert_eq!(driver.new_user(&call(), &user(&["ROLLBACK"])).await.unwrap_err().reason(), Reason::Invalid);
    let over = Call::within(Duration::ZERO);
    assert_eq!(driver.new_user(&over, &user(&[CREATE])).await.unwrap_err().reason(), Reason::Deadline);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_is_not_there_could_not_be_tried() {
    let mut config = postgres_config(postgres().await);
    let port = holdfast_tests::process::free_port();
    config.connection_url =
        format!("postgres://{{{{username}}}}:{{{{password}}}}@127.0.0.1:{port}/db").into();
    let driver = open(&config);
    for error in [
        driver.new_user(&call(), &user(&[CREATE])).await.unwrap_err(),
        driver.delete_user(&call(), &delete(&user(&[]))).await.unwrap_err(),
        driver.initialize(&call(), true).await.unwrap_err(),
        driver.verify_password(&call(), "a", &"b".to_owned().into()).await.unwrap_err(),
    ] {
        assert_eq!(error.reason(), Reason::Unreachable, "{error}");
        assert!(error.could_not_be_tried());
    }
    driver.initialize(&call(), false).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_login_of_the_driver_is_told_apart_and_shows_no_secret() {
    let mut config = postgres_config(postgres().await);
    config.password = "not-the-password".to_owned().into();
    let error = open(&config).initialize(&call(), true).await.unwrap_err();
    assert_eq!((error.reason(), error.sqlstate()), (Reason::Login, Some("28P01")));
    assert!(!error.client_text().contains("not-the-password"), "{error}");
    assert!(!format!("{error:?}").contains(ADMIN_PASSWORD));
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_rights_are_told_apart() {
    let server = postgres().await;
    server.execute("CREATE ROLE powerless LOGIN PASSWORD 'x'").await;
    let mut config = postgres_config(server);
    (config.username, config.password) = ("powerless".to_owned(), "x".to_owned().into());
    let error = open(&config).new_user(&call(), &user(&[CREATE])).await.unwrap_err();
    assert_eq!((error.reason(), error.sqlstate()), (Reason::Denied, Some("42501")));
    server.execute("DROP ROLE powerless").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn waiting_for_a_connection_ends_as_busy() {
    let server = postgres().await;
    let mut config = postgres_config(server);
    config.max_open_connections = 1;
    let driver = open(&config);
    let (slow, stop) = (user(&[CREATE, "SELECT pg_sleep(60) /* hog */"]), CancellationToken::new());
    let hog = Call::new(tokio::time::Instant::now() + LIMIT, stop.clone());
    let (_, ()) = tokio::join!(driver.new_user(&hog, &slow), async {
        running(server, "/* hog */").await;
        let error =
            driver.new_user(&Call::within(Duration::from_millis(50)), &user(&[CREATE])).await.unwrap_err();
        assert_eq!(error.reason(), Reason::Busy);
        assert!(error.could_not_be_tried());
        stop.cancel();
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn closing_ends_what_is_under_way() {
    let server = postgres().await;
    let driver = open(&postgres_config(server));
    let slow = user(&[CREATE, "SELECT pg_sleep(60) /* closing */"]);
    let call = call();
    let (done, ()) = tokio::join!(driver.new_user(&call, &slow), async {
        running(server, "/* closing */").await;
        driver.close().await;
    });
    assert_eq!(done.unwrap_err().reason(), Reason::Closed);
    not_running(server, "/* closing */").await;
    assert_eq!(server.users(&slow.username).await, Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restarted_database_is_used_again_without_an_error() {
    let mut server = PostgresServer::start().await;
    let driver = open(&postgres_config(&server));
    driver.initialize(&call(), true).await.unwrap();
    server.stop();
    let error = driver.new_user(&call(), &user(&[CREATE])).await.unwrap_err();
    assert!(error.could_not_be_tried(), "{error:?}");
    server.resume().await;
    // Connections that died while idle must not be noticed.
    let user = user(&[CREATE]);
    driver.new_user(&call(), &user).await.unwrap();
    server.stop();
    server.resume().await;
    driver.delete_user(&call(), &delete(&user)).await.unwrap();

    // A server that dies during a creation has made nothing, and that is known.
    let slow = self::user(&[CREATE, "SELECT pg_sleep(60) /* dying */"]);
    let call = call();
    let (done, ()) = tokio::join!(driver.new_user(&call, &slow), async {
        running(&server, "/* dying */").await;
        server.signal(Signal::SIGQUIT);
    });
    let error = done.unwrap_err();
    assert_eq!(error.effect(), Effect::Nothing, "{error:?}");
}
