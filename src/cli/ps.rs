//! `orch ps`: what of ours runs on this host.

use comfy_table::{Table, presets};
use jiff::Timestamp;

use super::screen::{Screen, Stream};
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
    let width = Screen::new(Stream::Out).width();
    if !others.is_empty() {
        out::line(cut(&standing::table(&others), width));
    }
    if !shown.is_empty() {
        out::line(cut(&table(&shown, Timestamp::now()), width));
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
    table.set_header(["ID", "NAME", "STATE", "PORT", "PID", "AGE", "COMMAND"]);
    for server in listed {
        table.add_row([
            called(server, listed),
            name(&server.run).to_owned(),
            state(server).to_owned(),
            server.port.map_or_else(|| "-".to_owned(), |port| port.to_string()),
            server.pid.map_or_else(|| "-".to_owned(), |pid| pid.to_string()),
            server.since.map_or_else(|| "-".to_owned(), |since| age(since, now)),
            host::quote_all(&server.command),
        ]);
    }
    table
}

/// What a person types to mean this one: the run's short name where it means no other, else the whole id.
fn called(server: &Listed, listed: &[Listed]) -> String {
    let short = short_run(&server.run);
    let alone = listed.iter().filter(|other| short_run(&other.run) == short).count() == 1;
    short.filter(|_| alone).unwrap_or_else(|| server.id.clone())
}

/// `r0420` of a run's id.
pub(crate) fn short_run(run: &str) -> Option<String> {
    let (_, digits) = run.rsplit_once('-').filter(|(_, digits)| digits.len() == 4)?;
    Some(format!("r{digits}"))
}

/// What a run is of: its id without the time before it and the digits after it.
fn name(run: &str) -> &str {
    let rest = run.splitn(3, '-').nth(2).unwrap_or(run);
    rest.rsplit_once('-').map_or(rest, |(name, _)| name)
}

/// Each line cut where the screen ends: only the last column may be long.
fn cut(table: &Table, width: usize) -> String {
    let cut = |line: &str| {
        let line = line.trim_end();
        match line.char_indices().nth(width) {
            Some(_) => format!("{}...", line.chars().take(width.saturating_sub(3)).collect::<String>()),
            None => line.to_owned(),
        }
    };
    table.to_string().lines().map(cut).collect::<Vec<_>>().join("\n")
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

    fn server(run: &str, random: &str) -> Listed {
        Listed {
            id: format!("{run}.{random}"),
            run: run.to_owned(),
            pid: Some(12345),
            supervisor_pid: Some(12344),
            port: Some(30000),
            state: State::Running,
            rebooted: false,
            since: Some("2026-01-01T12:00:00Z".parse().unwrap()),
            command: vec!["vllm".to_owned(), "serve".to_owned(), "a".repeat(200)],
            leases: Vec::new(),
            processes: 3,
        }
    }

    #[test]
    fn a_table_fits_the_screen_and_names_each_by_what_can_be_typed() {
        let now = "2026-01-01T12:03:00Z".parse().unwrap();
        let long = "20260101-120000-qwen-mtp3-large-0420";
        let listed = [server(long, "0001"), server("20260101-120000-tiny-ab12", "0002")];
        let text = cut(&table(&listed, now), 80);
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        for told in ["r0420", "qwen-mtp3-large", "rab12", " tiny ", "running", "30000", "12345", "3m", "vllm serve aaa"]
        {
            assert!(text.contains(told), "{told}:\n{text}");
        }
        // Two of one run: the short name would mean both.
        let listed = [server(long, "0001"), server(long, "0002")];
        let text = cut(&table(&listed, now), 80);
        assert!(text.contains(&format!("{long}.0001")) && text.contains(&format!("{long}.0002")), "{text}");
        assert_eq!(cut(&table(&[], now), 3).chars().count(), 3, "however narrow");
    }
}
