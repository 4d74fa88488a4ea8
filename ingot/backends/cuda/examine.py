"""What `ingot doctor` and `ingot inspect` say of device cuda: the GPU, a self-test, and the calls of an engine.

Calls are listed without a GPU, torch or Triton.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import perf_counter
from typing import Any

from ingot import _lazy
from ingot.backends.cuda.driver import driver
from ingot.backends.cuda.net_program import net_program
from ingot.backends.cuda.net_target import NET
from ingot.backends.cuda.program import SINGLES, Attention, Experts, Product, Single, program
from ingot.backends.torch_executor import lowered
from ingot.backends.torch_target import TORCH

# Of a language model's calls; attention is by decode or prefill_attention.
NAMES = {Product: "product", Attention: "attention", Experts: "experts"}
COPIED = 1 << 28  # bytes, to measure the memory's speed


def calls_of(header: Mapping[str, Any], external: Mapping[str, Any], entry: str = "main") -> list[dict[str, Any]]:
    """The calls that an engine's entry becomes on device cuda, in order: {call, ops, runs, where}.

    runs: "kernel" (it may decline the sizes of a run), "torch form", or "host call (slow)".
    """
    net = header["kind"] != "llm"
    _, network = lowered(header, external, entry, NET if net else TORCH)
    found = []
    for each in net_program(network) if net else program(network):
        ops = [node.op.name for node in each.nodes]
        host = any(node.op.torch is None or node.op.reads_back for node in each.nodes)
        kernel = not isinstance(each, Single) or (not net and isinstance(each.nodes[0].op, SINGLES))
        runs = "kernel" if kernel else "host call (slow)" if host else "torch form"
        name = NAMES.get(type(each)) or getattr(each, "kernel", ops[0])
        found.append({"call": name, "ops": ops, "runs": runs, "where": each.nodes[0].where})
    return found


def gpu(name: str) -> dict[str, Any]:
    """Of a GPU by its number: the driver, name, capability, memory, compiled kernels that runs are told to take, and
    what a self-test found. It is there.

    Raises UserError, FileError for what keeps kernels from being compiled or taken.
    """
    torch = _lazy.optional("torch", "device cuda", "ingot[cuda]")
    found, device = driver(), torch.device("cuda", int(name))
    major, minor = torch.cuda.get_device_capability(device)
    kernels = _lazy.load("ingot.backends.cuda.kernel_files:prepare")(10 * major + minor)
    _lazy.load("ingot.backends.cuda.native_launch:use")()
    free, whole = torch.cuda.mem_get_info(device)
    return {
        "driver": found.version, "driver_cuda": None if found.cuda is None else ".".join(map(str, found.cuda)),
        "torch": torch.__version__, "torch_cuda": torch.version.cuda, "name": torch.cuda.get_device_name(device),
        "capability": f"{major}.{minor}", "memory": whole, "free": free,
        "kernels": None if kernels is None else kernels.json(), "self_test": self_test(torch, device),
    }  # fmt: skip


def self_test(torch: Any, device: Any) -> dict[str, Any]:
    """Runs two kernels beside torch's forms, and on a GPU a captured step and copies: largest differences (of the
    largest number), seconds, and bytes read and written per second. Raises what a device raises that does not work."""
    begin = perf_counter()
    launch, chains = (_lazy.load(f"ingot.backends.cuda.{name}") for name in ("launch", "chains"))
    make = torch.Generator().manual_seed(0)
    x, weight = (torch.randn(shape, generator=make).to(device) for shape in ((2, 96), (40, 96)))
    out = torch.full((2, 40), float("nan"), device=device)
    launch.Launcher(torch).product(x, launch.Weight(weight), out)
    found: dict[str, Any] = {"product": _apart(out, x.double() @ weight.double().T)}
    steps = (("input", "float32", 0), ("silu", "float32", 0), ("input", "float32", 1), ("mul", "float32", 1, 2))
    gated = torch.full_like(x, float("nan"))

    def chain() -> None:
        chains.run(steps, 3, [x, weight[:1]], gated)

    chain()
    if device.type == "cuda":
        with torch.cuda.device(device):
            found["bytes_per_second"] = _replayed(torch, device, chain, gated)
    found["chain"] = _apart(gated, torch.nn.functional.silu(x.double()) * weight[:1].double())
    found["works"] = all(found[name] <= 1e-5 for name in ("product", "chain"))
    found["seconds"] = perf_counter() - begin
    return found


def _replayed(torch: Any, device: Any, chain: Callable[[], None], out: Any) -> float:
    """Leaves the chain's result to a captured graph; bytes per second of a large copy."""
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        chain()
    out.fill_(float("nan"))
    graph.replay()
    source = torch.empty(COPIED, dtype=torch.uint8, device=device)
    to = torch.empty_like(source)
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    to.copy_(source)
    begin.record()
    for _ in range(8):
        to.copy_(source)
    end.record()
    end.synchronize()
    return float(8 * 2 * COPIED / (begin.elapsed_time(end) / 1e3))


def _apart(found: Any, wanted: Any) -> float:
    """Infinite for what is not a number."""
    apart = float((found.double() - wanted).abs().max() / wanted.abs().max())
    return apart if apart == apart else float("inf")
