"""mamba_conv1d and selective_scan: Mamba's two steps over states that are inputs and outputs of the network."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ingot import dtypes
from ingot import functional as f
from ingot.compat import context
from ingot.compat.functional import recorded
from ingot.compat.refusal import called, refused


class Rows(NamedTuple):
    """Where the rows of a step belong: owner and place of each; and start, count, prompt of each request."""

    owner: Any
    place: Any
    start: Any
    count: Any
    prompt: Any


def _column(x: Any, rank: int = 2) -> Any:
    return f.view(x, (x.shape[0], *[1] * (rank - 1)), False)


def _rows(flat: Any, width: Any, types: Any, last: Any) -> Rows:
    """The rows of padded texts, `width` each, or of packed ones (None), whose ends are `last`."""
    last, prompt = f.cast(last, "int32"), f.eq(f.cast(types, "int32"), 0)
    token = f.arange(0, flat.shape[0], "int32")
    if width is None:
        before = f.slice(f.pad(last, (1, 0)), [0], last.shape)
        most = f.cast(f.sub(f.shape(last, 0), 1), "int32")
        owner = f.minimum(f.sum(f.cast(f.ge(_column(token), last), "int32"), 1), most)
        return Rows(owner, f.sub(token, f.index_select(before, 0, owner)), before, f.sub(last, before), prompt)
    each = f.cast(width, "int32")
    owner = f.floordiv(token, each)
    start = f.mul(f.arange(0, last.shape[0], "int32"), each)
    return Rows(owner, f.sub(token, f.mul(owner, each)), start, last, prompt)


def _flat(x: Any, packed: bool) -> Any:
    return x if packed else f.flatten(x, 0, 1)


def _plain_state(name: str, state: Any, slot_mapping: Any) -> None:
    if slot_mapping is not None or state.dtype.name in ("INT64", "INT32"):
        raise refused(f"{name} of states by address", "give the states themselves, and leave slot_mapping out")


@called("mamba_conv1d")
def mamba_conv1d(
    input: Any, conv_state_or_ptr: Any, conv_weight: Any, conv_bias: Any, host_request_types: Any, last_token_ids: Any,
    dim: int, dconv: int, dtype: Any, pre_stride: int = 0, post_stride: int = 0, host_context_lengths: Any = None,
    slot_mapping: Any = None, apply_silu: bool = True,
) -> tuple[Any, Any]:  # fmt: skip
    """A causal convolution of each channel over a request's tokens.

    Args:
        input: [B, S, pre_stride + dim + post_stride], or packed [T, …] with plugin_config.remove_input_padding.
        conv_state_or_ptr: [B, dconv - 1, dim], the tokens before; read for requests of type 1, zeros for prompts.
        conv_weight: dconv · dim numbers, tap by tap. conv_bias: [dim].
        last_token_ids: int32 [B], lengths, or ends of packed texts.

    Returns:
        [B, S, dim] or [T, dim], and the state behind the step.
    """
    _plain_state("mamba_conv1d", conv_state_or_ptr, slot_mapping)
    packed = bool(context.default_net().plugin_config.remove_input_padding)

    def call(input: Any, state: Any, weight: Any, bias: Any, types: Any, last: Any) -> tuple[Any, Any]:
        whole = pre_stride + dim + post_stride
        if input.shape[-1] != whole:
            raise refused(f"mamba_conv1d of {input.shape[-1]} channels", f"pre_stride, dim and post_stride say {whole}")
        x = f.slice(input, [0] * (len(input.shape) - 1) + [pre_stride], (*input.shape[:-1], dim))
        flat = _flat(x, packed)
        at = _rows(flat, None if packed else f.shape(x, 1), types, last)
        taps = f.cast(f.view(weight, (dconv, dim), False), "float32")
        total: Any = None
        for tap in range(dconv):
            found = _token(flat, state, at, f.sub(at.place, dconv - 1 - tap), at.owner, dconv)
            part = f.mul(f.cast(found, "float32"), f.select(taps, 0, tap))
            total = part if total is None else f.add(total, part)
        total = total if bias is None else f.add(total, f.cast(f.view(bias, (dim,), False), "float32"))
        total = f.silu(total) if apply_silu else total
        batch = state.shape[0]
        own = f.arange(0, batch, "int32")
        kept = [
            _token(flat, state, at, f.add(at.count, back), own, dconv) for back in range(1 - dconv, 0)
        ]
        after = f.stack(kept, 1) if kept else state
        return f.view(f.cast(total, dtypes.get(x.dtype)), x.shape, False), f.cast(after, state.dtype)

    given = {
        "input": input, "state": conv_state_or_ptr, "weight": conv_weight, "bias": conv_bias,
        "types": host_request_types, "last": last_token_ids,
    }  # fmt: skip
    return recorded("mamba_conv1d", call, given)  # type: ignore[no-any-return]


def _token(flat: Any, state: Any, at: Rows, place: Any, owner: Any, dconv: int) -> Any:
    """The token at a place of its request's step; before its first one that of the state, or zeros for a prompt."""
    row = f.add(f.index_select(at.start, 0, owner), place)
    own = f.index_select(flat, 0, f.maximum(row, 0))
    held = f.flatten(state, 0, 1)
    old = f.add(f.mul(owner, dconv - 1), f.maximum(f.add(place, dconv - 1), 0))
    past = f.index_select(held, 0, f.minimum(old, f.cast(f.sub(f.shape(held, 0), 1), "int32")))
    fresh = f.index_select(f.cast(at.prompt, "int32"), 0, owner)
    past = f.where(f.gt(_column(fresh), 0), np.zeros((), dtypes.get(state.dtype).numpy), past)
    return f.where(f.ge(_column(place), 0), own, f.cast(past, flat.dtype))


@called("selective_scan")
def selective_scan(
    input: Any, state_or_ptr: Any, delta: Any, delta_bias: Any, A: Any, BC: Any, D: Any,  # noqa: N803
    host_request_types: Any,
    last_token_ids: Any, dim: int, dstate: int, dt_rank: int, delta_softplus: bool, dtype: Any, z: Any = None,
    host_context_lengths: Any = None, slot_mapping: Any = None, nheads: int = 1, ngroups: int = 1,
    chunk_size: int = 256, mamba_version: str = "Mamba1",
) -> tuple[Any, Any]:  # fmt: skip
    """Mamba's scan: s = exp(Δ · A) · s + Δ · B · x, and y = C · s + D · x, times silu(z) where it is given.

    Args:
        input, delta, z: [B, S, dim], or packed [T, dim] with plugin_config.remove_input_padding.
        state_or_ptr: [B, dstate, dim]; read for requests of type 1, zeros for prompts.
        delta_bias, D: [dim] or None. A: [dstate, dim].
        BC: […, 2 · dstate], or […, dt_rank + 2 · dstate] with delta's numbers in front.
        last_token_ids: int32 [B], lengths, or ends of packed texts.

    Returns:
        y as input, and the state behind the step.
    """
    if mamba_version != "Mamba1" or nheads != 1 or ngroups != 1:
        raise refused(f"selective_scan of {mamba_version}", "Mamba1, or ingot.functional.while_loop over the tokens")
    _plain_state("selective_scan", state_or_ptr, slot_mapping)
    packed = bool(context.default_net().plugin_config.remove_input_padding)

    def call(
        input: Any, state: Any, delta: Any, bias: Any, decay: Any, both: Any, skip: Any, types: Any, last: Any, z: Any
    ) -> tuple[Any, Any]:
        before = both.shape[-1] - 2 * dstate
        if before not in (0, dt_rank) or input.shape[-1] != dim:
            raise refused(
                f"selective_scan with BC of {both.shape[-1]} and input of {input.shape[-1]} channels",
                f"2 · dstate = {2 * dstate} of them, with dt_rank = {dt_rank} before; and dim = {dim}",
            )
        flat = _flat(input, packed)
        at = _rows(flat, None if packed else f.shape(input, 1), types, last)
        x, step, mixed = (f.cast(_flat(t, packed), "float32") for t in (input, delta, both))
        step = step if bias is None else f.add(step, f.cast(f.view(bias, (dim,), False), "float32"))
        step = f.softplus(step) if delta_softplus else step
        into, out_of = (f.slice(mixed, [0, before + i * dstate], (mixed.shape[0], dstate)) for i in (0, 1))
        fresh = f.view(at.prompt, (state.shape[0], 1, 1), False)
        start = f.where(fresh, np.float32(0), f.cast(state, "float32"))
        valid = f.lt(at.place, f.index_select(at.count, 0, at.owner))
        y, after = _scanned(x, step, f.cast(decay, "float32"), into, out_of, at.owner, valid, start)
        y = y if skip is None else f.add(y, f.mul(x, f.cast(f.view(skip, (dim,), False), "float32")))
        y = y if z is None else f.mul(y, f.silu(f.cast(_flat(z, packed), "float32")))
        return f.view(f.cast(y, dtypes.get(input.dtype)), input.shape, False), f.cast(after, state.dtype)

    given = {
        "input": input, "state": state_or_ptr, "delta": delta, "bias": delta_bias, "decay": A, "both": BC, "skip": D,
        "types": host_request_types, "last": last_token_ids, "z": z,
    }  # fmt: skip
    return recorded("selective_scan", call, given)  # type: ignore[no-any-return]


def _scanned(
    x: Any, step: Any, decay: Any, into: Any, out_of: Any, owner: Any, valid: Any, start: Any
) -> tuple[Any, Any]:
    """C · s of every row, and the states of all requests behind the last; rows go one after the other."""
    rows, width = x.shape

    def more(i: Any, y: Any, state: Any, *tensors: Any) -> Any:
        return f.lt(i, f.cast(f.shape(tensors[0], 0), "int32"))

    def one(i: Any, y: Any, state: Any, *tensors: Any) -> Any:
        x, step, decay, into, out_of, owner, valid = tensors
        at = f.view(i, (1,), False)
        here, now, b, c, who, counts = (f.index_select(t, 0, at) for t in (x, step, into, out_of, owner, valid))
        old = f.index_select(state, 0, who)  # [1, dstate, dim]
        grown = f.mul(f.exp(f.mul(now, decay)), f.squeeze(old, 0))
        new = f.add(grown, f.mul(f.transpose(b, 0, 1), f.mul(now, here)))
        mine = f.op_and(f.eq(f.arange(0, state.shape[0], "int32"), who), counts)
        state = f.where(f.view(mine, (state.shape[0], 1, 1), False), f.unsqueeze(new, 0), state)
        row = f.eq(f.arange(0, y.shape[0], "int32"), i)
        return f.add(i, 1), f.where(_column(row), f.matmul(c, new), y), state, *tensors

    first = f.mul(f.cast(f.shape(x, 0), "int32"), 0)
    tensors = (x, step, decay, into, out_of, owner, valid)
    left = f.while_loop(more, one, (first, f.mul(x, 0.0), start, *tensors))
    return left[1], left[2]


STEPS = {function.__name__: function for function in (mamba_conv1d, selective_scan)}
