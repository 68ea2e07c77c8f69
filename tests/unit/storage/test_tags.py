"""An index of tags is made when it is needed, and once; what cannot be believed is made anew."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

import esker
from esker.errors import StorageError
from esker.storage import tags
from tests.helpers import Refusing


@pytest.fixture
def shard(tmp_path: Path) -> Any:
    """A shard with one sealed segment, half of whose frames have tags."""
    with esker.open(tmp_path / "data", files=Refusing(), background=False) as store:
        topic = store.create("t", segment_records=6)
        topic.append_many([esker.Record(b"x", tag="a"), esker.Record(b"y", tag="b")] * 2)
        topic.append_many([b"plain"] * 3)
        topic.append_many([b"next"])
        store.tick()
        yield topic._shards[0]


def index_of(shard: Any) -> Any:
    return tags.index_of(shard.files, shard.maps, shard.sealed[0])


def test_it_is_made_once_and_then_taken_from_the_disk(shard: Any) -> None:
    assert list(index_of(shard).equal(b"a")) == [0, 2]
    made = shard.files.calls.count(("create", tags.path_of(shard.sealed[0]) + ".tmp"))
    assert list(index_of(shard).equal(b"b")) == [1, 3]
    assert shard.files.calls.count(("create", tags.path_of(shard.sealed[0]) + ".tmp")) == made == 1


def test_what_a_crash_left_half_made_is_in_nobodys_way(shard: Any) -> None:
    path = Path(tags.path_of(shard.sealed[0]))
    path.with_name(path.name + ".tmp").write_bytes(b"half")
    assert list(index_of(shard).equal(b"a")) == [0, 2]
    assert path.exists()
    assert not path.with_name(path.name + ".tmp").exists()


def test_damage_is_not_believed(shard: Any) -> None:
    path = Path(tags.path_of(shard.sealed[0]))
    path.write_bytes(b"")
    assert list(index_of(shard).equal(b"a")) == [0, 2]
    whole = path.read_bytes()
    shard.maps.clear()
    path.unlink()
    path.write_bytes(whole[:-1])
    assert list(index_of(shard).equal(b"a")) == [0, 2]
    assert path.read_bytes() == whole


@pytest.mark.parametrize("call", ["create", "write", "sync", "rename"])
def test_without_room_there_is_an_index_all_the_same(shard: Any, call: str) -> None:
    shard.files.refuse(call, errno.ENOSPC, ".tags")
    assert list(index_of(shard).equal(b"a")) == [0, 2]
    assert not Path(tags.path_of(shard.sealed[0])).exists()


def test_an_index_that_cannot_be_read_nor_replaced_is_told(shard: Any) -> None:
    index_of(shard)
    shard.maps.clear()
    shard.files.refuse("open", errno.EIO, ".tags")
    shard.files.refuse("unlink", errno.EIO, ".tags")
    with pytest.raises(StorageError):
        index_of(shard)
    shard.files.allow()


# ---- dropping --------------------------------------------------------------------------------


def drop(shard: Any) -> list[tuple[str, str]]:
    """Drop the index; returns the calls to the disk that this took."""
    before = len(shard.files.calls)
    tags.drop_index(shard.files, shard.maps, shard.sealed[0])
    return list(shard.files.calls[before:])


def test_an_index_is_dropped_for_good_and_made_again(shard: Any) -> None:
    path = Path(tags.path_of(shard.sealed[0]))
    index_of(shard)
    whole = path.read_bytes()
    index_of(shard)  # from the disk: it is mapped now
    assert drop(shard) == [("unlink", str(path)), ("sync_dir", str(path.parent))]
    assert not path.exists()
    assert list(index_of(shard).equal(b"a")) == [0, 2]
    assert path.read_bytes() == whole


def test_a_dropped_index_is_not_believed_because_it_is_still_mapped(shard: Any) -> None:
    path = tags.path_of(shard.sealed[0])
    index_of(shard)
    index_of(shard)
    mapped = shard.maps.get(path)
    assert shard.maps.get(path) is mapped
    drop(shard)
    index_of(shard)
    assert shard.maps.get(path) is not mapped


def test_where_there_is_no_index_none_is_dropped(shard: Any) -> None:
    assert drop(shard) == []
    index_of(shard)
    drop(shard)
    assert drop(shard) == []


def test_an_index_that_cannot_be_dropped_is_told(shard: Any) -> None:
    path = Path(tags.path_of(shard.sealed[0]))
    for call in ("unlink", "sync_dir"):
        index_of(shard)
        shard.files.refuse(call, errno.EIO)
        with pytest.raises(StorageError):
            drop(shard)
        shard.files.allow()
        assert path.exists() == (call == "unlink")
