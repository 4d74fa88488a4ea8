"""The process that renders chat templates: `python -m ingot.text.chat_sandbox`, with a socket as standard input.

A template comes with the model, so from anybody. It may compute text and nothing else: attributes are those of a few
types, and nothing is mutable. All else is as transformers has it, text for text. What it may take is bounded by the
system, not by us: the process has little memory, and a timer of its own processor time ends it, inside a call of
Python's C code too.

A message is its length in four bytes, lowest first, and its bytes. The first one received is JSON, {"source",
"seconds", "memory", "characters"}; each later one is the JSON object of a template's variables. The answer is one byte
that says what follows, and UTF-8: a text (`TEXT`), why a template refuses a conversation (`REFUSED`), which limit it
went beyond (`LIMIT`), what it does wrong (`FAULT`).
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import struct
import types
from collections.abc import Callable
from datetime import datetime
from typing import Any

import jinja2
import jinja2.exceptions
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.runtime
import jinja2.sandbox

TEXT, REFUSED, LIMIT, FAULT = b"t", b"r", b"l", b"f"
LENGTH = struct.Struct("<I")
RECEIVE = 1 << 20

# What templates compute with, and what Jinja gives them. Public attributes of these lead nowhere else.
_VALUES: tuple[type, ...] = (
    str, bytes, int, float, complex, type(None), list, tuple, dict, range, type({}.keys()), type({}.values()),
    type({}.items()),
)  # fmt: skip
_GIVEN = (
    jinja2.utils.Namespace, jinja2.utils.Cycler, jinja2.utils.Joiner, jinja2.runtime.LoopContext, jinja2.runtime.Macro,
    jinja2.runtime.BlockReference,
)  # fmt: skip
_KNOWN = (*_VALUES, *_GIVEN)
_MAKERS = {
    dict: ("fromkeys",), str: ("maketrans",), bytes: ("fromhex",), float: ("fromhex", "from_number"),
    complex: ("from_number",), int: ("from_bytes",),
}  # fmt: skip


class _Refusal(Exception):
    """A template says that a conversation is not as it should be."""


class _Limit(Exception):
    """A template asks for more than it may have."""


class _Generation(jinja2.ext.Extension):
    """`{% generation %}`: tells a training which parts the model has said, and changes nothing in a prompt."""

    tags = {"generation"}

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node:
        line = next(parser.stream).lineno
        return jinja2.nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


class _Format:
    """`format` of one text, as the sandbox has it."""

    def __init__(self, call: Callable[..., str]) -> None:
        self._call = call

    def __call__(self, *args: Any, **words: Any) -> str:
        return self._call(*args, **words)


class _Sandbox(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """What transformers renders chat templates with, but that attributes and calls are of known types only."""

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, "jinja2.ext.loopcontrols"])
        self.filters = self.filters | {"tojson": _tojson, "random": _refused("random")}
        self.globals |= {
            "raise_exception": _raise_exception, "strftime_now": _strftime_now, "lipsum": _refused("lipsum"),
        }  # fmt: skip

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Public ones that change nothing. Raises SecurityError for those of other types than the lists above."""
        if not super().is_safe_attribute(obj, attr, value):
            return False
        if not isinstance(obj, _KNOWN) and attr not in _made_by(obj):
            kind = obj.__name__ if isinstance(obj, type) else type(obj).__name__
            raise jinja2.exceptions.SecurityError(f"the attribute {attr!r} of {kind!r} is not for templates")
        return True

    def is_safe_callable(self, obj: Any) -> bool:
        """Methods of those types, and the functions given here."""
        if isinstance(obj, _Format | jinja2.utils.Joiner | jinja2.runtime.Macro | jinja2.runtime.BlockReference):
            return True
        if isinstance(obj, jinja2.runtime.LoopContext | jinja2.Undefined):  # a loop's next depth; an error of its own
            return True
        if not isinstance(obj, types.BuiltinMethodType | types.MethodType):
            return any(obj is one for one in self.globals.values())
        name, owner = obj.__name__, obj.__self__
        if name in ("format", "format_map"):  # only as `_Format`
            return False
        return name in _made_by(owner) or (isinstance(owner, _KNOWN) and super().is_safe_attribute(owner, name, obj))

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """The sandbox's own form of `str.format`, which looks up fields as templates do."""
        found = super().wrap_str_format(value)
        return None if found is None else _Format(found)


def _made_by(kind: object) -> tuple[str, ...]:
    """Names of functions of a type that make a value."""
    return _MAKERS.get(kind, ()) if isinstance(kind, type) else ()


def _tojson(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _strftime_now(format: str) -> str:
    return datetime.now().strftime(format)


def _refused(name: str) -> Callable[..., None]:
    def refuse(*_: Any, **__: Any) -> None:
        raise jinja2.TemplateRuntimeError(f"{name} is not taken: a conversation would have another prompt each time")

    return refuse


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
    """Serves one template until the other side is gone, which is no fault of anybody's."""
    first = _received()
    if first is None:
        return
    served = _Served(**json.loads(first))
    with contextlib.suppress(BrokenPipeError):
        _send(served.read)
        while served.template is not None and (names := _received()) is not None:
            _send(served.render(names))


if __name__ == "__main__":
    main()
