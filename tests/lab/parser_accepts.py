"""Whether an installed SGLang or vLLM accepts rendered commands: its own parser reads them, and nothing is started.

Run by the engine's own Python, with files that `orch render PROFILE --format argv` wrote:

    orch render qwen-mtp3 --format argv > qwen-mtp3.json
    /opt/sglang/bin/python tests/lab/parser_accepts.py qwen-mtp3.json …

A line for each file; exit code 1 if one of them is refused. Commands of another engine are left out, with a line.
"""

import argparse
import contextlib
import io
import json
import sys


def sglang_words(argv):
    """The words after `-m sglang.launch_server`, or None."""
    if "sglang.launch_server" in argv:
        return argv[argv.index("sglang.launch_server") + 1:]
    return None


def sglang_parser():
    from sglang.srt.server_args import ServerArgs

    parser = argparse.ArgumentParser()
    ServerArgs.add_cli_args(parser)
    return parser


def vllm_words(argv):
    """The words after `vllm serve`, or None."""
    if len(argv) > 1 and argv[1] == "serve":
        return argv[2:]
    return None


def vllm_parser():
    try:
        from vllm.entrypoints.launchers.cli_args import make_arg_parser
    except ImportError:  # Versions before 0.32.
        from vllm.entrypoints.openai.cli_args import make_arg_parser
    try:
        from vllm.utils.argparse_utils import FlexibleArgumentParser
    except ImportError:
        from vllm.utils import FlexibleArgumentParser

    return make_arg_parser(FlexibleArgumentParser())


def refusal(parser, words):
    """What the parser says against the words; None when it takes them."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            parser.parse_args(words)
    except SystemExit:
        return said.getvalue().strip().splitlines()[-1]
    except Exception as error:  # Values that a type of the parser refuses.
        return f"{type(error).__name__}: {error}"
    return None


def main():
    engines = [("sglang", sglang_words, sglang_parser), ("vllm", vllm_words, vllm_parser)]
    parsers, refused = {}, 0
    for path in sys.argv[1:]:
        with open(path) as file:
            argv = json.load(file)
        found = [(name, words(argv), make) for name, words, make in engines if words(argv) is not None]
        if not found:
            print(f"left out  {path}: neither SGLang nor vLLM")
            continue
        name, words, make = found[0]
        if name not in parsers:
            try:
                parsers[name] = make()
            except ImportError as error:
                parsers[name] = None
                print(f"not here  {name}: {error}")
        if parsers[name] is None:
            print(f"left out  {path}: {name} is not installed in this Python")
            continue
        why = refusal(parsers[name], words)
        refused += why is not None
        print(f"accepted  {path}" if why is None else f"REFUSED   {path}: {why}")
    sys.exit(1 if refused else 0)


if __name__ == "__main__":
    main()
