"""What the runtime reads in an engine's header about its model, checked: engine files come from anywhere."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ingot import dtypes
from ingot.backends.device import programs_of
from ingot.engine.session import Engine
from ingot.errors import EngineFileError
from ingot.llm.vectors import POOLINGS

MAX_COUNT = 2**31 - 1


@dataclass(frozen=True)
class EmbeddingConfig:
    """How a language model's hidden states, `width` wide, become a vector, and what stands before every text.
    `max_tokens`: of a text, where the model's files give less than the context length. `width`: 0 for an engine of an
    earlier version, which gives none."""

    pooling: str = "last"
    normalize: bool = False
    prompt: str = ""
    max_tokens: int | None = None
    width: int = 0


@dataclass(frozen=True)
class ModelConfig:
    """A language model's facts. `state_bytes`: of keys and values in all layers, for one token. `window`: how many
    tokens back, itself included, a token attends to at most; None: all. `short_length`: the most tokens of a request
    that turns by the first of two rotary tables; None: there is one. `left_out`: parts of the source that are not used,
    in words."""

    vocab_size: int
    context_length: int
    bos_token_id: int | None
    eos_token_ids: frozenset[int]
    add_bos: bool
    max_step_tokens: int
    state_bytes: int
    window: int | None
    short_length: int | None
    left_out: tuple[str, ...]
    embedding: EmbeddingConfig
    generates: bool  # it has a head


def model_config(engine: Engine) -> ModelConfig:
    """The facts of an engine of kind "llm". Raises EngineFileError for one whose header does not give them."""
    config = engine.config
    limits = config.get("limits")
    faults: list[str] = []

    def number(name: str, where: Any, low: int = 1) -> int:
        value = where.get(name) if isinstance(where, dict) else None
        if type(value) is not int or not low <= value <= MAX_COUNT:
            faults.append(f"{name} must be an integer from {low} on, not {value!r}")
            return low
        return value

    vocabulary = number("vocab_size", config)
    bos, ends, add_bos = config.get("bos_token_id"), config.get("eos_token_ids"), config.get("add_bos")
    if not isinstance(ends, list) or not all(type(i) is int and 0 <= i < MAX_COUNT for i in ends):
        faults.append(f"eos_token_ids must be a list of token ids, not {str(ends)[:60]}")
        ends = []
    if not isinstance(add_bos, bool):
        faults.append(f"add_bos must be true or false, not {add_bos!r}")
    if bos is not None and not (type(bos) is int and 0 <= bos < vocabulary):
        faults.append(f"bos_token_id must be null or a token id, not {bos!r}")
    short = number("short_length", config) if config.get("short_length") is not None else None
    found = ModelConfig(
        vocabulary, number("context_length", config), bos, frozenset(ends), bool(add_bos),
        number("max_step_tokens", limits), _state_bytes(engine, faults), _window(config.get("kv"), faults),
        short, _left_out(config.get("left_out"), faults),
        _embedding(engine, faults), any(port.name == "logits" for port in engine.outputs),
    )  # fmt: skip
    if faults:
        raise EngineFileError(f"{engine.path or 'the engine'} is no whole language model: {'; '.join(faults)}")
    return found


def _left_out(words: Any, faults: list[str]) -> tuple[str, ...]:
    """They are shown to people, so they have to be short and plain."""
    found = [] if words is None else words
    if not isinstance(found, list) or not all(isinstance(w, str) and w.isprintable() and len(w) < 200 for w in found):
        faults.append("left_out must be a list of short printable texts")
        return ()
    return tuple(found[:8])


def _state_bytes(engine: Engine, faults: list[str]) -> int:
    """Of keys and values; the program itself has been verified when the engine was opened."""
    program = programs_of(engine.header).get("main")
    if program is None:
        faults.append("it has no program main")
        return 1
    states = [b for b in program["buffers"] if b["kind"] == "state" and b["state"]["type"] == "kv_cache"]
    if not states:
        faults.append("its program has no KV cache")
    total = 0
    for buffer in states:
        dtype, state = dtypes.get(buffer["dtype"]), buffer["state"]
        total += 2 * state["heads"] * dtypes.cache_width(dtype, state["head_dim"]) * dtype.numpy.itemsize
    return total


def _window(layers: Any, faults: list[str]) -> int | None:
    """The widest window, if every layer has one."""
    if not isinstance(layers, list) or not all(isinstance(layer, dict) for layer in layers):
        faults.append("kv must be a list of objects")
        return None
    windows = [layer.get("window") for layer in layers]
    if any(w is not None and (type(w) is not int or not 1 <= w <= MAX_COUNT) for w in windows):
        faults.append("window must be null or a positive integer")
        return None
    known = [w for w in windows if w is not None]
    return max(known) if known and len(known) == len(windows) else None


def _embedding(engine: Engine, faults: list[str]) -> EmbeddingConfig:
    """What the header says, which says nothing in engines of earlier versions."""
    dims = next((port.dims for port in engine.outputs if port.name == "hidden"), (0,))
    given = engine.config.get("embedding", {})
    values: dict[str, Any] = given if isinstance(given, dict) else {"pooling": None}
    how, normalize = values.get("pooling", "last"), values.get("normalize", False)
    prompt, most = values.get("prompt", ""), values.get("max_tokens")
    sound = how in POOLINGS and isinstance(normalize, bool) and isinstance(prompt, str)
    if not sound or not (most is None or (type(most) is int and 1 <= most <= MAX_COUNT)):
        faults.append(f"embedding must say how texts become vectors, not {str(given)[:80]}")
    if not dims or type(dims[-1]) is not int or not 0 <= dims[-1] <= MAX_COUNT:
        faults.append(f"its output hidden must be of a known width, not {str(dims)[:60]}")
    return EmbeddingConfig() if faults else EmbeddingConfig(how, normalize, prompt, most, dims[-1])
