"""The audit log: who was refused, who changed what.

One JSON object a line: `time`, `event`, and what belongs to it. Told are keys that were refused
(`unauthorized`), things that were (`forbidden`, `misdirected`), what changes or deletes topics,
groups, queues and routes, changes of keys, and damage on the disk. What a client sent is data: it
is ASCII with everything else escaped, and cut. A secret is never in it; of a key it has the id.

It goes to a file, if the setting `audit` names one, else to the logger `esker.audit`. The file is
written off the loop. At 16 MiB it is moved to its name with `.1`, which replaces the former one; so
it never takes more than 32 MiB. What the disk does not take is tried again with the next line, and
10,000 lines wait for it; those beyond are counted, and the count is told in a line of its own.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import deque
from collections.abc import Iterable
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

from esker.clock import Clock
from esker.engine.findings import Finding
from esker.errors import StorageError
from esker.server.access.keys import redacted
from esker.storage import files as door
from esker.storage.files import SYSTEM_FILES, File

LOG: Final = logging.getLogger("esker.server")
LINES: Final = logging.getLogger("esker.audit")
BYTES_MAX: Final = 16 << 20
PENDING_MAX: Final = 10_000  # lines
TEXT_MAX: Final = 256  # characters of one field
_DAMAGE: Final = ("corrupt_", "damaged_", "missing_", "lost_")  # labels of what recovery may find


def line(event: str, now_us: int, fields: dict[str, Any]) -> str:
    """An event as one line."""
    return json.dumps(told_of(event, now_us, fields))  # escapes all that is not printable ASCII


def told_of(event: str, now_us: int, fields: dict[str, Any]) -> dict[str, Any]:
    """What is told of an event: nothing secret, nothing long, nothing empty."""
    when = datetime.fromtimestamp(now_us / 1e6, UTC).isoformat(timespec="milliseconds")
    told: dict[str, Any] = {"time": when, "event": event}
    for name, value in fields.items():
        if isinstance(value, str):
            value = redacted(value)
            value = value if len(value) <= TEXT_MAX else value[: TEXT_MAX - 1] + "…"
        if value not in ("", None):
            told[name] = value
    return told


class Audit:
    """Takes events on the loop, writes them off it."""

    def __init__(self, path: str, clock: Clock) -> None:
        self._path = door.absolute(path) if path else ""
        self._clock = clock
        self._pending: deque[bytes] = deque()
        self._lost = 0
        self._file: File | None = None
        self._size = 0
        self._writing: asyncio.Future[None] | None = None
        if path:
            self._open()  # now: a server whose audit log cannot be written does not start

    def tell(self, event: str, **fields: Any) -> None:
        """Something happened."""
        told = told_of(event, self._clock.now_us(), fields)
        text = json.dumps(told)
        if not self._path:
            LINES.info("%s", text, extra={"fields": {"message": event, **told}})
            return
        if len(self._pending) >= PENDING_MAX:
            self._lost += 1
        else:
            self._pending.append(text.encode() + b"\n")
        self._start()

    def tell_damage(self, findings: Iterable[Finding]) -> None:
        """What recovery found, as far as it is damage: a crash alone leaves none."""
        for each in findings:
            if each.label.startswith(_DAMAGE):
                self.tell(
                    each.label, topic=each.topic, shard=each.shard, file=each.path,
                    position=each.position, first=each.first, last=each.last, reason=each.reason,
                )  # fmt: skip

    def _start(self) -> None:
        if self._writing is not None:
            return
        lines, lost = list(self._pending), self._lost
        if lost:
            told = line("audit_lines_lost", self._clock.now_us(), {"count": lost})
            lines.append(told.encode() + b"\n")
        loop = asyncio.get_running_loop()
        self._writing = loop.run_in_executor(None, self._write, b"".join(lines))
        self._writing.add_done_callback(partial(self._written, len(self._pending), lost))

    def _written(self, count: int, lost: int, done: asyncio.Future[None]) -> None:
        """What is in the file waits no longer; what could not be written waits for the next try."""
        self._writing = None
        if done.cancelled():
            return
        if done.exception() is not None:
            LOG.error("the audit log cannot be written: %s", done.exception())
            return
        for _ in range(count):
            self._pending.popleft()
        self._lost -= lost
        if self._pending or self._lost:
            self._start()

    def _write(self, data: bytes) -> None:
        if self._size + len(data) > BYTES_MAX and self._size:
            self._turn()
        file = self._file or self._open()
        file.write(self._size, [data])
        self._size += len(data)

    def _open(self) -> File:
        there = SYSTEM_FILES.kind(self._path)
        self._file = SYSTEM_FILES.open(self._path, "rw" if there else "create")
        self._size = self._file.size()
        return self._file

    def _turn(self) -> None:
        if self._file is not None:
            self._file.close()
        self._file = None
        SYSTEM_FILES.rename(self._path, self._path + ".1")

    async def close(self) -> None:
        """Write what is left."""
        while self._pending or self._lost or self._writing is not None:
            self._start()
            assert self._writing is not None
            try:
                await asyncio.shield(self._writing)
            except StorageError:
                break  # told already
            await asyncio.sleep(0)  # its callback may begin another
        if self._file is not None:
            self._file.close()
            self._file = None
