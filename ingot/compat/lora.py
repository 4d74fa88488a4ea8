"""LoRA and DoRA beside products, request by request: adapters come as tensors in the place of their addresses.

What TensorRT-LLM calls `lora_weights_pointers` is here, for each module, a pair of tensors: matrices [B, rank, in] and
[B, out, rank] of every request, or [rank, in] and [out, rank] for all of them. A third tensor, [B, out] or [out], holds
DoRA's factors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ingot import dtypes
from ingot import functional as f
from ingot.compat.functional import FUNCTIONS, recorded
from ingot.compat.module import Module
from ingot.compat.refusal import called, refused
from ingot.compat.step import Step, column, is_packed
from ingot.compat.tensor import ITensor, Tensor


def _adapter(name: str, given: Any, least: int) -> tuple[Any, ...]:
    """An adapter's tensors; addresses are refused."""
    parts = tuple(given) if isinstance(given, tuple | list) else (given,)
    if any(isinstance(p, Tensor | ITensor) and p.dtype.name in ("INT64", "INT32") for p in parts) or len(parts) < least:
        raise refused(
            f"{name} of weights by address",
            "give tensors in their place: for each module ([B, rank, in], [B, out, rank]), and DoRA's factors [B, out] "
            "behind them; or merge the adapter when the engine is built: ingot.build(folder, lora=adapter)",
        )
    return parts


def _counted(types: Any, lengths: Any) -> Any:
    """How many tokens of this step are each request's."""
    return f.where(f.eq(f.cast(types, "int32"), 0), f.cast(lengths, "int32"), np.int32(1))


def _step(name: str, x: Any, types: Any, lengths: Any) -> Step:
    """A step's requests; of padded ones all places count."""
    if is_packed() and (types is None or lengths is None):
        raise refused(f"{name} of packed texts", "give host_request_types and host_context_lengths")
    if is_packed():
        return Step(x, True, types, f.cumsum(_counted(types, lengths), 0))
    whole = f.expand(f.cast(f.view(f.shape(x, 1), (1,), False), "int32"), (x.shape[0],))
    return Step(x, False, whole, whole)


def _of_module(x: Any, first: Any, second: Any, ranks: Any, transb: bool) -> Any:
    """x · firstᵀ · secondᵀ for rows [B, S, in]; of each request only its first `ranks` take part."""
    first, second = (f.cast(t if transb else f.transpose(t, -1, -2), x.dtype) for t in (first, second))
    if first.shape[-1] != x.shape[-1] or second.shape[-1] != first.shape[-2]:
        shapes = f"{list(first.shape)} and {list(second.shape)}"
        raise refused(f"lora_plugin with matrices {shapes} of inputs {x.shape[-1]} wide", "[rank, in] and [out, rank]")
    low = f.matmul(x, first, transb=True)
    if ranks is not None:
        used = f.lt(f.arange(0, low.shape[-1], "int32"), column(f.cast(f.flatten(ranks), "int32")))
        low = f.where(f.unsqueeze(used, 1), low, np.zeros((), dtypes.get(x.dtype).numpy))
    return f.matmul(low, second, transb=True)


@called("lora_plugin")
def lora_plugin(
    input: Any = None, in_hidden_size: int = 0, out_hidden_sizes: Sequence[int] = (0,), host_request_types: Any = None,
    transa: bool = False, transb: bool = False, host_context_lengths: Any = None, max_low_rank: int = 0,
    lora_ranks: Any = None, lora_weights_pointers: Any = None, weight_index: int = 0, max_context_length: Any = None,
) -> Any:  # fmt: skip
    """What adapters add to a product: for each module x · firstᵀ · secondᵀ.

    Args:
        input: [B, S, in_hidden_size], or packed [T, …] with plugin_config.remove_input_padding.
        out_hidden_sizes: of each module.
        host_request_types, host_context_lengths: int32 [B], for packed texts: 0 for a prompt of that length, 1 for one
            token.
        transb: matrices are [rank, in] and [out, rank]; else [in, rank] and [rank, out]. transa: only False.
        lora_ranks: for each module int32 [B]; a request of rank 0 has no adapter. None: all of them count.
        lora_weights_pointers: for each module its matrices, of all requests or of each (the module's first lines).

    Returns:
        […, out] of the one module, or a list of those of all.
    """
    if transa or weight_index:
        raise refused("lora_plugin with transa or weight_index", "leave it out")
    modules = list(lora_weights_pointers or ())
    ranks = list(lora_ranks) if lora_ranks is not None else [None] * len(modules)
    if len(modules) != len(out_hidden_sizes) or len(ranks) != len(modules) or input is None:
        raise refused(f"lora_plugin of {len(out_hidden_sizes)} modules", "give input, and weights and ranks of each")
    pairs = [_adapter("lora_plugin", given, 2)[:2] for given in modules]

    def call(x: Any, pairs: Any, ranks: Any, types: Any, lengths: Any) -> Any:
        if x.shape[-1] != in_hidden_size:
            raise refused(f"lora_plugin of inputs {x.shape[-1]} wide", f"in_hidden_size says {in_hidden_size}")
        step = _step("lora_plugin", x, types, lengths)
        rows, found = step.apart(x), []
        for (first, second), rank, size in zip(pairs, ranks, out_hidden_sizes, strict=True):
            most = first.shape[-2 if transb else -1]
            if max_low_rank and isinstance(most, int) and most > max_low_rank:
                raise refused(f"lora_plugin with rank {most}", f"max_low_rank says {max_low_rank}")
            out = _of_module(rows, first, second, rank, transb)
            if out.shape[-1] != size:
                raise refused(f"lora_plugin with {out.shape[-1]} outputs", f"out_hidden_sizes says {size}")
            found.append(step.together(out, x.dtype))
        return found[0] if len(found) == 1 else tuple(found)

    given = {
        "x": input, "pairs": pairs, "ranks": ranks, "types": host_request_types, "lengths": host_context_lengths,
    }  # fmt: skip
    made = recorded("lora_plugin", call, given)
    return list(made) if isinstance(made, tuple) else made


@called("dora_plugin")
def dora_plugin(
    activations: Any, out_hidden_sizes: Sequence[int], lora_weights_pointers: Any, host_request_types: Any,
    host_context_lengths: Any = None,
) -> Any:  # fmt: skip
    """activations […, sum of out_hidden_sizes], each column times its request's factor.

    Args:
        lora_weights_pointers: for each module its factors [B, out] or [out], or the adapter whose third tensor is them.
    """
    modules = [_adapter("dora_plugin", given, 1)[-1] for given in lora_weights_pointers]
    if len(modules) != len(out_hidden_sizes):
        raise refused(f"dora_plugin of {len(out_hidden_sizes)} modules", "give factors for each")

    def call(x: Any, factors: Any, types: Any, lengths: Any) -> Any:
        step = _step("dora_plugin", x, types, lengths)
        rows = step.apart(x)
        each = []
        for scale, size in zip(factors, out_hidden_sizes, strict=True):
            if scale.shape[-1] != size:
                raise refused(f"dora_plugin with {scale.shape[-1]} factors", f"out_hidden_sizes says {size}")
            scale = f.cast(scale, x.dtype)
            each.append(scale if len(scale.shape) == 2 else f.expand(f.unsqueeze(scale, 0), (rows.shape[0], size)))
        whole = each[0] if len(each) == 1 else f.concat(each, 1)
        return step.together(f.mul(rows, f.unsqueeze(whole, 1)), x.dtype)

    given = {"x": activations, "factors": modules, "types": host_request_types, "lengths": host_context_lengths}
    return recorded("dora_plugin", call, given)


FUNCTIONS.update(lora_plugin=lora_plugin, dora_plugin=dora_plugin)


# ---------------------------------------------------------------------------------------------- layers


class LoraRuntimeParams:
    """The adapters of one product: of each of its modules ranks and weights."""

    def __init__(
        self, lora_ranks: Any = None, lora_weights_pointers: Any = None, host_request_types: Any = None,
        host_context_lengths: Any = None, max_context_length: Any = None, max_encoder_context_length: Any = None,
        host_encoder_input_lengths: Any = None, weight_index: int = 0,
    ) -> None:  # fmt: skip
        self.lora_ranks, self.lora_weights_pointers = lora_ranks, lora_weights_pointers
        self.host_request_types, self.host_context_lengths = host_request_types, host_context_lengths
        self.max_context_length, self.weight_index = max_context_length, weight_index
        self.max_encoder_context_length = max_encoder_context_length
        self.host_encoder_input_lengths = host_encoder_input_lengths


class LoraParams:
    """The adapters of all layers: for each a dict of `MODULE_lora_ranks` and one of `MODULE_lora_weights_pointers`."""

    def __init__(
        self, lora_ranks: Any = None, lora_weights_pointers: Any = None, host_context_lengths: Any = None,
        max_context_length: Any = None, host_request_types: Any = None, max_encoder_context_length: Any = None,
        host_encoder_input_lengths: Any = None, weight_index: int = 0,
    ) -> None:  # fmt: skip
        self.lora_ranks, self.lora_weights_pointers = lora_ranks, lora_weights_pointers
        self._rest: dict[str, Any] = {
            "host_context_lengths": host_context_lengths, "max_context_length": max_context_length,
            "host_request_types": host_request_types, "max_encoder_context_length": max_encoder_context_length,
            "host_encoder_input_lengths": host_encoder_input_lengths, "weight_index": weight_index,
        }  # fmt: skip
        self.__dict__.update(self._rest)

    def get_layer_params(self, layer_idx: int) -> LoraParams:
        """Those of one layer."""
        return LoraParams([self.lora_ranks[layer_idx]], [self.lora_weights_pointers[layer_idx]], **self._rest)

    def get_runtime_params(self, layer_idx: int, lora_module: str) -> LoraRuntimeParams | None:
        """Those of one product, None where there are none."""
        ranks, weights = self.lora_ranks[layer_idx], self.lora_weights_pointers[layer_idx]
        if f"{lora_module}_lora_ranks" not in ranks:
            return None
        return LoraRuntimeParams(
            [ranks[f"{lora_module}_lora_ranks"]], [weights[f"{lora_module}_lora_weights_pointers"]], **self._rest
        )


class Lora(Module):
    """What adapters add to a product of these sizes."""

    def __init__(
        self, in_hidden_size: int = 0, out_hidden_sizes: Sequence[int] = (0,), max_low_rank: int = 0
    ) -> None:
        super().__init__()
        self.in_hidden_size, self.out_hidden_sizes = in_hidden_size, list(out_hidden_sizes)
        self.max_low_rank = max_low_rank

    @called("Lora.forward")
    def forward(self, x: Any, lora_runtime_params: Any = None, is_cross_attention: bool = False) -> Any:
        """[…, in_hidden_size] → […, out] of the one module, or a list of those of all."""
        params = lora_runtime_params
        if params is None or is_cross_attention:
            raise refused("Lora", "give lora_runtime_params, and no is_cross_attention")
        return lora_plugin(
            x, self.in_hidden_size, self.out_hidden_sizes, params.host_request_types, transb=True,
            host_context_lengths=params.host_context_lengths, max_low_rank=self.max_low_rank,
            lora_ranks=params.lora_ranks, lora_weights_pointers=params.lora_weights_pointers,
            weight_index=params.weight_index,
        )  # fmt: skip


class Dora(Module):
    """DoRA's factors on a product of these sizes with its adapters."""

    def __init__(self, out_hidden_sizes: Sequence[int] = (0,)) -> None:
        super().__init__()
        self.out_hidden_sizes = list(out_hidden_sizes)

    @called("Dora.forward")
    def forward(self, x: Any, lora_runtime_params: Any = None, is_cross_attention: bool = False) -> Any:
        """[…, sum of out_hidden_sizes] → the same"""
        params = lora_runtime_params
        if params is None or is_cross_attention:
            raise refused("Dora", "give lora_runtime_params, and no is_cross_attention")
        return dora_plugin(
            x, self.out_hidden_sizes, params.lora_weights_pointers, params.host_request_types,
            params.host_context_lengths,
        )  # fmt: skip


def part_of(params: Any, name: str) -> Any:
    """The adapters of one product of a layer, None where there are none."""
    return None if params is None else params.get_runtime_params(0, name)


def beside(x: Any, parts: Sequence[Any], sizes: Sequence[int]) -> Any:
    """What adapters of several products of one input add, in a row; zeros for a product that has none."""
    concat, width = FUNCTIONS["concat"], x.shape[-1]
    each = []
    for params, size in zip(parts, sizes, strict=True):
        if params is None:
            none = FUNCTIONS["matmul"](x, FUNCTIONS["constant"](np.zeros((width, size), np.float32)).cast(x.dtype))
            each.append(none)
        else:
            each.append(Lora(width, [size])(x, params))
    return concat(each, -1)


def has_factors(params: Any) -> bool:
    """Whether an adapter is DoRA's."""
    return any(isinstance(given, tuple | list) and len(given) > 2 for given in params.lora_weights_pointers)


FILES = {"lora": (Lora, LoraParams, LoraRuntimeParams, Dora)}
