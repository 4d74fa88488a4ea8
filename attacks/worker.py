"""Meets attacks in a process of its own, with little memory and a clock: `python -m attacks.worker READER`.

Reads paths from standard input and prints one JSON line for each, {"code": …, "message": …, "seconds": …, "grown": …}.
The code is null when the reader accepted the file, and "crash" when an exception reached us that is no error of ours.
`seconds` are those of the processor, `grown` is by how many bytes the file raised the peak of this process's memory.
The parent sees a death by a signal as a missing line.
"""

from __future__ import annotations

import functools
import json
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from attacks.directories import Directory
from ingot import _native, models
from ingot.builder.build import build
from ingot.engine import file, session
from ingot.errors import IngotError
from ingot.frontends.lora.adapter import read_adapter
from ingot.frontends.torch_export import build_network, open_archive
from ingot.ir import Network, interpret, text
from ingot.llm.llm import LLM

MEMORY = 4 << 30  # of address space; the interpreter with NumPy takes about 0.5 GiB of it
SECONDS = 60  # for one file; the slowest takes about one


def _run(path: Path, index: int) -> None:
    """With five of everything: ones, and the index."""
    made = session.load(path).session()
    shapes = {port.name: [d if isinstance(d, int) else 5 for d in port.dims] for port in made.inputs}
    made.run({name: np.full(s, index, np.int32) if name == "ids" else np.ones(s, np.float32)
              for name, s in shapes.items()})  # fmt: skip


def _networks(path: Path) -> list[Network]:
    return [text.from_json(one) for one in file.read(path).header["networks"].values()]


def _interpret(path: Path) -> None:
    for network in _networks(path):
        interpret(network, {"x": np.array(True)})


def _exported(path: Path) -> None:
    program, source = open_archive(path)
    imported = build_network(program, source, path.name)
    for name in imported.weights:
        imported.weights[name]


@functools.cache
def _base() -> Network:
    """The network of a good directory."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "base"
        Directory().write(path)
        model = models.load(path)
        return model.network()[0]


def _adapter(path: Path) -> None:
    for tensor in read_adapter(path, _base()).values():
        tensor.sum()


def _named(path: Path) -> Path:
    """The path under a name that says what it is."""
    return path.rename(path.with_suffix(".onnx"))


def _chat(path: Path) -> None:
    with LLM(path) as llm:
        llm.chat_prompt([{"role": "user", "content": "abc"}])


READERS: dict[str, Callable[[Path], Any]] = {
    "python": file.read,
    "verify": lambda path: file.read(path, verify=True),
    "native": lambda path: _native.Session(_native.Engine.open(str(path))),
    "load": lambda path: session.load(path),
    "session": lambda path: session.load(path).session(),
    "run": lambda path: _run(path, 0),
    "run_far": lambda path: _run(path, 4),
    "run_negative": lambda path: _run(path, -2),
    "network": _networks,
    "interpret": _interpret,
    "llm": LLM,
    "chat": _chat,
    "directory": models.load,
    "exported": _exported,
    "adapter": _adapter,
    "onnx": lambda path: build(_named(path), report=False),
}


def meet(reader: str, path: Path) -> dict[str, str | None]:
    try:
        READERS[reader](path)
    except (IngotError, _native.Error) as error:
        return {"code": error.code, "message": str(error)}
    except MemoryError as error:
        return {"code": "memory", "message": str(error)}
    except BaseException:
        return {"code": "crash", "message": traceback.format_exc()}
    return {"code": None, "message": "accepted"}


def _peak() -> int:
    """The most memory that this process has had, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def main() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for line in sys.stdin:
        signal.alarm(SECONDS)  # its default action ends the process, also in the middle of native code
        before, begin = _peak(), time.process_time()
        answer: dict[str, Any] = meet(sys.argv[1], Path(json.loads(line)))
        used = {"seconds": time.process_time() - begin, "grown": _peak() - before}
        print(json.dumps(answer | used), flush=True)
        signal.alarm(0)


if __name__ == "__main__":
    main()
