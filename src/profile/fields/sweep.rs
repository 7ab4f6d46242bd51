//! Keys of a sweep's file.

use super::{BENCH, COUNT_32, FILLED, Field, KeyRule, Shape, Struct};

/// Keys of a file in `profiles/sweeps/`.
pub(crate) static SWEEP: Struct = Struct {
    name: "a sweep",
    fields: &[
        Field::new("base", FILLED, "qwen-mtp3", "The profile that everything else is laid over: a name, or the path of a file, beside this one or from the current folder.").required(),
        Field::new("server", Shape::Map(KeyRule::Free, &Shape::Any), "{speculative.steps: [0, 1, 2, 3], memory.fraction: {from: 0.80, to: 0.92, step: 0.04}}", "The axes: settings by their paths, as in `--set`, each with its values. One start of the server for each combination.").required(),
        Field::new("linked", Shape::List(&Shape::List(&FILLED)), "[[max_running_requests, graphs.max_batch]]", "Axes that move together: the first value of one with the first of the other, and so on.").default("[]"),
        Field::new("load", Shape::Struct(&BENCH), "{use: chat-mix, concurrency: [1, 4, 16], duration: 90s}", "What is measured on each start, in the words of a measurement of a profile.").derived("the measurements of the profile"),
        Field::new("skip", Shape::List(&Shape::Map(KeyRule::Free, &Shape::Any)), "[{speculative.steps: 4, memory.fraction: 0.92}]", "Combinations that are left out: all points that have these values.").default("[]"),
        Field::new("on_oom", Shape::Word(&["skip_higher_fraction", "go_on"]), "skip_higher_fraction", "After a start that ran out of GPU memory: whether the points that differ from it by a higher `memory.fraction` alone are left out.").default("go_on"),
        Field::new("confirm", Shape::Struct(&CONFIRM), "{top: 3, starts: 2}", "What is started again in the end, so that the best is not the luckiest."),
        Field::new("goal", Shape::Struct(&GOAL), "{maximize: output_tokens_per_s, where: {ttft_ms.p99: \"< 500ms\"}}", "What is best.").default("{}"),
        Field::new("budget", Shape::Duration, "6h", "How long it may take: nothing is started that cannot end within it."),
    ],
};

static CONFIRM: Struct = Struct {
    name: "confirm",
    fields: &[
        Field::new("top", COUNT_32, "3", "Of so many of the best, those that could still be the best.").default("3"),
        Field::new("starts", COUNT_32, "2", "So many more starts of each.").default("2"),
    ],
};

static GOAL: Struct = Struct {
    name: "goal",
    fields: &[
        Field::new(
            "maximize",
            FILLED,
            "output_tokens_per_s",
            "The metric of which more is better (`docs/metrics.md`).",
        )
        .derived("`output_tokens_per_s`, unless `minimize` is there"),
        Field::new("minimize", FILLED, "ttft_ms.p50", "The metric of which less is better."),
        Field::new(
            "where",
            Shape::Map(KeyRule::Metric, &Shape::Expectation),
            "{ttft_ms.p99: \"< 500ms\"}",
            "What a step must meet to be of any use.",
        )
        .default("{}"),
    ],
};
