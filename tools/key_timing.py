"""Whether the time that a key's comparison takes tells of the key: `python -m tools.key_timing`.

Keys of each kind are compared in random order, so that whatever else the machine does falls on all kinds alike. What a
guesser would look at, the median, is taken in blocks; the spread of the blocks says how well it is known. A kind whose
median differs from that of wrong keys of the same length by more than `SIGMA` standard errors, and by more than `LEAST`
nanoseconds, is told from them. The right key is not among them: whoever gives it is told so by the answer. It takes
16 ns more, for a processor that expected another outcome.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
from collections.abc import Mapping
from time import perf_counter_ns

from ingot.serve.app import same

KEY = bytes(random.Random(0).choices(range(33, 127), k=64))
SIGMA = 5.0  # of 4 kinds, one in a million runs would show so much by chance
LEAST = 5.0  # nanoseconds
BLOCKS = 100


def kinds(draw: random.Random) -> dict[str, bytes]:
    """Keys as a guesser has them, made anew for each block in another order, between objects of no use: where in memory
    they are makes ten nanoseconds, and falls on all kinds alike."""
    wrong = [
        byte if byte != right else right ^ 1
        for byte, right in zip(draw.choices(range(33, 127), k=64), KEY, strict=True)
    ]
    contents = {
        "wrong": wrong,
        "right in its first half": [*KEY[:32], *wrong[32:]],
        "right but for its last byte": [*KEY[:-1], wrong[-1]],
        "not ASCII": [byte | 128 for byte in wrong],
        "wrong once more": [byte ^ 1 for byte in KEY],
    }
    made, junk = {}, []
    for name in draw.sample(list(contents), len(contents)):
        junk.append([bytes(range(64 + i)) for i in range(draw.randrange(9))])
        made[name] = bytes(contents[name])
    return {name: made[name] for name in contents}


def measured(count: int, seed: int) -> dict[str, list[float]]:
    """Median nanoseconds of each kind, by block of `count` comparisons."""
    draw = random.Random(seed)
    found: dict[str, list[float]] = {}
    for _ in range(BLOCKS):
        given = kinds(draw)
        times: dict[str, list[int]] = {name: [] for name in given}
        order = list(given) * count
        draw.shuffle(order)
        for name in order:
            key = given[name]
            begin = perf_counter_ns()
            same(key, KEY)
            took = perf_counter_ns() - begin  # before anything is looked up by its name
            times[name].append(took)
        for name, values in times.items():
            found.setdefault(name, []).append(statistics.median(values))
    return found


def told(found: Mapping[str, list[float]]) -> list[dict[str, object]]:
    """By how many nanoseconds, and standard errors, each kind differs from the first, and whether that tells it."""
    first, *others = found
    rows: list[dict[str, object]] = []
    for name in others:
        apart = [one - other for one, other in zip(found[name], found[first], strict=True)]
        mean, error = statistics.fmean(apart), statistics.stdev(apart) / len(apart) ** 0.5
        sigmas = abs(mean) / error if error else 0.0 if not mean else float("inf")
        row = {"kind": name, "ns": round(mean, 2), "standard_error": round(error, 2), "sigmas": round(sigmas, 2)}
        rows.append(row | {"told": abs(mean) > LEAST and sigmas > SIGMA})
    return rows


def main() -> int:
    """The exit code: 1 when a kind is told from wrong keys."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--count", type=int, default=400, help="comparisons of each kind in each of 100 blocks")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    rows = told(measured(args.count, args.seed))
    print(json.dumps(rows, indent=1))
    return 1 if any(row["told"] for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
