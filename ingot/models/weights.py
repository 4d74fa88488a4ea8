"""Matching a checkpoint's tensors with a model's parameters, one to one, and random weights for true shapes."""

from __future__ import annotations

import math
import re
import statistics
import zlib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np

from ingot.dtypes import DType
from ingot.errors import CheckpointError
from ingot.frontends.checkpoint import Checkpoint
from ingot.frontends.gguf.model import GgufModel
from ingot.ir import Spec
from ingot.nn import Module

MAX_LISTED = 60
Stored: TypeAlias = Checkpoint | GgufModel  # what has tensors by a model directory's names


class Ignored(NamedTuple):
    """Names in a checkpoint that no parameter takes, and why that is right."""

    pattern: str
    reason: str


@dataclass(frozen=True)
class Naming:
    """How a family's checkpoints name their tensors.

    Attributes:
        embedding, head: the tensors that are one when a model is tied.
        base: what the names of a model saved without its head lack at their beginning.
        ignored: names that no parameter takes.
        prefixes: beginnings of parameters' names, and what may stand there instead in a checkpoint.
    """

    embedding: str = "model.embed_tokens.weight"
    head: str = "lm_head.weight"
    base: str = "model."
    ignored: tuple[Ignored, ...] = ()
    prefixes: tuple[tuple[str, str], ...] = ()

    def stored(self, name: str) -> tuple[str, ...]:
        """The names that a parameter may have in a checkpoint."""
        others = [other + name.removeprefix(own) for own, other in self.prefixes if name.startswith(own)]
        return (name, name.removeprefix(self.base), *others)

    def find(self, name: str, checkpoint: Collection[str]) -> str:
        """The name under which a checkpoint has a parameter; its own where it has it under none."""
        return next((other for other in self.stored(name) if other in checkpoint), name)

    def readers(self, parameters: Collection[str], has_head: bool) -> dict[str, str]:
        """Names that a state dict may have, and the parameters that take them.

        has_head: a model without a parameter for its head is tied, and not one that gives hidden states only.
        """
        found: dict[str, str] = {}
        for name in parameters:
            found |= dict.fromkeys(self.stored(name), name)
        if has_head and self.head not in parameters:
            found |= dict.fromkeys(self.stored(self.head), self.embedding)
        return found | {name: name for name in parameters}

    def is_ignored(self, name: str) -> bool:
        """Whether no parameter takes it, rightly."""
        return any(re.fullmatch(i.pattern, name) for i in self.ignored)


ROTARY = Ignored(
    r"(.*\.)?rotary_emb\.inv_freq", "older transformers saved the rotary frequencies, which follow from config.json"
)
DECODER = Naming(ignored=(ROTARY,))  # of the Llama-like families


class _OfParameters(Mapping[str, np.ndarray]):
    """An array for each of these parameters, made when it is asked for."""

    def __init__(self, specs: Mapping[str, Spec]) -> None:
        self._specs = specs

    def __contains__(self, name: object) -> bool:
        return name in self._specs  # without reading it

    def __iter__(self) -> Iterator[str]:
        return iter(self._specs)

    def __len__(self) -> int:
        return len(self._specs)


class CheckpointWeights(_OfParameters):
    """Parameter name → array of the parameter's dtype, read from the checkpoint at each access.

    Args:
        checkpoint: the files.
        specs: what the parameters are.
        sources: the tensor of each parameter.
        unit_rows: parameters whose rows are brought to length 1.
    """

    def __init__(
        self,
        checkpoint: Stored,
        specs: Mapping[str, Spec],
        sources: Mapping[str, str],
        unit_rows: Collection[str] = (),
    ) -> None:
        super().__init__(specs)
        self._checkpoint, self.sources, self._unit_rows = checkpoint, sources, unit_rows

    def __getitem__(self, name: str) -> np.ndarray:
        stored = self._checkpoint[self.sources[name]]
        return prepared(stored, self._specs[name].dtype, name, name in self._unit_rows)


def prepared(stored: np.ndarray, dtype: DType, name: str, unit_rows: bool) -> np.ndarray:
    """A checkpoint's tensor as the model takes it. `unit_rows`: its rows are brought to length 1."""
    if unit_rows:
        wide = stored.astype(np.float32)
        stored = wide / np.maximum(np.sqrt((wide * wide).sum(1, keepdims=True)), np.float32(1e-12))
    return _converted(stored, dtype, name)


class RandomWeights(_OfParameters):
    """Parameter name → seeded random array, made at each access: normal · 0.02, norms 1, biases 0.

    The numbers of a tensor depend only on its name, shape, dtype and the seed.
    """

    DEVIATION = 0.02

    def __init__(self, specs: Mapping[str, Spec], seed: int) -> None:
        super().__init__(specs)
        self._seed = seed
        self._quantiles: dict[DType, np.ndarray] = {}

    def __getitem__(self, name: str) -> np.ndarray:
        spec = self._specs[name]
        shape = spec.evaluate({})
        if name.endswith("bias") or len(shape) == 1:
            return np.full(shape, 0 if name.endswith("bias") else 1, spec.dtype.numpy)
        bits = np.random.PCG64(np.random.SeedSequence([self._seed, zlib.crc32(name.encode())]))
        size = math.prod(shape)
        index = bits.random_raw(-(-size // 4)).view(np.uint16)[:size]
        return self._table(spec.dtype)[index].reshape(shape)

    def _table(self, dtype: DType) -> np.ndarray:
        """The 65,536 quantiles of the distribution: looking them up is far faster than drawing normal numbers."""
        if dtype not in self._quantiles:
            normal = statistics.NormalDist(0.0, self.DEVIATION)
            points = [normal.inv_cdf((i + 0.5) / 65536) for i in range(65536)]
            self._quantiles[dtype] = np.array(points, np.float64).astype(dtype.numpy)
        return self._quantiles[dtype]


def parameter_specs(module: Module) -> dict[str, Spec]:
    """Parameter name → Spec, a tied parameter under its first name."""
    return {name: parameter.spec for name, parameter in module.named_parameters()}


def is_tied(checkpoint: Stored, tied: bool, naming: Naming) -> bool:
    """Whether the head really is the embedding table.

    As in transformers 5: where config.json says so but the checkpoint stores both with different numbers, it is not.
    """
    embedding, head = (naming.find(name, checkpoint) for name in (naming.embedding, naming.head))
    if not tied or embedding not in checkpoint or head not in checkpoint:
        return tied
    same = checkpoint.info(embedding)[:2] == checkpoint.info(head)[:2]
    return same and np.array_equal(_bits(checkpoint[embedding]), _bits(checkpoint[head]))


def match(
    checkpoint: Stored, module: Module, tied: bool, naming: Naming, unit_rows: Collection[str] = ()
) -> CheckpointWeights:
    """Every parameter's tensor, by name and shape.

    Raises:
        CheckpointError: one error that lists all missing, unexpected and mismatched tensors.
    """
    specs = parameter_specs(module)
    sources = {name: naming.find(name, checkpoint) for name in specs}
    unused = set(checkpoint) - set(sources.values())
    head = naming.find(naming.head, checkpoint)
    if tied and head in unused:
        unused.discard(head)  # equal to the embedding table, or the only copy of it
        if sources[naming.embedding] not in checkpoint:
            sources[naming.embedding] = head
    unexpected = sorted(name for name in unused if not naming.is_ignored(name))
    missing = [name for name, source in sources.items() if source not in checkpoint]
    mismatched = [
        f"{name}: {fault}"
        for name, source in sources.items()
        if source in checkpoint and (fault := _mismatch(checkpoint, source, specs[name]))
    ]
    if missing or unexpected or mismatched:
        parts = [("missing", missing), ("unexpected", unexpected), ("mismatched", mismatched)]
        raise CheckpointError(
            f"{checkpoint.directory}: the weights do not fit config.json ({len(missing)} missing, {len(unexpected)} "
            f"unexpected, {len(mismatched)} mismatched)" + "".join(_section(*part) for part in parts)
        )
    return CheckpointWeights(checkpoint, specs, sources, unit_rows)


def _mismatch(checkpoint: Stored, source: str, spec: Spec) -> str | None:
    info = checkpoint.info(source)
    if info.shape != spec.shape:
        return f"shape {list(info.shape)} in the file, {list(spec.shape)} by config.json"
    if info.dtype.name not in ("float32", "bfloat16", "float16", "float64"):
        return f"stored as {info.dtype.name}, which is no plain float: the checkpoint is quantised or of another kind"
    return None


def _section(label: str, names: list[str]) -> str:
    if not names:
        return ""
    rest = [f"… and {len(names) - MAX_LISTED:,} more"] if len(names) > MAX_LISTED else []
    return "\n  ".join([f"\n {label}:", *names[:MAX_LISTED], *rest])


def _bits(array: np.ndarray) -> np.ndarray:
    return array.reshape(-1).view(np.uint8)


def _converted(array: np.ndarray, dtype: DType, name: str) -> np.ndarray:
    """`array` in another float type, rounded to nearest even; a number too large for it is an error, not infinity."""
    if array.dtype == dtype.numpy:
        return array
    with np.errstate(over="ignore"):
        result = array.astype(dtype.numpy)
    lost = np.isinf(result)
    if lost.any() and not np.isinf(array[lost]).all():
        raise CheckpointError(
            f"{name}: {int(lost.sum()):,} numbers are too large for {dtype.name} (the first is {array[lost][0]})"
            + ("; use bfloat16 or float32" if dtype.bits < 32 else "")
        )
    return result
