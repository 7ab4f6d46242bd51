//! A sweep's file: settings that are tried in all combinations over a profile. Here it is read, with all faults at once;
//! what becomes of it is known to `sweep`.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value as Json;

use super::check;
use super::expand::{self, Names};
use super::fault::{Fault, ProfileError};
use super::fields::SWEEP;
use super::find::{self, Found};
use super::metrics;
use super::nearest::nearest;
use super::places::{self, Misplaced};
use super::read;
use super::source::Sources;
use super::tree::{Node, Value};
use crate::units;

/// More values than this on one axis are a slip.
const MAX_VALUES: usize = 1000;

/// A sweep's file, as it was written.
#[derive(Clone, Debug)]
pub struct SweepFile {
    /// The file's own name, without its ending.
    pub name: String,
    /// Its text.
    pub text: String,
    /// The profile that everything is laid over: a name, or a path from the current folder.
    pub base: String,
    /// The axes, in the order in which they stand there.
    pub axes: Vec<AxisValues>,
    /// Axes that move together, by their paths.
    pub linked: Vec<Vec<String>>,
    /// What is measured on each start, as the value of a `--set`; `None` is what the profile says.
    pub load: Option<String>,
    /// Combinations that are left out: paths with values as in [`AxisValues::values`].
    pub skip: Vec<Vec<(String, String)>>,
    /// Whether a start that ran out of memory takes those with a higher fraction with it.
    pub skip_higher_fraction: bool,
    /// What is started again in the end.
    pub confirm: Option<Confirm>,
    /// What is best.
    pub goal: Goal,
    /// How long it may take.
    pub budget: Option<Duration>,
    asked: String,
    sources: Sources,
    root: Node,
}

/// An axis as it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AxisValues {
    /// The setting's path, as in `--set`.
    pub path: String,
    /// Its values as they stand after the `=` of a `--set`.
    pub values: Vec<String>,
}

/// What is started again in the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Confirm {
    /// Of so many of the best, those that could still be the best.
    pub top: u32,
    /// So many more starts of each.
    pub starts: u32,
}

/// What is best.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Goal {
    /// A metric, with `.p99` and the like for distributions.
    pub metric: String,
    /// Whether more of it is better.
    pub maximize: bool,
    /// What must hold, by metric: `< 500`.
    pub conditions: Vec<(String, String)>,
}

impl Default for Goal {
    fn default() -> Self {
        Goal { metric: "output_tokens_per_s".to_owned(), maximize: true, conditions: Vec::new() }
    }
}

/// Reads a sweep by name, from `sweeps/` of the profile folders or the program, or by the path of its file.
pub fn sweep_file(
    asked: &str,
    folders: &[PathBuf],
    env: &dyn Fn(&str) -> Option<String>,
) -> Result<SweepFile, ProfileError> {
    let mut sources = Sources::default();
    let mut faults = Vec::new();
    let found = find::sweep(asked, folders).and_then(|found| found.read().map(|text| (found, text)));
    let (found, text) = match found {
        Ok(found) => found,
        Err(fault) => return Err(ProfileError::of_sweep(asked, &sources, vec![fault])),
    };
    let source = sources.add(found.name(), &text, found.folder());
    let root = read::yaml(&sources, source, &text, 0, &mut faults);
    let read = root.and_then(|root| {
        let reader = Reader { asked, found: &found, faults: &mut faults };
        reader.file(root, &text, env)
    });
    match read {
        Some(file) if faults.is_empty() => Ok(SweepFile { sources, ..file }),
        _ => Err(ProfileError::of_sweep(asked, &sources, faults)),
    }
}

/// Reads a goal as it is given on a command line: `output_tokens_per_s`, or `minimize:ttft_ms.p50`.
pub fn goal_of_words(text: &str, conditions: &[String]) -> Result<Goal, String> {
    let (word, metric) = text.split_once(':').unwrap_or(("", text));
    let known = known_metric(metric)?;
    let maximize = match word {
        "maximize" | "max" => true,
        "minimize" | "min" => false,
        "" => known.unwrap_or(true),
        other => return Err(format!("`{other}` is neither `maximize` nor `minimize`")),
    };
    let mut goal = Goal { metric: metric.to_owned(), maximize, conditions: Vec::new() };
    for condition in conditions {
        let at = condition
            .find(['<', '>', '=', '!'])
            .ok_or_else(|| format!("`{condition}` is no condition; for example `ttft_ms.p99<500ms`"))?;
        let (id, rest) = (condition[..at].trim(), &condition[at..]);
        let measure = metrics::metric(id).map_err(|_| unknown_metric(id))?;
        let digits = rest.trim_start_matches(['<', '>', '=', '!']);
        let sign = &rest[..rest.len() - digits.len()];
        if !["<", "<=", ">", ">=", "==", "!="].contains(&sign) {
            return Err(format!("`{sign}` is no comparison; there are < <= > >= == !="));
        }
        let limit = units::parse_amount(digits.trim(), measure).map_err(|error| error.to_string())?;
        goal.conditions.push((id.to_owned(), format!("{sign} {limit}")));
    }
    Ok(goal)
}

/// Whether more of a metric is better, if either is.
fn known_metric(id: &str) -> Result<Option<bool>, String> {
    metrics::metric(id).map_err(|_| unknown_metric(id))?;
    Ok(crate::measure::metric(id)
        .and_then(|metric| metric.better)
        .map(|better| better == crate::measure::Better::Higher))
}

fn unknown_metric(id: &str) -> String {
    match nearest(id, metrics::words(false)) {
        Some(near) => format!("`{id}` is not a metric; did you mean `{near}`?"),
        None => format!("`{id}` is not a metric; docs/metrics.md has all of them"),
    }
}

impl SweepFile {
    /// Faults that were found after it was read, drawn where they stand: `server.memory.fraction[2]`.
    pub fn faults(&self, faults: impl IntoIterator<Item = Misplaced>) -> ProfileError {
        let faults = faults.into_iter().map(|Misplaced { code, key, message, help }| {
            let fault = Fault::new(code, message);
            let fault = match places::find(&self.root, &key) {
                Some(spot) => fault.at(spot.place, "set here"),
                None => fault,
            };
            help.into_iter().fold(fault, Fault::help)
        });
        ProfileError::of_sweep(&self.asked, &self.sources, faults.collect())
    }
}

struct Reader<'a> {
    asked: &'a str,
    found: &'a Found,
    faults: &'a mut Vec<Fault>,
}

impl Reader<'_> {
    fn file(mut self, mut root: Node, text: &str, env: &dyn Fn(&str) -> Option<String>) -> Option<SweepFile> {
        if root.value == Value::Null {
            let help = "a sweep has at least `base` and `server`";
            self.faults.push(Fault::new("empty", "the sweep is empty").help(help));
            return None;
        }
        expand::expand(&mut root, &Names { env, secrets: Vec::new() }, self.faults);
        let json = check::check(&SWEEP, &root, self.faults);
        // What is wrong beyond single keys is told with them.
        let axes = root.get("server").map(|server| self.axes(server)).unwrap_or_default();
        let linked = self.linked(&root, &axes);
        let skip = self.skip(&root, &axes);
        self.fraction(&root, &axes);
        let goal = self.goal(&root, json.as_ref().unwrap_or(&Json::Null));
        let json = json?;
        let number =
            |path: &str| json.pointer(path).and_then(Json::as_u64).and_then(|number| u32::try_from(number).ok());
        let confirm = number("/confirm/top").zip(number("/confirm/starts"));
        let budget = json.get("budget").and_then(Json::as_str).and_then(|text| units::parse_duration(text).ok());
        Some(SweepFile {
            name: self.found.stem(),
            text: text.to_owned(),
            base: self.base(json.get("base")?.as_str()?),
            axes,
            linked,
            load: root.get("load").map(flow),
            skip,
            skip_higher_fraction: json.get("on_oom").and_then(Json::as_str) == Some("skip_higher_fraction"),
            confirm: confirm.map(|(top, starts)| Confirm { top, starts }),
            goal,
            budget,
            asked: self.asked.to_owned(),
            sources: Sources::default(),
            root,
        })
    }

    /// The profile, where it lies beside the sweep or above its folder; else as it is written.
    fn base(&self, word: &str) -> String {
        let near = self.found.folder().into_iter().flat_map(|folder| [folder.join(word), folder.join("..").join(word)]);
        let found = near.filter_map(|path| find::existing(&path)).find(|path| path.is_file());
        found.map_or_else(|| word.to_owned(), |path| tidy(&path).display().to_string())
    }

    fn fault(&mut self, code: &'static str, message: String, at: &Node, label: &str, help: &str) {
        self.faults.push(Fault::new(code, message).at(at.place, label).help(help.to_owned()));
    }

    fn axes(&mut self, server: &Node) -> Vec<AxisValues> {
        let Some(map) = server.as_map() else { return Vec::new() };
        if map.entries.is_empty() {
            let help = "for example `server: {max_running_requests: [16, 32]}`";
            self.fault("out_of_range", "`server` has no axes".to_owned(), server, "nothing to try", help);
        }
        let mut axes = Vec::new();
        for (path, entry) in &map.entries {
            let values = match &entry.node.value {
                Value::List(items) => items.iter().map(flow).collect(),
                Value::Map(_) => self.range(path, &entry.node),
                _ => {
                    let message = format!("axis `{path}` is {}, not a list of values", entry.node.kind());
                    let help = "`[1, 2, 3]`, or `{from: 0.80, to: 0.92, step: 0.04}`";
                    self.fault("wrong_type", message, &entry.node, "not a list", help);
                    continue;
                }
            };
            self.values(path, &values, &entry.node);
            axes.push(AxisValues { path: path.clone(), values });
        }
        axes
    }

    fn values(&mut self, path: &str, values: &[String], node: &Node) {
        let mut seen = BTreeSet::new();
        if let Some(again) = values.iter().find(|value| !seen.insert(value.as_str())) {
            let message = format!("axis `{path}` has `{again}` twice");
            self.fault("contradiction", message, node, "twice in here", "keep one of the two");
        }
        if values.is_empty() && matches!(&node.value, Value::List(_)) {
            let message = format!("axis `{path}` has no values");
            self.fault("out_of_range", message, node, "empty", "name one value or more, or remove the axis");
        }
        if values.len() > MAX_VALUES {
            let message = format!("axis `{path}` has {} values, and at most {MAX_VALUES} are read", values.len());
            self.fault("out_of_range", message, node, "too many", "is its step too small?");
        }
    }

    /// `{from: 0.80, to: 0.92, step: 0.04}`, with as many decimals as are written there.
    fn range(&mut self, path: &str, node: &Node) -> Vec<String> {
        let text = |key: &str| node.get(key).and_then(Node::scalar).map(|scalar| scalar.text.as_str());
        let number = |key: &str| text(key)?.parse::<f64>().ok().filter(|number| number.is_finite());
        let known = ["from", "to", "step"];
        let only = node.as_map().is_some_and(|map| map.entries.keys().all(|key| known.contains(&key.as_str())));
        let (Some(from), Some(to), Some(step), true) = (number("from"), number("to"), number("step"), only) else {
            let message = format!("axis `{path}` is a map, and not `{{from, to, step}}` with three numbers");
            let help = "`{from: 0.80, to: 0.92, step: 0.04}`; a map as a value stands in a list: `[{…}]`";
            self.fault("wrong_type", message, node, "not a range", help);
            return Vec::new();
        };
        if step <= 0.0 || to < from || (to - from) / step > MAX_VALUES as f64 {
            let message = format!("axis `{path}` goes from {from} to {to} in steps of {step}");
            self.fault("out_of_range", message, node, "not a range", "`from` is the lowest, and `step` is above 0");
            return Vec::new();
        }
        let decimals = |key: &str| text(key).and_then(|text| text.split_once('.')).map_or(0, |(_, rest)| rest.len());
        let decimals = decimals("from").max(decimals("step"));
        // A last value that falls short of `to` by rounding alone is meant.
        let count = ((to - from) / step + 1e-9).floor() as usize;
        (0..=count).map(|index| format!("{:.decimals$}", from + step * index as f64)).collect()
    }

    fn linked(&mut self, root: &Node, axes: &[AxisValues]) -> Vec<Vec<String>> {
        let mut all: Vec<Vec<String>> = Vec::new();
        for group in items(root.get("linked")) {
            let mut paths = Vec::new();
            for item in items(Some(group)) {
                let Some(path) = item.scalar().map(|scalar| scalar.text.clone()) else { continue };
                let twice = all.iter().flatten().chain(&paths).any(|known| *known == path);
                if !axes.iter().any(|axis| axis.path == path) {
                    self.no_axis(&path, item, axes);
                } else if twice {
                    let message = format!("axis `{path}` is linked twice");
                    self.fault("contradiction", message, item, "again here", "one group has all that move together");
                }
                paths.push(path);
            }
            let length = |path: &String| axes.iter().find(|axis| axis.path == *path).map(|axis| axis.values.len());
            let lengths: BTreeSet<usize> = paths.iter().filter_map(length).collect();
            if lengths.len() > 1 {
                let message = format!("linked axes have different numbers of values: {}", paths.join(", "));
                self.fault("contradiction", message, group, "these", "the first goes with the first, and so on");
            }
            all.push(paths);
        }
        all
    }

    fn no_axis(&mut self, path: &str, at: &Node, axes: &[AxisValues]) {
        let known: Vec<&str> = axes.iter().map(|axis| axis.path.as_str()).collect();
        let help = nearest(path, &known)
            .map_or_else(|| format!("the axes are {}", known.join(", ")), |near| format!("did you mean `{near}`?"));
        self.fault("unknown_word", format!("`{path}` is no axis of this sweep"), at, "no axis", &help);
    }

    fn skip(&mut self, root: &Node, axes: &[AxisValues]) -> Vec<Vec<(String, String)>> {
        let mut all = Vec::new();
        for rule in items(root.get("skip")) {
            let mut pairs = Vec::new();
            for (path, entry) in rule.as_map().into_iter().flat_map(|map| &map.entries) {
                let Some(axis) = axes.iter().find(|axis| axis.path == *path) else {
                    self.no_axis(path, &entry.node, axes);
                    continue;
                };
                let value = flow(&entry.node);
                match axis.values.iter().find(|known| same_value(known, &value)) {
                    Some(known) => pairs.push((path.clone(), known.clone())),
                    None => {
                        let message = format!("`{value}` is none of the values of axis `{path}`");
                        let help = format!("they are {}", axis.values.join(", "));
                        self.fault("unknown_word", message, &entry.node, "skips nothing", &help);
                    }
                }
            }
            if pairs.is_empty() {
                self.fault("out_of_range", "a rule to skip names nothing".to_owned(), rule, "skips all", "remove it");
            }
            all.push(pairs);
        }
        all
    }

    fn fraction(&mut self, root: &Node, axes: &[AxisValues]) {
        let Some(node) = root.get("on_oom") else { return };
        let asked = node.scalar().is_some_and(|scalar| scalar.text == "skip_higher_fraction");
        if asked && !axes.iter().any(|axis| axis.path == "memory.fraction") {
            let message = "`on_oom: skip_higher_fraction`, and `memory.fraction` is no axis".to_owned();
            self.fault("contradiction", message, node, "skips nothing", "remove it, or add the axis");
        }
    }

    fn goal(&mut self, root: &Node, json: &Json) -> Goal {
        let text = |key: &str| root.text_at(&["goal", key]);
        let mut goal = Goal::default();
        let (maximize, minimize) = (text("maximize"), text("minimize"));
        if let (Some(_), Some(_), Some(node)) = (maximize, minimize, root.get("goal")) {
            let message = "`goal` has both `maximize` and `minimize`".to_owned();
            self.fault("contradiction", message, node, "two goals", "keep one; `where` can hold the other to a limit");
        }
        if let Some(metric) = maximize.or(minimize) {
            let key = if maximize.is_some() { "maximize" } else { "minimize" };
            if let (Err(why), Some(node)) = (known_metric(metric), root.at(&["goal", key])) {
                self.fault(
                    "unknown_word",
                    why,
                    node,
                    "not a metric",
                    "for example `output_tokens_per_s` or `ttft_ms.p50`",
                );
            }
            goal = Goal { metric: metric.to_owned(), maximize: maximize.is_some(), ..goal };
        }
        let conditions = json.pointer("/goal/where").and_then(Json::as_object);
        goal.conditions = conditions.into_iter().flatten().map(|(id, value)| (id.clone(), condition(value))).collect();
        goal
    }
}

/// A number that stands alone is to be met exactly.
fn condition(value: &Json) -> String {
    value.as_str().map_or_else(|| format!("== {value}"), str::to_owned)
}

fn items(node: Option<&Node>) -> &[Node] {
    match node.map(|node| &node.value) {
        Some(Value::List(items)) => items,
        _ => &[],
    }
}

/// `0.9` and `0.90` are one value.
fn same_value(one: &str, other: &str) -> bool {
    one == other || matches!((one.parse::<f64>(), other.parse::<f64>()), (Ok(one), Ok(other)) if one == other)
}

/// A value as it could stand after the `=` of a `--set`.
fn flow(node: &Node) -> String {
    match &node.value {
        Value::Null => "null".to_owned(),
        Value::List(items) => format!("[{}]", items.iter().map(flow).collect::<Vec<_>>().join(", ")),
        Value::Map(map) => {
            let entries = map.entries.iter().map(|(key, entry)| format!("{}: {}", quoted(key), flow(&entry.node)));
            format!("{{{}}}", entries.collect::<Vec<_>>().join(", "))
        }
        Value::Scalar(scalar) if scalar.plain => quoted(&scalar.text),
        Value::Scalar(scalar) => Json::from(scalar.text.as_str()).to_string(),
    }
}

/// Text that could mean something else inside `[…]` stands in quotes.
fn quoted(text: &str) -> String {
    let plain = !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"_.+/%-".contains(&b));
    if plain { text.to_owned() } else { Json::from(text).to_string() }
}

/// `a/sweeps/../b` as `a/b`.
fn tidy(path: &Path) -> PathBuf {
    path.canonicalize().unwrap_or_else(|_| path.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<SweepFile, ProfileError> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s.yaml");
        std::fs::write(&path, text).unwrap();
        sweep_file(path.to_str().unwrap(), &[], &|_| None)
    }

    fn faults(text: &str) -> Vec<String> {
        let error = read(text).expect_err(text);
        error
            .faults()
            .map(|fault| format!("{}:{} {}", fault.line.unwrap_or(0), fault.column.unwrap_or(0), fault.message))
            .collect()
    }

    #[test]
    fn the_contracts_example_is_read() {
        let file = read(
            "base: qwen-mtp3
server: {speculative.steps: [0, 1, 2, 3, 4], memory.fraction: {from: 0.80, to: 0.92, step: 0.04}, flags.chunked-prefill-size: [4096, 8192]}
linked: []
load: {use: chat-mix, concurrency: [1, 4, 16], duration: 90s}
skip: [{speculative.steps: 4, memory.fraction: 0.92}]
on_oom: skip_higher_fraction
confirm: {top: 3, starts: 2}
goal: {maximize: output_tokens_per_s, where: {ttft_ms.p99: \"< 500ms\"}}
budget: 6h
",
        )
        .unwrap();
        assert_eq!(file.axes[1].values, ["0.80", "0.84", "0.88", "0.92"]);
        assert_eq!(file.skip[0][1], ("memory.fraction".to_owned(), "0.92".to_owned()));
        assert_eq!(file.load.as_deref(), Some("{use: chat-mix, concurrency: [1, 4, 16], duration: 90s}"));
        assert_eq!(file.goal.conditions, [("ttft_ms.p99".to_owned(), "< 500".to_owned())]);
        assert_eq!(
            (file.confirm, file.budget),
            (Some(Confirm { top: 3, starts: 2 }), Some(Duration::from_secs(21_600)))
        );
        assert!(file.skip_higher_fraction && file.base == "qwen-mtp3" && file.name == "s");
    }

    #[test]
    fn every_slip_is_told_at_its_place() {
        assert_eq!(
            faults("base: b\nserver: {a: [1, 1], b: 3}\ngoal: {maximise: x}\n"),
            [
                "2:13 axis `a` has `1` twice",
                "2:24 axis `b` is a single value, not a list of values",
                "3:8 unknown key `goal.maximise`",
            ]
        );
        let told = faults(
            "base: b\nserver: {a: [1, 1], b: 3, c: {from: 1, to: 0, step: 1}}\nlinked: [[a, z]]\nskip: [{a: 7}]\non_oom: skip_higher_fraction\n",
        );
        for word in ["`1` twice", "not a list", "goes from 1 to 0", "`z` is no axis", "`7` is none", "is no axis"] {
            assert!(told.iter().any(|fault| fault.contains(word)), "{word}: {told:?}");
        }
        let told = faults("base: b\nserver: {a: [1]}\ngoal: {maximize: output_token_per_s, minimize: ttft_ms.p50}\n");
        assert!(
            told.iter().any(|fault| fault.contains("both"))
                && told.iter().any(|fault| fault.contains("did you mean `output_tokens_per_s`")),
            "{told:?}"
        );
    }

    #[test]
    fn a_goal_is_read_from_the_command_line() {
        let goal =
            goal_of_words("ttft_ms.p50", &["output_tokens_per_s >= 100".to_owned(), "e2e_ms.p90<1.5s".to_owned()])
                .unwrap();
        assert!(!goal.maximize);
        assert_eq!(goal.conditions[0].1, ">= 100");
        assert_eq!(goal.conditions[1].1, "< 1500");
        assert!(goal_of_words("nonsense", &[]).unwrap_err().contains("not a metric"));
        assert!(goal_of_words("max:output_tokens_per_s", &["x".to_owned()]).is_err());
    }
}
