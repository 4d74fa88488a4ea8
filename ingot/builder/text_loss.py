"""What a language model's formats cost on a text: nats a token beside its source's, and how fast both decode."""

from __future__ import annotations

import math
import os
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from ingot.builder.layers import BLOCK
from ingot.engine.session import Engine, Session
from ingot.errors import CheckpointError, FileError, UserError
from ingot.ir import Network
from ingot.models.load import LoadedModel
from ingot.safetensors_file import read_small
from ingot.text.tokenizer import Tokenizer

MAX_BYTES = 1 << 28  # of a file of text
WINDOW, WINDOWS = 512, 8  # tokens that begin with an empty context, and how often, at most
CHARACTERS = 1 << 18  # of a text, read first: more tokens than are scored, of nearly any text
ROWS = 128  # tokens of a run, whose logits are held
PAIRS, WARM = 9, 2  # decoding steps of both engines in turn that count, and those before

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class TextLoss:
    """Nats per token of an engine and of its source at the source's own precision, over `tokens` tokens in `windows`
    windows from the beginning of a text, as `ingot score` counts them; and the tokens a second that both decode for one
    request at the end of a window, in turn. calibrated: whether the build looked at that text.
    """

    nats_per_token: float
    source_nats_per_token: float
    source_precision: str
    tokens: int
    windows: int
    tokens_per_s: float
    source_tokens_per_s: float
    calibrated: bool

    @property
    def change(self) -> float:
        """By how much the engine foresees the text worse than its source, in nats per token."""
        return self.nats_per_token - self.source_nats_per_token

    @property
    def speedup(self) -> float:
        """How many times as fast the engine decodes."""
        return self.tokens_per_s / self.source_tokens_per_s

    @property
    def headline(self) -> str:
        """The whole in a line."""
        return f"{self.change:+.4f} nats per token on a text, {self.speedup:.2f} times the source's tokens a second"

    def json(self) -> dict[str, Any]:
        return {**asdict(self), "change": self.change, "speedup": self.speedup}

    def __str__(self) -> str:
        which = ", the one of the calibration," if self.calibrated else ""
        return (
            f"on the text{which} {self.nats_per_token:.4f} nats per token: {self.change:+.4f} beside the source in "
            f"{self.source_precision}, {self.source_nats_per_token:.4f} ({self.tokens:,} tokens in {self.windows} "
            f"window(s))\ndecoding one request on this machine: {self.tokens_per_s:.3g} tokens a second, "
            f"{self.speedup:.2f} times the source's {self.source_tokens_per_s:.3g}"
        )


def texts_of(data: Any, done: str) -> list[str]:
    """The texts that somebody gave: the path of one in UTF-8, or strings. done: what becomes of a model with them.

    Raises UserError or FileError for what is none.
    """
    if isinstance(data, str | os.PathLike):
        path = Path(data)
        if path.suffix == ".npz":
            raise UserError(f"{path}: a language model is {done} with a text, not with arrays: give a file in UTF-8")
        try:
            return [read_small(path, MAX_BYTES).decode("utf-8")]
        except CheckpointError as e:  # no file, a pipe that nobody writes to, a large file
            todo = "" if path.exists() else ". A text itself is given in a list, [text]"
            raise FileError(f"{e}{todo}") from None
        except UnicodeDecodeError as e:
            raise FileError(f"{path} is not UTF-8 text (byte {e.start})") from None
    if not isinstance(data, Iterable) or isinstance(data, Mapping | np.ndarray):
        raise UserError(f"a language model is {done} with a text: give a file or texts, not a {type(data).__name__}")
    texts = []
    for i, text in enumerate(data):
        if not isinstance(text, str):
            raise UserError(f"a language model is {done} with texts: number {i} of data is a {type(text).__name__}")
        texts.append(text)
    return texts


def tokenizer_of(model: LoadedModel) -> Tokenizer:
    """The model's. Raises UserError where it came without one."""
    file = model.files.get("tokenizer.json")
    if file is None:
        raise UserError("this model came without tokenizer.json, so that no text can be made of tokens for it")
    return Tokenizer(file, vocab_size=model.config["vocab_size"])


def tokens_of(texts: Sequence[str], model: LoadedModel, network: Network) -> Array:
    """The tokens that are scored, and the one behind, of texts one behind the other: int32.

    Raises UserError for fewer than two, and for a model that foresees no tokens.
    """
    if not network.states or "logits" not in network.outputs:
        raise UserError("text is scored by language models that generate, and this model has no head for tokens")
    encode, most = tokenizer_of(model).encode_plain, WINDOW * WINDOWS + 1
    found: list[int] = []
    for text in texts:
        ids = encode(text[:CHARACTERS])
        if len(text) > CHARACTERS and len(found) + len(ids) < most:
            ids = encode(text)
        found += ids
        if len(found) >= most:
            break
    if len(found) < 2:
        raise UserError("the text has fewer than two tokens: there is nothing to score")
    return np.array(found[:most], np.int32)


def measured(
    engine: Engine, source: Engine, ids: Array, calibrated: bool, done: Callable[[int, int], None]
) -> TextLoss:
    """What an engine costs beside its source on the tokens of `tokens_of`. Raises ValueFault for logits of NaN."""
    config = source.config
    window = min(WINDOW, config["context_length"], len(ids) - 1)
    windows = (len(ids) - 1) // window
    both = [_Reader(one, window) for one in (engine, source)]
    for i in range(windows):
        for reader in both:
            reader.score(ids[i * window : (i + 1) * window + 1])
        done(i + 1, windows)
    times: list[list[float]] = [[], []]
    for _ in range(WARM + PAIRS):
        for found, reader in zip(times, both, strict=True):
            found.append(reader.decode(int(ids[0])))
    pace, source_pace = (1 / statistics.median(found[WARM:]) for found in times)
    nats, source_nats = (-math.fsum(reader.log_probs) / (windows * window) for reader in both)
    return TextLoss(
        nats, source_nats, str(config["precision"]), windows * window, windows, pace, source_pace, calibrated
    )


class _Reader:
    """One request of a language model on the CPU, window after window. log_probs: of all tokens that were scored."""

    def __init__(self, engine: Engine, window: int) -> None:
        blocks = -(-window // BLOCK)
        self._session: Session = engine.session(kv_blocks=blocks, kv_block_size=BLOCK)
        self._names = {port.name for port in engine.inputs}
        self._table = np.arange(blocks)[None]
        self._window = window
        short = engine.config.get("short_length")
        self._long = short is not None and window > short
        self.log_probs: list[float] = []

    def score(self, ids: Array) -> None:
        """A window of tokens, and the one behind it."""
        for start in range(0, self._window, ROWS):
            end = min(start + ROWS, self._window)
            logits = self._run(ids[start:end], start)
            self.log_probs += self._session.log_probs(logits, ids[start + 1 : end + 1].astype(np.int64)).tolist()

    def decode(self, token: int) -> float:
        """The seconds of a step for the last token of a window."""
        begin = perf_counter()
        self._run(np.array([token]), self._window - 1)
        return perf_counter() - begin

    def _run(self, ids: Array, start: int) -> Array:
        count = len(ids)
        rows = np.arange(start, start + count)
        step = {
            "token_ids": ids, "positions": rows, "query_start": np.array([0, count]),
            "context_len": np.array([start + count]), "block_table": self._table, "slot": rows,
            "logit_rows": np.arange(count), "hidden_rows": np.zeros(0), "long_rope": np.full(count, self._long),
        }  # fmt: skip
        feeds = {name: array.astype(np.int32) for name, array in step.items() if name in self._names}
        return self._session.run(feeds)["logits"]
