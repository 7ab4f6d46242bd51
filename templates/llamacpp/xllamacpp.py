"""llama-server's command line over the `xllamacpp` package, which holds the whole server in a Python extension.

Only for machines that the packaged llama-server does not run on. It takes the flags that orch renders and some more; any
other flag is refused as llama-server refuses it, so that nothing is quietly left out.
"""

import os
import signal
import sys
import time

# Threads that wait must sleep. By default they spin, and on a machine with other work decoding becomes 20 times slower.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import xllamacpp  # noqa: E402  (after the environment that it reads)


def fail(message):
    print(message, file=sys.stderr, flush=True)
    sys.exit(1)


def on_off(flag, word):
    if word not in ("on", "off", "1", "0"):
        fail(f'error while handling argument "{flag}": invalid value: {word}')
    return word in ("on", "1")


def member(kind, prefix, flag, word):
    name = prefix + word.upper().replace("-", "_")
    try:
        return getattr(kind, name)
    except AttributeError:
        fail(f'error while handling argument "{flag}": unknown value: {word}')


def threads(params, count):
    for cpu in (params.cpuparams, params.cpuparams_batch):
        cpu.n_threads = count


def spec_types(params, flag, words):
    kind = xllamacpp.common_speculative_type
    params.speculative.types = [member(kind, "COMMON_SPECULATIVE_TYPE_", flag, word) for word in words.split(",")]


def set_all(targets, name, value):
    for target in targets:
        setattr(target, name, value)


# Flag to (takes a value, what to do with it).
def table(params):
    draft = params.speculative.draft
    ngram_k = params.speculative.ngram_map_k
    types = xllamacpp.ggml_type

    def put(name, kind=str, target=params):
        return True, lambda flag, word: setattr(target, name, kind(word))

    def switch(name, value, target=params):
        return False, lambda flag, word: setattr(target, name, value)

    flags = {
        "--model": put("path", str, params.model),
        "--alias": (True, lambda flag, word: setattr(params, "model_alias", set(word.split(",")))),
        "--host": (True, lambda flag, word: setattr(params, "hostnames", [word])),
        "--port": put("port", int),
        "--ctx-size": put("n_ctx", int),
        "--parallel": put("n_parallel", int),
        "--batch-size": put("n_batch", int),
        "--ubatch-size": put("n_ubatch", int),
        "--n-gpu-layers": put("n_gpu_layers", int),
        "--threads": (True, lambda flag, word: threads(params, int(word))),
        "--poll": (True, lambda flag, word: set_all((params.cpuparams, params.cpuparams_batch), "poll", int(word))),
        "--cache-type-k": (True, lambda flag, word: setattr(params, "cache_type_k", member(types, "GGML_TYPE_", flag, word))),
        "--cache-type-v": (True, lambda flag, word: setattr(params, "cache_type_v", member(types, "GGML_TYPE_", flag, word))),
        "--fit": (True, lambda flag, word: setattr(params, "fit_params", on_off(flag, word))),
        "--metrics": switch("endpoint_metrics", True),
        "--no-slots": switch("endpoint_slots", False),
        "--no-repack": switch("no_extra_bufts", True),
        "--no-warmup": switch("warmup", False),
        "--no-cache-prompt": switch("cache_prompt", False),
        "--cache-ram": put("cache_ram_mib", int),
        "--seed": put("seed", int, params.sampling),
        "--verbosity": put("verbosity", int),
        "--chat-template": put("chat_template"),
        "--spec-type": (True, lambda flag, word: spec_types(params, flag, word)),
        "--spec-draft-model": put("path", str, draft.mparams),
        "--spec-draft-n-max": put("n_max", int, draft),
        "--spec-draft-n-min": put("n_min", int, draft),
        "--spec-ngram-map-k-size-n": put("size_n", int, ngram_k),
        "--spec-ngram-map-k-size-m": put("size_m", int, ngram_k),
        "--spec-ngram-map-k-min-hits": put("min_hits", int, ngram_k),
    }
    for short, long in (("-m", "--model"), ("-a", "--alias"), ("-c", "--ctx-size"), ("-np", "--parallel"), ("-t", "--threads"),
                        ("-b", "--batch-size"), ("-ub", "--ubatch-size"), ("-ngl", "--n-gpu-layers"), ("-fit", "--fit"),
                        ("-nr", "--no-repack"), ("-cram", "--cache-ram"), ("-s", "--seed"), ("-lv", "--verbosity"),
                        ("-md", "--spec-draft-model")):
        flags[short] = flags[long]
    return flags


def print_help(flags):
    """As llama-server writes it: the names of a flag, and whether it takes a value."""
    names = {}
    for flag, entry in flags.items():
        names.setdefault(id(entry), (entry[0], []))[1].append(flag)
    for takes_value, same in names.values():
        print(", ".join(sorted(same, key=len)) + (" N" if takes_value else ""))
    print("-h, --help\n--version")


def parse(words):
    params = xllamacpp.CommonParams()
    set_all((params.cpuparams, params.cpuparams_batch), "poll", 0)
    params.port = 8080
    flags = table(params)
    words = iter(words)
    for flag in words:
        if flag == "--version":
            build = xllamacpp.__version__.split(".")[-1]
            print(f"version: {build} (xllamacpp {xllamacpp.__version__})")
            sys.exit(0)
        if flag in ("-h", "--help"):
            print_help(flags)
            sys.exit(0)
        if flag not in flags:
            fail(f"error: invalid argument: {flag}")
        takes_value, act = flags[flag]
        word = None
        if takes_value:
            word = next(words, None)
            if word is None:
                fail(f'error while handling argument "{flag}": expected value for argument')
        try:
            act(flag, word)
        except (ValueError, TypeError) as error:
            fail(f'error while handling argument "{flag}": {error}')
    if not params.model.path:
        fail("error: --model is required")
    # The extension says nothing of files that are not there.
    for path in (params.model.path, params.speculative.draft.mparams.path):
        if path and not os.path.isfile(path):
            fail(f"gguf_init_from_file: failed to open GGUF file '{path}' (No such file or directory)")
    return params


def leave(*_):
    print("cleaning up before exit...", file=sys.stderr, flush=True)
    # Whatever the extension's own threads are still at, there is nothing left to do for them.
    os._exit(0)


def main():
    params = parse(sys.argv[1:])
    # Before the model is loaded a signal just ends the process; after that it ends in order, with code 0.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    try:
        server = xllamacpp.Server(params)  # noqa: F841  (it serves for as long as it lives)
    except Exception as error:  # the extension raises its own kinds
        fail(f"exiting: {error}")
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, leave)
    # Not `signal.pause()`: a signal that comes just before it would wait for the next one.
    while True:
        time.sleep(0.5)


main()
