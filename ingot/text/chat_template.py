"""Chat templates: a model's own way of writing a conversation, rendered in a sandbox.

A template comes with the model, so from anybody. It may compute text and nothing else. Attributes and filters are those
of a short list, and nothing is mutable. Every text and every list is bounded before it is made, and executed lines are
counted. So rendering ends in bounded time and memory whatever is written there.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import FrameType
from typing import Any

import jinja2
import jinja2.compiler
import jinja2.nodes
import jinja2.sandbox

from ingot.errors import CheckpointError, RequestError

MAX_TEMPLATE = 256 << 10  # characters
MAX_TEXT = 4 << 20  # characters of any one text while rendering, and of the result
MAX_LINES = 200_000  # executed lines of the template
MAX_SECONDS = 2.0
MAX_RANGE = 10_000

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
    "abs", "capitalize", "count", "d", "default", "dictsort", "e", "escape", "first", "float", "int", "items", "last",
    "length", "list", "lower", "map", "max", "min", "reject", "rejectattr", "reverse", "round", "safe", "select",
    "selectattr", "sort", "string", "sum", "title", "trim", "unique", "upper",
)  # fmt: skip
_TEXT_MARK = "<chat template>"


class _Limit(Exception):
    """A template asks for more than it may have."""


class _Generator(jinja2.compiler.CodeGenerator):
    """Concatenation (~) goes through the environment, which bounds it."""

    def visit_Concat(self, node: jinja2.nodes.Concat, frame: Any) -> None:  # noqa: N802 (Jinja's name)
        self.write("environment.concatenated((")
        for part in node.nodes:
            self.visit(part, frame)
            self.write(", ")
        self.write("))")


class _Sandbox(jinja2.sandbox.ImmutableSandboxedEnvironment):
    code_generator_class = _Generator
    intercepted_binops = frozenset(("+", "*", "**", "%", "//", "-", "/"))

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])
        self.filters = {name: self.filters[name] for name in _FILTERS}
        self.filters |= {"tojson": _tojson, "join": _join, "replace": _replace}
        self.globals = {
            "range": _range, "namespace": self.globals["namespace"], "raise_exception": _raise_exception,
            "strftime_now": _strftime_now, "dict": dict,
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
        return isinstance(obj, jinja2.runtime.Macro) or obj in self.globals.values() or _is_loop_method(obj)

    def call(self, context: Any, obj: Any, *args: Any, **kwargs: Any) -> Any:
        """Bounds what methods of texts can make before they make it."""
        owner, name = getattr(obj, "__self__", None), getattr(obj, "__name__", "")
        if isinstance(owner, str) and name == "join" and args:
            return _join(args[0], owner)
        if isinstance(owner, str) and name == "replace":
            return _replace(owner, *args, **kwargs)
        return super().call(context, obj, *args, **kwargs)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """Arithmetic, bounded: texts and lists by length, numbers by size."""
        if operator == "**":
            raise _Limit("uses **")
        sizes = [len(x) for x in (left, right) if isinstance(x, str | list | tuple)]
        if operator == "%" and isinstance(left, str):
            raise _Limit("formats with %: use ~")
        if operator == "*" and sizes:
            factor = next((x for x in (left, right) if isinstance(x, int)), 1)
            _bounded(sizes[0] * max(0, factor))
        elif operator == "+" and sizes:
            _bounded(sum(sizes))
        elif any(isinstance(x, int) and abs(x) > 1 << 64 for x in (left, right)):
            raise _Limit("computes with numbers beyond 64 bits")
        return super().call_binop(context, operator, left, right)

    def concatenated(self, parts: Iterable[Any]) -> str:
        """The parts as one text."""
        texts = [part if isinstance(part, str) else _text(part) for part in parts]
        _bounded(sum(map(len, texts)))
        return "".join(texts)


def _is_loop_method(obj: Any) -> bool:
    return isinstance(getattr(obj, "__self__", None), jinja2.runtime.LoopContext) and obj.__name__ in (
        "cycle", "changed", "__call__",
    )  # fmt: skip


def _bounded(size: int) -> None:
    if size > MAX_TEXT:
        raise _Limit(f"makes a text or list of more than {MAX_TEXT:,} characters or entries")


def _text(value: Any) -> str:
    text = str(value)
    _bounded(len(text))
    return text


def _join(values: Iterable[Any], separator: str = "", attribute: str | None = None) -> str:
    texts = [_text(value[attribute] if attribute is not None else value) for value in values]
    _bounded(sum(map(len, texts)) + len(separator) * len(texts))
    return separator.join(texts)


def _replace(text: str, old: str, new: str, count: int = -1) -> str:
    text, old, new = _text(text), _text(old), _text(new)
    times = text.count(old) if count < 0 else min(count, text.count(old))
    _bounded(len(text) + times * len(new))
    return text.replace(old, new, count)


def _tojson(value: Any, indent: int | None = None, ensure_ascii: bool = False, **_: Any) -> str:
    if indent is not None and not 0 <= indent <= 16:
        raise _Limit("indents by more than 16")
    text = json.dumps(value, ensure_ascii=ensure_ascii, indent=indent)
    _bounded(len(text))
    return text


def _range(*bounds: int) -> range:
    found = range(*bounds)
    if len(found) > MAX_RANGE:
        raise _Limit(f"counts to more than {MAX_RANGE:,}")
    return found


class _Refusal(Exception):
    """A template says that a conversation is not as it should be."""


def _raise_exception(message: object) -> None:
    raise _Refusal(str(message)[:500])


def _strftime_now(form: str) -> str:
    if len(form) > 100:
        raise _Limit("formats a date by more than 100 characters")
    return time.strftime(form)


class ChatTemplate:
    """One model's template. Safe from several threads; rendering is pure.

    Args:
        source: Jinja, as in tokenizer_config.json's `chat_template` or in chat_template.jinja.
        special: texts of special tokens that templates name: bos_token, eos_token, ….

    Raises CheckpointError for a template that is too long or does not parse.
    """

    def __init__(self, source: str, special: Mapping[str, str] | None = None) -> None:
        if len(source) > MAX_TEMPLATE:
            raise CheckpointError(f"the chat template has {len(source):,} characters, the limit is {MAX_TEMPLATE:,}")
        self._special = dict(special or {})
        try:
            environment = _Sandbox()
            code = environment.compile(source, name=_TEXT_MARK, filename=_TEXT_MARK)
            self._template = jinja2.Template.from_code(environment, code, dict(environment.globals))
        except (jinja2.TemplateError, RecursionError, SyntaxError, ValueError, MemoryError) as e:
            raise CheckpointError(f"the chat template cannot be read: {type(e).__name__}: {e}") from None

    def render(
        self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool = True, **variables: Any
    ) -> str:
        """The conversation as the model's text.

        Args:
            messages: each {"role": …, "content": …}, as checked by `check_messages`.
            add_generation_prompt: whether the beginning of the model's answer follows.
            variables: others that a template may read, `tools` for example.

        Raises RequestError when the template refuses the conversation or goes beyond its limits.
        """
        names: dict[str, Any] = {"tools": None, "documents": None, **self._special, **variables}
        names |= {"messages": list(messages), "add_generation_prompt": add_generation_prompt}
        try:
            return _counted(lambda: self._pieces(names))
        except _Refusal as e:
            raise RequestError(f"the model's chat template refuses this conversation: {e}") from None
        except _Limit as e:
            raise RequestError(f"the model's chat template {e}, which is not allowed") from None
        except Exception as e:  # whatever a template does wrong is its fault, or that of the values given
            raise RequestError(f"the model's chat template fails: {type(e).__name__}: {str(e)[:300]}") from None

    def _pieces(self, names: Mapping[str, Any]) -> str:
        size, pieces = 0, []
        for piece in self._template.generate(names):
            size += len(piece)
            _bounded(size)
            pieces.append(piece)
        return "".join(pieces)


def _counted(work: Callable[[], str]) -> str:
    """Runs template code under a count of its lines and a clock."""
    lines, end = MAX_LINES, time.monotonic() + MAX_SECONDS

    def local(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal lines
        lines -= 1
        if lines < 0 or time.monotonic() > end:
            raise _Limit("takes too long")
        return local

    def enter(frame: FrameType, event: str, _: Any) -> Any:
        return local(frame, event, _) if frame.f_code.co_filename == _TEXT_MARK else None

    before = sys.gettrace()
    sys.settrace(enter)
    try:
        return work()
    finally:
        sys.settrace(before)


def check_messages(messages: Any) -> list[dict[str, Any]]:
    """A conversation, checked: a list of {"role": text, "content": text}. Raises RequestError for the first fault."""
    if not isinstance(messages, list | tuple) or not messages:
        raise RequestError('messages must be a list of {"role": …, "content": …} with at least one entry')
    found = []
    for i, message in enumerate(messages):
        if not isinstance(message, Mapping):
            raise RequestError(f"messages[{i}] must be an object with role and content, not {str(message)[:60]!r}")
        role, content = message.get("role"), message.get("content")
        if not isinstance(role, str) or not 1 <= len(role) <= 64:
            raise RequestError(f"messages[{i}].role must be a text such as user, assistant or system")
        if not isinstance(content, str):
            raise RequestError(f"messages[{i}].content must be a text, not {type(content).__name__}")
        found.append({**message, "role": role, "content": content})
    return found


def from_files(files: Mapping[str, bytes], given: str | None = None) -> ChatTemplate | None:
    """The template that came with a model: chat_template.jinja, or the (default) one in tokenizer_config.json.

    `given` stands in for it, and names the same special tokens.

    Raises CheckpointError for one that cannot be read.
    """
    try:
        settings = json.loads(files.get("tokenizer_config.json", b"{}"))
        source: Any = given
        if source is None and "chat_template.jinja" in files:
            source = files["chat_template.jinja"].decode()
    except ValueError as e:
        raise CheckpointError(f"the model's chat template or tokenizer settings cannot be read: {e}") from None
    if not isinstance(settings, dict):
        raise CheckpointError("tokenizer_config.json must be a JSON object")
    source = settings.get("chat_template") if source is None else source
    if isinstance(source, list):
        named = {t.get("name"): t.get("template") for t in source if isinstance(t, dict)}
        source = named.get("default")
    if source is None:
        return None
    if not isinstance(source, str):
        raise CheckpointError(f"the chat template must be a text, not {type(source).__name__}")
    return ChatTemplate(source, _special_tokens(settings))


def _special_tokens(settings: Mapping[str, Any]) -> dict[str, str]:
    """bos_token and the like: a text, or an object with its content."""
    found = {}
    for name, value in settings.items():
        text = value.get("content") if isinstance(value, dict) else value
        if name.endswith("_token") and isinstance(text, str):
            found[name] = text
    return found
