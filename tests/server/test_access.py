"""Who may do what: every route with every kind of key, names that look alike, names as paths.

The cases are made from the table of routes, so that a route that is added is tried without a word
here. What is expected does not come from the code under test: it is counted from the table's scopes
and from which names were put where.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import unicodedata
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec
import pytest

from esker.server.access import keyfile
from esker.server.access.keys import SCOPES, Scope, covers
from esker.server.settings import Settings
from esker.server.table import ROUTES, Place, Route
from tests.server.asgi import Keys, Request, Socket, application, bearer, call, places

HOME, FOREIGN = "t4:own", "t5:other"  # FOREIGN is there, MISSING is not
MISSING = "t5:none"
SUBSETS = [
    subset for size in range(1, 6) for subset in itertools.combinations(SCOPES, size)
]  # fmt: skip
OTHERS = ["t", "t4.", "t42:", "T4:", "t4:o", "t4:own2", "t4:own:", "own", "o", "t5:"]
REFUSED = {"unauthorized", "forbidden"}
LOOK_ALIKES = [
    "t", "t4;", "t40", "t42", "t4-own", "t4_own", "T4:own", "t4.own", "xt4:own", "t4 :own", "*",
    "t4:own,t5:other", "t5:other#t4:own", "t?:own", "[t]4:own", "t4\u200b:own",
    "t4：own", "ｔ4:own", "t4%3Aown", "../t4:own", "./t4:own", "t5:t4:own", "t4",
]  # fmt: skip


def needed(route: Route) -> set[Scope]:
    found = {place.scope for place in places(route) if place.scope}
    return {scope for scope in (route.scope, *found) if scope}


# What a key for some topics needs besides: these tell of all of them.
OF_ALL: dict[str, set[Scope]] = {"/metrics": {"admin"}, "/v1/store": {"admin"}}


def bad_keys(keys: Keys) -> dict[str, dict[str, str]]:
    """Headers that prove nothing."""
    good = keys.make(SCOPES)
    other = keys.make(SCOPES)
    id, secret = good[4:16], good[17:]
    flipped = secret[:-1] + ("0" if secret[-1] != "0" else "1")
    return {
        "nothing": {},
        "empty": {"authorization": ""},
        "no key": {"authorization": "Bearer"},
        "spaces": {"authorization": "Bearer   "},
        "another scheme": {"authorization": f"Basic {good}"},
        "no scheme": {"authorization": good},
        "one digit off": bearer(f"esk_{id}_{flipped}"),
        "the first digits": bearer(good[:-1]),
        "one digit more": bearer(good + "0"),
        "the secret of another": bearer(f"esk_{id}_{other[17:]}"),
        "an unknown id": bearer(f"esk_{'0' * 12}_{secret}"),
        "no secret": bearer(f"esk_{id}_"),
        "capitals": bearer(good.upper()),
        "twice": bearer(f"{good}, {good}"),
        "in another header": {"x-api-key": good, "cookie": f"key={good}"},
        "revoked": bearer(keys.make(SCOPES, revoked=2)),
        "expired": bearer(keys.make(SCOPES, expires=2)),
        "not text": {"authorization": "Bearer \xff\xfe"},
    }


async def matrix(folder: Path) -> tuple[int, list[str]]:
    """Every case, and what was wrong."""
    keys = Keys(folder / "keys")
    bad = bad_keys(keys)
    in_url = keys.make(SCOPES)
    of = {subset: keys.make(subset, ["t4:"]) for subset in SUBSETS}
    wide = {subset: keys.make(subset) for subset in SUBSETS}
    others = {prefix: keys.make(SCOPES, [prefix]) for prefix in OTHERS}
    full = of[SCOPES]
    settings = Settings(keys=keys.save(), probe_auth=False)
    count, wrong = 0, []
    async with application(settings) as app:
        store = app.store._store

        def judge(what: str, route: Route, right: bool, got: Any) -> None:
            nonlocal count
            count += 1
            if (got.code in REFUSED) == right or got.status in (0, 500):
                wrong.append(f"{route.method} {route.path}: {what}: {got.status} {got.body[:200]}")

        for route in ROUTES:
            for name in (HOME, FOREIGN):
                if name not in store:
                    store.create(name)
            for what, headers in bad.items():
                got = await Request(route, HOME).send(app, headers)
                judge(what, route, route.scope is None, got)
                if route.scope is not None and got.status != 401:
                    wrong.append(f"{route.path}: {what}: {got.status}, not 401")
                if what.endswith("scheme") and route.scope and b"Bearer esk_" not in got.body:
                    wrong.append(f"{route.path}: {what}: is not told how a key is sent")
            if route.scope is None:
                continue
            for field in ("key", "access_token", "api_key", "ticket"):
                got = await Request(route, HOME).send(app, {}, f"{field}={in_url}")
                judge(f"a key in the URL as {field}", route, False, got)
            for subset, name in itertools.product(SUBSETS, (HOME, FOREIGN, MISSING)):
                must = needed(route) | OF_ALL.get(route.path, set())
                right = must <= set(subset) and (name == HOME or not places(route))
                got = await Request(route, name).send(app, bearer(of[subset]))
                judge(f"{subset} with {name}", route, right, got)
            for subset in SUBSETS:
                got = await Request(route, HOME).send(app, bearer(wide[subset]))
                judge(f"{subset} everywhere", route, needed(route) <= set(subset), got)
            for prefix, key in others.items():
                got = await Request(route, HOME).send(app, bearer(key))
                judge(f"a key for {prefix}", route, not places(route), got)
            for place, name in itertools.product(places(route), [FOREIGN, *LOOK_ALIKES]):
                try:
                    request = Request(route, HOME, {place: name})
                    got = await request.send(app, bearer(full))
                except UnicodeEncodeError:
                    continue  # a header cannot even hold it
                judge(f"{name!r} in {place.where} {place.field}", route, False, got)
    return count, wrong


@pytest.mark.slow
def test_every_route_refuses_every_key_that_lacks_something(tmp_path: Path) -> None:
    count, wrong = asyncio.run(matrix(tmp_path))
    assert wrong == []
    assert count >= 1_500


SOCKETS = [route for route in ROUTES if route.path.endswith("/ws")]


async def handshakes(folder: Path) -> tuple[int, list[str]]:
    """Every kind of key and every foreign page at every path; only WebSockets open, if allowed."""
    path = folder / "keys"
    keys = Keys(path)
    bad = bad_keys(keys)
    of = {subset: bearer(keys.make(subset, ["t4:"])) for subset in SUBSETS}
    full = of[SCOPES]
    pages = [{"origin": "http://evil.example"}, {"host": "evil.example"}, {"origin": "null"},
             {"sec-fetch-site": "cross-site"}, {"origin": "http://localhost:3000"}]  # fmt: skip
    count, wrong = 0, []
    async with application(Settings(keys=keys.save())) as app:

        async def judge(where: str, headers: dict[str, str], right: bool, query: str = "") -> None:
            nonlocal count
            count += 1
            socket = Socket(app, where, headers, query)
            if await socket.opens() != right:
                wrong.append(f"{where} {query} {headers}: {socket.said[0]}")
            await socket.leave()

        paths = {Request(route, HOME).path for route in ROUTES}
        for where in sorted(paths):
            takes = where in {route.path for route in SOCKETS}
            for headers in bad.values():
                await judge(where, headers, False)
            for page in pages:
                await judge(where, {**full, **page}, False)
            for subset, headers in of.items():
                await judge(where, headers, takes and bool({"read", "write"} & set(subset)))
            for number in (1, 2):  # the second time it is used up
                if number == 1:
                    body = {"topics": [HOME]}
                    got = await call(app, "POST", "/v1/tickets", body, full)
                    ticket = f"ticket={msgspec.json.decode(got.body)['ticket']}"
                await judge(where, {}, takes and number == 1, ticket)
            if takes:
                socket = Socket(app, where, full)
                await socket.opens()
                keyfile.revoke(path, full["authorization"][11:23])
                await app.gate.reload()
                await asyncio.wait([socket.running], timeout=2.0)
                count += 1
                if not socket.running.done() or socket.said[-1]["type"] != "websocket.close":
                    wrong.append(f"{where}: a revoked key has a WebSocket: {socket.said}")
                elif "unauthorized" not in socket.said[-2].get("text", ""):
                    wrong.append(f"{where}: a WebSocket is not told why it ends: {socket.said}")
                elif socket.said[-1]["code"] != 1008:
                    wrong.append(f"{where}: it is told to come back: {socket.said}")
                await socket.leave()
    return count, wrong


def test_a_websocket_opens_with_a_good_key_where_there_is_one_and_ends_with_it(
    tmp_path: Path,
) -> None:
    count, wrong = asyncio.run(handshakes(tmp_path))
    assert wrong == []
    assert count >= 300


@pytest.mark.parametrize("route", ROUTES, ids=lambda r: f"{r.method} {r.path}")
def test_the_table_says_for_every_route_who_may_and_where_names_stand(route: Route) -> None:
    public = {"/healthz", "/readyz", "/openapi.json", "/", "/console/{file}"}
    assert (route.scope is None) == (route.path in public)
    in_path = {place.field for place in route.names if place.where == "path"}
    assert "{topic}" not in route.path or "topic" in in_path
    assert in_path <= {part[1:-1] for part in route.parts if part.startswith("{")}


async def told_apart(folder: Path) -> list[tuple[Any, ...]]:
    keys = Keys(folder / "keys")
    mine = bearer(keys.make(SCOPES, ["t4:"]))
    differences = []
    async with application(Settings(keys=keys.save())) as app:
        app.store._store.create(FOREIGN)
        for route in ROUTES:
            if not places(route) or route.scope is None:
                continue
            there = await Request(route, FOREIGN).send(app, mine)
            gone = await Request(route, MISSING).send(app, mine)
            bodies = [msgspec.json.decode(got.body)["error"] for got in (there, gone)]
            for body in bodies:
                del body["request"]
            if there.status != gone.status or bodies[0] != bodies[1]:
                differences.append((route.path, bodies))
    return differences


def test_a_foreign_name_that_is_there_is_refused_like_one_that_is_not(tmp_path: Path) -> None:
    assert asyncio.run(told_apart(tmp_path)) == []


async def buried(folder: Path) -> dict[str, list[Any]]:
    """What each key is told of the dead letters of a queue, which those of another lie beside."""
    keys = Keys(folder / "keys")
    who = {
        "own": bearer(keys.make(SCOPES, ["t4"])),
        "both": bearer(keys.make(SCOPES, ["t4", "dead"])),
        "all": bearer(keys.make(SCOPES)),
    }
    told: dict[str, list[Any]] = {}
    async with application(Settings(keys=keys.save()), folder / "data") as app:
        store = app.store._store
        for name in ("t4", "t5"):
            queue = store.queue(name, dead_letter="dead", max_deliveries=1)
            queue.put(f"of {name}")
            queue.nack(queue.claim())
            queue.tend()
        for key, headers in who.items():
            state = await call(app, "GET", "/v1/queues/t4", None, headers)
            options = msgspec.json.decode(state.body)["options"]
            got = [
                await call(app, "GET", "/v1/queues/t4/dead", None, headers),
                await call(app, "POST", "/v1/queues/t4/dead/requeue", {"reason": "-"}, headers),
                await call(app, "POST", "/v1/queues/t4/dead/purge", {"reason": "-"}, headers),
            ]
            assert (b"of t5" in got[0].body) == (key != "own")
            told[key] = [options.get("dead_letter"), *(each.status for each in got)]
    return told


def test_dead_letters_are_for_keys_of_the_topic_that_they_lie_in(tmp_path: Path) -> None:
    assert asyncio.run(buried(tmp_path)) == {
        "own": [None, 403, 403, 403],
        "both": ["dead", 200, 200, 200],
        "all": ["dead", 200, 200, 200],
    }


async def bare(folder: Path) -> tuple[int, list[str]]:
    """Every route, of a topic and a queue in which there is nothing yet."""
    count, wrong = 0, []
    order = sorted(ROUTES, key=lambda route: route.method != "GET")
    async with application(Settings(), folder / "data") as app:
        app.store._store.create("empty", shards=2)
        app.store._store.queue("bare")
        app.store._store["empty"].group("x1").close()
        for route, name in itertools.product(order, ("empty", "bare")):
            count += 1
            got = await Request(route, name).send(app, {})
            if got.status in (0, 500):
                wrong.append(f"{route.method} {route.path} of {name}: {got.status} {got.body!r}")
    return count, wrong


def test_where_there_is_nothing_yet_nothing_fails(tmp_path: Path) -> None:
    count, wrong = asyncio.run(bare(tmp_path))
    assert wrong == []
    assert count > 100


async def listing(folder: Path) -> tuple[Any, Any, Any]:
    keys = Keys(folder / "keys")
    some, all_of_them = keys.make(["read"], ["t4", "a."]), keys.make(["read"])
    none = keys.make(["read"], ["zz"])
    async with application(Settings(keys=keys.save())) as app:
        for name in ("t4", "t4:x", "t42", "t4-x", "a", "a.b", "a.b.c", "ab", "T4"):
            app.store._store.create(name)
        found = [await call(app, "GET", "/v1/topics", headers=bearer(key))
                 for key in (some, all_of_them, none)]  # fmt: skip
    told = [msgspec.json.decode(each.body)["topics"] for each in found]
    return told[0], told[1], told[2]


def test_a_list_has_the_topics_of_the_key_and_no_others(tmp_path: Path) -> None:
    some, all_of_them, none = asyncio.run(listing(tmp_path))
    assert some == ["a.b", "a.b.c", "t4", "t4:x"]
    assert len(all_of_them) == 9
    assert none == []


def test_nothing_that_lists_tells_the_names_of_others(tmp_path: Path) -> None:
    keys = Keys(tmp_path / "keys")
    mine, owner = bearer(keys.make(["read"], ["mine"])), bearer(keys.make(SCOPES))
    lists = [route for route in ROUTES
             if route.method == "GET" and route.scope == "read" and not route.streams
             and "{" not in route.path and route.path not in OF_ALL]  # fmt: skip
    assert {"/v1/topics", "/v1/overview", "/v1/groups", "/v1/routes"} <= {r.path for r in lists}

    async def story() -> None:
        async with application(Settings(keys=keys.save())) as app:
            for name in ("mine", "secret"):
                await call(app, "PUT", f"/v1/topics/{name}", {}, owner)
                await call(app, "PUT", f"/v1/topics/{name}/groups/of-{name}", {}, owner)
                await call(app, "PUT", f"/v1/queues/{name}.q", {}, owner)
                ends = {"source": name, "destination": f"{name}.to"}
                await call(app, "PUT", f"/v1/routes/by-{name}", ends, owner)
            for route in lists:
                for who, told in ((owner, {b"mine", b"secret"}), (mine, {b"mine"})):
                    got = await call(app, "GET", route.path, headers=who)
                    assert got.status == 200, (route.path, got.body)
                    found = {name for name in (b"mine", b"secret") if name in got.body}
                    assert found <= told, (route.path, got.body)
                    assert found == told or route.path == "/v1/access"

    asyncio.run(story())


def test_a_watch_that_was_made_is_no_more_than_who_opens_it_may_see(tmp_path: Path) -> None:
    keys = Keys(tmp_path / "keys")
    key = bearer(keys.make(["read"], ["a", "b"]))

    async def story() -> None:
        async with application(Settings(keys=keys.save())) as app:
            for name in ("a", "b"):
                app.store._store.create(name)
            made = await call(app, "POST", "/v1/watch", {"topics": {"a": {}, "b": {}}}, key)
            url = msgspec.json.decode(made.body)["url"]
            for topics, status in ((["a", "b"], 200), (["a"], 403)):
                got = await call(app, "POST", "/v1/tickets", {"topics": topics}, key)
                ticket = msgspec.json.decode(got.body)["ticket"]
                got = await call(app, "GET", url, query=f"ticket={ticket}", stream=True)
                assert (got.status, b"record" in got.body) == (status, False)

    asyncio.run(story())


# ---- names that look alike ---------------------------------------------------------------------

ODD = [
    "\x00", "\x01", "\t", "\n", "\r\n", " ", ".", "..", "/", "\\", "%", "%2F", "%252F", "%00", "+",
    "#", "?", "&", "=", ";", ",", "'", '"', "`", "$", "*", "@", "~", "|", "<", ">", "é",
    unicodedata.normalize("NFD", "é"), "ß", "ı", "K", "\u200b", "\u202e", "\ufeff", "\u2028",
    "．", "：", "２", "𝟐", "\x7f", "\x85", "\xa0", "0", "2", "a", "Z", "_", "-", "x" * 260,
]  # fmt: skip


def look_alikes(prefix: str) -> list[str]:
    found = [prefix + odd + rest for odd in ODD for rest in ("", "x", ":x", "/x")]
    found += [odd + prefix + ":x" for odd in ODD]
    found += [prefix.upper() + ":x", prefix.title() + ":x", prefix[:-1], prefix[:-1] + ":x"]
    return [name for name in found if not allowed(prefix, name)]


def allowed(prefix: str, name: str) -> bool:
    """Said again, in other words than the code's: the words of a name, and those of a prefix."""
    words = name.replace(":", ".").split(".")
    fine = all(each.isascii() and (each.isalnum() or each in "._:-") for each in name)
    return fine and words[0] == prefix and len(name) <= 255


async def tried(folder: Path, prefix: str) -> tuple[int, list[str], list[str]]:
    keys = Keys(folder / "keys")
    mine = bearer(keys.make(SCOPES, [prefix]))
    count, wrong = 0, []
    body = {"records": [{"value": "x"}]}
    async with application(Settings(keys=keys.save())) as app:
        for name in look_alikes(prefix):
            for segment in {quote(name, safe=""), quote(quote(name, safe=""), safe="")}:
                count += 1
                got = await call(app, "POST", f"/v1/topics/{segment}/records", body, mine)
                if got.status not in (400, 403, 404):
                    wrong.append(f"{name!r}: {got.status} {got.body!r}")
        made = await app.store.topics()
    return count, wrong, list(made)


def test_names_that_look_like_ones_own_open_nothing(tmp_path: Path) -> None:
    total = 0
    for prefix in ("t4", "Tenant-7"):
        count, wrong, made = asyncio.run(tried(tmp_path, prefix))
        assert wrong == []
        assert made == []
        total += count
    assert total >= 200


@pytest.mark.parametrize(
    ("prefix", "name", "fits"),
    [
        ("t4", "t4", True), ("t4", "t4.x", True), ("t4", "t4:x", True), ("t4", "t42", False),
        ("t4", "t4-x", False), ("t4", "t4_x", False), ("t4", "t", False), ("t4", "T4", False),
        ("t4:", "t4:x", True), ("t4:", "t4", False), ("t4:", "t4.x", False),
        ("t4.", "t4.x.y", True), ("t4:", "t4:", True), ("t4-", "t4-x", False), ("*", "any", True),
        ("t4-", "t4-", True), ("t4-", "t4-.x", True),
    ],
)  # fmt: skip
def test_a_prefix_ends_where_a_word_ends(prefix: str, name: str, fits: bool) -> None:
    assert covers(prefix, name) == fits


# ---- names as paths ----------------------------------------------------------------------------


def traversals() -> list[str]:
    """Strings that have led out of a directory somewhere."""
    ups = ["../", "..\\", "..%2f", "..%5c", "%2e%2e/", "%2e%2e%2f", "..;/", "....//", "..%c0%af",
           "..%252f", ".%2e/", "%2e./", "..\x00/", "..%00/", "．．/", "..／"]  # fmt: skip
    ends = ["etc/passwd", "stolen", "data/stolen", "topics/00000001/stolen", "stolen.tmp"]
    found = [up * depth + end for up in ups for depth in (1, 3, 8) for end in ends]
    found += ["/stolen", "//stolen", "\\\\host\\stolen", "C:\\stolen", "~/stolen", "~root",
              "file:///stolen", "/proc/self/environ", "/dev/null", ".", "..", "...", "./stolen",
              "stolen/", "stolen/.", "stolen/..", "\x00", "stolen\x00.log", "con", "nul", "a/b",
              "-rf", "--help", "$(touch stolen)", "`touch stolen`", "stolen\n", "stolen;ls", "*",
              "a..b", "a...", "a.log", "topics", "catalog", "0000000000000001.log",
              "a:b", "a" * 255, "a" * 256, "a" * 5000, "", " ", "💥", "\ud7ff", "%", "%zz", "%2",
              ".hidden", "lock", "CON", "stolen.1", "{}", "{topic}", "%7Btopic%7D"]  # fmt: skip
    found += [f"stolen{chr(number)}x" for number in range(1, 48)]
    return found


def fields() -> list[tuple[Route, Place]]:
    """Every place for a name, and every other segment of a path that a client chooses."""
    found = []
    for route in ROUTES:
        given = places(route)
        known = {place.field for place in given if place.where == "path"}
        others = [part[1:-1] for part in route.parts if part.startswith("{")]
        given += [Place("path", field) for field in others if field not in known]
        found += [(route._replace(names=tuple({*route.names, place})), place) for place in given]
    return found


def tree(folder: Path) -> set[str]:
    return {
        os.path.join(where, name)
        for where, folders, files in os.walk(folder)
        for name in (*folders, *files)
    }


async def walked(folder: Path, strings: list[str]) -> tuple[int, list[str]]:
    """All strings in each kind of place; where a kind occurs again, every ninth."""
    count, wrong = 0, []
    known: set[tuple[str, str]] = set()
    async with application(Settings(topics=100_000), folder / "inside" / "data") as app:
        for route, place in fields():
            original = next(r for r in ROUTES if (r.method, r.path) == (route.method, route.path))
            kind = (place.where, place.field)
            tried = strings[len(known) % 9 :: 9] if kind in known else strings
            known.add(kind)
            for name in tried:
                try:
                    request = Request(route, "home", {place: name})
                    request.route = original
                    got = await request.send(app, {})
                except UnicodeEncodeError:
                    continue  # a header cannot hold it
                count += 1
                if got.status == 500 or got.status == 0:
                    wrong.append(f"{route.method} {route.path} {place}: {name!r}: {got.body!r}")
    return count, wrong


@pytest.mark.slow
def test_a_name_is_never_a_path(tmp_path: Path) -> None:
    (tmp_path / "inside").mkdir()
    (tmp_path / "sentinel").write_text("as it was")
    strings = traversals()
    assert len(set(strings)) >= 300
    count, wrong = asyncio.run(walked(tmp_path, strings))
    assert wrong == []
    assert count >= 300 * len({(place.where, place.field) for _, place in fields()}) * 0.9
    found = tree(tmp_path)
    outside = {path for path in found if not path.startswith(f"{tmp_path}/inside/data")}
    assert outside == {f"{tmp_path}/sentinel", f"{tmp_path}/inside"}
    assert (tmp_path / "sentinel").read_text() == "as it was"
    assert [path for path in found if "stolen" in path or "home" in path] == []
    assert not any(Path("/", name).exists() for name in ("stolen", "data/stolen"))
