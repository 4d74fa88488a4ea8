"""A server in a process of its own, as users start it, and plain ways to talk to it."""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from tests import kept

ROOT = Path(__file__).parents[2]
MODEL = "pico-python"
PATIENCE = 120.0  # seconds; the machine may be busy


class Running:
    """One server."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.lines: list[str] = []
        self._listens = threading.Event()
        self.url = ""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        if not self._listens.wait(PATIENCE) or not self.url:
            process.kill()
            raise AssertionError("the server does not listen:\n" + "".join(self.lines))
        self.port = int(self.url.rpartition(":")[2])
        self.http = httpx.Client(base_url=self.url, timeout=PATIENCE, trust_env=False)

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line)
            if line.startswith("serving "):
                self.url = line.split()[-1]
                self._listens.set()
        self._listens.set()

    def post(self, path: str, body: Any, **words: Any) -> httpx.Response:
        """Sends a body as JSON (bytes as they are)."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"} | words.pop("headers", {})
        return self.http.post(path, content=data, headers=headers, **words)

    def complete(self, prompt: Any = "import os", **words: Any) -> dict[str, Any]:
        """A completion that has to work; greedy unless said otherwise."""
        got = self.post("/v1/completions", {"model": MODEL, "prompt": prompt, "temperature": 0} | words)
        assert got.status_code == 200, got.text
        return dict(got.json())

    def metrics(self) -> dict[str, float]:
        """The metrics by name, labels included."""
        text = self.http.get("/metrics").text
        rows = (line.rpartition(" ") for line in text.splitlines() if not line.startswith("#"))
        return {name: float(value) for name, _, value in rows}

    def until(self, what: Callable[[dict[str, float]], bool]) -> dict[str, float]:
        """The metrics once they are so."""
        return until(lambda: found if what(found := self.metrics()) else None)

    def connect(self) -> socket.socket:
        """A bare connection."""
        return socket.create_connection(("127.0.0.1", self.port), PATIENCE)

    def send(self, path: str, body: Any) -> socket.socket:
        """A request on a connection of its own, whose answer nobody has read."""
        data = json.dumps(body).encode()
        found = self.connect()
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        found.sendall(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
        return found

    def engine_pid(self) -> int:
        """The engine process: the child that runs our worker."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        found = [int(pid) for pid in children if b"ingot.serve.worker" in Path(f"/proc/{pid}/cmdline").read_bytes()]
        assert len(found) == 1, children
        return found[0]

    def close(self) -> None:
        """Ends what is left of it."""
        self.http.close()
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._reader.join(PATIENCE)
        assert self.process.stdout is not None and self.process.stderr is not None
        self.process.stdout.close()
        self.process.stderr.close()

    def end(self, number: int = signal.SIGTERM) -> int:
        """Signals, waits; the exit code."""
        self.http.close()
        if self.process.poll() is None:
            self.process.send_signal(number)
        code = self.process.wait(PATIENCE)
        self._reader.join(PATIENCE)  # until the last line is there
        return code

    def says(self, text: str) -> str:
        """The first line of the log that holds this, once there is one."""
        return str(until(lambda: next((line for line in self.lines if text in line), None)))


def until(what: Callable[[], Any]) -> Any:
    """What `what` gives once that is something."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        if (found := what()) is not None:
            return found
        time.sleep(0.02)
    raise AssertionError("it did not come about in time")


def start(*words: object, source: Path | None = None, limits: Mapping[int, int] | None = None) -> Running:
    """`ingot serve` on a free port, of pico-python unless told otherwise; `limits`: what it gets of the system."""

    def limited() -> None:
        for which, most in (limits or {}).items():
            resource.setrlimit(which, (most, most))

    command = [sys.executable, "-m", "ingot", "serve", str(source or kept.pico()), "--port", "0", *map(str, words)]
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    environment = os.environ | {"PYTHONPATH": path, "PYTHONWARNINGS": "error"}
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, cwd=ROOT,
        preexec_fn=limited if limits else None,
    )  # fmt: skip
    return Running(process)


HURRIED = """
import sys
from ingot.serve import app, connection, engine_process, frames
{limits} = 0.5
from ingot.__main__ import main
sys.exit(main(sys.argv[1:]))
"""


def hurried(*limits: str, words: Sequence[object] = ()) -> Running:
    """A server with those limits of its modules at half a second. Nothing that needs time may be asked of it."""
    code = HURRIED.format(limits=" = ".join(limits))
    command = [sys.executable, "-c", code, "serve", str(kept.pico()), "--port", "0", *map(str, words)]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    return Running(process)


@contextmanager
def serving(*words: object, source: Path | None = None, limits: Mapping[int, int] | None = None) -> Iterator[Running]:
    """A server that ends well."""
    running = start(*words, source=source, limits=limits)
    try:
        yield running
        code = running.end()
        assert code == 0, "".join(running.lines)
        assert not any("Traceback" in line for line in running.lines), "".join(running.lines)
    finally:
        running.close()


def refused(*words: object, source: Path | None = None) -> str:
    """What `ingot serve` says, in a line, before it ends with exit code 2."""
    command = [sys.executable, "-m", "ingot", "serve", str(source or kept.pico()), "--port", "0", *map(str, words)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=PATIENCE, check=False)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr


def rest(connection: socket.socket) -> bytes:
    """Everything until the other side closes."""
    parts = []
    try:
        while part := connection.recv(1 << 16):
            parts.append(part)
    except ConnectionResetError:
        pass
    return b"".join(parts)
