"""Weights that a checkpoint stores as integers, as a traced model reads them: `dequantize` stands where each was.

A product by such a weight takes its integers [outputs, inputs], its scales and its zero points, which are parameters of
their own: `q_proj.weight.int4`, `q_proj.weight.scales`, `q_proj.weight.zeros`. Where the groups of inputs are not
neighbours (act-order), the columns are sorted by group and the product's rows are taken in that order,
`q_proj.weight.order`. The experts of mixtures take theirs too, if all gates and ups, or all downs, have one form and
need no order. What nothing reads so, and what no kernel has a form for, becomes floats when it is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

import numpy as np

from ingot import dtypes
from ingot.frontends.quantized.weights import Form, QuantizedWeight
from ingot.frontends.recording import Remark
from ingot.ir import F, Network, Node, Spec, Value
from ingot.ops.mixture import Moe
from ingot.ops.product import Matmul
from ingot.passes.experts import weight_sets
from ingot.passes.rewrite import detach
from ingot.passes.weights import derive

Array = np.ndarray[Any, Any]

AS_FLOATS = "build with --weights to store them as integers of another form"
UNREAD = "something else than a product reads them"
ORDERED = "their columns have orders of their own (act-order), and experts read the same rows"
UNLIKE = "experts of one mixture are stored in several forms"
NOT_ROUNDED = "activations stay floats: nothing is to be done, and results are the more exact"


class HoldsIntegers(Protocol):
    """What IntegerWeights are made of: a quantised directory, or a GGUF file.

    quantized: what it holds of a weight, by its name. unused: tensors of which nothing is made.
    """

    @property
    def quantized(self) -> Mapping[str, QuantizedWeight]: ...

    @property
    def unused(self) -> Sequence[str]: ...


class IntegerWeights(Mapping[str, Array]):
    """Parameter name → array of a model whose checkpoint is quantised: its float parameters, and beside them what its
    integers are stored as.

    Args:
        floats: all parameters as floats.
        sources: the tensor of each parameter.

    Attributes:
        forms: how an engine stores a weight, by the parameter's name.
        remarks: what becomes floats, and what the checkpoint asks for and is not done.
    """

    def __init__(self, floats: Mapping[str, Array], sources: Mapping[str, str], checkpoint: HoldsIntegers) -> None:
        self._floats = floats
        self._weights = {
            name: weight for name, source in sources.items() if (weight := checkpoint.quantized.get(source))
        }
        found = {name: weight.form() for name, weight in self._weights.items()}
        self.forms: dict[str, Form] = {name: form for name, form in found.items() if isinstance(form, Form)}
        self._stored = {
            f"{name}.{part}": read
            for name, form in self.forms.items()
            for part, read in self._weights[name].stored(form).items()
        }
        self.orders = _orders(self.forms)
        self._stored |= {name: partial(np.asarray, order) for name, order in self._named_orders()}
        self.remarks = _remarks(found, self._weights, checkpoint)

    def __getitem__(self, name: str) -> Array:
        return self._stored[name]() if name in self._stored else self._floats[name]

    def __contains__(self, name: object) -> bool:
        return name in self._stored or name in self._floats  # without reading it

    def __iter__(self) -> Iterator[str]:
        yield from self._floats
        yield from self._stored

    def __len__(self) -> int:
        return len(self._floats) + len(self._stored)

    def _named_orders(self) -> Iterator[tuple[str, Array]]:
        for name, parameter in self.orders.items():
            order = self.forms[name].order
            if parameter == f"{name}.order" and order is not None:
                yield parameter, order

    def shape(self, name: str) -> tuple[int, int]:
        """[outputs, inputs] of a quantised weight."""
        return self._weights[name].shape


def _orders(forms: Mapping[str, Form]) -> dict[str, str]:
    """Weight → the parameter that holds the order of its columns; equal ones (of q, k and v) are one."""
    first: dict[bytes, str] = {}
    ordered = ((name, form.order) for name, form in forms.items())
    return {name: first.setdefault(order.tobytes(), f"{name}.order") for name, order in ordered if order is not None}


def _remarks(
    forms: Mapping[str, Form | str], weights: Mapping[str, QuantizedWeight], checkpoint: HoldsIntegers
) -> list[Remark]:
    """What becomes of the weights beyond what their forms say, with the places of each kind together."""
    floats: dict[str, list[str]] = {}
    rows: dict[str, list[str]] = {}
    for name, form in forms.items():
        if isinstance(form, str):
            floats.setdefault(form, []).append(name)
        if (given := weights[name].rows) and not (isinstance(form, Form) and form.rows):
            rows.setdefault(given, []).append(name)
    found = [_as_floats(why, names) for why, names in floats.items()]
    found += [_rows_as_they_are(given, names) for given, names in rows.items()]
    if checkpoint.unused:
        names = tuple(checkpoint.unused)
        found.append(Remark("tensors not used", "scales", names, len(names),
                            "they are scales of inputs or of the cache", NOT_ROUNDED))  # fmt: skip
    return found


def _as_floats(why: str, names: list[str]) -> Remark:
    return Remark("quantised weights as floats", "matmul", tuple(names), len(names), why, AS_FLOATS)


def _rows_as_they_are(given: str, names: list[str]) -> Remark:
    why = f"the checkpoint rounds its inputs to {given}"
    return Remark("inputs as they are", "matmul", tuple(names), len(names), why, NOT_ROUNDED)


def with_integers(network: Network, weights: IntegerWeights) -> list[Remark]:
    """Changes a traced network in place: its products and experts read integers where the checkpoint holds them.

    Returns what is said of those that become floats for another reason than their form, and of rows.
    """
    dead: list[Node] = []
    chosen = [weight for weight in network.parameters if weight.name in weights.forms]
    mixtures = [node for node in network.nodes if isinstance(node.op, Moe)]
    others = _others(chosen, mixtures, weights)
    made = {weight: _parameters(network, weight, weights) for weight in chosen if weight not in others}
    for node in mixtures:
        _read_by_experts(node, made, weights)
    rows: dict[tuple[Value, str], Value] = {}
    for node in list(network.nodes):
        if not isinstance(node.op, Matmul) or node.inputs[1] not in made:
            continue
        weight = node.inputs[1]
        with network.insert_before(node):
            new = _product(node, weights.forms[weight.name], made[weight], rows)
        network.replace(node.output, new)
        dead.extend(detach(network, node))
    network.remove(dead)
    network.remove_dead()
    said = [_as_floats(why, [w.name for w in chosen if others.get(w) == why]) for why in dict.fromkeys(others.values())]
    whole = [v.name for node in mixtures for v in node.inputs[2:] if v in made and weights.forms[v.name].rows]
    return said + ([_rows_as_they_are("int8", whole)] if whole else [])


def _others(chosen: Sequence[Value], mixtures: Sequence[Node], weights: IntegerWeights) -> dict[Value, str]:
    """The weights that become floats though integers have a form, and why."""
    found = {weight: UNREAD for weight in chosen if not _only_products(weight)}
    for node in mixtures:
        for experts in weight_sets(node):
            held = [weight for weight in experts if weight.name in weights.forms]
            forms = [weights.forms[weight.name] for weight in held]
            why = next((found[weight] for weight in held if weight in found), "")
            if any(form.order is not None for form in forms):
                why = why or ORDERED
            if len(held) < len(experts) or len({(form.dtype, form.group, form.zeros) for form in forms}) > 1:
                why = why or UNLIKE
            if why:
                found |= dict.fromkeys(held, why)
    return found


def _only_products(weight: Value) -> bool:
    """Whether nothing but products and experts reads it, as the matrix that they multiply with."""
    return not weight.network.is_output(weight) and all(
        not any(v is weight for v in node.inputs[:2]) if isinstance(node.op, Moe)
        else isinstance(node.op, Matmul) and node.inputs[1] is weight and node.inputs[0] is not weight
        and not node.op.transpose_a
        for node in weight.uses
    )  # fmt: skip


def _read_by_experts(node: Node, made: Mapping[Value, Mapping[str, Value]], weights: IntegerWeights) -> None:
    """Lets a mixture read dequantised weights. Scales of all gates and ups, or all downs, are of one type."""
    network, new = node.output.network, {}
    with network.insert_before(node):
        for experts in weight_sets(node):
            of_all = {weights.forms[weight.name].scales for weight in experts if weight in made}
            for weight in (w for w in experts if w in made and w not in new):
                integers, scales, *zeros = made[weight].values()
                if len(of_all) > 1 and scales.dtype is not dtypes.float32:
                    scales = derive(network, "cast", [scales], f"{scales.name}.float32", dtype="float32")
                group = weights.forms[weight.name].group
                new[weight] = F.dequantize(integers, scales, *zeros, dtype=weight.dtype, group=group)
    network.rewire(node, tuple(new.get(v, v) for v in node.inputs))


def _parameters(network: Network, weight: Value, weights: IntegerWeights) -> dict[str, Value]:
    """The parameters that a weight is made of."""
    form = weights.forms[weight.name]
    outputs, inputs = weights.shape(weight.name)
    groups = (outputs, inputs // form.group if form.group else 1)
    specs = {
        "integers": (form.dtype.name, Spec((outputs, inputs), form.dtype)),
        "scales": ("scales", Spec(groups, form.scales)),
    }
    if form.zeros:
        specs["zeros"] = ("zeros", Spec(groups, dtypes.int8))
    made = {part: network.parameter(f"{weight.name}.{end}", spec) for part, (end, spec) in specs.items()}
    if form.order is not None:
        name = weights.orders[weight.name]
        known = network.values.get(name)
        made["order"] = network.parameter(name, Spec((inputs,), dtypes.int32)) if known is None else known
    return made


def _product(node: Node, form: Form, parts: Mapping[str, Value], rows: dict[tuple[Value, str], Value]) -> Value:
    """A product by a dequantised weight. rows: what products before it read in their operand's place."""
    op: Any = node.op
    x, weight = node.inputs
    if "order" in parts:
        x = _once(rows, (x, parts["order"].name), lambda: F.take(x, parts["order"], axis=-1))
    if form.rows:
        x = _once(rows, (x, "rounded"), lambda: F.dequantize(*F.quantize_rows(x), dtype=x.dtype))
    operands = [parts[name] for name in ("integers", "scales", "zeros") if name in parts]
    whole = F.dequantize(*operands, dtype=weight.dtype, group=form.group)
    return F.matmul(x, whole, transpose_b=True, out_dtype=op.out_dtype)  # type: ignore[no-any-return]


def _once(rows: dict[tuple[Value, str], Value], key: tuple[Value, str], make: Callable[[], Value]) -> Value:
    if key not in rows:
        rows[key] = make()
    return rows[key]
