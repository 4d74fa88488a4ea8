"""The process that renders chat templates: `python -m ingot.text.chat_sandbox`, with a socket as standard input.

A template comes with the model, so from anybody. It may compute text and nothing else: attributes and filters are those
of a short list, and nothing is mutable. What it may take is bounded by the system, not by us: the process has little
memory, and a timer of its own processor time ends it, inside a call of Python's C code too.

A message is its length in four bytes, lowest first, and its bytes. The first one received is JSON, {"source",
"seconds", "memory", "characters"}; each later one is the JSON object of a template's variables. The answer is one byte
that says what follows, and UTF-8: a text (`TEXT`), why a template refuses a conversation (`REFUSED`), which limit it
went beyond (`LIMIT`), what it does wrong (`FAULT`).
"""

from __future__ import annotations

import json
import os
import resource
import signal
import struct
import time
from collections.abc import Callable
from typing import Any

import jinja2
import jinja2.runtime
import jinja2.sandbox

TEXT, REFUSED, LIMIT, FAULT = b"t", b"r", b"l", b"f"
LENGTH = struct.Struct("<I")
RECEIVE = 1 << 20

_METHODS = {
    str: frozenset((
        "capitalize", "count", "endswith", "find", "index", "isalnum", "isalpha", "isdigit", "islower", "isspace",
        "isupper", "join", "lower", "lstrip", "partition", "removeprefix", "removesuffix", "replace", "rfind", "rsplit",
        "rstrip", "split", "splitlines", "startswith", "strip", "title", "upper",
    )),
    dict: frozenset(("items", "keys", "values", "get")),
    list: frozenset(("index", "count")),
    tuple: frozenset(("index", "count")),
}  # fmt: skip
_FILTERS = (
    "abs", "capitalize", "count", "d", "default", "dictsort", "e", "escape", "first", "float", "int", "items", "join",
    "last", "length", "list", "lower", "map", "max", "min", "reject", "rejectattr", "replace", "reverse", "round",
    "safe", "select", "selectattr", "sort", "string", "sum", "title", "trim", "unique", "upper",
)  # fmt: skip


class _Refusal(Exception):
    """A template says that a conversation is not as it should be."""


class _Limit(Exception):
    """A template asks for more than it may have."""


class _Sandbox(jinja2.sandbox.ImmutableSandboxedEnvironment):
    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])
        self.filters = {name: self.filters[name] for name in _FILTERS} | {"tojson": _tojson}
        self.globals = {
            "range": range, "namespace": self.globals["namespace"], "raise_exception": _raise_exception,
            "strftime_now": time.strftime, "dict": dict,
        }  # fmt: skip

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Only fields of namespaces and loops, and the methods of the list above."""
        for kind, names in _METHODS.items():
            if isinstance(obj, kind):
                return attr in names
        return isinstance(obj, jinja2.utils.Namespace | jinja2.runtime.LoopContext) and not attr.startswith("_")

    def is_safe_callable(self, obj: Any) -> bool:
        """Methods of the list, macros, and the functions given here."""
        if getattr(obj, "__self__", None) is not None and isinstance(obj.__self__, str | dict | list | tuple):
            return any(isinstance(obj.__self__, kind) and obj.__name__ in names for kind, names in _METHODS.items())
        if isinstance(getattr(obj, "__self__", None), jinja2.runtime.LoopContext):
            return obj.__name__ in ("cycle", "changed")
        return isinstance(obj, jinja2.runtime.Macro | jinja2.runtime.LoopContext) or obj in self.globals.values()


def _tojson(value: Any, indent: int | None = None, ensure_ascii: bool = False, **_: Any) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent)


def _raise_exception(message: object) -> None:
    raise _Refusal(str(message)[:500])


def _rendered(template: jinja2.Template, names: dict[str, Any], characters: int) -> str:
    size, pieces = 0, []
    for piece in template.generate(names):
        size += len(piece)
        if size > characters:
            raise _Limit(f"makes a text of more than {characters:,} characters")
        pieces.append(piece)
    return "".join(pieces)


class _Served:
    """One template and its limits."""

    def __init__(self, source: str, seconds: float, memory: int, characters: int) -> None:
        self.seconds, self.memory, self.characters = seconds, memory, characters
        signal.signal(signal.SIGPROF, signal.SIG_DFL)  # ends the process, whatever it is doing
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGPROF])
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        _, most = resource.getrlimit(resource.RLIMIT_AS)
        memory = memory if most == resource.RLIM_INFINITY else min(memory, most)
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
        environment = _Sandbox()
        self.template: jinja2.Template | None = None
        self.read = self.answer(lambda: self._compile(environment, source))

    def _compile(self, environment: _Sandbox, source: str) -> str:
        self.template = environment.from_string(source)
        return ""

    def render(self, names: bytes) -> bytes:
        """The answer to one message."""
        template = self.template
        assert template is not None
        return self.answer(lambda: _rendered(template, json.loads(names), self.characters))

    def answer(self, work: Callable[[], str]) -> bytes:
        """What the work makes, as an answer."""
        signal.setitimer(signal.ITIMER_PROF, self.seconds)
        try:
            return TEXT + work().encode("utf-8", "surrogatepass")
        except _Refusal as e:
            return REFUSED + _told(e)
        except _Limit as e:
            return LIMIT + _told(e)
        except MemoryError:
            return LIMIT + f"takes more than {self.memory >> 20} MiB".encode()
        except Exception as e:  # whatever a template does wrong is its fault, or that of the values given
            return FAULT + f"{type(e).__name__}: ".encode() + _told(e)
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0.0)


def _told(error: Exception) -> bytes:
    return str(error)[:300].encode("utf-8", "replace")


def _received() -> bytes | None:
    """The next message; None when the other side is gone."""
    data = bytearray()
    size = LENGTH.size
    while len(data) < size:
        part = os.read(0, min(RECEIVE, size - len(data)))
        if not part:
            return None
        data += part
        if size == LENGTH.size == len(data):
            size += LENGTH.unpack(data)[0]
    return bytes(data[LENGTH.size :])


def _send(answer: bytes) -> None:
    left = memoryview(LENGTH.pack(len(answer)) + answer)
    while left:
        left = left[os.write(0, left) :]


def main() -> None:
    """Serves one template until the other side is gone."""
    first = _received()
    if first is None:
        return
    served = _Served(**json.loads(first))
    _send(served.read)
    while served.template is not None and (names := _received()) is not None:
        _send(served.render(names))


if __name__ == "__main__":
    main()
