//! `exec:`: the output of a program.
//!
//! What must hold: no shell and no environment but the upstream's `env`; the program and everything that it started in its
//! process group are gone when an attempt has ended, whichever way; its error output goes to the log only.

use std::collections::BTreeMap;
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use holdfast_core::AnswerKind;
use holdfast_core::freshness::Outcome;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::process::Command;
use zeroize::Zeroizing;

use super::content::{self, MAX_OBJECT};
use crate::config::UpstreamSettings;
use crate::provider::{Fetched, Pace, Provider};
use crate::reference::ObjectKey;
use crate::value::Value;

/// The shortest time between two runs.
const POLL_FLOOR: Duration = Duration::from_secs(5);
/// How much of the error output is logged.
const MAX_COMPLAINT: usize = 2048;
/// How long output may still come from what outlives the program; it is killed then.
const LINGER: Duration = Duration::from_millis(200);

/// Why a command line cannot be used.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum BadCommand {
    /// A quote is not closed.
    #[error("a quote is not closed")]
    Unterminated,
    /// There is nothing.
    #[error("there is no program")]
    Empty,
}

/// Splits a command line on blanks. What stands in `'` or `"` is taken as it is and joins what touches it; there is no
/// other quoting, and a backslash is a backslash.
///
/// # Errors
/// When a quote is not closed, or there is no program.
pub fn split(text: &str) -> Result<Vec<String>, BadCommand> {
    let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None);
    for c in text.chars() {
        match quote {
            Some(open) if c == open => quote = None,
            Some(_) => word.get_or_insert_default().push(c),
            None if c == '\'' || c == '"' => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            None if c.is_ascii_whitespace() => words.extend(word.take()),
            None => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    match quote {
        Some(_) => Err(BadCommand::Unterminated),
        None if words.is_empty() => Err(BadCommand::Empty),
        None => Ok(words),
    }
}

/// Runs programs of its list.
#[derive(Debug)]
pub struct Exec {
    allow: Vec<String>,
    env: BTreeMap<String, String>,
}

impl Exec {
    /// From `[upstream.NAME]`.
    pub fn new(settings: &UpstreamSettings) -> Self {
        Self { allow: settings.allow.clone(), env: settings.env.clone() }
    }

    async fn run(&self, object: &ObjectKey) -> Outcome<Value> {
        let argv = split(&object.path).unwrap_or_default();
        let Some((program, args)) = argv.split_first() else { return content::failed(AnswerKind::Invalid) };
        // Checked at load already; asked again because it is what keeps a reference from running anything.
        if !program.starts_with('/') || !self.allow.contains(program) {
            return content::failed(AnswerKind::PermissionDenied);
        }
        let mut command = Command::new(program);
        command.args(args).env_clear().envs(&self.env).process_group(0).kill_on_drop(true);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let Ok(mut child) = command.spawn() else {
            tracing::info!(program, "the program cannot be started");
            return content::failed(AnswerKind::Unavailable);
        };
        // Dropped when the attempt is given up, too.
        let group = Group::of(child.id());
        let (Some(stdout), Some(stderr)) = (child.stdout.take(), child.stderr.take()) else {
            return content::failed(AnswerKind::Unavailable);
        };
        let ended = collect(&mut child, stdout, stderr).await;
        drop(group);
        judge(program, ended)
    }
}

#[async_trait]
impl Provider for Exec {
    async fn fetch(&self, object: &ObjectKey, _held: Option<&Value>) -> Fetched {
        self.run(object).await.into()
    }

    fn pace(&self) -> Pace {
        Pace { poll_floor: POLL_FLOOR, shared_fate: false, ..Pace::default() }
    }
}

/// The process group of a program; killed when dropped.
struct Group(Option<Pid>);

impl Group {
    fn of(id: Option<u32>) -> Self {
        Self(id.and_then(|id| i32::try_from(id).ok()).filter(|id| *id > 1).map(Pid::from_raw))
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(group) = self.0 {
            // There may be nobody left.
            let _ = killpg(group, Signal::SIGKILL);
        }
    }
}

struct Ended {
    status: Option<ExitStatus>,
    output: Zeroizing<Vec<u8>>,
    too_much: bool,
    complaint: Vec<u8>,
}

async fn collect(
    child: &mut tokio::process::Child,
    stdout: impl AsyncRead + Unpin,
    stderr: impl AsyncRead + Unpin,
) -> Ended {
    let (mut output, mut complaint, mut too_much) = (Zeroizing::default(), Vec::new(), false);
    let status = {
        let reading = async {
            too_much = read(stdout, &mut output, MAX_OBJECT).await;
        };
        let reading = async { tokio::join!(reading, read(stderr, &mut complaint, MAX_COMPLAINT)) };
        tokio::pin!(reading);
        let mut read_all = false;
        let status = loop {
            tokio::select! {
                status = child.wait() => break status.ok(),
                _ = &mut reading, if !read_all => read_all = true,
            }
        };
        if !read_all {
            // What is left in the pipes comes at once; what a grandchild holds open never ends.
            let _ = tokio::time::timeout(LINGER, reading).await;
        }
        status
    };
    Ended { status, output, too_much, complaint }
}

/// Reads to the end, keeps `most` bytes, and says whether there were more.
async fn read(mut from: impl AsyncRead + Unpin, into: &mut Vec<u8>, most: usize) -> bool {
    let mut chunk = Zeroizing::new(vec![0; 16 << 10]);
    let mut more = false;
    while let Ok(count @ 1..) = from.read(&mut chunk).await {
        let room = most.saturating_sub(into.len()).min(count);
        into.extend_from_slice(chunk.get(..room).unwrap_or_default());
        more |= room < count;
    }
    more
}

fn judge(program: &str, mut ended: Ended) -> Outcome<Value> {
    if !ended.complaint.is_empty() {
        let stderr = String::from_utf8_lossy(&ended.complaint);
        tracing::info!(program, %stderr, "the program wrote to its error output");
    }
    match ended.status {
        Some(status) if status.success() && ended.too_much => content::failed(AnswerKind::Invalid),
        Some(status) if status.success() => content::hashed(std::mem::take(&mut *ended.output), true),
        status => {
            let status: Arc<str> = status.map_or_else(|| "unknown".into(), |s| s.to_string().into());
            tracing::info!(program, %status, "the program failed");
            content::failed(AnswerKind::Unavailable)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::config::Scheme;

    fn object(command: &str) -> ObjectKey {
        ObjectKey {
            upstream: "exec".into(),
            scheme: Scheme::Exec,
            path: command.into(),
            options: BTreeMap::new(),
        }
    }

    fn exec() -> Exec {
        let allow = ["/bin/sh", "/bin/false", "/usr/bin/env"].map(str::to_owned).to_vec();
        let env = BTreeMap::from([("ONLY".to_owned(), "this".to_owned())]);
        Exec { allow, env }
    }

    async fn run(command: &str) -> Outcome<Value> {
        exec().fetch(&object(command), None).await.outcome
    }

    fn bytes(outcome: &Outcome<Value>) -> &[u8] {
        match outcome {
            Outcome::Value { value, .. } => value.bytes.expose(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn blanks_split_and_quotes_hold_together() {
        for (text, words) in [
            ("/bin/a", vec!["/bin/a"]),
            ("  /bin/a  b\tc ", vec!["/bin/a", "b", "c"]),
            ("a 'b c' \"d 'e\" f''g", vec!["a", "b c", "d 'e", "fg"]),
            ("a '' \"\"", vec!["a", "", ""]),
            (r"a \n 'x\'y", vec!["a", r"\n", r"x\y"]),
        ] {
            assert_eq!(split(text).unwrap(), words, "{text}");
        }
        assert_eq!(split("a 'b"), Err(BadCommand::Unterminated));
        assert_eq!(split("a \"b'"), Err(BadCommand::Unterminated));
        assert_eq!(split("  "), Err(BadCommand::Empty));
    }

    #[tokio::test]
    async fn the_output_is_the_value_and_the_environment_is_ours() {
        let outcome = run("/usr/bin/env").await;
        assert_eq!(bytes(&outcome), b"ONLY=this\n");
        assert!(
            matches!(&outcome, Outcome::Value { value, .. } if value.sensitive && value.version.is_some())
        );
        assert_eq!(bytes(&run("/bin/sh -c 'echo oops >&2'").await), b"", "no output is an empty value");
    }

    #[tokio::test]
    async fn failures_are_unavailable_and_strangers_denied() {
        for command in ["/bin/false", "/bin/sh -c 'exit 3'", "/bin/sh -c 'kill -9 $$'"] {
            assert_eq!(run(command).await, content::failed(AnswerKind::Unavailable), "{command}");
        }
        for command in ["/bin/echo a", "sh -c true", "/bin/../bin/sh"] {
            assert_eq!(run(command).await, content::failed(AnswerKind::PermissionDenied), "{command}");
        }
    }

    #[tokio::test]
    async fn too_much_output_is_invalid_and_does_not_block_the_program() {
        let outcome = run("/bin/sh -c 'head -c 20000000 /dev/zero'").await;
        assert_eq!(outcome, content::failed(AnswerKind::Invalid));
    }

    fn is_alive(pid: &str) -> bool {
        let stat = std::fs::read_to_string(Path::new("/proc").join(pid).join("stat"));
        stat.is_ok_and(|stat| !stat.contains(") Z "))
    }

    async fn gone(pid: &str) {
        let patience = std::time::Instant::now() + Duration::from_secs(10);
        while is_alive(pid) {
            assert!(std::time::Instant::now() < patience, "{pid} is still running");
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn a_grandchild_that_holds_the_output_is_killed_with_its_group() {
        let outcome = run("/bin/sh -c 'sleep 600 & echo $!'").await;
        let pid = std::str::from_utf8(bytes(&outcome)).unwrap().trim().to_owned();
        gone(&pid).await;
    }

    #[tokio::test]
    async fn an_attempt_that_is_given_up_leaves_nothing_running() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("pids");
        let command = format!("/bin/sh -c 'sleep 600 & echo $$ $! > {}; wait'", file.display());
        let provider = exec();
        let key = object(&command);
        let pids = {
            let attempt = provider.fetch(&key, None);
            let written = async {
                loop {
                    let text = std::fs::read_to_string(&file).unwrap_or_default();
                    if text.ends_with('\n') {
                        return text;
                    }
                    tokio::task::yield_now().await;
                }
            };
            tokio::select! {
                ended = attempt => panic!("{ended:?}"),
                pids = written => pids,
            }
        };
        for pid in pids.split_whitespace() {
            gone(pid).await;
        }
    }
}
