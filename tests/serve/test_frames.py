"""Frames between the two processes: what was sent comes out however it is cut, and nothing else comes out."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

from ingot.serve import frames

SAMPLING = frames.Sampling(None, 0.5, 0, 1.0, 0.0, 2**63 - 1, ("a", "\U0001f986"), 1.0, 0.0, 0.0, {7: -1.5}, 20, 128)
END = frames.End("length", 1, 0, 2**53, 0.0, 0.1, 0.2, 0.3, 0.4)
TO_ENGINE: list[Any] = [
    frames.Start("a", None, "int8", "cpu", 1, None, 2**40, 4, True, "{{ x }}", None, 0.5),
    frames.Generate(1, "text", None, None, SAMPLING, -100, True, False),
    frames.Generate(2, None, [0, 2**31], None, SAMPLING, 0, False, True),
    frames.Generate(3, None, None, [("user", "x", None), ("tool", "", "f")], SAMPLING, 0, False, False),
    frames.Embed(4, ["", "text", [1, 2]]), frames.Abort(5),
]  # fmt: skip
FROM_ENGINE: list[Any] = [
    frames.Ready(64, 64, True, False, True, ["a part"]), frames.Failed("checkpoint", "why"),
    frames.Pieces([frames.Piece(1, 0, "x", 1, [frames.Token("x", -0.5, [("y", -9999.0)])], END)]),
    frames.Refused(1, "request", "why"), frames.Ended(2), frames.Vectors(3, 2, [[1.0, -2.5], []]),
    frames.Load(1, 2, 3, 4, 5, 6, 7, 8, 9, 0.25),
]  # fmt: skip
SIDES = [(frames.ToEngine, TO_ENGINE), (frames.FromEngine, FROM_ENGINE)]


def framed(body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + body


@pytest.mark.parametrize(("kind", "messages"), SIDES)
@pytest.mark.parametrize("size", [1, 3, 64, 1 << 16])
def test_messages_come_as_they_were_sent(kind: Any, messages: list[Any], size: int) -> None:
    data, decoder = b"".join(map(frames.encode, messages)), frames.Decoder(kind)
    found = [one for at in range(0, len(data), size) for one in decoder.push(data[at : at + size])]
    assert found == messages


@pytest.mark.parametrize("bad", [
    {"id": 1}, ["Abort"], ["Abort", -1], ["Abort", 2**60], ["Abort", "1"], ["Abort", 1, 2], ["Nothing", 1], [], None,
    ["Embed", 1, [None]], ["Embed", 1, [[-1]]], ["Generate", 1, "x", None, [["user", "x"]], None, 0, True, True],
    ["Generate", 1, "x", None, None, [1, 0.5, 0, 1.0, 0.0, None, [], 1.0, 0.0, 0.0, {}, 0, 129], 0, True, True],
    ["Refused", 1, "request", "of the other side"],
])  # fmt: skip
def test_what_fits_no_schema_ends_it(bad: Any) -> None:
    with pytest.raises(frames.FrameError, match="does not fit its schema"):
        list(frames.Decoder(frames.ToEngine).push(framed(msgspec.msgpack.encode(bad))))


@pytest.mark.parametrize("body", [
    b"", b"x", b"\xc1", b"\x91" * 100_000, b"\xdd\xff\xff\xff\xff", b"\xdb\xff\xff\xff\xff",
])  # fmt: skip
def test_what_is_no_messagepack_ends_it(body: bytes) -> None:
    """Nested deep, or with a length beyond what is there: nothing is allocated for that."""
    with pytest.raises(frames.FrameError, match="does not fit its schema"):
        list(frames.Decoder(frames.ToEngine).push(framed(body)))


def test_a_frame_beyond_the_limit_ends_it_before_it_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(frames.FrameError, match="over the limit"):
        list(frames.Decoder(frames.ToEngine).push(b"\xff\xff\xff\xff"))
    monkeypatch.setattr(frames, "MAX_FRAME", 100)
    with pytest.raises(frames.FrameError, match="over the limit of 100"):
        frames.encode(frames.Failed("code", "x" * 100))


@pytest.mark.parametrize(("kind", "messages"), SIDES)
def test_changed_bytes_are_messages_or_errors(kind: Any, messages: list[Any]) -> None:
    draw, whole = random.Random(0), b"".join(map(frames.encode, messages))
    ended = 0
    for _ in range(3000):
        data = bytearray(whole)
        for _ in range(draw.randrange(1, 4)):
            data[draw.randrange(len(data))] = draw.randrange(256)
        decoder = frames.Decoder(kind)
        try:
            for one in decoder.push(bytes(data)):
                assert isinstance(one, kind) and frames.encode(one)
        except frames.FrameError:
            ended += 1
    assert 1000 < ended < 3000
