//! A report of one or more runs as one file that needs nothing beside itself: HTML that opens from a disk without a network,
//! Markdown for a pull request, or a chart as SVG. The verdict and its cause come first.

mod chart;
mod charts;
mod escape;
mod markdown;
mod sections;

use crate::record::Record;
use crate::record::model::Reason;

pub use charts::svg;
pub use markdown::markdown;

/// What a report is made of: the record, and what lies beside it in the run's folder.
#[derive(Clone, Debug)]
pub struct Run {
    /// The record.
    pub record: Record,
    /// What people call it: `r0420`.
    pub short: String,
    /// Whether an orch is at it now.
    pub running: bool,
    /// The requests that ended `ok`, step by step in the record's order.
    pub samples: Vec<Samples>,
    /// How the load went, moment by moment.
    pub load: Vec<LoadPoint>,
    /// What the server's GPUs drew together, in watts, by seconds since the run began.
    pub power_w: Vec<(f64, f64)>,
    /// The lines of the server's log around the one that is the cause, with their numbers.
    pub log: Vec<(u64, String)>,
}

impl Run {
    /// Of a record alone, with nothing beside it.
    pub fn of(record: Record, short: String) -> Self {
        let (samples, load, power_w, log) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        Run { record, short, running: false, samples, load, power_w, log }
    }
}

/// Latencies of a step, in ms; a request without one of them is left out of it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Samples {
    /// The step.
    pub step: String,
    /// To the first token.
    pub ttft_ms: Vec<f64>,
    /// Per further token.
    pub tpot_ms: Vec<f64>,
    /// To the end.
    pub e2e_ms: Vec<f64>,
}

/// A moment of the load.
#[derive(Clone, Debug, PartialEq)]
pub struct LoadPoint {
    /// The step.
    pub step: String,
    /// Seconds since the run began.
    pub at_s: f64,
    /// Chunks a second that all answers together brought.
    pub chunks_per_s: f64,
}

/// Style and script are parts of the program, and of each page.
const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");

/// The whole page.
pub fn html(runs: &[Run]) -> String {
    let title = match runs {
        [run] => format!("{} {}", run.short, run.record.series),
        runs => format!("{} runs", runs.len()),
    };
    let mut body = String::new();
    if runs.len() > 1 {
        body.push_str(&sections::overview(runs));
    }
    runs.iter().for_each(|run| body.push_str(&sections::of_run(run)));
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:\">\n\
         <title>{}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<main>\n{body}</main>\n<div id=\"tip\" role=\"status\" hidden></div>\n\
         <script>{SCRIPT}</script>\n</body>\n</html>\n",
        escape::html(&title)
    )
}

/// The texts of reasons, each once: several steps may have the same.
fn reasons(all: &[Reason]) -> Vec<&str> {
    let mut texts: Vec<&str> = Vec::new();
    for reason in all {
        if !texts.contains(&reason.text.as_str()) {
            texts.push(&reason.text);
        }
    }
    texts
}

#[cfg(test)]
mod tests;
