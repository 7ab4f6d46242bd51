//! `orch bench`: measures an endpoint that is already up.

use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::follow::Follower;
use super::run::this_build;
use super::screen::{Screen, Stream};
use super::signals::Interrupt;
use super::{Exit, Failure, Global, Outcome, out, planned, records};
use crate::clock::Clock;
use crate::launch::{Held, LaunchError, WorkFolder};
use crate::load::url::Endpoint;
use crate::load::{self, Options, Target, models};
use crate::measure::{GOODPUT_METRICS, Goodput, RowWriter};
use crate::preflight;
use crate::profile::{Length, PROMPT_KINDS, Prompt, Question, prompts};
use crate::record::model::{HostInfo, Record, RunKind, VerdictKind};
use crate::record::{NewRun, RunFolder, Store};
use crate::render::{Api, Arrival, Lengths, Load, Step, Stop, Warning, Workload};
use crate::report;
use crate::report::live::{Usual, View};
use crate::run::{self, Bench, Files};
use crate::units;

/// Measures an endpoint that is already up
///
/// Sends the warm-up and then the measured requests to the generating endpoint, and nothing else (with --input-tokens,
/// also a few that find out how the server counts). The prompts are the built-in ones, drawn by the seed. The record is
/// kept under the results folder unless --no-record.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  orch bench --url http://127.0.0.1:8000 --requests 64 --concurrency 8
  orch bench --url https://host/prefix/v1 --model m --duration 2m --rate 4 --json
  orch bench --url http://127.0.0.1:8000 --requests 32 --concurrency 1 --input-tokens 1000 --output-tokens 128

Exit codes: 0 measured; 1 a file cannot be written; 2 usage; 3 somebody else measures on this host; 5 no valid measurement; 6 regressed; 130, 143 interrupted")]
pub(crate) struct BenchArgs {
    /// Base address, with or without /v1 and a slash at its end
    #[arg(long, value_name = "URL")]
    url: String,
    /// Which endpoint is asked: /v1/chat/completions, /v1/completions, SGLang's /generate, llama.cpp's /completion
    #[arg(long, value_enum, default_value = "chat")]
    api: ApiArg,
    /// The model's name as served; without it, the only one that the server lists
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
    /// How many requests are measured
    #[arg(long, value_name = "N", required_unless_present = "duration", value_parser = at_least_one)]
    requests: Option<u64>,
    /// How long is measured, such as 30s or 2m; with --requests, whichever ends first
    #[arg(long, value_name = "TIME", value_parser = span)]
    duration: Option<Duration>,
    /// Requests in flight: the next one goes when one ends
    #[arg(long, value_name = "N", required_unless_present = "rate", value_parser = clap::value_parser!(u32).range(1..))]
    concurrency: Option<u32>,
    /// Requests per second, sent at their moments however slow the answers are
    #[arg(long, value_name = "R", conflicts_with = "concurrency", value_parser = positive)]
    rate: Option<f64>,
    /// How the gaps between requests are spread, with --rate
    #[arg(long, value_enum, value_name = "SHAPE", default_value = "poisson", conflicts_with = "concurrency")]
    arrival: ArrivalArg,
    /// Prompts of exactly so many tokens as the server counts them, its chat template included
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    input_tokens: Option<u64>,
    /// Exactly so many tokens an answer (max_tokens and ignore_eos); without it, the model stops, at most after 256
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    output_tokens: Option<u64>,
    /// Requests before, at the same load, not counted: exactly N, or `auto` for as many as it takes until successive
    /// windows agree within 3 % [default: one round of the concurrency, or two seconds of the rate, at least 2]
    #[arg(long, value_name = "N|auto", value_parser = warmup)]
    warmup: Option<Warmup>,
    /// Limits that a request must all meet to count as good, such as ttft_ms=500ms,tpot_ms=30ms
    #[arg(long, value_name = "METRIC=TIME,...", value_delimiter = ',', value_parser = goodput_limit)]
    goodput: Vec<(String, f64)>,
    /// Ask the questions of this file before and after; a wrong answer makes the result invalid (docs/profiles.md)
    #[arg(long, value_name = "FILE")]
    quality: Option<PathBuf>,
    /// How often a failed request is sent again; its latencies count from the first sending
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=100))]
    retries: u32,
    /// The limit on one request, all attempts together
    #[arg(long, value_name = "TIME", default_value = "10m", value_parser = span)]
    request_timeout: Duration,
    /// How long a stream that has begun may be silent
    #[arg(long, value_name = "TIME", default_value = "2m", value_parser = span)]
    idle_timeout: Duration,
    /// Seed of the order in which prompts are drawn, and of the moments of --rate
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// Keep the texts of the answers in the requests' rows
    #[arg(long)]
    keep_text: bool,
    /// Keep the moments of the chunks in the requests' rows
    #[arg(long)]
    keep_chunks: bool,
    /// Also write the requests' rows to this file, one JSON object a line
    #[arg(long, value_name = "FILE")]
    requests_out: Option<PathBuf>,
    /// Measure although somebody else may do so on this host; a server elsewhere is asked in any case
    #[arg(long)]
    share: bool,
    /// Keep no record
    #[arg(long)]
    no_record: bool,
    /// Prints the record as JSON on standard output, and all else on standard error
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum ApiArg {
    Chat,
    Completions,
    Generate,
    Completion,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum ArrivalArg {
    Poisson,
    Constant,
}

/// The requests before.
#[derive(Clone, Copy, Debug)]
enum Warmup {
    Exactly(u64),
    UntilSettled,
}

fn warmup(text: &str) -> Result<Warmup, String> {
    match text {
        "auto" => Ok(Warmup::UntilSettled),
        _ => units::parse_count(text).map(Warmup::Exactly).map_err(|error| format!("{error}; or `auto`")),
    }
}

fn positive(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(rate) if units::RATES.contains(&rate) => Ok(rate),
        Ok(_) => {
            Err(format!("requests per second are a number from {} to {}", units::RATES.start(), units::RATES.end()))
        }
        Err(error) => Err(format!("{error}; requests per second, such as 4 or 0.5")),
    }
}

fn at_least_one(text: &str) -> Result<u64, String> {
    match units::parse_count(text) {
        Ok(0) => Err("0 would measure nothing".to_owned()),
        Ok(count) => Ok(count),
        Err(error) => Err(error.to_string()),
    }
}

fn span(text: &str) -> Result<Duration, String> {
    match units::parse_duration(text) {
        Ok(Duration::ZERO) => Err("0 would measure nothing".to_owned()),
        Ok(span) => Ok(span),
        Err(error) => Err(error.to_string()),
    }
}

fn goodput_limit(text: &str) -> Result<(String, f64), String> {
    let (id, limit) = text.split_once('=').ok_or("not METRIC=TIME, such as ttft_ms=500ms")?;
    if !GOODPUT_METRICS.contains(&id) {
        return Err(format!("`{id}` cannot have a limit: {} can", GOODPUT_METRICS.join(", ")));
    }
    Ok((id.to_owned(), span(limit)?.as_secs_f64() * 1e3))
}

/// The limits together. One metric with two limits is a slip of the hand.
fn goodput_of(limits: Vec<(String, f64)>) -> Result<Option<Goodput>, Failure> {
    let mut goodput = Goodput::default();
    for (id, limit) in limits {
        if goodput.0.insert(id.clone(), limit).is_some() {
            let report = miette::miette!(code = "orch::bench::goodput", "--goodput names {id} twice");
            return Err(Failure::new(Exit::Usage, report));
        }
    }
    Ok((!goodput.0.is_empty()).then_some(goodput))
}

/// What was asked for, in the program's own words.
struct Asked {
    endpoint: Endpoint,
    target: Target,
    step: Step,
    options: Options,
    keep_chunks: bool,
    requests_out: Option<PathBuf>,
    questions: Vec<Question>,
    quality: Option<PathBuf>,
    share: bool,
    no_record: bool,
    json: bool,
}

impl Asked {
    fn of(args: BenchArgs) -> Result<Self, Failure> {
        let BenchArgs {
            url,
            api,
            model,
            requests,
            duration,
            concurrency,
            rate,
            arrival,
            input_tokens,
            output_tokens,
            warmup,
            goodput,
            quality,
            retries,
            request_timeout,
            idle_timeout,
            seed,
            keep_text,
            keep_chunks,
            requests_out,
            share,
            no_record,
            json,
        } = args;
        let endpoint = Endpoint::parse(&url).map_err(|error| Failure::new(Exit::Usage, error))?;
        // Told before anything is sent or written: it is the command line that asks too much.
        load::allow_open_files(concurrency.unwrap_or(0)).map_err(|error| Failure::new(Exit::Usage, error))?;
        let api = match api {
            ApiArg::Chat => Api::Chat,
            ApiArg::Completions => Api::Completions,
            ApiArg::Generate => Api::Generate,
            ApiArg::Completion => Api::Completion,
        };
        let stop = output_tokens.map_or(Stop::Natural { max_tokens: 256 }, |tokens| Stop::Exact { tokens });
        let shape = match arrival {
            ArrivalArg::Poisson => "poisson",
            ArrivalArg::Constant => "constant",
        };
        // clap has seen to it that there is one of the two.
        let concurrency = concurrency.unwrap_or(1);
        let arrival =
            rate.map_or(Arrival::Closed { concurrency }, |rate| Arrival::Open { rate, shape: shape.to_owned() });
        // An endpoint that is somebody's own may cost money by the request: how many are sent is known before.
        let usual = rate.map_or(u64::from(concurrency), |rate| (2.0 * rate).ceil() as u64).max(2);
        let warmup = match warmup {
            None => Some(usual),
            Some(Warmup::Exactly(count)) => Some(count),
            Some(Warmup::UntilSettled) => None,
        };
        let duration_s = duration.map(|duration| duration.as_secs_f64());
        let lengths = Lengths { input: input_tokens.map(Length::Exact), output: None };
        let (name, prompts) = match input_tokens {
            Some(_) => ("made", Vec::new()),
            None => ("builtin", all_prompts()),
        };
        let step = Step {
            name: "bench".to_owned(),
            workload: Workload::plain(name, api, prompts, stop, seed, lengths),
            load: Load { arrival, requests, duration_s, warmup },
            goodput: goodput_of(goodput)?,
        };
        let target = Target { base_url: url, model, headers: Vec::new() };
        let options = Options {
            keep_text,
            retries,
            request_limit: request_timeout,
            idle_limit: idle_timeout,
            ..Options::default()
        };
        let questions = planned::questions(quality.as_deref())?;
        Ok(Asked {
            endpoint,
            target,
            step,
            options,
            keep_chunks,
            requests_out,
            questions,
            quality,
            share,
            no_record,
            json,
        })
    }

    /// What the record has in the place of a profile.
    fn profile(&self) -> Value {
        let output = match self.step.workload.stop {
            Stop::Natural { max_tokens } => json!({"stop": "natural", "max_tokens": max_tokens}),
            Stop::Exact { tokens } => json!({"exact": tokens}),
        };
        let mut bench = json!({
            "api": self.step.workload.api,
            "output": output,
            "seed": self.step.workload.seed,
            "requests": self.step.load.requests,
            "duration_s": self.step.load.duration_s,
            "warmup": self.step.load.warmup,
            "goodput": self.step.goodput,
        });
        match &self.step.workload.lengths.input {
            Some(length) => bench["input_tokens"] = json!(length),
            None => {
                bench["prompts"] = PROMPT_KINDS.iter().map(|kind| format!("builtin/{kind}")).collect();
            }
        }
        match &self.step.load.arrival {
            Arrival::Closed { concurrency } => bench["concurrency"] = json!(concurrency),
            Arrival::Open { rate, shape } => {
                bench["rate"] = json!(rate);
                bench["arrival"] = json!(shape);
            }
        }
        if self.options.retries > 0 {
            bench["retries"] = json!(self.options.retries);
        }
        json!({
            "url": self.endpoint.url(""),
            "model": self.target.model,
            "share": self.share,
            "quality": self.quality.as_ref().map(|file| json!({"file": file})),
            "bench": {self.step.name.as_str(): bench},
        })
    }

    /// Whether the server is on this machine.
    fn is_beside(&self) -> bool {
        let host = &self.endpoint.host;
        host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
    }
}

/// The built-in prompts, one of each kind in turn.
fn all_prompts() -> Vec<Prompt> {
    let kinds: Vec<&[Prompt]> = PROMPT_KINDS.iter().filter_map(|kind| prompts(kind)).collect();
    let longest = kinds.iter().map(|kind| kind.len()).max().unwrap_or(0);
    (0..longest).flat_map(|n| kinds.iter().filter_map(move |kind| kind.get(n)).cloned()).collect()
}

pub(crate) fn run(args: BenchArgs, global: &Global) -> Outcome {
    let mut asked = Asked::of(args)?;
    // Made first: a file that cannot be written is told before anything is sent.
    let rows = asked.requests_out.as_deref().map(RowWriter::plain).transpose();
    let rows = rows.map_err(|error| Failure::new(Exit::Usage, error))?;
    // Whoever else measures here would be in these numbers, and these requests in theirs.
    let _alone = match asked.is_beside() && !asked.share {
        true => Some(alone(&asked).map_err(|error| Failure::new(Exit::NotLaunched, error))?),
        false => None,
    };
    // Without a record the same is done in a folder that is gone afterwards.
    let scratch = asked.no_record.then(tempfile::tempdir).transpose().map_err(Failure::own)?;
    let results = scratch.as_ref().map_or(global.results.as_path(), |folder| folder.path());
    let store = Store::open(results).map_err(records::failure)?;
    let clock = Clock::system();
    let screen = Screen::new(if asked.json { Stream::Err } else { Stream::Out });
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().map_err(Failure::own)?;
    let (record, short, interrupted, unwritten) = runtime.block_on(async {
        let interrupt = Interrupt::listen(|| {}).map_err(Failure::own)?;
        let warnings = find_model(&mut asked).await?;
        let folder = begin(&asked, &store, &clock)?;
        let mut files = Files::in_folder(folder.path(), &clock, &[]).map_err(|error| Failure::new(Exit::Own, error))?;
        if let Some(rows) = rows {
            files.also(rows);
        }
        let view = View::new(screen.width(), Usual::default(), global.verbose > 0);
        let follower = Follower::new(folder.journal.path(), folder.journal.subscribe(), clock.clone(), false, view);
        let over = CancellationToken::new();
        let work = async {
            let ended = measure(&asked, &warnings, &mut files, &store, &folder, &clock, interrupt.token()).await;
            over.cancel();
            ended
        };
        let (ended, ()) = tokio::join!(work, follower.follow(&screen, &over));
        screen.end();
        Ok::<_, Failure>((ended?, folder.id().short(), interrupt.exit(), files.unwritten()))
    })?;
    // A signal after the last step interrupted nothing.
    let exit = interrupted
        .filter(|_| !record.complete)
        .unwrap_or_else(|| Exit::of(&record.verdict, record.failure.as_ref(), false));
    for line in ending(&record, (!asked.no_record).then_some(short.as_str()), exit) {
        screen.line(&line);
    }
    if asked.json {
        out::line(serde_json::to_string_pretty(&record).map_err(Failure::own)?);
    }
    match unwritten {
        Some(error) => Err(Failure::new(if exit == Exit::Done { Exit::Own } else { exit }, error)),
        None => Ok(exit),
    }
}

/// Takes the `measure` lease of this host.
fn alone(asked: &Asked) -> Result<Held, LaunchError> {
    WorkFolder::find()?.measure(&format!("bench {} (pid {})", asked.endpoint.url(""), std::process::id()))
}

async fn measure(
    asked: &Asked,
    warnings: &[Warning],
    files: &mut Files,
    store: &Store,
    folder: &RunFolder,
    clock: &Clock,
    interrupt: &CancellationToken,
) -> Result<Record, Failure> {
    let sources = run::Sources::of_endpoint();
    let bench = Bench {
        sources: &sources,
        target: &asked.target,
        options: &asked.options,
        clock,
        interrupt,
        log: &folder.journal,
        load_path: if asked.is_beside() { "beside" } else { "direct" },
        ceiling: WorkFolder::find().ok().as_ref().and_then(crate::selftest::known_ceiling),
        server_log: None,
        flush: None,
        capacity: None,
        keep_chunks: asked.keep_chunks,
        keep_partial: true,
    };
    let steps = std::slice::from_ref(&asked.step);
    let ended = run::bench(&bench, steps, warnings, &asked.questions, files, store, folder).await;
    ended.map_err(|error| Failure::new(Exit::Own, error))
}

/// Takes the only model that the server lists, where none was named; one that was named is held against the list. A
/// server that lists none is asked without a name. Its own endpoints need no name.
async fn find_model(asked: &mut Asked) -> Result<Vec<Warning>, Failure> {
    let needs_name = matches!(asked.step.workload.api, Api::Chat | Api::Completions);
    let warn = |id: &str, text: String| Ok(vec![Warning::new(id, text)]);
    let mut found = match (models::list(&asked.endpoint).await, &asked.target.model) {
        (Ok(found), None) => found,
        (Ok(found), Some(model)) if found.is_empty() || found.contains(model) => return Ok(Vec::new()),
        // No error: some servers take further names than they list, and one that does not will say so itself.
        (Ok(found), Some(model)) => {
            return warn("model_not_listed", format!("the server lists no model `{model}`, but {}", found.join(", ")));
        }
        (Err(models::NoList::NotConnected(why)), _) => {
            let url = asked.endpoint.url("");
            return warn("not_answering", format!("the server does not answer: no connection to {url} ({why})"));
        }
        (Err(_), _) if asked.target.model.is_some() || !needs_name => return Ok(Vec::new()),
        (Err(error), _) => {
            let text = format!("the server's models are not known ({error}): requests name none (--model)");
            return warn("model_unknown", text);
        }
    };
    match found.len() {
        0 if needs_name => {
            let text = "the server lists no model: requests name none (--model)";
            return warn("model_unknown", text.to_owned());
        }
        1 => asked.target.model = found.pop(),
        _ if needs_name => {
            let report = miette::miette!(
                code = "orch::bench::models",
                help = "choose one with --model",
                "the server lists {} models: {}",
                found.len(),
                found.join(", ")
            );
            return Err(Failure::new(Exit::Usage, report));
        }
        _ => {}
    }
    Ok(Vec::new())
}

fn begin(asked: &Asked, store: &Store, clock: &Clock) -> Result<RunFolder, Failure> {
    let profile = asked.profile();
    let host = match asked.is_beside() {
        true => preflight::hardware().map_err(Failure::own)?,
        false => HostInfo { name: asked.endpoint.host.clone(), hardware: "not known".to_owned() },
    };
    let new = NewRun {
        name: "bench".to_owned(),
        // A server that does not answer has no other history for having been asked without a name.
        series: match &asked.target.model {
            Some(model) => format!("bench {} {model}", asked.endpoint.authority),
            None => format!("bench {}", asked.endpoint.authority),
        },
        yaml: serde_yaml::to_string(&profile).map_err(Failure::own)?,
        profile,
        orch: this_build(),
        host,
        kind: RunKind::Bench,
        group: None,
        asked: crate::record::model::Asked::default(),
    };
    store.create(&new, clock).map_err(records::failure)
}

/// The last lines: what was measured, and whether it may be used.
fn ending(record: &Record, short: Option<&str>, exit: Exit) -> Vec<String> {
    let mut lines = vec![String::new()];
    for part in [report::record::steps(&record.steps), report::record::comparisons(&record.comparisons, &record.steps)]
    {
        lines.extend(part.lines().map(str::to_owned));
    }
    lines.push(String::new());
    lines.extend(report::record::verdict(&record.verdict).lines().map(str::to_owned));
    if let (VerdictKind::NoBaseline, Some(short)) = (record.verdict.kind, short) {
        lines.push(format!("  `orch baseline set {short}` makes this run the baseline of `{}`", record.series));
    }
    let kept = short.map_or_else(|| "no record kept".to_owned(), |short| format!("orch show {short}"));
    lines.push(format!("exit {}   {kept}", exit as u8));
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_that_nothing_can_keep_is_refused() {
        assert_eq!((positive("0.5"), positive("100000")), (Ok(0.5), Ok(100_000.0)));
        for text in ["0", "-1", "1e-300", "1e9", "inf", "NaN"] {
            assert_eq!(
                positive(text),
                Err("requests per second are a number from 0.001 to 100000".to_owned()),
                "{text}"
            );
        }
    }
}
