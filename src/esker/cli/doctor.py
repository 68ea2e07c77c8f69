"""`esker doctor`: a look at the machine and at the store, each finding with what to do next.

The exit code is that of a Nagios check: 0 all is well, 1 a warning, 2 something is wrong, 3 it
could not look. Nothing is changed. Over a URL it looks at what a server tells: topics, groups,
queues.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any, Final, Literal

import msgspec

from esker.cli.checking import directory
from esker.cli.place import HERE, Place, is_store
from esker.cli.shown import USUAL, Column, Shown, answer, counted, seconds, size
from esker.errors import EskerError

Verdict = Literal["ok", "warning", "problem", "unknown"]
_CODES: Final[dict[str, int]] = {"ok": 0, "warning": 1, "problem": 2, "unknown": 3}
LAG_SECONDS: Final = 3600.0
FREE_BYTES: Final = 1 << 30
OPEN_FILES: Final = 1024


class Check(msgspec.Struct):
    """One thing that was looked at."""

    check: str
    verdict: Verdict
    found: str
    advice: str = ""


_ROW: Final = (
    Column("", lambda row: {"ok": "ok", "warning": "WARN", "problem": "BAD"}.get(row.verdict, "?")),
    Column("CHECK", lambda row: row.check),
    Column("FOUND", lambda row: row.found, fold=True),
)


def doctor(path: str | None = None, /, *, place: Place = HERE, shown: Shown = USUAL) -> int:
    """Look at the machine and the store; say what to do next. Changes nothing.

    Exit code: 0 all is well, 1 a warning, 2 something is wrong, 3 it could not look.

    Parameters
    ----------
    path
        The directory of the store; the same as --data.
    """
    rows = list(_machine())
    remote = path is None and place.settled().kind == "url"
    try:
        if not remote:
            root = directory(path, place, "doctor")
            rows += _files(root)
            place = Place(data=root)
        if remote or is_store(root):
            with place.open() as store:
                rows += _store(store, remote)
    except EskerError as problem:
        rows.append(Check("store", "unknown", f"{problem.code}: {problem}", "see what it says"))
    worst = max(rows, key=lambda row: _CODES[row.verdict]).verdict
    answer(shown, {"verdict": worst, "checks": rows}, rows, _ROW)
    if shown.form == "table":
        for row in rows:
            if row.advice:
                print(f"{row.check}: {row.advice}")
    return _CODES[worst]


# ---- the machine -----------------------------------------------------------------------------


def _machine() -> Iterator[Check]:
    from importlib.metadata import version

    import esker

    python = ".".join(map(str, sys.version_info[:3]))
    parts = ", ".join(f"{name} {version(name)}" for name in ("pyarrow", "xxhash", "msgspec"))
    yield Check("versions", "ok", f"esker {esker.__version__}, Python {python}, {parts}")
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    few = 0 <= soft < OPEN_FILES
    yield Check(
        "open files", "warning" if few else "ok", f"at most {soft:,} (hard limit {hard:,})",
        "many topics need many files: raise `ulimit -n`" if few else "",
    )  # fmt: skip
    from esker.cli.shown import moment
    from esker.clock import SYSTEM_CLOCK

    now = SYSTEM_CLOCK.now_us()
    wrong = now < 1_700_000_000_000_000
    yield Check(
        "clock", "problem" if wrong else "ok", f"{moment(now)} UTC",
        "set the clock: times of records, ages and retention go by it" if wrong else "",
    )  # fmt: skip


# ---- the files -------------------------------------------------------------------------------


def _files(root: str) -> Iterator[Check]:
    from esker.storage.files import SYSTEM_FILES, absolute, others_may_read, parent

    where = absolute(root)
    there = where
    while not SYSTEM_FILES.kind(there):
        there = parent(there)
    yield _room(there)
    if not is_store(root):
        yield Check(
            "store", "unknown", f"there is none at {where}",
            "say where it is with --data DIR, or append to a topic there to make one",
        )  # fmt: skip
        return
    opened = others_may_read(where)
    yield Check(
        "permissions", "warning" if opened else "ok",
        "others may look into the directory" if opened else "for its owner alone",
        f"chmod 700 {where}" if opened else "",
    )  # fmt: skip
    yield _writers(where)
    yield from _verified(where)


def _room(path: str) -> Check:
    import shutil

    found = shutil.disk_usage(path)
    share = found.free / max(1, found.total)
    bad = found.free < FREE_BYTES // 8 or share < 0.01
    short = found.free < FREE_BYTES or share < 0.05
    return Check(
        "disk", "problem" if bad else "warning" if short else "ok",
        f"{size(found.free)} free of {size(found.total)} ({share:.0%})",
        "free some space, or set --ttl, --cap-bytes or a budget; `esker du` shows what is large"
        if short else "",
    )  # fmt: skip


def _writers(root: str) -> Check:
    from esker.format import names
    from esker.storage.files import SYSTEM_FILES, join

    top = join(root, names.TOPICS)
    held: dict[int, int] = {}
    for topic in SYSTEM_FILES.list(top):
        for shard in SYSTEM_FILES.list(join(top, topic)):
            if names.parse_number(shard) is None:
                continue
            holder = SYSTEM_FILES.holder(join(top, topic, shard, names.LOCK))
            if holder is not None:
                held[holder.pid] = held.get(holder.pid, 0) + 1
    told = ", ".join(
        f"process {pid} writes {counted(n, 'shard')}" for pid, n in sorted(held.items())
    )
    return Check("writers", "ok", told or "nobody writes it now")


def _verified(root: str) -> Iterator[Check]:
    import esker

    found = esker.verify(root, deep=False)
    told = f"{counted(found.segments, 'segment')}, {counted(found.records, 'record')}"
    if found.errors:
        yield Check("verify --shallow", "problem", str(found.errors[0]), found.errors[0].advice)
    elif found.warnings:
        first = found.warnings[0]
        yield Check("verify --shallow", "warning", str(first), first.advice)
    else:
        yield Check("verify --shallow", "ok", f"headers are in order: {told}",)  # fmt: skip
    if found.gaps:
        lost = sum(gap.missed for gap in found.gaps)
        yield Check(
            "gaps", "ok", f"{counted(len(found.gaps), 'gap')} on record, {lost:,} offsets at most"
        )


# ---- the store -------------------------------------------------------------------------------


def _store(store: Any, remote: bool) -> Iterator[Check]:
    from esker.cli.look import group_states, queue_states, route_states

    if not remote:
        findings = store.recovery.findings
        yield Check(
            "recovery", "warning" if findings else "ok", str(store.recovery),
            "whoever opens it for writing recovers it; see docs/recovery.md" if findings else "",
        )  # fmt: skip
    names = list(store)
    yield Check("topics", "ok", counted(len(names), "topic"))
    for group in group_states(store):
        if group.group.startswith("route:"):
            continue  # what a route reads as; it is told below
        if group.records and (group.seconds > LAG_SECONDS or not group.members):
            alone = "" if group.members else ", and nobody reads in it"
            yield Check(
                f"group {group.topic}/{group.group}", "warning",
                f"{counted(group.records, 'record')} behind, {seconds(group.seconds)}{alone}",
                f"start its readers, or `esker group rm {group.topic} {group.group}` if it is not "
                "needed: retention may wait for it",
            )  # fmt: skip
    for queue in queue_states(store):
        if queue.dead:
            yield Check(
                f"queue {queue.queue}", "warning", counted(queue.dead, "dead job"),
                f"`esker queue dead ls {queue.queue}` says why; then requeue or purge them",
            )  # fmt: skip
        if queue.paused:
            yield Check(
                f"queue {queue.queue}", "warning", "paused", f"`esker queue resume {queue.queue}`"
            )
    for route in route_states(store):
        if route.state in ("stopped", "paused"):
            yield Check(
                f"route {route.route}", "problem" if route.state == "stopped" else "warning",
                f"{route.state} {route.reason}".strip(),
                f"mend the cause, or `esker route resume {route.route}`",
            )  # fmt: skip
