//! `-H HOST`: which verbs mean something on another host, and how each of them is done there.
//!
//! Most just happen there: the same words, run by the orch that was placed there, with what it prints and its exit code
//! passed through. A run has a viewer here.

use bytes::Bytes;
use clap::CommandFactory;

use super::far::{self, There};
use super::{Cli, Exit, Failure, Global, Outcome, Verb, out};
use crate::host::{Host, runtime};

/// How a verb is done on another host.
enum Way {
    /// It sees to that itself.
    Own,
    /// The same words there.
    There,
    /// It is refused, and this says what to do.
    Not(&'static str),
}

fn way(verb: &Verb) -> Way {
    match verb {
        Verb::Run(_) | Verb::Attach(_) | Verb::Pull(_) | Verb::Doctor(_) => Way::Own,
        Verb::Logs(args) if args.follows() => Way::Own,
        Verb::Ps(_) | Verb::Logs(_) | Verb::Stop(_) | Verb::List(_) | Verb::Show(_) | Verb::Diagnose(_) => Way::There,
        Verb::Compare(_) | Verb::History(_) | Verb::Down(_) | Verb::Restore(_) => Way::There,
        Verb::Watch(args) if args.ends() => Way::There,
        Verb::Watch(_) => {
            Way::Not("`--once` or `--json` says what there is now; `orch attach RUN -H HOST` follows a run")
        }
        Verb::Report(_) | Verb::Export(_) | Verb::Bundle(_) | Verb::ImportResults(_) | Verb::Index(_) => {
            Way::Not("`orch pull -H HOST` brings the records here, and then it works on them")
        }
        Verb::Baseline(_) => Way::Not("baselines are kept here, and a run on another host is judged by them"),
        Verb::Sweep(_) | Verb::Tune(_) | Verb::Ab(_) | Verb::Ablate(_) | Verb::Bisect(_) => {
            Way::Not("`orch run -H HOST` measures one profile there; several are not yet driven from here")
        }
        Verb::Bench(_) | Verb::Up(_) | Verb::Fetch(_) | Verb::Drift(_) | Verb::Selftest(_) => {
            Way::Not("run orch on that host itself: `orch ps -H HOST` has put it there, into bin/ of its work folder")
        }
        Verb::Check(_) | Verb::Render(_) | Verb::Import(_) | Verb::Schema(_) | Verb::Completions(_) | Verb::Sim(_) => {
            Way::Not("it looks at no host: leave `-H` out")
        }
        Verb::Supervise(_) | Verb::Beside(_) => Way::Not("it is not for people"),
    }
}

/// Does a verb on another host; `None` where that is the verb's own affair, or this machine is meant.
pub(crate) fn run(cli: &Cli, verb: &str) -> Option<Outcome> {
    let name = far::asked(&cli.global)?;
    match way(&cli.verb) {
        Way::Own => None,
        Way::There => Some(typed(verb).and_then(|words| pass(name, &words, &cli.global))),
        Way::Not(help) => {
            let report = miette::miette!(help = help, "`orch {verb}` is not done on another host");
            Some(Err(Failure::new(Exit::Usage, report)))
        }
    }
}

/// Runs orch with these words there, and passes through what it prints and how it ends.
pub(crate) fn pass(name: &str, words: &[String], global: &Global) -> Outcome {
    let there = There::of(name, global)?;
    let runtime = runtime::on_this_thread().map_err(Failure::start)?;
    runtime.block_on(async {
        let host = there.open().await?;
        pass_on(&there, &host, words).await
    })
}

/// The same over a connection that is there.
pub(crate) async fn pass_on<H: Host>(there: &There, host: &H, words: &[String]) -> Outcome {
    let name = there.far.name();
    let said = there.far.orch(host, words, Bytes::new()).await.map_err(far::failure)?;
    out::bytes(&said.stdout);
    out::raw(&said.stderr);
    match said.code.and_then(Exit::of_code) {
        Some(exit) => Ok(exit),
        None => {
            let how = said.code.map_or_else(|| "a signal ended it".to_owned(), |code| format!("it ended with {code}"));
            Err(Failure::new(Exit::Own, miette::miette!("orch on {name} did not end by itself: {how}")))
        }
    }
}

/// What was typed, without what only says where and from where.
fn typed(verb: &str) -> Result<Vec<String>, Failure> {
    let mut words = Vec::new();
    for word in std::env::args_os().skip(1) {
        let wrong = |word| Failure::new(Exit::Usage, miette::miette!("{word:?} is not UTF-8, and cannot be passed on"));
        words.push(word.into_string().map_err(wrong)?);
    }
    Ok(without_place(&words, verb))
}

/// Options that say where, each with a value.
const PLACE: [&str; 4] = ["--hosts", "--ssh-config", "--runner", "--results"];

fn without_place(words: &[String], verb: &str) -> Vec<String> {
    // A verb may have a `--host` of its own, which goes along with what else it has.
    let own_host = super::Cli::command().find_subcommand(verb).is_some_and(super::has_own_host);
    let (mut kept, mut words) = (Vec::new(), words.iter());
    let mut before_verb = true;
    while let Some(word) = words.next() {
        if word == "--" {
            kept.push(word.clone());
            kept.extend(words.cloned());
            return kept;
        }
        before_verb &= word != verb;
        let is_host = word == "-H" || (word == "--host" && (before_verb || !own_host));
        if is_host || PLACE.contains(&word.as_str()) {
            words.next();
            continue;
        }
        let (name, valued) = word.split_once('=').map_or((word.as_str(), false), |(name, _)| (name, true));
        if valued && (PLACE.contains(&name) || (name == "--host" && (before_verb || !own_host))) {
            continue;
        }
        // `-Hfar`, and `-vH far` or `-vHfar`.
        if let Some(letters) = word.strip_prefix('-').filter(|letters| !letters.starts_with('-'))
            && let Some((flags, value)) = letters.split_once('H')
            && flags.chars().all(|flag| flag.is_ascii_lowercase())
        {
            if !flags.is_empty() {
                kept.push(format!("-{flags}"));
            }
            if value.is_empty() {
                words.next();
            }
            continue;
        }
        kept.push(word.clone());
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(line: &str, verb: &str) -> String {
        let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        without_place(&words, verb).join(" ")
    }

    #[test]
    fn what_says_where_is_left_out_and_all_else_goes_along() {
        for (typed, expected) in [
            ("-H far ps --json", "ps --json"),
            ("ps --host far --json", "ps --json"),
            ("ps --host=far --json", "ps --json"),
            ("--hosts f.yaml ps -Hfar --ssh-config=c", "ps"),
            ("ps -vH far --all", "ps -v --all"),
            ("--results here ps --runner orch -H far", "ps"),
            ("stop r0420 -H far -- -H", "stop r0420 -- -H"),
        ] {
            assert_eq!(kept(typed, typed.split(' ').find(|word| ["ps", "stop"].contains(word)).unwrap()), expected);
        }
        assert_eq!(kept("--host far list --host ct129 --limit 5", "list"), "list --host ct129 --limit 5");
        assert_eq!(kept("list -H far --host=ct129", "list"), "list --host=ct129");
    }
}
