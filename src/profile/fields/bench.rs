//! Keys of `bench` and of workloads.

use super::{COUNT_32, COUNT_64, FILLED, Field, KeyRule, NAME, Shape, Struct};

/// A length in tokens.
pub(super) const LENGTH: Shape = Shape::Or(
    &COUNT_64,
    &[
        &Struct {
            name: "a range of lengths",
            fields: &[
                Field::new("from", COUNT_64, "100", "The shortest.").required(),
                Field::new("to", COUNT_64, "200", "The longest.").required(),
            ],
        },
        &Struct {
            name: "a distribution of lengths",
            fields: &[
                Field::new("mean", Shape::Positive, "500", "Its mean.").required(),
                Field::new("stdev", Shape::NotNegative, "50", "Its standard deviation.").required(),
                Field::new("min", COUNT_64, "100", "Nothing below this is drawn.").required(),
                Field::new("max", COUNT_64, "900", "Nothing above this is drawn.").required(),
            ],
        },
    ],
);

const OUTPUT: Shape = Shape::Either(&[
    &Struct {
        name: "output",
        fields: &[
            Field::new("stop", Shape::Word(&["natural"]), "natural", "Where the model stops by itself.").required(),
            Field::new("max_tokens", COUNT_64, "256", "At most so many tokens.").required(),
        ],
    },
    &Struct {
        name: "output",
        fields: &[Field::new("exact", LENGTH, "500", "Exactly so many tokens, past the end-of-text token.").required()],
    },
]);

const PREFIX_CACHE: Shape = Shape::WordOr(
    &["cold", "warm"],
    &Shape::Struct(&Struct {
        name: "prefix_cache",
        fields: &[Field::new(
            "hit_ratio",
            Shape::Share { zero: true },
            "60%",
            "The share of prompt tokens that is wanted from the cache.",
        )
        .required()],
    }),
);

const PROMPTS: Field = Field::new(
    "prompts",
    Shape::OneOrMany(&FILLED),
    "[builtin/chat, my-prompts.jsonl]",
    "What is asked: `builtin/chat`, `builtin/code`, `builtin/extraction`, `builtin/reasoning`, or files. A `.jsonl` file has an object with `text` or `prompt` (and perhaps `id`) in each line, any other file a prompt in each line.",
);
const INPUT_TOKENS: Field = Field::new("input_tokens", LENGTH, "1000", "Exact length of the prompts, in tokens.");
const OUTPUT_TOKENS: Field = Field::new(
    "output_tokens",
    LENGTH,
    "500",
    "Exact length of the answers, in tokens; short for `output: {exact: N}`.",
);
const OUTPUT_FIELD: Field = Field::new(
    "output",
    OUTPUT,
    "{stop: natural, max_tokens: 256}",
    "When an answer ends: where the model stops, or after exactly so many tokens.",
);
const SAMPLING: Field = Field::new(
    "sampling",
    Shape::Map(KeyRule::Free, &Shape::Any),
    "{temperature: 0}",
    "Sampling parameters, sent as they are.",
);
const PREFIX: Field = Field::new(
    "prefix_cache",
    PREFIX_CACHE,
    "cold",
    "What the prefix cache may hold of a prompt when it arrives: nothing (`cold`, which is asked of engines that can be told so request by request), whatever it holds (`warm`), or a share.",
)
.derived("`cold`");
const TURNS: Field = Field::new("turns", COUNT_32, "4", "Turns of a conversation.");
const SEED: Field = Field::new("seed", Shape::Whole(0, 1 << 53), "7", "Seed of everything that is drawn.");
const API: Field = Field::new(
    "api",
    Shape::Word(&["chat", "completions", "generate", "completion"]),
    "chat",
    "Which endpoint is asked.",
)
.derived("`chat`");

/// Keys of a file in `profiles/workloads/`.
pub(crate) static WORKLOAD: Struct = Struct {
    name: "a workload",
    fields: &[PROMPTS, INPUT_TOKENS, OUTPUT_TOKENS, OUTPUT_FIELD, SAMPLING, PREFIX, TURNS, SEED, API],
};

/// Keys of `goodput`.
static GOODPUT: Struct = Struct {
    name: "goodput",
    fields: &[
        Field::new("ttft_ms", Shape::Duration, "500ms", "From the sending to the first token."),
        Field::new(
            "ttft_content_ms",
            Shape::Duration,
            "2s",
            "From the sending to the first token of the answer itself, after any reasoning.",
        ),
        Field::new(
            "tpot_ms",
            Shape::Duration,
            "30ms",
            "Time per output token. An answer of one token has none and cannot miss it.",
        ),
        Field::new("e2e_ms", Shape::Duration, "10s", "From the sending to the last token."),
        Field::new("ttft_from_due_ms", Shape::Duration, "500ms", "As `ttft_ms`, from the moment the request was due."),
        Field::new("e2e_from_due_ms", Shape::Duration, "10s", "As `e2e_ms`, from the moment the request was due."),
    ],
};

/// Keys of a measurement.
pub(crate) static BENCH: Struct = Struct {
    name: "a measurement",
    fields: &[
        Field::new(
            "use",
            Shape::Or(&NAME, &[&WORKLOAD]),
            "chat-mix",
            "A workload: the name of a file in `workloads/`, or its keys as a map. Workload keys beside it win over the named one's.",
        ),
        Field::new(
            "concurrency",
            Shape::OneOrMany(&COUNT_32),
            "[4, 8, 16]",
            "Requests in flight: the next is sent when one ends. Several are a ladder, one step each.",
        ),
        Field::new(
            "rate",
            Shape::OneOrMany(&Shape::Positive),
            "4",
            "Requests per second, whatever the server does. Several are a ladder, one step each.",
        ),
        Field::new(
            "arrival",
            Shape::Word(&["poisson", "constant", "gamma"]),
            "poisson",
            "With `rate`: how the gaps between requests are spread.",
        )
        .derived("`poisson`"),
        Field::new("requests", COUNT_64, "48", "How many requests are measured, a step."),
        Field::new(
            "duration",
            Shape::Duration,
            "2m",
            "How long is measured, a step. With `requests` too, whichever ends first.",
        ),
        Field::new(
            "warmup",
            Shape::Whole(0, 1 << 53),
            "4",
            "Exactly so many requests are sent before at the same load, and not counted.",
        )
        .derived("until two windows of the same requests agree within 3 % and nothing compiles, at most 2 minutes"),
        Field::new(
            "goodput",
            Shape::Struct(&GOODPUT),
            "{ttft_ms: 500ms, tpot_ms: 30ms}",
            "Limits that a request must all meet to count in `goodput_requests_per_s`.",
        ),
        PROMPTS,
        INPUT_TOKENS,
        OUTPUT_TOKENS,
        OUTPUT_FIELD,
        SAMPLING,
        PREFIX,
        TURNS,
        SEED,
        API,
    ],
};
