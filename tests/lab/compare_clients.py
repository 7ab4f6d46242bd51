#!/usr/bin/env python3
"""Holds orch against `vllm bench serve` on a server that is already up.

    python3 tests/lab/compare_clients.py --url http://127.0.0.1:8131 --model smollm2 \\
        --orch target/release/orch --vllm /path/to/bin/vllm --tokenizer /path/to/a/tokenizer \\
        [--server-log llama-server.log] [--json FILE]

Starts no server. For each concurrency (1 and 4) it runs five pairs, in turn orch first and vLLM's client first. Both send
the same prompts in the same order to /v1/chat/completions, as many requests, answers of exactly as many tokens
(max_tokens and ignore_eos), as many warm-up requests, and no setting of sampling: both get the server's own.
The prompts are learned from orch itself, which first sends them to a port of this script.

The server must answer no prompt from a cache, or whoever comes second is faster. llama.cpp:

    llama-server -m FILE.gguf --alias smollm2 --port 8131 --parallel 4 --ctx-size 8192 --threads 1 --no-cache-prompt --cache-ram 0

The tokenizer may be any: vLLM's client wants one, but counts by the usage that the server tells. Which value of
either tool is held against which of the other:

    request throughput          requests_per_s           request_throughput
    output token throughput     output_tokens_per_s      output_throughput
    mean TTFT                   ttft_ms.mean             mean_ttft_ms
    mean TPOT                   tpot_ms.mean             mean_tpot_ms
    mean ITL                    chunk_gap_ms.mean        mean_itl_ms      (shown, not judged)
    mean E2E latency            e2e_ms.mean              mean_e2el_ms

ITL is not judged: vLLM's takes every event with `choices` for a token, so that a role or a finish reason in an event of its own is a gap near zero.
A difference is orch / vLLM − 1. The last column is how far one tool's own five values lie apart, the larger of the two:
where that is much more than the limit, the rows above tell of the machine and not of the clients. With llama.cpp's log
(--server-log) four other rows are judged in their place, in which a server that was slower in one run than in the other
changes nothing: what each client saw, divided by what the server says that the same requests took, and for throughput
how many requests were in flight on the mean (requests/s times their mean latency), as a share of those asked for. Exit
code 0: every median of the judged rows is within the limit (2 %); 1: not; 2: something did not run.
"""

import argparse
import http.server
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time

# What it is called, orch's id, vLLM's key, and whether it is judged.
METRICS = [
    ("request throughput, 1/s", "requests_per_s", "request_throughput", True),
    ("output tokens/s", "output_tokens_per_s", "output_throughput", True),
    ("mean TTFT, ms", "ttft_ms", "mean_ttft_ms", True),
    ("mean TPOT, ms", "tpot_ms", "mean_tpot_ms", True),
    ("mean ITL (chunk gap), ms", "chunk_gap_ms", "mean_itl_ms", False),
    ("mean E2E, ms", "e2e_ms", "mean_e2el_ms", True),
]


# The same against llama.cpp's own times: what it is called, the row above, and which of its times. At one request at a time
# a time to the first token is its time for the prompt; with several at once a request may also wait for its turn.
AGAINST_SERVER = [
    ("TTFT / server's", "mean TTFT, ms", "prompt"),
    ("TPOT / server's", "mean TPOT, ms", "token"),
    ("E2E / server's", "mean E2E, ms", "total"),
]


class Failed(Exception):
    """A tool did not do what was asked of it."""


def run(words, what, accepted=(0,), **environment):
    """The standard output of a command."""
    ran = subprocess.run(words, capture_output=True, text=True, env={**os.environ, **environment})
    if ran.returncode not in accepted:
        tail = "\n".join((ran.stdout + ran.stderr).splitlines()[-15:])
        raise Failed(f"{what}: exit code {ran.returncode}\n  {' '.join(words)}\n{tail}")
    return ran.stdout


class Catcher(http.server.BaseHTTPRequestHandler):
    """Answers each request with one token and keeps its body."""

    protocol_version = "HTTP/1.1"
    bodies = []

    def do_GET(self):
        self.send_response(404)
        self.send_header("content-length", "0")
        self.end_headers()

    def do_POST(self):
        self.bodies.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
        events = [
            {"choices": [{"index": 0, "delta": {"content": "x"}, "finish_reason": "stop"}]},
            {"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}},
        ]
        answer = "".join(f"data: {json.dumps(event)}\n\n" for event in events) + "data: [DONE]\n\n"
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer.encode())

    def log_message(self, *words):
        pass


def orch_words(asked, url, concurrency, warmup):
    return [
        asked.orch, "bench", "--url", url, "--model", asked.model, "--requests", str(asked.requests),
        "--concurrency", str(concurrency), "--warmup", str(warmup), "--seed", str(asked.seed),
        "--output-tokens", str(asked.output_tokens), "--no-record", "--json", "--share",
    ]  # fmt: skip


def prompts(asked, scratch):
    """The prompts that orch sends, in its order. One at a time, so that they come in that order."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Catcher) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        # The answers are too short: 5 is what orch says to that.
        run(orch_words(asked, url, 1, 0), "orch, for its prompts", (0, 5), XDG_STATE_HOME=str(scratch))
        server.shutdown()
    bodies = Catcher.bodies
    if len(bodies) != asked.requests:
        raise Failed(f"orch sent {len(bodies)} requests and not {asked.requests}")
    for body in bodies:
        if body.get("max_tokens") != asked.output_tokens or body.get("ignore_eos") is not True:
            raise Failed(f"orch does not ask for exactly {asked.output_tokens} tokens: {body}")
        known = {"model", "messages", "max_tokens", "ignore_eos", "stream", "stream_options"}
        if more := body.keys() - known:
            raise Failed(f"orch also sends {', '.join(sorted(more))}, which vLLM's client would have to send too")
    file = scratch / "prompts.jsonl"
    file.write_text("".join(json.dumps({"prompt": body["messages"][0]["content"]}) + "\n" for body in bodies))
    return file


def mean(value):
    """The mean of a distribution; a number is its own."""
    return value["mean"] if isinstance(value, dict) else value


def ask_orch(asked, concurrency, scratch, _dataset):
    rows = scratch / "rows.jsonl"
    words = orch_words(asked, asked.url, concurrency, asked.warmup) + ["--requests-out", str(rows)]
    record = json.loads(run(words, "orch", XDG_STATE_HOME=str(scratch)))
    (step,) = record["steps"]
    sent = [json.loads(line) for line in rows.read_text().splitlines()]
    if cached := sum(row["cached_tokens"] or 0 for row in sent):
        raise Failed(f"the server took {cached} prompt tokens from its cache: start it without one")
    values = {name: mean(step["metrics"].get(key)) for name, key, _, _ in METRICS}
    counts = (sum(row["output_tokens"] for row in sent), sum(row["input_tokens"] or 0 for row in sent))
    return values, counts


def ask_vllm(asked, concurrency, scratch, dataset):
    words = [
        asked.vllm, "bench", "serve", "--backend", "openai-chat", "--base-url", asked.url.rstrip("/").removesuffix("/v1"),
        "--endpoint", "/v1/chat/completions", "--model", asked.model, "--tokenizer", asked.tokenizer,
        "--dataset-name", "custom", "--dataset-path", str(dataset), "--custom-output-len", str(asked.output_tokens),
        # Without these it would apply a chat template before the server does, and draw another order.
        "--skip-chat-template", "--disable-shuffle", "--num-prompts", str(asked.requests), "--ignore-eos",
        # llama.cpp ends the connection after each stream without saying so, and this client then now and then sends
        # its next request into it, which fails.
        "--header", "Connection=close",
        "--max-concurrency", str(concurrency), "--num-warmups", str(asked.warmup), "--disable-tqdm",
        "--percentile-metrics", "ttft,tpot,itl,e2el", "--save-result", "--result-dir", str(scratch),
        "--result-filename", "vllm.json",
    ]  # fmt: skip
    offline = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
    said = run(words, "vllm bench serve", **offline)
    result = json.loads((scratch / "vllm.json").read_text())
    if result["completed"] != asked.requests:
        raise Failed(f"vllm bench serve completed {result['completed']} of {asked.requests} requests:\n{said[-3000:]}")
    return {name: result[key] for name, _, key, _ in METRICS}, (result["total_output_tokens"], result["total_input_tokens"])


class ServerLog:
    """llama.cpp's log, from where it was last read."""

    def __init__(self, path):
        self.path = path
        self.skip()

    def skip(self):
        self.at = self.path.stat().st_size if self.path else 0

    def means(self, requests):
        """The means over the last `requests` answers since `skip`: milliseconds for the prompt, a further token, all."""
        if not self.path:
            return {}
        time.sleep(0.5)
        with self.path.open("rb") as file:
            file.seek(self.at)
            text = file.read().decode(errors="replace")
        prompts = [float(ms) for ms in re.findall(r"prompt eval time =\s*([\d.]+) ms", text)]
        decoding = re.findall(r"\|\s+eval time =\s*([\d.]+) ms /\s*(\d+) tokens", text)
        # Its clock starts with the first token, so that n tokens are n - 1 steps.
        tokens = [float(ms) / (int(count) - 1) for ms, count in decoding]
        totals = [float(ms) for ms in re.findall(r"total time =\s*([\d.]+) ms", text)]
        found = {"prompt": prompts, "token": tokens, "total": totals}
        for what, values in found.items():
            if len(values) < requests:
                raise Failed(f"{self.path} has {len(values)} times ({what}) of {requests} requests")
        return {what: statistics.mean(values[-requests:]) for what, values in found.items()}


def apart(values):
    """How far values lie apart, as a share of their median."""
    return (max(values) - min(values)) / statistics.median(values)


def compare(asked, concurrency, scratch, dataset):
    """The pairs; both tools' values, and whether the medians of their differences are within the limit."""
    log = ServerLog(asked.server_log)
    pairs = []
    for n in range(asked.pairs):
        pair = {}
        for tool in ("orch", "vllm") if n % 2 == 0 else ("vllm", "orch"):
            log.skip()
            ask = ask_orch if tool == "orch" else ask_vllm
            values, counted = ask(asked, concurrency, scratch, dataset)
            in_flight = values["request throughput, 1/s"] * values["mean E2E, ms"] / 1000
            values["in flight / concurrency"] = in_flight / concurrency
            times = log.means(asked.requests)
            for name, row, which in AGAINST_SERVER if times else []:
                values[name] = values[row] / times[which]
            pair[tool] = (values, counted)
            print(f"  concurrency {concurrency}, pair {n + 1} of {asked.pairs}: {tool} done", file=sys.stderr, flush=True)
        (orch, (output, prompt)), (vllm, (output_too, prompt_too)) = pair["orch"], pair["vllm"]
        if output != output_too:
            raise Failed(f"output tokens: orch counted {output}, vllm bench serve {output_too}")
        if prompt != prompt_too:
            print(f"  prompt tokens differ: orch's had {prompt}, vLLM's {prompt_too}", file=sys.stderr)
        pairs.append((orch, vllm))
    own = [name for name, _, _ in AGAINST_SERVER if name in pairs[0][0]]
    rows = [(name, judged and not own) for name, _, _, judged in METRICS]
    rows.append(("in flight / concurrency", bool(own)))
    rows += [(name, True) for name in own]
    return table(asked, concurrency, pairs, rows)


def table(asked, concurrency, pairs, rows):
    """Shows the pairs."""
    numbered = "".join(f"{'pair ' + str(n + 1):>8}" for n in range(asked.pairs))
    print(f"\nconcurrency {concurrency}, {asked.requests} requests of {asked.output_tokens} tokens; orch / vLLM - 1 in %")
    print(f"{'':26}{'orch':>10}{'vLLM':>10}   {numbered}{'median':>9}{'apart':>8}")
    good, told = True, {}
    for name, judged in rows:
        ours, theirs = [orch[name] for orch, _ in pairs], [vllm[name] for _, vllm in pairs]
        differences = [(a / b - 1) * 100 for a, b in zip(ours, theirs)]
        middle, noise = statistics.median(differences), max(apart(ours), apart(theirs)) * 100
        within = abs(middle) <= asked.limit
        good = good and (within or not judged)
        mark = ("" if within else f"  over {asked.limit:g} %") if judged else "  not judged"
        shown = "".join(f"{difference:>+8.2f}" for difference in differences)
        medians = f"{statistics.median(ours):>10.3f}{statistics.median(theirs):>10.3f}"
        print(f"{name:26}{medians}   {shown}{middle:>+9.2f}{noise:>8.1f}{mark}")
        told[name] = {"orch": ours, "vllm": theirs, "differences_percent": differences, "median_percent": middle}
        told[name]["apart_percent"] = noise
    return good, told


def main():
    arguments = argparse.ArgumentParser(description="Holds orch against `vllm bench serve` on a server that is already up.")
    arguments.add_argument("--url", required=True, help="base address of the server")
    arguments.add_argument("--model", required=True, help="the model's name as served")
    arguments.add_argument("--orch", required=True, help="path of orch")
    arguments.add_argument("--vllm", required=True, help="path of vllm")
    arguments.add_argument("--tokenizer", required=True, help="folder of a tokenizer, for vLLM's client")
    arguments.add_argument("--requests", type=int, default=32, help="requests a run [32]")
    arguments.add_argument("--output-tokens", type=int, default=64, help="tokens an answer [64]")
    arguments.add_argument("--concurrency", type=int, nargs="+", default=[1, 4], help="requests in flight [1 4]")
    arguments.add_argument("--pairs", type=int, default=5, help="pairs for each concurrency [5]")
    arguments.add_argument("--warmup", type=int, default=4, help="warm-up requests of each run [4]")
    arguments.add_argument("--seed", type=int, default=0, help="orch's seed [0]")
    arguments.add_argument("--limit", type=float, default=2.0, help="largest median difference in percent [2]")
    arguments.add_argument("--server-log", type=pathlib.Path, help="llama.cpp's log, being written")
    arguments.add_argument("--json", type=pathlib.Path, help="also write all values to this file")
    asked = arguments.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        scratch = pathlib.Path(folder)
        try:
            dataset = prompts(asked, scratch)
            compared = {concurrency: compare(asked, concurrency, scratch, dataset) for concurrency in asked.concurrency}
        except Failed as failed:
            print(failed, file=sys.stderr)
            return 2
    if asked.json:
        asked.json.write_text(json.dumps({n: told for n, (_, told) in compared.items()}, indent=1) + "\n")
    good = all(good for good, _ in compared.values())
    print(f"\n{'every judged median is within' if good else 'NOT every judged median is within'} {asked.limit:g} %")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
