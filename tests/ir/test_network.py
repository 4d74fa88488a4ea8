"""Building networks: what a call of an op means, how values behave, and changing a network."""
from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingot import dims, dtypes, ops
from ingot.dims import Dim
from ingot.errors import InputError, OpError
from ingot.ir import Eager, F, Network, Spec, StateSpec, Value, interpret, verify
from ingot.ir.op import scalar_array


@pytest.fixture
def net() -> Network:
    return Network()


def f32(network: Network, name: str, *shape: Any) -> Value:
    return network.input(name, Spec(shape, "f32"))


# ------------------------------------------------------------------------------------------------ methods and numbers
def test_reductions_as_methods_drop_the_dimension_unless_asked() -> None:
    array = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)
    for name in ("sum", "mean", "max", "min", "argmax"):
        for words in ({}, {"keepdim": True}):
            net = Network()
            net.outputs["y"] = getattr(net.input("x", Spec((3, 4), "f32")), name)(1, **words)
            want = getattr(array, name)(1, keepdims=bool(words))
            np.testing.assert_allclose(interpret(net, {"x": array})["y"], want, rtol=1e-6)
            assert net.outputs["y"].shape == want.shape


@pytest.mark.parametrize("dtype", ["uint8", "int8", "uint32", "int32"])
def test_integers_beside_a_tensor_are_held_to_its_range(dtype: str) -> None:
    info = np.iinfo(dtype)
    for number in (int(info.min), int(info.max), 1):
        array = scalar_array(number, dtypes.get(dtype))
        assert array.dtype == dtype and array.shape == () and array == number
    for number in (int(info.min) - 1, int(info.max) + 1):
        with pytest.raises(OpError, match=f"{number} is not a {dtype}"):
            scalar_array(number, dtypes.get(dtype))


def test_nothing_splits_into_one_piece_of_nothing(net: Network) -> None:
    assert [piece.shape for piece in f32(net, "x", 0, 3).split(2, 0)] == [(0, 3)]
    y = f32(net, "y", 5, 3)
    assert [piece.shape for piece in y.split(2, 0)] == [(2, 3), (2, 3), (1, 3)]
    assert [piece.shape for piece in y.split(1, 1)] == [(5, 1)] * 3
    with pytest.raises(OpError, match="pieces of one positive size"):
        y.split(0)


def test_only_small_integers_are_followed_as_sizes() -> None:
    """Elements of floats are no sizes, whatever their values."""
    net = Network()
    whole = net.constant(np.array([2, 3], np.int64)) + 1
    floats = net.constant(np.array([2.0, 3.0], np.float32)) + 1.0
    assert whole.known is not None and list(whole.known) == [3, 4] and floats.known is None


# ------------------------------------------------------------------------------------------------ errors read well
def test_an_error_names_op_operands_place_rule_and_line(net: Network) -> None:
    x, w = f32(net, "x", "T", 8), net.parameter("w", Spec((4,), "f32"))
    with net.scope("model"), net.scope("layers.3.norm"), pytest.raises(OpError) as raised:
        ops.rms_norm(x, w)
    assert str(raised.value).startswith(
        "rms_norm(x=f32[T, 8], weight=f32[4]) in model.layers.3.norm: weight must have shape (8,), "
        "the last dimension of x (test_network.py:")
    assert raised.value.code == "op"
    assert net.nodes == []


def test_operands_by_name(net: Network) -> None:
    a, b = f32(net, "a", "T", 8), f32(net, "b", "T", 8)
    for made in (ops.sub(a, b), ops.sub(a, b=b), ops.sub(b=b, a=a)):
        assert made.node.inputs == (a, b)


@pytest.mark.parametrize(("call", "message"), [
    (lambda x: ops.softmax(x, axis="last"), r"softmax: attribute axis must be an int, not 'last' \(str\)"),
    (lambda x: ops.softmax(x, axis=True), "attribute axis must be an int, not True"),
    (lambda x: ops.softmax(x, 1, 2), "got 3 positional arguments"),
    (lambda x: ops.softmax(x, axes=1), r"softmax\(x, axis=-1\) has no axes"),
    (lambda x: ops.softmax(), "x must be given"),
    (lambda x: ops.softmax(x, x=x), "x is given twice"),
    (lambda x: ops.softmax(x, 1, axis=1), "axis is given twice"),
    (lambda x: ops.cast(x), "dtype must be given"),
    (lambda x: ops.add(x, None), "b must be given"),
    (lambda x: ops.add(x, "1"), "operand b is a str; operands are tensors of a network, NumPy arrays, or Python n"),
    (lambda x: ops.add(x, np.ones(8)), "a is float32 and b is float64"),
    (lambda x: ops.cast(x, "i32") + 0.5, "0.5 is not a int32, the dtype of the tensor beside it"),
    (lambda x: ops.cast(x, "i8") + 300, "300 is not a int8"),
    (lambda x: (x > 0) & 1, "1 is not a bool"),
    (lambda x: ops.where(x > 0, 1, 2), "takes its dtype from a tensor beside it, and there is none"),
    (lambda x: ops.where(True, x, 2), "condition must be bool"),
    (lambda x: x if x else 0, "truth of %x is known only at run time"),
    (lambda x: len(x), "use .size"),
    (lambda x: list(x), "cannot be iterated"),
    (lambda x: np.sin(np.asarray(x)), "without numbers"),
    (lambda x: x[0, 0, 0], "has 2 dimensions, the index names 3"),
    (lambda x: x[..., ...], "one ellipsis"),
    (lambda x: x[::0], "step of a slice must be an int other than 0"),
    (lambda x: x[::-1], "negative step needs a dimension that is known"),
    (lambda x: x[x > 0], "use ops.take"),
    (lambda x: x[:, 9], "reaches 9, and x has 8"),
    (lambda x: x.size(5), "dim 5 is out of range for a tensor of rank 2"),
    (lambda x: x.squeeze(1), "dimension 1 has size 8, not 1"),
    (lambda x: x.split(3), "need a dimension that is known|list the sizes"),
    (lambda x: x.split([3, 3], 1), "do not add up to 8"),
])
def test_misuse_is_refused_with_what_to_do(net: Network, call: Any, message: str) -> None:
    with pytest.raises(OpError, match=message):
        call(f32(net, "x", "T", 8))


# ------------------------------------------------------------------------------------------------ finding the network
def test_numbers_and_arrays_become_constants(net: Network) -> None:
    x = f32(net, "x", "T", 3)
    y = (x + 1) * 1 + np.ones(3, np.float32) + (1 - x)
    assert [c.spec for c in net.constants] == [Spec((), "f32"), Spec((3,), "f32")], "equal numbers share a constant"
    assert y.spec == x.spec
    z = np.ones(3, np.float32) - x
    assert isinstance(z, Value), "an array on the left leaves the operator to the value"


def test_arrays_alone_compute_at_once() -> None:
    got = ops.softmax(np.zeros((2, 4), np.float32))
    np.testing.assert_array_equal(got, np.full((2, 4), 0.25, np.float32))
    assert ops.add(np.ones(2, np.int8), 100).dtype == np.int8
    np.testing.assert_array_equal(ops.iota(3), [0, 1, 2])
    with pytest.raises(OpError, match=r"add\(a=f32\[2\], b=f32\[3\]\) in eager mode: .*do not broadcast"):
        ops.add(np.ones(2, np.float32), np.ones(3, np.float32))


def test_an_op_without_operands_joins_its_first_consumer(net: Network) -> None:
    x = f32(net, "x", "T", 3)
    row = ops.iota("T").cast("f32").unsqueeze(1)
    assert row.network is not net
    net.output("y", x + row)
    net.output("z", ops.iota("T") * 2)
    net.output("many", ops.iota(10**12, dtype="int64"))  # too many to compute now, and nothing asks for it
    verify(net)
    del net.outputs["many"]
    net.remove_dead()
    out = interpret(net, {"x": np.zeros((2, 3), np.float32)})
    np.testing.assert_array_equal(out["y"], [[0, 0, 0], [1, 1, 1]])
    np.testing.assert_array_equal(out["z"], [0, 2])


def test_two_networks_do_not_mix(net: Network) -> None:
    other = Network("other")
    with pytest.raises(OpError, match="operands belong to two networks, main and other"):
        f32(net, "x", 3) + f32(other, "y", 3)
    with pytest.raises(OpError, match="belongs to network other"):
        net.output("y", f32(other, "z", 3))
    with pytest.raises(OpError, match="already has a value named 'x'"):
        f32(net, "x", 3)


def test_a_branch_cannot_reach_out(net: Network) -> None:
    x = f32(net, "x", 3)
    with pytest.raises(OpError, match="inside a branch or loop body, pass outer tensors as operands"):
        ops.control.branch(lambda y: y + x, x)


def test_dims_of_one_name_merge(net: Network) -> None:
    f32(net, "x", "T", 3)
    f32(net, "y", Dim("T", 1, max=64))
    assert net.dims["T"].claims() == "T in 1..64"
    with pytest.raises(dims.DimError, match="declared twice"):
        f32(net, "z", Dim("T", 2, max=64))


def test_spec_takes_both_orders() -> None:
    assert Spec((Dim("N", 1, 8, 64), 3), "float32") == Spec(("N", 3), "f32")
    assert str(Spec(("T", 256), "bf16")) == "bf16[T, 256]"
    assert str(StateSpec("bf16", heads=2, head_dim=64)) == "state kv_cache<bf16, heads=2, head_dim=64>"
    for shape in ((-1, 2), (1,) * 17, (2**40, 2**40)):
        with pytest.raises(OpError):
            Spec(shape, "f32")
    with pytest.raises(AttributeError, match="immutable"):
        Spec((1,), "f32").dtype = dtypes.int8


# ------------------------------------------------------------------------------------------------ values like arrays
indices = st.lists(
    st.one_of(st.integers(-2, 1), st.none(), st.just(...),
              st.builds(slice, *[st.one_of(st.none(), st.integers(-5, 5))] * 2, st.sampled_from([None, 1, 2, -1, -2]))),
    max_size=4).filter(lambda i: sum(x is ... for x in i) <= 1 and sum(x is not None and x is not ... for x in i) <= 3)


@given(indices)
def test_indexing_is_numpys(index: list[Any]) -> None:
    array = np.arange(2 * 3 * 4, dtype=np.float32).reshape(2, 3, 4)
    net = Network()
    net.output("y", f32(net, "x", 2, 3, 4)[tuple(index)])
    verify(net)
    np.testing.assert_array_equal(interpret(net, {"x": array})["y"], array[tuple(index)])


edges = st.one_of(st.none(), st.integers(-6, 6))


@given(edges, edges, st.sampled_from([None, 1, 2, 3]), st.integers(0, 5))
def test_slices_of_unknown_sizes_clamp_as_numpys(start: Any, stop: Any, step: Any, rows: int) -> None:
    array = np.arange(rows * 2, dtype=np.float32).reshape(rows, 2)
    net = Network()
    net.output("y", f32(net, "x", "T", 2)[start:stop:step])
    np.testing.assert_array_equal(interpret(net, {"x": array})["y"], array[start:stop:step])


def test_view_like_methods(net: Network) -> None:
    x = f32(net, "x", "T", 4, 6)
    assert x.view(0, -1).shape == (Dim("T"), 24)
    assert x.view(-1, 6).shape == (4 * Dim("T"), 6)
    assert x.flatten(1).shape == (Dim("T"), 24)
    assert x.sum().flatten().shape == (1,)
    assert x.transpose(-1, 0).shape == (6, 4, Dim("T"))
    assert x.permute(1, 0, 2).shape == x.permute((1, 0, 2)).shape == (4, Dim("T"), 6)
    assert x.unsqueeze(-1).shape == (Dim("T"), 4, 6, 1) and x.unsqueeze(0).squeeze(0).shape == x.shape
    assert [p.shape[2] for p in x.split(4, -1)] == [4, 2] and [p.shape[1] for p in x.split([1, 3], 1)] == [1, 3]
    assert x.ndim() == x.rank() == 3 and x.size(-1) == 6 and x.size() == x.shape and x.numel() == 24 * Dim("T")
    assert x.is_dynamic() and x.is_dynamic(0) and not x.is_dynamic(1)
    assert not x.is_fixed and not x.spec.is_fixed
    fixed = x.sum(0)
    assert fixed.is_fixed and fixed.spec.is_fixed and not fixed.is_dynamic()
    assert x.expand(2, -1, -1, -1).shape == (2, Dim("T"), 4, 6)


@pytest.mark.parametrize("expression", [
    "x + y", "x - 2", "2 - x", "x * y", "x / y", "1 / y", "x // y", "7 // y", "x % y", "y ** 2.0", "2.0 ** x", "-x",
    "abs(x)", "x @ y.T if isinstance(x, np.ndarray) else x @ y.transpose(0, 1)", "x < y", "x <= y", "x > 0", "x >= y",
    "x == y", "x != y", "~(x > 0)", "(x > 0) & (y > 1)", "(x > 0) | (y > 1)", "(x > 0) ^ (y > 1)",
])
def test_operators_are_numpys(net: Network, expression: str) -> None:
    rng = np.random.default_rng(0)
    arrays = {"x": rng.integers(-3, 4, (2, 3)).astype(np.float32), "y": rng.integers(1, 4, (2, 3)).astype(np.float32)}
    net.output("out", eval(expression, {"np": np}, {k: f32(net, k, 2, 3) for k in arrays}))
    np.testing.assert_allclose(interpret(net, arrays)["out"], eval(expression, {"np": np}, arrays), rtol=1e-6)


# ------------------------------------------------------------------------------------------------ changing a network
def chain(net: Network) -> tuple[Value, list[Any]]:
    x = f32(net, "x", "T", 4)
    net.output("y", ops.exp(ops.neg(ops.relu(x))))
    return x, list(net.nodes)


def test_replace_insert_and_remove(net: Network) -> None:
    x, (relu, neg, exp) = chain(net)
    with net.insert_before(neg):
        clipped = ops.clip(x, 0.0)
    net.replace(relu.output, clipped)
    assert [n.op.name for n in net.nodes] == ["relu", "clip", "neg", "exp"]
    assert net.users(clipped) == (neg,) and net.users(relu.output) == ()
    verify(net)
    assert net.remove_dead() == 1
    assert [n.op.name for n in net.nodes] == ["clip", "neg", "exp"]
    assert relu.output.name not in net.values
    verify(net)
    net.replace(exp.output, x)
    assert net.outputs["y"] is x and net.remove_dead() == 3


def test_remove_refuses_what_is_read(net: Network) -> None:
    _, (relu, *_) = chain(net)
    with pytest.raises(RuntimeError, match="is still read"):
        net.remove([relu])


def test_remove_takes_any_iterable_and_a_node_more_than_once(net: Network) -> None:
    x, (relu, neg, exp) = chain(net)
    net.replace(exp.output, x)
    net.remove(node for node in (neg, exp, neg, exp))
    assert net.nodes == [relu] and not net.users(relu.output)
    verify(net)


def test_a_state_is_one_before_and_behind_what_writes_it(net: Network) -> None:
    cache = net.state("kv.0", StateSpec("f32", heads=1, head_dim=4))
    k = f32(net, "k", "T", 1, 4)
    written = ops.kv_write(cache, k, k, net.input("slot", Spec(("T",), "int32")))
    assert cache.is_state and written.is_state and not k.is_state and not net.absent.is_state
    with pytest.raises(OpError, match="it has no shape"):
        _ = written.is_fixed


def test_remove_dead_keeps_state_writes(net: Network) -> None:
    cache = net.state("kv.0", StateSpec("f32", heads=1, head_dim=4))
    k = f32(net, "k", "T", 1, 4)
    ops.kv_write(cache, k, k, net.input("slot", Spec(("T",), "i32")))
    unused = net.parameter("w", Spec((3,), "f32"))
    assert net.remove_dead() == 0
    assert unused.name not in net.values and net.parameters == []


def test_unbacked_dims_get_names_of_their_own(net: Network) -> None:
    x = f32(net, "x", "T", 4)
    one, two = ops.nonzero(x), ops.nonzero(x > 1)
    assert one.shape != two.shape
    assert str(one.spec) == "i64[2, nonzero0]" and net.dims["nonzero1"].unbacked
    known = ops.nonzero(f32(net, "z", 3, 4))
    assert net.dims[str(known.shape[1])].max == 12
    named = ops.nonzero(x, count=Dim("hits", unbacked=True))
    assert named.shape[1] == Dim("hits")


# ------------------------------------------------------------------------------------------------ eager networks
def test_eager_values_carry_numbers() -> None:
    eager = Eager()
    x = eager.feed("x", np.array([[1.0, -2.0], [0.0, 3.0]], np.float32))
    y = F.relu(x) * 2
    np.testing.assert_array_equal(y.array, [[2, 0], [0, 6]])
    assert repr(y) == "%1: f32[2, 2] = [[2.0, 0.0], [0.0, 6.0]]"
    hits = ops.nonzero(y)
    assert hits.shape == (2, 2), "what the data show is known"
    assert ops.take(y, hits[0]).shape == (2, 2)
    with pytest.raises(InputError, match="%late has no numbers"):
        eager.input("late", Spec((2,), "f32")) + 1
