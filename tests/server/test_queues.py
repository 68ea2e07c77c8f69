"""Queues over HTTP: who has a job, who may settle it, and what a stream of work gives back."""

from __future__ import annotations

import asyncio
import http.client
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import msgspec
import pytest

import esker
from esker.server.access import keyfile
from esker.server.access.keys import SCOPES, Principal
from esker.server.bodies.wire_rooms import Claim
from esker.server.jobs.claiming import Desk
from esker.server.jobs.queues import claimed
from esker.server.run import Server, serving
from esker.server.seals import Rooms
from esker.server.settings import Settings
from tests.helpers import HandClock
from tests.server.conftest import Answer, Client

AT = "/v1/queues/jobs"


def post(client: Client, verb: str, **body: Any) -> Answer:
    return client.call("POST", f"{AT}/{verb}", body)


def put(client: Client, *values: str, **how: Any) -> Any:
    answer = post(client, "jobs", jobs=[{"value": value} for value in values], **how)
    assert answer.status == 200, answer.body
    return answer.json()


def claim(client: Client, **how: Any) -> list[dict[str, Any]]:
    answer = post(client, "claim", **how)
    assert answer.status == 200, answer.body
    found: list[dict[str, Any]] = answer.json()["jobs"]
    return found


def token(job: dict[str, Any]) -> dict[str, Any]:
    return {name: job[name] for name in ("shard", "offset", "token")}


def values(jobs: list[dict[str, Any]]) -> list[str]:
    return [job["value"] for job in jobs]


@pytest.fixture
def queue(client: Client) -> Client:
    assert client.call("PUT", AT, {"lease": "30s"}).status == 201
    return client


# ---- the queue -------------------------------------------------------------------------------


def test_a_queue_is_made_and_altered_by_the_same_call(client: Client) -> None:
    made = client.call("PUT", AT, {"lease": "45s", "max_deliveries": 3, "segment_bytes": "1MB"})
    assert (made.status, made.json()["options"]["lease"]) == (201, 45.0)
    again = client.call("PUT", AT, {"lease": 60})
    assert (again.status, again.json()["created"]) == (200, False)
    options = client.get(AT).json()["options"]
    assert (options["lease"], options["max_deliveries"]) == (60.0, 3)
    assert client.get("/v1/topics/jobs").json()["options"]["segment_bytes"] == 1_000_000
    assert client.call("PUT", AT, {"leese": 1}).code == "invalid_request"
    assert client.call("PUT", AT, {"ordered": True}).code == "invalid_option"


def test_a_queue_that_is_refused_leaves_no_topic(client: Client) -> None:
    for options in ({"dead_letter": "jobs"}, {"lease": 0}, {"durability": "memory"}):
        assert client.call("PUT", AT, options).code == "invalid_option"
        assert client.get("/v1/topics/jobs").code == "topic_not_found", options


def test_a_topic_is_not_made_a_queue_by_using_it(client: Client) -> None:
    client.append("jobs", "x")
    for verb, body in (
        ("jobs", {"jobs": [{"value": "x"}]}), ("claim", {}), ("dead/requeue", {"all": True}),
        ("ack", {"jobs": [{"shard": 0, "offset": 0, "token": "x"}]}), ("pause", {}),
    ):  # fmt: skip
        answer = post(client, verb, **body)
        assert (answer.status, answer.code) == (409, "not_a_queue"), verb
    assert client.get(AT).code == "not_a_queue"
    assert client.get("/v1/queues/none").code == "topic_not_found"
    assert client.get("/v1/topics").json()["topics"] == ["jobs"]


def test_a_job_is_put_claimed_and_acked(queue: Client) -> None:
    job = {"value": "hello", "key": "k", "tag": "t", "headers": {"h": "v"}, "timestamp": 7}
    answer = post(queue, "jobs", jobs=[job])
    assert answer.json()["spans"] == [{"shard": 0, "first": 0, "count": 1}]
    state = queue.get(AT).json()
    assert (state["ready"], state["leased"], state["unfinished"]) == (1, 0, 1)
    assert queue.get(AT + "/jobs").json()["jobs"][0]["value"] == "hello"
    (got,) = claim(queue)
    assert got.items() >= job.items()
    assert (got["offset"], got["deliveries"], got["priority"]) == (0, 1, 0)
    assert 25 < got["lease_seconds"] <= 30
    assert claim(queue) == []
    assert post(queue, "ack", jobs=[token(got)]).json() == {"queue": "jobs", "done": 1}
    assert queue.get(AT).json()["unfinished"] == 0
    entries = queue.get(AT + "/history?offset=0").json()["entries"]
    assert [entry["what"] for entry in entries] == ["claimed", "acked"]


def test_jobs_wait_for_their_time_and_go_by_priority(client: Client) -> None:
    client.call("PUT", AT, {"priorities": 2})
    put(client, "low")
    put(client, "high", priority=1)
    put(client, "later", delay="1h")
    put(client, "past", at=1)
    assert values(claim(client, max=10)) == ["high", "low", "past"]
    assert client.get(AT).json()["delayed"] == 1
    assert post(client, "jobs", jobs=[{"value": "x"}], priority=2).code == "invalid_option"
    both = post(client, "jobs", jobs=[{"value": "x"}], delay=1, at=1)
    assert both.code == "invalid_option"


def test_nack_release_and_extend_do_what_they_say(queue: Client) -> None:
    put(queue, "a", "b", "c", "d")
    a, b, c, d = claim(queue, max=4, lease=5)
    assert post(queue, "nack", jobs=[token(a)], reason="no").status == 200
    assert post(queue, "release", jobs=[token(b)]).status == 200
    assert post(queue, "extend", jobs=[token(c)], lease="1h").status == 200
    assert post(queue, "nack", jobs=[token(d)], delay=3600).status == 200
    again = claim(queue, max=4)
    assert [(job["value"], job["deliveries"]) for job in again] == [("a", 2), ("b", 1)]
    (lease,) = [
        each.seconds_left
        for each in queue.server.app.store._store.queue("jobs").leases()
        if each.offset == 2
    ]
    assert lease > 3000
    assert queue.get(AT).json()["delayed"] == 1


def test_who_waits_for_a_job_gets_it_when_it_comes(queue: Client) -> None:
    other = Client(queue.server)
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.extend(claim(other, wait=20)))
    began = time.monotonic()
    thread.start()
    time.sleep(0.2)
    put(queue, "new")
    thread.join()
    assert values(found) == ["new"]
    assert time.monotonic() - began < 5
    began = time.monotonic()
    assert claim(queue, wait=0.2) == []
    assert 0.15 < time.monotonic() - began < 5
    assert post(queue, "claim", wait=31).code == "invalid_request"
    queue.append("jobs", "plain")
    assert values(claim(queue, wait=5)) == ["plain"], "what is appended to its topic is a job, too"
    other.close()


def test_those_who_wait_share_what_comes(queue: Client) -> None:
    others = [Client(queue.server) for _ in range(4)]
    found: list[list[Any]] = []

    def wait(client: Client) -> None:
        found.append(claim(client, max=100, wait=20))

    threads = [threading.Thread(target=wait, args=(each,)) for each in others]
    for thread in threads:
        thread.start()
    time.sleep(0.3)
    put(queue, *map(str, range(40)))
    for thread in threads:
        thread.join()
    assert sorted(map(len, found)) == [10, 10, 10, 10]
    for each in others:
        each.close()


def test_with_a_jitter_claims_that_come_together_share_evenly(client: Client) -> None:
    client.call("PUT", AT, {"claim_jitter": "300ms"})
    put(client, *map(str, range(20)))
    others = [Client(client.server) for _ in range(4)]
    found: list[int] = []
    threads = [
        threading.Thread(target=lambda each=each: found.append(len(claim(each, max=20))))
        for each in others
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == [5, 5, 5, 5]
    for each in others:
        each.close()


def test_a_claim_whose_client_goes_away_takes_nothing(queue: Client) -> None:
    other = Client(queue.server)
    other._connection.request(
        "POST", f"{AT}/claim", b'{"wait": 20, "max": 100}', {"Content-Type": "application/json"}
    )
    time.sleep(0.2)
    other.close()
    time.sleep(0.2)
    put(queue, "a", "b")
    assert values(claim(queue, max=10, wait=5)) == ["a", "b"]


def test_what_is_claimed_for_somebody_who_has_gone_is_given_back(tmp_path: Path) -> None:
    async def main() -> None:
        async with esker.aopen(tmp_path / "data") as store:
            queue = (await store.queue("jobs")).queue
            await store._run(lambda: queue.put(b"x"))
            passing, go = asyncio.Event(), asyncio.Event()

            class App:
                stopping = asyncio.Event()
                rooms = Rooms(Settings(), b"secret")

                async def run(self, work: Any) -> Any:
                    passing.set()
                    found = await store._run(lambda: work(store._store))
                    await go.wait()
                    return found

            desk = Desk(App(), queue)  # type: ignore[arg-type]
            claiming = asyncio.ensure_future(desk.claim(1, None, 5, "raise"))
            await passing.wait()
            claiming.cancel()
            with suppress(asyncio.CancelledError):
                await claiming
            go.set()
            assert desk._serving is not None
            await desk._serving
            assert desk.idle
            told = await store._run(lambda: queue.history(0))
            assert [entry.what for entry in told] == ["claimed", "released"]

    asyncio.run(main())


def test_a_claim_whose_key_ends_takes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    _, stays = keyfile.new(path, SCOPES)
    ends, ended = keyfile.new(path, ["consume"])
    with (
        serving(tmp_path / "data", Settings(port=0, keys=str(path))) as server,
        esker.open(server.url, key=stays) as store,
    ):
        queue = store.queue("jobs")
        answers: list[int] = []

        def wait() -> None:
            client = Client(server)
            head = {"Authorization": f"Bearer {ended}"}
            answers.append(client.call("POST", f"{AT}/claim", {"wait": 20}, head).status)
            client.close()

        waiting = threading.Thread(target=wait)
        waiting.start()
        time.sleep(0.2)
        keyfile.revoke(path, ends.id)
        waiting.join(10)
        assert answers == [401]
        queue.put(b"a")
        time.sleep(0.2)
        stats = queue.stats()
        assert (stats.ready, stats.leased) == (1, 0)
        (job,) = queue.claim(1)
        assert job.deliveries == 1, "nobody had it before"


def test_what_a_call_got_just_as_it_was_ended_is_given_back(tmp_path: Path) -> None:
    async def main() -> None:
        async with esker.aopen(tmp_path / "data") as store:
            queue = (await store.queue("jobs")).queue
            await store._run(lambda: queue.put(b"x"))

            class App:
                stopping = asyncio.Event()
                rooms = Rooms(Settings(), b"secret")

                async def run(self, work: Any) -> Any:
                    return await store._run(lambda: work(store._store))

            class Asking:
                principal = SimpleNamespace(id="")

                async def gone(self) -> None:
                    await asyncio.sleep(3600)

            class Late(Desk):
                async def claim(self, *given: Any, **more: Any) -> Any:
                    jobs = await super().claim(*given, **more)
                    asyncio.get_running_loop().call_soon(calling.cancel)
                    return jobs

            desk = Late(App(), queue)  # type: ignore[arg-type]
            calling = asyncio.ensure_future(claimed(Asking(), desk, Claim(wait=5)))  # type: ignore[arg-type]
            with suppress(asyncio.CancelledError):
                await calling
            assert calling.cancelled()
            told = await store._run(lambda: queue.history(0))
            assert [entry.what for entry in told] == ["claimed", "released"]

    asyncio.run(main())


# ---- leases that are not one's own -----------------------------------------------------------


def refused(answer: Answer, *offsets: int) -> bool:
    return (answer.status, answer.code) == (409, "stale_lease") and [
        each["offset"] for each in answer.json()["error"]["detail"]["jobs"]
    ] == list(offsets)


def test_a_lease_is_not_stolen(queue: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    app = queue.server.app
    keys = {name: Principal(name, frozenset(SCOPES)) for name in ("alice", "mallory")}
    monkeypatch.setattr(app, "_principal", lambda headers, *_: keys[headers["authorization"]])

    def call(who: str, path: str, body: Any) -> Answer:
        return queue.call("POST", path, body, {"Authorization": who})

    for name in ("jobs", "other"):
        answer = queue.call("PUT", f"/v1/queues/{name}", {}, {"Authorization": "alice"})
        assert answer.status in (200, 201)
        jobs = [{"value": str(n)} for n in range(3)]
        assert call("alice", f"/v1/queues/{name}/jobs", {"jobs": jobs}).status == 200
    mine = call("alice", f"{AT}/claim", {"max": 2}).json()["jobs"]
    theirs = call("mallory", f"{AT}/claim", {"max": 1}).json()["jobs"]
    foreign = call("mallory", "/v1/queues/other/claim", {"max": 2}).json()["jobs"]
    good = token(mine[0])
    worker, number, seal = good["token"].split("-")
    _, own_number, own_seal = theirs[0]["token"].split("-")
    bare = app.store._store.queue("jobs").leases()[0].token
    assert bare == f"{worker}-{number}", "what the library lists is the token without its seal"
    forged = {
        "another key": good["token"],
        "guessed seal": f"{worker}-{number}-{'0' * 32}",
        "counted on": f"{worker}-{int(own_number) - 1}-{own_seal}",
        "own token, another job": theirs[0]["token"],
        "another queue": foreign[0]["token"],
        "without its seal": bare,
        "nothing": "",
        "no token": "x-y-z",
        "another alphabet": "é" * 20,
        "a seal alone": seal,
    }
    for what, stolen in forged.items():
        for verb in ("ack", "nack", "extend", "release"):
            answer = call("mallory", f"{AT}/{verb}", {"jobs": [{**good, "token": stolen}]})
            assert refused(answer, 0), (what, verb)
    assert refused(call("mallory", "/v1/queues/other/ack", {"jobs": [token(theirs[0])]}), 2)
    swapped = {**token(mine[1]), "token": good["token"]}
    assert refused(call("alice", f"{AT}/ack", {"jobs": [swapped]}), 1), "one token, one job"
    assert call("alice", f"{AT}/ack", {"jobs": [good]}).status == 200
    assert refused(call("alice", f"{AT}/ack", {"jobs": [good]}), 0), "it was acked"
    state = queue.call("GET", AT, None, {"Authorization": "alice"}).json()
    assert (state["leased"], state["unfinished"]) == (2, 2)


def test_of_several_jobs_the_valid_ones_are_settled_and_the_others_listed(queue: Client) -> None:
    put(queue, "a", "b", "c")
    a, b, c = claim(queue, max=3)
    post(queue, "release", jobs=[token(b)])
    (again,) = claim(queue)
    answer = post(queue, "ack", jobs=[token(a), token(b), {**token(c), "token": "guess"}])
    assert refused(answer, 2, 1)
    assert answer.json()["error"]["detail"]["done"] == 1
    assert post(queue, "ack", jobs=[token(again), token(c)]).json()["done"] == 2


def test_a_lease_that_ran_out_and_was_taken_is_stale(tmp_path: Path) -> None:
    clock = HandClock()
    with serving(tmp_path / "data", Settings(port=0), clock=clock) as server:
        client = Client(server)
        client.call("PUT", AT, {"lease": "30s"})
        put(client, "a")
        (old,) = claim(client)
        clock.forward(31)
        (new,) = claim(client)
        assert new["deliveries"] == 2
        assert refused(post(client, "ack", jobs=[token(old)]), 0)
        assert post(client, "ack", jobs=[token(new)]).status == 200
        client.close()


def test_tokens_of_a_server_that_is_gone_are_refused_and_its_jobs_come_again(
    tmp_path: Path,
) -> None:
    with serving(tmp_path / "data", Settings(port=0)) as server:
        client = Client(server)
        client.call("PUT", AT, {"lease": "1h"})
        put(client, "a")
        (old,) = claim(client)
        client.close()
    with serving(tmp_path / "data", Settings(port=0)) as server:
        client = Client(server)
        assert refused(post(client, "ack", jobs=[token(old)]), 0)
        (new,) = claim(client, wait=5)
        assert post(client, "ack", jobs=[token(new)]).status == 200
        client.close()


# ---- the dead --------------------------------------------------------------------------------


@pytest.mark.parametrize("letter", ["", "jobs.dead"])
def test_dead_letters_are_seen_put_back_and_thrown_away(client: Client, letter: str) -> None:
    client.call("PUT", AT, {"max_deliveries": 1, "dead_letter": letter})
    records = [{"value": str(n), "tag": "odd" if n % 2 else "even", "key": "k"} for n in range(6)]
    post(client, "jobs", jobs=records)
    jobs = claim(client, max=6)
    post(client, "nack", jobs=[token(job) for job in jobs[:3]], reason="no disk")
    post(client, "nack", jobs=[token(job) for job in jobs[3:]], reason="no net")
    dead = client.get(AT + "/dead?limit=2").json()
    assert (dead["count"], values(dead["jobs"])) == (6, ["0", "1"])
    assert (dead["jobs"][0]["reason"], dead["jobs"][0]["deliveries"]) == ("no disk", 1)
    assert dead["jobs"][0].get("headers") is None, "what the library notes is not the user's"
    one = {name: dead["jobs"][0][name] for name in ("shard", "offset")}
    assert post(client, "dead/requeue", jobs=[one]).json()["count"] == 1
    assert post(client, "dead/requeue", jobs=[one]).json()["count"] == 0
    assert post(client, "dead/requeue", tag="even", reason="disk").json()["count"] == 1
    assert post(client, "dead/purge", reason="disk").json()["count"] == 1
    assert post(client, "dead/requeue", key="nobody").json()["count"] == 0
    assert post(client, "dead/purge", tag="odd").json()["count"] == 2
    assert post(client, "dead/requeue", all=True).json()["count"] == 1
    assert client.get(AT + "/dead").json()["count"] == 0
    assert sorted(values(claim(client, max=6, wait=5))) == ["0", "2", "4"]
    for body in ({}, {"all": True, "tag": "x"}, {"jobs": [one], "all": True}):
        assert post(client, "dead/purge", **body).code == "invalid_request"


def test_a_queue_that_is_paused_hands_out_nothing(queue: Client) -> None:
    put(queue, "a", "b")
    assert post(queue, "pause").json() == {"paused": True}
    assert claim(queue) == []
    assert queue.get(AT).json()["paused"] is True
    assert post(queue, "resume").json() == {"paused": False}
    (job,) = claim(queue)
    assert post(queue, "purge").json() == {"queue": "jobs", "count": 1}
    assert post(queue, "ack", jobs=[token(job)]).status == 200


# ---- streams of work -------------------------------------------------------------------------


class Worker:
    """A stream of work, read event by event."""

    def __init__(self, server: Server, query: str = "") -> None:
        where = urlsplit(server.url)
        self._connection = http.client.HTTPConnection(where.hostname or "", where.port, timeout=20)
        self._connection.request(
            "GET", f"{AT}/work{query}", headers={"Accept": "text/event-stream"}
        )
        self.answer = self._connection.getresponse()

    def event(self) -> tuple[str, Any]:
        """The next one; remarks are passed over."""
        while True:
            lines = []
            while line := self.answer.readline().rstrip(b"\n"):
                lines.append(line)
            if not lines:
                return "end", None
            fields = dict(line.split(b": ", 1) for line in lines)
            if b"event" in fields:
                return fields[b"event"].decode(), msgspec.json.decode(fields[b"data"])

    def job(self) -> Any:
        kind, data = self.event()
        assert kind == "job", (kind, data)
        return data

    def go(self) -> None:
        self.answer.close()
        self._connection.close()


@pytest.fixture
def hired(queue: Client) -> Iterator[Any]:
    workers = []

    def hire(query: str = "") -> Worker:
        workers.append(Worker(queue.server, query))
        return workers[-1]

    yield hire
    for worker in workers:
        worker.go()


def leased(client: Client, count: int) -> bool:
    """Whether so many are leased before long."""
    deadline = time.monotonic() + 5
    while client.get(AT).json()["leased"] != count:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def test_a_stream_keeps_so_many_in_flight(queue: Client, hired: Any) -> None:
    put(queue, *map(str, range(10)))
    worker = hired("?max=3&values=json")
    assert worker.answer.getheader("content-type") == "text/event-stream"
    jobs = [worker.job() for _ in range(3)]
    assert [job["value"] for job in jobs] == [0, 1, 2]
    time.sleep(0.2)
    assert queue.get(AT).json()["leased"] == 3
    post(queue, "ack", jobs=[token(jobs[0])])
    jobs.append(worker.job())
    post(queue, "nack", jobs=[token(jobs[1])], delay=60)
    post(queue, "release", jobs=[token(jobs[2])])
    more = [worker.job()["value"] for _ in range(2)]
    assert 2 in more, "what was given back comes first"
    assert queue.get(AT).json()["leased"] == 3


def test_a_stream_that_ends_gives_back_what_it_had_at_once(queue: Client, hired: Any) -> None:
    put(queue, *map(str, range(5)))
    worker = hired("?max=4&lease=1h")
    jobs = [worker.job() for _ in range(4)]
    post(queue, "ack", jobs=[token(jobs[0])])
    worker.job()
    assert leased(queue, 4)
    worker.go()
    assert leased(queue, 0)
    again = claim(queue, max=10)
    assert values(again) == ["1", "2", "3", "4"]
    assert {job["deliveries"] for job in again} == {1}, "what was given back does not count"


def test_a_stream_hands_over_what_comes_later(queue: Client, hired: Any) -> None:
    worker = hired()
    time.sleep(0.1)
    put(queue, "late")
    assert worker.job()["value"] == "late"


def test_a_stream_tells_of_a_lease_that_ran_out(queue: Client, hired: Any) -> None:
    put(queue, "a")
    worker = hired("?lease=300ms")
    first = worker.job()
    assert worker.event() == ("lost", {"shard": 0, "offset": 0})
    again = worker.job()
    assert (again["value"], again["deliveries"]) == ("a", 2)
    assert refused(post(queue, "ack", jobs=[token(first)]), 0)
    assert post(queue, "extend", jobs=[token(again)], lease=60).status == 200
    time.sleep(0.5)
    assert post(queue, "ack", jobs=[token(again)]).status == 200
    put(queue, "b")
    assert worker.job()["value"] == "b", "and no loss was told of one that was extended"


@pytest.mark.parametrize("jobs", [0, 3])
def test_an_idle_stream_of_work_gives_a_sign_of_life(tmp_path: Path, jobs: int) -> None:
    """Also while it asks for jobs again and again, and gets none."""
    with serving(tmp_path / "data", Settings(port=0, heartbeat_seconds=0.2)) as server:
        client = Client(server)
        client.call("PUT", AT, {"lease": "1h"})
        put(client, *map(str, range(jobs)))
        worker = Worker(server, "?max=3")
        assert worker.answer.getheader("x-accel-buffering") == "no"
        assert worker.answer.getheader("cache-control") == "no-store, no-transform"
        for _ in range(jobs):
            worker.job()
        began, beats = time.monotonic(), 0
        while beats < 3:
            beats += worker.answer.readline() == b": heartbeat\n"
        assert 0.4 < time.monotonic() - began < 4
        worker.go()
        client.close()


def test_streams_share_the_jobs_that_come(queue: Client, hired: Any) -> None:
    one, two = hired("?max=5"), hired("?max=5")
    time.sleep(0.2)
    put(queue, *map(str, range(10)))
    found = [[worker.job()["value"] for _ in range(5)] for worker in (one, two)]
    assert sorted(found[0] + found[1], key=int) == [str(n) for n in range(10)]


def test_a_server_that_stops_ends_its_streams_and_gives_back(tmp_path: Path) -> None:
    with serving(tmp_path / "data", Settings(port=0)) as server:
        client = Client(server)
        client.call("PUT", AT, {"lease": "1h"})
        put(client, "a")
        worker = Worker(server)
        worker.job()
        client.close()
        began = time.monotonic()
    assert time.monotonic() - began < 4, "not one after the grace"
    assert worker.event() == ("bye", {"reason": "the server stops"})
    worker.go()
    with esker.open(tmp_path / "data") as store:
        queue = store.queue("jobs")
        assert [entry.what for entry in queue.history(0)] == ["claimed", "released"]


def test_a_stream_of_nothing_is_refused_as_any_call_is(queue: Client) -> None:
    for query, code in (
        ("?max=0", "invalid_request"), ("?max=9999", "invalid_request"),
        ("?lease=0", "invalid_option"), ("?lease=soon", "invalid_option"),
    ):  # fmt: skip
        assert queue.get(f"{AT}/work{query}").code == code, query
    assert queue.get("/v1/queues/none/work").code == "topic_not_found"
    assert queue.call("GET", f"{AT}/work", None, {"Accept": "application/json"}).status == 406
    assert queue.call("HEAD", f"{AT}/work").status == 405


def test_no_answer_is_longer_than_a_page_however_many_jobs_are_asked_for(queue: Client) -> None:
    value = "x" * 500_000
    for _ in range(40):
        put(queue, value)
    page = 9_500_000  # of 8 MiB, and of one job with which it is more
    body = queue.get(f"{AT}/jobs?limit=1000").body
    assert 8_000_000 < len(body) < page
    taken = []
    while jobs := claim(queue, max=10_000):
        assert sum(len(job["value"]) for job in jobs) < page
        taken += jobs
    assert [job["offset"] for job in taken] == list(range(40)), "the rest comes with the next call"
    leases = queue.get(f"{AT}/leases?limit=1000")
    assert (leases.json()["count"], len(leases.body) < page) == (40, True)
    post(queue, "nack", jobs=[token(job) for job in taken])
    again = claim(queue, max=10_000)  # what was given back is no more at once
    assert [job["offset"] for job in again] == list(range(len(again)))
    assert 8_000_000 < sum(len(job["value"]) for job in again) < page


def test_jobs_for_later_do_not_keep_back_those_behind_them(queue: Client) -> None:
    for _ in range(20):
        queue.call("POST", f"{AT}/jobs", {"jobs": [{"value": "x" * 900_000}], "delay": 3600})
    put(queue, "now")
    assert [job["value"] for job in claim(queue)] == ["now"]
