"""OpenAPI: the schema of all that is asked here, with the operations, which no route of Litestar's serves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from litestar import Request
from litestar.openapi.plugins import JsonRenderPlugin

from oncebox.operate.shape import Json

CALLER, PROBLEM = "caller", "OnceboxProblem"
_PROBLEMS = {
    "400": "The key is missing, doubled or not printable ASCII of 1 to 255 characters (bad-key)",
    "401": "Say who calls, by the token of a caller (unauthorized)",
    "409": "The first request still runs: come back after Retry-After (in-progress); or nobody knows how it ended "
    "(outcome-unknown)",
    "413": "The body is too large (too-large)",
    "415": "The body is no JSON by its type, or its encoding cannot be read (bad-body, bad-encoding)",
    "422": "The key was used before with another request (key-conflict), or the body does not fit (bad-body)",
    "500": "It failed (or outcome-unknown)",
    "503": "Come back after Retry-After (overloaded, storage-full)",
    "504": "It took too long (or outcome-unknown)",
}
_REPLAYED = {
    "Idempotent-Replayed": {
        "description": "true: this is the reply that the first request was given",
        "schema": {"type": "string", "enum": ["true"]},
    }
}
_KEY = {
    "name": "Idempotency-Key",
    "in": "header",
    "required": True,
    "description": "A new one for each request, such as a UUID; the same for each retry. Quoted or bare.",
    "schema": {"type": "string", "minLength": 1, "maxLength": 255},
    "example": "8e03978e-40d5-43dd-bc93-6894a57f9324",
}
_PROBLEM = {
    "title": "Problem",
    "description": "RFC 9457",
    "type": "object",
    "properties": {
        "type": {"type": "string", "format": "uri", "examples": ["urn:oncebox:problem:key-conflict"]},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
    },
    "required": ["type", "title", "status", "detail"],
}


class Described(msgspec.Struct, frozen=True, kw_only=True):
    """An operation as those see it who call it; `shape` is the Struct that its body is read into, if any."""

    name: str
    methods: tuple[str, ...]
    description: str
    public: bool
    shape: type[msgspec.Struct] | None = None


def with_operations(schema: Mapping[str, Any], described: Sequence[Described]) -> Json:
    """The schema with each operation below /do."""
    if not described:
        return dict(schema)
    known = schema.get("components", {})
    shapes = [one.shape for one in described if one.shape is not None and _can_be_told(one.shape)]
    made, components = msgspec.json.schema_components(shapes, ref_template="#/components/schemas/{name}")
    bodies = dict(zip(shapes, made, strict=True))
    return {
        **schema,
        "paths": {**schema.get("paths", {}), **{f"/do/{one.name}": _path(one, bodies) for one in described}},
        "components": {
            **known,
            "schemas": {**known.get("schemas", {}), **components, PROBLEM: _PROBLEM},
            "securitySchemes": {**known.get("securitySchemes", {}), CALLER: {"type": "http", "scheme": "bearer"}},
        },
    }


def _can_be_told(shape: type[msgspec.Struct]) -> bool:
    """Not every type that a Struct may have has a schema; one that has none is no reason to tell nothing at all."""
    try:
        msgspec.json.schema(shape)
    except TypeError:
        return False
    return True


def _path(one: Described, bodies: Mapping[Any, Any]) -> Json:
    return {method.lower(): _call(one, method, bodies) for method in one.methods}


def _call(one: Described, method: str, bodies: Mapping[Any, Any]) -> Json:
    summary = one.description.strip().partition("\n")[0]
    shape: object = {} if one.shape is None else {"schema": bodies.get(one.shape, {})}
    taken = {"*/*" if one.shape is None else "application/json": shape}
    return {
        "tags": ["operations"],
        "operationId": f"{method.lower()}_do_{one.name}",
        "summary": summary or one.name,
        **({"description": one.description} if one.description.strip() != summary else {}),
        "parameters": [_KEY],
        "requestBody": {"required": one.shape is not None, "content": taken},
        "responses": {
            "2XX": {"description": "What it made; a repeat gets the same", "headers": _REPLAYED},
            **{status: _problem(why) for status, why in _PROBLEMS.items()},
        },
        "security": [{CALLER: []}, *([{}] if one.public else [])],
    }


def _problem(why: str) -> Json:
    shape = {"$ref": f"#/components/schemas/{PROBLEM}"}
    return {"description": why, "content": {"application/problem+json": {"schema": shape}}}


class OpenAPI(JsonRenderPlugin):
    """Serves the schema, operations included."""

    def __init__(self, described: Sequence[Described] = ()) -> None:
        super().__init__()
        self._described = described

    def render(self, request: Request[Any, Any, Any], openapi_schema: dict[str, Any]) -> bytes:
        """The schema as JSON."""
        return super().render(request, with_operations(openapi_schema, self._described))
