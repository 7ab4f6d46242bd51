//! What came of a sweep: a row a step of each point, the best, what each axis does, and what gave nothing and why. As text
//! for 80 columns, Markdown, CSV, or JSON (its own serialisation).

use std::collections::BTreeMap;
use std::fmt::Write;

use serde::Serialize;

use super::record::label;
use super::{Align, Table, number};
use crate::profile::Goal;
use crate::sweep::{Effect, Interval};

/// What came of a sweep.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Its id.
    pub sweep: String,
    /// Whether nothing is left to do.
    pub complete: bool,
    /// Whether some orch is at it now.
    pub running: bool,
    /// Points that are to be tried,
    pub points: usize,
    /// and those of them that were measured.
    pub measured: usize,
    /// What is best.
    pub goal: Goal,
    /// The two metrics of the front.
    pub axes: [String; 2],
    /// The axes that vary: the words that stand for a point.
    pub settings: Vec<String>,
    /// A row a step of each point that was measured.
    pub rows: Vec<Row>,
    /// The best row by the goal, with the range of its metric where the point was started several times.
    pub best: Option<Best>,
    /// What each axis does to the goal's metric at the step of the best row.
    pub effects: Vec<Effect>,
    /// Points without a measurement.
    pub without: Vec<Without>,
}

/// A step of a point.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// The point's id.
    pub point: String,
    /// Its settings.
    pub settings: BTreeMap<String, String>,
    /// The step.
    pub step: String,
    /// How many starts it is the mean of.
    pub starts: usize,
    /// Runs by their short names.
    pub runs: Vec<String>,
    /// Metrics by path.
    pub values: BTreeMap<String, Option<f64>>,
    /// Whether it meets the goal's conditions; `null` where that is not known.
    pub meets: Option<bool>,
    /// Whether no other row beats it in both metrics.
    pub on_front: bool,
    /// What of the settings made it another load than its name says.
    pub limited: Option<String>,
    /// Why its numbers cannot be used.
    pub unusable: Option<String>,
}

/// The best.
#[derive(Clone, Debug, Serialize)]
pub struct Best {
    /// The point's id.
    pub point: String,
    /// What it sets.
    pub title: String,
    /// The step.
    pub step: String,
    /// The goal's metric.
    pub value: Option<Interval>,
    /// Points that could be the best as well: noise alone could have made the difference.
    pub also: Vec<String>,
}

/// A point without a measurement.
#[derive(Clone, Debug, Serialize)]
pub struct Without {
    /// The point's id.
    pub point: String,
    /// What it sets.
    pub title: String,
    /// `failed`, `left_out` or `not_begun`.
    pub status: &'static str,
    /// Why.
    pub reason: String,
}

/// Where `settings` of a row stand in 80 columns: the last words of their paths, as far as these are distinct.
fn short(paths: &[String]) -> Vec<String> {
    let last = |path: &String| path.rsplit('.').next().unwrap_or(path).to_owned();
    let shorts: Vec<String> = paths.iter().map(last).collect();
    let distinct = |word: &String| shorts.iter().filter(|other| *other == word).count() == 1;
    paths.iter().zip(&shorts).map(|(path, word)| if distinct(word) { word.clone() } else { path.clone() }).collect()
}

impl Report {
    fn words(&self, row: &Row) -> String {
        let value = |path: &String| row.settings.get(path).map_or(number::ABSENT, String::as_str).to_owned();
        let words = short(&self.settings).into_iter().zip(&self.settings);
        words.map(|(word, path)| format!("{word}={}", value(path))).collect::<Vec<_>>().join(" ")
    }

    fn has_goodput(&self) -> bool {
        self.rows.iter().any(|row| row.values.get(GOODPUT).copied().flatten().is_some())
    }

    /// The metrics that are shown as columns.
    fn columns(&self) -> Vec<String> {
        let mut columns = self.axes.to_vec();
        for metric in [&self.goal.metric].into_iter().chain(self.goal.conditions.iter().map(|(metric, _)| metric)) {
            if !columns.contains(metric) {
                columns.push(metric.clone());
            }
        }
        if self.has_goodput() && !columns.iter().any(|column| column == GOODPUT) {
            columns.push(GOODPUT.to_owned());
        }
        columns
    }

    fn headline(&self) -> String {
        let state = match (self.complete, self.running) {
            (_, true) => ", going on",
            (true, _) => "",
            (false, _) => ", not at its end",
        };
        format!("{}: {} of {} points measured{state}", self.sweep, self.measured, self.points)
    }

    fn goal_words(&self) -> String {
        let way = if self.goal.maximize { "most" } else { "least" };
        let conditions: Vec<String> =
            self.goal.conditions.iter().map(|(metric, rule)| format!("{metric} {rule}")).collect();
        let with = if conditions.is_empty() { String::new() } else { format!(" with {}", conditions.join(", ")) };
        format!("{way} {}{with}", self.goal.metric)
    }

    fn best_words(&self) -> String {
        let Some(best) = &self.best else {
            return format!("best ({}): no step meets it\n", self.goal_words());
        };
        let value = best.value.map_or_else(String::new, |value| match (value.low, value.high) {
            (Some(low), Some(high)) => format!(
                "  {} ({} to {}, {} starts)",
                number::amount(value.mean),
                number::amount(low),
                number::amount(high),
                value.starts
            ),
            _ => format!("  {}, of one start", number::amount(value.mean)),
        });
        let mut text = format!("best ({}):\n  {}  at {}{value}\n", self.goal_words(), best.title, best.step);
        for other in &best.also {
            let _ = writeln!(text, "  not to be told from it: {other}");
        }
        text
    }

    fn effect_words(&self) -> String {
        if self.effects.is_empty() {
            return String::new();
        }
        let step = self.best.as_ref().map_or("", |best| best.step.as_str());
        let mut table = Table::new(&[
            ("axis", Align::Left),
            ("from", Align::Right),
            ("to", Align::Right),
            ("effect", Align::Right),
            ("of all", Align::Right),
            ("pairs", Align::Right),
        ]);
        for effect in &self.effects {
            table.row([
                effect.axis.clone(),
                effect.low.clone(),
                effect.high.clone(),
                factor(effect.factor),
                number::share(Some(effect.share_ratio)),
                effect.pairs.to_string(),
            ]);
        }
        format!("what each axis does to {} at {step}, all others equal:\n{table}", self.goal.metric)
    }

    /// For 80 columns.
    pub fn text(&self) -> String {
        let columns = self.columns();
        let labels: Vec<String> = columns.iter().map(|metric| label(metric)).collect();
        let mut head = vec![("", Align::Left), ("point", Align::Left), ("step", Align::Left)];
        head.extend(labels.iter().map(|label| (label.as_str(), Align::Right)));
        let mut table = Table::new(&head);
        for row in &self.rows {
            let mut cells = vec![mark(row).to_owned(), self.words(row), row.step.clone()];
            cells.extend(columns.iter().map(|metric| number::optional(row.values.get(metric).copied().flatten())));
            table.row(cells);
        }
        let mut text = format!("{}\n\n", self.headline());
        if !self.rows.is_empty() {
            let _ = writeln!(text, "{table}{}", self.notes());
            let _ = writeln!(text, "{}", self.best_words());
            text.push_str(&self.effect_words());
        }
        for (status, title) in STATUSES {
            let own: Vec<&Without> = self.without.iter().filter(|point| point.status == status).collect();
            if own.is_empty() {
                continue;
            }
            let _ = writeln!(text, "\n{title}:");
            for point in own.iter().take(SHOWN) {
                let _ = writeln!(text, "  {}: {}", point.title, number::plain(&point.reason));
            }
            if own.len() > SHOWN {
                let _ = writeln!(text, "  … and {} more", own.len() - SHOWN);
            }
        }
        text
    }

    /// What the marks mean, those that are there.
    fn notes(&self) -> String {
        let any = |wanted: &str| self.rows.iter().any(|row| mark(row) == wanted);
        let mut text = String::new();
        if self.rows.iter().any(|row| mark(row).starts_with('*')) {
            let _ = writeln!(text, "* nothing is better in both {} and {}", self.axes[0], self.axes[1]);
        }
        if self.rows.iter().any(|row| row.limited.is_some()) {
            text.push_str("! the server's own limits made requests wait\n");
        }
        if any("-") {
            text.push_str("- does not meet the goal's conditions\n");
        }
        if any("x") {
            text.push_str("x the numbers cannot be used: `orch show` of its run says why\n");
        }
        text
    }

    /// As tables for a page.
    pub fn markdown(&self) -> String {
        let columns = self.columns();
        let mut text = format!("### Sweep {}\n\n{}\n\n|", cell(&self.sweep), cell(&self.headline()));
        let head = ["".to_owned(), "point".to_owned(), "step".to_owned()]
            .into_iter()
            .chain(columns.iter().map(|metric| label(metric)));
        for word in head {
            let _ = write!(text, " {} |", cell(&word));
        }
        let _ = write!(text, "\n|---|---|---|{}\n", "--:|".repeat(columns.len()));
        for row in &self.rows {
            let _ = write!(text, "| {} | {} | {} |", cell(mark(row)), cell(&self.words(row)), cell(&row.step));
            for metric in &columns {
                let _ = write!(text, " {} |", number::optional(row.values.get(metric).copied().flatten()));
            }
            text.push('\n');
        }
        let _ = writeln!(text, "\n{}", self.notes());
        if let Some(best) = &self.best {
            let value = best.value.map_or(number::ABSENT.to_owned(), |value| number::amount(value.mean));
            let _ =
                writeln!(text, "Best ({}): `{}` at {}, {value}.\n", cell(&self.goal_words()), best.title, best.step);
        }
        if !self.effects.is_empty() {
            text.push_str("| axis | from | to | effect | of all |\n|---|--:|--:|--:|--:|\n");
            for effect in &self.effects {
                let _ = writeln!(
                    text,
                    "| {} | {} | {} | {} | {} |",
                    cell(&effect.axis),
                    cell(&effect.low),
                    cell(&effect.high),
                    factor(effect.factor),
                    number::share(Some(effect.share_ratio))
                );
            }
            text.push('\n');
        }
        for point in &self.without {
            let _ = writeln!(
                text,
                "- `{}` {}: {}",
                point.title,
                point.status.replace('_', " "),
                cell(&number::plain(&point.reason))
            );
        }
        text
    }

    /// A line a step of each point, with all metrics that are known; points without a measurement have their status.
    pub fn csv(&self) -> String {
        let mut metrics: Vec<&String> = self.rows.iter().flat_map(|row| row.values.keys()).collect();
        metrics.sort();
        metrics.dedup();
        let mut head: Vec<String> = ["point", "status", "step", "starts"].map(str::to_owned).to_vec();
        head.extend(self.settings.iter().cloned());
        head.extend(metrics.iter().map(|metric| (*metric).clone()));
        head.extend(["meets", "on_front", "runs", "reason"].map(str::to_owned));
        let mut text = csv_line(&head);
        for row in &self.rows {
            let mut cells = vec![row.point.clone(), "measured".into(), row.step.clone(), row.starts.to_string()];
            cells.extend(self.settings.iter().map(|path| row.settings.get(path).cloned().unwrap_or_default()));
            let value = |metric: &&String| row.values.get(*metric).copied().flatten();
            cells
                .extend(metrics.iter().map(|metric| value(metric).map_or_else(String::new, |value| value.to_string())));
            cells.push(row.meets.map_or_else(String::new, |meets| meets.to_string()));
            cells.push(row.on_front.to_string());
            cells.push(row.runs.join(" "));
            cells.push(row.unusable.clone().or_else(|| row.limited.clone()).unwrap_or_default());
            text.push_str(&csv_line(&cells));
        }
        for point in &self.without {
            let mut cells = vec![point.point.clone(), point.status.to_owned()];
            cells.resize(head.len() - 1, String::new());
            cells.push(format!("{}: {}", point.title, point.reason));
            text.push_str(&csv_line(&cells));
        }
        text
    }
}

const GOODPUT: &str = "goodput_requests_per_s";
/// So many points without a measurement are told one by one.
const SHOWN: usize = 30;
const STATUSES: [(&str, &str); 3] =
    [("failed", "no measurement"), ("left_out", "left out"), ("not_begun", "not begun")];

fn mark(row: &Row) -> &'static str {
    match (row.unusable.is_some(), row.meets, row.on_front, row.limited.is_some()) {
        (true, ..) => "x",
        (_, Some(false) | None, ..) => "-",
        (_, _, true, true) => "*!",
        (_, _, true, false) => "*",
        (_, _, _, true) => "!",
        _ => "",
    }
}

/// `x 4.25`, and small ones as a change.
fn factor(factor: f64) -> String {
    if factor < 1.5 { number::change(Some(factor - 1.0)) } else { format!("x {}", number::amount(factor)) }
}

fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('\n', " ")
}

fn csv_line(cells: &[String]) -> String {
    let quoted = |cell: &String| {
        // A cell that begins like a formula would be one to a spreadsheet.
        let formula = cell.starts_with(['=', '@', '+', '-']) && cell.parse::<f64>().is_err();
        let cell = if formula { format!("'{cell}") } else { cell.clone() };
        if cell.contains([',', '"', '\n', '\r']) { format!("\"{}\"", cell.replace('"', "\"\"")) } else { cell }
    };
    format!("{}\n", cells.iter().map(quoted).collect::<Vec<_>>().join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        let row = |cap: &str, value: f64, meets: Option<bool>, on_front: bool| Row {
            point: format!("p{cap}"),
            settings: [("max_running_requests".to_owned(), cap.to_owned())].into(),
            step: "load@16".into(),
            starts: 1,
            runs: vec!["r0a4f".into()],
            values: [("output_tokens_per_s".to_owned(), Some(value)), ("ttft_ms.p50".to_owned(), Some(40.0))].into(),
            meets,
            on_front,
            limited: (cap == "64").then(|| "the server runs 64".to_owned()),
            unusable: None,
        };
        Report {
            sweep: "20261129-151503-cap-0a4f".into(),
            complete: true,
            running: false,
            points: 3,
            measured: 2,
            goal: Goal { conditions: vec![("ttft_ms.p50".into(), "< 500".into())], ..Goal::default() },
            axes: ["ttft_ms.p50".into(), "output_tokens_per_s".into()],
            settings: vec!["max_running_requests".into()],
            rows: vec![row("64", 880.0, Some(true), false), row("1024", 3740.0, Some(true), true)],
            best: Some(Best {
                point: "p1024".into(),
                title: "max_running_requests=1024".into(),
                step: "load@16".into(),
                value: Some(Interval { mean: 3740.0, low: Some(3700.0), high: Some(3780.0), starts: 3 }),
                also: Vec::new(),
            }),
            effects: vec![Effect {
                axis: "max_running_requests".into(),
                high: "1024".into(),
                low: "64".into(),
                factor: 4.25,
                share_ratio: 1.0,
                pairs: 1,
            }],
            without: vec![Without {
                point: "p9".into(),
                title: "max_running_requests=9".into(),
                status: "failed",
                reason: "out of \u{1b}memory".into(),
            }],
        }
    }

    #[test]
    fn a_sweep_is_told_in_80_columns() {
        insta::assert_snapshot!(report().text(), @r"
        20261129-151503-cap-0a4f: 2 of 3 points measured

           point                      step     TTFT p50 ms  total tok/s
        !  max_running_requests=64    load@16         40.0          880
        *  max_running_requests=1024  load@16         40.0        3,740
        * nothing is better in both ttft_ms.p50 and output_tokens_per_s
        ! the server's own limits made requests wait

        best (most output_tokens_per_s with ttft_ms.p50 < 500):
          max_running_requests=1024  at load@16  3,740 (3,700 to 3,780, 3 starts)

        what each axis does to output_tokens_per_s at load@16, all others equal:
        axis                  from    to  effect  of all  pairs
        max_running_requests    64  1024  x 4.25   100 %      1

        no measurement:
          max_running_requests=9: out of  memory
        ");
    }

    #[test]
    fn other_programs_read_it_too() {
        let csv = report().csv();
        assert_eq!(csv.lines().count(), 4);
        let columns = csv.lines().next().unwrap().split(',').count();
        assert_eq!(csv.lines().nth(2).unwrap().split(',').count(), columns);
        assert!(csv.lines().nth(3).unwrap().starts_with("p9,failed,"), "{csv}");
        assert_eq!(csv_line(&["=1+1".into(), "a,\"b\"".into(), "-5".into()]), "'=1+1,\"a,\"\"b\"\"\",-5\n");
        let markdown = report().markdown();
        assert!(markdown.contains("| * | max_running_requests=1024 | load@16 |"), "{markdown}");
        assert!(markdown.contains("- `max_running_requests=9` failed: "), "{markdown}");
    }
}
