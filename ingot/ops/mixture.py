"""Mixtures of experts: every token goes through the few gated MLPs that its router scores highest."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ingot import dtypes
from ingot.ir import Case, ExprBuilder, Op, Spec, op, require
from ingot.ir.expr import evaluate
from ingot.ops.common import Array, bf16, f32, i32, rounded, same_dtype, show, widen
from ingot.ops.elementwise import Gelu, Relu, Silu
from ingot.ops.fused import expr_json, expr_tuple
from ingot.ops.order import torch_sorted

ACTIVATIONS: dict[str, Op] = {
    "silu": Silu(), "gelu": Gelu(), "gelu_tanh": Gelu(approximate=True), "relu": Relu()}
MAX_TOP_K = 32


def gated_expression(activation: str, scaled: bool = False, zeros: bool = False) -> tuple[Any, ...]:
    """The expression activation(input 0) · input 1; `scaled`: times the next two inputs before; `zeros`: plus the next
    two after that."""
    builder = ExprBuilder()
    gate, up = (builder.input(i, dtypes.float32) for i in (0, 1))
    if scaled:
        gate, up = (v * builder.input(2 + i, dtypes.float32) for i, v in enumerate((gate, up)))
    if zeros:
        first = 4 if scaled else 2
        gate, up = (v + builder.input(first + i, dtypes.float32) for i, v in enumerate((gate, up)))
    made: Any = ACTIVATIONS[activation]
    result = made.expr(builder, gate) * up
    return expr_tuple({"steps": builder.steps, "outputs": [result.index]})


def route(router: Array, top_k: int, normalize: bool) -> tuple[Array, Array]:
    """Each row's experts [T, k], best first, of equals the lower number, and their weights [T, k]."""
    wide = router.astype(np.float32)
    with np.errstate(invalid="ignore"):
        p = np.exp(wide - wide.max(-1, keepdims=True, initial=-np.inf))
        p /= p.sum(-1, keepdims=True)
    chosen = np.argsort(-p, axis=-1, kind="stable")[:, :top_k]
    weights = np.take_along_axis(p, chosen, -1)
    return chosen, weights / weights.sum(-1, keepdims=True) if normalize else weights


def mix(x: Array, router: Array, top_k: int, normalize: bool, experts: Sequence[Any]) -> Array:
    """The weighted sum of each row's experts; an expert is a function from rows to float32 rows."""
    chosen, weights = route(router, top_k, normalize)
    out = np.zeros(x.shape, np.float32)
    with np.errstate(all="ignore"):
        for j in range(top_k):
            for e in np.unique(chosen[:, j]):
                rows = chosen[:, j] == e
                out[rows] += experts[e](x[rows]) * weights[rows, j, None]
    return rounded(out, x)


def _check(x: Spec, router: Spec, experts: int, top_k: int) -> None:
    require(x.dtype in dtypes.PRECISIONS, f"x must be float32, bfloat16 or float16, not {x.dtype.name}")
    require(len(x.shape) == 2, "x must be [tokens, width]")
    require(router == Spec((x.shape[0], experts), dtypes.float32),
            f"router must be f32[{x.shape[0]}, {experts}], a score for each expert")
    require(1 <= top_k <= min(experts, MAX_TOP_K),
            f"top_k must lie in 1..{min(experts, MAX_TOP_K)}, not {top_k}")


# x, scores of three experts, and their weights: hidden 6, inner 5
_EXPERTS = (*[f32(5, 6)] * 6, *[f32(6, 5)] * 3)


@op("moe")
class Moe(Op):
    """Σ over the top_k experts e of each row: p(e) · down_e(act(gate_e(x)) · up_e(x)), p the softmax of router [T, E].

    Weights: the gates [I, H] of all experts, then their ups [I, H], then their downs [H, I]. `normalize`: the top_k
    weights of a row sum to 1. Of equal scores the expert with the lower number wins.
    """

    top_k: int
    normalize: bool = True
    activation: str = "silu"
    stored = ("weights",)
    cases = (
        Case("two of three", (f32("T", 6), f32("T", 3), *_EXPERTS), {"top_k": 2}),
        Case("the same, weights computed", (f32("T", 6), f32("T", 3), *_EXPERTS), {"top_k": 2}, stored=(),
             host="the kernel takes packed weights"),
        Case("all, weights as they are", (f32(4, 6), f32(4, 3), *_EXPERTS), {"top_k": 3, "normalize": False}),
        Case("bfloat16, tanh gelu", (bf16(4, 6), f32(4, 2), *[bf16(5, 6)] * 4, *[bf16(6, 5)] * 2),
             {"top_k": 1, "activation": "gelu_tanh"}),
        Case("too many", (f32(4, 6), f32(4, 3), *_EXPERTS), {"top_k": 4}, error=r"top_k must lie in 1\.\.3, not 4"),
        Case("no such activation", (f32(4, 6), f32(4, 3), *_EXPERTS), {"top_k": 1, "activation": "mish"},
             error="activation must be one of silu"),
        Case("a missing expert", (f32(4, 6), f32(4, 3), *_EXPERTS[:-1]), {"top_k": 1}, error="three weights an expert"),
        Case("a weight of another size", (f32(4, 6), f32(4, 1), f32(5, 6), f32(4, 6), f32(6, 5)), {"top_k": 1},
             error="gates and ups must be"),
        Case("scores of other experts", (f32(4, 6), f32(4, 2), *_EXPERTS), {"top_k": 1}, error="router must be f32"),
        Case("integers", (i32(4, 6), f32(4, 3), *_EXPERTS), {"top_k": 1}, error="x must be float32"),
    )

    def infer(self, x: Spec, router: Spec, *weights: Spec) -> Spec:
        require(bool(weights) and len(weights) % 3 == 0, f"needs three weights an expert, not {len(weights)} in all")
        experts = len(weights) // 3
        _check(x, router, experts, self.top_k)
        require(self.activation in ACTIVATIONS,
                f"activation must be one of {', '.join(ACTIVATIONS)}, not {self.activation!r}")
        hidden, inner = x.shape[1], weights[0].shape[0] if len(weights[0].shape) == 2 else 0
        for i, weight in enumerate(weights):
            name, wanted = ("gates and ups", (inner, hidden)) if i < 2 * experts else ("downs", (hidden, inner))
            require(weight.shape == wanted, f"{name} must be {show(wanted)}, not {show(weight.shape)}")
            same_dtype(x=x, weight=weight)
        return x

    def working(self, x: Spec, router: Spec, *weights: Spec) -> int:
        """Rows of the hidden size, and the steps of the expression on them."""
        return (2 + len(gated_expression(self.activation)[0])) * int(x.shape[0]) * int(weights[0].shape[0]) * 8

    def reference(self, x: Array, router: Array, *weights: Array) -> Array:
        count = len(weights) // 3
        gated = expr_json(gated_expression(self.activation))

        def expert(e: int) -> Any:
            gate, up, down = (widen(weights[e + i * count]) for i in range(3))

            def run(rows: Array) -> Array:
                wide = widen(rows)
                hidden = evaluate(gated, [wide @ gate.T, wide @ up.T], [dtypes.get(x.dtype)])[0]
                return widen(hidden) @ down.T

            return run

        return mix(x, router, self.top_k, self.normalize, [expert(e) for e in range(count)])

    def torch(self, torch: Any, x: Any, router: Any, *weights: Any) -> Any:
        count = len(weights) // 3
        values, chosen = torch_sorted(torch, router.softmax(-1), -1, descending=True)  # topk breaks ties as it likes
        values, chosen = values[:, : self.top_k], chosen[:, : self.top_k]
        if self.normalize:
            values = values / values.sum(-1, keepdim=True)
        f = torch.nn.functional
        act = {"silu": f.silu, "relu": f.relu, "gelu": f.gelu, "gelu_tanh": lambda v: f.gelu(v, approximate="tanh")}
        out = torch.zeros(x.shape, device=x.device)
        for e in range(count):
            gate, up, down = (weights[e + i * count].float() for i in range(3))
            mine = chosen == e
            share = torch.where(mine, values, 0).sum(-1, keepdim=True)
            hidden = act[self.activation](x.float() @ gate.T) * (x.float() @ up.T)
            part = share * (hidden.to(x.dtype).float() @ down.T)
            out += torch.where(mine.any(-1, keepdim=True), part, 0)  # for other rows it may be no number
        return out.to(x.dtype)
