"""From a source to what an LLM runs: its engine, and the scheduler and runner over one cache and one session."""

from __future__ import annotations

from ingot.backends.device import DEFAULT, CacheRoomError, Device
from ingot.engine.session import Engine
from ingot.errors import MemoryLimitError, RequestError, UserError
from ingot.llm.config import ModelConfig
from ingot.llm.jobs import Job
from ingot.llm.kv_cache import KVCache
from ingot.llm.memory import available_memory, cache_blocks
from ingot.llm.runner import Runner
from ingot.llm.runner_behind import RunnerBehind
from ingot.llm.scheduler import Scheduler

_WHAT = {"network": "a plain network", "llm": "a language model", "encoder": "an encoder of texts"}
_HOW = {
    "network": "`ingot run` runs it (in Python, Engine.run)",
    "llm": "`ingot generate`, `chat` and `serve` run it (in Python, ingot.LLM)",
    "encoder": "`ingot serve` answers /v1/embeddings with it (in Python, ingot.Embedder)",
}


def check_kind(engine: Engine, source: object, kind: str) -> None:
    """Raises UserError for an engine of another kind."""
    if engine.kind != kind:
        shown = engine.path or "this engine" if isinstance(source, Engine) else source
        raise UserError(f"{shown} is {_WHAT[engine.kind]}, not {_WHAT[kind]}: {_HOW[engine.kind]}")


def assemble(
    engine: Engine, config: ModelConfig, threads: int | None, context_length: int, kv_memory: int | None,
    max_running: int | None, prefix_cache: bool = True, check: bool = False,
) -> tuple[Scheduler[Job], Runner]:  # fmt: skip
    """The scheduler and the runner of an engine, over one cache and one session, sized as LLM's arguments say, within
    what the engine's device likes best.

    `config`: the engine's, from model_config.
    """
    limits = engine.device.limits
    if check and engine.device.runtime.name == DEFAULT:
        raise UserError("check says where numbers are lost on devices torch and cuda: give one of them, device='torch'")
    max_step_tokens = min(limits.max_step_tokens, config.max_step_tokens)
    max_running = within("max_running", max_running, max_step_tokens, min(limits.max_running, max_step_tokens))
    row_bytes = max(limits.max_row_bytes, 4 * config.vocab_size, 4 * config.embedding.width)
    blocks = _cache_blocks(engine.device, config.state_bytes, context_length, kv_memory, max_running)
    cache = KVCache(blocks, limits.block_size, prefix_cache)
    try:
        session = engine.session(threads, kv_blocks=blocks, kv_block_size=limits.block_size)
    except CacheRoomError as e:
        block_bytes = config.state_bytes * limits.block_size
        advice = what_fits(e.blocks, limits.block_size, block_bytes, context_length, max_running)
        raise MemoryLimitError(f"{e}: {advice}") from None
    scheduler: Scheduler[Job] = Scheduler(
        cache, max_step_tokens, max_running, row_bytes, config.window, config.short_length,
        min(limits.max_mixed_tokens, max_step_tokens), draft_bytes=4 * config.vocab_size,
    )  # fmt: skip
    runner = RunnerBehind if limits.chooses else Runner
    return scheduler, runner(
        session, cache, max_step_tokens, max_running, context_length, config.short_length,
        embeds=config.embedding.width > 0, check=check,
    )  # fmt: skip


def _cache_blocks(
    device: Device, token_bytes: int, context_length: int, kv_memory: int | None, max_running: int
) -> int:
    """How many blocks the cache gets."""
    block_size = device.limits.block_size
    block_bytes = token_bytes * block_size
    useful = cache_blocks(max_running, context_length, block_size)
    if kv_memory is None:
        return max(1, min(useful, _free(device) // 4 // block_bytes))
    if type(kv_memory) is not int or kv_memory < block_bytes:
        raise UserError(f"kv_memory must be a number of bytes, at least {block_bytes:,} for a block; got {kv_memory!r}")
    return min(useful, kv_memory // block_bytes)


def what_fits(blocks: int, block_size: int, block_bytes: int, context_length: int, max_running: int) -> str:
    """What to ask for where there is room for so many blocks of the cache, and not for so many requests of full length.
    """
    if blocks < 1:
        return "no cache fits: build the engine with a smaller format of weights, or take a GPU with more memory"
    if blocks >= cache_blocks(max_running, context_length, block_size):
        return "so much is free by now: try again"
    ways = []
    if context := min(context_length, blocks // max_running * block_size):
        ways.append(f"--context {context} with {max_running} requests at once")
    if running := blocks // cache_blocks(1, context_length, block_size):
        ways.append(f"--max-running {running} (of `ingot serve`) with {context_length} tokens each")
    elif max_running > 1:
        ways.append(f"--context {blocks * block_size} with --max-running 1 (of `ingot serve`)")
    return f"what fits: {', or '.join([*ways, f'--kv-memory {blocks * block_bytes}'])}"


def _free(device: Device) -> int:
    free = device.available()
    return available_memory() if free is None else free


def within(name: str, value: int | None, limit: int, default: int | None = None) -> int:
    """A number the user gave, or the default (the limit). Raises RequestError unless it is from 1 to the limit."""
    if value is None:
        return limit if default is None else default
    if type(value) is not int or not 1 <= value <= limit:
        raise RequestError(f"{name} must be an integer from 1 to {limit}, not {value!r}")
    return value
