//! Where the other tools define what `elsewhere` says of them: repository, path and commit.

/// A place in somebody else's source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cite {
    /// `owner/name` on GitHub.
    pub repository: &'static str,
    /// The file.
    pub path: &'static str,
    /// The commit at which it was read.
    pub commit: &'static str,
    /// What stands there.
    pub what: &'static str,
}

/// `vllm bench serve`: what follows from the requests.
const VLLM: (&str, &str, &str) =
    ("vllm-project/vllm", "vllm/benchmarks/serve.py", "009e6d4a1cd6ba3fb2a9fc00f4ec06f5297232a1");
/// The same: a request and its moments.
const VLLM_REQUEST: (&str, &str, &str) =
    ("vllm-project/vllm", "vllm/benchmarks/lib/endpoint_request_func.py", "02cfb534df5674737558730b10f23d1b7aef9b7c");
const SGLANG: (&str, &str, &str) =
    ("sgl-project/sglang", "python/sglang/bench_serving.py", "0033168f0f58b2bc05aa0273bd475d9c01bafb1c");
const GUIDELLM: (&str, &str, &str) =
    ("vllm-project/guidellm", "src/guidellm/schemas/request_stats.py", "06cef2910dc1517f863ce09ff118af07d463d055");
const GENAI_PERF: (&str, &str, &str) = (
    "triton-inference-server/perf_analyzer",
    "genai-perf/genai_perf/profile_data_parser/llm_profile_data_parser.py",
    "00168fe73c03c54193c0ccf451ae44ed31e9a356",
);
const GENAI_PERF_GOODPUT: (&str, &str, &str) = (
    "triton-inference-server/perf_analyzer",
    "genai-perf/genai_perf/goodput_calculator/llm_goodput_calculator.py",
    "0232c08d98302eaa53d056214bc677eaf1af200b",
);
const AIPERF: &str = "ai-dynamo/aiperf";
const AIPERF_TTFT: (&str, &str, &str) =
    (AIPERF, "src/aiperf/metrics/types/ttft_metric.py", "58028d5ba1cb33b0e135e18f1cc8833556a3639e");
const AIPERF_TTFO: (&str, &str, &str) = (
    AIPERF,
    "src/aiperf/metrics/types/time_to_first_output_token_metric.py",
    "0b7581009649217c777594d8c9cd8ed18fafb24a",
);
const AIPERF_ITL: (&str, &str, &str) =
    (AIPERF, "src/aiperf/metrics/types/inter_token_latency_metric.py", "58dd5dea729ceece71b0afbea12994030bf70d8b");
const AIPERF_ICL: (&str, &str, &str) =
    (AIPERF, "src/aiperf/metrics/types/inter_chunk_latency_metric.py", "58028d5ba1cb33b0e135e18f1cc8833556a3639e");
const AIPERF_LATENCY: (&str, &str, &str) =
    (AIPERF, "src/aiperf/metrics/types/request_latency_metric.py", "4f7ccffdf9641d884461671f3790dc700c814d27");
const AIPERF_GOOD: (&str, &str, &str) =
    (AIPERF, "src/aiperf/metrics/types/good_request_count_metric.py", "cf79369e59b93ae0733e5f9d4b486015f36c5594");
const VLLM_SPECULATION: (&str, &str, &str) =
    ("vllm-project/vllm", "vllm/v1/spec_decode/metrics.py", "016a8587edb04ae53c913a1da9355a07dc0ca4ae");

const fn cite(place: (&'static str, &'static str, &'static str), what: &'static str) -> Cite {
    Cite { repository: place.0, path: place.1, commit: place.2, what }
}

/// By metric id.
const CITES: &[(&str, &[Cite])] = &[
    (
        "ttft_ms",
        &[
            cite(AIPERF_TTFT, "first response with content, reasoning included, − start of the request"),
            cite(GUIDELLM, "`time_to_first_token_ms`"),
            cite(GENAI_PERF, "`ttft`: the first response that is not empty"),
        ],
    ),
    (
        "ttft_content_ms",
        &[
            cite(AIPERF_TTFO, "`time_to_first_output_token`"),
            cite(GUIDELLM, "`time_to_first_output_token_ms`"),
            cite(SGLANG, "`async_request_openai_chat_completions`: the first event whose `delta.content` is not empty"),
        ],
    ),
    (
        "first_chunk_ms",
        &[cite(
            VLLM_REQUEST,
            "`async_request_openai_chat_completions`: the first event with `choices`, its text may be empty",
        )],
    ),
    (
        "tpot_ms",
        &[
            cite(VLLM, "`calculate_metrics`: (latency − ttft) / (output_len − 1)"),
            cite(SGLANG, "`calculate_metrics`: the same, with a latency that ends with `[DONE]`"),
            cite(GUIDELLM, "`time_per_output_token_ms`: from the start of the request, over all tokens"),
            cite(GENAI_PERF, "`inter_token_latency`: (latency − ttft) / (tokens − 1)"),
            cite(
                AIPERF_ITL,
                "(latency − ttft) / (tokens − tokens of the first chunk, where they are reported, else 1)",
            ),
        ],
    ),
    (
        "itl_ms",
        &[
            cite(VLLM_REQUEST, "`output.itl`: one gap an event"),
            cite(
                SGLANG,
                "`async_request_sglang_generate`: the gap over the tokens of the event; on the other endpoints one gap an event",
            ),
            cite(GUIDELLM, "`inter_token_latency_ms`: a mean per request, with 1 for the first chunk"),
        ],
    ),
    (
        "chunk_gap_ms",
        &[cite(VLLM_REQUEST, "`output.itl`"), cite(AIPERF_ICL, "`inter_chunk_latency`, pooled over requests")],
    ),
    (
        "e2e_ms",
        &[
            cite(AIPERF_LATENCY, "last response with content − start of the request"),
            cite(
                VLLM_REQUEST,
                "`output.latency`: to the last event with `choices`, that of the finish reason included",
            ),
            cite(SGLANG, "`output.latency`: to the last event, `[DONE]` included"),
        ],
    ),
    (
        "output_tokens_per_s",
        &[
            cite(VLLM, "`output_throughput`: tokens / duration of the benchmark"),
            cite(SGLANG, "`output_throughput`: the same; the duration includes what follows the last answer"),
            cite(GENAI_PERF, "`output_token_throughputs`: from the first request to the last response"),
        ],
    ),
    ("decode_tokens_per_s_per_user", &[cite(AIPERF_ITL, "1 / inter-token latency is its rate per user")]),
    ("input_tokens_per_s", &[cite(SGLANG, "`input_throughput`")]),
    ("total_tokens_per_s", &[cite(VLLM, "`total_token_throughput`"), cite(SGLANG, "`total_throughput`")]),
    ("requests_per_s", &[cite(VLLM, "`request_throughput`"), cite(SGLANG, "`request_throughput`")]),
    (
        "goodput_requests_per_s",
        &[
            cite(VLLM, "`calculate_metrics`: one token or less has a TPOT of 0 for goodput"),
            cite(AIPERF_GOOD, "a request without a value for a limit is not good"),
            cite(
                GENAI_PERF_GOODPUT,
                "the lists of values are put side by side; one of a single token is in none of inter-token latencies",
            ),
        ],
    ),
    ("acceptance_length", &[cite(VLLM_SPECULATION, "`mean_acceptance_length`")]),
    ("acceptance_ratio", &[cite(VLLM_SPECULATION, "`draft_acceptance_rate`")]),
];

/// Where others define what a metric is.
pub fn cites(id: &str) -> &'static [Cite] {
    CITES.iter().find(|(known, _)| *known == id).map_or(&[], |(_, cites)| cites)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::METRICS;

    #[test]
    fn every_citation_is_of_a_metric_and_names_a_commit() {
        for (id, cites) in CITES {
            assert!(METRICS.iter().any(|metric| metric.id == *id), "{id}");
            for cite in *cites {
                assert!(cite.commit.len() == 40 && cite.commit.bytes().all(|byte| byte.is_ascii_hexdigit()), "{id}");
                assert!(cite.repository.split('/').count() == 2 && !cite.path.starts_with('/'), "{id}");
            }
        }
    }

    #[test]
    fn what_is_said_of_another_tool_is_cited() {
        for metric in METRICS {
            let names = ["vLLM", "SGLang", "guidellm", "AIPerf", "genai-perf"];
            let is_client = names.iter().any(|name| metric.elsewhere.contains(name));
            // What engines count is cited where their counters are read: templates/<engine>/engine.yaml.
            let by_engine = metric.formula.contains("counters") || metric.formula.contains("engine");
            if is_client && !by_engine {
                assert!(!cites(metric.id).is_empty(), "{}", metric.id);
            }
        }
    }
}
