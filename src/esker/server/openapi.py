"""The OpenAPI 3.1 document, made from the table: what is not in it cannot be asked.

Whatever a route is in the table, it is here: parameters and bodies with schemas, every kind of
answer, which errors it may give by their codes, and what a key needs. What the table does not say
stands in described.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

import msgspec

from esker.server import described
from esker.server.bodies.codec import ARROW, BYTES, EVENTS, JSON, NDJSON
from esker.server.described import ANSWERED, BODIES, CODES, EXAMPLES, HEADERS, STATUSES
from esker.server.http.faults import STATUS, Body
from esker.server.table import PROTOBUF, RAW, Route
from esker.version import VERSION

_REFERENCE: Final = "#/components/schemas/{name}"
_BINARY: Final = {ARROW, BYTES, PROTOBUF}
_LINES: Final = {NDJSON, EVENTS}
NAME: Final = {
    "type": "string", "pattern": "^[A-Za-z0-9][A-Za-z0-9._:-]{0,254}$", "minLength": 1,
    "maxLength": 255,
}  # fmt: skip


_EVERYWHERE: Final = (
    "invalid_request", "request_timeout", "misdirected", "forbidden", "headers_too_large",
    "throttled", "internal", "not_ready", "shutting_down", "too_many_connections",
)  # fmt: skip
_LATER: Final = {"429", "503"}


class Known(NamedTuple):
    """The schemas that operations refer to."""

    schemas: dict[int, Any]

    def of(self, kind: Any) -> Any:
        return self.schemas[id(kind)]


@lru_cache(maxsize=4)
def document(routes: Sequence[Route]) -> dict[str, Any]:
    """The whole of it."""
    kinds: list[Any] = [Body]
    for route in routes:
        kinds += [kind for kind in (route.reply, route.body) if kind not in (None, RAW)]
        kinds += BODIES.get(route.handler, {}).values()
    found, components = msgspec.json.schema_components(kinds, ref_template=_REFERENCE)
    known = Known({id(kind): schema for kind, schema in zip(kinds, found, strict=True)})
    for name, example in EXAMPLES.items():
        if name in components:
            components[name]["examples"] = [example]
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, known)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Esker", "version": VERSION,
            "description": (
                "A durable log: topics of records, and who reads them. What answers GET and is no "
                "stream answers HEAD as well."
            ),
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "tags": [{"name": name} for name in dict.fromkeys(map(_room, routes))],
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {
                "key": {
                    "type": "http", "scheme": "bearer",
                    "description": "a key of the server; without a file of keys nobody needs one",
                },
                "ticket": {
                    "type": "apiKey", "in": "query", "name": "ticket",
                    "description": "of POST /v1/tickets: instead of a key, for one stream",
                },
            },
        },
    }  # fmt: skip


def _room(route: Route) -> str:
    return route.handler.partition(".")[0]


def _operation(route: Route, known: Known) -> dict[str, Any]:
    told: dict[str, Any] = {
        "operationId": f"{route.handler.replace('.', '_')}_{route.method.lower()}",
        "summary": route.says,
        "tags": [_room(route)],
        "parameters": [
            *_path_parameters(route), *_query_parameters(route), *_header_parameters(route),
        ],
        "responses": _responses(route, known),
    }  # fmt: skip
    if route.scope is not None:
        tickets = [{"ticket": [route.scope]}] if route.streams or route.live else []
        told["security"] = [{"key": [route.scope]}, *tickets, {}]
    if route.streams:
        told["x-streams"] = True
    if route.body is not None:
        content = {media: _content(route, media, known) for media in route.media}
        told["requestBody"] = {"required": route.body is RAW, "content": content}
    return told


def _content(route: Route, media: str, known: Known) -> dict[str, Any]:
    kind = BODIES.get(route.handler, {}).get(media) if route.body is RAW else route.body
    if kind is not None:
        return {"schema": known.of(kind)}
    if media in _LINES:
        return {"schema": {"type": "string", "description": "a JSON object in each line"}}
    return {"schema": {"type": "string", "format": "binary"} if media in _BINARY else {}}


# ---- answers ---------------------------------------------------------------------------------


def codes(route: Route) -> list[str]:
    """The codes of all errors that a route is known to give."""
    found = list(_EVERYWHERE)
    if route.scope is not None:
        found += ["unauthorized"]
    if route.scope not in (None, "read"):
        found += ["read_only"]
    if "{" in route.path:
        found += ["not_found"]
    if route.names:
        found += ["invalid_name"]
    if len(route.offers) > 1:
        found += ["not_acceptable"]
    if route.body is not None:
        found += ["payload_too_large", "unsupported_media_type"]
    return list(dict.fromkeys([*found, *CODES.get(route.handler, ())]))


def _responses(route: Route, known: Known) -> dict[str, Any]:
    answers: dict[str, Any] = {"200": _success(route, known)}
    if route.handler in described.UPGRADES:
        answers = {"101": {"description": described.UPGRADES[route.handler]}}
    for status, says in STATUSES.get(route.handler, {}).items():
        answers[status] = {**answers["200"], "description": says}
        if status in ("204", "304"):
            answers[status].pop("content", None)
    by_status: dict[str, list[str]] = {}
    for code in codes(route):
        by_status.setdefault(str(STATUS[code]), []).append(code)
    for status, named in sorted(by_status.items()):
        answers[status] = _failure(", ".join(named), known, later=status in _LATER)
    answers["default"] = _failure("any other error", known)
    return answers


def _success(route: Route, known: Known) -> dict[str, Any]:
    more = {name: _header(says) for name, says in ANSWERED.get(route.handler, {}).items()}
    told: dict[str, Any] = {"description": route.says, "headers": {**_ANSWER_HEADERS, **more}}
    if route.streams and route.offers == (JSON,):
        told["content"] = {EVENTS: {"schema": {"type": "string"}}}
        return told
    offers = (*route.offers, *described.ALSO.get(route.handler, ()))
    told["content"] = {media: {"schema": _answer_schema(route, media, known)} for media in offers}
    return told


def _answer_schema(route: Route, media: str, known: Known) -> Any:
    if media == JSON:
        return {} if route.reply is None else known.of(route.reply)
    return {"type": "string", "format": "binary"} if media in _BINARY else {"type": "string"}


def _failure(says: str, known: Known, *, later: bool = False) -> dict[str, Any]:
    headers = dict(_ANSWER_HEADERS)
    if "unauthorized" in says:
        headers["WWW-Authenticate"] = _header("Bearer: a key is what is to be sent")
    if "throttled" in says:
        headers |= _RATES
    if later:
        headers["Retry-After"] = _header("seconds after which it may be tried again")
    return {
        "description": says, "headers": headers, "content": {JSON: {"schema": known.of(Body)}},
    }  # fmt: skip


def _header(says: str) -> dict[str, Any]:
    return {"description": says, "schema": {"type": "string"}}


_ANSWER_HEADERS: Final = {
    "Esker-Request": _header("the number of the request, which the log has too"),
    "Server-Timing": _header("milliseconds, by what took them"),
}

_RATES: Final = {  # only with a rate (`key_rate`), and then of every answer
    "RateLimit-Limit": _header("calls that the key may make at once"),
    "RateLimit-Remaining": _header("those that are left"),
    "RateLimit-Reset": _header("seconds until all of them are there again"),
}

# ---- parameters ------------------------------------------------------------------------------


def _path_parameters(route: Route) -> list[dict[str, Any]]:
    names = [part[1:-1] for part in route.parts if part.startswith("{")]
    topics = {place.field for place in route.names if place.where == "path"}
    return [
        {
            "name": name, "in": "path", "required": True,
            "schema": NAME if name in topics else {"type": "string", "minLength": 1},
        }
        for name in names
    ]  # fmt: skip


def _query_parameters(route: Route) -> list[dict[str, Any]]:
    found = []
    for field in msgspec.structs.fields(route.query):
        schema = _without_null(msgspec.json.schema(field.type))
        if field.default not in (None, msgspec.NODEFAULT):
            schema = {**schema, "default": field.default}
        told = {"name": field.encode_name, "in": "query", "schema": schema}
        found.append({**told, "required": field.required})
    if route.reply is not None:
        schema = {"type": "boolean", "default": False}
        found.append({"name": "performance", "in": "query", "schema": schema, "required": False})
    return found


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    """A query has no null: what is not there is left out."""
    several = [each for each in schema.get("anyOf", ()) if each != {"type": "null"}]
    if not several:
        return schema
    return several[0] if len(several) == 1 else {**schema, "anyOf": several}


def _header_parameters(route: Route) -> list[dict[str, Any]]:
    return [
        {"name": name, "in": "header", "required": False, "description": says,
         "schema": {"type": "string"}}
        for name, says in HEADERS.get(route.handler, {}).items()
    ]  # fmt: skip
