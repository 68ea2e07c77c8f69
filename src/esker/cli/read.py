"""`esker read` and `esker tail`: records, from somewhere on.

Reading ends at the head that was seen at the start, so `esker read orders -s @-3d` gives three days
and stops; with -f it goes on with what comes.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from esker.cli.failing import Usage
from esker.cli.place import HERE, Place
from esker.cli.shown import HOW, formed
from esker.errors import InvalidOption

if TYPE_CHECKING:
    from esker.cli.records import Printer

_Position = Annotated[str | None, Parameter(allow_leading_hyphen=True)]
FOLLOW_SECONDS = 3600.0


@Parameter(name="*", group=HOW)
@dataclass(frozen=True)
class RecordsShown:
    """How records are printed."""

    output: Annotated[
        Literal["table", "json", "ndjson", "csv", "raw", "arrow", "parquet"] | None,
        Parameter(
            name=["--output", "-o"],
            help="How it is printed. Default: table on a terminal, ndjson elsewhere.",
        ),
    ] = None
    json: Annotated[
        bool, Parameter(negative="", show_default=False, help="The same as -o json.")
    ] = False
    format: Annotated[
        str | None,
        Parameter(help="A line for each record: '{offset} {key} {value.field} {header.name}'."),
    ] = None
    values: Annotated[
        Literal["text", "json"],
        Parameter(help="json: values that are JSON are printed as such, not as text."),
    ] = "text"

    def form(self, follow: bool) -> str:
        """What was asked for, if it makes sense."""
        terminal = sys.stdout.isatty()
        if self.format is not None and (self.output is not None or self.json):
            raise Usage("--format and -o exclude each other")
        form = str(formed(self.output, self.json, terminal))
        if form in ("arrow", "parquet") and terminal:
            raise Usage(f"-o {form} is not for a terminal: write it to a file, or use `export`")
        if follow and form in ("json", "parquet") and self.format is None:
            raise Usage(f"-o {form} is complete at the end, and -f has none: use -o ndjson")
        return form


RECORDS = RecordsShown()


def read(
    topic: str, /, *,
    start: Annotated[
        str | None, Parameter(name=["--start", "-s"], allow_leading_hyphen=True)
    ] = None,
    stop: _Position = None,
    limit: Annotated[int | None, Parameter(name=["--limit", "-n"])] = None,
    shard: int | None = None,
    where: str | None = None,
    follow: Annotated[
        bool, Parameter(name=["--follow", "-f"], negative="", show_default=False)
    ] = False,
    place: Place = HERE, shown: RecordsShown = RECORDS,
) -> int:  # fmt: skip
    """Print records, from --start to the end as it is now; with -f, and then those to come.

    Parameters
    ----------
    topic
        Its name.
    start
        earliest, latest, 17, -100, @2026-11-15T10:00, @-15m. Default: earliest; with -f: latest.
    stop
        Where to end, in the same words.
    limit
        So many records at the most.
    shard
        Only this shard.
    where
        A filter: 'tag == "eu" and json.amount > 100'. See docs/filters.md.
    follow
        Go on with what comes, until Ctrl-C.
    """
    from esker.cli.records import printer, wanted
    from esker.filters import parse

    _count("limit", limit)
    if follow and stop is not None:
        raise Usage("--follow and --stop exclude each other")
    if follow and (place.data or "").startswith("kin+"):
        raise InvalidOption("another log is read in place, and not followed: leave out --follow")
    form = shown.form(follow)
    chosen = None if where is None else parse(where)
    with place.open() as store:
        log: Any = store[topic]
        if follow:
            begin = "latest" if start is None else start
            items = log.follow_batches(begin, shard=shard, gaps="yield")
        else:
            items = log.batches(start or "earliest", stop, shard=shard, gaps="yield")
        out = printer(
            form, sys.stdout.buffer, topic, values=shown.values, text=shown.format,
            shards=_shards(log) > 1,
        )  # fmt: skip
        _print(out, wanted(items, chosen, limit), follow)
    return 0


def tail(
    topic: str, /, *,
    limit: Annotated[int, Parameter(name=["--limit", "-n"])] = 10,
    follow: Annotated[
        bool, Parameter(name=["--follow", "-f"], negative="", show_default=False)
    ] = False,
    shard: int | None = None,
    where: str | None = None,
    place: Place = HERE, shown: RecordsShown = RECORDS,
) -> int:  # fmt: skip
    """Print the last records, of all shards by their times; with -f, and then those to come.

    Parameters
    ----------
    topic
        Its name.
    limit
        So many of the last records. With --where, those among them that match.
    follow
        Go on with what comes, until Ctrl-C.
    shard
        Only this shard.
    where
        A filter: 'tag == "eu" and json.amount > 100'. See docs/filters.md.
    """
    from esker.cli.records import printer, wanted
    from esker.filters import parse

    _count("limit", limit)
    form = shown.form(follow)
    chosen = None if where is None else parse(where)
    with place.open() as store:
        log: Any = store[topic]
        tailing = log.tail(f"-{limit}" if limit else "latest", shard=shard, gaps="yield")
        out = printer(
            form, sys.stdout.buffer, topic, values=shown.values, text=shown.format,
            shards=_shards(log) > 1,
        )  # fmt: skip
        found = newest(list(tailing.take()), limit)
        _print(out, wanted(found, chosen, None), follow, close=not follow)
        if follow:
            _print(out, wanted(_following(tailing), chosen, None), follow)
    return 0


def newest(items: list[Any], count: int) -> list[Any]:
    """The newest records of several shards, in the order of their times; gaps come first."""
    import heapq

    from esker.cli.records import head, last
    from esker.engine.batch import Batch

    batches = [item for item in items if isinstance(item, Batch)]
    gaps = [item for item in items if not isinstance(item, Batch)]
    if len({batch.shard for batch in batches}) < 2:
        return items
    rows = [
        (stamp, at, row)
        for at, batch in enumerate(batches)
        for row, stamp in enumerate(_stamps(batch))
    ]
    kept = sorted(heapq.nlargest(count, rows))
    return gaps + [head(last(batches[at], len(batches[at]) - row), 1) for _, at, row in kept]


def _stamps(batch: Any) -> list[int]:
    stamps = batch.columns.timestamps
    return [stamps] * len(batch) if isinstance(stamps, int) else stamps.to_pylist()


def _following(tailing: Any) -> Iterator[Any]:
    while True:
        tailing.wait(FOLLOW_SECONDS)
        yield from tailing.take()


def _print(out: Printer, items: Any, follow: bool, close: bool = True) -> None:
    for item in items:
        out.put(item)
        if follow:
            out.out.flush()
    if close:
        out.close()
    else:
        out.out.flush()


def _shards(log: Any) -> int:
    """How many shards a topic has; that of another log is asked for its own way."""
    count: int = log.shards if isinstance(log.shards, int) else len(log.shards)
    return count


def _count(name: str, value: int | None) -> None:
    if value is not None and value < 0:
        raise Usage(f"--{name} {value}: a whole number, 0 or above")
