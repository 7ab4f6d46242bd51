//! The one table of metrics: what each is called, which way is better, how it is reckoned and from which requests.
//! `docs/metrics.md` is written from it.

/// A metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Metric {
    /// Its id in records and on command lines. `startup_<phase>_s` stands for one a phase.
    pub id: &'static str,
    /// Its unit.
    pub unit: &'static str,
    /// Whether it is a distribution or a number.
    pub shape: Shape,
    /// Which way is better; `None` where neither is.
    pub better: Option<Better>,
    /// How far it can be trusted.
    pub exactness: Exactness,
    /// Goes up when the formula changes.
    pub version: u32,
    /// The formula over named moments.
    pub formula: &'static str,
    /// Which requests count, and what happens at the edges.
    pub counts: &'static str,
    /// What other tools call it, and where theirs differs.
    pub elsewhere: &'static str,
}

/// What a value looks like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub enum Shape {
    Distribution,
    Number,
}

/// Which way is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub enum Better {
    Higher,
    Lower,
}

/// How far a value can be trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exactness {
    /// Read off a clock or a counter.
    Exact,
    /// Exact with the engine's own token counts; an estimate where chunks had to be counted instead.
    ByTokenCounts,
    /// Exact where the tokens of each chunk are known; else an estimate, or absent.
    ByChunkCounts,
    /// The readings are exact, and are some only: what came between two of them is not seen.
    Sampled,
    /// As exact as the engine's words that it rests on: the record's `sources` say which those are.
    BySource,
}

/// The metric of an id. A percentile at its end (`.p99`) is left aside; each phase's start-up time is one metric.
pub fn metric(id: &str) -> Option<&'static Metric> {
    let id = id.split_once('.').map_or(id, |(id, _)| id);
    let is_phase =
        id.strip_prefix("startup_").and_then(|rest| rest.strip_suffix("_s")).is_some_and(|phase| !phase.is_empty());
    let id = if is_phase { "startup_<phase>_s" } else { id };
    METRICS.iter().find(|metric| metric.id == id)
}

const OK_ONLY: &str = "Requests that ended `ok`.";
const FIRST: u32 = 1;

/// A latency in milliseconds, lower is better, read off the clock.
const LATENCY: Metric = Metric {
    id: "",
    unit: "ms",
    shape: Shape::Distribution,
    better: Some(Better::Lower),
    exactness: Exactness::Exact,
    version: FIRST,
    formula: "",
    counts: OK_ONLY,
    elsewhere: "",
};

/// A rate over the whole run.
const RATE: Metric = Metric {
    id: "",
    unit: "tokens/s",
    shape: Shape::Number,
    better: Some(Better::Higher),
    exactness: Exactness::ByTokenCounts,
    version: FIRST,
    formula: "",
    counts: "",
    elsewhere: "",
};

/// All metrics, in the order in which they are shown.
pub const METRICS: &[Metric] = &[
    Metric {
        id: "ttft_ms",
        formula: "first − sent. *sent* is the moment before the request's bytes go to the transport on an open connection, *first* \
                  the moment at which the first event that carries generated text (content, reasoning, refusal or the arguments of a tool call) is complete",
        counts: "Requests that ended `ok`. Roles, empty texts, comments and usage are not generated.",
        elsewhere: "TTFT of AIPerf, guidellm and genai-perf. SGLang's chat client looks at `delta.content` alone, which is `ttft_content_ms`; vLLM's takes the first event with `choices`, be it empty, which is `first_chunk_ms`.",
        ..LATENCY
    },
    Metric {
        id: "ttft_content_ms",
        formula: "the same, to the first event with text of the answer (`content`, or `text` of a completion)",
        counts: "Requests that ended `ok` and have text of an answer; a request that only reasoned has no sample.",
        elsewhere: "Time to first output token of AIPerf (for which arguments of a tool call count too) and guidellm; TTFT of SGLang's chat client.",
        ..LATENCY
    },
    Metric {
        id: "first_chunk_ms",
        formula: "the same, to the first event of the stream, generating or not",
        elsewhere: "TTFT of vLLM, whose first event may carry a role and no text.",
        ..LATENCY
    },
    Metric {
        id: "tpot_ms",
        exactness: Exactness::ByChunkCounts,
        formula: "(last − first) / (tokens − tokens of the first chunk). *last* is the moment of the last generating event; where the tokens of the first chunk are unknown, 1 is taken and the value is an estimate",
        counts: "Requests that ended `ok` with tokens after the first chunk. None for a request that counted reasoning but did not show it, that put several tokens into a single chunk, or whose chunks all came within 2 ms after a wait of 100 ms or more: no speed of decoding can be read off those.",
        elsewhere: "TPOT of vLLM and SGLang, which always take 1 for the first chunk; SGLang's ends with `[DONE]`. AIPerf's inter-token latency is this, where it is told the tokens of chunks; genai-perf's and guidellm's take 1. guidellm's time per output token includes the first token and the time to it.",
        ..LATENCY
    },
    Metric {
        id: "itl_ms",
        exactness: Exactness::ByChunkCounts,
        formula: "gaps between tokens, pooled over requests: a chunk of k tokens spreads the gap before it evenly over its k. The first chunk opens no gap",
        counts: "Requests that ended `ok` and whose chunks' tokens are known: by a count in each event (`continuous_usage_stats`), or because the count at the end is the number of chunks. Others have no sample.",
        elsewhere: "ITL of vLLM is `chunk_gap_ms`: one sample an event, however many tokens it holds. SGLang's is that on OpenAI's endpoints, and this on its native one. Inter-token latency of AIPerf, genai-perf and guidellm is a mean per request, which is `tpot_ms`.",
        ..LATENCY
    },
    Metric {
        id: "chunk_gap_ms",
        formula: "gaps between generating events, pooled over requests. Events of one read have the same moment and a gap of 0 between them",
        elsewhere: "ITL of vLLM, and of SGLang on OpenAI's endpoints; inter-chunk latency of AIPerf.",
        ..LATENCY
    },
    Metric {
        id: "tokens_per_chunk",
        unit: "tokens",
        better: None,
        exactness: Exactness::ByTokenCounts,
        formula: "tokens / generating events, one value a request",
        counts: "Requests that ended `ok`, with a count of the engine's, without hidden reasoning.",
        ..LATENCY
    },
    Metric {
        id: "e2e_ms",
        formula: "last − sent. What comes after the last generated text (usage, `[DONE]`, the end of the transfer) is not waited for",
        elsewhere: "Request latency of AIPerf. E2EL of vLLM ends with the last event that has `choices`, the finish reason's too; SGLang's with `[DONE]`.",
        ..LATENCY
    },
    Metric {
        id: "queued_ms",
        formula: "sent − due. *due* is the moment at which the request's slot was free; opening a connection for it, where that was needed, is part of it",
        elsewhere: "Lateness of the client; most tools do not show it.",
        ..LATENCY
    },
    Metric {
        id: "connect_ms",
        formula: "time to open a connection, TLS included: those opened before the clock starts, and those that a request had to open",
        counts: "Connections, not requests. Never part of another metric but `queued_ms`.",
        elsewhere: "Usually hidden in the time to first token.",
        ..LATENCY
    },
    Metric {
        id: "ttft_from_due_ms",
        formula: "first − due",
        counts: "Open loop only: requests that ended `ok`.",
        elsewhere: "Latency corrected for coordinated omission.",
        ..LATENCY
    },
    Metric {
        id: "e2e_from_due_ms",
        formula: "last − due",
        counts: "Open loop only: requests that ended `ok`.",
        elsewhere: "Latency corrected for coordinated omission.",
        ..LATENCY
    },
    Metric {
        id: "output_tokens_per_s",
        formula: "output tokens / duration, over the whole run. *duration* is from the first sending to the last generated token",
        counts: "Tokens of requests that ended `ok`; the warm-up is in neither.",
        elsewhere: "Output token throughput of vLLM and SGLang, whose duration ends with the last answer.",
        ..RATE
    },
    Metric {
        id: "output_tokens_per_s_plateau",
        formula: "the same while the load was full: from the moment at which as many requests as asked for were in flight to the last moment at which they were. Where the tokens of chunks are unknown, a request's tokens are spread evenly over its chunks",
        counts: "Tokens of requests that ended `ok`. Absent when the load was never full.",
        elsewhere: "No counterpart; it leaves out the ramp and the tail.",
        ..RATE
    },
    Metric {
        id: "decode_tokens_per_s_per_user",
        exactness: Exactness::ByChunkCounts,
        formula: "1000 × Σ(tokens − tokens of the first chunk) / Σ(last − first), over requests",
        counts: "Requests that have a `tpot_ms`.",
        elsewhere: "Output tokens per second per user (AIPerf takes the mean of the requests' 1 / inter-token latency).",
        ..RATE
    },
    Metric {
        id: "input_tokens_per_s",
        formula: "prompt tokens / duration, over the whole run",
        counts: "Tokens of requests that ended `ok`; absent when one of them came without a count.",
        elsewhere: "Input token throughput.",
        ..RATE
    },
    Metric {
        id: "total_tokens_per_s",
        formula: "(prompt tokens + output tokens) / duration, over the whole run",
        counts: "As for the two.",
        elsewhere: "Total token throughput.",
        ..RATE
    },
    Metric {
        id: "requests_per_s",
        unit: "requests/s",
        exactness: Exactness::Exact,
        formula: "requests / duration, over the whole run",
        counts: OK_ONLY,
        elsewhere: "Request throughput.",
        ..RATE
    },
    Metric {
        id: "goodput_requests_per_s",
        unit: "requests/s",
        exactness: Exactness::Exact,
        formula: "requests that met every limit / duration, over the whole run. Limits are on `ttft_ms`, `ttft_content_ms`, `tpot_ms`, `e2e_ms`, `ttft_from_due_ms` or `e2e_from_due_ms`; a value that equals its limit meets it",
        counts: "Requests that ended `ok`; only where limits were asked for. An answer of one token has no `tpot_ms` and so cannot miss a limit on it; a longer one of which no `tpot_ms` can be told (it came at once) did not show that it met it. Compared only with a baseline that had the same limits.",
        elsewhere: "Goodput of vLLM, which takes a TPOT of 0 for an answer of one token, to the same effect. In AIPerf a request without a value misses the limit, so answers of one token do. genai-perf leaves them out of one of the lists that it puts side by side, and so holds values of different requests together.",
        ..RATE
    },
    Metric {
        id: "output_tokens_per_s_per_gpu",
        formula: "`output_tokens_per_s` / GPUs of the server",
        counts: "As there; only where the server's GPUs are known.",
        ..RATE
    },
    Metric {
        id: "steps_per_s",
        unit: "steps/s",
        exactness: Exactness::BySource,
        formula: "model steps / seconds at work. The steps are the difference of the engine's counter between a reading after the warm-up and one after the last answer; nothing else is in flight between them, so the *seconds at work* are those from the first sending to the last generated token (or to the end of a request that failed after it)",
        counts: "All of the engine's steps between the two readings, those for prompts too; of ranks that count the same work, one. Absent without such a counter, and after a restart.",
        elsewhere: "Each engine counts its own steps: `n_decode_total` of llama.cpp, `iteration_tokens_total_count` of vLLM, `cuda_graph_passes_total` of newer versions of SGLang.",
        ..RATE
    },
    Metric {
        id: "requests_per_step",
        unit: "requests",
        better: None,
        exactness: Exactness::BySource,
        formula: "request-steps / model steps. A *request-step* is one request given tokens by one step",
        counts: "As for the steps. Where the engine does not count request-steps it is the mean of its gauge of running requests, an estimate.",
        elsewhere: "Batch size; `n_busy_slots_per_decode` of llama.cpp, which is a mean since the start.",
        ..RATE
    },
    Metric {
        id: "tokens_per_request_step",
        unit: "tokens",
        exactness: Exactness::BySource,
        formula: "with speculation that the engine counts, 1 + accepted drafts / request-steps: each request-step gives its own token and the drafts that it accepted. Else the engine's own count of generated tokens / request-steps, which is about 1",
        counts: "As for the request-steps, among which are those without a draft, such as a prompt's: it is at most `acceptance_length`.",
        elsewhere: "No counterpart. steps/s x requests per step x tokens per request-step is the engine's tok/s; `closure_ratio` holds it against the client's.",
        ..RATE
    },
    Metric {
        id: "closure_ratio",
        unit: "ratio",
        better: None,
        exactness: Exactness::BySource,
        formula: "`steps_per_s` x `requests_per_step` x `tokens_per_request_step` / (tokens of the answers / the same seconds). More than 2 % off 1, beyond the digits that the engine prints, is the warning `closure`, with the numbers and what the engine's own count of tokens says of them",
        counts: "The client's tokens of all measured requests, those of failed ones too, since the engine made them. Drafts accepted past the end of an answer (vLLM counts them) are taken off as far as a draft for each request, by the engine's own count of tokens; more of them, and steps that gave nobody a token, count on the engine's side alone. Absent where one of the three is.",
        ..RATE
    },
    Metric {
        id: "acceptance_length",
        unit: "tokens",
        exactness: Exactness::BySource,
        formula: "1 + accepted drafts / verify steps: the tokens that a verify step gives one request, its own included. 1 is no draft accepted, `speculative.steps` + 1 all of them. Numerator and denominator are `accepted_tokens` and `verify_steps` in the step's `counters`",
        counts: "With speculation only; absent without, also where an engine shows 0.0. Without counters of both it is, in this order, from the engine's words with each answer (where they leave out the verify steps: (tokens − 1) / (tokens − 1 − accepted), an estimate), from its log, or from its gauges. It is of the step's workload, whose name stands beside it.",
        elsewhere: "Accept length of SGLang, mean acceptance length of vLLM, mean len of llama.cpp. Completion tokens / verify steps, which SGLang gives with a request, counts the prompt's own token too and is larger for short answers.",
        ..RATE
    },
    Metric {
        id: "acceptance_ratio",
        unit: "ratio",
        exactness: Exactness::BySource,
        formula: "accepted drafts / drafted tokens (`accepted_tokens` / `draft_tokens` in the step's `counters`). `acceptance_by_position` beside it has the share of verify steps that accepted each place of the draft",
        counts: "With speculation only; absent without. It depends on how many tokens are drafted: compare lengths.",
        elsewhere: "Acceptance rate. SGLang up to 0.5.9 counts the verify step's own token on both sides, so that a useless draft has a rate above 0.",
        ..RATE
    },
    Metric {
        id: "cache_hit_ratio",
        unit: "ratio",
        better: None,
        exactness: Exactness::BySource,
        formula: "prompt tokens from the prefix cache / prompt tokens, by the engine's counters over the run alone",
        counts: "All of the engine's work between the two readings; without counters, the requests that ended `ok`, if each answer says how much of its prompt was cached.",
        elsewhere: "Prefix cache hit rate; engines show it over an interval or since their start.",
        ..RATE
    },
    Metric {
        id: "in_graph_ratio",
        unit: "ratio",
        exactness: Exactness::BySource,
        formula: "decode steps that ran as a captured graph / decode steps",
        counts: "Newer versions of SGLang count them; else it is the share of the log's lines that say so, as far as a log does.",
        ..RATE
    },
    Metric {
        id: "waiting_ratio",
        unit: "ratio",
        better: None,
        exactness: Exactness::BySource,
        formula: "readings of the engine's gauge of waiting requests that were above 0 / readings, one a second while the load was on; without a gauge, the same of the log's lines",
        counts: "Readings, not requests. SGLang renews its gauges every 40 decode steps.",
        ..RATE
    },
    Metric {
        id: "engine_queue_ms",
        unit: "ms",
        better: Some(Better::Lower),
        exactness: Exactness::BySource,
        formula: "seconds that requests waited in the engine's queue / requests, x 1000, by the engine's counters over the run alone",
        counts: "All requests of the engine between the two readings. A mean: engines do not tell single requests.",
        elsewhere: "Queue time of vLLM and SGLang. `queued_ms` is the client's own lateness.",
        ..RATE
    },
    Metric {
        id: "kv_peak_ratio",
        unit: "ratio",
        better: None,
        exactness: Exactness::BySource,
        formula: "the largest share of the KV cache that the engine's gauge showed, read once a second while the load was on",
        counts: "Readings, not requests; of several engines the fullest.",
        elsewhere: "KV cache usage of vLLM, token usage of SGLang.",
        ..RATE
    },
    Metric {
        id: "preemptions",
        unit: "requests",
        better: Some(Better::Lower),
        exactness: Exactness::BySource,
        formula: "how often a running request lost its place in the KV cache and was computed again, by the engine's counter over the run alone",
        counts: "All of the engine's work between the two readings.",
        elsewhere: "Preemptions of vLLM, retractions of SGLang.",
        ..RATE
    },
    Metric {
        id: "joules_per_token",
        unit: "J/token",
        better: Some(Better::Lower),
        exactness: Exactness::Sampled,
        formula: "energy of the server's GPUs from the first sending to the last generated token / output tokens. The energy is the area under the power that was read once a second",
        counts: "Tokens of requests that ended `ok`; only where the power of each of the server's GPUs was read all the while.",
        ..RATE
    },
    Metric {
        id: "highest_concurrency",
        unit: "requests",
        exactness: Exactness::Exact,
        formula: "the most requests in flight under which the wanted share of requests met every limit of `goodput`, of those that a `search` tried",
        counts: "Probes whose numbers may be used. A request that failed met no limit. Between it and the lowest load that failed nothing was tried: `search.within` says how wide that may be.",
        ..RATE
    },
    Metric {
        id: "highest_requests_per_s",
        unit: "requests/s",
        exactness: Exactness::Exact,
        formula: "the same, as the highest rate of an open loop",
        counts: "As `highest_concurrency`.",
        ..RATE
    },
    Metric {
        id: "startup_s",
        unit: "s",
        better: Some(Better::Lower),
        exactness: Exactness::Exact,
        formula: "from the launch to the tokens that prove readiness",
        counts: "Starts, not requests. Compared only with starts whose caches were as cold or warm.",
        ..RATE
    },
    Metric {
        id: "startup_<phase>_s",
        unit: "s",
        better: Some(Better::Lower),
        exactness: Exactness::Exact,
        formula: "how long a phase of the start-up took: from when the lines that bound it in the server's log were read, which is up to some 0.2 s after they were written",
        counts: "Starts, not requests.",
        ..RATE
    },
    Metric {
        id: "peak_memory_bytes",
        unit: "bytes",
        better: Some(Better::Lower),
        exactness: Exactness::Sampled,
        formula: "the most memory that was in use at any reading, one a second, from the launch to the end of the step",
        counts: "The server's GPUs together, which also hold what others have there, or, on a processor, the resident memory of its processes, in which shared pages count once a process.",
        ..RATE
    },
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn ids_are_unique_and_say_their_unit() {
        let ids: BTreeSet<_> = METRICS.iter().map(|metric| metric.id).collect();
        assert_eq!(ids.len(), METRICS.len());
        for metric in METRICS {
            let ending = match metric.unit {
                "ms" => "_ms",
                "s" => "_s",
                "bytes" => "_bytes",
                "ratio" => "_ratio",
                _ => "",
            };
            assert!(metric.id.ends_with(ending), "{}", metric.id);
            assert!(!metric.formula.is_empty() && !metric.counts.is_empty(), "{}", metric.id);
        }
    }

    #[test]
    fn a_metric_is_found_by_its_id_with_or_without_a_percentile() {
        assert_eq!(metric("ttft_ms.p99").unwrap().better, Some(Better::Lower));
        assert_eq!(metric("output_tokens_per_s").unwrap().better, Some(Better::Higher));
        assert_eq!(metric("startup_weights_s").unwrap().id, "startup_<phase>_s");
        assert_eq!(metric("startup_s").unwrap().id, "startup_s");
        assert_eq!(metric("ttft"), None);
    }
}
