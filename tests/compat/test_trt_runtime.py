"""TensorRT's Runtime, engine and execution context: names, sizes, runs by address and by bindings."""

from __future__ import annotations

from typing import Any

import pytest

from ingot.errors import InputError, UnsupportedError

torch = pytest.importorskip("torch")


def engine(dynamic: bool = True) -> Any:
    """x + y and x · 2 of [N, 4], N from 1 to 3."""
    import tensorrt as trt

    builder = trt.Builder(trt.Logger())
    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    config = builder.create_builder_config()
    size = -1 if dynamic else 2
    x, y = network.add_input("x", trt.float32, (size, 4)), network.add_input("y", trt.float32, (size, 4))
    for tensor in (x, y) if dynamic else ():
        tensor.set_dimension_name(0, "rows")
        assert tensor.get_dimension_name(0) == "rows" and tensor.get_dimension_name(1) == ""
    profile = builder.create_optimization_profile()
    for name in ("x", "y"):
        profile.set_shape(name, *([(1, 4), (2, 4), (3, 4)] if dynamic else [(2, 4)] * 3))
    config.add_optimization_profile(profile)
    for name, left, right in (("sum", x, y), ("double", x, x)):
        layer = network.add_elementwise(left, right, trt.ElementWiseOperation.SUM)
        layer.get_output(0).name = name
        network.mark_output(layer.get_output(0))
    data = builder.build_serialized_network(network, config)
    return trt.Runtime(trt.Logger()).deserialize_cuda_engine(data)


def test_what_an_engine_says_of_its_tensors() -> None:
    import tensorrt as trt

    found = engine()
    names = [found.get_tensor_name(i) for i in range(found.num_io_tensors)]
    assert names == ["x", "y", "sum", "double"] == list(found)
    assert [found.get_tensor_mode(n) for n in names] == [trt.TensorIOMode.INPUT] * 2 + [trt.TensorIOMode.OUTPUT] * 2
    assert tuple(found.get_tensor_shape("x")) == (-1, 4) and found.get_tensor_dtype("sum") is trt.float32
    assert [tuple(s) for s in found.get_tensor_profile_shape("x", 0)][::2] == [(1, 4), (3, 4)]
    assert (found.get_binding_index("sum"), found["sum"], found[2], len(found)) == (2, 2, "sum", 4)
    assert found.binding_is_input(0) and not found.binding_is_input("double")
    again = trt.Runtime(trt.Logger()).deserialize_cuda_engine(found.serialize())
    assert again.num_io_tensors == 4 and found.num_layers >= 1


def test_a_run_by_addresses() -> None:
    found = engine()
    context = found.create_execution_context()
    assert context.infer_shapes() == ["x", "y"] and tuple(context.get_tensor_shape("sum")) == (-1, 4)
    for rows in (2, 3):
        x, y = torch.randn(rows, 4), torch.randn(rows, 4)
        for name, tensor in (("x", x), ("y", y)):
            assert context.set_input_shape(name, tensor.shape)
        assert context.all_binding_shapes_specified and context.infer_shapes() == []
        outputs = {name: torch.empty(tuple(context.get_tensor_shape(name))) for name in ("sum", "double")}
        for name, tensor in {"x": x, "y": y, **outputs}.items():
            context.set_tensor_address(name, tensor)
        assert context.execute_async_v3(0)
        assert torch.equal(outputs["sum"], x + y) and torch.equal(outputs["double"], x * 2)


def test_a_run_by_bindings() -> None:
    context = engine(dynamic=False).create_execution_context()
    x, y = torch.randn(2, 4), torch.randn(2, 4)
    outputs = [torch.empty(2, 4), torch.empty(2, 4)]
    assert context.execute_v2([x, y, *outputs])
    assert torch.equal(outputs[0], x + y) and torch.equal(outputs[1], x * 2)
    assert context.execute_async_v2([y, y, *outputs], 0) and torch.equal(outputs[0], y * 2)


def test_refusals() -> None:
    found = engine()
    context = found.create_execution_context()
    x = torch.randn(2, 4)
    with pytest.raises(UnsupportedError, match=r"test_trt_runtime.py:\d+: .*a pointer for 'x': give the tensor itself"):
        context.set_tensor_address("x", x.data_ptr())
    context.set_tensor_address("x", x)
    with pytest.raises(InputError, match="no tensor for y, sum, double; call set_tensor_address"):
        context.execute_async_v3(0)
    with pytest.raises(InputError, match="'z' is no input or output; they are x, y, sum, double"):
        context.set_input_shape("z", (2, 4))
    with pytest.raises(InputError, match="sum is an output"):
        context.set_input_shape("sum", (2, 4))
    with pytest.raises(InputError, match=r"must be"):
        context.set_input_shape("x", (2, 4, 1))
    with pytest.raises(InputError, match="3 bindings for 4"):
        context.execute_v2([x, x, x])
    with pytest.raises(UnsupportedError, match="profile 1"):
        context.set_optimization_profile_async(1, 0)
    context.set_input_shape("x", (9, 4))
    context.set_input_shape("y", (9, 4))
    with pytest.raises(InputError, match=r"= 9 is outside of its profile, 1 … 3"):
        context.infer_shapes()
    for name in ("y", "sum", "double"):
        context.set_tensor_address(name, torch.empty(2, 4))
    with pytest.raises(InputError, match=r"[xy] was set to \[9, 4\], and its tensor is \[2, 4\]"):
        context.execute_async_v3(0)


def test_a_session_shows_its_engine() -> None:
    import tensorrt_llm

    session = tensorrt_llm.runtime.Session.from_engine(engine())
    assert session.engine.num_io_tensors == 4
    x = torch.randn(2, 4)
    found = session._debug_run({"x": x, "y": x})
    assert torch.equal(found["sum"], x * 2) and tuple(session.context.get_tensor_shape("sum")) == (2, 4)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="tensors of a GPU")
@pytest.mark.parametrize("handle", [False, True])
def test_a_run_on_a_gpu(handle: bool) -> None:
    """Inputs and outputs lie there, and the run is in the order of a stream: torch's, or its handle."""
    context = engine().create_execution_context()
    stream = torch.cuda.Stream()
    for rows in (2, 3, 3, 3):  # call by call, captured, replayed
        x, y = (torch.randn(rows, 4, device="cuda") for _ in range(2))
        out = {name: torch.full((rows, 4), float("nan"), device="cuda") for name in ("sum", "double")}
        given = {"x": x, "y": y, **out}
        for name, tensor in given.items():
            context.set_tensor_address(name, tensor)
            if name in "xy":
                context.set_input_shape(name, tensor.shape)
        stream.wait_stream(torch.cuda.current_stream())
        assert context.execute_async_v3(stream.cuda_stream if handle else stream)
        stream.synchronize()
        assert torch.equal(given["sum"], x + y) and torch.equal(given["double"], x + x)
        assert tuple(context.get_tensor_shape("sum")) == (rows, 4)
    context.set_tensor_address("sum", torch.empty(3, 4))
    with pytest.raises(InputError, match="sum lies on a GPU"):
        context.execute_async_v3(None)


class Result:
    """A result on a GPU, as far as writing looks at it."""

    is_cuda, dtype, shape = True, "float32", (2, 4)


def test_results_of_a_gpu_are_not_written_to_the_host() -> None:
    context = engine(dynamic=False).create_execution_context()
    with pytest.raises(InputError, match="sum lies on a GPU, as the inputs do"):
        context._written({}, {"sum": Result()}, {"sum": torch.empty(2, 4)})
