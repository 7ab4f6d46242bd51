//! What can be typed after `orch bench`, and what is refused of it at once.

use std::path::PathBuf;
use std::time::Duration;

use super::reach::ReachArgs;
use crate::measure::GOODPUT_METRICS;
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
  orch bench --url https://host --model m --requests 64 --concurrency 4 --api-key env:API_KEY
  orch bench --url http://127.0.0.1:8000 --search '{concurrency: {from: 1, to: 128}}' --goodput ttft_ms=500ms --duration 30s

Exit codes: 0 measured; 1 a file cannot be written; 2 usage; 3 somebody else measures on this host; 5 no valid measurement; 6 regressed; 130, 143 interrupted")]
pub(crate) struct BenchArgs {
    /// Base address, with or without /v1 and a slash at its end, or unix:/path/of/a/socket. Several are asked in turn
    #[arg(long, value_name = "URL", required = true)]
    pub(super) url: Vec<String>,
    /// Which endpoint is asked: /v1/chat/completions, /v1/completions, /v1/responses, SGLang's /generate, llama.cpp's
    /// /completion
    #[arg(long, value_enum, default_value = "chat")]
    pub(super) api: ApiArg,
    /// The model's name as served; without it, the only one that the server lists
    #[arg(long, value_name = "NAME")]
    pub(super) model: Option<String>,
    /// How many requests are measured
    #[arg(long, value_name = "N", required_unless_present = "duration", value_parser = at_least_one)]
    pub(super) requests: Option<u64>,
    /// How long is measured, such as 30s or 2m; with --requests, whichever ends first
    #[arg(long, value_name = "TIME", value_parser = span)]
    pub(super) duration: Option<Duration>,
    /// Requests in flight: the next one goes when one ends
    #[arg(long, value_name = "N", required_unless_present_any = ["rate", "search"],
        value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) concurrency: Option<u32>,
    /// Requests per second, sent at their moments however slow the answers are
    #[arg(long, value_name = "R", conflicts_with = "concurrency", value_parser = positive)]
    pub(super) rate: Option<f64>,
    /// Searches the highest load under which enough requests meet all limits of --goodput, in the words of a profile's
    /// `search`: each load that is tried is measured with --requests or for --duration
    #[arg(long, value_name = "MAP", conflicts_with_all = ["concurrency", "rate"], requires = "goodput")]
    pub(super) search: Option<String>,
    /// How the gaps between requests are spread, where a rate is kept or searched [default: poisson]
    #[arg(long, value_enum, value_name = "SHAPE", conflicts_with = "concurrency")]
    pub(super) arrival: Option<ArrivalArg>,
    /// With --arrival gamma: the shape of the gaps, as vLLM defines it; 1 is Poisson, less is burstier
    #[arg(long, value_name = "B", required_if_eq("arrival", "gamma"), value_parser = shape)]
    pub(super) burstiness: Option<f64>,
    /// Asks for whole answers instead of streams: nothing is then known of first tokens and gaps
    #[arg(long = "no-stream")]
    pub(super) whole: bool,
    /// Prompts of exactly so many tokens as the server counts them, its chat template included
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    pub(super) input_tokens: Option<u64>,
    /// Exactly so many tokens an answer (max_tokens and ignore_eos); without it, the model stops, at most after 256
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    pub(super) output_tokens: Option<u64>,
    /// Requests before, at the same load, not counted: exactly N, or `auto` for as many as it takes until successive
    /// windows agree within 3 % [default: one round of the concurrency, or two seconds of the rate, at least 2; of a search
    /// `auto`]
    #[arg(long, value_name = "N|auto", value_parser = warmup)]
    pub(super) warmup: Option<Warmup>,
    /// Limits that a request must all meet to count as good, such as ttft_ms=500ms,tpot_ms=30ms
    #[arg(long, value_name = "METRIC=TIME,...", value_delimiter = ',', value_parser = goodput_limit)]
    pub(super) goodput: Vec<(String, f64)>,
    /// Ask the questions of this file before and after; a wrong answer makes the result invalid (docs/profiles.md)
    #[arg(long, value_name = "FILE")]
    pub(super) quality: Option<PathBuf>,
    /// How often a failed request is sent again; its latencies count from the first sending
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=100))]
    pub(super) retries: u32,
    /// The limit on one request, all attempts together
    #[arg(long, value_name = "TIME", default_value = "10m", value_parser = span)]
    pub(super) request_timeout: Duration,
    /// How long a stream that has begun may be silent
    #[arg(long, value_name = "TIME", default_value = "2m", value_parser = span)]
    pub(super) idle_timeout: Duration,
    /// Seed of the order in which prompts are drawn, and of the moments of --rate
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(super) seed: u64,
    /// Keep the texts of the answers in the requests' rows
    #[arg(long)]
    pub(super) keep_text: bool,
    /// Keep the moments of the chunks in the requests' rows
    #[arg(long)]
    pub(super) keep_chunks: bool,
    /// Also write the requests' rows to this file, one JSON object a line; `-` is standard output, and all else then goes
    /// to standard error
    #[arg(long, value_name = "FILE")]
    pub(super) requests_out: Option<PathBuf>,
    /// Measure although somebody else may do so on this host; a server elsewhere is asked in any case
    #[arg(long)]
    pub(super) share: bool,
    /// Keep no record
    #[arg(long)]
    pub(super) no_record: bool,
    /// Prints the record as JSON on standard output, and all else on standard error
    #[arg(long)]
    pub(super) json: bool,
    #[command(flatten)]
    pub(super) reach: ReachArgs,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub(super) enum ApiArg {
    Chat,
    Completions,
    Responses,
    Generate,
    Completion,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub(super) enum ArrivalArg {
    Poisson,
    Constant,
    Gamma,
}

/// The requests before.
#[derive(Clone, Copy, Debug)]
pub(super) enum Warmup {
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

fn shape(text: &str) -> Result<f64, String> {
    let number = text.parse::<f64>().ok().filter(|number| number.is_finite() && *number > 0.0);
    number.ok_or_else(|| "the shape of gamma gaps is a number above 0, such as 0.5".to_owned())
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
