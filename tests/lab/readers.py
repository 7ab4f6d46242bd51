"""Whether other tools' own readers load what `orch export` writes, and read the values that the record has.

By hand, with a Python that has the tools; what one lacks is left out, with a line:

    orch export RUN --format vllm  -o out/vllm.json
    orch export RUN --format llmd  -o out/llmd.json
    orch export RUN --format hlog  -o out/run.hlog
    python tests/lab/readers.py out results/runs/<id>/run.json

- vLLM (0.32.0): what `vllm bench sweep` goes on with, plots and compares, and its records for PyTorch's database.
- llm-d: the schema and the reader of the package `llmd-benchmark-report`.
- HdrHistogram: `HistogramLogReader` of the package `hdrhistogram`.

A line for each reader; exit code 1 if one of them refuses a file, or reads another value.
"""

import argparse
import importlib.util
import json
import os
import sys
import tempfile
from pathlib import Path

FAILED = []


def near(one, two, share=1e-6):
    return abs(one - two) <= share * max(abs(one), abs(two), 1e-9)


def told(reader, act):
    """Runs a reader, and says how it went."""
    try:
        print(f"{reader}: {act()}")
    except Missing as missing:
        print(f"{reader}: left out, {missing}")
    except Exception as error:  # noqa: BLE001: whatever a reader objects to is what is asked here
        FAILED.append(reader)
        print(f"{reader}: FAILED, {type(error).__name__}: {error}")


class Missing(Exception):
    """The tool is not here."""


def need(*modules):
    for module in modules:
        if importlib.util.find_spec(module) is None:
            raise Missing(f"no module {module}")


def same(what, read, ours, share=1e-6):
    if not near(read, ours, share):
        raise ValueError(f"{what} is read as {read}, and the record has {ours}")


def step_of(record, name):
    steps = [step for step in record["steps"] if not step.get("probe")]
    found = [step for step in steps if step["name"] == name] or steps[:1]
    return found[0]


def vllm_existing(path, step):
    """What `vllm bench sweep serve --resume` does with a result that is there."""
    need("vllm")
    from vllm.benchmarks.sweep.param_sweep import ParameterSweepItem
    from vllm.benchmarks.sweep.serve import run_benchmark

    nothing = ParameterSweepItem.from_record({})
    data = run_benchmark(
        None, [], serve_overrides=nothing, bench_overrides=nothing, run_number=0, output_path=path, dry_run=False
    )
    same("mean_ttft_ms", data["mean_ttft_ms"], step["metrics"]["first_chunk_ms"]["mean"])
    return f"{len(data)} fields, mean_ttft_ms {data['mean_ttft_ms']:.3f}"


def summary(path, folder):
    """The summary that the plots of a sweep read."""
    data = json.loads(path.read_text())
    (folder / "summary.json").write_text(json.dumps([{**data, "run_number": run} for run in (0, 1)]))
    return data


def vllm_plot(path, _):
    need("vllm", "pandas")
    from vllm.benchmarks.sweep.plot import PlotBinners, PlotFilters, plot

    draws = all(importlib.util.find_spec(module) for module in ("matplotlib", "seaborn"))
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        summary(path, folder)
        plot(
            folder, folder / "figures", [], [], [], ["model_id"], var_x="max_concurrency", var_y="p99_ttft_ms",
            filter_by=PlotFilters.parse_str("completed>=1"), bin_by=PlotBinners(), scale_x=None, scale_y=None,
            dry_run=not draws,
        )
        drawn = len(list((folder / "figures").glob("*.png")))
    if draws and not drawn:
        raise ValueError("nothing was drawn")
    return f"{drawn} figures" if draws else "grouped; not drawn for want of matplotlib and seaborn"


def vllm_pareto(path, step):
    need("vllm", "pandas")
    import pandas
    from vllm.benchmarks.sweep import plot_pareto

    draws = all(importlib.util.find_spec(module) for module in ("matplotlib", "seaborn"))
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        data = summary(path, folder)
        plot_pareto.plot_pareto(folder, "max_concurrency", None, ["model_id"], dry_run=not draws)
        prepared, skipped = plot_pareto._prepare_records([data], user_count_var="max_concurrency", gpu_count_var=None)
    if skipped or len(prepared) != 1:
        raise ValueError("the record was skipped")
    frontier = plot_pareto._pareto_frontier(pandas.DataFrame(prepared), "tokens_per_user", "tokens_per_gpu")
    same("tokens_per_gpu", float(frontier["tokens_per_gpu"].iloc[0]), step["metrics"]["output_tokens_per_s"])
    return f"tokens per user {float(frontier['tokens_per_user'].iloc[0]):.2f}{'' if draws else '; not drawn'}"


def vllm_database(path, step):
    need("vllm")
    from vllm.benchmarks.serve import save_to_pytorch_benchmark_format

    os.environ["SAVE_TO_PYTORCH_BENCHMARK_FORMAT"] = "1"
    with tempfile.TemporaryDirectory() as folder:
        data = json.loads(path.read_text())
        args = argparse.Namespace(model=data["model_id"], tensor_parallel_size=1)
        save_to_pytorch_benchmark_format(args, data, str(Path(folder) / "result.json"))
        records = json.loads((Path(folder) / "result.pytorch.json").read_text())
    values = {record["metric"]["name"]: record["metric"]["benchmark_values"][0] for record in records}
    same("p99_ttft_ms", values["p99_ttft_ms"], step["metrics"]["first_chunk_ms"]["p99"])
    return f"{len(records)} records"


def llmd_schema(path, _):
    need("llmd_benchmark_report", "jsonschema")
    import jsonschema
    import llmd_benchmark_report

    schema = Path(llmd_benchmark_report.__file__).with_name("br_v0_1_json_schema.json")
    schema = json.loads(schema.read_text())
    jsonschema.validators.validator_for(schema)(schema).validate(json.loads(path.read_text()))
    return "valid by its JSON schema, version 0.1"


def llmd_reader(path, step):
    need("llmd_benchmark_report", "pydantic", "yaml")
    from llmd_benchmark_report.core import import_benchmark_report

    metrics = import_benchmark_report(str(path)).metrics
    ours = step["metrics"]
    same("total_tokens_per_sec", metrics.throughput.total_tokens_per_sec, ours["total_tokens_per_s"])
    for name, metric in [
        ("time_to_first_token", "ttft_ms"),
        ("time_per_output_token", "tpot_ms"),
        ("inter_token_latency", "itl_ms"),
        ("request_latency", "e2e_ms"),
    ]:
        for part in ("mean", "p50", "p90", "p95", "p99", "max"):
            same(f"{name}.{part}", getattr(getattr(metrics.latency, name), part), ours[metric][part])
    return f"{metrics.requests.total} requests, {metrics.requests.failures} failed"


def hlog(path, step):
    need("hdrh")
    from hdrh.histogram import HdrHistogram
    from hdrh.log import HistogramLogReader

    # Values are in thousandths of the metric's unit; three digits are kept.
    reader = HistogramLogReader(str(path), HdrHistogram(1, 3_600_000_000, 3))
    read = {}
    while (found := reader.get_next_interval_histogram()) is not None:
        tag = found.get_tag() or ""
        if tag.startswith(f"{step['name']}/"):
            read[tag.split("/", 1)[1]] = found
    if not read:
        raise ValueError("no histogram was read")
    for metric, found in read.items():
        ours = step["metrics"][metric]
        if found.get_total_count() != ours["samples"]:
            raise ValueError(f"{metric} has {found.get_total_count()} samples, and the record {ours['samples']}")
        if ours["samples"]:
            same(f"{metric}.max", found.get_max_value() / 1e3, ours["max"], 2e-3)
    return f"{len(read)} histograms: {' '.join(sorted(read))}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("exports", type=Path, help="a folder with vllm.json, llmd.json and run.hlog")
    parser.add_argument("record", type=Path, help="the run.json that they were exported from")
    parser.add_argument("--step", default="bench")
    asked = parser.parse_args()
    step = step_of(json.loads(asked.record.read_text()), asked.step)
    readers = [
        ("llm-d: schema of the report", llmd_schema, "llmd.json"),
        ("llm-d: reader of the report", llmd_reader, "llmd.json"),
        ("HdrHistogram: log", hlog, "run.hlog"),
        ("vllm: a result that is there", vllm_existing, "vllm.json"),
        ("vllm: plot of a sweep", vllm_plot, "vllm.json"),
        ("vllm: Pareto front", vllm_pareto, "vllm.json"),
        ("vllm: PyTorch's database", vllm_database, "vllm.json"),
    ]
    for name, reader, file in readers:
        told(name, lambda: reader(asked.exports / file, step))
    return 1 if FAILED else 0


if __name__ == "__main__":
    sys.exit(main())
