//! What a search found: a profile with the winner's settings, and why it is believed.

use std::fmt::Write;

use serde::Serialize;
use serde_json::{Map, Value};

use super::super::{Failure, out, run};
use super::question::Question;
use crate::report::number;
use crate::sweep::tune::Seen;
use crate::sweep::{Interval, SweepFolder, could_win, interval};

/// It, for machines.
#[derive(Debug, Serialize)]
pub(super) struct Told {
    search: String,
    profile: String,
    metric: String,
    /// Settings of the winner, by path.
    settings: indexmap::IndexMap<String, String>,
    value: Option<Interval>,
    /// What the profile itself came to.
    before: Option<Interval>,
    /// The change, as a share.
    change_ratio: Option<f64>,
    /// Whether noise alone could have made the change, with one chance in twenty or more.
    within_noise: bool,
    starts: usize,
    grid: usize,
    /// The file with the winner's settings.
    layer: String,
    evidence: Vec<String>,
    tried: Vec<Tried>,
}

/// A setting that was tried.
#[derive(Debug, Serialize)]
struct Tried {
    settings: indexmap::IndexMap<String, String>,
    values: Vec<f64>,
    /// `measured`, `out_of_memory`, or `nothing`: no measurement, or the conditions were not met.
    outcome: &'static str,
}

/// Writes the winner's profile and the evidence, and gives both.
pub(super) fn tell(
    question: &Question,
    folder: &SweepFolder,
    levels: &[usize],
    seen: &[Seen],
    evidence: &[String],
) -> Result<Told, Failure> {
    let values = |levels: &[usize]| -> Vec<f64> {
        seen.iter()
            .filter(|one| one.levels == levels && one.loads.is_empty())
            .filter_map(|one| one.outcome.value)
            .collect()
    };
    let (own, before) = (values(levels), values(&question.space.base));
    let metric = &question.goal.metric;
    let (value, was) = (interval(&own, metric), interval(&before, metric));
    let settings = question.settings(levels);
    folder.write("winner.yaml", &layer(question, folder, &settings)?)?;
    let path = folder.file("winner.yaml").display().to_string();
    if let Err(failure) = run::load(&path, &[]) {
        out::note(format_args!("note: {path} does not load where this is: {}", failure.report));
    }
    let told = Told {
        search: folder.id().to_owned(),
        profile: question.name.clone(),
        metric: metric.clone(),
        change_ratio: value.zip(was).map(|(now, was)| now.mean / was.mean - 1.0),
        within_noise: levels == question.space.base || could_win(&own, &before, metric, question.goal.maximize),
        settings,
        value,
        before: was,
        starts: seen.len(),
        grid: question.space.grid(),
        layer: path,
        evidence: evidence.to_vec(),
        tried: tried(question, seen),
    };
    folder.write("evidence.json", &serde_json::to_string_pretty(&told).map_err(Failure::own)?)?;
    Ok(told)
}

fn tried(question: &Question, seen: &[Seen]) -> Vec<Tried> {
    let mut order: Vec<&Vec<usize>> = Vec::new();
    for one in seen {
        if !order.contains(&&one.levels) {
            order.push(&one.levels);
        }
    }
    let of = |levels: &Vec<usize>| {
        let own: Vec<&Seen> = seen.iter().filter(|one| one.levels == *levels && one.loads.is_empty()).collect();
        let values: Vec<f64> = own.iter().filter_map(|one| one.outcome.value).collect();
        let outcome = match (values.is_empty(), own.iter().any(|one| one.outcome.oom)) {
            (false, _) => "measured",
            (true, true) => "out_of_memory",
            (true, false) => "nothing",
        };
        Tried { settings: question.settings(levels), values, outcome }
    };
    order.into_iter().map(of).collect()
}

/// A profile over the one that was tuned.
fn layer(
    question: &Question,
    folder: &SweepFolder,
    settings: &indexmap::IndexMap<String, String>,
) -> Result<String, Failure> {
    let mut map = Map::new();
    map.insert("extends".to_owned(), question.profile.clone().into());
    map.insert("name".to_owned(), format!("{}-tuned", question.name).into());
    for set in &question.set {
        if let Some((path, value)) = set.split_once('=') {
            put(&mut map, path, value);
        }
    }
    for (path, value) in settings {
        put(&mut map, path, value);
    }
    let yaml = serde_yaml::to_string(&Value::Object(map)).map_err(Failure::own)?;
    Ok(format!(
        "# Found by `orch tune`, search {}; the evidence is in evidence.json beside this file.\n{yaml}",
        folder.id()
    ))
}

/// Puts a value in its place among maps. Names of flags and variables may have dots of their own.
fn put(map: &mut Map<String, Value>, path: &str, value: &str) {
    // What is written is YAML; as JSON it means the same.
    let value = serde_yaml::from_str::<Value>(value).unwrap_or_else(|_| value.into());
    let mut keys: Vec<&str> = match path.split_once('.') {
        Some((head @ ("flags" | "env"), rest)) => vec![head, rest],
        _ => path.split('.').collect(),
    };
    let Some(last) = keys.pop() else { return };
    let mut inner = map;
    for key in keys {
        let entry = inner.entry(key.to_owned()).or_insert_with(|| Value::Object(Map::new()));
        if !entry.is_object() {
            *entry = Value::Object(Map::new());
        }
        match entry {
            Value::Object(next) => inner = next,
            _ => return,
        }
    }
    inner.insert(last.to_owned(), value);
}

/// For a person.
pub(super) fn text(told: &Told) -> String {
    let range = |value: &Option<Interval>| match value {
        Some(Interval { mean, low: Some(low), high: Some(high), starts }) => {
            format!(
                "{} ({} to {}, {starts} starts)",
                number::amount(*mean),
                number::amount(*low),
                number::amount(*high)
            )
        }
        Some(value) => format!("{}, of one start", number::amount(value.mean)),
        None => "no measurement".to_owned(),
    };
    let mut text =
        format!("\nbest of {} after {} starts (all combinations: {})\n", told.profile, told.starts, told.grid);
    for (path, value) in &told.settings {
        let _ = writeln!(text, "  {path}: {value}");
    }
    let _ = writeln!(text, "{}: {}", told.metric, range(&told.value));
    let _ = writeln!(text, "the profile as it was: {}", range(&told.before));
    if let Some(change) = told.change_ratio {
        let sure = if told.within_noise { "; noise alone could do that" } else { "" };
        let _ = writeln!(text, "change: {}{sure}", number::change(Some(change)));
    }
    for line in &told.evidence {
        let _ = writeln!(text, "  {line}");
    }
    let _ = writeln!(text, "profile: {}", told.layer);
    text
}
