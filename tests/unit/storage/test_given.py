"""A file that somebody names: read as pyarrow reads, through the one door."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from esker.errors import StorageError
from esker.storage.given import Given


def test_it_is_read_from_any_place_on(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"0123456789")
    file = Given(str(tmp_path / "a"))
    assert (file.readable(), file.seekable(), file.writable(), file.size) == (True, True, False, 10)
    assert (file.read(3), file.tell()) == (b"012", 3)
    assert (file.seek(2, 1), file.read(1)) == (5, b"5")
    assert (file.seek(-2, 2), file.read(), file.read(1)) == (8, b"89", b"")
    assert (file.seek(0), file.read(None)) == (0, b"0123456789")
    file.flush()
    file.close()
    file.close()
    assert file.closed


def test_pyarrow_takes_it(tmp_path: Path) -> None:
    table = pa.table({"n": list(range(1_000))})
    pq.write_table(table, tmp_path / "t.parquet")
    file = Given(str(tmp_path / "t.parquet"))
    assert pq.read_table(pa.PythonFile(file)).equals(table)
    file.close()


def test_one_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="nowhere"):
        Given(str(tmp_path / "nowhere"))
