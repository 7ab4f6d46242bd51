//! What a search is about: the profile, the settings with their values, the goal, and how much it may cost.

use indexmap::IndexMap;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::super::trial::ALONE;
use super::super::{Exit, Failure, Global, planned, run};
use crate::profile::{AxisValues, Goal, goal_of_words};
use crate::sweep::SweepFolder;
use crate::sweep::tune::{Axis, Space};

/// It, as it is kept in `tune.json`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Question {
    /// The profile as it was asked for, and where it is found from elsewhere.
    pub(super) profile: String,
    /// Its name.
    pub(super) name: String,
    /// What was set below the axes.
    pub(super) set: Vec<String>,
    /// The resolved profile as YAML.
    pub(super) base: String,
    pub(super) goal: Goal,
    pub(super) space: Space,
    /// The measurement whose load the conditions limit: the first that has a concurrency. Empty without one.
    #[serde(default)]
    pub(super) ladder: String,
    /// The profile's other measurements.
    #[serde(default)]
    pub(super) others: Vec<String>,
    /// At most so many starts.
    pub(super) starts: usize,
    /// At most so long, in seconds.
    pub(super) budget_s: Option<f64>,
}

/// Below this a search has no room to be one.
const FEWEST: usize = 8;

impl Question {
    pub(super) fn ask(
        profile: &str,
        set: &[String],
        goal: &str,
        conditions: &[String],
        axes: &[String],
    ) -> Result<Self, Failure> {
        let usage = |why: String| Failure::new(Exit::Usage, miette::miette!("{why}"));
        let goal = goal_of_words(goal, conditions).map_err(usage)?;
        let alone: Vec<String> = set.iter().cloned().chain(ALONE.map(str::to_owned)).collect();
        let loaded = run::load(profile, &alone)?;
        planned::run_check(&loaded, &planned::definition(&loaded.profile)?)?;
        if loaded.profile.bench.is_empty() {
            return Err(usage("the profile says nothing of what is measured: it has no `bench`".to_owned()));
        }
        let resolved = serde_json::to_value(&loaded.profile).map_err(Failure::own)?;
        let given: Vec<AxisValues> = match axes {
            [] => usual(&resolved),
            axes => axes.iter().map(|axis| read(axis)).collect::<Result<_, _>>().map_err(usage)?,
        };
        if given.is_empty() {
            let help = "`--axis max_running_requests=16,32,64`";
            let report =
                miette::miette!(help = help, "the profile sets nothing that is usually tuned: name the settings");
            return Err(Failure::new(Exit::Usage, report));
        }
        let (mut all, mut base) = (Vec::new(), Vec::new());
        for given in &given {
            let (axis, level) = Axis::new(given, current(&resolved, &given.path).as_deref());
            for value in &axis.values {
                // A value that no profile can have is told before anything is started.
                let sets: Vec<String> = alone.iter().cloned().chain([format!("{}={value}", axis.path)]).collect();
                run::load(profile, &sets)?;
            }
            all.push(axis);
            base.push(level);
        }
        let bench = &loaded.profile.bench;
        let ladder = bench.iter().find(|(_, bench)| !bench.concurrency.is_empty()).map(|(name, _)| name.clone());
        let ladder = ladder.filter(|_| !goal.conditions.is_empty()).unwrap_or_default();
        let others = bench.keys().filter(|name| **name != ladder).cloned().collect();
        let metric = goal.metric.clone();
        let space = Space { axes: all, base, maximize: goal.maximize, metric, ladder: !ladder.is_empty() };
        let starts = (space.grid() / 3).max(FEWEST).min(space.grid());
        // The layer that is written in the end extends it from another folder.
        let path = std::path::Path::new(profile);
        let found = if path.is_file() { path.canonicalize().ok() } else { None };
        Ok(Question {
            profile: found.map_or_else(|| profile.to_owned(), |path| path.display().to_string()),
            name: loaded.profile.name.clone(),
            set: set.to_vec(),
            base: loaded.yaml,
            goal,
            space,
            ladder,
            others,
            starts,
            budget_s: None,
        })
    }

    /// Reads that of a search which was begun.
    pub(super) fn read(folder: &SweepFolder) -> Result<Self, Failure> {
        serde_json::from_str(&folder.read("tune.json")?).map_err(Failure::own)
    }

    /// Writes it down.
    pub(super) fn write(&self, folder: &SweepFolder) -> Result<(), Failure> {
        folder.write("base.yaml", &self.base)?;
        // Last: a folder without it is no search yet.
        Ok(folder.write("tune.json", &serde_json::to_string_pretty(self).map_err(Failure::own)?)?)
    }

    /// Makes the folder of a search.
    pub(super) fn begin(&self, global: &Global, at: Timestamp) -> Result<SweepFolder, Failure> {
        let name = format!("tune-{}", self.name);
        Ok(SweepFolder::create(&global.results, &name, at)?)
    }

    /// What will be searched.
    pub(super) fn words(&self) -> Vec<String> {
        let way = if self.goal.maximize { "most" } else { "least" };
        let mut lines = vec![format!(
            "{}: {way} {}, at most {} starts; all combinations would be {}",
            self.name,
            self.goal.metric,
            self.starts,
            self.space.grid()
        )];
        for (metric, condition) in &self.goal.conditions {
            lines.push(format!("  with {metric} {condition}"));
        }
        for (axis, level) in self.space.axes.iter().zip(&self.space.base) {
            lines.push(format!("  {} from {}: {}", axis.path, axis.values[*level], axis.values.join(", ")));
        }
        lines
    }

    /// The settings at these levels.
    pub(super) fn settings(&self, levels: &[usize]) -> IndexMap<String, String> {
        let pairs = self.space.axes.iter().zip(levels);
        pairs.map(|(axis, level)| (axis.path.clone(), axis.values[*level].clone())).collect()
    }

    /// The same with other loads, and no other measurement.
    pub(super) fn loaded(&self, levels: &[usize], loads: &[u32]) -> IndexMap<String, String> {
        let mut settings = self.settings(levels);
        if !loads.is_empty() {
            settings.extend(self.others.iter().map(|name| (format!("bench.{name}"), "null".to_owned())));
            let loads: Vec<String> = loads.iter().map(u32::to_string).collect();
            settings.insert(self.ladder_path(), format!("[{}]", loads.join(", ")));
        }
        settings
    }

    fn ladder_path(&self) -> String {
        format!("bench.{}.concurrency", self.ladder)
    }

    /// The loads that these settings have of their own.
    pub(super) fn loads(&self, settings: &IndexMap<String, String>) -> Vec<u32> {
        settings.get(&self.ladder_path()).and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default()
    }

    /// The levels of these settings.
    pub(super) fn levels(&self, settings: &IndexMap<String, String>) -> Option<Vec<usize>> {
        let level = |axis: &Axis| axis.values.iter().position(|value| Some(value) == settings.get(&axis.path));
        self.space.axes.iter().map(level).collect()
    }
}

/// `PATH=V,V,…`; commas inside brackets are the value's own.
fn read(text: &str) -> Result<AxisValues, String> {
    let wrong = || format!("`--axis {text}`: write `PATH=VALUE,VALUE`, such as `max_running_requests=16,32`");
    let (path, rest) = text.split_once('=').ok_or_else(wrong)?;
    let (mut values, mut depth) = (vec![String::new()], 0_i32);
    for letter in rest.chars() {
        depth += match letter {
            '[' | '{' => 1,
            ']' | '}' => -1,
            _ => 0,
        };
        match values.last_mut() {
            Some(last) if letter != ',' || depth > 0 => last.push(letter),
            _ => values.push(String::new()),
        }
    }
    let values: Vec<String> = values.into_iter().map(|value| value.trim().to_owned()).collect();
    let fine = !path.is_empty() && values.iter().all(|value| !value.is_empty());
    if fine { Ok(AxisValues { path: path.to_owned(), values }) } else { Err(wrong()) }
}

/// What is usually tuned, of the settings that the profile has.
fn usual(resolved: &Value) -> Vec<AxisValues> {
    let mut axes = Vec::new();
    let mut add = |path: &str, values: Vec<String>| axes.push(AxisValues { path: path.to_owned(), values });
    if let Some(fraction) = resolved.pointer("/memory/fraction").and_then(Value::as_f64) {
        let steps = (-2..=4).map(|step| fraction + 0.02 * f64::from(step));
        add("memory.fraction", steps.filter(|value| *value > 0.1 && *value < 0.985).map(decimals).collect());
    }
    if let Some(cap) = resolved.get("max_running_requests").and_then(Value::as_u64) {
        let caps = [cap / 2, cap, cap * 2, cap * 4];
        add("max_running_requests", caps.iter().filter(|cap| **cap > 0).map(u64::to_string).collect());
    }
    if let Some(steps) = resolved.pointer("/speculative/steps").and_then(Value::as_u64) {
        add("speculative.steps", (0..=(steps + 2).max(4)).map(|steps| steps.to_string()).collect());
    }
    axes
}

fn decimals(value: f64) -> String {
    let text = format!("{value:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// What the profile has at a path, as it would stand after the `=` of a `--set`.
fn current(resolved: &Value, path: &str) -> Option<String> {
    let (head, rest) = path.split_once('.').unwrap_or((path, ""));
    let mut value = resolved.get(head)?;
    if matches!(head, "flags" | "env") {
        value = value.get(rest)?;
    } else {
        for key in rest.split('.').filter(|key| !key.is_empty()) {
            value = value.get(key)?;
        }
    }
    Some(value.as_str().map_or_else(|| value.to_string(), str::to_owned))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_axis_is_read_with_lists_as_values() {
        let axis = read("graphs.batches=[1, 2],[4]").unwrap();
        assert_eq!(axis.values, ["[1, 2]", "[4]"]);
        assert!(read("a").is_err() && read("a=").is_err() && read("=1").is_err());
    }

    #[test]
    fn what_a_profile_sets_is_what_is_usually_tuned() {
        let profile = json!({"memory": {"fraction": 0.88}, "max_running_requests": 16, "speculative": {"steps": 3}, "flags": {"a.b": "x"}});
        let axes = usual(&profile);
        assert_eq!(axes[0].values, ["0.84", "0.86", "0.88", "0.9", "0.92", "0.94", "0.96"]);
        assert_eq!((axes[1].values.join(","), axes[2].values.len()), ("8,16,32,64".to_owned(), 6));
        assert_eq!(current(&profile, "flags.a.b").as_deref(), Some("x"));
        assert_eq!(current(&profile, "speculative.topk"), None);
    }
}
