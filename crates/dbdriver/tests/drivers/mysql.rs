//! MariaDB, when all goes well and when not.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use holdfast_dbdriver::{
    Call, Change, DeleteUser, Dialect, Driver as _, Effect, Idempotent, MysqlDriver, NewUser, Reason,
    UpdateUser,
};
use holdfast_tests::db::{ADMIN, MariaDbServer};
use holdfast_tests::eventually_async;
use jiff::Timestamp;
use mysql_async::prelude::Queryable as _;
use tokio::task::JoinSet;

use crate::support::*;

const CREATE: &str = "CREATE USER '{{name}}'@'%' IDENTIFIED BY '{{password}}'";
const LIMIT: Duration = Duration::from_secs(30);

fn user(statements: &[&str]) -> NewUser {
    new_user(Dialect::Mysql, statements)
}

async fn none_left(server: &MariaDbServer, user: &NewUser) {
    assert_eq!(server.users(&user.username).await, Vec::<String>::new());
}

async fn running(server: &MariaDbServer, mark: &str, wanted: bool) {
    let sql = format!(
        "SELECT ID FROM information_schema.PROCESSLIST WHERE INFO LIKE '%{mark}%' AND ID <> CONNECTION_ID()"
    );
    eventually_async(LIMIT, "the statement runs or not", || async {
        (server.query(&sql).await.is_empty() != wanted).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn create_log_in_renew_revoke() {
    let server = mariadb().await;
    let driver = open(&mysql_config(server));
    driver.initialize(&call(), true).await.unwrap();
    let user = user(&[CREATE, "GRANT SELECT ON app.* TO '{{name}}'@'%'"]);
    driver.new_user(&call(), &user).await.unwrap();
    assert!(server.can_log_in(&user.username, password(&user)).await);
    let renewed = Change::Expiration(Timestamp::now());
    let update = UpdateUser { username: user.username.clone(), change: renewed, statements: vec![] };
    driver.update_user(&call(), &update).await.unwrap();

    let change = Change::Password("next-Password-1".to_owned().into());
    let update = UpdateUser { username: user.username.clone(), change, statements: vec![] };
    driver.update_user(&call(), &update).await.unwrap();
    assert!(
        driver.verify_password(&call(), &user.username, &"next-Password-1".to_owned().into()).await.unwrap()
    );
    assert!(!driver.verify_password(&call(), &user.username, &user.password).await.unwrap());

    driver.delete_user(&call(), &delete(&user)).await.unwrap();
    assert!(!server.can_log_in(&user.username, "next-Password-1").await);
    driver.delete_user(&call(), &delete(&user)).await.unwrap();
    assert_eq!(driver.update_user(&call(), &update).await.unwrap_err().reason(), Reason::Missing);
}

#[tokio::test(flavor = "multi_thread")]
async fn every_host_entry_of_a_name_goes() {
    let server = mariadb().await;
    let driver = open(&mysql_config(server));
    let user = user(&[
        CREATE,
        "CREATE USER '{{name}}'@'10.0.0.%' IDENTIFIED BY '{{password}}'",
        "CREATE USER '{{name}}'@'localhost'",
    ]);
    driver.new_user(&call(), &user).await.unwrap();
    assert_eq!(server.users(&user.username).await.len(), 3);
    driver.delete_user(&call(), &delete(&user)).await.unwrap();
    none_left(server, &user).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn statements_in_every_written_form() {
    let server = mariadb().await;
    let driver = open(&mysql_config(server));
    server.execute("CREATE TABLE app.notes (text VARCHAR(80))").await;
    let forms = [
        STANDARD.encode(format!("{CREATE};")),
        r#"["INSERT INTO app.notes VALUES ('a;b')", "INSERT INTO app.notes VALUES ('it\\'s;');"]"#.to_owned(),
        // MySQL can prepare neither of these.
        "CREATE PROCEDURE app.p() BEGIN IF 1 THEN SELECT 1; END IF; SELECT ';'; END; # and; so on\nLOCK TABLES app.notes WRITE; UNLOCK TABLES"
            .to_owned(),
    ];
    let user = user(&forms.each_ref().map(String::as_str));
    driver.new_user(&call(), &user).await.unwrap();
    assert_eq!(server.query("SELECT text FROM app.notes").await, ["a;b", "it's;"]);
    assert_eq!(
        server
            .query("SELECT ROUTINE_NAME FROM information_schema.ROUTINES WHERE ROUTINE_SCHEMA = 'app'")
            .await,
        ["p"]
    );
    driver.delete_user(&call(), &delete(&user)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn statements_are_prepared_and_go_as_text_where_that_is_refused() {
    let server = mariadb().await;
    let driver = open(&mysql_config(server));
    server.execute("CREATE TABLE app.prepared (text VARCHAR(80))").await;
    server.execute("SET GLOBAL log_output = 'TABLE'").await;
    server.execute("SET GLOBAL general_log = 1").await;
    let text =
        "PREPARE p FROM 'INSERT INTO app.prepared VALUES (''mark-text'')'; EXECUTE p; DEALLOCATE PREPARE p";
    let user = user(&[CREATE, "INSERT INTO app.prepared VALUES ('mark-prepared')", text]);
    driver.new_user(&call(), &user).await.unwrap();
    server.execute("SET GLOBAL general_log = 0").await;
    let sent_as = async |mark: &str| {
        let sql = format!(
            "SELECT DISTINCT command_type FROM mysql.general_log WHERE argument LIKE '%{mark}%' \
             AND argument NOT LIKE '%general_log%'"
        );
        server.query(&sql).await
    };
    let prepared = sent_as("mark-prepared").await;
    assert!(
        prepared.contains(&"Execute".to_owned()) && !prepared.contains(&"Query".to_owned()),
        "{prepared:?}"
    );
    assert!(sent_as("mark-text").await.contains(&"Query".to_owned()));
    assert_eq!(server.query("SELECT text FROM app.prepared").await, ["mark-prepared", "mark-text"]);
    driver.delete_user(&call(), &delete(&user)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_half_made_user_is_undone() {
    let server = mariadb().await;
    let driver = open(&mysql_config(server));
    let mut broken = user(&[CREATE, "GRANT SELECT ON nosuch.nosuch TO '{{name}}'@'%'"]);
    let error = driver.new_user(&call(), &broken).await.unwrap_err();
    assert_eq!(
        (error.reason(), error.effect(), error.native_code()),
        (Reason::Statement, Effect::Nothing, Some(1146))
    );
    none_left(server, &broken).await;

    server.execute("CREATE TABLE app.undone (name VARCHAR(80))").await;
    broken.rollback_statements = vec!["INSERT INTO app.undone VALUES ('{{username}}')".to_owned()];
    driver.new_user(&call(), &broken).await.unwrap_err();
    assert_eq!(server.query("SELECT name FROM app.undone").await, [broken.username.as_str()]);
    none_left(server, &broken).await;

    let syntax = user(&[CREATE, "CREATE USER x IDENTIFIED OOPS '{{password}}'"]);
    let error = driver.new_user(&call(), &syntax).await.unwrap_err();
    assert!(!error.client_text().contains(&password(&syntax)[..6]), "{error}");
    assert_eq!(
        driver.new_user(&call(), &user(&[])).await.unwrap_err().client_text(),
        "empty creation statements"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_user_that_was_there_is_not_undone() {
    let server = mariadb().await;
    let driver = open(&mysql_config(server));
    let first = user(&[CREATE]);
    driver.new_user(&call(), &first).await.unwrap();
    assert_eq!(driver.new_user(&call(), &first).await.unwrap_err().reason(), Reason::Exists);
    assert!(server.can_log_in(&first.username, password(&first)).await);
    let again = NewUser { resent: true, password: "another-Password-9".to_owned().into(), ..first };
    Idempotent::new(Arc::clone(&driver)).new_user(&call(), &again).await.unwrap();
    assert!(server.can_log_in(&again.username, "another-Password-9").await);
    driver.delete_user(&call(), &delete(&again)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn cancelled_and_late_creations_leave_no_user() {
    let server = mariadb().await;
    let driver = open(&mysql_config(server));
    let cancelled = user(&[CREATE, "SELECT SLEEP(60) /* mark-cancelled */"]);
    let call = Call::within(Duration::from_secs(50));
    let (done, ()) = tokio::join!(driver.new_user(&call, &cancelled), async {
        running(server, "mark-cancelled", true).await;
        call.cancel.cancel();
    });
    let error = done.unwrap_err();
    assert_eq!((error.reason(), error.effect()), (Reason::Cancelled, Effect::Nothing));
    running(server, "mark-cancelled", false).await;
    none_left(server, &cancelled).await;

    let late = user(&[CREATE, "SELECT SLEEP(60) /* mark-late */"]);
    let error = driver.new_user(&Call::within(Duration::from_secs(2)), &late).await.unwrap_err();
    assert_eq!((error.reason(), error.effect()), (Reason::Deadline, Effect::Nothing));
    none_left(server, &late).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn lock_timeouts_are_retried_inside() {
    let server = mariadb().await;
    let driver = open(&mysql_config(server));
    server.execute("CREATE TABLE app.locked (a INT PRIMARY KEY) ENGINE=InnoDB").await;
    server.execute("INSERT INTO app.locked VALUES (1)").await;
    let mut holder = server.session(ADMIN, holdfast_tests::db::ADMIN_PASSWORD).await;
    holder.query_drop("BEGIN").await.unwrap();
    holder.query_drop("UPDATE app.locked SET a = 2").await.unwrap();
    let blocked = user(&[
        CREATE,
        "SET SESSION innodb_lock_wait_timeout = 1",
        "UPDATE app.locked SET a = 3 /* mark-blocked */",
    ]);
    let call = call();
    let before = row_waits(server).await;
    let (done, ()) = tokio::join!(driver.new_user(&call, &blocked), async {
        // A second wait means that the first has failed.
        eventually_async(LIMIT, "a second wait", || async {
            (row_waits(server).await >= before + 2).then_some(())
        })
        .await;
        holder.query_drop("COMMIT").await.unwrap();
    });
    done.unwrap();
    assert_eq!(server.query("SELECT a FROM app.locked").await, ["3"]);
    driver.delete_user(&self::call(), &delete(&blocked)).await.unwrap();
}

/// How many times anything on the server has waited for a row.
async fn row_waits(server: &MariaDbServer) -> u64 {
    let sql = "SELECT VARIABLE_VALUE FROM information_schema.GLOBAL_STATUS \
               WHERE VARIABLE_NAME = 'INNODB_ROW_LOCK_WAITS'";
    server.query(sql).await[0].parse().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_end_only_when_asked_for() {
    let server = mariadb().await;
    let driver = open(&mysql_config(server));
    for terminate_sessions in [false, true] {
        let user = user(&[CREATE]);
        driver.new_user(&call(), &user).await.unwrap();
        let mut session = server.session(&user.username, password(&user)).await;
        let own = vec!["DROP USER '{{name}}'@'%'".to_owned()];
        let request = DeleteUser { terminate_sessions, statements: own, ..delete(&user) };
        driver.delete_user(&call(), &request).await.unwrap();
        let alive = session.query_drop("SELECT 1").await.is_ok();
        assert_eq!(alive, !terminate_sessions);
        driver.delete_user(&call(), &request).await.unwrap();
    }
}

/// Clients that log in again at once never get a session that outlives the user.
#[tokio::test(flavor = "multi_thread")]
async fn no_session_comes_back_while_they_are_being_ended() {
    let server = mariadb().await;
    let driver = open(&mysql_config(server));
    for _ in 0..5 {
        let user = user(&[CREATE]);
        driver.new_user(&call(), &user).await.unwrap();
        let sessions =
            format!("SELECT ID FROM information_schema.PROCESSLIST WHERE USER = '{}'", user.username);
        let clients = (0..6).map(|_| async {
            while let Ok(mut session) = server.try_session(&user.username, password(&user)).await {
                while session.query_drop("SELECT 1").await.is_ok() {}
            }
        });
        let clients = futures_util::future::join_all(clients);
        let ending = async {
            eventually_async(LIMIT, "sessions", || async {
                (server.query(&sessions).await.len() == 6).then_some(())
            })
            .await;
            let request = DeleteUser { terminate_sessions: true, ..delete(&user) };
            driver.delete_user(&call(), &request).await.unwrap();
        };
        // The clients end only when no session of theirs works any more.
        let (_, ()) = tokio::time::timeout(LIMIT, async { tokio::join!(clients, ending) }).await.unwrap();
        eventually_async(LIMIT, "none is left", || async {
            server.query(&sessions).await.is_empty().then_some(())
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn creations_run_side_by_side_within_the_bound() {
    let server = mariadb().await;
    let mut config = mysql_config(server);
    config.max_open_connections = 4;
    let driver = Arc::new(MysqlDriver::new(&config).unwrap());
    server.execute("CREATE TABLE app.sleepers (others INT)").await;
    let sleep = "INSERT INTO app.sleepers SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE INFO LIKE '%mark-sleeper%'; \
                 SELECT SLEEP(0.2) /* mark-sleeper */";
    let mut set = JoinSet::new();
    for _ in 0..16 {
        let driver = Arc::clone(&driver);
        set.spawn(async move {
            let user = user(&[CREATE, sleep]);
            driver.new_user(&call(), &user).await?;
            driver.delete_user(&call(), &delete(&user)).await
        });
    }
    for done in set.join_all().await {
        done.unwrap();
    }
    let most: u32 = server.query("SELECT MAX(others) FROM app.sleepers").await[0].parse().unwrap();
    assert!((2..=4).contains(&most), "{most}");
    assert!(driver.idle_connections() <= 4);
    driver.close().await;
    assert_eq!(driver.idle_connections(), 0);
    assert_eq!(driver.initialize(&call(), true).await.unwrap_err().reason(), Reason::Closed);
}

#[tokio::test(flavor = "multi_thread")]
async fn databases_that_refuse_or_are_not_there_are_told_apart() {
    let server = mariadb().await;
    let mut config = mysql_config(server);
    config.password = "not-the-password".to_owned().into();
    let error = open(&config).initialize(&call(), true).await.unwrap_err();
    assert_eq!((error.reason(), error.native_code()), (Reason::Login, Some(1045)));
    let mut config = mysql_config(server);
    config.connection_url =
        format!("{{{{username}}}}:{{{{password}}}}@tcp(127.0.0.1:{})/", holdfast_tests::process::free_port())
            .into();
    let error = open(&config).new_user(&call(), &user(&[CREATE])).await.unwrap_err();
    assert_eq!(error.reason(), Reason::Unreachable, "{error}");
    config.connection_url =
        format!("mysql://{{{{username}}}}:{{{{password}}}}@127.0.0.1:{}/app", server.port()).into();
    open(&config).initialize(&call(), true).await.unwrap();
    config.connection_url = server.url().into();
    open(&config).initialize(&call(), true).await.unwrap();
    config.connection_url = format!("{}?tls=preferred", server.url_template()).into();
    open(&config).initialize(&call(), true).await.unwrap();
    config.connection_url = format!("{}?tls=true", server.url_template()).into();
    assert_eq!(open(&config).initialize(&call(), true).await.unwrap_err().reason(), Reason::Unreachable);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restarted_server_is_used_again_without_an_error() {
    let mut server = MariaDbServer::start().await;
    let driver = open(&mysql_config(&server));
    let user = user(&[CREATE]);
    driver.new_user(&call(), &user).await.unwrap();
    server.kill();
    assert!(driver.delete_user(&call(), &delete(&user)).await.unwrap_err().could_not_be_tried());
    server.resume().await;
    driver.delete_user(&call(), &delete(&user)).await.unwrap();
}
