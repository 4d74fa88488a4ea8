"""How a stored weight is made from the parameters of its network.

A recipe is data: the names of its sources and a list of pure, named, versioned steps in single-assignment form. Values
are numbered, the sources first and then one per step; the last value is the stored tensor. In JSON:

    {"sources": ["mlp.gate_proj.weight", "mlp.up_proj.weight"],
     "steps": [["cast", 1, {"dtype": "bfloat16", "in": [0]}], ["cast", 1, {"dtype": "bfloat16", "in": [1]}],
               ["pack_panels", 1, {"in": [2, 3]}]]}

The one function `evaluate` therefore serves building, refit, adapter merging and re-specialising. A step never changes
its meaning: a better one gets a new version, and old files keep naming the old one. Layout steps (`pack_panels`,
`transpose`, `reshape`, `pad`) have an exact inverse, so that the portable form can be had back from a stored tensor
bit for bit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ingot import dtypes
from ingot.dtypes import DType
from ingot.errors import RecipeError

Array = np.ndarray[Any, Any]
Shape = tuple[int, ...]
Known = tuple[DType, Shape]  # what is known of a value before it exists

ADAPTER = "lora."  # begins the names of sources that are an adapter's: `lora.<adapter>.<module>.A`
PANEL = 32  # outputs in one panel of a packed weight, the same at every instruction-set level


def require(ok: bool, why: str) -> None:
    if not ok:
        raise RecipeError(why)


@dataclass(frozen=True)
class Step:
    """One kind of step: `infer(known, **args)` gives dtype and shape, `apply(arrays, **args)` the array.

    `inverse(array, known, **args)` gives back the operands, whose dtypes and shapes are `known`; None: the step loses
    bits. `fields` maps each argument to the check that its JSON value must pass.
    """

    name: str
    version: int
    infer: Callable[..., Known]
    apply: Callable[..., Array]
    fields: Mapping[str, Callable[[Any], bool]]
    inverse: Callable[..., list[Array]] | None = None


@dataclass(frozen=True)
class StepCall:
    """A step of one recipe: operands by number, arguments as sorted pairs, so that equal calls are equal."""

    name: str
    version: int
    inputs: tuple[int, ...]
    args: tuple[tuple[str, Any], ...] = ()

    @property
    def step(self) -> Step:
        try:
            return STEPS[self.name, self.version]
        except KeyError:
            raise RecipeError(
                f"recipe step {self.name!r} version {self.version} is unknown to this version of ingot, which has "
                f"{', '.join(sorted(f'{n} {v}' for n, v in STEPS))}: use a newer ingot"
            ) from None


@dataclass(frozen=True)
class Recipe:
    """Sources (parameter names) and steps; without steps it is the one source as it is."""

    sources: tuple[str, ...]
    steps: tuple[StepCall, ...] = ()

    def then(self, name: str, /, **args: Any) -> Recipe:
        """This recipe and one more step on its result."""
        return combine(name, [self], **args)

    def infer(self, sources: Mapping[str, Known]) -> Known:
        """dtype and shape of the result. Raises RecipeError for operands that a step refuses."""
        values = self._infer_all(sources)
        return values[-1]

    def _infer_all(self, sources: Mapping[str, Known]) -> list[Known]:
        # No network lists an adapter's tensors: None, where nobody says what they are.
        values: list[Any] = [
            sources.get(n) if n.startswith(ADAPTER) else self._source(sources, n) for n in self.sources
        ]
        for i, call in enumerate(self.steps):
            try:
                values.append(call.step.infer([values[j] for j in call.inputs], **dict(call.args)))
            except RecipeError as e:
                raise RecipeError(f"step {i} ({call.name}) of the recipe from {', '.join(self.sources)}: {e}") from None
        return values

    @staticmethod
    def _source(sources: Mapping[str, Any], name: str) -> Any:
        try:
            return sources[name]
        except KeyError:
            raise RecipeError(f"parameter {name!r} has no value, and a recipe needs it") from None

    def json(self) -> dict[str, Any]:
        steps = [[c.name, c.version, {**{k: _to_json(v) for k, v in c.args}, "in": list(c.inputs)}] for c in self.steps]
        return {"sources": list(self.sources), "steps": steps}

    @classmethod
    def from_json(cls, obj: Any) -> Recipe:
        """Strict: unknown keys, steps, arguments and wrong types raise RecipeError."""
        require(
            isinstance(obj, dict) and set(obj) == {"sources", "steps"},
            "a recipe has exactly the keys sources and steps",
        )
        sources, steps = obj["sources"], obj["steps"]
        require(
            isinstance(sources, list) and all(isinstance(s, str) for s in sources), "sources must be a list of names"
        )
        require(isinstance(steps, list), "steps must be a list")
        calls = [_call_from_json(step, len(sources) + i) for i, step in enumerate(steps)]
        require(bool(calls) or len(sources) == 1, "a recipe without steps has exactly one source")
        return cls(tuple(sources), tuple(calls))


def _call_from_json(obj: Any, values: int) -> StepCall:
    require(isinstance(obj, list) and len(obj) == 3, "a step is a list of name, version and arguments")
    name, version, args = obj
    require(
        isinstance(name, str) and type(version) is int and isinstance(args, dict),
        "a step is [name, version, {arguments}]",
    )
    inputs = args.get("in")
    require(
        isinstance(inputs, list) and bool(inputs) and all(type(i) is int and 0 <= i < values for i in inputs),
        f"step {name}: 'in' must list numbers of earlier values (below {values}), not {inputs!r}",
    )
    given = {k: _from_json(v) for k, v in args.items() if k != "in"}
    call = StepCall(name, version, tuple(inputs), tuple(sorted(given.items())))
    _check_args(call.step, given)
    return call


def _check_args(step: Step, args: Mapping[str, Any]) -> None:
    require(
        set(args) == set(step.fields), f"step {step.name} takes the arguments {sorted(step.fields)}, not {sorted(args)}"
    )
    for key, valid in step.fields.items():
        require(valid(args[key]), f"step {step.name}: {key} = {args[key]!r} is not a legal value")


def _to_json(value: Any) -> Any:
    return [_to_json(v) for v in value] if isinstance(value, tuple) else value


def _from_json(value: Any) -> Any:
    return tuple(_from_json(v) for v in value) if isinstance(value, list) else value


def source(name: str) -> Recipe:
    """The parameter itself."""
    return Recipe((name,))


def combine(step_name: str, recipes: Sequence[Recipe], /, version: int = 1, **args: Any) -> Recipe:
    """One step on the results of several recipes, merged into one: equal sources and equal steps are kept once."""
    sources = tuple(dict.fromkeys(name for r in recipes for name in r.sources))
    steps: list[StepCall] = []
    number: dict[StepCall, int] = {}

    def add(call: StepCall) -> int:
        if call not in number:
            number[call] = len(sources) + len(steps)
            steps.append(call)
        return number[call]

    results = []
    for recipe in recipes:
        here = [sources.index(name) for name in recipe.sources]
        for call in recipe.steps:
            here.append(add(StepCall(call.name, call.version, tuple(here[i] for i in call.inputs), call.args)))
        results.append(here[-1])
    call = StepCall(step_name, version, tuple(results), tuple(sorted(args.items())))
    _check_args(call.step, args)
    add(call)
    return Recipe(sources, tuple(steps))


def evaluate(recipe: Recipe, parameters: Mapping[str, Array]) -> Array:
    """The stored array. Intermediates go after their last use: a recipe needs little more memory than its result."""
    last: dict[int, int] = {}
    for i, call in enumerate(recipe.steps):
        last.update(dict.fromkeys(call.inputs, i))
    values: dict[int, Array] = {}
    first_step = len(recipe.sources)
    for i, call in enumerate(recipe.steps):
        for j in call.inputs:
            if j < first_step and j not in values:  # a source is read when it is needed, not before
                values[j] = recipe._source(parameters, recipe.sources[j])
        result = call.step.apply([values[j] for j in call.inputs], **dict(call.args))
        for j in set(call.inputs):
            if last[j] == i:
                del values[j]
        values[first_step + i] = result
    if not recipe.steps:
        return recipe._source(parameters, recipe.sources[0])  # type: ignore[no-any-return]
    return np.asarray(values[first_step + len(recipe.steps) - 1], order="C")


def invert_last(recipe: Recipe, array: Array, sources: Mapping[str, Known]) -> list[Array]:
    """The operands of the last step, from the stored array. Raises RecipeError when that step loses bits."""
    require(bool(recipe.steps), "a recipe without steps has nothing to invert")
    call = recipe.steps[-1]
    if call.step.inverse is None:
        raise RecipeError(f"step {call.name} has no inverse")
    known = recipe._infer_all(sources)
    return call.step.inverse(array, [known[i] for i in call.inputs], **dict(call.args))


def parameter_at(recipe: Recipe, number: int) -> str | None:
    """The parameter whose value a recipe's value is, as the network sees it: cast, and with adapters merged in."""
    count = len(recipe.sources)
    while number >= count:
        call = recipe.steps[number - count]
        if call.name not in ("cast", "lora_merge"):
            return None
        number = call.inputs[0]
    name = recipe.sources[number]
    return None if name.startswith(ADAPTER) else name


# --------------------------------------------------------------------------------------------------------------- steps

STEPS: dict[tuple[str, int], Step] = {}


def _register(step: Step) -> Step:
    STEPS[step.name, step.version] = step
    return step


def _one(known: Sequence[Known]) -> Known:
    require(len(known) == 1, f"takes one operand, not {len(known)}")
    return known[0]


def _is_ints(value: Any) -> bool:
    return isinstance(value, tuple) and all(type(v) is int and v >= 0 for v in value)


def _is_int(value: Any) -> bool:
    return type(value) is int and value >= 0


def _is_positive(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value < math.inf


def _is_finite(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


def _is_bool(value: Any) -> bool:
    return type(value) is bool


def _is_dtype(value: Any) -> bool:
    return isinstance(value, str) and any(value == dtype.name for dtype in dtypes.ALL)


# concat: operands joined along an axis.
def _concat_infer(known: Sequence[Known], axis: int) -> Known:
    dtype, shape = known[0]
    require(axis < len(shape), f"axis {axis} is out of range for rank {len(shape)}")
    for other_dtype, other in known[1:]:
        same = (
            other_dtype == dtype
            and len(other) == len(shape)
            and all(a == b for d, (a, b) in enumerate(zip(shape, other, strict=True)) if d != axis)
        )
        require(
            same, f"operands disagree: {dtype.name}{list(shape)} and {other_dtype.name}{list(other)} along axis {axis}"
        )
    return dtype, shape[:axis] + (sum(s[axis] for _, s in known),) + shape[axis + 1 :]


def _concat_inverse(array: Array, known: Sequence[Known], axis: int) -> list[Array]:
    ends = np.cumsum([shape[axis] for _, shape in known])[:-1]
    return [np.ascontiguousarray(part) for part in np.split(array, ends, axis)]


# cast: conversion between number formats, round half to even.
def _cast_apply(arrays: Sequence[Array], dtype: str) -> Array:
    array, target = arrays[0], dtypes.get(dtype)
    if array.dtype == target.numpy:
        return array
    with np.errstate(over="ignore"):
        out: Array = array.astype(target.numpy)
    if target is dtypes.float16 and not np.isfinite(out).all():
        lost = np.isfinite(array) & ~np.isfinite(out)
        if lost.any():
            worst = float(np.abs(array[lost].astype(np.float64)).max())
            raise RecipeError(
                f"{int(lost.sum())} weight(s) do not fit float16 (largest magnitude {worst:g}, limit 65504): "
                f"build with "
                "precision bfloat16 or float32"
            )
    return out


# transpose: a permutation of the dims.
def _transpose_infer(known: Sequence[Known], axes: Shape) -> Known:
    dtype, shape = _one(known)
    require(
        sorted(axes) == list(range(len(shape))), f"axes {list(axes)} are not a permutation of the {len(shape)} dims"
    )
    return dtype, tuple(shape[a] for a in axes)


# reshape: the same elements in row-major order.
def _reshape_infer(known: Sequence[Known], shape: Shape) -> Known:
    dtype, old = _one(known)
    require(math.prod(old) == math.prod(shape), f"{list(old)} cannot be reshaped to {list(shape)}")
    return dtype, shape


# pad: zeros behind each dim.
def _pad_infer(known: Sequence[Known], after: Shape) -> Known:
    dtype, shape = _one(known)
    require(len(after) == len(shape), f"pad needs one width per dim, {len(shape)}, not {len(after)}")
    return dtype, tuple(s + a for s, a in zip(shape, after, strict=True))


# slice: a box; how one source becomes several weights.
def _slice_infer(known: Sequence[Known], starts: Shape, sizes: Shape) -> Known:
    dtype, shape = _one(known)
    fits = len(starts) == len(sizes) == len(shape) and all(
        a + n <= s for a, n, s in zip(starts, sizes, shape, strict=True)
    )
    require(fits, f"box at {list(starts)} of {list(sizes)} does not lie in {list(shape)}")
    return dtype, sizes


def _slice_apply(arrays: Sequence[Array], starts: Shape, sizes: Shape) -> Array:
    return arrays[0][tuple(slice(a, a + n) for a, n in zip(starts, sizes, strict=True))]


# scale: the first operand times a vector along one of its dims, in float32, rounded once: folding of a norm's weight.
def _scale_infer(known: Sequence[Known], axis: int) -> Known:
    require(len(known) == 2, f"takes a tensor and a vector, not {len(known)} operands")
    (dtype, shape), (_, vector) = known
    require(
        axis < len(shape) and vector == (shape[axis],),
        f"a vector of {list(shape)} dim {axis} is needed, not {list(vector)}",
    )
    return dtype, shape


def _scale_apply(arrays: Sequence[Array], axis: int) -> Array:
    array, vector = arrays
    shape = tuple(-1 if d == axis else 1 for d in range(array.ndim))
    return (array.astype(np.float32) * vector.astype(np.float32).reshape(shape)).astype(array.dtype)


# norm_scale, norm_shift: batch normalisation as y = x · scale + shift, computed in float64 and rounded to float32.
# Operands: variance, weight?; and mean, scale, bias?, prior? (what was added to x before).
def _vectors_infer(known: Sequence[Known], least: int, most: int) -> Known:
    count = str(least) if least == most else f"{least} to {most}"
    require(least <= len(known) <= most, f"takes {count} vectors, not {len(known)}")
    shape = known[0][1]
    require(len(shape) == 1 and all(other == shape for _, other in known),
            f"needs vectors of one size, not {', '.join(str(list(other)) for _, other in known)}")  # fmt: skip
    return dtypes.float32, shape


def _norm_scale_apply(arrays: Sequence[Array], eps: float) -> Array:
    variance, *weight = (a.astype(np.float64) for a in arrays)
    with np.errstate(all="ignore"):
        return np.asarray((weight[0] if weight else 1.0) / np.sqrt(variance + eps), np.float32)


def _norm_shift_infer(known: Sequence[Known], bias: bool, prior: bool) -> Known:
    return _vectors_infer(known, 2 + bias + prior, 2 + bias + prior)


def _norm_shift_apply(arrays: Sequence[Array], bias: bool, prior: bool) -> Array:
    mean, scale, *rest = (a.astype(np.float64) for a in arrays)
    with np.errstate(all="ignore"):
        shift = ((rest[-1] if prior else 0.0) - mean) * scale
        return np.asarray(shift + rest[0] if bias else shift, np.float32)


# lora_merge: base + scale · (b · a) in float64, rounded to float32. Operands: base [O, I], a [r, I], b [O, r]; where
# `transposed` the product is: base [I, O].
MERGED_AT_ONCE = 1 << 20  # elements of base; bounds the float64 intermediates


def _lora_infer(known: Sequence[Known | None], scale: float, transposed: bool) -> Known:
    require(len(known) == 3, f"takes base, a and b, not {len(known)} operands")
    base, *pair = known
    if base is None:
        raise RecipeError("an adapter's own tensor is no base")
    require(len(base[1]) == 2 and 0 not in base[1], f"a base [O, I] is needed, not {list(base[1])}")
    if pair[0] is not None and pair[1] is not None:
        a, b = pair[0][1], pair[1][1]
        outputs, inputs = base[1][::-1] if transposed else base[1]
        require(len(a) == len(b) == 2 and a[0] == b[1] and (b[0], a[1]) == (outputs, inputs),
                f"a {list(a)} and b {list(b)} do not fit a base of {outputs} outputs and {inputs} inputs")  # fmt: skip
    return dtypes.float32, base[1]


def _lora_apply(arrays: Sequence[Array], scale: float, transposed: bool) -> Array:
    base = arrays[0]
    _lora_infer([(dtypes.get(x.dtype), x.shape) for x in arrays], scale, transposed)
    a, b = (x.astype(np.float64) for x in arrays[1:])
    left, right = (a.T, b.T) if transposed else (b, a)
    out = np.empty(base.shape, np.float32)
    step = max(1, MERGED_AT_ONCE // base.shape[1])
    lost = 0
    with np.errstate(over="ignore", invalid="ignore"):
        for begin in range(0, len(base), step):
            rows = slice(begin, begin + step)
            before = base[rows].astype(np.float64)
            out[rows] = before + (left[rows] @ right) * scale
            lost += int(np.count_nonzero(np.isfinite(before) & ~np.isfinite(out[rows])))
    require(not lost, f"{lost} merged numbers are no longer finite: a damaged adapter, or a scale {scale:g} too large")
    return out


# take: elements along an axis, chosen by index, in that order.
def _take_infer(known: Sequence[Known], axis: int, indices: Shape) -> Known:
    dtype, shape = _one(known)
    require(axis < len(shape) and max(indices, default=0) < max(shape[axis], 1),
            f"indices {list(indices)} do not lie along axis {axis} of {list(shape)}")  # fmt: skip
    return dtype, (*shape[:axis], len(indices), *shape[axis + 1 :])


# pack_panels: weights [N, K] of a product in the order in which the kernels read them.
def packed_shape(dtype: DType, n: int, k: int, parts: int) -> Shape:
    """Shape of `parts` weights [n, k] packed: [panels, k, 32], or [panels, ceil(k / 2), 32, 2] for bfloat16."""
    panels = parts * -(-n // PANEL)
    return (panels, -(-k // 2), PANEL, 2) if dtype is dtypes.bfloat16 else (panels, k, PANEL)


def _pack_infer(known: Sequence[Known]) -> Known:
    dtype, shape = known[0]
    require(len(known) in (1, 2), f"packs one or two weights, not {len(known)}")
    require(dtype in (dtypes.float32, dtypes.float16, dtypes.bfloat16), f"weights of {dtype.name} cannot be packed")
    require(len(shape) == 2 and 0 not in shape, f"a weight [N, K] is needed, not {list(shape)}")
    require(all(one == known[0] for one in known), "the weights must agree in dtype and shape")
    return dtype, packed_shape(dtype, shape[0], shape[1], len(known))


def _aligned(shape: Shape, dtype: np.dtype[Any]) -> Array:
    """An empty array that begins at a cache line, which halves the lines that a wide load touches."""
    size = math.prod(shape) * dtype.itemsize
    raw = np.empty(size + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + size].view(dtype).reshape(shape)


def pack_panels(weights: Sequence[Array]) -> Array:
    """Weights [N, K] (1 or 2 of them) as panels of 32 outputs, zero padded; with two weights their panels alternate.

    float32 and float16: [panel, k, lane]; bfloat16: [panel, k pair, lane, parity], what a dot product of pairs reads.
    """
    known = [(dtypes.get(w.dtype), w.shape) for w in weights]
    dtype, shape = _pack_infer(known)
    out = _aligned(shape, dtype.numpy)
    n, k = weights[0].shape
    pairs = dtype is dtypes.bfloat16
    # A pair of bfloat16 moves as one 32-bit word. A panel (32 rows) at a time stays in the cache: 3-7 GB/s in NumPy.
    unit = np.dtype(np.uint32) if pairs or dtype is dtypes.float32 else np.dtype(np.uint16)
    words = out.view(unit).reshape(shape[:3])
    full = n // PANEL
    for part, weight in enumerate(weights):
        rows = np.ascontiguousarray(weight)
        if pairs and k % 2:
            rows = np.concatenate([rows.view(np.uint16), np.zeros((n, 1), np.uint16)], 1)
        rows = rows.view(unit)
        mine = words[part :: len(weights)]
        for p in range(full):
            mine[p] = rows[p * PANEL : (p + 1) * PANEL].T
        if full < len(mine):
            mine[full] = 0
            mine[full, :, : n - full * PANEL] = rows[full * PANEL :].T
    return out


def unpack_panels(packed: Array, n: int, k: int, parts: int) -> list[Array]:
    """The exact inverse of `pack_panels`: the `parts` weights [n, k]."""
    dtype = dtypes.get(packed.dtype)
    shape = packed_shape(dtype, n, k, parts)
    require(
        packed.shape == shape, f"{parts} weight(s) [{n}, {k}] are packed as {list(shape)}, not {list(packed.shape)}"
    )
    pairs = dtype is dtypes.bfloat16
    unit = np.dtype(np.uint32) if pairs or dtype is dtypes.float32 else np.dtype(np.uint16)
    words = np.ascontiguousarray(packed).view(unit).reshape(shape[:3])
    result = []
    for part in range(parts):
        mine = words[part::parts]
        rows = np.empty((mine.shape[0] * PANEL, mine.shape[1]), unit)
        for p in range(mine.shape[0]):
            rows[p * PANEL : (p + 1) * PANEL] = mine[p].T
        result.append(np.ascontiguousarray(rows.view(dtype.numpy)[:n, :k]))
    return result


def _pack_inverse(array: Array, known: Sequence[Known]) -> list[Array]:
    n, k = known[0][1]
    return unpack_panels(array, n, k, len(known))


def _same_dims(array: Array, known: Sequence[Known], **_: Any) -> list[Array]:
    return [array.reshape(known[0][1])]


_register(
    Step("concat", 1, _concat_infer, lambda xs, axis: np.concatenate(xs, axis), {"axis": _is_int}, _concat_inverse)
)
_register(Step("cast", 1, lambda known, dtype: (dtypes.get(dtype), _one(known)[1]), _cast_apply, {"dtype": _is_dtype}))
_register(
    Step(
        "transpose", 1, _transpose_infer, lambda xs, axes: xs[0].transpose(axes), {"axes": _is_ints},
        lambda array, known, axes: [np.ascontiguousarray(array.transpose(np.argsort(axes)))],
    )
)  # fmt: skip
_register(
    Step(
        "reshape",
        1,
        _reshape_infer,
        lambda xs, shape: np.ascontiguousarray(xs[0]).reshape(shape),
        {"shape": _is_ints},
        _same_dims,
    )
)
_register(
    Step(
        "pad", 1, _pad_infer, lambda xs, after: np.pad(xs[0], [(0, a) for a in after]), {"after": _is_ints},
        lambda array, known, after: [_slice_apply([array], (0,) * array.ndim, known[0][1])],
    )
)  # fmt: skip
_register(Step("slice", 1, _slice_infer, _slice_apply, {"starts": _is_ints, "sizes": _is_ints}))
_register(Step("scale", 1, _scale_infer, _scale_apply, {"axis": _is_int}))
_register(
    Step("norm_scale", 1, lambda known, eps: _vectors_infer(known, 1, 2), _norm_scale_apply, {"eps": _is_positive})
)
_register(Step("norm_shift", 1, _norm_shift_infer, _norm_shift_apply, {"bias": _is_bool, "prior": _is_bool}))
_register(
    Step("take", 1, _take_infer, lambda xs, axis, indices: np.take(xs[0], indices, axis),
         {"axis": _is_int, "indices": _is_ints})
)  # fmt: skip
_register(Step("lora_merge", 1, _lora_infer, _lora_apply, {"scale": _is_finite, "transposed": _is_bool}))
_register(Step("pack_panels", 1, _pack_infer, lambda xs: pack_panels(xs), {}, _pack_inverse))


def names(recipes: Iterable[Recipe]) -> list[str]:
    """All source names, in order of first use."""
    return list(dict.fromkeys(name for recipe in recipes for name in recipe.sources))
