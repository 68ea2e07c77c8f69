"""`esker demo`: a shop on this machine, in about a minute, that is killed while it sells.

It shows what Esker does, on the disk of whoever looks, and proves it: whatever the summary claims
was counted by a checker that knows nothing of how the store works. It has what the shop's own
processes noted when they were told that something is safe or done, and a fresh read of the store.
A claim that does not hold makes the exit code 1.

    goods.py      what is sold: every value follows from who made it, so that none can be made up
    notes.py      lists of what a process was told, on the disk before anything else happens
    child.py      a process of the demo: it ends when its parent closes its stdin, or dies
    crew.py       the parent's side of it: start, kill -9, end, and nobody is left behind
    shop.py         child: producers of `orders` (4 shards, fsync), `clicks` and jobs in `emails`
    worker.py       child: takes jobs from `emails`; one holds on to its leases until it is killed
    billing.py      child: the group `billing`, slow on purpose, or in a hurry
    house.py        child: the server, with its console, and the route orders -> payments
    pipeline.py     child: Spark; revenue in windows back into a topic, orders to Parquet
    sleeper.py    a reader that sleeps while what it has not read is evicted
    show.py       the acts, in order
    bell.py       Ctrl-C, heard at a good moment
    meter.py      what the lists say, many times a second: for the eye, and for the plots
    bench.py      this disk, by commit class and size of batch
    claims.py     THE CHECKER: claims, and how each is counted
    evidence.py     what it has: the lists, and a fresh read
    jobs.py         its part that looks at the queue
    answers.py      its part that looks at what Spark made
    screen.py     bars and colours on a terminal, plain lines elsewhere
    plot.py       numbers as blocks of a terminal
    svg.py        numbers as pictures of a page
    report.py     report.html: all of it on one page that needs no network
    commands.py   five commands to try next

Everything is in one directory: DIR/data is the store, DIR/notes the lists, DIR/report.html the
report. Nothing leaves the machine; the server listens on loopback.
"""

from __future__ import annotations

from esker.errors import EskerError


class DemoFailed(EskerError):
    """The demo could not be shown."""

    code = "demo"


def run(
    directory: str,
    *,
    keep: bool = False,
    fast: bool = False,
    spark: bool = True,
    serve: bool = False,
    check: bool = False,
) -> int:
    """Show it in this directory. Returns 0 when every claim holds, 1 when one does not, 130 when
    it was interrupted.

    `keep` goes on with what a former run left, `fast` is over in seconds, `spark` has Spark work
    on what was written, `serve` leaves the server running until Ctrl-C, and `check` shows nothing:
    it counts again what a former run left.
    """
    from esker.demo import show

    if check:
        return show.check_again(directory)
    return show.run(directory, keep=keep, fast=fast, spark=spark, serve=serve)
