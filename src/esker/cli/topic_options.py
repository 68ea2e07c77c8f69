"""The options of topics and queues as flags, made of the structs that the library checks them by.

A flag takes what the library takes: `--ttl 7d`, `--cap-bytes 10GiB`, `--durability fsync`.
"""

from __future__ import annotations

from dataclasses import make_dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, get_origin

import msgspec
from cyclopts import Group, Parameter

from esker.format.queue import QueueOptions
from esker.options import TopicOptions

_OPTIONS: Final = Group("Options", sort_key=5)
_SAID: Final = {
    "shards": "Independent sequences, each with one writer at a time; cannot be changed.",
    "durability": "What an ack waits for; cannot be changed.",
    "compression": "Of sealed segments.",
    "compress_min_bytes": "Frames below this are not compressed.",
    "compress_at": "When a log is sealed, or when each frame is written.",
    "compression_level": "1 to 22.",
    "segment_bytes": "A new segment begins at this size.",
    "segment_records": "Or after so many records.",
    "segment_age": "Or when the oldest record is so old.",
    "max_record_bytes": "A larger record is refused.",
    "cap_records": "Keep so many of each shard.",
    "cap_bytes": "Keep so much of each shard.",
    "ttl": "Keep records for so long.",
    "keep_segments": "Keep so many segments whatever the caps say.",
    "hot_segments": "So many sealed segments stay here; older ones go to the cold store.",
    "hot_bytes": "So much of sealed segments stays here.",
    "consumed": "Evict what all groups have acked.",
    "protect_unconsumed": "Keep what a group has not acked, whatever the caps say.",
    "force_after": "But not for longer than this.",
    "dedupe_records": "Idempotency keys are known for so many records.",
    "dedupe_window": "And for so long.",
    "discard": "At a cap: evict the oldest, or reject the newest.",
    "lease": "How long a job is held before it comes again.",
    "max_deliveries": "After so many tries a job is given up; 0: never.",
    "dead_letter": "The topic for jobs that were given up.",
    "priorities": "How many there are; cannot be changed.",
    "ordered": "One job of a key at a time, in the order they were put.",
    "leases_durable": "Claims survive power loss.",
    "claim_jitter": "Claims wait so long for company.",
    "history": "How long it is known what happened to a job.",
    "history_bytes": "And in how much room.",
}


def _fields(struct: Any) -> list[tuple[str, Any, Any]]:
    made = []
    for field in msgspec.structs.fields(struct):
        name, kind = field.name.removesuffix("_us"), field.type
        if kind is not bool and get_origin(kind) is not Literal:
            kind = str
        default = field.default
        if field.name.endswith("_us") and isinstance(default, int):
            default = f"{default / 1e6:g}s" if default else default
        shown = "" if default in (0, "", None) else f" Default: {_word(default)}."
        text = _SAID[name] + shown
        made.append((name, Annotated[kind | None, Parameter(help=text)], None))
    return made


def flags(name: str, fields: list[tuple[str, Any, Any]], group: Group) -> Any:
    """Fields as the options of a command."""
    made = make_dataclass(name, fields, frozen=True)
    made.__module__ = __name__  # where it is looked for by who asks for its types
    return Parameter(name="*", group=group)(made)


def _word(default: Any) -> str:
    if isinstance(default, bool):
        return "yes" if default else "no"
    return str(default)


if TYPE_CHECKING:
    from dataclasses import dataclass

    @dataclass(frozen=True)
    class TopicFlags:
        """The options of a topic."""

    @dataclass(frozen=True)
    class QueueFlags:
        """The options of a queue, and those of its topic."""
else:
    _mine = _fields(TopicOptions)
    _theirs = _fields(QueueOptions)
    _known = {name for name, _, _ in _theirs}
    TopicFlags = flags("TopicFlags", _mine, _OPTIONS)
    QueueFlags = flags(
        "QueueFlags", _theirs + [each for each in _mine if each[0] not in _known], _OPTIONS
    )


NO_TOPIC_FLAGS: Final = TopicFlags()
NO_QUEUE_FLAGS: Final = QueueFlags()


def given(flags: dict[str, Any]) -> dict[str, Any]:
    """The options that were given, as the library takes them: whole numbers as such."""
    return {
        name: int(value) if isinstance(value, str) and value.isdigit() else value
        for name, value in flags.items()
        if value is not None
    }
