//! What the client says of a server of known behaviour, against what that server wrote down. The limits here are loose,
//! since tests run beside each other; `benches/known_answer.rs` has those that are promised.

use std::path::Path;
use std::time::Duration;

use orch::selftest::{Course, run};

use crate::server::block_on;

#[test]
fn the_client_says_what_the_server_did() {
    let folder = tempfile::tempdir().unwrap();
    for tokens_per_chunk in [1, 4] {
        let course = Course {
            streams: 16,
            requests: 32,
            ttft: Duration::from_millis(50),
            gap: Duration::from_millis(20),
            chunks: 12,
            tokens_per_chunk,
        };
        let orch = Path::new(env!("CARGO_BIN_EXE_orch"));
        let outcome = block_on(run(orch, &course, None, folder.path())).unwrap();
        assert_eq!((outcome.ok, outcome.failed), (32, 0));
        assert!(outcome.counts_agree, "requests, chunks and tokens are those of the ledger: {outcome:?}");
        for (metric, least) in [("ttft_ms", 49.0), ("chunk_gap_ms", 0.0), ("e2e_ms", 49.0 + 11.0 * 20.0)] {
            let error = outcome.error_ms(metric, "p50").unwrap();
            assert!(error < 50.0, "{metric} is off by {error} ms: {outcome:?}");
            let p50 = outcome.compared.iter().find(|one| one.metric == metric && one.percentile == "p50").unwrap();
            assert!(p50.client_ms >= least, "{metric}: the server is never early: {outcome:?}");
        }
    }
}

#[test]
fn the_self_test_prints_its_figures_and_later_runs_know_the_ceiling() {
    let home = tempfile::tempdir().unwrap();
    let orch = |words: &[&str]| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_orch"));
        command.args(words).env("XDG_STATE_HOME", home.path()).env("ORCH_MEASURE_SCOPE", home.path()).output().unwrap()
    };
    let output = orch(&["selftest", "client", "--streams", "2", "--no-pin", "--json"]);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let told: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&told["exactness"][0]["counts_agree"], &told["pins"]), (&true.into(), &serde_json::Value::Null));
    assert!(told["ceiling"][0]["ceiling_chunks_per_s"].as_f64().unwrap() > 100.0, "{told:#}");
    assert!(told["timer_error_ms"]["p50"].as_f64().unwrap() > 0.0);

    let server = crate::server::start(vec![crate::server::Reply::tokens(3, 4)]);
    let url = server.url();
    let bench = ["bench", "--url", &url, "--requests", "16", "--concurrency", "1", "--no-record", "--json"];
    let output = orch(&bench);
    let record: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let share = record["steps"][0]["client"]["ceiling_ratio"].as_f64().unwrap();
    assert!(share > 0.0 && share < 1.0, "{share}");
}
