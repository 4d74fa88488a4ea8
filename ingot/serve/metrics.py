"""Counters and histograms of one server, written as Prometheus reads them. The names are stable (docs/serving.md)."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter

from ingot.serve import frames
from ingot.serve.engine_process import EngineProcess

TYPE = b"text/plain; version=0.0.4; charset=utf-8"
_TTFT = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_PER_TOKEN = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
_REQUEST = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)


class Histogram:
    """Observations counted by upper bounds."""

    def __init__(self, name: str, help: str, bounds: tuple[float, ...]) -> None:
        self._name = name
        self._help = help
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        """Counts one."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def lines(self) -> list[str]:
        """In the text format."""
        found = [f"# HELP {self._name} {self._help}", f"# TYPE {self._name} histogram"]
        total = 0
        for bound, count in zip((*map(repr, self._bounds), "+Inf"), self._counts, strict=True):
            total += count
            found.append(f'{self._name}_bucket{{le="{bound}"}} {total}')
        return [*found, f"{self._name}_sum {self._sum!r}", f"{self._name}_count {total}"]


class Metrics:
    """What the HTTP process counts; the engine's numbers are those of its last report."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, int]] = Counter()
        self.disconnects = 0
        self.prompt_tokens = 0
        self.generated_tokens = 0
        self.first_token = Histogram(
            "ingot_time_to_first_token_seconds", "From submission to the first token, by answer.", _TTFT
        )
        self.per_token = Histogram(
            "ingot_time_per_output_token_seconds", "Mean time of a token after the first, by answer.", _PER_TOKEN
        )
        self.whole = Histogram("ingot_request_seconds", "From submission to the last token, by answer.", _REQUEST)

    def ended(self, end: frames.End) -> None:
        """Counts an answer."""
        self.generated_tokens += end.completion_tokens
        if end.completion_tokens:
            self.first_token.observe(end.queue + end.prefill)
        if end.completion_tokens > 1:
            self.per_token.observe(end.decode / (end.completion_tokens - 1))
        self.whole.observe(end.queue + end.prefill + end.decode)

    def text(self, engine: EngineProcess) -> bytes:
        """Everything, in the text format."""
        load = engine.load or frames.Load(0, 0, 0, 0, 0, 0, 0, 0, 0, 0.0)
        lines = ["# HELP ingot_requests_total Requests by route and status.", "# TYPE ingot_requests_total counter"]
        for (route, status), count in sorted(self.requests.items()):
            lines.append(f'ingot_requests_total{{route="{route}",status="{status}"}} {count}')
        rows = (
            ("engine_up", "gauge", "Whether the engine process serves.", int(engine.ready is not None)),
            ("engine_restarts_total", "counter", "Times the engine process was started again.", engine.restarts),
            ("engine_hangs_total", "counter", "Times the engine process was killed for it hung.", engine.hangs),
            ("queue_depth", "gauge", "Accepted answers that do not run.", engine.waiting),
            ("queue_capacity", "gauge", "Answers that may run or wait.", engine.capacity),
            ("requests_running", "gauge", "Answers in the engine's steps.", load.running),
            ("requests_waiting", "gauge", "Answers that wait inside the engine.", load.waiting),
            ("client_disconnects_total", "counter", "Requests whose client left early.", self.disconnects),
            ("kv_blocks", "gauge", "Blocks of the KV cache.", load.blocks),
            ("kv_blocks_used", "gauge", "Blocks that belong to requests.", load.blocks_used),
            ("kv_blocks_cached", "gauge", "Blocks kept for prefixes that may come again.", load.blocks_idle),
            ("kv_use_ratio", "gauge", "Share of blocks used.", load.blocks_used / max(1, load.blocks)),
            ("prefix_asked_tokens_total", "counter", "Prompt tokens looked up in the cache.", load.tokens_asked),
            ("prefix_hit_tokens_total", "counter", "Prompt tokens found in the cache.", load.tokens_found),
            ("preemptions_total", "counter", "Requests that had to give their blocks back.", load.preemptions),
            ("steps_total", "counter", "Steps of the engine.", load.steps),
            ("prompt_tokens_total", "counter", "Tokens of prompts.", self.prompt_tokens),
            ("generated_tokens_total", "counter", "Tokens of answers.", self.generated_tokens),
        )
        for name, kind, help, value in rows:
            lines += [f"# HELP ingot_{name} {help}", f"# TYPE ingot_{name} {kind}", f"ingot_{name} {value}"]
        for histogram in (self.first_token, self.per_token, self.whole):
            lines += histogram.lines()
        return ("\n".join(lines) + "\n").encode()
