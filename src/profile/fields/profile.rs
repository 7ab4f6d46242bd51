//! Keys of a profile.

use super::engine::{ENGINE, GRAPHS, MEMORY, MODEL, PARALLEL, SPECULATIVE};
use super::{BENCH, COUNT_32, COUNT_64, FILLED, FREE, Field, KeyRule, NAME, PATH, Shape, ShortForm, Struct, TextRule};

/// All keys of a profile. `extends` is worked off when layers are merged.
pub(crate) static PROFILE: Struct = Struct {
    name: "a profile",
    fields: &[
        Field::new("name", NAME, "qwen-mtp3", "Its name, on screens and in the names of records.").derived("the file's name"),
        Field::new("series", NAME, "qwen36-27b", "History and baseline belong to this: profiles of one series are compared.").derived("the name"),
        Field::new("extends", Shape::OneOrMany(&FILLED), "layers/qwen36-27b", "Layers below this file, the later ones above the earlier ones: paths relative to this file, then names in the profile folders. Maps merge by key, lists replace, `null` removes."),
        Field::new("engine", ENGINE, "sglang >=0.5.9", "Which engine, which version, and where it comes from. Short: `KIND`, or `KIND CONDITION`.").required(),
        Field::new("model", MODEL, "Qwen/Qwen3.6-27B@9c1f2ab", "What it serves. Short: `PATH` or `PATH@REVISION`. With `engine.kind: sim` it may be absent.").required(),
        Field::new("host", FILLED, "ct129", "A host of `hosts.yaml`.").derived("this machine"),
        Field::new("hosts", Shape::List(&FILLED), "[big1, big2]", "With `parallel.nodes`: the hosts, first the head."),
        Field::new("port", Shape::WordOr(&["auto"], &Shape::Whole(1, 65535)), "30000", "Where it listens; `auto` is the first free port of 30000 to 30999 on the host.").default("auto"),
        Field::new("parallel", Shape::Struct(&PARALLEL), "{tensor: 2}", "How the model is spread."),
        Field::new("speculative", Shape::Struct(&SPECULATIVE), "{method: mtp, steps: 3}", "Speculative decoding."),
        Field::new("memory", Shape::Struct(&MEMORY), "{fraction: 0.88}", "Memory of device and cache."),
        Field::new("context_length", COUNT_64, "128k", "Tokens of context for one request, on every engine."),
        Field::new("max_running_requests", COUNT_64, "16", "How many requests may run at once."),
        Field::new("graphs", Shape::Struct(&GRAPHS), "{enabled: true}", "CUDA graphs."),
        Field::new("attention_backend", FILLED, "triton", "Attention kernels, in the engine's word."),
        Field::new("flags", Shape::Map(KeyRule::Flag, &Shape::Flag), "{reasoning-parser: qwen3, old-flag: null}", "The engine's own flags, named without dashes: `true` is the bare flag, a list repeats it, `null` drops an inherited one."),
        Field::new("args", Shape::List(&FREE), "[--odd-one]", "Raw words after all else, for oddities only."),
        Field::new("env", Shape::Map(KeyRule::EnvName, &FREE), "{NCCL_P2P_DISABLE: \"1\"}", "Environment of the server."),
        Field::new("secrets", Shape::List(&Shape::Text(TextRule::EnvName)), "[HF_TOKEN]", "Names of secrets. Their values are taken from the environment or a file that only you can read, given to the server's environment at launch, and shown nowhere."),
        Field::new("instrument", Shape::Switch, "off", "Whether orch may add what it needs to measure (metrics, usage). What it adds is visible in the rendered command.").default("on"),
        Field::new("launch", Shape::Struct(&LAUNCH), "{via: process, abandon: 15m}", "How it is started.").default("{}"),
        Field::new("gate", Shape::Struct(&GATE), "{timeout: auto, patience: {graph_capture: 15m}}", "When it counts as ready, and how long that may take.").default("{}"),
        Field::new("bench", Shape::Map(KeyRule::Name, &Shape::Struct(&BENCH)), "{single: {use: chat-mix, concurrency: 1, requests: 48}}", "The measurements by name, in order."),
        Field::new("expect", Shape::Map(KeyRule::Expectable, &Shape::Expectation), "{effective.max_running_requests: 16, acceptance_length: \">= 2.4\"}", "What must hold, else the result is invalid: an effective setting or a metric, and a value or a comparison."),
        Field::new("tolerance", Shape::Map(KeyRule::Metric, &TOLERANCE), "{output_tokens_per_s: 3%, ttft_ms.p90: {relative: 10%, absolute: 20ms}}", "Losses that are not worth a verdict, by metric."),
        Field::new("repeat", Shape::Struct(&REPEAT), "{starts: 5, runs: 3}", "How often it is started and measured.").default("{}"),
        Field::new("suspect", Shape::Struct(&SUSPECT), "{restarts: 1, control: baseline}", "What a suspicious result sets off."),
        Field::new("share", Shape::Switch, "true", "Measure without the lock that keeps a host to one measurement at a time; the record says so.").default("false"),
        Field::new("hooks", Shape::Struct(&HOOKS), "{before_launch: [./drop-caches.sh]}", "Commands of your own around the stages; they are logged, and one that fails ends the run."),
        Field::new("quality", Shape::Struct(&QUALITY), "{file: known-answers.jsonl}", "Known answers: questions that are asked one by one at temperature 0 before the first step and after the last. A wrong answer makes the run invalid; one without `expect` is only held against itself, and a change is a warning."),
    ],
};

static LAUNCH: Struct = Struct {
    name: "launch",
    fields: &[
        Field::new(
            "via",
            VIA,
            "{docker: {image: \"lmsysorg/sglang:v0.5.9\"}}",
            "What starts the server: a process under orch's supervisor, a container, or a unit, which only `orch up` does.",
        )
        .default("process"),
        Field::new(
            "abandon",
            Shape::Duration,
            "15m",
            "How long the server may live after its run is gone and nothing says keep.",
        )
        .default("15m"),
    ],
};

const VIA: Shape = Shape::WordOr(
    &["process", "systemd"],
    &Shape::Struct(&Struct {
        name: "launch.via",
        fields: &[Field::new(
            "docker",
            Shape::Struct(&DOCKER),
            "{image: \"lmsysorg/sglang:v0.5.9\"}",
            "In a container.",
        )
        .required()],
    }),
);

static DOCKER: Struct = Struct {
    name: "launch.via.docker",
    fields: &[
        Field::new("image", FILLED, "\"lmsysorg/sglang:v0.5.9\"", "Its image.").required(),
        Field::new("options", Shape::List(&FREE), "[--shm-size=32g]", "Words for `docker run`; what orch gives otherwise (`--shm-size`, `--gpus`, `--user`, …) is left out where they give it.").default("[]"),
    ],
};

static GATE: Struct = Struct {
    name: "gate",
    fields: &[
        Field::new(
            "timeout",
            Shape::WordOr(&["auto"], &Shape::Duration),
            "40m",
            "The limit on a start; `auto` is three times the usual time, at least 20 min.",
        )
        .default("auto"),
        Field::new(
            "patience",
            Shape::Map(KeyRule::Phase, &Shape::Duration),
            "{graph_capture: 15m}",
            "How long a phase may be silent before the screen asks whether it is stalled. Silence alone never ends a start. Phases: `launch config dist_init weights kv_pool compile graph_capture draft_weights draft_capture http_up warmup serving`.",
        ),
    ],
};

const TOLERANCE: Shape = Shape::Short(
    ShortForm::Tolerance,
    &Struct {
        name: "a tolerance",
        fields: &[
            Field::new("relative", Shape::Share { zero: true }, "10%", "As a share of the baseline's value."),
            Field::new("absolute", Shape::Amount, "20ms", "As an amount, with its unit where the metric has one."),
        ],
    },
);

static REPEAT: Struct = Struct {
    name: "repeat",
    fields: &[
        Field::new("starts", COUNT_32, "5", "Starts of the server.").default("1"),
        Field::new("runs", COUNT_32, "3", "Measurements per start.").default("1"),
    ],
};

static SUSPECT: Struct = Struct {
    name: "suspect",
    fields: &[
        Field::new("restarts", Shape::Whole(0, u32::MAX as u64), "1", "Restarts with the same settings.").default("1"),
        Field::new("control", Shape::Word(&["baseline"]), "baseline", "Then the baseline's settings on the same host."),
    ],
};

static HOOKS: Struct = Struct {
    name: "hooks",
    fields: &[
        Field::new("before_launch", HOOK, "[./drop-caches.sh]", "Before the server is started."),
        Field::new("after_ready", HOOK, "{command: [./warm-proxy.sh], timeout: 2m}", "When it is ready."),
        Field::new("after_bench", HOOK, "[./collect.sh]", "After the last measurement."),
        Field::new("after_stop", HOOK, "[./tidy.sh]", "When it is gone."),
    ],
};

const HOOK: Shape = Shape::Short(
    ShortForm::Hook,
    &Struct {
        name: "a hook",
        fields: &[
            Field::new(
                "command",
                Shape::List(&FREE),
                "[./drop-caches.sh, --all]",
                "The words of the command. No shell reads them.",
            )
            .required(),
            Field::new("timeout", Shape::Duration, "2m", "How long it may take.").default("60s"),
        ],
    },
);

static QUALITY: Struct = Struct {
    name: "quality",
    fields: &[Field::new(
        "file",
        PATH,
        "known-answers.jsonl",
        "A JSONL file of questions: in each line an object with `prompt` and, as a rule, `expect`, a regular expression that the answer must hold; `id` and `max_tokens` (64) may be there too.",
    )
    .required()],
};
