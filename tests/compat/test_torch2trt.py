"""`ingot.torch2trt`: a torch module in, a module that is called like it out."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

import ingot
from ingot.errors import InputError, UnsupportedError, UserError

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


class Samples:
    """As torch2trt's data sets are: indexed, and without an end for those who iterate."""

    def __init__(self, shape: tuple[int, ...], labelled: bool = False, count: int = 12) -> None:
        self.shape, self.labelled, self.count = shape, labelled, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, i: int) -> Any:
        x = torch.randn(self.shape, generator=torch.Generator().manual_seed(i))
        return (x, i) if self.labelled else [x]


@pytest.mark.parametrize("most", [1, 8])
def test_a_data_set_calibrates(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of samples with and without a batch's dimension, and of batches: one engine of the same scales."""
    monkeypatch.setattr("ingot.compat.torch2trt.quantize", partial(ingot.quantize, always_int8=True))
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 16, 3), torch.nn.ReLU(), torch.nn.Conv2d(16, 8, 3)).eval()
    x = torch.randn(4, 3, 8, 8)
    one = Samples((3, 8, 8))
    batches = [torch.stack([one[4 * i + j][0] for j in range(4)]) for i in range(3)]
    scales = []
    for data in (one, Samples((1, 3, 8, 8)), Samples((3, 8, 8), labelled=True), iter(batches)):
        ours = ingot.torch2trt(model, [x], int8_mode=True, int8_calib_dataset=data, max_batch_size=most)
        plan = ours.engine.config["quantization"]["layers"]
        assert [layer["type"] for layer in plan] == ["int8", "int8"]
        scales.append([layer["scale"] for layer in plan])
        with torch.no_grad():
            assert (ours(x) - model(x)).norm() < 0.02 * model(x).norm()  # measured: 0.009
    assert all(found == scales[0] for found in scales)


@pytest.mark.parametrize("count", [3, 7, 8, 12])
def test_the_first_samples_fill_the_last_batch(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine for 8 samples is calibrated by all that there are, and by no smaller batch."""
    seen: list[Any] = []

    def quantize(model: Any, data: Any, *given: Any, **words: Any) -> Any:
        seen.extend(data)
        return ingot.quantize(model, seen, *given, always_int8=True, **words)

    monkeypatch.setattr("ingot.compat.torch2trt.quantize", quantize)
    data = Samples((64,), count=count)
    x = torch.randn(8, 64)
    ours = ingot.torch2trt(net(), [x], int8_mode=True, int8_calib_dataset=data)
    assert [layer["type"] for layer in ours.engine.config["quantization"]["layers"]] == ["int8", "int8"]
    wanted = [data[i % count][0] for i in range(-(-count // 8) * 8)]
    assert torch.equal(torch.cat([batch for (batch,) in seen]), torch.stack(wanted))
    assert all(len(batch) == 8 for (batch,) in seen) and ours(x).shape == (8, 8)


def test_data_that_calibrate_nothing() -> None:
    x = torch.randn(2, 64)
    with pytest.raises(UserError, match=r"test_torch2trt.py:\d+: torch2trt with int8_calib_dataset, and without int8"):
        ingot.torch2trt(net(), [x], int8_calib_dataset=Samples((64,)))
    with pytest.raises(InputError, match=r"batch 0 of data: input 'input' is \[1, 63\]"):
        ingot.torch2trt(net(), [x], int8_mode=True, int8_calib_dataset=Samples((63,)))
    for data, what in (([], "empty"), (iter(()), "empty"), (Samples((64,), count=0), "empty"), (5, "a int"),
                       (Samples, "the class Samples")):  # fmt: skip
        words = rf"test_torch2trt.py:\d+: torch2trt with int8_calib_dataset, which is {what}: give samples"
        with pytest.raises(UserError, match=words):
            ingot.torch2trt(net(), [x], int8_mode=True, int8_calib_dataset=data)


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
