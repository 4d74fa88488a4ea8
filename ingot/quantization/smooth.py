"""SmoothQuant of language models: which channels are large follows from a text, and how far they are evened out too."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ingot.builder.layers import BLOCK
from ingot.builder.phases import Phases
from ingot.builder.plans import Smoothed
from ingot.builder.text_loss import texts_of, tokenizer_of
from ingot.errors import UserError, ValueFault
from ingot.ir import Network
from ingot.llm.memory import available_memory
from ingot.models.decoder import example_step
from ingot.models.load import LoadedModel
from ingot.passes.clone import clone
from ingot.passes.rewrite import Log
from ingot.passes.smooth import LIMIT, Place, places, smoothed
from ingot.progress import log
from ingot.quantization.running import TAPPED, Maker

Array = np.ndarray[Any, Any]

KEY = "smooth"  # of what was chosen, in an engine's config
ALPHAS = (0.2, 0.35, 0.5, 0.65, 0.8)  # that are tried where nobody says one, beside leaving rows as they are
PIECES = 16  # of the texts, spread over them, that are run
TOKENS = 512  # of a piece, at most
CHARACTERS = 8 * TOKENS  # of a piece: more tokens than are taken, of nearly any text
ROWS = 128  # of all pieces together, on which errors are measured
UNREPORTED = (
    "a file of the report was asked for, and no report: of a language model that is its distance from float32. Leave "
    "one out (on the command line --report or --no-report, in Python report_file= or report=False)"
)


class Smoothing:
    """What smooths a language model when it is built.

    data: the path of a text in UTF-8, or texts. alpha: how far, from 0 (rows keep their sizes) to 1 (all channels
    become equally large, and weights take all of it); None: for each rows what leaves the smallest error of their
    products in int8. not_here: words that were given, and are for nets. unreported: whether a file of the report is
    wanted, and no report.
    """

    def __init__(self, data: Any, alpha: float | None, not_here: Sequence[str] = (), unreported: bool = False) -> None:
        self.data, self.alpha, self.not_here, self.unreported = data, alpha, not_here, unreported

    def __call__(self, model: LoadedModel, network: Network, phases: Phases) -> Smoothed:
        if self.not_here:
            are, them = ("are", "them") if len(self.not_here) > 1 else ("is", "it")
            raise UserError(f"{', '.join(self.not_here)} {are} for nets, not for a language model: leave {them} out")
        if self.unreported:
            raise UserError(UNREPORTED)
        events: Log = []
        found = places(network, events)
        if not found:
            why = "; ".join(dict.fromkeys(event.verdict for event in events))[:300] or "it has no norm before a product"
            raise UserError(f"network {network.name} has no rows that can be smoothed: {why}")
        with phases.phase("calibrate") as done:
            texts = texts_of(self.data, "calibrated")
            pieces = _pieces(texts, model)
            seen = _Seen(network, model.weights, found, pieces)
            tokens = sum(map(len, seen.pieces))
            if tokens < ROWS:
                log.warning("what is large in the model follows from only %d token(s) of text; some thousands, as the "
                            "model will read them, are usual", tokens)  # fmt: skip
            for i in range(len(pieces)):
                seen.read(i)
                done(i + 1, len(pieces))
        with phases.phase("smooth") as done:
            chosen: dict[str, Chosen] = {}
            for i, place in enumerate(found):
                weights = [_outputs_first(model.weights, product) for product in place.products]
                chosen[place.name] = choose(seen.rows(place), seen.largest[place.name], weights, self.alpha)
                done(i + 1, len(found))
        new, values = smoothed(network, {name: one.exponents for name, one in chosen.items() if one.exponents.any()})
        facts = {"tokens": tokens, "alpha": {name: one.alpha for name, one in chosen.items()}}
        return Smoothed(new, values, {KEY: facts}, texts if _fits(network) else ())


def _fits(network: Network) -> bool:
    """Whether there is memory for the floats that the engine is compared with on the text."""
    need = sum(math.prod(v.spec.evaluate({})) * v.dtype.bits // 8 for v in network.parameters)
    if need <= (free := available_memory()):
        return True
    log.warning("the text is not scored: the source takes %.1f GB beside the engine, and %.1f GB are free; ingot score "
                "reads one after the other", need / 1e9, free / 1e9)  # fmt: skip
    return False


class Chosen(NamedTuple):
    """How rows are smoothed: by two to the power of these exponents, [channels]; and the alpha of them."""

    exponents: Array
    alpha: float


def choose(rows: Array, largest: Array, weights: Sequence[Array], alpha: float | None = None) -> Chosen:
    """The exponents of the factors of some rows.

    Args:
        rows: some of them, float32 [rows, channels].
        largest: the largest magnitude of each channel, of all rows, [channels].
        weights: of the products that take them, float32 [outputs, channels].
        alpha: None: that of ALPHAS, or 0, whose products in int8 have the smallest error on `rows`.
    """
    most = np.max([np.abs(weight).max(0) for weight in weights], 0)
    if alpha is not None:
        return Chosen(_exponents(largest, most, alpha), alpha)
    tried = [Chosen(np.zeros(len(largest), np.int8), 0.0)]
    tried += [Chosen(_exponents(largest, most, one), one) for one in ALPHAS]
    exact = [rows @ weight.T for weight in weights]
    return min(tried, key=lambda one: _error(rows, weights, exact, one.exponents))


def _exponents(largest: Array, most: Array, alpha: float) -> Array:
    """Of the factors largest ** alpha / most ** (1 - alpha), the median of which becomes 1."""
    both = (largest > 0) & (most > 0)
    found = np.zeros(len(largest))
    if alpha > 0 and both.any():
        found[both] = alpha * np.log2(largest[both]) - (1 - alpha) * np.log2(most[both])
        found[both] -= np.median(found[both])
    return np.clip(np.rint(found), -LIMIT, LIMIT).astype(np.int8)


def _error(rows: Array, weights: Sequence[Array], exact: Sequence[Array], exponents: Array) -> float:
    """How far the products in int8 are from those in floats: the sum of the squares, each product's over its own."""
    factors = np.exp2(exponents.astype(np.float32))
    small = _rounded(rows / factors)
    left = 0.0
    for weight, wanted in zip(weights, exact, strict=True):
        apart = small @ _rounded(weight * factors).T - wanted
        left += float(np.sum(apart * apart, dtype=np.float64) / max(np.sum(wanted * wanted, dtype=np.float64), 1e-30))
    return left


def _rounded(rows: Array) -> Array:
    """Rows as they are once they have been int8, each by its largest magnitude / 127."""
    scales = np.abs(rows).max(-1, keepdims=True) / np.float32(127)
    scales[scales == 0] = 1
    return np.asarray(np.rint(rows / scales) * scales)


def _outputs_first(weights: Mapping[str, Array], product: Any) -> Array:
    weight = weights[product.inputs[1].name].astype(np.float32)
    return weight if product.op.transpose_b else np.ascontiguousarray(weight.T)


# ----------------------------------------------------------------------------------------------------- what is seen


class _Seen:
    """The largest magnitude of each channel of some rows, and a few of the rows, as the float network has them."""

    def __init__(
        self, network: Network, weights: Mapping[str, Array], found: Sequence[Place], pieces: Sequence[Array]
    ) -> None:
        self.network, self.found = clone(network), found
        self.largest = {place.name: np.zeros(place.rows.shape[-1], np.float32) for place in found}
        self._kept: dict[str, list[Array]] = {place.name: [] for place in found}
        self._each = -(-ROWS // len(pieces))
        self.network.outputs = {place.name: self.network.values[place.rows.name] for place in found}
        self.network.remove_dead()
        self._engine = Maker(weights)(self.network).engine
        row = sum(len(self.largest[place.name]) * place.rows.dtype.bits // 8 for place in found)
        self.pieces = [ids[: max(BLOCK, TAPPED // row)] for ids in pieces]  # what a run gives is in memory at once

    def read(self, number: int) -> None:
        """Runs a piece, from an empty context."""
        ids = self.pieces[number]
        feeds = example_step(self.network, np.random.default_rng(0), len(ids), BLOCK)
        feeds["token_ids"] = ids
        session = self._engine.session(kv_blocks=-(-len(ids) // BLOCK), kv_block_size=BLOCK)
        for name, rows in session.run(feeds).items():
            wide = rows.astype(np.float32)
            if not np.isfinite(wide).all():
                raise ValueFault(f"piece {number} of the text gives infinite values or NaN before {name}")
            np.maximum(self.largest[name], np.abs(wide).max(0), out=self.largest[name])
            some = np.linspace(0, len(wide) - 1, min(self._each, len(wide))).astype(int)
            self._kept[name].append(wide[some])

    def rows(self, place: Place) -> Array:
        """Those of a place that were kept, [rows, channels]."""
        return np.concatenate(self._kept[place.name])


def _pieces(texts: Sequence[str], model: LoadedModel) -> list[Array]:
    """The tokens of pieces that are spread over the texts, at most PIECES of at most TOKENS."""
    tokenizer = tokenizer_of(model)
    cut = [text[i : i + CHARACTERS] for text in texts for i in _begins(text)]
    if not cut:
        raise UserError("data has no text: what is large in a model follows from what it reads")
    chosen = np.unique(np.linspace(0, len(cut) - 1, min(PIECES, len(cut))).astype(int))
    most = min(TOKENS, model.config["context_length"])
    found = [np.array(tokenizer.encode_plain(cut[i])[:most], np.int32) for i in chosen]
    if not (pieces := [ids for ids in found if len(ids)]):
        raise UserError("data has no text that this model's tokenizer makes tokens of")
    return pieces


def _begins(text: str) -> Iterator[int]:
    """Where the pieces of a text begin: whole ones, and what is left of a text that has none or is not blank."""
    yield from (i for i in range(0, len(text), CHARACTERS) if text[i : i + CHARACTERS].strip())
