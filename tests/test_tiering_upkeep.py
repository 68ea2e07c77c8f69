"""verify and repair over segments in a cold store: looked at, told apart, and never given up."""

from __future__ import annotations

import errno
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import esker
from esker.cli.main import main
from esker.errors import StorageError
from esker.storage.files import SYSTEM_FILES
from esker.upkeep import dealt
from tests.helpers import Refusing, snapshot
from tests.test_tiering import cold_files, filled, opened

pytestmark = pytest.mark.damages


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A closed store of five segments, the first four of them cold."""
    with opened(tmp_path) as store:
        filled(store)
        store.tier("t", "cold")
    return tmp_path / "store"


def stubs(data: Path) -> list[Path]:
    return sorted(data.rglob("*.seg"))


def objects(data: Path) -> list[Path]:
    return cold_files(data.parent)


def flip(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 0x10
    path.write_bytes(content)


def at(path: Path, what: bytes, behind: int = 0) -> int:
    return path.read_bytes().index(what) + behind


def values(data: Path) -> list[int]:
    with opened(data.parent, "r") as store:
        return [int(record.value.split()[0]) for record in store["t"].read(0)]


def gaps(data: Path) -> list[tuple[int, int]]:
    with opened(data.parent, "r") as store:
        found = [item for item in store["t"].read(0, gaps="yield") if isinstance(item, esker.Gap)]
    return [(gap.first, gap.last) for gap in found]


def only(found: esker.Verification) -> esker.Problem:
    assert len(found.problems) == 1, found
    return found.problems[0]


# --- verify ---------------------------------------------------------------------------------------


def test_a_store_with_moved_segments_is_ok_and_counted_as_before(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        filled(store)
    before = esker.verify(tmp_path / "store")
    with opened(tmp_path) as store:
        store.tier("t", "cold", before=30)
        store["t"].append(b"50 x", wait=True)
        beside = esker.verify(tmp_path / "store")
        assert (beside.problems, beside.records) == ([], 51)
    kept = snapshot(tmp_path)
    found = esker.verify(tmp_path / "store")
    assert snapshot(tmp_path) == kept
    assert found.problems == []
    assert (found.records, found.segments) == (51, before.segments + 1)
    assert found.bytes > before.bytes, "the stubs, too"
    assert esker.verify(tmp_path / "store", deep=False).problems == []


@pytest.mark.parametrize("deep", [True, False])
def test_an_object_that_is_gone_is_damage_and_named(data: Path, deep: bool) -> None:
    lost = objects(data)[1]
    lost.unlink()
    problem = only(esker.verify(data, deep=deep))
    assert (problem.kind, problem.severity) == ("missing_object", "error")
    assert (problem.topic, problem.shard, problem.first, problem.last) == ("t", 0, 10, 19)
    assert problem.path == str(lost), "root and key"


def test_every_byte_of_an_object_counts(data: Path) -> None:
    path = objects(data)[2]
    kept = path.read_bytes()
    positions = [*range(0, 700, 37), *range(len(kept) - 300, len(kept), 29), len(kept) - 1]
    for position in positions:
        flip(path, position)
        problem = only(esker.verify(data))
        assert problem.kind == "object", position
        assert (problem.first, problem.last, problem.path) == (20, 29, str(path))
        path.write_bytes(kept)
    for wrong in (kept[:-1], kept + b"\0", b"", objects(data)[0].read_bytes()):
        path.write_bytes(wrong)
        assert only(esker.verify(data)).kind == "object"
    path.write_bytes(kept)
    assert esker.verify(data).ok


def test_every_byte_of_a_stub_counts(data: Path) -> None:
    path = stubs(data)[1]
    kept = path.read_bytes()
    for position in range(len(kept)):
        flip(path, position)
        found = esker.verify(data, deep=position % 2 == 0)
        assert found.problems, f"byte {position} of {len(kept)}"
        if position >= 128:
            assert set(found.kinds) <= {"place", "config", "footer", "file_hash", "padding"}, found
            assert not any(p.kind == "frame" for p in found.problems), "no record is lost"
        path.write_bytes(kept)


def hide(data: Path) -> None:
    (data.parent / "cold").rename(data.parent / "elsewhere")


def unmount(data: Path) -> None:
    hide(data)
    (data.parent / "cold").mkdir()


@pytest.mark.parametrize("how", [hide, unmount])
@pytest.mark.parametrize("deep", [True, False])
def test_a_cold_store_that_does_not_answer_is_neither_damage_nor_well(
    data: Path, how: Callable[[Path], None], deep: bool
) -> None:
    how(data)
    found = esker.verify(data, deep=deep)
    assert not found.ok
    assert found.kinds == ["unreached"]
    assert [(p.first, p.last) for p in found.problems] == [(0, 9), (10, 19), (20, 29), (30, 39)]
    assert "no damage is known" in found.problems[0].advice
    assert esker.verify(data, deep=deep, cold=data.parent / "elsewhere").ok


def test_a_disk_that_refuses_an_object_is_not_taken_for_a_loss(data: Path) -> None:
    files = Refusing()
    files.refuse("open", errno.EIO, objects(data)[0].name)
    problem = only(esker.verify(data, files=files))
    assert (problem.kind, problem.first, problem.last) == ("unreached", 0, 9)
    assert "Input/output error" in problem.reason


def test_a_silent_cold_store_is_not_asked_for_every_segment(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from esker.storage.cold import ColdFolder

    asked = []

    def silent(self: ColdFolder, key: str) -> None:
        asked.append(key)
        raise esker.ColdUnavailable("no answer", root=self.root, key=key)

    monkeypatch.setattr(ColdFolder, "get", silent)
    found = esker.verify(data)
    assert [problem.kind for problem in found.problems] == ["unreached"] * 4
    assert len(asked) == 3


def test_exchanged_stubs_are_told(data: Path) -> None:
    one, other = stubs(data)[:2]
    kept = one.read_bytes(), other.read_bytes()
    one.write_bytes(kept[1])
    other.write_bytes(kept[0])
    assert "misnamed" in esker.verify(data).kinds


def test_a_stub_that_names_the_object_of_another_is_told(data: Path) -> None:
    from esker.format import segment as fmt
    from esker.format.place import find_place, stub_of

    one, other = objects(data)[:2]
    place = find_place(stubs(data)[1].read_bytes(), _salt(stubs(data)[1]))
    assert place is not None
    stubs(data)[0].write_bytes(stub_of(one.read_bytes(), place))
    problem = only(esker.verify(data))
    assert problem.kind == "place"
    assert "something else" in problem.reason
    assert other.name in problem.reason
    assert (problem.position or 0) > fmt.HEADER_SIZE
    assert esker.repair(data).ok
    assert values(data) == list(range(50))


def _salt(path: Path) -> int:
    return int.from_bytes(path.read_bytes()[72:80], "little")


def test_a_check_that_is_dealt_out_knows_stubs(data: Path) -> None:
    root = str(data)

    def checked() -> esker.Verification:
        pieces, _ = dealt.pieces(SYSTEM_FILES, root)
        known = [dealt.examined(SYSTEM_FILES, piece) for piece in pieces]
        return dealt.check(SYSTEM_FILES, root, {k.piece.path: k for k in known if k is not None})

    found = checked()
    assert (found.problems, found.records) == ([], 50)
    objects(data)[0].unlink()
    flip(objects(data)[0], 900)
    assert [problem.kind for problem in checked().problems] == ["missing_object", "object"]
    assert checked().problems == esker.verify(data).problems


# --- repair ---------------------------------------------------------------------------------------

DAMAGED: dict[str, Callable[[Path], object]] = {
    "header": lambda stub: flip(stub, 20),
    "salt": lambda stub: flip(stub, 75),
    "config": lambda stub: flip(stub, 150),
    "place": lambda stub: flip(stub, at(stub, b'{"root"', 3)),
    "place header": lambda stub: flip(stub, at(stub, b'{"root"', -60)),
    "footer": lambda stub: flip(stub, stub.stat().st_size - 100),
    "trailer": lambda stub: flip(stub, stub.stat().st_size - 10),
    "cut": lambda stub: stub.write_bytes(stub.read_bytes()[:-200]),
    "cut in the place": lambda stub: stub.write_bytes(stub.read_bytes()[: at(stub, b'{"root"', 5)]),
    "only a header": lambda stub: stub.write_bytes(stub.read_bytes()[:128]),
    "empty": lambda stub: stub.write_bytes(b""),
    "zeros": lambda stub: stub.write_bytes(bytes(stub.stat().st_size)),
    "gone": lambda stub: stub.unlink(),
}


@pytest.mark.parametrize("damage", DAMAGED)
@pytest.mark.parametrize("which", [0, 1, 3])
def test_a_damaged_stub_is_made_anew_and_nothing_is_lost(
    data: Path, damage: str, which: int
) -> None:
    kept = {path.name: path.read_bytes() for path in stubs(data)}
    DAMAGED[damage](stubs(data)[which])
    assert not esker.verify(data).ok
    there = snapshot(data)
    dry = esker.repair(data, dry_run=True)
    assert snapshot(data) == there
    assert dry.actions
    done = esker.repair(data)
    assert done.ok, done
    assert done.lost == 0
    assert values(data) == list(range(50))
    assert {path.name: path.read_bytes() for path in stubs(data)} == kept, "it is what it was"
    assert esker.repair(data).actions == []


@pytest.mark.parametrize("damage", DAMAGED)
def test_nothing_is_given_up_while_the_cold_store_does_not_answer(data: Path, damage: str) -> None:
    DAMAGED[damage](stubs(data)[1])
    hide(data)
    told = ""
    try:
        done = esker.repair(data)
    except StorageError as problem:
        told = str(problem)
    else:
        assert not done.ok
        assert done.lost == 0
        assert not {"hole", "placeholder"} & {action.what for action in done.actions}
    assert ("does not answer" in told) == (damage in ("only a header", "empty", "zeros", "gone"))
    (data.parent / "elsewhere").rename(data.parent / "cold")
    assert esker.repair(data).ok
    assert values(data) == list(range(50))


def test_all_stubs_gone_are_found_again_where_the_cold_store_is_named(data: Path) -> None:
    for stub in stubs(data)[1:]:
        stub.unlink()
    done = esker.repair(data)
    assert [action.what for action in done.actions].count("stub") == 3
    assert values(data) == list(range(50))
    for stub in stubs(data):
        stub.unlink()
    done = esker.repair(data, cold=data.parent / "cold")
    assert done.ok, done
    assert values(data) == list(range(50))


def test_an_object_that_is_lost_becomes_a_hole(data: Path) -> None:
    objects(data)[1].unlink()
    done = esker.repair(data)
    assert done.ok, done
    assert done.lost == 10
    (hole,) = [action for action in done.actions if action.what == "hole"]
    assert (hole.first, hole.last) == (10, 19)
    assert Path(hole.kept).read_bytes().startswith(b"ESKERSEG")
    assert gaps(data) == [(10, 19)]
    assert esker.repair(data).actions == []
    with opened(data.parent) as store:
        store["t"].append(b"50 x", wait=True)
        assert store.tier("t", "hot").segments == 3


@pytest.mark.parametrize("where", ["frame", "header", "trailer", "cut"])
def test_a_damaged_object_is_brought_back_as_far_as_it_can_be_read(
    tmp_path: Path, where: str
) -> None:
    with opened(tmp_path) as store:
        topic = store.create("t", segment_records=40)
        for first in range(0, 80, 10):  # each batch a frame, too large to be merged
            topic.append_many([b"%d " % n + b"v" * 9000 for n in range(first, first + 10)])
        topic.sync()
        store.tick()
        assert store.tier("t", "cold").segments == 1
    data = tmp_path / "store"
    (path,) = objects(data)
    if where == "frame":
        flip(path, at(path, b"15 v", 50))
    elif where == "cut":
        path.write_bytes(path.read_bytes()[: at(path, b"25 v", 50)])
    else:
        flip(path, 20 if where == "header" else path.stat().st_size - 4)
    assert only(esker.verify(data)).kind == "object"
    with pytest.raises(esker.Corruption):
        values(data)
    done = esker.repair(data)
    assert done.ok, done
    lost = {"frame": [(10, 19)], "cut": [(20, 39)]}.get(where, [])
    assert gaps(data) == lost
    assert done.lost == sum(last - first + 1 for first, last in lost)
    assert path.exists(), "the evidence"
    assert esker.repair(data).actions == []
    with opened(tmp_path) as store:
        store["t"].append(b"80", wait=True)
        from esker.engine import tiering

        assert tiering.sweep(store["t"]._shards[0]) == 0
    assert path.exists()


def test_a_store_without_its_cold_store_is_left_alone_but_for_what_is_here(data: Path) -> None:
    hide(data)
    before = [stub.read_bytes() for stub in stubs(data)]
    (data / "notes.txt").write_text("not ours")
    done = esker.repair(data)
    assert not done.ok
    assert [action.what for action in done.actions] == ["set_aside"]
    assert done.after is not None
    assert done.after.kinds == ["unreached"]
    assert [stub.read_bytes() for stub in stubs(data)] == before


def test_a_segment_that_follows_a_loss_is_brought_back_with_a_new_header(data: Path) -> None:
    stubs(data)[1].unlink()
    objects(data)[1].unlink()
    done = esker.repair(data)
    assert done.ok, done
    assert {"placeholder", "linked", "brought_back"} <= {action.what for action in done.actions}
    assert gaps(data) == [(10, 19)]
    assert len(values_but_gaps(data)) == 40


def values_but_gaps(data: Path) -> list[int]:
    with opened(data.parent, "r") as store:
        items = list(store["t"].read(0, gaps="yield"))
    return [int(item.value.split()[0]) for item in items if isinstance(item, esker.Record)]


def test_a_damaged_segment_here_is_taken_from_the_cold_store_if_it_is_there(
    tmp_path: Path,
) -> None:
    with opened(tmp_path) as store:
        filled(store)
        store.tier("t", "cold", before=20)
        kept = shutil.copytree(tmp_path / "cold", tmp_path / "copy")
        store.tier("t", "hot", before=10)
    shutil.copytree(kept, tmp_path / "cold", dirs_exist_ok=True)  # as if it had not been deleted
    data = tmp_path / "store"
    flip(stubs(data)[0], 900)
    assert only(esker.verify(data)).kind == "frame"
    done = esker.repair(data)
    assert done.ok, done
    assert done.lost == 0
    assert values(data) == list(range(50))


# --- the command ----------------------------------------------------------------------------------


def test_the_commands_take_the_place(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hide(data)
    assert main(["verify", str(data), "-o", "table"]) == 1
    said = capsys.readouterr().out
    assert "unreached: topic 't' shard 0" in said
    assert "4 errors" in said
    where = ["--cold", str(data.parent / "elsewhere")]
    assert main(["verify", str(data), *where]) == 0
    stubs(data)[0].unlink()
    capsys.readouterr()
    assert main(["repair", str(data), "--json", *where]) == 0
    done = json.loads(capsys.readouterr().out)
    assert [action["what"] for action in done["actions"]] == ["stub"]
