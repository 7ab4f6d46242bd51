//! In which state a server is, and which kind of failure explains it.

use std::collections::BTreeSet;

use super::context::{Context, Exit, Observed};
use super::serving::impaired;
use super::{Reason, State};
use crate::gate::log::{Failure, LogGrammar, Nature, Startup};

/// How long a phase may be silent if its definition does not say, in seconds.
const PATIENCE_S: f64 = 600.0;
/// A process that reads faster than this goes on, whatever its log says.
const READS_PER_S: f64 = 1e6;
/// Less memory of the host than this, and everything waits for it.
const STARVED_GB: f64 = 2.0;
/// A wait for GPUs of others that is longer than this is no normal start.
const WAITS_S: f64 = 60.0;

/// Decides.
pub(super) fn decide(startup: &Startup, grammar: &LogGrammar, context: &Context) -> (State, Option<Reason>) {
    let observed = context.observed.clone().unwrap_or_default();
    let root = startup.root().filter(|root| stands_for_the_end(root, startup, &observed));
    if has_ended(&observed) {
        return (State::Failed, Some(ended(startup, root, &observed, context)));
    }
    match root {
        Some(root) if root.nature != Nature::Degrades => {
            let reason = Reason::root(root);
            // It waits for others to leave, and does not refuse.
            let waits = root.kind == "insufficient_resources" && observed.process_alive == Some(true);
            (if waits { State::Stalled } else { State::Failed }, Some(for_context(reason, context)))
        }
        _ if startup.is_serving() => match impaired(startup, context) {
            Some(reason) => (State::Degraded, Some(reason)),
            None if observed.health_status.is_some_and(|status| status >= 500) => (State::Unknown, None),
            None if stopped(startup).is_some() && observed.process_alive != Some(true) => (State::Unknown, None),
            None => (State::Ready, None),
        },
        _ => starting(startup, grammar, &observed, context),
    }
}

fn has_ended(observed: &Observed) -> bool {
    observed.process_alive == Some(false) || observed.exit.is_some()
}

/// Whether a failure may be why it ended or will end: what a server outlives, and what only tells that it was asked to stop
/// after it had served, says nothing of that.
fn stands_for_the_end(root: &Failure, startup: &Startup, observed: &Observed) -> bool {
    if has_ended(observed) || !startup.is_serving() {
        return true;
    }
    match root.nature {
        Nature::Cause | Nature::Degrades => true,
        // Of a request, unless the engine itself gave up over it.
        Nature::Unknown => startup.failures().iter().any(|other| other.nature == Nature::Wraps),
        Nature::Yields => root.kind != "killed_by_supervisor",
        Nature::Wraps | Nature::Result => false,
    }
}

/// The line by which it was asked to stop.
fn stopped(startup: &Startup) -> Option<&Failure> {
    startup.failures().iter().find(|failure| failure.kind == "killed_by_supervisor")
}

fn ended(startup: &Startup, root: Option<&Failure>, observed: &Observed, context: &Context) -> Reason {
    if let Some(root) =
        root.filter(|root| root.nature != Nature::Degrades || observed.exit.and_then(Exit::by_signal) != Some(15))
    {
        return for_context(Reason::root(root), context);
    }
    if let Some(missing) = files_missing(context) {
        return missing;
    }
    let signal = observed.exit.and_then(Exit::by_signal);
    match signal {
        Some(signal @ (1 | 2 | 15)) => {
            let detail = format!("signal {signal} came from outside; the log tells of no fault");
            Reason::saying("killed_by_supervisor", detail)
        }
        Some(9) => Reason::saying(
            "unknown",
            "it was killed (signal 9) and its log tells of no fault: the kernel's log says whether memory of the host ran out"
                .to_owned(),
        ),
        Some(4) => Reason::saying(
            "unknown",
            "signal 4 (SIGILL) ended it: the program holds an instruction that this processor does not have".to_owned(),
        ),
        Some(signal) => Reason::saying("unknown", format!("signal {signal} ended it and its log tells of no fault")),
        None => {
            let code = observed.exit.and_then(|exit| exit.code);
            let code = code.map_or_else(String::new, |code| format!(" with code {code}"));
            let phase = startup.reached();
            Reason::saying("unknown", format!("it ended{code} in phase {phase}, and its log tells of no fault"))
        }
    }
}

/// The layer that guesses further tokens is a part of the model's own files for some methods.
fn for_context(reason: Reason, context: &Context) -> Reason {
    let own = matches!(context.speculative.as_deref(), Some("mtp" | "nextn"));
    if reason.kind == "draft_mismatch" && own {
        return Reason { kind: "weights_mismatch".to_owned(), remedy: None, ..reason };
    }
    reason
}

fn files_missing(context: &Context) -> Option<Reason> {
    let preflight = context.side_facts.as_ref()?.preflight?;
    let (named, there) = (preflight.index_shards?, preflight.files_present?);
    (there < named).then(|| {
        Reason::saying("weights_missing", format!("{there} of the {named} files that its index names are on disk"))
    })
}

/// It has not served yet, and nothing has failed.
fn starting(
    startup: &Startup,
    grammar: &LogGrammar,
    observed: &Observed,
    context: &Context,
) -> (State, Option<Reason>) {
    let side = context.side_facts.clone().unwrap_or_default();
    let host = side.host_signals.unwrap_or_default();
    let starved = host.mem_available_gb.is_some_and(|left| left < STARVED_GB)
        && host.read_bytes_per_s.is_none_or(|read| read < READS_PER_S);
    if observed.process_alive != Some(true) {
        return (State::Unknown, None);
    }
    let reads = host.read_bytes_per_s.is_some_and(|read| read >= READS_PER_S);
    let silent = observed.silent_s.unwrap_or(0.0);
    let patience = grammar.patience_s(startup.phase()).unwrap_or(PATIENCE_S);
    let waits = waits_for_others(startup);
    let is_silent = silent >= patience && !reads;
    if !(is_silent || waits.is_some() || !side.missing_ranks.is_empty()) {
        return (State::Loading, None);
    }
    if !side.missing_ranks.is_empty() {
        return (State::Stalled, Some(Reason::saying("rank_missing", ranks("gone", &side.missing_ranks))));
    }
    if starved {
        let left = host.mem_available_gb.map_or_else(String::new, |left| format!("{left} GB are left"));
        return (State::Stalled, Some(Reason::saying("host_memory_stall", left)));
    }
    if let Some(waited) = waits {
        return (State::Stalled, Some(Reason::saying("insufficient_resources", waited)));
    }
    if let Some(missing) = files_missing(context) {
        return (State::Stalled, Some(missing));
    }
    (State::Stalled, Some(silence(startup, silent, context)))
}

fn waits_for_others(startup: &Startup) -> Option<String> {
    let waited = startup.facts().get("wait_s")?.as_f64()?;
    (startup.phase() == "dist_init" && waited > WAITS_S).then(|| format!("it has waited {waited} s for a place"))
}

/// Which silence it is: a rank that does not come, or all that wait for each other.
fn silence(startup: &Startup, silent: f64, context: &Context) -> Reason {
    let phase = startup.phase();
    let since = format!("silent for {:.0} min in phase {phase}", silent / 60.0);
    let topology = context.topology.unwrap_or_default();
    let nodes = topology.nodes.unwrap_or(1).max(1);
    let tp = topology.tp.or_else(|| {
        let told = startup.facts().get("tp")?.as_u64()?;
        u32::try_from(told).ok()
    });
    let here = tp.map(|tp| tp.div_ceil(nodes)).unwrap_or(1);
    let inside = startup.ranks_in(phase).cloned().unwrap_or_default();
    let all = startup.ranks();
    let absent: Vec<u32> = all.difference(&inside).copied().collect();
    let is_shared = here > 1 || nodes > 1;
    if is_shared && !all.is_empty() && (all.len() as u32) < here {
        let missing = unseen(all, here);
        return Reason::saying("rank_missing", format!("{}; {since}", ranks("silent", &missing)));
    }
    if is_shared && !inside.is_empty() && !absent.is_empty() {
        return Reason::saying("rank_missing", format!("{}; {since}", ranks("not in this phase", &absent)));
    }
    let meets = matches!(phase, "dist_init" | "kv_pool" | "compile" | "graph_capture" | "draft_capture" | "warmup");
    if is_shared && meets {
        let at = startup.progress().map(|progress| match progress.total {
            Some(total) => format!(" at {} of {total} {}", progress.done, progress.unit),
            None => format!(" at {} {}", progress.done, progress.unit),
        });
        return Reason::saying("hang_collective", format!("{since}{}", at.unwrap_or_default()));
    }
    Reason::saying("unknown", since)
}

/// The ranks of this host that have said nothing, as far as they can be counted.
fn unseen(seen: &BTreeSet<u32>, here: u32) -> Vec<u32> {
    let first = seen.first().map_or(0, |lowest| lowest / here * here);
    (first..first + here).filter(|rank| !seen.contains(rank)).collect()
}

fn ranks(how: &str, all: &[u32]) -> String {
    let names: Vec<String> = all.iter().map(u32::to_string).collect();
    let word = if all.len() == 1 { "rank" } else { "ranks" };
    let verb = if all.len() == 1 { "is" } else { "are" };
    format!("{word} {} {verb} {how}", names.join(", "))
}

/// What is said where nothing has failed.
pub(super) fn stands(state: State, startup: &Startup, context: &Context) -> Option<String> {
    let phase = startup.reached();
    let counter = startup.progress().map(|progress| match progress.total {
        Some(total) => format!(", {} of {total} {}", progress.done, progress.unit),
        None => format!(", {} {}", progress.done, progress.unit),
    });
    let counter = counter.unwrap_or_default();
    match state {
        State::Ready => {
            let probe = context.side_facts.as_ref().and_then(|side| side.probe.clone()).unwrap_or_default();
            let slow =
                matches!((probe.health_latency_s, probe.probe_timeout_s), (Some(took), Some(waits)) if took > waits);
            Some(match probe.url_reachable {
                Some(false) => {
                    "it serves; what asked from outside does not reach it, so the fault lies between".to_owned()
                }
                _ if slow => {
                    "it serves; its health address generates a token and takes longer than the prober waits".to_owned()
                }
                _ => "it serves".to_owned(),
            })
        }
        State::Loading => Some(format!("its start goes on: phase {phase}{counter}")),
        State::Unknown if stopped(startup).is_some() && startup.is_serving() => {
            Some("it served, and then was asked to stop".to_owned())
        }
        State::Unknown => {
            Some(format!("the log ends in phase {phase}{counter}, without a fault; whether it still runs is not in it"))
        }
        _ => None,
    }
}
