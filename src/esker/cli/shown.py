"""What a command has found, as people or programs want it.

    table     for people; what a terminal gets if nothing else is said
    ndjson    a JSON object in each line; what a pipe gets
    json      one JSON document, with the fields that the same question has over HTTP
    csv       a line for each row, with a heading

Data goes to stdout, talk to stderr (failing.py). Text that somebody stored is shown as text:
control characters are spelt out, so that no record can move the cursor or colour the screen.
Colours are for terminals, and not with NO_COLOR.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NamedTuple

from cyclopts import Group, Parameter

from esker.cli.failing import Usage

if TYPE_CHECKING:
    from rich.console import Console

Form = Literal["table", "json", "ndjson", "csv"]
HOW: Final = Group("Output", sort_key=7)
Flag = Annotated[bool, Parameter(negative="", show_default=False)]
"""An option without a value, and without a contrary."""


@Parameter(name="*", group=HOW)
@dataclass(frozen=True)
class Shown:
    """How the answer is printed."""

    output: Annotated[
        Form | None,
        Parameter(
            name=["--output", "-o"],
            help="How it is printed. Default: table on a terminal, ndjson elsewhere.",
        ),
    ] = None
    json: Annotated[
        bool, Parameter(negative="", show_default=False, help="The same as -o json.")
    ] = False

    @property
    def form(self) -> Form:
        """What was asked for, or what suits where it goes."""
        form: Form = formed(self.output, self.json, sys.stdout.isatty())
        return form


USUAL: Final = Shown()


def formed(output: Any, json: bool, terminal: bool) -> Any:
    """The form that options and stdout ask for together."""
    if json and output not in (None, "json"):
        raise Usage(f"--json and -o {output} exclude each other")
    return output or ("json" if json else "table" if terminal else "ndjson")


class Column(NamedTuple):
    """A column of a table: its heading, and what of a row stands in it."""

    title: str
    cell: Callable[[Any], str]
    right: bool = False  # numbers stand at the right
    wide: bool = False  # takes what room there is, and is cut where that is not enough
    fold: bool = False  # goes on in the next line instead


def answer(
    shown: Shown, document: Any, rows: Sequence[Any], columns: Sequence[Column], *,
    empty: str = "", title: str = "",
) -> None:  # fmt: skip
    """Print a list: `document` as JSON, `rows` in every other form."""
    form = shown.form
    if form == "json":
        print_json(document)
    elif form == "ndjson":
        print_lines(rows)
    elif form == "csv":
        print_csv(rows)
    elif not rows:
        print(empty or "none")
    else:
        print_table(rows, columns, title)


def tell(shown: Shown, document: Any, text: str) -> None:
    """Print what was done: a sentence for people, else the document."""
    form = shown.form
    if form == "table":
        print(text)
    elif form == "csv":
        print_csv([document])
    else:
        print_json(document)


LEAST_WIDTH: Final = 8  # of a column that gives way


# ---- the forms -------------------------------------------------------------------------------


def plain(value: Any) -> Any:
    """A struct as a dict, so that every form has the same fields."""
    import msgspec

    return msgspec.to_builtins(value)


def print_json(document: Any) -> None:
    """One JSON document, indented where a person looks at it."""
    import msgspec

    text = msgspec.json.encode(document)
    if sys.stdout.isatty():
        text = msgspec.json.format(text, indent=2)
    print(text.decode())


def print_lines(rows: Iterable[Any]) -> None:
    """A JSON object in each line."""
    import msgspec

    encode = msgspec.json.Encoder().encode
    for row in rows:
        print(encode(row).decode())


def print_csv(rows: Sequence[Any]) -> None:
    """Rows with a heading; what is no number or text in a cell stands there as JSON."""
    import csv

    import msgspec

    dicts = [plain(row) for row in rows]
    names = list(dict.fromkeys(name for row in dicts for name in row))
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(names)
    for row in dicts:
        writer.writerow(
            [
                cell
                if isinstance(cell := row.get(name), (str, int, float, type(None)))
                and not isinstance(cell, bool)
                else msgspec.json.encode(cell).decode()
                for name in names
            ]
        )


def console(*, error: bool = False) -> Console:
    """Where people look: stdout, or stderr for what is talk."""
    from rich.console import Console

    return Console(stderr=error, highlight=False, markup=False, emoji=False, soft_wrap=False)


def print_table(rows: Sequence[Any], columns: Sequence[Column], title: str = "") -> None:
    """Rows under headings, as wide as the terminal at the most; 100 columns where there is none."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    made = Table(box=box.SIMPLE_HEAD, show_edge=False, title=title or None, title_justify="left")
    out = console()
    if not sys.stdout.isatty():
        out.width = 100
    cells = [[safe(column.cell(row)) for column in columns] for row in rows]
    fits = fitting([[column.title for column in columns], *cells],
                   [column.wide or column.fold for column in columns], out.width)  # fmt: skip
    for column, width in zip(columns, fits, strict=True):
        made.add_column(
            column.title, justify="right" if column.right else "left", no_wrap=not column.fold,
            overflow="fold" if column.fold else "ellipsis", width=width,
        )  # fmt: skip
    for line in cells:
        made.add_row(*map(Text, line))
    out.print(made)


def fitting(lines: Sequence[Sequence[str]], wide: Sequence[bool], width: int) -> list[int]:
    """How wide each column is: what it needs, or if it is a wide one, its share of what is left."""
    from rich.cells import cell_len

    needs = [max(map(cell_len, column)) for column in zip(*lines, strict=True)]
    room = width - 3 * len(needs) + 1 - sum(n for n, w in zip(needs, wide, strict=True) if not w)
    sharing = sorted((at for at, gives in enumerate(wide) if gives), key=needs.__getitem__)
    for done, at in enumerate(sharing):  # those who need little leave more to the others
        needs[at] = min(needs[at], max(LEAST_WIDTH, room // (len(sharing) - done)))
        room -= needs[at]
    return needs


# ---- words -----------------------------------------------------------------------------------

_TURNING: Final = (*range(0x202A, 0x202F), *range(0x2066, 0x206A), 0x2028, 0x2029)
_SPELT: Final = {
    **{code: f"\\x{code:02x}" for code in (*range(0x20), 0x7F, *range(0x80, 0xA0))},
    **{code: f"\\u{code:04x}" for code in _TURNING},
    9: "\\t", 10: "\\n", 13: "\\r",
}  # fmt: skip


def safe(text: str) -> str:
    """Text without what would move a cursor, ring a bell or turn the line around."""
    return text.translate(_SPELT)


def number(count: float | None) -> str:
    """12,345"""
    return "" if count is None else f"{count:,.0f}" if isinstance(count, float) else f"{count:,}"


def counted(count: int, what: str) -> str:
    """1 record, 2 records"""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def size(count: int) -> str:
    """1.5 MiB"""
    from esker.upkeep.report import size_text

    return size_text(count)


def seconds(length: float | None) -> str:
    """A length of time in the unit that suits it."""
    if length is None:
        return "-"
    if length < 1:
        return f"{length * 1e3:.0f} ms" if length else "0 s"
    if length < 120:
        return f"{length:.1f} s"
    if length < 7200:
        return f"{length / 60:.0f} min"
    return f"{length / 3600:.0f} h" if length < 172_800 else f"{length / 86_400:.0f} d"


def moment(time_us: int) -> str:
    """A timestamp as people read it, in UTC."""
    from datetime import UTC, datetime, timedelta

    when = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=time_us)
    return when.strftime("%Y-%m-%d %H:%M:%S.") + f"{when.microsecond // 1000:03d}"
