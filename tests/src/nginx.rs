//! nginx in front of config servers, as a balancer with its usual settings.

use std::path::PathBuf;
use std::process::Command;

use nix::sys::signal::Signal;
use tempfile::TempDir;

use crate::eventually;
use crate::hub::PATIENCE;
use crate::process::{Process, free_port};

/// A running nginx.
pub struct Nginx {
    /// Its port on 127.0.0.1.
    pub port: u16,
    dir: TempDir,
    process: Process,
}

impl Nginx {
    /// Starts one with these lines in its `http` block; `PORT` in them is its port.
    pub fn start(http: &str) -> Self {
        Self::with_workers("2", http)
    }

    /// The same with so many workers.
    pub fn with_workers(workers: &str, http: &str) -> Self {
        let (port, dir) = (free_port(), tempfile::tempdir().unwrap());
        let text = format!(
            "worker_processes {workers};\ndaemon off;\nuser root;\npid DIR/pid;\nerror_log DIR/error.log warn;\n\
             events {{ worker_connections 1024; }}\nhttp {{\naccess_log off;\nclient_body_temp_path DIR/body;\nproxy_temp_path DIR/proxy;\n\
             fastcgi_temp_path DIR/fastcgi;\nuwsgi_temp_path DIR/uwsgi;\nscgi_temp_path DIR/scgi;\n{http}\n}}\n"
        );
        let text = text.replace("DIR", &dir.path().display().to_string()).replace("PORT", &port.to_string());
        std::fs::write(dir.path().join("nginx.conf"), text).unwrap();
        let mut command = Command::new(binary());
        command.arg("-p").arg(dir.path()).arg("-c").arg(dir.path().join("nginx.conf"));
        let process = Process::start(&mut command, &dir.path().join("log"));
        let mut nginx = Self { port, dir, process };
        eventually(PATIENCE, "nginx listens", || {
            let ended = nginx.process.exited();
            assert!(ended.is_none(), "nginx ended: {}", nginx.log());
            std::net::TcpStream::connect(("127.0.0.1", port)).ok()
        });
        nginx
    }

    /// In front of these servers, with nginx's default proxy settings.
    pub fn balance(servers: &[u16]) -> Self {
        let servers: String = servers.iter().map(|port| format!("server 127.0.0.1:{port};\n")).collect();
        Self::start(&format!(
            "upstream replicas {{\n{servers}}}\nserver {{\nlisten 127.0.0.1:PORT;\nlocation / {{ proxy_pass http://replicas; }}\n}}"
        ))
    }

    /// Its URL.
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Its folder.
    pub fn dir(&self) -> PathBuf {
        self.dir.path().to_owned()
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    fn log(&self) -> String {
        self.process.log() + &std::fs::read_to_string(self.dir.path().join("error.log")).unwrap_or_default()
    }
}

impl Drop for Nginx {
    /// Asked to end, it takes its workers along; killed, it would leave them behind.
    fn drop(&mut self) {
        self.process.signal(Signal::SIGTERM);
        self.process.wait(PATIENCE);
    }
}

/// Debian keeps it where not everybody's path leads.
fn binary() -> PathBuf {
    let usual = PathBuf::from("/usr/sbin/nginx");
    if usual.is_file() { usual } else { PathBuf::from("nginx") }
}
