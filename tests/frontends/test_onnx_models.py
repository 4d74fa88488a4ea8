"""Trained ONNX models: the pins, and the comparison with ONNX Runtime where they have been fetched."""

from __future__ import annotations

import pytest

from ingot.errors import UserError

pytest.importorskip("onnx")

from tools import onnx_models

missing = onnx_models.missing()


def test_other_bytes_are_refused() -> None:
    pinned = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824"
    assert onnx_models.checked(b"hello", pinned, "x.whl") == b"hello"
    with pytest.raises(UserError, match="x.whl has the SHA-256 .*, pinned is 2cf24dba"):
        onnx_models.checked(b"hellO", pinned, "x.whl")


@pytest.mark.skipif(bool(missing), reason=f"not fetched: {', '.join(missing)} (python -m tools.onnx_models)")
@pytest.mark.parametrize("name", ["ocr-direction", "silero-vad"])
def test_a_model_agrees_with_onnx_runtime(name: str) -> None:
    pytest.importorskip("onnxruntime")
    (model,) = [m for m in onnx_models.MODELS if m.name == name]
    for sizes in model.sizes:
        found = onnx_models.compare(model, sizes)
        assert found.good, found
