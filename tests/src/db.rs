//! Private database servers for tests: a PostgreSQL and a MariaDB of their own, on loopback, gone with the test.
//!
//! Each server runs in a directory of its own as an unprivileged user, keeps nothing durable, and is told by the
//! kernel to die when the test process does.

use std::fs;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

use mysql_async::prelude::Queryable as _;
use nix::sys::signal::Signal;
use nix::unistd::{Uid, User};
use tempfile::TempDir;

use crate::eventually_async;
use crate::process::{Process, free_port};

/// The login that may do everything, on both servers.
pub const ADMIN: &str = "rigadmin";
/// Its password, which needs percent-encoding in a URL.
pub const ADMIN_PASSWORD: &str = "r1g:p@ss/w%rd?#";
/// The database for tests.
pub const DATABASE: &str = "app";

const START: Duration = Duration::from_secs(60);

/// A private PostgreSQL.
pub struct PostgresServer {
    dir: TempDir,
    _cleaner: Cleaner,
    port: u16,
    process: Option<Process>,
    settings: Vec<String>,
}

impl PostgresServer {
    /// Makes a cluster and starts it.
    pub async fn start() -> Self {
        Self::with_settings(&[]).await
    }

    /// The same with lines for its configuration file.
    pub async fn with_settings(settings: &[&str]) -> Self {
        let dir = owned_dir("postgres");
        let password = dir.path().join("password");
        fs::write(&password, ADMIN_PASSWORD).unwrap();
        give(&password, "postgres");
        let mut initdb = as_user("postgres", &postgres_program("initdb"));
        initdb.args([
            "--no-sync",
            "--no-instructions",
            "--auth=scram-sha-256",
            "--encoding=UTF8",
            "--locale=C",
        ]);
        initdb.arg(format!("--username={ADMIN}")).arg(format!("--pwfile={}", password.display()));
        initdb.arg(format!("--pgdata={}", dir.path().join("data").display()));
        run(&mut initdb);
        let settings = settings.iter().map(|s| (*s).to_owned()).collect();
        let mut server =
            Self { _cleaner: Cleaner::new(dir.path()), dir, port: free_port(), process: None, settings };
        server.resume().await;
        server.execute_in("postgres", &format!("CREATE DATABASE {DATABASE}")).await;
        server
    }

    /// Writes a file that the server may read, such as a certificate, and returns its path.
    pub fn file(&self, name: &str, content: &str) -> PathBuf {
        let path = self.dir.path().join(name);
        fs::write(&path, content).unwrap();
        fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
        give(&path, "postgres");
        path
    }

    /// Starts the server again after [`Self::stop`] or [`Self::kill`], on the same port and data.
    pub async fn resume(&mut self) {
        let mut command = as_user("postgres", &postgres_program("postgres"));
        command.arg("-D").arg(self.dir.path().join("data"));
        let socket_dir = format!("unix_socket_directories={}", self.dir.path().display());
        let fixed = ["fsync=off", "full_page_writes=off", "synchronous_commit=off", "max_connections=300"];
        let fixed = fixed.iter().map(|s| (*s).to_owned());
        let place = [format!("port={}", self.port), "listen_addresses=127.0.0.1".to_owned(), socket_dir];
        for setting in fixed.chain(place).chain(self.settings.iter().cloned()) {
            command.arg("-c").arg(setting);
        }
        self.process = Some(spawn(command, self.dir.path().join("log")));
        let url = self.url_of("postgres");
        eventually_async(START, "PostgreSQL answers", || async { connect(&url).await.ok() }).await;
    }

    /// Adds settings that hold from the next [`Self::resume`] on.
    pub fn configure(&mut self, settings: &[String]) {
        self.settings.extend_from_slice(settings);
    }

    /// Stops it in an orderly way; sessions are cut.
    pub fn stop(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.signal(Signal::SIGINT);
            process.wait(START);
        }
    }

    /// `kill -9` of the server.
    pub fn kill(&mut self) {
        self.process = None;
    }

    /// Freezes or thaws the server's main process, which accepts connections.
    pub fn signal(&self, signal: Signal) {
        if let Some(process) = &self.process {
            process.signal(signal);
        }
    }

    /// The port on loopback.
    pub const fn port(&self) -> u16 {
        self.port
    }

    /// A URL of the administrator.
    pub fn url(&self) -> String {
        self.url_of(DATABASE)
    }

    fn url_of(&self, database: &str) -> String {
        self.login_url(ADMIN, ADMIN_PASSWORD, database)
    }

    /// A URL with placeholders, as an operator writes it.
    pub fn url_template(&self) -> String {
        format!(
            "postgresql://{{{{username}}}}:{{{{password}}}}@127.0.0.1:{}/{DATABASE}?sslmode=disable",
            self.port
        )
    }

    fn login_url(&self, user: &str, password: &str, database: &str) -> String {
        let (user, password) = (encode(user), encode(password));
        format!("postgresql://{user}:{password}@127.0.0.1:{}/{database}", self.port)
    }

    /// Whether a login works.
    pub async fn can_log_in(&self, user: &str, password: &str) -> bool {
        connect(&self.login_url(user, password, DATABASE)).await.is_ok()
    }

    /// A session of any user.
    pub async fn session(&self, user: &str, password: &str) -> tokio_postgres::Client {
        connect(&self.login_url(user, password, DATABASE)).await.unwrap()
    }

    /// A session of any user, if it may have one.
    pub async fn try_session(
        &self,
        user: &str,
        password: &str,
    ) -> Result<tokio_postgres::Client, tokio_postgres::Error> {
        connect(&self.login_url(user, password, DATABASE)).await
    }

    /// Runs statements as the administrator.
    pub async fn execute(&self, sql: &str) {
        self.execute_in(DATABASE, sql).await;
    }

    async fn execute_in(&self, database: &str, sql: &str) {
        connect(&self.url_of(database)).await.unwrap().batch_execute(sql).await.unwrap();
    }

    /// The first column of a query, as text.
    pub async fn query(&self, sql: &str) -> Vec<String> {
        let client = connect(&self.url()).await.unwrap();
        let rows = client.simple_query(sql).await.unwrap();
        rows.iter()
            .filter_map(|message| match message {
                tokio_postgres::SimpleQueryMessage::Row(row) => {
                    Some(row.get(0).unwrap_or_default().to_owned())
                }
                _ => None,
            })
            .collect()
    }

    /// The users whose names begin with `prefix`.
    pub async fn users(&self, prefix: &str) -> Vec<String> {
        self.query(&format!("SELECT rolname FROM pg_roles WHERE rolname LIKE '{prefix}%' ORDER BY 1")).await
    }
}

impl Drop for PostgresServer {
    fn drop(&mut self) {
        if let Some(mut process) = self.process.take() {
            // An immediate shutdown takes the server's children and its shared memory along.
            process.signal(Signal::SIGCONT);
            process.signal(Signal::SIGQUIT);
            for _ in 0..500 {
                if process.exited().is_some() {
                    break;
                }
                std::thread::sleep(Duration::from_millis(10));
            }
        }
    }
}

async fn connect(url: &str) -> Result<tokio_postgres::Client, tokio_postgres::Error> {
    let (client, connection) = tokio_postgres::connect(url, tokio_postgres::NoTls).await?;
    // The connection ends with its client, which the test holds.
    tokio_util::task::TaskTracker::new().spawn(connection);
    Ok(client)
}

fn postgres_program(name: &str) -> PathBuf {
    let mut versions: Vec<_> = fs::read_dir("/usr/lib/postgresql")
        .map(|dir| dir.flatten().map(|e| e.path().join("bin").join(name)).filter(|p| p.is_file()).collect())
        .unwrap_or_default();
    versions.sort();
    versions.pop().unwrap_or_else(|| name.into())
}

/// A private MariaDB.
pub struct MariaDbServer {
    dir: TempDir,
    _cleaner: Cleaner,
    port: u16,
    process: Option<Process>,
    settings: Vec<String>,
}

impl MariaDbServer {
    /// Makes a data directory and starts a server on it.
    pub async fn start() -> Self {
        let dir = owned_dir("mysql");
        // A server that starts removes what it takes for its own leftovers, also those of others in a shared place.
        let temporary = dir.path().join("tmp");
        fs::create_dir(&temporary).unwrap();
        give(&temporary, "mysql");
        let mut install = as_user("mysql", Path::new("mariadb-install-db"));
        install.env("TMPDIR", &temporary);
        install.args([
            "--no-defaults",
            "--skip-test-db",
            "--skip-name-resolve",
            "--auth-root-authentication-method=normal",
        ]);
        install.arg(format!("--datadir={}", dir.path().join("data").display()));
        run(&mut install);
        let init = dir.path().join("init.sql");
        let password = ADMIN_PASSWORD.replace('\'', "''");
        let sql = format!(
            "CREATE DATABASE IF NOT EXISTS {DATABASE};\n\
             CREATE USER IF NOT EXISTS '{ADMIN}'@'%' IDENTIFIED BY '{password}';\n\
             GRANT ALL PRIVILEGES ON *.* TO '{ADMIN}'@'%' WITH GRANT OPTION;\n"
        );
        fs::write(&init, sql).unwrap();
        give(&init, "mysql");
        let (settings, port) = (Vec::new(), free_port());
        let mut server = Self { _cleaner: Cleaner::new(dir.path()), dir, port, process: None, settings };
        server.resume().await;
        server
    }

    /// Starts the server again after [`Self::stop`] or [`Self::kill`], on the same port and data.
    pub async fn resume(&mut self) {
        let path = |name: &str| self.dir.path().join(name).display().to_string();
        let mut command = as_user("mysql", Path::new("mariadbd"));
        command.env("TMPDIR", path("tmp"));
        command.args([
            "--no-defaults",
            "--skip-networking=0",
            "--bind-address=127.0.0.1",
            "--skip-name-resolve",
        ]);
        command.args([
            "--innodb-flush-log-at-trx-commit=0",
            "--innodb-buffer-pool-size=32M",
            "--skip-log-bin",
        ]);
        command.args(["--max-connections=300", "--performance-schema=off"]);
        command.arg(format!("--datadir={}", path("data"))).arg(format!("--socket={}", path("socket")));
        command.arg(format!("--pid-file={}", path("pid"))).arg(format!("--init-file={}", path("init.sql")));
        command.arg(format!("--port={}", self.port));
        command.args(self.settings.iter().map(|setting| format!("--{setting}")));
        self.process = Some(spawn(command, self.dir.path().join("log")));
        eventually_async(START, "MariaDB answers", || async { self.login(ADMIN, ADMIN_PASSWORD).await.ok() })
            .await;
    }

    /// Writes a file that the server may read, such as a certificate, and returns its path.
    pub fn file(&self, name: &str, content: &str) -> PathBuf {
        let path = self.dir.path().join(name);
        fs::write(&path, content).unwrap();
        fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
        give(&path, "mysql");
        path
    }

    /// Adds options that hold from the next [`Self::resume`] on.
    pub fn configure(&mut self, settings: &[String]) {
        self.settings.extend_from_slice(settings);
    }

    /// Stops it in an orderly way.
    pub fn stop(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.signal(Signal::SIGTERM);
            process.wait(START);
        }
    }

    /// `kill -9` of the server.
    pub fn kill(&mut self) {
        self.process = None;
    }

    /// The port on loopback.
    pub const fn port(&self) -> u16 {
        self.port
    }

    /// A URL of the administrator, as Go programs write it.
    pub fn url(&self) -> String {
        format!("{ADMIN}:{ADMIN_PASSWORD}@tcp(127.0.0.1:{})/", self.port)
    }

    /// A URL with placeholders, as an operator writes it.
    pub fn url_template(&self) -> String {
        format!("{{{{username}}}}:{{{{password}}}}@tcp(127.0.0.1:{})/", self.port)
    }

    async fn login(&self, user: &str, password: &str) -> Result<mysql_async::Conn, mysql_async::Error> {
        let opts = mysql_async::OptsBuilder::default()
            .ip_or_hostname("127.0.0.1")
            .tcp_port(self.port)
            .prefer_socket(false)
            .user(Some(user))
            .pass(Some(password));
        mysql_async::Conn::new(opts).await
    }

    /// Whether a login works.
    pub async fn can_log_in(&self, user: &str, password: &str) -> bool {
        match self.login(user, password).await {
            Ok(conn) => {
                let _ = conn.disconnect().await;
                true
            }
            Err(_) => false,
        }
    }

    /// A session of any user.
    pub async fn session(&self, user: &str, password: &str) -> mysql_async::Conn {
        self.login(user, password).await.unwrap()
    }

    /// A session of any user, if it may have one.
    pub async fn try_session(
        &self,
        user: &str,
        password: &str,
    ) -> Result<mysql_async::Conn, mysql_async::Error> {
        self.login(user, password).await
    }

    /// Runs one statement as the administrator.
    pub async fn execute(&self, sql: &str) {
        let mut conn = self.session(ADMIN, ADMIN_PASSWORD).await;
        conn.query_drop(sql).await.unwrap();
        conn.disconnect().await.unwrap();
    }

    /// The first column of a query, as text.
    pub async fn query(&self, sql: &str) -> Vec<String> {
        let mut conn = self.session(ADMIN, ADMIN_PASSWORD).await;
        let found = conn.query(sql).await.unwrap();
        conn.disconnect().await.unwrap();
        found
    }

    /// The users, as `name@host`, whose names begin with `prefix`.
    pub async fn users(&self, prefix: &str) -> Vec<String> {
        let like =
            format!("SELECT CONCAT(User, '@', Host) FROM mysql.user WHERE User LIKE '{prefix}%' ORDER BY 1");
        self.query(&like).await
    }
}

impl Drop for MariaDbServer {
    fn drop(&mut self) {
        // Before its directory goes.
        self.process = None;
    }
}

/// Percent-encodes a part of a URL.
fn encode(text: &str) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-._~".contains(&b);
    text.bytes().map(|b| if plain(b) { char::from(b).to_string() } else { format!("%{b:02X}") }).collect()
}

/// A command that runs as `user` when we are root, and that the kernel kills when we die.
fn as_user(user: &str, program: &Path) -> Command {
    let mut command = Command::new("setpriv");
    command.arg("--pdeathsig=KILL");
    if Uid::effective().is_root() {
        command.arg(format!("--reuid={user}")).arg(format!("--regid={user}")).arg("--clear-groups");
    }
    command.arg("--").arg(program).current_dir("/");
    command
}

fn owned_dir(user: &str) -> TempDir {
    let dir = TempDir::with_prefix("holdfast-db-").unwrap();
    give(dir.path(), user);
    dir
}

fn give(path: &Path, user: &str) {
    if Uid::effective().is_root() {
        let user = User::from_name(user).unwrap().unwrap_or_else(|| panic!("no user {user} on this machine"));
        chown(path, Some(user.uid.as_raw()), Some(user.gid.as_raw())).unwrap();
    }
}

fn run(command: &mut Command) {
    let done =
        command.stdin(Stdio::null()).output().unwrap_or_else(|e| panic!("cannot start {command:?}: {e}"));
    assert!(done.status.success(), "{command:?}: {}", String::from_utf8_lossy(&done.stderr));
}

/// Removes what a server leaves when nobody drops it: a server in a static, or one whose test was killed.
///
/// A shell waits for the end of its input, which the kernel closes when this program is gone.
struct Cleaner(Child);

impl Cleaner {
    fn new(dir: &Path) -> Self {
        const SCRIPT: &str = r#"cat >/dev/null
            memory=$(awk 'NR == 7 { print $2 }' "$1/data/postmaster.pid" 2>/dev/null)
            [ -z "$memory" ] || ipcrm -m "$memory" 2>/dev/null
            for again in 1 2 3 4 5; do rm -rf "$1" 2>/dev/null && break; done"#;
        let mut command = Command::new("setsid");
        command.args(["sh", "-c", SCRIPT, "cleaner"]).arg(dir);
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        Self(command.spawn().unwrap())
    }
}

impl Drop for Cleaner {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

type Job = (Command, PathBuf, Sender<Process>);

/// Starts a process from a thread that lives as long as this program: "die with the parent" means the parent thread,
/// and a test's own thread ends before others have finished with a server that it started.
fn spawn(command: Command, log: PathBuf) -> Process {
    static SPAWNER: OnceLock<Mutex<Sender<Job>>> = OnceLock::new();
    let spawner = SPAWNER.get_or_init(|| {
        let (jobs, todo) = channel::<Job>();
        let body = move || {
            for (mut command, log, reply) in todo {
                let _ = reply.send(Process::start(&mut command, &log));
            }
        };
        std::thread::Builder::new().name("spawner".to_owned()).spawn(body).unwrap();
        Mutex::new(jobs)
    });
    let (reply, started) = channel();
    spawner.lock().unwrap().send((command, log, reply)).unwrap();
    started.recv().unwrap()
}
