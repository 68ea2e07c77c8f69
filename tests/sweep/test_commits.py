"""Damage between the commit of a batch and its attachment: the batch comes whole, or is refused.

The store is one that was closed after a batch for two topics had been committed and not attached.
Every byte of the commit and of the staged segments is damaged, one at a time; a writer then opens
the store. Either all of the batch is there, or the opening says `corrupt_commit` and nothing of the
damaged segment is; the records before it are there always.
"""

from __future__ import annotations

from functools import cache

import pytest

import esker
from esker.engine import attach
from esker.format import segment as segment_format
from esker.testing import SimulatedDisk
from tests.helpers import abandon
from tests.suites import scaled
from tests.sweep.shapes import ROOT, Platter, _on_platter, opened

BATCH = {"t": [b"one", b"two" * 50, b"three"], "u": [b"four"]}
pytestmark = pytest.mark.suite


@cache
def committed() -> Platter:
    disk = SimulatedDisk(8)
    with opened(disk) as store:
        tickets = []
        for name, values in BATCH.items():
            store.create(name, durability="fsync").append(b"before", wait=True)
            with store.stage(name) as staged:
                staged.append_many(values)
            tickets += staged.tickets
        assert attach.commit(store._context, "nightly", 7, tickets)
    return _on_platter(disk.kill())


def places() -> list[tuple[str, int]]:
    """Every byte of the files that a pending batch consists of."""
    files = committed().files
    paths = sorted(path for path in files if path.endswith((".commit", ".staged")))
    assert len(paths) == 3
    return [(path, at) for path in paths for at in range(len(files[path]))]


def look(disk: Platter) -> tuple[list[str], dict[str, list[bytes]]]:
    store = opened(disk)
    try:
        return store.recovery.labels, {
            name: [record.value for record in store[name].read(0)] for name in BATCH
        }
    finally:
        abandon(store)


def check(disk: Platter, path: str, *, harmless: bool) -> None:
    said = esker.verify(ROOT, files=disk).kinds
    labels, found = look(disk)
    whole = {name: [b"before", *values] for name, values in BATCH.items()}
    if harmless:
        assert (labels, found) == (["unfinished_attach"], whole)
        assert said == ["pending_attach"]
        return
    assert labels == ["corrupt_commit"]
    assert "commit" in said
    assert found["t"] in ([b"before"], whole["t"])
    assert found["u"] == [b"before"], "in the order of tickets: not behind one that is damaged"
    assert path in disk.files, "what is damaged is not deleted"


def test_a_flipped_bit_costs_the_batch_or_nothing() -> None:
    everything = places()
    step = max(1, len(everything) // scaled(len(everything), least=200))
    for path, at in everything[::step]:
        disk = committed().copy()
        data = disk.files[path]
        data[at] ^= 1 << at % 8
        # header and trailer of a staged segment are written again when it is attached
        inside = segment_format.HEADER_SIZE <= at < len(data) - segment_format.TRAILER_SIZE
        check(disk, path, harmless=path.endswith(".staged") and not inside)


def test_a_file_cut_short_or_emptied_costs_the_batch() -> None:
    for path in {path for path, _ in places()}:
        for size in (0, 1, 63, 64, 200, len(committed().files[path]) - 1):
            disk = committed().copy()
            del disk.files[path][size:]
            check(disk, path, harmless=False)


def test_a_reader_sees_what_was_there_before_and_that_more_is_to_come() -> None:
    with opened(committed().copy(), "r") as store:
        assert store.recovery.labels == ["unrecovered"]
        assert [record.value for record in store["t"].read(0)] == [b"before"]
