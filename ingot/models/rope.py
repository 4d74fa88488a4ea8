"""Rotary position embeddings: the inverse frequencies of every scaling type, computed as transformers does.

All run in float64 and round to float32 once. Sources: RoFormer (arXiv 2104.09864); linear, Chen et al. (2306.15595);
dynamic and yarn, Peng et al. (2309.00071); llama3, the Llama 3.1 release; longrope, Ding et al. (2402.13753).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ingot.frontends.fields import Fields

TYPES = ("default", "linear", "dynamic", "llama3", "yarn", "longrope")
OLD_NAMES = ("su",)  # of longrope, in the first releases of Phi-3
DEFAULT_THETA = 10_000.0
MAX_POSITIONS = 2**31 - 1


@dataclass(frozen=True)
class Rope:
    """One model's rotary embedding.

    `inv_freq[head_dim / 2]` float32; `scale` multiplies cos and sin (yarn's attention factor); `positions` is how far
    the scaling reaches, where that differs from max_position_embeddings. `long_inv_freq`, where there are such, take
    the place of `inv_freq` in requests of more than `short_length` tokens.
    """

    type: str
    inv_freq: np.ndarray
    scale: float
    positions: int
    long_inv_freq: np.ndarray | None = None
    short_length: int | None = None


def plain(dims: int, max_positions: int, theta: float = DEFAULT_THETA) -> Rope:
    """Without any scaling, of the first `dims` elements of a head."""
    return Rope("default", _inverse(theta, dims), 1.0, max_positions)


def parse(fields: Fields, head_dim: int, max_positions: int, share: float | None = None) -> Rope:
    """The rotary embedding of a config.json, in the older spelling (`rope_theta` beside `rope_scaling`) or the one of
    transformers 5 (`rope_parameters`); as there, a `rope_scaling` that is present wins.

    `share`: how much of a head turns unless config.json says otherwise; None: all, and nothing else can be said.
    """
    spellings = (fields.nested("rope_scaling"), fields.nested("rope_parameters"))
    inner = next((found for found in spellings if found is not None and found.values), None)
    theta = fields.number("rope_theta", 1.0, 1e15, DEFAULT_THETA)
    if share is not None:
        theta = fields.number("rotary_emb_base", 1.0, 1e15, theta)
        head_dim = _turned(fields, inner, head_dim, share)
    for place in (fields, inner) if share is None else ():
        if place is not None and place.number("partial_rotary_factor", 0.0, 1e9, 1.0) != 1.0:
            place.fault("partial_rotary_factor", "these families rotate whole heads, so it can only be 1")
    return _scaled(inner, fields, theta, head_dim, max_positions)


def parse_local_global(fields: Fields, head_dim: int, max_positions: int) -> tuple[Rope, Rope]:
    """The rotary embeddings of layers that see all tokens and of those with a window: `rope_parameters` by layer type,
    or, older, `rope_theta` with `rope_scaling` and `rope_local_base_freq`."""
    full, local = 1e6, DEFAULT_THETA
    nested = fields.nested("rope_parameters")
    if nested is not None and (nested.has("full_attention") or nested.has("sliding_attention")):
        one, other = nested.nested("full_attention"), nested.nested("sliding_attention")
    else:
        one, other = fields.nested("rope_scaling"), None
        full = fields.number("rope_theta", 1.0, 1e15, full)
        local = fields.number("rope_local_base_freq", 1.0, 1e15, local)
    for place in (one, other):
        if place is not None and place.values.get("rope_type") == "longrope":
            place.fault("rope_type", "'longrope' is not supported beside layers with a window of their own")
    return (
        _scaled(one, fields, full, head_dim, max_positions),
        _scaled(other, fields, local, head_dim, max_positions),
    )


def _scaled(inner: Fields | None, fields: Fields, theta: float, head_dim: int, max_positions: int) -> Rope:
    """What one object of rotary settings says."""
    if inner is None:
        return plain(head_dim, max_positions, theta)
    theta = inner.number("rope_theta", 1.0, 1e15, theta)
    spelling = "rope_type" if inner.has("rope_type") or not inner.has("type") else "type"
    kind = inner.choice(spelling, (*TYPES, *OLD_NAMES), "default")
    if kind in OLD_NAMES or (kind == "yarn" and inner.has("short_factor")):
        kind = "longrope"
    return _PARSERS[kind](inner, fields, theta, head_dim, max_positions)


def _turned(fields: Fields, inner: Fields | None, head_dim: int, share: float) -> int:
    """How many elements of a head turn, by the name of today or an older one."""
    for place, name in ((inner, "partial_rotary_factor"), (fields, "partial_rotary_factor"), (fields, "rotary_pct")):
        if place is not None and place.has(name):
            share = place.number(name, 0.0, 1.0)
            break
    turned = int(head_dim * share)
    if turned < 2 or turned % 2:
        fields.fault("partial_rotary_factor", f"{turned} of {head_dim} elements of a head would turn; it must be even")
        return 2
    return turned


def _inverse(theta: float, head_dim: int, factors: np.ndarray | None = None) -> np.ndarray:
    """theta ** -(2i / head_dim), each divided by its factor; every step is rounded to float32 where torch rounds."""
    exponent = (np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim)).astype(np.float64)
    powers = np.power(theta, exponent).astype(np.float32)
    return np.float32(1) / (powers if factors is None else factors * powers)


def _default(inner: Fields, fields: Fields, theta: float, head_dim: int, max_positions: int) -> Rope:
    return Rope("default", _inverse(theta, head_dim), 1.0, max_positions)


def _linear(inner: Fields, fields: Fields, theta: float, head_dim: int, max_positions: int) -> Rope:
    factor = inner.number("factor", 0.0, 1e6)
    return Rope("linear", _inverse(theta, head_dim) / np.float32(factor), 1.0, max_positions)


def _dynamic(inner: Fields, fields: Fields, theta: float, head_dim: int, max_positions: int) -> Rope:
    # Up to max_position_embeddings, which is the context, the base is not stretched; the formula gives 1 there.
    inner.number("factor", 0.0, 1e6)
    return Rope("dynamic", _inverse(theta, head_dim), 1.0, max_positions)


def _original(inner: Fields, fields: Fields, max_positions: int) -> int:
    """original_max_position_embeddings: beside rope_scaling it wins, inside it is usual, else the whole context."""
    place = fields if fields.has("original_max_position_embeddings") else inner
    return place.integer("original_max_position_embeddings", 1, MAX_POSITIONS, max_positions)


def _llama3(inner: Fields, fields: Fields, theta: float, head_dim: int, max_positions: int) -> Rope:
    factor = inner.number("factor", 0.0, 1e6)
    low, high = inner.number("low_freq_factor", 0.0, 1e6), inner.number("high_freq_factor", 0.0, 1e6)
    original = _original(inner, fields, max_positions)
    if high <= low:
        inner.fault("high_freq_factor", f"must be greater than low_freq_factor {low:g}")
        high = low + 1
    inv_freq = _inverse(theta, head_dim).astype(np.float64)
    wavelength = 2 * math.pi / inv_freq
    smooth = (original / wavelength - low) / (high - low)
    between = (1 - smooth) * inv_freq / factor + smooth * inv_freq
    scaled = np.where(wavelength > original / low, inv_freq / factor, inv_freq)
    medium = (wavelength >= original / high) & (wavelength <= original / low)
    return Rope("llama3", np.where(medium, between, scaled).astype(np.float32), 1.0, max_positions)


def _yarn(inner: Fields, fields: Fields, theta: float, head_dim: int, max_positions: int) -> Rope:
    original = _original(inner, fields, max_positions)
    factor = inner.number("factor", 0.0, 1e6, max_positions / original)
    fast, slow = inner.number("beta_fast", 0.0, 1e6, 32.0), inner.number("beta_slow", 0.0, 1e6, 1.0)

    def turns(rotations: float) -> float:
        """The dimension whose wave makes so many rotations over the original context."""
        return head_dim * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(theta))

    low, high = turns(fast), turns(slow)
    if inner.flag("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    if low == high:
        high += 0.001
    keep = 1 - np.clip((np.arange(head_dim // 2) - low) / (high - low), 0, 1)
    plain = _inverse(theta, head_dim).astype(np.float64)
    inv_freq = (plain / factor * (1 - keep) + plain * keep).astype(np.float32)
    reach = max(max_positions, min(int(factor * original), MAX_POSITIONS))
    return Rope("yarn", inv_freq, _yarn_scale(inner, factor), reach)


def _yarn_scale(inner: Fields, factor: float) -> float:
    """What multiplies cos and sin: given, or the paper's 0.1 · ln(factor) + 1."""
    given = inner.number("attention_factor", 0.0, 1e6, None)
    one, all_dims = inner.number("mscale", -1e-9, 1e6, 0.0), inner.number("mscale_all_dim", -1e-9, 1e6, 0.0)
    if given is not None:
        return given

    def grown(by: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * by * math.log(factor) + 1.0

    return grown(one) / grown(all_dims) if one and all_dims else grown(1.0)


def _longrope(inner: Fields, fields: Fields, theta: float, head_dim: int, max_positions: int) -> Rope:
    """A request as long as those of the first training turns by the short factors, a longer one by the long ones, from
    its first token on. Keys of both kinds do not go together."""
    place = fields if fields.has("original_max_position_embeddings") else inner
    original = place.integer("original_max_position_embeddings", 2, MAX_POSITIONS)
    factor = inner.number("factor", 0.0, 1e6, max_positions / original)
    grown = 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(original))
    scale = inner.number("attention_factor", 0.0, 1e6, grown)
    short, long = (
        _inverse(theta, head_dim, _factors(inner, key, head_dim // 2)) for key in ("short_factor", "long_factor")
    )
    if original >= max_positions:
        return Rope("longrope", short, scale, max_positions)
    return Rope("longrope", short, scale, max_positions, long, original)


def _factors(inner: Fields, key: str, count: int) -> np.ndarray:
    """A list of positive numbers, one for each pair that turns."""
    given = inner.values.get(key)
    if not isinstance(given, list) or len(given) != count or not all(_is_positive(f) for f in given):
        inner.fault(key, f"must be a list of {count} positive numbers, one for each pair of elements that turns")
        return np.ones(count, np.float32)
    return np.array(given, np.float32)


def _is_positive(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 1e-6 <= value <= 1e6


_PARSERS: dict[str, Callable[[Fields, Fields, float, int, int], Rope]] = {
    "default": _default,
    "linear": _linear,
    "dynamic": _dynamic,
    "llama3": _llama3,
    "yarn": _yarn,
    "longrope": _longrope,
}
