"""What the HTTP process and the engine process say to each other: frames of one fixed schema, nothing executable.

A frame is four bytes of length, then MessagePack of one message. Every field is checked as it is read, on both sides;
a frame that does not fit ends the connection.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from ingot.errors import IngotError

MAX_FRAME = 256 << 20
HEARTBEAT = 1.0  # seconds
_HEAD = 4

Count = Annotated[int, Meta(ge=0, le=2**53)]
Seconds = Annotated[float, Meta(ge=0)]


class _Message(Struct, array_like=True, tag=True, forbid_unknown_fields=True):
    """Fields in order, behind the message's name."""


# To the engine process.


class Start(_Message):
    """The first message: what to load, in the words of `LLM`; `chat_template` is Jinja, in place of the model's."""

    source: str
    precision: str | None
    weights: str | None
    device: str | None
    threads: Count | None
    context_length: Count | None
    kv_memory: Count | None
    max_running: Count
    prefix_cache: bool
    chat_template: str | None
    lora: str | None
    lora_scale: float | None
    activations: str | None = None
    kv: str | None = None


class Sampling(Struct, array_like=True, forbid_unknown_fields=True, frozen=True):
    """The fields of SamplingParams that requests can set."""

    max_tokens: Count | None  # None: what the context leaves
    temperature: float
    top_k: Count
    top_p: float
    min_p: float
    seed: Annotated[int, Meta(ge=0, le=2**63 - 1)] | None
    stop: tuple[str, ...]
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    logit_bias: dict[Count, float]
    logprobs: Count
    n: Annotated[int, Meta(ge=1, le=128)]


class Generate(_Message):
    """Starts the answers to one prompt: a text, token ids, or a conversation (roles, contents and names)."""

    id: Count
    text: str | None
    ids: list[Count] | None
    messages: list[tuple[str, str, str | None]] | None
    sampling: Sampling
    priority: int
    eager: bool  # whether its pieces are wanted as they come
    tokens: bool  # whether the tokens themselves are wanted beside the text

    @property
    def answers(self) -> int:
        """For the room that it takes."""
        return self.sampling.n

    @property
    def length(self) -> int:
        """Characters or tokens of the prompt."""
        said = sum(len(content) for _, content, _ in self.messages or ())
        return len(self.text or "") + len(self.ids or ()) + said


class Embed(_Message):
    """Asks for the vectors of texts or token ids."""

    id: Count
    inputs: list[str | list[Count]]

    @property
    def answers(self) -> int:
        """For the room that it takes."""
        return len(self.inputs)

    @property
    def length(self) -> int:
        """Characters or tokens of all inputs."""
        return sum(map(len, self.inputs))


class Abort(_Message):
    """Ends a request. Harmless when it has ended."""

    id: Count


# From the engine process.


class Ready(_Message):
    """The model is loaded. `left_out`: parts of its source that are not used, in words. `words`: what its chat template
    quotes, among them the roles that it knows.
    """

    context_length: Count
    vocab_size: Count
    generates: bool
    chats: bool
    embeds: bool
    left_out: list[str]
    words: list[str] = []


class Failed(_Message):
    """The model cannot be loaded; the engine process ends. `code` as in docs/errors.md."""

    code: str
    message: str


class Token(Struct, array_like=True, forbid_unknown_fields=True, frozen=True):
    """A token as text, its log probability, and the likeliest ones at its place."""

    text: str
    logprob: float
    top: list[tuple[str, float]]


class End(Struct, array_like=True, forbid_unknown_fields=True, frozen=True):
    """How an answer ended, and where its time went. `queue`: until its first step; `prefill`: until its first token;
    `decode`: until its last; `sampling`: of its steps' time, the choice of tokens; `detokenising`: making text."""

    reason: str
    prompt_tokens: Count
    cached_tokens: Count
    completion_tokens: Count
    queue: Seconds
    prefill: Seconds
    decode: Seconds
    sampling: Seconds
    detokenising: Seconds


class Piece(Struct, array_like=True, forbid_unknown_fields=True, frozen=True):
    """More of an answer: `index` counts the n answers to a prompt, `count` its tokens so far."""

    id: Count
    index: Count
    text: str
    count: Count
    tokens: list[Token]
    end: End | None


class Pieces(_Message):
    """What many requests got since the last such message."""

    pieces: list[Piece]


class Refused(_Message):
    """A request that cannot be carried out, or that failed; nothing more comes of it."""

    id: Count
    code: str
    message: str


class Ended(_Message):
    """A request that was aborted takes no room any more; nothing comes of it. Without it the last `End` of its answers,
    Refused or Vectors says so."""

    id: Count


class Vectors(_Message):
    """The answer to Embed."""

    id: Count
    prompt_tokens: Count
    vectors: list[list[float]]


class Load(_Message):
    """How busy the engine is: the numbers of `LLM.stats`, and for how long the step or the prompt under way has shown
    no end. Comes every `HEARTBEAT` seconds at least, so that silence tells of an engine that hangs."""

    running: Count
    waiting: Count
    steps: Count
    preemptions: Count
    blocks: Count
    blocks_used: Count
    blocks_idle: Count
    tokens_asked: Count
    tokens_found: Count
    still: Seconds


ToEngine = Start | Generate | Embed | Abort
FromEngine = Ready | Failed | Pieces | Refused | Ended | Vectors | Load

_encoder = msgspec.msgpack.Encoder()


class FrameError(IngotError):
    """What came over the socket is no frame of ours."""


def encode(message: ToEngine | FromEngine) -> bytes:
    """The frame of a message."""
    body = _encoder.encode(message)
    if len(body) > MAX_FRAME:
        raise FrameError(f"a frame of {len(body):,} bytes is over the limit of {MAX_FRAME:,}")
    return len(body).to_bytes(_HEAD, "big") + body


class Decoder:
    """Bytes in, checked messages out.

    Args:
        messages: the messages that may come, ToEngine or FromEngine.
    """

    def __init__(self, messages: Any) -> None:
        self._decoder = msgspec.msgpack.Decoder(messages)
        self._buffer = bytearray()

    def push(self, data: bytes) -> Iterator[Any]:
        """The messages that are complete with these bytes. Raises FrameError for what fits no schema."""
        buffer = self._buffer
        buffer += data
        at = 0
        while len(buffer) - at >= _HEAD:
            size = int.from_bytes(buffer[at : at + _HEAD], "big")
            if size > MAX_FRAME:
                raise FrameError(f"a frame of {size:,} bytes is over the limit of {MAX_FRAME:,}")
            if len(buffer) - at < _HEAD + size:
                break
            body = bytes(buffer[at + _HEAD : at + _HEAD + size])
            at += _HEAD + size
            try:
                yield self._decoder.decode(body)
            except (msgspec.MsgspecError, RecursionError, ValueError) as e:
                raise FrameError(f"a frame does not fit its schema: {e}") from None
        del buffer[:at]


def finite(value: float) -> float:
    """A log probability that JSON can hold: what is impossible is shown as very improbable."""
    return value if math.isfinite(value) else -9999.0
