"""`ingot.torch2trt`: a torch module in, a module that is called like it out."""

from __future__ import annotations

import re
from typing import Any

import pytest

import ingot
from ingot.errors import UnsupportedError

torch = pytest.importorskip("torch")


def net() -> Any:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8)).eval()


@pytest.mark.parametrize(
    ("words", "tolerance"),
    [({}, 1e-5), ({"fp16_mode": True}, 2e-3), ({"int8_mode": True}, 2e-2)],  # measured: 2e-7, 3e-4, 3e-3
    ids=["float32", "float16", "int8"],
)
def test_called_like_the_model(words: dict[str, bool], tolerance: float) -> None:
    model, x = net(), torch.randn(3, 64)
    ours = ingot.torch2trt(model, [x], max_batch_size=4, max_workspace_size=1 << 25, **words)
    assert isinstance(ours, torch.nn.Module)
    for rows in (1, 3, 4):
        x = torch.randn(rows, 64)
        with torch.no_grad():
            torch.testing.assert_close(ours(x), model(x), rtol=tolerance, atol=tolerance)


def test_its_state_dict_holds_the_engine() -> None:
    from ingot.compat.torch2trt import TRTModule

    x = torch.randn(2, 64)
    ours = ingot.torch2trt(net(), [x])
    other = TRTModule()
    with pytest.raises(UnsupportedError, match="call load_state_dict first"):
        other(x)
    other.load_state_dict(ours.state_dict())
    assert torch.equal(other(x), ours(x))


def test_data_for_calibration_are_met_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("WARNING")
    x = torch.randn(2, 64)
    ingot.torch2trt(net(), [x], int8_mode=True, int8_calib_dataset=None)
    assert not caplog.messages
    ingot.torch2trt(net(), [x], int8_mode=True, int8_calib_dataset=[[x]])
    (said,) = caplog.messages
    assert re.search(r"test_torch2trt.py:\d+: torch2trt reads no int8_calib_dataset.*ingot\.quantize\(", said)


def test_several_results_and_refusals() -> None:
    class Two(torch.nn.Module):  # type: ignore[name-defined, misc]
        def forward(self, x: Any, y: Any) -> Any:
            return x + y, x * y

    x, y = torch.randn(2, 3), torch.randn(2, 3)
    ours = ingot.torch2trt(Two(), [x, y])
    for found, wanted in zip(ours(x, y), (x + y, x * y), strict=True):
        assert torch.equal(found, wanted)
    with pytest.raises(UnsupportedError, match=r"test_torch2trt.py:\d+: torch2trt with min_shapes.*dynamic="):
        ingot.torch2trt(Two(), [x, y], min_shapes=[(1, 3)])
