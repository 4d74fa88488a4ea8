"""A network whose convolutions and products compute in int8 by a plan: quantize and dequantize stand around them.

The plan gives each of these layers the scale of its input, or says why it stays float. Layers are counted in the order
of the network, after the passes that fold batch norms and paddings into them. Before a layer stands

    dequantize(quantize(x, scale), scale)    and    dequantize(stored integers, stored scales)

The integers stand where x is made: behind what only moves elements (views, concatenations, maxima of windows), so that
all of this moves bytes, and once for all its readers. What only moves elements of several tensors gives them one scale.
A product may round each of its rows with a scale of its own instead, which a run finds. Where the outputs of two layers
are added, that of the first waits in int8 for the second, whose epilogue adds it: as floats it would be four times the
bytes. What averages windows for another layer reads the integers too, where they are made in any case: a skip of a
U-Net is never floats then.
"""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from ingot import dtypes
from ingot.errors import EngineFileError, NetworkError
from ingot.ir import F, Network, Node, Value
from ingot.ir.numbering import Numbering
from ingot.ir.precision import unscoped
from ingot.ir.weight_format import INT8, format_of
from ingot.ops.binary import Add
from ingot.ops.control import CONTROL, bodies
from ingot.ops.conversion import Dequantize
from ingot.ops.movement import Permute, Reshape, Slice
from ingot.ops.pool import AvgPool
from ingot.ops.product import Matmul
from ingot.ops.spatial import Conv, ConvTranspose
from ingot.passes import convolution
from ingot.passes.clone import clone
from ingot.passes.integers import MOVES
from ingot.passes.pipeline import portable
from ingot.passes.quantize import integers, quantized
from ingot.passes.rewrite import Log, detach
from ingot.passes.weights import FIXED, derive, recipe_of, sizes
from ingot.strict_json import finite

Array = np.ndarray[Any, Any]

LAYERS = (Conv, ConvTranspose, Matmul)
KEY = "quantization"  # of the plan in an engine's config
BY_ROWS = "int8 rows"
QUANTISED = "its weight is quantised already"
IS_QUANTISED = "is quantised already: build it as it is, without weights and data, or start from its source in float"
LIMIT = 127  # the largest integer: a scale is the largest magnitude that is to be told apart, divided by it


@dataclass(frozen=True)
class Choice:
    """What a plan says of one layer: the scale of its input, or why it stays float.

    Attributes:
        rows: whether each row of the input has a scale of its own in the place of that one.
        shift: added to each output in int8: what rounding the weights takes from its mean. May be empty.
        error: relative root mean square error of the network's outputs when this layer alone is int8; None: unknown.
        output: the scale of its output, where that waits in int8 for another layer's to be added to it.
    """

    name: str
    op: str
    scale: float | None = None
    shift: tuple[float, ...] = ()
    why: str = ""
    error: float | None = None
    rows: bool = False
    output: float | None = None

    def in_float(self, why: str) -> Choice:
        """The layer left float, and why."""
        return replace(self, scale=None, shift=(), why=why, output=None)

    def json(self) -> dict[str, Any]:
        packed = base64.b64encode(np.array(self.shift, "<f4").tobytes()).decode()
        return {"name": self.name, "op": self.op, "type": self.type,
                "scale": self.scale, "output": self.output, "error": self.error, "why": self.why,
                "shift": packed}  # fmt: skip

    @property
    def type(self) -> str:
        """In a word or two."""
        return "float" if self.scale is None else BY_ROWS if self.rows else "int8"


@dataclass(frozen=True)
class Plan:
    """The choices for all layers of a network, in its order, and how they were made (free facts, in JSON values)."""

    layers: tuple[Choice, ...]
    facts: Mapping[str, Any]

    def json(self) -> dict[str, Any]:
        """As an engine's config has it: null for an error that is infinite, or none at all."""
        found: dict[str, Any] = finite({**self.facts, "layers": [choice.json() for choice in self.layers]})
        return found

    @property
    def config(self) -> dict[str, Any]:
        """What it adds to an engine's config: the words of int8 only where a layer is."""
        any_int8 = any(choice.scale is not None for choice in self.layers)
        return {**({"weights": "int8", "activations": "int8"} if any_int8 else {}), KEY: self.json()}

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Plan | None:
        """The plan of an engine's config; None where there is none. Raises EngineFileError for one that is no plan."""
        found = config.get(KEY)
        if found is None:
            return None
        if not isinstance(found, dict) or not isinstance(found.get("layers"), list):
            raise EngineFileError(f"config {KEY} must hold a list of layers: the file is damaged")
        facts = {name: value for name, value in found.items() if name != "layers"}
        return cls(tuple(_choice(item, i) for i, item in enumerate(found["layers"])), facts)


_FIELDS: dict[str, Any] = {
    "name": str, "op": str, "type": str, "scale": (float, int, type(None)), "error": (float, int, type(None)),
    "why": str, "shift": str, "output": (float, int, type(None)),
}  # fmt: skip


def _choice(item: Any, at: int) -> Choice:
    where = f"config {KEY}, layer {at}"
    if not isinstance(item, dict) or item.keys() != _FIELDS.keys():
        raise EngineFileError(f"{where} must have the keys {', '.join(_FIELDS)}: the file is damaged")
    for key, kinds in _FIELDS.items():
        if not isinstance(item[key], kinds) or isinstance(item[key], bool):
            raise EngineFileError(f"{where}: {key} has the wrong type: the file is damaged")
    scale = item["scale"]
    if (scale is None) != (item["type"] == "float") or (scale is not None and not is_scale(scale)):
        raise EngineFileError(f"{where}: its scale is no positive number, or does not go with its type")
    output = item["output"]
    if output is not None and (scale is None or not is_scale(output)):
        raise EngineFileError(f"{where}: the scale of its output is no positive number, or does not go with its type")
    if item["type"] not in ("float", "int8", BY_ROWS):
        raise EngineFileError(f"{where}: its type is {item['type']!r:.40}, and must be float, int8 or {BY_ROWS}")
    try:
        shift = np.frombuffer(base64.b64decode(item["shift"], validate=True), "<f4")
    except (binascii.Error, ValueError):
        raise EngineFileError(f"{where}: its shift is not base64 of float32") from None
    if not np.isfinite(shift).all():
        raise EngineFileError(f"{where}: its shift is not finite")
    return Choice(item["name"], item["op"], None if scale is None else float(scale), tuple(shift.tolist()),
                  item["why"], item["error"], item["type"] == BY_ROWS,
                  None if output is None else float(output))  # fmt: skip


def is_scale(number: float) -> bool:
    """Whether a number can be a scale in float32."""
    with np.errstate(over="ignore"):
        narrow = np.float32(number)
    return bool(np.isfinite(narrow) and narrow >= np.finfo(np.float32).tiny)


def computed(network: Network, config: Mapping[str, Any], log: Log | None = None) -> Network:
    """The portable network as an engine with this config computes it: its weights as integers, its layers by the plan.
    The network itself where it is neither."""
    plan = Plan.of(config)
    return placed(network, plan) if plan is not None else quantized(network, format_of(config), log)


def prepared(network: Network) -> Network:
    """A copy in which all that a layer takes over is part of it: batch norms, paddings, known values."""
    new = clone(network)
    log: Log = []
    with unscoped():
        for stage in portable():
            stage.run(new, log)
        convolution.paddings(new, log)
    return new


# --------------------------------------------------------------------------------------------------------- the layers


class Layer(NamedTuple):
    """A convolution or product of a prepared network, or what else reads a matrix of weights.

    why: why it cannot be int8; empty where it can. sources: the values that are quantised for it. summand: its output,
    where all that is done with it is that a later layer's is added.
    """

    name: str
    node: Node
    why: str
    sources: tuple[Value, ...]
    summand: Value | None = None

    @property
    def weight(self) -> Value:
        return self.node.inputs[1]


def layers_of(network: Network) -> list[Layer]:
    """The layers of a prepared network in order, each with a name of its own."""
    seen: dict[str, int] = {}
    found = []
    behind: dict[Value, tuple[Value, ...]] = {}
    for node, inside in _nodes(network):
        if not _is_layer(node):
            continue
        why = f"it is in the body of a {inside}" if inside else _refused(node)
        name = _name(node)
        seen[name] = seen.get(name, 0) + 1
        name = name if seen[name] == 1 else f"{name} #{seen[name]}"
        found.append(Layer(name, node, why, () if why else _sources(node.inputs[0], behind)))
    return _with_summands(network, found)


def _with_summands(network: Network, layers: Sequence[Layer]) -> list[Layer]:
    order = {layer.node: i for i, layer in enumerate(layers)}

    def waits(layer: Layer) -> bool:
        """Whether a layer that can be int8 has its output added to that of one behind it."""
        if layer.why:  # also of those with several outputs, recurrent ones
            return False
        y = layer.node.output
        if len(y.uses) != 1 or network.is_output(y):
            return False
        (user,) = y.uses
        others = [v.node for v in user.inputs if v is not y]
        return _is_residual(user) and any(order.get(node, -1) > order[layer.node] for node in others)

    return [layer._replace(summand=layer.node.output) if waits(layer) else layer for layer in layers]


def _nodes(network: Network, inside: str = "") -> Iterator[tuple[Node, str]]:
    for node in network.nodes:
        yield node, inside
        if isinstance(node.op, CONTROL):
            for body in bodies(node.op).values():
                yield from _nodes(body, node.op.name)


def _is_layer(node: Node) -> bool:
    return isinstance(node.op, LAYERS) or any(_is_matrix(v) for v in node.inputs if v.kind == "parameter")


def _is_matrix(value: Value) -> bool:
    return value.dtype.is_float and len(value.shape) >= 2 and all(isinstance(n, int) and n > 1 for n in value.shape)


def _name(node: Node) -> str:
    """The module path, or the name of the weight without its last word."""
    if node.where:
        return node.where
    weights = [v for v in node.inputs[1:] if v.kind == "parameter"]
    if not weights:
        return node.op.name
    source = recipe_of(weights[0]).sources[0]
    return source.rpartition(".")[0] or source


def _refused(node: Node) -> str:
    """Why a layer cannot be int8, or nothing."""
    op: Any = node.op
    if not isinstance(op, LAYERS):
        return f"{op.name} has no int8 form"
    x, weight = node.inputs[:2]
    if _is_quantised(weight):
        return QUANTISED
    if x.dtype not in dtypes.PRECISIONS or weight.dtype not in dtypes.PRECISIONS:
        return f"it computes in {x.dtype.name}"
    if weight.kind not in FIXED:
        return "its weight is computed"
    if x.kind in FIXED:
        return "its input is known before the run"
    if 0 in weight.shape:
        return "its weight has no elements"
    if isinstance(op, Matmul) and (op.transpose_a or len(weight.shape) != 2):
        return "its weight is no matrix that rows are multiplied with"
    return ""


def is_quantised(network: Network) -> bool:
    """Whether a layer has a weight that the source stores as integers or floats of 8 bits, at most."""
    return any(isinstance(node.op, LAYERS) and _is_quantised(node.inputs[1]) for node in network.nodes)


def _is_quantised(weight: Value) -> bool:
    """Whether a weight is made of such numbers, and of nothing that a run gives."""
    ways, seen, narrow = [weight], {weight}, False
    while ways:
        value = ways.pop()
        if value.node is None:
            if value.kind not in FIXED:
                return False
            dtype = value.dtype
            narrow |= dtype.is_integer and (value is weight or dtype.bits <= 8) or dtype.is_float and dtype.bits <= 8
            continue
        new = [v for v in value.node.inputs if v not in seen]
        seen.update(new)
        ways += new
    return narrow


def _sources(x: Value, known: dict[Value, tuple[Value, ...]]) -> tuple[Value, ...]:
    """What x is a move of: the values before it that something computes. x itself where it is not only moved."""
    if x not in known:
        node, found = x.node, [x]
        if node is not None and isinstance(node.op, MOVES) and not any(v.kind in FIXED for v in node.inputs):
            found = [source for v in dict.fromkeys(node.inputs) for source in _sources(v, known)]
        known[x] = tuple(dict.fromkeys(found))
    return known[x]


def groups_of(layers: Sequence[Layer]) -> list[list[Value]]:
    """The values that share a scale, for all layers that can be int8, in their order; then each of the summands."""
    root: dict[Value, Value] = {}

    def find(v: Value) -> Value:
        while root[v] is not v:
            root[v] = v = root[root[v]]
        return v

    for layer in layers:
        for v in layer.sources:
            root.setdefault(v, v)
            root[find(v)] = find(layer.sources[0])
    found: dict[Value, list[Value]] = {}
    for v in root:
        found.setdefault(find(v), []).append(v)
    return [*found.values(), *([layer.summand] for layer in layers if layer.summand is not None)]


# ------------------------------------------------------------------------------------------------------------ placing


def placed(network: Network, plan: Plan, ready: Network | None = None) -> Network:
    """A prepared copy of a network with its layers as the plan says. ready: the network `prepared`, which stays as it
    is. Raises NetworkError for the plan of another."""
    new = prepared(network) if ready is None else clone(ready)
    layers = layers_of(new)
    if [(one.name, one.node.op.name) for one in layers] != [(c.name, c.op) for c in plan.layers]:
        raise NetworkError(
            f"network {network.name} has {len(layers)} layers, and the plan is for {len(plan.layers)} others: "
            "calibrate it again"
        )
    with unscoped():
        _place(new, [(layer, choice) for layer, choice in zip(layers, plan.layers, strict=True) if choice.scale])
    new.remove_dead()
    return new


def _place(network: Network, chosen: Sequence[tuple[Layer, Choice]]) -> None:
    scales: dict[Value, float] = {}
    for layer, choice in chosen:
        assert choice.scale is not None
        if layer.why:
            raise NetworkError(f"layer {layer.name} cannot be int8: {layer.why}")
        if choice.output is not None and layer.summand is None:
            raise NetworkError(f"layer {layer.name} has no output that waits for a sum, and the plan a scale for it")
        if choice.rows and not isinstance(layer.node.op, Matmul):
            raise NetworkError(f"layer {layer.name} is no product: its input has no rows with scales of their own")
        for source in () if choice.rows else layer.sources:
            if scales.setdefault(source, choice.scale) != choice.scale:
                raise NetworkError(f"layer {layer.name}: %{source.name} has two scales in the plan")
    reads = _readers([layer for layer, choice in chosen if not choice.rows], scales)
    order = {node: i for i, node in enumerate(network.nodes)}
    for source, scale in scales.items():
        readers = reads[source]
        with network.insert_before(min(readers, key=lambda node: order[node])):
            whole = as_rounded(source, scale)
        for node in readers:
            network.rewire(node, tuple(whole if v is source else v for v in node.inputs))
    dead: list[Node] = []
    for layer, choice in chosen:
        with network.insert_before(layer.node):
            made = _in_integers(network, layer.node, choice)
            made = made if choice.output is None else as_rounded(made, choice.output)
        network.replace(layer.node.output, made)
        dead.extend(detach(network, layer.node))
    network.remove(dead)


def as_rounded(x: Value, scale: float) -> Value:
    """What is left of x in int8 of this scale."""
    constant = x.network.constant(np.float32(scale))
    return F.dequantize(F.quantize(x, constant), constant, dtype=x.dtype)  # type: ignore[no-any-return]


def _readers(layers: Sequence[Layer], sources: Mapping[Value, float]) -> dict[Value, list[Node]]:
    """The nodes that read each source as it is once it has been integers: layers, the moves before them, and sums of
    whole tensors (residuals) and averages that become integers too, so that its floats need not be kept beside the
    integers."""
    wanted: set[Node] = {layer.node for layer in layers}
    front = [layer.node.inputs[0] for layer in layers]
    while front:
        x = front.pop()
        if x not in sources and x.node not in wanted:
            wanted.add(x.node)
            front.extend(x.node.inputs)

    def reads(node: Node) -> bool:
        return node in wanted or _is_residual(node) or (isinstance(node.op, AvgPool) and node.output in sources)

    return {v: [node for node in v.uses if reads(node)] for v in sources}


def _is_residual(node: Node) -> bool:
    return isinstance(node.op, Add) and node.inputs[0].shape == node.inputs[1].shape


def _in_integers(network: Network, node: Node, choice: Choice) -> Value:
    """The layer by integers and scales of its weight, and with its shift."""
    op: Any = node.op
    x, weight, *bias = node.inputs
    shift = choice.shift
    if isinstance(op, Matmul):
        turned = weight
        if not op.transpose_b:
            turned = derive(network, "transpose", [weight], f"{weight.name}.transposed", axes=(1, 0))
        whole = F.dequantize(*integers(network, turned, INT8), dtype=weight.dtype)
        rows = F.dequantize(*F.quantize_rows(x), dtype=x.dtype) if choice.rows else _rows(x)
        y = F.matmul(rows, whole, transpose_b=True, out_dtype=node.output.dtype)
        return _shifted(y, shift, (len(shift),))
    y = network.emit(op, (x, stored_integers(network, weight, op), *bias))
    behind = 0 if op.channels_last else len(weight.shape) - 2  # dimensions after the channels
    return _shifted(y, shift, (len(shift), *[1] * behind))


def _rows(x: Value) -> Value:
    """Dequantised rows with the scale once for each row, as products of int8 take them; x itself where it is joined."""
    moves, made = [], x.node
    while isinstance(made.op, Reshape | Permute | Slice):
        moves.append(made.op)
        made = made.inputs[0].node
    if not isinstance(made.op, Dequantize):
        return x
    whole, scale = made.inputs
    for op in reversed(moves):
        whole = x.network.emit(op, (whole,))
    return F.dequantize(whole, F.expand(scale, (*x.shape[:-1], 1)), dtype=x.dtype)  # type: ignore[no-any-return]


def _shifted(y: Value, shift: Sequence[float], shape: tuple[int, ...]) -> Value:
    return F.add(y, np.array(shift, y.dtype.numpy).reshape(shape)) if shift else y


def stored_integers(network: Network, weight: Value, op: Conv | ConvTranspose) -> Value:
    """A convolution's weight, dequantised of its integers, with a scale for each output. Those of a transposed one in
    groups have a dimension for these: [groups, C/groups, O/groups, *K]."""
    shape = sizes(weight)
    transposed = isinstance(op, ConvTranspose)
    parted = transposed and op.groups > 1
    first = weight
    if parted:
        shape = (op.groups, shape[0] // op.groups, *shape[1:])
        first = derive(network, "reshape", [first], f"{weight.name}.parted", shape=shape)
    at = 1 + parted  # behind the dimensions of outputs, once these are in front
    turned = (*range(at - 1), at, at - 1, *range(at + 1, len(shape))) if transposed else tuple(range(len(shape)))
    if transposed:
        first = derive(network, "transpose", [first], f"{weight.name}.turned", axes=turned)
    ordered = sizes(first)
    rows = derive(
        network, "reshape", [first], f"{first.name}.rows", shape=(math.prod(ordered[:at]), math.prod(ordered[at:]))
    )
    whole, scales = integers(network, rows, INT8)
    whole = derive(network, "reshape", [whole], f"{weight.name}.int8", shape=ordered)
    if transposed:
        whole = derive(network, "transpose", [whole], f"{weight.name}.int8.turned", axes=turned)
    by_output = (*ordered[:at], *[1] * (len(ordered) - at))
    scales = derive(
        network, "reshape", [scales], f"{weight.name}.scales", shape=tuple(by_output[axis] for axis in turned)
    )
    made = F.dequantize(whole, scales, dtype=weight.dtype)
    return F.reshape(made, weight.shape) if parted else made  # type: ignore[no-any-return]


def multiplied_scales(network: Network, stored: Iterable[Value]) -> list[Value]:
    """The parameters of a network, scales of integers, that stored tensors have only multiplied with the scale of an
    input. That is rounded and cannot be undone, so that they are kept beside it for other targets."""
    numbers = Numbering()
    shown = {numbers.of(recipe_of(v))[-1] for v in stored if v.kind == "parameter"}
    multiplied: set[int] = set()
    for number, call in reversed(list(enumerate(numbers.made))):  # what is made of a value has a larger number
        if isinstance(call, str):
            continue
        moved = call.step.inverse is not None
        if moved and number in shown:
            shown.update(call.inputs)
        if call.name == "times" or (number in multiplied and (moved or call.name in ("cast", "take"))):
            multiplied.update(call.inputs)
    used = {numbers.of(recipe_of(v))[-1]: v for v in network.parameters if v.uses} if multiplied - shown else {}
    return [v for number, v in used.items() if number in multiplied and number not in shown]


def weight_as_stored(weight: Array, node: Node) -> Array:
    """A layer's weight in float32 as it is once it has been int8: what `placed` stores, dequantised."""
    whole = np.array(weight, np.float32, order="C")
    rows = by_outputs(whole, node.op)
    rows[...] = rows_as_stored(rows.reshape(math.prod(rows.shape[:2]), -1)).reshape(rows.shape)
    return whole


def by_outputs(weight: Array, op: Any) -> Array:
    """A view of a layer's contiguous weight as [groups, outputs of a group, inputs of a group, *K]."""
    if isinstance(op, Matmul):
        return (weight if op.transpose_b else weight.T)[np.newaxis]
    first, second, *kernel = weight.shape
    parted = weight.reshape(op.groups, first // op.groups, second, *kernel)
    return parted.swapaxes(1, 2) if isinstance(op, ConvTranspose) else parted


def rows_as_stored(rows: Array, out: Array | None = None) -> Array:
    """The same of its rows in float32, each of which is what an output sums over."""
    whole: Array = np.abs(rows, out=out)
    scales = whole.max(-1, keepdims=True) / np.float32(LIMIT)
    scales[scales == 0] = 1
    np.divide(rows, scales, out=whole)
    np.rint(whole, out=whole)
    np.clip(whole, -LIMIT, LIMIT, out=whole)
    whole *= scales
    return whole
