"""The file of routes on disk: replaced as a whole, by one at a time."""

from __future__ import annotations

import threading
from typing import Any

import msgspec
import pytest

from esker.errors import Corruption, FormatTooNew, StorageError
from esker.format.checksum import checksum
from esker.format.routes import RouteEntry, Routes
from esker.storage.memory import MemoryFiles
from esker.storage.routes import RoutesFile

ROOT = "/store"
ENTRY = RouteEntry(
    id=1, name="a->b", source=1, source_name="a", destination=2, destination_name="b", created=5
)


@pytest.fixture
def files() -> MemoryFiles:
    made = MemoryFiles()
    made.make_dir(ROOT)
    return made


def opened(files: Any, store: bytes = b"s" * 16) -> RoutesFile:
    return RoutesFile(files, ROOT, store, threading.Lock())


def test_without_a_file_there_are_no_routes(files: MemoryFiles) -> None:
    assert opened(files).load() == Routes()
    assert not files.kind(f"{ROOT}/routes"), "looking makes nothing"


def test_what_one_has_stored_another_one_loads(files: MemoryFiles) -> None:
    mine, other = opened(files), opened(files)
    with mine.alone() as routes:
        assert routes == Routes()
        mine.store(Routes(2, (ENTRY,)))
    with other.alone() as routes:
        assert routes == Routes(2, (ENTRY,))
        other.store(msgspec.structs.replace(routes, next_id=3))
    assert mine.load().next_id == 3
    assert mine.generation == 2
    mine.close()
    mine.close()


def test_the_lock_is_given_back_whatever_happens(files: MemoryFiles) -> None:
    file = opened(files)
    with pytest.raises(KeyError), file.alone():
        raise KeyError
    with file.alone():
        pass


def test_damage_is_told_and_not_taken_for_no_routes(files: MemoryFiles) -> None:
    file = opened(files)
    with file.alone():
        file.store(Routes(2, (ENTRY,)))
    data = files.files[f"{ROOT}/routes"]
    data[70] ^= 1
    with pytest.raises(Corruption, match="restored from a backup"):
        file.load()
    with pytest.raises(Corruption), file.alone():
        raise AssertionError
    data[70] ^= 1
    data[4] = 9
    data[56:64] = checksum(bytes(data[:56])).to_bytes(8, "little")
    with pytest.raises(FormatTooNew, match="version 9"):
        file.load()


def test_routes_of_another_store_are_refused(files: MemoryFiles) -> None:
    file = opened(files)
    with file.alone():
        file.store(Routes(2, (ENTRY,)))
    with pytest.raises(Corruption, match="another store"):
        opened(files, b"t" * 16).load()


def test_a_store_that_fails_changes_nothing(files: MemoryFiles, monkeypatch: Any) -> None:
    file = opened(files)
    with file.alone():
        file.store(Routes(2, (ENTRY,)))

    def refused(*_: Any) -> None:
        raise StorageError("no")

    with monkeypatch.context() as patch, file.alone():
        patch.setattr(files, "rename", refused)
        with pytest.raises(StorageError):
            file.store(Routes(9, ()))
    assert file.routes == opened(files).load() == Routes(2, (ENTRY,))
    assert file.generation == 1
