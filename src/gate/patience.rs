//! How long a phase may be silent before it looks stalled, and how long a start may take.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::engine::LogRules;
use crate::record::history::PastStarts;
use crate::units::parse_duration;

/// A phase that nothing is known of is given so much.
const UNKNOWN: Duration = Duration::from_secs(10 * 60);
/// A phase is given so much more silence than it usually takes as a whole,
const TIMES_USUAL: f64 = 3.0;
/// and never less than this.
const LEAST: Duration = Duration::from_secs(30);
/// A start that has no limit of its own may take at least this long,
pub const LEAST_LIMIT: Duration = Duration::from_secs(20 * 60);
/// and this many times as long as usual.
pub const LIMIT_TIMES_USUAL: f64 = 3.0;

/// How long phases may be silent: as the profile says, else by how long they took before, else by the engine's definition.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Patience {
    asked: BTreeMap<String, Duration>,
    defined: BTreeMap<String, Duration>,
    past: PastStarts,
}

impl Patience {
    /// From the profile, the history and the definition.
    pub fn new(asked: &BTreeMap<String, Duration>, past: PastStarts, rules: &LogRules) -> Self {
        let defined =
            |rule: &crate::engine::PhaseRule| Some((rule.phase.clone(), parse_duration(rule.patience.as_ref()?).ok()?));
        Patience { asked: asked.clone(), defined: rules.phases.iter().filter_map(defined).collect(), past }
    }

    /// How long a phase may be silent, in this state of the caches.
    pub fn of(&self, phase: &str, weights_cache: Option<&str>, jit_cache: Option<&str>) -> Duration {
        if let Some(asked) = self.asked.get(phase) {
            return *asked;
        }
        // Each that could be alike: nobody is called stalled for having a cold cache that is not seen yet.
        let alike = self.past.alike(weights_cache, jit_cache);
        let longest = alike.iter().filter_map(|start| start.phases.get(phase).copied()).reduce(f64::max);
        let usual = longest.and_then(|s| Duration::try_from_secs_f64(s * TIMES_USUAL).ok()).map(|span| span.max(LEAST));
        usual.or_else(|| self.defined.get(phase).copied()).unwrap_or(UNKNOWN)
    }

    /// How long a phase usually takes, in seconds; `None` without history.
    pub fn usual_s(&self, phase: &str, weights_cache: Option<&str>, jit_cache: Option<&str>) -> Option<f64> {
        self.past.phase_s(phase, weights_cache, jit_cache)
    }
}

/// The limit of a start whose profile leaves it open, by how long starts usually take, in seconds.
pub fn auto_limit(usual_ready_s: Option<f64>) -> Duration {
    let usual = usual_ready_s.and_then(|usual| Duration::try_from_secs_f64(LIMIT_TIMES_USUAL * usual).ok());
    usual.unwrap_or_default().max(LEAST_LIMIT)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::PhaseRule;
    use crate::record::history::PastStart;

    fn start(jit: &str, compile_s: f64) -> PastStart {
        PastStart {
            jit_cache: Some(jit.into()),
            phases: BTreeMap::from([("compile".to_owned(), compile_s)]),
            ..PastStart::default()
        }
    }

    #[test]
    fn the_profile_wins_then_history_of_the_same_caches_then_the_definition() {
        let rule = |phase: &str, patience: &str| PhaseRule {
            phase: phase.into(),
            patience: Some(patience.into()),
            ..PhaseRule::default()
        };
        let rules = LogRules { phases: vec![rule("compile", "30m"), rule("weights", "20m")], ..LogRules::default() };
        let asked = BTreeMap::from([("graph_capture".to_owned(), Duration::from_secs(900))]);
        let past = PastStarts(vec![start("warm", 4.0), start("cold", 600.0), start("cold", 400.0)]);
        let patience = Patience::new(&asked, past, &rules);
        let s = |phase, jit| patience.of(phase, None, jit).as_secs();
        assert_eq!(s("graph_capture", None), 900);
        assert_eq!((s("compile", Some("warm")), s("compile", Some("cold")), s("compile", None)), (30, 1800, 1800));
        assert_eq!((s("weights", None), s("http_up", None)), (1200, 600));
        assert_eq!(patience.usual_s("compile", None, Some("cold")), Some(500.0));
    }

    #[test]
    fn a_start_may_take_three_times_as_long_as_usual_and_at_least_twenty_minutes() {
        assert_eq!([None, Some(42.0), Some(1000.0)].map(|usual| auto_limit(usual).as_secs()), [1200, 1200, 3000]);
    }
}
