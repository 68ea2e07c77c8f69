"""The loop around a group: handlers, retries, and a clean stop.

Nothing is left out unless somebody says so. A batch whose handler fails is given to it again; when
all tries are used up `on_error` decides, and without one the error ends the loop, with the batch
not acked: whoever reads next gets it again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol

from esker.engine.reader import check_count, check_timeout
from esker.errors import Fenced, InvalidOption, StopProcessing
from esker.groups.batch import GroupBatch

if TYPE_CHECKING:
    from collections.abc import Iterator

Verdict = Literal["skip", "retry", "stop"]
OnError = Callable[[GroupBatch, Exception], Verdict]

STEP_SECONDS: Final = (
    0.1  # at a stretch, for records and for another try: `stop` is heard meanwhile
)
_PAUSE: Final = threading.Event()  # never set: waiting for it is sleeping


class Pollable(Protocol):
    """A group, or many of them as one."""

    _stop: bool

    def poll(
        self, max_records: int = ..., max_bytes: int = ..., wait: float | None = ...
    ) -> Iterator[Any]: ...


def process(
    group: Pollable, handler: Callable[[GroupBatch], Any], *, retries: int, delay: float,
    on_error: OnError | None, auto_ack: bool, max_records: int, max_bytes: int,
    idle: float | None,
) -> int:  # fmt: skip
    """`Group.process`."""
    check_count("retries", retries, 0)
    check_timeout(delay)
    patience = check_timeout(idle)
    handled = 0
    waited = 0.0
    while not group._stop:
        came = False
        for batch in group.poll(max_records, max_bytes, STEP_SECONDS):
            came = True
            if not isinstance(batch, GroupBatch):
                continue  # a Gap, which nobody can handle: gaps="raise" tells of it
            verdict = _handle(group, batch, handler, retries, delay, on_error)
            if verdict == "stop":
                return handled
            if auto_ack or verdict != "done":
                _ack(batch)
            handled += len(batch) if verdict != "skip" else 0
            if verdict == "last" or group._stop:
                return handled
        waited = 0.0 if came else waited + STEP_SECONDS
        if patience is not None and waited >= patience:
            break
    return handled


def _ack(batch: GroupBatch) -> None:
    try:
        batch.ack()
    except Fenced:
        return  # somebody else has the shard by now, and gets it again: at least once


def verdict_of(
    batch: GroupBatch, problem: Exception, failed: int, retries: int, on_error: OnError | None
) -> Verdict:
    """What is to be done about a handler that has failed so many times: "retry" is another try."""
    if failed <= retries:
        return "retry"
    if on_error is None:
        raise problem
    verdict = on_error(batch, problem)
    if verdict not in ("skip", "retry", "stop"):
        raise InvalidOption(
            f'on_error returned {verdict!r}: one of "skip", "retry", "stop"'
        ) from problem
    return verdict


def _handle(
    group: Pollable, batch: GroupBatch, handler: Callable[[GroupBatch], Any], retries: int,
    delay: float, on_error: OnError | None,
) -> str:  # fmt: skip
    """Have a batch handled: done, last (done, and stop), skip or stop."""
    failed = 0
    while True:
        try:
            handler(batch)
            return "done"
        except StopProcessing:
            return "last"
        except Exception as problem:
            failed += 1
            verdict = verdict_of(batch, problem, failed, retries, on_error)
            if verdict != "retry":
                return verdict
            failed = 0 if failed > retries else failed
        for step in rests(group, delay):
            _PAUSE.wait(step)
        if group._stop:
            return "stop"


def rests(group: Pollable, delay: float) -> Iterator[float]:
    """The steps in which to wait before another try; none are left when the loop is to end."""
    left = delay
    while left > 0 and not group._stop:
        yield min(left, STEP_SECONDS)
        left -= STEP_SECONDS
