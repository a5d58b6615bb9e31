//! `holdfast demo failover`: the active node is killed while logins are asked for, and what follows is timed.

use std::cell::RefCell;
use std::os::unix::ffi::OsStrExt as _;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use futures_util::future::join_all;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::json;
use tokio::time::{Instant, sleep, timeout_at};

use super::probe::{self, Seen};
use super::report::{Before, Report};
use crate::dev::platform::{Card, NodeCard};
use crate::output::{Failure, Printer};

/// Logins are asked for this long before and after, so that it is seen what a rest is like.
const AROUND: Duration = Duration::from_secs(1);
/// How long it may take until everything works again.
const LIMIT: Duration = Duration::from_secs(60);

/// Shows it; exit code 0 when everything worked again, 2 when it did not within a minute.
pub async fn show(card: &Card, print: Printer) -> Result<ExitCode, Failure> {
    let (victim, before) = before(card).await?;
    let survivors: Vec<_> = card.nodes.iter().filter(|n| n.node != victim.node).cloned().collect();
    print.progress(before.text());
    let seen = RefCell::new(Seen::default());
    let all = probe::patient(card, &card.nodes)?;
    let others = probe::patient(card, &survivors)?;
    let conductor = async {
        let done = conduct(card, &victim, &before, &seen).await;
        seen.borrow_mut().over = true;
        done
    };
    let (done, (), (), _) = tokio::join!(
        conductor,
        probe::leader(card, &survivors, &seen),
        probe::spokes(&others, &seen),
        join_all(card.logins.iter().map(|login| probe::logins(&all, login, &seen))),
    );
    let seen = seen.into_inner();
    // Also when the rest failed: the logins were given.
    let unrevoked = revoke(&others, &seen).await;
    if unrevoked > 0 {
        print.note(format!(
            "WARNING: {unrevoked} of the logins could not be revoked; they end with their leases"
        ));
    }
    let recovered = done?;
    let report = Report::new(card, &before, &seen, recovered).context("the node was not killed")?;
    if print.json {
        print.value(&report.json())
    } else {
        print.line(report.text())
    }
    Ok(if recovered { ExitCode::SUCCESS } else { ExitCode::from(Failure::API) })
}

/// Who is active, who holds which spoke, and whether there is anything to show.
async fn before(card: &Card) -> Result<(NodeCard, Before), Failure> {
    if card.nodes.iter().filter(|node| node.pid.is_some()).count() < 3 {
        return Err(anyhow!("three running nodes are needed, so that two are left").into());
    }
    if card.logins.is_empty() {
        return Err(anyhow!("the platform has no database: start it with -postgres=URL").into());
    }
    let refused = |text: &str| Failure::from(anyhow!("{text}")).coded(Failure::API);
    let victim = probe::active(card, &card.nodes).await.ok_or_else(|| refused("no node is active"))?;
    let client = probe::patient(card, &card.nodes)?;
    // What listens there takes the card's token: it is that platform, and not something that came after it.
    let known = client.read("auth/token/lookup-self").await;
    known.map_err(|error| Failure::from(anyhow::Error::from(error)).coded(Failure::API))?;
    let wanted = card.logins.iter().filter(|login| login.spoke.is_some()).count();
    let deadline = Instant::now() + LIMIT;
    loop {
        // A platform that was used before may have a spoke that is on its way back.
        match probe::places(&client).await {
            Some(places) if places.len() >= wanted => return Ok((victim.clone(), Before { victim, places })),
            None if wanted == 0 => {
                return Ok((victim.clone(), Before { victim, places: Default::default() }));
            }
            _ if Instant::now() > deadline => return Err(refused("not every spoke is connected")),
            _ => sleep(Duration::from_millis(100)).await,
        }
    }
}

/// Kills the node and waits until everything works. Whether it did in time.
async fn conduct(card: &Card, victim: &NodeCard, before: &Before, seen: &RefCell<Seen>) -> Result<bool> {
    sleep(AROUND).await;
    let pid = process_of(victim).with_context(|| {
        format!("the card's process of {} is not that node: it is left alone", victim.node)
    })?;
    // Taken before the signal: what is asked for from here on may meet a dead node.
    seen.borrow_mut().killed = Some((victim.node.clone(), Instant::now()));
    kill(Pid::from_raw(pid), Signal::SIGKILL).with_context(|| format!("cannot kill {}", victim.node))?;
    let deadline = Instant::now() + LIMIT;
    let whole = |seen: &Seen| {
        seen.leader.is_some()
            && card.logins.iter().all(|login| seen.routable(&login.path).is_some())
            && before.places.keys().all(|name| seen.known.contains_key(name))
    };
    while !whole(&seen.borrow()) {
        if Instant::now() > deadline {
            return Ok(false);
        }
        sleep(Duration::from_millis(10)).await;
    }
    sleep(AROUND).await;
    Ok(true)
}

/// The process on the card, if it is the node: a card may be older than a process that got the same number.
fn process_of(node: &NodeCard) -> Option<i32> {
    let pid = node.pid.and_then(|pid| i32::try_from(pid).ok()).filter(|pid| *pid > 1)?;
    let line = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let config = node.config.as_os_str().as_bytes();
    line.split(|byte| *byte == 0).any(|arg| !arg.is_empty() && arg == config).then_some(pid)
}

/// Gives the logins back, within a minute; the number of those that could not be.
async fn revoke(client: &holdfast_client::Client, seen: &Seen) -> usize {
    let leases = seen.logins.iter().filter_map(|login| login.outcome.as_ref().ok());
    let deadline = Instant::now() + LIMIT;
    let mut left = 0;
    for lease in leases {
        let body = json!({"lease_id": lease, "sync": true});
        let revoked = timeout_at(deadline, client.write("sys/leases/revoke", &body)).await;
        left += usize::from(!matches!(revoked, Ok(Ok(_))));
    }
    left
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn only_a_process_that_was_started_as_the_node_is_taken_for_it() {
        let mut other =
            Command::new("cat").arg("-").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let card = |pid: Option<u32>, config: &str| NodeCard {
            node: "hub-0".to_owned(),
            api: String::new(),
            pid,
            config: config.into(),
        };
        let pid = Some(other.id());
        // Between fork and exec the command line is that of this process.
        let started = (0..500).any(|_| {
            std::thread::sleep(Duration::from_millis(10));
            process_of(&card(pid, "-")).is_some()
        });
        assert!(started);
        for (pid, config) in
            [(pid, "/data/hub-0/hub.toml"), (pid, ""), (Some(1), "-"), (Some(0), "-"), (None, "-")]
        {
            assert_eq!(process_of(&card(pid, config)), None, "{pid:?} {config}");
        }
        assert_eq!(process_of(&card(Some(u32::MAX), "-")), None);
        drop(other.stdin.take());
        other.wait().unwrap();
    }
}
