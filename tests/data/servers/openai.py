#!/usr/bin/env python3
"""A server with the interface of OpenAI's, for tests: plain Python 3, no packages. It generates words, not sense.

    openai.py --port 30000 [--host 127.0.0.1] [--model tiny] [OPTION ...]

What it serves: GET /health (503 while loading, then 200), GET /v1/models, GET /ledger, POST /v1/chat/completions and
POST /v1/completions, both whole or streamed, with `usage` when asked for. `max_tokens` tokens are generated, or
`--stop-after` of them when that is less and `ignore_eos` is not set.

Every option can also be given by the environment, as SERVER_<NAME> (SERVER_START_DELAY=2), the argument wins.

  --model NAME          the name that it serves                                              [tiny]
  --answer-model NAME   the name that it puts into answers                                   [the same]
  --list-model NAME     the name that /v1/models lists                                       [the same]
  --bind-after          binds the port only when loaded, as SGLang does; else 503 while loading, as llama.cpp does
  --start-delay S       loads for so long, with a progress bar in its log                    [0]
  --never-ready         loads for ever
  --exit-code N         exits with N when loading is done, after a line that says why
  --exit-line TEXT      that line
  --die-after N         ends itself by SIGKILL when N requests have been answered
  --die-mid-stream N    ends itself by SIGKILL in the middle of answer N (from 1)
  --ignore-term         takes no notice of SIGTERM and SIGINT
  --workers N           starts N workers that live as long as they are let
  --worker-kind KIND    child | orphan (forked twice: parent gone) | session (orphan in a session of its own) |
                        bare (session, and its environment cleared by exec)                  [child]
  --workers-outlive     workers take no notice of the server's end (else they follow it, but for `bare`)
  --first-token S       from the request to the first token                                  [0.01]
  --token-pace S        between two tokens                                                   [0.01]
  --stop-after N        tokens after which the model would stop                              [1000000]
  --text KIND           words | reasoning (reasoning_content) | reasoning-key (reasoning) | empty | invalid (no UTF-8) |
                        replacement (U+FFFD only) | json (broken JSON) | loop (the same)     [words]
  --sick-after N        from answer N (from 1) on its text is `replacement`
  --pages FILE          a JSON object of paths and what GET answers there
  --say TEXT            a line for its log with each answer
  --no-usage            never says `usage`
  --status N            answers requests with this HTTP status and an error body
  --pid-dir DIR         writes a file named by pid for itself and each worker
"""

import argparse
import json
import os
import signal
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

WORDS = "one two three four five six seven eight nine ten".split()


def options():
    parser = argparse.ArgumentParser(usage=__doc__, add_help=True)
    known = {}

    def add(name, default=None, kind=str, flag=False):
        env = os.environ.get("SERVER_" + name.upper().replace("-", "_"))
        known[name] = True
        if flag:
            parser.add_argument("--" + name, action="store_true", default=env not in (None, "", "0"))
        else:
            parser.add_argument("--" + name, type=kind, default=kind(env) if env is not None else default)

    add("port", kind=int)
    add("host", "127.0.0.1")
    add("model", "tiny")
    add("answer-model")
    add("list-model")
    add("bind-after", flag=True)
    add("start-delay", 0.0, float)
    add("never-ready", flag=True)
    add("exit-code", kind=int)
    add("exit-line", "RuntimeError: this server was told to fail")
    add("die-after", kind=int)
    add("die-mid-stream", kind=int)
    add("ignore-term", flag=True)
    add("workers", 0, int)
    add("worker-kind", "child")
    add("workers-outlive", flag=True)
    add("first-token", 0.01, float)
    add("token-pace", 0.01, float)
    add("stop-after", 1000000, int)
    add("text", "words")
    add("sick-after", kind=int)
    add("pages")
    add("say")
    add("no-usage", flag=True)
    add("status", kind=int)
    add("pid-dir")
    parser.add_argument("--be-worker", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.port is None and not args.be_worker:
        parser.error("--port is needed")
    return args


def log(text):
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def leave_pid(args, what):
    if args.pid_dir:
        path = os.path.join(args.pid_dir, str(os.getpid()))
        with open(path + ".new", "w") as file:
            file.write(what)
        os.rename(path + ".new", path)


# Workers -----------------------------------------------------------------------------------------------------------


def work(args, server):
    """Lives until the server is gone, or for ever."""
    if args.workers_outlive:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    leave_pid(args, "worker")
    while args.workers_outlive or args.be_worker or os.path.exists("/proc/%d" % server):
        time.sleep(0.05)
    os._exit(0)


def start_worker(args):
    server = os.getpid()
    if os.fork():
        return
    if args.worker_kind != "child":
        if args.worker_kind in ("session", "bare"):
            os.setsid()
        if os.fork():
            os._exit(0)
        if args.worker_kind == "bare":
            words = [sys.executable, os.path.abspath(__file__), "--be-worker"]
            if args.pid_dir:
                words += ["--pid-dir", args.pid_dir]
            if args.workers_outlive:
                words += ["--workers-outlive"]
            os.execve(words[0], words, {"PATH": "/usr/bin:/bin"})
    work(args, server)


# Requests ----------------------------------------------------------------------------------------------------------


class State:
    def __init__(self, args):
        self.args = args
        self.ready = False
        self.lock = threading.Lock()
        self.requests = 0
        self.answered = 0
        self.ledger = []


def text_of(kind, index):
    # Never the same ten words again: a text that repeats itself is a fault.
    word = WORDS[index % len(WORDS)] + (str(index // len(WORDS)) if index >= len(WORDS) else "") + " "
    return {"empty": "", "replacement": "\ufffd ", "loop": "round and "}.get(kind, word)


class Handler(BaseHTTPRequestHandler):
    # Each token in a packet of its own, at its time.
    disable_nagle_algorithm = True
    protocol_version = "HTTP/1.1"
    state = None

    def log_message(self, form, *values):
        log("INFO: " + form % values)

    def answer(self, status, body):
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def loading(self):
        if self.state.ready:
            return False
        self.answer(503, {"error": {"message": "Loading model", "type": "unavailable_error", "code": 503}})
        return True

    def do_GET(self):
        args = self.state.args
        if self.loading():
            return
        if self.path == "/health":
            self.answer(200, {"status": "ok"})
        elif self.path == "/v1/models":
            name = args.list_model or args.model
            self.answer(200, {"object": "list", "data": [{"id": name, "object": "model", "owned_by": "test"}]})
        elif self.path == "/ledger":
            self.answer(200, self.state.ledger)
        elif args.pages and self.path in (pages := json.load(open(args.pages))):
            self.answer(200, pages[self.path])
        else:
            self.answer(404, {"error": {"message": "Not Found", "code": 404}})

    def do_POST(self):
        state, args = self.state, self.state.args
        arrived = time.monotonic_ns()
        body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        if self.loading():
            return
        if self.path not in ("/v1/chat/completions", "/v1/completions"):
            return self.answer(404, {"error": {"message": "Not Found", "code": 404}})
        if args.status:
            return self.answer(args.status, {"error": {"message": "refused as told", "code": args.status}})
        try:
            asked = json.loads(body)
        except ValueError:
            return self.answer(400, {"error": {"message": "the body is no JSON", "code": 400}})
        with state.lock:
            state.requests += 1
            number = state.requests
        tokens = int(asked.get("max_tokens") or asked.get("max_completion_tokens") or 16)
        finish = "length"
        if not asked.get("ignore_eos") and args.stop_after < tokens:
            tokens, finish = args.stop_after, "stop"
        if args.say:
            log(args.say)
        made = Answer(self, asked, number, tokens, finish)
        chunks = made.stream() if asked.get("stream") else made.whole()
        with state.lock:
            state.answered += 1
            state.ledger.append({"id": number, "arrived_ns": arrived, "chunks": chunks,
                                 "end_ns": time.monotonic_ns(), "status": 200, "body": asked})
            last = args.die_after is not None and state.answered >= args.die_after
        if last:
            self.wfile.flush()
            log("ending as told after %d requests" % state.answered)
            os.kill(os.getpid(), signal.SIGKILL)


class Answer:
    def __init__(self, handler, asked, number, tokens, finish):
        self.handler, self.asked, self.number = handler, asked, number
        self.tokens, self.finish = tokens, finish
        self.args = handler.state.args
        sick = self.args.sick_after is not None and number >= self.args.sick_after
        self.kind = "replacement" if sick else self.args.text
        self.chat = handler.path.endswith("chat/completions")
        prompt = asked.get("prompt") or " ".join(str(m.get("content")) for m in asked.get("messages", []))
        self.prompt_tokens = max(1, len(str(prompt).split()))

    def frame(self, choices, usage=None):
        kind = ("chat.completion" if self.chat else "text_completion") + (".chunk" if self.asked.get("stream") else "")
        frame = {"id": "answer-%d" % self.number, "object": kind, "created": int(time.time()),
                 "model": self.args.answer_model or self.args.model, "choices": choices}
        if usage is not None:
            frame["usage"] = usage
        return frame

    def usage(self):
        return {"prompt_tokens": self.prompt_tokens, "completion_tokens": self.tokens,
                "total_tokens": self.prompt_tokens + self.tokens}

    def delta(self, text):
        key = {"reasoning": "reasoning_content", "reasoning-key": "reasoning"}.get(self.args.text, "content")
        return {key: text}

    def whole(self):
        time.sleep(self.args.first_token + self.args.token_pace * max(0, self.tokens - 1))
        text = "".join(text_of(self.kind, index) for index in range(self.tokens))
        choice = {"index": 0, "finish_reason": self.finish}
        if self.chat:
            choice["message"] = {"role": "assistant", "content": None}
            choice["message"].update(self.delta(text))
        else:
            choice["text"] = text
        self.handler.answer(200, self.frame([choice], None if self.args.no_usage else self.usage()))
        return [[time.monotonic_ns(), self.tokens]]

    def stream(self):
        out = self.handler
        out.send_response(200)
        out.send_header("Content-Type", "text/event-stream")
        out.send_header("Transfer-Encoding", "chunked")
        out.end_headers()
        chunks = []
        if self.chat:
            self.send(self.frame([{"index": 0, "delta": {"role": "assistant", "content": None}, "finish_reason": None}]))
        for index in range(self.tokens):
            time.sleep(self.args.first_token if index == 0 else self.args.token_pace)
            text = text_of(self.kind, index)
            choice = {"index": 0, "finish_reason": None}
            choice.update({"delta": self.delta(text)} if self.chat else {"text": text})
            chunks.append([time.monotonic_ns(), 1])
            if self.args.text == "invalid":
                self.raw(b'data: {"choices":[{"index":0,"delta":{"content":"\xff\xfe"},"text":"\xff\xfe"}]}\n\n')
            elif self.args.text == "json":
                self.raw(b'data: {"choices":[{"index":0,\n\n')
            else:
                self.send(self.frame([choice]))
            if self.args.die_mid_stream == self.number and index == self.tokens // 2:
                log("ending as told in the middle of answer %d" % self.number)
                os.kill(os.getpid(), signal.SIGKILL)
        last = {"index": 0, "finish_reason": self.finish}
        last.update({"delta": {}} if self.chat else {"text": ""})
        self.send(self.frame([last]))
        if (self.asked.get("stream_options") or {}).get("include_usage") and not self.args.no_usage:
            self.send(self.frame([], self.usage()))
        self.raw(b"data: [DONE]\n\n")
        out.wfile.write(b"0\r\n\r\n")
        return chunks

    def send(self, frame):
        self.raw(b"data: " + json.dumps(frame).encode() + b"\n\n")

    def raw(self, data):
        self.handler.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.handler.wfile.flush()


# The server --------------------------------------------------------------------------------------------------------


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 512
    allow_reuse_address = True


def load(state):
    args = state.args
    log("loading model '%s'" % args.model)
    parts, began = 10, time.monotonic()
    for part in range(parts):
        sys.stderr.write("\rLoading weights: %3d%% | %d/%d" % (part * 100 // parts, part, parts))
        sys.stderr.flush()
        wait = began + args.start_delay * (part + 1) / parts - time.monotonic()
        if wait > 0:
            time.sleep(wait)
    while args.never_ready:
        time.sleep(0.5)
    sys.stderr.write("\rLoading weights: 100%% | %d/%d\n" % (parts, parts))
    if args.exit_code is not None:
        log("INFO: the next line says why")
        log(args.exit_line)
        os._exit(args.exit_code)
    state.ready = True
    log("model loaded")


def main():
    args = options()
    if args.be_worker:
        work(args, 0)
    state = State(args)
    Handler.state = state
    leave_pid(args, "server")
    for _ in range(args.workers):
        start_worker(args)
    if args.ignore_term:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: log("asked to stop, and not doing so"))
    else:
        signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    if args.bind_after:
        load(state)
    try:
        server = Server((args.host, args.port), Handler)
    except OSError as error:
        log("couldn't bind HTTP server socket, hostname: %s, port: %d (%s)" % (args.host, args.port, error))
        sys.exit(1)
    log("listening on http://%s:%d" % (args.host, args.port))
    if not args.bind_after:
        threading.Thread(target=load, args=(state,), daemon=True).start()
    server.serve_forever(poll_interval=0.1)


main()
