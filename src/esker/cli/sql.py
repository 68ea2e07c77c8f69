"""`esker sql`: topics as tables, for DuckDB. Needs `pip install 'esker[sql]'`.

Every topic is a table of its name ("a.b" in quotes, where a name has dots), read as it is scanned:

    offset, shard, timestamp, key, value, tag, node, headers    key and value as text
    key_bytes, value_bytes                                      the same as they are

`value` is null where the bytes are no text, and `value_bytes` has them. Fields of JSON values are
`value->>'amount'`. Records that were lost are told on stderr, as a gap.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from esker.cli.failing import Usage, say
from esker.cli.place import HERE, Place
from esker.cli.shown import Column, Flag, formed, print_csv, print_json, print_lines, print_table
from esker.errors import EskerError

if TYPE_CHECKING:
    from esker.engine.topic import Topic


class SqlMissing(EskerError):
    """DuckDB is not installed."""

    code = "sql_missing"


class SqlFailed(EskerError):
    """DuckDB could not do it."""

    code = "sql"


def sql(
    query: str, /, *,
    start: Annotated[
        str, Parameter(name=["--start", "-s"], allow_leading_hyphen=True)
    ] = "earliest",
    output: Annotated[
        Literal["table", "json", "ndjson", "csv", "arrow", "parquet"] | None,
        Parameter(name=["--output", "-o"]),
    ] = None,
    json: Flag = False,
    place: Place = HERE,
) -> int:  # fmt: skip
    """Ask topics in SQL: esker sql "select key, count(*) from orders group by key".

    Columns: offset, shard, timestamp, key, value, tag, node, headers, key_bytes, value_bytes; key
    and value are text, and a field of a JSON value is value->>'amount'.

    Parameters
    ----------
    query
        What DuckDB understands. A topic whose name has dots or dashes stands in double quotes.
    start
        Where tables begin: earliest, 17, -100, @2026-11-15T10:00, @-15m.
    output
        How it is printed. Default: table on a terminal, ndjson elsewhere.
    json
        The same as -o json.
    """
    try:
        import duckdb
    except ImportError:
        raise SqlMissing("`esker sql` needs DuckDB: pip install 'esker[sql]'") from None
    form = formed(output, json, sys.stdout.isatty())
    if form in ("arrow", "parquet") and sys.stdout.isatty():
        raise Usage(f"-o {form} is not for a terminal: write it to a file")
    with place.open() as store, duckdb.connect(":memory:") as database:
        scans = []
        for name in store:
            scans.append(Scan(store[name], start))
            database.register(name, scans[-1])
        try:
            asked = database.sql(query)
            found = None if asked is None else asked.to_arrow_table()
        except duckdb.Error as problem:
            raise SqlFailed(_advised(str(problem), list(store))) from None
    if found is not None:
        _print(found, form)
    return 0


def _advised(problem: str, names: list[str]) -> str:
    text = problem.strip()
    if "does not exist" in text:
        text += f"\ntopics: {', '.join(names) or 'none'}"
    return text


class Scan:
    """A topic as an Arrow stream, made anew for each scan."""

    def __init__(self, topic: Topic, start: str) -> None:
        self._topic = topic
        self._start = start

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        import pyarrow as pa

        reader = pa.RecordBatchReader.from_batches(_schema(), self._rows())
        return reader.__arrow_c_stream__(requested_schema)

    def _rows(self) -> Iterator[Any]:
        from esker.records import Gap

        for item in self._topic.batches(self._start, gaps="yield"):
            if isinstance(item, Gap):
                say(f"gap: {item}")
            else:
                yield _row(item.arrow)


def _schema() -> Any:
    import pyarrow as pa

    from esker.engine.batch import SCHEMA

    kinds = {field.name: field.type for field in SCHEMA}
    names = ("offset", "shard", "timestamp", "key", "value", "tag", "node", "headers")
    fields = [
        pa.field(name, pa.string() if name in ("key", "value") else kinds[name]) for name in names
    ]
    return pa.schema([*fields, ("key_bytes", pa.binary()), ("value_bytes", pa.binary())])


def _row(batch: Any) -> Any:
    import pyarrow as pa

    schema = _schema()
    columns = [
        _text(batch.column(name)) if name in ("key", "value") else batch.column(name)
        for name in schema.names[:-2]
    ]
    columns += [batch.column("key"), batch.column("value")]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _text(column: Any) -> Any:
    """Bytes as text; null where they are none."""
    import pyarrow as pa

    try:
        return column.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([_decoded(cell) for cell in column.to_pylist()], pa.string())


def _decoded(cell: bytes | None) -> str | None:
    try:
        return None if cell is None else cell.decode()
    except UnicodeDecodeError:
        return None


def _print(found: Any, form: str) -> None:
    if form in ("arrow", "parquet"):
        _print_binary(found, form)
        return
    rows = [{name: _plain(cell) for name, cell in row.items()} for row in found.to_pylist()]
    if form == "json":
        print_json({"columns": found.column_names, "rows": rows})
    elif form == "ndjson":
        print_lines(rows)
    elif form == "csv":
        print_csv(rows)
    elif found.column_names:
        columns = [
            Column(name, lambda row, name=name: _shown(row[name]), right=_is_number(kind))  # type: ignore[misc]
            for name, kind in zip(found.column_names, found.schema.types, strict=True)
        ]
        print_table(rows, columns)


def _print_binary(found: Any, form: str) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    sink = pa.BufferOutputStream()
    if form == "parquet":
        parquet.write_table(found, sink)
    else:
        with pa.ipc.new_stream(sink, found.schema) as writer:
            writer.write_table(found)
    sys.stdout.buffer.write(memoryview(sink.getvalue()))
    sys.stdout.buffer.flush()


def _is_number(kind: Any) -> bool:
    import pyarrow as pa

    return bool(
        pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
    )


def _plain(cell: Any) -> Any:
    """A cell as JSON has it: decimals as numbers, bytes in base64."""
    from decimal import Decimal

    if isinstance(cell, Decimal):
        return int(cell) if cell == cell.to_integral_value() else float(cell)
    return cell


def _shown(cell: Any) -> str:
    return "" if cell is None else f"{cell}"
