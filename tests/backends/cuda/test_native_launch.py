"""Launches through the driver's own function: what it is handed, by a function that stands in for it."""

from __future__ import annotations

import ctypes
import struct
from types import SimpleNamespace
from typing import Any

import pytest

from tests.backends.cuda.interpreted import WITHOUT

pytest.importorskip("triton", reason=WITHOUT)
torch: Any = pytest.importorskip("torch")
native_launch: Any = pytest.importorskip("ingot.backends.cuda.native_launch")

ENTRY = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
SIGNATURE = {"x": "*bf16", "gain": "constexpr", "n": "i32", "eps": "fp32", "far": "i64", "flag": "i1", "out": "*fp32",
             "BN": "constexpr", "count": "i32"}  # fmt: skip


def metadata(**more: Any) -> Any:
    """What Triton says of a kernel, as far as launches read it."""
    known = {"num_warps": 4, "shared": 1024, "launch_pdl": False, "num_ctas": 1, "global_scratch_size": 0,
             "profile_scratch_size": 0, "launch_cooperative_grid": False}  # fmt: skip
    return SimpleNamespace(**(known | more))


class Driver:
    """Stands in for cuLaunchKernelEx: `seen` has what each launch handed over, by the layout of CUlaunchConfig."""

    def __init__(self, parameters: str, code: int = 0) -> None:
        self.seen: list[dict[str, Any]] = []
        self._parameters = parameters
        self._code = code
        self.entry = ENTRY(self._launch)

    def _launch(self, config: int, function: int, parameters: int, extra: int | None) -> int:
        *sizes, stream, attributes, count = struct.unpack("7I4xQQI", ctypes.string_at(config, 52))
        pointers = (ctypes.c_void_p * len(self._parameters)).from_address(parameters)
        found = [
            struct.unpack(kind, ctypes.string_at(place, struct.calcsize(kind)))[0]
            for kind, place in zip(self._parameters, pointers, strict=True)
        ]
        said = struct.unpack("I4xi", ctypes.string_at(attributes, 12)) if count else ()
        assert all(place % struct.calcsize(kind) == 0 for kind, place in zip(self._parameters, pointers, strict=True))
        self.seen.append({"grid": sizes[:3], "block": sizes[3:6], "shared": sizes[6], "stream": stream, "said": said,
                          "function": function, "parameters": found, "extra": extra})  # fmt: skip
        return self._code


def launched(driver: Driver, launch: Any, grid: tuple[int, ...], *arguments: Any, hooks: Any = (None, None)) -> None:
    launch(*grid, 77, 99, (4, 1, 1024), "said", *hooks, *arguments)


def test_what_the_driver_is_handed() -> None:
    """Pointers and numbers in the order of the kernel, without what is compiled in, and two pointers that Triton's
    kernels take beside them."""
    driver = Driver("QifqbQiQQ")
    launch = native_launch.Launch(SIGNATURE, metadata(launch_pdl=True), driver.entry)
    x, out = torch.zeros(8), torch.zeros(4)
    for turn, number in enumerate((5, -6)):
        launched(driver, launch, (3, 2, 1), x, None, number, 0.5, 2**40, True, out, 64, 7 + turn)
        seen = driver.seen[turn]
        assert seen["grid"] == [3, 2, 1] and seen["block"] == [128, 1, 1] and seen["shared"] == 1024
        assert seen["stream"] == 77 and seen["function"] == 99 and seen["extra"] is None
        assert seen["said"] == (6, 1)  # programmatic stream serialization
        assert seen["parameters"] == [x.data_ptr(), number, 0.5, 2**40, 1, out.data_ptr(), 7 + turn, 0, 0]


def test_a_launch_within_a_launch() -> None:
    """Of the same kernel, by a signal handler: each goes out with its own parameters and grid."""
    driver, seen = Driver("QiQQ"), []
    signature = {"x": "*fp32", "n": "i32"}
    launch = native_launch.Launch(signature, metadata(), driver.entry)
    x = torch.zeros(4)

    class Interrupted:
        """A number whose reading is interrupted, where the parameters are packed."""

        def __index__(self) -> int:
            if not seen:
                seen.append(1)
                launched(driver, launch, (9, 9, 9), torch.zeros(0), 5)
            return 7

    for _ in range(2):
        launched(driver, launch, (1, 2, 3), x, Interrupted())
    assert [one["parameters"][:2] for one in driver.seen] == [[0, 5], [x.data_ptr(), 7], [x.data_ptr(), 7]]
    assert [one["grid"] for one in driver.seen] == [[9, 9, 9], [1, 2, 3], [1, 2, 3]]


def test_one_that_is_not_dependent() -> None:
    driver = Driver("QQ")
    launched(driver, native_launch.Launch({"BN": "constexpr"}, metadata(), driver.entry), (1, 1, 1), 8)
    assert driver.seen[0]["said"] == () and driver.seen[0]["parameters"] == [0, 0]


def test_an_empty_grid_is_not_launched() -> None:
    driver = Driver("QQ")
    launched(driver, native_launch.Launch({}, metadata(), driver.entry), (0, 1, 1))
    assert not driver.seen


def test_hooks_are_told() -> None:
    driver, told = Driver("QQ"), []
    hooks = (lambda said: told.append((said, len(driver.seen))), lambda said: told.append((said, len(driver.seen))))
    launched(driver, native_launch.Launch({}, metadata(), driver.entry), (1, 1, 1), hooks=hooks)
    assert told == [("said", 0), ("said", 1)]


def test_what_the_driver_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    """As Triton says it, for that is how a lost device and memory that is short are known."""
    monkeypatch.setattr(native_launch, "_said", {700: "an illegal memory access was encountered"}.__getitem__)
    driver = Driver("QQ", 700)
    with pytest.raises(RuntimeError, match=r"Triton Error \[CUDA\]: an illegal memory access"):
        launched(driver, native_launch.Launch({}, metadata(), driver.entry), (1, 1, 1))


@pytest.mark.parametrize(
    ("module", "signature", "more", "wanted"),
    [
        ("ingot.backends.cuda.row_kernels", SIGNATURE, {}, True),
        ("somebody.kernels", SIGNATURE, {}, False),
        ("ingot.backends.cuda.row_kernels", {"x": "tensordesc<fp16[64, 64]>"}, {}, False),
        ("ingot.backends.cuda.row_kernels", {"x": ("*fp16", "i32")}, {}, False),
        ("ingot.backends.cuda.row_kernels", SIGNATURE, {"global_scratch_size": 64}, False),
        ("ingot.backends.cuda.row_kernels", SIGNATURE, {"num_ctas": 2}, False),
    ],
)
def test_which_kernels(module: str, signature: Any, more: dict[str, Any], wanted: bool) -> None:
    source = SimpleNamespace(fn=SimpleNamespace(module=module), signature=signature)
    assert native_launch.fits(source, metadata(**more)) is wanted
