"""`esker append`: values of the command line, or stdin in batches.

What comes in is appended as it comes, in batches of what could be read at once, so that a slow pipe
is not waited for and a fast one costs no Python for each record. At the end, also when interrupted,
it is made durable, and it is said where it went.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from esker.cli.place import HERE, Place
from esker.cli.shown import USUAL, Shown, counted, tell

Input = Literal["lines", "ndjson", "csv", "arrow", "parquet", "raw"]


@Parameter(name="*")
@dataclass(frozen=True)
class Extras:
    """What is put on every record."""

    key: Annotated[str | None, Parameter(name=["--key", "-k"], help="The key of all of them.")] = (
        None
    )
    key_field: Annotated[
        str | None, Parameter(help="The key is this field of each value, which is JSON.")
    ] = None
    tag: Annotated[str | None, Parameter(help="The tag of all of them.")] = None
    header: Annotated[
        tuple[str, ...],
        Parameter(name=["--header", "-H"], negative="", help="A header: NAME=VALUE; again."),
    ] = ()


NOTHING = Extras()


def append(
    topic: str, /, *values: str,
    input: Annotated[Input, Parameter(name=["--input", "-i"])] = "lines",
    extras: Extras = NOTHING, place: Place = HERE, shown: Shown = USUAL,
) -> int:  # fmt: skip
    """Append records, durably. The store and the topic are made if need be.

    Parameters
    ----------
    topic
        Its name.
    values
        One record each; without any, stdin is read.
    input
        What stdin is: lines; ndjson as `esker read -o ndjson` writes it, or HTTP takes it; csv,
        arrow and parquet with a column `value`; raw: all of it is one record.
    """
    from esker.cli import intake

    made = intake.extras(extras.key, extras.key_field, extras.tag, extras.header)
    with place.open("rw", make=True) as store:
        if values:
            given = [value.encode("utf-8", "surrogateescape") for value in values]
            batches: Iterable[Any] = [intake.table(given, made)]
        else:
            source = intake.Stream(sys.stdin.buffer)
            batches = intake.batches(source, input, made)
        spans, count = intake.append_all(store[topic], batches)
    document = {"topic": topic, "count": count, "spans": spans}
    where = "; ".join(
        f"shard {span['shard']}: {span['first']}..{span['first'] + span['count'] - 1}"
        for span in spans
    )
    tell(shown, document, f"{topic}: {counted(count, 'record')} appended"
         + (f" ({where})" if where else ""))  # fmt: skip
    return 0
