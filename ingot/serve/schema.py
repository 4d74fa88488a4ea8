"""The bodies of requests: what may be in them, and within which limits. A fault is a Problem that names its field."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta, Struct, inspect

from ingot.errors import RequestError
from ingot.serve import frames
from ingot.serve.problem import Problem
from ingot.strict_json import JsonError, parse
from ingot.text.messages import check_role

MAX_N = 16
MAX_PROMPTS = 128
MAX_STOPS = 16
MAX_STOP_LENGTH = 256
MAX_MESSAGES = 4096
MAX_LOGPROBS = 20
MAX_TOKENS = 1_000_000
COMPLETION_TOKENS = 16  # by default, as OpenAI has it for completions

Text = Annotated[str, Meta(min_length=1, max_length=MAX_STOP_LENGTH)]
Bias = Annotated[float, Meta(ge=-100, le=100)]
TokenId = Annotated[int, Meta(ge=0, lt=2**31)]
Name = Annotated[str, Meta(max_length=512)]  # of what is not looked at
Penalty = Annotated[float, Meta(ge=-2, le=2)] | None
Tokens = Annotated[int, Meta(ge=1, le=MAX_TOKENS)] | None

# Words of clients that change no text here: accepted, and listed in the header `x-ingot-ignored`.
WITHOUT_EFFECT = (
    "user", "safety_identifier", "prompt_cache_key", "prompt_cache_retention", "metadata", "store", "service_tier",
    "parallel_tool_calls", "reasoning_effort", "verbosity",
)  # fmt: skip


class StreamOptions(Struct, forbid_unknown_fields=True):
    """How to stream: with the usage at the end, or with that so far in every chunk."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: bool | None = None


class Asked(Struct, forbid_unknown_fields=True, kw_only=True):
    """What all requests for text share. `WITHOUT_EFFECT` says which words change nothing."""

    model: str
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=0, lt=2**31)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Meta(gt=0, le=10)] | None = None
    presence_penalty: Penalty = None
    frequency_penalty: Penalty = None
    logit_bias: Annotated[dict[TokenId, Bias], Meta(max_length=1024)] | None = None
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    stop: Text | Annotated[list[Text], Meta(max_length=MAX_STOPS)] | None = None
    priority: Annotated[int, Meta(ge=-100, le=100)] | None = None
    stream: bool | None = None
    user: Name | None = None
    safety_identifier: Name | None = None
    prompt_cache_key: Name | None = None
    prompt_cache_retention: Name | None = None
    metadata: Annotated[dict[str, str], Meta(max_length=16)] | None = None
    store: bool | None = None
    service_tier: Name | None = None
    parallel_tool_calls: bool | None = None


class Common(Asked, kw_only=True):
    """What completions and chats share."""

    max_tokens: Tokens = None
    n: Annotated[int, Meta(ge=1, le=MAX_N)] | None = None
    stream_options: StreamOptions | None = None
    reasoning_effort: Name | None = None
    verbosity: Name | None = None


_PROMPT = {
    "oneOf": [
        {"type": "string"},
        {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": MAX_PROMPTS},
        {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1},
        {
            "type": "array",
            "items": {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1},
            "minItems": 1,
            "maxItems": MAX_PROMPTS,
        },
    ]
}


def only(*values: Any) -> Meta:
    """What the description says of a field of which only these values are taken; others have an error of their own."""
    return Meta(extra_json_schema={"enum": list(values)})


_Prompt = Annotated[Any, Meta(extra_json_schema=_PROMPT)]
Nothing = Annotated[Any, only(None)]


class CompletionRequest(Common, kw_only=True):
    """The body of POST /v1/completions."""

    prompt: _Prompt
    logprobs: Annotated[int, Meta(ge=0, le=MAX_LOGPROBS)] | None = None
    echo: Annotated[bool | None, only(None, False)] = None
    best_of: Annotated[int | None, only(None, 1)] = None
    suffix: Annotated[str | None, only(None, "")] = None


class Part(Struct, forbid_unknown_fields=True):
    """A part of a message's content: text is all there is. The other words are known, so that they are refused as what
    they are.
    """

    type: str
    text: str | None = None
    image_url: Nothing = None
    input_audio: Nothing = None
    file: Nothing = None


class Message(Struct, forbid_unknown_fields=True):
    """One turn of a conversation. What clients have of an answer they send back whole: `OF_ANSWERS` with nothing in it
    is no fault.
    """

    role: Annotated[str, Meta(min_length=1, max_length=64)]
    content: str | list[Part] | None = None
    name: Annotated[str, Meta(max_length=64)] | None = None
    refusal: Annotated[str | None, only(None, "")] = None
    annotations: Annotated[list[Any] | None, only(None, [])] = None
    audio: Nothing = None
    tool_calls: Annotated[list[Any] | None, only(None, [])] = None
    function_call: Nothing = None
    tool_call_id: Nothing = None


_NO_TOOLS = "models write text here and call nothing: leave it out"
# Words of a message that may be there with nothing in them, and why there is nothing else.
OF_ANSWERS = {
    "refusal": "no answer of this server has one: send it as content",
    "annotations": "no answer of this server has any: leave them out",
    "audio": "this server takes text: leave it out",
    "tool_calls": _NO_TOOLS, "function_call": _NO_TOOLS, "tool_call_id": _NO_TOOLS,
}  # fmt: skip
TEXT_ONLY = "this server takes text: no images, audio or files"


class ChatRequest(Common, kw_only=True):
    """The body of POST /v1/chat/completions."""

    messages: Annotated[list[Message], Meta(min_length=1, max_length=MAX_MESSAGES)]
    max_completion_tokens: Tokens = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=MAX_LOGPROBS)] | None = None
    response_format: Annotated[dict[str, Any] | None, only(None, {"type": "text"})] = None
    tools: Annotated[list[Any] | None, only(None, [])] = None
    tool_choice: Annotated[Any, only(None, "none", "auto")] = None


class EmbeddingRequest(Struct, forbid_unknown_fields=True, kw_only=True):
    """The body of POST /v1/embeddings."""

    model: str
    input: _Prompt
    encoding_format: Annotated[str, Meta(pattern="^(float|base64)$")] | None = None
    dimensions: Annotated[int, Meta(ge=1)] | None = None
    user: Name | None = None


@dataclass(frozen=True)
class Job:
    """A checked request: one frame to the engine for each prompt, and how the answer is to look."""

    chat: bool
    model: str
    requests: list[frames.Generate]
    n: int
    stream: bool
    usage: bool  # in the stream, at its end
    usage_so_far: bool  # in every chunk
    logprobs: bool
    ignored: tuple[str, ...] = ()  # fields without effect


T = TypeVar("T", bound=Struct)


def read(data: bytes, kind: type[T]) -> T:
    """The body as the request it should be. Raises Problem."""
    try:
        return msgspec.convert(parse(data), kind, str_keys=True)
    except JsonError as e:
        raise Problem(400, f"the body is not the JSON of a request: {e}", "invalid_json") from None
    except UnicodeEncodeError:
        message = "the name of a field is not Unicode: it holds half of a surrogate pair"
        raise Problem(400, message, "invalid_value") from None
    except (msgspec.ValidationError, RecursionError) as e:
        found = re.search(r"`\$\.?([^`.\[]*)[^`]*`$", str(e)) or re.search(r"unknown field `([^`]*)`", str(e))
        message = f"the request is malformed: {e}{_meant(str(e), kind)}"
        raise Problem(400, message, "invalid_value", found[1] if found else None) from None


# Fields by which a request is seen to be another route's.
_ROUTE_OF = {
    "prompt": "/v1/completions", "messages": "/v1/chat/completions", "input": "/v1/responses and /v1/embeddings",
}  # fmt: skip
MAX_FIELD = 64  # characters of a name that is compared with those that there are


def _meant(error: str, kind: type[Struct]) -> str:
    """What an unknown field probably was to be, by its name; empty for other errors."""
    found = re.search(r"unknown field `([^`]*)`(?: - at `([^`]*)`)?$", error)
    if found is None:
        return ""
    name, path = found[1][:MAX_FIELD], found[2]
    known = _fields(inspect.type_info(kind), re.findall(r"[a-z_]+", path or ""))
    if not path and name in _ROUTE_OF:
        return f": it is a field of {_ROUTE_OF[name]}"
    near = difflib.get_close_matches(name, known, 1)
    return f": did you mean {near[0]}?" if near else "; /openapi.json has the fields that there are"


def _fields(kind: inspect.Type, path: Sequence[str]) -> list[str]:
    """The names of the fields that an object has behind these fields of a body."""
    if isinstance(kind, inspect.UnionType):
        return [name for one in kind.types for name in _fields(one, path)]
    if isinstance(kind, inspect.ListType):
        return _fields(kind.item_type, path)
    if isinstance(kind, inspect.Metadata):
        return _fields(kind.type, path)
    if not isinstance(kind, inspect.StructType):
        return []
    if not path:
        return [field.name for field in kind.fields]
    return [name for field in kind.fields if field.name == path[0] for name in _fields(field.type, path[1:])]


def completion(request: CompletionRequest, next_id: Any) -> Job:
    """The work that a completion is. Raises Problem."""
    for name, neutral, reason in (
        ("echo", (None, False), "put the prompt before the answer yourself"),
        ("suffix", (None, ""), "texts are completed at their end only"),
        ("best_of", (None, 1), "ask for n answers with logprobs, and choose"),
    ):
        if getattr(request, name) not in neutral:
            raise unsupported(name, reason)
    given = prompts(request.prompt, "prompt")
    chosen = sampling(request, request.max_tokens or COMPLETION_TOKENS, request.n, request.logprobs or 0)
    stream, tokens = bool(request.stream), request.logprobs is not None
    work = [
        frames.Generate(
            next_id(), one if isinstance(one, str) else None, one if isinstance(one, list) else None, None, chosen,
            request.priority or 0, stream, tokens,
        )
        for one in given
    ]  # fmt: skip
    return Job(False, request.model, work, chosen.n, stream, *_usage(request), tokens, ignored(request))


def chat(request: ChatRequest, next_id: Any, stop: tuple[str, ...] = ()) -> Job:
    """The work that a chat is; `stop` belongs to the template. Raises Problem."""
    no_tools(request.tools, request.tool_choice)
    no_format(request.response_format, "response_format")
    if request.top_logprobs is not None and not request.logprobs:
        raise Problem(400, "top_logprobs needs logprobs: true", "invalid_value", "top_logprobs")
    both = (request.max_tokens, request.max_completion_tokens)
    if None not in both and both[0] != both[1]:
        raise Problem(400, "max_tokens and max_completion_tokens disagree", "invalid_value", "max_completion_tokens")
    chosen = sampling(request, both[1] or both[0], request.n, request.top_logprobs or 0, stop)
    turns = [(message.role, _content(message, i), message.name) for i, message in enumerate(request.messages)]
    stream, tokens = bool(request.stream), bool(request.logprobs)
    work = frames.Generate(next_id(), None, None, turns, chosen, request.priority or 0, stream, tokens)
    return Job(True, request.model, [work], chosen.n, stream, *_usage(request), tokens, ignored(request))


def check_roles(messages: Sequence[Message], words: Sequence[str]) -> None:
    """Raises Problem for a role that `ingot.text.messages` refuses. `words`: what the model's chat template quotes."""
    for i, message in enumerate(messages):
        try:
            check_role(message.role, i, words)
        except RequestError as e:
            raise Problem(400, str(e), "invalid_value", "messages") from None


def sampling(
    request: Asked, max_tokens: int | None, n: int | None, logprobs: int, more_stop: tuple[str, ...] = ()
) -> frames.Sampling:
    """How the tokens of an answer are chosen; `more_stop` ends it beside the request's own strings."""

    def given(value: float | None, default: float) -> float:
        return default if value is None else float(value)

    stop = (request.stop,) if isinstance(request.stop, str) else tuple(request.stop or ())
    return frames.Sampling(
        max_tokens=max_tokens,
        temperature=given(request.temperature, 1.0),
        top_k=request.top_k or 0,
        top_p=given(request.top_p, 1.0),
        min_p=given(request.min_p, 0.0),
        seed=None if request.seed is None else request.seed % 2**63,
        stop=(*stop, *more_stop),
        repetition_penalty=given(request.repetition_penalty, 1.0),
        presence_penalty=given(request.presence_penalty, 0.0),
        frequency_penalty=given(request.frequency_penalty, 0.0),
        logit_bias=request.logit_bias or {},
        logprobs=logprobs,
        n=n or 1,
    )


def prompts(value: Any, field: str) -> list[str] | list[list[int]]:
    """A text, token ids, or several of one kind, as a list. Raises Problem."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, list) and value:
        if all(isinstance(one, str) for one in value) and len(value) <= MAX_PROMPTS:
            return value
        if all(type(one) is int for one in value):
            return [_ids(value, field)]
        if all(isinstance(one, list) and one for one in value) and len(value) <= MAX_PROMPTS:
            return [_ids(one, field) for one in value]
    message = f"{field} must be a text, token ids, or up to {MAX_PROMPTS} of either, and not empty"
    raise Problem(400, message, "invalid_value", field)


def _ids(value: list[Any], field: str) -> list[int]:
    if not all(type(one) is int and 0 <= one < 2**31 for one in value):
        raise Problem(400, f"{field}: token ids are integers from 0 on", "invalid_value", field)
    return value


def _content(message: Message, i: int) -> str:
    for name, reason in OF_ANSWERS.items():
        if getattr(message, name) not in (None, "", []):
            what = f"messages[{i}].{name} is not supported by this server: {reason}"
            raise Problem(400, what, "unsupported_parameter", "messages")
    if isinstance(message.content, str):
        return message.content
    if message.content is None:
        raise Problem(400, f"messages[{i}] has no content: give its text", "invalid_value", "messages")
    if any(part.type != "text" or (part.image_url, part.input_audio, part.file) != (None,) * 3
           for part in message.content):  # fmt: skip
        raise Problem(400, TEXT_ONLY, "unsupported_value", "messages")
    texts = [part.text for part in message.content if part.text is not None]
    if len(texts) < len(message.content):
        raise Problem(400, f"messages[{i}].content has a part without text", "invalid_value", "messages")
    return "".join(texts)


def _usage(request: Common) -> tuple[bool, bool]:
    wanted = request.stream_options
    if wanted is None:
        return False, False
    if not request.stream:
        raise Problem(400, "stream_options needs stream: true", "invalid_value", "stream_options")
    return bool(wanted.include_usage), bool(wanted.continuous_usage_stats)


def ignored(request: Struct) -> tuple[str, ...]:
    """The words without effect that a request asks something with. Nothing is stored, so `store: false` is heeded."""
    given = ((name, getattr(request, name, None)) for name in WITHOUT_EFFECT)
    return tuple(name for name, value in given if value is not None and (name, value) != ("store", False))


def no_tools(tools: list[Any] | None, choice: Any) -> None:
    """Raises Problem for a request with tools."""
    if tools or choice not in (None, "none", "auto"):
        field = "tools" if tools else "tool_choice"
        raise unsupported(field, _NO_TOOLS)


def no_format(wanted: dict[str, Any] | None, field: str) -> None:
    """Raises Problem for a request for anything but text."""
    if wanted not in (None, {"type": "text"}):
        raise unsupported(field, "answers are held to no schema: say the form in a message, and check what comes")


def unsupported(field: str, reason: str) -> Problem:
    """What is not there, why, and what to do without it."""
    return Problem(400, f"{field} is not supported by this server: {reason}", "unsupported_parameter", field)
