//! The search over servers that are functions, with an optimum that is known and hidden.

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, Normal};

use super::*;

/// A server: a cliff of the memory that depends on the draft, an acceptance that falls from place to place, and two settings
/// of which the best of one depends on the other.
struct Server {
    cliff: f64,
    peak: f64,
    acceptance: f64,
    draft_cost: f64,
    best_cap: f64,
    pull: f64,
    backend: [f64; 3],
    best_chunk: f64,
}

const CAPS: [f64; 6] = [16.0, 32.0, 64.0, 128.0, 256.0, 512.0];
const CHUNKS: [f64; 5] = [1024.0, 2048.0, 4096.0, 8192.0, 16384.0];
const FRACTIONS: [f64; 8] = [0.80, 0.82, 0.84, 0.86, 0.88, 0.90, 0.92, 0.94];

impl Server {
    fn drawn(seed: u64) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        Server {
            cliff: rng.random_range(0.85..0.93),
            peak: rng.random_range(0.0..0.03),
            acceptance: rng.random_range(0.45..0.85),
            draft_cost: rng.random_range(0.03..0.12),
            best_cap: rng.random_range(0.0..5.0),
            pull: rng.random_range(-0.6..0.6),
            backend: [rng.random_range(0.8..1.0), rng.random_range(0.8..1.0), rng.random_range(0.8..1.0)],
            best_chunk: rng.random_range(0.0..4.0),
        }
    }

    fn space(&self) -> Space {
        let words =
            |values: &[f64], decimals: usize| values.iter().map(|value| format!("{value:.decimals$}")).collect();
        let axis = |path: &str, values: Vec<String>, kind| Axis { path: path.into(), values, kind };
        Space {
            axes: vec![
                axis("memory.fraction", words(&FRACTIONS, 2), AxisKind::Memory),
                axis("max_running_requests", words(&CAPS, 0), AxisKind::Ordered),
                axis("flags.chunked-prefill-size", words(&CHUNKS, 0), AxisKind::Ordered),
                axis("attention_backend", ["a", "b", "c"].map(str::to_owned).to_vec(), AxisKind::Choice),
                axis("speculative.steps", (0..=6).map(|steps| steps.to_string()).collect(), AxisKind::Speculation),
            ],
            base: vec![2, 1, 1, 0, 3],
            maximize: true,
            metric: "output_tokens_per_s".into(),
            ladder: false,
        }
    }

    fn accepted(&self, steps: usize) -> Vec<f64> {
        (1..=steps).map(|place| self.acceptance.powi(place as i32)).collect()
    }

    /// Without noise; `None` where it does not start.
    fn value(&self, levels: &[usize]) -> Option<f64> {
        let fraction = FRACTIONS[levels[0]];
        if fraction > self.limit(levels[4]) {
            return None;
        }
        let steps = levels[4];
        let tokens = 1.0 + self.accepted(steps).iter().sum::<f64>();
        let step_time = 1.0 + self.draft_cost * steps as f64;
        let (cap, chunk) = (levels[1] as f64, levels[2] as f64);
        // The best chunk moves with the cap.
        let chunk_off = chunk - self.best_chunk - self.pull * (cap - self.best_cap);
        let hill = (-0.05 * (cap - self.best_cap).powi(2) - 0.03 * chunk_off.powi(2)).exp();
        let memory = 1.0 + 0.8 * (fraction - 0.80);
        Some(1_000.0 * hill * memory * self.backend[levels[3]] * tokens / step_time)
    }

    fn limit(&self, steps: usize) -> f64 {
        self.cliff - if steps > 0 { self.peak } else { 0.0 }
    }

    fn outcome(&self, levels: &[usize], noise: f64) -> Outcome {
        let value = self.value(levels).map(|value| value * noise.exp());
        let free = (self.limit(levels[4]) - FRACTIONS[levels[0]]).max(0.0);
        Outcome {
            oom: value.is_none(),
            free_ratio: value.map(|_| free),
            accepted: if value.is_some() { self.accepted(levels[4]) } else { Vec::new() },
            value,
            loads: Vec::new(),
        }
    }

    fn optimum(&self) -> f64 {
        let mut best = 0.0_f64;
        for fraction in 0..FRACTIONS.len() {
            for cap in 0..CAPS.len() {
                for chunk in 0..CHUNKS.len() {
                    for backend in 0..3 {
                        for steps in 0..=6 {
                            let value = self.value(&[fraction, cap, chunk, backend, steps]);
                            best = best.max(value.unwrap_or(0.0));
                        }
                    }
                }
            }
        }
        best
    }
}

/// Plays the search to its end. Returns what it found, and how many starts it took.
fn play(server: &Server, space: &Space, starts: usize, seed: u64) -> (Found, Vec<Seen>) {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let noise = Normal::new(0.0, 0.01).unwrap();
    let mut seen = Vec::new();
    loop {
        match next(space, &seen, starts) {
            Ask::Start { levels, .. } => {
                let outcome = server.outcome(&levels, noise.sample(&mut rng));
                seen.push(Seen { levels, loads: Vec::new(), outcome });
                assert!(seen.len() <= starts, "more starts than there may be");
            }
            Ask::Done(found) => return (found, seen),
        }
    }
}

#[test]
fn the_hidden_optimum_is_found_in_far_fewer_starts_than_the_grid() {
    let mut told = Vec::new();
    for seed in 0..20 {
        let server = Server::drawn(seed);
        let space = server.space();
        let (found, seen) = play(&server, &space, space.grid() / 3, seed);
        let value = server.value(&found.levels.unwrap()).unwrap();
        told.push((seed, value / server.optimum(), seen.len()));
    }
    let grid = FRACTIONS.len() * CAPS.len() * CHUNKS.len() * 3 * 7;
    let bad: Vec<_> = told.iter().filter(|(_, ratio, starts)| *ratio < 0.97 || *starts > grid / 3).collect();
    assert!(bad.is_empty(), "{bad:?} of {told:?}");
}

/// A small grid leaves little to save: a third of it is not much more than its axes.
#[test]
fn a_small_grid_is_searched_in_a_third_of_its_starts_too() {
    let mut told = Vec::new();
    for seed in 0..20 {
        let server = Server::drawn(100 + seed);
        let mut space = server.space();
        // Three caps, three chunks, four numbers of steps, four fractions: 144 starts.
        for (axis, keep) in
            [(0, vec![0, 2, 4, 6]), (1, vec![0, 2, 4]), (2, vec![0, 2, 4]), (3, vec![0]), (4, vec![0, 1, 2, 4])]
        {
            space.axes[axis].values = keep.iter().map(|level| space.axes[axis].values[*level].clone()).collect();
        }
        space.base = vec![0, 0, 0, 0, 2];
        let map = |levels: &[usize]| {
            let of = |axis: usize| {
                server.space().axes[axis]
                    .values
                    .iter()
                    .position(|value| *value == space.axes[axis].values[levels[axis]])
                    .unwrap()
            };
            (0..5).map(of).collect::<Vec<_>>()
        };
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let noise = Normal::new(0.0, 0.01).unwrap();
        let mut seen: Vec<Seen> = Vec::new();
        let starts = space.grid() / 3;
        let found = loop {
            match next(&space, &seen, starts) {
                Ask::Start { levels, .. } => {
                    let outcome = server.outcome(&map(&levels), noise.sample(&mut rng));
                    seen.push(Seen { levels, loads: Vec::new(), outcome });
                }
                Ask::Done(found) => break found,
            }
        };
        let mut best = 0.0_f64;
        for index in 0..space.grid() {
            let mut rest = index;
            let levels: Vec<usize> = space
                .axes
                .iter()
                .map(|axis| {
                    let level = rest % axis.values.len();
                    rest /= axis.values.len();
                    level
                })
                .collect();
            best = best.max(server.value(&map(&levels)).unwrap_or(0.0));
        }
        let value = found.levels.and_then(|levels| server.value(&map(&levels))).unwrap_or(0.0);
        told.push((seed, value / best, seen.len(), starts));
    }
    let bad: Vec<_> = told.iter().filter(|(_, ratio, starts, most)| *ratio < 0.97 || starts > most).collect();
    assert!(bad.is_empty(), "{bad:?} of {told:?}");
}

#[test]
fn what_was_seen_is_never_asked_for_again_after_a_kill() {
    let server = Server::drawn(3);
    let space = server.space();
    let (found, seen) = play(&server, &space, 100, 3);
    for cut in 0..seen.len() {
        match next(&space, &seen[..cut], 100) {
            Ask::Start { levels, .. } => assert_eq!(levels, seen[cut].levels, "after {cut}"),
            Ask::Done(_) => panic!("done after {cut} of {}", seen.len()),
        }
    }
    assert_eq!(next(&space, &seen, 100), Ask::Done(found));
}

#[test]
fn a_profile_that_does_not_start_is_given_less_memory() {
    let server = Server::drawn(1);
    let space = Space { base: vec![7, 1, 1, 0, 3], ..server.space() };
    let (found, _) = play(&server, &space, 60, 1);
    assert!(server.value(&found.levels.unwrap()).is_some());
}

#[test]
fn nothing_that_starts_is_no_find() {
    let server = Server { cliff: 0.5, ..Server::drawn(1) };
    let (found, seen) = play(&server, &server.space(), 60, 1);
    assert_eq!((found.levels, seen.len() < 8), (None, true));
}

#[test]
fn a_value_of_the_profile_is_a_level_and_numbers_are_sorted() {
    let given = AxisValues { path: "memory.fraction".into(), values: vec!["0.9".into(), "0.80".into()] };
    let (axis, level) = Axis::new(&given, Some("0.85"));
    assert_eq!((axis.values.join(" ").as_str(), level, axis.kind), ("0.80 0.85 0.9", 1, AxisKind::Memory));
    let given = AxisValues { path: "attention_backend".into(), values: vec!["triton".into(), "fa3".into()] };
    let (axis, level) = Axis::new(&given, None);
    assert_eq!((axis.values.join(" ").as_str(), level, axis.kind), ("triton fa3", 0, AxisKind::Choice));
}
