//! `docs/metrics.md`, written from the tables.

use super::counters::Source;
use super::{Better, ENOUGH, Exactness, METRICS, METRICS_VERSION, Metric, Shape, cites};

const TOP: &str = "# Metrics

This page is written from the table in `src/measure/metrics.rs`; a test holds the two together
(`ORCH_WRITE_PAGES=1 cargo test --lib the_page` writes it anew).

## Moments of a request

| moment | meaning |
|---|---|
| due | when the schedule wanted it sent; in a closed loop the moment its slot was free |
| sent | the moment before its bytes go to the transport, on an open connection |
| headers | the head of the answer is complete |
| first | the first event that carries generated text is complete |
| last | the last event that carries generated text is complete |
| done | the response has ended |

*Generated* is non-empty content, reasoning, refusal or argument text of a tool call. Roles, empty texts, comments, finish
reasons and usage are not. An event has the time of the read that completed it, taken right after that read.
Connections are opened, and warmed by a GET, before the clock starts.

## Tokens

A request's count comes from the engine's `usage`, else from its own timings, else from the server's own tokenizer, else the
number of generating events is taken; the last two are estimates and marked as such (`token_source`). Tokens of single chunks
are known when each event carries a count, or when the count at the end is the number of generating events. Nothing is ever
taken from `max_tokens`.

When the load is over and the engine's counters are read, the texts of up to 32 answers, evenly over the step, and those of all
answers that came without a count, are sent to the server's tokenizer (`endpoints.tokenize` of the engine's definition, which
generates nothing). A text is not always cut into the tokens that it was made of: texts of tokens drawn at random, the worst
there are, come to 3 to 5 % more (vocabularies of 49,000 and 131,000), a single one of 200 tokens to 8 % more, and what a model
says by itself to the same; the token that ends an answer and the marks around reasoning are in no text. Hence the allowance in
`counts_disagree`. Texts with U+FFFD, of tool calls, of more than 64 KiB, and answers that hide reasoning are left out. `orch bench`
asks only a server that tells it is one of the known engines. A tokenizer of which a text twice has not twice the tokens is none.

## Distributions

A distribution is `{samples, mean, p50, p90, p95, p99, max, enough}`. Each value is there as soon as there is one sample
and `null` without. Quantiles interpolate linearly between the two nearest samples (Hyndman and Fan's type 7, numpy's
default). `histograms.hlog` keeps three significant digits and does not interpolate, so it may differ by 0.1 %;
judgements rest on the exact values. `enough` is the highest percentile that the samples carry; none above it is judged
or shown without a mark:

";

const ENGINE: &str = "The engine's counters are read after the warm-up, when nothing is in flight, and after the last answer: what lies between
is the measured requests' work alone. Gauges are read once a second meanwhile. Sums are over ranks and engines; of ranks
that count the same work, one counts. A counter that went backwards means that the server was started again: that is
said (`server_restarted`), and nothing is taken from any. With `instrument: off` nothing is read, and what rests on it is
absent, but for what the engine says with each answer. Each such metric has its source in the step's `sources`, and the
counts are in its `counters`:
";

/// The whole page.
pub fn metrics_page() -> String {
    let mut page = TOP.to_owned();
    page.push_str("| percentile | samples |\n|---|---|\n");
    for (percentile, samples) in ENOUGH {
        page.push_str(&format!("| {} | {samples} |\n", percentile.word()));
    }
    page.push_str("\nPooled gaps (`itl_ms`, `chunk_gap_ms`) count gaps, and gaps of one request are alike: their percentiles are ");
    page.push_str("surer of that run than of the next.\n\nWhen numbers may not be used is in `docs/verdicts.md`.\n");
    page.push_str("\n## What the engine says of itself\n\n");
    page.push_str(ENGINE);
    page.push_str("\n| source | what it is |\n|---|---|\n");
    for (source, text) in Source::ALL {
        page.push_str(&format!("| `{}` | {text} |\n", source.word()));
    }
    page.push_str(&format!("\n## The metrics\n\nVersion {METRICS_VERSION} of the definitions.\n"));
    METRICS.iter().for_each(|metric| page.push_str(&section(metric)));
    page
}

fn section(metric: &Metric) -> String {
    let shape = match metric.shape {
        Shape::Distribution => "a distribution",
        Shape::Number => "a number",
    };
    let better = match metric.better {
        Some(Better::Higher) => "higher is better",
        Some(Better::Lower) => "lower is better",
        None => "neither way is better",
    };
    let exactness = match metric.exactness {
        Exactness::Exact => "exact",
        Exactness::ByTokenCounts => "exact with the engine's token counts, else an estimate",
        Exactness::ByChunkCounts => "exact where the tokens of each chunk are known",
        Exactness::Sampled => "exact at its readings",
        Exactness::BySource => "as exact as its source",
    };
    let mut text = format!("\n### `{}`\n\n", metric.id);
    text.push_str(&format!("{}, {shape}, {better}, {exactness}; formula version {}.\n\n", metric.unit, metric.version));
    text.push_str(&format!("Formula: {}.\n\nWhich count: {}\n", metric.formula.trim_end_matches('.'), metric.counts));
    if !metric.elsewhere.is_empty() {
        text.push_str(&format!("\nElsewhere: {}\n", metric.elsewhere));
    }
    for cite in cites(metric.id) {
        text.push_str(&format!(
            "\n- {}: [`{}`](https://github.com/{}/blob/{}/{}) of {} at `{}`",
            cite.what,
            cite.path,
            cite.repository,
            cite.commit,
            cite.path,
            cite.repository,
            &cite.commit[..10]
        ));
    }
    if !cites(metric.id).is_empty() {
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_is_what_the_table_says() {
        let path = "docs/metrics.md";
        if std::env::var_os("ORCH_WRITE_PAGES").is_some() {
            std::fs::write(path, metrics_page()).unwrap();
        }
        let written = std::fs::read_to_string(path).unwrap();
        assert!(written == metrics_page(), "docs/metrics.md is old: ORCH_WRITE_PAGES=1 cargo test --lib the_page");
    }
}
