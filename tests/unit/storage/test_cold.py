"""Cold stores: what is put there is there, what is not is told, and nothing else is believed."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from esker.errors import ColdUnavailable, Corruption, InvalidOption, StorageError
from esker.format import segment as fmt
from esker.format.checksum import checksum
from esker.format.place import Place, stub_of
from esker.storage.cold import (
    ColdFolder,
    ColdObjects,
    ColdStore,
    cold_place,
    cold_root,
    cold_store,
    fetch,
)
from esker.storage.maps import Fetched, Maps
from esker.storage.memory import MemoryFiles
from esker.storage.sealed import SealedSegment, sizes_of
from tests.unit.storage.made import disk, filled, flip, numbers, sealed_on

ROOT = "/cold"


def a_folder() -> ColdFolder:
    files = MemoryFiles()
    files.make_dir(ROOT)
    return ColdFolder(files, ROOT)


@pytest.fixture(params=["folder", "objects", "bare"])
def store(request: pytest.FixtureRequest) -> ColdStore:
    if request.param == "folder":
        return a_folder()
    store = ColdObjects("mock:///a/b" if request.param == "objects" else "mock:///")
    for folder in ("s/1", "s/2", "other"):  # which an object store does not need
        system, path = store._at(folder)
        system.create_dir(path, recursive=True)
    return store


def test_a_cold_store_keeps_what_it_is_given(store: ColdStore) -> None:
    assert store.list("s/") == []
    for key in ("s/1/x", "s/2/y", "other/z"):
        store.put(key, key.encode())
    assert bytes(store.get("s/2/y")) == b"s/2/y"
    assert store.list("s/") == ["s/1/x", "s/2/y"]
    assert store.list("s/2/") == ["s/2/y"]
    assert store.folders("s/") == ["1", "2"]
    assert store.folders("s/2/") == store.folders("none/") == []
    store.delete("s/2/y")
    store.delete("s/2/y")
    assert store.list("s/") == ["s/1/x"]
    with pytest.raises(ColdUnavailable, match="cannot read") as told:
        store.get("s/2/y")
    assert told.value.missing
    assert (told.value.root, told.value.key) == (store.root, "s/2/y")


def test_a_cold_store_is_at_a_path_or_a_url() -> None:
    assert cold_place("/a/b/") == "/a/b"
    assert cold_place("a").endswith("/a")
    assert cold_place("file:///a/b") == cold_root("/a/b") == "/a/b"
    assert cold_place("s3://bucket/x/") == "s3://bucket/x/"
    assert cold_root("s3://bucket/x/") == "s3://bucket/x"
    for wrong in ("a\0b", "x" * 1025):
        with pytest.raises(InvalidOption):
            cold_place(wrong)


def test_secrets_are_neither_written_down_nor_told() -> None:
    url = "s3://KEY:SECRET@bucket/x?region=eu-1&endpoint_override=h%3A80&scheme=http&session=SECRET"
    told = "s3://bucket/x?region=eu-1&endpoint_override=h%3A80&scheme=http"
    assert cold_root(url) == told
    store = ColdObjects(url.replace("s3:", "nope:"))
    assert "SECRET" not in store.root
    with pytest.raises(ColdUnavailable) as found:
        store.get("k")
    assert "SECRET" not in str(found.value)


def test_who_is_at_a_place_is_known_by_it() -> None:
    assert isinstance(cold_store(MemoryFiles(), "/a"), ColdFolder)
    assert isinstance(cold_store(MemoryFiles(), "s3://a"), ColdObjects)


def test_a_directory_that_is_not_there_is_told() -> None:
    store = ColdFolder(MemoryFiles(), "/nowhere")
    with pytest.raises(ColdUnavailable, match="/nowhere is not there"):
        store.list("s/")


def test_a_url_that_nobody_knows_is_told_when_it_is_needed() -> None:
    store = ColdObjects("nope://a")
    for call in (store.get, store.list, store.delete, lambda key: store.put(key, b"")):
        with pytest.raises(ColdUnavailable, match="nope"):
            call("s/x")


def test_names_of_directories_are_synced_by_everybody_who_writes() -> None:
    files = MemoryFiles()
    files.make_dir(ROOT)
    synced: list[str] = []
    files.sync_dir = synced.append  # type: ignore[assignment]
    ColdFolder(files, ROOT).put("s/1/x", b"x")
    assert synced == ["/cold", "/cold/s", "/cold/s/1"]
    store = ColdFolder(files, ROOT)
    store.put("s/1/y", b"y")
    assert synced[3:] == synced[:3], "nobody knows whether the first one came so far"
    store.put("s/1/z", b"z")
    assert synced[6:] == ["/cold/s/1"]


def moved(files: MemoryFiles, key: str = "s/x") -> tuple[SealedSegment, Place]:
    """A segment, of which a stub is left."""
    segment = sealed_on(files, filled(files, size=300))
    data = bytes(segment.data())
    trailer = fmt.decode_trailer(data[-32:])
    assert not isinstance(trailer, str)
    place = Place(ROOT, key, len(data), trailer[1])
    if not files.kind(ROOT):
        files.make_dir(ROOT)
    ColdFolder(files, ROOT).put(key, data)
    replace(files, segment.path, stub_of(data, place))
    return SealedSegment(segment.path, segment.name).attach(Maps(files, 1 << 30)), place


def replace(files: MemoryFiles, path: str, data: bytes) -> None:
    files.files[path] = bytearray(data)


def test_a_stub_is_read_as_its_segment() -> None:
    files = disk()
    segment, place = moved(files)
    assert not segment.cold, "nobody has looked"
    assert (segment.rows, segment.header.base, segment.place) == (8, 100, place)
    assert segment.cold
    assert sizes_of(files, segment.path) == (place.size, len(files.files[segment.path]))
    assert segment._maps is not None
    assert segment._maps.cold.fetched == 0, "nothing of that needs it"
    assert numbers(segment.read(0, 8, 1 << 20)[1]) == list(range(8))
    assert numbers(segment.at(5)[0])[segment.at(5)[1]] == 5
    assert segment._maps.cold.fetched == 1
    assert len(segment.data()) < place.size == len(segment.inside()[0])


def test_sizes_are_those_of_the_file_where_it_is_no_stub() -> None:
    files = disk()
    segment = sealed_on(files, filled(files))
    size = len(files.files[segment.path])
    assert sizes_of(files, segment.path) == (size, size)
    flip(files, segment.path, 20)
    assert sizes_of(files, segment.path) == (size, size)


def test_a_segment_that_came_back_is_found_where_it_is() -> None:
    files = disk()
    segment, place = moved(files)
    assert segment.rows == 8
    whole = files.files.pop(f"{ROOT}/s/x")
    files.files[segment.path] = whole
    assert numbers(segment.read(0, 8, 1 << 20)[1]) == list(range(8)), "the mapped stub is old"
    assert segment.place is None
    assert not segment.cold
    assert place.size == len(segment.data())


def test_a_segment_that_is_not_there_is_told_with_its_offsets() -> None:
    files = disk()
    segment, _ = moved(files)
    whole = files.files.pop(f"{ROOT}/s/x")
    with pytest.raises(ColdUnavailable, match=r"offsets 100\.\.107: cannot read") as told:
        segment.read(0, 8, 1)
    assert told.value.missing
    files.files[f"{ROOT}/s/x"] = bytearray(bytes(len(whole)))
    with pytest.raises(Corruption, match="no trailer") as found:
        segment.read(0, 8, 1)
    assert (found.value.first, found.value.last) == (100, 107)


def test_a_damaged_footer_of_a_stub_is_that_of_the_segment() -> None:
    files = disk()
    segment, _ = moved(files)
    flip(files, segment.path, len(files.files[segment.path]) - 4)
    assert segment.rows == 8
    assert segment.rebuilt
    assert numbers(segment.read(0, 8, 1 << 20)[1]) == list(range(8))


def test_damaged_footers_of_both_are_rebuilt_from_the_frames() -> None:
    """The hash is right, so it was moved like that: nobody does, but nobody trusts that either."""
    files = disk()
    segment = sealed_on(files, filled(files, size=300))
    data = bytearray(segment.data())
    trailer = fmt.decode_trailer(bytes(data[-32:]))
    assert not isinstance(trailer, str)
    stub = bytearray(stub_of(bytes(data), Place(ROOT, "s/x", len(data), 0)))
    data[trailer[0] + 70] ^= 1
    data[-32:] = fmt.encode_trailer(trailer[0], checksum(data[:-32]))
    place = Place(ROOT, "s/x", len(data), checksum(data[:-32]))
    stub = bytearray(stub_of(bytes(data), place))
    stub[-4] ^= 1
    files.make_dir(ROOT)
    ColdFolder(files, ROOT).put("s/x", bytes(data))
    replace(files, segment.path, bytes(stub))
    again = SealedSegment(segment.path, segment.name).attach(Maps(files, 1 << 30))
    assert numbers(again.read(0, 8, 1 << 20)[1]) == list(range(8))
    assert again.rebuilt == "the footer does not match its checksum"


def test_what_has_another_hash_is_not_what_was_moved() -> None:
    store = a_folder()
    data = b"x" * 50
    data += fmt.encode_trailer(7, checksum(data))
    store.put("k", data)
    assert fetch(store, Place(ROOT, "k", len(data), checksum(data[:-32]))) == data
    for place, wrong in (
        (Place(ROOT, "k", len(data) + 1, checksum(data[:-32])), "82 bytes were fetched"),
        (Place(ROOT, "k", len(data), 7), "does not have the hash"),
    ):
        with pytest.raises(Corruption, match=wrong) as told:
            fetch(store, place)
        assert told.value.path == "/cold/k"


def placed(files: MemoryFiles, key: str, size: int) -> Place:
    data = b"x" * (size - 32)
    data += fmt.encode_trailer(7, checksum(data))
    ColdFolder(files, ROOT).put(key, data)
    return Place(ROOT, key, size, checksum(data[:-32]))


def test_fetched_segments_are_kept_up_to_a_bound_and_the_last_in_any_case() -> None:
    files = MemoryFiles()
    files.make_dir(ROOT)
    one, two, large = (placed(files, *each) for each in (("1", 400), ("2", 400), ("3", 2000)))
    cold = Fetched(files, 1000)
    kept = cold.get(one)
    assert cold.get(one) is kept
    cold.get(two)
    assert (cold.fetched, cold.hits, cold.bytes) == (2, 1, 800)
    cold.get(one)
    cold.get(large)
    assert cold.bytes == 2000
    assert len(kept.data) == 400, "what was handed out stays"
    cold.drop("3")
    cold.drop("3")
    assert cold.bytes == 0
    assert cold.has_room_for(one)
    assert not cold.has_room_for(large), "the one being read would have to go"
    cold.get(one)
    assert not cold.has_room_for(one), "it is here"
    cold.get(two)
    cold.renew()
    maps = Maps(files, 1000, cold)
    maps.renew()
    maps.clear()
    assert cold.bytes == 0


def test_what_many_ask_for_is_fetched_once(monkeypatch: pytest.MonkeyPatch) -> None:
    files = MemoryFiles()
    files.make_dir(ROOT)
    place, cold = placed(files, "1", 400), Fetched(files, 1000)
    store = cold.store(ROOT)
    assert cold.store(ROOT) is store
    inside, go, real = threading.Event(), threading.Event(), store.get

    def slow(key: str) -> Any:
        inside.set()
        assert go.wait(20)
        return real(key)

    monkeypatch.setattr(store, "get", slow)
    got: list[Any] = []
    threads = [threading.Thread(target=lambda: got.append(cold.get(place))) for _ in range(4)]
    threads[0].start()
    assert inside.wait(20)
    for thread in threads[1:]:
        thread.start()
    while len(threads) > 1 and not cold._gates["1"].locked():
        pass
    go.set()
    for thread in threads:
        thread.join()
    assert len(set(map(id, got))) == 1
    assert cold.fetched == 1
    assert cold._gates == {}


def test_where_all_is_now_is_asked_first_and_where_it_was_put_then() -> None:
    files = MemoryFiles()
    for folder in (ROOT, "/new"):
        files.make_dir(folder)
    place = placed(files, "1", 400)
    cold = Fetched(files, 1000, "/new")
    assert cold.store(ROOT).root == "/new"
    assert len(cold.get(place).data) == 400
    with pytest.raises(ColdUnavailable):
        cold.get(Place("/new", "2", 1, 1))

    def broken(*_: object) -> Any:
        raise StorageError("it does not answer")

    files.open = broken  # type: ignore[method-assign]
    cold.clear()
    with pytest.raises(ColdUnavailable, match="/new: it does not answer"):
        cold.get(place)
