"""Attacks by the program in an otherwise good engine (classes 26 to 37), which the native core verifies."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from attacks.image import Image, engine

Program = dict[str, Any]


def program(
    number: int, name: str, change: Callable[[Program], object], why: str, code: str = "program", at: str = "native"
) -> None:
    """An engine whose program `change` alters in place; `at` tells when it has to be refused, open/load or run."""

    def content(image: Image) -> None:
        change(image.program)

    engine(number, name, content, **{at: (code, why)})


def _set(*path: str | int, value: Any) -> Callable[[Program], None]:
    def change(root: Program) -> None:
        at: Any = root
        for key in path[:-1]:
            at = at[key]
        at[path[-1]] = value

    return change


def _drop(*path: str | int) -> Callable[[Program], None]:
    def change(root: Program) -> None:
        at: Any = root
        for key in path[:-1]:
            at = at[key]
        del at[path[-1]]

    return change


_REFUSED = "program|kernel_refused"

program(4, "program version 2", _set("version", value=2), "version", "engine_version")
program(26, "a cycle between calls", lambda p: p["calls"].reverse() or p["calls"][0].update({"in": [5]}), "before")
program(26, "a call that reads its own result", _set("calls", 0, "in", value=[3]), "before")
program(27, "a buffer number out of range", _set("calls", 0, "in", value=[99]), "99")
program(27, "a negative buffer number", _set("calls", 0, "in", value=[-1]), "-1")
program(27, "a buffer number of 2**40", _set("calls", 0, "out", value=[2**40]), "buffer")
program(27, "a buffer number that is a string", _set("calls", 0, "in", value=["0"]), "buffer")
program(27, "a buffer that is written twice", _set("calls", 1, "out", value=[3]), "twice|after")
program(27, "a write into a weight", _set("calls", 0, "out", value=[2]), "temp")
program(27, "a write into an input", _set("calls", 0, "out", value=[0]), "temp")
program(27, "a write after a read", lambda p: p["calls"].append(p["calls"][0]), "after|twice")
program(27, "an output that nothing writes", lambda p: p["calls"].pop(1), "before|wrote")
program(27, "an output out of range", _set("outputs", 0, "buffer", value=7), "buffer")
program(27, "two outputs of one name", _set("outputs", 1, "name", value="y"), "twice")
program(27, "two inputs of one name", _set("buffers", 1, "name", value="x"), "twice")
program(27, "a weight that the file lacks", _set("buffers", 2, "tensor", value="nowhere"), "nowhere")
program(27, "a weight of another shape", _set("buffers", 2, "shape", value=[8, 4]), "w")
program(27, "a weight of another type", _set("buffers", 2, "dtype", value="int32"), "w")
program(27, "a weight larger than its tensor", _set("buffers", 2, "shape", value=[4000, 8]), "w")
program(
    27,
    "a temp of which only a part is written",
    lambda p: (
        p["buffers"].append({"kind": "view", "of": 4, "shape": ["N", 4], "stride": [8, 1], "offset": 0}),
        p["buffers"][2].update(shape=[4, 8]),
        p["calls"][1].update(
            {
                "kernel": "elementwise",
                "in": [0],
                "out": [7],
                "params": {"expression": {"steps": [["input", "float32", 0]], "outputs": [0]}},
            }
        ),
        p["buffers"][0].update(shape=["N", 4]),
        p["buffers"][3].update(shape=["N", 4]),
        p["buffers"][5].update(shape=["N", 2, 2], stride=[4, 2, 1]),
        p["buffers"][6].update(shape=["N", 2, 2]),
    ),
    "part|written|cover",
    _REFUSED,
    "run",
)
program(28, "an unknown kernel", _set("calls", 0, "kernel", value="run_shell"), "run_shell", _REFUSED)
_VERSIONS: list[Any] = [0, -1, "1", 1.0, True, None, [1], {}, 2**63]
for _version in _VERSIONS:
    program(28, f"the kernel version {_version!r}", _set("calls", 0, "version", value=_version), "calls.0.: version")
    _code = "engine_version" if _version == 2**63 else "program"
    program(4, f"the program version {_version!r}", _set("version", value=_version), "version", _code)
for _version in (7, 2**63 - 1):
    program(28, f"a kernel of the newer version {_version}", _set("calls", 0, "version", value=_version),
            f"no kernel 'rms_norm' of version {_version}, only of version 1; .*this is ingot", "engine_version")
program(
    28,
    "a host call that is no op",
    lambda p: p["calls"].__setitem__(
        0, {"host": "os.system", "version": 1, "in": [0], "out": [3], "params": {"cmd": "id"}}
    ),
    "os.system",
    "program|kernel_refused|op|engine_file",
    "run",
)
program(28, "a call that is kernel and host", _set("calls", 0, "host", value="nonzero"), "kernel|host|unknown")
program(29, "a missing parameter", _set("calls", 0, "params", value={}), "eps", _REFUSED)
program(29, "an extra parameter", _set("calls", 0, "params", "plugin", value="x"), "plugin", _REFUSED)
_EPS: list[Any] = ["1", None, [], -1.0, True, 1e300]
for _eps in _EPS:
    program(29, f"the parameter eps = {_eps!r}", _set("calls", 0, "params", "eps", value=_eps), "eps", _REFUSED)
program(29, "parameters that are a list", _set("calls", 0, "params", value=[]), "params")
program(29, "a missing key of a call", _drop("calls", 0, "version"), "version")
program(29, "an extra key of a call", _set("calls", 0, "address", value=4096), "address")
program(29, "an extra key of a buffer", _set("buffers", 0, "data", value=4096), "data")
program(29, "an extra key of the program", _set("import", value="os"), "import")
program(29, "too few operands", _set("calls", 1, "in", value=[2]), "take", _REFUSED)
program(29, "too many operands", _set("calls", 0, "in", value=[0] * 5), "rms_norm", _REFUSED)
program(29, "operands without results", _set("calls", 0, "out", value=[]), "rms_norm|before", _REFUSED)
program(29, "an operand of another type", _set("calls", 1, "in", value=[2, 0]), "take", _REFUSED)
program(29, "a result of another shape", _set("buffers", 3, "shape", value=["N", 9]), "", _REFUSED + "|input", "run")
program(29, "an unknown dtype", _set("buffers", 3, "dtype", value="float8"), "float8")
program(29, "an unknown kind of buffer", _set("buffers", 3, "kind", value="pointer"), "pointer")
for _dims in (
    [-1],
    [-1, -1],
    ["M"],
    [["+", "N"]],
    [["import", "os"]],
    [1.5],
    [None],
    [["//", "N", 0]],
    [["%", "N", 0]],
    [["*", 2**62, 4]],
    [2**63 - 1, 2**63 - 1],
    [["-", 0, 1]],
    [1] * 9,
):
    program(
        37 if 2**63 - 1 in _dims else 32,
        f"a temp of shape {_dims}",
        _set("buffers", 4, "shape", value=_dims),
        "",
        _REFUSED + "|input|memory",
        "run",
    )


def _deep(image: Image) -> None:
    """A dim of 1,000 nested sums, written as text because Python's own writer gives up on it."""
    image.program["buffers"][4]["shape"] = ["DEEP", 8]
    text = json.dumps(image.ours, sort_keys=True).encode()
    image.text = text.replace(b'"DEEP"', b'["+",1,' * 1000 + b'"N"' + b"]" * 1000)


engine(32, "a dim 1,000 deep", _deep, both="deep")
program(
    30, "a view with negative strides", _set("buffers", 5, "stride", value=[-8, -4, -1]), "", _REFUSED + "|input", "run"
)
program(30, "a view behind the end", _set("buffers", 5, "offset", value=1), "", _REFUSED + "|input", "run")
program(30, "a view before the beginning", _set("buffers", 5, "offset", value=-1), "", _REFUSED + "|input", "run")
program(
    30,
    "a view whose last element overflows",
    _set("buffers", 5, "stride", value=[2**61, 2**61, 2**61]),
    "",
    _REFUSED + "|input",
    "run",
)
program(30, "a view of a view", _set("buffers", 5, "of", value=5), "of")
program(30, "a view of a later buffer", _set("buffers", 5, "of", value=6), "of")
program(30, "strides of another rank", _set("buffers", 5, "stride", value=[8, 1]), "stride")
for _axis in (2, -3, 2**40, "0", 0.0, None):
    program(31, f"the axis {_axis!r}", _set("calls", 1, "params", "axis", value=_axis), "axis", _REFUSED)
program(
    35, "a temp of 10**12 elements", _set("buffers", 4, "shape", value=[10**12, 8]), "", _REFUSED + "|memory", "run"
)


def _many(p: Program) -> None:
    """1,000 results of 4 GB, all of which the program returns."""
    for i in range(7, 1007):
        p["buffers"].append({"kind": "temp", "dtype": "float32", "shape": [10**9]})
        p["calls"].append({"kernel": "iota", "version": 1, "in": [], "out": [i], "params": {"start": 0, "step": 1}})
        p["outputs"].append({"name": f"big{i}", "buffer": i})


program(35, "results of 4 TB", _many, "", _REFUSED + "|memory", "run")
program(37, "a symbol whose bounds cross", _set("symbols", 0, "min", value=65), "max")
program(37, "a negative symbol", _set("symbols", 0, "min", value=-1), "min")
program(37, "a symbol that nothing binds", lambda p: p["symbols"].append({"name": "M", "min": 0, "max": 4}), "M")
program(37, "a symbol twice", lambda p: p["symbols"].append({"name": "N", "min": 0, "max": 4}), "twice")
program(37, "a symbol name that is no name", _set("symbols", 0, "name", value="N; import os"), "name|identifier")
program(
    37,
    "an unbacked symbol that nothing binds",
    lambda p: p["symbols"].append({"name": "M", "min": 0, "max": 4, "unbacked": True}),
    "M|unbacked",
)


def _checks(**changed: Any) -> Callable[[Program], object]:
    """A check of sizes that holds, but for what is changed."""
    good = {"size": "N", "wanted": "N", "or_one": False, "text": "N is N"}
    return lambda p: p.update(checks=[{**good, **changed}])


program(16, "a check of sizes that fails", _checks(wanted=["+", "N", 1]), "N is N; here", "input", "run")
program(16, "a check of a size that no symbol has", _checks(size="M"), "M")
program(16, "a check by 0", _checks(size=["//", "N", 0]), "divisor|0", "input", "run")
program(29, "a check without words", _checks(text=""), "text")
program(29, "a check whose flag is a number", _checks(or_one=1), "or_one")
program(29, "checks that are none", lambda p: p.update(checks=7), "checks")


def _state(heads: int, head_dim: int) -> Program:
    return {
        "kind": "state",
        "name": "kv",
        "dtype": "float32",
        "state": {"type": "kv_cache", "heads": heads, "head_dim": head_dim},
    }


program(37, "a state with 0 heads", lambda p: p["buffers"].append(_state(0, 8)), "heads")
program(37, "a state with 2**40 heads", lambda p: p["buffers"].append(_state(2**40, 8)), "heads")
program(
    27,
    "a state as an output of the program",
    lambda p: (p["buffers"].append(_state(1, 16)), p["outputs"].append({"name": "kv", "buffer": 7})),
    "state",
)


def _steps(steps: list[Any], outputs: list[Any] | None = None) -> Callable[[Program], None]:
    expression = {"steps": steps, "outputs": [len(steps) - 1] if outputs is None else outputs}
    return _set("calls", 2, "params", "expression", value=expression)


_INPUT = ["input", "float32", 0]
_EXPRESSIONS: dict[str, tuple[list[Any], list[Any] | None]] = {
    "without steps": ([], []),
    "that refers to a later step": ([["neg", "float32", 1], _INPUT], [0]),
    "that refers to itself": ([["neg", "float32", 0]], None),
    "that refers to a negative step": ([_INPUT, ["neg", "float32", -1]], None),
    "with an operand that is not there": ([["input", "float32", 1]], None),
    "with operand 2**40": ([["input", "float32", 2**40]], None),
    "with an unknown op": ([_INPUT, ["system", "float32", 0]], None),
    "with an unknown class": ([["input", "pointer", 0]], None),
    "with operands of two classes": ([_INPUT, ["to_int", "int64", 0], ["add", "float32", 0, 1]], None),
    "with too few arguments": ([_INPUT, ["add", "float32", 0]], None),
    "with too many arguments": ([_INPUT, ["neg", "float32", 0, 0]], None),
    "with a bad constant": ([["const", "float32", "infinite"]], None),
    "with a constant of another class": ([["const", "int64", 1.5], ["to_float", "float32", 0]], None),
    "with an output that is not there": ([_INPUT], [4]),
    "with too many outputs": ([_INPUT], [0, 0]),
    "of 10,000 steps": ([_INPUT] + [["neg", "float32", i] for i in range(10_000)], None),
    "with a step that is a string": ([_INPUT, "neg"], [0]),
    "with an empty step": ([_INPUT, []], [0]),
    "that rounds to an unknown type": ([_INPUT, ["round", "float32", 0, "float8"]], None),
}
for _name, (_list, _outputs) in _EXPRESSIONS.items():
    program(29, f"an expression {_name}", _steps(_list, _outputs), "", _REFUSED)


def _of_float8(image: Image) -> bytes:
    """An expression whose operand is the file's last tensor, of a byte an element, as integers of eight bytes."""
    count = 1 << 20
    steps = {"steps": [["input", "int64", 0]], "outputs": [0]}
    call = {"kernel": "elementwise", "version": 1, "in": [0], "out": [1], "where": "x"}
    weight = {"kind": "weight", "tensor": "w", "dtype": "float8_e4m3fn", "shape": [count]}
    image.program.update(
        symbols=[],
        buffers=[weight, {"kind": "temp", "dtype": "int64", "shape": [count]}],
        calls=[{**call, "params": {"expression": steps}}],
        outputs=[{"name": "y", "buffer": 1}],
    )
    image.entries = [("w", {"dtype": "F8_E4M3", "shape": [count], "data_offsets": [0, count]})]
    image.data = bytes(count)
    return image.encode()


engine(29, "an expression over float8", _of_float8, native=(_REFUSED, "float8_e4m3fn"))

program(34, "an index out of range at run time", _set("symbols", 0, "max", value=63), "", "value", "run_far")
program(34, "a negative index at run time", _set("symbols", 0, "max", value=62), "", "value", "run_negative")
