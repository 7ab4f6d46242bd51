//! Servers that are there, whoever started them: found by what listens, by who holds a GPU, and by the log that a process
//! has open. Nothing is written, and nothing is asked that a server would have to compute.

mod find;
mod tell;

pub use find::{Found, find};
pub use tell::{Page, Told, Watched, Watching, pages};

use crate::engine::{self, Definition};
use crate::profile::EngineKind;

/// The engines that are told apart by what their command lines hold.
const KINDS: [(EngineKind, &[&str]); 4] = [
    (EngineKind::Sglang, &["sglang"]),
    (EngineKind::Vllm, &["vllm"]),
    (EngineKind::Llamacpp, &["llama-server", "llama_server", "llamacpp", "llama.cpp"]),
    (EngineKind::Trtllm, &["trtllm-serve"]),
];

/// The engine that a command line starts, if it is one that orch knows.
pub fn engine_of(words: &[String]) -> Option<EngineKind> {
    // What follows the program is soon a model's name, which may hold any word.
    let program = words.iter().take(4).map(|word| word.rsplit('/').next().unwrap_or(word));
    let first: Vec<&str> = program.collect();
    if first.get(1) == Some(&"sim") && first.first().is_some_and(|name| name.starts_with("orch")) {
        return Some(EngineKind::Sim);
    }
    let has = |names: &[&str]| first.iter().any(|word| names.iter().any(|name| word.contains(name)));
    KINDS.iter().find(|(_, names)| has(names)).map(|(kind, _)| *kind)
}

/// The definition that a server's log is read by; of a simulated one, that of the engine it plays.
pub fn definition(kind: EngineKind, words: &[String]) -> Option<Definition> {
    let folders = engine::default_folders();
    if kind != EngineKind::Sim {
        return engine::definition(kind, &folders).ok();
    }
    let scenario = words.iter().skip_while(|word| *word != "--scenario").nth(1)?;
    let text = std::fs::read_to_string(scenario).unwrap_or_else(|_| scenario.clone());
    let played = crate::sim::Scenario::parse("scenario", &text).ok()?.played();
    let kind = match played {
        crate::sim::Played::Sglang => EngineKind::Sglang,
        crate::sim::Played::Vllm => EngineKind::Vllm,
        crate::sim::Played::Llamacpp => EngineKind::Llamacpp,
    };
    engine::definition(kind, &folders).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_engine_is_told_by_its_program_and_not_by_its_model() {
        let of = |line: &str| engine_of(&line.split(' ').map(str::to_owned).collect::<Vec<_>>());
        assert_eq!(of("python3 -m sglang.launch_server --model-path x"), Some(EngineKind::Sglang));
        assert_eq!(of("/opt/venv/bin/python /opt/venv/bin/vllm serve Qwen/Qwen3-8B"), Some(EngineKind::Vllm));
        assert_eq!(of("/usr/bin/llama-server -m x.gguf"), Some(EngineKind::Llamacpp));
        assert_eq!(of("/usr/bin/orch sim --port 3"), Some(EngineKind::Sim));
        assert_eq!(of("python3 serve.py --port 80 --model /models/vllm-test"), None);
        assert_eq!(of("tail -f /var/log/x.log"), None);
    }
}
