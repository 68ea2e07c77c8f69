"""Batches that happen once, however often they are appended: idempotency keys and producers.

    find      whether a batch of this key, or of this producer and sequence, is known (known.py)
    write     if not: the batch, with its mark as a header of its first record (format/once.py)
    remember  where it is; from now on a retry gets these offsets

All three under the lock of the shard's table, so a retry that comes while the first try is under
way waits for it and gets its offsets. The table's lock is taken before any other lock of the shard.
Appends without a key never come here.

The log is the truth. The table is made from it when a key is first needed, and again whenever this
process has taken the shard anew, or something went wrong between writing and remembering. What
would take long to read, or is about to go, is saved beside the state page: before records are
evicted, deleted or rewritten, behind the sealing of a log, at close. What is saved was durable
before, so it never tells of a batch that the log lost. A shard has that file before its first mark
is written; if it is damaged or missing the whole log is read, and that is told as a finding.

A process that does not write the shard can look as well: it reads on from where it looked last.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from esker.engine import intake
from esker.engine.batch import Batch
from esker.engine.context import LOG
from esker.engine.erasing import EVERYTHING
from esker.engine.findings import Finding
from esker.engine.known import Known, Window
from esker.engine.reader import View, earliest_of, read_batches
from esker.engine.shard import Shard
from esker.errors import (
    Corruption,
    EskerError,
    InvalidOption,
    SequenceGap,
    StorageError,
    WriterBusy,
)
from esker.format import columns as cols
from esker.format import names
from esker.format.columns import HEADER_TYPE, Body, Columns, Extra
from esker.format.once import HEADER, Keyed, Mark, Numbered, Place, decode_mark, encode_mark
from esker.format.segment import GAP_CORRUPT, GAP_REASONS
from esker.options import IDEMPOTENCY_KEY_BYTES_MAX, PRODUCER_BYTES_MAX
from esker.records import Offset, Record, Span, Value
from esker.storage import once as storage
from esker.storage.files import join

if TYPE_CHECKING:
    from esker.engine.store import Store
    from esker.engine.writing import Writing

SCAN_BYTES: Final = 4 << 20
SAVE_RECORDS: Final = 100_000  # behind what is saved: then it is saved again at the next sealing
NEXT: Final = -1  # the sequence behind the last
_FOLLOWING: Final = object()  # stands for a lock, in the table of a shard that others write
_CORRUPT: Final = GAP_REASONS[GAP_CORRUPT]

Bodies = Callable[[Mark], list[Body]]


class Table:
    """What is known of a shard, and how far that is all."""

    def __init__(self) -> None:
        self.lock = threading.Lock()  # guards everything here; taken before the shard's
        self.known = Known()
        self.held: object = None  # the kernel lock under which it is complete
        self.upto = 0  # up to where it was read
        self.end = 0  # behind the last batch that is known
        self.unsaved = False


def table_of(shard: Shard) -> Table:
    if shard.once is None:
        with shard.lock:
            if shard.once is None:
                shard.once = Table()
    found: Table = shard.once
    return found


# ---- appending -------------------------------------------------------------------------------


def append(
    topic: Writing, name: Any, value: Any, extra: tuple[Any, ...], wait: bool | float
) -> int:
    """One record, under an idempotency key."""
    found = append_many(topic, name, [Record(value, *extra)], wait)[0]
    return found.first if len(topic._shards) == 1 else Offset(found.first, found.shard)


def append_many(topic: Writing, name: Any, records: Any, wait: Any) -> list[Span]:
    """A batch, under an idempotency key: in each of its shards there once."""
    key = key_of(name)
    context = topic._store._context
    context.require_writable()
    given, wait, limit = intake.batch_of(records), intake.wait_of(wait), topic._limit()
    if not given:
        return []
    now = context.clock.now_us()
    found: list[Span] = []
    home = intake.fnv1a(key)
    for number, count, bodies in _parts(topic, given, limit, now, home):
        shard = topic._shards[number]
        with topic._told_if_deleted():
            found.append(_append(topic, shard, Keyed(key, count), bodies, now, wait))
    return found


def key_of(name: Any) -> bytes:
    """An idempotency key as bytes."""
    key = intake.key_of(name)
    if not key or len(key) > IDEMPOTENCY_KEY_BYTES_MAX:
        raise InvalidOption(
            f"idempotency_key={name!r:.80}: bytes or text, 1 to {IDEMPOTENCY_KEY_BYTES_MAX} bytes"
        )
    return key


def _parts(
    topic: Writing, given: list[Any], limit: int, now: int, home: int
) -> list[tuple[int, int, Bodies]]:
    """The batch by shards: number, records, and how they are encoded with a mark.

    Records without a key of their own go where the idempotency key belongs, so that a retry finds
    the first try.
    """
    if len(given) > cols.FEW and isinstance(given[0], (bytes, str)):
        array = intake.plain_column(given[1:], limit)  # the first one stands alone, with its mark
        if array is not None:
            first, count = intake.value_of(given[0], limit), len(given)
            shard = home % topic._created().options.shards
            return [(shard, count, lambda mark: _plain(first, array, now, mark))]
    values, extras = intake.many(given, limit)
    shards = topic._created().options.shards
    if shards == 1 or not any(extra[0] is not None for extra in extras.values()):
        return [(home % shards, len(values), lambda mark: _listed(values, extras, now, mark))]
    parts = intake.by_shard(cols.to_columns(values, extras, now), shards, home)
    return [(n, part.count, lambda mark, part=part: _arrow(part, mark)) for n, part in parts]  # type: ignore[misc]


def _plain(first: bytes, others: Any, now: int, mark: Mark) -> list[Body]:
    alone = cols.one_marked(first, HEADER, encode_mark(mark), now)
    return [alone, *intake.encode_arrow(Columns(others, now))]


def _listed(values: list[bytes], extras: dict[int, Extra], now: int, mark: Mark) -> list[Body]:
    """The first record alone, in a small frame with its mark; the others as they would be."""
    cell, first = encode_mark(mark), extras.get(0)
    if first is None:
        bodies = [cols.one_marked(values[0], HEADER, cell, now)]
    else:
        headers = {**(first[3] or {}), HEADER: cell}
        bodies = intake.encode(values[:1], {0: (*first[:3], headers, first[4])}, now)
    if len(values) > 1:
        others = {row - 1: extra for row, extra in extras.items() if row}
        bodies += intake.encode(values[1:], others, now)
    return bodies


def _arrow(part: Columns, mark: Mark) -> list[Body]:
    first = part.slice(0, 1)
    there = first.headers.to_pylist()[0] if first.headers is not None else None
    pairs = [*(there or []), {"key": HEADER, "value": encode_mark(mark)}]
    first = first._replace(headers=pa.array([pairs], HEADER_TYPE))
    rest = part.slice(1, part.count - 1)
    return [cols.from_arrow(first), *(intake.encode_arrow(rest) if rest.count else [])]


def _append(
    topic: Writing, shard: Shard, mark: Mark, bodies: Bodies, now: int, wait: bool | float
) -> Span:
    options = shard.entry.options
    if not options.dedupe_records or not options.dedupe_window_us:
        raise InvalidOption(
            f"topic {topic.name!r} has dedupe_records={options.dedupe_records} and "
            f"dedupe_window={options.dedupe_window_us / 1e6} s: it knows no keys. "
            "Alter the topic, or append without one"
        )
    context, table = shard.context, table_of(shard)
    if context.gauge.over:
        topic._relieve(shard, wait)
    try:
        with table.lock:
            place = _find_or_write(topic, shard, table, mark, bodies, now)
    except WriterBusy as busy:
        place = topic._append_elsewhere(shard, mark, bodies, wait, busy)
    finally:
        if shard.synced_later and shard.writing:
            context.background.sync_soon(shard)
    if wait is not False and shard.durability == "fsync" and shard.writing:
        topic._settle([shard])
    return Span(shard.number, place.offset, place.count)


def _find_or_write(
    topic: Writing, shard: Shard, table: Table, mark: Mark, bodies: Bodies, now: int
) -> Place:
    """Check, then act: nobody comes between. Assumes the table's lock."""
    while True:
        _own(shard, table)
        mark = _numbered(table, mark)
        found = table.known.find(mark, _window(shard, table.known))
        if found is not None:
            return found
        table.known.make_room(mark, earliest_of(shard))
        made = bodies(mark)
        topic._check_fits(made, True)
        with shard.lock:
            held = shard._writer_lock
            if held is None or held is not table.held:
                continue  # it was handed back meanwhile: others may have appended
            shard.require_sound()
            table.held = None  # until it is remembered: an interrupt may come between
            offset = topic._write_behind(shard, made, now)
            _remember(shard, table, mark, offset)
            table.held = held
            return Place(offset, mark.count)


def _numbered(table: Table, mark: Mark) -> Mark:
    if isinstance(mark, Numbered) and mark.sequence == NEXT:
        return Numbered(mark.producer, table.known.last(mark.producer) + 1, mark.count)
    return mark


def _remember(shard: Shard, table: Table, mark: Mark, offset: int) -> None:
    table.known.add(mark, offset, shard.context.clock.monotonic())
    table.end, table.unsaved = offset + mark.count, True


def _window(view: View, known: Known) -> Window:
    options, end = view.entry.options, _end(view)
    least = end - options.dedupe_records
    if known.oldest < least:
        least = _least(view, end, options.dedupe_records)
    return Window(least, view.context.clock.monotonic() - options.dedupe_window_us / 1e6)


def _end(view: View) -> int:
    return view.next if isinstance(view, Shard) else view.visible


def _least(view: View, end: int, records: int) -> int:
    """The offset so many records before the end. Gaps are none, what was evicted is."""
    for segment in reversed(view.segments):
        stop = min(segment.base + segment.rows, end)
        if stop - segment.base >= records:
            return stop - records
        records -= stop - segment.base
        end = segment.header.previous_end
    return end - records


# ---- what is known ---------------------------------------------------------------------------


def _own(shard: Shard, table: Table) -> None:
    """Take the shard, and know what is in it. Assumes the table's lock."""
    if table.held is not None and table.held is shard._writer_lock and shard.poison is None:
        return  # whoever writes looks again, with the lock
    while True:
        with shard.lock:
            shard.require_sound()
            shard.open_for_writing()
            held, end = shard._writer_lock, shard.next
        if held is table.held:
            return
        try:
            _make(shard, table, end)
        except StorageError:
            if shard._writer_lock is held:
                raise
            continue  # handed back while it was read
        if table.unsaved and shard.durability != "ephemeral":
            _save(shard, table)
        table.held = held
        return


def _make(view: View, table: Table, end: int) -> None:
    """Read what is known of a shard: what was saved, and the log behind it."""
    files, folder = view.context.files, view.folder
    table.held, known = None, Known()
    now, damage, saved = view.context.clock.monotonic(), "", None
    try:
        saved = storage.load(files, folder, _owner(view))
        if saved is not None and saved.upto > end:
            damage = f"it tells of offsets up to {saved.upto}, and the log ends at {end}"
            saved = None
    except Corruption as problem:
        damage = problem.reason
    if saved is not None:
        known.restore(saved, now)
        start = saved.upto
    else:
        start = 0 if damage else max(0, _least(view, end, view.entry.options.dedupe_records))
    last = _read(view, start, end, known, now, table)
    if saved is None and last and not damage and view.entry.options.durability != "ephemeral":
        damage, known = "it is missing, though batches with keys are there", Known()
        last = _read(view, 0, end, known, now, table)
    if damage:
        _say(view, f"{damage}; keys and producers of records that are gone are not known any more")
    table.known, table.end = known, last
    # a shard that has marks has the file before the first of them, so that its loss is noticed
    table.unsaved = saved is None or bool(last)


def _owner(view: View) -> tuple[bytes, int, int]:
    return view.context.store, view.entry.id, view.number


def _say(view: View, reason: str) -> None:
    path = join(view.folder, names.ONCE)
    found = Finding("damaged_keys", path, reason, view.entry.name, view.number)
    LOG.warning("%s", found)
    view.context.found(found)


def _read(view: View, start: int, end: int, known: Known, now: float, table: Table) -> int:
    """Add the marks of the records [start, end); returns where the last such batch ends."""
    last, at = 0, max(start, earliest_of(view))
    for batch in read_batches(view, at, end, max_bytes=SCAN_BYTES, gaps="yield", sieve=EVERYTHING):
        if not isinstance(batch, Batch):
            if batch.reason == _CORRUPT:
                _say(view, f"offsets {batch.first}..{batch.last} are lost, with their keys")
            at = batch.last + 1
            continue
        for row, cell in marks_of(batch.columns.headers):
            mark = decode_mark(cell)
            if mark is not None:
                known.add(mark, batch.begin + row, now)
                last = batch.begin + row + mark.count
        at = batch.next_offset
    table.upto = max(at, min(start, end))
    return last


def marks_of(headers: Any, name: str = HEADER) -> list[tuple[int, bytes]]:
    """Rows that carry a mark, and the marks. Nothing is done per record but for these."""
    if headers is None:
        return []
    pairs = headers.flatten()
    hits = pc.indices_nonzero(pc.equal(pairs.field("key"), name))
    if not len(hits):
        return []
    rows = pc.list_parent_indices(headers).take(hits).to_pylist()
    return list(zip(rows, pairs.field("value").take(hits).to_pylist(), strict=True))


def _look(topic: Writing, shard: Shard, table: Table) -> View:
    """Know what is in a shard, be it another process's. Assumes the table's lock."""
    view = topic._view(shard.number)
    if isinstance(view, Shard):
        _own(shard, table)
        return view
    fresh = table.held is _FOLLOWING and view.earliest <= table.upto <= view.visible
    if not fresh:
        _make(view, table, view.visible)
    elif table.upto < view.visible:
        now = view.context.clock.monotonic()
        _read(view, table.upto, view.visible, table.known, now, table)
    table.held = _FOLLOWING
    return view


# ---- saving ----------------------------------------------------------------------------------


def _save(shard: Shard, table: Table) -> None:
    """Save what is known. Assumes the table's lock, under which the shard is ours."""
    if table.end > shard.durable:
        for problem in shard.context.committer.make_durable([shard]).values():
            raise problem
    saved = table.known.saved(shard.durable)
    storage.save(shard.files, shard.folder, _owner(shard), saved)
    table.upto, table.unsaved = saved.upto, False


def keep(shard: Shard) -> None:
    """Save what is known of records that are about to go. Before any lock of the shard is taken."""
    if shard.durability == "ephemeral":
        return
    table = table_of(shard)
    if table.held is None and not shard.files.kind(join(shard.folder, names.ONCE)):
        return  # nobody ever gave a key
    with table.lock:
        _own(shard, table)
        if table.unsaved:
            _save(shard, table)


def sealed(shard: Shard) -> None:
    """A log was sealed: a good time to save, so that the next one to open has little to read."""
    table: Table | None = shard.once
    if table is None or shard.durability in ("ephemeral", "memory"):
        return
    with table.lock, suppress(EskerError):  # whoever evicts tries again, and tells
        ours = table.held is not None and table.held is shard._writer_lock
        if ours and (table.unsaved or shard.durable - table.upto > SAVE_RECORDS):
            _save(shard, table)


def close(shard: Shard) -> None:
    """The store is being closed, and all is durable."""
    table: Table | None = shard.once
    if table is None or shard.durability == "ephemeral" or shard.poison is not None:
        return
    with table.lock:
        ours = table.held is not None and table.held is shard._writer_lock
        if ours and (table.unsaved or shard.durable > table.upto):
            try:
                _save(shard, table)
            except EskerError as problem:  # the log has it all
                LOG.warning("saving the keys of %s: %s", shard.folder, problem)


# ---- batches that come from other processes --------------------------------------------------


def attach_once(shard: Shard, data: bytes, attach: Callable[[], bool]) -> bool | None:
    """Attach a batch with a mark, if it is not there yet; None if it is, and is to be dropped."""
    mark = decode_mark(data)
    table = table_of(shard)
    with table.lock:
        _own(shard, table)
        if mark is not None:
            with suppress(SequenceGap):  # who committed it had seen the one before
                if _is_known(table, mark, shard):
                    return None
        held, table.held = table.held, None
        done = attach()
        if done and mark is not None:
            _remember(shard, table, mark, shard.next - mark.count)
        if shard._writer_lock is held:
            table.held = held
        return done


def _is_known(table: Table, mark: Mark, shard: Shard) -> bool:
    try:
        return table.known.find(mark, _window(shard, table.known)) is not None
    except SequenceGap:
        raise
    except EskerError:
        return True  # known, and another: whoever gave it is told when he looks


def known_elsewhere(topic: Writing, shard: Shard, mark: Mark) -> tuple[Place | None, Mark]:
    """Whether a batch is in a shard that another process writes; with the number it would get."""
    table = table_of(shard)
    with table.lock:
        view = _look(topic, shard, table)
        mark = _numbered(table, mark)
        return table.known.find(mark, _window(view, table.known)), mark


# ---- producers -------------------------------------------------------------------------------


class Producer:
    """Somebody who numbers his batches: 0, 1, 2, none left out. `topic.producer(name)` makes one.

    All that a producer appends goes to one shard. A number that was used before appends nothing and
    returns the offsets it got then.
    """

    def __init__(self, topic: Writing, name: str, shard: int | None = None) -> None:
        self._topic = topic
        self.name = check_producer(name)
        self._shard = shard

    def __repr__(self) -> str:
        return f"<esker producer {self.name!r} of topic {self._topic.name!r}>"

    def _home(self) -> Shard:
        self._topic._created()
        shards = self._topic._shards
        if self._shard is None:
            return shards[intake.fnv1a(self.name.encode()) % len(shards)]
        return shards[intake.check_shard(self._topic.name, self._shard, len(shards))]

    @property
    def last(self) -> int:
        """The number of its last batch; -1 if there is none. Go on with the next one."""
        topic = self._topic
        topic._store._context.require_open()
        if topic._entry is None and topic._store._lookup(topic.name) is None:
            return -1
        topic._existing()
        shard = self._home()
        table = table_of(shard)
        with table.lock:
            _look(topic, shard, table)
            return table.known.last(self.name)

    def append(
        self, value: Value, key: bytes | str | None = None, tag: str | None = None,
        node: str | None = None, headers: dict[str, bytes] | None = None, timestamp: Any = None,
        *, sequence: int | None = None, wait: bool | float = False,
    ) -> int:  # fmt: skip
        """Append one record under the next number, or under this one, and return its offset."""
        record = Record(value, key, tag, node, headers, timestamp)  # type: ignore[arg-type]
        found = self.append_many([record], sequence=sequence, wait=wait)
        several = len(self._topic._shards) > 1
        return Offset(found.first, found.shard) if several else found.first

    def append_many(
        self, records: Any, *, sequence: int | None = None, wait: bool | float = False
    ) -> Span:
        """Append records as one atomic batch under the next number, or under this one."""
        topic, context = self._topic, self._topic._store._context
        context.require_writable()
        number = _sequence(sequence)
        given, wait, limit = intake.batch_of(records), intake.wait_of(wait), topic._limit()
        if not given:
            raise InvalidOption("a batch of a producer has at least one record")
        now = context.clock.now_us()
        if topic._entry is None and topic.name not in topic._store:
            check_first(topic._store, topic.name, (self.name, self._shard, number), given)
        shard = self._home()
        parts = _parts(topic, given, limit, now, shard.number)
        if [part[0] for part in parts] != [shard.number]:
            other = next(part[0] for part in parts if part[0] != shard.number)
            raise InvalidOption(
                f"producer {self.name!r} writes shard {shard.number} of topic {topic.name!r}, and "
                f"the key of a record belongs to shard {other}: use a producer for each shard, "
                f"topic.producer(name, shard={other})"
            )
        (_, count, bodies) = parts[0]
        with topic._told_if_deleted():
            return _append(topic, shard, Numbered(self.name, number, count), bodies, now, wait)


def check_producer(name: Any) -> str:
    """A name that a producer may have."""
    size = len(name.encode(errors="replace")) if isinstance(name, str) else 0
    if not 0 < size <= PRODUCER_BYTES_MAX:
        raise InvalidOption(f"producer {name!r:.80}: text, 1 to {PRODUCER_BYTES_MAX} bytes")
    name.encode()  # a lone surrogate cannot be stored
    return str(name)


def check_first(
    store: Store, topic: str, numbered: tuple[str, int | None, int], records: Any
) -> None:
    """Refuse what cannot be the first batch of a topic, before there is one.

    It is numbered by its producer, his shard and his sequence.
    """
    producer, shard, sequence = check_producer(numbered[0]), *numbered[1:]
    if shard is not None:
        intake.check_shard(topic, shard, store._shards_of(topic))
    if sequence > 0:
        Known().find(Numbered(producer, sequence, len(records)), Window(0, 0.0))
    intake.many(records, store._limit_of(topic))


def _sequence(sequence: Any) -> int:
    if sequence is None:
        return NEXT
    if type(sequence) is not int or not 0 <= sequence < 1 << 62:
        raise InvalidOption(f"sequence={sequence!r}: a whole number, from 0 on; one more each time")
    return sequence
