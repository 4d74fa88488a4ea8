"""Answers as OpenAI's clients read them: whole ones, and chunks of streams."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from time import monotonic
from typing import Any

import msgspec

from ingot.serve import frames
from ingot.serve.problem import Problem
from ingot.serve.schema import Job

DONE = b"data: [DONE]\n\n"
_MARK = "\0"  # in the place of a text; the last one in a chunk, whatever the model is called
encode = msgspec.json.Encoder().encode


class Answer:
    """One of the answers of a request, as far as it has come."""

    __slots__ = ("count", "end", "offset", "texts", "tokens")

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.tokens: list[frames.Token] = []
        self.end: frames.End | None = None
        self.count = 0  # tokens
        self.offset = 0  # characters streamed


class Reply:
    """Everything that is sent back for one job.

    Args:
        job: the request.
        id: its name, as clients see it.
    """

    def __init__(self, job: Job) -> None:
        self.id = ("chatcmpl-" if job.chat else "cmpl-") + secrets.token_hex(12)
        self._job = job
        self._answers = [Answer() for _ in range(job.n * len(job.requests))]
        self._first = {request.id: i * job.n for i, request in enumerate(job.requests)}
        name = "chat.completion" if job.chat else "text_completion"
        name += ".chunk" if job.chat and job.stream else ""
        self._around: dict[int, tuple[bytes, bytes]] = {}  # by choice, what stands around the text of a chunk
        self._head = {"id": self.id, "object": name, "created": int(time.time()), "model": job.model}
        self.left = len(self._answers)
        self.began = monotonic()
        self.first_at: float | None = None  # its first piece
        self.ends: list[frames.End] = []

    def take(self, piece: frames.Piece) -> int:
        """Keeps a piece of a whole answer; the number of its choice."""
        index = self._first[piece.id] + piece.index
        answer = self._answers[index]
        answer.count = piece.count
        self.first_at = self.first_at or monotonic()
        if piece.end is not None:
            answer.end = piece.end
            self.ends.append(piece.end)
            self.left -= 1
        if not self._job.stream:
            answer.texts.append(piece.text)
            answer.tokens += piece.tokens
        return index

    def opening(self) -> bytes:
        """What a stream begins with."""
        if not self._job.chat:
            return b""
        delta = {"role": "assistant", "content": ""}
        return b"".join(
            self._event([{"index": i, "delta": delta, "logprobs": None, "finish_reason": None}])
            for i in range(len(self._answers))
        )

    def chunk(self, piece: frames.Piece) -> bytes:
        """A piece as an event of a stream."""
        index = self.take(piece)
        if piece.end is None and piece.text and not self._job.logprobs and not self._job.usage_so_far:
            if index not in self._around:
                before, _, after = self._chunk(index, _MARK).rpartition(encode(_MARK))
                self._around[index] = before, after
            before, after = self._around[index]
            return b"%b%b%b" % (before, encode(piece.text), after)
        reason = None if piece.end is None else piece.end.reason
        return self._chunk(index, piece.text, piece.tokens, reason)

    def _chunk(self, index: int, text: str, tokens: Sequence[frames.Token] = (), reason: str | None = None) -> bytes:
        logprobs = self._logprobs(index, tokens) if self._job.logprobs else None
        choice: dict[str, Any] = {"index": index}
        if self._job.chat:
            choice["delta"] = {"content": text} if text or tokens else {}
        else:
            choice["text"] = text
        usage = self.usage() if self._job.usage_so_far else None
        return self._event([choice | {"logprobs": logprobs, "finish_reason": reason}], usage)

    def closing(self) -> bytes:
        """What a stream ends with."""
        usage = self._event([], self.usage()) if self._job.usage else b""
        return usage + DONE

    def fault(self, problem: Problem) -> bytes:
        """What ends a stream that fails."""
        return b"data: " + problem.body() + b"\n\n"

    def whole(self) -> bytes:
        """The answer that is not streamed."""
        choices = []
        for index, answer in enumerate(self._answers):
            assert answer.end is not None
            text = "".join(answer.texts)
            logprobs = self._logprobs(index, answer.tokens) if self._job.logprobs else None
            choice: dict[str, Any] = {"index": index}
            if self._job.chat:
                choice["message"] = {"role": "assistant", "content": text, "refusal": None}
            else:
                choice["text"] = text
            choices.append(choice | {"logprobs": logprobs, "finish_reason": answer.end.reason})
        return encode({**self._head, "choices": choices, "usage": self.usage()})

    def usage(self) -> dict[str, Any]:
        """Tokens so far: a prompt counts once, however many answers it has, and when its first answer has ended."""
        first = [self._answers[i].end for i in self._first.values()]
        prompt = sum(end.prompt_tokens for end in first if end is not None)
        cached = sum(end.cached_tokens for end in first if end is not None)
        answered = sum(answer.count for answer in self._answers)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": answered,
            "total_tokens": prompt + answered,
            "prompt_tokens_details": {"cached_tokens": cached},
        }

    def progress(self, route: str, now: float) -> dict[str, Any]:
        """How far it is, for the table of running requests: nothing of what was asked or is answered."""
        tokens = sum(answer.count for answer in self._answers)
        passed = 0.0 if self.first_at is None else now - self.first_at
        rate = tokens / passed if passed > 0 else None
        return {
            "id": self.id, "route": route, "seconds": now - self.began, "answers": len(self._answers),
            "answers_left": self.left, "tokens": tokens, "tokens_per_s": rate,
        }  # fmt: skip

    def trace(self) -> str:
        """Where the time went, of the answer that took longest."""
        if not self.ends:
            return ""
        slowest = max(self.ends, key=lambda end: end.queue + end.prefill + end.decode)
        names = ("queue", "prefill", "decode", "sampling", "detokenising")
        return " ".join(f"{name}={getattr(slowest, name):.4f}" for name in names)

    def _event(self, choices: list[dict[str, Any]], usage: dict[str, Any] | None = None) -> bytes:
        body: dict[str, Any] = {**self._head, "choices": choices}
        if self._job.usage or self._job.usage_so_far:
            body["usage"] = usage
        return b"data: " + encode(body) + b"\n\n"

    def _logprobs(self, index: int, tokens: Sequence[frames.Token]) -> dict[str, Any]:
        if self._job.chat:
            return {"content": [{**_token(t.text, t.logprob), "top_logprobs": _tops(t)} for t in tokens]}
        answer = self._answers[index]
        offsets = []
        for token in tokens:
            offsets.append(answer.offset)
            answer.offset += len(token.text)
        return {
            "tokens": [t.text for t in tokens],
            "token_logprobs": [t.logprob for t in tokens],
            "top_logprobs": [dict(t.top) for t in tokens],
            "text_offset": offsets,
        }


def _tops(token: frames.Token) -> list[dict[str, Any]]:
    return [_token(text, logprob) for text, logprob in token.top]


def _token(text: str, logprob: float) -> dict[str, Any]:
    whole = "\ufffd" not in text  # a part of a character has no text of its own
    return {"token": text, "logprob": logprob, "bytes": list(text.encode()) if whole else None}
