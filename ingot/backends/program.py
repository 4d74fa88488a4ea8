"""From a lowered Network to a Program: plain data that the executor runs (docs/format.md has the format).

View ops cost nothing here: a value is a window (buffer, shape, stride, offset), and a copy is made only where a kernel
cannot read the strides. Buffers have no addresses yet: lifetimes and the arena depend on the sizes of a run, and the
native planner computes them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, cast

from ingot import dims, dtypes
from ingot.backends.base import Target
from ingot.backends.kernel import KernelCall, Reads, Refusal
from ingot.dims import Dim, Dimension
from ingot.errors import NetworkError
from ingot.ir import Network, Node, Op, Spec, StateSpec, Value
from ingot.ir.spec import axis_of
from ingot.ir.text import attrs_json
from ingot.ir.window import Window, dense_strides, merged, split, view
from ingot.ops.control import CONTROL, Cond, Scan, WhileLoop, bodies, body_operands, sizes_for
from ingot.ops.movement import Concat, Permute, Slice, WithShape
from ingot.passes.bodies import refusal, unchanged

PROGRAM_VERSION = 1
MAX_RANK = 8
MAX_TEXT = 500  # bytes of a text in a program


class HostCall(NamedTuple):
    """A node that runs on the host, and why no kernel takes it."""

    node: str
    why: str


class Held(NamedTuple):
    """How a network is held as a body: the builder of the program around it, with which it shares the stored tensors;
    its inputs in the order of the call's operands; those that are stored, with the values that they are outside; and
    its outputs that are results of the call.
    """

    around: ProgramBuilder
    inputs: Sequence[Value]
    fixed: Mapping[Value, Value]
    outputs: Mapping[str, Value]


class ProgramBuilder:
    """Builds one Program. `weights` afterwards lists the stored tensors: name → parameter or constant."""

    def __init__(self, network: Network, target: Target, held: Held | None = None) -> None:
        self.network = network
        self.target = target
        self.buffers: list[dict[str, Any]] = []
        self.calls: list[dict[str, Any]] = []
        self.windows: dict[Value, Window] = {}
        self.dense: dict[Value, Window] = {}
        self.halves: dict[Value, Window] = {}  # reshapes that kernels read with one dimension as two
        self.views: dict[Window, int] = {}
        self.weights: dict[str, Value] = held.around.weights if held else {}
        self.checks: list[dict[str, Any]] = []
        self.held = held
        self.host_calls: list[HostCall] = []
        self.position = {node: i for i, node in enumerate(network.nodes)}
        self.staged = any(node.op.bound_dims() for node in network.nodes)  # a buffer is written within one stage
        self.of_network = {k.name: k.of_network(network) for k in target.kernels if k.of_network is not None}

    def build(self) -> dict[str, Any]:
        """The Program; of a body, one without a version. Raises NetworkError for what cannot be expressed."""
        for value in self.held.inputs if self.held else self.network.inputs:
            self.windows[value] = self._buffer(value.spec, kind="input", name=value.name)
        for value in self.network.states:
            self._state(value)
        for node in self.network.nodes:
            if node.op.is_view:
                self._view(node)
            elif isinstance(node.op, CONTROL) and not refusal(node.op, self.target):
                self._control(node)
            else:
                self._call(node)
        inside = {d.name for node in self.network.nodes for d in node.op.bound_dims()}
        results = self.held.outputs if self.held else self.network.outputs
        outputs = [{"name": name, "buffer": self._output(value)} for name, value in results.items()]
        return {
            **({} if self.held else {"version": PROGRAM_VERSION}),
            "symbols": [_symbol(dim, dim.name in inside) for dim in self._symbols()],
            "buffers": self.buffers,
            "calls": self.calls,
            "outputs": outputs,
            **({"checks": self.checks} if self.checks else {}),
        }

    # ---------------------------------------------------------------------------------------------------- buffers
    def _buffer(self, spec: Spec, **fields: Any) -> Window:
        if len(spec.shape) > MAX_RANK:
            raise NetworkError(f"{spec} has {len(spec.shape)} dimensions; programs have at most {MAX_RANK}")
        self.buffers.append({**fields, "dtype": spec.dtype.name, "shape": [dims.to_json(d) for d in spec.shape]})
        return Window(len(self.buffers) - 1, spec.shape, dense_strides(spec.shape))

    def _state(self, value: Value) -> None:
        spec: StateSpec = value.spec
        kind = {"type": spec.type, "heads": spec.heads, "head_dim": spec.head_dim}
        self.buffers.append({"kind": "state", "name": value.name, "dtype": spec.dtype.name, "state": kind})
        self.windows[value] = Window(len(self.buffers) - 1, (), ())

    def window(self, value: Value) -> Window:
        """Where a value lies; parameters and constants become buffers at their first use."""
        found = self.windows.get(value)
        if found is None:
            name = self._stored(self.tensor(value))
            found = self.windows[value] = self._buffer(value.spec, kind="weight", tensor=name)
        return found

    def tensor(self, value: Value) -> Value:
        """The parameter or constant that a value is, seen from the whole program."""
        outer = self.held.fixed.get(value) if self.held else None
        return value if outer is None or self.held is None else self.held.around.tensor(outer)

    def _stored(self, value: Value) -> str:
        """The name under which a parameter or constant is stored; bodies may have other values of the same name."""
        name = unique = value.name if value.kind == "parameter" else f"constant.{value.name}"
        count = 0
        while (known := self.weights.setdefault(unique, value)) is not value:
            if value.kind == "constant" and known.array is value.array:
                break
            count += 1
            unique = f"{name}.{count}"
        return unique

    def number(self, window: Window) -> int:
        """The buffer of a window: the one it lies in, or a view."""
        if window.whole:
            return window.buffer
        if window not in self.views:
            self.buffers.append({
                "kind": "view", "of": window.buffer, "shape": [dims.to_json(d) for d in window.shape],
                "stride": [dims.to_json(d) for d in window.stride], "offset": dims.to_json(window.offset),
            })  # fmt: skip
            self.views[window] = len(self.buffers) - 1
        return self.views[window]

    def read(self, value: Value, how: Reads) -> int:
        """The buffer number with which a kernel reads a value; copies when it cannot read the strides."""
        if value.is_state:
            return self.windows[value].buffer
        window = self.window(value)
        return self.number(window if readable(window, how) else self._copied(value, window, ""))

    def _copied(self, value: Value, window: Window, where: str) -> Window:
        if value not in self.dense:
            self.dense[value] = out = self._buffer(value.spec, kind="temp")
            self._emit("copy", {}, [self.number(window)], [out.buffer], where)
        return self.dense[value]

    def _output(self, value: Value) -> int:
        window = self.window(value)
        if self.buffers[window.buffer]["kind"] != "temp" or not window.dense:
            window = self._copied(value, window, "")
        return self.number(window)

    # ---------------------------------------------------------------------------------------------------- calls
    def _emit(
        self, kernel: str, params: dict[str, Any], reads: list[int], writes: list[int], where: str, version: int = 1,
        binds: Sequence[Dim] = (),
    ) -> None:  # fmt: skip
        call = {"kernel": kernel, "version": version, "in": reads, "out": writes, "params": params,
                "binds": [dim.name for dim in binds], "where": where}  # fmt: skip
        self.calls.append({k: v for k, v in call.items() if v or k not in ("binds", "where")})

    def _view(self, node: Node) -> None:
        window = self.window(node.inputs[0])
        found = view(window, node)
        if found is None and node.op.name == "reshape":
            if halves := self._halves(node):
                self.halves[node.output] = halves
                return
            found = view(self._copied(node.inputs[0], window, node.where), node)
        if found is None:
            self._host(node, f"{node.op.name} with a negative step has no native form")
        else:
            self.windows[node.output] = found
            if isinstance(node.op, WithShape):
                self._check_sizes(node, node.op)
            elif isinstance(node.op, Slice):
                self._check_box(node, node.op)

    def _check(self, node: Node, text: str, size: Dimension, wanted: Dimension, or_one: bool = False) -> None:
        text = f"{node.where}: {text}" if node.where else text
        text = text.encode()[:MAX_TEXT].decode(errors="ignore")
        sizes = {"size": dims.to_json(size), "wanted": dims.to_json(wanted)}
        self.checks.append({**sizes, "or_one": or_one, "text": text})

    def _check_sizes(self, node: Node, op: WithShape) -> None:
        """What a run has to confirm of a view's sizes."""
        for size, wanted in zip(node.inputs[0].shape, op.shape, strict=True):
            if size != wanted:
                self._check(node, op.text or "view", size, wanted, op.broadcast)

    def _check_box(self, node: Node, op: Slice) -> None:
        """A slice of which nothing proves that it lies in its operand: along each dimension, since what lies beyond
        one, in a row or in the buffer that the operand is a window of, is memory of something else.
        """
        known = self.network.dims
        for axis, (start, size, step, n) in enumerate(zip(op.starts, op.sizes, op.strides, node.inputs[0].shape,
                                                          strict=True)):  # fmt: skip
            end = dims.add(start, dims.mul(dims.add(size, -1), step), 1)
            beyond = dims.add(end, dims.mul(n, -1))
            some = 1 if dims.bounds(size, known)[0] > 0 else dims.minimum(size, 1)  # of nothing any place is as good
            if dims.bounds(start, known)[0] < 0 and some != 0:
                text = f"slice along dimension {axis} from {start}: it begins before the first element"
                self._check(node, text, dims.mul(dims.minimum(start, 0), some), 0)
            if dims.bounds(beyond, known)[1] > 0 and some != 0:
                text = f"slice along dimension {axis} from {start} to {end}: there are {n} elements"
                self._check(node, text, dims.add(n, dims.mul(dims.maximum(beyond, 0), some)), n)

    def _halves(self, node: Node) -> Window | None:
        """A reshape that would be a copy, where all kernels that read it take the dimension that it merges as two."""
        axes: set[int | None] = set()
        for user in node.output.uses:
            choice = None if user.op.is_view or isinstance(user.op, CONTROL) else self.target.choose(user)
            splits = choice.splits if isinstance(choice, KernelCall) else ()
            found = [part for part, value in zip(splits, user.given, strict=False) if value is node.output]
            axes |= {part[1] if part else None for part in found} or {None}
        axis = axes.pop() if len(axes) == 1 and not self.network.is_output(node.output) else None
        shape = node.output.shape
        if axis is None or len(shape) == MAX_RANK:
            return None
        return split(self.window(node.inputs[0]), shape, len(shape) + axis)

    def _call(self, node: Node) -> None:
        choice = self.target.choose(node)
        if isinstance(choice, Refusal):
            self._host(node, choice.why)
            return
        if isinstance(node.op, Concat) and node.output in self.windows:
            self._rest(node)
            return
        reads = [self.number(self.halves[value]) if value in self.halves else self.read(value, how)
                 for value, how in zip(node.given, choice.reads, strict=True)]  # fmt: skip
        parted = zip(choice.splits, node.given, strict=False)
        halved = {part[0]: True for part, value in parted if part and value in self.halves}
        if bound := node.op.bound_dims():
            sizes = self._buffer(Spec((len(bound),), dtypes.int64), kind="temp")
            version = self.target.by_name[choice.sizes].version
            self._emit(choice.sizes, dict(choice.sizes_params), reads, [sizes.buffer], node.where, version, bound)
        writes = self._results(node, choice.writes)
        more = self.of_network.get(choice.kernel, {}).get(node, {})
        self._emit(choice.kernel, {**choice.params, **more, **halved}, reads, writes, node.where, choice.version)

    # ---------------------------------------------------------------------------------------------------- concat
    def _place(self, value: Value, how: Reads) -> Window | None:
        """The slot of a result in the first concat that reads it, if its kernel can write there.

        Not when others than concats read it: with gaps in between, those would wait for more memory than a copy moves.
        """
        users = sorted(value.uses, key=self.position.__getitem__)
        if how is Reads.DENSE or self.network.is_output(value) or self.staged or not users:
            return None
        user = users[0]
        if any(not isinstance(u.op, Concat) for u in users) or [v is value for v in user.inputs].count(True) != 1:
            return None
        if isinstance(self.target.choose(user), Refusal):
            return None
        whole = self.windows.get(user.output) or Window(-1, user.output.shape, dense_strides(user.output.shape))
        slot = _slot(user, next(i for i, v in enumerate(user.inputs) if v is value), whole)
        if not readable(slot, how):
            return None
        if whole.buffer < 0:
            self.windows[user.output] = whole = self._buffer(user.output.spec, kind="temp")
        return replace(slot, buffer=whole.buffer)

    def _turned(self, value: Value, how: Reads) -> Window | None:
        """A result in the order of the only permutation that reads it, if its kernel can write there: that one is dense
        then, and needs no copy."""
        if how is Reads.DENSE or self.network.is_output(value) or len(value.uses) != 1:
            return None
        (user,) = value.uses
        if user.op.name != "permute":
            return None
        turned, op = user.output, cast(Permute, user.op)
        steps = dense_strides(turned.shape)
        order = op.order(len(steps))
        window = Window(-1, value.shape, tuple(steps[order.index(i)] for i in range(len(steps))), 0, False)
        if not readable(window, how):
            return None
        buffer = self._buffer(turned.spec, kind="temp").buffer
        self.views[Window(buffer, turned.shape, steps, 0, False)] = buffer
        return replace(window, buffer=buffer)

    def _rest(self, node: Node) -> None:
        """Copies the operands of a concat that were not written in their place."""
        for i, value in enumerate(node.inputs):
            slot = _slot(node, i, self.windows[node.output])
            if self.window(value) != slot:
                self._emit("copy", {}, [self.number(self.window(value))], [self.number(slot)], node.where)

    def _results(self, node: Node, how: Reads = Reads.DENSE) -> list[int]:
        """Buffers for the results: new ones, or their slots in a concat; a state that comes out is the one that went
        in."""
        writes = []
        for value in node.outputs:
            if value.is_state:
                (state,) = [v for v in node.inputs if v.spec == value.spec and v.is_state]
                self.windows[value] = self.windows[state]
            else:
                place = self._place(value, how) or self._turned(value, how)
                self.windows[value] = place or self._buffer(value.spec, kind="temp")
                writes.append(self.number(self.windows[value]))
        return writes

    def _host(self, node: Node, why: str) -> None:
        if any(v.is_state for v in (*node.inputs, *node.outputs)):
            raise NetworkError(f"{node.describe()}: {why}, and only kernels use states")
        reads = [self.read(v, Reads.DENSE) for v in node.given]
        call = {
            "host": node.op.name, "version": node.op.version, "in": reads, "out": self._results(node),
            "params": attrs_json(node.op), "binds": [d.name for d in node.op.bound_dims()], "where": node.where,
        }  # fmt: skip
        if absent := [i for i, v in enumerate(node.inputs) if v.spec is None]:
            call["params"] = {**attrs_json(node.op), "absent": absent}
        self.calls.append({k: v for k, v in call.items() if v or k not in ("binds", "where")})
        self.host_calls.append(HostCall(node.describe(), why))

    # ---------------------------------------------------------------------------------------------------- control
    def _control(self, node: Node) -> None:
        """A call with programs of its own. Operands that are stored are weights of these, and what a loop hands on
        as it is comes from its operand.
        """
        op: Any = node.op
        operands = body_operands(op, node.inputs)
        same = unchanged(op, len(operands))
        fixed = [one and self._is_fixed(v, [body.inputs[i].spec for body in bodies(op).values()])
                 for i, (one, v) in enumerate(zip(same, operands, strict=True))]  # fmt: skip
        handed = same if isinstance(op, WhileLoop) else [False] * len(same)
        order = [i for last in (False, True) for i, one in enumerate(handed) if one is last and not fixed[i]]
        first = node.inputs[:1] if isinstance(op, Cond) else ()
        reads = [self.read(v, Reads.DENSE) for v in (*first, *(operands[i] for i in order))]
        writes: list[int] = []
        call = {"control": _CONTROL[type(op)], "in": reads, "out": writes, "params": _params(op, handed),
                "bodies": [self._body(body, op, operands, fixed, order, handed if name == "body" else ())
                           for name, body in bodies(op).items()],
                "binds": [d.name for d in op.bound_dims()], "where": node.where}  # fmt: skip
        for i, value in enumerate(node.outputs):
            if i < len(handed) and handed[i]:
                self.windows[value] = self.window(operands[i])
            else:
                self.windows[value] = self._buffer(value.spec, kind="temp")
                writes.append(self.windows[value].buffer)
        self.calls.append({k: v for k, v in call.items() if v or k not in ("binds", "where")})

    def _is_fixed(self, operand: Value, inner: Sequence[Spec]) -> bool:
        """Whether an operand is a stored tensor that bodies may read as such."""
        return self.tensor(operand).kind in ("parameter", "constant") and all(spec == operand.spec for spec in inner)

    def _body(
        self, body: Network, op: Op, operands: Sequence[Value], fixed: Sequence[bool], order: Sequence[int],
        handed: Sequence[bool],
    ) -> dict[str, Any]:  # fmt: skip
        """A body's program, and what its symbols are in this one."""
        outputs = {name: value for i, (name, value) in enumerate(body.outputs.items())
                   if not (i < len(handed) and handed[i])}  # fmt: skip
        stored = {body.inputs[i]: v for i, v in enumerate(operands) if fixed[i]}
        held = Held(self, [body.inputs[i] for i in order], stored, outputs)
        program = ProgramBuilder(body, self.target, held).build()
        specs = tuple(v.spec for v in operands)
        sizes = sizes_for(body, op.parts(specs) if isinstance(op, Scan) else specs)
        given = [s["name"] for s in program["symbols"] if "unbacked" not in s]
        return {"sizes": {name: dims.to_json(sizes.get(name, body.dims[name])) for name in given}, "program": program}

    def _symbols(self) -> list[Dim]:
        """The dims that shapes use. Those that neither an input nor a call binds are an error."""
        used: dict[str, Dim] = {}
        for value in [*self.network.inputs, *(v for n in self.network.nodes for v in n.outputs)]:
            if not value.is_state:
                used |= dims.dims_of(value.spec.shape)
        given = {found.dim.name for v in self.network.inputs for d in v.shape if (found := dims.affine(d))}
        bound = given | {d.name for n in self.network.nodes for d in n.op.bound_dims()}
        if (loose := sorted(used.keys() - bound)) and not self.held:
            raise NetworkError(
                f"network {self.network.name}: no input has the dim(s) {', '.join(loose)}, or a multiple, as a size, "
                "so nothing gives them a value"
            )
        return [self.network.dims[name] for name in used]


def _slot(node: Node, index: int, whole: Window) -> Window:
    """Where an operand of a concat lies in its result."""
    op: Any = node.op
    axis = axis_of(op.dim, len(whole.shape))
    start = dims.mul(whole.stride[axis], dims.add(0, *(v.shape[axis] for v in node.inputs[:index])))
    return Window(whole.buffer, node.inputs[index].shape, whole.stride, dims.add(whole.offset, start), False)


def readable(window: Window, how: Reads) -> bool:
    """Whether a kernel that reads `how` can read this window as it is."""
    if how is Reads.ANY or window.dense:
        return True
    if how is Reads.DENSE or not window.shape or window.stride[-1] != 1:
        return False
    return how is Reads.INNER or merged(window.shape[:-1], window.stride[:-1]) is not None


def _symbol(dim: Dim, bound_by_call: bool) -> dict[str, Any]:
    symbol: dict[str, Any] = {"name": dim.name, "min": dim.min, "max": dim.max}
    return {**symbol, "unbacked": True} if bound_by_call else symbol


_CONTROL: Mapping[type[Op], str] = {Cond: "cond", WhileLoop: "while", Scan: "scan"}


def _params(op: Op, handed: Sequence[bool]) -> dict[str, Any]:
    """What a control call says of its rounds."""
    if isinstance(op, WhileLoop):
        return {"carried": handed.count(False), "limit": op.limit}
    if isinstance(op, Scan):
        return {"carried": op.carried, "scanned": op.scanned, "length": dims.to_json(op.length), "reverse": op.reverse}
    return {}
