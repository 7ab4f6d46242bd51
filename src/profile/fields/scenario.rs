//! Keys of a scenario: how the simulated engine behaves.
//!
//! What a key stands at when it is absent is said in words here and set in `sim::scenario`; a test holds the two
//! together.

use super::bench::LENGTH;
use super::{COUNT_32, COUNT_64, FILLED, Field, KeyRule, NAME, PHASES, Shape, Struct};

const SHARE: Shape = Shape::Share { zero: true };
const ASKED: Shape = Shape::Word(&["asked", "always", "never"]);
/// A number of a request, counted from 1 in order of arrival.
const NUMBER: Shape = COUNT_64;

/// Keys of a scenario.
pub(crate) static SCENARIO: Struct = Struct {
    name: "a scenario",
    fields: &[
        Field::new("seed", Shape::Whole(0, 1 << 53), "1", "Seed of everything that is drawn. The same seed and the same prompts give the same answers, lengths and accepted drafts.").derived("drawn at the start, and said in its log and server info"),
        Field::new("as", Shape::Word(&["sglang", "vllm", "llamacpp"]), "sglang", "The engine that it plays: endpoints, words and counters are that engine's.").derived("`sglang`"),
        Field::new("version", NAME, "0.5.23", "The version that it says it has.").derived("the engine's reference version"),
        Field::new("served_name", FILLED, "qwen", "The name that it serves.").derived("what the profile asks, else `simulated`"),
        Field::new("max_running_requests", COUNT_32, "16", "How many requests it was asked to run at once; more wait in its queue.").derived("what the profile asks, else no limit"),
        Field::new("context_length", COUNT_64, "32k", "Tokens of a request, prompt and answer; a longer one is refused.").derived("what the profile asks, else `32k`"),
        Field::new("speculative", Shape::Struct(&SPECULATIVE), "{steps: 3}", "What it was asked to draft.").derived("what the profile asks"),
        Field::new("ranks", Shape::Whole(1, 1024), "2", "Processes that share the model.").derived("`1`"),
        Field::new("startup", Shape::Map(KeyRule::Phase, &Shape::Duration), "{weights: 3s, graph_capture: 2s}", "How long each phase of its start takes.").derived("at once"),
        Field::new("speed", Shape::Struct(&SPEED), "{ttft: 50ms, step: 20ms}", "How fast it is."),
        Field::new("acceptance", Shape::List(&SHARE), "[0.8, 0.6, 0.4]", "Speculation: the share of drafts whose first, second, … token is accepted. A step then gives 1 token and those of its draft that were accepted, drawn by the seed.").derived("no drafts; with `speculative.steps`: 0.8, 0.64, …"),
        Field::new("output", LENGTH, "{mean: 120, stdev: 40, min: 20, max: 400}", "Where an answer stops by itself, in tokens; drawn by the seed and the prompt.").derived("`{mean: 120, stdev: 40, min: 20, max: 400}`"),
        Field::new("memory", Shape::Struct(&MEMORY), "{total_gb: 80, cliff: 0.90}", "Its memory."),
        Field::new("fail", Shape::Struct(&FAIL), "{kind: oom_capture, at: graph_capture, after: 1s}", "How its start fails."),
        Field::new("serve", Shape::Struct(&SERVE), "{cap_running: 10}", "How it serves, and what goes wrong while it does."),
        Field::new("stop", Shape::Struct(&STOP), "{drain: forever}", "What SIGTERM does."),
        Field::new("processes", Shape::Struct(&PROCESSES), "{orphan: true}", "The processes beside the one that answers."),
    ],
};

static PROCESSES: Struct = Struct {
    name: "processes",
    fields: &[
        Field::new("workers", Shape::Switch, "false", "Whether each rank is a process of its own, where the engine that it plays has such.").derived("`true`"),
        Field::new("rename", Shape::Word(&["none", "workers", "all"]), "all", "Who takes the engine's titles. With a title the environment can no longer be read from outside, unless `SPT_NOENV` is set.").derived("`workers`"),
        Field::new("orphan", Shape::Switch, "true", "Whether workers lose their parent at once, and outlive the server for up to five minutes.").derived("`false`"),
        Field::new("ignore_term", Shape::Switch, "true", "Whether workers take no notice of SIGTERM.").derived("`false`"),
        Field::new("helper", Shape::Switch, "true", "One more process that outlives the server for up to five minutes, as a compiler that the engine started does.").derived("`false`"),
        Field::new("leftovers", Shape::Switch, "true", "Whether workers keep a file in /dev/shm and a socket in the temporary folder, named by their pids, that stay behind when they are killed.").derived("`false`"),
    ],
};

static SPECULATIVE: Struct = Struct {
    name: "speculative",
    fields: &[
        Field::new("steps", Shape::Whole(0, 64), "3", "Tokens drafted per verify.").required(),
        Field::new(
            "active",
            Shape::Switch,
            "false",
            "Whether it really drafts. An engine may drop its draft and serve on.",
        )
        .derived("`true`"),
    ],
};

static SPEED: Struct = Struct {
    name: "speed",
    fields: &[
        Field::new("ttft", Shape::Duration, "50ms", "From the moment a request runs to its first tokens.").derived("`50ms`"),
        Field::new("step", Shape::Duration, "20ms", "Between two steps of a request. Step k of a request is due at its start + `ttft` + k × `step`, whatever happened to the steps before it.").derived("`20ms`"),
        Field::new("tokens_per_step", COUNT_32, "4", "Tokens of each step after the first; `acceptance` takes its place.").derived("`1`"),
        Field::new("first_tokens", COUNT_32, "1", "Tokens of the first step: an engine's prefill gives one.").derived("`1`"),
        Field::new("input_tokens_per_s", Shape::Positive, "20000", "How fast prompts are read; the time for the tokens that are not cached is added to `ttft`.").derived("at once"),
        Field::new("slowdown", SHARE, "2%", "How much longer a step takes for each further request that runs.").derived("`0`"),
        Field::new("noise", Shape::Struct(&NOISE), "{start: 1%, request: 2%, modes: [1, 1.08]}", "How much speed varies."),
    ],
};

static NOISE: Struct = Struct {
    name: "noise",
    fields: &[
        Field::new("start", SHARE, "1%", "Standard deviation of all times from start to start.").derived("`0`"),
        Field::new("request", SHARE, "2%", "Standard deviation of all times from request to request.").derived("`0`"),
        Field::new(
            "modes",
            Shape::List(&Shape::Positive),
            "[1, 1.08]",
            "Factors on all times, of which each start draws one.",
        )
        .derived("`[]`"),
    ],
};

static MEMORY: Struct = Struct {
    name: "memory",
    fields: &[
        Field::new("total_gb", Shape::Positive, "80", "Memory of a GPU.").derived("`80`"),
        Field::new("fraction", Shape::Share { zero: false }, "0.88", "The memory fraction that it was asked for.")
            .derived("what the profile asks, else 0.88"),
        Field::new("cliff", Shape::Share { zero: false }, "0.90", "The memory fraction above which it does not start.")
            .derived("no limit"),
    ],
};

static FAIL: Struct = Struct {
    name: "fail",
    fields: &[
        Field::new("kind", Shape::Word(FAILURES), "oom_capture", "The kind of failure, as a log is read: out of memory while graphs are captured, a flag that is not known, a rank that is missing, and so on.").required(),
        Field::new("at", Shape::Word(PHASES), "graph_capture", "The phase in which it fails.")
            .derived("the phase that belongs to the kind"),
        Field::new("after", Shape::Duration, "1s", "How long after the beginning of that phase.")
            .derived("in its middle"),
    ],
};

/// The kinds of failure that a log can tell, without `unknown`.
pub(crate) const FAILURES: &[&str] = &[
    "bad_flag",
    "bad_config",
    "missing_dependency",
    "unsupported_model",
    "unsupported_gpu",
    "gpu_unavailable",
    "gpu_busy",
    "insufficient_resources",
    "access_denied",
    "weights_missing",
    "weights_mismatch",
    "draft_mismatch",
    "oom_weights",
    "oom_profile",
    "oom_kv",
    "oom_capture",
    "oom_runtime",
    "oom_host",
    "host_memory_stall",
    "shm_exhausted",
    "nccl_error",
    "rendezvous_timeout",
    "collective_timeout",
    "load_timeout",
    "peer_lost",
    "rank_missing",
    "hang_collective",
    "port_in_use",
    "jit_build",
    "cuda_fault",
    "watchdog_timeout",
    "warmup_failed",
    "killed_by_supervisor",
    "nan_output",
    "garbage_output",
    "low_acceptance",
    "slow_decode",
    "cpu_fallback",
    "feature_off",
    "stale_server",
];

static SERVE: Struct = Struct {
    name: "serve",
    fields: &[
        Field::new("faults", Shape::List(&Shape::Struct(&FAULT)), "[{kind: status, status: 503, share: 10%}]", "What goes wrong with requests. The first that meets a request is the one that happens.").derived("`[]`"),
        Field::new("garbage", SHARE, "5%", "Short for a fault of `kind: garbage` with this share.").derived("`0`"),
        Field::new("stall", Shape::Struct(&STALL), "{at: 5s, for: 2s}", "A time in which no step is done."),
        Field::new("buffer", Shape::Switch, "true", "Holds a stream back and sends all of it at its end, as a proxy may do.").derived("`false`"),
        Field::new("cap_running", COUNT_32, "10", "How many requests it really runs at once, whatever was asked.").derived("what was asked"),
        Field::new("max_queued", Shape::Whole(0, 1 << 32), "64", "How many may wait; a further one is answered with 503.").derived("no limit"),
        Field::new("kv_tokens", COUNT_64, "16k", "Tokens of all running requests that it can hold. Without room for its next step a request is retracted: it waits, and is read anew.").derived("no limit"),
        Field::new("graph_max_batch", COUNT_32, "8", "Largest batch that runs in captured graphs.").derived("no limit"),
        Field::new("reasoning", Shape::Struct(&REASONING), "{tokens: 20}", "Reasoning before each chat answer."),
        Field::new("usage", ASKED, "never", "When it says `usage`.").derived("`asked`"),
        Field::new("continuous_usage", ASKED, "always", "When it says `usage` in each chunk.").derived("`asked`"),
        Field::new("role_chunk", Shape::Word(&["at_once", "with_token", "never"]), "at_once", "When a chat stream says its role: with the head, before the first token in the same write, or not.").derived("`with_token`"),
        Field::new("prefix_cache", Shape::Switch, "false", "Whether prompts that begin like earlier ones count as cached, in blocks of 16 tokens.").derived("`true`"),
        Field::new("cached", SHARE, "30%", "The share of every prompt that counts as cached, whatever was sent before.").derived("what `prefix_cache` finds"),
        Field::new("cache_report", Shape::Switch, "true", "Whether `usage` says the cached tokens.").derived("as the engine does"),
        Field::new("answers", Shape::List(&Shape::Struct(&ANSWER)), "[{prompt: capital of France, answer: Paris}]", "What it knows, beside sums of two numbers.").derived("`[]`"),
        Field::new("metrics", Shape::Switch, "false", "Whether it has `/metrics`.").derived("`true`"),
        Field::new("endpoints", Shape::Map(KeyRule::Free, &Shape::Word(&["absent", "error", "nonsense", "hang"])), "{/metrics: nonsense}", "Paths that do not answer as they should: 404, 500, a page of HTML with 200, or nothing.").derived("`{}`"),
        Field::new("compile", Shape::Struct(&COMPILE), "{after: 20, for: 1s}", "A compilation while it serves: it logs so and does no step meanwhile."),
        Field::new("die", Shape::Struct(&DIE), "{after: 20, how: kill}", "How its process ends while it serves."),
        Field::new("restart", Shape::Struct(&RESTART), "{after: 20, for: 500ms}", "It is gone for a while and comes back with its counters at zero."),
    ],
};

static FAULT: Struct = Struct {
    name: "a fault",
    fields: &[
        Field::new("kind", Shape::Word(FAULTS), "status", "What goes wrong.").required(),
        Field::new("share", SHARE, "10%", "The share of requests that it meets, drawn by the seed.")
            .derived("all, unless `every` or `requests` says which"),
        Field::new("every", COUNT_64, "7", "It meets every so manieth request."),
        Field::new(
            "requests",
            Shape::OneOrMany(&NUMBER),
            "[3, 4]",
            "It meets these requests, counted from 1 in order of arrival.",
        ),
        Field::new("from", NUMBER, "100", "It meets none before this one."),
        Field::new("to", NUMBER, "200", "It meets none after this one."),
        Field::new(
            "after_tokens",
            Shape::Whole(0, 1 << 32),
            "4",
            "How many tokens come before it, where it happens in the middle of an answer.",
        )
        .derived("half of them"),
        Field::new("status", Shape::Whole(400, 599), "429", "With `kind: status`: the status.").derived("503"),
        Field::new("retry_after", Shape::Duration, "1s", "With `kind: status`: what the header `retry-after` says."),
        Field::new("message", FILLED, "out of memory", "The words of the error, where there are any.")
            .derived("words that fit the kind"),
    ],
};

/// What may go wrong with a request.
pub(crate) const FAULTS: &[&str] = &[
    "status",
    "error_in_stream",
    "error_in_body",
    "cut_body",
    "no_end",
    "no_tokens",
    "finish_error",
    "hang",
    "hang_after_done",
    "no_answer",
    "reset",
    "bad_json",
    "short_output",
    "long_output",
    "wrong_usage",
    "double_usage",
    "chunk_usage",
    "wrong_answer",
    "garbage",
    "repetition",
    "invalid_utf8",
    "replacement_characters",
];

static STALL: Struct = Struct {
    name: "stall",
    fields: &[
        Field::new("at", Shape::Duration, "5s", "When it begins, after the first request arrived.").required(),
        Field::new("for", Shape::Duration, "2s", "How long it lasts.").required(),
        Field::new("every", Shape::Duration, "10s", "It comes again each time so much has passed.").derived("once"),
    ],
};

static REASONING: Struct = Struct {
    name: "reasoning",
    fields: &[
        Field::new("tokens", COUNT_32, "20", "Tokens of it.").required(),
        Field::new("hidden", Shape::Switch, "true", "Whether it is counted and not sent.").derived("`false`"),
        Field::new("key", Shape::Word(&["reasoning_content", "reasoning"]), "reasoning", "The key that carries it.")
            .derived("the engine's"),
    ],
};

static ANSWER: Struct = Struct {
    name: "an answer",
    fields: &[
        Field::new("prompt", FILLED, "capital of France", "Words that the prompt holds, in any case.").required(),
        Field::new("answer", FILLED, "Paris", "What is answered.").required(),
    ],
};

static COMPILE: Struct = Struct {
    name: "compile",
    fields: &[
        Field::new("at", Shape::Duration, "5s", "When, after the first request arrived."),
        Field::new("after", COUNT_64, "20", "When so many requests have arrived."),
        Field::new("for", Shape::Duration, "1s", "How long it takes.").derived("`1s`"),
    ],
};

static DIE: Struct = Struct {
    name: "die",
    fields: &[
        Field::new("at", Shape::Duration, "5s", "When, after the first request arrived."),
        Field::new("after", COUNT_64, "20", "When so many answers have ended."),
        Field::new("mid_stream", COUNT_64, "3", "In the middle of the answer to this request, counted from 1."),
        Field::new(
            "how",
            Shape::Word(&["kill", "exit"]),
            "kill",
            "By SIGKILL, or by an exit of its own after an error in its log.",
        )
        .derived("`exit`"),
        Field::new("code", Shape::Whole(0, 255), "1", "The code of the exit.").derived("`1`"),
    ],
};

static RESTART: Struct = Struct {
    name: "restart",
    fields: &[
        Field::new("at", Shape::Duration, "5s", "When, after the first request arrived."),
        Field::new("after", COUNT_64, "20", "When so many answers have ended."),
        Field::new("for", Shape::Duration, "500ms", "How long it is gone.").derived("`500ms`"),
    ],
};

static STOP: Struct = Struct {
    name: "stop",
    fields: &[
        Field::new("ignore_term", Shape::Switch, "true", "Takes no notice of SIGTERM and SIGINT.").derived("`false`"),
        Field::new(
            "drain",
            Shape::WordOr(&["none", "forever"], &Shape::Duration),
            "forever",
            "How long running requests may go on after SIGTERM; new ones are refused meanwhile.",
        )
        .derived("as the engine: `forever` for sglang, else `none`"),
        Field::new("code", Shape::Whole(0, 255), "0", "The exit code after SIGTERM.").derived("`0`"),
    ],
};
