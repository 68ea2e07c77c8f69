"""Batches made elsewhere: staged by any process, committed once, attached by each shard's writer.

    stage       segments are written beside the log, by as many processes as like; nobody sees them
    commit      one file lists them all, with the writer's name and the number of its batch; it is
                written, synced, renamed. From here on the batch is a part of the log
    attach      each segment becomes the next one of its shard: the logs before it are sealed, its
                header is filled in, it is renamed

A batch of a writer is committed once. A writer numbers its batches, upwards; one with a number that
is not above the last is not committed again: what was staged for it is thrown away. That is what
makes a batch that is done again after a crash (Spark does so) happen once.

Attaching can be stopped anywhere and is done again: a segment that is still called .staged has yet
to be attached. Whoever holds the shard does it: the committing process, if it can take the shard;
else the process that has it, which looks for commits from time to time; else whoever next opens the
store for writing. Between commit and attachment readers may see a batch in one shard and not yet in
another. They never see one that was not committed, and never a part of a segment.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final, Protocol, Self

from esker.engine import intake, refusals, sealing
from esker.engine.context import LOG, Context
from esker.engine.layout import follows
from esker.engine.once import attach_once
from esker.engine.shard import Shard
from esker.errors import AttachPending, Corruption, FormatTooNew, InvalidOption, StorageError
from esker.format import catalog as catalog_format
from esker.format import commit as fmt
from esker.format import names
from esker.format.catalog import TopicEntry
from esker.format.checksum import fingerprint
from esker.format.columns import Body, Columns
from esker.format.commit import Commit, Ticket
from esker.format.segment import SegmentHeader
from esker.storage.files import Files, Holder, content_of, join, replace_file
from esker.storage.log import LogSegment
from esker.storage.sealed import SealedSegment
from esker.storage.segment import compression_of
from esker.storage.staged import StagedSegment, adopt

STAGED_AGE_US: Final = 24 * 3600 * 1_000_000  # an older one that nobody committed is collected


# ---- staging ---------------------------------------------------------------------------------


class _Staging(Protocol):
    def finish(self) -> Any: ...
    def discard(self) -> None: ...


class Staging:
    """A stage is a block: leaving it makes all of it durable, an exception throws it away."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self: _Staging, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self.discard()
            return
        try:
            self.finish()
        except BaseException:
            self.discard()
            raise


class Stage(Staging):
    """Records for one shard, as staged segments. Not for two threads at once."""

    def __init__(self, context: Context, entry: TopicEntry, shard: int) -> None:
        if entry.options.durability == "ephemeral":
            raise InvalidOption(f"topic {entry.name!r} is ephemeral: it has no segments to attach")
        self._context = context
        self._entry = entry
        self._shard = shard
        self._folder = join(context.root, names.TOPICS, names.topic(entry.id), names.shard(shard))
        self._compress = compression_of(entry.options)  # now: nobody writes these bytes again
        self._open: StagedSegment | None = None
        self._done: list[Ticket] = []

    def __repr__(self) -> str:
        rows = sum(ticket.rows for ticket in self._done) + (self._open.rows if self._open else 0)
        return f"<esker stage for {self._entry.name!r} shard {self._shard}, {rows} records>"

    def append_many(self, records: Any) -> int:
        """Add records as `topic.append_many` takes them; returns how many."""
        limit, now = self._entry.options.max_record_bytes, self._context.clock.now_us()
        values, extras = intake.many(intake.batch_of(records), limit)
        if values:
            self._append(intake.encode(values, extras, now))
        return len(values)

    def append_arrow(self, data: Any) -> int:
        """Add Arrow data as `topic.append_arrow` takes it; returns how many rows."""
        limit, now = self._entry.options.max_record_bytes, self._context.clock.now_us()
        rows = 0
        for batch in intake.arrow_batches(data):
            if batch.num_rows:
                self.append_columns(intake.arrow_columns(batch, limit, now))
                rows += batch.num_rows
        return rows

    def append_bodies(self, bodies: Sequence[Body]) -> None:
        """Add one batch that is encoded, all of it to one segment."""
        self._open = self._open or self._create()
        self._open.append(bodies, self._compress)

    def append_columns(self, columns: Columns) -> None:
        """Add records that were checked before."""
        self._append(intake.encode_arrow(columns))

    def _append(self, bodies: Sequence[Body]) -> None:
        limit = self._entry.options.segment_bytes
        for body in bodies:
            segment = self._open
            if segment is not None and segment.rows and segment.size + body.size > limit:
                self._finish()
                segment = None
            if segment is None:
                segment = self._open = self._create()
            segment.append([body], self._compress)

    def _create(self) -> StagedSegment:
        context, entry = self._context, self._entry
        header = SegmentHeader(
            store=context.store, topic=entry.id, shard=self._shard, epoch=entry.epoch, segment=0,
            base=0, created=context.clock.now_us(),
            salt=int.from_bytes(context.files.random(8), "little"),
        )  # fmt: skip
        config = catalog_format.encode_config(entry)
        return StagedSegment.create(context.files, self._folder, header, config)

    def _finish(self) -> None:
        if self._open is not None:
            self._done.append(self._open.finish())
            self._open = None

    def finish(self) -> list[Ticket]:
        """Make all of it durable; returns what a commit needs to name it."""
        self._finish()
        if self._done:
            self._context.files.sync_dir(self._folder)
        return list(self._done)

    @property
    def tickets(self) -> list[Ticket]:
        """What is staged and durable."""
        return list(self._done)

    def discard(self) -> None:
        """Forget what was staged here."""
        if self._open is not None:
            with suppress(StorageError):
                self._open.discard()
            self._open = None
        discard(self._context, self._done)
        self._done = []


def discard(context: Context, tickets: Sequence[Ticket]) -> None:
    """Unlink staged segments that will not be committed; what stays is collected in a day."""
    for ticket in tickets:
        path = join(_folder(context, ticket), ticket.file)
        if context.files.kind(path):
            with suppress(StorageError):
                context.files.unlink(path)


def _folder(context: Context, ticket: Ticket) -> str:
    return join(context.root, names.TOPICS, names.topic(ticket.topic), names.shard(ticket.shard))


# ---- commits ---------------------------------------------------------------------------------


def commit(
    context: Context, writer: str, sequence: int, tickets: Sequence[Ticket], once: bytes = b"",
    after: int | None = None,
) -> bool:  # fmt: skip
    """Make a batch a part of the log, durably. False if it was one already.

    With `after` also if another one was committed since the writer's batch of that number.
    """
    with _committing(context) as folder:
        return _commit(context, folder, Commit(writer, sequence, tuple(tickets), once), after)


def abandon(context: Context, tickets: Sequence[Ticket]) -> None:
    """Unlink what was staged for a batch that failed; nothing, if it was committed all the same.

    Whoever commits may die behind the commit, or be told that a part of the batch must wait. To
    the one who asked for it, such a batch has failed; in the log it is.
    """
    with _committing(context):
        committed: set[str] = set()
        for batch in commits(context):
            if isinstance(batch, Corruption):
                return  # it may name any of them
            committed.update(ticket.file for ticket in batch.tickets)
        discard(context, [ticket for ticket in tickets if ticket.file not in committed])


@contextmanager
def _committing(context: Context) -> Iterator[str]:
    """The directory of commits, in which nobody else makes one meanwhile."""
    files, folder = context.files, join(context.root, names.STAGING)
    if not files.kind(folder):
        files.make_dir(folder)
        files.sync_dir(context.root)
    lock = files.lock(join(folder, names.LOCK), context.note, wait=True)
    try:
        yield folder
    finally:
        if not isinstance(lock, Holder):
            lock.release()


def _commit(context: Context, folder: str, batch: Commit, after: int | None) -> bool:
    files, mark = context.files, fingerprint(batch.writer)
    known = sorted(number for who, number in _listed(files, folder) if who == mark)
    if known and (known[-1] >= batch.sequence or after not in (None, known[-1])):
        kept = {ticket.file for ticket in _read(context, mark, known[-1]).tickets}
        discard(context, [ticket for ticket in batch.tickets if ticket.file not in kept])
        return False
    for number in known:  # at most one batch of a writer is under way
        left = pending(context, _read(context, mark, number))
        if left:
            raise AttachPending(
                f"batch {number} of {batch.writer!r} is committed and not yet attached: "
                f"{len(left)} segments wait for the process that holds their shard"
            )
    gone = set(batch.tickets) - set(pending(context, batch))
    if gone:
        raise StorageError(
            f"{len(gone)} staged segments are gone: their topic was deleted, or they were "
            "left alone for a day. Nothing was committed; stage the batch again",
            path=folder,
        )
    path = join(folder, names.commit(mark, batch.sequence))
    replace_file(files, path, fmt.encode(batch, context.store))
    for number in known:
        files.unlink(join(folder, names.commit(mark, number)))
    return True


def check(writer: str, sequence: int, tickets: Sequence[Ticket]) -> None:
    """Refuse what cannot be the name, the number and the segments of a batch."""
    if not isinstance(writer, str) or not 0 < len(writer.encode(errors="replace")) <= 1024:
        raise InvalidOption(f"writer={writer!r}: a name of 1 to 1,024 bytes, the same in every run")
    if not isinstance(sequence, int) or isinstance(sequence, bool) or not 0 <= sequence < 1 << 62:
        raise InvalidOption(f"sequence={sequence!r}: a number that grows from batch to batch")
    for ticket in tickets:
        if not isinstance(ticket, Ticket) or names.parse_staged(ticket.file) is None:
            raise InvalidOption(f"{ticket!r} is not a ticket; give those of store.stage(...)")
    if len({ticket.file for ticket in tickets}) != len(tickets):
        raise InvalidOption("a staged segment is named twice in one commit")


def _listed(files: Files, folder: str) -> list[tuple[str, int]]:
    found = (names.parse_commit(name) for name in files.list(folder))
    return sorted(each for each in found if each is not None)


def _read(context: Context, mark: str, sequence: int) -> Commit:
    path = join(context.root, names.STAGING, names.commit(mark, sequence))
    data = content_of(context.files, path, fmt.HEADER_SIZE + fmt.BODY_BYTES_MAX)
    found = fmt.decode(data, context.store)
    if isinstance(found, str):
        if found.startswith("version"):
            raise FormatTooNew(f"{path} was written by a later Esker ({found})")
        raise Corruption(found, path=path, position=0)
    return found


def _read_beside(context: Context, mark: str, sequence: int) -> Commit | None:
    """A commit, where others make them meanwhile. None if it is gone.

    Only a commit of which nothing is pending is ever removed, and its writer's next one is there
    before that, so who finds none has nothing to attach.
    """
    try:
        return _read(context, mark, sequence)
    except StorageError as problem:
        path = join(context.root, names.STAGING, names.commit(mark, sequence))
        if problem.errno != errno.ENOENT or context.files.kind(path):
            raise
        return None


def commits(context: Context) -> Iterator[Commit | Corruption]:
    """Every commit there is; for one that cannot be read, what is wrong with it."""
    folder = join(context.root, names.STAGING)
    for mark, sequence in _listed(context.files, folder):
        try:
            found = _read_beside(context, mark, sequence)
        except Corruption as problem:
            yield problem
        else:
            if found is not None:
                yield found


def committed_before(context: Context, writer: str) -> list[Commit]:
    """The last batches of a writer, of which the newest is never missed."""
    mark = fingerprint(writer)
    folder = join(context.root, names.STAGING)
    while True:
        known = [number for who, number in _listed(context.files, folder) if who == mark]
        found = [_read_beside(context, mark, number) for number in known]
        if not known or found[-1] is not None:
            return [batch for batch in found if batch is not None]


def pending(context: Context, batch: Commit) -> list[Ticket]:
    """The segments of a batch that are not attached yet; those of a deleted topic are gone."""
    kind = context.files.kind
    return [each for each in batch.tickets if kind(join(_folder(context, each), each.file))]


def forget(context: Context, writer: str) -> None:
    """Forget a writer that will not come back: nothing of it may be pending."""
    folder, mark = join(context.root, names.STAGING), fingerprint(writer)
    for who, number in _listed(context.files, folder):
        if who == mark and not pending(context, _read(context, mark, number)):
            context.files.unlink(join(folder, names.commit(mark, number)))


# ---- attaching -------------------------------------------------------------------------------

ShardOf = Callable[[int, int], Shard | None]
"""The writer of a shard, by topic and number; None if somebody else has it."""


def attach_all(context: Context, batches: Iterable[Commit], shard_of: ShardOf) -> list[Ticket]:
    """Attach what is committed and pending; returns what must wait for others."""
    left: list[Ticket] = []
    for batch in batches:
        durable = False
        for ticket in pending(context, batch):
            shard = shard_of(ticket.topic, ticket.shard)
            if shard is not None and not durable:
                # who committed it may have died before the commit's name was
                context.files.sync_dir(join(context.root, names.STAGING))
                durable = True
            if shard is None or not _attach_one(context, shard, batch, ticket):
                left.append(ticket)
    return left


def _attach_one(context: Context, shard: Shard, batch: Commit, ticket: Ticket) -> bool:
    if not batch.once:
        return attach(shard, ticket)
    done = attach_once(shard, batch.once, lambda: attach(shard, ticket))
    if done is None:  # the shard has a batch of this key: this one was a retry
        discard(context, [ticket])
    return done is not False


def attach(shard: Shard, ticket: Ticket) -> bool:
    """Make a staged segment the next one of a shard; False if this process does not write it."""
    with shard._sealing, shard.lock:
        shard.require_sound()
        if not shard.files.kind(join(shard.folder, ticket.file)):
            return True  # somebody was faster
        if not shard.writing:
            return False  # another thread, which had taken it, has handed it back
        shard._flush()  # those offsets have been given out
        empty = _make_way(shard)
        shard.page.cover(shard.next + ticket.rows)
        header = _header(shard, ticket, empty)
        try:
            adopt(shard.files, shard.folder, ticket, header)
            _enter(shard, ticket, header)
        except BaseException as problem:
            if not _is_staged(shard, ticket):
                _go_through(shard, ticket, header, problem)
                _clear(shard, empty)
            raise
        shard._count("total_records", ticket.rows)
        shard._count("total_bytes", ticket.size)
        _clear(shard, empty)
        return True


def _is_staged(shard: Shard, ticket: Ticket) -> bool:
    """Whether a segment has its old name. When even that cannot be told, it counts as moved."""
    try:
        return bool(shard.files.kind(join(shard.folder, ticket.file)))
    except BaseException:
        return False


def _enter(shard: Shard, ticket: Ticket, header: SegmentHeader) -> None:
    """A segment that was adopted is one of the shard's from now on. May be done twice."""
    path = join(shard.folder, names.segment(header.segment, header.base, sealed=True))
    if not shard.sealed or shard.sealed[-1].path != path:
        made = SealedSegment.known(header, path, ticket.size)
        shard.sealed = [*shard.sealed, made.attach(shard.maps)]
    shard.active, shard.gap = None, 0
    shard.next = shard.durable = header.base + ticket.rows
    shard._publish_segments()
    shard._publish()


def _go_through(
    shard: Shard, ticket: Ticket, header: SegmentHeader, problem: BaseException
) -> None:
    """The segment has its new name, and something came between: an interrupt, or a failed sync."""
    try:
        if isinstance(problem, StorageError):
            raise problem  # a sync is not tried again
        shard.files.sync_dir(shard.folder)
        _enter(shard, ticket, header)
    except BaseException:
        shard._refuse(refusals.half_way(shard.folder, problem, shard.next))


def _clear(shard: Shard, empty: LogSegment | None) -> None:
    """Drop the log that has given its number to a segment."""
    if empty is not None:
        with shard._syncing:  # a checkpoint, which has it from a journal, leaves it out from now on
            empty.in_file = empty.end
            empty.close()
        with suppress(StorageError):  # beside a sealed segment of its number it is nothing
            shard.files.unlink(empty.path)
            shard.files.sync_dir(shard.folder)


def _make_way(shard: Shard) -> LogSegment | None:
    """Seal everything. What is left is no log, or one without records, which gives its number."""
    log = shard.active
    if log is not None and (log.next_row or log.damaged or log.base != shard.next):
        sealing.roll(shard)
    while shard.rolled:
        first = shard.rolled[0]
        if first.damaged:
            raise Corruption(
                "records before it are damaged: esker.repair() first", path=first.path, position=0
            )
        sealing.seal_here(shard, first)
    return shard.active


def _header(shard: Shard, ticket: Ticket, empty: LogSegment | None) -> SegmentHeader:
    fresh = SegmentHeader(
        store=shard.context.store, topic=shard.entry.id, shard=shard.number,
        epoch=shard.entry.epoch, base=shard.next, created=ticket.created, salt=ticket.salt,
        **follows(shard.sealed[-1] if shard.sealed else None, shard.next, shard.gap),
    )  # fmt: skip
    if empty is None:
        return fresh
    return empty.header._replace(created=ticket.created, salt=ticket.salt)


def collect(context: Context, folder: str) -> None:
    """Unlink the staged segments of a shard that nobody has committed for a day."""
    oldest = context.clock.now_us() - STAGED_AGE_US
    begun = {name: names.parse_staged(name) for name in context.files.list(folder)}
    stale = {name for name, when in begun.items() if when is not None and when < oldest}
    if not stale:
        return
    with _committing(context):
        for batch in commits(context):
            if isinstance(batch, Corruption):
                return  # it may name any of them
            stale -= {ticket.file for ticket in batch.tickets}
        for name in sorted(stale):
            with suppress(StorageError):
                context.files.unlink(join(folder, name))
            LOG.warning("%s was staged a day ago and never committed: deleted", join(folder, name))
