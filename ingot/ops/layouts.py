"""Ops whose stored operands lie as kernels read them: one op for all of them, which unpacks and hands on.

A layout says what an operand of it holds, by its sizes, and how it is unpacked. Those of panels are in panels.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from ingot import dtypes
from ingot.dtypes import DType
from ingot.ir import Case, Op, Spec, op, require
from ingot.ir.op import infer
from ingot.ir.weight_format import INTEGERS
from ingot.ops.common import Array, bf16, f16, f32, i8, i32, rounded, u8
from ingot.ops.fused import IDENTITY, PLUS, SILU_MUL, TIMES, WEIGHTS, FusedLinear
from ingot.ops.fused_spatial import RELU_PLUS, FusedConv, from_torch, geometry, pack_groups, panel_shape, unpack_groups
from ingot.ops.indexing import Embedding
from ingot.ops.mixture import Moe
from ingot.ops.panels import pack_panels, packed_dtype, packed_shape, unpack_panels, unpacked_dtype

PLAIN = "plain"
INNER = (Embedding, FusedConv, FusedLinear, Moe)  # the ops that have operands in a layout
# Of the cases below:
_Linear: Any = FusedLinear
X, GROUPS = ("plain", (0,)), "panels of groups"


class Layout(NamedTuple):
    """An order in which several arrays [n, k] of one dtype are stored as one, by a number of sizes.

    shape: of what is stored, from dtype, number of arrays and sizes. pack, unpack: between the arrays and that.
    """

    sizes: int
    shape: Callable[..., tuple[int, ...]]
    pack: Callable[..., Array]
    unpack: Callable[..., Sequence[Array]]


def _expert_shape(dtype: DType, count: int, n: int, k: int, experts: int) -> tuple[int, ...]:
    require(count % experts == 0, f"{count} weights are not those of {experts} experts")
    panels, *rest = packed_shape(dtype, n, k, count // experts)
    return (experts * panels, *rest)


def _pack_experts(weights: Sequence[Array], n: int, k: int, experts: int) -> Array:
    return np.concatenate([pack_panels(weights[e::experts]) for e in range(experts)])


def _unpack_experts(stored: Array, count: int, n: int, k: int, experts: int) -> list[Array]:
    each = [unpack_panels(part, n, k, count // experts) for part in np.split(stored, experts)]
    return [weights[part] for part in range(count // experts) for weights in each]


LAYOUTS = {
    "panels": Layout(
        2,
        lambda dtype, count, n, k: packed_shape(dtype, n, k, count),
        lambda weights, n, k: pack_panels(weights),
        lambda stored, count, n, k: unpack_panels(stored, n, k, count),
    ),
    "panels of groups": Layout(  # of a convolution: every group of outputs begins a panel
        3,
        lambda dtype, count, n, k, groups: panel_shape(dtype, groups, n, k),
        lambda weights, n, k, groups: pack_groups(weights[0], groups),
        lambda stored, count, n, k, groups: [unpack_groups(stored, groups, n, k)],
    ),
    "panels of experts": Layout(3, _expert_shape, _pack_experts, _unpack_experts),  # one after the other
}


@op("laid_out")
class LaidOut(Op):
    """The op `inner` whose first operands are stored as `layouts` say; the others follow as they are.

    A layout is (its name, the operands of `inner` that it holds, its sizes…); ("plain", (i,)) is operand i itself.
    """

    inner: Op
    layouts: tuple  # type: ignore[type-arg]
    reads_back = True
    cases = (
        Case("one product", (f32("T", 6), f32(2, 6, 32)),
             {"inner": _Linear(body=IDENTITY, dtype="float32"),
              "layouts": (X, ("panels", (1,), 40, 6))}),
        Case("bfloat16, odd K", (bf16(3, 5), bf16(1, 3, 32, 2)),
             {"inner": _Linear(body=IDENTITY, dtype="float32"),
              "layouts": (X, ("panels", (1,), 8, 5))}),
        Case("gate and up", (bf16(3, 6), bf16(2, 3, 32, 2)),
             {"inner": _Linear(body=SILU_MUL, dtype="bfloat16", parts=2),
              "layouts": (X, ("panels", (1, 2), 5, 6))}),
        Case("int8 and its scales", (bf16("T", 6), i8(2, 2, 32, 4), f32(40)),
             {"inner": _Linear(body=TIMES, dtype="bfloat16"),
              "layouts": (X, ("panels", (1,), 40, 6))}),
        Case("int8 beside float32", (f32("T", 6), i8(4, 2, 32, 4)),
             {"inner": _Linear(body=SILU_MUL, dtype="float32", parts=2),
              "layouts": (X, ("panels", (1, 2), 40, 6))}),
        Case("int4 in groups", (f16("T", 16), u8(2, 2, 32, 4), f32(2, 2, 32)),
             {"inner": _Linear(body=IDENTITY, dtype="float16", group=8),
              "layouts": (X, ("panels", (1,), 40, 16), ("panels", (2,), 40, 2))}),
        Case("two of int4", (bf16("T", 16), u8(4, 2, 32, 4), f32(4, 2, 32), bf16("T", 40)),
             {"inner": _Linear(body=((*SILU_MUL[0], ("input", "float32", 2), ("add", "float32", 3, 4)), (5,)),
                                   dtype="bfloat16", parts=2, group=8),
              "layouts": (X, ("panels", (1, 3), 40, 16), ("panels", (2, 4), 40, 2))}),
        Case("a tied table", (i32("T"), bf16(2, 3, 32, 2)),
             {"inner": Embedding(), "layouts": (X, ("panels", (1,), 40, 6))}),
        Case("a table of integers", (i32("T"), i8(2, 2, 32, 4)),
             {"inner": Embedding(), "layouts": (X, ("panels", (1,), 40, 6))}),
        Case("3×3, two panels", (f32("T", 5, 6, 4), f32(2, 36, 32)),
             {"inner": FusedConv(**geometry(groups=1)), "layouts": (X, (GROUPS, (1,), 40, 36, 1))}),
        Case("bfloat16, odd K, bias and relu", (bf16(2, 5, 5, 3), bf16(1, 14, 32, 2), bf16(8)),
             {"inner": FusedConv(**geometry(stride=2, groups=1, body=RELU_PLUS, dtype="bfloat16")),
              "layouts": (X, (GROUPS, (1,), 8, 27, 1))}),
        Case("a panel per group", (f32(2, 9, 6), f32(2, 9, 32)),
             {"inner": FusedConv(**geometry(1, dilation=2, groups=2)),
              "layouts": (X, (GROUPS, (1,), 4, 9, 2))}),
        Case("three dims, residual", (f16(1, 3, 4, 3, 2), f16(1, 54, 32), f16(1, 3, 4, 3, 5)),
             {"inner": FusedConv(**geometry(3, groups=1, body=PLUS, dtype="float16")),
              "layouts": (X, (GROUPS, (1,), 5, 54, 1))}),
        Case("two of three experts", (f32("T", 6), f32("T", 3), f32(6, 6, 32), f32(3, 5, 32)),
             {"inner": Moe(top_k=2), "layouts": (
                 X, ("plain", (1,)), ("panels of experts", (2, 3, 4, 5, 6, 7), 5, 6, 3),
                 ("panels of experts", (8, 9, 10), 6, 5, 3))}),
        Case("experts in bfloat16", (bf16(4, 5), f32(4, 2), bf16(8, 3, 32, 2), bf16(2, 20, 32, 2)),
             {"inner": Moe(top_k=1, normalize=False, activation="gelu"), "layouts": (
                 X, ("plain", (1,)), ("panels of experts", (2, 3, 4, 5), 40, 5, 2),
                 ("panels of experts", (6, 7), 5, 40, 2))}),
        Case("not packed", (f32(3, 6), f32(5, 6)),
             {"inner": _Linear(body=IDENTITY, dtype="float32"),
              "layouts": (X, ("panels", (1,), 5, 6))}, error=r"must be float32\[1, 6, 32\]"),
        Case("rows of 4 bits", (i32(4), u8(2, 1, 32, 4)),
             {"inner": Embedding(), "layouts": (X, ("panels", (1,), 40, 6))},
             error="rows of int4 are no tensor"),
        Case("an operand twice", (f32(3, 6), f32(1, 6, 32)),
             {"inner": _Linear(body=IDENTITY, dtype="float32"),
              "layouts": (X, ("panels", (0,), 5, 6))}, error="each operand once"),
        Case("no such layout", (f32(3, 6), f32(1, 6, 32)),
             {"inner": _Linear(body=IDENTITY, dtype="float32"),
              "layouts": (X, ("rows", (1,), 5, 6))}, error="there is no layout"),
        Case("an op that has none", (f32(3, 6), f32(1, 6, 32)),
             {"inner": Embedding(), "layouts": (X, ("panels", (1,), 5))}, error="takes 2 sizes"),
    )  # fmt: skip

    def sizes(self, at: int) -> tuple[int, ...]:
        """The sizes of the layout of operand `at`; () when it is plain."""
        return tuple(self.layouts[at][2:]) if at < len(self.layouts) else ()

    def layout(self, at: int) -> str:
        """The name of the layout of operand `at`."""
        return str(self.layouts[at][0]) if at < len(self.layouts) else PLAIN

    def plain(self, operands: Sequence[Spec]) -> tuple[Spec, ...]:
        """The operands of `inner`; OpError where a stored one is not what its layout says."""
        require(isinstance(self.inner, INNER), f"{self.inner.name} has no operands in a layout")
        require(len(operands) >= len(self.layouts), f"needs {len(self.layouts)} operands, got {len(operands)}")
        found: dict[int, Spec] = {}
        for entry, spec in zip(self.layouts, operands, strict=False):
            places, held = _held(entry, spec)
            found |= zip(places, held, strict=True)
        listed = sum(len(entry[1]) for entry in self.layouts)
        require(sorted(found) == list(range(listed)), "layouts hold each operand once, the first ones")
        return (*(found[i] for i in range(listed)), *operands[len(self.layouts) :])

    def infer(self, *operands: Spec) -> Spec:
        (result,) = infer(self.inner, self.plain(operands), "its layouts")
        require(result.dtype is not dtypes.int4, "rows of int4 are no tensor that an engine has")
        return result  # type: ignore[no-any-return]

    def working(self, *operands: Spec) -> int:
        plain = self.plain(operands)
        return self.inner.working(*plain) + sum(int(s.elements) * 4 for s in plain)

    def steps(self, *operands: Spec) -> int:
        return self.inner.steps(*self.plain(operands))

    def reference(self, *operands: Array) -> Any:
        return self.inner.reference(*self._unpacked(operands))

    def torch(self, torch: Any, *operands: Any) -> Any:
        if self.inner.torch is None:
            return None
        stored = [from_torch(torch, x) for x in operands[: len(self.layouts)]]
        plain = self._unpacked([*stored, *operands[len(self.layouts) :]])
        return self.inner.torch(torch, *(_tensor(torch, x) if isinstance(x, np.ndarray) else x for x in plain))

    def _unpacked(self, operands: Sequence[Any]) -> list[Any]:
        found: dict[int, Any] = {}
        for (name, places, *sizes), stored in zip(self.layouts, operands, strict=False):
            arrays = [stored] if name == PLAIN else LAYOUTS[name].unpack(stored, len(places), *sizes)
            found |= zip(places, arrays, strict=True)
        return [*(found[i] for i in range(len(found))), *operands[len(self.layouts) :]]

    def sample(self, rng: np.random.Generator, *operands: Spec) -> tuple[Array, ...]:
        specs = self.plain(operands)
        plain = self.inner.sample(rng, *specs) if self.inner.sample else tuple(_random(rng, s) for s in specs)
        stored = []
        for name, places, *sizes in self.layouts:
            arrays = [plain[i] for i in places]
            stored.append(arrays[0] if name == PLAIN else LAYOUTS[name].pack(arrays, *sizes))
        return (*stored, *plain[sum(len(entry[1]) for entry in self.layouts) :])

    @classmethod
    def draw(cls, draw: Any) -> Case:
        case = FusedConv.draw(draw)
        conv, (x, weight) = FusedConv(**case.attrs), case.specs
        sizes = (*weight.shape, conv.groups)
        panels = f32(*panel_shape(dtypes.float32, conv.groups, *weight.shape))
        return Case("random", (x, panels), {"inner": conv, "layouts": (X, (GROUPS, (1,), *sizes))})


def _held(entry: Any, spec: Spec) -> tuple[Sequence[int], list[Spec]]:
    """The places of what an operand holds, and their specs."""
    form = isinstance(entry, tuple) and len(entry) > 1 and isinstance(entry[1], tuple) and len(entry[1]) > 0
    require(form and all(type(i) is int for i in (*entry[1], *entry[2:])), "a layout is (name, (places…), sizes…)")
    name, places, *sizes = entry
    if name == PLAIN:
        require(len(places) == 1 and not sizes, "a plain operand is (plain, (place,))")
        return places, [spec]
    require(name in LAYOUTS, f"there is no layout {name!r:.40}")
    layout = LAYOUTS[name]
    require(len(sizes) == layout.sizes, f"the layout {name} takes {layout.sizes} sizes, not {len(sizes)}")
    dtype = unpacked_dtype(spec.dtype)
    require(dtype in (*WEIGHTS, *INTEGERS) and min(sizes) > 0, "panels hold floats, int8 or int4, their sizes positive")
    wanted = Spec(packed_dtype(dtype), layout.shape(dtype, len(places), *sizes))
    require(spec == wanted, f"what is stored in {name} must be {wanted.dtype.name}{list(wanted.shape)}, not {spec}")
    n, k = sizes[:2]
    return places, [Spec(dtype, (n, k))] * len(places)


def _random(rng: np.random.Generator, spec: Spec) -> Array:
    if spec.dtype.is_integer:
        most = 2 ** (spec.dtype.bits - 1)
        return rng.integers(-most, most, spec.shape).astype(spec.dtype.numpy)
    return rounded(rng.standard_normal(spec.shape), spec.dtype)


def _tensor(torch: Any, array: Array) -> Any:
    if dtypes.get(array.dtype) is dtypes.bfloat16:
        return torch.from_numpy(array.view(np.int16).copy()).view(torch.bfloat16)
    return torch.from_numpy(np.ascontiguousarray(array))
