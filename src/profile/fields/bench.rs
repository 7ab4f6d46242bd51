//! Keys of `bench` and of workloads.

use super::{COUNT_32, COUNT_64, FILLED, Field, KeyRule, NAME, PATH, Shape, Struct};

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
    "What is asked: `builtin/chat`, `builtin/code`, `builtin/extraction`, `builtin/reasoning`, or files. A `.jsonl` file has an object with `text` or `prompt` (and perhaps `id`) in each line, or with a conversation under `messages` or `conversations` (ShareGPT); a `.json` file is a list of such objects; any other file has a prompt in each line.",
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
    "What the prefix cache may hold of a prompt when it arrives: nothing (`cold`, which is asked of engines that can be told so request by request), whatever it holds (`warm`), or a share of prompts that are made to a length: they then begin with a text that they share.",
)
.derived("`cold`");
const TURNS: Field = Field::new(
    "turns",
    COUNT_32,
    "4",
    "Turns of a conversation: each is sent with all that was said before it, the server's own answers included. What the person says are the turns of a recorded conversation, else prompts one after the other.",
);
const STREAM: Field = Field::new(
    "stream",
    Shape::Switch,
    "off",
    "Whether answers come as a stream. Off: they come whole, and nothing is known of a first token or of gaps.",
)
.derived("`on`");
const SEED: Field = Field::new("seed", Shape::Whole(0, 1 << 53), "7", "Seed of everything that is drawn.");
const API: Field = Field::new(
    "api",
    Shape::Word(&["chat", "completions", "responses", "generate", "completion"]),
    "chat",
    "Which endpoint is asked: OpenAI's `chat`, `completions` or `responses`, SGLang's `generate`, llama.cpp's `completion`.",
)
.derived("`chat`");

/// Keys of a file in `profiles/workloads/`.
pub(crate) static WORKLOAD: Struct = Struct {
    name: "a workload",
    fields: &[PROMPTS, INPUT_TOKENS, OUTPUT_TOKENS, OUTPUT_FIELD, SAMPLING, PREFIX, TURNS, SEED, API, STREAM],
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

static RAMP: Struct = Struct {
    name: "a ramp",
    fields: &[
        Field::new("from", Shape::NotNegative, "2", "Requests per second at its beginning.").required(),
        Field::new("to", Shape::NotNegative, "20", "Requests per second at its end.").required(),
    ],
};

static STAGE: Struct = Struct {
    name: "a stage",
    fields: &[
        Field::new(
            "rate",
            Shape::Or(&Shape::Positive, &[&RAMP]),
            "{from: 2, to: 20}",
            "Requests per second, or a ramp from one rate to another.",
        )
        .required(),
        Field::new("duration", Shape::Duration, "30s", "How long it lasts.").required(),
    ],
};

static BURSTS: Struct = Struct {
    name: "bursts",
    fields: &[
        Field::new("requests", COUNT_32, "16", "How many at once.").required(),
        Field::new("every", Shape::Duration, "10s", "From one burst to the next.").required(),
    ],
};

static TRACE: Struct = Struct {
    name: "trace",
    fields: &[
        Field::new(
            "file",
            PATH,
            "trace.jsonl",
            "Lines of JSON with `timestamp` (milliseconds) or `at_s` (seconds), and perhaps `input_length`, `output_length` and `hash_ids`, as Mooncake's traces have them.",
        )
        .required(),
        Field::new("speed", Shape::Positive, "2", "So many times as fast as recorded.").derived("1"),
        Field::new("block_tokens", COUNT_64, "512", "How many tokens of a prompt one of its `hash_ids` stands for.").derived("512, as in Mooncake's traces"),
    ],
};

/// Keys of a search.
pub(crate) static SEARCH: Struct = Struct {
    name: "search",
    fields: &[
        Field::new("concurrency", Shape::Struct(&SEARCHED_COUNTS), "{from: 1, to: 128}", "Searches the highest number of requests in flight."),
        Field::new("rate", Shape::Struct(&SEARCHED_RATES), "{from: 0.5, to: 64}", "Searches the highest rate; its gaps are spread as `arrival` says."),
        Field::new("share", Shape::Share { zero: false }, "99%", "The share of requests that must meet every limit.").default("95%"),
        Field::new("within", Shape::Share { zero: false }, "10%", "It ends when what failed is above what passed by at most this share; requests in flight end at neighbours.").default("5%"),
    ],
};

static SEARCHED_COUNTS: Struct = Struct {
    name: "the ends of a search",
    fields: &[
        Field::new("from", COUNT_32, "1", "Where it begins.").required(),
        Field::new("to", COUNT_32, "128", "Nothing above this is tried.").required(),
    ],
};

static SEARCHED_RATES: Struct = Struct {
    name: "the ends of a search",
    fields: &[
        Field::new("from", Shape::Positive, "0.5", "Where it begins, in requests per second.").required(),
        Field::new("to", Shape::Positive, "64", "Nothing above this is tried.").required(),
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
        Field::new(
            "burstiness",
            Shape::Positive,
            "0.5",
            "With `arrival: gamma`: the shape of the gaps, as vLLM defines it. 1 is Poisson, less is burstier, more is evener.",
        ),
        Field::new(
            "stages",
            Shape::List(&Shape::Struct(&STAGE)),
            "[{rate: 2, duration: 30s}, {rate: {from: 2, to: 20}, duration: 1m}]",
            "Rates that change with time, steady or as a ramp, spread as `arrival` says. The step lasts as long as its stages.",
        ),
        Field::new(
            "bursts",
            Shape::Struct(&BURSTS),
            "{requests: 16, every: 10s}",
            "So many requests at once, again and again.",
        ),
        Field::new(
            "trace",
            Shape::Struct(&TRACE),
            "{file: trace.jsonl}",
            "Requests at the moments that somebody recorded, with the lengths and the shared prefixes of the recording where it has them.",
        ),
        Field::new(
            "search",
            Shape::Struct(&SEARCH),
            "{concurrency: {from: 1, to: 128}}",
            "Looks for the highest load under which enough requests meet all limits of `goodput`: by doubling, then by halving what is left. Each load that is tried is a step of its own.",
        ),
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
        STREAM,
    ],
};
