"""The process that compiles kernels beside steps: what it is asked and says, and how it starts, fails and ends."""

from __future__ import annotations

import json
import logging
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from threading import Event, Thread
from types import SimpleNamespace
from typing import Any

import pytest

from ingot.backends.cuda import beside
from ingot.backends.cuda.beside import Beside
from ingot.backends.cuda.choice import Kind
from ingot.backends.cuda.steps import Size
from tests.backends.cuda.interpreted import WITHOUT

GREEDY = (Kind.GREEDY,)
SIZES = [Size(n, n, n, 64, True) for n in (1, 2, 4)]
HEAD = """
import json, os, signal, sys, time
def say(**said):
    os.write(1, bytes([30]) + json.dumps(said).encode() + bytes([10]))
"""
# In the place of the module: every step is one kernel.
ANSWERS = HEAD + """
first, messages, compiled = json.loads(sys.stdin.readline()), 0, 0
for line in sys.stdin:
    messages, compiled = messages + 1, compiled + len(json.loads(line)["steps"])
    say(messages=messages, compiled=compiled)
"""
NOTES = HEAD + """
first = json.loads(sys.stdin.readline())
place = first["place"]
said = {"pid": os.getpid(), "group": os.getpgid(0), "session": os.getsid(0), "parent": os.getppid(),
        "nice": os.nice(0), "path": sys.path, "environment": dict(os.environ), "line": json.loads(sys.stdin.readline())}
with open(place + "/part", "w") as file:
    json.dump(said, file)
os.rename(place + "/part", place + "/begun")
for line in sys.stdin:
    pass
open(place + "/ended", "w").close()
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Has another module run in the place of the one that compiles."""

    def write(text: str) -> None:
        (tmp_path / "instead_of_beside.py").write_text(text)

    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(beside, "MODULE", "instead_of_beside")
    return write


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Beside]:
    """One whose processes are told a folder."""
    found = Beside(lambda: {"place": str(tmp_path)}, lambda: "there")
    yield found
    found.close()
    found.wait()


def until(path: Path) -> Any:
    """What a file says, when it is there."""
    for _ in range(6000):
        if path.exists():
            return json.loads(path.read_text() or "null")
        Event().wait(0.01)
    raise AssertionError(f"{path} does not come")


def test_it_is_there_while_there_is_something_to_do(module: Any, made: Beside) -> None:
    """What was asked for once is not asked for again, of the same kind of choice."""
    module(ANSWERS)
    made.ask([], GREEDY, ["own"])
    assert not made._there
    made.ask(SIZES, GREEDY, [])
    (process,) = made._there
    made.wait()
    assert made.compiled == 3 and process._process.returncode == 0  # nothing is left of it
    made.ask(SIZES[:2], GREEDY, ["own"])
    assert not made._there
    made.ask(SIZES[:2], (Kind.TOP,), [])
    made.wait()
    assert made.compiled == 5


def test_nothing_is_lost_that_is_asked_for_while_it_ends(module: Any, made: Beside) -> None:
    module(ANSWERS)
    for count in range(1, 200):
        made.ask([Size(count, 1, 1, 64, False)], GREEDY, [])
        if count % 7 == 0:
            Event().wait(0.01)
    made.wait()
    assert made.compiled == 199


def test_what_it_prints_is_not_printed_here(
    module: Any, made: Beside, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    module(HEAD + "print('{1}', flush=True); print('two', end='', file=sys.stderr, flush=True)\n" + ANSWERS)
    with caplog.at_level(logging.DEBUG, "ingot.cuda"):
        made.ask(SIZES, GREEDY, [])
        made.wait()
    assert [r.getMessage().split(": ")[1] for r in caplog.records] == ["{1}", "two"] and made.compiled == 3
    assert capfd.readouterr() == ("", "")


def test_one_that_fails_is_said_once(module: Any, made: Beside, caplog: pytest.LogCaptureFixture) -> None:
    module("import sys\nsys.stdin.readline()\nraise ValueError('no network')")
    for size in SIZES:
        made.ask([size], GREEDY, [])
        made.wait()
    (said,) = caplog.messages
    assert "(status 1), so steps compile what they lack" in said and said.endswith("ValueError: no network")


def test_one_that_is_killed_is_said_once(module: Any, made: Beside, caplog: pytest.LogCaptureFixture) -> None:
    module(HEAD + "os.kill(os.getpid(), signal.SIGKILL)")
    made.ask(SIZES, GREEDY, [])
    made.wait()
    assert "(status -9)" in caplog.text
    made.ask(SIZES, (Kind.TOP,), [])
    assert not made._there and len(caplog.records) == 1


def test_what_is_printed_into_a_message(module: Any, made: Beside, caplog: pytest.LogCaptureFixture) -> None:
    """It is no message then, and those behind it are heard."""
    module(HEAD + "os.write(1, bytes([30]) + b'{\"mess ptxas warns\\n')\n" + ANSWERS)
    with caplog.at_level(logging.DEBUG, "ingot.cuda"):
        made.ask(SIZES, GREEDY, [])
        made.wait()
    (said,) = caplog.messages
    assert "ptxas warns" in said and made.compiled == 3


def test_kernels_that_fail_are_said(module: Any, made: Beside, caplog: pytest.LogCaptureFixture) -> None:
    """As a warning once."""
    module(HEAD + "say(failed='OSError: full'); say(failed='OSError: full')\n" + ANSWERS)
    with caplog.at_level(logging.INFO, "ingot.cuda"):
        made.ask(SIZES, GREEDY, [])
        made.wait()
    assert [r.levelname for r in caplog.records] == ["WARNING", "INFO"] and "OSError: full" in caplog.text
    assert made.compiled == 3


def raises(error: Exception) -> Callable[..., Any]:
    def fails(*words: Any, **more: Any) -> Any:
        raise error

    return fails


@pytest.mark.parametrize("why", ["none", "another program", "frozen", "limit", "threads", "one thread", "end"])
def test_where_it_cannot_start(
    module: Any, made: Beside, why: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is said once, nothing is started, and nobody waits."""
    module(ANSWERS)
    start, started = Thread.start, []

    def starts(thread: Thread) -> None:
        if len(started) == (why == "one thread"):
            raise RuntimeError("can't start new thread")
        started.append(start(thread))

    match why:
        case "none":
            monkeypatch.setattr(sys, "executable", None)
        case "another program":
            monkeypatch.setattr(sys, "executable", "/usr/sbin/httpd")
        case "frozen":
            monkeypatch.setattr(sys, "frozen", True, raising=False)
        case "end":
            monkeypatch.setattr(sys, "is_finalizing", lambda: True)
        case "limit":
            monkeypatch.setattr(subprocess, "Popen", raises(BlockingIOError(11, "Resource temporarily unavailable")))
        case _:
            monkeypatch.setattr(Thread, "start", starts)
    for kind in Kind:
        made.ask(SIZES, (kind,), [])
        made.wait()
    (said,) = caplog.messages
    assert "so steps compile what they lack: " in said
    wanted = {"limit": "Resource temporarily", "threads": "new thread", "one thread": "new thread", "end": "at its end"}
    assert wanted.get(why, "no Python interpreter") in said


def test_what_it_is_given(module: Any, made: Beside, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This process's modules, whatever else is in sys.path, and none of its folder; no GPU; a process group, so that
    Ctrl-C is not for it, in the same session, so that its priority counts."""
    module(NOTES)
    folder, colon = tmp_path / "folder", tmp_path / "co:lon"
    folder.mkdir()
    colon.mkdir()
    (folder / "json.py").write_text("raise ValueError('the wrong one')")
    (colon / "sitecustomize.py").write_text("raise ValueError('not for this one')")
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", ["", folder.parent, str(colon), *sys.path, b"bytes"])
    made.ask(SIZES[:2], GREEDY, ["key"])
    said = until(tmp_path / "begun")
    assert said["line"] == {"steps": [[1, 1, 1, 64, True], [2, 2, 2, 64, True]], "kinds": ["GREEDY"], "own": ["key"]}
    assert said["path"] == [str(colon), *sys.path[3:-1]] and said["nice"] == beside.NICE
    assert said["group"] == said["pid"] != os.getpgid(0) and said["session"] == os.getsid(0)
    assert said["environment"]["CUDA_VISIBLE_DEVICES"] == "" and said["environment"]["TRITON_CACHE_DIR"] == "there"
    made.close()
    made.close()
    made.wait()
    assert (tmp_path / "ended").exists()
    made.ask(SIZES, (Kind.TOP,), [])
    assert not made._there


def test_nobody_waits_until_it_listens(module: Any, tmp_path: Path) -> None:
    """Though what it is told is more than a pipe holds."""
    module(HEAD + f"while not os.path.exists({str(tmp_path / 'listen')!r}): time.sleep(0.01)\n" + ANSWERS)
    made = Beside(lambda: {"long": "x" * (1 << 20)}, lambda: "")
    made.ask(SIZES, GREEDY, [])
    (tmp_path / "listen").touch()
    made.wait()
    assert made.compiled == 3


def test_one_that_does_not_listen_holds_up_no_end(module: Any) -> None:
    module(HEAD + "os.close(0); time.sleep(0.5)")
    made = Beside(lambda: {"long": "x" * (1 << 20)}, lambda: "")
    made.ask(SIZES, GREEDY, [])
    made.close()
    made.wait()


PARENT = """
import os, sys, time
from ingot.backends.cuda import beside
from ingot.backends.cuda.choice import Kind
from ingot.backends.cuda.steps import Size
beside.MODULE = "instead_of_beside"
sys.path.insert(0, sys.argv[1])
made = beside.Beside(lambda: {"place": sys.argv[1]}, lambda: "")
made.ask([Size(1, 1, 1, 64, True)], (Kind.GREEDY,), [])
while not os.path.exists(sys.argv[1] + "/begun"):
    time.sleep(0.01)
"""


def test_what_python_is_not_to_look_for(module: Any, tmp_path: Path) -> None:
    """The other one does not either."""
    module(NOTES)
    (tmp_path / "sitecustomize.py").write_text("print('not asked for')")
    code = "import logging; logging.basicConfig(level=10)" + PARENT + "made.close(); made.wait()"
    done = subprocess.run([sys.executable, "-E", "-c", code, tmp_path], env={**os.environ, "PYTHONPATH": str(tmp_path)},
                          capture_output=True, text=True, timeout=60)  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "") and "not asked for" not in done.stderr, done.stderr
    until(tmp_path / "ended")


@pytest.mark.parametrize("end", ["", "del made", "made.close(); made.wait()", "os._exit(0)"])
def test_it_ends_with_its_owner(module: Any, tmp_path: Path, end: str) -> None:
    """Without a word, also where nobody has closed it."""
    module(NOTES)
    command = [sys.executable, "-W", "error", "-c", PARENT + end, tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    until(tmp_path / "ended")


@pytest.mark.parametrize("forks", [False, True])
def test_it_ends_when_its_owner_is_killed(module: Any, tmp_path: Path, forks: bool) -> None:
    """Also where a fork of that lives on, which has the same files."""
    module(NOTES)
    fork = (
        "if not os.fork():\n    made.ask([Size(2, 2, 2, 64, True)], (Kind.GREEDY,), [])\n    made.wait()\n"
        "    made.close()\n    open(sys.argv[1] + '/forked', 'w').close()\n    time.sleep(60)\n"
    )
    code = PARENT + fork * forks + "time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", code, tmp_path], start_new_session=True) as process:
        said = until(tmp_path / "begun")
        assert said["parent"] == process.pid
        if forks:
            until(tmp_path / "forked")
        process.kill()
        process.wait()
        try:
            until(tmp_path / "ended")
        finally:
            if forks:
                os.killpg(process.pid, signal.SIGKILL)


# ---------------------------------------------------------------------------------------------- inside of the process


class Ahead:
    """In the place of what foresees: steps launch a kernel of their own, and one that all have."""

    def missing(self, size: Size, kinds: Any) -> list[Any]:
        if size.tokens == 4:
            raise OSError("no room")
        return [SimpleNamespace(key="all"), SimpleNamespace(key=f"{size.tokens}")]


def test_each_kernel_is_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """And none that the other process compiles, or has compiled; what fails is said."""
    process: Any = pytest.importorskip("ingot.backends.cuda.beside_process", reason=WITHOUT)
    compiled, said, done = [], [], Event()

    def say(**message: Any) -> None:
        said.append(message)
        if message.get("messages") == 2:
            done.set()

    monkeypatch.setattr(process, "taken", lambda source: source.key == "8")
    monkeypatch.setattr(process, "compiled", lambda source: compiled.append(source.key))
    work = process.Work(Ahead(), say)
    sizes = [[n, n, n, 64, True] for n in (1, 2, 4, 8, 16)]
    work.take({"steps": sizes, "kinds": ["GREEDY", "TOP"], "own": ["2", "16"]})
    work.take({"steps": [], "kinds": [], "own": ["16"]})
    assert done.wait(60)
    work.end()
    assert sorted(compiled) == ["1", "all"]
    assert {"failed": "OSError: no room"} in said and said[-1] == {"messages": 2, "compiled": 2}


def test_an_error_is_said_in_one_piece() -> None:
    """However long it is, and in characters of 12 bytes in JSON."""
    process: Any = pytest.importorskip("ingot.backends.cuda.beside_process", reason=WITHOUT)
    reads, writes = os.pipe()
    work = process.Work(SimpleNamespace(missing=raises(OSError("\U0001f600" * 5000))), partial(process._say, writes))
    work.take({"steps": [[1, 1, 1, 64, True]], "kinds": [], "own": []})
    with open(reads, "rb") as said:
        line = said.readline()
    work.end()
    os.close(writes)
    assert b"failed" in line and len(line) <= select.PIPE_BUF


def test_what_has_begun_is_done_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    process: Any = pytest.importorskip("ingot.backends.cuda.beside_process", reason=WITHOUT)
    begun, free, compiled = Event(), Event(), []
    monkeypatch.setattr(process, "COMPILERS", 1)
    monkeypatch.setattr(process, "taken", lambda source: False)
    monkeypatch.setattr(process, "compiled", lambda s: (begun.set(), free.wait(60), compiled.append(s.key)))
    work = process.Work(Ahead(), lambda **said: None)
    work.take({"steps": [[1, 1, 1, 64, True], [2, 2, 2, 64, True]], "kinds": [], "own": []})
    assert begun.wait(60)
    ending = Thread(target=work.end)
    ending.start()
    while not work._compilers._shutdown:
        assert ending.is_alive()
    free.set()
    ending.join()
    assert compiled == ["all"]


def test_without_threads_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rather than to take what it will not do."""
    process: Any = pytest.importorskip("ingot.backends.cuda.beside_process", reason=WITHOUT)
    monkeypatch.setattr(Thread, "start", raises(RuntimeError("can't start new thread")))
    with pytest.raises(RuntimeError, match="new thread"):
        process.Work(Ahead(), lambda **said: None)


def test_a_kernel_that_does_not_compile_is_said_and_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    process: Any = pytest.importorskip("ingot.backends.cuda.beside_process", reason=WITHOUT)
    steps_ahead = sys.modules[process.compiled.__module__]
    said, done = [], Event()

    def say(**message: Any) -> None:
        said.append(message)
        if "messages" in message:
            done.set()

    def fails(source: Any, **more: Any) -> None:
        if source == "1":
            raise RuntimeError("ptxas: too many registers")

    sources = [SimpleNamespace(key=key, source=key, target=None, options=SimpleNamespace()) for key in ("1", "all")]
    monkeypatch.setattr(steps_ahead.triton, "compile", fails)
    monkeypatch.setattr(process, "taken", lambda source: False)
    work = process.Work(SimpleNamespace(missing=lambda size, kinds: sources), say)
    work.take({"steps": [[1, 1, 1, 64, True]], "kinds": [], "own": []})
    assert done.wait(60)
    work.end()
    assert said == [{"failed": "RuntimeError: ptxas: too many registers"}, {"messages": 1, "compiled": 1}]
    assert steps_ahead.side_by_side(sources) == 1  # before a step its launch says it


# ------------------------------------------------------------------------------------------------ what a step waits for
LATE = """
import threading
from ingot.backends.cuda import steps_ahead
steps_ahead.compiled = lambda source: None
def late():
    threading.main_thread().join()
    threading.Event().wait(0.2)
    print(steps_ahead.side_by_side([1, 2]))
threading.Thread(target=late).start()
"""


def test_a_step_after_the_main_thread_has_ended() -> None:
    """Python lets nobody start threads of a pool then: the step's launches compile."""
    pytest.importorskip("ingot.backends.cuda.steps_ahead", reason=WITHOUT)
    done = subprocess.run([sys.executable, "-c", LATE], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "0\n", "")
