"""A group of readers on a server, as one member of it sees it.

A member is a name that this handle makes up; the server keeps its place, and its shards, for as
long as it is heard of. A poll goes on behind what was handed out. Should an answer be lost, the
next poll begins at the group's cursor again, and what was not acked comes once more.

`batch.ack()` is a call, and returns when the server has it: `Fenced` is told at once.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa

from esker.client import bodies
from esker.client.pool import ARROW, Answer, part
from esker.client.tail import POLL_SECONDS, told_gap
from esker.client.texts import position
from esker.clock import SYSTEM_CLOCK
from esker.engine.batch import Batch
from esker.engine.reader import BATCH_BYTES, Gaps, check_count, check_gaps, check_timeout
from esker.errors import (
    EskerError,
    Fenced,
    InvalidOption,
    ServerFault,
    StoreClosed,
    Unavailable,
)
from esker.groups.batch import GroupBatch
from esker.groups.describe import GroupShard, GroupStatus
from esker.groups.group import POLL_RECORDS, check_name
from esker.groups.lag import Lag, ShardLag
from esker.groups.moves import Move
from esker.groups.process import OnError, process
from esker.options import duration_us
from esker.records import Gap

if TYPE_CHECKING:
    from esker.client.topic import RemoteTopic

RECORDS_MAX: Final = 10_000  # a server gives no more at once
BYTES_MAX: Final = 8 << 20
SOMEBODY: Final = -1  # the pid of a member elsewhere: a server does not tell it


class RemoteBatch(GroupBatch):
    """Records of one shard, delivered to one member of a group."""

    __slots__ = ("_acked", "generation")

    def __init__(self, group: RemoteGroup, batch: Batch, told: dict[str, int]) -> None:
        Batch.__init__(self, batch.shard, batch.begin, batch.columns, batch.offsets, told["next"])
        self._group: Any = group
        self._first = told["first"]
        self._acked = False
        self.generation = told["generation"]

    @property
    def topic(self) -> str:
        """The name of the topic that it is from."""
        name: str = self._group.topic.name
        return name

    @property
    def acked(self) -> bool:
        """Whether all of it was acked by this handle."""
        return self._acked

    def ack(self, upto: int | None = None, *, wait: bool = False) -> None:
        """Say that it is done with: all of it, or the records up to and with an offset."""
        end = self.next_offset if upto is None or upto == self.last else self._behind(upto)
        self._group._ack(self.shard, self.generation, self._first, end, wait)
        self._acked = end == self.next_offset


class RemoteGroup:
    """A group that reads one topic. Use it as a context manager, or close it."""

    def __init__(
        self, topic: RemoteTopic, name: str, start: Any, gaps: Gaps, session: float | str
    ) -> None:
        self.topic = topic
        self.name = name
        self.skipped = 0
        """Records that were lost before this member read them, with gaps="skip"."""
        self.duplicates = 0
        """Records that were left out because they came before: none, a server delivers all."""
        self.closed = False
        self._path = f"/groups/{part(name)}"
        self._member = os.urandom(12).hex()
        self._gaps = gaps
        self._session = duration_us(session, "session") / 1e6
        self._polling = threading.Lock()  # a member polls once at a time
        self._again = False  # begin at the cursor: an answer was lost, or it was rewound
        self._stop = False
        self._waiting: deque[Any] = deque()  # what came, and was not handed out yet
        self._terms: dict[int, tuple[int, int]] = {}  # generation, and how far it was acked
        topic._call("PUT", self._path, None, {"start": position(start)}, again=True)

    def __repr__(self) -> str:
        return f"<esker group {self.name!r} of {self.topic.name!r} at {self.topic._store.path}>"

    def _call(self, method: str, path: str, body: Any = None, **how: Any) -> Answer:
        self._require_open()
        return self.topic._call(method, self._path + path, None, body, **how)

    def _require_open(self) -> None:
        self.topic._store.require_open()
        if self.closed:
            raise StoreClosed(f"this handle of group {self.name!r} is closed; make another one")

    # ---- reading -------------------------------------------------------------------------

    def poll(
        self, max_records: int = POLL_RECORDS, max_bytes: int = BATCH_BYTES, wait: float | None = 0,
    ) -> Iterator[GroupBatch]:  # fmt: skip
        """The batches that are there for this member; see `Group.poll`."""
        check_count("max_bytes", max_bytes, 1)
        check_count("max_records", max_records, 0)
        self._require_open()
        most = min(max_records or RECORDS_MAX, RECORDS_MAX)
        return self._poll(most, min(max_bytes, BYTES_MAX), check_timeout(wait))

    def _poll(self, most: int, room: int, wait: float | None) -> Iterator[Any]:
        clock = SYSTEM_CLOCK
        deadline = None if wait is None else clock.monotonic() + wait
        for item in self._handed():
            deadline = 0.0
            yield item
        while not self._stop:
            left = POLL_SECONDS if deadline is None else deadline - clock.monotonic()
            found = self._ask(most, room, max(0.0, min(left, POLL_SECONDS)))
            if found:
                count = sum(len(each) for each in found if isinstance(each, Batch))
                size = sum(each.nbytes for each in found if isinstance(each, Batch))
                self._waiting += found
                yield from self._handed()
                if count < most and size < room:
                    return  # that was all there is
                deadline = 0.0
            elif deadline is not None and clock.monotonic() >= deadline:
                return

    def _handed(self) -> Iterator[Any]:
        """What came, one by one. The server has handed it out: what is left is for the next poll,
        whether this one was left early or a gap was raised."""
        while True:
            try:
                item = self._waiting.popleft()
            except IndexError:
                return
            if not isinstance(item, Gap):
                yield item
                continue
            if self._gaps == "skip":
                self.skipped += item.missed
            yield from told_gap(item, self._gaps)

    def _ask(self, most: int, room: int, wait: float) -> list[Any]:
        body = {
            "member": self._member, "max_records": most, "max_bytes": room, "wait": wait,
            "ahead": not self._again, "session": self._session,
        }  # fmt: skip
        with self._polling:
            try:
                answer = self._call("POST", "/poll", body, accept=ARROW, wait=wait)
                found = self._delivered(answer)
            except BaseException as problem:
                refused = isinstance(problem, EskerError)
                if not refused or isinstance(problem, Unavailable | ServerFault):
                    self._again = True  # it may have handed out what nobody got
                raise
            self._again = False
        return found

    def _delivered(self, answer: Answer) -> list[Any]:
        try:
            told = msgspec.json.decode(answer.headers["esker-batches"])
            gaps = [
                bodies.gap_of(each)
                for each in msgspec.json.decode(answer.headers.get("esker-gaps", "[]"))
            ]
            with pa.ipc.open_stream(pa.py_buffer(answer.body)) as reader:
                rows = list(reader)
            made = [
                RemoteBatch(self, bodies.batch_of(each, one["shard"]), one)
                for each, one in zip(rows, told, strict=True)
            ]
        except (KeyError, ValueError, msgspec.MsgspecError, pa.ArrowException) as problem:
            raise ServerFault(
                f"an answer that holds no batches: {problem}", status=answer.status
            ) from problem
        found: list[Any] = list(made)
        for gap in gaps:
            behind = (
                at for at, each in enumerate(found)
                if isinstance(each, Batch) and each.shard == gap.shard and each.first > gap.first
            )  # fmt: skip
            found.insert(next(behind, len(found)), gap)
        return found

    def process(
        self, handler: Callable[[GroupBatch], Any], *, retries: int = 3, delay: float = 1.0,
        on_error: OnError | None = None, auto_ack: bool = True, max_records: int = POLL_RECORDS,
        max_bytes: int = BATCH_BYTES, idle: float | None = None,
    ) -> int:  # fmt: skip
        """Give every batch to a handler, and ack it when that returns; see `Group.process`."""
        return process(
            self, handler, retries=retries, delay=delay, on_error=on_error, auto_ack=auto_ack,
            max_records=max_records, max_bytes=max_bytes, idle=idle,
        )  # fmt: skip

    def stop(self) -> None:
        """End `process` behind the batch at hand."""
        self._stop = True

    # ---- acks ----------------------------------------------------------------------------

    def ack(self, shard: int, first: int, last: int) -> None:
        """Say that offsets first..last of a shard are done with, in any order."""
        check_count("first", first, 0)
        check_count("last", last, first)
        generation, _ = self._terms.get(shard, (0, 0))
        self._ack(shard, generation, first, last + 1, False)

    def _ack(self, shard: int, generation: int, first: int, end: int, wait: bool) -> None:
        one = {"shard": shard, "generation": generation, "first": first, "next": end}
        body = {"member": self._member, "acks": [one], "sync": wait}
        cursors = self._call("POST", "/ack", body).json()["cursors"]
        self._terms[shard] = (generation, max(first, *(each["cursor"] for each in cursors)))

    def rewind(self) -> None:
        """Deliver again what was delivered to this member and not acked."""
        self._again = True
        self._waiting.clear()

    def sync(self, timeout: float | None = 30.0) -> None:
        """When this returns, all acks of this handle survive power loss."""
        check_timeout(timeout)
        acks = [
            {"shard": shard, "generation": generation, "next": cursor}
            for shard, (generation, cursor) in self._terms.items()
        ]
        if acks:
            body = {"member": self._member, "acks": acks, "sync": True}
            with suppress(Fenced):  # of shards that were lost; the others are synced by then
                self._call("POST", "/ack", body, again=True, timeout=timeout)

    # ---- looking, and moving -------------------------------------------------------------

    def cursors(self) -> dict[int, int]:
        """The cursor of every shard: all before it is done with, whoever did it."""
        return {each["shard"]: each["cursor"] for each in self._state()["shards"]}

    def _state(self) -> dict[str, Any]:
        found: dict[str, Any] = self._call("GET", "", again=True).json()
        return found

    def lag(self) -> Lag:
        """How far behind it is; see `Group.lag`."""
        state = self._state()
        shards = tuple(
            ShardLag(one["shard"], one["cursor"], one["end"], one["records"], one["seconds"])
            for one in state["shards"]
        )
        return Lag(state["topic"], state["group"], shards, state["eta_seconds"])

    def describe(self) -> GroupStatus:
        """The group as it is now. Processes elsewhere are told as -1."""
        return status_of(self._state())

    def seek(self, to: Any, shard: int | None = None, *, dry_run: bool = False) -> list[Move]:
        """Put the group somewhere else, or say what that would mean; see `Group.seek`."""
        if shard is not None and (isinstance(shard, bool) or not isinstance(shard, int)):
            # NaN would be sent as none, which means all of them
            raise InvalidOption(f"shard={shard!r}: a shard has a number")
        body = {"to": position(to), "shard": shard, "dry_run": dry_run}
        moves = self._call("POST", "/seek", body, again=dry_run).json()["moves"]
        if not dry_run:  # what waits of these shards can not be acked any more
            left = [each for each in self._waiting if shard not in (None, each.shard)]
            self._waiting = deque(left)
        return [msgspec.convert(each, Move) for each in moves]

    def pause(self) -> None:
        """Deliver nothing to anybody until `resume`; what was delivered can be acked."""
        self._call("POST", "/pause", {}, again=True)

    def resume(self) -> None:
        """Go on after a pause."""
        self._call("POST", "/resume", {}, again=True)

    @property
    def paused(self) -> bool:
        """Whether the group is paused, by whomever."""
        return bool(self._state()["paused"])

    def close(self) -> None:
        """Let go of the shards, and leave. The group stays."""
        if self.closed or self.topic._store.closed:
            self.closed = self._stop = True
            return
        try:
            self.sync()
            self._call("POST", "/leave", {"member": self._member}, again=True)
        finally:
            self.closed = self._stop = True

    def __enter__(self) -> RemoteGroup:
        self._require_open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        self.close()


def status_of(state: dict[str, Any]) -> GroupStatus:
    """A group, from what a server says of it."""
    shards = tuple(
        GroupShard(
            one["shard"], one["cursor"], one["end"], one["records"], one["seconds"],
            SOMEBODY if one["owned"] else 0, 0, one["acked"], one["generation"], one["paused"], "",
        )
        for one in state["shards"]
    )  # fmt: skip
    return GroupStatus(state["topic"], state["group"], shards, (SOMEBODY,) * state["members"])


def open_group(
    topic: RemoteTopic, name: str, start: Any, *, member: Any, gaps: Gaps, consistency: str,
    skip_node: str | None, session: float | str, dedupe: int,
) -> RemoteGroup:  # fmt: skip
    """`Topic.group`."""
    topic._store._require_writable()
    check_name(name)
    check_gaps(gaps)
    if member is not None or consistency != "eventual" or skip_node is not None or dedupe:
        raise InvalidOption(
            "member, consistency, skip_node and dedupe are for groups of a directory; over HTTP "
            "the server divides the shards among the members, and delivers what is there"
        )
    return RemoteGroup(topic, name, start, gaps, session)
