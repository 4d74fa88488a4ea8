"""A network whose weights are stored as integers, or floats of 8 bits, and scales: `dequantize` stands where the weight
stood.

Only what a product sums over with rows, or what is looked up, is stored so: the matrices of linear layers, tables, the
experts of a mixture, and what multiplies the state of recurrent layers. The scales are one for each output, or for
groups of its inputs, of the weight as [outputs, inputs]; a table's rows are its outputs. Tables and what multiplies a
state are int8 in every format; the rows of experts stay floats. Tables and the head may have a word of their own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ingot import dtypes
from ingot.errors import UserError
from ingot.ir import F, Network, Node, Value
from ingot.ir.recipe import Recipe
from ingot.ir.weight_format import FP8, WeightFormat
from ingot.ops.control import CONTROL, WhileLoop, bodies, body_operands
from ingot.ops.conversion import Dequantize, Float8Rows
from ingot.ops.indexing import Embedding, Take
from ingot.ops.mixture import Moe
from ingot.ops.product import Matmul
from ingot.ops.recurrent import Recurrent
from ingot.passes.bodies import closed, opened, read_alike
from ingot.passes.clone import clone
from ingot.passes.rewrite import Log, apply, detach, note
from ingot.passes.smooth import scaled_weights
from ingot.passes.weights import derive, lookups, recipe_of, sizes
from ingot.passes.written_out import ROWS
from ingot.words import TABLES

FLOAT_BITS = (16, 32)


def quantized(network: Network, format: WeightFormat, log: Log | None = None) -> Network:
    """A copy with its weights in that format; the same network where that is `same`. The log says
    which stay floats, which are int8 where int4 was asked for, and which rows stay floats.

    Raises UserError where a word for a head or for tables does not fit the network.
    """
    if format.is_floats:
        return network
    new = clone(network)
    decisions: Log = [] if log is None else log
    lookups(new, decisions, (Take,))  # directions and gates of recurrent layers, put in order
    apply(new, (ROWS,), decisions)
    scaled_weights(new, decisions)
    _quantize(new, {recipe_of(weight): wanted for weight, wanted in _chosen(new, format, decisions)}, decisions)
    new.remove_dead()
    if format.activations:
        _note_rows(new, format.activations, decisions)
    return new


def _chosen(network: Network, format: WeightFormat, log: Log) -> Iterator[tuple[Value, WeightFormat]]:
    """The weights that become integers everywhere, and which; the log gets the others, with the reason."""
    head = _head(network)
    if format.head is not None and head is None:
        raise UserError("this network has no head of floats, so no word for one: leave head out")
    tables = {weight for weight in network.parameters if _is_table(weight)}
    if format.embeddings is not None and not tables:
        raise UserError("this network has no table of floats that rows are looked up in: leave embeddings out")
    for weight in network.parameters:
        if weight.dtype.bits not in FLOAT_BITS or not weight.dtype.is_float or len(weight.shape) < 2:
            continue  # vectors: norms and biases
        if weight.uses and all(isinstance(n.op, Dequantize) and n.inputs[0] is not weight for n in weight.uses):
            continue  # scales of what is stored as integers already
        wanted = _wanted(weight, format, weight is head, weight in tables)
        if why := _kept(weight) or ("as asked" if wanted.dtype is None and wanted is not format else ""):
            note(log, "weights", next(iter(weight.uses)), f"{weight.name} stays {weight.dtype.name}: {why}")
        elif wanted.dtype is not None:
            yield weight, wanted


def _wanted(weight: Value, format: WeightFormat, is_head: bool, is_table: bool) -> WeightFormat:
    """The format of one weight. Raises UserError where words for it contradict one another."""
    asked = {word for word, it_is in ((format.head, is_head), (format.embeddings, is_table)) if it_is and word}
    if not asked:
        return format
    if is_table and (len(asked) > 1 or not asked <= {*TABLES}):
        raise UserError(
            f"{weight.name} is the head and the table of embeddings, stored once, as one of {', '.join(TABLES)}: give "
            "one word for both"
        )
    return format.other(asked.pop())


def _head(network: Network) -> Value | None:
    """The parameter that makes logits, where it is one."""
    value = network.outputs.get("logits")
    while value is not None and value.node is not None and not isinstance(value.node.op, Matmul):
        value = value.node.inputs[0]  # behind a bias, a cap, a cast
    weight = None if value is None or value.node is None else value.node.inputs[1]
    return weight if weight is not None and weight.kind == "parameter" else None


def _is_table(weight: Value) -> bool:
    """Whether rows of it are looked up, also in what only a branch or a loop reads."""
    for node in weight.uses:
        if isinstance(node.op, CONTROL):
            places = [i for i, v in enumerate(body_operands(node.op, node.inputs)) if v is weight]
            if any(_is_table(body.inputs[i]) for body in bodies(node.op).values() for i in places):
                return True
        elif isinstance(node.op, Embedding) and node.inputs[1] is weight:
            return True
    return False


def _quantize(network: Network, chosen: Mapping[Recipe, WeightFormat], log: Log) -> None:
    """In place, and in branches and loop bodies too."""
    dead: list[Node] = []
    for weight in [v for v in network.parameters if recipe_of(v) in chosen]:
        readers = [node for node in weight.uses if not isinstance(node.op, CONTROL)]
        int8 = any(isinstance(node.op, Embedding | Recurrent) for node in readers)
        taken = chosen[recipe_of(weight)].per_output if int8 else chosen[recipe_of(weight)]
        for node in readers:
            if taken.group and (inputs := _inputs(node, weight)) % taken.group:
                word, why = taken.word, f"groups of {taken.group} do not divide its {inputs} inputs"
                note(log, "groups", node, f"{weight.name} becomes int8, not {word}: {why}")
            with network.insert_before(node):
                if isinstance(node.op, Recurrent | Moe):
                    group = _fits(weight, taken).group
                    whole = F.dequantize(*integers(network, weight, taken), dtype=weight.dtype, group=group)
                    network.rewire(node, tuple(whole if v is weight else v for v in node.inputs))
                    continue
                made = _reader(node, weight, taken)
            network.replace(node.output, made)
            dead.extend(detach(network, node))
    for node in [n for n in network.nodes if isinstance(n.op, CONTROL)]:
        if any(v.kind == "parameter" and recipe_of(v) in chosen for v in node.inputs):
            inside = opened(node)
            for body in inside.values():
                _quantize(body, chosen, log)
            dead.extend(closed(network, node, inside))
    network.remove(dead)


def _kept(weight: Value) -> str:
    """Why a weight is not quantised, or nothing. In a branch or body it is the operand that stands for it."""
    for node in weight.uses:
        op: Any = node.op
        if isinstance(op, CONTROL):
            if why := _kept_inside(node, weight):
                return why
            continue
        product = isinstance(op, Matmul) and node.inputs[1] is weight and node.inputs[0] is not weight
        table = isinstance(op, Embedding) and node.inputs[1] is weight
        recurrent = isinstance(op, Recurrent) and [i for i, v in enumerate(node.inputs) if v is weight] == [1]
        expert = isinstance(op, Moe) and not any(v is weight for v in node.inputs[:2])
        if not product and not table and not recurrent and not expert:
            return f"{op.name} reads it"
        if product and (op.transpose_a or len(weight.shape) != 2):
            return "it is no matrix that rows are multiplied with"
        if table and node.inputs[0].kind == "constant":
            return "the rows that are read of it are known"
    return "it has no elements" if weight.uses and 0 in weight.shape else ""


def _kept_inside(node: Node, weight: Value) -> str:
    """The same of what an op of control flow makes of it."""
    operands = body_operands(node.op, node.inputs)
    alike = read_alike(node)
    for i in (i for i, v in enumerate(operands) if v is weight):
        if not alike[i]:
            return f"{node.op.name} changes it from round to round"
        handed_on = isinstance(node.op, WhileLoop)  # a loop gives back what its rounds read
        if handed_on and (why := _given(node.outputs[i])):
            return why
        for body in bodies(node.op).values():
            results = list(body.outputs.values())
            if handed_on and body is node.op.body:  # type: ignore[attr-defined]
                del results[i]
            if any(v is body.inputs[i] for v in results):
                return f"{node.op.name} gives it"
            if why := _kept(body.inputs[i]):
                return why
    return ""


def _given(weight: Value) -> str:
    """Why a weight as a loop gives it is not quantised, or nothing."""
    return "it is a result" if weight.network.is_output(weight) else _kept(weight)


def _reader(node: Node, weight: Value, format: WeightFormat) -> Value:
    """The node's result from integers and scales. Products of the same rows each round them: the pass `share` keeps one
    of these."""
    op: Any = node.op
    network = weight.network
    if isinstance(op, Embedding):
        rows, scales = (F.embedding(node.inputs[0], v, from_end=op.from_end) for v in integers(network, weight, format))
        return F.dequantize(rows, scales, dtype=weight.dtype)  # type: ignore[no-any-return]
    if not op.transpose_b:
        weight = derive(network, "transpose", [weight], f"{weight.name}.transposed", axes=(1, 0))
    whole = F.dequantize(*integers(network, weight, format), dtype=weight.dtype, group=_fits(weight, format).group)
    x = node.inputs[0]
    if format.activations == "int8":
        x = F.dequantize(*F.quantize_rows(x), dtype=x.dtype)  # rows as they are once they have been int8
    elif format.activations == "fp8" and format.dtype is FP8.dtype:
        x = F.float8_rows(x)
    return F.matmul(x, whole, transpose_b=True, out_dtype=node.output.dtype)  # type: ignore[no-any-return]


def _inputs(node: Node, weight: Value) -> int:
    """How many inputs a weight has, as a node reads it."""
    turned = isinstance(node.op, Matmul) and not node.op.transpose_b
    return int(sizes(weight)[-2 if turned else -1])


def _fits(weight: Value, format: WeightFormat) -> WeightFormat:
    """The format itself, or the one without groups where these do not divide the inputs."""
    return format.per_output if format.group and sizes(weight)[-1] % format.group else format


def integers(network: Network, weight: Value, format: WeightFormat) -> tuple[Value, ...]:
    """The parameters that a weight [outputs, inputs] becomes: its integers, their scales [outputs, groups], and where
    the format has them their zero points."""
    kind = _fits(weight, format)
    assert kind.dtype is not None
    args: dict[str, Any] = {"group": kind.group, "limit": kind.limit}
    step = "ranged_scales" if kind.zeros else "scales" if kind.dtype.bits == 8 else "fitted_scales"
    narrow = kind.scales is dtypes.float16 and kind.wide.isdisjoint(recipe_of(weight).sources)
    scales = derive(network, step, [weight], f"{weight.name}.{'float32_' if narrow else ''}scales", **args)
    if narrow:
        scales = derive(network, "float16_scales", [scales], f"{weight.name}.scales")
    if kind.zeros:
        zeros = derive(network, "centred_zeros", [weight, scales], f"{weight.name}.zeros", **args)
        name = f"{weight.name}.{kind.dtype.name}"
        made = derive(network, "quantize_to_zeros", [weight, scales, zeros], name, dtype=kind.dtype.name, **args)
        return made, scales, zeros
    name = f"{weight.name}.{kind.dtype.name}"
    return derive(network, "quantize", [weight, scales], name, dtype=kind.dtype.name, **args), scales


def _note_rows(network: Network, word: str, log: Log) -> None:
    """The log gets the products that read rows of floats by a weight which the source itself stores as integers."""
    products = [node for node in network.nodes if isinstance(node.op, Matmul) and _made_by(node.inputs[1], Dequantize)]
    floats = [node for node in products if not _made_by(node.inputs[0], Dequantize | Float8Rows)]
    rounded = f"rows of {word} go to {len(products) - len(floats)} of {len(products)} products by stored integers"
    for node in floats:
        stored = node.inputs[1].node.inputs[0]
        if stored.kind == "parameter" and all(step.name == "cast" for step in recipe_of(stored).steps):
            why = f"{rounded}; the source stores these weights as {stored.dtype.name}, and multiplies floats by them"
            note(log, "rows", node, f"{stored.name} meets rows of floats: {why}")


def _made_by(value: Value, kinds: Any) -> bool:
    return value.node is not None and isinstance(value.node.op, kinds)
