"""Brings a model of the hub onto this machine, by the hub client of the engine's own environment.

Words: the repository, and its revision (empty: the default branch). Standard output: one JSON object a line, which
orch reads: `resolved`, `progress`, `done` or `failed`.
"""

import fnmatch
import json
import os
import sys
import threading

# What engines do not load where there are safetensors, and what they never load.
NEVER = ["*.onnx", "*.h5", "*.msgpack", "*.tflite", "*.ot", "original/*", "metal/*", "onnx/*", "coreml/*"]
INSTEAD = ["*.bin", "*.pt", "*.pth", "*.ckpt", "*.gguf"]


def say(event, **fields):
    print(json.dumps({"event": event, **fields}), flush=True)


def fail(kind, error):
    say("failed", kind=kind, why=" ".join(str(error).split())[:600])
    sys.exit(1)


def wanted(names):
    never = NEVER + (INSTEAD if any(name.endswith(".safetensors") for name in names) else [])
    return [name for name in names if not any(fnmatch.fnmatch(name, pattern) for pattern in never)]


def size_of(folder):
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(place, name)).st_size
            except OSError:
                pass  # It was renamed, complete by now.
    return total


def from_cache(hub, repository, revision):
    """What an earlier fetch has left, when the hub cannot be asked. Its sizes are not known then."""
    path = hub.snapshot_download(repository, revision=revision, local_files_only=True)
    names = [os.path.join(place, name) for place, _, names in os.walk(path) for name in names]
    say("done", path=path, commit=os.path.basename(path), files=len(names), bytes=sum(map(os.path.getsize, names)),
        fetched=False, checked=False)


def main():
    repository, revision = sys.argv[1], sys.argv[2] or None
    try:
        import huggingface_hub as hub
    except ImportError as error:
        fail("no_client", error)
    try:
        info = hub.HfApi().model_info(repository, revision=revision, files_metadata=True)
    except Exception as error:
        name = type(error).__name__
        if name in ("RepositoryNotFoundError", "RevisionNotFoundError"):
            fail("not_found", error)
        if name == "GatedRepoError":
            fail("denied", error)
        try:
            return from_cache(hub, repository, revision)
        except Exception:
            fail("unreachable", error)
    sizes = {file.rfilename: file.size for file in info.siblings}
    names = wanted(list(sizes))
    total = sum(sizes[name] or 0 for name in names)
    say("resolved", commit=info.sha, files=len(names), bytes=total)
    cache = getattr(hub.constants, "HF_HUB_CACHE", None) or os.path.expanduser("~/.cache/huggingface/hub")
    blobs = os.path.join(cache, "models--" + repository.replace("/", "--"), "blobs")
    before, ended = size_of(blobs), threading.Event()

    def watch():
        while not ended.wait(1):
            say("progress", bytes=min(size_of(blobs), total), total=total)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    wrong, folder = [], None
    try:
        for name in names:
            # By the revision that was asked for, so that the cache knows which commit it is; it must be the same one.
            path = hub.hf_hub_download(repository, name, revision=revision)
            here = os.path.dirname(path)
            for _ in range(name.count("/")):
                here = os.path.dirname(here)
            if folder not in (None, here):
                fail("moved", f"{repository} changed while it was fetched: fetch again, or pin a commit")
            folder = here
            found = os.path.getsize(path)
            if sizes[name] is not None and found != sizes[name]:
                wrong.append(f"{name} has {found} bytes, and {sizes[name]} are right")
    except Exception as error:
        fail("denied" if type(error).__name__ == "GatedRepoError" else "unreachable", error)
    finally:
        ended.set()
        watcher.join()
    if wrong:
        fail("size", "; ".join(wrong))
    if os.path.basename(folder) != info.sha:
        fail("moved", f"{repository} changed while it was fetched: fetch again, or pin a commit")
    say("done", path=folder, commit=info.sha, files=len(names), bytes=total, fetched=size_of(blobs) > before, checked=True)


main()
