"""The OpenAPI document says what the server does: schemathesis calls all of it, well and badly.

The document is made from the table of routes, so a route that is added is called here by itself.
For every operation schemathesis makes requests that are as they should be and others that are not:
from the examples, at every edge of every schema, and by chance. Then the parts of those requests
are put together anew (the path of one, the query of another, the body of a third), until there are
enough. Every answer must be as the document says, no error may be the server's own, and none may
tell what is none of the client's business.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import random
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote_to_bytes, urlsplit

import hypothesis
import hypothesis.errors
import msgspec
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase
from schemathesis.checks import load_all_checks, not_a_server_error
from schemathesis.core.transport import Response
from schemathesis.generation import GenerationMode
from schemathesis.generation.drivers import CoverageGenerator
from schemathesis.generation.feedback import NO_FEEDBACK
from schemathesis.generation.overrides import Override
from schemathesis.specs.openapi import checks

from esker import server
from esker.server.bodies.codec import ARROW
from esker.server.described import ALSO, ANSWERED, CODES, HEADERS, STATUSES
from esker.server.openapi import codes, document
from esker.server.run import Server, serving
from esker.server.settings import Settings
from esker.server.table import PROTOBUF, ROUTES
from tests.helpers import wait_until
from tests.server.asgi import Request, application, call
from tests.server.conftest import Client
from tests.server.raw import SECRETS
from tests.suites import SEED, Tallies, scaled

load_all_checks()
LOTS = 4
REQUESTS = 10_400  # a little more than the floor
BY_CHANCE = 800  # of them, made by hypothesis from nothing; the others are recombined
MODES = (GenerationMode.POSITIVE, GenerationMode.NEGATIVE)
CHECKS = [
    not_a_server_error, checks.status_code_conformance, checks.content_type_conformance,
    checks.response_schema_conformance, checks.response_headers_conformance,
]  # fmt: skip
ALL_CHECKS = [*CHECKS, checks.negative_data_rejection]  # of cases as they were drawn
BY_TICKET = {
    "/v1/watch", "/v1/watch/{id}", "/v1/ws", "/v1/topics/{topic}/export", "/ds/{topic}",
    "/v1/queues/{queue}/work",
}  # fmt: skip
OF_ALL = {  # headers that any answer may have, and of which no client makes anything
    "date", "content-type", "content-length", "transfer-encoding", "connection", "cache-control",
    "x-content-type-options", "referrer-policy", "cross-origin-resource-policy",
    "cross-origin-opener-policy", "content-security-policy",
}  # fmt: skip
KNOWN = ("t", "u", "never-made")  # names that are often asked for, or little would be found


@schemathesis.serializer(ARROW)
def stream(_context: Any, value: Any) -> bytes:
    """What chance makes of an Arrow stream: seldom one."""
    return value if isinstance(value, bytes) else msgspec.json.encode(str(value))


class Caller:
    """Sends cases over one connection."""

    def __init__(self, server: Server) -> None:
        self.url = server.url
        where = urlsplit(server.url)
        self.connection = http.client.HTTPConnection(where.hostname or "", where.port, timeout=10)

    def close(self) -> None:
        self.connection.close()

    def call(self, case: Any, streams: bool) -> Response:
        """An answer without an end is read to the end of its head."""
        given = case.as_transport_kwargs(self.url)
        for name in ("timeout", "verify", "allow_redirects", "stream", "proxies", "cert"):
            given.pop(name, None)
        asked = requests.Request(**given).prepare()
        where = urlsplit(asked.url or "")
        path = where.path + (f"?{where.query}" if where.query else "")
        body: Any = asked.body
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # refused before its end
            self.connection.request(asked.method or "", path, body, dict(asked.headers))
        found = self.connection.getresponse()
        headers: dict[str, list[str]] = {}
        for name, value in found.getheaders():
            headers.setdefault(name, []).append(value)
        endless = streams and found.status == 200
        content = b"" if endless else found.read()
        if endless:
            found.close()
            self.connection.close()
        return Response(
            found.status, headers, content, asked, 0.0, False, stream_cut_short=endless
        )  # fmt: skip


def betrayed(answer: Response) -> list[bytes]:
    """What an error tells that is none of the client's business.

    A name that the client sent may come back: chance finds ours among its words now and then.
    """
    body = answer.request.body or b""
    sent = body.encode() if isinstance(body, str) else bytes(body)
    sent += unquote_to_bytes(answer.request.url or "") + str(answer.request.headers).encode()
    return [each[0] for each in SECRETS.finditer(answer.content) if each[0] not in sent]


def drawn(operation: Any, count: int, seed: int) -> list[Any]:
    """Cases of one operation: its examples and edges, and some by chance."""
    found = list(
        CoverageGenerator(
            operation=operation, generation_modes=list(MODES), auth_storage=None,
            generation_config=operation.schema.config.generation_for(operation=operation),
            override=Override(query={}, headers={}, cookies={}, path_parameters={}, body={}),
            feedback=NO_FEEDBACK,
        )
    )  # fmt: skip
    for mode in MODES:
        strategy = operation.as_strategy(generation_mode=mode)

        @hypothesis.settings(
            max_examples=max(1, count // 2), database=None, deadline=None,
            suppress_health_check=list(HealthCheck), phases=[Phase.generate],
        )  # fmt: skip
        @hypothesis.seed(seed)
        @hypothesis.given(case=strategy)
        def take(case: Any) -> None:
            found.append(case)

        with contextlib.suppress(hypothesis.errors.Unsatisfiable):  # nothing in it can be wrong
            take()
    return found


def recombined(operation: Any, pool: list[Any], chance: random.Random) -> Any:
    """Parts of several cases as one."""
    body = chance.choice(pool)
    places = dict(chance.choice(pool).path_parameters or {})
    for name in places:
        if chance.random() < 0.6:
            places[name] = chance.choice(KNOWN)
    return operation.Case(
        path_parameters=places, query=chance.choice(pool).query,
        headers=chance.choice(pool).headers, body=body.body, media_type=body.media_type,
    )  # fmt: skip


def cases(operation: Any, count: int, chance: random.Random) -> Iterator[Any]:
    pool = drawn(operation, max(4, count * BY_CHANCE // REQUESTS), chance.randrange(1 << 30))
    yield from pool[:count]
    parameters = operation.path_parameters or operation.query or operation.body
    for _ in range(count - len(pool) if parameters else 0):
        yield recombined(operation, pool, chance)


@pytest.mark.suite
@pytest.mark.slow
@pytest.mark.parametrize("lot", range(LOTS))
def test_every_operation_answers_as_the_document_says(fast: str, lot: int, tally: Tallies) -> None:
    suite = tally("requests by the document", lots=LOTS)
    settings = Settings(port=0, wait_seconds=0.02, topics=500, idle_seconds=600)
    with (
        warnings.catch_warnings(action="ignore"),
        serving(f"{fast}/data", settings) as server,
        contextlib.ExitStack() as ends,
    ):
        client = Client(server)
        ends.callback(client.close)
        for name in KNOWN[:2]:
            client.call("PUT", f"/v1/topics/{name}", {"segment_records": 4})
            client.append(name, *map(str, range(10)))
        schema = schemathesis.openapi.from_dict(client.get("/openapi.json").json())
        operations = [found.ok() for found in schema.get_all_operations()]
        assert {(each.method.upper(), each.path) for each in operations} == {
            (route.method, route.path) for route in server.app.table.routes
        }
        mine = [
            each for n, each in enumerate(operations) if n % LOTS == lot and len(each.path) > 9
        ] + [each for each in operations if lot == 0 and len(each.path) <= 9]
        caller = Caller(server)
        ends.callback(caller.close)
        rich = [each for each in mine if each.path_parameters or each.query]
        wanted = scaled(REQUESTS) // LOTS
        for operation in mine:
            share = 20 if operation not in rich else wanted // len(rich) + 20
            streams = bool(operation.definition.raw.get("x-streams"))
            chance = random.Random(f"{SEED}-{operation.label}")
            for case in cases(operation, share, chance):
                answer = caller.call(case, streams)
                suite.count += 1
                suite.also[f"of {answer.status_code // 100}xx"] += 1
                # What schemathesis takes for a refusal of wrong data has not these two in it.
                refused = answer.status_code in (413, 431)
                case.validate_response(answer, checks=CHECKS if refused else ALL_CHECKS)
                if answer.status_code >= 400:
                    assert not betrayed(answer), answer.content
        assert client.get("/readyz").status == 200


def test_the_document_is_complete() -> None:
    told = document(ROUTES)
    named = [
        operation["operationId"] for path in told["paths"].values() for operation in path.values()
    ]
    assert len(named) == len(set(named)) == len(ROUTES)
    for route in ROUTES:
        operation = told["paths"][route.path][route.method.lower()]
        assert operation["summary"]
        answers = operation["responses"]
        assert {"default", "400", "421", "429", "431", "500", "503"} <= answers.keys()
        assert ("101" if route.handler == "socket.plain" else "200") in answers
        assert ("security" in operation) == (route.scope is not None)
        by_ticket = {"ticket": [route.scope]} in operation.get("security", ())
        assert by_ticket == (route.path in BY_TICKET and route.method == "GET"), route.path
        read_only = "read_only" in answers["403"]["description"]
        assert read_only == (route.scope not in (None, "read"))
        assert ("401" in answers) == (route.scope is not None)
        assert "Retry-After" in answers["503"]["headers"]
        if route.body is not None:
            assert operation["requestBody"]["content"].keys() == set(route.media)
            assert {"413", "415"} <= answers.keys()
        if not route.streams:
            also = ALSO.get(route.handler, ())
            assert answers["200"]["content"].keys() == {*route.offers, *also}
        assert all(code in answers[status]["description"] for status, code in _told(route))
    described = CODES.keys() | ANSWERED.keys() | HEADERS.keys() | STATUSES.keys()
    assert described <= {route.handler for route in ROUTES}


def test_every_refusal_of_a_plain_call_stands_in_the_document() -> None:
    """Of what is not there, of a log, of a queue; a generated client has a case for each."""
    told = document(ROUTES)
    undescribed: list[str] = []

    async def story() -> None:
        async with application() as app:
            await call(app, "PUT", "/v1/topics/log", {})
            await call(app, "PUT", "/v1/queues/queue", {})
            for route in ROUTES:
                answers = told["paths"][route.path][route.method.lower()]["responses"]
                for name in ("nothing", "log", "queue"):
                    got = await Request(route, name).send(app, {})
                    described = answers.get(str(got.status), {}).get("description", "")
                    if str(got.status) not in answers or got.code not in described:
                        undescribed.append(f"{route.method} {route.path} {name}: {got.code}")

    asyncio.run(story())
    assert undescribed == []


def test_every_header_that_is_read_stands_in_the_document() -> None:
    read = {
        name
        for path in Path(server.__file__).parent.glob("*.py")
        for name in re.findall(r'headers\.get\(\s*"([a-z-]+)"', path.read_text())
    }
    told = {
        parameter["name"].lower()
        for path in document(ROUTES)["paths"].values()
        for operation in path.values()
        for parameter in operation["parameters"]
        if parameter["in"] == "header"
    }
    by_others = {  # HTTP's own, CORS's, and those of any request
        "authorization", "content-length", "content-type", "content-encoding", "origin", "host",
        "access-control-request-method", "access-control-request-headers", "sec-fetch-site",
        "accept", "user-agent",
    }  # fmt: skip
    assert read - by_others - told == set()
    assert {"esker-producer", "esker-sequence", "last-event-id", "esker-topic"} <= told


def test_headers_and_types_of_answers_stand_in_the_document(client: Client) -> None:
    client.call("PUT", "/v1/topics/t", {"segment_records": 2})
    for _ in range(3):
        client.append("t", "a", "b")
    page = "/v1/topics/t/records?start=0&limit=2"
    wait_until(lambda: "etag" in client.get(page).headers)
    client.call("PUT", "/v1/topics/t/groups/g", {})
    log = b'{"resourceLogs":[{"scopeLogs":[{"logRecords":[{"body":{"stringValue":"x"}}]}]}]}'
    calls: list[tuple[Any, ...]] = [
        ("GET", page, "/v1/topics/{topic}/records"),
        ("GET", page, "/v1/topics/{topic}/records", None, {"If-None-Match": "*"}),
        ("GET", "/v1/topics/t/records", "/v1/topics/{topic}/records", None, {"Accept": ARROW}),
        ("GET", "/v1/topics/t/export?format=csv", "/v1/topics/{topic}/export"),
        ("GET", "/", "/"),
        ("GET", "/console/app.js", "/console/{file}"),
        ("GET", "/metrics", "/metrics"),
        ("POST", "/otlp/v1/logs", "/otlp/v1/logs", log, {"Content-Type": "application/json"}),
        ("POST", "/otlp/v1/logs", "/otlp/v1/logs", b"", {"Content-Type": PROTOBUF}),
        (
            "POST", "/v1/topics/t/groups/g/poll", "/v1/topics/{topic}/groups/{group}/poll", {},
            {"Accept": ARROW},
        ),
    ]  # fmt: skip
    paths = document(ROUTES)["paths"]
    for method, asked, path, *rest in calls:
        answer = client.call(method, asked, *rest)
        told = paths[path][method.lower()]["responses"][str(answer.status)]
        assert answer.headers.keys() - OF_ALL <= {name.lower() for name in told["headers"]}, asked
        if answer.status != 304:
            kind = answer.headers["content-type"].partition(";")[0]
            assert kind in told["content"], asked
    refused = paths["/v1/topics"]["get"]["responses"]["401"]
    assert "WWW-Authenticate" in refused["headers"]


def _told(route: Any) -> list[tuple[str, str]]:
    from esker.server.http.faults import STATUS

    return [(str(STATUS[code]), code) for code in codes(route)]


def test_the_examples_of_the_document_are_taken(client: Client) -> None:
    told = client.get("/openapi.json").json()["components"]["schemas"]
    (options,) = told["Options"]["examples"]
    assert client.call("PUT", "/v1/topics/t", options).status == 201
    (records,) = told["Records"]["examples"]
    answer = client.call("POST", "/v1/topics/t/records", records)
    assert answer.status == 200, answer.body
    assert msgspec.json.decode(answer.body)["count"] == 1


def test_an_error_may_repeat_what_was_sent_and_nothing_else() -> None:
    asked = requests.Request("GET", "http://h/v1/routes/esker%2Eengine?a=%2Ftmp", data="msgspec")
    body = b'{"error": "no route esker.engine; /tmp, msgspec; /usr, Traceback"}'
    answer = Response(404, {}, body, asked.prepare(), 0.0, False)
    assert betrayed(answer) == [b"/usr", b"Traceback"]
