"""What target cuda makes of a lowered net: calls in order (net_calls.py), each for the nodes that run together."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ingot.backends.cuda.net_calls import (
    HALVES,
    Attention,
    Call,
    Chain,
    GraphSum,
    GroupNormed,
    Joined,
    Pooled,
    Rowwise,
    Weighted,
)
from ingot.backends.cuda.net_nodes import (
    eights_of,
    ending_of,
    is_bias,
    is_convolution,
    is_graph_sum,
    is_linear,
    is_pool,
    is_step,
    other_of,
    sums_of,
)
from ingot.backends.cuda.program import Single, ordered
from ingot.ir import Network, Node, Value
from ingot.ir.expr import MAX_INPUTS
from ingot.ops.binary import Add
from ingot.ops.conversion import Dequantize, QuantizeRows
from ingot.ops.dense_attention import ScaledDotProductAttention
from ingot.ops.norm import GroupNorm, LayerNorm
from ingot.ops.pool import AvgPool, MaxPool
from ingot.passes import fuse


def net_program(network: Network) -> tuple[Call, ...]:
    """The calls of a lowered net, each behind those whose results it needs."""
    made = _Maker(network)
    return tuple(ordered(network, made.calls()))


class _Maker:
    def __init__(self, network: Network) -> None:
        self.network = network
        self.sums = {node: found for node in network.nodes if (found := sums_of(network, node)) is not None}
        inside = {node for found in self.sums.values() for node in found.nodes}
        # What others read as floats too has to be there as integers: no chain goes on across it.
        both = {made for node in self.sums for v in node.inputs[:2] if (made := v.node) is not None} - inside
        self.group_of: dict[Node, list[Node]] = {node: [node] for node in both}
        for nodes in fuse.groups(network, lambda node: node not in inside | both and is_step(node)):
            self.group_of |= dict.fromkeys(nodes, nodes)
        self.taken: set[Node] = set()
        self.found: list[Call] = []
        self.eights = eights_of(network)
        self.rows = {node.inputs[0].node for node in self.eights}  # that become float8 once
        for node in self.eights:
            self.taken.add(node.inputs[1].node)
        for node in both:
            self._place(node)

    def _place(self, node: Node) -> None:
        """Floats of integers that sums read as such: they are made where others read them, or nowhere."""
        readers = [user for user in node.output.uses if user not in self.sums]
        if self.network.is_output(node.output) or not isinstance(node.op, Dequantize):
            return
        if not readers:
            del self.group_of[node]
            self.taken.add(node)
            return
        group = self.group_of.get(readers[0], [])
        if any(reader not in group for reader in readers) or group[-1].output.shape != node.output.shape:
            return
        if len(Chain((node, *group), {}, frozenset()).reads) <= MAX_INPUTS - 2:
            group.insert(0, node)
            self.group_of[node] = group

    def calls(self) -> list[Call]:
        """Of all nodes, in no order."""
        self._join()
        groups = {id(nodes): nodes for nodes in self.group_of.values()}
        for nodes in groups.values():
            if self.taken.isdisjoint(nodes):
                self._chain(nodes)
        for found in self.sums.values():
            if found.node not in self.taken:
                self._take(found)
        for node in self.network.nodes:
            if node not in self.taken:
                self._take(self._alone(node))
        return self.found

    def _take(self, call: Call) -> None:
        self.taken.update(call.nodes)
        self.found.append(call)

    def _join(self) -> None:
        """Products of one x whose biases are all that is added at once."""
        families: dict[tuple[Any, ...], list[tuple[Node, Node]]] = {}
        for node in self.network.nodes:
            reader = self._bias_alone(node) if is_linear(node) and node not in self.sums else None
            if reader is not None and (node in self.eights or self._stays(node.inputs[1])):
                families.setdefault((node.inputs[0], node.inputs[1].shape[1]), []).append((node, reader))
        for family in families.values():
            if len(family) > 1:
                biases = tuple(other_of(add, node.output) for node, add in family)
                self._take(Joined(
                    tuple(n for pair in family for n in pair), tuple(n for n, _ in family), biases,
                    tuple(add.output for _, add in family),
                    tuple(self.eights[node] for node, _ in family if node in self.eights),
                ))  # fmt: skip

    def _stays(self, weight: Value) -> bool:
        """Whether a weight is there before any run: a parameter, or floats that are made of one at the opening."""
        made = weight.node
        if made is None:
            return weight.kind == "parameter"
        return made not in self.taken and self.group_of.get(made, [made]) == [made]

    def _bias_alone(self, node: Node) -> Node | None:
        """The addition of a bias that is the only reader of a product, and no part of a longer chain."""
        (reader, *more) = (*node.output.uses, None)
        if reader is None or more != [None] or self.group_of.get(reader) != [reader]:
            return None
        if not isinstance(reader.op, Add) or self.network.is_output(node.output):
            return None
        return reader if is_bias(other_of(reader, node.output), node.output) else None

    def _chain(self, nodes: list[Node]) -> None:
        """A group, with what it takes along before and behind."""
        inside = set(nodes)
        chain = Chain(tuple(nodes), {}, frozenset())
        biases: dict[Value, Value] = {}
        weighted: list[Node] = []
        summed: list[Node] = []
        normed: set[Value] = set()
        room = MAX_INPUTS - len(chain.reads)
        for value in chain.reads:
            maker = value.node
            if maker is None or maker in self.taken or not set(value.uses) <= inside or room < 2:
                continue
            if self.network.is_output(value) or value.shape != chain.out.shape:
                continue
            if maker in self.sums:
                summed.append(maker)
            elif value.dtype not in HALVES:
                continue
            elif is_convolution(maker) or is_linear(maker):
                weighted.append(maker)
                if len(maker.inputs) > 2:
                    biases[value] = maker.inputs[2]
                    room -= 1
            elif isinstance(maker.op, GroupNorm) and not maker.op.channels_last:
                normed.add(value)
                room -= 2
                self._take(self._group_norm(maker))
        chain = Chain(tuple(nodes), biases, frozenset(normed))
        place = {node: i for i, node in enumerate(self.network.nodes)}
        weighted.sort(key=place.__getitem__)
        reader = self._rows_behind(chain)
        if summed and not weighted and reader is None:
            last = self.sums[max(summed, key=place.__getitem__)]
            self._take(replace(last, nodes=(*last.nodes, *nodes), chain=chain))
            return
        for maker in weighted[:-1] if reader is None else weighted:
            self._take(Weighted((maker,), bare=maker.output in biases, eight=self.eights.get(maker)))
        if reader is not None:
            self._take(self._rows((*nodes, reader), chain, reader))
        elif weighted:
            (ending, beside), eight = ending_of(weighted[-1], chain), self.eights.get(weighted[-1])
            self._take(Weighted((weighted[-1], *nodes), chain, ending=ending, beside=beside, eight=eight))
        else:
            self._take(chain)

    def _rows(self, nodes: tuple[Node, ...], chain: Chain | None, norm: Node) -> Rowwise:
        """A layer norm, with the rounding of its rows that reads it; or the rounding of a chain's rows."""
        if norm in self.rows:
            return Rowwise(nodes, chain, None, norm, False)
        uses = [user for user in norm.output.uses if self._is_rounding(user) and user not in self.taken]
        if not uses:
            return Rowwise(nodes, chain, norm)
        kept = len(set(norm.output.uses)) > 1 or self.network.is_output(norm.output)
        return Rowwise((*nodes, uses[0]), chain, norm, uses[0], kept)

    def _group_norm(self, node: Node) -> GroupNormed:
        x = node.inputs[0]
        maker = x.node
        alone = set(x.uses) == {node} and not self.network.is_output(x)
        if maker is None or maker in self.taken or maker in self.sums or not alone:
            return GroupNormed((node,), None)
        if not is_convolution(maker) or len(maker.inputs) < 3:
            return GroupNormed((node,), None)
        self._take(Weighted((maker,), bare=True))
        return GroupNormed((node,), maker.inputs[2])

    def _is_rounding(self, node: Node) -> bool:
        return isinstance(node.op, QuantizeRows) or node in self.rows

    def _rows_behind(self, chain: Chain) -> Node | None:
        uses = list(chain.out.uses)
        if len(uses) != 1 or self.network.is_output(chain.out) or chain.normed or chain.out.dtype not in HALVES:
            return None
        (reader,) = uses
        by_rows = isinstance(reader.op, LayerNorm) or reader in self.rows
        return reader if by_rows and reader not in self.taken else None

    def _alone(self, node: Node) -> Call:
        op: Any = node.op
        if node in self.sums:
            return self.sums[node]
        if is_convolution(node) or is_linear(node):
            return Weighted((node,), eight=self.eights.get(node))
        if isinstance(op, LayerNorm) and node.inputs[0].dtype in HALVES:
            return self._rows((node,), None, node)
        if self._is_rounding(node):
            return Rowwise((node,), quantised=node, kept=False)
        if isinstance(op, AvgPool | MaxPool) and is_pool(op) and node.output.dtype in HALVES:
            return Pooled((node,))
        if isinstance(op, ScaledDotProductAttention) and node.output.dtype in HALVES:
            return Attention((node,))
        return GraphSum((node,)) if is_graph_sum(node) else Single((node,))
