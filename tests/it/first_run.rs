//! The first run: a real engine, a real model, one command; then the second, which compares.

use std::path::Path;

use serde_json::Value;

use crate::support::{Home, read_json};

/// The rows of `requests.jsonl.zst`.
fn rows(run: &Path) -> Vec<Value> {
    let packed = std::fs::File::open(run.join("requests.jsonl.zst")).unwrap();
    let text = String::from_utf8(zstd::decode_all(packed).unwrap()).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// What llama.cpp itself says of a request.
#[derive(Debug, PartialEq)]
struct Own {
    prompt_ms: f64,
    predicted_ms: f64,
    predicted_n: f64,
}

/// The engine's own times of every request, in order, from its log.
fn own_times(run: &Path) -> Vec<Own> {
    let log = std::fs::read_to_string(run.join("server.log")).unwrap();
    let number = |line: &str, after: &str| -> f64 {
        let rest = line.split_once(after).unwrap().1.trim_start();
        rest.split_whitespace().next().unwrap().parse().unwrap()
    };
    let mut own = Vec::new();
    let mut prompt_ms = None;
    for line in log.lines() {
        if line.contains("prompt eval time =") {
            prompt_ms = Some(number(line, "prompt eval time ="));
        } else if line.contains(" eval time =") {
            own.push(Own {
                prompt_ms: prompt_ms.take().unwrap(),
                predicted_ms: number(line, " eval time ="),
                predicted_n: number(line, "ms /"),
            });
        }
    }
    own
}

/// The median of how far values are from what they should be, as a share.
fn median_deviation(pairs: impl Iterator<Item = (f64, f64)>) -> f64 {
    let mut deviations: Vec<f64> = pairs.map(|(is, should)| (is / should - 1.0).abs()).collect();
    deviations.sort_by(f64::total_cmp);
    deviations[deviations.len() / 2]
}

#[test]
fn the_numbers_of_a_single_stream_are_the_engines_own() {
    let Some(home) = Home::with_engine() else { return };
    let profile = home.write(
        "profiles/one.yaml",
        &format!(
            "extends: {}\nport: {}\nname: one\nbench: {{single: {{use: chat-mix, concurrency: 1, requests: 16, output: null, output_tokens: 64}}, ladder: null}}\n",
            std::env::current_dir().unwrap().join("profiles/smollm2.yaml").display(),
            crate::support::free_port()
        ),
    );
    let ran = home.run(&["run", profile.to_str().unwrap(), "--json"]).expect(0);
    let record: Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!(record, home.record(), "what --json prints is the record that is kept");
    assert_eq!(record["verdict"]["kind"], "no_baseline");
    assert_eq!(record["complete"], true);
    assert_eq!(record["steps"][0]["valid"], true);

    let run = home.newest_run();
    let rows = rows(&run);
    assert_eq!(rows.len(), 16);
    // The proof of readiness and the warm-up come before the measured requests, nothing comes after them.
    let own = own_times(&run);
    let own = &own[own.len() - rows.len()..];
    for (row, own) in rows.iter().zip(own) {
        assert_eq!(row["outcome"], "ok");
        assert_eq!(row["output_tokens"].as_f64().unwrap(), own.predicted_n, "{row}");
        assert_eq!(row["token_source"], "usage");
    }
    // On a busy machine single requests may be late; the middle one is not, unless our clock is wrong.
    let e2e =
        rows.iter().zip(own).map(|(row, own)| (row["last_ms"].as_f64().unwrap(), own.prompt_ms + own.predicted_ms));
    assert!(median_deviation(e2e) < 0.03);
    let tpot =
        rows.iter().zip(own).map(|(row, own)| (row["tpot_ms"].as_f64().unwrap(), own.predicted_ms / own.predicted_n));
    assert!(median_deviation(tpot) < 0.03);

    assert!(home.ps().is_empty(), "nothing of ours is left");
    assert_eq!(record["left"]["processes"], 0);
    let command = std::fs::read_to_string(run.join("command.txt")).unwrap();
    assert!(command.contains("llama-server"), "{command}");
}

#[test]
fn a_second_run_is_compared_with_the_baseline_that_was_set() {
    let Some(home) = Home::with_engine() else { return };
    let profile = home.write(
        "profiles/short.yaml",
        &format!(
            "extends: {}\nport: {}\nname: short\nbench: {{single: {{use: chat-mix, concurrency: 1, requests: 16, output: null, output_tokens: 16}}, ladder: null}}\n",
            std::env::current_dir().unwrap().join("profiles/smollm2.yaml").display(),
            crate::support::free_port()
        ),
    );
    let profile = profile.to_str().unwrap();
    let first = home.run(&["run", profile]).expect(0);
    assert!(first.stdout.contains("NO BASELINE"), "{}", first.stdout);
    assert!(first.stdout.contains("orch baseline set r"), "{}", first.stdout);
    let baseline = read_json(&home.newest_run().join("run.json"))["id"].clone();
    home.run(&["baseline", "set"]).expect(0);

    // A machine that other work slows down may rightly make this one slower; what must hold is that it was compared.
    let second = home.run(&["run", profile]);
    assert!([0, 6].contains(&second.code), "{second:?}");
    let record = home.record();
    assert_ne!(record["id"], baseline);
    let kind = record["verdict"]["kind"].as_str().unwrap();
    assert!(["ok", "improved", "inconclusive", "regressed"].contains(&kind), "{record:#}");
    assert!(!record["comparisons"].as_array().unwrap().is_empty());
    for comparison in record["comparisons"].as_array().unwrap() {
        assert!(comparison["was"].is_number() && comparison["now"].is_number(), "{comparison}");
    }
    // Judged afresh from the two records, the verdict is the same.
    let compared = home.run(&["compare", "latest", "--against", "baseline", "--json"]);
    assert_eq!(compared.code, second.code);
    let compared: Value = serde_json::from_str(&compared.stdout).unwrap();
    assert_eq!(compared["verdict"]["kind"], record["verdict"]["kind"]);
    assert_eq!(compared["comparisons"], record["comparisons"]);
}
