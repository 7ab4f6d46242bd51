//! The steps of a record as one table of 80 columns, and what has to stand beside its figures.

use std::fmt::Write;

use super::number::{self, ABSENT};
use super::table::{Align, Table};
use crate::measure::counters::Source;
use crate::measure::{MetricValue, Percentile};
use crate::record::model::StepResult;

/// The width that a table may have.
const WIDTH: usize = 80;

/// One column.
struct Column {
    heading: &'static str,
    align: Align,
    cells: Vec<String>,
    /// Where not all fit, the column with the highest goes first; 0 stays.
    dispensable: u8,
}

impl Column {
    fn width(&self) -> usize {
        let heading = self.heading.lines().map(|line| line.chars().count());
        heading.chain(self.cells.iter().map(|cell| cell.chars().count())).max().unwrap_or(0)
    }

    /// Whether a cell of it says anything.
    fn says(&self) -> bool {
        self.cells.iter().any(|cell| !cell.is_empty() && cell != ABSENT)
    }
}

/// The steps with their headline numbers; empty without steps. Columns without a value are not there, and where not all
/// fit, those that `show --json` has as well go.
pub fn steps(steps: &[StepResult]) -> String {
    if steps.is_empty() {
        return String::new();
    }
    let mut columns = columns(steps);
    columns.retain(|column| column.says() || column.dispensable == 0);
    while columns.iter().map(|column| column.width() + 2).sum::<usize>() > WIDTH + 2 {
        let most = columns.iter().enumerate().filter(|(_, column)| column.dispensable > 0);
        let Some((index, _)) = most.max_by_key(|(_, column)| column.dispensable) else { break };
        columns.remove(index);
    }
    let headings: Vec<_> = columns.iter().map(|column| (column.heading, column.align)).collect();
    let mut table = Table::new(&headings);
    for row in 0..steps.len() {
        table.row(columns.iter().map(|column| column.cells[row].as_str()));
    }
    let mut text = table.to_string();
    if text.contains(number::NOT_CARRIED) {
        let _ = writeln!(text, "{}", number::NOT_CARRIED_NOTE);
    }
    text.push_str(&accepted_on(steps));
    text.push_str(&closure(steps));
    text
}

fn columns(steps: &[StepResult]) -> Vec<Column> {
    let column = |heading, dispensable, cell: &dyn Fn(&StepResult) -> String| Column {
        heading,
        align: Align::Right,
        cells: steps.iter().map(cell).collect(),
        dispensable,
    };
    let number = |step: &StepResult, id: &str| number::metric(step.metrics.get(id));
    let share = |step: &StepResult, id: &str| value(step, id).map_or_else(|| ABSENT.to_owned(), percent);
    let at = |step: &StepResult, id: &str, which| number::percentile(step.metrics.get(id), which);
    let left = |mut column: Column| {
        column.align = Align::Left;
        column
    };
    vec![
        left(column("step", 0, &|step| step.name.clone())),
        column("requests", 3, &requests),
        column("decode\ntok/s/u", 0, &|step| number(step, "decode_tokens_per_s_per_user")),
        column("total\ntok/s", 0, &|step| number(step, "output_tokens_per_s")),
        column("TTFT\np50 ms", 0, &|step| at(step, "ttft_ms", Percentile::P50)),
        column("TTFT\np99 ms", 2, &|step| at(step, "ttft_ms", Percentile::P99)),
        column("TPOT\np50 ms", 4, &|step| at(step, "tpot_ms", Percentile::P50)),
        column("E2E\np50 ms", 5, &|step| at(step, "e2e_ms", Percentile::P50)),
        column("goodput\nreq/s", 1, &|step| number(step, "goodput_requests_per_s")),
        column("accepted\nper step", 1, &|step| number(step, "acceptance_length")),
        column("in\ngraph", 1, &|step| share(step, "in_graph_ratio")),
        column("queued\nof time", 1, &|step| queued(step).unwrap_or_else(|| ABSENT.to_owned())),
        left(column("", 0, &|step| (if step.valid { "" } else { "not valid" }).to_owned())),
    ]
}

fn value(step: &StepResult, id: &str) -> Option<f64> {
    match step.metrics.get(id) {
        Some(MetricValue::Number(value)) => Some(*value),
        _ => None,
    }
}

/// Whole percents; what is more than none is not shown as none.
fn percent(ratio: f64) -> String {
    match ratio * 100.0 {
        part if part > 0.0 && part < 0.5 => "<1 %".to_owned(),
        part => format!("{part:.0} %"),
    }
}

/// The share of time in which requests waited, once any did or there is something else of the engine's to show.
fn queued(step: &StepResult) -> Option<String> {
    let waited = value(step, "waiting_ratio")?;
    let of_speculation = step.metrics.contains_key("acceptance_length") || step.metrics.contains_key("in_graph_ratio");
    (waited > 0.0 || of_speculation).then(|| percent(waited))
}

fn requests(step: &StepResult) -> String {
    match step.counts.failed {
        0 => number::count(step.counts.ok),
        failed => format!("{}, {} failed", number::count(step.counts.ok), number::count(failed)),
    }
}

/// Which text the acceptance is of, and which of it is an estimate.
fn accepted_on(steps: &[StepResult]) -> String {
    let with: Vec<&StepResult> = steps.iter().filter(|step| value(step, "acceptance_length").is_some()).collect();
    let Some(first) = with.first() else { return String::new() };
    let mut text = if with.iter().all(|step| step.workload_name == first.workload_name) {
        format!("accepted per step: on the workload {}\n", number::plain(&first.workload_name))
    } else {
        let each: Vec<String> =
            with.iter().map(|step| format!("{} on {}", step.name, number::plain(&step.workload_name))).collect();
        format!("accepted per step: {}\n", each.join(", "))
    };
    for step in with {
        match step.sources.get("acceptance_length") {
            Some(source) if *source > Source::Requests => {
                let _ = writeln!(text, "accepted of {}: not counted, but {}", step.name, source_words(*source));
            }
            _ => {}
        }
    }
    text
}

fn source_words(source: Source) -> &'static str {
    match source {
        Source::Counters | Source::Requests => "exact",
        Source::Log => "read from the server's log",
        Source::Sampled => "a gauge read once a second",
        Source::Average => "an average since the server started",
        Source::Estimate => "reckoned from the tokens of the answers",
    }
}

/// Whether the engine's own figures close on the client's, by the step that closes worst.
fn closure(steps: &[StepResult]) -> String {
    let off = steps.iter().filter_map(|step| value(step, "closure_ratio")).map(|ratio| (ratio - 1.0).abs());
    off.reduce(f64::max).map_or_else(String::new, |off| {
        format!("closure: steps/s x requests a step x tokens = client tok/s within {:.1} %\n", off * 100.0)
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::measure::Distribution;
    use crate::record::samples::result;

    fn step(name: &str, numbers: &[(&str, f64)]) -> StepResult {
        let mut step = result(name, 66.3);
        step.workload_name = "chat-mix".to_owned();
        let samples = Distribution::of(vec![212.0; 64]);
        for id in ["ttft_ms", "tpot_ms", "e2e_ms"] {
            step.metrics.insert(id.to_owned(), MetricValue::Distribution(samples.clone()));
        }
        step.metrics.insert("decode_tokens_per_s_per_user".to_owned(), MetricValue::Number(70.2));
        for (id, number) in numbers {
            step.metrics.insert((*id).to_owned(), MetricValue::Number(*number));
        }
        step
    }

    #[test]
    fn speculation_and_the_queue_have_columns_where_they_are_known() {
        let engine = |accepted, waiting, closure| {
            [
                ("acceptance_length", accepted),
                ("in_graph_ratio", 1.0),
                ("waiting_ratio", waiting),
                ("closure_ratio", closure),
            ]
        };
        let mut late = step("ladder@16", &engine(2.69, 0.38, 0.994));
        late.sources = BTreeMap::from([("acceptance_length".to_owned(), Source::Sampled)]);
        insta::assert_snapshot!(steps(&[step("single", &engine(2.694, 0.0, 1.001)), late]), @r"
        step       requests   decode  total    TTFT    TTFT  accepted     in   queued
                             tok/s/u  tok/s  p50 ms  p99 ms  per step  graph  of time
        single           24     70.2   66.3     212    ~212      2.69  100 %      0 %
        ladder@16        24     70.2   66.3     212    ~212      2.69  100 %     38 %
        ~ too few samples for this percentile: shown, not judged
        accepted per step: on the workload chat-mix
        accepted of ladder@16: not counted, but a gauge read once a second
        closure: steps/s x requests a step x tokens = client tok/s within 0.6 %
        ");
    }

    #[test]
    fn without_them_the_table_is_as_it_was() {
        let text = steps(&[step("single", &[("waiting_ratio", 0.0)])]);
        assert!(text.contains("E2E") && !text.contains("accepted") && !text.contains("queued"), "{text}");
        assert!(!text.contains("closure"), "{text}");
    }

    #[test]
    fn it_fits_80_columns_whatever_is_in_it() {
        let engine = [("acceptance_length", 2.69), ("in_graph_ratio", 0.001), ("waiting_ratio", 0.38)];
        let mut one = step("a-measurement-with-a-name@1024", &engine);
        one.valid = false;
        one.counts.failed = 1234;
        let text = steps(&[one]);
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        assert!(text.contains("not valid") && text.contains("2.69"), "{text}");
    }

    #[test]
    fn each_workload_is_named_beside_its_acceptance() {
        let mut code = step("code", &[("acceptance_length", 3.1)]);
        code.workload_name = "code".to_owned();
        let text = steps(&[step("single", &[("acceptance_length", 2.7)]), code]);
        assert!(text.contains("accepted per step: single on chat-mix, code on code"), "{text}");
    }
}
