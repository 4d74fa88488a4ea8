"""The ways to store a language model's weights, on TinyLlama's shape: decoding, prompts, and many requests at once."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeAlias

import ingot
from benchmarks import genai, level_code, llama_cpp
from benchmarks.harness import CACHE, ROOT, Options, Result, Sample, Share, alternated, ratios, seconds
from benchmarks.machine import hold_peers, peak, read_now, roofs
from benchmarks.peer import Peer
from benchmarks.pico import rate
from benchmarks.tinyllama import LAYER_WEIGHTS, LAYERS, directory, weight_bytes
from ingot.errors import UserError

ROOF = "read bandwidth"
PRODUCTS = "matmul_bench"  # a prompt's products by themselves
OF_PRODUCTS = 0.85  # the goal: of what these reach
PROMPTS = (512, 2047)  # tokens; the model has room for one more than the longer one
TOGETHER, TOKENS = 16, 33
STEADY = 3  # times as many measurements of decoding: one takes a second, in which neighbours change what memory gives
CHARTED = {genai.NAME: "OpenVINO"}  # what the chart calls them, where that is another word
Run: TypeAlias = Callable[[list[list[int]], int], object]  # prompts, and tokens for each


class Format(NamedTuple):
    """Words of `ingot.build`, and what each peer calls the like; None: it has nothing of the kind."""

    name: str
    weights: str
    activations: str | None
    genai: str | None
    llama_cpp: str | None  # in blocks of 32 weights, and its rows in blocks of 32 int8, always
    share: float  # the goal: of the read bandwidth while decoding

    @property
    def benchmark(self) -> str:
        """What it is called on the command line."""
        return f"llm-{self.name.replace(', rows of ', '-')}"


FORMATS = (
    Format("bfloat16", "same", None, "fp16", "BF16", 0.9),
    Format("int8", "int8", None, "int8", "Q8_0", 0.9),
    Format("int8, rows of int8", "int8", "int8", "int8", "Q8_0", 0.9),
    Format("int4-g32", "int4-g32", None, None, "Q4_0", 0.8),
    Format("int4-g32, rows of int8", "int4-g32", "int8", None, "Q4_0", 0.8),
    Format("int4-g128", "int4-g128", None, "int4", "Q4_0", 0.8),
    Format("int4-g128, rows of int8", "int4-g128", "int8", "int4", "Q4_0", 0.8),
)


def engine(format: Format) -> Path:
    """The model's engine in that format, built once per version of the package's sources."""
    path = CACHE / f"tinyllama-{format.weights}-{format.activations}.ingot"
    sources = max(p.stat().st_mtime for p in (ROOT / "ingot").rglob("*.py"))
    if not path.exists() or path.stat().st_mtime < sources:
        built = ingot.build(directory(), precision="bfloat16", weights=format.weights, activations=format.activations,
                            report=False)  # fmt: skip
        built.save(path)
    return path


def measured(format: Format, options: Options) -> Result:
    """One format; the bandwidth is read again for it, since neighbours change it. Raises UserError where there is no
    compiler for that."""
    result = Result(format.benchmark)
    random.seed(0)
    drawn = {n: [random.randrange(5, 4000) for _ in range(n)] for n in PROMPTS}
    many = [[random.randrange(5, 4000) for _ in range(32)] for _ in range(TOGETHER)]
    roofs.cache_clear()
    roofs(options.threads)  # first, since it may end for want of a compiler
    path = engine(format)
    products = _products(format, result)
    with ExitStack() as stack:
        add = partial(_add, result, format, _contestants(format, path, options.threads, stack, result), options)
        add("decode", partial(_decode, many[:1]), bytes_read=weight_bytes(path))
        for n in PROMPTS:
            summed = peak("int8" if format.activations else "bfloat16", options.threads)
            add(f"prompt of {n}", partial(_prompt, drawn[n]), limit=summed / (2 * LAYER_WEIGHTS), products=products)
        add(f"{TOGETHER} at once", partial(_decode, many))
    return result


BENCHMARKS: dict[str, Callable[[Options], Result]] = {
    format.benchmark: partial(measured, format) for format in FORMATS
}  # fmt: skip


def _products(format: Format, result: Result) -> Callable[[int], float] | None:
    """What products alone let through with so many threads, or nothing where no core was built to compile their
    program with, which the result's notes say."""
    try:
        program = level_code.matmul_bench(format.weights, format.activations)
    except UserError as e:
        result.notes.append(f"no share of what {PRODUCTS} reaches: {e}")
        return None
    return partial(level_code.prompt_rate, program, LAYERS)


def _contestants(format: Format, path: Path, threads: int, stack: ExitStack, result: Result) -> dict[str, Run]:
    """Ours first, then each peer that is installed and has the like of the format; open until the stack ends.

    The result's notes say the peers' versions, and which are missing.
    """
    held = hold_peers()
    if held is not None:
        result.notes.append(f"{held}; not llama.cpp, which is left out")
    llm = stack.enter_context(ingot.LLM(path, threads=threads, prefix_cache=False, max_running=TOGETHER))
    runs: dict[str, Run] = {"ingot": lambda prompts, tokens: llm.generate(prompts, max_tokens=tokens, ignore_end=True)}
    rows_of_int8 = format.activations is not None
    opened: list[tuple[str | None, str, AbstractContextManager[Peer | None]]] = [
        (format.genai, genai.ABSENT, genai.peer(directory(), threads, format.genai, rows_of_int8))
    ]
    if held is None:
        opened.append((format.llama_cpp, llama_cpp.ABSENT, llama_cpp.peer(directory(), threads, format.llama_cpp)))
    for weights, absent, opening in opened:
        peer = stack.enter_context(opening)
        if peer is not None:
            runs[peer.name] = peer.generate
        note = absent if peer is None else f"{peer.name} {peer.version}"
        if weights is not None and note not in result.notes:
            result.notes.append(note)
    if genai.NAME in runs and format.weights != "same":
        size = genai.ROWS_OF_INT8 if rows_of_int8 else genai.ROWS_OF_FLOATS
        result.notes.append(f"{genai.NAME} with {genai.ROWS} {size}")
    return runs


def _add(result: Result, format: Format, runs: dict[str, Run], options: Options, what: str,
         measure: Callable[[Run], float], bytes_read: int = 0, limit: float = 0.0,
         products: Callable[[int], float] | None = None) -> None:  # fmt: skip
    """What `measure` says of ours and of each peer, in turns: tokens a second, and how many times a peer's ours are.

    `bytes_read` by a step, of the read bandwidth that is read right behind ours; or the `limit` in tokens a second that
    arithmetic sets: shares are of that. `products` has its turn behind ours too: with so many threads, what products
    alone let through.
    """
    first, *peers = ((who, partial(_awake, measure, run)) for who, run in runs.items())
    turns: dict[str, Callable[[], float]] = dict([first])
    if bytes_read:
        turns[ROOF] = partial(read_now, options.threads)
    if products is not None:
        turns[PRODUCTS] = partial(products, options.threads)
    found = alternated(turns | dict(peers), options.pairs * (STEADY if bytes_read else 1))
    alone = found.pop(PRODUCTS, None)
    roof = [1e9 * read / bytes_read for read in found.pop(ROOF, ())]  # tokens a second
    samples = {who: Sample.of(rates) for who, rates in found.items()}
    ours = samples["ingot"]
    result.add(f"{format.name}: {what}", ours.median, "tok/s", quartiles=ours.quartiles)
    if bytes_read:
        share, read = ratios(found["ingot"], roof), Sample.of(roof).median * bytes_read / 1e9
        result.add(f"{format.name}: share of the read bandwidth", share.median, "", quartiles=share.quartiles,
                   at_least=format.share, note=f"{read:.1f} GB/s")  # fmt: skip
    if alone is not None:
        share = ratios(found["ingot"], alone)
        result.add(f"{format.name}: {what}, share of what {PRODUCTS} reaches", share.median, "",
                   quartiles=share.quartiles, at_least=OF_PRODUCTS,
                   note=f"{Sample.of(alone).median:.0f} tok/s")  # fmt: skip
    for who in list(found)[1:]:
        ahead = ratios(found["ingot"], found[who])
        result.add(f"{format.name}: {what}, × {who}", ahead.median, "×", quartiles=ahead.quartiles)
    most = Sample.of(roof).median if bytes_read else limit
    bound = "read bandwidth" if bytes_read else "arithmetic"
    work = f"TinyLlama-1.1B, {format.name}, {what}"
    if most:
        rates = {CHARTED.get(who, who): sample.median for who, sample in samples.items()}
        result.shares += [Share(work, who, rate / most, bound, rate, "tok/s") for who, rate in rates.items()]


def _awake(measure: Callable[[Run], float], run: Run) -> float:
    """What is measured of a model that has just read all of its weights: while others had their turn, the system may
    have taken their pages back (a first run of ours then made 40 tokens a second, and 61 behind it)."""
    run([[5, 6, 7]], 2)
    return measure(run)


def _prompt(ids: list[int], run: Run) -> float:
    return len(ids) / seconds(lambda: run([ids], 1))


def _decode(prompts: list[list[int]], run: Run) -> float:
    return len(prompts) * rate(lambda n: run(prompts, n), TOKENS)
