"""What goes wrong around a server: clients that leave or dawdle, an engine that dies, a full queue, little memory."""

from __future__ import annotations

import base64
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from ingot.llm.llm import LLM
from ingot.serve import connection as limits
from ingot.serve import frames
from ingot.serve import server as serve
from tests import kept
from tests.cli.command import ingot
from tests.kept import PICO
from tests.serve.harness import MODEL, PATIENCE, ROOT, Running, hurried, refused, rest, serving, start, until

TEXT = "/v1/completions"
LONG: dict[str, Any] = {  # as many tokens as the server gives, and no end before
    "model": MODEL, "prompt": "import os", "max_tokens": 100_000, "temperature": 0, "logit_bias": {"0": -100},
}  # fmt: skip
STREAM = LONG | {"stream": True}
ROOM = ("--kv-memory", "256MiB")


@pytest.fixture(scope="module")
def slow() -> Path:
    """A model that is still writing LONG's answer when a test ends."""
    return kept.endless()


RUNNING, WAITING = 8, 3  # what `endless` takes


@pytest.fixture(scope="module")
def endless(slow: Path) -> Iterator[Running]:
    """A server of that model. Metrics count from its start on."""
    with serving(*ROOM, "--max-running", RUNNING, "--max-queue", WAITING, source=slow) as server:
        yield server


@pytest.fixture(scope="module")
def plain() -> Iterator[Running]:
    """A server of pico-python, without a word more."""
    with serving() as server:
        yield server


def first_bytes(connection: socket.socket) -> bytes:
    """What comes until the first event of a stream is there."""
    got = b""
    while b"\ndata: " not in got:
        part = connection.recv(1 << 16)
        assert part, got
        got += part
    return got


def idle(metrics: dict[str, float]) -> bool:
    return not (metrics["ingot_requests_running"] or metrics["ingot_queue_depth"] or metrics["ingot_kv_blocks_used"])


def test_clients_that_leave_end_their_requests(endless: Running) -> None:
    before = endless.metrics()["ingot_client_disconnects_total"]
    for stream in (True, False):
        leaving = [endless.send(TEXT, LONG | {"stream": stream, "prompt": f"# {i}"}) for i in range(RUNNING)]
        if stream:
            for connection in leaving:
                first_bytes(connection)
        else:
            endless.until(lambda m: m["ingot_requests_running"] == RUNNING)
        for connection in leaving:
            connection.close()
        endless.until(idle)
    assert endless.metrics()["ingot_client_disconnects_total"] - before == 2 * RUNNING
    assert endless.complete(max_tokens=5)["usage"]["completion_tokens"] == 5


def all_running(server: Running) -> list[socket.socket]:
    """As many answers as are computed at once, all of them under way."""
    running = [server.send(TEXT, STREAM | {"prompt": f"# {i}"}) for i in range(RUNNING)]
    for connection in running:
        first_bytes(connection)
    return running


def test_clients_that_leave_while_they_wait(endless: Running) -> None:
    running = all_running(endless)
    waiting = [endless.send(TEXT, LONG | {"prompt": f"# {i}"}) for i in range(WAITING)]
    endless.until(lambda m: m["ingot_queue_depth"] == WAITING)
    for connection in waiting:
        connection.close()
    endless.until(lambda m: m["ingot_queue_depth"] == 0)
    for connection in running:
        connection.close()
    endless.until(idle)


def test_a_client_that_does_not_read_delays_nobody(plain: Running) -> None:
    server, before = plain, plain.metrics()["ingot_steps_total"]
    with socket.socket() as lazy:
        lazy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        lazy.connect(("127.0.0.1", server.port))
        data = json.dumps(STREAM | {"n": 16, "temperature": 1, "max_tokens": 400}).encode()
        head = f"POST {TEXT} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        lazy.sendall(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
        server.until(lambda m: m["ingot_steps_total"] > before)
        assert server.complete(max_tokens=5)["usage"]["completion_tokens"] == 5
        # All is computed, though nobody reads.
        server.until(lambda m: m["ingot_steps_total"] >= before + 400 and m["ingot_requests_running"] == 0)
        lazy.close()
        server.until(idle)


def test_a_killed_engine_is_started_again(slow: Path) -> None:
    with serving(*ROOM, "--max-running", 2, source=slow) as server, ThreadPoolExecutor(4) as pool:
        before = server.complete(max_tokens=20)
        streamed = server.send(TEXT, STREAM)
        first_bytes(streamed)
        waiting = [pool.submit(server.post, TEXT, LONG | {"prompt": f"# {i}"}) for i in range(4)]
        server.until(lambda m: m["ingot_queue_depth"] == 3)
        os.kill(server.engine_pid(), signal.SIGKILL)
        for future in waiting:
            got = future.result()
            assert (got.status_code, got.json()["error"]["code"]) == (503, "engine_down")
            assert int(got.headers["retry-after"]) >= 1
        tail = rest_of_stream(streamed)
        assert json.loads(tail[-1])["error"]["code"] == "engine_down"  # and no [DONE]
        health = until(lambda: got if (got := server.http.get("/health").json())["engine_restarts"] else None)
        assert health["engine_restarts"] == 1
        until(lambda: server.http.get("/ready").status_code == 200 or None)
        metrics = server.metrics()
        assert (metrics["ingot_engine_restarts_total"], metrics["ingot_engine_up"]) == (1, 1)
        assert server.complete(max_tokens=20)["choices"] == before["choices"]
        server.until(idle)
        assert server.says("started again")


def rest_of_stream(connection: socket.socket) -> list[bytes]:
    """The data of the events up to the end of a chunked answer, which must have one."""
    got = b""
    with connection:
        while not got.endswith(b"0\r\n\r\n"):
            part = connection.recv(1 << 16)
            assert part, got[-200:]
            got += part
    return [line[6:] for line in got.split(b"\n") if line.startswith(b"data: ")]


def test_health_tells_of_an_engine_that_is_down(tmp_path: Path) -> None:
    path, away = tmp_path / f"{MODEL}.ingot", tmp_path / "away"
    shutil.copyfile(kept.pico(), path)
    with serving(source=path) as server:
        path.rename(away)  # so that it cannot be started again for a while
        os.kill(server.engine_pid(), signal.SIGKILL)
        seen = until(lambda: got if (got := server.http.get("/health")).status_code == 503 else None)
        assert seen.json()["status"] == "engine_down"
        got = server.post(TEXT, LONG)
        assert (got.status_code, got.json()["error"]["code"]) == (503, "engine_down")
        assert server.says("does not start")
        away.rename(path)
        until(lambda: server.http.get("/health").status_code == 200 or None)
        assert server.complete(max_tokens=5)["usage"]["completion_tokens"] == 5


def test_an_engine_killed_again_and_again(plain: Running) -> None:
    before = plain.metrics()["ingot_engine_restarts_total"]
    for i in range(2):
        os.kill(plain.engine_pid(), signal.SIGKILL)
        plain.until(lambda m, i=i: m["ingot_engine_restarts_total"] == before + i + 1 and m["ingot_engine_up"] == 1)
    assert plain.complete(max_tokens=5)["usage"]["completion_tokens"] == 5


def test_a_full_queue(endless: Running) -> None:
    server = endless
    with ThreadPoolExecutor(WAITING) as pool:
        running = all_running(server)
        waiting = [server.send(TEXT, STREAM | {"prompt": f"# {i}", "max_tokens": 20}) for i in range(WAITING)]
        server.until(lambda m: m["ingot_queue_depth"] == WAITING and m["ingot_requests_running"] == RUNNING)
        for body in (LONG, STREAM, LONG | {"n": 2}):
            got = server.post(TEXT, body)
            assert (got.status_code, got.json()["error"]["type"]) == (429, "rate_limit_error"), got.text
            assert 1 <= int(got.headers["retry-after"]) <= 60
        for path in ("/health", "/ready", "/v1/models"):
            assert server.http.get(path).status_code == 200
        for connection in running:
            connection.close()
        assert all(tail[-1].strip() == b"[DONE]" for tail in pool.map(rest_of_stream, waiting))
        assert server.post(TEXT, LONG | {"max_tokens": 2}).status_code == 200
        server.until(idle)


def test_too_few_blocks_for_all() -> None:
    """Every request is preempted at some time; the answers are those they give alone, and no block is lost."""
    words: dict[str, Any] = {"max_tokens": 120, "logit_bias": {"0": -100}}
    with LLM(PICO) as llm:
        alone = llm.generate([f"# {i}\nimport" for i in range(12)], max_tokens=120, logit_bias={0: -100})
    wanted = [one.text for one in alone]
    with serving("--kv-memory", "1MiB") as server, ThreadPoolExecutor(12) as pool:
        assert server.metrics()["ingot_kv_blocks"] < 12 * 8
        for _ in range(50):  # a slow client may let the requests come one after the other, and then nobody has to go
            found = pool.map(lambda i: server.complete(f"# {i}\nimport", **words)["choices"][0]["text"], range(12))
            assert list(found) == wanted
            if server.until(idle)["ingot_preemptions_total"]:
                break
        assert server.metrics()["ingot_preemptions_total"] > 0


def test_a_prompt_beyond_the_whole_cache() -> None:
    with serving("--kv-memory", "256KiB") as server:
        room = 16 * int(server.until(lambda m: m["ingot_kv_blocks"] > 0)["ingot_kv_blocks"])
        assert room < 1000
        for words in ({}, {"stream": True}):
            got = server.post(TEXT, LONG | {"prompt": [1] * room, "max_tokens": 2} | words)
            assert (got.status_code, got.json()["error"]["code"]) == (400, "context_length_exceeded")
        assert server.complete([1] * (room - 2), max_tokens=2)["usage"]["completion_tokens"] == 2
        server.until(idle)


def test_a_client_that_leaves_while_its_prompt_is_read(endless: Running) -> None:
    prompt = [i % 1000 for i in range(100_000)]
    before = endless.metrics()["ingot_generated_tokens_total"]
    for stream in (True, False):
        steps = endless.metrics()["ingot_steps_total"]
        reading = endless.send(TEXT, LONG | {"prompt": prompt, "stream": stream})
        endless.until(lambda m, steps=steps: m["ingot_steps_total"] > steps + 1)
        reading.close()
        seen = endless.until(idle)
        assert seen["ingot_steps_total"] - steps < len(prompt) / 512, "the prompt was read to its end"
    assert endless.metrics()["ingot_generated_tokens_total"] == before
    assert endless.complete(max_tokens=3)["usage"]["completion_tokens"] == 3


def test_a_client_that_leaves_after_its_answer(plain: Running) -> None:
    name, before = f'ingot_requests_total{{route="{TEXT}",status="200"}}', plain.metrics()
    for stream in (True, False):
        wanted = before.get(name, 0) + 2 - stream
        whole = plain.send(TEXT, STREAM | {"max_tokens": 3, "stream": stream})
        plain.until(lambda m, wanted=wanted: m.get(name, 0) == wanted)
        whole.close()
    assert plain.until(idle)["ingot_client_disconnects_total"] == before["ingot_client_disconnects_total"]


def test_sigterm_lets_running_answers_end() -> None:
    with serving("--drain", 100) as server:
        engine = server.engine_pid()
        os.kill(engine, signal.SIGSTOP)  # the answer takes as long as the checks
        running = server.send(TEXT, STREAM)
        waiting = server.connect()  # under the limit of idle connections: it is there before the end begins
        server.until(lambda m: m["ingot_queue_depth"] + m["ingot_requests_running"] == 1)
        server.process.send_signal(signal.SIGTERM)
        assert server.says("shutting down")
        waiting.sendall(b"GET /ready HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        assert b" 503 " in (got := rest(waiting)) and b"draining" in got
        waiting.close()
        assert server.post(TEXT, LONG).json()["error"]["code"] == "draining"
        os.kill(engine, signal.SIGCONT)
        assert rest_of_stream(running)[-1].strip() == b"[DONE]"


def test_the_end_does_not_wait_for_ever(slow: Path) -> None:
    with serving(*ROOM, "--drain", 0.2, source=slow) as server:
        connections = [server.send(TEXT, STREAM | {"prompt": f"# {i}"}) for i in range(4)]
        first_bytes(connections[0])
        assert server.end() == 0
        assert any("cut off" in line for line in server.lines)
        for connection in connections:
            connection.close()


def test_who_is_told_the_address_can_connect() -> None:
    seen: list[str] = []

    def announce(address: str, _: list[str]) -> None:
        with socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2])), PATIENCE):
            seen.append(address)
        os.kill(os.getpid(), signal.SIGTERM)

    model = frames.Start(str(kept.pico()), None, None, "cpu", 1, None, None, 1, True, None, None, None)
    done = serve.Server(serve.Options(model, "127.0.0.1", 0, MODEL), announce).run()
    assert len(seen) == 1 and not done["interrupted"]


def test_ctrl_c_ends_with_130() -> None:
    running = start("--json")
    try:
        engine = running.engine_pid()
        assert running.end(signal.SIGINT) == 130
        assert running.process.stdout is not None
        done = json.loads(running.process.stdout.read())
        assert done["schema"] == 1 and set(done) == {"schema", "requests", "engine_restarts", "seconds"}
        until(lambda: True if not Path(f"/proc/{engine}").exists() else None)
    finally:
        running.close()


def test_the_engine_ends_with_its_server() -> None:
    running = start()
    try:
        engine = running.engine_pid()
        os.kill(running.process.pid, signal.SIGKILL)
        until(lambda: True if not Path(f"/proc/{engine}").exists() else None)
    finally:
        running.close()


def test_two_servers_on_one_port() -> None:
    """Both are bound to it while they load; the first to listen has it, and the other says so."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    command = [sys.executable, "-m", "ingot", "serve", str(kept.pico()), "--port", port]
    both = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=ROOT) for _ in range(2)]
    try:
        until(lambda: next((one for one in both if one.poll() is not None), None))
        (lost,) = [one for one in both if one.poll() is not None]
        assert lost.stderr is not None
        assert (lost.returncode, lost.stderr.read().splitlines()[-1]) == (
            2, f"ingot: error: cannot listen on 127.0.0.1 port {port}: Address already in use: another program listens "
            "there, so give another --port")  # fmt: skip
    finally:
        for one in both:
            one.kill()
            one.communicate()


ORPHAN = """
import subprocess, sys
begin = "from ingot.serve.worker import end_with_parent; end_with_parent(); print(flush=True); "
with subprocess.Popen([sys.executable, "-c", begin + "sum(range(10 ** 12))"], stdout=subprocess.PIPE) as child:
    child.stdout.readline()
    print(child.pid, flush=True)
"""


def test_a_call_that_never_comes_back_ends_with_the_parent() -> None:
    with subprocess.Popen([sys.executable, "-c", ORPHAN], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        parent.kill()
    until(lambda: True if not Path(f"/proc/{child}").exists() else None)


# ---------------------------------------------------------------------------------------------------------------
# keys

KEY = "sk-0123456789abcdef"
GETS = ("/", "/page.js", "/page.css", "/v1/models", f"/v1/models/{MODEL}", "/metrics", "/openapi.json", "/nowhere")
POSTS = (TEXT, "/v1/chat/completions", "/v1/responses", "/v1/embeddings")


def before_a_start(*words: object) -> str:
    """What is refused before there is a server, and so in this process."""
    return ingot("serve", kept.pico(), *words, code=2).stderr


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    path = tmp_path / "key"
    path.write_text(KEY + "\n")
    path.chmod(0o600)
    return path


def test_the_key_guards_every_route(key_file: Path) -> None:
    basic = base64.b64encode(f"user:{KEY}".encode()).decode()
    wrong = (
        "", "Bearer", f"Bearer {KEY}x", f"Bearer {KEY[:-1]}", f"bearer{KEY}", KEY, f"Token {KEY}", "Basic !",
        "Basic " + base64.b64encode(KEY.encode()).decode(), "Basic " + base64.b64encode(b"user:").decode(),
    )  # fmt: skip
    with serving("--api-key-file", key_file) as server:
        for path in ("/health", "/ready"):
            assert server.http.get(path).status_code == 200
        for header in wrong:
            headers = {"Authorization": header} if header else {}
            for path in GETS:
                got = server.http.get(path, headers=headers)
                assert (got.status_code, got.json()["error"]["code"]) == (401, "invalid_api_key"), (path, header)
                assert got.headers["www-authenticate"]
            for path in POSTS:
                assert server.post(path, LONG, headers=headers).status_code == 401, (path, header)
        for header in (f"Bearer {KEY}", f"bearer {KEY}", f"Basic {basic}"):
            assert server.http.get("/v1/models", headers={"Authorization": header}).status_code == 200
            assert server.http.get("/", headers={"Authorization": header, "Host": "any"}).status_code == 200
            got = server.post(TEXT, LONG | {"max_tokens": 2}, headers={"Authorization": header})
            assert got.status_code == 200
        assert not any(said in line for line in server.lines for said in (KEY, basic, str(LONG["prompt"])))


@pytest.mark.parametrize(("text", "mode", "says"), [
    ("", 0o600, "must hold one key"), ("short\n", 0o600, "must hold one key"),
    ("a key with spaces", 0o600, "must hold one key"),
    (f"{KEY}\n{KEY}\n", 0o600, "must hold one key"), ("x" * 2000, 0o600, "must hold one key"),
    ("schlüssel-schlüssel", 0o600, "must hold one key"), (KEY, 0o666, "can be written by others"),
])  # fmt: skip
def test_bad_key_files(tmp_path: Path, text: str, mode: int, says: str) -> None:
    path = tmp_path / "key"
    path.write_text(text)
    path.chmod(mode)
    assert says in before_a_start("--api-key-file", path)


def test_key_files_that_are_none(tmp_path: Path) -> None:
    assert "No such file" in refused("--api-key-file", tmp_path / "nothing")
    os.mkfifo(tmp_path / "pipe")
    assert "no regular file" in before_a_start("--api-key-file", tmp_path / "pipe")
    assert "Is a directory" in before_a_start("--api-key-file", tmp_path)


# ---------------------------------------------------------------------------------------------------------------
# what is refused at the start


def test_bad_starts(tmp_path: Path) -> None:
    assert "nothing-here" in refused(source=tmp_path / "nothing-here")
    assert "65535" in before_a_start("--port", 70000)
    template = tmp_path / "template"
    template.write_text("{% for %}")
    assert "template" in refused("--chat-template", template)
    template.write_bytes(b"\xff")
    assert "UTF-8" in refused("--chat-template", template)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert "cannot listen" in refused("--port", taken.getsockname()[1])


def test_a_model_without_a_template_does_not_chat(plain: Running) -> None:
    got = plain.post("/v1/chat/completions", {"model": MODEL, "messages": [{"role": "user", "content": "x"}]})
    assert (got.status_code, got.json()["error"]["code"]) == (501, "unsupported")


HOSTILE = (
    "{% for i in range(10000) %}{% for j in range(10000) %}x{% endfor %}{% endfor %}",
    "{{ ''.__class__.__mro__ }}", "{{ 'x' * 1000000000 }}", "{{ raise_exception('no') }}",
)  # fmt: skip


def test_hostile_templates_fail_their_requests_only(tmp_path: Path) -> None:
    """A template for each word that a user may say."""
    path = tmp_path / "template"
    said = [f"{{% if messages[0].content == '{i}' %}}{text}{{% endif %}}" for i, text in enumerate(HOSTILE)]
    path.write_text("".join(said) + "{{ messages[0].content }}")
    with serving("--chat-template", path) as server:

        def chat(text: str) -> int:
            body = {"model": MODEL, "messages": [{"role": "user", "content": text}], "max_tokens": 3}
            return int(server.post("/v1/chat/completions", body).status_code)

        for i, text in enumerate(HOSTILE):
            assert chat(str(i)) == 400, text
            assert server.complete(max_tokens=3)["usage"]["completion_tokens"] == 3
            assert chat("x") == 200, text


# ---------------------------------------------------------------------------------------------------------------
# clients that take their time: the limits are made short

HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


def test_clients_that_send_slowly_are_cut_off() -> None:
    server = hurried("connection.HEADER_SECONDS", "app.BODY_SECONDS")
    try:
        assert limits.HEADER_SECONDS > 1  # ours are not those of the server under test
        with server.connect() as silent, server.connect() as drip, server.connect() as body:
            stop = threading.Event()
            dripping = threading.Thread(target=drip_headers, args=(drip, stop))
            dripping.start()
            try:
                body.sendall(HEAD + b"Content-Length: 100\r\n\r\n{")
                for connection in (silent, drip, body):
                    assert rest(connection).startswith(b"HTTP/1.1 408 ")
            finally:
                stop.set()
                dripping.join()
        assert server.end() == 0
    finally:
        server.close()


def test_a_client_that_reads_nothing_is_cut_off() -> None:
    server = hurried("connection.SEND_SECONDS")
    try:
        with socket.socket() as lazy:
            lazy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            lazy.connect(("127.0.0.1", server.port))
            data = json.dumps(STREAM | {"n": 16, "temperature": 1, "logprobs": 20}).encode()
            lazy.sendall(HEAD + f"Content-Length: {len(data)}\r\n\r\n".encode() + data)
            server.until(lambda m: m["ingot_client_disconnects_total"] == 1)  # more than the kernel's buffers hold
            server.until(idle)
        assert server.complete(max_tokens=3)["usage"]["completion_tokens"] == 3
        assert server.end() == 0
    finally:
        server.close()


def drip_headers(connection: socket.socket, stop: threading.Event) -> None:
    """A byte at a time, for ever."""
    try:
        connection.sendall(b"GET / HTTP/1.1\r\nX: ")
        while not stop.is_set():
            connection.sendall(b"y")
            time.sleep(0.05)
    except OSError:  # cut off
        return
