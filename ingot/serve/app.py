"""The routes: what is answered to whom. Nothing here computes; that is the engine process's part."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import itertools
import logging
import struct
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from importlib import resources
from time import monotonic
from typing import Any, Protocol, TypeVar

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ingot.serve import frames, schema
from ingot.serve.answers import Reply
from ingot.serve.connection import AT_ONCE
from ingot.serve.engine_process import ClientGone, EngineProcess, Ticket
from ingot.serve.metrics import TYPE, Metrics
from ingot.serve.openapi import description
from ingot.serve.problem import Problem
from ingot.serve.responses import ResponseReply, ResponsesRequest, response

ENGINE_ROUTES = ("/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/embeddings")
OPEN_ROUTES = ("/health", "/ready")  # need no key
MIN_BODY = 1 << 20  # bytes
BODY_PER_TOKEN = 16  # bytes of a body for each token of context, where that is more
MAX_ROWS = 200  # of the table of running requests
BODY_SECONDS = 30.0  # for a body to come
NO_TEMPLATE = (
    "this model has no chat template: use /v1/completions, or start the server with --chat-template plain, a built-in "
    "one, or --chat-template FILE"
)
LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
_PAGE_FILES = {
    "": ("index.html", "text/html"),
    "page.css": ("page.css", "text/css"),
    "page.js": ("page.js", "text/javascript"),
    "markdown.js": ("markdown.js", "text/javascript"),
    "marked.js": ("marked.js", "text/javascript"),
    "status": ("status.html", "text/html"),
    "status.js": ("status.js", "text/javascript"),
    "icon.svg": ("icon.svg", "image/svg+xml"),
}
_SAFE = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
)
_CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)

J = TypeVar("J", bound=schema.Job)
log = logging.getLogger("ingot.serve")


@dataclass(frozen=True)
class Settings:
    """How the HTTP side behaves.

    Attributes:
        model: the name that requests give.
        key: what guards every route but `OPEN_ROUTES`; None: nothing does.
        hosts: names under which it may be asked; None: any.
        chat_stop: strings that end an answer in a chat, for a template without an end token.
        trace: whether answers tell where their time went.
        any_model: whether requests may give any name.
    """

    model: str
    key: bytes | None
    hosts: tuple[str, ...] | None
    chat_stop: tuple[str, ...] = ()
    trace: bool = False
    any_model: bool = False


class App:
    """The server's state, and its routes as methods."""

    def __init__(self, engine: EngineProcess, settings: Settings, now: int) -> None:
        self.engine = engine
        self.settings = settings
        self.metrics = Metrics()
        self.draining = False
        self.active = 0  # requests that are being answered by the engine
        self._since = now
        self._replies: dict[Reply, str] = {}  # under way, with their routes
        routes = [
            Route("/v1/models", self.models, methods=["GET"]),
            Route("/v1/models/{model:path}", self.model, methods=["GET"]),
            Route("/v1/completions", self.completions, methods=["POST"]),
            Route("/v1/chat/completions", self.chat, methods=["POST"]),
            Route("/v1/responses", self.responses, methods=["POST"]),
            Route("/v1/embeddings", self.embeddings, methods=["POST"]),
            Route("/health", self.health, methods=["GET"]),
            Route("/ready", self.is_ready, methods=["GET"]),
            Route("/status.json", self.running, methods=["GET"]),
            Route("/metrics", self.prometheus, methods=["GET"]),
            Route("/openapi.json", self.openapi, methods=["GET"]),
            *(Route(f"/{name}", self.page, methods=["GET"], name=name or "page") for name in _PAGE_FILES),
        ]
        handlers: dict[Any, Any] = {
            Problem: _problem, HTTPException: self._no_route, ClientDisconnect: _left, Exception: _fault,
        }  # fmt: skip
        self._routes = {route.path for route in routes}
        self._app = Starlette(routes=routes, exception_handlers=handlers)
        self._app.router.redirect_slashes = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Checks who asks, counts, and adds the headers of every answer."""
        path, status = scope["path"], 0

        async def noting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], *_SAFE]
            await send(message)

        app: ASGIApp = self._app
        try:
            self._guard(scope)
            if path in ENGINE_ROUTES and scope["method"] == "POST" and not self.draining:
                self.engine.admit(1, "n")  # here, where a refusal costs least
        except Problem as problem:
            app = _response(problem)
        begin = monotonic()
        try:
            await app(scope, receive, noting)
        finally:
            route = path if path in self._routes else "other"
            self.metrics.requests[route, status] += 1
            client = scope["client"][0] if scope.get("client") else "-"
            took = monotonic() - begin
            log.info("%s %s %s %d %.4f s%s", client, scope["method"], route, status, took, scope.get("trace", ""))

    def _guard(self, scope: Scope) -> None:
        """Raises Problem for a client without the key, or one that was led here under another name."""
        headers = dict(scope["headers"])
        if self.settings.hosts is not None:
            host = headers.get(b"host", b"").decode("latin-1").lower()
            name = host if host.endswith("]") else host.rpartition(":")[0] or host
            if name not in self.settings.hosts:
                raise Problem(421, "this server is asked by another name than its own", "wrong_host")
        if self.settings.key is None or scope["path"] in OPEN_ROUTES:
            return
        kind, _, given = headers.get(b"authorization", b"").partition(b" ")
        if kind.lower() == b"basic":  # a browser's; the name before the colon does not matter
            try:
                given = base64.b64decode(given, validate=True).partition(b":")[2]
            except ValueError:
                given = b""
        if kind.lower() not in (b"bearer", b"basic") or not same(given.strip(), self.settings.key):
            raise Problem(401, "the API key is missing or wrong: send Authorization: Bearer KEY", "invalid_api_key")

    # What costs nothing.

    async def health(self, _: Request) -> Response:
        """Whether the engine is there."""
        state = self.engine.state
        body = {"status": state, "engine_restarts": self.engine.restarts, "engine_hangs": self.engine.hangs}
        return _json(body, 200 if state == "ok" else 503)

    async def is_ready(self, _: Request) -> Response:
        """Whether new requests are taken."""
        ready = self.engine.ready is not None and not self.draining
        state = "ready" if ready else "draining" if self.draining else self.engine.state
        return _json({"status": state}, 200 if ready else 503)

    async def prometheus(self, _: Request) -> Response:
        """The metrics."""
        return Response(self.metrics.text(self.engine), headers={"content-type": TYPE.decode()})

    async def running(self, _: Request) -> Response:
        """The requests that are being answered, oldest first, and how fast."""
        now, load = monotonic(), self.engine.load
        found = [reply.progress(route, now) for reply, route in itertools.islice(self._replies.items(), MAX_ROWS)]
        body = {
            "status": self.engine.state, "model": self.settings.model, "requests": found,
            "left_out": len(self._replies) - len(found), "running": 0 if load is None else load.running,
            "waiting": self.engine.waiting, "tokens_per_s": sum(one["tokens_per_s"] or 0.0 for one in found),
            "kv_use": 0.0 if load is None else load.blocks_used / max(1, load.blocks),
        }  # fmt: skip
        return _json(body)

    async def openapi(self, _: Request) -> Response:
        """The description of this interface."""
        return _json(description(None if self.settings.any_model else self.settings.model))

    async def models(self, _: Request) -> Response:
        """The one model."""
        return _json({"object": "list", "data": [self._model()]})

    async def model(self, request: Request) -> Response:
        """The one model, asked for by its name."""
        self._check_model(request.path_params["model"])
        return _json(self._model())

    async def page(self, request: Request) -> Response:
        """The chat page and its files."""
        name, kind = _PAGE_FILES[request.url.path[1:]]
        data = resources.files("ingot.serve").joinpath("page", name).read_bytes()
        headers = {"content-security-policy": _CSP, "cache-control": "no-cache"}
        return Response(data, headers=headers, media_type=kind)

    def _model(self) -> dict[str, Any]:
        found: dict[str, Any] = {"id": self.settings.model, "object": "model", "created": self._since}
        found["owned_by"] = "ingot"
        if self.engine.ready is not None:
            for what in ("context_length", "generates", "chats", "embeds"):
                found[what] = getattr(self.engine.ready, what)
            found["plain_template"] = bool(self.settings.chat_stop)  # for a model that was not trained to chat
        return found

    def _check_model(self, name: str) -> None:
        if name != self.settings.model and not self.settings.any_model:
            message = (
                f"there is no model {name[:100]!r} here: this server has {self.settings.model!r} "
                "(one started with --any-model takes any name)"
            )
            raise Problem(404, message, "model_not_found", "model")

    def _check_can(self, what: str, otherwise: str) -> None:
        if self.engine.ready is not None and not getattr(self.engine.ready, what):
            raise Problem(501, otherwise, "unsupported")

    async def _no_route(self, request: Request, error: Exception) -> Response:
        """The answer where no route takes a path, or none this method, with the one that was probably meant."""
        assert isinstance(error, HTTPException)
        code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code, "http_error")
        path = request.scope["path"].encode("utf-8", "replace").decode()  # "OPTIONS *" has none of a URL
        said = str(error.detail)
        if error.status_code == 404:
            said = f"there is no {path[:100]} here: {self._way(path)}"
        elif error.status_code == 405:
            said = f"{path[:100]} takes {(error.headers or {}).get('Allow', '')} alone"
        response = _response(Problem(error.status_code, said, code))
        response.raw_headers += [(k.lower().encode(), v.encode()) for k, v in (error.headers or {}).items()]
        return response

    def _way(self, path: str) -> str:
        if f"/v1{path}" in self._routes:
            return f"it is /v1{path}, so the base URL of a client ends in /v1"
        if path.startswith("/v1/v1/") and path[3:] in self._routes:
            return f"it is {path[3:]}, so the base URL has one /v1 too many"
        if path.rstrip("/") in self._routes:
            return f"it is {path.rstrip('/')}, without a slash at its end"
        posts = ", ".join(sorted(route for route in self._routes if route.startswith("/v1/") and "{" not in route))
        return f"the routes are {posts}, and {' and '.join(OPEN_ROUTES)}; /openapi.json describes them"

    # What the engine does.

    async def completions(self, request: Request) -> Response:
        """POST /v1/completions."""
        body = schema.read(await self._body(request), schema.CompletionRequest)
        self._check_model(body.model)
        self._check_can("generates", "this model makes vectors of texts, and writes none: use /v1/embeddings")
        job = self._named(schema.completion(body, self.engine.next_id))
        return await self._answer(request, job, Reply(job))

    async def chat(self, request: Request) -> Response:
        """POST /v1/chat/completions."""
        body = schema.read(await self._body(request), schema.ChatRequest)
        self._check_model(body.model)
        self._check_can("chats", NO_TEMPLATE)
        words = () if self.engine.ready is None else self.engine.ready.words
        schema.check_roles(body.messages, words)
        job = self._named(schema.chat(body, self.engine.next_id, self.settings.chat_stop))
        return await self._answer(request, job, Reply(job))

    async def responses(self, request: Request) -> Response:
        """POST /v1/responses."""
        body = schema.read(await self._body(request), ResponsesRequest)
        self._check_model(body.model)
        self._check_can("chats", NO_TEMPLATE)
        job = response(body, self.engine.next_id, self.settings.chat_stop)
        return await self._answer(request, job, ResponseReply(self._named(job)))

    async def embeddings(self, request: Request) -> Response:
        """POST /v1/embeddings."""
        body = schema.read(await self._body(request), schema.EmbeddingRequest)
        self._check_model(body.model)
        inputs = schema.prompts(body.input, "input")
        if body.dimensions is not None:
            raise schema.unsupported("dimensions", "vectors have the model's width: cut and scale them yourself")
        self._check_can("embeds", "this engine is of an earlier version and gives no embeddings: build it again")
        work = [frames.Embed(self.engine.next_id(), list(inputs))]
        async with self._under_way(request, work, "input") as ticket:
            try:
                found = await ticket.vectors()
            except ClientGone:
                return _gone()
            except Problem as problem:
                if problem.param == "prompt":
                    problem.param = "input"
                raise
        self.metrics.prompt_tokens += found.prompt_tokens
        packed = body.encoding_format == "base64"
        data = [
            {"object": "embedding", "index": i, "embedding": _packed(vector) if packed else vector}
            for i, vector in enumerate(found.vectors)
        ]
        usage = {"prompt_tokens": found.prompt_tokens, "total_tokens": found.prompt_tokens}
        answer = _json({"object": "list", "model": self.settings.model, "data": data, "usage": usage})
        answer.raw_headers += _ignored(schema.ignored(body))
        return answer

    async def _body(self, request: Request) -> bytes:
        """The whole body. Raises Problem for one that is too large, too slow, or not declared as JSON."""
        if self.draining:
            raise Problem(503, "the server is shutting down", "draining", None, 5)
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            raise Problem(415, "the body must be JSON: send Content-Type: application/json", "invalid_content_type")
        if request.headers.get("content-encoding", "identity").strip().lower() != "identity":
            raise Problem(415, "the body must not be compressed: send no Content-Encoding", "invalid_content_encoding")
        limit = max_body(self.engine)
        too_large = Problem(413, f"the body is over the limit of {limit:,} bytes", "body_too_large")
        length = request.headers.get("content-length", "0")
        if length.isdigit() and int(length) > limit:
            raise too_large
        data = bytearray()
        try:
            async with asyncio.timeout(BODY_SECONDS):
                async for part in request.stream():
                    data += part
                    if len(data) > limit:
                        raise too_large
        except TimeoutError:
            raise Problem(408, f"the body did not come within {BODY_SECONDS:g} s", "timeout") from None
        return bytes(data)

    @asynccontextmanager
    async def _under_way(self, request: Request, work: Any, field: str = "n") -> Any:
        """The ticket of requests that are handed over; they end when the client goes, or with the block."""
        ticket = self.engine.submit(work, field)
        self.active += 1
        watcher = asyncio.create_task(self._watch(request.receive, ticket))
        try:
            yield ticket
        finally:
            watcher.cancel()
            self.engine.close_ticket(ticket)
            self.active -= 1

    async def _watch(self, receive: Receive, ticket: Ticket) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self.metrics.disconnects += 1
        ticket.cancel()

    def _named(self, job: J) -> J:
        """The job under the model's own name, which its answer gives whatever the request called it."""
        return replace(job, model=self.settings.model)

    async def _answer(self, request: Request, job: schema.Job, reply: Reply) -> Response:
        if job.stream:
            return await self._stream(request, job, reply)
        async with self._under_way(request, job.requests) as ticket:
            self._replies[reply] = request.url.path
            try:
                while reply.left:
                    for piece in await ticket.pieces():
                        reply.take(piece)
            except ClientGone:
                return _gone()
            finally:
                del self._replies[reply]
        self._count(request, reply)
        headers = {"content-type": "application/json", "x-request-id": reply.id}
        if self.settings.trace:
            headers["x-ingot-trace"] = reply.trace()
        answer = Response(reply.whole(), headers=headers)
        answer.raw_headers += _ignored(job.ignored) + self._shortened(job, reply)
        return answer

    async def _stream(self, request: Request, job: schema.Job, reply: Reply) -> Response:
        """The answer as events. It begins with the first piece, so that a refusal has its own status."""
        block = self._under_way(request, job.requests)
        ticket = await block.__aenter__()
        self._replies[reply] = request.url.path
        try:
            first = await ticket.pieces()
        except BaseException as e:
            del self._replies[reply]
            await block.__aexit__(None, None, None)
            if isinstance(e, ClientGone):
                return _gone()
            raise

        async def events(send: Callable[[bytes], Awaitable[None]], wire: Wire | None) -> None:
            def shown(piece: frames.Piece) -> bool:
                if wire is None or not wire.flows():
                    return False
                try:
                    data = reply.chunk(piece)
                except Exception:  # a fault of ours, which this answer meets again below, and no other one
                    return False
                if data:
                    wire.write(data)
                return True

            pieces = first
            ticket.at_once = shown
            try:
                await send(reply.opening())
                while True:
                    await send(b"".join(map(reply.chunk, pieces)))
                    if not reply.left:
                        break
                    pieces = await ticket.pieces()
                self._count(request, reply)
                trace = f": trace {reply.trace()}\n\n".encode() if self.settings.trace else b""
                await send(trace + reply.closing())
            except ClientGone:
                return
            except Problem as problem:
                await send(reply.fault(problem))
            finally:
                del self._replies[reply]
                await block.__aexit__(None, None, None)

        return _EventStream(events, reply.id, _ignored(job.ignored) + self._shortened(job, reply))

    def _shortened(self, job: schema.Job, reply: Reply) -> list[tuple[bytes, bytes]]:
        """The header that says how many tokens the context has for an answer, where more were asked for.

        A stream begins before it is known how long the prompt is: then it is what a prompt of one token leaves.
        """
        ready = self.engine.ready
        asked = job.requests[0].sampling.max_tokens
        if ready is None or asked is None:
            return []
        room = ready.context_length - max((end.prompt_tokens for end in reply.ends), default=1)
        return [(b"x-ingot-max-tokens", str(room).encode())] if asked > room else []

    def _count(self, request: Request, reply: Reply) -> None:
        usage = reply.usage()
        self.metrics.prompt_tokens += usage["prompt_tokens"]
        for end in reply.ends:
            self.metrics.ended(end)
        ends = ",".join(sorted({end.reason for end in reply.ends}))
        request.scope["trace"] = (
            f" {reply.id} prompt={usage['prompt_tokens']} cached={usage['prompt_tokens_details']['cached_tokens']} "
            f"answered={usage['completion_tokens']} end={ends} {reply.trace()}"
        )


class Wire(Protocol):
    """Where a part of an answer can be written without waiting."""

    def flows(self) -> bool:
        """Whether it can be now."""

    def write(self, body: bytes) -> None:
        """Writes it."""


class _EventStream(Response):
    """Server-sent events, written by a function that is given where to send them, and where to write them at once."""

    def __init__(
        self, events: Callable[[Callable[[bytes], Awaitable[None]], Wire | None], Awaitable[None]], id: str,
        more: list[tuple[bytes, bytes]],
    ) -> None:  # fmt: skip
        self._events = events
        self.status_code = 200
        self.background = None
        self.raw_headers = [
            (b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache"),
            (b"x-accel-buffering", b"no"), (b"x-request-id", id.encode()), *more,
        ]  # fmt: skip

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def write(data: bytes) -> None:
            if data:
                await send({"type": "http.response.body", "body": data, "more_body": True})

        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        await self._events(write, scope.get("extensions", {}).get(AT_ONCE))
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def max_body(engine: EngineProcess) -> int:
    """Bytes of a request's body."""
    return max(MIN_BODY, 0 if engine.ready is None else BODY_PER_TOKEN * engine.ready.context_length)


def same(given: bytes, key: bytes) -> bool:
    """Whether they are equal, in a time that depends on neither."""
    return hmac.compare_digest(hashlib.sha256(given).digest(), hashlib.sha256(key).digest())


def _ignored(names: tuple[str, ...]) -> list[tuple[bytes, bytes]]:
    """The header that tells which fields had no effect."""
    return [(b"x-ingot-ignored", ", ".join(names).encode())] if names else []


def _json(value: Any, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status, {"content-type": "application/json"})


def _packed(vector: list[float]) -> str:
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()


def _gone() -> Response:
    return Response(status_code=499)  # nobody reads it; the log does


async def _left(_: Request, error: Exception) -> Response:
    return _gone()  # in the middle of its body


def _response(problem: Problem) -> Response:
    response = Response(problem.body(), problem.status)
    response.raw_headers += problem.headers()
    return response


async def _problem(_: Request, error: Exception) -> Response:
    assert isinstance(error, Problem)
    return _response(error)


async def _fault(_: Request, error: Exception) -> Response:
    log.error("a request failed for a fault of ours", exc_info=error)
    return _response(Problem(500, "a fault of the server", "internal"))
