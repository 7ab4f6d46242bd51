//! `orch run --quick`: one step, about a minute, never a baseline.

use crate::profile::{Bench, Profile};

/// The id of the warning that marks such a run.
pub(super) const ID: &str = "quick";
/// And what it says.
pub(super) const TEXT: &str = "a quick look (`--quick`): one step of at most 45 s, which is never a baseline";
/// How long is measured at most.
const MEASURED: &str = "45s";

/// What makes a profile one of one short step: its first measurement, at its first load.
pub(super) fn sets(profile: &Profile) -> Vec<String> {
    let mut sets = vec!["repeat=null".to_owned(), "suspect=null".to_owned()];
    let mut benches = profile.bench.iter();
    if let Some((name, bench)) = benches.next() {
        sets.extend(of_first(bench).into_iter().map(|set| format!("bench.{name}.{set}")));
    }
    sets.extend(benches.map(|(name, _)| format!("bench.{name}=null")));
    // What is expected of a step that is not measured would be unmet.
    let others: Vec<&str> = profile.bench.keys().skip(1).map(String::as_str).collect();
    let of_others = |path: &&String| others.iter().any(|name| path.starts_with(&format!("{name}.")));
    sets.extend(profile.expect.keys().filter(of_others).map(|path| format!("expect={{\"{path}\": null}}")));
    sets
}

fn of_first(bench: &Bench) -> Vec<String> {
    let mut sets = Vec::new();
    // Stages last as long as they do: cut short they would be another load.
    if bench.stages.is_empty() && bench.duration.is_none_or(|duration| duration.as_secs() > 45) {
        sets.push(format!("duration={MEASURED}"));
    }
    if let [first, _, ..] = bench.concurrency.as_slice() {
        sets.push(format!("concurrency=[{first}]"));
    }
    if let [first, _, ..] = bench.rate.as_slice() {
        sets.push(format!("rate=[{first}]"));
    }
    if let Some(search) = &bench.search {
        sets.push("search=null".to_owned());
        sets.extend(search.concurrency.map(|ends| format!("concurrency={}", ends.from)));
        sets.extend(search.rate.map(|ends| format!("rate={}", ends.from)));
    }
    if bench.warmup.is_none() {
        let at_once = bench.concurrency.first().copied().unwrap_or(2).max(2);
        sets.push(format!("warmup={at_once}"));
    }
    sets
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_the_first_load_of_the_first_measurement() {
        let folders = crate::profile::default_folders();
        let request = |set: &[String]| {
            let env = |_: &str| None;
            let request = crate::profile::Request { profile: "smollm2", set, folders: &folders, env: &env };
            crate::profile::load(&request).unwrap().profile
        };
        let whole = request(&["bench.ladder.concurrency=[4, 8]".to_owned(), "repeat.starts=3".to_owned()]);
        assert!(whole.bench.len() > 1);
        let short = request(&sets(&whole));
        assert_eq!((short.bench.len(), short.repeat.starts, short.repeat.runs), (1, 1, 1));
        let (name, bench) = short.bench.first().unwrap();
        assert_eq!(Some(name), whole.bench.keys().next());
        assert_eq!((bench.concurrency.len(), bench.duration.map(|span| span.as_secs())), (1, Some(45)));
    }
}
