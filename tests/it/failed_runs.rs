//! A run whose start failed, looked at later: what is said of its log, of itself and beside its baseline.

use std::path::Path;

use orch::record::model::{FailedStart, Failure, LogLine, Verdict, VerdictKind};
use serde_json::json;

use crate::built::{Built, orch, run};

const LOG: &str =
    "[2026-11-27 22:00:05 TP1] Load weight end. elapsed=9.10 s, type=A, avail mem=9.10 GB, mem usage=22.00 GB.
[2026-11-27 22:00:06 TP1] Capture cuda graph begin. This can take up to several minutes. avail mem=1.20 GB
[2026-11-27 22:00:07 TP1] Scheduler hit an exception: Traceback (most recent call last):
  File \"cuda_graph_runner.py\", line 3, in capture_one_batch_size
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 300.00 MiB.
[2026-11-27 22:00:08] Received sigquit from a child process. It usually means the child failed.
";

fn failed(id: &str) -> Built {
    run(id).setting("memory.fraction", json!(0.96)).with(|record| {
        record.complete = false;
        record.verdict = Verdict { kind: VerdictKind::Failed, reasons: vec![], cause: None };
        record.startup.as_mut().unwrap().ready_s = None;
        record.failure = Some(Failure {
            stage: "gate".into(),
            kind: "oom_capture".into(),
            text: "the server ended before it was ready".into(),
            line: Some("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 300.00 MiB.".into()),
            line_no: Some(5),
            remedy: Some("capture fewer batches".into()),
            start: Some(FailedStart {
                rule: "confirmed".into(),
                phase: "graph_capture".into(),
                after_s: 41.2,
                rank: Some(1),
                retry: Some("never".into()),
                not: Some(LogLine { line_no: 6, line: "Received sigquit from a child process.".into() }),
                known_good: None,
            }),
            ..Failure::default()
        });
    })
}

/// Three starts that went well, the newest with the lowest fraction, and one that failed.
fn results(folder: &Path) {
    for (id, fraction) in [("0411", 0.97), ("0412", 0.90), ("0413", 0.70)] {
        let id = format!("202611{}-220000-qwen-mtp3-{id}", 21 + id.as_bytes()[3] - b'1');
        run(&id).step("single", 1, 70.0).setting("memory.fraction", json!(fraction)).keep(folder);
    }
    let id = "20261127-220000-qwen-mtp3-0418";
    failed(id).keep(folder);
    std::fs::write(folder.join("runs").join(id).join("server.log"), LOG).unwrap();
}

#[test]
fn the_log_of_a_run_is_explained_with_what_is_known_to_start() {
    let folder = tempfile::tempdir().unwrap();
    results(folder.path());
    let told = orch(folder.path(), &["diagnose", "r0418", "--json"]).json();
    assert_eq!((&told["state"], &told["failure_kind"]), (&json!("failed"), &json!("oom_capture")));
    assert_eq!(told["root_cause_line_no"], 5);
    let remedy = told["remedy"].as_str().unwrap();
    assert!(remedy.contains("lower `memory.fraction` (now 0.96)"), "{remedy}");
    assert!(remedy.contains("memory.fraction 0.9 is known to start here (r0412)"), "{remedy}");
}

/// The head only says, and by its own clock first, that its peer went away; the other node's log says why. A third log is empty.
#[test]
fn the_logs_of_several_nodes_are_explained_together() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let begin = "[2026-11-01 09:00:00 TP0] Load weight begin. avail mem=78.10 GB\n";
    let head = write(
        "node0/server.log",
        &format!(
            "{begin}[2026-11-01 09:01:00 TP0] RuntimeError: [gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.2]:5123\n"
        ),
    );
    let follower = write(
        "node1/server.log",
        &format!(
            "{begin}[2026-11-01 09:01:01 TP8] torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
        ),
    );
    let silent = write("node2/server.log", "");
    let told = orch(folder.path(), &["diagnose", &head, &follower, &silent, "--json"]).json();
    assert_eq!((&told["log"], &told["root_cause_line_no"]), (&json!(follower), &json!(2)), "{told:#}");
    assert!(told["failure_kind"].as_str().unwrap().starts_with("oom"), "{told:#}");
    let others = told["others"].as_array().unwrap();
    assert_eq!((&others[0]["log"], &others[1]["log"]), (&json!(head), &json!(silent)), "{told:#}");
    assert_eq!((&others[0]["failure_kind"], &others[1]["phase"]), (&json!("peer_lost"), &json!(null)), "{told:#}");
    let text = orch(folder.path(), &["diagnose", &head, &follower, &silent]).out;
    assert!(text.contains("node1/server.log:2") && text.contains("its rank never started"), "{text}");
}

#[test]
fn how_a_start_failed_is_shown_and_said_beside_a_comparison() {
    let folder = tempfile::tempdir().unwrap();
    results(folder.path());
    for words in [&["show", "r0418"][..], &["compare", "r0418", "r0412"]] {
        let ended = orch(folder.path(), words);
        for text in [
            "41.2 s after launch, phase graph_capture, rank 1",
            "the engine itself said that it failed",
            "server.log:5  torch.OutOfMemoryError",
            "server.log:6  Received sigquit from a child process.  (a result)",
            "Again as it is: no use.",
        ] {
            assert!(ended.out.contains(text), "{words:?} without {text}:\n{}\n{}", ended.out, ended.err);
        }
    }
    let compared = orch(folder.path(), &["compare", "r0418", "r0412", "--json"]).json();
    assert_eq!(compared["failure"]["start"]["phase"], "graph_capture");
}
