"""Fixtures for all tests."""

from __future__ import annotations

import gc
import os
import re
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

import esker
from esker.engine import store as engine
from esker.storage.files import SYSTEM_FILES
from esker.storage.memory import MemoryFiles
from esker.testing import Monitor
from tests import fsck
from tests.helpers import FORTY, HandClock, dealt_with
from tests.suites import SCALE, Suite, Tallies, summary

settings.register_profile("esker", deadline=None)  # a test is never failed by a busy machine
settings.load_profile("esker")

SHARED_MEMORY = "/dev/shm"


KINDS = ("directory", "memory", "http")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """The one suite: a file that says `EVERY_KIND = True` is run with every kind of store.

    `@pytest.mark.directory("why")` leaves a test of it with the directory.
    """
    if "store" in metafunc.fixturenames and getattr(metafunc.module, "EVERY_KIND", False):
        alone = metafunc.definition.get_closest_marker("directory")
        metafunc.parametrize("store", KINDS[:1] if alone else KINDS, indirect=True)


@pytest.fixture
def store(request: pytest.FixtureRequest) -> Iterator[esker.Store]:
    """A fresh store: on a real disk unless the one suite asks for another kind."""
    kind = getattr(request, "param", "directory")
    if kind == "memory":
        with esker.open(":memory:") as opened:
            yield opened
        return
    place = request.getfixturevalue("tmp_path") / "data"
    if kind == "http":
        # here, because each child of the zoo imports this file, and few need a server
        from esker.server.run import serving
        from esker.server.settings import Settings

        with serving(place, Settings(port=0)) as server, esker.open(server.url) as opened:
            yield opened
        return
    with esker.open(place) as opened:
        yield opened


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def still(tmp_path: Path, clock: HandClock) -> Iterator[esker.Store]:
    """A store without threads on a clock that stands still: nothing happens by itself."""
    with esker.open(tmp_path / "data", clock=clock, background=False) as opened:
        yield opened


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A store that was closed cleanly: one sealed segment, one log, forty records."""
    root = tmp_path / "data"
    with esker.open(root, background=False) as store:
        topic = store.create("t", segment_records=30)
        topic.append_many(FORTY[:30])
        topic.append_many(FORTY[30:])
        store.tick()
    return root


@pytest.fixture
def fast(tmp_path: Path) -> Iterator[str]:
    """A folder in memory where there is one: thousands of small stores wear out no disk."""
    if not os.access(SHARED_MEMORY, os.W_OK):
        yield str(tmp_path / "fast")
        return
    with tempfile.TemporaryDirectory(prefix="esker-", dir=SHARED_MEMORY) as folder:
        yield folder


def _open_files(root: Path) -> set[str]:
    """Paths below a directory that this process has open or mapped, deleted ones included."""
    inside = f"{root}/"
    found = set()
    for fd in os.listdir("/proc/self/fd"):
        try:
            path = os.readlink(f"/proc/self/fd/{fd}")
        except OSError:
            continue
        if path.startswith(inside):
            found.add(path)
    return found


def _threads() -> set[str]:
    return {thread.name for thread in threading.enumerate() if thread.name.startswith("esker")}


@pytest.fixture(autouse=True)
def nothing_is_left_open(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fails a test after which files of its directory are open or threads of Esker run."""
    before = _threads()
    used = "tmp_path" in request.fixturenames
    root = request.getfixturevalue("tmp_path") if used else None
    yield
    more = _threads() - before
    if any(name.startswith("esker-aio") for name in before):  # of a server for many tests: its pool
        more = {name for name in more if not name.startswith("esker-aio")}
    assert not more, "threads of a store outlive it"
    if root is not None and _open_files(root):
        gc.collect()  # what only a cycle holds, such as a caught exception, is not a leak
        assert not _open_files(root), "files are still open after the test"


@pytest.fixture(autouse=True)
def durable_in_order(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fails a test in which something was called durable, or given up, before it might be.

    Every store on the machine's disk or in memory is watched; what a test hands in as `files=` is
    its own business, and other processes are out of sight.
    """
    watching = [Monitor(SYSTEM_FILES)]

    def in_memory() -> Monitor:
        watching.append(Monitor(MemoryFiles()))
        return watching[-1]

    monkeypatch.setattr(engine, "SYSTEM_FILES", watching[0])
    monkeypatch.setattr(engine, "MemoryFiles", in_memory)
    yield
    for monitor in watching:
        monitor.check()


FSCK_BYTES = 64 << 20  # larger stores are not looked at
DAMAGING = {  # tests that leave a store damaged, because damage is what they are about
    "test_bad_files.py": "huge_|later_format|link_where|pipe_where|identity_that|foreign_files",
    "test_verbs.py": "damage_is_found",
    "test_store.py": "finds_damage",
    "test_fsck.py": "link_is_not_followed",
    "test_golden.py": r"frozen\[once\]",  # its writer was killed, and its page does not say so
    "test_repair.py": "dry_run|later_esker",
    "test_tiering.py": "where_the_option_says|not_believed|damaged_|cannot_be_told",
    "test_verify.py": "damage|gone_is_missed|deleted_in_the_middle|shallow_look|later_esker",
}


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "damages: leaves a store that fsck must find fault with")
    config.addinivalue_line("markers", "directory(why): of the one suite, for a directory alone")
    config.pluginmanager.register(Told(config))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A part of a suite has as much to do as the scale says: it is given time for that."""
    for item in items:
        if item.get_closest_marker("suite") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(600 * max(1, SCALE)))


class Told:
    """Names a failure when it happens: the run is long, and whoever waits wants to know."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        reporter: Any = self._config.pluginmanager.get_plugin("terminalreporter")
        if report.failed and reporter is not None:
            reporter.ensure_newline()
            reporter.write_line(f"{report.when} failed: {report.nodeid}")


def pytest_collection_finish() -> None:
    """What stays for the whole run is not looked through again and again for cycles.

    The suites make and drop objects by the million, hardly any of them in cycles. With
    Python's own thresholds a seventh of their time went into the search.
    """
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


def pytest_unconfigure() -> None:
    gc.unfreeze()  # or libraries that count their objects at the end take these for leaks


@pytest.hookimpl(optionalhook=True)  # without pytest-xdist there is nothing to deal out
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Deals out tests singly, but those of Spark in two lots, see `dealt_with`; these go first.

    The mark `xdist_group` would say the same, but pytest 9.2 with pytest-xdist 3.8 ignores it.
    """
    from xdist.scheduler import LoadScopeScheduling

    class Scheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return dealt_with(nodeid)

        def mark_test_complete(self, node: Any, item_index: int, duration: float = 0) -> None:
            """What is done is forgotten: else all of it is counted again after each test."""
            super().mark_test_complete(node, item_index, duration)
            scope = dealt_with(self.registered_collections[node][item_index])
            if all(self.assigned_work[node][scope].values()):
                del self.assigned_work[node][scope]

    return Scheduling(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: Any) -> Any:
    report = yield
    if call.when == "call":
        item.stash[PASSED] = report.passed
    return report


PASSED = pytest.StashKey[bool]()


@pytest.fixture(autouse=True)
def fsck_finds_nothing(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fails a test that leaves a closed store in which the second reader finds a problem."""
    used = "tmp_path" in request.fixturenames
    root = request.getfixturevalue("tmp_path") if used else None
    yield
    if root is None or not request.node.stash.get(PASSED, False):
        return
    named = DAMAGING.get(request.node.path.name, "^$")
    if request.node.get_closest_marker("damages") or re.search(named, request.node.name):
        return
    for identity in root.rglob("esker.store"):
        if "quarantine" in identity.parts or not identity.is_file():
            continue
        files = [path for path in identity.parent.rglob("*") if path.is_file()]
        if sum(path.stat().st_size for path in files) <= FSCK_BYTES and _was_closed(files):
            fsck.judge_clean(identity.parent)


def _was_closed(files: list[Path]) -> bool:
    """Whether every shard's state says so."""
    if any(path.suffix == ".journal" for path in files):
        return False
    pages = {
        path.parent: fsck.state(path.read_bytes())[0] for path in files if path.name == "state"
    }
    written = {path.parent for path in files if path.suffix in (".log", ".seg")}
    closed = {folder for folder, page in pages.items() if page and page.flags & fsck.CLEAN}
    return written <= closed and all(
        page is None or page.flags & fsck.CLEAN for page in pages.values()
    )


@pytest.fixture
def tally(record_property: Any) -> Iterator[Tallies]:
    """Counts what a part of a suite looked at; see tests/suites.py."""
    parts: list[Suite] = []

    def begin(name: str, lots: int = 1) -> Suite:
        parts.append(Suite(name, lots))
        return parts[-1]

    yield begin
    for part in parts:
        record_property("suite", part.told())
    for part in parts:
        part.finish()


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """A line for each suite that ran, with what its parts looked at together."""
    parts = [
        value
        for reports in terminalreporter.stats.values()
        for report in reports
        if getattr(report, "when", "") == "teardown"
        for name, value in report.user_properties
        if name == "suite"
    ]
    lines = summary(parts)
    if lines:
        terminalreporter.section("suites")
    for line in lines:
        terminalreporter.write_line(line)
