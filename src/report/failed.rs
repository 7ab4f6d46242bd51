//! A start that failed, on the screen: what, where and when, the line that is the cause and the one that is not, how memory
//! went beside a start that went well, and what to do.

use super::number::amount;
use super::table::{Align, Table};
use super::text::{fit, seconds, short_id, wrap};
use crate::record::model::{FailedStart, Failure, KnownGood, MemoryPoint, Record};

/// The lines of a failure.
pub fn lines(record: &Record, failure: &Failure, exit: u8, width: usize) -> Vec<String> {
    let word = match failure.stage.as_str() {
        "gate" => "DID NOT START",
        "server" => "DIED WHILE MEASURED",
        "load" => "COULD NOT MEASURE",
        _ => "COULD NOT LAUNCH",
    };
    let of_draft =
        failure.kind == "oom_weights" && failure.start.as_ref().is_some_and(|start| start.phase == "draft_weights");
    let words = if of_draft { Some("out of GPU memory while loading the draft") } else { kind_words(&failure.kind) };
    let head = match words {
        Some(words) => format!("{word}  {words}"),
        None => word.to_owned(),
    };
    let mut lines = vec![fit(&head, &format!("exit {exit}"), width)];
    lines.extend(wrap(&failure.text, "  what  ", width));
    if let Some(start) = &failure.start {
        lines.extend(wrap(&at(start), "  at    ", width));
    }
    if let Some(line) = &failure.line {
        let place = failure.line_no.map(|number| format!("server.log:{number}  ")).unwrap_or_default();
        lines.extend(wrap(&format!("{place}{line}"), "  line  ", width));
    }
    let start = failure.start.as_ref();
    if let Some(not) = start.and_then(|start| start.not.as_ref()).filter(|not| Some(not.line_no) != failure.line_no) {
        lines.extend(wrap(&format!("server.log:{}  {}  (a result)", not.line_no, not.line), "  not   ", width));
    }
    if let Some(start) = start.filter(|_| failure.kind.starts_with("oom_") && failure.kind != "oom_host") {
        lines.extend(free(record, start));
    }
    lines.extend(what_to_do(record, failure).map(|text| wrap(&text, "  do    ", width)).unwrap_or_default());
    if !failure.last_words.is_empty() {
        lines.push("  its last words:".to_owned());
        lines.extend(failure.last_words.iter().map(|line| fit(&format!("    {line}"), "", width)));
    }
    lines
}

/// How a start failed, in rows of a word and a text, for who looks at the record later.
pub fn rows(record: &Record, failure: &Failure) -> Vec<(&'static str, String)> {
    let mut rows = Vec::new();
    if let Some(start) = &failure.start {
        rows.push(("at", at(start)));
        rows.extend(ended_by(&start.rule).map(|words| ("ended", words.to_owned())));
    }
    if let Some(line) = &failure.line {
        let place = failure.line_no.map(|number| format!("server.log:{number}  ")).unwrap_or_default();
        rows.push(("line", format!("{place}{line}")));
    }
    let not = failure.start.as_ref().and_then(|start| start.not.as_ref());
    if let Some(not) = not.filter(|not| Some(not.line_no) != failure.line_no) {
        rows.push(("not", format!("server.log:{}  {}  (a result)", not.line_no, not.line)));
    }
    rows.extend(what_to_do(record, failure).map(|text| ("do", text)));
    rows
}

/// By which rule a start was ended.
fn ended_by(rule: &str) -> Option<&'static str> {
    Some(match rule {
        "exited" => "its main process ended by itself",
        "dead_rank" => "a rank was gone and a line said why",
        "confirmed" => "the engine itself said that it failed",
        "limit" => "its limit passed",
        "fail_fast" => "a line looked fatal, and nothing more was to be waited for",
        "unfit" => "what it answered will not do",
        _ => return None,
    })
}

fn at(start: &FailedStart) -> String {
    let rank = start.rank.map(|rank| format!(", rank {rank}")).unwrap_or_default();
    format!("{} after launch, phase {}{rank}", seconds(start.after_s), start.phase)
}

/// The remedy, what is known to start here, and whether it is of use to try the same again.
fn what_to_do(record: &Record, failure: &Failure) -> Option<String> {
    let mut sentences: Vec<String> = failure.remedy.iter().map(|remedy| sentence(remedy)).collect();
    if let Some(start) = &failure.start {
        let asked = record.profile.get("memory").and_then(|memory| memory.get("fraction")?.as_f64());
        sentences.extend(start.known_good.as_ref().and_then(|known| known.sentence(&failure.kind, asked)));
        sentences.extend(match start.retry.as_deref() {
            Some("never") => Some("Again as it is: no use.".to_owned()),
            Some("maybe") => Some("Again as it is may help.".to_owned()),
            Some("later") => Some("Later it may start as it is.".to_owned()),
            _ => None,
        });
    }
    (!sentences.is_empty()).then(|| sentences.join(" "))
}

/// A remedy as one sentence among others.
fn sentence(remedy: &str) -> String {
    let end = if remedy.ends_with(['.', '!', '?']) { "" } else { "." };
    format!("{remedy}{end}")
}

/// How the memory of the tightest rank fell, beside a start that went well.
fn free(record: &Record, start: &FailedStart) -> Vec<String> {
    let now = record.startup.as_ref().map(|startup| startup.memory.as_slice()).unwrap_or_default();
    let Some(rank) = start.rank.or_else(|| tightest(now)).filter(|_| !now.is_empty()) else { return Vec::new() };
    let known = start.known_good.as_ref();
    let mut phases: Vec<&str> = Vec::new();
    for point in now.iter().chain(known.iter().flat_map(|known| &known.memory)).filter(|point| point.rank == rank) {
        if !phases.contains(&point.phase.as_str()) {
            phases.push(&point.phase);
        }
    }
    let heading = format!("free  GPU {rank}, GB");
    let names: Vec<String> = phases.iter().map(|phase| phase.replace('_', " ")).collect();
    let mut columns = vec![(heading.as_str(), Align::Left)];
    columns.extend(names.iter().map(|name| (name.as_str(), Align::Right)));
    let mut table = Table::new(&columns);
    let row = |name: String, memory: &[MemoryPoint]| {
        let of = |phase: &&str| {
            let is = |point: &&MemoryPoint| point.phase == **phase && point.rank == rank && point.graphs.is_none();
            memory.iter().find(is).map_or("-".to_owned(), |point| amount(point.free_gb))
        };
        std::iter::once(format!("      {name}")).chain(phases.iter().map(of)).collect::<Vec<_>>()
    };
    table.row(row("now".to_owned(), now));
    if let Some(known) = known {
        table.row(row(known_name(known), &known.memory));
    }
    table.to_string().lines().map(|line| format!("  {line}")).collect()
}

fn known_name(known: &KnownGood) -> String {
    match known.fraction {
        Some(fraction) => format!("{}, {fraction}", short_id(&known.run)),
        None => short_id(&known.run),
    }
}

fn tightest(memory: &[MemoryPoint]) -> Option<u32> {
    memory.iter().min_by(|a, b| a.free_gb.total_cmp(&b.free_gb)).map(|point| point.rank)
}

/// What a kind of failure is for people; `None` for what is no kind of a log.
pub fn kind_words(kind: &str) -> Option<&'static str> {
    Some(match kind {
        "bad_flag" => "the command line was rejected",
        "bad_config" => "settings that do not go together",
        "missing_dependency" => "something that the engine needs is not installed",
        "unsupported_model" => "the engine does not know this model",
        "unsupported_gpu" => "the build has no kernels for this GPU",
        "gpu_unavailable" => "the GPU cannot be used",
        "gpu_busy" => "GPU memory is already taken",
        "insufficient_resources" => "fewer GPUs or nodes than asked for",
        "access_denied" => "the model may not be fetched",
        "weights_missing" => "a file of the model is not there",
        "weights_mismatch" => "the files do not fit the model",
        "draft_mismatch" => "the draft does not fit the model",
        "oom_weights" => "out of GPU memory while loading weights",
        "oom_profile" => "out of GPU memory in the profiling run",
        "oom_kv" => "no room for the KV cache",
        "oom_capture" => "out of GPU memory while capturing graphs",
        "oom_runtime" => "out of GPU memory while serving",
        "oom_host" => "out of memory on the host",
        "host_memory_stall" => "the host is out of memory and stands still",
        "shm_exhausted" => "shared memory is too small",
        "nccl_error" => "ranks cannot talk to each other (NCCL)",
        "rendezvous_timeout" => "the ranks did not all meet",
        "collective_timeout" => "a collective operation took too long",
        "load_timeout" => "a rank did not finish loading in time",
        "peer_lost" => "another rank ended first",
        "rank_missing" => "a rank is missing",
        "hang_collective" => "the ranks wait for each other",
        "port_in_use" => "the port is taken",
        "jit_build" => "a kernel did not compile",
        "cuda_fault" => "a kernel failed on the GPU",
        "watchdog_timeout" => "the engine's own watchdog fired",
        "warmup_failed" => "the engine's own test request failed",
        "killed_by_supervisor" => "something outside ended it",
        "nan_output" => "NaN in the logits",
        "cpu_fallback" => "it runs on the CPU",
        "feature_off" => "a feature is off that was asked for",
        "not_ready_in_time" => "not ready in time",
        "stopped" => "stopped from outside",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::model::{LogLine, Startup};
    use crate::record::samples;

    fn point(phase: &str, rank: u32, free_gb: f64) -> MemoryPoint {
        MemoryPoint { phase: phase.into(), rank, free_gb, graphs: None }
    }

    #[test]
    fn a_start_without_memory_is_shown_beside_one_that_went_well() {
        let known = KnownGood {
            run: "20261121-220000-qwen-mtp3-0412".into(),
            fraction: Some(0.88),
            memory: vec![
                point("weights", 1, 19.3),
                point("kv_pool", 1, 7.3),
                point("graph_capture", 1, 6.2),
                point("draft_weights", 1, 3.4),
            ],
        };
        let failure = Failure {
            stage: "gate".into(),
            kind: "oom_weights".into(),
            text:
                "the server ended before it was ready: killed by SIGKILL, 27s after its launch, in phase draft_weights"
                    .into(),
            line: Some("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.18 GiB.".into()),
            line_no: Some(287),
            remedy: Some("the draft does not fit beside the model: lower `memory.fraction`".into()),
            start: Some(FailedStart {
                rule: "exited".into(),
                phase: "draft_weights".into(),
                after_s: 27.3,
                rank: Some(1),
                retry: Some("never".into()),
                not: Some(LogLine { line_no: 291, line: "Received sigquit from a child process.".into() }),
                known_good: Some(known),
            }),
            ..Failure::default()
        };
        let mut record = crate::record::fold(samples::entries(samples::story())).record;
        record.profile = serde_json::json!({"memory": {"fraction": 0.96}});
        let memory = vec![
            point("weights", 0, 19.4),
            point("weights", 1, 19.3),
            point("kv_pool", 1, 3.5),
            point("graph_capture", 1, 2.3),
            point("draft_weights", 1, 1.1),
        ];
        record.startup = Some(Startup { memory, ..Startup::default() });
        insta::assert_snapshot!(lines(&record, &failure, 4, 80).join("\n"), @r"
        DID NOT START  out of GPU memory while loading the draft                  exit 4
          what  the server ended before it was ready: killed by SIGKILL, 27s after its
                launch, in phase draft_weights
          at    27.3 s after launch, phase draft_weights, rank 1
          line  server.log:287 torch.OutOfMemoryError: CUDA out of memory. Tried to
                allocate 1.18 GiB.
          not   server.log:291 Received sigquit from a child process. (a result)
          free  GPU 1, GB    weights  kv pool  graph capture  draft weights
                now             19.3     3.50           2.30           1.10
                r0412, 0.88     19.3     7.30           6.20           3.40
          do    the draft does not fit beside the model: lower `memory.fraction`.
                memory.fraction 0.88 is known to start here (r0412). Again as it is: no
                use.
        ");
    }

    #[test]
    fn every_kind_that_a_log_can_tell_has_words() {
        for kind in crate::profile::failure_kinds() {
            let is_of_serving = ["garbage_output", "low_acceptance", "slow_decode", "stale_server"].contains(kind);
            assert_eq!(kind_words(kind).is_none(), is_of_serving, "{kind}");
        }
    }
}
