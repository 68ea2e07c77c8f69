"""Values as text and as JSON: each value is one object, or is named, or is null. No Spark here."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from esker.engine.batch import Batch
from esker.errors import InvalidRecord
from esker.format.columns import Columns
from esker.spark import shapes, values
from esker.spark.values import Objects

KIND = pa.struct([("n", pa.int64()), ("s", pa.string())])


def batch(texts: list[bytes]) -> Batch:
    stamps = pa.array([0] * len(texts), pa.int64())
    return Batch(0, 100, Columns(pa.array(texts, pa.binary()), stamps, None, None, None, None))


def read(texts: list[bytes], bad_value: str = "null") -> list[Any]:
    given = batch(texts)
    found = Objects(KIND, bad_value).of(given.columns.values, given.offsets, 0)
    return found.to_pylist()  # type: ignore[no-any-return]


def obj(n: int, s: str | None = None) -> dict[str, Any]:
    return {"n": n, "s": s}


def test_objects_of_every_kind_are_read() -> None:
    texts = [
        b'{"n": 1}',
        b' {"s": "a\\nb", "x": [1, {}]}\n',
        b"{}",
        b'{"n": null,\n "s": "\xc3\xa9"}',
    ]
    assert read(texts) == [obj(1), {"n": None, "s": "a\nb"}, {"n": None, "s": None},
                           {"n": None, "s": "é"}]  # fmt: skip
    assert read([]) == []


@pytest.mark.parametrize(
    ("texts", "found"),
    [
        ([b"", b'{"n": 1}{"n": 2}'], [None, None]),  # as many objects as values, not one in each
        ([b'{"n": 1', b"}", b'{"n": 2} {"n": 3}'], [None, None, None]),
        ([b'{"s": "}', b'{"}', b'{"n": 1}{"n": 2}'], [None, None, None]),
        ([b'{"n": 1}', b"[1]", b"7", b"null", b'"{}"', b'{"n": 2}'],
         [obj(1), None, None, None, None, obj(2)]),
        ([b'{"s": "\xff"}', b'{"n": 2}'], [None, obj(2)]),
        ([b'{"n": 1.5}', b'{"n": 2}'], [None, obj(2)]),
    ],
)  # fmt: skip
def test_a_value_that_is_not_one_object_is_null_and_its_neighbours_are_not(
    texts: list[bytes], found: list[Any]
) -> None:
    assert read(texts) == found
    with pytest.raises(InvalidRecord, match=rf"offset {100 + found.index(None)} of partition 0"):
        read(texts, "fail")


def test_a_bad_value_among_thousands_is_found_by_halves(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    real = values.parsed
    monkeypatch.setattr(values, "parsed", lambda *given: calls.append(1) or real(*given))
    texts = [b'{"n": %d, "s": null}' % n for n in range(8_192)]
    texts[5_000] = b"no"
    found = read(texts)
    assert [n for n, each in enumerate(found) if each is None] == [5_000]
    assert found[4_999:5_002] == [obj(4_999), None, obj(5_001)]
    assert len(calls) == 1 + 2 * 13


def test_shapes_are_not_looked_for_where_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    looked = []
    monkeypatch.setattr(shapes, "columns", lambda *given: (looked.append(1), None))
    reader = Objects(KIND, "null")
    for _ in range(10):
        reader.of(pa.array([b'{"n": 1}'] * 100), pa.array(range(100)), 0)
    assert len(looked) == values.TRIES


def test_rows_without_a_value_stay_without() -> None:
    given = pa.array([None, b'{"n": 1}', None, b"no", b'{"n": 2}', None], pa.binary())
    offsets = pa.array(range(100, 106))
    found = Objects(KIND, "null").of(given, offsets, 0)
    assert found.to_pylist() == [None, obj(1), None, None, obj(2), None]
    with pytest.raises(InvalidRecord, match="offset 103 of partition 7"):
        Objects(KIND, "fail").of(given, offsets, 7)
    assert Objects(KIND, "fail").of(given[:1], offsets[:1], 0).to_pylist() == [None]


def test_text_is_checked() -> None:
    assert values.texts(batch([b"a", b"\xc3\xa9"]), "fail").to_pylist() == ["a", "é"]
    assert values.texts(batch([b"a", b"\xff"]), "null").to_pylist() == ["a", None]
    with pytest.raises(InvalidRecord, match="offset 101 of partition 0 is not UTF-8"):
        values.texts(batch([b"a", b"\xff"]), "fail")
