"""POST /v1/responses: OpenAI's newer form of a chat. Nothing is kept, so each request brings the whole conversation."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from ingot.serve import frames, schema
from ingot.serve.answers import Answer, Reply, encode
from ingot.serve.problem import Problem

LOGPROBS = "message.output_text.logprobs"
_MEDIA = ("image_url", "detail", "file_id", "file_url", "file_data", "filename", "input_audio")


class ContentPart(Struct, forbid_unknown_fields=True):
    """A part of what was said; `annotations` and `logprobs` come with answers that are sent back. The words of images
    and files are known, so that they are refused as what they are.
    """

    type: Annotated[str, Meta(max_length=64)]
    text: str | None = None
    annotations: Annotated[list[Any], Meta(max_length=schema.MAX_MESSAGES)] | None = None
    logprobs: Annotated[list[Any], Meta(max_length=schema.MAX_TOKENS)] | None = None
    image_url: schema.Nothing = None
    detail: schema.Nothing = None
    file_id: schema.Nothing = None
    file_url: schema.Nothing = None
    file_data: schema.Nothing = None
    filename: schema.Nothing = None
    input_audio: schema.Nothing = None


class Item(Struct, forbid_unknown_fields=True):
    """One turn of the conversation; `id`, `status` and `phase` come with answers that are sent back."""

    role: Literal["user", "assistant", "system", "developer"]
    content: str | list[ContentPart]
    type: Literal["message"] = "message"
    id: schema.Name | None = None
    status: schema.Name | None = None
    phase: schema.Name | None = None


class TextConfig(Struct, forbid_unknown_fields=True):
    """The form of the answer."""

    format: Annotated[dict[str, Any] | None, schema.only(None, {"type": "text"})] = None
    verbosity: schema.Name | None = None


class ResponsesStreamOptions(Struct, forbid_unknown_fields=True):
    """Accepted without effect."""

    include_obfuscation: bool | None = None


class ResponsesRequest(schema.Asked, kw_only=True):
    """The body of POST /v1/responses."""

    input: str | Annotated[list[Item], Meta(min_length=1, max_length=schema.MAX_MESSAGES)]
    instructions: str | None = None
    max_output_tokens: schema.Tokens = None
    top_logprobs: Annotated[int, Meta(ge=0, le=schema.MAX_LOGPROBS)] | None = None
    include: (
        Annotated[list[Literal["message.output_text.logprobs", "reasoning.encrypted_content"]], Meta(max_length=16)]
        | None
    ) = None
    text: TextConfig | None = None
    tools: Annotated[list[Any] | None, schema.only(None, [])] = None
    tool_choice: Annotated[Any, schema.only(None, "none", "auto")] = None
    stream_options: ResponsesStreamOptions | None = None
    reasoning: Annotated[dict[str, Any], Meta(max_length=16)] | None = None
    max_tool_calls: Annotated[int, Meta(ge=0, le=2**53)] | None = None
    truncation: Annotated[str | None, schema.only(None, "disabled")] = None
    background: Annotated[bool | None, schema.only(None, False)] = None
    previous_response_id: schema.Nothing = None
    conversation: schema.Nothing = None
    prompt: schema.Nothing = None


# What is not there, and what to do without it.
_REASONS = {
    "previous_response_id": "this server keeps no answers: send the whole conversation as input",
    "conversation": "this server keeps no conversations: send the whole one as input",
    "prompt": "this server keeps no prompts: send the text as instructions or input",
    "background": "this server keeps no answers for later: stream, or wait for the whole one",
    "truncation": "this server leaves no turns out by itself: leave out the oldest, and send the rest",
}


@dataclass(frozen=True)
class ResponseJob(schema.Job):
    """A checked request, with what its answer repeats of it."""

    settings: dict[str, Any] = field(default_factory=dict)


def response(request: ResponsesRequest, next_id: Any, stop: tuple[str, ...] = ()) -> ResponseJob:
    """The work that a request is; `stop` belongs to the template. Raises Problem."""
    for name, neutral in (("background", (None, False)), ("truncation", (None, "disabled"))):
        if getattr(request, name) not in neutral:
            raise schema.unsupported(name, _REASONS[name])
    for name in ("previous_response_id", "conversation", "prompt"):
        if getattr(request, name) is not None:
            raise schema.unsupported(name, _REASONS[name])
    schema.no_tools(request.tools, request.tool_choice)
    if request.text is not None:
        schema.no_format(request.text.format, "text")
    given: list[tuple[str, str, str | None]]
    given = [] if request.instructions is None else [("system", request.instructions, None)]
    if isinstance(request.input, str):
        given.append(("user", request.input, None))
    else:
        given += [(item.role, _said(item), None) for item in request.input]
    tokens = request.top_logprobs is not None or LOGPROBS in (request.include or ())
    sampling = schema.sampling(request, request.max_output_tokens, 1, request.top_logprobs or 0, stop)
    stream = bool(request.stream)
    work = frames.Generate(next_id(), None, None, given, sampling, request.priority or 0, stream, tokens)
    settings = {
        "max_output_tokens": request.max_output_tokens, "temperature": sampling.temperature, "top_p": sampling.top_p,
        "top_logprobs": request.top_logprobs or 0,
    }  # fmt: skip
    return ResponseJob(True, request.model, [work], 1, stream, False, False, tokens, _ignored(request), settings)


def _said(item: Item) -> str:
    if isinstance(item.content, str):
        return item.content
    for part in item.content:
        media = any(getattr(part, name) is not None for name in _MEDIA)
        if media or part.type not in ("input_text", "output_text", "text"):
            raise Problem(400, schema.TEXT_ONLY, "unsupported_value", "input")
    texts = [part.text for part in item.content if part.text is not None]
    if len(texts) < len(item.content):
        raise Problem(400, "input has a part without text", "invalid_value", "input")
    return "".join(texts)


def _ignored(request: ResponsesRequest) -> tuple[str, ...]:
    more = ("reasoning", "max_tool_calls", "stream_options")
    found = [*schema.ignored(request), *(name for name in more if getattr(request, name) is not None)]
    if request.text is not None and request.text.verbosity is not None:
        found.append("text.verbosity")
    if "reasoning.encrypted_content" in (request.include or ()):
        found.append("include")
    return tuple(found)


class ResponseReply(Reply):
    """Everything that is sent back for one job: a response object, or the events that lead to it."""

    def __init__(self, job: ResponseJob) -> None:
        super().__init__(job)
        self.id = "resp_" + secrets.token_hex(12)
        self._message = "msg_" + secrets.token_hex(12)
        self._settings = job.settings
        self._sent = 0  # events

    def opening(self) -> bytes:
        """What a stream begins with."""
        state = self._response("in_progress", [])
        return b"".join(
            (
                self._named("response.created", response=state),
                self._named("response.in_progress", response=state),
                self._of_item("response.output_item.added", item=self._item("in_progress", [])),
                self._of_part("response.content_part.added", part=self._part("", [])),
            )
        )

    def chunk(self, piece: frames.Piece) -> bytes:
        """A piece as an event of a stream. What has come is kept: the last events repeat it."""
        answer = self._answers[self.take(piece)]
        answer.texts.append(piece.text)
        answer.tokens += piece.tokens
        if not piece.text and not piece.tokens:
            return b""
        return self._of_part("response.output_text.delta", delta=piece.text, logprobs=self._shown(piece.tokens))

    def closing(self) -> bytes:
        """What a stream ends with."""
        text, logprobs, status = self._whole_text()
        part = self._part(text, logprobs)
        item = self._item(status, [part])
        return b"".join(
            (
                self._of_part("response.output_text.done", text=text, logprobs=logprobs),
                self._of_part("response.content_part.done", part=part),
                self._of_item("response.output_item.done", item=item),
                self._named(f"response.{status}", response=self._response(status, [item])),
            )
        )

    def fault(self, problem: Problem) -> bytes:
        """What ends a stream that fails."""
        found = {"code": problem.code, "message": problem.message, "param": problem.param}
        return self._named("error", **found, error=found)

    def whole(self) -> bytes:
        """The answer that is not streamed."""
        text, logprobs, status = self._whole_text()
        return encode(self._response(status, [self._item(status, [self._part(text, logprobs)])]))

    def _whole_text(self) -> tuple[str, list[dict[str, Any]], str]:
        answer: Answer = self._answers[0]
        assert answer.end is not None
        status = "incomplete" if answer.end.reason == "length" else "completed"
        return "".join(answer.texts), self._shown(answer.tokens), status

    def _shown(self, tokens: list[frames.Token]) -> list[dict[str, Any]]:
        """Log probabilities; a part of a character has no bytes of its own."""
        if not self._job.logprobs:
            return []
        found: list[dict[str, Any]] = self._logprobs(0, tokens)["content"]
        for one in (*found, *(top for token in found for top in token["top_logprobs"])):
            one["bytes"] = one["bytes"] or []
        return found

    def _part(self, text: str, logprobs: list[dict[str, Any]]) -> dict[str, Any]:
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}

    def _item(self, status: str, content: list[dict[str, Any]]) -> dict[str, Any]:
        return {"id": self._message, "type": "message", "role": "assistant", "status": status, "content": content}

    def _response(self, status: str, output: list[dict[str, Any]]) -> dict[str, Any]:
        counted, ended = self.usage(), not self.left
        details = {"cached_tokens": counted["prompt_tokens_details"]["cached_tokens"], "cache_write_tokens": 0}
        usage = {
            "input_tokens": counted["prompt_tokens"], "input_tokens_details": details,
            "output_tokens": counted["completion_tokens"], "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": counted["total_tokens"],
        }  # fmt: skip
        return {
            "id": self.id, "object": "response", "created_at": self._head["created"], "status": status,
            "background": False, "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "instructions": None, "metadata": {}, "model": self._job.model, "output": output,
            "parallel_tool_calls": False, "previous_response_id": None, "store": False,
            "text": {"format": {"type": "text"}}, "tool_choice": "none", "tools": [], "truncation": "disabled",
            "usage": usage if ended else None, **self._settings,
        }  # fmt: skip

    def _of_item(self, name: str, **fields: Any) -> bytes:
        return self._named(name, output_index=0, **fields)

    def _of_part(self, name: str, **fields: Any) -> bytes:
        return self._named(name, item_id=self._message, output_index=0, content_index=0, **fields)

    def _named(self, name: str, **fields: Any) -> bytes:
        event = {"type": name, "sequence_number": self._sent, **fields}
        self._sent += 1
        return b"event: " + name.encode() + b"\ndata: " + encode(event) + b"\n\n"
