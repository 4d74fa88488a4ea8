"""Weights of a network in the form in which kernels read them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ingot.backends.cuda.operands import Mixture, Weight, packed
from ingot.backends.cuda.program import Call, Experts, Factor, Product, program, written_over
from ingot.backends.torch_executor import Loaded
from ingot.ir import Value


@dataclass(frozen=True)
class Arranged:
    """A loaded network, its calls, and what the products among them multiply with.

    biases: of products of several weights the row that is added to all of their results, by the number of the call.
    groups: of parameters that are stored as two integers a byte, by how many share a scale. over: numbers of the
    products whose result may take the place of what they add.
    """

    loaded: Loaded
    calls: tuple[Call, ...]
    weights: dict[int, Weight]  # by the number of the call
    biases: dict[int, Any]
    mixtures: dict[int, Mixture]  # the same
    groups: dict[Value, int]
    over: frozenset[int]


def arranged(torch: Any, loaded: Loaded) -> Arranged:
    """Brings weights into the form in which kernels read them.

    Weights of one product lie one behind the other, and so do its biases; the parameters become views of the whole.
    Integers of 4 bits are packed where only products read them.
    """
    calls, tensors = program(loaded.network), loaded.tensors
    weights: dict[int, Weight] = {}
    biases: dict[int, Any] = {}
    mixtures: dict[int, Mixture] = {}
    groups: dict[Value, int] = {}
    saved = 0
    for number, found in enumerate(calls):
        if not isinstance(found, Product | Experts):
            continue
        for factor in found.factors:
            if factor.turned:  # the parameter stays [k, n], as a view of it
                tensors[factor.weight] = tensors[factor.weight].T.contiguous().T
            if factor.group and factor.weight not in groups:
                stored = tensors[factor.weight]
                tensors[factor.weight] = packed(torch, stored, factor.group)
                groups[factor.weight] = factor.group
                saved += stored.nbytes - tensors[factor.weight].nbytes
        if isinstance(found, Experts):
            mixtures[number] = _mixture(torch, tensors, found)
            continue
        if len(found.factors) > 1 and not found.pair:
            for values in zip(*((f.weight, f.scales) for f in found.factors), strict=True):
                _join(torch, tensors, [v for v in values if v is not None])
        if found.biases:
            _join(torch, tensors, found.biases)
            first = tensors[found.biases[0]]
            biases[number] = first.as_strided((sum(len(tensors[v]) for v in found.biases),), (1,))
        weights[number] = _weight(torch, tensors, found)
    loaded = replace(loaded, bytes=loaded.bytes - saved)
    return Arranged(loaded, calls, weights, biases, mixtures, groups, written_over(loaded.network, calls))


def _mixture(torch: Any, tensors: dict[Value, Any], found: Experts) -> Mixture:
    (gates, scales, zeros), (ups, second_scales, second_zeros), downs = (
        _stacked(torch, tensors, factors) for factors in (found.gates, found.ups, found.downs)
    )
    gated = Weight(gates, scales, ups, second_scales, found.gates[0].group, found.activation, zeros, second_zeros)
    second = Weight(*downs[:2], group=found.downs[0].group, zeros=downs[2])
    return Mixture(gated, second, len(found.gates), found.top, found.normalize)


def _stacked(torch: Any, tensors: dict[Value, Any], factors: Sequence[Factor]) -> tuple[Any, Any, Any]:
    """Weights, scales and zero points of all experts, one behind the other."""
    whole: list[Any] = []
    for values in ([getattr(f, name) for f in factors] for name in ("weight", "scales", "zeros")):
        if values[0] is None:
            whole.append(None)
            continue
        _join(torch, tensors, values)
        first = tensors[values[0]]
        whole.append(first.as_strided((len(values) * first.shape[0], *first.shape[1:]), first.stride()))
    weights, scales, zeros = whole
    return weights, scales if scales is None or factors[0].group else scales.view(-1), zeros


def _join(torch: Any, tensors: dict[Value, Any], values: Sequence[Value]) -> None:
    """Lays tensors one behind the other."""
    if not values:
        return
    whole = torch.cat([tensors[v] for v in values])
    at = 0
    for value in values:
        end = at + tensors[value].shape[0]
        tensors[value] = whole[at:end]
        at = end


def _weight(torch: Any, tensors: Mapping[Value, Any], product: Product) -> Weight:
    parts = [_tensors(tensors, factor) for factor in product.factors]
    group = product.factors[0].group
    if product.pair:
        return Weight(*parts[0], *parts[1], group=group, activation=product.activation)
    first, scales = parts[0]
    rows = sum(weight.shape[0] for weight, _ in parts)
    whole = first.as_strided((rows, first.shape[1]), first.stride())
    if scales is not None:
        scales = scales.as_strided((rows, *scales.shape[1:]), scales.stride())
    return Weight(whole, scales, group=group, activation=product.activation)


def _tensors(tensors: Mapping[Value, Any], factor: Factor) -> tuple[Any, Any]:
    scales = None if factor.scales is None else tensors[factor.scales]
    if scales is not None and not factor.group:
        scales = scales.view(-1)
    weight = tensors[factor.weight]
    return weight.T if factor.turned else weight, scales
