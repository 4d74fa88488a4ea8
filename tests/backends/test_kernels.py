"""The declarations of the CPU's kernels against the native table, in both directions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ingot import _native, dtypes
from ingot.backends import device
from ingot.backends.cpu import CPU, attention
from ingot.backends.cpu.types import STORED
from ingot.backends.kernel import Kernel, KernelCall, Operand, Refusal, Use, read_params
from ingot.backends.program import ProgramBuilder
from ingot.dims import Dim
from ingot.dtypes import DType
from ingot.errors import NetworkError, UserError
from ingot.ir import OPS, F, Network, Node, Spec
from ingot.ir.expr import class_of
from ingot.ops.lowering import Lowered
from ingot.passes import pipeline
from tests import nets
from tests.kernels.every_kernel import CASES, STATE, Call
from tests.kernels.support import session
from tools import kernels as page

# The newest of each name: older versions stay in the native table for the engines that call them.
NATIVE = {kernel["name"]: kernel for kernel in sorted(_native.kernels(), key=lambda kernel: kernel["version"])}


def test_both_tables_have_the_same_kernels() -> None:
    declared = {(k.name, k.version, k.signature, k.params) for k in CPU.kernels}
    assert declared == {(k["name"], k["version"], k["operands"], k["params"]) for k in NATIVE.values()}
    assert len(CPU.kernels) == len(NATIVE)


def test_every_kernel_runs_an_op_that_is_there() -> None:
    assert {op for kernel in CPU.kernels for op in kernel.runs} <= OPS.keys()
    sizes = {kernel.sizes for kernel in CPU.kernels if kernel.sizes}
    assert {kernel.name for kernel in CPU.kernels if not kernel.runs} == {"copy"} | sizes  # added to programs, of no op
    assert [kernel.name for kernel in CPU.kernels if kernel.flops is None and kernel.products] == []


def test_the_page_is_current() -> None:
    assert Path(page.PAGE).read_text() == page.page(), "run python -m tools.kernels"


# ------------------------------------------------------------------------------------ calls that engines are made of


def calls() -> Iterator[Call]:
    """Calls of every kernel; operands that are results of another call stand for arrays of their type."""
    for case in CASES.values():
        for call in case:
            results = case[0].results
            operands = [np.zeros(results[0][1], results[0][0]) if isinstance(o, int) else o for o in call.operands]
            yield Call(call.kernel, operands, call.results, call.params)


CALLS: dict[str, list[Call]] = {name: [call for call in calls() if call.kernel == name] for name in NATIVE}
CALLS["iota"].append(Call("iota", [], CALLS["iota"][0].results, {"start": 1, "step": 2}))
for _call in [call for call in CALLS["matmul_packed"] if len(call.operands) == 3]:  # weights of 4 bits, in groups
    _x, _weight, *_extras = _call.operands
    _scaled = [_x, np.asarray(_weight).astype(np.uint8), np.zeros((3, 3, 32), np.float32), *_extras]
    CALLS["matmul_packed"].append(Call("matmul_packed", _scaled, _call.results, {**_call.params, "group": 32}))
_plain = CALLS["embedding"][0]
CALLS["embedding"].append(Call("embedding", _plain.operands, _plain.results, {"packed": False, "n": 5, "k": 17}))


def refusal(call: Call, types: dict[int, DType] | None = None, params: dict[str, Any] | None = None) -> str:
    """Why the native core makes no session of a call, with other element types (results count on) and parameters."""
    types = types or {}
    buffers: list[dict[str, Any]] = []
    for i, operand in enumerate(call.operands):
        if isinstance(operand, str):
            buffers.append({"kind": "state", "name": STATE, "dtype": "float32",
                            "state": {"type": "kv_cache", "heads": 2, "head_dim": 16}})  # fmt: skip
        else:
            array = np.asarray(operand)
            name = types.get(i, dtypes.get(array.dtype)).name
            buffers.append({"kind": "input", "name": f"x{i}", "dtype": name, "shape": list(array.shape)})
    count = len(buffers)
    for i, (dtype, shape) in enumerate(call.results, count):
        buffers.append({"kind": "temp", "dtype": types.get(i, dtypes.get(dtype)).name, "shape": list(shape)})
    given = dict(call.params if params is None else params)
    for name in ("expression", "epilogue"):
        if isinstance(given.get(name), dict):
            given[name] = _reading(CPU.by_name[call.kernel], buffers, count, call.params)
    run = {"kernel": call.kernel, "in": list(range(count)), "out": list(range(count, len(buffers))), "params": given}
    outputs = {f"y{i}": i for i in range(count, len(buffers))}
    options = {"kv_blocks": 3, "kv_block_size": 16} if STATE in [o for o in call.operands if isinstance(o, str)] else {}
    try:
        session(buffers, [run], outputs, **options)
    except _native.Error as error:
        if error.code != "kernel_refused":
            raise
        return str(error)
    return ""


def _reading(kernel: Kernel, buffers: list[dict[str, Any]], count: int, params: dict[str, Any]) -> dict[str, Any]:
    """An expression that reads every operand in its class and gives a constant in the result's."""
    own = kernel.operands[:-1] if kernel.operands[-1].name.startswith("*") else kernel.operands
    first = 0 if kernel.name == "elementwise" else count if kernel.name == "moe" else len(own)
    if kernel.name == "conv_transpose_packed":
        first = 1 + int(np.prod(params["stride"]))
    accumulators = {"elementwise": 0, "moe": 2}.get(kernel.name, params.get("parts", 1))
    steps: list[list[Any]] = [["input", "float32", i] for i in range(accumulators)]
    steps += [
        ["input", class_of(dtypes.get(buffers[i]["dtype"])), accumulators + i - first] for i in range(first, count)
    ]
    kind = class_of(dtypes.get(buffers[count]["dtype"]))
    steps.append(["const", kind, False if kind == "bool" else 0 if kind in ("int64", "uint64") else 0.0])
    return {"steps": steps, "outputs": [len(steps) - 1]}


@pytest.mark.parametrize("name", NATIVE)
def test_parameters(name: str) -> None:
    """Each parameter has the kind that the schema says, and those that may be absent may."""
    for call in CALLS[name]:
        assert refusal(call) == ""
    wrong = {"integer": 1.5, "integers": 3, "number": "x", "flag": 1, "expression": 3, "text": 3, "texts": "a"}
    for param in read_params(NATIVE[name]["params"]):
        holders = [call for call in CALLS[name] if param.name in call.params]
        if not holders:
            assert param.optional
            continue
        for call in holders:
            bad = wrong.get(param.kind.removesuffix(" or null"), "no such word")
            assert refusal(call, params={**call.params, param.name: bad}), bad
            null = refusal(call, params={**call.params, param.name: None})
            assert (not null) == param.kind.endswith(" or null"), null
            if not param.optional:
                assert f"parameter {param.name} is missing" in refusal(call, params=_without(call, param.name))
        assert not param.optional or any(not refusal(c, params=_without(c, param.name)) for c in CALLS[name])
        assert all(param.takes(call.params[param.name]) for call in holders)
        assert not param.takes(wrong.get(param.kind.removesuffix(" or null"), "no such word"))


def _without(call: Call, name: str) -> dict[str, Any]:
    return {k: v for k, v in call.params.items() if k != name}


@pytest.mark.parametrize("name", NATIVE)
def test_unknown_parameters_are_refused(name: str) -> None:
    call = CALLS[name][0]
    why = refusal(call, params={**call.params, "axes_": 1})
    names = ", ".join(param.name for param in read_params(NATIVE[name]["params"]))
    assert f"it has {names or 'none'}" in why and "unknown parameter" in why and "axes_" in why


@pytest.mark.parametrize("name", NATIVE)
def test_element_types(name: str) -> None:
    """An operand or result takes an element type exactly when the declaration says so.

    Others may have to change with it: those that are declared to have its type, and those that may have any.
    """
    kernel = CPU.by_name[name]
    seen: dict[str, dict[DType, bool]] = {}
    for call in CALLS[name]:
        operands = _declared(kernel, call)
        for i, operand in enumerate(operands):
            if operand.dtypes is None or isinstance(operand.dtypes[0], str):
                continue
            for dtype in STORED:
                found = seen.setdefault(operand.name, {})
                found[dtype] = found.get(dtype, False) or _takes(call, operands, i, dtype)
    for operand in (*kernel.operands, *kernel.results):
        if operand.name in seen:
            allowed = [d.name for d in STORED if d in (operand.dtypes or ())]
            assert allowed == [d.name for d, takes in seen[operand.name].items() if takes], operand.name
    assert seen or not kernel.operands


def _takes(call: Call, operands: list[Operand], which: int, dtype: DType) -> bool:
    operand = operands[which]
    alone = {i: dtype for i, o in enumerate(operands) if i == which or (o.dtypes and operand.plain_name in o.dtypes)}
    free = {i: dtype for i, o in enumerate(operands) if o.dtypes and dtype in o.dtypes}
    names = {operands[i].plain_name for i in free}
    like = {i: dtype for i, o in enumerate(operands) if o.dtypes and names & set(o.dtypes)}
    return any(not refusal(call, types) for types in (alone, free | like | alone))


def _declared(kernel: Kernel, call: Call) -> list[Operand]:
    """The declaration of each operand and result of a call."""
    found: list[Operand] = []
    count = len(call.operands)
    for operand in kernel.operands:
        left = count - len(found)
        if operand.name == "*weights":
            found += [operand] * int(np.prod(call.params["stride"]))
        elif operand.name.startswith("*"):
            found += [operand] * left
        elif operand.name == "scales?":
            found += [operand] * ("group" in call.params or call.params.get("scales", False))
        elif operand.name.endswith("_scales?"):  # of experts
            found += [operand] * (np.asarray(call.operands[len(found) - 1]).itemsize == 1)
        elif operand.name.endswith("_zeros?"):
            found += [operand] * call.params.get(operand.plain_name, False)
        elif operand.name.endswith("?") and operand.plain_name in ("weight", "bias") and kernel.name != "rms_norm":
            found += [operand] * int(call.params[operand.plain_name])
        elif left:
            found.append(operand)
    assert len(found) == count, (kernel.name, found)
    return [*found, *(kernel.results * len(call.results) if kernel.name == "elementwise" else kernel.results)]


@pytest.mark.parametrize("name", [n for n, k in CPU.by_name.items() if any(
    isinstance(d, str) for o in (*k.operands, *k.results) for d in o.dtypes or ())])  # fmt: skip
def test_operands_of_one_type(name: str) -> None:
    """What is declared to have another operand's element type is refused with another one."""
    kernel = CPU.by_name[name]
    takes: dict[tuple[str, DType], set[DType]] = {}  # by the operand and the type of the other one
    for call in CALLS[name]:
        operands = _declared(kernel, call)
        types = [dtypes.get(np.asarray(o).dtype) if not isinstance(o, str) else None for o in call.operands]
        types += [dtypes.get(dtype) for dtype, _ in call.results]
        for i, operand in enumerate(operands):
            if operand.dtypes and isinstance(operand.dtypes[0], str):
                (same,) = {types[j] for j, o in enumerate(operands) if o.plain_name == operand.dtypes[0]}
                assert same is not None
                found = {dtype for dtype in STORED if not refusal(call, {i: dtype})}
                takes[operand.name, same] = takes.get((operand.name, same), set()) | found
    declared = {operand.name: operand.dtypes or () for operand in (*kernel.operands, *kernel.results)}
    for who, same in takes:
        # float8 is for weights alone, which the calls here have as inputs; tests/kernels/test_packed_weight.py has it.
        assert takes[who, same] == {same, *declared[who][1:]} - {dtypes.float8_e4m3fn}, (who, same)


# ------------------------------------------------------------------------------------------------- choosing


CONV = {"stride": (1, 1), "pre_padding": (1, 1), "post_padding": (1, 1), "dilation": (1, 1)}
POOL = {"kernel": (2, 2), "stride": (2, 2), "pre_padding": (0, 0), "post_padding": (0, 0)}


def node(f: Any, *specs: Spec) -> Node:
    net = Network("one")
    f(*(net.input(f"x{i}", spec) for i, spec in enumerate(specs)))
    return net.nodes[-1]


def test_a_kernel_that_declines_passes_the_node_on() -> None:
    """matmul_packed wants panels; matmul takes no float64 and no integers, and the next ones do."""
    kinds = ("float32", "float64", "int8")
    nodes = [node(F.matmul, *[Spec((3, 3), kind)] * 2) for kind in kinds]
    assert [k.name for k in CPU.table["matmul"]] == ["matmul_packed", "matmul", "matmul_float64", "matmul_integer"]
    names = [choice.kernel for choice in map(CPU.choose, nodes) if isinstance(choice, KernelCall)]
    assert names == ["matmul", "matmul_float64", "matmul_integer"]
    turned = node(lambda a, b: F.matmul(a, b, transpose_b=True), *[Spec((3, 3), "int8")] * 2)
    none = CPU.choose(turned)
    assert isinstance(none, Refusal)
    assert none.why == ("matmul_packed: its weight is not in panels; "
                        "matmul: it reads strides instead of transposing; "
                        "matmul_float64: it reads strides instead of transposing; "
                        "matmul_integer: it reads strides instead of transposing")  # fmt: skip


def kernel(name: str, runs: Any, **more: Any) -> Kernel:
    return Kernel(name, **{"operands": (Operand("x", STORED),), "results": (Operand("y", ("x",)),),
                           "runs": {"relu": runs}, "flops": None} | more)  # fmt: skip


def test_choices_of_a_target() -> None:
    relu = node(F.relu, Spec((3,), "float32"))
    never = kernel("never", lambda op, node: Refusal("it is tired"))
    first, second = (kernel(name, lambda op, node: {}) for name in ("first", "second"))
    target = replace(CPU, kernels=(never, first, second))
    chosen = target.choose(relu)
    assert isinstance(chosen, KernelCall) and chosen.kernel == "first" and target.refuses(relu) is None
    assert replace(CPU, kernels=(never,)).choose(relu) == Refusal("never: it is tired")
    assert replace(CPU, kernels=()).refuses(relu) == "the cpu target has no kernel for relu"


def test_parameters_that_only_the_network_shows() -> None:
    """Its call has them where that kernel is the one that is called."""
    net = Network("two")
    net.output("y", F.relu(F.relu(net.input("x", Spec((3,), "float32")))))
    words: Any = {"params": "last?: flag", "of_network": lambda network: {network.nodes[-1]: {"last": True}}}
    declines = kernel("declines", lambda op, node: Refusal("it is tired"), **words)
    silent, says = kernel("silent", lambda op, node: {}), kernel("says", lambda op, node: {}, **words)
    for kernels, wanted in (((declines, silent), {}), ((declines, says), {"last": True})):
        calls = ProgramBuilder(net, replace(CPU, kernels=kernels)).build()["calls"]
        assert [call["params"] for call in calls] == [{}, wanted]


@pytest.mark.parametrize(("params", "found", "why"), [
    ("axis: integer", {}, "k: the parameter axis is missing"),
    ("axis: integer", {"axis": 1.5}, "k: the parameter axis is 1.5; must be integer"),
    ("axis: integer", {"axis": True}, "must be integer"),
    ("style: half | whole", {"style": "third"}, "is 'third'; must be half | whole"),
    ("", {"axis": 1}, "k: the parameter axis is 1; it has none"),
    ("axes: integers", {"axes": [1, "2"]}, "must be integers"),
])  # fmt: skip
def test_a_declaration_that_breaks_its_own_schema(params: str, found: dict[str, Any], why: str) -> None:
    with pytest.raises(NetworkError, match=why.replace("|", r"\|")):
        kernel("k", lambda op, node: found, params=params).choose(node(F.relu, Spec((3,), "float32")))


def test_operands_by_their_marks() -> None:
    """Without counts the first marks take what there is."""
    add = node(F.add, Spec((3,), "float32"), Spec((3,), "float32"))
    operands = (Operand("x", STORED), Operand("a?", STORED), Operand("*rest", STORED))
    for counts, strides in (({}, 1), ({"a": 0}, 2)):
        one = Kernel("k", operands=operands, results=(Operand("y", STORED),), flops=None,
                     runs={"add": lambda op, node, counts=counts: Use({}, counts)})  # fmt: skip
        choice = one.choose(add)
        assert isinstance(choice, KernelCall) and choice.reads == (operands[0].strides, operands[strides].strides)
    few = replace(kernel("k", None), runs={"add": lambda op, node: {}})
    with pytest.raises(NetworkError, match="1 operands too many: x"):
        few.choose(add)


@pytest.mark.parametrize(("found", "chosen"), [
    ({}, False), ({"weight": True}, False), ({"weight": False}, True), (Use({}, {"weight": 0}), True),
    (Use({}, {"weight": 1}), False),
])  # fmt: skip
def test_a_kernel_has_to_be_told_of_an_absent_operand(found: Any, chosen: bool) -> None:
    """Else it would take the next one for it."""
    norm = node(lambda x, b: F.layer_norm(x, None, b), Spec((2, 3), "float32"), Spec((3,), "float32"))
    operands = (Operand("x", STORED), Operand("weight?", STORED), Operand("bias?", STORED))
    got = Kernel("k", operands=operands, results=(Operand("y", STORED),), params="weight?: flag", flops=None,
                 runs={"layer_norm": lambda op, node: found}).choose(norm)  # fmt: skip
    assert isinstance(got, KernelCall) if chosen else got == Refusal("it needs the operand weight")


def test_a_kernel_runs_nodes_with_an_epilogue_or_those_without() -> None:
    plain = kernel("plain", lambda op, node: {})
    ending = kernel("ending", lambda op, node: {}, operands=(*plain.operands, Operand("*extras", STORED)))
    relu = node(F.relu, Spec((3,), "float32"))
    assert ending.choose(relu) == Refusal("it runs lowered nodes, which have an epilogue")
    assert isinstance(plain.choose(relu), KernelCall)
    low = pipeline.lower(nets.llama(layers=1), CPU)
    product = next(n for n in low.nodes if isinstance(n.op, Lowered) and n.op.epilogue is not None)
    only = replace(plain, runs={product.op.inner.name: lambda op, node: {}})
    assert only.choose(product) == Refusal("it has no epilogue")


@pytest.mark.parametrize(("build", "why"), [
    (lambda x: F.max_pool(x, **POOL, dilation=(1, 1)), "max_pool: it takes channels last"),
    (lambda x: F.avg_pool(x, **POOL), "avg_pool: it takes channels last"),
    (lambda x: F.group_norm(x, groups=2, eps=1e-5), "it is not lowered, or its channels are not last"),
    (lambda x: F.rms_norm(x, eps=-1.0), "eps"), (lambda x: F.layer_norm(x, eps=1e7), "eps"),
])  # fmt: skip
def test_what_kernels_decline(build: Any, why: str) -> None:
    choice = CPU.choose(node(build, Spec((2, 4, 6, 6), "float32")))
    assert isinstance(choice, Refusal) and why in choice.why


def test_a_program_that_is_not_there() -> None:
    header = {"programs": {"cpu": {"entries": {"main": {}}}}}
    with pytest.raises(UserError, match="the engine has no program 'step' for cpu; it has main"):
        device.program_of(header, "step", "cpu")


def test_heads_that_the_cache_kernels_take() -> None:
    """An even width, however many heads there are: one, an odd number, more than a head may be wide."""

    def node(*shapes: tuple[Any, ...]) -> Any:
        return SimpleNamespace(inputs=[SimpleNamespace(shape=shape) for shape in shapes])

    op = SimpleNamespace(style="half", scale=1.0, window=0, softcap=0.0)
    state = (9, 2, 2, 64)
    for heads in (1, 2, 3, 513):
        for width in (2, 64, 512, 0, 7, 514, Dim("N")):
            x = (Dim("N"), heads, width)
            choices = (
                attention._kv_write(op, node(state, x, x)), attention._rope_kv_write(op, node(x, x, x)),
                attention._paged_attention(op, node(x)),
            )  # fmt: skip
            assert [isinstance(choice, Refusal) for choice in choices] == [width not in (2, 64, 512)] * 3


def test_heads_that_attention_takes() -> None:
    def node(q: int, v: int) -> Any:
        net = Network("net")
        shapes = {"q": (2, 600, 7, q), "k": (2, 600, 9, q), "v": (2, 600, 9, v)}
        F.scaled_dot_product_attention(*(net.input(n, Spec(s, "float32")) for n, s in shapes.items()))
        return net.nodes[-1]

    for q, v, taken in ((512, 512, True), (513, 8, False), (8, 513, False)):
        (kernel,) = [k for k in CPU.kernels if k.name == "attention"]
        assert isinstance(kernel.choose(node(q, v)), KernelCall) is taken


@pytest.mark.parametrize(("name", "length", "taken"), [
    ("fft", 1 << 20, True), ("fft", (1 << 20) + 1, False), ("fft", (1 << 20) + 2, False),
    *((name, length, taken) for name in ("rfft", "irfft") for length, taken in (
        (1 << 21, True), ((1 << 21) + 2, False), ((1 << 20) - 1, True), ((1 << 20) + 1, False))),
])  # fmt: skip
def test_lengths_that_transforms_take(name: str, length: int, taken: bool) -> None:
    """2^20 complex numbers; an even number of real ones is half as many of those, an odd one as many."""
    shape = {"fft": (3, length, 2), "rfft": (3, length), "irfft": (3, length // 2 + 1, 2)}[name]
    attrs = {"n": length} if name == "irfft" else {}
    choice = CPU.choose(node(lambda x: getattr(F, name)(x, **attrs), Spec(shape, "float32")))
    assert isinstance(choice, KernelCall) is taken, choice


def test_a_lowered_group_norm_with_an_eps_that_is_none() -> None:
    net = Network("net")
    x, w = net.input("x", Spec((2, 4, 6, 6), "float32")), net.parameter("w", Spec((4, 4, 3, 3), "float32"))
    net.output("y", F.group_norm(F.conv(x, w, **CONV), groups=2, eps=-1.0))
    lowered = [n for n in pipeline.lower(net, CPU).nodes if isinstance(n.op, Lowered)]
    (choice,) = [CPU.choose(n) for n in lowered if n.op.inner.name == "group_norm"]
    assert isinstance(choice, Refusal) and "eps" in choice.why
