"""What somebody planted in a store's directory, or beside it in a cold one, harms nothing outside.

Links, hard links, pipes and devices where files and directories of a store belong: in every place
that this store has, one at a time. Esker reads through none of the links, waits for no pipe, and
what lies elsewhere is afterwards as it was. What is refused is refused by name.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import esker

Plant = Callable[[Path, Path], None]


def _link(place: Path, elsewhere: Path) -> None:
    place.symlink_to(elsewhere)


def _hard_link(place: Path, elsewhere: Path) -> None:
    os.link(elsewhere, place)


def _dangling(place: Path, elsewhere: Path) -> None:
    place.symlink_to(elsewhere.with_name("nowhere"))


def _pipe(place: Path, elsewhere: Path) -> None:
    os.mkfifo(place)


def _device(place: Path, elsewhere: Path) -> None:
    place.symlink_to("/dev/zero")


FILES: tuple[Plant, ...] = (_link, _hard_link, _dangling, _pipe, _device)
DIRECTORIES: tuple[Plant, ...] = (_link, _dangling, _pipe)


def fill(topic: Any, count: int) -> None:
    for number in range(count):
        topic.append(b"x" * 1500, key=str(number), wait=True)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store that has a file of each kind."""
    path = tmp_path_factory.mktemp("planted") / "store"
    (path.parent / "cold").mkdir()
    with esker.open(path, background=False, cold=str(path.parent / "cold")) as store:
        store.create("t", segment_bytes=4096, shards=2)
        fill(store["t"], 40)
        fill(store.create("far", segment_bytes=4096), 6)
        store.tier("far", "cold")
        queue = store.queue("q", durability="fsync")
        queue.put(b"job")
        queue.claim()
        next(iter(store["t"].group("g").poll())).ack()
        store.route("t", "copy")
        store["t"].delete(0, shard=0)
    return path


def work(path: Path, mode: Any) -> None:
    """Everything that reads and, with "rw", everything that writes."""
    with esker.open(path, mode, background=False) as store:
        for name in list(store):
            for shard in range(store[name].shards):
                list(store[name].read(0, shard=shard, gaps="skip"))
        if mode == "r":
            return
        for name in ("t", "far", "new"):
            store[name].append(b"more", wait=True)
        queue = store.queue("q")
        queue.put(b"another")
        queue.ack(queue.claim(9))
        for batch in store["t"].group("g").poll():
            batch.ack()
        store["t"].delete(1, shard=0)
        store.route("far", "new")
        store.delete("far")


def tree(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else b""
        for path in folder.rglob("*")
    }


def content(path: Path) -> Any:
    return tree(path) if path.is_dir() else path.read_bytes()


def attempt(path: Path, mode: str, place: Path) -> bool:
    """Whether all of it works; if not, an error of Esker's says where."""
    try:
        work(path, mode)
    except esker.EskerError as problem:
        told = str(problem)
        assert place.name in told or place.parent.name in told, f"does not say where: {told}"
        return False
    return True


@pytest.mark.slow
@pytest.mark.parametrize(
    ("plant", "mode"), [(_link, "rw"), (_pipe, "rw"), (_hard_link, "rw"), (_hard_link, "r")]
)
def test_a_file_that_was_exchanged_leads_nowhere(
    plant: Plant, mode: str, made: Path, tmp_path: Path
) -> None:
    count = 0
    for original in sorted(path for path in made.rglob("*") if path.is_file()):
        path, elsewhere = tmp_path / "store", tmp_path / "elsewhere"
        shutil.copytree(made, path)
        place = path / original.relative_to(made)
        place.rename(elsewhere)
        plant(place, elsewhere)
        works = attempt(path, mode, place)
        assert elsewhere.read_bytes() == original.read_bytes(), f"{place} was written to"
        assert mode == "rw" or works or plant is not _hard_link, "a hard link may be read"
        shutil.rmtree(path)
        elsewhere.unlink()
        count += 1
    assert count >= 20


@pytest.mark.parametrize("plant", DIRECTORIES, ids=lambda plant: plant.__name__.strip("_"))
def test_a_directory_that_was_exchanged_leads_nowhere(
    plant: Plant, made: Path, tmp_path: Path
) -> None:
    count = 0
    for original in sorted(path for path in made.rglob("*") if path.is_dir()):
        path, elsewhere = tmp_path / "store", tmp_path / "elsewhere"
        shutil.copytree(made, path)
        place = path / original.relative_to(made)
        place.rename(elsewhere)
        plant(place, elsewhere)
        attempt(path, "rw", place)
        assert tree(elsewhere) == tree(original), f"{place} was written to"
        shutil.rmtree(path)
        shutil.rmtree(elsewhere)
        count += 1
    assert count >= 15


@pytest.mark.parametrize("name", ["topics/00000001", "topics/00000001/0000"])
def test_nothing_is_recovered_through_a_link(name: str, tmp_path: Path) -> None:
    path, elsewhere = tmp_path / "store", tmp_path / "elsewhere"
    with esker.open(tmp_path / "living", background=False) as store:
        fill(store.create("t"), 3)
        shutil.copytree(tmp_path / "living", path)  # as a killed process leaves it
    (path / name).rename(elsewhere)
    (path / name).symlink_to(elsewhere)
    before = tree(elsewhere)
    with pytest.raises(esker.UnsafePath, match=name), esker.open(path, background=False):
        pass
    assert tree(elsewhere) == before
    (path / name).unlink()
    elsewhere.rename(path / name)
    with esker.open(path, background=False) as store:
        assert store.recovery.shards == 1
        assert len(list(store["t"].read(0))) == 3


@pytest.mark.parametrize("plant", DIRECTORIES, ids=lambda plant: plant.__name__.strip("_"))
def test_what_is_left_of_a_deleted_topic_is_removed_and_nothing_behind_a_link(
    plant: Plant, made: Path, tmp_path: Path
) -> None:
    path, elsewhere = tmp_path / "store", tmp_path / "elsewhere"
    shutil.copytree(made, path)
    elsewhere.mkdir()
    (elsewhere / "precious").write_text("as it was")
    left = path / "topics" / "00000099.deleted"
    plant(left, elsewhere)
    inside = path / "topics" / "00000098.deleted"
    inside.mkdir()
    plant(inside / "0000", elsewhere)
    with esker.open(path, background=False) as store:
        store._context.background.step()
    assert tree(elsewhere) == {"precious": b"as it was"}
    assert not os.path.lexists(left)
    assert not os.path.lexists(inside)


@pytest.mark.parametrize("plant", [_link, _hard_link, _dangling, _device])
def test_what_is_in_the_way_of_a_new_file_is_not_written_through(
    plant: Plant, made: Path, tmp_path: Path
) -> None:
    """Temporary names, and those that the next file will have."""
    path, elsewhere = tmp_path / "store", tmp_path / "elsewhere"
    shutil.copytree(made, path)
    elsewhere.write_text("as it was")
    places = [path / "catalog-00000099", path / "topics" / "00000009"]
    for folder in (path, *(each for each in path.rglob("0*") if each.is_dir())):
        places += [folder / f"{each.name}.tmp" for each in folder.iterdir() if each.is_file()]
        for log in folder.glob("*.log"):
            segment, base = log.stem.split("-")
            places += [folder / f"{int(segment) + 1:08d}-{int(base) + more:020d}.log"
                       for more in range(3)]  # fmt: skip
    assert len(places) > 20
    for place in places:
        plant(place, elsewhere)
    with pytest.raises(esker.EskerError, match=str(path)):
        work(path, "rw")
    shutil.rmtree(path)  # nobody is to look at it any more: it may lead to a device
    assert elsewhere.read_text() == "as it was"


@pytest.mark.parametrize("plant", FILES, ids=lambda plant: plant.__name__.strip("_"))
def test_a_cold_directory_is_held_to_the_same(plant: Plant, tmp_path: Path) -> None:
    path, cold = tmp_path / "store", tmp_path / "cold"
    cold.mkdir()
    with esker.open(path, background=False, cold=str(cold)) as store:
        topic = store.create("t", segment_bytes=4096)
        fill(topic, 6)
        store.tier("t", "cold")
    for moved in sorted(each for each in cold.rglob("*") if each.is_file()):
        elsewhere, before = tmp_path / "elsewhere", moved.read_bytes()
        moved.rename(elsewhere)
        plant(moved, elsewhere)
        with esker.open(path, background=False, cold=str(cold)) as store:
            if plant is _hard_link:  # it may be read by another name
                assert len(list(store["t"].read(0))) == 6
            else:
                with pytest.raises(esker.ColdUnavailable, match=moved.name):
                    list(store["t"].read(0))
            fill(store["t"], 2)
            store["t"].delete(2)
        assert elsewhere.read_bytes() == before
        if os.path.lexists(moved):
            moved.unlink()
            elsewhere.rename(moved)
