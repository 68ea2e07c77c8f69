"""Messages of Arrow streams that are put together in pieces, beside those that pyarrow writes."""

from __future__ import annotations

import random
from itertools import combinations
from typing import Any

import pyarrow as pa
import pytest

from esker.engine.batch import SCHEMA, Batch
from esker.format.columns import Columns
from esker.server.bodies.arrow_out import message
from esker.server.bodies.codec import arrow_out


def batch_of(
    count: int, *, skip: int = 0, more: int = 0, stamps: bool = False, sizes: int = 9,
    shard: int = 0, begin: int = 0, **others: Any,
) -> Batch:  # fmt: skip
    """A batch whose arrays are slices, if `skip` or `more` say so."""
    some = random.Random(count * 31 + skip)
    cells = [some.randbytes(some.randrange(sizes)) for _ in range(skip + count + more)]
    times = pa.array([some.getrandbits(50) for _ in cells], pa.int64()).slice(skip, count)
    values = pa.array(cells, pa.binary()).slice(skip, count)
    return Batch(shard, begin, Columns(values, times if stamps else 1_763_424_000, **others))


def read(batch: Batch, columns: str | None = None) -> Any:
    """What a stranger finds in the stream that holds a batch."""
    stream = b"".join(arrow_out([batch], columns))
    with pa.ipc.open_stream(stream) as reader:
        (found,) = list(reader)
    found.validate(full=True)
    return found


@pytest.mark.parametrize("count", [64, 640, 6_400])
def test_a_message_is_to_the_byte_what_pyarrow_writes(count: int) -> None:
    batch = batch_of(count, shard=3, begin=1 << 40)
    assert b"".join(message(batch)) == batch.arrow.serialize().to_pybytes()


def test_whatever_the_length_a_message_says_what_the_batch_says() -> None:
    some = random.Random(7)
    for number in range(600):
        count = some.randrange(1, 40 if number % 4 else 20_000)
        batch = batch_of(
            count, skip=some.randrange(5), more=some.randrange(5), stamps=number % 2 == 0,
            sizes=some.choice((1, 2, 9, 200)), shard=some.randrange(1 << 16),
            begin=some.getrandbits(40),
        )  # fmt: skip
        assert read(batch).equals(batch.arrow), number
        assert len(b"".join(message(batch))) % 8 == 0


HEADERS = SCHEMA.field("headers").type
OTHERS: dict[str, list[Any]] = {
    "keys": [b"k-1", None, b"", b"hidden", b"k-5"],
    "tags": ["t", "t", "t", "hidden", "t"],  # no nulls
    "nodes": [None, None, "n", "hidden", None],
    "headers": [
        [{"key": "a", "value": b"1"}, {"key": "b", "value": b""}], [],
        [{"key": "c", "value": b"3"}],
        [{"key": "hidden", "value": b"hidden"}], [],
    ],
}  # fmt: skip
KINDS = {"keys": pa.binary(), "tags": pa.string(), "nodes": pa.string(), "headers": HEADERS}


@pytest.mark.parametrize("skip", range(5))
@pytest.mark.parametrize("names", [(n,) for n in OTHERS] + [tuple(OTHERS)], ids="-".join)
def test_other_columns_are_said_whole_and_in_slices(names: tuple[str, ...], skip: int) -> None:
    for count in range(1, 6 - skip):
        others = {name: pa.array(OTHERS[name], KINDS[name]).slice(skip, count) for name in names}
        batch = batch_of(count, skip=skip, more=5, **others)
        assert read(batch).equals(batch.arrow), count


def test_columns_that_are_named_are_said_alone() -> None:
    others = {name: pa.array(cells, KINDS[name]).slice(1, 3) for name, cells in OTHERS.items()}
    for batch in (batch_of(3, skip=1, more=1, **others), batch_of(3, stamps=True), batch_of(0)):
        for size in range(len(SCHEMA.names) + 1):
            for names in combinations(SCHEMA.names, size):
                wanted = [name for name in SCHEMA.names if name in ("offset", *names)]
                found = read(batch, ",".join(wanted))
                assert found.schema.equals(pa.schema([SCHEMA.field(name) for name in wanted]))
                assert found.equals(batch.arrow.select(wanted))


def test_nothing_goes_out_but_the_slice() -> None:
    others = {name: pa.array(cells, KINDS[name]).slice(1, 2) for name, cells in OTHERS.items()}
    values = pa.array([b"hidden", b"seen", b"", b"hidden"], pa.binary()).slice(1, 2)
    told = b"".join(message(Batch(0, 1, Columns(values, 7, **others))))
    assert b"seen" in told
    assert b"hidden" not in told


def test_headers_that_are_null_stay_null() -> None:
    batch = batch_of(2, headers=pa.array([None, OTHERS["headers"][0]], HEADERS))
    assert read(batch).equals(batch.arrow)
    assert read(batch).column("headers").null_count == 1


def test_records_that_were_left_out_leave_their_offsets_out() -> None:
    values = pa.array([b"a", b"b"], pa.binary())
    batch = Batch(0, 10, Columns(values, 7), pa.array([11, 14], pa.int64()), end=20)
    assert read(batch).column("offset").to_pylist() == [11, 14]


def test_a_batch_without_records_is_a_message_too() -> None:
    found = read(batch_of(0))
    assert (found.num_rows, found.schema.equals(SCHEMA)) == (0, True)


def test_values_are_not_copied() -> None:
    batch = batch_of(1_000, sizes=200)
    where = batch.columns.values.buffers()[2].address
    assert where in [pa.py_buffer(piece).address for piece in message(batch)]
