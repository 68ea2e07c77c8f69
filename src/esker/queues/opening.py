"""Making a queue, or opening one: which options it has, and which files it needs.

A queue is a topic with a folder `queue`. Folder, locks and logs of leases come first, the settings
last: a topic with settings is a queue, whole. Two processes that make one at the same time are kept
apart by its mutex.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Final

import msgspec

from esker.engine.context import Context
from esker.errors import InvalidOption, NotAQueue, TopicNotFound, nearest
from esker.format import names
from esker.format.queue import QueueOptions
from esker.options import (
    TIME_US_MAX,
    TopicOptions,
    duration_us,
    size_bytes,
    topic_name,
    topic_options,
)
from esker.queues.lane import Lane
from esker.queues.queue import Queue
from esker.storage.files import join, require_dir
from esker.storage.leases import load_settings, save_settings

if TYPE_CHECKING:
    from esker.engine.store import Store
    from esker.engine.topic import Topic

_opening: Final = threading.RLock()  # one at a time: a queue is opened once for each store

_TIMES: Final = {"lease": "lease_us", "claim_jitter": "claim_jitter_us", "history": "history_us"}
_FIXED: Final = ("ordered", "priorities")
_RANGES: Final = {
    "lease_us": (1000, TIME_US_MAX), "claim_jitter_us": (0, 60_000_000),
    "history_us": (0, TIME_US_MAX), "max_deliveries": (0, 1 << 31), "priorities": (1, 64),
    "history_bytes": (0, 1 << 50),
}  # fmt: skip


def open_queue(store: Store, name: str, **options: Any) -> Queue:
    """The queue of that name; it is made if need be. See `QueueOptions` and `TopicOptions`."""
    context = store._context
    context.require_open()
    topic_name(name)
    given, for_topic = _sorted_out(options)
    if given.get("dead_letter") == name:
        raise InvalidOption(f"dead_letter={name!r}: a queue cannot be its own")
    letter = store._lookup(given["dead_letter"]) if given.get("dead_letter") else None
    if letter is not None:  # before anything is made
        _check_class(letter.name, letter.options.durability)
    with _opening:
        topic = _topic(store, name, given, for_topic)
        with topic._told_if_deleted():
            return _opened(store, topic, given)


def _opened(store: Store, topic: Topic, given: dict[str, Any]) -> Queue:
    """The queue on that topic. Assumes that nobody else opens one."""
    context = store._context
    for guest in list(context.guests):
        if isinstance(guest, Queue) and guest.topic is topic:
            return guest if not _changed(guest.options, given) else _alter(store, guest, given)
    folder = join(context.root, names.TOPICS, names.topic(topic._existing().id), names.QUEUE)
    known = load_settings(context.files, folder, context.store, topic._existing().id)
    if known is None and context.read_only:
        raise NotAQueue(f"topic {topic.name!r} is not a queue; open the store with mode='rw'")
    settings = msgspec.structs.replace(known or QueueOptions(), **given)
    _check(topic.name, topic, known, settings)
    lanes = [
        Lane(context, topic, number, join(folder, names.shard(number)), settings,
             store.recovery.findings.append)
        for number in range(topic.shards)
    ]  # fmt: skip
    if not context.read_only:
        for place in (folder, *(lane._folder for lane in lanes)):
            require_dir(context.files, place)
    if known is None or settings != known:
        _save(context, topic, folder, lanes, known, settings)
    queue = Queue(store, topic, folder, settings, lanes)
    context.guests.append(queue)
    if not context.read_only:
        context.background.tend_soon()
    if settings.dead_letter and not context.read_only:
        _dead_letters(store, topic, settings.dead_letter)
    return queue


def known_queue(store: Store, name: str) -> Queue:
    """The queue of that name, if it is one already: nothing is made (TopicNotFound, NotAQueue)."""
    context = store._context
    context.require_open()
    topic = store._known(name)
    entry = topic._existing()
    for guest in list(context.guests):
        if isinstance(guest, Queue) and guest.topic is topic:
            return guest
    folder = join(context.root, names.TOPICS, names.topic(entry.id), names.QUEUE)
    if load_settings(context.files, folder, context.store, entry.id) is None:
        raise NotAQueue(f"topic {name!r} is not a queue; store.queue({name!r}) makes it one")
    return open_queue(store, name)


def _sorted_out(options: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """What is for the queue, checked, and what is for its topic."""
    given: dict[str, Any] = {}
    for_topic: dict[str, Any] = {}
    ours = {*QueueOptions.__struct_fields__, *_TIMES} - set(_TIMES.values())
    theirs = {*TopicOptions.__struct_fields__, "ttl", "segment_age"}
    for name, value in options.items():
        if name in _TIMES:
            given[_TIMES[name]] = duration_us(value, name)
        elif name == "history_bytes":
            given[name] = size_bytes(value, name)
        elif name in ours:
            given[name] = value
        elif name in theirs:
            for_topic[name] = value
        else:
            raise InvalidOption(f"unknown option {name!r}; {nearest(name, ours | theirs)}")
    for name, value in given.items():
        _check_one(name, value)
    return given, for_topic


def _check_one(name: str, value: Any) -> None:
    if name in ("ordered", "leases_durable"):
        if not isinstance(value, bool):
            raise InvalidOption(f"{name}={value!r}: True or False")
    elif name == "dead_letter":
        if value:
            topic_name(value)
        elif value != "":
            raise InvalidOption(f"dead_letter={value!r}: the name of a topic, or none")
    else:
        low, high = _RANGES[name]
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise InvalidOption(f"{name}={value!r}: must lie in {low}..{high}")


def _topic(store: Store, name: str, given: dict[str, Any], for_topic: dict[str, Any]) -> Topic:
    entry = store._lookup(name)
    if entry is None:
        if store._context.read_only:
            raise TopicNotFound(f"no topic {name!r} in {store.path}; {nearest(name, list(store))}")
        made = dict(for_topic)
        lanes = made.get("shards", 1)
        if isinstance(lanes, int) and not isinstance(lanes, bool):
            made["shards"] = lanes * given.get("priorities", 1)
        _check_class(name, made.get("durability", "disk"))
        return store.create(name, exist_ok=True, **made)
    if for_topic:
        shards = for_topic.pop("shards", None)
        each = entry.options.shards // given.get("priorities", 1)
        if shards not in (None, each, entry.options.shards):
            raise InvalidOption(
                f"shards={shards}: queue {name!r} has {entry.options.shards}, and keeps them"
            )
        wanted = topic_options(entry.options, **for_topic)
        other = [f"{field}={getattr(wanted, field)!r}" for field in TopicOptions.__struct_fields__
                 if getattr(wanted, field) != getattr(entry.options, field)]  # fmt: skip
        if other:
            raise InvalidOption(
                f"topic {name!r} is there with other options than {', '.join(other)}; change them "
                "with store.alter"
            )
    return store[name]


def _check_class(name: str, durability: str) -> None:
    if durability not in ("fsync", "disk"):
        raise InvalidOption(
            f"queue {name!r}: durability={durability!r} may give an offset to another record after "
            'a crash, and the lease of one job to another; use "disk" or "fsync"'
        )


def _check(name: str, topic: Topic, known: QueueOptions | None, settings: QueueOptions) -> None:
    _check_class(name, topic.options.durability)
    if topic.shards % settings.priorities:
        raise InvalidOption(
            f"priorities={settings.priorities}: topic {name!r} has {topic.shards} shards, which "
            "cannot be divided among them"
        )
    for option in _FIXED:
        if known is not None and getattr(known, option) != getattr(settings, option):
            raise InvalidOption(
                f"{option}={getattr(settings, option)!r}: queue {name!r} was made with "
                f"{getattr(known, option)!r}, and keeps it"
            )


def _changed(known: QueueOptions, given: dict[str, Any]) -> bool:
    return any(getattr(known, name) != value for name, value in given.items())


def _alter(store: Store, queue: Queue, given: dict[str, Any]) -> Queue:
    """A queue that is open gets other options."""
    context = store._context
    context.require_writable()
    known = queue.options
    settings = msgspec.structs.replace(known, **given)
    _check(queue.name, queue.topic, known, settings)
    queue._adopt(settings)
    folder = join(context.root, names.TOPICS, names.topic(queue.topic._existing().id), names.QUEUE)
    _save(context, queue.topic, folder, queue._lanes, known, settings)
    if settings.dead_letter:
        _dead_letters(store, queue.topic, settings.dead_letter)
    return queue


def _save(
    context: Context, topic: Topic, folder: str, lanes: list[Lane], known: QueueOptions | None,
    settings: QueueOptions,
) -> None:  # fmt: skip
    context.require_writable()
    files, number = context.files, topic._existing().id
    if known is None:
        files.make_dir(folder)
        files.sync_dir(join(context.root, names.TOPICS, names.topic(number)))
    mutex = files.mutex(join(folder, names.LOCK))
    try:
        mutex.take()
        try:
            if known is None and load_settings(files, folder, context.store, number) is None:
                files.make_dir(join(folder, names.WORKERS))
                for lane in lanes:
                    files.make_dir(join(folder, names.shard(lane.number)))
                files.sync_dir(folder)
                for lane in lanes:
                    lane.made = False
                    with lane:
                        lane.made = True
            save_settings(files, folder, context.store, number, settings)
        finally:
            mutex.give()
    finally:
        mutex.close()


def _dead_letters(store: Store, topic: Topic, name: str) -> None:
    """The topic of the dead letters is a queue too, with room for whatever may come."""
    if store._lookup(name) is None:
        like = topic.options
        open_queue(
            store, name, durability=like.durability, segment_bytes=like.segment_bytes,
            max_record_bytes=like.max_record_bytes,
        )  # fmt: skip
    else:
        open_queue(store, name)
