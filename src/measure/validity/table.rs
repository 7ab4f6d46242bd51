//! The one list of reasons for which numbers may not be used, each with its limit. `docs/verdicts.md` is written from it.

/// A reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Its id in records.
    pub id: &'static str,
    /// When it holds, with its limit.
    pub when: &'static str,
}

const fn rule(id: &'static str, when: &'static str) -> Rule {
    Rule { id, when }
}

/// More than this share of failed requests makes a step invalid; fewer are a warning. The same goes for those that
/// outlived the grace: a server that hangs fails them as well, and nobody else says so.
pub const FAILED_RATIO_LIMIT: f64 = 0.01;
/// More than this share of answers of another length than the exact one that was asked for makes it invalid.
pub const WRONG_LENGTH_RATIO_LIMIT: f64 = 0.01;
/// More than this share of answers of several tokens that came at once makes it invalid: nothing was streamed.
pub const AT_ONCE_RATIO_LIMIT: f64 = 0.10;
/// More than this share of answers of a single token, where more were allowed, makes it invalid.
pub const SHORT_RATIO_LIMIT: f64 = 0.10;
/// An answer may be longer if at least so many tokens are allowed.
pub const SHORT_OF: u64 = 16;
/// Counts of tokens that should agree may differ by this share.
pub const COUNTS_RATIO_LIMIT: f64 = 0.02;
/// A count may differ by this share from that of the texts by the server's own tokenizer: a text is not always cut into
/// the tokens that it was made of. Texts of random tokens, the worst there are, come to 3 to 5 % more when they are
/// counted again, and single ones of 200 tokens to 8 % more; what a model says by itself comes to the same.
pub const TEXT_RATIO_LIMIT: f64 = 0.10;
/// And so many tokens of each answer need not be in its text: the one that ends it, one that begins it,
pub const BESIDE_TEXT_TOKENS: u64 = 2;
/// and where it reasons also the marks around that.
pub const BESIDE_REASONING_TOKENS: u64 = 16;
/// More than this share of texts that repeat themselves makes it invalid.
pub const REPEATS_RATIO_LIMIT: f64 = 0.25;
/// More than this share of texts that hold what could not be decoded makes it invalid.
pub const UNDECODABLE_RATIO_LIMIT: f64 = 0.05;
/// A request is late when it is sent so many milliseconds after it was due,
pub const LATE_MS: f64 = 50.0;
/// and this share of the median time of a request;
pub const LATE_OF_E2E: f64 = 0.05;
/// more than this share of them makes the step invalid.
pub const LATE_RATIO_LIMIT: f64 = 0.10;
/// The load's own thread may be busy for this share of the measured time,
pub const BUSY_RATIO_LIMIT: f64 = 0.95;
/// if that is at least so many seconds.
pub const BUSY_OF_S: f64 = 1.0;
/// At a concurrency above 1, less than this share of the run under full load makes it invalid,
pub const LEAST_FULL_LOAD_RATIO: f64 = 0.25;
/// and less than this one is a warning.
pub const FULL_LOAD_RATIO: f64 = 0.5;
/// Fewer requests that ended `ok` than this make it invalid.
pub const LEAST_REQUESTS: u64 = 16;
/// More than this share of prompt tokens from the prefix cache, where none were wanted, makes it invalid,
pub const CACHED_RATIO_LIMIT: f64 = 0.10;
/// and more than this one is a warning.
pub const CACHED_RATIO: f64 = 0.01;
/// Where a share was wanted, it is a warning when so much more or less came.
pub const HIT_RATIO_OFF: f64 = 0.03;
/// More than this share of requests that the engine took back makes it invalid; fewer are a warning.
pub const RETRACTED_RATIO_LIMIT: f64 = 0.01;

/// The reasons that a step under load can have.
pub const STEP_REASONS: &[Rule] = &[
    rule("interrupted", "someone stopped it before it was done"),
    rule("gave_up", "the first answer said that no other would be better (status 401, 403, 404, 405 or 501)"),
    rule("no_successful_request", "not one request ended `ok`"),
    rule("no_load_met", "a search found no load under which enough requests met the limits, not even the lowest"),
    rule(
        "failures",
        "more than 1 % of the requests failed, one without a generated token among them; those that orch ended itself are not counted",
    ),
    rule(
        "cut_off",
        "more than 1 % of the requests of a timed step were still running when the grace after its end was over, and were cut off",
    ),
    rule("short_outputs", "more than 10 % of the answers are a single token, where 16 or more were allowed"),
    rule(
        "wrong_length",
        "more than 1 % of the answers do not have the exact length that was asked for; those without a count of tokens are not compared",
    ),
    rule(
        "impossible_count",
        "more than 1 % of the answers are said to have more tokens than the request allowed, more cached or reasoning tokens than tokens, or fewer than the chunks that carried them (beyond 2 %)",
    ),
    rule(
        "counts_disagree",
        "the engine's own counter of generated tokens differs from the sum over the answers by more than 2 %; a failed request, and a sending that was tried again, may have generated anything up to its limit, and digits that the engine does not print (llama.cpp prints six) are allowed for. Other requests than these are in it too, so a server that others use is found by this. Or what the answers say of their tokens (`usage`, else the engine's own times) differs, over a sample of them, by more than 10 % from the tokens of their texts by the server's own tokenizer, 2 tokens an answer and 16 more for marks of reasoning aside; more than in the text is no fault where answers are forced past their end",
    ),
    rule("not_streamed", "more than 10 % of the answers of several tokens came at once"),
    rule(
        "repetition",
        "more than 25 % of the answers repeat the same bytes up to their end: at least 150 bytes, and 4 rounds where a limit cut them off, else 8; not where they were forced past their end (`output: {exact: N}`)",
    ),
    rule(
        "invalid_text",
        "more than 5 % of the answers hold U+FFFD (but for half a character where the limit cut them off), or are, in 40 characters or more, less than 40 % letters and digits; not where they were forced past their end",
    ),
    rule(
        "client_late",
        "more than 10 % of the requests were sent more than 50 ms, and more than 5 % of the median E2E, after they were due; what opening a connection took is not counted (open loop: nor is it in how late a request was taken up, which is judged first)",
    ),
    rule(
        "client_at_ceiling",
        "the load's own thread was busy for more than 95 % of the measured time (of a second or more): it, and not the server, was measured",
    ),
    rule("short_plateau", "at a concurrency above 1, less than 25 % of the run was under full load"),
    rule("too_few_samples", "fewer than 16 requests ended `ok`"),
    rule(
        "cache_hits",
        "more than 10 % of the prompt tokens came from the prefix cache, and the workload is cold; by the engine's counters, else by `usage`",
    ),
    rule(
        "retractions",
        "more than 1 % as many requests as were measured were taken back by the engine for want of memory (preempted, retracted) and computed again",
    ),
    rule(
        "over_running_cap",
        "closed loop: more requests at once than the server runs, so that the rest waited in its queue",
    ),
    rule(
        "over_kv",
        "closed loop: the requests that run at once, at their mean length without what came from the prefix cache, do not fit into the KV cache, and the server ran short: it took requests back, its KV cache was 97 % full, or fewer ran than may while others waited in more than half of the samples",
    ),
    rule("over_graphs", "closed loop: more requests run at once than the largest captured graph holds"),
    rule("server_restarted", "a counter of the engine went back, or its process has another start time"),
    rule("compiled", "the server's log tells of something that was compiled while it was measured"),
];

/// The reasons that a run as a whole can have, beside those of its steps.
pub const RUN_REASONS: &[Rule] = &[
    rule("answers_wrong", "a known answer (`quality`) is wrong before the first step or after the last"),
    rule("expectation_unmet", "something that the profile `expect`s is not so, or is not known"),
    rule("expectation_not_carried", "the samples do not carry a percentile that the profile `expect`s something of"),
    rule("tolerance_unreadable", "the record's `tolerance` cannot be read"),
    rule("step_invalid", "a step is not valid, and its record does not say why"),
];

/// The list as Markdown.
pub fn page() -> String {
    let mut page = "| reason of a step | it is invalid when |\n|---|---|\n".to_owned();
    let row = |rule: &Rule| format!("| `{}` | {} |\n", rule.id, rule.when);
    page.extend(STEP_REASONS.iter().map(row));
    page.push_str("\n| reason of a run | it is invalid when |\n|---|---|\n");
    page.extend(RUN_REASONS.iter().map(row));
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEGIN: &str = "<!-- reasons: written from src/measure/validity/table.rs -->\n\n";
    const END: &str = "\n<!-- end of reasons -->";

    #[test]
    fn the_page_of_verdicts_lists_every_reason() {
        let path = "docs/verdicts.md";
        let text = std::fs::read_to_string(path).unwrap();
        let (before, rest) = text.split_once(BEGIN).expect("the mark before the list");
        let (list, after) = rest.split_once(END).expect("the mark after the list");
        if std::env::var_os("ORCH_WRITE_PAGES").is_some() {
            std::fs::write(path, format!("{before}{BEGIN}{}{END}{after}", page())).unwrap();
            return;
        }
        assert!(list == page(), "docs/verdicts.md is old: ORCH_WRITE_PAGES=1 cargo test --lib the_page");
    }

    #[test]
    fn ids_are_unique_and_the_words_name_the_limits() {
        let all: Vec<_> = STEP_REASONS.iter().chain(RUN_REASONS).collect();
        let ids: std::collections::BTreeSet<_> = all.iter().map(|rule| rule.id).collect();
        assert_eq!(ids.len(), all.len());
        let percent = |ratio: f64| format!("{:.0} %", ratio * 100.0);
        for (id, words) in [
            ("failures", percent(FAILED_RATIO_LIMIT)),
            ("wrong_length", percent(WRONG_LENGTH_RATIO_LIMIT)),
            ("not_streamed", percent(AT_ONCE_RATIO_LIMIT)),
            ("short_outputs", percent(SHORT_RATIO_LIMIT)),
            ("counts_disagree", percent(COUNTS_RATIO_LIMIT)),
            ("counts_disagree", percent(TEXT_RATIO_LIMIT)),
            ("counts_disagree", format!("{BESIDE_TEXT_TOKENS} tokens an answer and {BESIDE_REASONING_TOKENS} more")),
            ("repetition", percent(REPEATS_RATIO_LIMIT)),
            ("invalid_text", percent(UNDECODABLE_RATIO_LIMIT)),
            ("client_late", percent(LATE_RATIO_LIMIT)),
            ("client_late", format!("{LATE_MS:.0} ms")),
            ("client_at_ceiling", percent(BUSY_RATIO_LIMIT)),
            ("short_plateau", percent(LEAST_FULL_LOAD_RATIO)),
            ("too_few_samples", LEAST_REQUESTS.to_string()),
            ("cache_hits", percent(CACHED_RATIO_LIMIT)),
            ("retractions", percent(RETRACTED_RATIO_LIMIT)),
        ] {
            let rule = STEP_REASONS.iter().find(|rule| rule.id == id).unwrap();
            assert!(rule.when.contains(&words), "{id}: {words}");
        }
    }
}
