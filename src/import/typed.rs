//! A flag's word as the value of a setting.

use serde_json::Value;

use crate::profile::EngineKind;

/// The value, or why there is none.
pub(super) fn value(key: &str, word: &str, kind: EngineKind) -> Result<Value, &'static str> {
    match key {
        "parallel.tensor"
        | "parallel.pipeline"
        | "parallel.data"
        | "parallel.expert"
        | "parallel.nodes"
        | "graphs.max_batch"
        | "derived.graph_tokens" => whole(word)
            .filter(|number| (1..=u64::from(u32::MAX)).contains(number))
            .map(Value::from)
            .ok_or("no number above 0"),
        "speculative.steps" | "speculative.topk" | "speculative.draft_tokens" => {
            whole(word).filter(|number| (1..=1024).contains(number)).map(Value::from).ok_or("no number from 1 to 1024")
        }
        "memory.gpu_layers" => match word {
            // llama-server's word for it; more layers than any model has.
            "all" => Ok(Value::from(999)),
            word => whole(word)
                .filter(|number| *number <= u64::from(u32::MAX))
                .map(Value::from)
                .ok_or("no number of layers"),
        },
        "context_length" | "max_running_requests" | "derived.pool_tokens" => {
            count(word, kind).filter(|number| *number > 0).map(Value::from).ok_or("no number above 0")
        }
        "memory.fraction" => {
            let fraction = word.parse::<f64>().ok().filter(|fraction| *fraction > 0.0 && *fraction <= 1.0);
            fraction.map(Value::from).ok_or("no share between 0 and 1")
        }
        _ if word.is_empty() => Err("empty"),
        _ => Ok(Value::from(word)),
    }
}

/// A list of batches.
pub(super) fn numbers(words: &[String]) -> Result<Value, &'static str> {
    let numbers: Option<Vec<u64>> = words.iter().map(|word| whole(word).filter(|number| *number > 0)).collect();
    numbers.filter(|numbers| !numbers.is_empty()).map(Value::from).ok_or("no list of numbers above 0")
}

fn whole(word: &str) -> Option<u64> {
    word.parse().ok()
}

/// vLLM reads `32k` as 32,000 and `32K` as 32,768; the others that take a letter mean 1,024 by it.
fn count(word: &str, kind: EngineKind) -> Option<u64> {
    if let Some(number) = whole(word) {
        return Some(number);
    }
    let (head, letter) = word.split_at_checked(word.len().checked_sub(1)?)?;
    let times: f64 = match (letter, kind) {
        ("k", EngineKind::Vllm) => 1e3,
        ("m", EngineKind::Vllm) => 1e6,
        ("k" | "K", _) => 1024.0,
        ("m" | "M", _) => 1_048_576.0,
        _ => return None,
    };
    let number = head.parse::<f64>().ok()? * times;
    (number.fract() == 0.0 && (1.0..9e15).contains(&number)).then_some(number as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_become_values_of_the_setting() {
        let of = |key: &str, word: &str| value(key, word, EngineKind::Sglang).map(|value| value.to_string());
        assert_eq!(of("parallel.tensor", "2").unwrap(), "2");
        assert_eq!(of("context_length", "32k").unwrap(), "32768");
        assert_eq!(value("context_length", "32k", EngineKind::Vllm), Ok(Value::from(32_000)));
        assert_eq!(value("context_length", "25.6k", EngineKind::Vllm), Ok(Value::from(25_600)));
        assert_eq!(of("memory.fraction", ".88").unwrap(), "0.88");
        assert_eq!(of("memory.gpu_layers", "all").unwrap(), "999");
        for (key, word) in [
            ("parallel.tensor", "0"),
            ("context_length", "auto"),
            ("context_length", "-1"),
            ("memory.fraction", "1.5"),
            ("model.dtype", ""),
            ("memory.gpu_layers", "auto"),
            ("context_length", "ü"),
        ] {
            assert!(of(key, word).is_err(), "{key} {word}");
        }
        assert_eq!(numbers(&["1".into(), "2".into()]), Ok(Value::from(vec![1, 2])));
    }
}
