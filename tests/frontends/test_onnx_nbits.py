"""MatMulNBits: weights of 4 bits stay integers in an engine, and products take them as dequantised by NumPy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402

import ingot  # noqa: E402
from ingot import dtypes  # noqa: E402
from ingot.builder.network import build_network  # noqa: E402
from ingot.engine.session import Engine  # noqa: E402
from ingot.errors import UnsupportedError  # noqa: E402
from ingot.ir import F, Network, Spec  # noqa: E402

Array = np.ndarray[Any, Any]


class Weight:
    """A weight [outputs, inputs] of 4 bits as ONNX has it, and as its integers, scales and zero points."""

    def __init__(self, outputs: int, inputs: int, size: int, zeros: bool) -> None:
        rng = np.random.default_rng(size + outputs)
        groups = -(-inputs // size)
        self.shape, self.size = (outputs, inputs), size
        self.packed = rng.integers(0, 256, (outputs, groups, size // 2), np.uint8)
        self.scales = rng.uniform(0.01, 0.1, (outputs, groups)).astype(np.float32)
        self.packed_zeros = rng.integers(0, 256, (outputs, -(-groups // 2)), np.uint8) if zeros else None
        self.whole = self._numbers(self.packed).reshape(outputs, -1)[:, :inputs] - 8
        packed_zeros = np.full((outputs, groups), 0x88, np.uint8) if self.packed_zeros is None else self.packed_zeros
        self.zeros = self._numbers(packed_zeros).reshape(outputs, -1)[:, :groups] - 8

    @staticmethod
    def _numbers(packed: Array) -> Array:
        return np.stack([packed & 15, packed >> 4], -1).astype(np.int8)

    @property
    def floats(self) -> Array:
        scale, zero = (v.repeat(self.size, 1)[:, : self.shape[1]] for v in (self.scales, self.zeros))
        return np.asarray((self.whole.astype(np.float32) - zero) * scale)

    def engine(self, path: Path, precision: str | None = None, bias: Array | None = None) -> Engine:
        tensors = {"w": self.packed, "s": self.scales, "z": self.packed_zeros, "b": bias}
        names = ["x", *(n if n in "ws" or tensors[n] is not None else "" for n in ("w", "s", "z")), "", "b"]
        node = helper.make_node(
            "MatMulNBits", names if bias is not None else names[:4], ["y"], domain="com.microsoft",
            N=self.shape[0], K=self.shape[1], bits=4, block_size=self.size,
        )  # fmt: skip
        x, y = (
            helper.make_tensor_value_info(n, TensorProto.FLOAT, ["M", k])
            for n, k in zip("xy", self.shape[::-1], strict=True)
        )
        stored = [numpy_helper.from_array(array, name) for name, array in tensors.items() if array is not None]
        versions = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
        model = helper.make_model(
            helper.make_graph([node], "g", [x], [y], stored), opset_imports=versions, ir_version=9
        )
        onnx.save(model, path / "net.onnx")
        return ingot.build(path / "net.onnx", precision=precision, report=False)

    def own(self) -> Engine:
        """The same of a network that reads int4."""
        net = Network("net")
        values = {"q": self.whole.astype(dtypes.int4.numpy), "s": self.scales}
        if self.packed_zeros is not None:
            values["z"] = self.zeros
        operands = [net.parameter(name, Spec.of(array)) for name, array in values.items()]
        weight = F.dequantize(*operands, dtype=dtypes.float32, group=self.size)
        net.outputs["y"] = F.matmul(net.input("x", Spec(("M", self.shape[1]), "float32")), weight, transpose_b=True)
        return build_network(net, values)


def calls(engine: Engine) -> list[str]:
    return [call.get("kernel", "host") for call in engine.header["programs"]["cpu"]["entries"]["main"]["calls"]]


@pytest.mark.parametrize("scale", [float("nan"), float("inf")])
@pytest.mark.parametrize("outputs", [16, 70_000])
def test_scales_that_are_none(tmp_path: Path, outputs: int, scale: float) -> None:
    """The last of a few, or of more than are looked at together."""
    weight = Weight(outputs, 128, 32, False)
    weight.scales[-1, -1] = scale
    with pytest.raises(UnsupportedError, match=f"a scale must be finite, and is {scale} in scales"):
        weight.engine(tmp_path)


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize(("outputs", "size"), [(7, 32), (120, 64), (33, 128)])
def test_blocks_of_the_kernels_stay_integers(tmp_path: Path, outputs: int, size: int, zeros: bool) -> None:
    """Small weights and large ones: the same bits as a network of int4 with these numbers, and half a byte each."""
    weight = Weight(outputs, 384, size, zeros)
    engine = weight.engine(tmp_path)
    x = np.random.default_rng(1).standard_normal((9, 384)).astype(np.float32)
    found = engine.run({"x": x})["y"]
    assert found.tobytes() == weight.own().run({"x": x})["y"].tobytes()
    np.testing.assert_allclose(found, x @ weight.floats.T, rtol=0, atol=2e-5 * np.abs(found).max())
    assert calls(engine) == (["reduce", "matmul_packed", "matmul_packed"] if zeros else ["matmul_packed"])
    assert max(engine.tensor(name).nbytes for name in engine.header["weights"]) <= (outputs + 31) // 32 * 32 * 384 / 2
    narrow = weight.engine(tmp_path, "bfloat16", np.full(outputs, 3, np.float32))
    assert np.dtype(np.uint8) in {narrow.tensor(name).dtype for name in narrow.header["weights"]}, "two in a byte"
    again = narrow.run({"x": x})["y"]
    np.testing.assert_allclose(again, x @ weight.floats.T + 3, rtol=0, atol=0.02 * np.abs(found).max())


@pytest.mark.parametrize(("inputs", "size", "zeros"), [(384, 16, True), (384, 256, False), (100, 32, True)])
def test_other_blocks_become_floats_once(tmp_path: Path, inputs: int, size: int, zeros: bool) -> None:
    """Sizes without a kernel, and inputs that the blocks do not divide: computed when the engine is built."""
    weight = Weight(1200, inputs, size, zeros)
    engine = weight.engine(tmp_path)
    x = np.random.default_rng(1).standard_normal((9, inputs)).astype(np.float32)
    found = engine.run({"x": x})["y"]
    np.testing.assert_allclose(found, x @ weight.floats.T, rtol=0, atol=2e-5 * np.abs(found).max())
    assert calls(engine) == ["matmul_packed"]


def test_an_engine_file_keeps_the_integers(tmp_path: Path) -> None:
    engine = Weight(24, 256, 32, True).engine(tmp_path)
    engine.save(tmp_path / "net.ingot")
    x = {"x": np.ones((2, 256), np.float32)}
    assert ingot.load(tmp_path / "net.ingot").run(x)["y"].tobytes() == engine.run(x)["y"].tobytes()
