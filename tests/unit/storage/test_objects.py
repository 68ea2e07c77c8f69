"""An object store behind the door of files, here a directory as pyarrow sees it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyarrow import fs

from esker.errors import InvalidOption, StorageError
from esker.storage import objects
from esker.storage.files import SYSTEM_FILES, Holder, content_of, is_running, replace_file
from esker.storage.objects import ObjectFiles, files_at, is_url, open_objects, without_secrets


@pytest.fixture
def files(tmp_path: Path) -> ObjectFiles:
    (tmp_path / "bucket").mkdir()
    return ObjectFiles(fs.SubTreeFileSystem(str(tmp_path), fs.LocalFileSystem()), "far")


def put(files: ObjectFiles, path: str, data: bytes) -> None:
    file = files.open(path, "create")
    file.write(0, [data[:2], memoryview(data[2:])])
    assert file.size() == len(data)
    file.allocate(1 << 20)
    file.sync()
    file.close()


def test_what_was_written_is_read_listed_renamed_and_deleted(files: ObjectFiles) -> None:
    files.make_dir("far://bucket/a")
    put(files, "far://bucket/a/one", b"content")
    files.sync_dir("far://bucket/a")
    assert files.list("far://bucket/a") == ["one"]
    assert files.list("far://bucket/nothing") == []
    assert [files.kind(f"far://bucket/{name}") for name in ("a", "a/one", "b")] == [
        "dir", "file", "",
    ]  # fmt: skip
    files.rename("far://bucket/a/one", "far://bucket/a/two")
    file = files.open("far://bucket/a/two", "r")
    assert (file.size(), file.read(0, 100), file.read(3, 2)) == (7, b"content", b"te")
    assert bytes(file.map()) == b"content"
    file.sync()
    file.close()
    files.unlink("far://bucket/a/two")
    assert files.list("far://bucket/a") == []


def test_a_file_is_replaced_as_a_whole(files: ObjectFiles) -> None:
    for content in (b"first", b"second"):
        replace_file(files, "far://bucket/manifest", content)
        assert content_of(files, "far://bucket/manifest") == content
    assert files.list("far://bucket") == ["manifest"]


def test_where_there_are_no_directories_none_is_made(files: ObjectFiles, tmp_path: Path) -> None:
    class Flat:
        type_name = "s3"

    ObjectFiles(Flat(), "s3").make_dir("s3://bucket/a")
    assert not (tmp_path / "bucket" / "a").exists()


def test_an_object_is_written_once_from_its_beginning_to_its_end(files: ObjectFiles) -> None:
    put(files, "far://bucket/one", b"content")
    with pytest.raises(StorageError, match="exists"):
        files.open("far://bucket/one", "create")
    with pytest.raises(StorageError, match="written once"):
        files.open("far://bucket/one", "rw")
    out = files.open("far://bucket/two", "create")
    with pytest.raises(StorageError, match="cannot change far://bucket/two"):
        out.write(5, [b"behind the end"])
    for refused in (lambda: out.read(0, 1), out.map, lambda: out.truncate(0)):
        with pytest.raises(StorageError, match="written once"):
            refused()
    out.close()
    with pytest.raises(StorageError, match="cannot write far://bucket/two"):
        out.write(0, [b"closed"])
    read = files.open("far://bucket/one", "r")
    for change in (
        lambda: read.write(0, [b"x"]), lambda: read.truncate(0), lambda: read.allocate(1),
    ):  # fmt: skip
        with pytest.raises(StorageError, match="written once"):
            change()
    read.close()
    for other in (
        lambda: files.remove_dir("far://bucket"),
        lambda: files.page("far://bucket/page", 4096, writable=False),
        lambda: files.mutex("far://bucket/mutex"),
    ):
        with pytest.raises(StorageError, match="written once"):
            other()


def test_what_is_not_there_is_named(files: ObjectFiles) -> None:
    for act in (
        lambda: files.open("far://bucket/none", "r"),
        lambda: files.unlink("far://bucket/none"),
        lambda: files.rename("far://bucket/none", "far://bucket/some"),
    ):
        with pytest.raises(StorageError, match="far://bucket/none"):
            act()
    with pytest.raises(StorageError, match="cannot open far://other: there is no such bucket"):
        files.kind("far://other")


class Failing:
    """A stream of a store that does not answer any more."""

    def size(self) -> int:
        return 7

    def _fail(self, *_: Any) -> Any:
        raise OSError("it does not answer")

    seek = read_at = read_buffer = write = close = _fail


def test_a_store_that_does_not_answer_is_named() -> None:
    read, write = (
        objects.ObjectReader("far://a", Failing()),
        objects.ObjectWriter("far://b", Failing()),
    )
    for act in (lambda: read.read(0, 1), read.map):
        with pytest.raises(StorageError, match="cannot read far://a: it does not answer"):
            act()
    for act in (lambda: write.write(0, [b"x"]), write.sync):
        with pytest.raises(StorageError, match="cannot write far://b: it does not answer"):
            act()
    write.close()  # `sync` has told


# ---- locks -----------------------------------------------------------------------------------


def gone() -> int:
    """The number of a process that is no more."""
    return int(subprocess.run(
        [sys.executable, "-c", "import os; print(os.getpid())"],
        capture_output=True, text=True, check=True,
    ).stdout)  # fmt: skip


def label(files: ObjectFiles, **fields: Any) -> None:
    replace_file(files, "far://bucket/lock", msgspec.json.encode(fields))


def test_a_lock_is_held_by_one_until_it_is_released(files: ObjectFiles) -> None:
    assert files.holder("far://bucket/lock") is None
    lock = files.lock("far://bucket/lock", "noon")
    assert not isinstance(lock, Holder)
    assert files.lock("far://bucket/lock", "later") == Holder(os.getpid(), "noon")
    lock.release()
    lock.release()  # twice is no harm
    again = files.lock("far://bucket/lock", "later")
    assert not isinstance(again, Holder)


def test_the_lock_of_a_process_that_is_gone_is_taken_over_on_its_machine_only(
    files: ObjectFiles,
) -> None:
    here = SYSTEM_FILES.boot_id().hex()
    label(files, pid=gone(), since="noon", boot=here, token="x")
    assert files.holder("far://bucket/lock") is None
    pid = gone()
    label(files, pid=pid, since="noon", boot="00" * 16, token="x")
    assert files.lock("far://bucket/lock", "") == Holder(pid, "noon")
    label(files, pid=os.getpid(), since="noon", boot=here, token="x")
    assert files.holder("far://bucket/lock") == Holder(os.getpid(), "noon")


def test_a_lock_that_says_nothing_is_held_by_nobody_knows_whom(files: ObjectFiles) -> None:
    put(files, "far://bucket/lock", b"not JSON")
    assert files.lock("far://bucket/lock", "") == Holder(0, "")


def test_who_does_not_read_back_his_own_token_does_not_have_the_lock(
    files: ObjectFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        ObjectFiles, "_label", lambda self, path: {"token": "other", "pid": 7, "since": "noon"}
    )
    assert files.lock("far://bucket/lock", "") == Holder(7, "noon")


def test_what_is_asked_of_the_machine(files: ObjectFiles) -> None:
    assert (files.pid(), files.boot_id()) == (os.getpid(), SYSTEM_FILES.boot_id())
    assert len(files.random(8)) == 8
    assert is_running(os.getpid())
    assert is_running(1)
    assert not is_running(gone())
    assert not is_running(0)


# ---- URLs ------------------------------------------------------------------------------------


def test_a_place_is_a_directory_or_a_url(tmp_path: Path) -> None:
    assert files_at(str(tmp_path)) == (SYSTEM_FILES, str(tmp_path))
    assert files_at(f"file://{tmp_path}") == (SYSTEM_FILES, str(tmp_path))
    assert is_url("s3://bucket")
    assert not is_url("a/b")
    found, root = files_at("mock://somewhere/below")
    assert isinstance(found, ObjectFiles)
    assert root.startswith("mock://")
    assert open_objects("s3://key:secret@bucket/a/?region=eu-west-1")[1] == "s3://bucket/a"


def test_no_secret_is_told() -> None:
    url = "what://key:secret@bucket/a?password=secret#secret"
    assert without_secrets(url) == "what://bucket/a"
    with pytest.raises(InvalidOption, match="what://bucket/a") as told:
        open_objects(url)
    assert "secret" not in str(told.value)
