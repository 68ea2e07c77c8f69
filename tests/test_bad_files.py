"""Wrong directories, strangers, later formats, lies and links: told by name, touched by nobody."""

from __future__ import annotations

import errno
import os
import resource
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import esker
from esker.format import catalog as catalog_format
from esker.format import frame
from esker.format import journal as journal_format
from esker.format import segment as segment_format
from esker.format import state as state_format
from esker.format.checksum import checksum
from esker.storage.files import SYSTEM_FILES
from tests.helpers import (
    FORTY,
    data_of,
    forty,
    only,
    snapshot,
)

# ---- the wrong directory ---------------------------------------------------------------------


def test_a_directory_with_other_files_is_not_taken(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("precious")
    (tmp_path / "figures").mkdir()
    before = snapshot(tmp_path)
    for mode in ("rw", "r"):
        with pytest.raises(esker.NotAStore) as caught:
            esker.open(tmp_path, mode=mode)  # type: ignore[arg-type]
        assert str(tmp_path) in str(caught.value)
    with pytest.raises(esker.NotAStore, match=r"thesis\.tex.*new or empty directory"):
        esker.open(tmp_path)
    assert snapshot(tmp_path) == before


def test_a_file_is_not_a_directory(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"x")
    for mode in ("rw", "r"):
        with pytest.raises(esker.NotAStore, match=r"file is not a directory; give the directory"):
            esker.open(file, mode=mode)  # type: ignore[arg-type]
    with pytest.raises(esker.UnsafePath, match="file"):
        esker.open(file / "below")
    assert snapshot(tmp_path) == {"file": b"x"}


def test_reading_where_there_is_no_store_makes_none(tmp_path: Path) -> None:
    for root in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(esker.NotAStore, match=r'no Esker store at .*; open it with mode="rw"'):
            esker.open(root, mode="r")
    assert snapshot(tmp_path) == {}


def test_a_store_whose_identity_is_gone_is_not_made_anew(path: Path) -> None:
    (path / "esker.store").unlink()
    before = snapshot(path)
    with pytest.raises(esker.NotAStore, match=r"esker\.store.*esker\.repair"):
        esker.open(path)
    assert snapshot(path) == before


@pytest.mark.parametrize("content", [b"", b"x" * 48, b"ESKERSTO" + bytes(40)])
def test_an_identity_that_cannot_be_read_is_told(path: Path, content: bytes) -> None:
    (path / "esker.store").write_bytes(content)
    before = snapshot(path)
    for mode in ("rw", "r"):
        with pytest.raises(esker.NotAStore, match=r"esker\.store: .*backup.*esker\.repair"):
            esker.open(path, mode=mode)  # type: ignore[arg-type]
    assert snapshot(path) == before


def test_a_directory_where_anybody_can_exchange_files_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    with pytest.raises(esker.UnsafePath, match=r"written by everybody.*sticky"):
        esker.open(tmp_path / "data")
    assert snapshot(tmp_path) == {}
    tmp_path.chmod(0o1777)
    esker.open(tmp_path / "data").close()


def test_files_and_directories_belong_to_their_owner_alone(path: Path) -> None:
    for found in [path, *path.rglob("*")]:
        assert found.stat().st_mode & 0o077 == 0, found


def test_an_address_of_the_web_is_not_a_path(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(esker.InvalidOption, match=r"s3://bucket/x.*directory"):
        esker.open("s3://bucket/x")
    assert snapshot(tmp_path) == {}


@pytest.mark.parametrize("wrong", [None, 5, b"data", "", "nul\0byte", ["data"], True, object()])
def test_a_path_is_text_or_a_path(tmp_path: Path, monkeypatch: Any, wrong: Any) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(esker.InvalidOption):
        esker.open(wrong)
    assert snapshot(tmp_path) == {}


# ---- foreign files inside a store ------------------------------------------------------------


def test_foreign_files_beside_ours_are_left_alone(path: Path) -> None:
    (path / "notes.txt").write_text("mine")
    (path / "topics" / "README").write_text("mine")
    (path / "journal" / "odd").write_text("mine")
    with esker.open(path) as store:
        store["t"].append(b"more", wait=True)
        assert len(store["t"]) == 41
    assert (path / "notes.txt").read_text() == "mine"
    assert (path / "topics" / "README").read_text() == "mine"
    assert (path / "journal" / "odd").read_text() == "mine"


def test_a_foreign_file_in_a_shard_is_set_aside_by_a_recovery_and_kept(path: Path) -> None:
    folder = only(path, "0000/state").parent
    (folder / "notes.txt").write_text("mine")
    slot = folder / "state"
    slot.write_bytes(bytes(len(slot.read_bytes())))  # as if it had never been closed
    with esker.open(path) as store:
        assert "stranger" in store.recovery.labels
        assert [record.value for record in store["t"].read(stop=40)] == FORTY
    (kept,) = (path / "quarantine").glob("*notes.txt*")
    assert kept.read_text() == "mine"


# ---- a later format --------------------------------------------------------------------------


def patched(file: Path, at: int, content: bytes, begin: int, end: int, seed: int = 0) -> None:
    """Change bytes of a file, and the checksum of [begin, end) that lies behind them."""
    data = bytearray(file.read_bytes())
    data[at : at + len(content)] = content
    data[end : end + 8] = struct.pack("<Q", checksum(bytes(data[begin:end]), seed))
    file.write_bytes(data)


def later_identity(root: Path) -> Path:
    patched(root / "esker.store", 8, struct.pack("<H", catalog_format.VERSION + 1), 0, 40)
    return root


def later_catalog(root: Path) -> Path:
    newest = max(root.glob("catalog-*"))
    patched(newest, 4, struct.pack("<H", catalog_format.VERSION + 1), 0, 56)
    return newest


def later_log(root: Path) -> Path:
    log = only(root, "*.log")
    patched(log, 8, struct.pack("<H", segment_format.VERSION + 1), 0, 120)
    return log


def later_sealed(root: Path) -> Path:
    sealed = only(root, "*.seg")
    patched(sealed, 8, struct.pack("<H", segment_format.VERSION + 1), 0, 120)
    return sealed


def later_state(root: Path) -> Path:
    state = only(root, "0000/state")
    data = state.read_bytes()
    for begin in state_format.SLOT_POSITIONS:
        if any(data[begin : begin + state_format.SLOT_SIZE]):
            end = begin + state_format.SLOT_SIZE - 8
            patched(state, begin + 4, struct.pack("<H", state_format.VERSION + 1), begin, end)
    return state


def later_journal(root: Path) -> Path:
    journal = root / "journal" / "00000001.journal"
    header = journal_format.JournalHeader(store_id(root), 1, 7, 0)
    journal.write_bytes(journal_format.encode_header(header) + bytes(4096))
    patched(journal, 8, struct.pack("<H", journal_format.VERSION + 1), 0, 56)
    return journal


def store_id(root: Path) -> bytes:
    return (root / "esker.store").read_bytes()[16:32]


@pytest.mark.parametrize(
    "make_later",
    [later_identity, later_catalog, later_log, later_sealed, later_state, later_journal],
)
def test_a_later_format_is_refused_and_not_touched(
    path: Path, make_later: Callable[[Path], Path]
) -> None:
    place = make_later(path)
    before = data_of(path)

    def use() -> None:
        with esker.open(path) as store:
            list(store["t"].read())
            store["t"].append(b"x", wait=True)

    with pytest.raises(esker.FormatTooNew, match="later Esker") as caught:
        use()
    assert str(place) in str(caught.value)
    assert data_of(path) == before


# ---- lengths that lie ------------------------------------------------------------------------


@pytest.fixture
def little_memory() -> Iterator[Callable[[], None]]:
    """Allows the process a quarter of a gigabyte more than it has, when called."""
    before = resource.getrlimit(resource.RLIMIT_AS)

    def limit() -> None:
        with open("/proc/self/statm") as statm:
            now = int(statm.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (now + (256 << 20), before[1]))

    yield limit
    resource.setrlimit(resource.RLIMIT_AS, before)


def with_header(file: Path, field: int, kind: str, number: int, *, which: int = 0) -> int:
    """Put a number into the header of a data frame, with a right checksum; returns its place."""
    data = file.read_bytes()
    header = segment_format.decode_header(data[: segment_format.HEADER_SIZE])
    assert not isinstance(header, str)
    at, seen = segment_format.HEADER_SIZE, 0
    while True:
        head = frame.decode_header(data, at, at, header.salt)
        assert isinstance(head, frame.Header)
        if head.kind == frame.DATA:
            if seen == which:
                break
            seen += 1
        at += head.size
    patched(file, at + field, struct.pack(kind, number), at, at + 56, header.salt + at)
    return at


BODY_SIZE, RAW_SIZE, COUNT, FIRST_ROW = 8, 12, 16, 20


@pytest.mark.parametrize("field", [BODY_SIZE, COUNT, FIRST_ROW], ids=["size", "count", "row"])
@pytest.mark.parametrize("pattern", ["*.seg", "*.log"])
@pytest.mark.parametrize("number", [2**31 - 1, 2**31, 2**32 - 1])
def test_a_huge_length_in_a_frame_is_damage_and_allocates_nothing(
    path: Path, pattern: str, field: int, number: int, little_memory: Callable[[], None]
) -> None:
    file = only(path, pattern)
    with_header(file, field, "<I", number)
    before = data_of(path)
    little_memory()
    with esker.open(path, mode="r") as store:
        topic = store["t"]
        with pytest.raises(esker.Corruption, match=r"esker\.repair") as caught:
            list(topic.read())
    assert str(file) in str(caught.value)
    assert data_of(path) == before


@pytest.mark.parametrize("number", [2**31, 2**32 - 1])
def test_a_huge_raw_size_of_a_compressed_frame_allocates_nothing(
    tmp_path: Path, number: int, little_memory: Callable[[], None]
) -> None:
    root = tmp_path / "data"
    with esker.open(root) as store:
        topic = store.create("t", compression="zstd", compress_at="commit", compress_min_bytes=1)
        topic.append_many([b"x" * 5000] * 20)
    file = only(root, "*.log")
    with_header(file, RAW_SIZE, "<I", number)
    little_memory()
    with esker.open(root, mode="r") as store, pytest.raises(esker.Corruption, match="decoded"):
        list(store["t"].read())


def test_a_huge_length_in_a_journal_is_damage_and_allocates_nothing(
    path: Path, little_memory: Callable[[], None]
) -> None:
    journal = path / "journal" / "00000001.journal"
    header = journal_format.JournalHeader(store_id(path), 1, 7, 0)
    entry = bytearray(
        journal_format.encode_entry(
            b"x" * 8, topic=1, shard=0, synced=0, segment=2, position=0, next_offset=1, at=64,
            salt=7,
        )
    )  # fmt: skip
    entry[4:8] = struct.pack("<I", 2**32 - 1)
    entry[56:64] = struct.pack("<Q", checksum(bytes(entry[:56]), 7 + 64))
    journal.write_bytes(journal_format.encode_header(header) + bytes(entry) + bytes(4096))
    little_memory()
    with esker.open(path) as store:
        assert [label for label in store.recovery.labels if "journal" in label]
        assert [record.value for record in store["t"].read()] == FORTY


def test_a_huge_length_in_a_catalog_is_damage_and_allocates_nothing(
    path: Path, little_memory: Callable[[], None]
) -> None:
    newest = max(path.glob("catalog-*"))
    patched(newest, 16, struct.pack("<I", 2**32 - 1), 0, 56)
    little_memory()
    with esker.open(path) as store:
        assert "damaged_catalog" in store.recovery.labels
        assert list(store) == ["t"]
        assert [record.value for record in store["t"].read()] == FORTY


# ---- links -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "pattern",
    ["esker.store", "catalog-*", "0000/state", "0000/counters", "0000/lock", "*.log", "*.seg",
     "catalog.lock"],
)  # fmt: skip
def test_a_link_where_a_file_should_be_is_refused(path: Path, tmp_path: Path, pattern: str) -> None:
    file = max(path.rglob(pattern))
    elsewhere = tmp_path / "elsewhere"
    file.rename(elsewhere)
    file.symlink_to(elsewhere)
    before, target = data_of(path), elsewhere.read_bytes()

    def use() -> None:
        with esker.open(path, background=False) as store:
            store.create("new")
            list(store["t"].read())
            store["t"].append(b"x", wait=True)

    with pytest.raises(esker.UnsafePath, match="symbolic link") as caught:
        use()
    assert str(file) in str(caught.value)
    assert caught.value.path == str(file)
    assert elsewhere.read_bytes() == target
    if pattern in ("esker.store", "catalog.lock"):
        assert data_of(path) == before


def test_a_directory_where_a_file_should_be_is_refused(path: Path) -> None:
    log = only(path, "*.log")
    content = log.read_bytes()
    log.unlink()
    log.mkdir()
    with pytest.raises(esker.UnsafePath) as caught, esker.open(path) as store:
        list(store["t"].read())
    assert str(log) in str(caught.value)
    log.rmdir()
    log.write_bytes(content)
    assert forty(path) == FORTY


def test_a_pipe_where_a_file_should_be_does_not_hang(path: Path) -> None:
    sealed = only(path, "*.seg")
    sealed.unlink()
    os.mkfifo(sealed)
    with pytest.raises(esker.UnsafePath), esker.open(path) as store:
        list(store["t"].read())


def test_a_link_to_the_directory_of_a_store_is_followed(path: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(path)
    assert forty(tmp_path / "link") == FORTY
    with esker.open(tmp_path / "link") as store:
        store["t"].append(b"x", wait=True)
    assert forty(path) == [*FORTY, b"x"]


def test_what_the_system_says_becomes_ours() -> None:
    with pytest.raises(esker.StorageError) as caught:
        SYSTEM_FILES.open("/nonexistent/esker", "r")
    assert caught.value.errno == errno.ENOENT
    assert caught.value.path == "/nonexistent/esker"
    assert str(caught.value) == "cannot open /nonexistent/esker: No such file or directory"
