"""Mappings: few at a time, the one longest unused goes first, and what was handed out stays."""

from __future__ import annotations

from typing import Any

from esker.storage.maps import Maps
from esker.storage.memory import MemoryFiles


def with_files(*sizes: int) -> MemoryFiles:
    files = MemoryFiles()
    for number, size in enumerate(sizes):
        files.open(f"/{number}", "create").write(0, [b"%d" % number * size])
    return files


def test_a_file_is_mapped_once_and_found_again() -> None:
    maps = Maps(with_files(100), 1000)
    first = maps.get("/0")
    assert maps.get("/0") is first
    assert (maps.made, maps.hits, maps.bytes) == (1, 1, 100)


def test_the_longest_unused_goes_first_and_what_was_handed_out_stays() -> None:
    maps = Maps(with_files(400, 400, 400), 1000)
    zero, one = maps.get("/0"), maps.get("/1")
    maps.get("/0")
    maps.get("/2")
    assert (maps.dropped, maps.bytes) == (1, 800)
    assert maps.get("/0") is zero
    assert maps.get("/1") is not one
    assert bytes(one.data) == b"1" * 400


def test_a_mapping_that_is_made_again_is_told_from_the_first_one_of_another_file() -> None:
    maps = Maps(with_files(400, 400), 0)
    maps.get("/0")
    maps.get("/1")
    assert (maps.made, maps.remade) == (2, 0)
    maps.get("/0")
    assert (maps.made, maps.remade) == (3, 1)
    maps.drop("/1")  # what comes in its place is another file
    maps.get("/1")
    assert (maps.made, maps.remade) == (4, 1)


def test_one_file_is_mapped_however_large_it_is() -> None:
    maps = Maps(with_files(400, 400), 0)
    maps.get("/0")
    maps.get("/1")
    assert (maps.bytes, maps.dropped) == (400, 1)


def test_a_mapping_is_dropped_before_its_file_is() -> None:
    maps = Maps(with_files(400), 1000)
    maps.get("/0")
    maps.drop("/0")
    maps.drop("/0")
    assert (maps.bytes, maps.dropped) == (0, 1)
    maps.get("/0")
    maps.clear()
    assert maps.bytes == 0


def test_a_mapping_is_let_go_when_its_file_was_replaced_or_is_gone() -> None:
    files = with_files(400, 300)
    maps = Maps(files, 1000)
    old, other = maps.get("/0"), maps.get("/1")
    maps.drop_replaced("/0")
    maps.drop_replaced("/2")  # nobody has mapped it
    assert maps.get("/0") is old
    files.files["/0"] = bytearray(b"new")
    maps.drop_replaced("/0")
    assert bytes(maps.get("/0").data) == b"new"
    assert bytes(old.data) == b"0" * 400
    files.unlink("/1")
    maps.drop_replaced("/1")
    assert maps.bytes == 3
    assert bytes(other.data) == b"1" * 300


def test_a_file_that_was_replaced_while_it_was_being_mapped_is_not_kept() -> None:
    files = with_files(400)
    maps = Maps(files, 1000)
    real = files.open

    def overtaken(path: str, mode: Any) -> Any:
        file = real(path, mode)
        files.files[path] = bytearray(b"new")
        maps.drop(path)
        return file

    files.open = overtaken  # type: ignore[method-assign]
    assert len(maps.get("/0").data) == 400
    files.open = real  # type: ignore[method-assign]
    assert bytes(maps.get("/0").data) == b"new"


def test_a_forked_child_is_not_kept_out_by_a_thread_it_does_not_have() -> None:
    maps = Maps(with_files(400), 1000)
    maps._lock.acquire()  # somebody was in here when the process was forked
    maps.renew()
    assert bytes(maps.get("/0").data) == b"0" * 400


def test_of_two_threads_that_map_a_file_at_once_one_wins() -> None:
    files = with_files(400)
    maps = Maps(files, 1000)
    opened = files.open
    inside: list[Any] = []

    def slow(path: str, mode: Any) -> Any:
        if not inside:
            inside.append(None)
            inside.append(maps.get(path))  # the other one is faster
        return opened(path, mode)

    files.open = slow  # type: ignore[method-assign]
    assert maps.get("/0") is inside[1]
    assert (maps.made, maps.bytes) == (1, 400)
