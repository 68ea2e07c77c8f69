"""A topic on a server: append, read, delete.

`append` is a call, and returns when the server has the record in its log: there is no buffer on
this side, so that what was returned is an offset and not a hope. With `wait` it returns when the
topic's commit class is met, as everywhere. Many records go by `append_many`, `batch` or
`append_arrow`, in one call.

A read settles first what its positions mean, in one call for all shards; then it asks for pages.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec

from esker.client import bodies
from esker.client.bodies import Page
from esker.client.group import RemoteGroup, open_group, status_of
from esker.client.pool import ARROW, Answer, part
from esker.client.producer import RemoteProducer
from esker.client.tail import RemoteTail, told_gap
from esker.client.texts import position
from esker.engine import intake
from esker.engine.batch import Batch
from esker.engine.erasing import check_match
from esker.engine.once import key_of
from esker.engine.reader import (
    BATCH_BYTES,
    Consistency,
    Gaps,
    Range,
    _pieces,
    check_consistency,
    check_count,
    check_gaps,
    check_limit,
    check_timeout,
)
from esker.engine.reading import _records
from esker.engine.sieve import check_node
from esker.engine.slices import Slice, Sliced
from esker.engine.writing import BatchWriter
from esker.errors import (
    BatchTooLarge,
    CommitTimeout,
    DataGap,
    InvalidOption,
    InvalidRecord,
    OffsetOutOfRange,
    RecordTooLarge,
    TopicNotFound,
    Unavailable,
    deleted,
    nearest,
)
from esker.groups.describe import GroupStatus
from esker.options import TopicOptions
from esker.positions import OFFSET_MAX
from esker.records import Gap, Offset, Record, Span, Spans, Value

if TYPE_CHECKING:
    from esker.client.store import RemoteStore

PAGE_RECORDS: Final = 10_000  # a server gives no more at once
PAGE_BYTES: Final = 8 << 20


class State(msgspec.Struct):
    """How a topic stands, as its server says."""

    topic: str
    epoch: int
    count: int
    shards: list[dict[str, int]]
    options: dict[str, Any]


class Settled(msgspec.Struct):
    """What two positions mean in each shard."""

    epoch: int
    ranges: list[dict[str, int]]
    missed: list[dict[str, Any]] = []

    @property
    def each(self) -> list[Range]:
        return [Range(one["shard"], one["first"], one["end"]) for one in self.ranges]

    @property
    def count(self) -> int:
        return sum(one["count"] for one in self.ranges)

    @property
    def gaps(self) -> dict[int, Gap]:
        return {one["shard"]: bodies.gap_of(one) for one in self.missed}


class RemoteTopic(Sliced):
    """A named log on a server. Get one with `store["name"]` or `store.create("name", ...)`."""

    def __init__(self, store: RemoteStore, name: str) -> None:
        self._store = store
        self.name = name
        self._path = f"/v1/topics/{part(name)}"
        self._count = 0  # of its shards, when they are known
        self._gone = False  # deleted by this client

    def __repr__(self) -> str:
        return f"<esker topic {self.name!r} at {self._store.path}>"

    def __getattr__(self, name: str) -> Any:
        raise self._store._not_remote("Topic", name)

    def _call(self, method: str, path: str, *args: Any, **how: Any) -> Answer:
        self._store.require_open()
        if self._gone:
            raise deleted(self.name)
        try:
            return self._store._pool.call(method, self._path + path, *args, **how)
        except TopicNotFound:
            raise self._missing() from None

    def _missing(self) -> TopicNotFound:
        try:
            known = nearest(self.name, list(self._store))
        except Exception:  # it may not be allowed to know
            known = "nor may others be listed"
        return TopicNotFound(
            f"no topic {self.name!r} in {self._store.path}, appending would create it; {known}"
        )

    # ---- state ---------------------------------------------------------------------------

    def _state(self) -> State:
        answer = self._call("GET", "", again=True)
        found = msgspec.json.decode(answer.body, type=State)
        self._count = len(found.shards)
        return found

    def _shard(self, shard: Any) -> dict[str, int]:
        shards = self._state().shards
        return shards[self._checked(shard, len(shards))]

    def _checked(self, shard: Any, count: int) -> int:
        if isinstance(shard, bool) or not isinstance(shard, int) or not 0 <= shard < count:
            raise InvalidOption(f"shard={shard}: topic {self.name!r} has shards 0..{count - 1}")
        return shard

    @property
    def options(self) -> TopicOptions:
        """The topic's options, as they are now."""
        return msgspec.convert(self._state().options, TopicOptions)

    @property
    def shards(self) -> int:
        """How many shards it has."""
        return len(self._state().shards)

    @property
    def epoch(self) -> int:
        """A number of this topic alone; see `Topic.epoch`."""
        return self._state().epoch

    def shard_of(self, key: bytes | str) -> int:
        """The shard that records with this key go to."""
        checked = intake.key_of(key)
        if checked is None:
            raise InvalidRecord("a record without a key belongs to no shard of its own")
        return intake.fnv1a(checked) % self._shards()

    def _shards(self) -> int:
        """How many there are: looked up once, for it does not change."""
        return self._count or self.shards

    def _known(self, shard: Any) -> int:
        """A shard that is there; looked up again if the topic may be another one by now."""
        count = self._shards()
        if type(shard) is int and shard >= count:
            count = self.shards
        return self._checked(shard, count)

    def end(self, shard: int = 0) -> int:
        """The offset behind the last record that readers see."""
        return self._shard(shard)["end"]

    def earliest(self, shard: int = 0) -> int:
        """The first offset that is still there."""
        return self._shard(shard)["earliest"]

    def durable(self, shard: int = 0) -> int:
        """The offset behind the last record that survives power loss."""
        return self._shard(shard)["durable"]

    def __len__(self) -> int:
        """How many records readers see, over all shards."""
        return self._state().count

    def __bool__(self) -> bool:
        return True  # and no call for it

    def _repr_html_(self) -> str:
        from esker.engine.notebook import topic_html  # for who looks at it in a notebook

        return topic_html(self)

    def counters(self, shard: int = 0) -> dict[str, int]:
        """Every counter of a shard's page."""
        self._known(shard)
        answer = self._call("GET", "/counters", {"shard": shard}, again=True)
        found: dict[str, int] = answer.json()["counters"]
        return found

    # ---- appending -----------------------------------------------------------------------

    def append(
        self, value: Value, key: bytes | str | None = None, tag: str | None = None,
        node: str | None = None, headers: dict[str, bytes] | None = None, timestamp: Any = None,
        wait: bool | float = False, idempotency_key: bytes | str | None = None,
    ) -> int:  # fmt: skip
        """Append one record and return its offset; the server has it in its log by then.

        With wait=True (or a number of seconds) the call returns when the topic's commit class is
        met. See `Topic.append` for the rest.
        """
        self._store._require_writable()
        checked = intake.value_of(value, bodies.NO_LIMIT)
        extra = intake.extra_of(key, tag, node, headers, timestamp)
        media, body = bodies.lone(checked, extra)
        try:
            answer = self._append(media, body, intake.wait_of(wait), idempotency_key)
        except BatchTooLarge as problem:
            raise RecordTooLarge(str(problem)) from None
        (span,) = bodies.spans([answer])
        several = self._known(span.shard) or self._count > 1
        return Offset(span.first, span.shard) if several else span.first

    def append_many(
        self, records: Iterable[Any], wait: bool | float = False,
        idempotency_key: bytes | str | None = None,
    ) -> Span | Spans:  # fmt: skip
        """Append records (values or Record) as one atomic batch; see `Topic.append_many`."""
        self._store._require_writable()
        if idempotency_key is not None:
            key_of(idempotency_key)
        given, wait = intake.batch_of(records), intake.wait_of(wait)
        if not given:
            return self._nothing_appended()
        media, body = bodies.batch(given)
        answer = self._append(media, body, wait, idempotency_key, atomic=True)
        return bodies.told(bodies.spans([answer]))

    def append_arrow(self, data: Any, wait: bool | float = False) -> Span | Spans:
        """Append Arrow data; see `Topic.append_arrow`. Large tables are sent in parts."""
        self._store._require_writable()
        batches, wait = intake.arrow_batches(data), intake.wait_of(wait)
        full = [batch for batch in batches if batch.num_rows]
        for batch in full:
            intake.arrow_columns(batch, bodies.NO_LIMIT, 0)  # refused before the first is sent
        if not full:
            return self._nothing_appended()
        answers = [self._append(ARROW, body, wait, None) for body in bodies.tables(full)]
        return bodies.told(bodies.spans(answers))

    def _append(
        self, media: str, body: Any, wait: bool | float, key: bytes | str | None, *,
        atomic: bool = False,
    ) -> Answer:  # fmt: skip
        asked: dict[str, Any] = {"atomic": "true" if atomic else None}
        if key is not None:
            asked["idempotency_key"] = _key(key)
        elif self._store._pool.options.retries:
            asked["idempotency_key"] = os.urandom(16).hex()  # or a retry could append it twice
        again = "idempotency_key" in asked
        try:
            return self._post("/records", asked, media, body, wait, again=again)
        except InvalidOption as problem:
            if key is not None or not again or "knows no keys" not in str(problem):
                raise
        del asked["idempotency_key"]  # so it is sent once, and not again
        return self._post("/records", asked, media, body, wait, again=False)

    def _post(
        self, path: str, asked: dict[str, Any], media: str, body: Any, wait: bool | float, *,
        again: bool,
    ) -> Answer:  # fmt: skip
        """Send records. The time that the caller sets is that which an answer may take."""
        limit = None if isinstance(wait, bool) else max(wait, 0.001)
        asked["wait"] = "false" if wait is False else "true"
        try:
            return self._call("POST", path, asked, body, media=media, again=again, timeout=limit)
        except Unavailable as problem:
            if limit is not None and isinstance(problem.__cause__, TimeoutError):
                raise CommitTimeout(f"not committed within {wait} s; it may still be") from None
            raise

    def _nothing_appended(self) -> Span:
        try:
            return Span(0, self.end(), 0)
        except TopicNotFound:
            return Span(0, 0, 0)

    def batch(
        self, wait: bool | float = False, idempotency_key: bytes | str | None = None
    ) -> BatchWriter:
        """Collect records and append them as one atomic batch when the `with` block ends."""
        return BatchWriter(self, wait, idempotency_key)  # type: ignore[arg-type]

    def _limit(self) -> int:
        return bodies.NO_LIMIT

    def producer(self, name: str, shard: int | None = None) -> RemoteProducer:
        """Somebody who numbers his batches, so that each of them is appended once."""
        return RemoteProducer(self, name, shard)

    def flush(self) -> None:
        """Have the server write what it holds in buffers for others."""
        self._store._require_writable()
        self._settle(durable=False)

    def sync(self) -> None:
        """Make everything appended so far durable; when this returns it survives power loss."""
        self._store._require_writable()
        self._settle(durable=True)

    def _settle(self, *, durable: bool) -> None:
        if self._gone:
            return
        asked = {"durable": "true" if durable else "false"}
        try:
            self._store._pool.call("POST", f"{self._path}/sync", asked, {}, again=True)
        except TopicNotFound:
            return  # nothing was appended to it

    def wait_durable(self, offset: int, shard: int = 0) -> None:
        """Wait until the record with this offset, appended before, survives power loss."""
        self._store._require_writable()
        state = self._state()
        if type(shard) is not int or not 0 <= shard < len(state.shards):
            raise InvalidOption(
                f"shard={shard}: topic {self.name!r} has {len(state.shards)} shards"
            )
        if offset < state.shards[shard]["durable"]:
            return
        self.sync()
        end = self.end(shard)
        if offset >= end:
            raise OffsetOutOfRange(f"offset {offset} was not appended; the next is {end}")

    def delete(
        self, before: Any = None, shard: int | None = None, *, tag: str | None = None,
        tag_prefix: str | None = None,
    ) -> int:  # fmt: skip
        """Delete the records before a position, by tag, or both; see `Topic.delete`."""
        self._store._require_writable()
        if before is None and tag is None and tag_prefix is None:
            raise InvalidOption('delete what? Give a position ("latest" for all), or a tag')
        check_match(tag, tag_prefix)  # or what is no text would be sent as some, and found
        if shard is not None:
            self._known(shard)
        given = None if before is None else position(before)
        asked = {"before": given, "shard": shard, "tag": tag, "tag_prefix": tag_prefix}
        return int(self._call("DELETE", "/records", asked).json()["deleted"])

    # ---- groups --------------------------------------------------------------------------

    def group(
        self, name: str, start: Any = "earliest", *, member: tuple[int, int] | None = None,
        gaps: Gaps = "raise", consistency: Consistency = "eventual",
        skip_node: str | None = None, session: float | str = 60.0, dedupe: int = 0,
    ) -> RemoteGroup:  # fmt: skip
        """A group of readers that share the topic; see `Topic.group`."""
        return open_group(
            self, name, start, member=member, gaps=gaps, consistency=consistency,
            skip_node=skip_node, session=session, dedupe=dedupe,
        )  # fmt: skip

    def groups(self) -> list[GroupStatus]:
        """All groups of the topic: where they are, and how far behind."""
        self._store.require_open()
        try:
            found = self._store._pool.call("GET", "/v1/groups", {"topic": self.name}, again=True)
        except TopicNotFound:
            return []
        return [status_of(each) for each in found.json()["groups"]]

    def forget_group(self, name: str) -> None:
        """Forget a group for good; nobody may be reading in it (MemberBusy)."""
        self._store._require_writable()
        self._call("DELETE", f"/groups/{part(name)}")

    # ---- reading -------------------------------------------------------------------------

    def _settled(
        self, start: Any, stop: Any, shard: int | None, consistency: Consistency = "eventual",
        epoch: int | None = None,
    ) -> Settled:  # fmt: skip
        """What two positions mean in each shard, as things are now."""
        begin, finish = position(start), None if stop is None else position(stop)
        check_consistency(consistency)
        if shard is not None:
            self._known(shard)
        if epoch is not None and type(epoch) is not int:
            raise InvalidOption(f"epoch={epoch!r}: the number of a topic")
        asked = {
            "start": begin, "stop": finish, "shard": shard, "consistency": consistency,
            "epoch": epoch,
        }  # fmt: skip
        answer = self._call("GET", "/ranges", asked, again=True)
        return msgspec.json.decode(answer.body, type=Settled)

    def _page(
        self, start: int, stop: int | None, shard: int, *, limit: int = PAGE_RECORDS,
        max_bytes: int = PAGE_BYTES, wait: float = 0.0, consistency: str = "eventual",
        skip_node: str | None = None, gaps: str | None = None, columns: str | None = None,
    ) -> Page:  # fmt: skip
        asked = {
            "start": start, "stop": stop, "shard": shard, "limit": limit,
            "max_bytes": max_bytes, "wait": wait or None, "skip_node": skip_node,
            "consistency": None if consistency == "eventual" else consistency,
            "gaps": gaps, "columns": columns,
        }  # fmt: skip
        answer = self._call("GET", "/records", asked, accept=ARROW, again=True, wait=wait)
        return Page(answer, shard)

    def _await(self, cursors: dict[int, int], seconds: float) -> None:
        """Until one of the shards goes beyond its cursor, or the time is up."""
        body = {"cursors": cursors, "wait": seconds}
        self._call("POST", "/tail", None, body, again=True, wait=seconds)

    def batches(
        self, start: Any = "earliest", stop: Any = None, *, shard: int | None = None,
        max_bytes: int = BATCH_BYTES, max_records: int = 0, gaps: Gaps = "raise",
        consistency: Consistency = "eventual", skip_node: str | None = None,
        epoch: int | None = None,
    ) -> Iterator[Batch]:  # fmt: skip
        """The records from `start` to `stop`, as Arrow batches; see `Topic.batches`."""
        check_gaps(gaps)
        check_count("max_bytes", max_bytes, 1)
        check_count("max_records", max_records, 0)
        check_node(skip_node)
        found = self._settled(start, stop, shard, consistency, epoch)
        return self._batches(
            found.each, found.epoch, max_bytes, max_records, gaps, skip_node, found.gaps
        )

    def _batches(
        self, ranges: list[Range], epoch: int, max_bytes: int, max_records: int, gaps: Gaps,
        skip_node: str | None = None, missed: Mapping[int, Gap] | None = None,
    ) -> Iterator[Any]:  # fmt: skip
        for number, first, end in ranges:
            if missed and number in missed:
                yield from told_gap(missed[number], gaps)
            while first < end:
                page = self._page(first, end, number, skip_node=skip_node)
                if page.epoch != epoch:
                    raise deleted(self.name)
                for item in page.items:
                    if isinstance(item, Gap):
                        yield from told_gap(item, gaps)
                        first = item.last + 1
                        continue
                    yield from _cut(item, max_bytes, max_records)
                    first = item.next_offset
                if not page.items:
                    break
                first = max(first, page.next)

    def read(
        self, start: Any = "earliest", stop: Any = None, *, shard: int | None = None,
        limit: int | None = None, gaps: Gaps = "raise", consistency: Consistency = "eventual",
        skip_node: str | None = None, epoch: int | None = None,
    ) -> Iterator[Record]:  # fmt: skip
        """The records from `start` to the end as it is now, one by one."""
        check_limit(limit)
        found = self.batches(
            start, stop, shard=shard, gaps=gaps, consistency=consistency, skip_node=skip_node,
            epoch=epoch,
        )  # fmt: skip
        return _records(found, limit)

    def follow(
        self, start: Any = "latest", *, timeout: float | None = None, shard: int | None = None,
        limit: int | None = None, gaps: Gaps = "raise", consistency: Consistency = "eventual",
        skip_node: str | None = None, epoch: int | None = None,
    ) -> Iterator[Record]:  # fmt: skip
        """The records from `start` on, and then those to come; see `Topic.follow`."""
        check_limit(limit)
        found = self.follow_batches(
            start, timeout=timeout, shard=shard, gaps=gaps, consistency=consistency,
            skip_node=skip_node, epoch=epoch,
        )  # fmt: skip
        return _records(found, limit)

    def follow_batches(
        self, start: Any = "latest", *, timeout: float | None = None, shard: int | None = None,
        gaps: Gaps = "raise", consistency: Consistency = "eventual", skip_node: str | None = None,
        epoch: int | None = None,
    ) -> Iterator[Batch]:  # fmt: skip
        """As `follow`, by batches."""
        limit = check_timeout(timeout)
        tail = self.tail(
            start, shard=shard, gaps=gaps, consistency=consistency, skip_node=skip_node, epoch=epoch
        )
        return self._store._follow(tail, limit)

    def tail(
        self, start: Any = "latest", *, shard: int | None = None, gaps: Gaps = "raise",
        consistency: Consistency = "eventual", skip_node: str | None = None,
        epoch: int | None = None,
    ) -> RemoteTail:  # fmt: skip
        """Cursors from `start` on, to be stepped by hand: `follow` without the waiting."""
        check_gaps(gaps)
        check_node(skip_node)
        found = self._settled(start, None, shard, consistency, epoch)
        cursors = {each.shard: each.first for each in found.each}
        return RemoteTail(self, cursors, found.epoch, gaps, consistency, skip_node, found.gaps)

    def slice(self, start: Any = None, stop: Any = None, *, shard: int | None = None,
              gaps: Gaps = "raise", epoch: int | None = None) -> Slice:  # fmt: skip
        """A lazy part of the topic, for iterating and for polars, pandas, duckdb and pyarrow."""
        check_gaps(gaps)
        self._settled(start, stop, shard, epoch=epoch)
        settled: list[Settled] = []

        def settle() -> list[Range]:
            settled[:] = [self._settled(start, stop, shard, epoch=epoch)]
            return settled[0].each

        def read(ranges: list[Range]) -> Iterator[Batch | Gap]:
            found = settled[0]
            return self._batches(
                ranges, found.epoch, BATCH_BYTES, 0, gaps, missed=found.gaps
            )  # fmt: skip

        def count(ranges: list[Range]) -> int:
            return sum(
                self._settled(each.first, each.end, each.shard).count for each in ranges
            )  # fmt: skip

        return Slice(settle, read, count, f"<slice {start!r}:{stop!r} of {self!r}>")

    def get(self, offset: int, shard: int = 0) -> Record:
        """The record with this offset; negative offsets count from the end."""
        if isinstance(offset, bool) or not isinstance(offset, int):
            raise InvalidOption(f"an offset is a whole number, not {offset!r}")
        self._known(shard)
        place = min(offset, OFFSET_MAX - 1)
        if offset < 0:
            found = self._settled(offset, None, shard)
            place = found.each[0].first
            if found.count < -offset:
                raise self._out_of_range(offset, shard)
        page = self._page(place, place + 1, shard, limit=1)
        for item in page.items:
            if isinstance(item, Gap):
                raise DataGap(item)
            return item.records()[0]
        if page.earliest <= place < page.end:
            raise OffsetOutOfRange(
                f"the record at offset {place} of topic {self.name!r} was deleted"
            )
        raise self._out_of_range(offset, shard)

    def _out_of_range(self, offset: int, shard: int) -> OffsetOutOfRange:
        state = self._shard(shard)
        return OffsetOutOfRange(
            f"topic {self.name!r} shard {shard} has offsets {state['earliest']}.."
            f"{state['end'] - 1}, not {offset}"
        )


def _key(key: bytes | str) -> str:
    """An idempotency key as a query has it."""
    try:
        return key_of(key).decode()
    except UnicodeDecodeError:
        raise InvalidOption(f"idempotency_key={key!r:.80}: over HTTP a key is text") from None


def _cut(batch: Batch, max_bytes: int, max_records: int) -> Iterator[Batch]:
    """A batch by what its reader takes at once; at least one record each."""
    row, offsets = 0, batch.offsets if batch._offsets is not None else None
    for columns in _pieces(batch.columns, max_bytes, max_records):
        count = columns.count
        if offsets is None:
            yield Batch(batch.shard, batch.begin + row, columns)
        else:
            some = offsets.slice(row, count)
            yield Batch(batch.shard, some[0].as_py(), columns, some, some[-1].as_py() + 1)
        row += count
