//! The files that a configuration names: where they are, whether they can be read, and which of them are watched.

use std::path::{Path, PathBuf};

use super::key_file;
use super::report::Report;
use crate::config::{ConfigSettings, UpstreamSettings};

/// What becomes of a path.
#[derive(Clone, Copy, Eq, PartialEq)]
enum Use {
    /// Read at the start, which fails without it.
    Needed,
    /// Read when it is needed; until then its lack is only odd.
    Later,
    /// Read by somebody who reports for himself.
    Told,
    /// A secret key of 32 bytes.
    Key,
    /// A directory, a socket, or a file that is written.
    Place,
}

/// Makes every path that stands in a file relative to that file, checks that what is needed can be read, and gives the
/// files whose change is a reason to load again.
pub fn resolve(settings: &mut ConfigSettings, report: &mut Report<'_>) -> Vec<PathBuf> {
    let mut paths = Paths { report, watched: Vec::new() };
    for (index, listener) in settings.listener.iter_mut().enumerate() {
        let index = index.to_string();
        if let Some(tls) = &mut listener.tls {
            paths.one(&["listener", &index, "tls", "cert"], Some(&mut tls.cert), Use::Needed);
            paths.one(&["listener", &index, "tls", "key"], Some(&mut tls.key), Use::Needed);
            paths.one(&["listener", &index, "tls", "client_ca"], tls.client_ca.as_mut(), Use::Needed);
        }
        paths.one(&["listener", &index, "path"], listener.path.as_mut(), Use::Place);
    }
    if let Some(auth) = &mut settings.auth {
        let token = auth.token.as_mut().map(|token| &mut token.file);
        paths.one(&["auth", "token", "file"], token, Use::Told);
        let jwks = auth.jwt.as_mut().map(|jwt| &mut jwt.jwks_file);
        paths.one(&["auth", "jwt", "jwks_file"], jwks, Use::Told);
    }
    for (name, upstream) in &mut settings.upstream {
        paths.upstream(name, upstream);
    }
    paths.one(&["lkg", "dir"], settings.lkg.dir.as_mut(), Use::Place);
    paths.one(&["lkg", "key_file"], settings.lkg.key_file.as_mut(), Use::Key);
    paths.one(&["fleet", "key_file"], settings.fleet.key_file.as_mut(), Use::Key);
    paths.one(&["audit", "path"], settings.audit.path.as_mut(), Use::Place);
    let mut watched = paths.watched;
    watched.sort();
    watched.dedup();
    watched
}

struct Paths<'a, 'r> {
    report: &'a mut Report<'r>,
    watched: Vec<PathBuf>,
}

impl Paths<'_, '_> {
    fn upstream(&mut self, name: &str, upstream: &mut UpstreamSettings) {
        let mut of = |keys: &[&str], path: Option<&mut PathBuf>, kind| {
            let path_of_key: Vec<_> = ["upstream", name].into_iter().chain(keys.iter().copied()).collect();
            self.one(&path_of_key, path, kind);
        };
        of(&["ca_file"], upstream.ca_file.as_mut(), Use::Later);
        of(&["token_file"], upstream.token_file.as_mut(), Use::Later);
        if let Some(role) = &mut upstream.approle {
            of(&["approle", "secret_id_file"], Some(&mut role.secret_id_file), Use::Later);
        }
        if let Some(login) = &mut upstream.kubernetes {
            of(&["kubernetes", "jwt_file"], login.jwt_file.as_mut(), Use::Later);
        }
        if let Some(login) = &mut upstream.cert {
            of(&["cert", "cert"], Some(&mut login.cert), Use::Later);
            of(&["cert", "key"], Some(&mut login.key), Use::Later);
        }
        if let Some(tls) = &mut upstream.tls {
            of(&["tls", "ca"], tls.ca.as_mut(), Use::Later);
            of(&["tls", "cert"], tls.cert.as_mut(), Use::Later);
            of(&["tls", "key"], tls.key.as_mut(), Use::Later);
        }
        of(&["bearer_file"], upstream.bearer_file.as_mut(), Use::Later);
        of(&["basic_file"], upstream.basic_file.as_mut(), Use::Later);
        of(&["password_file"], upstream.password_file.as_mut(), Use::Later);
        of(&["dsn_file"], upstream.dsn_file.as_mut(), Use::Later);
        of(&["kubeconfig"], upstream.kubeconfig.as_mut(), Use::Later);
        of(&["socket"], upstream.socket.as_mut(), Use::Place);
        for (index, root) in upstream.roots.iter_mut().enumerate() {
            of(&["roots", &index.to_string()], Some(root), Use::Place);
        }
    }

    fn one(&mut self, key: &[&str], path: Option<&mut PathBuf>, kind: Use) {
        let Some(path) = path else { return };
        let tree = self.report.tree();
        // A path is judged and kept as a whole one, so that references can be compared with it.
        let resolved = tree.resolve(path, tree.place(key).as_ref());
        *path = std::path::absolute(&resolved).unwrap_or(resolved);
        match kind {
            Use::Place => return,
            Use::Told => {}
            Use::Needed | Use::Later => self.check(key, path, kind),
            Use::Key => {
                if let Err(error) = key_file::read(path) {
                    self.report.error(key, format!("{}: {}", key.join("."), chain(&error)));
                }
            }
        }
        self.watched.push(path.clone());
    }

    fn check(&mut self, key: &[&str], path: &Path, kind: Use) {
        let Err(error) = std::fs::File::open(path) else { return };
        let text = format!("{}: {} cannot be read ({error})", key.join("."), path.display());
        if kind == Use::Needed {
            self.report.error(key, text);
        } else {
            self.report.warning(key, text);
        }
    }
}

/// An error with its causes.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(&format!(": {cause}"));
        source = cause.source();
    }
    text
}
