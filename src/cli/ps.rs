//! `orch ps`: what of ours runs on this host.

use comfy_table::{Table, presets};
use jiff::Timestamp;

use super::{Exit, Failure, Global, Outcome, out, restore, standing};
use crate::host;
use crate::launch::{self, LaunchError, Listed, State, WorkFolder};

/// Lists the servers that orch started on this machine and that still run.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  orch ps\n  orch ps --json | jq '.[].id'")]
pub(crate) struct PsArgs {
    /// As a JSON array, empty when nothing of ours runs.
    #[arg(long)]
    json: bool,
    /// Also those that have ended and whose run was killed before it could take notice.
    #[arg(long)]
    all: bool,
}

pub(crate) fn run(args: PsArgs, _global: &Global) -> Outcome {
    let PsArgs { json, all } = args;
    let work = WorkFolder::find().map_err(|error| Failure::new(Exit::Own, error))?;
    restore::catch_up(&work, &std::env::current_exe().map_err(Failure::own)?)?;
    let listed = list().map_err(|error| Failure::new(Exit::Own, error))?;
    let others = standing::of(&work)?;
    let (lives, ended): (Vec<Listed>, Vec<Listed>) = listed.into_iter().partition(Listed::lives);
    let count = ended.len();
    let shown: Vec<Listed> = if all { lives.into_iter().chain(ended).collect() } else { lives };
    if json {
        let servers = shown.iter().map(serde_json::to_value).collect::<Result<Vec<_>, _>>().map_err(Failure::own)?;
        let all: Vec<_> = servers.into_iter().chain(others.iter().map(standing::Standing::json)).collect();
        out::line(serde_json::to_string_pretty(&all).map_err(Failure::own)?);
        return Ok(Exit::Done);
    }
    if !others.is_empty() {
        out::line(standing::table(&others));
    }
    if !shown.is_empty() {
        out::line(table(&shown, Timestamp::now()));
    } else if others.is_empty() {
        out::line("nothing of orch runs here");
    }
    if !all && count > 0 {
        let what = if count == 1 { "server has ended and its run" } else { "servers have ended and their runs" };
        out::note(format!("{count} {what} did not take notice: `orch ps --all` shows, `orch stop --all` clears"));
    }
    Ok(Exit::Done)
}

fn list() -> Result<Vec<Listed>, LaunchError> {
    launch::list(&WorkFolder::find()?)
}

fn table(listed: &[Listed], now: Timestamp) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(["ID", "STATE", "PORT", "PID", "AGE", "COMMAND"]);
    for server in listed {
        table.add_row([
            server.id.clone(),
            state(server).to_owned(),
            server.port.map_or_else(|| "-".to_owned(), |port| port.to_string()),
            server.pid.map_or_else(|| "-".to_owned(), |pid| pid.to_string()),
            server.since.map_or_else(|| "-".to_owned(), |since| age(since, now)),
            short(&host::quote_all(&server.command)),
        ]);
    }
    table
}

fn state(server: &Listed) -> &'static str {
    match server.state {
        State::Running => "running",
        State::Orphan => "orphan",
        State::Stopping => "stopping",
        State::Ended if server.rebooted => "ended (reboot)",
        State::Ended => "ended",
    }
}

/// `42s`, `3m`, `5h`, `2d`.
fn age(since: Timestamp, now: Timestamp) -> String {
    let seconds = now.duration_since(since).as_secs().max(0);
    match seconds {
        0..120 => format!("{seconds}s"),
        120..7200 => format!("{}m", seconds / 60),
        7200..172_800 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}

fn short(command: &str) -> String {
    const WIDTH: usize = 60;
    match command.char_indices().nth(WIDTH) {
        Some((end, _)) => format!("{}...", &command[..end]),
        None => command.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_are_told_in_their_largest_unit_that_says_enough() {
        let since: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let after = |seconds: i64| age(since, since + jiff::SignedDuration::from_secs(seconds));
        assert_eq!(
            [0, 119, 120, 7199, 7200, 172_799, 172_800].map(after),
            ["0s", "119s", "2m", "119m", "2h", "47h", "2d"]
        );
        assert_eq!(age(since, since - jiff::SignedDuration::from_secs(5)), "0s", "the clock was set back");
    }

    #[test]
    fn a_long_command_is_cut_between_characters() {
        assert_eq!(short("vllm serve"), "vllm serve");
        assert_eq!(short(&"ü".repeat(61)), format!("{}...", "ü".repeat(60)));
    }
}
