"""Chat templates: a model's own way of writing a conversation, rendered in a process of its own.

A template comes with the model, so from anybody. `ingot.text.chat_sandbox` is what renders it, with little memory and
little time; this side starts that process, keeps it for the next conversation, and says what went wrong there.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import weakref
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from ingot.errors import CheckpointError, IngotError, RequestError
from ingot.text import chat_sandbox

MAX_TEMPLATE = 256 << 10  # characters
MAX_TEXT = 4 << 20  # characters of a rendered conversation
MAX_MESSAGES = 32 << 20  # bytes of a conversation as JSON
SECONDS = 0.9  # of processor time to read a template, and for each conversation
MEMORY = 256 << 20  # bytes of address space of the process, the interpreter's 25 MB included
PROCESSES = 2  # that render one template: while one has a slow conversation, or is started anew, the other goes on
_QUOTED = re.compile(r"""(?<=['"])[A-Za-z][\w-]{0,63}(?=['"])""")  # in a template, where roles are such words
SILENCE = 30.0  # seconds without an answer: more than its processor time takes on a machine that is very busy


class ChatTemplate:
    """One model's template. Safe from several threads; rendering is pure.

    Args:
        source: Jinja, as in tokenizer_config.json's `chat_template` or in chat_template.jinja.
        special: texts of special tokens that templates name: bos_token, eos_token, ….

    Raises CheckpointError for one that is too long, does not parse, or takes more than SECONDS or MEMORY to read.
    """

    def __init__(self, source: str, special: Mapping[str, str] | None = None) -> None:
        if len(source) > MAX_TEMPLATE:
            raise CheckpointError(f"the chat template has {len(source):,} characters, the limit is {MAX_TEMPLATE:,}")
        self.words = frozenset(_QUOTED.findall(source))  # that it names: what it does with roles depends on these
        self._special = dict(special or {})
        self._start = json.dumps(
            {"source": source, "seconds": SECONDS, "memory": MEMORY, "characters": MAX_TEXT}
        ).encode()
        self._turns = _Turns(PROCESSES)
        self._idle: list[_Process] = []
        self._idle.append(self._open())

    def render(
        self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool = True, **variables: Any
    ) -> str:
        """The conversation as the model's text.

        Args:
            messages: each {"role": …, "content": …}, as `ingot.text.messages` checks them.
            add_generation_prompt: whether the beginning of the model's answer follows.
            variables: others that a template may read, `tools` for example.

        Raises RequestError when the template refuses the conversation, or takes more than SECONDS, MEMORY or MAX_TEXT.
        """
        names: dict[str, Any] = {"tools": None, "documents": None, **self._special, **variables}
        names |= {"messages": list(messages), "add_generation_prompt": add_generation_prompt}
        try:
            data = json.dumps(names).encode()
        except (TypeError, ValueError, RecursionError) as e:
            raise RequestError(f"the messages and variables of a conversation have to be JSON: {e}") from None
        if len(data) > MAX_MESSAGES:
            raise RequestError(f"the conversation has {len(data):,} bytes as JSON, the limit is {MAX_MESSAGES:,}")
        with self._turns.taken():
            answer = self._asked(data)
        if answer.kind == chat_sandbox.TEXT:
            return answer.text
        told = _TOLD[answer.kind].format(answer.text)
        raise RequestError(f"the model's chat template {told}")

    def _asked(self, data: bytes) -> _Answer:
        """The answer of an idle process. Of one that ended for no reason of its own, a new one is asked, once."""
        try:
            process = self._idle.pop()
        except IndexError:
            answer = None
        else:
            answer = process.ask(data) if process.serves() else None
        if answer is None or answer.kind == LOST:
            try:
                process = self._open()
            except CheckpointError as e:  # it has been read before
                raise IngotError(str(e)) from None
            answer = process.ask(data)
        if process.serves():
            self._idle.append(process)
        return answer

    def _open(self) -> _Process:
        """A process that has read the template."""
        process = _Process(self)
        answer = process.ask(self._start)
        if answer.kind != chat_sandbox.TEXT:
            told = _TOLD[answer.kind].format(answer.text)
            raise CheckpointError(f"the chat template cannot be read: it {told}")
        return process


class _Turns:
    """So many at once, in the order in which they came. A lock is given to whoever is quickest."""

    def __init__(self, count: int) -> None:
        self._lock = threading.Lock()
        self._free = count
        self._waiting: deque[threading.Event] = deque()

    @contextmanager
    def taken(self) -> Iterator[None]:
        """A turn, for the block."""
        come = threading.Event()
        with self._lock:
            if self._free:
                self._free -= 1
                come.set()
            else:
                self._waiting.append(come)
        try:
            come.wait()
            yield
        finally:
            with self._lock:
                if not come.is_set():  # interrupted while it waited
                    self._waiting.remove(come)
                elif self._waiting:
                    self._waiting.popleft().set()
                else:
                    self._free += 1


LOST = b"e"  # beside the answers of chat_sandbox: the process ended instead
_TOLD = {
    chat_sandbox.REFUSED: "refuses this conversation: {}",
    chat_sandbox.LIMIT: "{}, which is not allowed",
    chat_sandbox.FAULT: "fails: {}",
    LOST: "fails: {}",
}


class _Answer(NamedTuple):
    kind: bytes
    text: str


class _Process:
    """A process that renders one template; it ends when its `owner` does, and with this process."""

    def __init__(self, owner: ChatTemplate) -> None:
        self._ours = os.getpid()
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        try:
            self._connection, theirs = socket.socketpair()
        except OSError as e:
            raise _cannot_start(e) from None
        self._connection.settimeout(SILENCE)
        try:
            with theirs:
                self._process = subprocess.Popen(  # a session of its own: Ctrl-C at the terminal is not for it
                    [sys.executable, "-P", "-m", chat_sandbox.__name__],
                    stdin=theirs.fileno(), stdout=subprocess.DEVNULL, env=environment, start_new_session=True,
                )  # fmt: skip
        except OSError as e:
            self._connection.close()
            raise _cannot_start(e) from None
        self._end = weakref.finalize(owner, _end, self._process, self._connection, self._ours)

    def serves(self) -> bool:
        """Whether it can be asked: not after it has ended, and not by a fork of the process that started it."""
        return self._end.alive and self._ours == os.getpid()

    def ask(self, message: bytes) -> _Answer:
        """The answer to a message; LIMIT or LOST when the process ended instead."""
        try:
            self._connection.sendall(chat_sandbox.LENGTH.pack(len(message)) + message)
            (length,) = chat_sandbox.LENGTH.unpack(self._read(chat_sandbox.LENGTH.size))
            answer = self._read(length)
        except (OSError, EOFError) as e:
            self._end()
            status = self._process.returncode
            if status == -signal.SIGPROF:
                return _Answer(chat_sandbox.LIMIT, f"takes more than {SECONDS} seconds of processor time")
            if isinstance(e, TimeoutError):
                return _Answer(chat_sandbox.LIMIT, f"takes more than {SILENCE} seconds")
            return _Answer(LOST, f"the process that renders it ended with status {status}")
        except BaseException:  # interrupted: what it says from now on answers no question
            self._end()
            raise
        return _Answer(answer[:1], answer[1:].decode("utf-8", "surrogatepass"))

    def _read(self, count: int) -> bytes:
        data = bytearray()
        while len(data) < count:
            part = self._connection.recv(count - len(data))
            if not part:
                raise EOFError
            data += part
        return bytes(data)


def _cannot_start(error: OSError) -> IngotError:
    return IngotError(f"the process that renders chat templates cannot be started: {error}")


def _end(process: subprocess.Popen[bytes], connection: socket.socket, ours: int) -> None:
    connection.close()
    if ours == os.getpid():
        process.kill()
        process.wait()


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
