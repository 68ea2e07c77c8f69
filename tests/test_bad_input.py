"""Whatever is wrong is said by name, with its place and what to do; nothing is written or lost."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import esker
from esker.format import catalog as catalog_format
from esker.format import frame
from esker.format import journal as journal_format
from esker.format import segment as segment_format
from esker.format import state as state_format
from esker.format.checksum import checksum
from esker.storage.files import SYSTEM_FILES
from tests.helpers import Refusing, child, read_only_disk, snapshot

VALUES = [b"record %d" % n for n in range(40)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A store that was closed cleanly: one sealed segment, one log, forty records."""
    root = tmp_path / "data"
    with esker.open(root, background=False) as store:
        topic = store.create("t", segment_records=30)
        topic.append_many(VALUES[:30])
        topic.append_many(VALUES[30:])
        store.tick()
    return root


def only(root: Path, pattern: str) -> Path:
    (found,) = root.rglob(pattern)
    return found


def values(root: Path, **options: Any) -> list[bytes]:
    with esker.open(root, mode="r", **options) as store:
        return [record.value for record in store["t"].read()]


def data_of(root: Path) -> dict[str, bytes | str]:
    """What is on disk, without what only labels it: locks and counters."""
    return {
        name: content
        for name, content in snapshot(root).items()
        if not name.endswith(("lock", "counters"))
    }


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
    with pytest.raises(esker.InvalidOption, match=r"s3://bucket/x.*directories"):
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
        assert [record.value for record in store["t"].read(stop=40)] == VALUES
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


# ---- no permission, no room, no writing ------------------------------------------------------


def test_no_permission_is_told_with_the_path(path: Path) -> None:
    before = snapshot(path)
    for call in ("open", "lock", "page"):
        files = Refusing()
        files.refuse(call, errno.EACCES, "topics")
        with pytest.raises(esker.PermissionRefused, match="check who owns") as caught:
            _append_one(path, files)
        assert caught.value.errno == errno.EACCES
        assert str(path / "topics") in caught.value.path
        assert caught.value.path in str(caught.value)
    assert data_of(path) == {n: c for n, c in before.items() if n in data_of(path)}
    assert values(path) == VALUES


def _append_one(path: Path, files: Any) -> None:
    with esker.open(path, files=files, background=False) as store:
        store["t"].append(b"x", wait=True)


UNPRIVILEGED = """
    import os, sys
    import esker
    with esker.open(":memory:") as warm:  # import everything while we may
        warm["t"].append(b"x", wait=True)
    if os.geteuid() == 0:
        os.setgid(65534)
        os.setuid(65534)
    for mode in ("rw", "r"):
        try:
            esker.open(sys.argv[1], mode=mode)
        except esker.PermissionRefused as problem:
            print(problem.code, problem.path)
"""


def test_another_user_is_refused() -> None:
    with tempfile.TemporaryDirectory() as place:  # unlike tmp_path, others can come this far
        os.chmod(place, 0o755)
        root = Path(place) / "data"
        with esker.open(root) as store:
            store["t"].append_many(VALUES)
        before = snapshot(root)
        if os.geteuid() != 0:
            root.chmod(0)
        with child(UNPRIVILEGED, root) as other:
            said = other.end().splitlines()
        root.chmod(0o700)
        assert [line.split()[0] for line in said] == ["permission_refused"] * 2
        assert all(line.split()[1].startswith(str(root)) for line in said)
        assert snapshot(root) == before


@pytest.mark.parametrize("call", ["write", "create"])
def test_a_full_disk_loses_nothing(path: Path, call: str) -> None:
    files = Refusing()
    with esker.open(path, files=files, background=False) as store:
        topic = store["t"]
        topic.append_many([b"before"] * 20)  # the log is full: the next record needs a new one
        before = data_of(path)
        for number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            files.refuse(call, number, ".log")
            for attempt in (
                lambda: topic.append(b"refused", wait=True),
                lambda: topic.append_many([b"refused"] * 20),
                lambda: topic.append_arrow(pa.array([b"refused"])),
            ):
                with pytest.raises(esker.DiskFull, match=r"cannot .*(free some|limit)") as caught:
                    attempt()
                assert caught.value.errno == number
                assert ".log" in caught.value.path
            files.allow()
        assert data_of(path) == before
        assert topic.append(b"after", wait=True) == 60
        assert [record.value for record in topic.read(59)] == [b"before", b"after"]
    assert values(path) == [*VALUES, *[b"before"] * 20, b"after"]


def test_room_that_cannot_be_taken_ahead_is_not_missed(path: Path) -> None:
    files = Refusing()
    files.refuse("allocate", errno.ENOSPC)
    with esker.open(path, files=files) as store:
        topic = store.create("f", durability="fsync")
        assert [topic.append(b"%d" % n, wait=True) for n in range(5)] == list(range(5))
        assert "allocate" in [call for call, _ in files.calls]
    with esker.open(path) as store:
        assert [record.value for record in store["f"].read()] == [b"0", b"1", b"2", b"3", b"4"]


def test_half_a_write_on_a_full_disk_is_taken_back(path: Path) -> None:
    class Half(Refusing):
        full = False

        def open(self, path: str, mode: Any) -> Any:
            file = super().open(path, mode)
            write = file.write

            def half(position: int, parts: Any) -> None:
                if self.full and path.endswith(".log"):
                    data = b"".join(bytes(part) for part in parts)
                    write(position, [data[: len(data) // 2]])
                    self.check("write", path)
                write(position, parts)

            file.write = half  # type: ignore[method-assign]
            return file

    files = Half()
    with esker.open(path, files=files, background=False) as store:
        topic = store["t"]
        topic.append(b"before", wait=True)
        before = data_of(path)
        files.full = True
        files.refuse("write", errno.ENOSPC, ".log")
        with pytest.raises(esker.DiskFull):
            topic.append_many([b"refused"] * 100)
        files.full = False
        files.allow()
        assert data_of(path) == before, "half a frame was left behind"
        assert topic.append(b"after", wait=True) == 41
    with esker.open(path) as store:
        assert store.recovery.clean
        assert [record.value for record in store["t"].read()] == [*VALUES, b"before", b"after"]


def test_buffered_records_survive_a_full_disk(path: Path) -> None:
    files = Refusing()
    with esker.open(path, files=files, background=False) as store:
        topic = store["t"]
        assert [topic.append(b"a"), topic.append(b"b", tag="t")] == [40, 41]
        files.refuse("write", errno.ENOSPC, ".log")
        for call in (topic.flush, topic.sync, store.sync):
            with pytest.raises(esker.DiskFull):
                call()
        with pytest.raises(esker.DiskFull):
            topic.append(b"refused")
        assert topic.end() == 40
        files.allow()
        assert topic.append(b"c") == 42
        topic.sync()
        found = list(topic.read(40))
        assert [(r.value, r.tag) for r in found] == [(b"a", None), (b"b", "t"), (b"c", None)]
    assert values(path) == [*VALUES, b"a", b"b", b"c"]


LIMITED = """
    import resource, sys
    import esker
    resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))
    with esker.open(sys.argv[1], background=False) as store:
        topic = store["t"]
        refused = 0
        for n in range(400):
            try:
                topic.append(b"%d " % n + b"x" * 1000, wait=True)
                print(n)
            except esker.DiskFull as problem:
                assert ".log" in problem.path
                refused += 1
        assert refused
        print("refused")
"""


def test_a_real_limit_of_file_size_loses_nothing(tmp_path: Path) -> None:
    with child(LIMITED, tmp_path / "data") as limited:
        *accepted, last = limited.end().split()
    assert last == "refused"
    assert [int(value.split()[0]) for value in values(tmp_path / "data")] == list(
        map(int, accepted)
    )


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of 2 MiB."""
    mount, umount = shutil.which("mount"), shutil.which("umount")
    if os.geteuid() != 0 or mount is None or umount is None:
        pytest.skip("mounting a small file system needs root")
    place = tmp_path / "disk"
    place.mkdir()
    made = subprocess.run(
        [mount, "-t", "tmpfs", "-o", "size=2m,mode=0700", "tmpfs", place], capture_output=True
    )
    if made.returncode:
        pytest.skip("mounting a small file system is not permitted here")
    try:
        yield place
    finally:
        subprocess.run([umount, "-l", place], check=True)


def test_a_real_full_disk_loses_nothing(small_disk: Path) -> None:
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(1 << 20))
    root = small_disk / "data"
    kept: list[bytes] = []
    with esker.open(root) as store:
        topic = store.create("t", segment_bytes="128KiB")

        def fill() -> None:
            for n in range(5000):
                value = b"%d " % n + b"x" * 1000
                topic.append(value, wait=True)
                kept.append(value)

        with pytest.raises(esker.DiskFull, match="the disk is full; free some space"):
            fill()
        assert [record.value for record in topic.read()] == kept
        ballast.unlink()
        topic.append(b"after", wait=True)
        kept.append(b"after")
    assert values(root) == kept


def test_a_real_read_only_disk_can_be_read_and_says_so(small_disk: Path) -> None:
    root = small_disk / "data"
    with esker.open(root) as store:
        store["t"].append_many(VALUES)
    before = snapshot(root)
    mount = shutil.which("mount")
    assert mount is not None
    subprocess.run([mount, "-o", "remount,ro", small_disk], check=True)
    assert values(root) == VALUES
    with esker.open(root) as store, pytest.raises(esker.ReadOnlyDisk, match='mode="r"'):
        store["t"].append(b"x")
    with pytest.raises(esker.ReadOnlyDisk, match=r"cannot .*new.* read-only"):
        esker.open(small_disk / "new")
    assert snapshot(root) == before


def test_a_read_only_disk_can_be_read_and_says_so(path: Path) -> None:
    before = snapshot(path)
    assert values(path, files=read_only_disk()) == VALUES
    with esker.open(path, files=read_only_disk(), background=False) as store:
        assert [record.value for record in store["t"].read()] == VALUES
        for attempt in (
            lambda: store["t"].append(b"x"),
            lambda: store["t"].append(b"x", wait=True),
            lambda: store["t"].append_many([b"x"]),
            lambda: store.create("new"),
            lambda: store["new"].append(b"x"),
        ):
            with pytest.raises(esker.ReadOnlyDisk, match='open with mode="r" to read') as caught:
                attempt()
            assert caught.value.errno == errno.EROFS
            assert caught.value.path in str(caught.value)
    with pytest.raises(esker.ReadOnlyDisk):
        esker.open(path.parent / "new", files=read_only_disk())
    assert snapshot(path.parent) == {"data": "directory"} | {
        f"data/{name}": content for name, content in before.items()
    }


FEW_FILES = """
    import resource, sys
    import esker
    with esker.open(":memory:") as warm:
        warm["t"].append(b"x", wait=True)
    resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))
    with esker.open(sys.argv[1], background=False) as store:
        kept = []
        for n in range(100):
            try:
                store[f"t{n}"].append(b"x", wait=True)
                kept.append(f"t{n}")
            except esker.TooManyFiles as problem:
                assert "ulimit -n" in str(problem) and problem.path, problem
                break
        else:
            raise SystemExit("never refused")
        for name in kept:
            assert [r.value for r in store[name].read()] == [b"x"]
    print(*kept)
"""


def test_too_many_open_files_are_told_and_what_is_open_goes_on(tmp_path: Path) -> None:
    with child(FEW_FILES, tmp_path / "data") as limited:
        kept = limited.end().split()
    assert kept
    with esker.open(tmp_path / "data") as store:
        for name in kept:
            assert [record.value for record in store[name].read()] == [b"x"]


def test_a_failed_sync_poisons_and_a_reopened_store_goes_on(path: Path) -> None:
    files = Refusing()
    store = esker.open(path, files=files, background=False)
    topic = store["t"]
    topic.append(b"written", wait=True)
    files.refuse("sync", errno.EIO, ".log")
    with pytest.raises(esker.Poisoned, match=r"Offsets 40\.\.40 are in doubt.*open it again"):
        topic.sync()
    files.allow()
    for attempt in (
        lambda: topic.append(b"x"),
        lambda: topic.append(b"x", wait=True),
        lambda: topic.append_many([b"x"]),
        topic.sync,
    ):
        with pytest.raises(esker.Poisoned):
            attempt()
    with pytest.raises(esker.Poisoned):
        store.close()
    with esker.open(path) as again:
        assert [record.value for record in again["t"].read()] == [*VALUES, b"written"]
        assert again["t"].append(b"on", wait=True) == 41


# ---- wrong types and values ------------------------------------------------------------------

LONE_SURROGATE = "\ud800"


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"value": None}, "a value is bytes or text, not NoneType; encode it first"),
        ({"value": 5}, "not int"),
        ({"value": 1.5}, "not float"),
        ({"value": ["x"]}, "not list"),
        ({"value": {"a": 1}}, "not dict"),
        ({"value": LONE_SURROGATE}, "valid Unicode"),
        ({"key": 5}, "a key is bytes or text, not int"),
        ({"key": ["k"]}, "a key is bytes or text, not list"),
        ({"key": LONE_SURROGATE}, "valid Unicode"),
        ({"tag": b"t"}, "a tag is text, not bytes"),
        ({"tag": 5}, "a tag is text, not int"),
        ({"tag": LONE_SURROGATE}, "valid Unicode"),
        ({"node": b"n"}, "a node is text, not bytes"),
        ({"node": LONE_SURROGATE}, "valid Unicode"),
        ({"headers": [("a", b"b")]}, "headers are a dict of text to bytes, not list"),
        ({"headers": "h"}, "headers are a dict"),
        ({"headers": {1: b"x"}}, "a header's name is text, not int"),
        ({"headers": {b"a": b"x"}}, "a header's name is text, not bytes"),
        ({"headers": {"a": 5}}, "header 'a' is bytes or text, not int"),
        ({"headers": {"a": None}}, "header 'a' is bytes or text, not NoneType"),
        ({"headers": {LONE_SURROGATE: b"x"}}, "valid Unicode"),
        ({"headers": {"a": LONE_SURROGATE}}, "valid Unicode"),
        ({"timestamp": "now"}, "microseconds since 1970 or a datetime, not str"),
        ({"timestamp": 1.5}, "not float"),
        ({"timestamp": True}, "not bool"),
        ({"timestamp": 1 << 63}, "out of range"),
    ],
)
def test_a_record_of_wrong_types_is_refused(path: Path, fields: dict[str, Any], told: str) -> None:
    fields = {"value": b"x", **fields}
    with esker.open(path, background=False) as store:
        for topic in (store["t"], store["new"]):
            for attempt in (
                lambda topic=topic: topic.append(**fields),
                lambda topic=topic: topic.append(**fields, wait=True),
                lambda topic=topic: topic.append_nowait(**fields),
                lambda topic=topic: topic.append_many([b"good", esker.Record(**fields)]),
                lambda topic=topic: topic.append_many([b"good"] * 20 + [esker.Record(**fields)]),
                lambda topic=topic: topic.batch().append(**fields),
            ):
                with pytest.raises(esker.InvalidRecord, match=told):
                    attempt()
        assert list(store) == ["t"]
    assert values(path) == VALUES


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"value": b"x" * 1001}, "1001 bytes is above max_record_bytes=1000; .*split the record"),
        ({"value": "ü" * 501}, "1002 bytes is above"),
        ({"key": b"k" * 65_537}, "a key of 65537 bytes; at most 65536"),
        ({"key": memoryview(bytes(131_074)).cast("H")}, "a key of 131074 bytes"),
        ({"tag": "t" * 257}, "a tag of 257 bytes; at most 256"),
        ({"tag": "ü" * 129}, "a tag of 258 bytes"),
        ({"node": "n" * 129}, "a node of 129 bytes; at most 128"),
        ({"headers": {str(n): b"" for n in range(65)}}, "65 headers; at most 64"),
        ({"headers": {"h": b"x" * (256 << 10)}}, "bytes of headers; at most 262144"),
    ],
)
def test_an_oversized_record_is_refused(path: Path, fields: dict[str, Any], told: str) -> None:
    fields = {"value": b"x", **fields}
    with esker.open(path, background=False) as store:
        topic = store.create("small", max_record_bytes=1000)
        for attempt in (
            lambda: topic.append(**fields),
            lambda: topic.append(**fields, wait=True),
            lambda: topic.append_nowait(**fields),
            lambda: topic.append_many([b"good", esker.Record(**fields)]),
            lambda: topic.batch().append(**fields),
        ):
            with pytest.raises(esker.RecordTooLarge, match=told):
                attempt()
        topic.flush()
        assert len(topic) == 0


@pytest.mark.parametrize("given", ["text", b"bytes", bytearray(b"x"), 5, None, {"a": b"b"},
                                   esker.Record(b"x")])  # fmt: skip
def test_a_lone_value_is_not_a_batch(store: esker.Store, given: Any) -> None:
    with pytest.raises(esker.InvalidRecord, match="append_many takes a list of records"):
        store["t"].append_many(given)
    assert list(store) == []


@pytest.mark.parametrize("wait", [None, "yes", -1, float("nan"), [], b"1"])
def test_a_wait_is_yes_no_or_seconds(store: esker.Store, wait: Any) -> None:
    store.create("fsync", durability="fsync")
    for name in ("fsync", "new"):
        for attempt in (
            lambda name=name: store[name].append(b"x", wait=wait),
            lambda name=name: store[name].append_many([b"x"], wait=wait),
            lambda name=name: store[name].append_arrow(pa.array([b"x"]), wait=wait),
        ):
            with pytest.raises(esker.InvalidOption, match="wait="):
                attempt()
    assert list(store) == ["fsync"]
    assert len(store["fsync"]) == 0


def test_a_wait_of_an_age_is_a_wait_for_ever(store: esker.Store) -> None:
    topic = store.create("t", durability="fsync")
    for wait in (1e300, float("inf"), 10**30):
        topic.append(b"x", wait=wait)
    assert len(list(topic.follow(0, timeout=1e300, limit=3))) == 3


@pytest.mark.parametrize(
    "call",
    [
        lambda topic: topic.read(limit=-1),
        lambda topic: topic.read(limit="5"),
        lambda topic: topic.read(limit=1.5),
        lambda topic: topic.read(gaps="hide"),
        lambda topic: topic.read(consistency="certain"),
        lambda topic: topic.batches(max_bytes=0),
        lambda topic: topic.batches(max_bytes="1MiB"),
        lambda topic: topic.batches(max_records=-1),
        lambda topic: topic.batches(max_records=None),
        lambda topic: topic.batches(gaps=None),
        lambda topic: topic.follow(timeout="5"),
        lambda topic: topic.follow(timeout=-1),
        lambda topic: topic.follow(timeout=float("nan")),
        lambda topic: topic.follow(limit=-5),
        lambda topic: topic.follow(gaps=5),
        lambda topic: topic.follow(consistency=None),
        lambda topic: topic.follow_batches(timeout=[]),
        lambda topic: topic.slice(gaps="x"),
        lambda topic: topic["5"],
        lambda topic: topic[1.5],
        lambda topic: topic[True],
        lambda topic: topic[None],
        lambda topic: topic.get(0, shard="x"),
    ],
)
def test_a_wrong_argument_of_reading_is_told_at_once(store: esker.Store, call: Any) -> None:
    store["t"].append(b"x", wait=True)
    with pytest.raises(esker.InvalidOption):
        call(store["t"])


@pytest.mark.parametrize(
    "name",
    ["", " ", "a b", "a/b", "../etc", "..", ".hidden", "-a", "ä", "a\n", "a\0b", "x" * 256,
     5, None, b"a", ["a"], 1.5, True],
)  # fmt: skip
def test_a_name_that_could_mean_trouble_is_refused(store: esker.Store, name: Any) -> None:
    before = snapshot(Path(store.path))
    for attempt in (
        lambda: store[name],
        lambda: store.create(name),
        lambda: store.create(name, exist_ok=True),
    ):
        with pytest.raises(esker.InvalidName):
            attempt()
    assert name not in store
    assert snapshot(Path(store.path)) == before


def test_the_longest_name_is_taken(store: esker.Store) -> None:
    store["x" * 255].append(b"x")
    assert list(store) == ["x" * 255]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"lingr": 1}, "unknown option 'lingr'; did you mean 'linger'"),
        ({"sync_intervall": 1}, "did you mean 'sync_interval'"),
        ({"max_unflushed": 1}, "did you mean 'max_unflushed_bytes'"),
        ({"shards": 4}, "unknown option 'shards'"),
        ({"zzzzz": 1}, "there is: .*background.*linger"),
        ({"linger": "soon"}, "a duration such as"),
        ({"linger": -1}, "seconds, or text"),
        ({"linger": float("nan")}, "linger="),
        ({"linger": float("inf")}, "linger="),
        ({"linger": "9" * 400}, "too large"),
        ({"linger": "200000d"}, "must lie in"),
        ({"linger": True}, "seconds, or text"),
        ({"linger_us": "20ms"}, "a whole number"),
        ({"linger_us": -1}, "must lie in"),
        ({"journals": 0}, r"must lie in 1\.\.64"),
        ({"journals": 2.0}, "a whole number"),
        ({"journal_bytes": "1KiB"}, "must lie in"),
        ({"journal_bytes": "many"}, "a size such as"),
        ({"max_unflushed_bytes": None}, "a whole number"),
        ({"mapped_bytes": "9" * 400}, "too large"),
        ({"background": "no"}, "True or False"),
        ({"mode": "w"}, '"rw" or "r"'),
        ({"mode": None}, '"rw" or "r"'),
    ],
)
def test_a_wrong_option_of_a_store_is_told(
    tmp_path: Path, given: dict[str, Any], told: str
) -> None:
    with pytest.raises(esker.InvalidOption, match=told):
        esker.open(tmp_path / "data", **given)
    assert snapshot(tmp_path) == {}


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"shard": 4}, "unknown option 'shard'; did you mean 'shards'"),
        ({"durabilty": "fsync"}, "did you mean 'durability'"),
        ({"segment_size": 1}, "did you mean 'segment_"),
        ({"shards": 0}, r"must lie in 1\.\.1024"),
        ({"shards": 1025}, r"must lie in 1\.\.1024"),
        ({"shards": "4"}, "a whole number"),
        ({"shards": True}, "a whole number"),
        ({"durability": "sync"}, "one of fsync, disk, memory, ephemeral"),
        ({"durability": ["fsync"]}, "one of fsync"),
        ({"compression": "gzip"}, "one of none, zstd"),
        ({"segment_bytes": "1KiB"}, "must lie in"),
        ({"segment_bytes": "2GiB"}, "must lie in"),
        ({"segment_bytes": -5}, "must lie in"),
        ({"segment_bytes": 1e6}, "a whole number"),
        ({"segment_records": -1}, "must lie in"),
        ({"segment_age": "old"}, "a duration such as"),
        ({"max_record_bytes": 0}, "must lie in"),
        ({"max_record_bytes": "64MiB"}, "at most half of segment_bytes"),
        ({"compress_min_bytes": -1}, "must lie in"),
    ],
)
def test_a_wrong_option_of_a_topic_is_told(
    store: esker.Store, given: dict[str, Any], told: str
) -> None:
    before = snapshot(Path(store.path))
    with pytest.raises(esker.InvalidOption, match=told):
        store.create("t", **given)
    assert snapshot(Path(store.path)) == before


def test_a_key_is_needed_to_know_a_shard(store: esker.Store) -> None:
    store["t"].append(b"x")
    with pytest.raises(esker.InvalidRecord):
        store["t"].shard_of(None)  # type: ignore[arg-type]
    with pytest.raises(esker.InvalidRecord):
        store["t"].shard_of(5)  # type: ignore[arg-type]


# ---- a closed store --------------------------------------------------------------------------


def test_a_closed_store_says_so_whatever_is_asked(path: Path) -> None:
    store = esker.open(path)
    topic, part, fresh = store["t"], store["t"][:], store["new"]
    following, reading = topic.follow(0), topic.read()
    assert next(reading).value == VALUES[0]
    store.close()
    before = snapshot(path)
    for attempt in (
        lambda: store["t"],
        lambda: store.create("x"),
        lambda: list(store),
        lambda: len(store),
        lambda: "t" in store,
        store.sync,
        store.flush,
        store.__enter__,
        lambda: topic.append(b"x"),
        lambda: topic.append(b"x", wait=True),
        lambda: topic.append_nowait(b"x"),
        lambda: topic.append_many([b"x"]),
        lambda: topic.append_many([]),
        lambda: topic.append_arrow(pa.array([b"x"])),
        lambda: fresh.append(b"x"),
        topic.flush,
        topic.sync,
        topic.read,
        topic.batches,
        topic.follow,
        lambda: topic[0],
        lambda: topic[:],
        lambda: list(part),
        lambda: part.to_arrow(),
        lambda: len(topic),
        topic.end,
        topic.counters,
    ):
        with pytest.raises(esker.StoreClosed, match=f"{path}.*open it again"):
            attempt()
    assert list(following) == []
    assert repr(store) == f"<esker store {path} (closed), 1 topics>"
    assert snapshot(path) == before


# ---- a second writer -------------------------------------------------------------------------

WRITER = """
    import os, sys
    import esker
    with esker.open(sys.argv[1]) as store:
        store["t"].append(b"mine", wait=True)
        print(os.getpid())
        sys.stdin.readline()
"""


def test_a_second_writer_is_told_who_the_first_is(path: Path) -> None:
    with child(WRITER, path) as first:
        pid = int(first.line())
        before = data_of(path)
        with esker.open(path) as second:
            for attempt in (
                lambda: second["t"].append(b"x"),
                lambda: second["t"].append(b"x", wait=True),
                lambda: second["t"].append_many([b"x"]),
                lambda: second["t"].append_arrow(pa.array([b"x"])),
            ):
                with pytest.raises(esker.WriterBusy) as caught:
                    attempt()
                told = str(caught.value)
                assert caught.value.pid == pid == first.pid
                assert f"process {pid}" in told
                assert caught.value.since
                assert caught.value.since in told
                assert 'mode="r"' in told
            assert second["t"].end() == 41, "reading works beside it"
        assert data_of(path) == before
        first.say()
        first.end()
    with esker.open(path) as third:
        assert third["t"].append(b"x", wait=True) == 41


def test_a_second_handle_in_the_same_process_is_no_writer_either(path: Path) -> None:
    with esker.open(path) as first, esker.open(path) as second:
        first["t"].append(b"mine", wait=True)
        with pytest.raises(esker.WriterBusy) as caught:
            second["t"].append(b"x", wait=True)
        assert caught.value.pid == os.getpid()
        second["other"].append(b"another topic is free", wait=True)
    assert values(path) == [*VALUES, b"mine"]


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
        store.create("t", compression="zstd", compress_min_bytes=1).append_many([b"x" * 5000] * 20)
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
        assert [record.value for record in store["t"].read()] == VALUES


def test_a_huge_length_in_a_catalog_is_damage_and_allocates_nothing(
    path: Path, little_memory: Callable[[], None]
) -> None:
    newest = max(path.glob("catalog-*"))
    patched(newest, 16, struct.pack("<I", 2**32 - 1), 0, 56)
    little_memory()
    with esker.open(path) as store:
        assert "damaged_catalog" in store.recovery.labels
        assert list(store) == ["t"]
        assert [record.value for record in store["t"].read()] == VALUES


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
    assert values(path) == VALUES


def test_a_pipe_where_a_file_should_be_does_not_hang(path: Path) -> None:
    sealed = only(path, "*.seg")
    sealed.unlink()
    os.mkfifo(sealed)
    with pytest.raises(esker.UnsafePath), esker.open(path) as store:
        list(store["t"].read())


def test_a_link_to_the_directory_of_a_store_is_followed(path: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(path)
    assert values(tmp_path / "link") == VALUES
    with esker.open(tmp_path / "link") as store:
        store["t"].append(b"x", wait=True)
    assert values(path) == [*VALUES, b"x"]


def test_what_the_system_says_becomes_ours() -> None:
    with pytest.raises(esker.StorageError) as caught:
        SYSTEM_FILES.open("/nonexistent/esker", "r")
    assert caught.value.errno == errno.ENOENT
    assert caught.value.path == "/nonexistent/esker"
    assert str(caught.value) == "cannot open /nonexistent/esker: No such file or directory"
