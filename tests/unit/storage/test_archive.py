"""An archive on disks that die at any call: what counts is whole, and the rest goes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from esker.errors import (
    Corruption,
    FormatTooNew,
    InvalidName,
    InvalidOption,
    StorageError,
    WriterBusy,
)
from esker.format import archive as fmt
from esker.format.archive import ArchivedGap, Manifest
from esker.storage import archive as arc
from esker.storage.archive import SCHEMA, Archive, damage, merge, write_days
from esker.storage.files import join, replace_file
from esker.storage.memory import MemoryFiles
from esker.testing import Crash, Fault, SimulatedDisk

STORE = bytes(range(16)).hex()
ROOT = "/data/archive"
DAY = fmt.DAY_US
T0 = 1_794_700_800_000_000  # midnight
SPANS = [(0, 0, 40), (1, 0, 30), (0, 40, 70), (0, 70, 110)]  # shard, first, end
GAP = ArchivedGap(0, 50, 54, "power loss")


def stamp(shard: int, offset: int) -> int:
    """Two days in each shard, not in order."""
    return T0 + (DAY if offset % 7 == 3 else 0) + offset * 1000


def rows(shard: int, first: int, end: int) -> Any:
    numbers = [n for n in range(first, end) if shard != GAP.shard or not GAP.first <= n <= GAP.last]
    columns = [
        pa.array([b"k%d" % n if n % 2 else None for n in numbers], pa.binary()),
        pa.array([b"value %d" % n for n in numbers], pa.binary()),
        pa.array(numbers, pa.int64()),
        pa.array([stamp(shard, n) for n in numbers], SCHEMA.field("timestamp").type),
        pa.array([[{"key": "h", "value": b"1"}] if n % 5 == 0 else None for n in numbers],
                 SCHEMA.field("headers").type),
        pa.array(["tag" if n % 3 else None for n in numbers], pa.string()),
        pa.array(["node"] * len(numbers), pa.string()),
    ]  # fmt: skip
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def batches(shard: int, first: int, end: int) -> Iterator[Any]:
    for begin in range(first, end, 16):
        yield rows(shard, begin, min(end, begin + 16))


def disk() -> SimulatedDisk:
    made = SimulatedDisk(seed=1)
    made.make_dir("/data")
    made.sync_dir("/")
    return made


def run(files: Any, *, compact: bool = True) -> Manifest:
    """Archive all SPANS that are not there yet, as a job would."""
    archive = Archive(files, ROOT, "t")
    with archive.held("now"):
        manifest = archive.begin(STORE, 7)
        for shard, first, end in SPANS:
            if manifest.ends.get(shard, 0) > first:
                continue
            made = write_days(files, archive.folder, shard, batches(shard, first, end))
            gaps = [GAP] if shard == GAP.shard and first <= GAP.first < end else []
            manifest = archive.commit(manifest.with_span(shard, first, end, made, gaps))
        groups = fmt.merges(manifest.files, 1 << 20) if compact else []
        merged = [(group, merge(files, archive.folder, group)) for group in groups]
        return archive.commit(manifest.with_merges(merged)) if merged else manifest


def content(files: Any, manifest: Manifest) -> dict[int, Any]:
    """What the files of a manifest hold, by shard, in the order of offsets."""
    archive = Archive(files, ROOT, "t")
    found: dict[int, Any] = {}
    for file in manifest.files:
        assert damage(files, archive.folder, file) == ""
        opened = files.open(archive.path_of(file), "r")
        table = pq.read_table(pa.BufferReader(opened.read(0, opened.size())))
        opened.close()
        assert (table.num_rows, table["offset"][0].as_py(), table["offset"][-1].as_py() + 1) == (
            file.rows, file.first, file.end,
        )  # fmt: skip
        stamps = table["timestamp"].cast(pa.int64()).to_pylist()
        assert (min(stamps), max(stamps)) == (file.min_timestamp, file.max_timestamp)
        assert {fmt.day_text(fmt.day_of(each)) for each in stamps} == {file.day}
        before = found.get(file.shard)
        found[file.shard] = table if before is None else pa.concat_tables([before, table])
    return {shard: table.sort_by("offset") for shard, table in found.items()}


def check_prefix(files: Any, manifest: Manifest) -> None:
    """Each shard holds exactly what the log has up to where its archive ends."""
    held = content(files, manifest)
    assert held.keys() == manifest.ends.keys()
    for shard, end in manifest.ends.items():
        assert held[shard].combine_chunks() == pa.table(rows(shard, 0, end)), (shard, end)


def lying(files: Any) -> set[str]:
    return {f"{folder}/{name}" for folder, name in Archive(files, ROOT, "t")._lying()}


def check_whole(files: Any) -> None:
    """Archived to the end; what lies there is what the manifest names."""
    manifest = run(files)
    assert manifest.ends == {0: 110, 1: 30}
    check_prefix(files, manifest)
    assert lying(files) == {file.path for file in manifest.files} | set(manifest.replaced)
    again = run(files)
    assert again.files == manifest.files
    assert lying(files) == {file.path for file in manifest.files}


def test_what_is_archived_reads_back_and_nothing_is_left_over() -> None:
    files = disk()
    manifest = run(files)
    assert manifest.replaced
    assert [(file.shard, file.day) for file in manifest.files] == [
        (0, "2026-11-15"), (0, "2026-11-16"), (1, "2026-11-15"), (1, "2026-11-16"),
    ]  # fmt: skip
    check_prefix(files, manifest)
    check_whole(files)
    assert files.handles == 0


def changes() -> int:
    files = disk()
    before = files.changes
    run(files)
    return files.changes - before


@pytest.mark.crash
@pytest.mark.slow
def test_a_run_that_is_killed_at_any_call_goes_on_from_there() -> None:
    for call in range(1, changes() + 1):
        files = disk()
        files.stop_at(call)
        with pytest.raises(Crash):
            run(files)
        left = files.kill()
        manifest = Archive(left, ROOT, "t").load()
        if manifest is not None:
            check_prefix(left, manifest)
        check_whole(left)


@pytest.mark.crash
def test_a_power_cut_at_any_call_costs_nothing_that_was_committed() -> None:
    committed: list[Manifest] = []
    seen: set[bytes] = set()
    states = 0
    files = disk()

    def watch(call: Any, when: str) -> None:
        nonlocal states
        if when == "before" and call.name not in ("sync", "rename", "sync_dir", "unlink"):
            return
        for after in files.crashes(most=6, chances=1, seen=seen):
            states += 1
            manifest = Archive(after, ROOT, "t").load()
            if manifest is None:
                assert not committed
                continue
            assert manifest.generation >= (committed[-1].generation if committed else 0)
            check_prefix(after, manifest)
            if states % 10 == 0:
                check_whole(after)

    original = Archive.commit

    def commit(self: Archive, manifest: Manifest) -> Manifest:
        made = original(self, manifest)
        if self._files is files:
            committed.append(made)
        return made

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Archive, "commit", commit)
        files.watch = watch
        run(files)
        run(files)  # removes what was replaced
    assert states > 100


@pytest.mark.crash
@pytest.mark.slow
def test_what_somebody_made_who_died_is_made_durable_before_it_is_relied_on() -> None:
    """A manifest or a directory whose own directory was not synced: the power may take it back."""
    files = disk()
    calls = files.record()
    run(files)
    made = [call.serial for call in calls if call.name == "make_dir"]
    renamed = [call.serial for call in calls if call.to.endswith("_manifest.json")]
    assert (len(made), len(renamed)) == (8, len(SPANS) + 2)
    for serial in made + renamed:
        files = disk()
        files.stop_at(serial - files.changes, "after")
        with pytest.raises(Crash):
            run(files)
        left = files.kill()

        def watch(call: Any, when: str, left: SimulatedDisk = left) -> None:
            if call.name in ("unlink", "rename") and when == "after":
                for after in left.crashes(most=4, chances=1):
                    manifest = Archive(after, ROOT, "t").load()
                    if manifest is not None:
                        check_prefix(after, manifest)

        left.watch = watch
        run(left)
        for after in left.crashes():
            assert Archive(after, ROOT, "t").load() is not None


@pytest.mark.crash
@pytest.mark.parametrize("kind", ["ENOSPC", "EIO", "late KeyboardInterrupt"])
def test_a_call_that_fails_leaves_nothing_half_done(kind: str) -> None:
    at = 1
    while True:
        files = disk()
        fault = files.fail(Fault(kind, at))
        with suppress(StorageError, KeyboardInterrupt):
            run(files)
        if not fault.hits:
            break
        files.heal()
        check_whole(files.kill())
        at += 3
    assert at > 30


def test_one_archives_at_a_time() -> None:
    files = disk()
    archive = Archive(files, ROOT, "t")
    with archive.held("noon"):
        with pytest.raises(WriterBusy, match=r"archiving topic 't' to /data/archive since noon"):
            run(files)
        with Archive(files, ROOT, "u").held():
            pass
    check_whole(files)


def test_another_store_or_an_earlier_topic_is_refused() -> None:
    files = disk()
    run(files)
    before = lying(files)
    archive = Archive(files, ROOT, "t")
    with archive.held():
        with pytest.raises(InvalidOption, match=r"an earlier topic 't' \(number 7\).*number 8"):
            archive.begin(STORE, 8)
        with pytest.raises(InvalidOption, match="of another store"):
            archive.begin("ff" * 16, 7)
    assert lying(files) == before


@pytest.mark.parametrize("harm", ["cut", "flipped", "gone", "later"])
def test_nothing_is_removed_by_a_manifest_that_cannot_be_read(harm: str) -> None:
    files = MemoryFiles()
    files.make_dir("/data")
    manifest = run(files)
    archive = Archive(files, ROOT, "t")
    before = lying(files)
    data = files.files[archive.manifest_path]
    if harm == "gone":
        files.unlink(archive.manifest_path)
    elif harm == "later":
        later = fmt.encode(msgspec.structs.replace(manifest, version=2))
        replace_file(files, archive.manifest_path, later)
    elif harm == "cut":
        del data[len(data) // 2 :]
    else:
        data[data.index(b'"rows"') + 8] ^= 1
    with pytest.raises(FormatTooNew if harm == "later" else Corruption, match="othing was touch"):
        run(files)
    assert lying(files) == before


def test_a_damaged_or_missing_file_is_named() -> None:
    files = MemoryFiles()
    files.make_dir("/data")
    manifest = run(files, compact=False)
    archive = Archive(files, ROOT, "t")
    first, second, third = (archive.path_of(file) for file in manifest.files[:3])
    files.files[first][100] ^= 1
    files.files[second] += b"x"
    files.unlink(third)
    told = [damage(files, archive.folder, file) for file in manifest.files]
    assert told[0] == f"{first} is not what was archived: its checksum does not match"
    assert told[1].startswith(f"{second} has ")
    assert told[2] == f"{third} is missing"
    assert set(told[3:]) == {""}
    assert damage(files, archive.folder, manifest.files[0], deep=False) == ""
    with pytest.raises(Corruption, match="checksum does not match"):
        merge(files, archive.folder, manifest.files[:1])
    assert not any(path.endswith(".tmp") for path in files.files)


def test_strangers_in_an_archive_are_left_alone() -> None:
    files = disk()
    run(files)
    folder = join(ROOT, "topic=t", "partition=0", "date=2026-11-15")
    for name in ("_SUCCESS", "part-00000.snappy.parquet", "notes.txt"):
        files.open(join(folder, name), "create").close()
    run(files)
    left = {path for path in lying(files) if not path.rpartition("/")[2][0].isdigit()}
    assert {path.rpartition("/")[2] for path in left} == {
        "_SUCCESS", "part-00000.snappy.parquet", "notes.txt",
    }  # fmt: skip


def test_records_of_very_many_days_are_written_a_few_files_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(arc, "ROW_GROUP_BYTES", 1)
    files = disk()
    archive = Archive(files, ROOT, "t")
    stamps = [T0 + n % 50 * DAY for n in range(500)] + [1 << 61, -(1 << 61)]
    batch = rows(1, 0, len(stamps))
    at = SCHEMA.get_field_index("timestamp")
    batch = batch.set_column(at, SCHEMA.field(at), pa.array(stamps, SCHEMA.field(at).type))
    most = 0

    def pieces() -> Iterator[Any]:
        nonlocal most
        for begin in range(0, len(stamps), 100):
            yield batch.slice(begin, 100)
            most = max(most, files.handles)

    with archive.held():
        manifest = archive.begin(STORE, 7)
        made = write_days(files, archive.folder, 1, pieces())
        manifest = archive.commit(manifest.with_span(1, 0, len(stamps), made, []))
    assert len(made) == 51
    assert manifest.files[-1].day == fmt.NO_DAY
    assert 1 < most <= arc.OPEN_DAYS
    read = [content_of(files, archive.path_of(file)) for file in made]
    assert pa.concat_tables(read).sort_by("offset").combine_chunks() == pa.table(batch)


def content_of(files: Any, path: str) -> Any:
    opened = files.open(path, "r")
    try:
        return pq.read_table(pa.BufferReader(opened.read(0, opened.size())))
    finally:
        opened.close()


def test_a_name_that_no_directory_can_have_is_refused() -> None:
    with pytest.raises(InvalidName, match="too long for a directory"):
        Archive(MemoryFiles(), ROOT, "x" * 250)
    with pytest.raises(InvalidName):
        Archive(MemoryFiles(), ROOT, ":" * 90)


def of_one_day(first: int, end: int) -> Any:
    made = rows(1, first, end)
    stamps = pa.array([T0 + n for n in range(first, end)], SCHEMA.field("timestamp").type)
    return made.set_column(3, SCHEMA.field("timestamp"), stamps)


@pytest.mark.parametrize("piece", [1, 1 << 20])
def test_a_batch_of_one_day_is_one_file_however_it_is_written(
    piece: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arc, "PIECE", piece)
    files, folder = disk(), "/data/t"
    (made,) = write_days(files, folder, 1, [of_one_day(0, 0), of_one_day(0, 50)])
    assert (made.first, made.end, made.rows) == (0, 50, 50)
    assert damage(files, folder, made) == ""


def test_a_file_that_cannot_even_be_begun_leaves_nothing() -> None:
    files = disk()
    with pytest.raises((OSError, ValueError, pa.ArrowException)):
        write_days(files, "/data/t", 1, [of_one_day(0, 5)], "no such thing")
    assert list(files.contents()) == []


def test_a_file_that_cannot_be_used_is_named_with_its_offsets() -> None:
    files, folder = disk(), "/data/t"
    (made,) = write_days(files, folder, 1, [of_one_day(0, 50)])
    arc.check_file(files, folder, made)
    path = join(folder, made.path)
    replace_file(files, path, b"short")
    for look in (arc.check_file, arc.open_parquet):
        with pytest.raises(Corruption, match=f"has 5 bytes, archived were {made.bytes}") as caught:
            look(files, folder, made)
        assert (caught.value.path, caught.value.first, caught.value.last) == (path, 0, 49)
    files.unlink(path)
    assert arc.open_parquet(files, folder, made) is None
    with pytest.raises(Corruption, match="is missing"):
        merge(files, folder, [made, made])


def test_a_manifest_that_comes_while_somebody_looks_is_the_one_that_counts() -> None:
    files = disk()
    run(files)
    archive = Archive(files, ROOT, "t")
    manifest = archive.load()
    assert manifest is not None
    real, hidden = files.kind, [archive.manifest_path]

    def kind(path: str) -> Any:
        if path in hidden:
            hidden.remove(path)
            return ""
        return real(path)

    files.kind = kind  # type: ignore[method-assign]
    assert archive.load() == manifest
    assert not hidden
