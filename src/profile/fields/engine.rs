//! Keys of `engine`, `model` and what is between them and the hardware.

use super::{COUNT_32, FILLED, FREE, Field, KeyRule, PATH, SCENARIO, Shape, ShortForm, Struct, TextRule};

/// Speculative methods that engines are known to have; another word is passed on to the engine's definition.
pub(crate) const METHODS: &[&str] = &["mtp", "eagle", "eagle3", "draft", "ngram", "suffix", "dflash", "dspark"];

pub(super) const ENGINE: Shape = Shape::Short(
    ShortForm::Engine,
    &Struct {
        name: "engine",
        fields: &[
            Field::new(
                "kind",
                Shape::Kind,
                "sglang",
                "The engine: the folder under `templates/` that describes it, which may be one of your own. `command` runs any command, `sim` is the simulated engine.",
            )
            .required(),
            Field::new(
                "version",
                Shape::Text(TextRule::Requirement),
                "\">=0.5.9\"",
                "The versions it may have: conditions with `== != >= <= > < ~=`, joined by commas; a bare version means exactly that one.",
            ),
            Field::new("executable", FILLED, "/opt/llama.cpp/llama-server", "The program, when it is not the engine's usual one. A name is looked for on the `PATH`."),
            Field::new(
                "install",
                Shape::OneOrMany(&VARIANT_SHAPE),
                "[{cpu: [avx512f], packages: [{name: llama-cpp-server, version: 1.0.0, sha256: [0000000000000000000000000000000000000000000000000000000000000000]}]}]",
                "Packages to install it from, into an environment of its own. Several variants are tried in order; the first one whose needs this machine meets is taken. One variant may stand without the list.",
            ),
            Field::new("patches", Shape::OneOrMany(&PATH), "[patches/autotune.diff]", "Patch files that are applied to an environment of its own."),
            Field::new("as", Shape::Word(&["sglang", "vllm", "llamacpp", "trtllm"]), "sglang", "With `kind: sim`: the engine that it pretends to be."),
            Field::new("scenario", Shape::Or(&PATH, &SCENARIOS), "{speed: {ttft: 50ms}}", "With `kind: sim`: how it behaves, as a file or the scenario itself (`docs/simulated.md`)."),
            Field::new(
                "command",
                Shape::List(&FREE),
                "[my-server, --port, \"{port}\"]",
                "With `kind: command`: the words of the command. `{port}`, `{model}` and `{host}` inside a word are filled in.",
            ),
            Field::new("ready", Shape::Struct(&READY), "{http: /health}", "With `kind: command`: signs that it is up. Generated tokens prove it, as for every engine."),
        ],
    },
);

const VARIANT_SHAPE: Shape = Shape::Struct(&VARIANT);
const PACKAGE_SHAPE: Shape = Shape::Struct(&PACKAGE);
const SHA256: Shape = Shape::Text(TextRule::Sha256);

/// What the map of a scenario can be.
static SCENARIOS: [&Struct; 1] = [&SCENARIO];

static READY: Struct = Struct {
    name: "engine.ready",
    fields: &[
        Field::new(
            "log",
            Shape::Text(TextRule::Pattern),
            "'listening on'",
            "A regular expression that a line of its log matches.",
        ),
        Field::new("http", Shape::Text(TextRule::HttpPath), "/health", "A path that answers with status 200."),
    ],
};

static VARIANT: Struct = Struct {
    name: "engine.install",
    fields: &[
        Field::new(
            "cpu",
            Shape::List(&FILLED),
            "[avx512f]",
            "CPU features, as in `/proc/cpuinfo`, without which it does not run.",
        ),
        Field::new("packages", Shape::List(&PACKAGE_SHAPE), "[]", "Python packages, each pinned.").required(),
        Field::new(
            "executable",
            FILLED,
            "bin/llama-server",
            "The program inside the environment, when this variant's is another than `engine.executable`.",
        ),
        Field::new(
            "launcher",
            Shape::Text(TextRule::Name),
            "xllamacpp.py",
            "A Python file of the engine's folder under `templates/` that is put into the environment as that program.",
        ),
        Field::new(
            "version",
            Shape::Text(TextRule::Name),
            "b10434",
            "The engine's version in these packages, for a program that does not say it itself.",
        ),
        Field::new(
            "build_env",
            Shape::Map(KeyRule::EnvName, &FREE),
            "{CMAKE_ARGS: -DGGML_NATIVE=off}",
            "Environment of the build, for packages that come as source.",
        ),
    ],
};

static PACKAGE: Struct = Struct {
    name: "a package",
    fields: &[
        Field::new("name", Shape::Text(TextRule::Name), "llama-cpp-server", "Its name.").required(),
        Field::new("version", Shape::Text(TextRule::Name), "1.0.0", "Its exact version.").required(),
        Field::new(
            "sha256",
            Shape::OneOrMany(&SHA256),
            "[0000000000000000000000000000000000000000000000000000000000000000]",
            "SHA-256 of each file that may be taken: one a platform.",
        )
        .required(),
    ],
};

pub(super) const MODEL: Shape = Shape::Short(
    ShortForm::Model,
    &Struct {
        name: "model",
        fields: &[
            Field::new(
                "path",
                FILLED,
                "Qwen/Qwen3.6-27B",
                "A hub name, a path, or `package:NAME/FILE` for a file inside a package of `engine.install`.",
            )
            .required(),
            Field::new("revision", FILLED, "9c1f2ab", "Commit, tag or branch."),
            Field::new("served_name", FILLED, "qwen", "The name that requests use.").derived("the path's last part"),
            Field::new("tokenizer", FILLED, "Qwen/Qwen3.6-27B", "A tokenizer other than the model's own."),
            Field::new("dtype", FILLED, "bfloat16", "Type of the weights in memory, in the engine's word."),
            Field::new("quantization", FILLED, "fp8", "Quantization, in the engine's word."),
            Field::new("load_format", FILLED, "safetensors", "How the weights are read, in the engine's word."),
        ],
    },
);

pub(super) static PARALLEL: Struct = Struct {
    name: "parallel",
    fields: &[
        Field::new("tensor", COUNT_32, "2", "GPUs that share each layer."),
        Field::new("pipeline", COUNT_32, "2", "Stages that share the layers."),
        Field::new("data", COUNT_32, "2", "Copies of the model."),
        Field::new("expert", COUNT_32, "8", "GPUs that share the experts."),
        Field::new("nodes", COUNT_32, "2", "Hosts that it is spread over."),
    ],
};

pub(super) static SPECULATIVE: Struct = Struct {
    name: "speculative",
    fields: &[
        Field::new(
            "method",
            Shape::Text(TextRule::Name),
            "mtp",
            "How tokens are drafted: `mtp eagle eagle3 draft ngram suffix dflash dspark`, or another one that the engine's definition has.",
        ),
        Field::new(
            "steps",
            Shape::Whole(0, 1024),
            "3",
            "Tokens drafted per verify in a chain, on every engine. 0 is off.",
        ),
        Field::new("topk", Shape::Whole(1, 1024), "1", "Branches a step, only where the engine has trees."),
        Field::new("draft_tokens", Shape::Whole(1, 65536), "4", "Tokens of the tree, only where the engine has trees."),
        Field::new("model", FILLED, "lmsys/eagle3-head", "The draft model."),
    ],
};

pub(super) static MEMORY: Struct = Struct {
    name: "memory",
    fields: &[
        Field::new(
            "fraction",
            Shape::Share { zero: false },
            "0.88",
            "The memory fraction in the engine's own meaning (SGLang: weights and cache of all memory; vLLM: everything of all memory; TensorRT-LLM: cache of what the weights leave). Refused when inherited from a layer of another engine.",
        ),
        Field::new("kv_dtype", FILLED, "fp8_e4m3", "Type of the KV cache, in the engine's word."),
        Field::new("gpu_layers", Shape::Whole(0, u32::MAX as u64), "99", "Layers on the GPU (llama.cpp)."),
    ],
};

pub(super) static GRAPHS: Struct = Struct {
    name: "graphs",
    fields: &[
        Field::new("enabled", Shape::Switch, "true", "Off means eager."),
        Field::new("max_batch", COUNT_32, "16", "Largest batch that is captured."),
        Field::new("batches", Shape::List(&COUNT_32), "[1, 2, 4, 8]", "Exactly these batches are captured."),
    ],
};
