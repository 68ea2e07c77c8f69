"""The saved table of keys: there as a whole, or as it was before."""

from __future__ import annotations

import errno

import pytest

from esker.errors import Corruption, FormatTooNew, StorageError
from esker.format import once as fmt
from esker.format.once import Place, Saved
from esker.storage import once
from esker.storage.files import content_of
from tests.helpers import Refusing
from tests.unit.storage.made import FOLDER, STORE, disk

OWNER = (STORE, 7, 0)
PATH = f"{FOLDER}/once"
FIRST = Saved(3, {b"k": Place(0, 3)}, {})
SECOND = Saved(5, {b"k": Place(0, 3)}, {("p", 0): Place(3, 2)})


def test_what_was_saved_last_is_loaded() -> None:
    files = disk()
    assert once.load(files, FOLDER, OWNER) is None
    for saved in (FIRST, SECOND):
        once.save(files, FOLDER, OWNER, saved)
        assert once.load(files, FOLDER, OWNER) == saved


def test_damage_is_told_with_its_path() -> None:
    files = disk()
    once.save(files, FOLDER, OWNER, FIRST)
    with pytest.raises(Corruption) as caught:
        once.load(files, FOLDER, (STORE, 7, 1))
    assert (caught.value.path, caught.value.reason) == (PATH, "the keys of another shard")


def test_a_table_of_a_later_version_is_not_touched() -> None:
    files = disk()
    once.save(files, FOLDER, OWNER, FIRST)
    data = bytearray(content_of(files, PATH))
    data[4] = 9
    data[56:64] = fmt.checksum(bytes(data[:56])).to_bytes(8, "little")
    files.open(PATH, "rw").write(0, [bytes(data)])
    with pytest.raises(FormatTooNew, match="version 9"):
        once.load(files, FOLDER, OWNER)


@pytest.mark.parametrize("call", ["create", "write", "sync", "rename"])
def test_a_save_that_fails_leaves_the_one_before_it_and_nothing_else(call: str) -> None:
    inner = disk()
    once.save(inner, FOLDER, OWNER, FIRST)
    files = Refusing(inner)
    files.refuse(call, errno.ENOSPC)
    with pytest.raises(StorageError):
        once.save(files, FOLDER, OWNER, SECOND)
    assert once.load(inner, FOLDER, OWNER) == FIRST
    assert not inner.kind(PATH + ".tmp")
