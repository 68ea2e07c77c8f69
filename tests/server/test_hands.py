"""How many jobs a key may have in hand: on both sides of the edge, and every way back from it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from esker.aio.store import aopen
from esker.queues.job import Grant, Job
from esker.records import Record
from esker.server.access.keys import SCOPES
from esker.server.app import App
from esker.server.jobs.in_hand import LOOK_SECONDS, Hands
from esker.server.settings import Settings
from tests.helpers import HandClock
from tests.server.asgi import Got, Keys, bearer, call, scope_of
from tests.server.test_queues import token

Headers = dict[str, str]


async def until(true: Callable[[], bool]) -> None:
    """Returns when it is."""
    for _ in range(5_000):
        if true():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("it does not come to that")


class House:
    """A server with two keys, two queues and a clock that is moved by hand."""

    def __init__(self, app: App, clock: HandClock, alice: Headers, bob: Headers) -> None:
        self.app, self.clock, self.alice, self.bob = app, clock, alice, bob

    async def post(self, path: str, body: Any, who: Headers | None = None) -> Got:
        return await call(self.app, "POST", path, body, self.alice if who is None else who)

    async def put(self, queue: str, count: int) -> None:
        jobs = [{"value": str(n)} for n in range(count)]
        assert (await self.post(f"/v1/queues/{queue}/jobs", {"jobs": jobs})).status == 200

    async def claim(self, queue: str = "one", who: Headers | None = None, **how: Any) -> list[Any]:
        got = await self.post(f"/v1/queues/{queue}/claim", how, who)
        assert got.status == 200, got.body
        jobs: list[Any] = msgspec.json.decode(got.body)["jobs"]
        return jobs

    async def refused(self, queue: str = "one", who: Headers | None = None, **how: Any) -> bool:
        got = await self.post(f"/v1/queues/{queue}/claim", how, who)
        return got.status == 429

    async def settle(self, verb: str, *jobs: Any, queue: str = "one", **how: Any) -> Got:
        body = {"jobs": [token(job) for job in jobs], **how}
        return await self.post(f"/v1/queues/{queue}/{verb}", body)

    def leased(self) -> int:
        store = self.app.store._store
        return sum(store.queue(name).stats().leased for name in ("one", "two"))


@asynccontextmanager
async def house(folder: Path, most: int, *, keys: bool = True) -> AsyncIterator[House]:
    clock, made = HandClock(), Keys(folder / "keys")
    alice, bob = (bearer(made.make(SCOPES)) for _ in range(2))
    settings = Settings(key_jobs=most, keys=made.save() if keys else "", key_calls=1_000)
    async with aopen(folder / "data", clock=clock) as store:
        app = App(store, settings, clock=clock)
        found = House(app, clock, alice, bob) if keys else House(app, clock, {}, {})
        for name in ("one", "two"):
            await call(app, "PUT", f"/v1/queues/{name}", {"lease": "30s"}, found.alice)
            await found.put(name, 100)
        yield found
        await app.audit.close()


def test_a_key_gets_as_many_jobs_as_it_may_have_and_is_told_why_no_more(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path, 5) as at:
            jobs = await at.claim(max=3)
            jobs += await at.claim(max=3)
            assert len(jobs) == 5, "of the second claim there was room for two"
            got = await at.post("/v1/queues/two/claim", {"max": 1})
            error = msgspec.json.decode(got.body)["error"]
            assert (got.status, error["code"]) == (429, "throttled")
            assert error["detail"] == {"limit": "key_jobs", "max": 5}
            assert got.headers["retry-after"] == "1"
            assert at.leased() == 5, "nothing was taken for who was refused"
            assert len(await at.claim(who=at.bob, max=9)) == 5, "another key has its own"
            await at.settle("ack", jobs[0])
            assert len(await at.claim("two", max=3)) == 1
            assert await at.refused()

    asyncio.run(main())


def test_who_needs_no_key_is_one_key(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path, 4, keys=False) as at:
            assert len(await at.claim(max=3)) == 3
            assert len(await at.claim("two", max=3)) == 1
            assert await at.refused()

    asyncio.run(main())


def test_no_number_of_claims_at_once_gets_past_the_limit(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path, 50) as at:
            who = [at.alice, at.bob]
            calls = [
                at.post(f"/v1/queues/{queue}/claim", {"max": most}, who[number % 2])
                for number, (queue, most) in enumerate(
                    (queue, most) for most in (1, 2, 7, 50) for queue in ("one", "two") * 8
                )
            ]
            answers = await asyncio.gather(*calls)
            assert len(answers) == 64
            held: Counter[int] = Counter()
            for number, got in enumerate(answers):
                assert got.status in (200, 429), got.body
                if got.status == 200:
                    held[number % 2] += len(msgspec.json.decode(got.body)["jobs"])
            assert held == {0: 50, 1: 50}
            assert at.leased() == 100
            assert await at.refused()
            assert await at.refused(who=at.bob)

    asyncio.run(main())


def test_a_claim_waits_for_those_under_way_before_it_is_told_that_there_is_nothing(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with house(tmp_path, 5) as at:
            hands, key = at.app.rooms.hands, at.alice["authorization"][11:23]
            assert hands.shares([(key, 5)], 0.0) == [5]  # as a pass over another queue would
            claiming = asyncio.ensure_future(at.claim(max=2))
            await asyncio.wait([claiming], timeout=0.05)
            assert not claiming.done()
            hands.took(key, 5, [])
            assert len(await asyncio.wait_for(claiming, 5)) == 2

    asyncio.run(main())


async def _acked(at: House, jobs: list[Any]) -> None:
    assert (await at.settle("ack", *jobs)).status == 200


async def _nacked(at: House, jobs: list[Any]) -> None:
    assert (await at.settle("nack", *jobs, delay=60)).status == 200


async def _released(at: House, jobs: list[Any]) -> None:
    assert (await at.settle("release", *jobs)).status == 200


async def _ran_out(at: House, jobs: list[Any]) -> None:
    at.clock.forward(31)


async def _taken_back(at: House, jobs: list[Any]) -> None:
    which = [{"shard": job["shard"], "offset": job["offset"]} for job in jobs]
    got = await at.post("/v1/queues/one/leases/release", {"jobs": which}, at.bob)
    assert msgspec.json.decode(got.body)["done"] == len(jobs)


async def _failed(at: House, jobs: list[Any]) -> None:
    which = [{"shard": job["shard"], "offset": job["offset"]} for job in jobs]
    await at.post("/v1/queues/one/leases/nack", {"jobs": which, "delay": 60}, at.bob)


async def _given_up(at: House, jobs: list[Any]) -> None:
    await call(at.app, "PUT", "/v1/queues/one", {"max_deliveries": 1}, at.alice)
    assert (await at.settle("nack", *jobs)).status == 200
    assert at.app.store._store.queue("one").stats().dead == len(jobs)


async def _deleted(at: House, jobs: list[Any]) -> None:
    assert (await call(at.app, "DELETE", "/v1/topics/one", None, at.alice)).status == 200


async def _released_by_somebody_else(at: House, jobs: list[Any]) -> None:
    queue = at.app.store._store.queue("one")  # as another process would, without the server
    queue.release([queue.job(each.shard, each.offset, each.token) for each in queue.leases()])


@pytest.mark.parametrize(
    "way",
    [_acked, _nacked, _released, _ran_out, _taken_back, _failed, _given_up, _deleted,
     _released_by_somebody_else],
)  # fmt: skip
def test_room_comes_back_however_a_job_leaves_the_hand(
    way: Callable[[House, list[Any]], Awaitable[None]], tmp_path: Path
) -> None:
    async def main() -> None:
        async with house(tmp_path, 6) as at:
            jobs = await at.claim(max=6)
            assert await at.refused("two")
            await way(at, jobs)
            assert len(await at.claim("two", max=9)) == 6
            assert await at.refused("two")

    asyncio.run(main())


def test_a_claim_that_waits_is_refused_as_soon_as_there_is_no_room(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path, 2) as at:
            await call(at.app, "PUT", "/v1/queues/empty", {}, at.alice)
            waiting = asyncio.ensure_future(at.refused("empty", wait=20))
            desks = at.app.rooms.desks._desks
            await until(lambda: "empty" in desks and bool(desks["empty"]._waiting))
            assert len(await at.claim(max=2)) == 2
            assert await asyncio.wait_for(waiting, 5)

    asyncio.run(main())


def test_a_lease_that_ran_out_is_renewed_only_while_there_is_room(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path, 4) as at:
            old = await at.claim(max=4)
            assert (await at.settle("extend", *old)).status == 200, "those in hand always are"
            at.clock.forward(31)
            new = await at.claim("two", max=4)
            assert len(new) == 4
            got = await at.settle("extend", *old)
            told = msgspec.json.decode(got.body)["error"]
            assert (told["code"], told["detail"]["done"]) == ("stale_lease", 0)
            assert at.leased() == 4
            await at.settle("ack", *new[:3], queue="two")
            got = await at.settle("extend", *old)
            assert msgspec.json.decode(got.body)["error"]["detail"]["done"] == 3
            assert at.leased() == 4
            assert await at.refused()

    asyncio.run(main())


# ---- streams of work -------------------------------------------------------------------------


class Worker:
    """A stream of work, and the jobs that it was given."""

    def __init__(self, at: House, query: str, queue: str = "one") -> None:
        self.jobs: asyncio.Queue[Any] = asyncio.Queue()
        self.lost: asyncio.Queue[Any] = asyncio.Queue()
        self._gone = asyncio.Event()
        self._asked = False
        scope = scope_of("GET", f"/v1/queues/{queue}/work", at.alice, query)
        self._running = asyncio.ensure_future(at.app(scope, self._receive, self._send))

    async def _receive(self) -> dict[str, Any]:
        if not self._asked:
            self._asked = True
            return {"type": "http.request", "body": b"", "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: dict[str, Any]) -> None:
        for line in message.get("body", b"").split(b"\n\n"):
            kind, _, data = line.partition(b"\ndata: ")
            if kind in (b"event: job", b"event: lost"):
                to = self.jobs if kind == b"event: job" else self.lost
                to.put_nowait(msgspec.json.decode(data))

    async def got(self, count: int) -> list[Any]:
        return [await asyncio.wait_for(self.jobs.get(), 5) for _ in range(count)]

    async def leave(self) -> None:
        self._gone.set()
        await asyncio.wait_for(self._running, 5)


def test_streams_of_work_wait_for_room_and_give_it_back_when_they_end(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path, 5) as at:
            first, second = Worker(at, "max=4"), Worker(at, "max=4", "two")
            jobs = await first.got(4)
            (one,) = await second.got(1)
            assert await at.refused()
            await asyncio.sleep(0.06)  # two looks of its desk
            assert (second.jobs.empty(), at.leased()) == (True, 5)
            await at.settle("ack", jobs[0], jobs[1])
            await at.settle("ack", one, queue="two")
            await until(lambda: first.jobs.qsize() + second.jobs.qsize() == 3)
            assert at.leased() == 5
            await first.leave()
            await until(lambda: at.leased() == 4)  # what the other one may have
            assert len(await at.claim(max=9)) == 1
            await second.leave()
            assert len(await at.claim(max=9)) == 4

    asyncio.run(main())


def test_a_stream_is_told_of_a_job_that_was_taken_back_and_gets_another_one(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with house(tmp_path, 5) as at:
            worker = Worker(at, "max=1&lease=1h")
            (job,) = await worker.got(1)
            await _failed(at, [job])
            told = await asyncio.wait_for(worker.lost.get(), 5)
            assert told == {"shard": job["shard"], "offset": job["offset"]}
            (other,) = await worker.got(1)
            assert other["offset"] != job["offset"]
            await worker.leave()

    asyncio.run(main())


# ---- the book itself -------------------------------------------------------------------------


def test_keys_that_nobody_uses_any_more_are_forgotten(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path, 5) as at:
            await at.claim(max=2)
            at.clock.forward(31)
            await at.claim(max=1, who=at.bob)
            assert len(at.app.rooms.hands._hands) == 1

    asyncio.run(main())


def test_a_key_that_renews_its_leases_is_not_forgotten_meanwhile() -> None:
    hands = Hands(5)
    job = Job(Record(b"", offset=7, shard=0), Grant(None, 0, 1, 1, 30.0), 1)  # type: ignore[arg-type]
    hands.took("a", *hands.shares([("a", 1)], 0.0), [job])
    with hands.renewing("a", [job], 31.0) as chosen:
        assert chosen == [job]
        assert hands.shares([("b", 1)], 32.0) == [1]
        job.extended = 60.0
    assert hands.room("a") == 4


def test_shares_are_even_where_room_is_scarce_and_whole_where_it_is_not() -> None:
    for wants, shares in (
        ([3, 2], [3, 2]), ([10, 10], [5, 5]), ([10, 1], [9, 1]), ([1] * 12, [1] * 10 + [0] * 2),
        ([0, 10], [0, 10]), ([4, 4, 4], [4, 3, 3]),
    ):  # fmt: skip
        hands = Hands(10)
        found = hands.shares([("", want) for want in wants], 0.0)
        assert found == shares, wants
        assert hands.room("") == 10 - sum(shares)
        for share in found:
            hands.took("", share, [])
        assert hands.room("") == 10


def test_who_waits_for_room_does_not_have_it_looked_for_all_the_time() -> None:
    hands = Hands(1)
    hands.shares([("", 1)], 0.0)
    hands._hands[""].looked = 7.0
    assert not hands.stale("", 7.0 + LOOK_SECONDS / 2)
    assert hands.stale("", 7.0 + LOOK_SECONDS)
