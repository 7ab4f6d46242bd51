use super::*;
use crate::measure::counters::{Counter, Window};
use crate::measure::testing::{closed, ok, step};
use crate::measure::{Capacity, Logged, TextFault, Usage, summarize};
use crate::render::Stop;

/// Twenty good requests, one after the other.
fn clean() -> Vec<Timeline> {
    (0..20).map(|n| ok(n * 1000, n * 1000 + 100, n * 1000 + 900, 2)).collect()
}

fn ids(measured: &Measured) -> Vec<String> {
    reasons(measured, &step(closed(1)), &Seen::default()).into_iter().map(|reason| reason.id).collect()
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
        summarize(&one, &step(closed(1)), &Seen::default()).warnings.iter().any(|warning| warning.id == "some_failed")
    );
    assert_eq!(ids(&with([many, vec![failed(Outcome::HttpError); 2]].concat())), ["failures"]);
}

#[test]
fn what_an_interrupt_cut_off_is_a_warning() {
    let cut = with([clean(), vec![failed(Outcome::Cancelled); 3]].concat());
    assert_eq!(ids(&cut), Vec::<String>::new());
    assert!(summarize(&cut, &step(closed(1)), &Seen::default()).warnings.iter().any(|warning| warning.id == "cut_off"));
}

#[test]
fn a_server_that_hangs_past_the_grace_makes_the_step_invalid() {
    let cut = |ok: usize, cut: usize| Measured {
        outlived_grace: cut as u64,
        ..with([clean().into_iter().cycle().take(ok).collect(), vec![failed(Outcome::Cancelled); cut]].concat())
    };
    assert_eq!(ids(&cut(20, 3)), ["cut_off"]);
    assert_eq!(
        reasons(&cut(97, 3), &step(closed(1)), &Seen::default())[0].text,
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
fn a_part_that_is_more_than_the_whole_is_not_believed() {
    let usage = Usage { prompt_tokens: Some(10), completion_tokens: Some(2), ..Usage::default() };
    let said = |usage: Usage| {
        let mut odd = clean();
        odd[0].usage = Some(usage);
        ids(&with(odd))
    };
    assert_eq!(said(Usage { cached_tokens: Some(10), reasoning_tokens: Some(2), ..usage }), [""; 0]);
    assert_eq!(said(Usage { cached_tokens: Some(11), ..usage }), ["impossible_count"]);
    assert_eq!(said(Usage { reasoning_tokens: Some(3), ..usage }), ["impossible_count"]);
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
    let measured = with(vec![failed(Outcome::TimedOut), failed(Outcome::RateLimited), failed(Outcome::RateLimited)]);
    let reasons = reasons(&measured, &step(closed(1)), &Seen::default());
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
}

/// Requests of 900 ms each, so many at a time and one alone after the other.
fn part_full(together: u64, alone: u64) -> Measured {
    let pairs = (0..together).flat_map(|n| vec![ok(n * 1000, n * 1000 + 100, n * 1000 + 900, 2); 2]);
    let tail = (together..together + alone).map(|n| ok(n * 1000, n * 1000 + 100, n * 1000 + 900, 2));
    with(pairs.chain(tail).collect())
}

#[test]
fn a_short_plateau_is_a_warning_and_a_shorter_one_a_reason() {
    let found = |measured: &Measured, concurrency: u32| {
        let step = step(closed(concurrency));
        let summary = summarize(measured, &step, &Seen::default());
        let reason = summary.reasons.iter().any(|reason| reason.id == "short_plateau");
        (reason, summary.warnings.iter().any(|warning| warning.id == "short_plateau"))
    };
    assert_eq!(found(&part_full(12, 8), 2), (false, false));
    assert_eq!(found(&part_full(8, 12), 2), (false, true));
    assert_eq!(found(&part_full(4, 16), 2), (true, false));
    assert_eq!(found(&with(clean()), 4), (true, false), "never full");
    assert_eq!(found(&with(clean()), 1), (false, false), "one at a time has no plateau");
}

/// The reasons of a step that allows 64 tokens, with what was seen of the server.
fn seen_ids(measured: &Measured, seen: &Seen) -> Vec<String> {
    let mut step = step(closed(1));
    step.workload.stop = Stop::Natural { max_tokens: 64 };
    step.workload.cold_prefix = true;
    reasons(measured, &step, seen).into_iter().map(|reason| reason.id).collect()
}

fn counted(counted: &[(Counter, f64)]) -> Seen {
    let window = Window { counted: counted.iter().copied().collect(), ..Window::default() };
    Seen { counters: Some(window), ..Seen::default() }
}

#[test]
fn single_tokens_where_more_were_allowed_are_no_answers() {
    let mut short = clean();
    for timeline in &mut short[..3] {
        timeline.chunks.truncate(1);
        timeline.usage = Some(Usage { completion_tokens: Some(1), ..Usage::default() });
    }
    assert_eq!(seen_ids(&with(short.clone()), &Seen::default()), ["short_outputs"]);
    assert_eq!(ids(&with(short.clone())), [""; 0], "where only 8 are allowed, a word may be the answer");
    short[0] = clean().remove(0);
    assert_eq!(seen_ids(&with(short), &Seen::default()), [""; 0], "two of twenty");
}

#[test]
fn fewer_tokens_than_chunks_are_not_believed() {
    let mut modest: Vec<_> = (0..20).map(|n| ok(n * 1000, n * 1000 + 100, n * 1000 + 900, 8)).collect();
    modest[0].usage = Some(Usage { completion_tokens: Some(5), ..Usage::default() });
    assert_eq!(ids(&with(modest.clone())), ["impossible_count"]);
    modest[0].usage = Some(Usage { completion_tokens: Some(7), ..Usage::default() });
    assert_eq!(ids(&with(modest)), [""; 0], "a character in two chunks");
}

#[test]
fn the_engines_own_count_must_agree_with_the_answers() {
    // Twenty answers of two tokens.
    let agree = |tokens: f64| seen_ids(&with(clean()), &counted(&[(Counter::OutputTokens, tokens)]));
    assert_eq!([agree(40.0), agree(39.3), agree(40.8)], [vec![], vec![], vec![] as Vec<String>]);
    assert_eq!((agree(41.0), agree(39.0)), (vec!["counts_disagree".to_owned()], vec!["counts_disagree".to_owned()]));
    // One in a hundred failed: it may have generated up to 64 tokens before.
    let mut some_failed: Vec<_> = clean().into_iter().cycle().take(99).collect();
    some_failed.push(failed(Outcome::TimedOut));
    let with_failure = |tokens: f64| seen_ids(&with(some_failed.clone()), &counted(&[(Counter::OutputTokens, tokens)]));
    assert_eq!((with_failure(262.0), with_failure(270.0)), (vec![], vec!["counts_disagree".to_owned()]));
    // One was sent twice before it was answered: the first sending may have generated up to 64.
    let mut again = clean();
    again[0].attempts = 2;
    let retried = |tokens: f64| seen_ids(&with(again.clone()), &counted(&[(Counter::OutputTokens, tokens)]));
    assert_eq!((retried(104.0), retried(107.0)), (vec![], vec!["counts_disagree".to_owned()]));
    // Above a million llama.cpp prints tens.
    let rounded = |tokens: f64| {
        let mut seen = counted(&[(Counter::OutputTokens, tokens)]);
        seen.counters.as_mut().unwrap().off.insert(Counter::OutputTokens, 10.0);
        seen_ids(&with(clean()), &seen)
    };
    assert_eq!((rounded(50.0), rounded(30.0), rounded(51.0)), (vec![], vec![], vec!["counts_disagree".to_owned()]));
    // An answer without a count: nothing to hold it against.
    let mut uncounted = clean();
    uncounted[0].usage = None;
    assert_eq!(seen_ids(&with(uncounted), &counted(&[(Counter::OutputTokens, 99.0)])), [""; 0]);
}

#[test]
fn texts_that_no_working_model_gives_are_found_where_answers_end_by_themselves() {
    let faulty = |count: usize, fault: TextFault| {
        let mut timelines = clean();
        timelines[..count].iter_mut().for_each(|timeline| timeline.text_fault = Some(fault));
        with(timelines)
    };
    assert_eq!(ids(&faulty(5, TextFault::Repeats)), [""; 0]);
    assert_eq!(ids(&faulty(6, TextFault::Repeats)), ["repetition"]);
    assert_eq!(ids(&faulty(1, TextFault::Undecodable)), [""; 0]);
    assert_eq!(ids(&faulty(2, TextFault::Undecodable)), ["invalid_text"]);
    let mut forced = step(closed(1));
    forced.workload.stop = Stop::Exact { tokens: 2 };
    assert_eq!(reasons(&faulty(20, TextFault::Repeats), &forced, &Seen::default()), []);
}

#[test]
fn a_client_that_does_not_keep_up_is_no_measure_of_a_server() {
    let late = |count: usize, ms: u64| {
        let mut timelines = clean();
        timelines[1..=count].iter_mut().for_each(|timeline| timeline.due -= ms * 1_000_000);
        timelines
    };
    assert_eq!(ids(&with(late(2, 100))), [""; 0]);
    assert_eq!(ids(&with(late(3, 100))), ["client_late"]);
    assert_eq!(ids(&with(late(19, 50))), [""; 0], "as much as is allowed");
    let mut opened = late(19, 100);
    opened.iter_mut().for_each(|timeline| timeline.connect = Some(1));
    assert_eq!(ids(&with(opened.clone())), [""; 0], "the server does not keep connections");
    // Open loop: how late a request was taken up is this machine's alone, whatever its connection took.
    let open = |late_ms: u64, of: usize| {
        let late = (0..20).map(|n| if n < of { late_ms * 1_000_000 } else { 0 }).collect();
        ids(&Measured { scheduled: true, late, ..with(opened.clone()) })
    };
    assert_eq!((open(51, 3), open(51, 2), open(49, 20)), (vec!["client_late".to_owned()], vec![], vec![]));
}

#[test]
fn a_client_without_time_left_measures_itself() {
    let busy = |ms: u64, of_ms: u64| Measured {
        cpu: Some(ms * 1_000_000),
        began: 0,
        ended: of_ms * 1_000_000,
        ..with(clean())
    };
    assert_eq!(ids(&busy(9_600, 10_000)), ["client_at_ceiling"]);
    assert_eq!(ids(&busy(9_400, 10_000)), [""; 0]);
    assert_eq!(ids(&busy(960, 999)), [""; 0], "too short to tell");
}

#[test]
fn prompts_from_the_cache_are_not_cold() {
    let hits = |cached: f64| {
        let seen = counted(&[(Counter::CachedPromptTokens, cached), (Counter::PromptTokens, 1000.0)]);
        let mut step = step(closed(1));
        step.workload.cold_prefix = true;
        let summary = summarize(&with(clean()), &step, &seen);
        let warned = summary.warnings.iter().any(|warning| warning.id == "some_cache_hits");
        (summary.reasons.iter().map(|reason| reason.id.clone()).collect::<Vec<_>>(), warned)
    };
    assert_eq!(hits(0.0), (vec![], false));
    assert_eq!(hits(50.0), (vec![], true));
    assert_eq!(hits(200.0), (vec!["cache_hits".to_owned()], false));
    // Without counters, by the answers' own counts.
    let mut told = clean();
    told.iter_mut().for_each(|timeline| timeline.usage.as_mut().unwrap().cached_tokens = Some(6));
    assert_eq!(seen_ids(&with(told.clone()), &Seen::default()), ["cache_hits"]);
    assert_eq!(ids(&with(told)), [""; 0], "a warm workload may hit");
}

#[test]
fn what_the_engine_took_back_was_computed_twice() {
    let one = counted(&[(Counter::Preemptions, 1.0)]);
    assert_eq!(seen_ids(&with(clean()), &one), ["retractions"]);
    let many: Vec<_> = clean().into_iter().cycle().take(100).collect();
    assert_eq!(seen_ids(&with(many), &one), [""; 0]);
    let logged = Logged { retracted: Some(2), ..Logged::default() };
    assert_eq!(seen_ids(&with(clean()), &Seen { log: Some(logged), ..Seen::default() }), ["retractions"]);
}

#[test]
fn a_server_that_is_not_the_one_that_was_ready_is_found() {
    let window = Window { restarted: vec!["output_tokens".to_owned()], ..Window::default() };
    let seen = Seen { counters: Some(window), ..Seen::default() };
    assert_eq!(seen_ids(&with(clean()), &seen), ["server_restarted"]);
}

#[test]
fn compiling_within_the_window_is_found_and_its_line_shown() {
    let line = "Running FlashInfer autotune with cache: x".to_owned();
    let logged = Logged { compiled: Some(1), compiled_line: Some(line), ..Logged::default() };
    let seen = Seen { log: Some(logged), ..Seen::default() };
    let found = reasons(&with(clean()), &step(closed(1)), &seen);
    assert_eq!(found.len(), 1);
    assert_eq!(
        (found[0].id.as_str(), found[0].text.as_str()),
        (
            "compiled",
            "a line tells of compiling while it was measured, first: Running FlashInfer autotune with cache: x"
        )
    );
    let quiet = Logged { compiled: Some(0), retracted: Some(0), ..Logged::default() };
    assert_eq!(seen_ids(&with(clean()), &Seen { log: Some(quiet), ..Seen::default() }), [""; 0]);
}

#[test]
fn a_load_beyond_what_the_server_holds_is_another_load() {
    let timelines: Vec<_> = (0..10).flat_map(|n| vec![ok(n * 1000, n * 1000 + 100, n * 1000 + 990, 2); 16]).collect();
    let ids = |capacity: Capacity| {
        let seen = Seen { capacity: Some(capacity), ..Seen::default() };
        let found = reasons(&with(timelines.clone()), &step(closed(16)), &seen).into_iter();
        found.map(|reason| reason.id).collect::<Vec<_>>()
    };
    assert_eq!(ids(Capacity { running_requests: Some(16), kv_tokens: Some(144), ..Capacity::default() }), [""; 0]);
    assert_eq!(ids(Capacity { running_requests: Some(10), ..Capacity::default() }), ["over_running_cap"]);
    assert_eq!(
        ids(Capacity { kv_tokens: Some(143), ..Capacity::default() }),
        [""; 0],
        "nothing says that it ran short"
    );
    assert_eq!(ids(Capacity { graph_batch: Some(8), ..Capacity::default() }), ["over_graphs"]);
}
