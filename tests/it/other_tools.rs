//! Results in the shapes of other tools, and theirs as records.

use serde_json::Value;

use crate::server::{Reply, start};
use crate::support::Home;

/// A home with one measured run, its chunks kept.
fn measured() -> Home {
    let (home, server) = (Home::new(), start(vec![Reply::tokens(6, 3)]));
    let url = server.url();
    let ran = home.run(&["bench", "--url", &url, "--requests", "24", "--concurrency", "2", "--keep-chunks"]);
    // On a busy machine its numbers may not be used; written down they are all the same.
    assert!([0, 5].contains(&ran.code), "{}", ran.stderr);
    home
}

#[test]
fn what_is_exported_is_imported_back_with_the_same_values() {
    let home = measured();
    let record = home.record();
    let file = home.path("result.json");
    let path = file.to_str().unwrap();
    let exported = home.run(&["export", "latest", "--format", "vllm", "-o", path]).expect(0);
    assert!(exported.stderr.contains("`tpot` has another formula there"), "{}", exported.stderr);
    let text = std::fs::read_to_string(&file).unwrap();
    let value: Value = serde_json::from_str(&text).unwrap();
    assert_eq!((&value["completed"], &value["max_concurrency"]), (&24.into(), &2.into()));
    home.run(&["import-results", path, "--from", "vllm", "--series", "theirs"]).expect(0);
    let listed = home.run(&["list", "--json"]).expect(0);
    assert!(listed.stdout.contains("theirs"), "{}", listed.stdout);
    let shown = home.run(&["history", "theirs"]);
    assert_eq!(shown.code, 0, "{}", shown.stderr);
    let mut imported = std::fs::read_dir(home.results().join("runs")).unwrap().map(|entry| entry.unwrap().path());
    let imported = imported.find(|path| path.to_str().unwrap().contains("imported")).unwrap();
    let imported = crate::support::read_json(&imported.join("run.json"));
    assert_eq!(imported["warnings"][0]["id"], "imported");
    assert_eq!(imported["complete"], true);
    let (ours, theirs) = (&record["steps"][0]["metrics"], &imported["steps"][0]["metrics"]);
    for id in ["requests_per_s", "output_tokens_per_s", "total_tokens_per_s"] {
        assert_eq!(ours[id], theirs[id], "{id}");
    }
    for id in ["first_chunk_ms", "chunk_gap_ms", "e2e_ms"] {
        for part in ["mean", "p50", "p99"] {
            let (one, two) = (ours[id][part].as_f64().unwrap(), theirs[id][part].as_f64().unwrap());
            assert!((one - two).abs() < 1e-6, "{id}.{part}: {one} {two}");
        }
    }
}

#[test]
fn each_format_is_written_and_a_wrong_file_is_told() {
    let home = measured();
    for format in ["sglang", "llmd"] {
        let exported = home.run(&["export", "latest", "--format", format]).expect(0);
        let value: Value = serde_json::from_str(&exported.stdout).unwrap();
        assert!(value.is_object(), "{format}");
    }
    let log = home.run(&["export", "latest", "--format", "hlog", "--step", "bench"]).expect(0).stdout;
    assert!(log.starts_with("#[") && log.contains("Tag=bench/ttft_ms"), "{log}");
    let refused = home.run(&["export", "latest", "--format", "vllm", "--step", "nope"]).expect(2);
    assert!(refused.stderr.contains("its steps are: bench"), "{}", refused.stderr);
    let file = home.write("printed.txt", "Successful requests: 24\n");
    let words = ["import-results", file.to_str().unwrap(), "--from", "vllm", "--series", "s"];
    let refused = home.run(&words).expect(2);
    assert!(refused.stderr.contains("this is no result of `vllm bench serve`"), "{}", refused.stderr);
}
