//! When the numbers of a step may not be used. One list, each reason with its limit.

use std::collections::BTreeMap;

use super::summary::{counts, duration_s, full_load, sources};
use super::{Measured, MetricValue, Outcome, Percentile, Timeline, TokenSource};
use crate::record::model::Reason;
use crate::render::{Arrival, Step, Stop, Warning};

/// More than this share of failed requests makes a step invalid; fewer are a warning. The same goes for those that
/// outlived the grace: a server that hangs fails them as well, and nobody else says so.
pub const FAILED_RATIO_LIMIT: f64 = 0.01;
/// More than this share of answers of another length than the exact one that was asked for makes it invalid.
pub const WRONG_LENGTH_RATIO_LIMIT: f64 = 0.01;
/// More than this share of answers of several tokens that came at once makes it invalid: nothing was streamed.
pub const AT_ONCE_RATIO_LIMIT: f64 = 0.10;
/// Fewer requests that ended `ok` than this make it invalid.
pub const LEAST_REQUESTS: u64 = 16;
/// At a concurrency above 1, less than this share of the run under full load is a warning.
pub const FULL_LOAD_RATIO: f64 = 0.5;

/// The reasons that a step under load can have, by id.
pub const REASONS: &[(&str, &str)] = &[
    ("interrupted", "someone stopped it before it was done"),
    ("gave_up", "the first answer said that no other would be better (status 401, 403, 404, 405 or 501)"),
    ("no_successful_request", "not one request ended `ok`"),
    ("failures", "more than 1 % of the requests failed; those that orch ended itself are not counted"),
    (
        "cut_off",
        "more than 1 % of the requests of a timed step were still running when the grace after its end was over, and were cut off",
    ),
    (
        "wrong_length",
        "more than 1 % of the answers do not have the exact length that was asked for; those without a count of tokens are not compared",
    ),
    ("impossible_count", "more than 1 % of the answers are said to have more tokens than the request allowed"),
    ("not_streamed", "more than 10 % of the answers of several tokens came at once"),
    ("too_few_samples", "fewer than 16 requests ended `ok`"),
];

/// Why the numbers may not be used.
pub fn reasons(measured: &Measured, step: &Step) -> Vec<Reason> {
    let mut reasons = Vec::new();
    if measured.interrupted {
        reasons.push(Reason::new("interrupted", "it was interrupted before it was done"));
    }
    if let Some(words) = &measured.gave_up {
        reasons.push(Reason::new("gave_up", format!("stopped at the first answer: {words}")));
    }
    let counts = counts(&measured.timelines);
    if counts.ok == 0 {
        let mut text = format!("no request of {} succeeded", counts.failed);
        if let Some((word, example)) = commonest_failure(measured) {
            text.push_str(&format!("; most often {word}: {example}"));
        }
        reasons.push(Reason::new("no_successful_request", text));
        return reasons;
    }
    let failures = judged_failures(measured);
    let judged = counts.ok + failures;
    if share(failures, judged) > FAILED_RATIO_LIMIT {
        let mut text = format!("{failures} of {judged} requests failed, more than {} %", FAILED_RATIO_LIMIT * 100.0);
        if let Some((word, example)) = commonest_failure(measured) {
            text.push_str(&format!("; most often {word}: {example}"));
        }
        reasons.push(Reason::new("failures", text));
    }
    let cut = measured.outlived_grace;
    if share(cut, judged + cut) > FAILED_RATIO_LIMIT {
        let text = format!(
            "{cut} of {} requests were still running when the grace was over, more than {} %",
            judged + cut,
            FAILED_RATIO_LIMIT * 100.0
        );
        reasons.push(Reason::new("cut_off", text));
    }
    reasons.extend(wrong_length(measured));
    reasons.extend(impossible_count(measured, step));
    reasons.extend(not_streamed(measured));
    if counts.ok < LEAST_REQUESTS {
        let text = format!("{} requests succeeded, at least {LEAST_REQUESTS} are needed", counts.ok);
        reasons.push(Reason::new("too_few_samples", text));
    }
    debug_assert!(
        reasons.iter().all(|reason| REASONS.iter().any(|(id, _)| *id == reason.id)),
        "{} is unlisted",
        step.name
    );
    reasons
}

fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

/// Failures that are the server's or the network's. What orch itself cut off is not.
fn judged_failures(measured: &Measured) -> u64 {
    let failed = |timeline: &&Timeline| !timeline.is_ok() && timeline.outcome != Outcome::Cancelled;
    measured.timelines.iter().filter(failed).count() as u64
}

/// The error kind that came most often, with the words of one of its requests.
fn commonest_failure(measured: &Measured) -> Option<(&'static str, String)> {
    let mut kinds: BTreeMap<Outcome, (u64, &Timeline)> = BTreeMap::new();
    for timeline in measured.timelines.iter().filter(|timeline| !timeline.is_ok()) {
        kinds.entry(timeline.outcome).or_insert((0, timeline)).0 += 1;
    }
    let (outcome, (_, timeline)) = kinds.into_iter().max_by_key(|(_, (count, _))| *count)?;
    let status = timeline.http_status.filter(|status| !(200..300).contains(status));
    let status = status.map(|status| format!("status {status}, ")).unwrap_or_default();
    Some((
        outcome.word(),
        format!("{status}{}", timeline.error.as_deref().filter(|words| !words.is_empty()).unwrap_or("without words")),
    ))
}

/// Of the answers that should have an exact length: what was wanted, and what came, if it was counted. A number of
/// chunks is no count of tokens.
fn lengths(measured: &Measured) -> impl Iterator<Item = (u64, Option<u64>)> {
    measured.timelines.iter().filter(|timeline| timeline.is_ok()).filter_map(|timeline| {
        let (tokens, source) = timeline.output_tokens();
        let counted = source.is_some_and(|source| source != TokenSource::Chunks);
        Some((timeline.wanted_tokens?, counted.then_some(tokens)))
    })
}

fn wrong_length(measured: &Measured) -> Option<Reason> {
    let compared: Vec<_> = lengths(measured).filter_map(|(wanted, came)| Some((wanted, came?))).collect();
    let wrong: Vec<_> = compared.iter().filter(|(wanted, came)| wanted != came).collect();
    let (wanted, came) = wrong.first()?;
    let (count, all) = (wrong.len() as u64, compared.len() as u64);
    let text = format!(
        "{count} of {all} answers do not have the length that was asked for, such as {came} tokens instead of {wanted}"
    );
    (share(count, all) > WRONG_LENGTH_RATIO_LIMIT).then(|| Reason::new("wrong_length", text))
}

fn impossible_count(measured: &Measured, step: &Step) -> Option<Reason> {
    let most = match step.workload.stop {
        Stop::Natural { max_tokens } => max_tokens,
        Stop::Exact { tokens } => tokens,
    };
    let ok = measured.timelines.iter().filter(|timeline| timeline.is_ok());
    let counts: Vec<u64> = ok.map(|timeline| timeline.output_tokens().0).collect();
    let beyond: Vec<&u64> = counts.iter().filter(|count| **count > most).collect();
    let example = beyond.first()?;
    let (count, all) = (beyond.len() as u64, counts.len() as u64);
    let text =
        format!("{count} of {all} answers are said to have more tokens than was allowed, such as {example} of {most}");
    (share(count, all) > WRONG_LENGTH_RATIO_LIMIT).then(|| Reason::new("impossible_count", text))
}

fn not_streamed(measured: &Measured) -> Option<Reason> {
    let several = measured.timelines.iter().filter(|timeline| timeline.is_ok() && timeline.output_tokens().0 > 1);
    let (mut all, mut at_once) = (0, 0);
    for timeline in several {
        all += 1;
        at_once += u64::from(timeline.came_at_once());
    }
    let text = format!(
        "{at_once} of {all} answers came at once instead of as a stream: speeds of decoding cannot be read off them"
    );
    (share(at_once, all) > AT_ONCE_RATIO_LIMIT).then(|| Reason::new("not_streamed", text))
}

/// What a person should know about the numbers.
pub fn warnings(measured: &Measured, step: &Step, metrics: &BTreeMap<String, MetricValue>) -> Vec<Warning> {
    let mut warnings = Vec::new();
    let counts = counts(&measured.timelines);
    let failures = judged_failures(measured);
    if failures > 0 && share(failures, counts.ok + failures) <= FAILED_RATIO_LIMIT {
        let text = format!("{failures} of {} requests failed; they are in no number", counts.ok + failures);
        warnings.push(Warning::new("some_failed", text));
    }
    let cancelled = counts.errors.get(Outcome::Cancelled.word()).copied().unwrap_or(0);
    if cancelled > 0 {
        let text =
            format!("{cancelled} requests were still running when it ended and were cut off; they are in no number");
        warnings.push(Warning::new("cut_off", text));
    }
    if counts.ok == 0 {
        return warnings;
    }
    warnings.extend(about_tokens(measured, counts.ok));
    if let Some(MetricValue::Distribution(ttft)) = metrics.get("ttft_ms")
        && !ttft.carries(Percentile::P99)
    {
        let carried = ttft.enough.map_or("no percentile", Percentile::word);
        let text = format!("{} requests carry {carried} and nothing above it", ttft.samples);
        warnings.push(Warning::new("percentiles_not_carried", text));
    }
    let reopened = measured.timelines.iter().filter(|timeline| timeline.connect.is_some()).count();
    if reopened > 0 {
        let text = format!("{reopened} requests had to open a connection: the server does not keep them");
        warnings.push(Warning::new("connections_not_kept", text));
    }
    warnings.extend(short_plateau(measured, step));
    warnings
}

fn about_tokens(measured: &Measured, ok: u64) -> Vec<Warning> {
    let mut warnings = Vec::new();
    let by_chunks = sources(measured).get("chunks").copied().unwrap_or(0);
    if by_chunks > 0 {
        let text = format!(
            "{by_chunks} of {ok} answers came without a count of tokens: chunks were counted, which is an estimate"
        );
        warnings.push(Warning::new("tokens_estimated", text));
    }
    let unchecked = lengths(measured).filter(|(_, came)| came.is_none()).count();
    if unchecked > 0 {
        let text = format!(
            "{unchecked} of {ok} answers came without a count of tokens: whether they have the length that was asked for is not known"
        );
        warnings.push(Warning::new("length_not_checked", text));
    }
    let timelines = measured.timelines.iter().filter(|timeline| timeline.is_ok());
    let unknown = timelines.filter(|timeline| !timeline.tokens_exact()).count();
    if unknown > 0 {
        let text = format!(
            "{unknown} of {ok} answers do not tell the tokens of each chunk: tpot_ms is an estimate and itl_ms leaves them out"
        );
        warnings.push(Warning::new("chunk_tokens_unknown", text));
    }
    warnings
}

fn short_plateau(measured: &Measured, step: &Step) -> Option<Warning> {
    let Arrival::Closed { concurrency: 2.. } = step.load.arrival else { return None };
    let whole = duration_s(measured)?;
    let full = full_load(measured, step).map_or(0.0, |(begin, end)| (end - begin) as f64 / 1e9);
    let text =
        format!("the load was full for {full:.1} s of {whole:.1} s: more requests would make the plateau longer");
    (full / whole < FULL_LOAD_RATIO).then(|| Warning::new("short_plateau", text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::testing::{closed, ok, step};
    use crate::measure::{Seen, summarize};

    /// Twenty good requests, one after the other.
    fn clean() -> Vec<Timeline> {
        (0..20).map(|n| ok(n * 1000, n * 1000 + 100, n * 1000 + 900, 2)).collect()
    }

    fn ids(measured: &Measured) -> Vec<String> {
        reasons(measured, &step(closed(1))).into_iter().map(|reason| reason.id).collect()
    }

    fn with(timelines: Vec<Timeline>) -> Measured {
        Measured { timelines, ..Measured::default() }
    }

    fn failed(outcome: Outcome) -> Timeline {
        Timeline { sent: Some(0), done: Some(5), outcome, error: Some("no luck".to_owned()), ..Timeline::default() }
    }

    #[test]
    fn a_clean_run_has_no_reason() {
        assert_eq!(ids(&with(clean())), Vec::<String>::new());
    }

    #[test]
    fn each_reason_is_given_for_its_fault_alone() {
        assert_eq!(ids(&Measured { interrupted: true, ..with(clean()) }), ["interrupted"]);
        let gave_up = Measured {
            gave_up: Some("http://h answered 404: Not Found".to_owned()),
            ..with(vec![failed(Outcome::HttpError)])
        };
        assert_eq!(ids(&gave_up), ["gave_up", "no_successful_request"]);
        assert_eq!(ids(&with(vec![])), ["no_successful_request"]);
        assert_eq!(ids(&with([clean(), vec![failed(Outcome::HttpError)]].concat())), ["failures"]);
        assert_eq!(ids(&with(clean()[..15].to_vec())), ["too_few_samples"]);
        let short: Vec<_> = clean().into_iter().map(|one| Timeline { wanted_tokens: Some(3), ..one }).collect();
        assert_eq!(ids(&with(short)), ["wrong_length"]);
        let at_once: Vec<_> = (0..20).map(|n| ok(n * 1000, n * 1000 + 900, n * 1000 + 901, 2)).collect();
        assert_eq!(ids(&with(at_once)), ["not_streamed"]);
    }

    #[test]
    fn one_failure_in_a_hundred_is_a_warning_and_two_are_a_reason() {
        let many: Vec<_> = clean().into_iter().cycle().take(99).collect();
        let one = with([many.clone(), vec![failed(Outcome::HttpError)]].concat());
        assert_eq!(ids(&one), Vec::<String>::new());
        assert!(
            summarize(&one, &step(closed(1)), &Seen::default())
                .warnings
                .iter()
                .any(|warning| warning.id == "some_failed")
        );
        assert_eq!(ids(&with([many, vec![failed(Outcome::HttpError); 2]].concat())), ["failures"]);
    }

    #[test]
    fn what_an_interrupt_cut_off_is_a_warning() {
        let cut = with([clean(), vec![failed(Outcome::Cancelled); 3]].concat());
        assert_eq!(ids(&cut), Vec::<String>::new());
        assert!(
            summarize(&cut, &step(closed(1)), &Seen::default()).warnings.iter().any(|warning| warning.id == "cut_off")
        );
    }

    #[test]
    fn a_server_that_hangs_past_the_grace_makes_the_step_invalid() {
        let cut = |ok: usize, cut: usize| Measured {
            outlived_grace: cut as u64,
            ..with([clean().into_iter().cycle().take(ok).collect(), vec![failed(Outcome::Cancelled); cut]].concat())
        };
        assert_eq!(ids(&cut(20, 3)), ["cut_off"]);
        assert_eq!(
            reasons(&cut(97, 3), &step(closed(1)))[0].text,
            "3 of 100 requests were still running when the grace was over, more than 1 %"
        );
        assert_eq!(ids(&cut(99, 1)), Vec::<String>::new());
    }

    #[test]
    fn a_number_of_chunks_is_not_held_to_the_exact_length() {
        let mut uncounted = clean();
        for timeline in &mut uncounted {
            timeline.wanted_tokens = Some(3);
            timeline.usage = None;
        }
        assert_eq!(ids(&with(uncounted.clone())), Vec::<String>::new());
        let warnings = summarize(&with(uncounted), &step(closed(1)), &Seen::default()).warnings;
        let warning = warnings.iter().find(|warning| warning.id == "length_not_checked").unwrap();
        assert!(warning.text.starts_with("20 of 20 answers"), "{}", warning.text);
    }

    #[test]
    fn more_tokens_than_were_allowed_are_not_believed() {
        let mut boasting = clean();
        boasting[0].usage = Some(crate::measure::Usage { completion_tokens: Some(u64::MAX), ..Default::default() });
        assert_eq!(ids(&with(boasting)), ["impossible_count"]);
    }

    #[test]
    fn chunks_of_one_moment_are_no_stream_and_give_no_speed() {
        let mut burst = clean();
        for timeline in &mut burst {
            let at = timeline.chunks[0].at;
            timeline.chunks.iter_mut().for_each(|chunk| chunk.at = at);
        }
        assert_eq!(burst[0].tpot_ms(), None);
        assert_eq!(ids(&with(burst)), ["not_streamed"]);
    }

    #[test]
    fn reasons_name_the_commonest_failure() {
        let measured =
            with(vec![failed(Outcome::TimedOut), failed(Outcome::RateLimited), failed(Outcome::RateLimited)]);
        let reasons = reasons(&measured, &step(closed(1)));
        assert_eq!(reasons[0].text, "no request of 3 succeeded; most often rate_limited: no luck");
    }

    #[test]
    fn warnings_say_what_the_numbers_rest_on() {
        let summary = summarize(&with(clean()), &step(closed(1)), &Seen::default());
        assert_eq!(summary.warnings[0].text, "20 requests carry p50 and nothing above it");
        let mut estimated = clean();
        estimated[3].usage = None;
        estimated[3].chunks.iter_mut().for_each(|chunk| chunk.tokens = None);
        let ids: Vec<_> = summarize(&with(estimated), &step(closed(1)), &Seen::default())
            .warnings
            .into_iter()
            .map(|warning| warning.id)
            .collect();
        assert_eq!(ids, ["tokens_estimated", "chunk_tokens_unknown", "percentiles_not_carried"]);
        let summary = summarize(&with(clean()), &step(closed(4)), &Seen::default());
        assert!(summary.warnings.iter().any(|warning| warning.id == "short_plateau"));
    }
}
