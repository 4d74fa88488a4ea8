"""Everything that changes a dtype on the way from torch: conversions, promotion, dtype=, changes in place, rounding.

Many small functions are exported as one module, whose network is interpreted and built. Both give torch's own bits (NaN
apart), or, for sums of floats, its numbers to a few roundings.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import ingot
from ingot import dtypes
from ingot.builder.network import build_network
from ingot.errors import UnsupportedError
from ingot.frontends import torch_export
from ingot.ir import interpret
from ingot.nn.parameter import as_array

INF, NAN = float("inf"), float("nan")
TYPES = {
    "b": torch.bool, "u8": torch.uint8, "i8": torch.int8, "i16": torch.int16, "i32": torch.int32, "i64": torch.int64,
    "h": torch.float16, "bf": torch.bfloat16, "f": torch.float32, "d": torch.float64,
}  # fmt: skip
Tensors = dict[str, torch.Tensor]
Function = Callable[..., torch.Tensor]
EDGES = [0.6, 1.5, -1.7, 2.9, 0.0, -0.0, 127.6, 128.0, -129.5, 255.9, 256.0, 300.2, -300.0, 40000.0, 1e5, 3e9, -3e9,
         1e19, INF, -INF, NAN, 1e-40, 0.5, -0.5, 7.0]  # fmt: skip


def operands() -> Tensors:
    """A tensor of each type with what is hard to convert; `x2` are small ones to count with, never 0."""
    rng = torch.Generator().manual_seed(1)
    found: Tensors = {}
    for name, dtype in TYPES.items():
        if dtype.is_floating_point:
            found[name] = torch.tensor(EDGES, dtype=torch.float64).to(dtype)
            found[f"{name}2"] = (torch.rand(25, generator=rng, dtype=torch.float64) * 8 - 4).to(dtype)
        elif dtype is torch.bool:
            found[name] = torch.arange(25) % 3 == 0
            found[f"{name}2"] = torch.arange(25) % 2 == 0
        else:
            found[name] = torch.randint(-(2**62), 2**62, (25,), generator=rng).to(dtype)
            found[f"{name}2"] = torch.randint(1, 6, (25,), generator=rng).to(dtype)
    return found


CASES: dict[str, tuple[Function, float]] = {}  # how far results may be off: 0 is the same bits


def case(name: str, function: Function, tolerance: float = 0.0) -> None:
    assert name not in CASES, name
    CASES[name] = function, tolerance


# ------------------------------------------------------------------------------------------------ conversions
for source in TYPES:
    for target, dtype in TYPES.items():
        if source != target:
            case(f"to {source} {target}", lambda t, s=source, d=dtype: t[s].to(d))
    case(f"type_as {source}", lambda t, s=source: t[s].type_as(t["i8"]) + t["f"].type_as(t[s]).to(torch.int8))
for word in ("bool", "char", "byte", "short", "int", "long", "half", "bfloat16", "float", "double"):
    case(f".{word}()", lambda t, w=word: getattr(t["f"], w)())
case("convert_element_type", lambda t: torch.ops.prims.convert_element_type.default(t["f"], torch.uint8))
case("_to_copy", lambda t: torch.ops.aten._to_copy.default(t["d"], dtype=torch.int16))
case("a chain", lambda t: (t["bf2"] * t["bf2"] + t["bf2"]).to(torch.int32).to(torch.uint8).to(torch.bool))

# --------------------------------------------------------------------------------------- promotion, numbers included
ARITHMETIC: dict[str, Callable[[Any, Any], torch.Tensor]] = {
    "add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": torch.div, "floor_divide": torch.floor_divide,
    "remainder": torch.remainder, "fmod": torch.fmod, "maximum": torch.maximum,
    "div floor": lambda a, b: torch.div(a, b, rounding_mode="floor"),
    "div trunc": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
}  # fmt: skip
MIXED = [("u8", "i8"), ("i8", "i32"), ("b", "i16"), ("i64", "f"), ("i32", "bf"), ("h", "bf"), ("f", "d"), ("b", "f"),
         ("i16", "d"), *((same, same) for same in TYPES if same != "b")]  # fmt: skip
for name, function in ARITHMETIC.items():
    for a, b in MIXED:
        if (name, a) != ("sub", "b"):  # torch has no such thing
            case(f"{name} {a} {b}", lambda t, f=function, a=a, b=b: f(t[f"{a}2"] * (1 if a == "b" else 2), t[f"{b}2"]))
for name in ("add", "mul", "floor_divide", "remainder", "div floor", "div trunc", "fmod"):
    for a in ("u8", "i8", "i64", "f", "d"):
        for number in (3, -1, 300, 0.1):
            if a == "u8" and number in (-1, 300) and name not in ("add", "mul"):
                continue  # a divisor that wraps to 255, or to 44, is legal, and torch is of two minds about it
            case(f"{name} {a} {number}", lambda t, f=ARITHMETIC[name], a=a, n=number: f(t[f"{a}2"], n))
COMPARED = [("u8", "i8"), ("i64", "f"), ("i32", "d"), ("b", "i8"), ("bf", "f"), ("h", "d"), ("b", "b"), ("f", "d")]
for name in ("eq", "ne", "lt", "le", "gt", "ge"):
    function = getattr(torch, name)
    for a, b in COMPARED:
        case(f"{name} {a} {b}", lambda t, f=function, a=a, b=b: f(t[a], t[b]))
    for a in ("u8", "i8", "i32", "bf", "f", "d"):
        for number in (-1, 300, 2.5, 0.1):
            case(f"{name} {a} {number}", lambda t, f=function, a=a, n=number: f(t[a], n))
case("a tensor without dimensions of a higher category", lambda t: t["i8"] + t["f2"].sum() * 0 + t["bf2"])
case("1 // 0.1", lambda t: torch.floor_divide(t["f"], 0.1), 0.0)
case("multiples", lambda t: torch.remainder(torch.round(t["f2"]) * 0.1, 0.1))
case("by infinity and by nothing", lambda t: torch.floor_divide(t["f2"], t["f"]))
case("remainder of edges", lambda t: torch.remainder(t["f2"], t["f"]))
case("fmod of edges", lambda t: torch.fmod(t["d2"], t["d"]))
for name in ("and", "or", "xor"):
    function, logical = getattr(torch, f"bitwise_{name}"), getattr(torch, f"logical_{name}")
    case(f"bitwise {name} bools", lambda t, f=function: f(t["b"], t["b2"]))
    case(f"bitwise {name} bool int", lambda t, f=function: f(t["b"], t["i16"]))
    case(f"bitwise {name} bool True", lambda t, f=function: f(t["b"], True))
    case(f"bitwise {name} bool 3", lambda t, f=function: f(t["b"], 3))
    case(f"bitwise {name} u8 -1", lambda t, f=function: f(t["u8"], -1))
    case(f"logical {name}", lambda t, f=logical: f(t["f"], t["i8"]))
case("bitwise not", lambda t: torch.bitwise_not(t["u8"]).to(torch.int16) + torch.bitwise_not(t["b"]))
case("where 255", lambda t: torch.where(t["b"], t["u8"], -1))
case("where 2.5", lambda t: torch.where(t["b"], t["u8"], 2.5))
case("where mixed", lambda t: torch.where(t["b"], t["i8"], t["d"]))
case("masked_fill int", lambda t: t["u8"].masked_fill(t["b"], 2.7) + t["u8"].masked_fill(t["b"], -1))
case("clamp to floats", lambda t: torch.clamp(t["i8"], 0.5, 2.5))
case("clamp u8", lambda t: torch.clamp(t["u8"], -1, 5))
case("clamp by tensors", lambda t: torch.clamp(t["i8"], t["f2"], t["d2"] + 4))

# --------------------------------------------------------------------------------------------------- dtype=
for name in ("sum", "prod"):
    for a in ("b2", "u8", "i8", "i32", "i64"):
        case(f"{name} {a}", lambda t, n=name, a=a: getattr(torch, n)(t[a], 0))
    case(f"{name} f as int32", lambda t, n=name: getattr(torch, n)(t["f2"], 0, dtype=torch.int32))
    case(f"{name} u8 as uint8", lambda t, n=name: getattr(torch, n)(t["u8"], 0, dtype=torch.uint8))
    case(f"{name} i64 as float64", lambda t, n=name: getattr(torch, n)(t["i32"], 0, dtype=torch.float64), 1e-14)
case("sum bf as float32", lambda t: torch.sum(t["bf2"], 0, dtype=torch.float32), 1e-6)
case("sum f as float64", lambda t: torch.sum(t["f2"], 0, dtype=torch.float64), 1e-14)
case("mean i as float64", lambda t: torch.mean(t["i8"], 0, dtype=torch.float64), 1e-14)
case("mean bool as float32", lambda t: torch.mean(t["b"], 0, dtype=torch.float32), 1e-6)
for a in ("b", "u8", "i8", "i64"):
    case(f"cumsum {a}", lambda t, a=a: torch.cumsum(t[a], 0))
case("cumsum f as int8", lambda t: torch.cumsum(t["f2"] * 40, 0, dtype=torch.int8))
case("cumsum i8 as float64", lambda t: torch.cumsum(t["i8"], 0, dtype=torch.float64))
case("cumsum d", lambda t: torch.cumsum(t["d2"], 0), 1e-13)
case("softmax i as float64", lambda t: torch.softmax(t["i82"], 0, dtype=torch.float64), 1e-14)
case("any u8", lambda t: t["u8"].any() + t["u8"].all() + (t["u8"] * 0).any(0))
case("any f", lambda t: t["f"].any() & t["f"].all())
case("full", lambda t: torch.full((3,), -1.7, dtype=torch.int32))
case("full bool", lambda t: torch.full((3,), 2.5, dtype=torch.bool))
case("full float64", lambda t: torch.full((3,), 0.1, dtype=torch.float64))
case("full_like", lambda t: torch.full_like(t["i8"], 2.9) + torch.ones_like(t["f"], dtype=torch.int8))
case("new_full", lambda t: t["i8"].new_full((2,), 2.9))
case("scalar_tensor", lambda t: torch.scalar_tensor(2.7, dtype=torch.int8) + t["i8"])
case("scalar_tensor of float64", lambda t: torch.scalar_tensor(0.1, dtype=torch.float64) * t["d"])
case("arange of integers with fractions", lambda t: torch.arange(0.5, 5, 1.5, dtype=torch.int64))
case("arange of fractions", lambda t: torch.arange(0, 1, 0.1, dtype=torch.float64), 1e-15)
case("arange of fractions, float32", lambda t: torch.arange(0.5, 3, 0.3), 2e-7)
case("arange of fractions, bfloat16", lambda t: torch.arange(0.5, 3, 0.3, dtype=torch.bfloat16), 1e-2)
case("arange float64", lambda t: torch.arange(3, 9, dtype=torch.float64) / 3)
case("arange bfloat16", lambda t: torch.arange(0, 300, dtype=torch.bfloat16))
case("arange int8", lambda t: torch.arange(-3, 9, 2, dtype=torch.int8))


# --------------------------------------------------------------------------------------------- changes in place
def changed(name: str, target: str, function: Callable[[torch.Tensor, Tensors], Any]) -> None:
    def run(t: Tensors) -> torch.Tensor:
        y = t[target].clone()
        function(y, t)
        return y

    case(f"in place: {name}", run)


changed("add_ of another int", "i8", lambda y, t: y.add_(t["i64"]))
changed("sub_ u8 of int16", "u8", lambda y, t: y.sub_(t["i16"]))
changed("mul_ bfloat16 by float32", "bf2", lambda y, t: y.mul_(t["f2"]))
changed("add_ float32 of float64", "f2", lambda y, t: y.add_(t["d2"]))
changed("div_ by int", "f2", lambda y, t: y.div_(t["i82"]))
changed("floor_divide_", "i32", lambda y, t: y.floor_divide_(t["i82"]))
changed("copy_ floats to int8", "i8", lambda y, t: y.copy_(t["f"]))
changed("copy_ floats to bool", "b", lambda y, t: y.copy_(t["f"]))
changed("copy_ float64 to bfloat16", "bf", lambda y, t: y.copy_(t["d"]))
changed("masked_fill_ with a fraction", "i8", lambda y, t: y.masked_fill_(t["b"], 2.9))
changed("fill_ with a fraction", "i8", lambda y, t: y.fill_(-2.9))
changed("lt_ into floats", "f", lambda y, t: y.lt_(t["i8"]))
changed("logical_and_ into ints", "i8", lambda y, t: y.logical_and_(t["f"]))
changed("bitwise_and_ of bools", "b", lambda y, t: y.bitwise_and_(t["b2"]))
changed("clamp_ int", "i8", lambda y, t: y.clamp_(-3, 5))


class All(nn.Module):
    def forward(self, t: Tensors) -> Tensors:
        return {name: function(t) for name, (function, _) in CASES.items()}


@pytest.fixture(scope="module")
def results() -> tuple[Tensors, dict[str, Any], dict[str, Any], list[str]]:
    """torch's results, the interpreter's, the engine's, and the engine's host calls."""
    inputs = operands()
    exported = torch_export.export(All(), (inputs,), None)
    imported = torch_export.build_network(exported.program, exported.source, "all", exported.dims)
    feeds = {f"t_{name}": as_array(x) for name, x in inputs.items()}
    feeds = {v.name: feeds[v.name] for v in imported.network.inputs}
    engine = build_network(imported.network, imported.weights)
    with np.errstate(all="ignore"):
        interpreted = interpret(imported.network, feeds, imported.weights)
    return All()(inputs), interpreted, engine.run(feeds), engine._native.host_calls("main")


def differences(found: Any, wanted: torch.Tensor, tolerance: float) -> str:
    want = as_array(wanted)
    if found.dtype != want.dtype or found.shape != want.shape:
        return f"{found.dtype}{found.shape}, torch has {want.dtype}{want.shape}"
    a, b = (np.atleast_1d(x) for x in (found, want))
    if dtypes.get(want.dtype).is_float:
        both = np.isnan(a) & np.isnan(b)
        wide = [x.astype(np.float64) for x in (a, b)]
        with np.errstate(invalid="ignore"):
            near = np.abs(wide[0] - wide[1]) <= tolerance * np.abs(wide[1])
        good = both | (near if tolerance else (a.view(f"u{a.itemsize}") == b.view(f"u{b.itemsize}")))
    else:
        good = a == b
    return "" if good.all() else f"{a[~good][:4]}, torch has {b[~good][:4]} at {np.flatnonzero(~good)[:4]}"


KINDS = list(dict.fromkeys(name.split()[0] for name in CASES))


@pytest.mark.parametrize("kind", KINDS)
def test_as_torch_does(kind: str, results: Any) -> None:
    theirs, interpreted, engine, _ = results
    wrong = {
        f"{name}, {way}": said
        for name, (_, tolerance) in CASES.items() if name.split()[0] == kind
        for way, found in (("interpreted", interpreted), ("built", engine))
        if (said := differences(found[name], theirs[name], tolerance))
    }  # fmt: skip
    assert not wrong


def test_all_of_it_runs_natively(results: Any) -> None:
    assert results[3] == []


EIGHT_BITS = [
    ("float8_e4m3fn", "module"), ("float8_e5m2", "file"), ("float8_e4m3fnuz", "file"), ("float8_e5m2fnuz", "file"),
    ("float8_e8m0fnu", "file"),
]  # fmt: skip


class EightBits(nn.Module):
    """A weight and an input of 8 bits, and results in them: converted, moved, and seen as other types."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype
        drawn = torch.randn(4, 6, generator=torch.Generator().manual_seed(0)).to(dtype)
        self.weight = nn.Parameter(drawn, requires_grad=False)

    def forward(self, x: torch.Tensor, eight: torch.Tensor) -> Any:
        moved = torch.cat([eight.t(), eight.reshape(3, 2).t().contiguous().t()], 1)[1:]
        return (
            x.reshape(-1, 6) @ self.weight.float().T, eight.float() * 2, moved, moved.to(torch.bfloat16),
            x.to(self.dtype), x.to(self.dtype).float(), eight.view(torch.uint8) + 1,
            eight.view(torch.int8).view(self.dtype), x.to(self.dtype).to(torch.float8_e5m2),
            torch.arange(5).to(self.dtype),
        )  # fmt: skip


@pytest.mark.parametrize(("name", "way"), EIGHT_BITS)
def test_floats_of_8_bits(name: str, way: str, tmp_path: Path) -> None:
    """As inputs and outputs they are their bits in uint8; weights are converted once. torch 2.13 holds float8_e4m3fn in
    its range; 2.11 makes NaN of what is beyond, which is left out there.
    """
    net = EightBits(getattr(torch, name))
    x = torch.tensor(EDGES)
    if torch.tensor(1e4).to(torch.float8_e4m3fn).isnan():
        x = x[(x.abs() <= 448) | x.isnan()]
    x = x.repeat(6)
    bits = torch.arange(6, dtype=torch.uint8).reshape(2, 3) * 37
    given = (x, bits.view(net.dtype))
    if way == "module":
        exported = torch_export.export(net, given, None)
        imported = torch_export.build_network(exported.program, exported.source, "net", exported.dims)
        assert [v.dtype.name for v in imported.network.parameters] == ["float32"]
        engine = ingot.build(net, given)
        assert engine.report is not None and engine.report.source.startswith("against torch")
    else:
        torch.export.save(torch.export.export(net, given, strict=False), tmp_path / "net.pt2")
        engine = ingot.build(tmp_path / "net.pt2", report=False)
    assert engine._native.host_calls("main") == []
    for found, wanted in zip(engine.run({"x": x, "eight": bits}).values(), net(*given), strict=True):
        if "float8" in str(wanted.dtype):
            assert found.dtype == np.uint8
            assert not differences(found, wanted.view(torch.uint8), 0.0)
        else:
            assert found.dtype == as_array(wanted).dtype
            np.testing.assert_allclose(found.astype(np.float64), wanted.double().numpy(), rtol=1e-5)


def test_what_computes_with_floats_of_8_bits_is_refused() -> None:
    class Net(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x == x.flip(0)

    with pytest.raises(UnsupportedError, match="only converts and moves: convert them first"):
        ingot.build(Net(), (torch.ones(3).to(torch.float8_e5m2),), report=False)


def test_floats_into_integers_in_place_are_torchs_own_error() -> None:
    class Wrong(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.ones(3, dtype=torch.int32).add_(x)

    with pytest.raises(Exception, match="Promotion of .* in in-place ops are not possible"):
        torch_export.export(Wrong(), (torch.ones(3),), None)
