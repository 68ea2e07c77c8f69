"""On a real disk: links, directories, pipes and locked files where files of a store belong.

Nobody waits for a pipe, nobody follows a link out of the store, and what is refused is refused
with an error of Esker's that names the file. What was there before is there afterwards.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import esker
from esker.storage.files import SYSTEM_FILES
from tests.helpers import Refusing
from tests.sweep.shapes import ROOT, Shape, shape

pytestmark = [pytest.mark.crash]

SHAPES = ("closed", "sealed", "killed", "deleted")


def _directory(path: Path, elsewhere: Path) -> None:
    path.rename(elsewhere)
    path.mkdir()


def _link(path: Path, elsewhere: Path) -> None:
    path.rename(elsewhere)
    path.symlink_to(elsewhere)


def _loop(path: Path, elsewhere: Path) -> None:
    path.rename(elsewhere)
    path.symlink_to(path)


def _dangling(path: Path, elsewhere: Path) -> None:
    path.rename(elsewhere)
    path.symlink_to(elsewhere.with_name("nowhere"))


def _pipe(path: Path, elsewhere: Path) -> None:
    path.rename(elsewhere)
    os.mkfifo(path)


def _device(path: Path, elsewhere: Path) -> None:
    path.rename(elsewhere)
    path.symlink_to("/dev/zero")


ODD: tuple[Callable[[Path, Path], None], ...] = (
    _directory, _link, _loop, _dangling, _pipe, _device,
)  # fmt: skip


def _on_disk(of: Shape, root: Path) -> None:
    for name in sorted(of.disk.dirs):
        if name.startswith(ROOT):
            (root / name[len(ROOT) :].lstrip("/")).mkdir(parents=True, exist_ok=True)
    for name, data in of.disk.files.items():
        (root / name[len(ROOT) :].lstrip("/")).write_bytes(bytes(data))


@pytest.mark.parametrize("odd", ODD, ids=lambda odd: odd.__name__.strip("_"))
@pytest.mark.parametrize("name", SHAPES)
def test_what_is_no_file_is_refused_by_name(name: str, odd: Any, tmp_path: Path) -> None:
    of = shape(name)
    for number, path in enumerate(sorted(of.disk.files)):
        if "/quarantine/" in path:
            continue
        for mode in ("r", "rw"):
            root = tmp_path / f"{number}{mode}"
            _on_disk(of, root)
            place, elsewhere = root / path[len(ROOT) + 1 :], tmp_path / f"aside{number}{mode}"
            odd(place, elsewhere)
            _use(root, place, mode)
            assert elsewhere.read_bytes() == bytes(of.disk.files[path]), f"{path} was written to"
            shutil.rmtree(root)  # nobody is to look at it any more: it may lead to a device


def _use(root: Path, place: Path, mode: Any) -> None:
    """Open, read and write all there is: it works, or an error names the odd one out."""
    try:
        with esker.open(root, mode, background=False, journal_bytes=64 << 10) as store:
            for name in store:
                list(store[name].read(0, gaps="skip"))
                if mode == "rw":
                    store[name].append(b"more", wait=True)
    except esker.EskerError as problem:
        told = str(problem)
        assert place.name in told or place.parent.name in told, f"does not say where: {told}"


@pytest.mark.parametrize("name", SHAPES)
def test_what_may_not_be_read_is_refused_by_name(name: str, tmp_path: Path) -> None:
    of = shape(name)
    for number, path in enumerate(sorted(of.disk.files)):
        if "/quarantine/" in path:
            continue
        root = tmp_path / str(number)
        _on_disk(of, root)
        place = root / path[len(ROOT) + 1 :]
        files = Refusing(SYSTEM_FILES)
        for call in ("open", "page", "lock"):
            files.refuse(call, 13, str(place))  # as after chmod 000; root may read all the same
        before = place.read_bytes()
        try:
            with esker.open(root, files=files, background=False) as store:
                for topic in store:
                    list(store[topic].read(0, gaps="skip"))
        except esker.EskerError as problem:
            told = str(problem)
            assert place.name in told or place.parent.name in told, f"does not say where: {told}"
        assert place.read_bytes() == before, f"{path} was changed without having been read"
        shutil.rmtree(root)
