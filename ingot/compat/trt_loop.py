"""tensorrt.ILoop: what stands between a loop's recurrences and its outputs becomes the body of a scan or a while_loop.

The body is recorded in the network itself, on stand-ins for what changes from round to round. When the loop's first
output is read, the ops between the stand-ins and the loop's results are recorded again inside a body. The first ones
then have no reader, and the build drops them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from ingot import dtypes
from ingot import functional as f
from ingot.compat.refusal import placed, refused
from ingot.compat.tensor import ITensor
from ingot.compat.trt_enums import LayerType, LoopOutput, TripLimit
from ingot.dims import Dimension
from ingot.errors import IngotError
from ingot.ir import Value, apply
from ingot.ir.sizes import as_size

MOST = (1 << 24) - 1  # rounds of a loop that only its condition ends


class _Part:
    """A layer at a loop's edge."""

    name = ""

    def __init__(self, loop: Loop, kind: LayerType) -> None:
        self.loop, self.type = loop, kind
        self.num_outputs = 0 if kind is LayerType.TRIP_LIMIT else 1

    def _tensor(self, value: Value) -> ITensor:
        return ITensor(self.loop.network, value)


class Recurrence(_Part):
    """A tensor that every round makes anew: the first input before the first round, the second input afterwards."""

    def __init__(self, loop: Loop, initial: ITensor) -> None:
        super().__init__(loop, LayerType.RECURRENCE)
        self.initial = initial.value
        self.stand_in = _stand_in(self.initial)
        self.next: Value | None = None

    def set_input(self, index: int, tensor: ITensor) -> None:
        """Input 1: the tensor of the next round."""
        self.loop.before_reading("set_input of a recurrence")
        if index == 1:
            self.next = tensor.value
        else:
            raise refused("set_input of a recurrence", "only input 1, the next round's tensor, is set")

    def get_output(self, index: int) -> ITensor:
        """The tensor of this round."""
        return self._tensor(self.stand_in)


class Iterator(_Part):
    """One slice of a tensor for each round, along an axis."""

    def __init__(self, loop: Loop, tensor: ITensor, axis: int, reverse: bool) -> None:
        super().__init__(loop, LayerType.ITERATOR)
        self.tensor, self.axis, self.reverse = tensor.value, axis % len(tensor.value.shape), reverse
        self.stand_in = f.select(self.tensor, self.axis, 0)

    def get_output(self, index: int) -> ITensor:
        """The slice of this round."""
        return self._tensor(self.stand_in)

    def rows(self, length: Dimension) -> Value:
        """The slices of so many rounds, [length, …]."""
        rows = _moved(self.tensor, self.axis, 0)
        rows = _reversed(rows) if self.reverse else rows
        if rows.shape[0] == length:
            return rows
        return cast(Value, f.slice(rows, [0] * len(rows.shape), (length, *rows.shape[1:])))

    def slice(self, tensor: Value, round: Value) -> Value:
        """What the round's slice is."""
        size = f.cast(f.shape(tensor, self.axis), "int32")
        at = f.sub(f.sub(size, 1), round) if self.reverse else round
        return cast(Value, f.squeeze(f.index_select(tensor, self.axis, f.view(at, (1,), False)), self.axis))


class Output(_Part):
    """What is left of a loop: the last round's tensor of a recurrence, or those of all rounds along a new axis."""

    def __init__(self, loop: Loop, tensor: ITensor, kind: LoopOutput, axis: int) -> None:
        super().__init__(loop, LayerType.LOOP_OUTPUT)
        self.tensor, self.kind, self.axis = tensor.value, kind, axis
        self.length: Value | None = None

    def set_input(self, index: int, tensor: ITensor) -> None:
        """Input 1: how many rounds CONCATENATE and REVERSE have room for."""
        self.loop.before_reading("set_input of a loop output")
        if index == 1:
            self.length = tensor.value
        else:
            self.tensor = tensor.value

    def get_output(self, index: int) -> ITensor:
        """The tensor behind the loop, which is recorded when the first of its outputs is read."""
        return self._tensor(self.loop.result_of(self))


class TripLimitLayer(_Part):
    """What ends a loop: a number of rounds, or a bool that becomes false."""

    def __init__(self, loop: Loop, tensor: ITensor, limit: TripLimit) -> None:
        super().__init__(loop, LayerType.TRIP_LIMIT)
        self.tensor, self.limit = tensor.value, limit


class Loop:
    """tensorrt.ILoop of a network."""

    def __init__(self, network: Any) -> None:
        self.network, self.name = network, ""
        self._recurrences: list[Recurrence] = []
        self._iterators: list[Iterator] = []
        self._outputs: list[Output] = []
        self._limits: dict[TripLimit, TripLimitLayer] = {}
        self._results: dict[int, Value] | None = None

    def before_reading(self, what: str) -> None:
        """Refuses changes of a loop whose outputs have been read."""
        if self._results is not None:
            raise refused(what, "do it before an output of the loop is read")

    def add_recurrence(self, initial_value: ITensor) -> Recurrence:
        """A tensor that goes from round to round."""
        self.before_reading("add_recurrence")
        self._recurrences.append(Recurrence(self, initial_value))
        return self._recurrences[-1]

    def add_iterator(self, tensor: ITensor, axis: int = 0, reverse: bool = False) -> Iterator:
        """Slices of a tensor, one a round."""
        self.before_reading("add_iterator")
        self._iterators.append(Iterator(self, tensor, axis, reverse))
        return self._iterators[-1]

    def add_trip_limit(self, tensor: ITensor, limit: TripLimit) -> TripLimitLayer:
        """How many rounds there are, or whether there is another one."""
        self.before_reading("add_trip_limit")
        if limit in self._limits:
            raise refused(f"a second trip limit {limit.name}", "a loop has at most one of each kind")
        self._limits[limit] = TripLimitLayer(self, tensor, limit)
        return self._limits[limit]

    def add_loop_output(self, tensor: ITensor, output_kind: LoopOutput, axis: int = 0) -> Output:
        """A tensor that is read behind the loop."""
        self.before_reading("add_loop_output")
        self._outputs.append(Output(self, tensor, output_kind, axis))
        return self._outputs[-1]

    def result_of(self, output: Output) -> Value:
        """A tensor behind the loop."""
        if self._results is None:
            try:
                self._results = self._recorded()
            except IngotError as e:
                raise placed(e, "add_loop") from e
        return self._results[id(output)]

    # -------------------------------------------------------------------------------------------- as one op
    def _recorded(self) -> dict[int, Value]:
        if not self._limits:
            raise refused("a loop without an end", "call add_trip_limit")
        for one in self._recurrences:
            if one.next is None:
                raise refused("a recurrence without a second input", "call set_input(1, …) with the next tensor")
        going = self._limits.get(TripLimit.WHILE)
        kept = [out for out in self._outputs if out.kind is not LoopOutput.LAST_VALUE]
        changing = [*(one.stand_in for one in self._recurrences), *(one.stand_in for one in self._iterators)]
        goals = [one.next for one in self._recurrences if one.next is not None] + [out.tensor for out in kept]
        body = _Body(changing, [*goals, *([] if going is None else [going.tensor])])
        left = self._counted(body, changing, goals) if going is None else self._going(body, changing, goals)
        return self._read(left, kept)

    def _counted(self, body: _Body, changing: Sequence[Value], goals: Sequence[Value]) -> Sequence[Value]:
        """What a loop leaves that ends by its count: a scan over its iterators."""
        length = as_size(self._limits[TripLimit.COUNT].tensor)
        states, parts = len(self._recurrences), len(self._iterators)

        def round_of(*values: Value) -> tuple[Value, ...]:
            known = dict(zip(changing, values[: states + parts], strict=True))
            known |= dict(zip(body.outer, values[states + parts :], strict=True))
            return tuple(body.replayed(goal, known) for goal in goals)

        left = f.scan(
            round_of, [one.initial for one in self._recurrences], [one.rows(length) for one in self._iterators],
            body.outer, length,
        )  # fmt: skip
        return left if isinstance(left, tuple) else (left,)

    def _going(self, body: _Body, changing: Sequence[Value], goals: Sequence[Value]) -> Sequence[Value]:
        """What a loop leaves that a condition ends: a while_loop that counts its rounds for its iterators."""
        count, going = self._limits.get(TripLimit.COUNT), self._limits[TripLimit.WHILE]
        first = self.network.graph.constant(np.zeros((), np.int32))
        limit = [] if count is None else [f.view(f.cast(count.tensor, "int32"), (), False)]
        same = [*limit, *(one.tensor for one in self._iterators), *body.outer]  # what no round changes
        named, states = len(limit), len(self._recurrences)

        def known(values: Sequence[Value]) -> dict[Value, Value]:
            now, rest = values[1 : 1 + states], values[1 + states + named :]
            slices = [one.slice(t, values[0]) for one, t in zip(self._iterators, rest, strict=False)]
            found = dict(zip(changing, [*now, *slices], strict=True))
            return found | dict(zip(body.outer, rest[len(self._iterators) :], strict=True))

        def goes_on(*values: Value) -> Value:
            more = cast(Value, f.view(body.replayed(going.tensor, known(values)), (), False))
            return cast(Value, f.op_and(f.lt(values[0], values[1 + states]), more)) if named else more

        def round_of(*values: Value) -> tuple[Value, ...]:
            now = known(values)
            new = [body.replayed(goal, now) for goal in goals]
            return f.add(values[0], 1), *new[:states], *values[1 + states :], *new[states:]

        carried = [first, *(one.initial for one in self._recurrences), *same]
        left = f.while_loop(goes_on, round_of, carried, limit=MOST)
        return *left[1 : 1 + states], *left[1 + states + len(same) :]

    def _read(self, left: Sequence[Value], kept: list[Output]) -> dict[int, Value]:
        """The outputs of what is left: the recurrences, and behind them the tensors of all rounds."""
        found: dict[int, Value] = {}
        by_stand_in = {id(one.stand_in): left[i] for i, one in enumerate(self._recurrences)}
        for out in self._outputs:
            if out.kind is not LoopOutput.LAST_VALUE:
                found[id(out)] = self._along(out, left[len(self._recurrences) + kept.index(out)])
            elif id(out.tensor) not in by_stand_in:
                raise refused("a LAST_VALUE of another tensor than a recurrence's", "add a recurrence that holds it")
            else:
                found[id(out)] = by_stand_in[id(out.tensor)]
        return found

    def _along(self, out: Output, rounds: Value) -> Value:
        """The tensors of all rounds along their axis, as many as there is room for, zeros behind them; for REVERSE the
        last one first."""
        limit = self._limits.get(TripLimit.COUNT)
        length = out.length if out.length is not None else None if limit is None else limit.tensor
        if length is None:
            raise refused(f"a loop output {out.kind.name} without a length", "call set_input(1, …) with a length")
        if out.kind is LoopOutput.REVERSE:
            rounds = _reversed(rounds)
        room = as_size(length)
        if room != rounds.shape[0]:
            zero = np.zeros((1,) * len(rounds.shape), dtypes.get(rounds.dtype).numpy)
            more = f.concat([rounds, f.expand(self.network.graph.constant(zero), (1, *rounds.shape[1:]))], 0)
            place = f.minimum(f.arange(0, room, "int32"), f.cast(f.shape(rounds, 0), "int32"))
            rounds = f.index_select(more, 0, place)
        return _moved(rounds, 0, out.axis % len(rounds.shape))


def _stand_in(value: Value) -> Value:
    """Another value of the same type and shape."""
    return cast(Value, f.where(value.network.constant(np.bool_(True)), value, value))


def _reversed(x: Value) -> Value:
    """x from its last row to its first."""
    last = f.cast(f.sub(f.shape(x, 0), 1), "int32")
    return cast(Value, f.index_select(x, 0, f.sub(last, f.arange(0, x.shape[0], "int32"))))


def _moved(x: Value, source: int, to: int) -> Value:
    """x with a dimension at another place."""
    order = [axis for axis in range(len(x.shape)) if axis != source]
    order.insert(to, source)
    return x if source == to else cast(Value, f.permute(x, order))


class _Body:
    """The ops between values that change and goals. `outer`: what they read of the network around."""

    def __init__(self, changing: Sequence[Value], goals: Sequence[Value]) -> None:
        self._inside: set[Any] = set()
        self._changing = {id(value) for value in changing}
        self._order = list(changing[0].network.nodes) if changing else []
        for node in self._order:
            reads = any(id(v) in self._changing or v.node in self._inside for v in node.given)
            if reads and node.op.acts:
                raise refused("an assertion inside a loop", "put it before or behind the loop")
            if reads:
                self._inside.add(node)
        self.outer: list[Value] = []
        seen: set[Any] = set()
        for goal in goals:
            self._find(goal, seen)

    def _find(self, goal: Value, seen: set[Any]) -> None:
        """What a goal reads of the network around."""
        todo = [goal]
        while todo:
            value = todo.pop()
            if id(value) in self._changing or id(value) in seen:
                continue
            seen.add(id(value))
            if value.node is not None and value.node in self._inside:
                todo += value.node.given
            elif value.kind != "absent":
                self.outer.append(value)

    def replayed(self, goal: Value, known: dict[Value, Value]) -> Value:
        """A goal, recorded again on other values."""
        known, needed, wanted = dict(known), set(), [] if goal in known else [goal.node]
        while wanted:
            node = wanted.pop()
            if node in self._inside and node not in needed:
                needed.add(node)
                wanted += [v.node for v in node.given]
        for node in [node for node in self._order if node in needed]:
            given = tuple(known.get(v, v) for v in node.inputs)
            made = apply(node.op, tuple(None if v.kind == "absent" else v for v in given))
            known.update(zip(node.outputs, made if isinstance(made, tuple) else (made,), strict=True))
        return known[goal]
