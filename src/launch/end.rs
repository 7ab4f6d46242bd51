//! Ending everything that carries a server's marks, in order and in bounded time.

use std::io;
use std::str::FromStr;
use std::time::Duration;

use nix::sys::signal::Signal;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::marks::Marks;
use super::process::Stat;
use crate::render::StopRule;

/// How long workers have to follow a main process that is gone, if the rule is as patient.
const FOLLOW: Duration = Duration::from_secs(2);
/// How long everything has after SIGTERM, if the rule is as patient.
const TERM: Duration = Duration::from_secs(5);
/// How long the kernel has to take away what was killed.
const KILL: Duration = Duration::from_secs(10);
/// Between two looks.
const LOOK: Duration = Duration::from_millis(50);

/// The longest that [`end`] can take.
pub(crate) fn bound(rule: &StopRule) -> Duration {
    rule.patience + FOLLOW + TERM + KILL + Duration::from_secs(2)
}

/// A signal by its name, with or without `SIG`.
pub(crate) fn signal(name: &str) -> Option<Signal> {
    let upper = name.to_ascii_uppercase();
    Signal::from_str(&format!("SIG{}", upper.trim_start_matches("SIG"))).ok()
}

/// Ends everything that carries the marks: the engine's own signal to the main process and patience, SIGTERM to what is
/// left, SIGKILL to what is then left. `hurry` cuts the waiting short. Returns what could not be ended: a process that
/// hangs in the kernel, say.
pub(crate) async fn end(marks: &mut Marks, rule: &StopRule, hurry: &CancellationToken) -> io::Result<Vec<Stat>> {
    if let Some(main) = marks.main()
        && main.signal(signal(&rule.signal).unwrap_or(Signal::SIGTERM))?
    {
        let deadline = Instant::now() + rule.patience;
        while main.lives() && Instant::now() < deadline && !hurry.is_cancelled() {
            // Looking also remembers: children are known before their parent goes.
            marks.living()?;
            pause(hurry).await;
        }
        if !main.lives() {
            wait(marks, FOLLOW.min(rule.patience), hurry).await?;
        }
    }
    let living = marks.living()?;
    if !living.is_empty() && !hurry.is_cancelled() {
        send(&living, Signal::SIGTERM)?;
        wait(marks, TERM.min(rule.patience), hurry).await?;
    }
    kill(marks).await
}

/// Waits until nothing is left, at most so long.
async fn wait(marks: &mut Marks, limit: Duration, hurry: &CancellationToken) -> io::Result<()> {
    let deadline = Instant::now() + limit;
    while !marks.living()?.is_empty() && Instant::now() < deadline && !hurry.is_cancelled() {
        pause(hurry).await;
    }
    Ok(())
}

async fn pause(hurry: &CancellationToken) {
    tokio::select! {
        () = sleep(LOOK) => {}
        () = hurry.cancelled() => {}
    }
}

/// Freezes everything first, so that nothing can fork between the look and the kill and have its child, without a parent
/// and with another environment and session, go unseen.
async fn kill(marks: &mut Marks) -> io::Result<Vec<Stat>> {
    let deadline = Instant::now() + KILL;
    loop {
        let mut living = marks.living()?;
        if living.is_empty() {
            return Ok(living);
        }
        for _ in 0..10 {
            send(&living, Signal::SIGSTOP)?;
            let now = marks.living()?;
            let grew = now.iter().any(|stat| !living.iter().any(|known| known.process == stat.process));
            living = now;
            if !grew {
                break;
            }
        }
        send(&living, Signal::SIGKILL)?;
        sleep(LOOK).await;
        if Instant::now() >= deadline {
            return marks.living();
        }
    }
}

/// Kills everything that carries the marks, without a word before and without waiting for its end.
pub(crate) fn kill_now(marks: &mut Marks) -> io::Result<()> {
    for _ in 0..3 {
        let living = marks.living()?;
        send(&living, Signal::SIGSTOP)?;
        send(&living, Signal::SIGKILL)?;
    }
    Ok(())
}

/// A process that may not be signalled (it changed its user) is passed over, and counts as left in the end.
fn send(to: &[Stat], signal: Signal) -> io::Result<()> {
    for stat in to {
        match stat.process.signal(signal) {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {}
            sent => drop(sent?),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_go_by_their_usual_names() {
        assert_eq!(signal("TERM"), Some(Signal::SIGTERM));
        assert_eq!(signal("sigint"), Some(Signal::SIGINT));
        assert_eq!(signal("TREM"), None);
    }
}
