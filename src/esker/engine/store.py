"""Open, close, and the registry of topics."""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable, Iterable, Iterator
from os import PathLike
from types import TracebackType
from typing import Any, cast

from esker import options as opts
from esker.clock import SYSTEM_CLOCK, Clock
from esker.engine import altering, budget, delivery, intake, once, retention
from esker.engine.attach import Stage, check, committed_before
from esker.engine.background import Background
from esker.engine.buffer import CLOSED
from esker.engine.committer import Committer
from esker.engine.context import LOG, Context
from esker.engine.identity import Mode, identity, make_dirs, root_of
from esker.engine.layout import shard_folder
from esker.engine.maintenance import Maintenance
from esker.engine.processes import Slots, give_back_all
from esker.engine.progress import Progress
from esker.engine.reader import check_timeout
from esker.engine.recovery import Finding, Recovery, _unclean, recover_catalog, recover_store
from esker.engine.removal import remove_topic
from esker.engine.retention import Eviction
from esker.engine.shard import Shard
from esker.engine.tiering import Tier, Tiered, tell_bounds
from esker.engine.topic import Topic
from esker.engine.verbs import OPENERS, StoreVerbs
from esker.errors import (
    EskerError,
    InvalidOption,
    StoreClosed,
    TopicExists,
    TopicNotFound,
    nearest,
)
from esker.format import names
from esker.format.catalog import Catalog, TopicEntry
from esker.format.commit import Commit, Ticket
from esker.options import TopicOptions, is_bounded, is_evicting
from esker.storage.catalog import CatalogFile
from esker.storage.cold import cold_place, cold_root
from esker.storage.files import (
    SYSTEM_FILES,
    Files,
    join,
    on_fork,
)
from esker.storage.journal import dead_paths
from esker.storage.memory import MemoryFiles
from esker.storage.objects import is_url

MEMORY = ":memory:"

_open_stores: set[Store] = set()  # held until closed: what is buffered is written at exit


class Store(StoreVerbs):
    """One directory of topics. Use it as a context manager; closing it loses nothing."""

    def __init__(self, context: Context, catalog: CatalogFile) -> None:
        self._context = context
        self._catalog = catalog
        self._topics: dict[str, Topic] = {}
        self._lock = threading.RLock()  # guards _topics and _catalog
        context.committer = Committer(context)
        context.background = Background(context)
        self._slots = Slots(self)
        context.recover_again = self._recover_again
        context.found = lambda finding: self.recovery.findings.append(finding)
        context.retain = self._retain_quietly
        context.follow_catalog = self._follow_catalog
        context.is_listed = self._is_listed
        context.is_gone = self._is_gone
        context.forsaken = self._forsaken
        self.recovery: Recovery = Recovery()
        """What was found and done when the store was opened."""
        _open_stores.add(self)

    # ---- topics --------------------------------------------------------------------------

    @property
    def path(self) -> str:
        """The directory, as an absolute path."""
        return self._context.root

    def __repr__(self) -> str:
        state = "closed" if self._context.closed else "r" if self._context.read_only else "rw"
        count = len(self._catalog.catalog.topics)
        topics = "1 topic" if count == 1 else f"{count} topics"
        return f"<esker store {self.path} ({state}), {topics}>"

    def __getitem__(self, name: str) -> Topic:
        """The topic of that name; it is created by its first append if need be."""
        self._context.require_open()
        topic = self._topics.get(name) if isinstance(name, str) else None
        if topic is None or topic._gone:
            opts.topic_name(name)
            with self._lock:
                topic = self._topics.get(name)
                if topic is None or topic._gone:
                    if topic is not None:
                        topic._forsake()
                        self._catalog.refresh()
                    topic = self._topics[name] = Topic(self, name, self._lookup(name))
        return topic

    def _known(self, name: str) -> Topic:
        """The topic of that name, if there is one; asking for another leaves no handle behind."""
        if name not in self._topics and name not in self:
            opts.topic_name(name)
            raise TopicNotFound(f"no topic {name!r} in {self.path}; {nearest(name, list(self))}")
        topic = self[name]
        topic._existing()
        return topic

    def create(self, name: str, *, exist_ok: bool = False, **options: Any) -> Topic:
        """Create a topic. See `esker.options.TopicOptions` for what can be set."""
        self._context.require_writable()
        opts.topic_name(name)
        wanted = opts.topic_options(**options)
        with self._lock:
            known = self._lookup(name)
            if known is not None:
                if exist_ok and (known.options == wanted or not options):
                    return self[name]
                raise TopicExists(
                    f"topic {name!r} exists, with {altering.difference(known.options, wanted)}; "
                    "use store[name], exist_ok=True with the same options, or store.alter"
                )
            self._make(name, wanted)
            return self[name]

    def _ensure(self, name: str) -> TopicEntry:
        with self._lock:
            entry = self._lookup(name)
            return entry if entry is not None else self._make(name, opts.topic_options())

    def _make(self, name: str, options: TopicOptions) -> TopicEntry:
        """Directories first, then the catalog: a crash between leaves empty directories only."""
        context = self._context

        def edit(catalog: Catalog) -> Catalog:
            if any(entry.name == name for entry in catalog.topics):
                return catalog  # another process was faster
            entry = TopicEntry(catalog.next_id, name, 1, context.clock.now_us(), options)
            self._make_dirs(entry)
            return Catalog(catalog.next_id + 1, (*catalog.topics, entry), catalog.former)

        self._catalog.change(edit, context.note)
        entry = self._catalog.find(name)
        assert entry is not None
        if is_evicting(entry.options):
            context.background.retain_soon()
        tell_bounds(context, [entry])
        return entry

    def _make_dirs(self, entry: TopicEntry) -> None:
        context = self._context
        top = join(context.root, names.TOPICS)
        folder = join(top, names.topic(entry.id))
        context.files.make_dir(folder)
        for number in range(entry.options.shards):
            context.files.make_dir(shard_folder(context.root, entry.id, number))
        context.files.sync_dir(folder)
        context.files.sync_dir(top)

    def alter(self, name: str, **options: Any) -> Topic:
        """Change options of a topic that is there; all but `shards` and `durability`.

        When this returns it is durable. Handles of this process go by the new options at once,
        writers in other processes within seconds.
        """
        self._context.require_writable()
        with self._lock:
            altering.alter(self, name, options)
            self._follow_catalog()
            topic = self[name]
            if is_evicting(topic.options):
                self._context.background.retain_soon()
            return topic

    def _follow_catalog(self) -> None:
        """Let handles have the options that the catalog has."""
        for entry in self._entries():
            topic = self._topics.get(entry.name)
            if topic is not None:
                altering.follow(topic, entry)
            if is_evicting(entry.options):
                self._context.background.retaining = True
        tell_bounds(self._context, self._catalog.catalog.topics)
        self._context.background.move_soon()
        give_back_all(self)
        self._take_part_in_routes()

    def _take_part_in_routes(self) -> None:
        """Run routes, if there are any, also those that another process has made meanwhile."""
        context = self._context
        if context.read_only or not context.options.routes:
            return
        if context.files.kind(join(context.root, names.ROUTES)):
            OPENERS["run_routes"]()(self)

    def delete(self, name: str, *, missing_ok: bool = False, if_empty: bool = False) -> None:
        """Delete a topic and everything in it, for good; what was buffered goes with it.

        With if_empty it must hold no record, buffered or readable: else TopicNotEmpty.

        Nobody else may be writing it (WriterBusy). Its files are unlinked in the background. A
        topic of the same name that is created later is another one.
        """
        context = self._context
        context.require_writable()
        opts.topic_name(name)
        with self._lock:
            entry = self._lookup(name)
            if entry is None:
                if missing_ok:
                    return
                raise TopicNotFound(
                    f"no topic {name!r} in {self.path}; {nearest(name, list(self))}"
                )
            topic = self[name]
            topic._existing()
            shards = list(topic._shards)
            try:
                remove_topic(context, self._catalog, entry, shards, if_empty=if_empty)
            finally:
                if all(shard.gone for shard in shards):
                    topic._forsake()
                    self._topics.pop(name, None)
                    for shard in shards:
                        context.shards.remove(shard)
                    context.background.mover.gone_soon = True
                    context.background.move_soon()

    def __delitem__(self, name: str) -> None:
        self.delete(name)

    def _lookup(self, name: str) -> TopicEntry | None:
        entry = self._catalog.find(name)
        if entry is None and self._catalog.refresh():
            entry = self._catalog.find(name)
        return entry

    def _is_listed(self, topic_id: int) -> bool:
        self._catalog.refresh()
        return any(entry.id == topic_id for entry in self._catalog.catalog.topics)

    def _is_gone(self, topic_id: int) -> bool:
        """Whether there was such a topic, and nothing of it is left that anybody could read."""
        entries, folder = self._entries(), join(self.path, names.TOPICS, names.topic(topic_id))
        listed = any(entry.id == topic_id for entry in entries)
        known = topic_id < self._catalog.catalog.next_id
        return known and not listed and not self._context.files.kind(folder)

    def _is_on_its_way_out(self, topic_id: int) -> bool:
        """Whether a topic was deleted, or is about to be: its directory has lost its name."""
        files, folder = self._context.files, join(self.path, names.TOPICS, names.topic(topic_id))
        if files.kind(folder):
            return False
        return bool(files.kind(folder + names.DELETED)) or not self._is_listed(topic_id)

    def _forsaken(self, entry: TopicEntry) -> None:
        """Another process deleted a topic: `store[name]` is a new one, or none, from now on."""
        topic = self._topics.get(entry.name)  # no lock: whoever noticed it holds one of his own
        if topic is not None and topic._entry is not None and topic._entry.id == entry.id:
            topic._gone = True

    def _limit_of(self, name: str) -> int:
        entry = self._lookup(name)
        return entry.options.max_record_bytes if entry else opts.RECORD_BYTES_DEFAULT

    def _shards_of(self, name: str) -> int:
        """How many shards a topic has, also when it has yet to be made by its first record."""
        entry = self._lookup(name)
        return (entry.options if entry else opts.topic_options()).shards

    def __iter__(self) -> Iterator[str]:
        """The names of the topics, sorted."""
        self._context.require_open()
        with self._lock:
            self._catalog.refresh()
            return iter(sorted(entry.name for entry in self._catalog.catalog.topics))

    def __contains__(self, name: object) -> bool:
        self._context.require_open()
        return isinstance(name, str) and self._lookup(name) is not None

    def __len__(self) -> int:
        return len(list(iter(self)))

    # ---- batches made elsewhere ----------------------------------------------------------

    def stage(self, topic: str, shard: int = 0) -> Stage:
        """Write records beside the log, in this process or in many; `attach` makes them part of it.

        with store.stage("orders", shard=2) as staged:
            staged.append_arrow(table)
        store.attach("nightly import", 20261116, staged.tickets)
        """
        self._context.require_writable()
        intake.check_shard(opts.topic_name(topic), shard, self._shards_of(topic))
        entry = self[topic]._created()  # another one, perhaps
        intake.check_shard(topic, shard, entry.options.shards)
        return Stage(self._context, entry, shard)

    def attach(
        self, writer: str, sequence: int, tickets: Iterable[Ticket], *, timeout: float = 30.0
    ) -> bool:
        """Commit a batch of staged segments: all of it, durably, and once.

        `writer` names whoever makes such batches, `sequence` numbers them, upwards. A batch with a
        number that is not above the last was committed before: it is dropped, and this returns
        False. Where another process writes a shard, that process attaches its part; should it not
        do so in time, `AttachPending` says who it is. The batch is committed all the same.
        """
        self._context.require_writable()
        limit = check_timeout(timeout)
        batch = Commit(writer, sequence, tuple(tickets))
        check(writer, sequence, batch.tickets)
        retention.refuse_batch(self, batch)
        return delivery.deliver(self, batch, limit)

    def attached(self, writer: str) -> int | None:
        """The number of the last batch that a writer committed; None if there was none."""
        before = committed_before(self._context, writer)
        return max((batch.sequence for batch in before), default=None)

    @property
    def process_slot(self) -> int:
        """The number of this handle among those that append to this store: the lowest free one.

        It is held until the store is closed; that of a process that died is free at once.
        """
        return self._slots.number()

    def processes(self) -> dict[int, int]:
        """The slots that are held now, by whomever, and the processes that hold them."""
        self._context.require_open()
        return self._slots.holders()

    def _shard(self, topic: int, number: int) -> Shard | None:
        self._catalog.refresh()
        for entry in self._catalog.catalog.topics:
            if entry.id == topic and number < entry.options.shards:
                handle = self[entry.name]
                return handle._shards[number] if handle._existing().id == topic else None
        return None

    # ---- the whole store -----------------------------------------------------------------

    def flush(self) -> None:
        """Write all buffers."""
        for topic in list(self._topics.values()):
            topic.flush()

    def sync(self) -> None:
        """Make everything appended to any topic durable, with as few syncs as possible."""
        context = self._context
        context.require_writable()
        problems: list[BaseException] = []
        for shard in list(context.shards):
            with shard.lock:
                try:
                    shard._flush()
                except EskerError as problem:
                    problems.append(problem)
        failed = context.committer.make_durable(s for s in context.shards if s.concerned)
        for first in [*problems, *failed.values()]:
            raise first

    def tick(self) -> None:
        """Do what the background threads would do now; for background=False."""
        self._context.background.step()
        while self._context.background.seal_step():
            pass
        if self._context.options.background:
            self._context.background.move_soon()  # nobody waits for a cold store
        else:
            self._context.background.mover.step()

    def maintenance(self) -> Maintenance:
        """What the background is at, what waits for it, what it has done and what failed last."""
        self._context.require_open()
        options = [entry.options for entry in self._entries()]
        retained = sum(map(is_evicting, options))
        if self._context.options.budget_bytes:
            retained = len(options)
        bounded = sum(map(is_bounded, options))
        return self._context.background.report(retained, budget.standing(self), bounded)

    def pause_maintenance(self) -> None:
        """Hold back what takes longer, until `resume_maintenance`; for this handle only.

        When this returns, nothing is being sealed, evicted, rewritten, moved, removed or attached
        in the background, and nothing will be. Appends, syncs and lingering buffers go on, and what
        waits grows.
        """
        self._context.require_writable()
        self._context.background.pause()

    def resume_maintenance(self) -> None:
        """Let the background go on with what has waited."""
        self._context.require_writable()
        self._context.background.resume()

    def tier(self, name: str, to: Tier, before: Any = None, shard: int | None = None) -> Tiered:
        """Move sealed segments of a topic to the cold store, or bring them back: `Topic.tier`."""
        return self[name].tier(to, before, shard)

    def retention_plan(self) -> list[Eviction]:
        """What caps, ages and the budget would take now, were `retain` called. Changes nothing."""
        self._context.require_open()
        return [*retention.plans(self), *(found for _, found in budget.plan(self).evictions)]

    def retain(self) -> list[Eviction]:
        """Evict now what caps, ages and the budget ask for, and say what it was.

        The background does so by itself. Shards that other processes write are left to them.
        """
        self._context.require_writable()
        return [*retention.retain_all(self), *budget.keep(self)]

    def _retain_quietly(self) -> None:
        retention.retain_quietly(self)
        budget.keep_quietly(self)

    def _entries(self) -> tuple[TopicEntry, ...]:
        """All topics, as the catalog has them now."""
        with self._lock:
            self._catalog.refresh()
            return self._catalog.catalog.topics

    def statistics(self) -> dict[str, int]:
        """Numbers about this handle."""
        context = self._context
        return {
            "topics": len(self._catalog.catalog.topics),
            "syncs": context.committer.syncs,
            "commit_rounds": context.committer.rounds,
            "unflushed_bytes": context.gauge.bytes,
            "mapped_bytes": context.maps.bytes,
            "maps": context.maps.made,
            "map_hits": context.maps.hits,
            "map_evictions": context.maps.dropped,
            "cold_bytes": context.maps.cold.bytes,
            "cold_fetches": context.maps.cold.fetched,
            "cold_hits": context.maps.cold.hits,
            "gaps_met": context.gaps_met,
        }

    def _recover_again(self) -> None:
        """A writer died while we were open: recover what it left."""
        found = recover_store(self._context, self._catalog)
        self.recovery.findings.extend(found.findings)
        self.recovery.shards += found.shards

    def close(self) -> None:
        """Write and sync everything, mark the store clean, let go of all locks."""
        context = self._context
        if context.closed or context.ending:
            return
        context.ending = True
        problems: list[BaseException] = []
        try:
            for finish in context.at_rest if not context.forked else ():
                finish()  # what is under way; it appends, and acks what it appended
            context.closing = True  # from here on no append is accepted that would not be written
            if not context.forked:
                context.background.stop()
                context.ahead.stop()
                context.background.remove()
                self._close_guests(problems)
                self._close_shards(problems)
            self._let_go()
        except BaseException:  # interrupted: what was pending is lost, but nothing stays locked
            self._let_go()
            raise
        for problem in problems:
            raise problem

    def _let_go(self) -> None:
        """Of everything that is still held; may be done twice."""
        context = self._context
        _open_stores.discard(self)
        context.closed = True
        for guest in context.guests:
            guest.let_go()
        if context.forked:
            return
        context.committer.close()
        self._slots.release()
        for shard in context.shards:
            shard.leave()
            shard.wake()
        context.maps.clear()
        for topic in list(self._topics.values()):
            for follower in topic._followers:
                follower.forget()

    def _close_guests(self, problems: list[BaseException]) -> None:
        for guest in self._context.guests:
            try:
                guest.close()
            except EskerError as problem:
                problems.append(problem)

    def _close_shards(self, problems: list[BaseException]) -> None:
        context = self._context
        for shard in context.shards:
            try:
                with shard.lock:
                    shard._flush()
            except EskerError as problem:
                problems.append(problem)
        failed = context.committer.make_durable(s for s in context.shards if s.concerned)
        problems.extend(failed.values())
        try:
            context.committer.checkpoint()
        except EskerError as problem:
            problems.append(problem)
        for shard in context.shards:
            if shard.poison is not None and not shard.gone and id(shard) not in failed:
                problems.append(shard._poisoned())  # by the checkpoint, which tells nobody
            once.close(shard)
        context.committer.close()  # before the shards: who takes one must see what it left there
        for shard in context.shards:
            _close_shard(shard, problems)

    def __enter__(self) -> Store:
        self._context.require_open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        self.close()


def _close_shard(shard: Shard, problems: list[BaseException]) -> None:
    try:
        with shard._sealing:  # nobody exchanges a file who believes that the shard is ours
            shard.close()
    except EskerError as problem:
        if not any(str(problem) == str(known) for known in problems):
            problems.append(problem)


def open_store(
    path: str | PathLike[str], mode: Mode = "rw", *, files: Files | None = None,
    clock: Clock = SYSTEM_CLOCK, progress: Callable[[Progress], None] | None = None, **options: Any,
) -> Store:  # fmt: skip
    """Open a store, making it if the directory is new or empty.

    `path` may be ":memory:", or a server's URL: docs/client.md. mode="r" changes nothing. `files`
    and `clock` are for tests, `progress` is told of recovery. See `esker.options.StoreOptions`.
    """
    if mode not in ("rw", "r"):
        raise InvalidOption(f'mode={mode!r}: "rw" or "r"')
    if isinstance(path, str) and "://" in path:
        return cast("Store", OPENERS["url"]()(path, mode, **options))
    checked = opts.store_options(**options)
    if path == MEMORY and files is None:
        files = MemoryFiles()
        root = "/memory"
    else:
        root = root_of(path)
    files = files or SYSTEM_FILES
    cold = cold_place(checked.cold) if checked.cold else ""
    if cold and (root == cold or f"{cold}/".startswith(f"{root}/") or path == MEMORY):
        raise InvalidOption(
            f"cold={cold_root(cold)!r} lies in the store itself, or is for one in memory; give "
            "another directory, or a URL such as s3://bucket/folder"
        )
    store = identity(files, root, mode, clock)
    if cold and mode == "rw" and not is_url(cold) and not files.kind(cold):
        make_dirs(files, cold)
    context = Context(
        root=root, store=store, files=files, clock=clock, options=checked, read_only=mode == "r"
    )
    context.progress = progress
    catalog = CatalogFile(files, root, store)
    opened = Store(context, catalog)
    try:
        opened.recovery = _recover(context, catalog)
        delivery.attach_left(opened)
    except BaseException:
        opened._let_go()
        raise
    evicting = any(is_evicting(each.options) for each in catalog.catalog.topics)
    if mode == "rw" and (evicting or checked.budget_bytes):
        context.background.retain_soon()
    tell_bounds(context, catalog.catalog.topics)
    for finding in opened.recovery.findings:
        LOG.warning("%s", finding)
    opened._take_part_in_routes()
    return opened


def _recover(context: Context, catalog: CatalogFile) -> Recovery:
    if not context.read_only:
        return recover_store(context, catalog)
    report = Recovery()
    recover_catalog(context, catalog, report)
    for entry, number in _unclean(context, catalog):
        folder = shard_folder(context.root, entry.id, number)
        if context.files.holder(join(folder, names.LOCK)) is None:
            report.findings.append(
                Finding("unrecovered", folder, "its last writer did not close it",
                        entry.name, number)
            )  # fmt: skip
    report.findings.extend(
        Finding("unrecovered", path, "a journal of a process that is gone")
        for path in dead_paths(context.files, join(context.root, names.JOURNALS))
    )
    return report


def _in_child() -> None:
    """After a fork: the child may read what it has open, and must not write."""
    for store in list(_open_stores):
        store._context.forked = True
        # a lock that another thread of the parent held is held here by nobody, and for ever
        store._lock = threading.RLock()
        store._context.maps.renew()
        for topic in store._topics.values():
            topic._buffer = CLOSED
            topic._lock = threading.Lock()
            for follower in topic._followers:
                follower.renew()
        for shard in store._context.shards:
            shard.buffer, shard.once = CLOSED, None
            shard.let_go()
        for guest in store._context.guests:
            guest.let_go()
        store._slots.let_go()
        store._context.committer.let_go()
        store._context.background.let_go()
        store._context.ahead.let_go()


def _at_exit() -> None:
    for store in list(_open_stores):
        try:
            store.close()
        except EskerError as problem:
            import sys

            sys.stderr.write(f"esker: closing {store.path} at exit: {problem}\n")


on_fork(_in_child)
atexit.register(_at_exit)

__all__ = ["Store", "StoreClosed", "open_store"]
