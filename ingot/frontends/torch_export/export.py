"""From a torch module in this process to an exported program.

It takes the way of everybody's file, through `torch.export.save` and our reader, but without the weights: those are
taken from the module.
"""

from __future__ import annotations

import inspect
import io
import logging
import math
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ingot import _lazy, dtypes
from ingot.dims import Affine, Dimension
from ingot.errors import CheckpointError, IngotError, ModuleError, UserError
from ingot.frontends.torch_export.archive import Archive
from ingot.frontends.torch_export.conditions import Branch
from ingot.frontends.torch_export.dynamic import Leaf, grow, size_named, symbols
from ingot.frontends.torch_export.guards import MAX_GUARDS, any_fixed, is_choice
from ingot.frontends.torch_export.importer import Source, build_network
from ingot.frontends.torch_export.load import read_program
from ingot.frontends.torch_export.program import Program
from ingot.frontends.torch_export.refusals import asked_at, why_not
from ingot.frontends.torch_export.symbols import relation
from ingot.frontends.torch_export.take_apart import taken_apart
from ingot.ir import Spec
from ingot.ir.spec import axis_of
from ingot.nn.parameter import as_array

Array = np.ndarray[Any, Any]

INSTALL = "ingot[torch]"
_LOUD = ("torch._subclasses.fake_tensor", "torch.fx.experimental.symbolic_shapes", "torch._export.non_strict_utils")


class Exported(NamedTuple):
    """A module's program, its tensors (as arrays and as they are), the dims of its symbols, and the arguments it was
    exported with.
    """

    program: Program
    source: Source
    dims: dict[str, Dimension]
    arguments: tuple[tuple[Any, ...], dict[str, Any]]
    tensors: Mapping[str, Any]


class Ran:
    """An exported program in the place of the module that it was made from."""

    def __init__(self, program: Any) -> None:
        self._program = program

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._program.module()(*args, **kwargs)

    def modules(self) -> tuple[Any, ...]:
        return ()

    def eval(self) -> None:
        """It is in the mode in which it was exported."""

    def parameters(self) -> Iterator[Any]:
        yield from self._program.parameters()

    def buffers(self) -> Iterator[Any]:
        yield from self._program.buffers()


def torch_package(needed_for: str) -> Any:
    """torch, or a UserError that says what to install."""
    return _lazy.optional("torch", needed_for, INSTALL)


def export(module: Any, inputs: Any, dynamic: Any = None) -> Exported:
    """Exports a torch module in evaluation mode; its own mode is restored.

    Args:
        inputs: example inputs of forward: one tensor, a tuple, or a dict by name; torch tensors or NumPy arrays.
        dynamic: which dimensions may change and how they are called: {"x": {0: "N", 2: ingot.Dim("T", 4, 64)}}, or
            {"x": {2: 8*ingot.Dim("h")}} for multiples.

    Raises:
        ModuleError: torch cannot export the module; its own words follow.
    """
    torch = torch_package("building a torch module")
    args, kwargs = _arguments(torch, module, inputs, dynamic or {})
    leaves = [*_leaves(args), *_leaves(kwargs)]
    grow(torch, leaves)
    names = list(inspect.signature(module.forward).parameters)
    shapes = {**dict(zip(names, args, strict=False)), **kwargs}
    values = _each(args, lambda leaf: leaf.value), _each(kwargs, lambda leaf: leaf.value)
    name = type(module).__name__
    with quiet(torch, module):
        marks = _each(shapes, lambda leaf: leaf.marks(torch))

        def exported(strict: bool) -> Any:
            return torch.export.export(module, *values, dynamic_shapes=marks, strict=strict)

        try:
            with _silent():
                first = exported(False)
            fixed, refused = any_fixed(first._guards_code), None
        except Exception as e:  # whatever tracing the user's code raises
            fixed, refused = any_fixed([str(e)]), e
        found = _followed(torch, exported, name, leaves, values) if fixed else None
        if found is None and refused is not None:
            raise ModuleError(why_not(torch, refused, name)) from refused
        return found or _read(torch, first, name, leaves, values)


def _followed(
    torch: Any, exported: Callable[[bool], Any], name: str, leaves: list[Leaf], values: Any
) -> Exported | None:
    """What `export` gives where a run of forward makes a number of a size, as in `int(n * 1.7)`, which is the example's
    from there on: of the Python code itself, in which torch follows such numbers. None where it cannot, or ingot cannot
    tell what they are at other sizes.
    """
    try:
        with _silent():
            program = exported(True)
    except Exception:  # whatever torch cannot follow: the error of the run says what to do
        return None
    if any_fixed(program._guards_code):
        return None
    found = _read(torch, program, name, leaves, values)
    try:
        build_network(found.program, found.source, name, dict(found.dims))
    except IngotError:
        return None
    return found


@contextmanager
def _silent() -> Iterator[None]:
    """What torch logs of its failures, graphs and tracebacks, stays unsaid: the error says it."""
    loggers = [logging.getLogger(name) for name in ("torch", "torch._guards", *_LOUD)]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL + 1)
    try:
        with redirect_stderr(_WithoutGraphs(sys.stderr)):
            yield
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)


class _WithoutGraphs(io.TextIOBase):
    """Standard error without the graphs that torch prints there; what forward prints passes."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        graph = text.lstrip().startswith(("def forward(", "class GraphModule"))
        self._blank = graph or text == "\n" and getattr(self, "_blank", False)
        return len(text) if self._blank else self._stream.write(text)

    def flush(self) -> None:
        self._stream.flush()


def read_program_of(program: Any) -> Exported:
    """What `export` gives, of a torch.export.ExportedProgram, which stays as it is.

    Raises:
        UserError: it has no example inputs.
    """
    torch = torch_package("building an exported program")
    if program.example_inputs is None:
        raise UserError("the ExportedProgram has no example inputs: save it with torch.export.save and build the file")
    args, kwargs = program.example_inputs
    with quiet(torch, Ran(program)):
        return _read(torch, program, "ExportedProgram", [], (tuple(args), dict(kwargs)))


def _read(torch: Any, program: Any, name: str, leaves: list[Leaf], values: Any) -> Exported:
    branches, whole = _branches(torch, program), program
    program = taken_apart(torch, whole)
    if branches is not None and program is not whole:
        branches += _branches(torch, program, chosen_by_rules) or []
    state, tensors = list(program.state_dict), {**program.state_dict, **program.constants}
    read = _saved(torch, program, name, branches)
    named = symbols(read, leaves) if leaves else {}
    return Exported(read, _source(torch, tensors, state), named, values, tensors)


def _branches(
    torch: Any, program: Any, wanted: Callable[[bool, str, Branch], bool] = lambda asked, text, branch: asked
) -> list[Branch] | None:
    """What forward asked of sizes, as torch remembers it beside the program; None where this torch does not.

    wanted: of whether forward asked, torch's text and what it says, whether it counts.
    """
    values = [node.meta.get("val") for node in program.graph.nodes if node.op == "placeholder"]
    sizes = [size for x in values if isinstance(x, torch.Tensor) for size in x.shape if isinstance(size, torch.SymInt)]
    if not sizes:
        return []
    env = sizes[0].node.shape_env
    found: list[Branch] = []
    for guard in env.guards[:MAX_GUARDS]:
        if getattr(guard, "sloc", None) is None:
            return None
        asked, line = asked_at(torch, guard.sloc)
        parts = relation(_lazy.load("sympy:srepr")(env.replace(guard.expr)))
        if parts is not None and wanted(asked, str(guard.expr), branch := Branch(*parts, line)):
            found.append(branch)
    return found


def chosen_by_rules(asked: bool, text: str, branch: Branch) -> bool:
    """Whether a rule of torch that took an op apart may have chosen so: by a remainder, or by which size is larger. Its
    other guards are about memory in one piece and sizes of 1.
    """
    return not asked and is_choice(text, branch)


@contextmanager
def quiet(torch: Any, module: Any) -> Iterator[None]:
    """Evaluation mode, no gradients, and no fast paths that hide a layer in one op; all put back afterwards."""
    modes = [(part, part.training) for part in module.modules()]
    fast = torch.backends.mha.get_fastpath_enabled()
    module.eval()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of torch about itself
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
        for part, mode in modes:
            part.training = mode


def _saved(torch: Any, program: Any, name: str, branches: list[Branch] | None) -> Program:
    """The program as a file says it, saved with tensors that have no data; the program has its own afterwards."""
    root = program.module_call_graph[0].signature
    kept = [(place, dict(place)) for place in (program.state_dict, program.constants)], root.out_spec
    for place in (program.state_dict, program.constants):
        for key, tensor in list(place.items()):
            if isinstance(tensor, torch.nn.Parameter):
                place[key] = torch.nn.Parameter(tensor.detach().to("meta"), tensor.requires_grad)
            elif isinstance(tensor, torch.Tensor):
                place[key] = tensor.detach().to("meta")
    root.out_spec = _as_dicts(torch, root.out_spec)
    with tempfile.TemporaryDirectory(prefix="ingot-") as folder:
        path = Path(folder) / f"{name}.pt2"
        try:
            with _serializer(torch):
                torch.export.save(program, path)
        except NotImplementedError as e:  # a class among the arguments or the results that torch cannot write down
            raise ModuleError(
                f"torch cannot save the program of {name}: {e!s:.500}: let forward take and return tensors, tuples, "
                "lists and dicts of them"
            ) from None
        finally:
            root.out_spec = kept[1]
            for place, tensors in kept[0]:
                place.update(tensors)
        archive = Archive(path)
        try:
            return read_program(archive, branches)
        except CheckpointError as e:
            why = str(e).removeprefix(f"{path}: ")
            raise ModuleError(f"{name}: torch.export made a program of it that ingot cannot read: {why}") from None
        finally:
            archive.close()


@contextmanager
def _serializer(torch: Any) -> Iterator[None]:
    """What writes the file, for one that our reader alone sees.

    torch writes `math.trunc` of a size, and has no word for the other roundings: they go by their names. And it copies
    the program deep to put it into a canonical order, only to see that there is one: half of the time.
    """
    module = torch._export.serde.serialize
    known: set[Any] = getattr(module, "_SYM_OPS", set())
    more = {math.ceil, math.floor, round} - known
    known |= more
    ordered = getattr(module, "canonicalize", None)
    if ordered is not None:
        module.canonicalize = lambda program, *_: program
    try:
        yield
    finally:
        known -= more
        if ordered is not None:
            module.canonicalize = ordered


def _as_dicts(torch: Any, spec: Any) -> Any:
    """What forward returns, with torch.return_types, as of torch.max(x, 0), as dicts of their fields: torch has no way
    to save those.
    """
    below = [_as_dicts(torch, child) for child in spec.children()]
    if getattr(spec.type, "__module__", "") == "torch.return_types":
        return torch.utils._pytree.TreeSpec(dict, list(spec.type.__match_args__), below)
    return spec if below == spec.children() else torch.utils._pytree.TreeSpec(spec.type, spec.context, below)


# ---------------------------------------------------------------------------------------------------- arguments


def _arguments(torch: Any, module: Any, inputs: Any, dynamic: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """forward's positional and named arguments as nested Leafs."""
    if inputs is None:
        raise UserError("a torch module is built with example inputs: inputs=(x,) or inputs={'x': x}")
    if not isinstance(dynamic, Mapping):
        raise UserError('dynamic names dimensions by input: {"x": {0: "N"}}')
    names = list(inspect.signature(module.forward).parameters)
    _check_fit(module, names, inputs)
    if isinstance(inputs, Mapping):
        order = {name: i for i, name in enumerate(names)}
        given = sorted(inputs.items(), key=lambda item: order.get(item[0], len(order)))
        if unknown := dynamic.keys() - inputs.keys():
            raise UserError(f"dynamic names {', '.join(sorted(map(str, unknown)))}, which inputs does not give")
        return (), {name: _leaf(torch, name, value, dynamic.get(name)) for name, value in given}
    several = tuple(inputs) if isinstance(inputs, tuple | list) else (inputs,)
    given_names = names[: len(several)]
    if unknown := dynamic.keys() - set(given_names):
        raise UserError(
            f"dynamic names {', '.join(sorted(map(str, unknown)))}; the inputs given are {', '.join(given_names)}"
        )
    padded = [*given_names, *(f"argument {i}" for i in range(len(given_names), len(several)))]
    return tuple([_leaf(torch, n, v, dynamic.get(n)) for n, v in zip(padded, several, strict=True)]), {}


def _check_fit(module: Any, names: list[str], inputs: Any) -> None:
    """Raises UserError for example inputs that forward cannot be called with."""
    signature = inspect.signature(module.forward)
    try:
        if isinstance(inputs, Mapping):
            signature.bind(**inputs)
        else:
            signature.bind(*(inputs if isinstance(inputs, tuple | list) else (inputs,)))
    except TypeError as e:
        sizes = isinstance(inputs, tuple | list) and len(inputs) > 0 and all(type(size) is int for size in inputs)
        hint = f"; for an input of these sizes give (torch.zeros{tuple(inputs)},)" if sizes else ""
        raise UserError(
            f"the example inputs do not fit {type(module).__name__}.forward({', '.join(names)}): {e}{hint}"
        ) from None


def _leaf(torch: Any, name: str, value: Any, dynamic: Any) -> Any:
    """The value with Leafs in place of what is in it."""
    if isinstance(value, tuple | list):
        below = list(dynamic) if isinstance(dynamic, tuple | list) else [None] * len(value)
        if len(below) != len(value):
            raise UserError(f"dynamic[{name!r}] has {len(below)} entries, the input {len(value)}")
        made = [_leaf(torch, f"{name}_{i}", v, d) for i, (v, d) in enumerate(zip(value, below, strict=True))]
        return tuple(made) if isinstance(value, tuple) else made
    if isinstance(value, Mapping):
        named = dynamic if isinstance(dynamic, Mapping) else {}
        return {key: _leaf(torch, f"{name}_{key}", item, named.get(key)) for key, item in value.items()}
    if isinstance(value, Spec):
        raise UserError(_example_of(name, value))
    if isinstance(value, np.ndarray | np.generic):
        value = _tensor(torch, np.asarray(value))
    axes = dynamic or {}
    if axes and not isinstance(value, torch.Tensor):
        raise UserError(f"dynamic[{name!r}] names dimensions, and the example of it in inputs is no tensor but a "
                        f"{type(value).__name__} (of ingot.quantize, data come second and inputs third)")  # fmt: skip
    if not isinstance(axes, Mapping):
        raise UserError(f"dynamic[{name!r}] must name dimensions of a tensor: {{0: 'N'}}, not {axes!r:.80}")
    found: dict[int, Affine] = {}
    for axis, what in axes.items():
        size = size_named(what)
        if type(axis) is not int or size is None:
            raise UserError(
                f"dynamic[{name!r}] must map dimensions to names or ingot.Dim, or a multiple of one as in 8*ingot.Dim"
                f"('h'), not {axis!r}: {what!r:.80}"
            )
        found[axis_of(axis, value.dim(), f"dynamic[{name!r}]: dimension")] = size
    return Leaf(name, value, found)


def _example_of(name: str, spec: Spec) -> str:
    """What to say of a Spec among the example inputs: what to give instead, with its sizes."""
    sizes = ", ".join(str(size) if type(size) is int else "4" for size in spec.shape)
    named = {axis: str(size) for axis, size in enumerate(spec.shape) if type(size) is not int}
    dynamic = f", and dynamic={ {name: named}!r} for the sizes that may change" if named else ""
    return (
        f"{name} is an ingot.Spec, and a torch module is built with example inputs: give a tensor such as "
        f"torch.zeros([{sizes}], dtype=torch.{spec.dtype.name}){dynamic}"
    )


def _tensor(torch: Any, array: Array) -> Any:
    if array.dtype == dtypes.bfloat16.numpy:
        return torch.from_numpy(array.view(np.int16).copy()).view(torch.bfloat16)
    return torch.from_numpy(np.array(array))


def _each(tree: Any, change: Callable[[Leaf], Any]) -> Any:
    """The nested values with every Leaf changed."""
    if isinstance(tree, Leaf):
        return change(tree)
    if isinstance(tree, dict):
        return {key: _each(item, change) for key, item in tree.items()}
    return type(tree)(_each(item, change) for item in tree)


def _leaves(tree: Any) -> Iterator[Leaf]:
    if isinstance(tree, Leaf):
        yield tree
    else:
        for item in tree.values() if isinstance(tree, dict) else tree:
            yield from _leaves(item)


def tensor_leaves(arguments: Any) -> list[Any]:
    """The tensors in nested arguments, in torch's order."""
    if isinstance(arguments, dict | tuple | list):
        items = arguments.values() if isinstance(arguments, dict) else arguments
        return [x for item in items for x in tensor_leaves(item)]
    return [arguments] if hasattr(arguments, "data_ptr") else []


# ------------------------------------------------------------------------------------------------------ tensors


def _source(torch: Any, tensors: Mapping[str, Any], state: Iterable[str]) -> Source:
    """The module's tensors by name."""

    def key(tensor: Any) -> Any:
        if not _has_numbers(torch, tensor) or tensor.layout != torch.strided or tensor.is_quantized:
            return id(tensor)
        place = tensor.data_ptr() or id(tensor)
        return place, tuple(tensor.stride()), str(tensor.dtype), tuple(tensor.shape)

    def spec(name: str) -> tuple[Any, Spec]:
        tensor = tensors.get(name)
        if isinstance(tensor, torch.Tensor) and not _has_numbers(torch, tensor):
            raise ModuleError(
                f"the export left {name}, a tensor without numbers: forward takes gradients, or keeps tensors from "
                "call to call; compute the gradient by a formula, or pass the tensor as an input"
            )
        if tensor is None or not isinstance(tensor, torch.Tensor):
            raise ModuleError(f"{name} is a {type(tensor).__name__}, not a tensor")
        if tensor.layout != torch.strided or tensor.is_quantized:
            raise ModuleError(f"{name} is a {tensor.layout} tensor; only plain ones are supported")
        made = Spec(tuple(tensor.shape), dtypes.get(str(tensor.dtype).removeprefix("torch.")))
        return key(tensor), made

    return Source(spec, _Arrays(tensors), {name: key(tensors[name]) for name in state})


def _has_numbers(torch: Any, tensor: Any) -> bool:
    """Whether it is a tensor with memory: those that an export or a transform of functions leaves have none."""
    if not isinstance(tensor, torch.Tensor) or isinstance(tensor, torch._subclasses.FakeTensor):
        return False
    if tensor.layout != torch.strided:
        return True
    try:
        tensor.data_ptr()
    except RuntimeError:
        return False
    return True


class _Arrays(Mapping[str, Array]):
    """A module's tensors as arrays, which share its memory: it may be trained further."""

    def __init__(self, tensors: Mapping[str, Any]) -> None:
        self._tensors = tensors

    def __getitem__(self, name: str) -> Array:
        return as_array(self._tensors[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)
