"""Keys: how they are made, kept, found, limited and ended."""

from __future__ import annotations

import ast
import asyncio
import gc
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest

import esker.server
from esker.errors import EskerError, InvalidOption, PermissionRefused
from esker.server.access import gate, keyfile, tickets
from esker.server.access.keys import SCOPES, Keyring, Principal, id_of, new_secret, redacted
from esker.server.http.call import Call, Reply
from esker.server.live import watch
from esker.server.settings import Settings
from esker.server.table import RAW, ROUTES, Route, Table
from esker.testing.clock import ManualClock
from tests.server.asgi import Got, Keys, Request, Socket, application, bearer, call

SERVER = Path(esker.server.__file__).parent
STREAM = Route("GET", "/v1/endless", "read", "probes.health", "Never ends", streams=True)
SLOW = Route("POST", "/v1/slow", "write", "probes.health", "Takes its time")
TABLE = Table((*ROUTES, STREAM, SLOW))


# ---- the file ----------------------------------------------------------------------------------


def test_a_key_is_shown_once_and_its_secret_is_nowhere(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    key, text = keyfile.new(path, ["write", "read"], ["t4:"], name="for tests")
    id, secret = text[4:16], text[17:]
    assert (key.id, len(secret), int(secret, 16) > 0) == (id, 64, True)
    assert path.stat().st_mode & 0o777 == 0o600
    kept = path.read_text()
    assert secret not in kept
    assert id in kept
    assert secret not in repr(key)
    assert key.sha256 not in repr(key)
    assert key.scopes == ("read", "write")
    assert keyfile.load(path) == [key]


def test_keys_that_are_made_at_once_are_all_there(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda _: keyfile.new(path, ["read"])[0].id, range(40)))
    assert sorted(key.id for key in keyfile.load(path)) == sorted(made)
    assert len(set(made)) == 40


def test_a_key_is_revoked_once_and_forgotten_when_asked(tmp_path: Path) -> None:
    path, clock = tmp_path / "keys", ManualClock()
    key, _ = keyfile.new(path, ["read"], clock=clock)
    other, _ = keyfile.new(path, ["read"], clock=clock)
    first = keyfile.revoke(path, key.id, clock)
    clock.forward(5)
    assert keyfile.revoke(path, key.id, clock) == first
    assert [each.state(clock.now_us()) for each in keyfile.load(path)] == ["revoked", "good"]
    assert keyfile.forget(path, key.id) == first
    assert keyfile.load(path) == [other]
    with pytest.raises(InvalidOption, match=f"no key {key.id}"):
        keyfile.revoke(path, key.id)


def test_a_secret_in_the_place_of_an_id_is_not_repeated(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    _, text = keyfile.new(path, ["read"])
    with pytest.raises(InvalidOption) as told:
        keyfile.revoke(path, text)
    assert text[17:] not in str(told.value)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o644, 0o601, 0o666])
def test_keys_that_others_may_read_or_change_are_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "keys"
    keyfile.new(path, ["read"])
    path.chmod(mode)
    with pytest.raises(PermissionRefused, match="chmod 600"):
        keyfile.load(path)


@pytest.mark.parametrize(
    ("scopes", "prefixes", "more"),
    [
        (["fly"], [], {}), ([], [], {}), (["read"], [""], {}), (["read"], ["a/b"], {}),
        (["read"], ["a*"], {}), (["read"], ["é"], {}), (["read"], ["a\n"], {}),
        (["read"], [], {"name": "a\nb"}), (["read"], [], {"name": "x" * 81}),
        (["read"], [], {"seconds": 0}), (["read"], [], {"seconds": -1}),
    ],
)  # fmt: skip
def test_a_key_that_makes_no_sense_is_not_made(
    tmp_path: Path, scopes: list[str], prefixes: list[str], more: dict[str, Any]
) -> None:
    with pytest.raises(InvalidOption):
        keyfile.new(tmp_path / "keys", scopes, prefixes, **more)
    assert not (tmp_path / "keys").exists()


def _with(**changes: Any) -> bytes:
    key = {"id": "0" * 12, "sha256": "0" * 64, "scopes": ["read"], "prefixes": ["*"], "created": 1}
    return msgspec.json.encode({"version": 1, "keys": [{**key, **changes}]})


@pytest.mark.parametrize(
    "data",
    [
        b"", b"{}", b"[]", b"\xff", b'{"version": 2, "keys": []}', _with(id="x"), _with(sha256="0"),
        _with(scopes=["fly"]), _with(prefixes=[]), _with(prefixes=["a/"]), _with(more=1),
        _with(name="\x1b[2J"), _with(expires="soon"), _with(id="0" * 11 + "G"),
        _with()[:-2] + b"," + _with()[21:],
    ],
)  # fmt: skip
def test_a_file_that_is_not_as_it_should_be_is_refused(data: bytes) -> None:
    keyfile.keys_in(_with())
    with pytest.raises(InvalidOption):
        keyfile.keys_in(data)


def test_a_server_does_not_start_without_the_keys_that_it_was_told_of(tmp_path: Path) -> None:
    async def start() -> None:
        async with application(Settings(keys=str(tmp_path / "none"))):
            pass

    with pytest.raises(EskerError, match="none"):
        asyncio.run(start())


# ---- finding one -------------------------------------------------------------------------------


def ring_of(tmp_path: Path, clock: ManualClock, **more: Any) -> tuple[Keyring, str]:
    _, text = keyfile.new(tmp_path / "keys", ["read"], clock=clock, **more)
    ring = Keyring()
    ring.take(keyfile.load(tmp_path / "keys"), clock.now_us())
    return ring, text


def test_a_key_is_good_until_its_time_is_over(tmp_path: Path) -> None:
    clock = ManualClock()
    ring, text = ring_of(tmp_path, clock, seconds=60)
    found = ring.find(text, clock.now_us())
    assert found is not None
    assert found.alive
    clock.forward(59.999)
    assert ring.find(text, clock.now_us()) is found
    clock.forward(0.001)
    assert ring.find(text, clock.now_us()) is None
    assert [change.event for change in ring.expire(clock.now_us())] == ["key_expired"]
    assert not found.alive
    assert len(ring) == 0


def test_who_is_changed_begins_anew_and_who_is_not_goes_on(tmp_path: Path) -> None:
    clock = ManualClock()
    ring, text = ring_of(tmp_path, clock)
    found = ring.find(text, clock.now_us())
    assert found is not None
    (key,) = keyfile.load(tmp_path / "keys")
    assert ring.take([key], clock.now_us()) == []
    assert ring.find(text, clock.now_us()) is found
    changed = msgspec.structs.replace(key, scopes=("write",))
    assert [each.event for each in ring.take([changed], clock.now_us())] == ["key_changed"]
    assert not found.alive
    again = ring.find(text, clock.now_us())
    assert again is not None
    assert (again.may("read"), again.may("write"), again.alive) == (False, True, True)
    assert [each.event for each in ring.take([], clock.now_us())] == ["key_removed"]
    assert ring.find(text, clock.now_us()) is None


# Names that hold, or are compared with, what proves a key.
SECRETS = {
    "seal",
    "sealed",
    "hash",
    "hashed",
    "secret",
    "presented",
    "wanted",
    "sha256",
    "digest",
    "ticket",
    "_given",
}


def unsafe_comparisons(tree: ast.Module) -> list[int]:
    """Lines on which something secret is compared by anything but compare_digest."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            whole = [node.left, *node.comparators]
            nothing = any(isinstance(each, ast.Constant) and each.value is None for each in whole)
            names = {
                each.id if isinstance(each, ast.Name) else each.attr
                for side in whole
                for each in ast.walk(side)
                if isinstance(each, (ast.Name, ast.Attribute))
            }
            sizes = all(isinstance(op, (ast.GtE, ast.Gt, ast.Lt, ast.LtE)) for op in node.ops)
            if names & SECRETS and not nothing and not sizes:
                found.append(node.lineno)
    return found


def test_secrets_are_compared_in_constant_time_and_in_no_other_way() -> None:
    # where `hashed` and `wanted` are no secrets
    others = {"hub.py", "feed.py", "missing.py", "leases.py", "preferences.py"}
    modules = [each for each in sorted(SERVER.rglob("*.py")) if each.name not in others]
    assert len(modules) > 50
    for module in modules:
        found = unsafe_comparisons(ast.parse(module.read_text()))
        assert found == [], module.name
    find = next(
        node
        for node in ast.walk(ast.parse(next(SERVER.rglob("keys.py")).read_text()))
        if isinstance(node, ast.FunctionDef) and node.name == "find"
    )
    assert ast.unparse(find).count("hmac.compare_digest(hash_of(secret), wanted)") == 1
    assert unsafe_comparisons(ast.parse("if hash_of(secret) == wanted: pass")) == [1]
    assert unsafe_comparisons(ast.parse("ok = entry.hash in known")) == [1]


def test_how_much_of_a_secret_is_right_takes_no_time(tmp_path: Path) -> None:
    """20,000 looks: no digits right, all but one, and an id that nobody has."""
    ring, text = ring_of(tmp_path, ManualClock())
    last = "0" if text[-1] != "0" else "1"
    first = "0" if text[17] != "0" else "1"
    tried = [
        text[:17] + first + text[18:], text[:48] + first * 33, text[:-1] + last,
        "esk_" + "0" * 12 + text[16:],
    ]  # fmt: skip
    times: list[list[int]] = [[] for _ in tried]
    gc.disable()
    try:
        for _ in range(5_000):
            for each, into in zip(tried, times, strict=True):
                began = time.perf_counter_ns()
                ring.find(each, 0)
                into.append(time.perf_counter_ns() - began)
    finally:
        gc.enable()
    middle = [statistics.median(each) for each in times]
    assert max(middle) < 1.25 * min(middle)


def test_what_can_be_printed_has_no_secret() -> None:
    id, text, hashed = new_secret()
    assert redacted(f"a {text} b") == f"a esk_{id}_… b"
    assert redacted("x tkt_" + "a" * 32) == "x tkt_…"
    assert redacted("plain esk_ text") == "plain esk_ text"
    assert (id_of(text), id_of(text[:-1]), id_of("")) == (id, "", "")
    principal = Principal(id, ["read"])
    assert hashed not in repr(principal)
    assert repr(Principal("", SCOPES)) == "<anybody>"


# ---- how many at once --------------------------------------------------------------------------


class Doors:
    """Handlers that stay until they are let go."""

    def __init__(self) -> None:
        self.inside = 0
        self.most = 0
        self.open = asyncio.Event()

    def __enter__(self) -> None:
        self.inside += 1
        self.most = max(self.most, self.inside)

    def __exit__(self, *_: object) -> None:
        self.inside -= 1

    async def slow(self, _: Call) -> Reply:
        with self:
            await self.open.wait()
        return Reply({})

    async def stream(self, _: Call) -> Reply:
        async def pieces() -> Any:
            with self:
                yield b"begun\n"
                await self.open.wait()

        return Reply(stream=pieces(), media="text/event-stream")


async def until(fact: Callable[[], bool]) -> None:
    for _ in range(2_000):
        if fact():
            return
        await asyncio.sleep(0.005)
    raise AssertionError("it did not come about")


def test_a_key_has_so_many_calls_under_way_and_no_more(tmp_path: Path) -> None:
    keys = Keys(tmp_path / "keys")
    one, two = keys.make(SCOPES), keys.make(SCOPES)
    settings = Settings(keys=keys.save(), key_calls=10)

    async def crowd() -> tuple[int, list[Got], Got]:
        async with application(settings, table=TABLE) as app:
            doors = Doors()
            app.handlers[SLOW] = doors.slow
            calls = [
                asyncio.ensure_future(call(app, "POST", "/v1/slow", headers=bearer(one)))
                for _ in range(64)
            ]
            await until(lambda: doors.inside == 10 and sum(c.done() for c in calls) == 54)
            other = asyncio.ensure_future(call(app, "POST", "/v1/slow", headers=bearer(two)))
            await until(lambda: doors.inside == 11)
            doors.open.set()
            got = await asyncio.gather(*calls)
            again = await call(app, "GET", "/v1/topics", headers=bearer(one))
            assert again.status == 200
            return doors.most, got, await other

    most, got, other = asyncio.run(crowd())
    assert (most, other.status) == (11, 200)
    refused = [each for each in got if each.status != 200]
    assert (len(refused), {each.code for each in refused}) == (54, {"throttled"})
    assert all(int(each.headers["retry-after"]) >= 1 for each in refused)


def test_streams_are_bounded_for_all_together(tmp_path: Path) -> None:
    keys = Keys(tmp_path / "keys")
    several = [keys.make(SCOPES) for _ in range(8)]
    settings = Settings(keys=keys.save(), streams=7)

    async def crowd() -> tuple[int, list[Got], int]:
        async with application(settings, table=TABLE) as app:
            doors = Doors()
            app.handlers[STREAM] = doors.stream
            calls = [
                asyncio.ensure_future(call(app, "GET", "/v1/endless", headers=bearer(key)))
                for key in several * 8
            ]
            await until(lambda: doors.inside == 7 and sum(c.done() for c in calls) == 57)
            doors.open.set()
            got = await asyncio.gather(*calls)
            return doors.most, got, app.gate.streams

    most, got, left = asyncio.run(crowd())
    assert (most, left) == (7, 0)
    assert sum(each.status == 429 for each in got) == 57


def test_a_stream_counts_as_one_however_its_query_is_written(tmp_path: Path) -> None:
    async def ask() -> None:
        async with application(Settings(streams=1)) as app:
            app.gate.streams = 1
            await call(app, "PUT", "/ds/s", b"", {"content-type": "text/plain"})
            for query in ("live=sse", "live=%73se", "%6cive=sse"):
                got = await call(app, "GET", "/ds/s", query=f"offset=-1&{query}", stream=True)
                assert (got.status, got.code) == (429, "throttled"), query
            assert (await call(app, "GET", "/ds/s", query="offset=-1")).status == 200
            app.gate.streams = 0

    asyncio.run(ask())


def test_a_client_that_leaves_makes_room(tmp_path: Path) -> None:
    async def come_and_go() -> None:
        async with application(Settings(streams=1), table=TABLE) as app:
            doors = Doors()
            app.handlers[STREAM] = doors.stream
            for _ in range(20):
                got = await call(app, "GET", "/v1/endless", stream=True)
                assert got.status == 200
                assert (app.gate.streams, app.gate.anybody.account.calls) == (0, {})

    asyncio.run(come_and_go())


def test_topics_are_bounded_whoever_makes_them_and_how(tmp_path: Path) -> None:
    async def crowd() -> tuple[list[Got], int]:
        async with application(Settings(topics=250)) as app:
            await app.store.create("there")
            both: list[Got] = []

            async def make(number: int) -> list[Got]:
                found = []
                for each in range(6):
                    name = f"t{number}.{each}"
                    body: dict[str, Any] = {"records": [{"value": "x"}]}
                    if each == 0:
                        found.append(await call(app, "PUT", f"/v1/topics/{name}", {}))
                    elif each == 1:
                        found.append(await call(app, "PUT", f"/v1/queues/{name}", {}))
                    elif each == 4:
                        letter = {"dead_letter": f"{name}.dead"}
                        both.append(await call(app, "PUT", f"/v1/queues/{name}", letter))
                    elif each == 5:
                        ends = {"source": "there", "destination": name}
                        found.append(await call(app, "PUT", f"/v1/routes/{name}", ends))
                    else:
                        if each == 3:
                            body |= {"producer": "p", "sequence": 0}
                        found.append(await call(app, "POST", f"/v1/topics/{name}/records", body))
                    assert len(app.store._store) <= 250
                return found

            got = [each for some in await asyncio.gather(*map(make, range(64))) for each in some]
            made = await app.store.topics()
            again = await call(
                app, "POST", f"/v1/topics/{made[0]}/records", {"records": [{"value": "y"}]}
            )
            assert again.status == 200  # of what is there, nothing is refused
            got += both
            got += [each for each in both if each.status < 400]  # makes two
            return got, len(made)

    got, count = asyncio.run(crowd())
    assert 249 <= count <= 250  # there may have been room for one, and none for two
    assert sum(each.status in (200, 201) for each in got) == count - 1
    assert {each.code for each in got if each.status >= 400} == {"throttled"}


@pytest.mark.parametrize("limit", ["SESSIONS_MAX", "SESSIONS_OF_ONE"])
def test_watches_that_wait_to_be_used_are_bounded(
    limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, limit, 20)

    async def crowd() -> tuple[list[Got], int]:
        async with application() as app:
            app.store._store.create("t")
            body = {"topics": {"t": {}}}
            got = await asyncio.gather(*(call(app, "POST", "/v1/watch", body) for _ in range(64)))
            return list(got), len(app.sessions)

    got, count = asyncio.run(crowd())
    assert count == 20
    assert sum(each.status == 201 for each in got) == 20
    assert {each.code for each in got if each.status != 201} == {"throttled"}


def test_a_rate_is_a_bucket_that_fills(tmp_path: Path) -> None:
    keys = Keys(tmp_path / "keys")
    one, two = keys.make(SCOPES), keys.make(SCOPES)
    settings = Settings(keys=keys.save(), key_rate=5.0)
    clock = ManualClock()

    async def calls() -> None:
        async with application(settings, clock=clock) as app:

            async def ask(key: str) -> Got:
                return await call(app, "GET", "/v1/topics", headers=bearer(key))

            got = [await ask(one) for _ in range(7)]
            assert [each.status for each in got] == [200] * 5 + [429] * 2
            assert [each.headers["ratelimit-remaining"] for each in got] == [*"4321000"]
            assert got[-1].headers["ratelimit-limit"] == "5"
            assert got[-1].headers["ratelimit-reset"] == "1"
            assert got[-1].headers["retry-after"] == "1"
            assert (await ask(two)).status == 200
            clock.forward(0.2)
            assert [(await ask(one)).status for _ in range(2)] == [200, 429]
            clock.forward(3600)
            assert [(await ask(one)).status for _ in range(6)] == [200] * 5 + [429]

    asyncio.run(calls())


def test_a_message_of_a_websocket_is_a_call_of_its_key(tmp_path: Path) -> None:
    keys = Keys(tmp_path / "keys")
    one = keys.make(SCOPES)
    settings = Settings(keys=keys.save(), key_rate=5.0)
    clock = ManualClock()

    text = '{"op": "publish", "topic": "t", "records": [{"value": "x"}]}'

    async def talk() -> None:
        async with application(settings, clock=clock) as app:
            for want in (["ack"] * 4 + ["throttled"] * 2, ["ack"] + ["throttled"] * 5):
                socket = Socket(app, "/v1/ws", bearer(one))
                assert await socket.opens()  # which is one, too
                for _ in want:
                    socket.heard.put_nowait({"type": "websocket.receive", "text": text})
                await socket.leave()
                told = [msgspec.json.decode(each.get("text", "{}")) for each in socket.said]
                assert [each.get("code", each["op"]) for each in told if each] == want
                clock.forward(0.5)
            assert app.store._store["t"].end(0) == 5

    asyncio.run(asyncio.wait_for(talk(), 20))


# ---- the end of a key --------------------------------------------------------------------------

SECONDS = 2.0


def takes_wait(kind: Any) -> bool:
    """Whether a query or a body says how long to wait."""
    if kind in (None, RAW):
        return False
    return any(field.name == "wait" for field in msgspec.structs.fields(kind))


WAITING = [
    route
    for route in (*ROUTES, STREAM, SLOW)
    if route.streams or route is SLOW or takes_wait(route.query) or takes_wait(route.body)
]


@pytest.mark.parametrize("how", ["revoked", "expired", "removed"])
def test_a_key_that_ends_ends_what_it_has_under_way(tmp_path: Path, how: str) -> None:
    """Every route that can wait, each with a key of its own, all at once."""
    path, clock = tmp_path / "keys", ManualClock()
    keys = [keyfile.new(path, SCOPES, seconds=60, clock=clock) for _ in WAITING]
    bystander = keyfile.new(path, SCOPES, clock=clock)[1]
    settings = Settings(keys=str(path))

    async def story() -> dict[str, Got]:
        async with application(settings, table=TABLE, clock=clock) as app:
            doors = Doors()
            app.handlers[STREAM], app.handlers[SLOW] = doors.stream, doors.slow
            app.store._store.create("x1")
            app.store._store.queue("q1")
            for route in ROUTES:
                if route.method == "PUT" and route.path.endswith("/groups/{group}"):
                    await Request(route, "x1").send(app, bearer(bystander))
            watching = asyncio.ensure_future(app.gate.watch())
            running = {}
            for route, (_, text) in zip(WAITING, keys, strict=True):
                request = Request(route, "q1" if "{queue}" in route.path else "x1")
                body, query = request.body, request.query
                if takes_wait(route.body):
                    body = {**body, "wait": 25}
                elif takes_wait(route.query):
                    query = f"{query}&wait=25".lstrip("&")
                headers = {**request.headers, **bearer(text)}
                running[f"{route.method} {route.path}"] = asyncio.ensure_future(
                    call(app, route.method, request.path, body, headers, query)
                )
            other = asyncio.ensure_future(call(app, "POST", "/v1/slow", headers=bearer(bystander)))
            await asyncio.sleep(0.3)
            still = {name: task for name, task in running.items() if not task.done()}
            if how == "expired":
                clock.forward(61)
            for key, _ in keys:
                if how == "revoked":
                    keyfile.revoke(path, key.id)
                elif how == "removed":
                    keyfile.forget(path, key.id)
            _, late = await asyncio.wait(still.values(), timeout=SECONDS)
            assert [name for name, task in still.items() if task in late] == []
            assert not other.done()
            doors.open.set()
            assert (await other).status == 200
            watching.cancel()
            for text in (text for _, text in keys):
                got = await call(app, "GET", "/v1/topics", headers=bearer(text))
                assert got.status == 401
            return {name: task.result() for name, task in still.items()}

    got = asyncio.run(story())
    assert {"GET /v1/topics/{topic}/records", "GET /v1/endless", "POST /v1/slow"} <= got.keys()
    streams = {f"{route.method} {route.path}" for route in WAITING if route.streams}
    for name, each in got.items():
        assert (each.status == 200) if name in streams else (each.code == "unauthorized"), name


def test_a_broken_file_of_keys_leaves_the_former_keys_and_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "keys"
    _, text = keyfile.new(path, SCOPES)
    settings = Settings(keys=str(path))

    async def story() -> None:
        async with application(settings) as app:
            whole = path.read_bytes()
            path.write_bytes(whole[:-20])
            await app.gate.reload()
            await app.gate.reload()
            assert (await call(app, "GET", "/v1/topics", headers=bearer(text))).status == 200
            _, another = keyfile_text(path, whole)
            await app.gate.reload()
            assert (await call(app, "GET", "/v1/topics", headers=bearer(another))).status == 200

    def keyfile_text(path: Path, whole: bytes) -> tuple[Any, str]:
        path.write_bytes(whole)
        return keyfile.new(path, SCOPES)

    asyncio.run(story())
    told = [each for each in caplog.messages if "former ones stay" in each]
    assert len(told) == 1


def test_a_mishap_while_looking_at_the_keys_is_told_and_the_next_look_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "keys"
    key, text = keyfile.new(path, SCOPES)
    settings = Settings(keys=str(path))
    monkeypatch.setattr(gate, "LOOK_SECONDS", 0.01)

    async def story() -> None:
        async with application(settings) as app:

            def broken(now_us: int) -> Any:
                monkeypatch.undo()
                raise RuntimeError("a mishap")

            monkeypatch.setattr(app.gate.keyring, "expire", broken)
            watching = asyncio.ensure_future(app.gate.watch())
            keyfile.revoke(path, key.id)
            await until(lambda: len(app.gate.keyring) == 0)
            assert (await call(app, "GET", "/v1/topics", headers=bearer(text))).status == 401
            watching.cancel()

    asyncio.run(story())
    assert "the keys could not be looked at" in caplog.messages


# ---- tickets -----------------------------------------------------------------------------------


def test_a_ticket_opens_one_stream_once_for_its_topics_while_it_is_fresh(tmp_path: Path) -> None:
    keys = Keys(tmp_path / "keys")
    mine = keys.make(["read", "write"], ["t4"])
    settings = Settings(keys=keys.save())
    clock = ManualClock()
    seen: list[Principal] = []

    async def handler(made: Call) -> Reply:
        seen.append(made.principal)
        return Reply({})

    async def story() -> None:
        async with application(settings, table=TABLE, clock=clock) as app:
            app.handlers[STREAM] = handler

            async def ticket(body: Any, key: str = mine) -> Got:
                return await call(app, "POST", "/v1/tickets", body, bearer(key))

            async def use(text: str, path: str = "/v1/endless", **headers: str) -> Got:
                return await call(app, "GET", path, headers=headers, query=f"ticket={text}")

            got = await ticket({"topics": ["t4.x", "t4"]})
            told = msgspec.json.decode(got.body)
            assert (got.status, told["topics"]) == (201, ["t4", "t4.x"])
            text = told["ticket"]
            assert len(text) == 4 + 32
            assert (await use(text, "/v1/topics")).status == 401  # not on a route that ends
            assert (await use(text)).status == 200
            (principal,) = seen
            assert principal.may("read", "t4.x")
            assert not principal.may("read", "t4.y")
            assert not principal.may("write", "t4.x")
            assert principal.id == mine[4:16]
            assert (await use(text)).code == "unauthorized"
            text = msgspec.json.decode((await ticket({"topics": ["t4"]})).body)["ticket"]
            both = await use(text, authorization=f"Bearer {mine}")
            assert both.code == "invalid_request"
            clock.forward(29.9)
            assert (await use(f"{text}&ticket={text}")).code == "invalid_request"
            clock.forward(0.2)
            assert (await use(text)).code == "unauthorized"
            for wrong in ("", "x", "tkt_" + "0" * 32, mine, "tkt_" + "g" * 32):
                assert (await use(wrong)).code == "unauthorized"
            assert (await ticket({"topics": ["t5"]})).code == "forbidden"
            assert (await ticket({"topics": ["t4"], "scopes": ["admin"]})).code == "forbidden"
            assert (await ticket({"topics": []})).code == "invalid_request"
            several = await ticket({"topics": ["t4"], "scopes": ["read", "write"]})
            await use(msgspec.json.decode(several.body)["ticket"])
            assert seen[-1].may("write", "t4")

    asyncio.run(story())


@pytest.mark.parametrize("limit", ["MOST", "MOST_OF_ONE"])
def test_tickets_that_nobody_uses_are_bounded(limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tickets, limit, 20)

    async def crowd() -> list[Got]:
        async with application() as app:
            body = {"topics": ["t"]}
            calls = (call(app, "POST", "/v1/tickets", body) for _ in range(64))
            return list(await asyncio.gather(*calls))

    got = asyncio.run(crowd())
    assert sum(each.status == 201 for each in got) == 20
    for each in got:
        if each.status != 201:
            detail = msgspec.json.decode(each.body)["error"]["detail"]
            assert (each.code, detail) == ("throttled", {"limit": "tickets", "max": 20})
            assert each.headers["retry-after"] == "30"


def test_tickets_are_bounded_and_end_with_their_key(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    key, text = keyfile.new(path, ["read"])
    settings = Settings(keys=str(path))

    async def story() -> None:
        async with application(settings, table=TABLE) as app:
            body = {"topics": ["t"]}
            calls = [call(app, "POST", "/v1/tickets", body, bearer(text)) for _ in range(300)]
            got = []
            for begin in range(0, 300, 50):
                got += await asyncio.gather(*calls[begin : begin + 50])
            assert sum(each.status == 201 for each in got) == 256 == len(app.gate.tickets)
            assert {each.code for each in got if each.status != 201} == {"throttled"}
            keyfile.revoke(path, key.id)
            await app.gate.reload()
            ticket = msgspec.json.decode(got[0].body)["ticket"]
            used = await call(app, "GET", "/v1/endless", query=f"ticket={ticket}")
            assert used.code == "unauthorized"

    asyncio.run(story())
