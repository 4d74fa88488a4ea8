"""The fuzz targets on their seeds and on random changes of them: `make fuzz` goes on from here."""

from __future__ import annotations

import random

import pytest

from fuzz import targets


def changed(seed: bytes, rng: random.Random) -> bytes:
    """A few bytes replaced, removed, or put in."""
    data = bytearray(seed)
    for _ in range(rng.randrange(1, 5)):
        at = rng.randrange(len(data) + 1)
        what = rng.randrange(3)
        if what == 0:
            data[at : at + 1] = bytes([rng.randrange(256)])
        elif what == 1:
            del data[at : at + rng.randrange(1, 20)]
        else:
            data[at:at] = rng.choice([b'"', b"[", b"}", b"-1", b"9" * 30, b"\\u0000", b"NaN", b"\xff", b",", b": {"])
    return bytes(data)


@pytest.mark.parametrize("name", targets.TARGETS)
def test_target(name: str) -> None:
    rng = random.Random(0)
    seeds = targets.TARGETS[name][1]
    for seed in seeds:
        targets.run(name, seed)
    for _ in range(300):
        random_bytes = rng.randbytes(4 * rng.randrange(1, 5))
        targets.run(name, random_bytes)
        targets.run(name, changed(rng.choice(seeds), rng))


@pytest.mark.parametrize("name", ["container", "sealed", "safetensors", "pt2", "json_text", "config", "network_text"])
def test_seeds_are_accepted(name: str) -> None:
    for seed in targets.TARGETS[name][1]:
        targets.TARGETS[name][0](seed)
