"""The four nets in float16, and in calibrated int8 around float16, on an NVIDIA GPU, batch 1 and 32, beside torch in
float16: eager in a CUDA graph, channels last.

Inputs and results lie on the device. torch.compile with max-autotune takes minutes: gpu_peers.py measures it once, and
the kept figure of a GPU of this kind stands beside ours.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from functools import partial
from time import perf_counter
from typing import Any

import torch

import ingot
from benchmarks import torch_nets
from benchmarks.gpu_decode import started
from benchmarks.gpu_kept import kept
from benchmarks.harness import Options, Result, Sample

BATCHES = (1, 32)
RUNS = 50  # after warm-up, over fresh inputs
# Of the largest number, to float32: float16 that accumulates in float32; int8 that is calibrated on eight samples.
ACCURACY, INT8_ACCURACY = 0.02, 0.1
CALIBRATION = 8
BUILD_SECONDS = 20.0


def gpu_nets(options: Options) -> Result:
    """Times, differences to float32, and seconds to the first captured run."""
    result, _ = started("gpu-nets")
    for name in torch_nets.NETS:
        module = torch_nets.in_range(name, torch_nets.make(name))
        begin = perf_counter()
        spec = torch_nets.NETS[name]
        engine = ingot.build(module, (spec.inputs(2),), precision="float16", dynamic={"x": spec.dynamic}, report=False)
        result.add(f"{name}: build from the torch module", perf_counter() - begin, "s", at_most=BUILD_SECONDS)
        session = engine.session(device="cuda")
        module = module.cuda()
        for batch in BATCHES:
            _measure(result, f"{name}, batch {batch}", session, module, spec.inputs, batch)
            compiled = kept(f"{name}, batch {batch}: torch.compile")
            if compiled is not None:
                ours = next(row.value for row in result.rows if row.what == f"{name}, batch {batch}: ingot")
                note = f"kept: {compiled:.3g} ms"
                result.add(f"{name}, batch {batch}: torch.compile / ingot", compiled / ours, "×", note=note)
    return result


def gpu_nets_int8(options: Options) -> Result:
    """The same of nets in calibrated int8; and how far they are from the same engines on the CPU."""
    result, _ = started("gpu-nets-int8")
    for name, spec in torch_nets.NETS.items():
        module = torch_nets.in_range(name, torch_nets.make(name))
        samples = [spec.inputs(1) for _ in range(CALIBRATION)]
        begin = perf_counter()
        engine = ingot.quantize(
            module, samples, (spec.inputs(2),), precision="float16", dynamic={"x": spec.dynamic}, errors=False,
            report=False, always_int8=True,
        )  # fmt: skip
        result.add(f"{name}: calibrate and build", perf_counter() - begin, "s")
        session, x = engine.session(device="cuda"), spec.inputs(1).numpy()
        (here,), (there,) = (e.run({engine.inputs[0].name: x}).values() for e in (engine, session))
        away = float(abs(here.astype("float32") - there.astype("float32")).max() / abs(here).max())
        result.add(f"{name}: largest difference to the CPU's int8", away, "of the largest")
        names = [item.get("kernel", "") for item in session.profile({engine.inputs[0].name: x})]
        integers = sum(n.startswith("int8_") for n in names)
        result.notes.append(f"{name}: {integers} of {len(names)} calls are products of int8")
        module = module.cuda()
        for batch in BATCHES:
            _measure(result, f"{name}, batch {batch}", session, module, spec.inputs, batch, INT8_ACCURACY)
    return result


def _measure(
    result: Result, label: str, session: ingot.Session, module: Any, inputs: Callable[[int], Any], batch: int,
    accuracy: float = ACCURACY,
) -> None:  # fmt: skip
    given = [inputs(batch).cuda() for _ in range(4)]
    (name,) = (port.name for port in session.inputs)
    with torch.inference_mode():
        want = module(given[0])
        begin = perf_counter()
        (found,) = session.run({name: given[0]}).values()
        torch.cuda.synchronize()
        first = perf_counter() - begin
        session.run({name: given[1]})
        torch.cuda.synchronize()
        result.add(f"{label}: first and second run", perf_counter() - begin, "s", note=f"first {first:.2f} s")
        error = float((found.float() - want).abs().max() / want.abs().max())
        (again,) = session.run({name: given[0]}).values()
        replayed = float((again.float() - want).abs().max() / want.abs().max())
        result.add(f"{label}: largest difference to float32", max(error, replayed), "of the largest", at_most=accuracy)
        ours = timed([partial(session.run, {name: x}) for x in given])
        result.measured(f"{label}: ingot", ours, "ms")
        peer(result, label, "torch eager, CUDA graph", _graphed(half(module), given[0]), inputs, batch)
        ratio = result.rows[-1].value / ours.median
        result.add(f"{label}: torch eager, CUDA graph / ingot", ratio, "×")


def half(module: Any) -> Callable[[Any], Any]:
    """The net in float16, channels last, for inputs of its own dtype."""
    half = deepcopy(module).half().to(memory_format=torch.channels_last)
    return lambda x: half(x.half().to(memory_format=torch.channels_last) if x.is_floating_point() else x)


def _graphed(work: Callable[[Any], Any], x: Any) -> Callable[[Any], Any]:
    """What copies an input in, and replays `work`."""
    place = x.clone()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            work(place)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = work(place)

    def run(given: Any) -> Any:
        place.copy_(given)
        graph.replay()
        return found

    run.work = work  # type: ignore[attr-defined]  # whose weights the graph reads
    return run


def peer(
    result: Result, label: str, who: str, work: Callable[[Any], Any], inputs: Callable[[int], Any], batch: int
) -> None:
    """Adds a peer's time, over four inputs in turn."""
    given = [inputs(batch).cuda() for _ in range(4)]
    begin = perf_counter()
    with torch.inference_mode():
        for x in given[:3]:
            work(x)
        torch.cuda.synchronize()
        took = perf_counter() - begin
        sample = timed([partial(work, x) for x in given])
    result.measured(f"{label}: {who}", sample, "ms", f"ready in {took:.1f} s")


def timed(works: Sequence[Callable[[], Any]]) -> Sample:
    """Milliseconds of one run, host included, over the works in turn."""
    times = []
    for i in range(RUNS + 5):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda.synchronize()
        begin.record()
        works[i % len(works)]()
        end.record()
        end.synchronize()
        times.append(float(begin.elapsed_time(end)))
    return Sample.of(times[5:])

