"""`esker queue …`: jobs under leases. See docs/queues.md.

A lease belongs to whoever claims, and ends when he does. Over a URL that is the server, so a job
that was claimed stays claimed for its lease, and `ack` and `nack` settle it by its token. Of a
directory it is this process: there `claim` has to settle what it claims before it ends, with --ack
or --exec.
"""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Final

from cyclopts import Parameter

from esker.cli.failing import FAILED, Usage, say
from esker.cli.place import HERE, Place
from esker.cli.shown import USUAL, Column, Flag, Shown, answer, counted, number, seconds, tell
from esker.cli.topic_options import NO_QUEUE_FLAGS, QueueFlags, given

if TYPE_CHECKING:
    from esker.engine.store import Store
    from esker.queues.job import Job

ROW: Final = (
    Column("QUEUE", lambda row: row.queue, wide=True),
    Column("READY", lambda row: number(row.ready), right=True),
    Column("LEASED", lambda row: number(row.leased), right=True),
    Column("DELAYED", lambda row: number(row.delayed), right=True),
    Column("PARKED", lambda row: number(row.parked), right=True),
    Column("DEAD", lambda row: number(row.dead), right=True),
    Column("OLDEST", lambda row: seconds(row.oldest_seconds), right=True),
    Column("", lambda row: "paused" if row.paused else ""),
)
JOB: Final = (
    Column("SHARD", lambda row: str(row.shard), right=True),
    Column("OFFSET", lambda row: str(row.offset), right=True),
    Column("KEY", lambda row: text(row, "key"), wide=True),
    Column("TAG", lambda row: row.tag or "", wide=True),
    Column("VALUE", lambda row: text(row, "value"), wide=True),
)
_CLAIMED: Final = (
    *JOB[:2], Column("TRY", lambda row: str(row.deliveries), right=True),
    Column("TOKEN", lambda row: row.token), *JOB[2:],
)  # fmt: skip


def text(row: Any, name: str) -> str:
    """A value or a key, for a table."""
    coded = getattr(row, "base64" if name == "value" else "key_base64")
    found = getattr(row, name)
    return f"base64:{coded}" if coded is not None else str(found or "")


def stats(queue: str | None = None, /, *, place: Place = HERE, shown: Shown = USUAL) -> int:
    """How many jobs are where; of all queues, or of one.

    Parameters
    ----------
    queue
        Its name.
    """
    from esker.cli.look import queue_state, queue_states

    with place.open() as store:
        if queue is not None:
            state = queue_state(store, queue)
            answer(shown, state, [state], ROW)
            return 0
        rows = queue_states(store)
    answer(shown, {"queues": rows}, rows, ROW, empty="no queues")
    return 0


def create(
    queue: str, /, *, options: QueueFlags = NO_QUEUE_FLAGS,
    place: Place = HERE, shown: Shown = USUAL,
) -> int:  # fmt: skip
    """Make a queue, or give one that is there other options. See docs/queues.md.

    Parameters
    ----------
    queue
        Its name; a topic that is there becomes a queue.
    """
    from esker.cli.look import queue_state

    with place.open("rw", make=True) as store:
        store.queue(queue, **given(asdict(options)))
        state = queue_state(store, queue)
    lease = seconds(state.options["lease"])
    document = {"queue": queue, "options": state.options}
    tell(shown, document, f"queue {queue!r} is there: leases of {lease}")
    return 0


def put(
    queue: str, /, *values: str,
    key: Annotated[str | None, Parameter(name=["--key", "-k"])] = None,
    tag: str | None = None,
    delay: str = "0",
    priority: int = 0,
    place: Place = HERE, shown: Shown = USUAL,
) -> int:  # fmt: skip
    """Add jobs, one for each value, or one for each line of stdin.

    Parameters
    ----------
    queue
        Its name.
    values
        One job each; without any, the lines of stdin.
    key
        The key of all of them.
    tag
        The tag of all of them.
    delay
        They are not handed out before: 30s, 5m, 2h.
    priority
        Higher ones are handed out first.
    """
    from esker.cli.intake import Stream, _lines
    from esker.cli.look import queue_of
    from esker.records import Record

    coded = None if key is None else key.encode("utf-8", "surrogateescape")
    if values:
        parts = [[value.encode("utf-8", "surrogateescape") for value in values]]
    else:
        parts = (part.split(b"\n") for part in _lines(Stream(sys.stdin.buffer)))  # type: ignore[assignment]
    spans: list[Any] = []
    with place.open("rw") as store:
        found = queue_of(store, queue)
        for some in parts:
            jobs = [Record(value, coded, tag) for value in some]
            spans += found.put_many(jobs, delay=delay, priority=priority)
    count = sum(span.count for span in spans)
    document = {"queue": queue, "count": count, "spans": spans}
    tell(shown, document, f"{queue}: {counted(count, 'job')} put")
    return 0


def peek(
    queue: str, /, *, limit: Annotated[int, Parameter(name=["--limit", "-n"])] = 10,
    place: Place = HERE, shown: Shown = USUAL,
) -> int:  # fmt: skip
    """Show the jobs that would be handed out next. Claims none.

    Parameters
    ----------
    queue
        Its name.
    limit
        So many at the most; over a URL 1,000.
    """
    from esker.cli.look import queue_of
    from esker.server.seals import record_out

    with place.open() as store:
        rows = [record_out(record) for record in queue_of(store, queue).peek(limit)]
    answer(shown, {"queue": queue, "jobs": rows}, rows, JOB, empty="no job is ready")
    return 0


def claim(
    queue: str, /, *,
    limit: Annotated[int, Parameter(name=["--limit", "-n"])] = 1,
    lease: str | None = None,
    wait: float = 0.0,
    ack: Flag = False,
    command: Annotated[str | None, Parameter(name="--exec")] = None,
    place: Place = HERE, shown: Shown = USUAL,
) -> int:  # fmt: skip
    """Claim jobs, and print them; or run a command for each.

    With --exec the value is the command's stdin; ESKER_KEY is not passed on. If it ends with 0 the
    job is acked, else it is nacked, with a back-off. Exit code 1 if a command failed.

    Parameters
    ----------
    queue
        Its name.
    limit
        So many at the most.
    lease
        Hold them for so long: 30s, 5m. Default: that of the queue.
    wait
        Seconds to wait for the first one.
    ack
        Ack them as soon as they are printed.
    command
        A command for the shell, run once for each job.
    """
    from esker.cli.look import is_remote, queue_of

    if ack and command is not None:
        raise Usage("--ack and --exec exclude each other: what --exec runs decides")
    with place.open("rw") as store:
        found = queue_of(store, queue)
        if not ack and command is None and not is_remote(store):
            raise Usage(
                "a lease of a directory ends with the process that claimed, which is this one: say "
                "--ack, or --exec COMMAND; or claim from a server with --url"
            )
        jobs = found.claim(limit, lease, wait)
        rows = [_told(found, job) for job in jobs]
        if command is not None:
            return _execute(found, jobs, command)
        answer(shown, {"queue": queue, "jobs": rows}, rows, _CLAIMED, empty="no job is ready")
        sys.stdout.flush()  # before they are done: who does not get them must not lose them
        if ack and jobs:
            found.ack(jobs)
    return 0


def _told(queue: Any, job: Job) -> Any:
    from esker.server.bodies import wire_rooms as rooms
    from esker.server.seals import record_fields

    left = max(0.0, job.deadline - queue._context.clock.monotonic())
    return rooms.JobOut(
        **record_fields(job.record, "text", True), token=job.token, deliveries=job.deliveries,
        priority=job.priority, lease_seconds=left,
    )  # fmt: skip


def _execute(queue: Any, jobs: list[Job], command: str) -> int:
    """Run a command for each job, one after the other."""
    import os
    import subprocess

    secret = {"ESKER_KEY"}
    around = {name: value for name, value in os.environ.items() if name not in secret}
    failed = 0
    for at, job in enumerate(jobs):
        if at:
            queue.extend(jobs[at:])  # those that wait must not come back meanwhile
        told = {"ESKER_OFFSET": str(job.offset), "ESKER_SHARD": str(job.shard),
                "ESKER_DELIVERIES": str(job.deliveries)}  # fmt: skip
        try:
            done = subprocess.run(
                command, shell=True, input=job.value, env=around | told, check=False
            )
        except BaseException:
            queue.release(jobs[at:])
            raise
        if done.returncode == 0:
            queue.ack(job)
        else:
            failed += 1
            reason = f"`{command[:200]}` ended with {done.returncode}"
            queue.nack(job, queue.backoff(job.deliveries), reason)
            say(f"job {job.shard}:{job.offset}: {reason}")
    say(f"{counted(len(jobs) - failed, 'job')} done, {failed} failed")
    return FAILED if failed else 0


def ack(queue: str, /, *jobs: str, place: Place = HERE, shown: Shown = USUAL) -> int:
    """These jobs are done, and never handed out again.

    Parameters
    ----------
    queue
        Its name.
    jobs
        SHARD:OFFSET:TOKEN, as `claim` printed them; or its NDJSON on stdin.
    """
    with place.open("rw") as store:
        found, held = _held(store, queue, jobs)
        found.ack(held)
    tell(shown, {"queue": queue, "done": len(held)}, f"{counted(len(held), 'job')} acked")
    return 0


def nack(
    queue: str, /, *jobs: str, delay: str = "0", reason: str = "",
    place: Place = HERE, shown: Shown = USUAL,
) -> int:  # fmt: skip
    """These jobs failed: hand them out again, not before --delay.

    Parameters
    ----------
    queue
        Its name.
    jobs
        SHARD:OFFSET:TOKEN, as `claim` printed them; or its NDJSON on stdin.
    delay
        30s, 5m, 2h.
    reason
        Why; it is shown with a job that is given up.
    """
    with place.open("rw") as store:
        found, held = _held(store, queue, jobs)
        found.nack(held, delay, reason)
    tell(shown, {"queue": queue, "done": len(held)}, f"{counted(len(held), 'job')} nacked")
    return 0


def _held(store: Store, name: str, given_jobs: tuple[str, ...]) -> tuple[Any, list[Job]]:
    """The queue, and jobs that were claimed before, by their tokens."""
    from esker.cli.look import queue_of

    queue = queue_of(store, name)
    found = [queue.job(shard, offset, token) for shard, offset, token in _tokens(given_jobs)]
    if not found:
        raise Usage("which jobs? SHARD:OFFSET:TOKEN, or the NDJSON of `claim` on stdin")
    return queue, found


def _tokens(given_jobs: tuple[str, ...]) -> list[tuple[int, int, str]]:
    import msgspec

    found = []
    for each in given_jobs:
        shard, _, rest = each.partition(":")
        offset, _, token = rest.partition(":")
        if not (shard.isdigit() and offset.isdigit() and token):
            raise Usage(f"{each!r} is no job; as in 0:17:TOKEN")
        found.append((int(shard), int(offset), token))
    if not given_jobs:
        for line in sys.stdin.buffer.read().splitlines():
            try:
                told = msgspec.json.decode(line)
                found.append((int(told["shard"]), int(told["offset"]), str(told["token"])))
            except (msgspec.DecodeError, KeyError, TypeError, ValueError):
                raise Usage("stdin is not what `queue claim -o ndjson` writes") from None
    return found


def pause(queue: str, /, *, place: Place = HERE, shown: Shown = USUAL) -> int:
    """Hand out nothing until it is resumed. What is held may be acked.

    Parameters
    ----------
    queue
        Its name.
    """
    from esker.cli.look import queue_of

    with place.open("rw") as store:
        queue_of(store, queue).pause()
    tell(shown, {"paused": True}, f"queue {queue!r} is paused")
    return 0


def resume(queue: str, /, *, place: Place = HERE, shown: Shown = USUAL) -> int:
    """Hand out jobs again.

    Parameters
    ----------
    queue
        Its name.
    """
    from esker.cli.look import queue_of

    with place.open("rw") as store:
        queue_of(store, queue).resume()
    tell(shown, {"paused": False}, f"queue {queue!r} goes on")
    return 0
