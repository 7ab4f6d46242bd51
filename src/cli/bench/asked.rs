//! What was typed, in the program's own words.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::super::{Exit, Failure, planned};
use super::flags::{ApiArg, BenchArgs, Warmup};
use super::reach::Reach;
use super::way::{Way, most_at_once, word_of};
use crate::load::url::Endpoint;
use crate::load::{self, Options, Target};
use crate::measure::Goodput;
use crate::profile::{Length, PROMPT_KINDS, Prompt, Question, prompts};
use crate::render::{Api, Arrival, Lengths, Load, Search, Special, Step, Stop, Workload};

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
pub(super) struct Asked {
    pub(super) endpoint: Endpoint,
    pub(super) target: Target,
    pub(super) step: Step,
    pub(super) options: Options,
    pub(super) keep_chunks: bool,
    pub(super) requests_out: Option<PathBuf>,
    pub(super) questions: Vec<Question>,
    pub(super) quality: Option<PathBuf>,
    pub(super) share: bool,
    pub(super) no_record: bool,
    pub(super) json: bool,
}

impl Asked {
    pub(super) fn of(args: BenchArgs) -> Result<Self, Failure> {
        let BenchArgs {
            url,
            api,
            model,
            requests,
            duration,
            concurrency,
            rate,
            search,
            arrival,
            input_tokens,
            output_tokens,
            burstiness,
            whole,
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
            reach,
        } = args;
        let mut urls = url.into_iter();
        // clap has seen to it that there is one.
        let url = urls.next().unwrap_or_default();
        let more: Vec<String> = urls.collect();
        let parse = |url: &str| Endpoint::parse(url).map_err(|error| Failure::new(Exit::Usage, error));
        let endpoint = parse(&url)?;
        more.iter().try_for_each(|url| parse(url).map(drop))?;
        let reach = Reach::of(reach, &endpoint)?;
        let endpoint = endpoint.through(&reach.net);
        let api = match api {
            ApiArg::Chat => Api::Chat,
            ApiArg::Completions => Api::Completions,
            ApiArg::Responses => Api::Responses,
            ApiArg::Generate => Api::Generate,
            ApiArg::Completion => Api::Completion,
        };
        let stop = output_tokens.map_or(Stop::Natural { max_tokens: 256 }, |tokens| Stop::Exact { tokens });
        let asked = Way { concurrency, rate, search, arrival, burstiness };
        let arrival = asked.arrival()?;
        // Told before anything is sent or written: it is the command line that asks too much.
        load::allow_open_files(most_at_once(&arrival)).map_err(|error| Failure::new(Exit::Usage, error))?;
        // An endpoint that is somebody's own may cost money by the request: how many are sent is known before.
        let usual = match &arrival {
            // It sends many requests in any case, each load its own.
            Arrival::Search(_) => None,
            _ => Some(rate.map_or(u64::from(concurrency.unwrap_or(1)), |rate| (2.0 * rate).ceil() as u64).max(2)),
        };
        let warmup = match warmup {
            None => usual,
            Some(Warmup::Exactly(count)) => Some(count),
            Some(Warmup::UntilSettled) => None,
        };
        let duration_s = duration.map(|duration| duration.as_secs_f64());
        let lengths = Lengths { input: input_tokens.map(Length::Exact), output: None };
        let (name, prompts) = match input_tokens {
            Some(_) => ("made", Vec::new()),
            None => ("builtin", all_prompts()),
        };
        let special = Special { whole, ..Special::default() };
        let step = Step {
            name: "bench".to_owned(),
            workload: Workload::special(name, api, prompts, stop, seed, lengths, special),
            load: Load { arrival, requests, duration_s, warmup },
            goodput: goodput_of(goodput)?,
        };
        let target = Target { base_url: url, model, headers: reach.headers, more, net: reach.net };
        let options = Options {
            keep_text,
            retries,
            request_limit: request_timeout,
            idle_limit: idle_timeout,
            ..Options::default()
        };
        if json && requests_out.as_deref().is_some_and(is_standard_output) {
            let report = miette::miette!(
                code = "orch::bench::output",
                help = "write the rows to a file, or read them from the kept record",
                "--json and --requests-out - both want standard output"
            );
            return Err(Failure::new(Exit::Usage, report));
        }
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
    pub(super) fn profile(&self) -> Value {
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
            Arrival::Open { rate, shape, burstiness } => {
                bench["rate"] = json!(rate);
                bench["arrival"] = json!(shape);
                if let Some(burstiness) = burstiness {
                    bench["burstiness"] = json!(burstiness);
                }
            }
            Arrival::Search(search) => {
                let Search { of, from, to, share, within, shape, burstiness } = search;
                bench["search"] = json!({word_of(*of): {"from": from, "to": to}, "share": share, "within": within});
                if let Some(shape) = shape {
                    bench["arrival"] = json!(shape);
                }
                if let Some(burstiness) = burstiness {
                    bench["burstiness"] = json!(burstiness);
                }
            }
            // What only profiles can say.
            Arrival::Stages { .. } | Arrival::Bursts { .. } | Arrival::Trace { .. } => {}
        }
        if self.step.workload.special.whole {
            bench["stream"] = json!(false);
        }
        // Names alone: values of headers are nobody's business.
        let names: Vec<&str> = self.target.headers.iter().map(|(name, _)| name.as_str()).collect();
        if !names.is_empty() {
            bench["headers"] = json!(names);
        }
        if self.target.net.http2 {
            bench["http2"] = json!(true);
        }
        if !self.target.more.is_empty() {
            bench["more_urls"] = json!(self.target.more);
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

    /// What will be sent, for people.
    pub(super) fn load(&self) -> String {
        let load = &self.step.load;
        let much = match (load.requests, load.duration_s) {
            (Some(requests), None) => format!("{requests} requests"),
            (None, Some(seconds)) => format!("{seconds} s"),
            (Some(requests), Some(seconds)) => format!("{requests} requests or {seconds} s"),
            (None, None) => "nothing".to_owned(),
        };
        let how = match &load.arrival {
            Arrival::Closed { concurrency } => format!("{concurrency} at a time"),
            Arrival::Open { rate, shape, .. } => format!("{rate} a second, {shape}"),
            Arrival::Search(Search { of, from, to, .. }) => {
                format!("for each {} that is tried from {from} to {to}", word_of(*of))
            }
            Arrival::Stages { .. } | Arrival::Bursts { .. } | Arrival::Trace { .. } => "on a schedule".to_owned(),
        };
        let prompts = match self.step.workload.lengths.input {
            Some(Length::Exact(tokens)) => format!("prompts of {tokens} tokens"),
            _ => "built-in prompts".to_owned(),
        };
        let answers = match self.step.workload.stop {
            Stop::Natural { max_tokens } => format!("answers of at most {max_tokens}"),
            Stop::Exact { tokens } => format!("answers of exactly {tokens}"),
        };
        let before =
            load.warmup.map_or_else(|| "warm-up until it settles".to_owned(), |count| format!("{count} before"));
        format!("{much}, {how}; {prompts}, {answers} tokens; {before}")
    }

    /// Whether the server is on this machine.
    pub(super) fn is_beside(&self) -> bool {
        self.endpoint.is_local()
    }
}

/// Whether a file's name stands for standard output.
pub(super) fn is_standard_output(path: &Path) -> bool {
    path == Path::new("-")
}

/// The built-in prompts, one of each kind in turn.
fn all_prompts() -> Vec<Prompt> {
    let kinds: Vec<&[Prompt]> = PROMPT_KINDS.iter().filter_map(|kind| prompts(kind)).collect();
    let longest = kinds.iter().map(|kind| kind.len()).max().unwrap_or(0);
    (0..longest).flat_map(|n| kinds.iter().filter_map(move |kind| kind.get(n)).cloned()).collect()
}
