"""mamba_conv1d, selective_scan and rg_lru: recurrences whose states are inputs and outputs of the network."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ingot import dtypes
from ingot import functional as f
from ingot.compat.functional import promoted, recorded
from ingot.compat.refusal import called, refused
from ingot.compat.step import Step, column, is_packed
from ingot.ir import F


def _states(name: str, state: Any, slot_mapping: Any) -> None:
    if slot_mapping is not None or state.dtype.name in ("INT64", "INT32"):
        raise refused(f"{name} of states by address", "give the states themselves, and leave slot_mapping out")


def _shaped(name: str, state: Any, rest: tuple[int, ...], what: str) -> None:
    if tuple(state.shape[1:]) != rest:
        raise refused(f"{name} with states {list(state.shape)}", f"give them as {what}")


def _part(x: Any, start: int, width: int) -> Any:
    """Columns of tokens."""
    if start == 0 and x.shape[-1] == width:
        return x
    return f.slice(x, [0] * (len(x.shape) - 1) + [start], (*x.shape[:-1], width))


def _wide(x: Any) -> Any:
    return f.cast(x, "float32")


# ---------------------------------------------------------------------------------------------- convolution


@called("mamba_conv1d")
def mamba_conv1d(
    input: Any, conv_state_or_ptr: Any, conv_weight: Any, conv_bias: Any, host_request_types: Any, last_token_ids: Any,
    dim: int, dconv: int, dtype: Any, pre_stride: int = 0, post_stride: int = 0, host_context_lengths: Any = None,
    slot_mapping: Any = None, apply_silu: bool = True,
) -> tuple[Any, Any]:  # fmt: skip
    """A causal convolution of each channel over a request's tokens.

    Args:
        input: [B, S, pre_stride + dim + post_stride], or packed [T, …] with plugin_config.remove_input_padding. Of the
            columns behind, which only TensorRT-LLM's alignment added, any may be missing.
        conv_state_or_ptr: [B, dconv - 1, dim], the tokens before; read for requests of type 1, zeros for prompts.
        conv_weight: dconv · dim numbers, tap by tap. conv_bias: [dim].
        last_token_ids: int32 [B], lengths, or ends of packed texts.

    Returns:
        [B, S, dim] or [T, dim], and the state behind the step.
    """
    _states("mamba_conv1d", conv_state_or_ptr, slot_mapping)
    packed = is_packed()

    def call(input: Any, state: Any, weight: Any, bias: Any, types: Any, last: Any) -> tuple[Any, Any]:
        whole = pre_stride + dim + post_stride
        if not pre_stride + dim <= input.shape[-1] <= whole:
            raise refused(f"mamba_conv1d of {input.shape[-1]} channels", f"pre_stride, dim and post_stride say {whole}")
        _shaped("mamba_conv1d", state, (dconv - 1, dim), f"[B, {dconv - 1}, {dim}]")
        x = _part(input, pre_stride, dim)
        kind = promoted([dtypes.get(t.dtype) for t in (x, weight, bias) if t is not None]) or dtypes.float32
        step = Step(x, packed, types, last)
        rows, before = f.cast(step.apart(x), kind), step.before(state, kind)
        taps = f.transpose(f.cast(f.view(weight, (dconv, dim), False), kind), 0, 1)
        by_channel = [f.permute(t, (0, 2, 1)) for t in (rows, before)]
        y, _ = f.causal_conv1d(
            by_channel[0], taps, None if bias is None else f.cast(f.view(bias, (dim,), False), kind), by_channel[1],
            "silu" if apply_silu else None,
        )  # fmt: skip
        # A row's last tokens are not the last places of all rows.
        kept = f.add(column(step.count), f.arange(0, dconv - 1, "int32"))
        index = f.expand(f.unsqueeze(kept, 2), (state.shape[0], dconv - 1, dim))
        after = f.gather(f.concat([before, rows], 1), 1, index) if dconv > 1 else state
        return step.together(f.permute(y, (0, 2, 1)), input.dtype), f.cast(after, state.dtype)

    given = {
        "input": input, "state": conv_state_or_ptr, "weight": conv_weight, "bias": conv_bias,
        "types": host_request_types, "last": last_token_ids,
    }  # fmt: skip
    return recorded("mamba_conv1d", call, given)  # type: ignore[no-any-return]


# ---------------------------------------------------------------------------------------------- Mamba's scans


class _Scan(NamedTuple):
    """The sizes of a selective_scan, and how its operands become ours."""

    dim: int
    dstate: int
    dt_rank: int
    nheads: int
    ngroups: int

    @property
    def both(self) -> int:
        """The numbers of B and C of a token."""
        return 2 * self.ngroups * self.dstate

    def of_mamba1(self, tensors: dict[str, Any]) -> dict[str, Any]:
        """The operands as ours: channel by channel."""
        dim, dstate, both = self.dim, self.dstate, self.both
        before = tensors["both"].shape[-1] - both
        if before not in (0, self.dt_rank) or tensors["x"].shape[-1] != dim:
            raise refused(
                f"selective_scan with BC of {before + both} and input of {tensors['x'].shape[-1]} channels",
                f"2 · dstate = {both} of them, with dt_rank = {self.dt_rank} before; and dim = {dim}",
            )
        _shaped("selective_scan", tensors["state"], (dstate, dim), f"[B, {dstate}, {dim}]")
        return tensors | {
            "both": _part(tensors["both"], before, both), "decay": f.transpose(tensors["decay"], 0, 1),
            "state": f.permute(tensors["state"], (0, 2, 1)),
        }  # fmt: skip

    def of_mamba2(self, tensors: dict[str, Any]) -> dict[str, Any]:
        """The operands as ours: what heads share is repeated for their channels."""
        dim, dstate, both, nheads = self.dim, self.dstate, self.both, self.nheads
        each, front, whole = dim // nheads, 2 * dim + both, 2 * dim + both + nheads
        known = {"x": (0, dim, dim + both), "z": (0, dim, whole), "delta": (front, nheads, whole),
                 "both": (dim, both, dim + both)}  # fmt: skip
        for name, (start, width, least) in known.items():
            x = tensors[name]
            if x is None:
                continue
            if x.shape[-1] != width and not (x.shape[-1] >= least if name in ("z", "delta") else x.shape[-1] == least):
                raise refused(f"selective_scan with {name} of {x.shape[-1]} channels", f"{width}, or {least} with more")
            tensors[name] = _part(x, start if x.shape[-1] != width else 0, width)
        _shaped("selective_scan", tensors["state"], (nheads, dstate, each), f"[B, {nheads}, {dstate}, {each}]")

        def repeated(x: Any) -> Any:
            return None if x is None else f.repeat_interleave(x, each, len(x.shape) - 1)

        decay = f.expand(column(repeated(tensors["decay"])), (dim, dstate))
        state = f.permute(tensors["state"], (0, 1, 3, 2))
        return tensors | {
            "delta": repeated(tensors["delta"]), "bias": repeated(tensors["bias"]), "decay": decay,
            "skip": repeated(tensors["skip"]), "state": f.view(state, (state.shape[0], dim, dstate), False),
        }  # fmt: skip

    def state_of_mamba1(self, state: Any) -> Any:
        """Our state as Mamba1's."""
        return f.permute(state, (0, 2, 1))

    def state_of_mamba2(self, state: Any) -> Any:
        """Our state as Mamba2's: by head."""
        by_head = f.view(state, (state.shape[0], self.nheads, self.dim // self.nheads, self.dstate), False)
        return f.permute(by_head, (0, 1, 3, 2))


@called("selective_scan")
def selective_scan(
    input: Any, state_or_ptr: Any, delta: Any, delta_bias: Any, A: Any, BC: Any, D: Any,  # noqa: N803
    host_request_types: Any,
    last_token_ids: Any, dim: int, dstate: int, dt_rank: int, delta_softplus: bool, dtype: Any, z: Any = None,
    host_context_lengths: Any = None, slot_mapping: Any = None, nheads: int = 1, ngroups: int = 1,
    chunk_size: int = 256, mamba_version: str = "Mamba1",
) -> tuple[Any, Any]:  # fmt: skip
    """Mamba's scan: s = exp(Δ · A) · s + Δ · B · x, and y = C · s + D · x, times silu(z) where it is given.

    Sums and states are in float32 from the first step to the last.

    Args:
        input, delta, z: [B, S, dim], or packed [T, dim] with plugin_config.remove_input_padding.
        state_or_ptr: [B, dstate, dim]; read for requests of type 1, zeros for prompts.
        delta_bias, D: [dim] or None. A: [dstate, dim].
        BC: […, 2 · dstate], or […, dt_rank + 2 · dstate] with delta's numbers in front.
        last_token_ids: int32 [B], lengths, or ends of packed texts.
        mamba_version: "Mamba1", or "Mamba2": of nheads heads, dim / nheads channels share one number of delta
            […, nheads], delta_bias, A and D [nheads]; of ngroups groups, nheads / ngroups heads share BC
            […, 2 · ngroups · dstate]. States are [B, nheads, dstate, dim / nheads]. Tensors may be wider, as they come
            of Mamba2's one product and its convolution: input and z stand in front, BC and delta behind what is there
            of z, input and BC.

    Returns:
        y [B, S, dim] or [T, dim], and the state behind the step.
    """
    if mamba_version not in ("Mamba1", "Mamba2"):
        raise refused(f"selective_scan of {mamba_version}", 'give "Mamba1" or "Mamba2"')
    heads = mamba_version == "Mamba2"
    if not heads and (nheads != 1 or ngroups != 1):
        raise refused(f"selective_scan of Mamba1 with {nheads} heads in {ngroups} groups", 'mamba_version="Mamba2"')
    if heads and (nheads < 1 or ngroups < 1 or dim % nheads or nheads % ngroups):
        raise refused(f"selective_scan of {dim} channels, {nheads} heads and {ngroups} groups", "give divisors")
    _states("selective_scan", state_or_ptr, slot_mapping)
    packed, scan = is_packed(), _Scan(dim, dstate, dt_rank, nheads, ngroups)
    ours, theirs = (scan.of_mamba2, scan.state_of_mamba2) if heads else (scan.of_mamba1, scan.state_of_mamba1)

    def call(types: Any, last: Any, **tensors: Any) -> tuple[Any, Any]:
        kind, kept = tensors["x"].dtype, tensors["state"].dtype
        given = ours(tensors)
        step = Step(given["x"], packed, types, last)
        x, both_of = (_wide(step.apart(given[name])) for name in ("x", "both"))
        shared = f.view(both_of, (*both_of.shape[:2], 2, ngroups, dstate), False)
        into, out_of = (f.select(shared, 2, i) for i in (0, 1))
        delta = _wide(step.apart(given["delta"]))
        delta = delta if given["bias"] is None else f.add(delta, f.view(_wide(given["bias"]), (dim,), False))
        delta = f.softplus(delta) if delta_softplus else delta
        delta = f.where(f.unsqueeze(step.valid, 2), delta, np.float32(0))  # nothing moves where there is no token
        skip = np.zeros(dim, np.float32) if given["skip"] is None else f.view(_wide(given["skip"]), (dim,), False)
        first = step.before(given["state"], dtypes.float32)
        y, after = F.selective_scan(x, delta, _wide(given["decay"]), into, out_of, skip, first)
        y = y if given["z"] is None else f.mul(y, f.silu(_wide(step.apart(given["z"]))))
        return step.together(y, kind), f.cast(theirs(after), kept)

    given = {
        "x": input, "state": state_or_ptr, "delta": delta, "bias": delta_bias, "decay": A, "both": BC, "skip": D,
        "types": host_request_types, "last": last_token_ids, "z": z,
    }  # fmt: skip
    return recorded("selective_scan", call, given)  # type: ignore[no-any-return]


# ---------------------------------------------------------------------------------------------- RG-LRU

_RATE = -8.0  # RG-LRU's constant: a = exp(-8 · softplus(A) · sigmoid(gate))
_LEAST = 1e-30  # of a gate by which is divided; exp(_LEAST · anything here) is 1 in float32


@called("rg_lru")
def rg_lru(
    input: Any, A: Any, state_or_ptr: Any, host_request_types: Any, last_token_ids: Any, dim: int,  # noqa: N803
    dtype: Any, block_size: int = 0, y: Any = None, y_bias: Any = None, gate: Any = None, gate_bias: Any = None,
    gate_x: Any = None, gate_x_bias: Any = None, gate_a: Any = None, gate_a_bias: Any = None, slot_mapping: Any = None,
) -> tuple[Any, Any]:  # fmt: skip
    """RecurrentGemma's recurrence: a = exp(-8 · softplus(A) · σ(gate_a)); s = a · s + √(1 - a²) · σ(gate_x) · x.

    The first token of a prompt comes in whole, without the root. Sums and states are in float32.

    Args:
        input, y, gate_x, gate_a: [B, S, dim], or packed [T, dim] with plugin_config.remove_input_padding.
        A: [dim]. y_bias, gate_x_bias, gate_a_bias: dim numbers, added first.
        state_or_ptr: [B, dim]; read for requests of type 1, zeros for prompts.
        y: the result is multiplied with it; with gelu(y + y_bias), of tanh, where y_bias is given.
        gate: […, 2 · dim] in the place of gate_x and gate_a: block_size numbers of one, then of the other, and so on;
            gate_bias as it.
        last_token_ids: int32 [B], lengths, or ends of packed texts.

    Returns:
        The states of all tokens, times what y says, as input; and the states behind the step.
    """
    _states("rg_lru", state_or_ptr, slot_mapping)
    if (gate is None) == (gate_x is None or gate_a is None):
        raise refused("rg_lru", "give gate and block_size, or gate_x and gate_a")
    if gate is not None and (block_size < 1 or dim % block_size):
        raise refused(f"rg_lru with block_size={block_size} of {dim} channels", "give a divisor")
    if y is None and y_bias is not None:
        raise refused("rg_lru with y_bias", "give y too")
    packed = is_packed()

    def halves(gate: Any) -> tuple[Any, Any]:
        """gate_x and gate_a of both in one."""
        blocks = f.view(gate, (*gate.shape[:-1], dim // block_size, 2, block_size), False)
        parts = (f.select(blocks, len(blocks.shape) - 2, i) for i in (0, 1))
        first, second = (f.view(part, (*gate.shape[:-1], dim), False) for part in parts)
        return first, second

    def call(x: Any, state: Any, decay: Any, types: Any, last: Any, y: Any, y_bias: Any, **gates: Any) -> Any:
        _shaped("rg_lru", state, (dim,), f"[B, {dim}]")
        step = Step(x, packed, types, last)

        def biased(name: str) -> Any:
            whole = _wide(gates[name])
            bias = gates[f"{name}_bias"]
            return whole if bias is None else f.add(whole, f.view(_wide(bias), (whole.shape[-1],), False))

        gate_x, gate_a = halves(biased("gate")) if gate is not None else (biased("gate_x"), biased("gate_a"))
        share = f.maximum(f.sigmoid(step.apart(gate_a)), np.float32(_LEAST))
        rate = f.mul(f.softplus(_wide(f.view(decay, (dim,), False))), np.float32(_RATE))
        lost = f.exp(f.mul(f.mul(share, rate), np.float32(2)))
        root = f.sqrt(f.sub(np.float32(1), lost))
        is_first = f.op_and(column(step.prompt), f.eq(step.place, 0))  # [B, S]
        root = f.where(f.unsqueeze(is_first, 2), np.float32(1), root)
        comes = f.mul(f.mul(_wide(step.apart(x)), f.sigmoid(step.apart(gate_x))), root)
        # The scan's step multiplies the decay's exponent and what comes in: divided by it, that stays what it is.
        comes = f.div(comes, share)
        share = f.where(f.unsqueeze(step.valid, 2), share, np.float32(0))
        one = f.expand(x.network.constant(np.ones((1, 1, 1, 1), np.float32)), (state.shape[0], step.width, 1, 1))
        first = f.unsqueeze(step.before(state, dtypes.float32), 2)
        out, after = F.selective_scan(comes, share, column(rate), one, one, np.zeros(dim, np.float32), first)
        if y is not None:
            beside = _wide(step.apart(y))
            if y_bias is not None:
                beside = f.gelu(f.add(beside, f.view(_wide(y_bias), (dim,), False)))
            out = f.mul(out, beside)
        return step.together(out, x.dtype), f.cast(f.squeeze(after, 2), state.dtype)

    given = {
        "x": input, "state": state_or_ptr, "decay": A, "types": host_request_types, "last": last_token_ids, "y": y,
        "y_bias": y_bias, "gate": gate, "gate_bias": gate_bias, "gate_x": gate_x, "gate_x_bias": gate_x_bias,
        "gate_a": gate_a, "gate_a_bias": gate_a_bias,
    }  # fmt: skip
    return recorded("rg_lru", call, given)  # type: ignore[no-any-return]


STEPS = {function.__name__: function for function in (mamba_conv1d, selective_scan, rg_lru)}
