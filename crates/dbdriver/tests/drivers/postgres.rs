//! PostgreSQL when all goes well.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use holdfast_dbdriver::{
    Change, DeleteUser, Dialect, Driver, NewUser, PasswordAuthentication, PostgresDriver, Reason, UpdateUser,
};
use holdfast_tests::db::{ADMIN, ADMIN_PASSWORD};
use jiff::Timestamp;
use tokio::task::JoinSet;

use crate::support::*;

const CREATE: &str = r#"CREATE ROLE "{{name}}" LOGIN PASSWORD '{{password}}' VALID UNTIL '{{expiration}}'"#;

fn user(statements: &[&str]) -> NewUser {
    new_user(Dialect::Postgres, statements)
}

async fn valid_until(name: &str) -> String {
    let sql = format!("SELECT rolvaliduntil AT TIME ZONE 'UTC' FROM pg_roles WHERE rolname = '{name}'");
    postgres().await.query(&sql).await.join("")
}

#[tokio::test(flavor = "multi_thread")]
async fn create_log_in_renew_revoke() {
    let server = postgres().await;
    let driver = open(&postgres_config(server));
    driver.initialize(&call(), true).await.unwrap();
    let user = user(&[CREATE]);
    driver.new_user(&call(), &user).await.unwrap();
    assert!(server.can_log_in(&user.username, password(&user)).await);
    assert!(!server.can_log_in(&user.username, "wrong").await);

    let later: Timestamp = "2040-01-02T03:04:05Z".parse().unwrap();
    let update =
        UpdateUser { username: user.username.clone(), change: Change::Expiration(later), statements: vec![] };
    driver.update_user(&call(), &update).await.unwrap();
    assert_eq!(valid_until(&user.username).await, "2040-01-02 03:04:05");

    driver.delete_user(&call(), &delete(&user)).await.unwrap();
    assert!(!server.can_log_in(&user.username, password(&user)).await);
    driver.delete_user(&call(), &delete(&user)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn passwords_change_and_are_tested() {
    let server = postgres().await;
    let driver = open(&postgres_config(server));
    let user = user(&[CREATE]);
    driver.new_user(&call(), &user).await.unwrap();
    let change = Change::Password("next-Password-1".to_owned().into());
    let update = UpdateUser { username: user.username.clone(), change, statements: vec![] };
    driver.update_user(&call(), &update).await.unwrap();
    assert!(
        driver.verify_password(&call(), &user.username, &"next-Password-1".to_owned().into()).await.unwrap()
    );
    assert!(!driver.verify_password(&call(), &user.username, &user.password).await.unwrap());
    let missing = UpdateUser { username: "v-nobody".to_owned(), ..update };
    assert_eq!(driver.update_user(&call(), &missing).await.unwrap_err().reason(), Reason::Missing);
    driver.delete_user(&call(), &delete(&user)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rotated_login_of_the_connection_locks_out_the_old_password() {
    let server = postgres().await;
    server.execute("CREATE ROLE rotating LOGIN CREATEROLE PASSWORD 'first-1'").await;
    let mut config = postgres_config(server);
    (config.username, config.password) = ("rotating".to_owned(), "first-1".to_owned().into());
    let driver = open(&config);
    let change = Change::Password("second-2".to_owned().into());
    let update = UpdateUser { username: "rotating".to_owned(), change, statements: vec![] };
    driver.update_user(&call(), &update).await.unwrap();
    assert!(driver.verify_password(&call(), "rotating", &"second-2".to_owned().into()).await.unwrap());
    assert!(!driver.verify_password(&call(), "rotating", &"first-1".to_owned().into()).await.unwrap());
    let old = open(&config);
    assert_eq!(old.initialize(&call(), true).await.unwrap_err().reason(), Reason::Login);
    open(&config.with_password("second-2".to_owned().into())).initialize(&call(), true).await.unwrap();
    server.execute("DROP ROLE rotating").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn statements_in_every_written_form() {
    let server = postgres().await;
    let driver = open(&postgres_config(server));
    server.execute("CREATE SCHEMA forms; CREATE TABLE forms.notes (text text)").await;
    let forms = [
        STANDARD.encode(format!("{CREATE};")),
        r#"["COMMENT ON ROLE \"{{username}}\" IS 'a;b'", "GRANT USAGE ON SCHEMA forms TO \"{{name}}\";"]"#.to_owned(),
        r#"DO $$ BEGIN INSERT INTO forms.notes VALUES ('x;y'); INSERT INTO forms.notes VALUES ('{{name}}'); END $$;
           CREATE FUNCTION forms.f() RETURNS int LANGUAGE SQL BEGIN ATOMIC SELECT 1; SELECT CASE WHEN true THEN 2 END; END;
           GRANT EXECUTE ON FUNCTION forms.f() TO "{{name}}" -- done; really"#
            .to_owned(),
    ];
    let user = user(&forms.each_ref().map(String::as_str));
    driver.new_user(&call(), &user).await.unwrap();
    assert!(server.can_log_in(&user.username, password(&user)).await);
    assert_eq!(server.query("SELECT text FROM forms.notes").await, ["x;y", user.username.as_str()]);
    assert_eq!(server.query("SELECT forms.f()").await, ["2"]);
    driver.delete_user(&call(), &delete(&user)).await.unwrap();
    assert_eq!(server.users(&user.username).await, Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_servers_sees_only_a_hash_with_scram() {
    let server = postgres().await;
    let mut config = postgres_config(server);
    config.password_authentication = PasswordAuthentication::ScramSha256;
    let driver = open(&config);
    let sql = r#"CREATE TABLE IF NOT EXISTS public.seen (what text); INSERT INTO public.seen VALUES ('{{password}}')"#;
    let user = user(&[CREATE, sql]);
    driver.new_user(&call(), &user).await.unwrap();
    assert!(server.can_log_in(&user.username, password(&user)).await);
    assert!(server.query("SELECT what FROM public.seen").await[0].starts_with("SCRAM-SHA-256$4096:"));
    driver.delete_user(&call(), &delete(&user)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn revocation_takes_back_every_sort_of_grant() {
    let server = postgres().await;
    let driver = open(&postgres_config(server));
    server
        .execute(
            "CREATE SCHEMA \"Odd; schema\"; CREATE TABLE \"Odd; schema\".\"T a\" (a int, b int);
             CREATE TABLE \"Odd; schema\".other (a serial); CREATE FUNCTION \"Odd; schema\".f(int, text) RETURNS int
             LANGUAGE sql AS 'SELECT 1'; CREATE TYPE \"Odd; schema\".kind AS ENUM ('x')",
        )
        .await;
    let grants = r#"GRANT USAGE, CREATE ON SCHEMA "Odd; schema" TO "{{name}}";
        GRANT SELECT (a) ON "Odd; schema"."T a" TO "{{name}}";
        GRANT ALL ON ALL TABLES IN SCHEMA "Odd; schema" TO "{{name}}" WITH GRANT OPTION;
        GRANT ALL ON ALL SEQUENCES IN SCHEMA "Odd; schema" TO "{{name}}";
        GRANT ALL ON ALL FUNCTIONS IN SCHEMA "Odd; schema" TO "{{name}}";
        GRANT USAGE ON TYPE "Odd; schema".kind TO "{{name}}"; GRANT USAGE ON LANGUAGE plpgsql TO "{{name}}";
        GRANT CONNECT, TEMP ON DATABASE app TO "{{name}}"; GRANT SET ON PARAMETER log_min_messages TO "{{name}}";
        ALTER DEFAULT PRIVILEGES IN SCHEMA "Odd; schema" GRANT SELECT ON TABLES TO "{{name}}";
        ALTER DEFAULT PRIVILEGES GRANT EXECUTE ON FUNCTIONS TO "{{name}}"; GRANT pg_monitor TO "{{name}}""#;
    let user = user(&[CREATE, grants]);
    driver.new_user(&call(), &user).await.unwrap();
    driver.delete_user(&call(), &delete(&user)).await.unwrap();
    assert_eq!(server.users(&user.username).await, Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_role_that_owns_something_is_kept_and_the_error_names_it() {
    let server = postgres().await;
    let driver = open(&postgres_config(server));
    let user = user(&[
        CREATE,
        r#"CREATE TABLE public.precious (a int); ALTER TABLE public.precious OWNER TO "{{name}}""#,
    ]);
    driver.new_user(&call(), &user).await.unwrap();
    let error = driver.delete_user(&call(), &delete(&user)).await.unwrap_err();
    assert_eq!((error.reason(), error.sqlstate()), (Reason::Dependent, Some("2BP01")));
    assert!(error.client_text().contains("owner of table precious"), "{error}");
    server.execute("DROP TABLE public.precious").await;
    driver.delete_user(&call(), &delete(&user)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn revocation_of_a_role_that_is_gone_succeeds() {
    let server = postgres().await;
    let driver = open(&postgres_config(server));
    let user = user(&[CREATE]);
    driver.new_user(&call(), &user).await.unwrap();
    server.execute(&format!("DROP ROLE \"{}\"", user.username)).await;
    let own = vec![r#"REVOKE ALL ON SCHEMA public FROM "{{name}}"; DROP ROLE "{{name}}""#.to_owned()];
    driver.delete_user(&call(), &DeleteUser { statements: own, ..delete(&user) }).await.unwrap();
    driver.delete_user(&call(), &DeleteUser { terminate_sessions: true, ..delete(&user) }).await.unwrap();
    // A wrong statement is no success when the role is still there.
    driver.new_user(&call(), &user).await.unwrap();
    let wrong = DeleteUser { statements: vec!["DROP ROLE nosuchrole".to_owned()], ..delete(&user) };
    assert!(driver.delete_user(&call(), &wrong).await.is_err());
    driver.delete_user(&call(), &delete(&user)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_end_only_when_asked_for() {
    let server = postgres().await;
    let driver = open(&postgres_config(server));
    for terminate_sessions in [false, true] {
        let user = user(&[CREATE]);
        driver.new_user(&call(), &user).await.unwrap();
        let session = server.session(&user.username, password(&user)).await;
        driver.delete_user(&call(), &DeleteUser { terminate_sessions, ..delete(&user) }).await.unwrap();
        let ended = async {
            while session.simple_query("SELECT 1").await.is_ok() && terminate_sessions {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), ended).await.unwrap();
    }
}

/// Clients that log in again at once never get a session that outlives the role.
#[tokio::test(flavor = "multi_thread")]
async fn no_session_comes_back_while_they_are_being_ended() {
    let server = postgres().await;
    let driver = open(&postgres_config(server));
    let limit = Duration::from_secs(60);
    for _ in 0..3 {
        let user = user(&[CREATE]);
        driver.new_user(&call(), &user).await.unwrap();
        let id = format!("SELECT oid FROM pg_roles WHERE rolname = '{}'", user.username);
        let id = server.query(&id).await.remove(0);
        let sessions = format!("SELECT pid FROM pg_stat_activity WHERE usesysid = {id}");
        let clients = (0..6).map(|_| async {
            while let Ok(session) = server.try_session(&user.username, password(&user)).await {
                while session.simple_query("SELECT 1").await.is_ok() {}
            }
        });
        let clients = futures_util::future::join_all(clients);
        let ending = async {
            holdfast_tests::eventually_async(limit, "sessions", || async {
                (server.query(&sessions).await.len() == 6).then_some(())
            })
            .await;
            let request = DeleteUser { terminate_sessions: true, ..delete(&user) };
            driver.delete_user(&call(), &request).await.unwrap();
        };
        // The clients end only when no session of theirs works any more.
        let (_, ()) = tokio::time::timeout(limit, async { tokio::join!(clients, ending) }).await.unwrap();
        holdfast_tests::eventually_async(limit, "none is left", || async {
            server.query(&sessions).await.is_empty().then_some(())
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn grants_on_one_schema_at_once_never_show_a_conflict() {
    let server = postgres().await;
    let driver = open(&postgres_config(server));
    server.execute("CREATE SCHEMA crowded; CREATE TABLE crowded.a (); CREATE TABLE crowded.b ()").await;
    let grant = r#"GRANT USAGE ON SCHEMA crowded TO "{{name}}"; GRANT SELECT ON ALL TABLES IN SCHEMA crowded TO "{{name}}""#;
    for _ in 0..4 {
        create_and_remove(&driver, 16, &[CREATE, grant]).await;
    }
}

/// Once creations of a kind have collided they queue up, but only for what they share: they all reach the statement
/// before it at once. Each waits there for a lock that the test holds until it has seen all of them wait.
#[tokio::test(flavor = "multi_thread")]
async fn creations_that_collided_still_wait_side_by_side() {
    let server = postgres().await;
    let driver = open(&postgres_config(server));
    server.execute("CREATE SCHEMA queued; CREATE ROLE bystander").await;
    let statements = [
        "SELECT pg_advisory_xact_lock_shared(4711)",
        CREATE,
        r#"GRANT USAGE ON SCHEMA queued TO "{{name}}""#,
    ];
    let holder = server.session(ADMIN, ADMIN_PASSWORD).await;
    let waiting = async |sql: &str, count: &str| {
        holdfast_tests::eventually_async(Duration::from_secs(30), "sessions wait", || async {
            (server.query(sql).await == [count]).then_some(())
        })
        .await;
    };

    // A collision that is sure to happen: the row was changed by a transaction that commits while we wait for it.
    holder.batch_execute("BEGIN; GRANT USAGE ON SCHEMA queued TO bystander").await.unwrap();
    let for_row = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'transactionid' \
                   AND query LIKE '%SCHEMA queued%'";
    tokio::join!(create_and_remove(&driver, 1, &statements), async {
        waiting(for_row, "1").await;
        holder.batch_execute("COMMIT").await.unwrap();
    });

    holder.batch_execute("SELECT pg_advisory_lock(4711)").await.unwrap();
    let for_us = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = 4711 AND NOT granted";
    tokio::join!(create_and_remove(&driver, 16, &statements), async {
        waiting(for_us, "16").await;
        holder.batch_execute("SELECT pg_advisory_unlock(4711)").await.unwrap();
    });
    server.execute("DROP OWNED BY bystander; DROP ROLE bystander").await;
}

/// Each creation waits until all have begun, so that they finish only if they truly run side by side.
#[tokio::test(flavor = "multi_thread")]
async fn creations_run_side_by_side() {
    let server = postgres().await;
    let driver = open(&postgres_config(server));
    server.execute("CREATE SEQUENCE public.arrivals").await;
    let meet = "DO $$ BEGIN PERFORM nextval('public.arrivals'); \
                WHILE (SELECT last_value FROM public.arrivals) < 16 LOOP PERFORM pg_sleep(0.2); END LOOP; END $$";
    create_and_remove(&driver, 16, &[CREATE, meet]).await;
}

/// Each creation notes how many slept together with it.
#[tokio::test(flavor = "multi_thread")]
async fn never_more_connections_than_allowed() {
    let server = postgres().await;
    let mut config = postgres_config(server);
    config.max_open_connections = 3;
    let driver = open(&config);
    server.execute("CREATE TABLE public.sleepers (others int)").await;
    let sleep = "SELECT pg_sleep(0.1) /* sleepers */; INSERT INTO public.sleepers SELECT count(*) FROM pg_stat_activity \
                 WHERE query LIKE '%/* sleepers */%' AND application_name = 'holdfast' AND state = 'active'";
    create_and_remove(&driver, 12, &[CREATE, sleep]).await;
    let most: u32 = server.query("SELECT max(others) FROM public.sleepers").await[0].parse().unwrap();
    assert!((1..=3).contains(&most), "{most}");
}

async fn create_and_remove(driver: &Arc<dyn Driver>, count: usize, statements: &[&str]) {
    let mut set = JoinSet::new();
    for _ in 0..count {
        let (driver, user) = (Arc::clone(driver), user(statements));
        set.spawn(async move {
            driver.new_user(&call(), &user).await?;
            driver.delete_user(&call(), &delete(&user)).await
        });
    }
    for done in set.join_all().await {
        done.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn idle_connections_are_kept_and_gone_after_close() {
    let server = postgres().await;
    let mut config = postgres_config(server);
    config.connection_url = format!("{}&application_name=idlers", server.url_template()).into();
    config.max_idle_connections = 2;
    let driver = Arc::new(PostgresDriver::new(&config).unwrap());
    let mut set = JoinSet::new();
    for _ in 0..8 {
        let driver = Arc::clone(&driver);
        set.spawn(async move { driver.initialize(&call(), true).await });
    }
    set.join_all().await.into_iter().for_each(|done| done.unwrap());
    let connected = || async {
        server.query("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'idlers'").await[0]
            .clone()
    };
    assert!((1..=2).contains(&driver.idle_connections()));
    driver.close().await;
    holdfast_tests::eventually_async(Duration::from_secs(10), "all connections close", || async {
        (connected().await == "0").then_some(())
    })
    .await;
    assert_eq!(driver.initialize(&call(), true).await.unwrap_err().reason(), Reason::Closed);
}

#[tokio::test(flavor = "multi_thread")]
async fn other_ways_to_write_the_address() {
    let server = postgres().await;
    let mut config = postgres_config(server);
    let port = server.port();
    let pairs = format!(
        "host=127.0.0.1 port={port} user={{{{username}}}} password='{{{{password}}}}' dbname=app sslmode=disable"
    );
    for url in [pairs, server.url(), format!("postgres://127.0.0.1:{port}/app")] {
        config.connection_url = url.clone().into();
        open(&config).initialize(&call(), true).await.unwrap_or_else(|e| panic!("{url}: {e}"));
    }
}
