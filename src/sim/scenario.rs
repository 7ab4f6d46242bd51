//! How the simulated engine behaves: the typed form of a scenario.
//!
//! The keys, their shapes and what is said of each stand in `profile`'s field table, which also reads them; the values of
//! absent keys are the `Default`s here.

mod events;
mod faults;
mod serve;
mod speed;

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::processes::Processes;
use crate::profile::{self, ProfileError};
use crate::units::{read_durations, write_durations};
pub use events::{Compile, Death, Die, Drain, Restart, Stall, Stop};
pub use faults::{FaultKind, RequestFault};
pub use serve::{Answer, Broken, Reasoning, RoleChunk, Said, Serve};
pub use speed::{Natural, Noise, Speed};

/// A scenario. What is `None` is settled when the server starts: by what was asked for, by the engine that is played, or
/// by nothing, which then means no limit.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Scenario {
    /// Seed of everything that is drawn; without one it is drawn at the start.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
    /// The engine that is played.
    #[serde(rename = "as", skip_serializing_if = "Option::is_none")]
    pub plays: Option<Played>,
    /// The version that it says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// The name that it serves.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub served_name: Option<String>,
    /// Requests at once that it was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_running_requests: Option<u32>,
    /// Tokens of a request, prompt and answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub context_length: Option<u64>,
    /// What it was asked to draft.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub speculative: Option<Speculative>,
    /// Processes that share the model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ranks: Option<u32>,
    /// How long each phase of the start takes, by the phase's name.
    #[serde(serialize_with = "write_durations", deserialize_with = "read_durations")]
    pub startup: BTreeMap<String, Duration>,
    /// How fast it is.
    pub speed: Speed,
    /// Share of drafts whose first, second, … token is accepted; none rises. `None`: as `speculative` says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub acceptance: Option<Vec<f64>>,
    /// Where answers stop by themselves.
    pub output: Natural,
    /// Its memory.
    pub memory: Memory,
    /// How its start fails.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fail: Option<Fail>,
    /// How it serves.
    pub serve: Serve,
    /// What SIGTERM does.
    pub stop: Stop,
    /// The processes beside the one that answers.
    pub processes: Processes,
}

/// An engine that can be played.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Played {
    /// SGLang.
    Sglang,
    /// vLLM.
    Vllm,
    /// llama.cpp's `llama-server`.
    Llamacpp,
}

impl Played {
    /// The word for it in profiles.
    pub fn word(self) -> &'static str {
        match self {
            Played::Sglang => "sglang",
            Played::Vllm => "vllm",
            Played::Llamacpp => "llamacpp",
        }
    }

    /// The version that it says unless it is told another: the one whose answers were recorded.
    pub fn reference_version(self) -> &'static str {
        match self {
            Played::Sglang => "0.5.23",
            Played::Vllm => "0.32.0",
            Played::Llamacpp => "b10434",
        }
    }
}

/// What it was asked to draft.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Speculative {
    /// Tokens a verify.
    pub steps: u32,
    /// Whether it really does.
    #[serde(default = "yes")]
    pub active: bool,
}

/// Its memory.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Memory {
    /// Gigabytes of a GPU.
    pub total_gb: f64,
    /// The fraction that it was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fraction: Option<f64>,
    /// The fraction above which it does not start.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cliff: Option<f64>,
}

impl Default for Memory {
    fn default() -> Self {
        Memory { total_gb: 80.0, fraction: None, cliff: None }
    }
}

/// How its start fails.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fail {
    /// The kind of failure.
    pub kind: String,
    /// The phase; `None` is the one that belongs to the kind.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<String>,
    /// How long after the phase began; `None` is in its middle.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "maybe_duration")]
    pub after: Option<Duration>,
}

fn yes() -> bool {
    true
}

/// A span of time that may be absent.
mod maybe_duration {
    use std::time::Duration;

    use serde::{Deserializer, Serializer};

    use crate::units::{read_duration, write_duration};

    pub(super) fn serialize<S: Serializer>(span: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
        match span {
            Some(span) => write_duration(span, serializer),
            None => serializer.serialize_none(),
        }
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
        read_duration(deserializer).map(Some)
    }
}

impl Scenario {
    /// Reads a scenario's file, or says everything that is wrong with it.
    pub fn load(path: &Path) -> Result<Self, ProfileError> {
        let json = profile::scenario_file(path, &profile::process_env)?;
        Ok(Self::from_json(json).unwrap_or_default())
    }

    /// Reads a scenario from text; `name` is what faults call it.
    pub fn parse(name: &str, text: &str) -> Result<Self, ProfileError> {
        let json = profile::scenario_text(name, text, &|_| None)?;
        Ok(Self::from_json(json).unwrap_or_default())
    }

    /// The scenario that a loaded profile holds under `engine.scenario`. What has been checked always fits.
    pub fn from_json(json: serde_json::Value) -> Result<Self, serde_json::Error> {
        serde_json::from_value(json)
    }

    /// The engine that is played.
    pub fn played(&self) -> Played {
        self.plays.unwrap_or(Played::Sglang)
    }

    /// The version that it says.
    pub fn said_version(&self) -> &str {
        self.version.as_deref().unwrap_or_else(|| self.played().reference_version())
    }

    /// Tokens drafted a verify, as asked; 0 without speculation.
    pub fn draft_steps(&self) -> u32 {
        let drafted = self.acceptance.as_ref().map(|shares| u32::try_from(shares.len()).unwrap_or(u32::MAX));
        self.speculative.map(|asked| asked.steps).or(drafted).unwrap_or(0)
    }

    /// The share of drafts whose token at each position is accepted; empty where it does not draft.
    pub fn accepted_shares(&self) -> Vec<f64> {
        if self.speculative.is_some_and(|asked| !asked.active) {
            return Vec::new();
        }
        match &self.acceptance {
            Some(shares) => shares.clone(),
            None => (1..=self.draft_steps()).map(|position| 0.8_f64.powi(position.cast_signed())).collect(),
        }
    }

    /// Requests that run at once; `None` is no limit.
    pub fn running_cap(&self) -> Option<u32> {
        match (self.serve.cap_running, self.max_running_requests) {
            (Some(real), Some(asked)) => Some(real.min(asked)),
            (real, asked) => real.or(asked),
        }
    }

    /// Tokens of the cache that it tells of: as many as it can hold, or all that its requests could fill.
    pub fn kv_room(&self) -> u64 {
        let running = u64::from(self.running_cap().unwrap_or(64));
        self.serve.kv_tokens.unwrap_or_else(|| self.context().saturating_mul(running))
    }

    /// Tokens of a request, prompt and answer.
    pub fn context(&self) -> u64 {
        self.context_length.unwrap_or(32_768)
    }

    /// How long running requests may go on after SIGTERM.
    pub fn drain(&self) -> Drain {
        self.stop.drain.unwrap_or(match self.played() {
            Played::Sglang => Drain::Forever,
            Played::Vllm | Played::Llamacpp => Drain::None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults(text: &str) -> Vec<String> {
        let error = Scenario::parse("s.yaml", text).expect_err(text);
        error.faults().map(|fault| format!("{} | {}", fault.message, fault.help.unwrap_or_default())).collect()
    }

    #[test]
    fn a_scenario_may_say_nothing() {
        for text in ["", "# nothing yet\n", "{}"] {
            assert_eq!(Scenario::parse("s.yaml", text).unwrap(), Scenario::default(), "{text}");
        }
    }

    #[test]
    fn the_contracts_example_is_read() {
        let text = "
seed: 1
as: sglang
version: \"0.5.23\"
ranks: 2
startup: {weights: 3s, graph_capture: 2s}
speed: {ttft: 50ms, step: 20ms, tokens_per_step: 4, noise: {start: 1%, request: 2%, modes: [1, 1.1]}}
acceptance: [0.8, 0.6, 0.4]
memory: {total_gb: 80, cliff: 0.90}
fail: {kind: oom_capture, at: graph_capture, after: 1s}
serve: {garbage: 0, stall: {at: 5s, for: 2s}, buffer: false, cap_running: 10}
";
        let scenario = Scenario::parse("s.yaml", text).unwrap();
        assert_eq!((scenario.seed, scenario.played(), scenario.ranks), (Some(1), Played::Sglang, Some(2)));
        assert_eq!(scenario.startup["weights"], Duration::from_secs(3));
        assert_eq!(scenario.speed.noise, Noise { start: 0.01, request: 0.02, modes: vec![1.0, 1.1] });
        assert_eq!(scenario.accepted_shares(), [0.8, 0.6, 0.4]);
        assert_eq!((scenario.draft_steps(), scenario.running_cap()), (3, Some(10)));
        assert_eq!(scenario.serve.stall.as_ref().unwrap().length, Duration::from_secs(2));
        assert_eq!(scenario.fail.as_ref().unwrap().kind, "oom_capture");
        let again = Scenario::from_json(serde_json::to_value(&scenario).unwrap()).unwrap();
        assert_eq!(again, scenario);
    }

    #[test]
    fn all_faults_are_told_at_once_with_the_nearest_key() {
        let text = "
sed: 1
as: sglan
speed: {ttft: 50, stepp: 20ms}
cap_running: 10
acceptance: [0.5, 0.6]
output: {from: 9, to: 2}
serve:
  faults:
    - {kind: statuss}
    - {kind: hang, status: 503, share: 5%, every: 3}
  die: {}
";
        let told = faults(text);
        let expected = [
            "unknown key `sed` | did you mean `seed`?",
            "unknown word `sglan` for `as`",
            "`speed.ttft`: `50` has no unit",
            "unknown key `speed.stepp` | did you mean `step`?",
            "unknown key `cap_running` | did you mean `serve.cap_running`?",
            "`acceptance`: a later token cannot be accepted more often",
            "`output` is upside down | write the smaller one first",
            "unknown word `statuss` for `serve.faults.1.kind`",
            "`status` is for `kind: status`, and the kind is `hang`",
            "`share` and `every` both say which requests a fault meets",
            "`serve.die` does not say when | write `at` or `after` or `mid_stream`",
        ];
        assert_eq!(told.len(), expected.len(), "{told:#?}");
        for wanted in expected {
            assert!(told.iter().any(|fault| fault.starts_with(wanted)), "{wanted}: {told:#?}");
        }
    }

    #[test]
    fn every_word_for_a_fault_is_known_to_both_sides() {
        for word in profile::fault_kinds() {
            let text = format!("serve: {{faults: [{{kind: {word}, share: 10%}}]}}");
            let scenario = Scenario::parse("s.yaml", &text).unwrap();
            let json = serde_json::to_value(scenario.serve.faults[0].kind).unwrap();
            assert_eq!(json, serde_json::json!(word));
        }
    }

    #[test]
    fn what_was_asked_holds_unless_the_scenario_gives_less() {
        let scenario = |text| Scenario::parse("s.yaml", text).unwrap();
        assert_eq!(scenario("max_running_requests: 16").running_cap(), Some(16));
        assert_eq!(scenario("{max_running_requests: 16, serve: {cap_running: 10}}").running_cap(), Some(10));
        assert_eq!(scenario("serve: {cap_running: 10}").running_cap(), Some(10));
        assert_eq!(scenario("{}").running_cap(), None);
        let drafts = scenario("speculative: {steps: 2}").accepted_shares();
        assert!((drafts[0] - 0.8).abs() < 1e-9 && (drafts[1] - 0.64).abs() < 1e-9 && drafts.len() == 2);
        let off = scenario("speculative: {steps: 2, active: false}");
        assert_eq!((off.draft_steps(), off.accepted_shares()), (2, Vec::new()));
        assert_eq!(scenario("as: llamacpp").drain(), Drain::None);
        assert_eq!(scenario("stop: {drain: 10s}").drain(), Drain::For(Duration::from_secs(10)));
    }
}
