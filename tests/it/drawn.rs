//! Records drawn from a server that is known: how much its starts and its requests vary, whether its starts come in two
//! speeds, how it drifts over the night, and what it has really lost.

use indexmap::IndexMap;
use jiff::SignedDuration;
use orch::compare::judge_all;
use orch::record::model::{Record, VerdictKind};
use orch::record::{Baseline, Earlier};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, Normal};
use serde_json::json;

use crate::built::{distribution, run};

/// A server.
#[derive(Clone, Copy)]
pub(crate) struct Server {
    /// Relative standard deviation from start to start, and from request to request.
    pub(crate) start: f64,
    pub(crate) request: f64,
    /// The share of starts that are slow for their whole life, and by how much.
    pub(crate) slow: Option<(f64, f64)>,
    /// What the machine loses over the night, evenly.
    pub(crate) drift: f64,
}

pub(crate) const PLAIN: Server = Server { start: 0.01, request: 0.02, slow: None, drift: 0.0 };

/// How two sides are measured.
#[derive(Clone, Copy)]
pub(crate) struct Plan {
    pub(crate) starts: [u32; 2],
    pub(crate) runs: u32,
    /// A B B A, else all of one side and then all of the other.
    pub(crate) interleaved: bool,
    /// Earlier nights of one start each, the same settings.
    pub(crate) nights: u32,
}

pub(crate) const FIVE_BY_THREE: Plan = Plan { starts: [5, 5], runs: 3, interleaved: true, nights: 0 };

pub(crate) struct Draw {
    random: ChaCha8Rng,
    next: u16,
}

impl Draw {
    pub(crate) fn new(seed: u64) -> Self {
        Draw { random: ChaCha8Rng::seed_from_u64(seed), next: 0 }
    }

    fn normal(&mut self, deviation: f64) -> f64 {
        Normal::new(0.0, deviation).unwrap().sample(&mut self.random)
    }

    /// What a start makes of every speed, as a logarithm.
    fn start(&mut self, server: &Server, hour: f64) -> f64 {
        let slow = server.slow.filter(|(share, _)| self.random.random_bool(*share)).map_or(0.0, |(_, by)| by);
        self.normal(server.start) - slow - server.drift * hour / 10.0
    }

    /// The runs on a start that began at an hour.
    fn runs(&mut self, server: &Server, runs: u32, hour: f64, loss: f64) -> Vec<Record> {
        let start = self.start(server, hour) + (1.0 - loss).ln();
        let mut first: Option<String> = None;
        (0..runs)
            .map(|_| {
                let id = format!("20261101-000000-drawn-{:04x}", self.next);
                self.next = self.next.wrapping_add(1);
                // A median or a sum over 48 requests varies by a seventh of what one does.
                let speed = (start + self.normal(server.request / 48f64.sqrt())).exp();
                let first_token = 212.0 / (start + self.normal(server.request / 48f64.sqrt())).exp();
                let spread = 1.0 + 1.28 * server.request;
                let record = run(&id).step("single", 1, 70.0 * speed).with(|record| {
                    let tpot = 1000.0 / (70.0 * speed);
                    let metrics = &mut record.steps[0].metrics;
                    metrics.insert("ttft_ms".into(), distribution(48, first_token, spread));
                    metrics.insert("tpot_ms".into(), distribution(48, tpot, spread));
                    metrics.insert("e2e_ms".into(), distribution(48, first_token + 255.0 * tpot, 1.2));
                    record.startup = None;
                    record.started_at += SignedDuration::from_secs_f64(hour * 3600.0);
                    match &first {
                        Some(first) => drop(record.provenance.insert("attached".into(), json!(first))),
                        None => record.left.as_mut().unwrap().kept = Some(id.clone()),
                    }
                });
                first.get_or_insert(id);
                record.0
            })
            .collect()
    }

    /// Measures both sides and gives the verdict.
    pub(crate) fn verdict(&mut self, server: &Server, plan: &Plan, loss: f64) -> VerdictKind {
        let sides = order(plan);
        let hour = |place: usize| 10.0 * place as f64 / sides.len() as f64;
        let (mut was, mut now) = (Vec::new(), Vec::new());
        for (place, is_now) in sides.iter().enumerate() {
            let runs = self.runs(server, plan.runs, hour(place), if *is_now { loss } else { 0.0 });
            if *is_now { now.extend(runs) } else { was.extend(runs) }
        }
        let mut baseline = Baseline::of(was);
        for night in 0..plan.nights {
            for record in self.runs(server, 1, 0.0, 0.0) {
                baseline.earlier.push(earlier(&record, night));
            }
        }
        judge_all(&now.iter().collect::<Vec<_>>(), Some(&baseline), &IndexMap::new()).verdict.kind
    }

    /// How many of `count` comparisons have each of these verdicts.
    pub(crate) fn count<const N: usize>(
        &mut self,
        count: usize,
        case: (&Server, &Plan, f64),
        kinds: [VerdictKind; N],
    ) -> [usize; N] {
        let mut counts = [0; N];
        for _ in 0..count {
            let verdict = self.verdict(case.0, case.1, case.2);
            for (index, kind) in kinds.iter().enumerate() {
                counts[index] += usize::from(verdict == *kind);
            }
        }
        counts
    }

    /// Nights of one start each, the last `bad` of them with a loss.
    pub(crate) fn nights(&mut self, server: &Server, good: usize, bad: usize, loss: f64) -> Vec<f64> {
        (0..good + bad)
            .map(|night| {
                let lost = if night >= good { (1.0 - loss).ln() } else { 0.0 };
                let value = self.start(server, 0.0) + lost + self.normal(server.request / 48f64.sqrt());
                70.0 * value.exp()
            })
            .collect()
    }
}

/// Which side is measured when: true is the one that is judged.
fn order(plan: &Plan) -> Vec<bool> {
    let [was, now] = plan.starts;
    if !plan.interleaved {
        return [vec![false; was as usize], vec![true; now as usize]].concat();
    }
    [false, true, true, false].into_iter().cycle().take((was + now) as usize).collect()
}

fn earlier(record: &Record, night: u32) -> Earlier {
    let values = record.steps[0].metrics.iter().filter_map(|(id, value)| match value {
        orch::measure::MetricValue::Number(value) => Some((id.clone(), *value)),
        orch::measure::MetricValue::Distribution(all) => Some((format!("{id}.p50"), all.p50?)),
        orch::measure::MetricValue::Absent(()) => None,
    });
    Earlier {
        step: "single".into(),
        run: record.id.clone(),
        start: record.id.clone(),
        settings: "same".into(),
        started_at: record.started_at - SignedDuration::from_hours(24 * i64::from(60 - night)),
        values: values.collect(),
    }
}
