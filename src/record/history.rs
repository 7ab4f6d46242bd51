//! How starts of a profile went before, for what is usual: only starts whose caches were in the same state are alike.

use std::collections::BTreeMap;

use serde_json::Value;

use super::index::Filter;
use super::model::{HostInfo, KnownGood, MemoryPoint, Record};
use super::{RunId, Store};

/// So many of the newest runs of a series are looked at for what is usual.
const PAST: u32 = 20;

/// A start that came to readiness.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PastStart {
    /// The run's id.
    pub run: String,
    /// Seconds from the launch to readiness.
    pub ready_s: f64,
    /// Seconds from the beginning of the run to its end, where it came to one.
    pub total_s: Option<f64>,
    /// `cold` or `warm`, where that is known.
    pub weights_cache: Option<String>,
    /// `cold` or `warm`, where that is known.
    pub jit_cache: Option<String>,
    /// Seconds by phase.
    pub phases: BTreeMap<String, f64>,
    /// Memory left, phase by phase.
    pub memory: Vec<MemoryPoint>,
    /// `memory.fraction` of its profile.
    pub fraction: Option<f64>,
}

impl PastStart {
    /// Reads it off a record; `None` where the run started nothing, or what it started was never ready.
    pub fn of(record: &Record) -> Option<Self> {
        let startup = record.startup.as_ref()?;
        Some(PastStart {
            run: record.id.clone(),
            ready_s: startup.ready_s?,
            total_s: record.ended_at.map(|ended| (ended - record.started_at).as_secs_f64()),
            weights_cache: startup.weights_cache.clone(),
            jit_cache: startup.jit_cache.clone(),
            phases: startup.phases.iter().map(|phase| (phase.name.clone(), phase.s)).collect(),
            memory: startup.memory.clone(),
            fraction: fraction(&record.profile),
        })
    }

    /// Whether its caches were in this state. What is not known of either fits everything.
    pub fn is_alike(&self, weights_cache: Option<&str>, jit_cache: Option<&str>) -> bool {
        let fits = |own: &Option<String>, other: Option<&str>| match (own, other) {
            (Some(own), Some(other)) => own == other,
            _ => true,
        };
        fits(&self.weights_cache, weights_cache) && fits(&self.jit_cache, jit_cache)
    }
}

fn fraction(profile: &Value) -> Option<f64> {
    profile.get("memory")?.get("fraction")?.as_f64()
}

impl KnownGood {
    /// What it says about a failure of this kind of a start that asked for another fraction.
    pub fn sentence(&self, kind: &str, asked: Option<f64>) -> Option<String> {
        let is_of_memory = (kind.starts_with("oom_") && kind != "oom_host") || kind == "gpu_busy";
        let fraction = self.fraction.filter(|known| is_of_memory && Some(*known) != asked)?;
        let run = self.run.parse::<RunId>().map_or_else(|_| self.run.clone(), |id| id.short());
        Some(format!("memory.fraction {fraction} is known to start here ({run})."))
    }
}

/// How starts of a profile on this host went before, newest first.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PastStarts(pub Vec<PastStart>);

impl PastStarts {
    /// Those whose caches were in this state, newest first.
    pub fn alike(&self, weights_cache: Option<&str>, jit_cache: Option<&str>) -> Vec<&PastStart> {
        self.0.iter().filter(|start| start.is_alike(weights_cache, jit_cache)).collect()
    }

    /// Those of a profile on a host, as far as a store tells. A series may hold profiles that start otherwise, and results
    /// may come from several hosts. Without a store that reads nothing is missing but what is usual.
    pub fn of(store: &Store, series: &str, name: &str, host: Option<&HostInfo>) -> Self {
        let (series, name) = (Some(series.to_owned()), Some(name.to_owned()));
        let filter = Filter { series, name, limit: Some(PAST), ..Filter::default() };
        let rows = store.list(&filter).map(|listing| listing.rows).unwrap_or_default();
        let records = rows.iter().filter_map(|row| store.record(&store.find(&row.id).ok()?).ok());
        let here = records.filter(|record| Some(&record.host) == host);
        PastStarts(here.filter_map(|record| PastStart::of(&record)).collect())
    }

    /// The one to hold a start against that failed with `asked` as its `memory.fraction`: the highest fraction that is known
    /// to start, since who lowers it to the newest known may give away more than is needed. A higher one than was asked
    /// helps only where the cache has no room. Where no fraction is known, the newest start.
    pub fn known_good(&self, asked: Option<f64>, kind: &str) -> Option<KnownGood> {
        let helps = |fraction: f64| match asked {
            Some(asked) if kind == "oom_kv" => fraction != asked,
            Some(asked) => fraction < asked,
            None => true,
        };
        // Of equal ones the newest, which stands first.
        let with = self.0.iter().rev().filter_map(|start| Some((start, start.fraction.filter(|known| helps(*known))?)));
        let highest = with.max_by(|(_, a), (_, b)| a.total_cmp(b)).map(|(start, _)| start);
        let start = highest.or_else(|| self.0.first())?;
        Some(KnownGood { run: start.run.clone(), fraction: start.fraction, memory: start.memory.clone() })
    }

    /// How long a phase usually takes in seconds, in this state of the caches.
    pub fn phase_s(&self, phase: &str, weights_cache: Option<&str>, jit_cache: Option<&str>) -> Option<f64> {
        median(self.alike(weights_cache, jit_cache).iter().filter_map(|start| start.phases.get(phase).copied()))
    }

    /// How long a start usually takes in seconds, in this state of the caches.
    pub fn ready_s(&self, weights_cache: Option<&str>, jit_cache: Option<&str>) -> Option<f64> {
        median(self.alike(weights_cache, jit_cache).iter().map(|start| start.ready_s))
    }

    /// How long a start usually takes at most, whatever its caches hold: what a limit goes by, since nobody knows that
    /// state before.
    pub fn slowest_usual_s(&self) -> Option<f64> {
        let states = [Some("cold"), Some("warm"), None];
        let all = states.iter().flat_map(|weights| states.iter().map(move |jit| (*weights, *jit)));
        all.filter_map(|(weights, jit)| self.ready_s(weights, jit)).reduce(f64::max)
    }
}

/// The middle one; of two, the mean.
pub(crate) fn median(values: impl Iterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => None,
        count if count % 2 == 1 => Some(values[middle]),
        _ => Some((values[middle - 1] + values[middle]) / 2.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn start(weights: Option<&str>, jit: Option<&str>, ready_s: f64) -> PastStart {
        PastStart {
            ready_s,
            weights_cache: weights.map(Into::into),
            jit_cache: jit.map(Into::into),
            phases: BTreeMap::from([("weights".to_owned(), ready_s / 2.0)]),
            ..PastStart::default()
        }
    }

    #[test]
    fn the_highest_fraction_that_starts_is_the_one_to_go_back_to() {
        let past = [("r4", None), ("r3", Some(0.80)), ("r2", Some(0.88)), ("r1", Some(0.88)), ("r0", Some(0.95))];
        let past = PastStarts(
            past.into_iter()
                .map(|(run, fraction)| PastStart { run: run.into(), fraction, ..PastStart::default() })
                .collect(),
        );
        let known = |asked, kind| past.known_good(asked, kind).map(|known| (known.run, known.fraction)).unwrap();
        assert_eq!(known(Some(0.92), "oom_capture"), ("r2".to_owned(), Some(0.88)));
        assert_eq!(known(Some(0.88), "oom_capture"), ("r3".to_owned(), Some(0.80)));
        assert_eq!(known(Some(0.70), "oom_kv"), ("r0".to_owned(), Some(0.95)), "the cache needs more");
        assert_eq!(known(None, "oom_weights"), ("r0".to_owned(), Some(0.95)));
        assert_eq!(known(Some(0.70), "bad_flag"), ("r4".to_owned(), None), "the newest, to compare memory with");
        assert_eq!(PastStarts::default().known_good(None, "oom_kv"), None);
    }

    #[test]
    fn cold_starts_say_nothing_of_warm_ones() {
        let past = PastStarts(vec![
            start(Some("warm"), Some("warm"), 40.0),
            start(Some("cold"), Some("warm"), 300.0),
            start(Some("warm"), Some("warm"), 44.0),
            start(Some("warm"), Some("cold"), 1200.0),
        ]);
        assert_eq!(past.ready_s(Some("warm"), Some("warm")), Some(42.0));
        assert_eq!(past.phase_s("weights", Some("cold"), Some("warm")), Some(150.0));
        assert_eq!(past.ready_s(Some("cold"), Some("cold")), None);
        assert_eq!(past.ready_s(Some("warm"), None), Some(44.0), "what is not known yet fits all");
        assert_eq!(past.slowest_usual_s(), Some(1200.0));
        assert_eq!((past.phase_s("serving", None, None), PastStarts::default().slowest_usual_s()), (None, None));
    }
}
