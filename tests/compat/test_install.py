"""What install registers, what it refuses, and how missing names are answered."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ingot import compat
from ingot.errors import IngotError, UnsupportedError


def test_modules_are_there() -> None:
    import tensorrt
    import tensorrt_llm
    import tensorrt_llm.functional as functional
    from tensorrt_llm import logger
    from tensorrt_llm._common import default_net, default_trtnet, precision  # noqa: F401
    from tensorrt_llm._utils import str_dtype_to_trt
    from tensorrt_llm.logger import logger as the_same
    from tensorrt_llm.module import Module, ModuleList  # noqa: F401
    from tensorrt_llm.quantization import QuantMode

    assert logger is the_same
    assert functional is tensorrt_llm.functional
    assert str_dtype_to_trt("float16") is tensorrt.float16 is tensorrt.DataType.HALF
    assert QuantMode.use_weight_only().is_int8_weight_only()


def test_missing_names_say_what_to_write() -> None:
    import tensorrt_llm

    assert not hasattr(tensorrt_llm.functional, "gemm_swiglu")
    with pytest.raises(AttributeError, match=r"test_install.py:\d+.*gemm_swiglu.*swiglu\(matmul"):
        _ = tensorrt_llm.functional.gemm_swiglu
    with pytest.raises(ImportError, match=r"test_install.py:\d+.*gemm_swiglu.*the build fuses it"):
        from tensorrt_llm.functional import gemm_swiglu  # noqa: F401
    with pytest.raises(ImportError, match=r"no 'models'.*ingot.build\(folder\)"):
        import tensorrt_llm.models.llama
    with pytest.raises(UnsupportedError, match="GenerationSession.*ingot.LLM"):
        _ = tensorrt_llm.runtime.GenerationSession


def test_calls_that_cannot_be_honoured_name_the_line() -> None:
    import tensorrt_llm
    from tensorrt_llm import Tensor

    network = tensorrt_llm.Builder().create_network()
    with pytest.raises(UnsupportedError, match=r"test_install.py:\d+: no network is being built.*net_guard"):
        Tensor(name="x", shape=(2,), dtype="float32")
    with tensorrt_llm.net_guard(network):
        x = Tensor(name="x", shape=(2, 3), dtype="float32")
        with pytest.raises(UnsupportedError, match=r"test_install.py:\d+: matmul\(input, mat2.*unexpected.*'transz'"):
            tensorrt_llm.functional.matmul(x, x, transz=True)
        with pytest.raises(UnsupportedError, match=r"test_install.py:\d+: embedding with tp_size=2.*one device"):
            tensorrt_llm.functional.embedding(x, x, tp_size=2)
        with pytest.raises(IngotError, match=r"test_install.py:\d+: view: .*6 elements"):
            tensorrt_llm.functional.view(x, (4, 2))
    builder = tensorrt_llm.Builder()
    with pytest.raises(UnsupportedError, match=r"no output was marked; call `tensor.mark_output"):
        builder.build_engine(network, builder.create_builder_config())


def test_install_refuses_beside_the_real_package(tmp_path: Path) -> None:
    (tmp_path / "tensorrt").mkdir()
    (tmp_path / "tensorrt" / "__init__.py").write_text("real = True\n")
    code = """
import sys, ingot.compat, ingot
try:
    ingot.compat.install()
except ingot.errors.UserError as e:
    print("refused", "force=True" in str(e))
import tensorrt
assert tensorrt.real
ingot.compat.install(force=True)
import tensorrt
assert not hasattr(tensorrt, "real") and tensorrt.DataType.FLOAT
ingot.compat.uninstall()
import tensorrt
print(tensorrt.real)
"""
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={"PYTHONPATH": str(tmp_path), "PATH": ""},
        cwd=Path(__file__).parents[2], check=True,
    )  # fmt: skip
    assert found.stdout.split() == ["refused", "True", "True"]


def test_installing_twice_is_once() -> None:
    before: Any = sys.modules["tensorrt_llm"]
    compat.install()
    assert sys.modules["tensorrt_llm"] is before
