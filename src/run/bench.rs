//! One step: sent, measured, summed up, written down.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use tokio_util::sync::CancellationToken;

use super::counters::{Answered, Sources, Watch};
use super::error::{RunError, Stop};
use super::machine::Readings;
use super::serving::{Compiled, ServerLog};
use super::{cores, effective, recount};
use crate::clock::Clock;
use crate::event::{Emit, EmitError, Event, Scope};
use crate::gate;
use crate::load::{self, Options, Part, Progress, Target};
use crate::measure::{
    self, Capacity, Client, FileError, HistogramLog, Measured, Row, RowWriter, Seen, Settled, Timeline, TokenSource,
    WarmUp,
};
use crate::profile::{PROMPT_KINDS, Prompt, prompts};
use crate::record::model::StepResult;
use crate::render::{Step, Warning, Workload};

/// What a step needs beside itself.
pub struct Bench<'a> {
    /// Who is asked.
    pub target: &'a Target,
    /// How.
    pub options: &'a Options,
    /// Time.
    pub clock: &'a Clock,
    /// Cancelled when the step shall end now, in order.
    pub interrupt: &'a CancellationToken,
    /// Where the events go.
    pub log: &'a dyn Emit,
    /// Where the engine's own words are found.
    pub sources: &'a Sources,
    /// Where the load comes from, as the record has it: `beside`, `direct` or `tunnel`.
    pub load_path: &'a str,
    /// Chunks per second that this machine's client can read, where its self-test was run.
    pub ceiling: Option<f64>,
    /// The server's log, where it is ours.
    pub server_log: Option<ServerLog<'a>>,
    /// The path that empties the server's prefix cache, where requests cannot ask for a cold one themselves.
    pub flush: Option<&'a str>,
    /// What the server can hold, where it was asked.
    pub capacity: Option<&'a Capacity>,
    /// What the server's machine reads, where the server is ours.
    pub machine: Option<&'a Readings>,
    /// Whether it is a load that a search tries.
    pub probe: bool,
    /// Whether a request's row holds each of its chunks.
    pub keep_chunks: bool,
    /// Whether a step that an interrupt cut short leaves a result, which is not valid. Where the run can be resumed it
    /// leaves none, and is measured again.
    pub keep_partial: bool,
}

/// The files that steps are written to, beside the journal.
#[derive(Debug, Default)]
pub struct Files {
    rows: Option<RowWriter>,
    histograms: Option<HistogramLog>,
    /// The user's own file, until it cannot be written.
    copy: Option<RowWriter>,
    unwritten: Option<FileError>,
    /// Where workloads are kept as they were sent.
    folder: Option<PathBuf>,
}

impl Files {
    /// `requests.jsonl.zst` and `histograms.hlog` in a run's folder. Of an earlier attempt, what belongs to the steps
    /// that are `done` is kept.
    pub fn in_folder(folder: &Path, clock: &Clock, done: &[String]) -> Result<Self, FileError> {
        let rows = RowWriter::resumed(&folder.join("requests.jsonl.zst"), done)?;
        let histograms = HistogramLog::resumed(&folder.join("histograms.hlog"), origin(clock), done)?;
        let folder = Some(folder.join("workloads"));
        Ok(Files { rows: Some(rows), histograms: Some(histograms), folder, ..Files::default() })
    }

    /// Keeps what a step sends, under its hash: files of prompts and traces may change. Built-in prompts are in the
    /// program, and what is made to a length follows from the seed.
    fn freeze(&self, workload: &Workload) -> Result<(), FileError> {
        let Some(folder) = self.folder.as_ref().filter(|_| is_of_files(workload)) else { return Ok(()) };
        let hex = workload.hash.trim_start_matches("sha256:");
        let path = folder.join(format!("{}.json.zst", hex.get(..16).unwrap_or(hex)));
        if path.exists() {
            return Ok(());
        }
        let fail = |source| FileError { act: "write", path: path.clone(), source };
        let text = serde_json::to_vec(workload).map_err(|error| fail(error.into()))?;
        let packed = zstd::encode_all(text.as_slice(), 3).map_err(fail)?;
        std::fs::create_dir_all(folder).and_then(|()| std::fs::write(&path, packed)).map_err(fail)
    }

    /// Also writes the rows as plain lines to a file of the user's own. If that cannot be written, the measurement and
    /// its record go on without it: see [`Files::unwritten`].
    pub fn also(&mut self, rows: RowWriter) {
        self.copy = Some(rows);
    }

    /// Why the user's own file does not hold all rows, if it does not.
    pub fn unwritten(self) -> Option<FileError> {
        self.unwritten
    }

    fn write(&mut self, rows: &[Row]) -> Result<(), FileError> {
        if let Some(copy) = &mut self.copy
            && let Err(error) = copy.write(rows.iter().cloned())
        {
            self.unwritten = Some(error);
            self.copy = None;
        }
        self.rows.iter_mut().try_for_each(|file| file.write(rows.iter().cloned()))
    }
}

/// Whether files of the user's say what is sent.
fn is_of_files(workload: &Workload) -> bool {
    let built_in =
        |prompt: &Prompt| PROMPT_KINDS.iter().filter_map(|kind| prompts(kind)).any(|all| all.contains(prompt));
    workload.special.trace.is_some() || workload.prompts.iter().any(|prompt| !built_in(prompt))
}

/// The wall-clock time of the clock's moment 0.
fn origin(clock: &Clock) -> SystemTime {
    let since_epoch = Duration::try_from(clock.now().as_duration()).unwrap_or_default();
    let now = SystemTime::UNIX_EPOCH + since_epoch;
    now.checked_sub(Duration::from_nanos(clock.nanos())).unwrap_or(now)
}

/// Measures a step and says so; the result is in the journal when this returns.
pub(super) async fn measure_step(bench: &Bench<'_>, step: &Step, files: &mut Files) -> Result<StepResult, Stop> {
    files.freeze(&step.workload).map_err(RunError::from)?;
    let scope = Scope::Step(step.name.clone());
    let halt = bench.interrupt.child_token();
    if let Some(capacity) = bench.capacity {
        effective::warn(capacity, step, bench.log)?;
    }
    let mut told = Told::new(bench, &halt, scope.clone(), files);
    let vocabulary = super::until(&halt, load::lengths::calibrate(bench.target, &step.workload, bench.clock)).await??;
    let cores = cores::apart_from(bench.target).await;
    let options = Options { vocabulary, cores, ..bench.options.clone() };
    let mut running = load::Running::start(bench.target, step, bench.clock, &halt, &options)?;
    let mut compiled = Compiled::from_now(bench.server_log);
    let warm_up = running
        .warm_up(&mut |progress| {
            if compiled.more() {
                options.compiling.note();
            }
            told.tell(&progress);
        })
        .await?;
    told.emit_or_halt(Event::WarmupEnded(warm_up));
    if let Some(text) = not_settled(&warm_up) {
        told.emit_or_halt(Event::Warning(Warning::new("not_settled", text)));
    }
    // Nothing is in flight from here to the go: what the engine counts after this is the measured requests' alone.
    // An interrupt or the server's end is told elsewhere, and with either there is no cache to speak of.
    if let Ok(Some(warning)) = super::until(&halt, flush(bench, step)).await
        && super::until(&halt, tokio::time::sleep(LAST_WORD)).await.is_ok()
    {
        told.emit_or_halt(Event::Warning(warning));
    }
    let log_end = bench.server_log.and_then(|log| log.end());
    let mut watch = Watch::new(bench.sources, bench.target, bench.clock);
    if !halt.is_cancelled() {
        watch.before().await;
    }
    let tokenize = watch.tokenize(bench.capacity.is_some_and(|capacity| *capacity != Capacity::default()));
    told.holds = tokenize.is_some();
    let measured = watch.during(running.measure(&mut |progress| told.tell(&progress))).await;
    // The last answer has ended just now.
    let seen = watch.after(measured.as_ref().ok().and_then(Answered::of)).await;
    let mut measured = match measured {
        Ok(measured) => measured,
        Err(error) => {
            told.write_held(&[])?;
            return Err(error.into());
        }
    };
    if !halt.is_cancelled() {
        // An interrupt leaves the rest uncounted, and is told by the record.
        let _ = super::until(&halt, recount::recount(&mut measured, bench.target, tokenize)).await;
    }
    told.write_held(&measured.timelines)?;
    // After the wait for the counters: a log may come a little later too.
    let log = bench.server_log.and_then(|log| log.told(log_end));
    let machine = bench.machine.map(Readings::machine);
    let seen = Seen { log, machine, capacity: bench.capacity.cloned(), ..seen };
    if let Some(error) = told.broken {
        return Err(error.into());
    }
    if let Some(log) = &mut files.histograms {
        log.add(&step.name, &measured).map_err(RunError::from)?;
    }
    let (result, warnings) = result(bench, step, &measured, &seen, warm_up);
    if !result.counters.is_empty() {
        bench.log.emit(scope.clone(), Event::Counters { values: result.counters.clone() })?;
    }
    for warning in warnings {
        bench.log.emit(scope.clone(), Event::Warning(warning))?;
    }
    let interrupted = measured.interrupted && bench.interrupt.is_cancelled();
    if !interrupted || bench.keep_partial {
        bench.log.emit(scope, Event::StepEnded { result: Box::new(result.clone()) })?;
    }
    if interrupted { Err(Stop::Interrupted) } else { Ok(result) }
}

/// How long the end of a server that does not empty its cache may take to be noticed.
const LAST_WORD: Duration = Duration::from_millis(500);

/// Empties the prefix cache before a cold workload: the warm-up, and the steps before, have sent the same prompts.
async fn flush(bench: &Bench<'_>, step: &Step) -> Option<Warning> {
    let path = bench.flush.filter(|_| step.workload.cold_prefix)?;
    let why = gate::flush(&bench.target.base_url, path).await.err()?;
    let text = format!("the prefix cache could not be emptied before it ({path}: {why}): its prompts may not be cold");
    Some(Warning::new("cache_not_flushed", text))
}

fn result(
    bench: &Bench<'_>,
    step: &Step,
    measured: &Measured,
    seen: &Seen,
    warm_up: WarmUp,
) -> (StepResult, Vec<Warning>) {
    let summary = measure::summarize(measured, step, seen);
    let result = StepResult {
        name: step.name.clone(),
        valid: summary.reasons.is_empty(),
        reasons: summary.reasons,
        workload: step.workload.hash.clone(),
        workload_name: step.workload.name.clone(),
        load: step.load.clone(),
        goodput: step.goodput.clone(),
        load_path: bench.load_path.to_owned(),
        counts: summary.counts,
        errors: measure::standard_errors(measured, &summary.metrics),
        metrics: summary.metrics,
        warmup: Some(warm_up),
        client: Some(Client::of(measured, bench.ceiling)),
        counters: summary.counters,
        sources: summary.sources,
        acceptance_by_position: summary.acceptance_by_position,
        probe: bench.probe,
    };
    (result, summary.warnings)
}

/// What a warm-up that did not converge leaves open.
fn not_settled(warm_up: &WarmUp) -> Option<String> {
    let Settled { rounds, difference_ratio, compiled, .. } = warm_up.settled.filter(|settled| !settled.settled)?;
    let requests = warm_up.requests;
    let why = match difference_ratio {
        _ if compiled => "something was still being compiled".to_owned(),
        Some(ratio) => format!(
            "its last two windows differ by {:.1} %, more than {} %",
            ratio * 100.0,
            load::settle::AGREEMENT * 100.0
        ),
        None => format!("only {rounds} rounds of it ended, too few to compare"),
    };
    Some(format!("the warm-up of {requests} requests in {:.0} s did not settle: {why}", warm_up.s))
}

/// Turns progress into events and rows. Nothing more may be measured that cannot be written down: the first failure is
/// kept, and halts the load.
struct Told<'a, 'b> {
    bench: &'a Bench<'b>,
    halt: &'a CancellationToken,
    scope: Scope,
    files: &'a mut Files,
    broken: Option<RunError>,
    part: Option<Part>,
    /// The rows of answers without a count of tokens, until the tokens of their texts are known.
    held: BTreeMap<u64, Row>,
    /// Whether there may be somebody to ask for them.
    holds: bool,
}

impl<'a, 'b> Told<'a, 'b> {
    fn new(bench: &'a Bench<'b>, halt: &'a CancellationToken, scope: Scope, files: &'a mut Files) -> Self {
        Told { bench, halt, scope, files, broken: None, part: None, held: BTreeMap::new(), holds: false }
    }
}

impl Told<'_, '_> {
    fn tell(&mut self, progress: &Progress<'_>) {
        let told = self.try_tell(progress);
        self.halt_unless(told);
    }

    fn emit_or_halt(&mut self, event: Event) {
        let emitted = self.emit(event);
        self.halt_unless(emitted.map_err(RunError::from));
    }

    fn halt_unless(&mut self, done: Result<(), RunError>) {
        if let Err(error) = done {
            self.broken.get_or_insert(error);
            self.halt.cancel();
        }
    }

    fn try_tell(&mut self, progress: &Progress<'_>) -> Result<(), RunError> {
        if self.part.replace(progress.part) != Some(progress.part) {
            self.emit(match progress.part {
                Part::Warmup => Event::WarmupBegan {},
                Part::Measured => Event::StepBegan {},
            })?;
        }
        if progress.part == Part::Measured && !progress.finished.is_empty() {
            let Scope::Step(step) = &self.scope else { return Ok(()) };
            let rows = progress.finished.iter().map(|timeline| Row::of(timeline, step, self.bench.keep_chunks));
            let (held, rows): (Vec<Row>, Vec<Row>) = rows.partition(|row| self.may_be_recounted(row));
            self.held.extend(held.into_iter().map(|row| (row.id, row)));
            self.files.write(&rows)?;
        }
        Ok(self.emit(Event::LoadProgress {
            done: progress.done,
            requests: progress.requests,
            elapsed_s: progress.elapsed_s,
            duration_s: progress.duration_s,
            failed: progress.failed,
            chunks_per_s: progress.chunks_per_s,
            ttft_ms: progress.ttft_ms,
        })?)
    }

    /// Whether the answer came without a count of tokens and may have one yet.
    fn may_be_recounted(&self, row: &Row) -> bool {
        self.holds && row.token_source == Some(TokenSource::Chunks)
    }

    /// Writes the rows that waited, as the answers are now.
    fn write_held(&mut self, timelines: &[Timeline]) -> Result<(), FileError> {
        let Scope::Step(step) = &self.scope else { return Ok(()) };
        for timeline in timelines {
            if let Some(row) = self.held.get_mut(&timeline.id) {
                *row = Row::of(timeline, step, self.bench.keep_chunks);
            }
        }
        let rows: Vec<Row> = std::mem::take(&mut self.held).into_values().collect();
        self.files.write(&rows)
    }

    fn emit(&self, event: Event) -> Result<(), EmitError> {
        self.bench.log.emit(self.scope.clone(), event)
    }
}
