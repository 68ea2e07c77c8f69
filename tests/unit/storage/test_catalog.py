"""Identity and catalog on disk: replaced as a whole, by one process at a time."""

from __future__ import annotations

from typing import Any

import pytest

from esker.errors import FormatTooNew, NotAStore, StorageError
from esker.format import catalog as fmt
from esker.format.catalog import Catalog, TopicEntry
from esker.format.checksum import checksum
from esker.options import topic_options
from esker.storage.catalog import CatalogFile, create_identity, load_identity, unfinished
from esker.storage.files import Holder, replace_file
from esker.storage.memory import MemoryFiles
from tests.helpers import Refusing

ROOT = "/store"


@pytest.fixture
def files() -> MemoryFiles:
    made = MemoryFiles()
    made.make_dir(ROOT)
    return made


def with_topics(*names: str) -> Catalog:
    entries = tuple(TopicEntry(n, name, 1, 5, topic_options()) for n, name in enumerate(names, 1))
    return Catalog(len(names) + 1, entries)


def opened(files: Any, store: bytes = b"s" * 16) -> CatalogFile:
    return CatalogFile(files, ROOT, store)


def newer(data: bytearray, end: int) -> None:
    """Give a file a version of the future."""
    data[8 if end == 40 else 4] = 9
    data[end : end + 8] = checksum(bytes(data[:end])).to_bytes(8, "little")


# ---- identity ----------------------------------------------------------------------------------


def test_a_store_is_made_once_whoever_comes_second(files: MemoryFiles) -> None:
    assert load_identity(files, ROOT) is None
    store = create_identity(files, ROOT, 5)
    assert create_identity(files, ROOT, 9) == store
    assert load_identity(files, ROOT) == (store, 5)
    assert files.held == {}


def test_a_lock_that_is_only_named_is_not_released(files: MemoryFiles) -> None:
    files.held[f"{ROOT}/catalog.lock"] = Holder(1, "")
    create_identity(files, ROOT, 5)
    catalog = opened(files)
    catalog.change(lambda _: with_topics("a"), "")
    assert files.held == {f"{ROOT}/catalog.lock": Holder(1, "")}


def test_a_damaged_identity_is_no_store_and_a_newer_one_is_not_touched(files: MemoryFiles) -> None:
    create_identity(files, ROOT, 5)
    data = files.files[f"{ROOT}/esker.store"]
    before = bytes(data)
    newer(data, 40)
    with pytest.raises(FormatTooNew, match="nothing was touched"):
        load_identity(files, ROOT)
    data[:] = before
    data[20] ^= 1
    with pytest.raises(NotAStore, match="does not match its checksum"):
        load_identity(files, ROOT)


# ---- catalog -----------------------------------------------------------------------------------


def test_two_generations_are_kept_and_the_newest_counts(files: MemoryFiles) -> None:
    catalog = opened(files)
    assert catalog.load()
    for names in (["a"], ["a", "b"], ["a", "b", "c"]):
        catalog.store(with_topics(*names))
    assert catalog.generations() == [3, 2]
    other = opened(files)
    assert other.load()
    assert [entry.name for entry in other.catalog.topics] == ["a", "b", "c"]
    assert other.find("b") is not None
    assert other.find("x") is None
    assert other.by_id(2) == other.find("b")
    assert other.by_id(9) is None
    assert other.load(), "loading again finds nothing newer"


def test_a_change_is_made_from_the_newest_generation_of_any_process(files: MemoryFiles) -> None:
    one, two = opened(files), opened(files)
    one.change(lambda _: with_topics("a"), "")
    assert [entry.name for entry in two.catalog.topics] == []

    def add(catalog: Catalog) -> Catalog:
        assert [entry.name for entry in catalog.topics] == ["a"]
        return with_topics("a", "b")

    two.change(add, "")
    assert one.refresh()
    assert not one.refresh()
    assert one.find("b") is not None
    generation = one.generation
    one.change(lambda catalog: catalog, "")
    assert one.generations()[0] == generation, "no change, no generation"


@pytest.mark.parametrize("how", ["damaged", "foreign", "misnamed", "short"])
def test_a_damaged_generation_is_told_and_the_one_before_it_is_used(
    files: MemoryFiles, how: str
) -> None:
    catalog = opened(files)
    catalog.store(with_topics("a"))
    catalog.store(with_topics("a", "b"))
    newest = files.files[f"{ROOT}/catalog-00000002"]
    if how == "damaged":
        newest[70] ^= 1
    elif how == "foreign":
        newest[:] = fmt.encode_catalog(with_topics("a", "b"), 2, b"x" * 16)
    elif how == "misnamed":
        newest[:] = fmt.encode_catalog(with_topics("a", "b"), 7, b"s" * 16)
    else:
        del newest[30:]
    other = opened(files)
    assert other.load()
    assert [entry.name for entry in other.catalog.topics] == ["a"]
    assert [path for path, _ in other.damage] == [f"{ROOT}/catalog-00000002"]
    assert not other.refresh(), "it is still damaged"
    files.files[f"{ROOT}/catalog-00000001"][0] = 0
    assert not opened(files).load(), "generations are there, and none is whole"


def test_a_catalog_of_a_later_version_is_not_touched(files: MemoryFiles) -> None:
    opened(files).store(with_topics("a"))
    newer(files.files[f"{ROOT}/catalog-00000001"], 56)
    with pytest.raises(FormatTooNew):
        opened(files).load()


def test_who_writes_syncs_the_directory_before_he_believes_a_name(files: MemoryFiles) -> None:
    opened(files).store(with_topics("a"))
    watched = Refusing(files)
    catalog = opened(watched)
    catalog.settles = True
    assert catalog.load()
    assert ("sync_dir", ROOT) in watched.calls


def test_a_generation_that_is_replaced_while_it_is_opened_is_looked_for_again(
    files: MemoryFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = opened(files)
    for names in (["a"], ["b"]):
        writer.store(with_topics(*names))
    reader, before = opened(files), files.open

    def late(path: str, mode: Any) -> Any:
        if path.endswith("2") and mode == "r":
            for name in ("c", "d"):
                writer.store(with_topics(name))
        return before(path, mode)

    monkeypatch.setattr(files, "open", late)
    assert reader.load()
    assert [entry.name for entry in reader.catalog.topics] == ["d"]


def test_a_generation_that_cannot_be_opened_is_an_error(files: MemoryFiles) -> None:
    opened(files).store(with_topics("a"))
    refusing = Refusing(files)
    refusing.refuse("open", 13, "catalog-")
    with pytest.raises(StorageError):
        opened(refusing).load()


def test_an_old_generation_that_cannot_be_deleted_does_no_harm(files: MemoryFiles) -> None:
    refusing = Refusing(files)
    refusing.refuse("unlink", 5)
    catalog = opened(refusing)
    for name in ("a", "b", "c"):
        catalog.store(with_topics(name))
    assert catalog.generations() == [3, 2, 1]


def test_an_archive_is_no_store_and_the_error_says_what_reads_it(files: MemoryFiles) -> None:
    for folder in ("topic=a", "topic=b"):
        files.make_dir(f"{ROOT}/{folder}")
    assert load_identity(files, ROOT) is None
    replace_file(files, f"{ROOT}/topic=b/_manifest.json", b"{}")
    with pytest.raises(NotAStore, match=r"esker.open_archive\('/store', topic\) reads it"):
        load_identity(files, ROOT)


def test_a_directory_whose_name_says_that_it_is_half_a_copy_is_told_as_that() -> None:
    assert unfinished("/backups/monday") is None
    problem = unfinished("/backups/monday.partial")
    assert isinstance(problem, NotAStore)
    assert "/backups/monday.partial" in str(problem)
    assert "never finished" in str(problem)
