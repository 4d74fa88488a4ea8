"""Random calls of the C interface, right and wrong ones mixed.

    python -m tests.native.random_calls LIBRARY ENGINE SEED COUNT

Each argument is drawn as right or wrong. A call must succeed exactly when all of its arguments are right, give the
right numbers then, and name an error otherwise. The engine is `chain` of tests/native/engines.py: y = 5 · x for
x[T, 8], T up to 64.
"""

from __future__ import annotations

import ctypes
import random
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from ingot.errors import BY_CODE

Pointer = ctypes.c_void_p
MEMBERS = 4  # of every array given: more than the engine has, so that a wrong count alone reads nothing beyond
SIZES = (-(2**63), -1, 0, 1, 2, 7, 64, 65, 2**31, 2**62, 2**63 - 1)


class Tensor(ctypes.Structure):
    """ingot_tensor."""

    _fields_ = (
        ("data", Pointer), ("dtype", ctypes.c_int), ("rank", ctypes.c_int), ("shape", ctypes.c_int64 * 8),
    )  # fmt: skip


class Options(ctypes.Structure):
    """ingot_options."""

    _fields_ = (("threads", ctypes.c_int), ("kv_blocks", ctypes.c_int64), ("kv_block_size", ctypes.c_int64))


class Caller:
    """One library, what was opened of it, and a source of arguments."""

    def __init__(self, library: str, path: str, seed: int) -> None:
        self.lib = ctypes.CDLL(library)
        self.lib.ingot_last_error.restype = self.lib.ingot_last_error_code.restype = ctypes.c_char_p
        self.lib.ingot_close.argtypes = self.lib.ingot_session_close.argtypes = (Pointer,)
        self.path = path.encode()
        self.random = random.Random(seed)
        self.engines: list[Pointer] = []
        self.sessions: list[Pointer] = []
        self.right = True  # whether all arguments of this call are, so far

    def draw(self, right: Any, *wrong: Any) -> Any:
        """Mostly the first, which is right, or else one of the others."""
        if not wrong or self.random.random() < 0.85:
            return right
        self.right = False
        return self.random.choice(wrong)

    def opened(self, pool: list[Pointer]) -> Any:
        """One of the pool, or NULL."""
        if not pool:
            self.right = False
            return None
        return self.draw(self.random.choice(pool), None)

    def entry(self) -> Any:
        return self.draw(self.random.choice((None, b"main")), b"", b"Main", b"\xff\x01", b"x" * 5000)

    def check(self, result: int, good: int) -> bool:
        """Whether the call succeeded, which it must have exactly when it was right."""
        assert result == (good if self.right else -1), (result, self.right, self.lib.ingot_last_error())
        if result < 0:
            assert self.lib.ingot_last_error_code().decode() in BY_CODE
            assert len(self.lib.ingot_last_error()) > 5
        return result >= 0

    def open(self) -> None:
        handle = Pointer(1)
        path = self.draw(self.path, None, b"", b"/", self.path + b"x", b"\xff" * 5000)
        out = self.draw(ctypes.byref(handle), None)
        if self.check(self.lib.ingot_open(path, out), 0):
            self.engines.append(handle)
        else:
            assert out is None or handle.value is None

    def declare(self) -> None:
        found = Pointer(1)
        call = self.random.choice((self.lib.ingot_symbols, self.lib.ingot_inputs, self.lib.ingot_outputs))
        out = self.draw(ctypes.byref(found), None)
        good = self.check(call(self.opened(self.engines), self.entry(), out), 1)
        assert out is None or bool(found.value) == good

    def shapes(self) -> None:
        rows = self.draw(self.random.randint(0, 64), -1, 65, 2**63 - 1, -(2**63))
        values, inputs = (ctypes.c_int64 * MEMBERS)(rows), (Tensor * MEMBERS)()
        result = self.lib.ingot_input_shapes(
            self.opened(self.engines), self.entry(),
            self.draw(values, None), self.draw(1, 0, 2, -1, -(2**31)),
            self.draw(inputs, None), self.draw(1, 0, 2, -1, 2**31 - 1),
        )  # fmt: skip
        if self.check(result, 0):
            assert (inputs[0].rank, inputs[0].shape[:2]) == (2, [rows, 8])

    def create(self) -> None:
        handle = Pointer(1)
        options = Options(
            self.draw(self.random.randint(0, 3), -1, 1025, 2**31 - 1, -(2**31)),
            self.draw(self.random.choice((0, 5, 2**63 - 1)), -1, -(2**63)),
            self.draw(self.random.choice((0, 16, 17)), -16, -(2**63)),
        )
        out = self.draw(ctypes.byref(handle), None)
        given = self.lib.ingot_session_create(self.opened(self.engines), self.entry(), ctypes.byref(options), out)
        if self.check(given, 0):
            self.sessions.append(handle)
        else:
            assert out is None or handle.value is None

    def run(self) -> None:
        rows = self.random.randint(0, 64)
        x = np.arange(rows * 8 + 1, dtype=np.float32)
        inputs, outputs = (Tensor * MEMBERS)(), (Tensor * MEMBERS)()
        inputs[0].data = x.ctypes.data if rows == 0 else self.draw(x.ctypes.data, None)
        inputs[0].dtype = self.draw(0, 1, 6, 12, 13, -1, 2**31 - 1, -(2**31))
        inputs[0].rank = self.draw(2, 0, 1, 3, 8, 9, -1, 2**31 - 1, -(2**31))
        inputs[0].shape[0] = self.draw(rows, -1, -(2**63), 65, 2**62, 2**63 - 1)
        inputs[0].shape[1] = self.draw(8, *(size for size in SIZES if size != 8))
        result = self.lib.ingot_run(
            self.opened(self.sessions),
            self.draw(inputs, None), self.draw(1, 0, 2, -1, 2**31 - 1),
            self.draw(outputs, None), self.draw(1, 0, 2, -1, -(2**31)),
        )  # fmt: skip
        if self.check(result, 0):
            assert (outputs[0].dtype, outputs[0].rank, outputs[0].shape[:2]) == (0, 2, [rows, 8])
            if rows:
                y = np.ctypeslib.as_array(ctypes.cast(outputs[0].data, ctypes.POINTER(ctypes.c_float)), (rows * 8,))
                np.testing.assert_array_equal(y, 5 * x[:-1])
        else:
            assert outputs[0].data is None

    def close(self) -> None:
        pool, close = self.random.choice(
            ((self.engines, self.lib.ingot_close), (self.sessions, self.lib.ingot_session_close))
        )
        if len(pool) > 3:  # in any order: sessions outlive their engines
            close(pool.pop(self.random.randrange(len(pool))))
        close(None)

    def ask(self) -> None:
        self.lib.ingot_dtype_size(self.random.choice((0, 12, 13, -1, 2**31 - 1)))
        assert self.lib.ingot_last_error() is not None


def main(library: str, path: str, seed: int, count: int) -> None:
    caller = Caller(library, path, seed)
    calls: list[Callable[[], None]] = [
        caller.open, caller.declare, caller.shapes, caller.create, caller.run, caller.run, caller.close, caller.ask,
    ]  # fmt: skip
    right = 0
    for _ in range(count):
        caller.right = True
        caller.random.choice(calls)()
        right += caller.right
    assert 0.2 * count < right < 0.8 * count, right  # both kinds were tried
    for session in caller.sessions:
        caller.lib.ingot_session_close(session)
    for engine in caller.engines:
        caller.lib.ingot_close(engine)
    print(f"{count} calls, {right} of them right")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
