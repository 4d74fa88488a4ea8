"""The key: how it is compared, and where it must not be seen."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest

from ingot.serve import app
from tests.serve.harness import MODEL, serving, until
from tools import key_timing

KEY = "sk-canary-93a1f07b55"
SAID = "canary_b1946ac92"


def test_keys_of_any_kind_are_compared() -> None:
    key = KEY.encode()
    assert app.same(key, key)
    for given in (
        b"",
        key[:-1],
        key + b"x",
        key * 1000,
        bytes([key[0] ^ 1]) + key[1:],
        "schlüssel".encode(),
        b"\xff" * 20,
    ):
        assert not app.same(given, key)


def test_a_comparison_that_tells_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A comparison that stops at the first wrong byte, by a clock that each byte moves on: the machine's own tells
    of its neighbours too, and would fail this test on a loaded machine."""
    clock = 0

    def leaky(given: bytes, key: bytes) -> bool:
        nonlocal clock
        for one, other in zip(given, key, strict=True):
            clock += 10
            if one != other:
                return False
        return True

    monkeypatch.setattr(key_timing, "BLOCKS", 3)
    monkeypatch.setattr(key_timing, "same", leaky)
    monkeypatch.setattr(key_timing, "perf_counter_ns", lambda: clock)
    rows = {str(row["kind"]): row["told"] for row in key_timing.told(key_timing.measured(5, 0))}
    assert rows == {
        "right in its first half": True,
        "right but for its last byte": True,
        "not ASCII": False,
        "wrong once more": False,
    }
    assert not any(row["told"] for row in key_timing.told({"a": [1.0, 2.0, 3.0], "b": [1.5, 2.0, 2.5]}))


def test_neither_key_nor_prompt_is_written_anywhere(tmp_path: Path) -> None:
    """Through requests that are good, wrong, cut off, and beside an engine process that dies: what the server writes,
    what its processes show, and what others are told."""
    path = tmp_path / "key"
    path.write_text(KEY + "\n")
    path.chmod(0o600)
    right = {"Authorization": f"Bearer {KEY}"}
    with serving("--api-key-file", path, "--chat-template", "plain") as server:
        body = {"model": MODEL, "prompt": f"{SAID} x", "max_tokens": 3}
        wrong = [{"model": SAID}, {"n": 0, "user": SAID}, {SAID: 1}, {"prompt": SAID * 9000}, {"stop": [SAID, 5]}]
        statuses = [server.post("/v1/completions", body | one, headers=right).status_code for one in ({}, *wrong)]
        assert statuses == [200, 404, 400, 400, 400, 400]
        assert server.post("/v1/completions", body, headers={"Authorization": f"Bearer {KEY}x"}).status_code == 401
        assert server.http.get(f"/{SAID}?key={KEY}", headers=right).status_code == 404
        chat = {"model": MODEL, "messages": [{"role": SAID, "content": SAID}], "max_tokens": 2}
        server.post("/v1/chat/completions", chat, headers=right)
        with server.connect() as half:
            half.sendall(f"POST /{SAID} HTTP/1.1\r\nAuthorization: Bearer {KEY}\r\n{SAID}\x00: 1\r\n\r\n".encode())
            half.recv(1 << 16)
        running = server.send("/v1/completions", body)  # without a key
        running.close()
        pids = (server.process.pid, server.engine_pid())
        for pid in pids:
            for name in ("cmdline", "environ"):
                assert KEY.encode() not in Path(f"/proc/{pid}/{name}").read_bytes()
            limit = re.search(r"Max core file size +(\S+)", Path(f"/proc/{pid}/limits").read_text())
            assert limit is not None and limit[1] in ("0", "1")
        os.kill(pids[1], signal.SIGSEGV)
        until(lambda: True if server.http.get("/health").json()["engine_restarts"] and server.http.get(
            "/ready").status_code == 200 else None)  # fmt: skip
        told = [
            server.http.get(other, headers=right).text
            for other in ("/metrics", "/health", "/v1/models", "/openapi.json")
        ]
    written = "".join(server.lines) + "".join(told)
    assert KEY not in written and KEY[:-1] not in written and SAID not in written
