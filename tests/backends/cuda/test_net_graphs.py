"""Graphs of nets on target cuda: padded batches, memory of the caller's, captures that fail. Without a GPU a graph
computes everything anew where it lies.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ingot
from tests.backends.cuda.interpreted import WITHOUT, one_of_each
from tests.backends.cuda.small_nets import GPU, built, on_the_device, replays

torch: Any = pytest.importorskip("torch", reason="target cuda runs on torch's memory")
pytest.importorskip("triton", reason=WITHOUT)

from torch import nn  # noqa: E402

from ingot import dtypes  # noqa: E402
from ingot.backends.cuda import net_graphs  # noqa: E402
from ingot.backends.cuda.net_rows import Batch, Place, padded  # noqa: E402
from ingot.builder.network import build_network  # noqa: E402
from ingot.dims import Dim  # noqa: E402
from ingot.ir import Network, Spec  # noqa: E402
from ingot.ops.binary import Add, Mul  # noqa: E402
from ingot.ops.control import Scan  # noqa: E402

DEVICE = "cuda" if GPU else "cpu"
pytestmark = [
    one_of_each(),
    pytest.mark.usefixtures("cuda_here"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning:triton"),  # the interpreter computes masked elements too
]


def opened(name: str) -> tuple[Any, Any, Any, Any]:
    """A session that captures and takes tensors of its device, its executor, the module, and an input."""
    engine, module, x = built(name)
    session = engine.session(device="cuda")
    replays(session._executor)
    on_the_device(session._executor)
    return session, session._executor, module, x


def only(results: dict[str, Any]) -> Any:
    (found,) = results.values()
    return found


def close(found: Any, module: Any, x: Any) -> None:
    """A result is the module's, in float16."""
    wanted = module(x.cpu()).detach().numpy()
    found = found.cpu().numpy() if isinstance(found, torch.Tensor) else found
    assert found.shape == wanted.shape
    assert np.abs(found - wanted).max() <= 4e-3 * np.abs(wanted).max()


def graphs(executor: Any) -> list[int]:
    """The rows of the sizes that have a graph."""
    return [key[0][2][0] for key, seen in executor._seen.items() if seen.graph is not None]


def batches(name: str, *sizes: int) -> list[Any]:
    """Inputs of so many rows, no two rows alike."""
    _, _, x = built(name)
    make = torch.Generator().manual_seed(1)
    if x.dtype == torch.int64:
        return [torch.randint(0, 50, (n, *x.shape[1:]), generator=make) for n in sizes]
    return [torch.randn(n, *x.shape[1:], generator=make) for n in sizes]


# ---------------------------------------------------------------------------------------------------------- padding


def test_padded_sizes() -> None:
    """Few up to 16, then an eighth of a power of two apart; never fewer rows than there are."""
    assert [padded(n) for n in (0, 1, 2, 3, 4, 5, 7, 9, 13, 17, 31, 33, 100)] == [
        0,
        1,
        2,
        3,
        4,
        6,
        8,
        12,
        16,
        18,
        32,
        36,
        104,
    ]
    for n in range(1, 2000):
        assert n <= padded(n) <= (n * 4 / 3 if n <= 16 else n * 9 / 8) and padded(padded(n)) == padded(n)


def test_plans() -> None:
    """The first two sizes are never padded, bounds of the dim hold, and inputs that do not agree are left alone."""
    plans = net_graphs.Plans(Batch(Dim("N", 2, max=14), {"x": 1}, {"y": Place(0, 3)}))

    def of(*rows: int) -> tuple[int, int]:
        plan = plans.of(tuple((name, "f", (9, n)) for name, n in zip("xz", rows, strict=False)))
        assert [s for *_, s in plan.key] == [(9, n if i or not plan.rows else plan.whole) for i, n in enumerate(rows)]
        return plan.rows, plan.whole

    assert [of(n) for n in (5, 9, 5, 7, 11, 13, 9, 12, 1, 15, 0)] == [
        (0, 0), (0, 0), (0, 0), (7, 8), (11, 12), (13, 14), (0, 0), (0, 0), (0, 0), (0, 0), (0, 0),
    ]  # fmt: skip
    assert of(7, 4) == (0, 0)  # with another z sizes come first again
    plans = net_graphs.Plans(Batch(Dim("N"), {"x": 0, "z": 0}, {}))
    assert plans.of((("x", "f", (5,)), ("z", "f", (4,)))).rows == 0
    assert net_graphs.Plans(None).of((("x", "f", (5,)),)).rows == 0


@pytest.mark.parametrize("name", ["images", "words", "graphs"])
def test_padded_runs(name: str) -> None:
    """Of a batch that varies, few sizes are captured, and every row is as if it were alone."""
    session, executor, module, _ = opened(name)
    for x in batches(name, 1, 2, 7, 8, 5, 6, 7, 5):
        close(only(session.run({"x": x.numpy()})), module, x)
    assert sorted(graphs(executor)) == [6, 8]
    for x in batches(name, 7, 5):  # on the device, where memory is the caller's: kept apart from the host's
        for one in (x, x.flip(0)):
            found = only(session.run({"x": one.to(DEVICE)}))
            assert isinstance(found, torch.Tensor)
            close(found, module, one)


def test_runs_that_read_back_are_not_padded() -> None:
    """They are never captured: a first one shows it, and has the rows that it was given."""
    session, executor, module, _ = opened("graphs")
    computed = executor._computed
    for x in batches("graphs", 1, 2, 7, 5, 7):
        if len(x) == 7:
            executor._computed = lambda *given: (computed(*given)[0], True)
        close(only(session.run({"x": x.numpy()})), module, x)
    assert [key[0][2][0] for key in executor._seen] == [1, 2, 8, 5, 7] and not graphs(executor)


def test_faults_of_padded_runs() -> None:
    """A row that is a fault is found; the rows that a run leaves behind its own are nobody's."""
    session, executor, module, _ = opened("words")
    for x in batches("words", 1, 2, 8, 8):
        session.run({"x": x.numpy()})
    wrong = np.zeros((8, 5), np.int64)
    wrong[7] = 50
    with pytest.raises(ingot.errors.ValueFault, match="embedding"):
        session.run({"x": wrong})
    (x,) = batches("words", 7)
    close(only(session.run({"x": x.numpy()})), module, x)
    with pytest.raises(ingot.errors.ValueFault, match="embedding"):
        session.run({"x": wrong[1:]})
    assert graphs(executor) == [8]


class Rows(nn.Module):
    """A function of the rows as a module."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        super().__init__()
        self.function = function
        self.layer, self.table = nn.Linear(6, 6), nn.Embedding(9, 6)
        self.conv, self.batch = nn.Conv1d(4, 4, 3), nn.BatchNorm1d(4)

    def forward(self, x: Any) -> Any:
        return self.function(self, x)


APART: dict[str, Callable[[Any, Any], Any]] = {
    "products": lambda m, x: m.layer(x) @ x.mT,
    "rows of one matrix": lambda m, x: m.layer(x.reshape(-1, 6)).reshape(x.shape),
    "a weight from the left": lambda m, x: m.layer.weight @ x.permute(1, 2, 0),
    "convolutions": lambda m, x: m.batch(m.conv(x)),
    "another order": lambda m, x: torch.relu(x.permute(1, 0, 2)).sum(0).softmax(-1),
    "windows": lambda m, x: nn.functional.pad(x[:, 1:3], (1, 2)) * 2,
    "joined": lambda m, x: torch.cat([x, x * 2, torch.zeros(4, 6).expand(x.shape[0], 4, 6)], 1),
    "sorted": lambda m, x: x.sort(-1)[0].cumsum(1),
    "sums": lambda m, x: torch.einsum("nij,nkj->nik", x, x),
    "looked up": lambda m, x: m.table((x > 0).long()[:, 0]),
    "for rows of their own": lambda m, x: x - x.mean(1, keepdim=True) + x.amax((1, 2), keepdim=True),
}
MIXED: dict[str, Callable[[Any, Any], Any]] = {
    "their mean": lambda m, x: x - x.mean(0),
    "a product of rows": lambda m, x: x[:, 0] @ x[:, 0].mT,
    "sums over rows": lambda m, x: torch.einsum("nij,nkj->ik", x, x),
    "a sum up to each": lambda m, x: x.cumsum(0),
    "a softmax of them": lambda m, x: x.softmax(0),
    "their number": lambda m, x: x * x.shape[0],
    "the last first": lambda m, x: x.flip(0),
    "without the first": lambda m, x: x[1:] * 2,
    "another behind them": lambda m, x: torch.cat([x, x[:1]]),
    "their places": lambda m, x: x + torch.arange(x.shape[0])[:, None, None],
    "an element by their number": lambda m, x: x.reshape(-1, 24)[:, x.shape[0] - 1],
    "rows inside": lambda m, x: m.layer(x.permute(1, 0, 2).reshape(-1, 6)).reshape(-1, 24).softmax(0),
}


def made(function: Callable[[Any, Any], Any]) -> tuple[Any, Any]:
    torch.manual_seed(0)
    module = Rows(function).eval()
    return ingot.build(module, (torch.randn(3, 4, 6),), dynamic={"x": {0: ingot.Dim("N", 2)}}, report=False), module


@pytest.mark.parametrize("name", APART)
def test_rows_that_are_apart(name: str) -> None:
    """A padded run has the numbers of one that is not."""
    engine, module = made(APART[name])
    session = engine.session(device="cuda")
    executor = session._executor
    replays(executor)
    assert executor._padding.batch is not None
    for n in (2, 3, 8, 7, 5, 7):
        x = torch.randn(n, 4, 6, generator=torch.Generator().manual_seed(n))
        found, wanted = only(session.run({"x": x.numpy()})), module(x).detach().numpy()
        np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=2e-5)
    assert graphs(executor) == [8]


@pytest.mark.parametrize("name", MIXED)
def test_rows_that_meet(name: str) -> None:
    """No run is padded."""
    engine, module = made(MIXED[name])
    session = engine.session(device="cuda")
    replays(session._executor)
    assert session._executor._padding.batch is None
    for n in (2, 3, 8, 7):
        x = torch.randn(n, 4, 6, generator=torch.Generator().manual_seed(n))
        np.testing.assert_allclose(
            only(session.run({"x": x.numpy()})), module(x).detach().numpy(), rtol=2e-5, atol=2e-5
        )


# --------------------------------------------------------------------------------------------- memory of the caller's


class Foreign:
    """An array of another library, which speaks DLPack and nothing else."""

    def __init__(self, tensor: Any) -> None:
        self.tensor = tensor

    def __dlpack__(self, **how: Any) -> Any:
        return self.tensor.__dlpack__(**how)

    def __dlpack_device__(self) -> Any:
        return self.tensor.__dlpack_device__()


@pytest.mark.parametrize("wrap", [lambda x: x, Foreign], ids=["torch", "foreign"])
def test_inputs_where_they_lie(wrap: Callable[[Any], Any]) -> None:
    """Memory that comes again is read there, with what it holds then; other memory is copied, and so is what lies
    otherwise."""
    session, executor, module, _ = opened("images")
    one, two, three, wide = (x.to(DEVICE) for x in batches("images", 2, 2, 2, 4))
    for x in (one, one, one, two, one):
        close(only(session.run({"x": wrap(x)})), module, x)
    (seen,) = executor._seen.values()
    assert seen.graph is not None and [at[0] for at in seen.there] == [one.data_ptr()]
    seen.inputs["x"].fill_(float("nan"))  # nobody reads it for `one`
    one.copy_(three)
    close(only(session.run({"x": wrap(one)})), module, three)
    for x in (two, wide[::2], wide[::2]):
        close(only(session.run({"x": wrap(x)})), module, x)
    assert [at[0] for at in seen.there] == [one.data_ptr()] and seen.inputs["x"].isfinite().all()
    results = [only(session.run({"x": wrap(one)})) for _ in range(3)]
    assert len({r.data_ptr() for r in results}) == 3  # each run's its own


def test_memory_that_always_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A caller with many buffers has a few of them captured, not one after the other."""
    session, executor, module, _ = opened("graphs")
    several = [x.to(DEVICE) for x in batches("graphs", *[2] * 6)]
    for _ in range(3):
        for x in several:
            close(only(session.run({"x": x})), module, x)
    (seen,) = executor._seen.values()
    captured = list(seen.there)
    assert len(captured) == net_graphs.IN_PLACE
    monkeypatch.setattr(net_graphs, "UNUSED", 3)
    for _ in range(5):
        close(only(session.run({"x": several[5]})), module, several[5])
    assert several[5].data_ptr() in [at[0] for at in seen.there] and len(seen.there) == net_graphs.IN_PLACE


@pytest.mark.parametrize("name", ["images", "words", "graphs"])
def test_results_where_they_are_wanted(name: str) -> None:
    """`out` on the device: written there call by call, by a graph of any addresses, by one for these, and padded."""
    session, executor, module, _ = opened(name)
    for x in batches(name, 2, 2, 2, 2, 1, 8, 8, 7):
        given = x.to(DEVICE)
        out = torch.full(module(x).shape, float("nan"), dtype=torch.float32, device=DEVICE)
        dtype = only(session.run({"x": given})).dtype
        out = out.to(dtype)
        for _ in range(3):
            out.fill_(float("nan"))
            found = session.run({"x": given}, out={session.outputs[0].name: out})
            assert only(found) is out
            close(out, module, x)


def test_results_there_of_inputs_from_the_host() -> None:
    """Nothing comes back then; and arrays of the host are written beside tensors of the device."""
    session, _, module, x = opened("graphs")
    (name,) = (port.name for port in session.outputs)
    for _ in range(4):
        out = torch.zeros(module(x).shape, dtype=only(session.run({"x": x.to(DEVICE)})).dtype, device=DEVICE)
        assert session.run({"x": x.numpy()}, out={name: Foreign(out)})[name].tensor is out
        close(out, module, x)
        array = np.zeros(out.shape, out.cpu().numpy().dtype)
        assert session.run({"x": x.to(DEVICE)}, out={name: array})[name] is array
        close(array, module, x)


def test_results_into_the_input() -> None:
    """Where a result overwrites an input, the input is read before."""
    module = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)).eval()
    engine = ingot.build(module, (torch.randn(4, 8),), report=False)
    session = engine.session(device="cuda")
    replays(session._executor)
    on_the_device(session._executor)
    (name,) = (port.name for port in session.outputs)
    memory = torch.zeros(4, 8, device=DEVICE)
    for seed in range(5):
        x = torch.randn(4, 8, generator=torch.Generator().manual_seed(seed))
        memory.copy_(x)
        session.run({engine.inputs[0].name: memory}, out={name: memory})
        np.testing.assert_allclose(memory.cpu(), module(x).detach(), atol=1e-5)


def test_results_that_do_not_fit() -> None:
    session, _, module, x = opened("graphs")
    (name,) = (port.name for port in session.outputs)
    good = only(session.run({"x": x.to(DEVICE)}))
    for _ in range(3):
        for out, why in (
            ({name: good[:1].clone()}, r"is torch.float\d+\[1, .*the result is"), ({"y": good.clone()}, "is no output"),
            ({name: good.double()}, "torch.float64"), ({name: good[:1].expand(good.shape)}, "overlap in memory"),
        ):  # fmt: skip
            with pytest.raises(ingot.errors.InputError, match=why):
                session.run({"x": x.to(DEVICE)}, out=out)
    shared = torch.zeros(8, device=DEVICE)
    with pytest.raises(ingot.errors.InputError, match="share memory"):
        session.run({"x": x.to(DEVICE)}, out={name: shared, "y": shared[4:]})


def test_objects_that_fail() -> None:
    class Broken(Foreign):
        def __dlpack__(self, **how: Any) -> Any:
            raise RuntimeError("gone")

    session, *_, x = opened("graphs")
    with pytest.raises(ingot.errors.InputError, match="Broken through DLPack: gone"):
        session.run({"x": Broken(x.to(DEVICE))})


# ------------------------------------------------------------------------------------------------------------- graphs


@pytest.mark.parametrize("name", ["words", "images"])
def test_replays(name: str) -> None:
    """The second run of a size is captured; what replays knows nothing of the run before, and finds faults."""
    engine, module, x = built(name)
    session = engine.session(device="cuda")
    replays(session._executor)
    given = [x, x.flip(0), x.flip(1), x]
    results = [next(iter(session.run({"x": one.numpy()}).values())) for one in given]
    (seen,) = session._executor._seen.values()
    assert seen.graph is not None and not session._executor.uncaptured
    np.testing.assert_array_equal(results[3], results[0] if not GPU else results[3])
    for one, found in zip(given, results, strict=True):
        wanted = module(one).detach().numpy()
        assert np.abs(found - wanted).max() <= 4e-3 * np.abs(wanted).max()
    if name == "words":
        with pytest.raises(ingot.errors.ValueFault, match="embedding"):
            session.run({"x": np.full((2, 5), 50)})
        np.testing.assert_allclose(next(iter(session.run({"x": x.numpy()}).values())), results[0], atol=1e-3)


def test_graphs_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ingot.backends.cuda.net_executor.MOST_GRAPHS", 2)
    engine, _, x = built("graphs")
    session = engine.session(device="cuda")
    replays(session._executor)
    for batch in (1, 2, 3):
        for _ in range(2):
            session.run({"x": x[:1].expand(batch, *x.shape[1:]).numpy()})
    assert sum(seen.graph is not None for seen in session._executor._seen.values()) == 2


class AcceleratorError(RuntimeError):
    """As torch names what CUDA says."""


def goes_on(captured: Callable[[Any], Any], said: str) -> None:
    """Whether a session whose captures fail so runs call by call, and says why."""
    engine, module, x = built("graphs")
    session = engine.session(device="cuda")
    session._executor._captures, session._executor._captured = True, captured
    for _ in range(3):
        (found,) = session.run({"x": x.numpy()}).values()
    assert said in session._executor.uncaptured
    wanted = module(x).detach().numpy()
    assert np.abs(found - wanted).max() <= 4e-3 * np.abs(wanted).max()


@pytest.mark.parametrize("at_its_end", [False, True])
def test_a_capture_that_fails(at_its_end: bool) -> None:
    """Runs go on call by call, and the session says why, also where the end of the capture fails over it."""

    def fails(work: Any) -> Any:
        try:
            raise AcceleratorError("CUDA error: operation not permitted when stream is capturing\nCUDA may say more")
        finally:
            if at_its_end:
                raise AcceleratorError("CUDA error: operation failed due to a previous error during capture")

    goes_on(fails, "not permitted")


def test_an_op_that_fails_in_a_capture() -> None:
    """What torch says of an op's form is a ValueFault; a run call by call says whether it is one."""

    def fails(work: Any) -> Any:
        raise ingot.errors.ValueFault("scan on torch:cuda:0: Cannot copy between CPU and CUDA tensors")

    goes_on(fails, "Cannot copy")


@pytest.mark.skipif(not GPU, reason="captures on a GPU")
def test_a_scan_is_captured() -> None:
    """Its body's constants lie on the device by then."""
    body = Network("body")
    now, part = (body.input(name, Spec((3,), dtypes.float32)) for name in ("now", "part"))
    body.output("sum", body.emit(Add(), (now, body.emit(Mul(), (part, body.constant(np.float32([1, 2, 4])))))))
    network = Network("net")
    start, parts = (network.input(name, Spec(shape, dtypes.float32)) for name, shape in (("s", (3,)), ("x", (5, 3))))
    network.output("y", network.emit(Scan(body=body, length=5, carried=1, scanned=1), (start, parts)))
    session = build_network(network, {}, report=False).session(device="cuda")
    rng = np.random.default_rng(0)
    s, x = (rng.standard_normal(shape).astype(np.float32) for shape in ((3,), (5, 3)))
    for _ in range(3):
        np.testing.assert_allclose(session.run({"s": s, "x": x})["y"], s + (x * [1, 2, 4]).sum(0), rtol=1e-5)
    assert not session._executor.uncaptured and any(seen.graph for seen in session._executor._seen.values())


@pytest.mark.skipif(not GPU, reason="tensors of a GPU")
def test_tensors_of_the_device() -> None:
    """They are read where they lie, and results lie there too, each run's its own."""
    engine, module, x = built("images")
    session = engine.session(device="cuda")
    there = x.cuda()
    results = [next(iter(session.run({"x": one}).values())) for one in (there, there.flip(0), there, there.flip(0))]
    assert all(r.is_cuda for r in results) and len({r.data_ptr() for r in results}) == 4
    wanted = module(x).detach()
    for found, want in zip(results, (wanted, wanted.flip(0)) * 2, strict=True):
        assert float((found.cpu() - want).abs().max()) <= 4e-3 * float(want.abs().max())
    other = torch.cuda.Stream()
    other.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(other):
        (found,) = session.run({"x": torch.utils.dlpack.from_dlpack(there.flip(0))}).values()
    other.synchronize()
    assert float((found.cpu() - wanted.flip(0)).abs().max()) <= 4e-3 * float(wanted.abs().max())
