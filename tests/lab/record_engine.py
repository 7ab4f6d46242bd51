#!/usr/bin/env python3
"""Records what a running engine says: its metrics around a few requests, and their streams with the times of the reads.

    python3 tests/lab/record_engine.py --url http://127.0.0.1:8000 --model NAME --out FOLDER [--max-tokens 96]

Starts nothing. Two requests go first, so that the readings are of a server that has worked. Between the two readings
of /metrics lie eight requests, two at a time, greedy and of an exact length; the first asks for the usage of every
chunk, the others for the usage at the end. Written to the folder:

    before.prom, after.prom     the two readings, as they came
    stream-continuous-usage.jsonl, stream-usage-at-end.jsonl
                                the first two answers, heads and framing included: one object a read,
                                {"at_ms": since the request was sent, "text": what was read}
    requests.json               each request's body and the usage that its answer ended with
"""

import argparse
import concurrent.futures
import http.client
import json
import pathlib
import socket
import time
import urllib.parse

PROMPTS = [
    "Repeat this line four times: the river runs past the mill and under the bridge.",
    "Write a shopping list of ten things, one on each line, numbered.",
    "Count from one to thirty in words, separated by commas.",
    "Explain in three sentences why the sky is blue at noon and red in the evening.",
    "Write a function in Python that adds two numbers, and then one that subtracts them.",
    "List the days of the week twice, the second time in reverse order.",
    "Copy this table and add a row: | name | age |\n| Ann | 31 |\n| Bob | 28 |",
    "Describe a walk through a small town in the rain.",
]


def body(model, prompt, max_tokens, continuous):
    options = {"include_usage": True}
    if continuous:
        options["continuous_usage_stats"] = True
    return {
        "model": model,
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": max_tokens,
        "ignore_eos": True,
        "temperature": 0,
        "stream": True,
        "stream_options": options,
    }


def post(url, request):
    """The reads of a whole answer, its head included: [(milliseconds since the request was sent, bytes)]."""
    payload = json.dumps(request).encode()
    with socket.create_connection((url.hostname, url.port), timeout=300) as connection:
        head = (
            f"POST {url.path.rstrip('/')}/v1/chat/completions HTTP/1.1\r\nhost: {url.netloc}\r\nconnection: close\r\n"
            f"content-type: application/json\r\ncontent-length: {len(payload)}\r\n\r\n"
        )
        sent = time.perf_counter()
        connection.sendall(head.encode() + payload)
        reads = []
        while read := connection.recv(1 << 16):
            reads.append(((time.perf_counter() - sent) * 1000, read))
    whole = b"".join(read for _, read in reads)
    if b" 200 " not in whole.split(b"\r\n")[0]:
        raise SystemExit(f"the server said {whole.decode(errors='replace')}")
    return reads


def usage(reads):
    found = None
    for line in b"".join(read for _, read in reads).decode().splitlines():
        if line.startswith("data: {"):
            found = json.loads(line[6:]).get("usage") or found
    return found


def get(url, path):
    connection = http.client.HTTPConnection(url.hostname, url.port, timeout=60)
    connection.request("GET", url.path.rstrip("/") + path)
    answer = connection.getresponse()
    if answer.status != 200:
        raise SystemExit(f"GET {path}: {answer.status} {answer.reason}")
    return answer.read()


def main():
    arguments = argparse.ArgumentParser(description="Records what a running engine says.")
    arguments.add_argument("--url", required=True)
    arguments.add_argument("--model", required=True)
    arguments.add_argument("--out", required=True, type=pathlib.Path)
    arguments.add_argument("--max-tokens", type=int, default=96)
    asked = arguments.parse_args()
    url = urllib.parse.urlsplit(asked.url)
    asked.out.mkdir(parents=True, exist_ok=True)

    def ask(request):
        return post(url, request)

    for prompt in PROMPTS[:2]:
        ask(body(asked.model, "Before all: " + prompt, 16, False))
    requests = [body(asked.model, prompt, asked.max_tokens, n == 0) for n, prompt in enumerate(PROMPTS)]
    time.sleep(1)
    (asked.out / "before.prom").write_bytes(get(url, "/metrics"))
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(ask, requests))
    # The engine counts in its own time.
    time.sleep(1)
    (asked.out / "after.prom").write_bytes(get(url, "/metrics"))
    for name, reads in zip(["stream-continuous-usage", "stream-usage-at-end"], answers):
        lines = [json.dumps({"at_ms": round(at, 3), "text": read.decode()}, ensure_ascii=False) for at, read in reads]
        (asked.out / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    told = [{"body": request, "usage": usage(reads)} for request, reads in zip(requests, answers)]
    (asked.out / "requests.json").write_text(json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    main()
