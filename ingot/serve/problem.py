"""Errors as OpenAI's clients expect them: a status and {"error": {message, type, param, code}}."""

from __future__ import annotations

import msgspec

from ingot.errors import IngotError, RequestError, UserError

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "invalid_request_error",
    413: "invalid_request_error",
    415: "invalid_request_error",
    417: "invalid_request_error",
    421: "invalid_request_error",
    429: "rate_limit_error",
    431: "invalid_request_error",
    501: "unsupported_error",
    503: "unavailable_error",
    505: "unsupported_error",
}


OVERLOADED_SECONDS = 10  # after which trying again makes sense
MAX_MESSAGE, MAX_PARAM = 1000, 100  # characters: a message may quote what the client has sent


def _shown(text: str, most: int) -> str:
    """The text as Unicode, halves of surrogate pairs escaped, and not longer than that."""
    return text[:most].encode("utf-8", "backslashreplace").decode() + "…" * (len(text) > most)


class Problem(Exception):
    """A request that ends without what it asked for.

    Args:
        status: of HTTP.
        message: for people.
        code: for programs; stable.
        param: the field at fault.
        retry_after: seconds, where trying again makes sense.
    """

    def __init__(
        self, status: int, message: str, code: str, param: str | None = None, retry_after: int | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = _shown(message, MAX_MESSAGE)
        self.code = code
        self.param = None if param is None else _shown(param, MAX_PARAM)
        self.retry_after = retry_after

    def body(self) -> bytes:
        """The JSON object."""
        kind = _TYPES.get(self.status, "server_error")
        error = {"message": self.message, "type": kind, "param": self.param, "code": self.code}
        return msgspec.json.encode({"error": error})

    def headers(self) -> list[tuple[bytes, bytes]]:
        """The headers that belong to it."""
        found = [(b"content-type", b"application/json")]
        if self.retry_after is not None:
            found.append((b"retry-after", str(self.retry_after).encode()))
        if self.status == 401:
            found.append((b"www-authenticate", b'Bearer realm="ingot"'))
        if self.status == 408:  # the rest of the body is not waited for
            found.append((b"connection", b"close"))
        return found


def from_error(error: IngotError) -> Problem:
    """What an error of the engine is over HTTP: the user's mistakes are 400, ours 500."""
    if error.code == "overloaded":
        return Problem(503, str(error), "overloaded", None, OVERLOADED_SECONDS)
    if error.code == "too_long":
        return Problem(400, str(error), "context_length_exceeded", "prompt")
    if isinstance(error, RequestError):
        return Problem(400, str(error), error.code)
    if isinstance(error, UserError):
        return Problem(501, str(error), "unsupported")
    return Problem(500, str(error), error.code)


def engine_down(restarting: bool = True) -> Problem:
    """The engine process is not there."""
    again = "it is being started again" if restarting else "the server is shutting down"
    return Problem(503, f"the engine process ended before this request was done; {again}", "engine_down", None, 1)
