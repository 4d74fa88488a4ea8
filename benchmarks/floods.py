"""`ingot serve` under clients that mean no good: what a normal request and /health take, memory, log."""

from __future__ import annotations

import statistics
import time
import urllib.request

from benchmarks.clients import Clients
from benchmarks.flood_clients import FLOODS
from benchmarks.harness import Options, Result
from benchmarks.pico import pico_engine
from benchmarks.serve import Served, heldout_ids, served

USED = 15.0  # seconds of a normal load before anything else
QUIET = 10.0  # seconds of normal requests, one at a time
AFTER = 6.0  # and after each flood
START = 2.0  # for the processes of clients
CONTEXT = 1024  # pico-python's
DESCRIPTORS = 1024
HEALTHS = 11
SLOWER = 3.0  # times its quiet time that a normal request may take
GROWTH = 1.1
# What such a flood asks for is work that the model has to do: the time of others beside it says how much that is.
WORK = ("slow readers", "dropped streams")


def health(port: int) -> float:
    """Seconds that it takes; more than a second: 9."""
    begin = time.monotonic()
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=1.0) as answer:
            answer.read()
    except OSError:
        return 9.0
    return time.monotonic() - begin


def _percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


def serve_floods(options: Options) -> Result:
    """Eight floods on pico-python, one after the other, at 1,024 descriptors."""
    result = Result("serve-floods")
    with served(pico_engine("bfloat16"), options, ("--chat-template", "plain"), DESCRIPTORS) as server:
        _used(server, options)
        quiet = _probed(server, options, QUIET)
        median, most = statistics.median(quiet), _percentile(quiet, 0.99)
        result.add("normal request, quiet: median", median * 1e3, "ms", note=f"{len(quiet)} requests")
        result.add("normal request, quiet: 99th percentile", most * 1e3, "ms")
        for name in FLOODS:
            _flood(server, options, name, (median, most), result)
    return result


def _used(server: Served, options: Options) -> None:
    """Has it serve as usual for a while, all of its cache too: memory is compared with that of such a server."""
    now = time.monotonic()
    job = {"kind": "closed", "port": server.port, "ids": heldout_ids(), "seed": 1, "clients": 64, "begin": now}
    if any(one.kind != "whole" for one in Clients(options.client_cpus[:1], [job | {"until": now + USED}]).outcomes()):
        raise SystemExit("a normal request failed on a quiet server")


def _probed(server: Served, options: Options, seconds: float) -> list[float]:
    until = time.monotonic() + seconds
    (found,) = Clients(options.client_cpus[:1], [{"kind": "probe", "port": server.port, "until": until}]).results()
    if any(status != 200 for *_, status in found):
        raise SystemExit("a normal request failed on a quiet server")
    return [took for _, took, _ in found]


def _flood(server: Served, options: Options, name: str, quiet: tuple[float, float], result: Result) -> None:
    memory, log = server.memory(), server.log_bytes()
    begin = time.monotonic() + START
    flood = {"kind": "flood", "port": server.port, "name": name, "context": CONTEXT, "begin": begin}
    probe = {"kind": "probe", "port": server.port, "until": begin + FLOODS[name][1] + AFTER}
    clients = Clients(options.client_cpus, [probe, flood])
    time.sleep(max(0.0, begin - time.monotonic()))
    healths = []
    for _ in range(HEALTHS):
        healths.append(health(server.port))
        time.sleep(min(1.0, FLOODS[name][1] / HEALTHS))
    found, (_, end) = clients.results()
    during = [took for at, took, _ in found if at <= end and at + took >= begin]
    after = [took for at, took, _ in found if at > end] or _probed(server, options, AFTER)
    took = f"{len(during)} requests in {end - begin:.1f} s"
    result.add(f"{name}: meanwhile, median beside quiet", statistics.median(during) / quiet[0], "×",
               at_most=None if name in WORK else SLOWER)  # fmt: skip
    result.add("… the longest", max(during) * 1e3, "ms", note=took)
    result.add("… after it, median beside quiet", statistics.median(after) / quiet[0], "×", at_most=SLOWER)
    result.add("… the first after it beside quiet", after[0] / quiet[0], "×")
    result.add("… 99th percentile after it beside quiet", _percentile(after, 0.99) / quiet[1], "×", at_most=SLOWER)
    result.add("… normal requests without an answer", sum(status != 200 for *_, status in found), "", at_most=0)
    result.add("… the longest of 11 /health", max(healths), "s", at_most=1.0)
    for what, before, now in zip(("HTTP process", "engine process"), memory, server.memory(), strict=True):
        grown = f"{before / 1e6:.0f} → {now / 1e6:.0f} MB"
        result.add(f"… memory of the {what} {grown}", now / before, "×", at_most=GROWTH)
    result.add("… log", (server.log_bytes() - log) / 1e3, "kB")
