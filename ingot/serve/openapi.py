"""The OpenAPI description, made from the same types that check the requests."""

from __future__ import annotations

from typing import Any

import msgspec

from ingot.serve.responses import ResponsesRequest
from ingot.serve.schema import ChatRequest, CompletionRequest, EmbeddingRequest
from ingot.version import __version__

_BODIES = {
    "/v1/completions": (CompletionRequest, "Completes a text"),
    "/v1/chat/completions": (ChatRequest, "Answers a conversation"),
    "/v1/responses": (ResponsesRequest, "Answers a conversation, in OpenAI's newer form"),
    "/v1/embeddings": (EmbeddingRequest, "Vectors of texts"),
}
_GETS = {
    "/v1/models": ("The model", "application/json", (200, 401, 421)),
    "/health": ("Whether the engine runs", "application/json", (200, 421, 503)),
    "/ready": ("Whether requests are taken", "application/json", (200, 421, 503)),
    "/metrics": ("Metrics for Prometheus", "text/plain", (200, 401, 421)),
}
_ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}
_ANSWER = {"type": "object", "required": ["object", "usage"]}


def description(model: str | None) -> dict[str, Any]:
    """The description of a server of that model; None: any name is taken."""
    kinds = [kind for kind, _ in _BODIES.values()]
    schemas, components = msgspec.json.schema_components(kinds, ref_template="#/components/schemas/{name}")
    components["Error"] = _ERROR
    named = {"type": "string"} | ({} if model is None else {"enum": [model]})
    for body_kind in kinds:
        components[body_kind.__name__]["properties"]["model"] = named
    paths: dict[str, Any] = {}
    for (path, (_, summary)), body in zip(_BODIES.items(), schemas, strict=True):
        good: dict[str, Any] = {"application/json": {"schema": _ANSWER}}
        if path != "/v1/embeddings":
            good["text/event-stream"] = {}
        paths[path] = {
            "post": {
                "summary": summary,
                "requestBody": {"required": True, "content": {"application/json": {"schema": body}}},
                "responses": {
                    "200": {"description": "the answer", "content": good},
                    **_errors(400, 401, 404, 408, 413, 415, 421, 429, 500, 501, 503),
                },
            }
        }
    for path, (summary, kind, statuses) in _GETS.items():
        shown = {"schema": {"type": "object" if kind == "application/json" else "string"}}
        paths[path] = {
            "get": {
                "summary": summary,
                "responses": {
                    str(status): {"description": summary, "content": {kind: shown, "application/json": {}}}
                    for status in statuses
                },
            }
        }
    return {
        "openapi": "3.1.0",
        "info": {"title": "ingot", "version": __version__},
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"key": []}, {}],
    }


def _errors(*statuses: int) -> dict[str, Any]:
    content = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    return {str(status): {"description": "an error", "content": content} for status in statuses}
