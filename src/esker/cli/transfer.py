"""`esker export` and `esker import`: a topic to a file and back, or as another log.

A file's name says what it is: .ndjson (or .jsonl), .csv, .arrow, .parquet, .txt for lines; `-` is
stdout or stdin, and --format says it then. An export is written under another name first, and has
its own when it is complete.
"""

from __future__ import annotations

import sys
from typing import Annotated, Any, Final, Literal

from cyclopts import Parameter

from esker.cli.failing import Usage, say
from esker.cli.place import HERE, Place
from esker.cli.progress import Bar
from esker.cli.shown import USUAL, Flag, Shown, counted, tell

Where = Annotated[str, Parameter(allow_leading_hyphen=True)]  # - is stdout or stdin
Form = Literal["ndjson", "csv", "arrow", "parquet", "lines"]
_ENDINGS: Final = {
    "ndjson": "ndjson", "jsonl": "ndjson", "csv": "csv", "arrow": "arrow", "arrows": "arrow",
    "parquet": "parquet", "txt": "lines", "log": "lines",
}  # fmt: skip


def _path(given: str) -> str:
    """As it was given; a misspelt option, which the parser lets pass for a path, is none."""
    if given.startswith("-") and given != "-":
        raise Usage(f"Unknown option: {given}. A file of that name is ./{given}")
    return given


def _form(path: str, given: Form | None) -> str:
    if given is not None:
        return given
    ending = path.rpartition(".")[2]
    if path != "-" and ending in _ENDINGS:
        return _ENDINGS[ending]
    raise Usage(f"what is {path!r}? Say --format: ndjson, csv, arrow, parquet or lines")


def export(
    topic: str, target: Where, /, *,
    format: Form | None = None,
    start: Annotated[
        str, Parameter(name=["--start", "-s"], allow_leading_hyphen=True)
    ] = "earliest",
    stop: Annotated[str | None, Parameter(allow_leading_hyphen=True)] = None,
    shard: int | None = None,
    where: str | None = None,
    force: Flag = False,
    drop: Flag = False,
    place: Place = HERE, shown: Shown = USUAL,
) -> int:  # fmt: skip
    """Write a topic to a file, to stdout, or as another log would have.

    Parameters
    ----------
    topic
        Its name.
    target
        A file, whose ending says what it is; - for stdout; or kin+KIND:///directory, where KIND is
        rustlog, cursus, comet, topics or aof2 (docs/kin.md).
    format
        What it is, if its name does not say so. lines are the values alone.
    start
        earliest, latest, 17, -100, @2026-11-15T10:00, @-15m.
    stop
        Where to end, in the same words.
    shard
        Only this shard.
    where
        Only records that match a filter. See docs/filters.md.
    force
        Replace a file that is there.
    drop
        Of another log: leave out what it has no place for.
    """
    if target.startswith("kin+"):
        from esker.cli import kin

        return kin.export(topic, target, drop, shard, place, shown)
    from esker.cli.files import Written
    from esker.cli.records import printer, wanted
    from esker.filters import parse

    form = _form(_path(target), format).replace("lines", "raw")
    chosen = None if where is None else parse(where)
    with place.open() as store:
        log: Any = store[topic]
        items = log.batches(start, stop, shard=shard, gaps="yield")
        total = None if where or stop or shard is not None else len(log)
        if target == "-":
            out = printer(form, sys.stdout.buffer, topic)
            with Bar(f"export {topic}", total=total) as bar:
                _all(out, wanted(items, chosen, None), bar)
            say(f"{topic}: {counted(out.count, 'record')} exported" + _gaps(out.gaps))
            return 0
        with Written(target, replace=force) as file, Bar(f"export {topic}", total=total) as bar:
            out = printer(form, file, topic)
            _all(out, wanted(items, chosen, None), bar)
    document = {"topic": topic, "path": target, "count": out.count, "gaps": out.gaps}
    tell(shown, document, f"{topic}: {counted(out.count, 'record')} to {target}" + _gaps(out.gaps))
    return 0


def _gaps(count: int) -> str:
    return f"; {counted(count, 'gap')}, told above" if count else ""


def _all(out: Any, items: Any, bar: Bar) -> None:
    for item in items:
        out.put(item)
        bar.at(out.count)
    out.close()


def import_(
    source: Where, topic: str, /, *,
    format: Form | None = None,
    name: str | None = None,
    skip_gaps: Flag = False,
    place: Place = HERE, shown: Shown = USUAL,
) -> int:  # fmt: skip
    """Append a file to a topic, or copy another log to it. Store and topic are made if need be.

    A file is appended as a whole; running it again appends it again. Another log is copied once: it
    goes on where it was stopped.

    Parameters
    ----------
    source
        A file, whose ending says what it is; - for stdin; or kin+KIND:///directory, where KIND is
        rustlog, cursus, comet, topics or aof2 (docs/kin.md).
    topic
        Its name.
    format
        What it is, if its name does not say so.
    name
        Of another log: which of its topics.
    skip_gaps
        Of another log: go on behind what is missing.
    """
    if source.startswith("kin+"):
        from esker.cli import kin

        return kin.import_(source, topic, name, skip_gaps, place, shown)
    from esker.cli import intake
    from esker.storage.files import real_path
    from esker.storage.given import Given

    form = _form(_path(source), format)
    given = None if source == "-" else Given(real_path(source))
    file: Any = sys.stdin.buffer if given is None else given
    made = Bar(f"import {topic}", "records" if given is None else "bytes")
    try:
        with place.open("rw", make=True) as store, made as bar:
            tables = intake.batches(intake.Stream(file), form, intake.Made())

            def told(records: int) -> None:
                if given is None:
                    bar.add(records)
                else:
                    bar.at(given.tell(), given.size)

            spans, count = intake.append_all(store[topic], tables, told)
    finally:
        if given is not None:
            given.close()
    document = {"topic": topic, "count": count, "spans": spans}
    tell(shown, document, f"{topic}: {counted(count, 'record')} imported from {source}")
    return 0
