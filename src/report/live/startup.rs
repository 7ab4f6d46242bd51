//! A start on the screen: its phase, how far it is, what is left of the memory, and what shows that it lives.

use std::collections::BTreeMap;

use super::usual::Usual;
use super::{LEAD, bar, since};
use crate::event::{Event, Scope, Sign};
use crate::report::number::{amount, count};
use crate::report::text::{Mark, fit, seconds, wrap};

/// The fact that says how much device memory is left.
const FREE: &str = "avail_mem_gb";

/// A phase that goes on.
#[derive(Debug)]
pub(super) struct Going {
    pub(super) name: String,
    pub(super) since_ns: u64,
}

/// How far a phase is.
#[derive(Clone, Debug)]
struct Progress {
    done: f64,
    total: Option<f64>,
    unit: String,
    /// When it was told first in this phase, and how far it was then: what its pace is measured from.
    first: (u64, f64),
}

/// A silence.
#[derive(Clone, Debug)]
struct Silence {
    at_ns: u64,
    silent_s: f64,
    usual_s: Option<f64>,
    limit_s: f64,
    evidence: Vec<String>,
}

/// What a start is known by.
#[derive(Debug, Default)]
pub(super) struct Startup {
    pub(super) phase: Option<Going>,
    launched_ns: Option<u64>,
    progress: Option<Progress>,
    facts: Vec<(String, String)>,
    /// Memory left, by rank.
    free_gb: BTreeMap<u32, f64>,
    probe: Option<String>,
    last_sign_ns: u64,
    log_ns: Option<u64>,
    workers: Option<u32>,
    silence: Option<Silence>,
    /// Whether nobody knows when the phase began.
    undated: bool,
    /// Whether a line looks fatal, and whether the engine has confirmed it.
    fatal: Option<bool>,
}

impl Startup {
    pub(super) fn launched(&mut self, at_ns: u64) {
        *self = Startup { launched_ns: Some(at_ns), last_sign_ns: at_ns, ..Startup::default() };
    }

    pub(super) fn replayed(&mut self, now_ns: u64, log_age_ns: u64) {
        self.undated = true;
        self.log_ns = Some(now_ns.saturating_sub(log_age_ns));
        self.last_sign_ns = self.log_ns.unwrap_or_default();
        self.silence = None;
        if let Some(progress) = &mut self.progress {
            progress.first = (now_ns, progress.done);
        }
    }

    pub(super) fn launched_ns(&self) -> Option<u64> {
        self.launched_ns
    }

    pub(super) fn began(&mut self, phase: &str, at_ns: u64) {
        self.phase = Some(Going { name: phase.to_owned(), since_ns: at_ns });
        self.progress = None;
        self.undated = false;
    }

    pub(super) fn probed(&mut self, answer: &str) {
        self.probe = Some(answer.to_owned());
    }

    pub(super) fn progressed(&mut self, at_ns: u64, done: f64, total: Option<f64>, unit: &str) {
        let first = self.progress.as_ref().filter(|before| before.unit == unit && before.done <= done);
        let first = first.map_or((at_ns, done), |before| before.first);
        self.progress = Some(Progress { done, total, unit: unit.to_owned(), first });
    }

    pub(super) fn fact(&mut self, scope: &Scope, key: &str, value: &serde_json::Value) {
        if let (FREE, Some(free)) = (key, value.as_f64()) {
            let rank = if let Scope::Rank(rank) = scope { *rank } else { 0 };
            self.free_gb.insert(rank, free);
            return;
        }
        let value = said(key, value);
        self.facts.retain(|(known, _)| known != key);
        self.facts.push((key.to_owned(), value));
    }

    /// A sign of life. Gives a line where it ends a silence.
    pub(super) fn lives(&mut self, at_ns: u64, signs: &[Sign], workers: Option<u32>, width: usize) -> Vec<String> {
        self.last_sign_ns = at_ns;
        self.workers = workers.or(self.workers);
        if signs.iter().any(|sign| matches!(sign, Sign::Line | Sign::Bar | Sign::Graph)) {
            self.log_ns = Some(at_ns);
        }
        let Some(silence) = self.silence.take() else { return Vec::new() };
        let silent = silence.silent_s + (at_ns.saturating_sub(silence.at_ns)) as f64 / 1e9;
        let name = self.phase.as_ref().map_or("start-up", |phase| phase.name.as_str());
        vec![line(Mark::Ok, short(name), &format!("it goes on, after a silence of {}", seconds(silent)), "", width)]
    }

    /// A silence. Gives lines the first time that it is told.
    pub(super) fn silent(&mut self, at_ns: u64, event: &Event, width: usize) -> Vec<String> {
        let Event::Stalled { silent_s, usual_s, limit_s, evidence, .. } = event else { return Vec::new() };
        let first = self.silence.is_none();
        let (silent_s, usual_s, limit_s) = (*silent_s, *usual_s, *limit_s);
        self.silence = Some(Silence { at_ns, silent_s, usual_s, limit_s, evidence: evidence.clone() });
        if first { self.silence_lines(at_ns, width) } else { Vec::new() }
    }

    fn silence_lines(&self, now_ns: u64, width: usize) -> Vec<String> {
        let Some(silence) = &self.silence else { return Vec::new() };
        let name = self.phase.as_ref().map_or("start-up", |phase| phase.name.as_str());
        let silent = silence.silent_s + now_ns.saturating_sub(silence.at_ns) as f64 / 1e9;
        let usual = silence.usual_s.map(|s| format!("; usually {} as a whole", seconds(s))).unwrap_or_default();
        let at = [self.which(name), self.place()].into_iter().flatten().collect::<Vec<_>>().join(" ");
        let at = if at.is_empty() { String::new() } else { format!("{at} ") };
        let text = format!("{at}without a sign of life for {}{usual}. Stalled?", seconds(silent));
        let mut lines = wrap(&text, &lead(Mark::Odd, short(name)), width);
        // The short ones stand on one line.
        let (long, mut words): (Vec<String>, Vec<String>) =
            silence.evidence.iter().cloned().partition(|words| words.starts_with("GPUs") || words.starts_with("looks"));
        words.extend(self.http());
        let indent = " ".repeat(LEAD);
        lines.extend(wrap(&words.join(" | "), &indent, width));
        lines.extend(long.iter().flat_map(|words| wrap(words, &indent, width)));
        let limit = format!("it is waited for until {} after the launch; Ctrl-C stops it", seconds(silence.limit_s));
        lines.extend(wrap(&limit, &indent, width));
        lines
    }

    /// A line that looks fatal, or with which the engine confirms that it is.
    pub(super) fn failed(
        &mut self,
        kind: &str,
        line_text: &str,
        line_no: u64,
        wraps: bool,
        width: usize,
    ) -> Vec<String> {
        let confirmed = wraps || self.fatal == Some(true);
        let news = self.fatal != Some(confirmed);
        self.fatal = Some(confirmed);
        let place = format!("server.log:{line_no}  {}", line_text.trim());
        let mut lines = Vec::new();
        if wraps && news {
            lines.push(line(Mark::Bad, "log", "the engine says that it failed", "", width));
        }
        if !wraps {
            lines.extend(wrap(&format!("{kind}: {place}"), &lead(Mark::Odd, "log"), width));
            if news {
                lines.push(line(Mark::Odd, "log", "this looks fatal, waiting for the engine to confirm", "", width));
            }
        }
        lines
    }

    /// A phase has ended: its line.
    pub(super) fn ended(&mut self, phase: &str, s: f64, usual: &Usual, width: usize) -> String {
        let text = self.words(phase);
        let time = super::with_usual(s, usual.phase_s(phase));
        if self.phase.as_ref().is_some_and(|going| going.name == phase) {
            self.phase = None;
            self.progress = None;
        }
        self.facts.clear();
        line(Mark::Ok, short(phase), &text, &time, width)
    }

    /// The line of a phase in which the server ended; `None` between two.
    pub(super) fn broke(&mut self, at_ns: u64, width: usize) -> Option<String> {
        let going = self.phase.take()?;
        let words = self.words(&going.name);
        Some(line(Mark::Bad, short(&going.name), &words, &since(going.since_ns, at_ns), width))
    }

    /// What is known of a phase: how far it came, its facts, and the memory that is left.
    fn words(&self, phase: &str) -> String {
        let fact = |key: &str| self.facts.iter().find(|(known, _)| known == key).map(|(_, value)| value.as_str());
        let mut words: Vec<String> = self.which(phase).into_iter().collect();
        words.extend(self.progress.as_ref().filter(|progress| progress.total.is_some()).and(self.place()));
        let told: &[(&str, &str, &str)] = match phase {
            "weights" => {
                &[("weights_gb", "", " GB a GPU"), ("weights_mib", "", " MiB"), ("load_s", "loaded in ", " s")]
            }
            "draft_weights" => &[("draft_weights_gb", "", " GB a GPU")],
            "kv_pool" => &[("kv_tokens", "", " tokens"), ("kv_gb", "", " GB")],
            "graph_capture" | "draft_capture" => &[("graph_mem_gb", "", " GB")],
            "compile" => &[("compile_s", "compiled in ", " s")],
            _ => &[],
        };
        words.extend(told.iter().filter_map(|(key, before, after)| Some(format!("{before}{}{after}", fact(key)?))));
        if told.is_empty() {
            words.extend(self.facts.iter().map(|(key, value)| format!("{} {value}", key.replace('_', " "))));
        }
        let mut text = words.join(", ");
        if let Some(free) = self.free().filter(|_| MEMORY_PHASES.contains(&phase)) {
            let apart = if text.is_empty() { "" } else { "; " };
            text.push_str(&format!("{apart}{free}"));
        }
        text
    }

    /// Which of two phases of one name on the screen.
    fn which(&self, phase: &str) -> Option<String> {
        match phase {
            "graph_capture" => Some("target:".to_owned()),
            "draft_capture" => Some("draft:".to_owned()),
            _ => None,
        }
    }

    /// `3 of 9`, `11/11 shards`.
    fn place(&self) -> Option<String> {
        let Progress { done, total, unit, .. } = self.progress.as_ref()?;
        Some(match (total, unit.as_str()) {
            (Some(total), "graphs") => format!("{} of {}", counted(*done), counted(*total)),
            (Some(_), "percent") => format!("{} %", counted(*done)),
            (Some(total), unit) => format!("{}/{} {unit}", counted(*done), counted(*total)),
            (None, unit) => format!("{} {unit}", counted(*done)),
        })
    }

    /// The memory of the tightest rank.
    fn free(&self) -> Option<String> {
        let (rank, free) = self.free_gb.iter().min_by(|a, b| a.1.total_cmp(b.1))?;
        let on = if self.free_gb.len() > 1 { format!(" on GPU {rank}") } else { String::new() };
        Some(format!("free {} GB{on}", amount(*free)))
    }

    fn http(&self) -> Option<String> {
        let answer = self.probe.as_deref()?;
        Some(if answer == "refused" { "http closed".to_owned() } else { format!("http {answer}") })
    }

    /// The live lines of what goes on: the phase, and what shows that it lives.
    pub(super) fn live(&self, now_ns: u64, usual: &Usual, width: usize) -> Option<String> {
        if self.silence.is_some() {
            return Some(self.silence_lines(now_ns, width).join("\n"));
        }
        let (name, since_ns) = match (&self.phase, self.launched_ns) {
            (Some(phase), _) => (phase.name.as_str(), phase.since_ns),
            (None, Some(launched)) => ("start-up", launched),
            (None, None) => return None,
        };
        let mut parts: Vec<String> = self.which(name).into_iter().chain(self.place()).collect();
        if let Some(Progress { done, total: Some(total), .. }) = self.progress.as_ref().filter(|p| p.total > Some(0.0))
        {
            parts.push(bar(done / total));
        }
        let elapsed = now_ns.saturating_sub(since_ns) as f64 / 1e9;
        let time = match self.left(name, elapsed, now_ns, usual) {
            Some(left) => left,
            None if self.undated => String::new(),
            None => super::with_usual(elapsed, usual.phase_s(name)),
        };
        // The memory stands beside the bar where both fit, else with the signs: neither pushes the other away.
        let mut signs = self.signs(now_ns);
        if let Some(free) = self.free().filter(|_| MEMORY_PHASES.contains(&name)) {
            let beside = LEAD + parts.join(" ").chars().count() + free.chars().count() + time.chars().count() + 3;
            if beside <= width { parts.push(free) } else { signs.insert(0, free) }
        }
        let mut lines = vec![line(Mark::Live, short(name), &parts.join(" "), &time, width)];
        lines.extend(
            self.memory_words(name, usual).map(|words| fit(&format!("{}{words}", " ".repeat(LEAD)), "", width)),
        );
        lines.extend(packed(&signs, width));
        Some(lines.join("\n"))
    }

    /// How long the phase may still take, by how long it usually does, else by the pace of its bar; and which.
    fn left(&self, phase: &str, elapsed: f64, now_ns: u64, usual: &Usual) -> Option<String> {
        if let Some(usual) = usual.phase_s(phase).filter(|_| !self.undated) {
            return (usual > elapsed).then(|| format!("{} left, as usual", seconds(usual - elapsed)));
        }
        let Progress { done, total, first, .. } = self.progress.as_ref()?;
        let moved = done - first.1;
        let spent = now_ns.saturating_sub(first.0) as f64 / 1e9;
        let rest = (*total)? - done;
        (moved > 0.0 && spent > 0.0 && rest > 0.0)
            .then(|| format!("{} left, by its bar", seconds(spent / moved * rest)))
    }

    /// What the graphs that are still to come took the last time.
    fn memory_words(&self, phase: &str, usual: &Usual) -> Option<String> {
        let Progress { done, total, .. } = self.progress.as_ref().filter(|progress| progress.unit == "graphs")?;
        let rest = (*total)? - done;
        let took = usual.rest_of_graphs_gb(phase, *done as u64)?;
        let free = self.free_gb.values().next()?;
        (rest > 0.0).then(|| {
            format!(
                "{} GB left, the {} smaller graphs took {} GB last time",
                amount(*free),
                counted(rest),
                amount(took)
            )
        })
    }

    fn signs(&self, now_ns: u64) -> Vec<String> {
        let ago = |at: u64| seconds(now_ns.saturating_sub(at) as f64 / 1e9);
        let mut signs = Vec::new();
        if let Some(at) = self.log_ns {
            signs.push(format!("log grew {} ago", ago(at)));
            if self.last_sign_ns > at {
                signs.push(format!("sign of life {} ago", ago(self.last_sign_ns)));
            }
        }
        signs.extend(
            self.workers.map(|workers| format!("{workers} {} alive", if workers == 1 { "rank" } else { "ranks" })),
        );
        signs.extend(self.http());
        if self.fatal == Some(false) {
            signs.push("looks fatal".to_owned());
        }
        signs
    }
}

/// Phases at whose end the memory that is left matters.
const MEMORY_PHASES: [&str; 5] = ["weights", "kv_pool", "graph_capture", "draft_weights", "draft_capture"];

/// A number of things: without a point, where it has no fraction.
fn counted(number: f64) -> String {
    if number.fract() == 0.0 && (0.0..1e15).contains(&number) { count(number as u64) } else { amount(number) }
}

/// Words side by side on as few lines as hold them; none is broken.
fn packed(words: &[String], width: usize) -> Vec<String> {
    let indent = " ".repeat(LEAD);
    let mut lines: Vec<String> = Vec::new();
    for word in words {
        match lines.last_mut().filter(|line| line.chars().count() + 3 + word.chars().count() <= width) {
            Some(line) => line.push_str(&format!(" | {word}")),
            None => lines.push(format!("{indent}{word}")),
        }
    }
    lines.into_iter().map(|line| fit(&line, "", width)).collect()
}

/// What a phase is called at the beginning of a line.
fn short(phase: &str) -> &str {
    match phase {
        "graph_capture" | "draft_capture" => "graphs",
        "draft_weights" => "draft",
        "dist_init" => "ranks",
        "http_up" => "http",
        other => other,
    }
}

fn lead(mark: Mark, name: &str) -> String {
    format!(" {}  {:<10} ", mark.text(), name.replace('_', " "))
}

pub(super) fn line(mark: Mark, name: &str, text: &str, time: &str, width: usize) -> String {
    fit(&format!("{}{text}", lead(mark, name)), time, width)
}

/// A fact as a person reads it: a count is whole, and a port is a name and no amount.
fn said(key: &str, value: &serde_json::Value) -> String {
    match (value.as_u64(), value.as_f64(), value.as_str()) {
        (Some(port), ..) if key == "port" => port.to_string(),
        (Some(whole), ..) => count(whole),
        (None, Some(value), _) => amount(value),
        (None, None, Some(text)) => text.to_owned(),
        (None, None, None) => value.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::said;

    #[test]
    fn counts_are_whole_and_a_port_is_no_amount() {
        let facts = [("max_running", json!(8)), ("port", json!(30005)), ("mem_fraction", json!(0.5))];
        assert_eq!(facts.map(|(key, value)| said(key, &value)), ["8", "30005", "0.50"]);
        assert_eq!(said("kv_tokens", &json!(196_608)), "196,608");
        assert_eq!(said("dtype", &json!("float32")), "float32");
    }
}
