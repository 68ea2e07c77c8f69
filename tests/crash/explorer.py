"""Looks at every state that a workload can end in.

`Explorer.explore` runs a workload once. Around every call that changes the disk it takes what a
kill would leave there and what power cuts would (see testing/cuts.py for which), opens each, reads
it, and holds it against the ledger. A state that was looked at before is not opened again; only
where more has been promised since, what was found in it is held against the new ledger. Every
state is opened and recovered by itself; but where recovery left a topic the very bytes that it left
before, they are not read a second time. Before it is opened the independent checker (tests/fsck.py)
judges each state, and what it reads there is what the engine must find. Where records were deleted
by tag, every n-th state is also read by a store that only reads, before anything is recovered.

Every n-th state is looked at thoroughly: it must survive another power cut as it is (I12), can be
written to, and is clean and the same when it is opened after a close. Of every n-th state, too, the
recovery itself dies, around each of its own changes, and is done again.

A broken promise is a `Violation`. Its note is the JSON of a file for tests/regressions, which
replays it: see replay.py.
"""

from __future__ import annotations

import json
import logging
import random
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import esker
from esker.format import names
from esker.storage.files import join
from esker.testing import (
    CORNERS,
    LOST,
    STRICT,
    Call,
    Crash,
    Fate,
    Fault,
    ManualClock,
    Profile,
    SimulatedDisk,
)
from esker.testing.inodes import Folder
from tests import fsck
from tests.crash.driver import ROOT, Driver, Step, mixed
from tests.crash.ledger import (
    Death,
    Found,
    Ledger,
    Outcome,
    check_erased,
    look_at,
    read,
    read_around,
    without_evicted,
)
from tests.helpers import abandon

IDLE = frozenset(
    {
        "lock",
        "counters",
        "catalog.lock",
        "recovery.lock",
        "routes.lock",
        "members",
        "members.lock",
        "offsets.lock",
    }
)

READ_ONLY = 8  # every so many states are also read by who recovers nothing
COMES_BACK = {"unfinished_checkpoint", "torn_journal"}  # a journal: its removal is not synced


class Violation(BaseException):
    """A promise was broken. Not an Exception: the engine at work must not take it for its own."""


class Explorer:
    """Looks at states; counts them and leaves out those that were seen already."""

    def __init__(
        self, *, most: int = 48, chances: int = 2, thorough: int = 0, nested: int = 0,
        profile: Profile = STRICT,
    ) -> None:  # fmt: skip
        self.most = most  # all states of a point if there are no more, else the telling ones
        self.chances = chances  # and as many that are left to chance
        self.thorough = thorough  # every n-th state is also written to, closed and opened again
        self.nested = nested  # the recovery of every n-th state dies too, at each of its changes
        self.profile = profile
        self.salt = 0  # makes chance fall differently
        self.enough = 1 << 62  # states, or double ones, after which to look no more
        self._fault: Fault | None = None
        self.points = 0
        self.states = 0  # different ones that were opened
        self.double = 0  # different ones that a death inside of a recovery left
        self.also: Counter[str] = Counter()
        self._judged: dict[bytes, int] = {}  # every image, and the ledger it was held against
        self._found: dict[bytes, Outcome] = {}  # of the workload at hand
        self._topics: dict[bytes, Found] = {}  # topic by topic, of the last workloads
        self._last: tuple[int, int] = (-1, -1)
        self._skipped = 0
        self._deaths: list[dict[str, Any]] = []  # how to come here again

    # -- one workload --

    def explore(
        self, steps: list[Step], seed: int = 0, skip: int = 0, fault: Fault | None = None,
    ) -> None:  # fmt: skip
        """Run the steps, and look around every change that they make, but for the first `skip`.

        With a fault, calls of the steps may fail, and looking begins when one has.
        """
        driver = Driver(SimulatedDisk(seed, self.profile), seed=seed)
        if not self.profile.lies:
            driver.reader = self._read  # hundreds of workloads begin with the same steps
        self._fault = fault
        self._found, self._last = {}, (-1, -1)
        if len(self._topics) > 3000:
            self._topics.clear()

        def watch(call: Call, when: str) -> None:
            self._deaths = [{"call": call.serial, "when": when}]
            try:
                self._look(driver.disk, driver.ledger, call, when)
            except BaseException as problem:
                story = {"profile": self.profile.name, "seed": seed, "steps": steps}
                problem.add_note(f"{call}\n{json.dumps({**story, 'deaths': self._deaths})}")
                raise Violation(problem) from problem

        logger = logging.getLogger("esker")
        try:
            logger.disabled = True  # it would tell of every finding, thousands of times
            driver.disk.watch = None if skip else watch
            driver.open()
            driver.run(steps[:skip])
            driver.disk.watch = watch
            if fault is not None:
                self._run_into(driver, steps[skip:], fault)
                return
            driver.run(steps[skip:])
            if not skip:
                driver.close()
        finally:
            logger.disabled = False
            driver.disk.watch = None
            driver.abandon()

    def _run_into(self, driver: Driver, steps: list[Step], fault: Fault) -> None:
        driver.disk.fail(fault)
        for step in steps:
            try:
                driver.run([step])
            except esker.EskerError as problem:
                driver.ledger.failed(problem)
        with suppress(esker.EskerError):
            driver.close()

    def _look(self, disk: SimulatedDisk, ledger: Ledger, call: Call, when: str) -> None:
        """All that a death may leave at this point."""
        if self._fault is not None and not self._fault.hits:
            return
        moment = (call.serial - (when == "before"), ledger.version)
        if moment == self._last:
            return  # nothing has happened since the last look
        if (self.double if self.nested else self.states) >= self.enough:
            return
        self._last = moment
        self.points += 1
        died: Death = "power" if self._fault is not None and disk.reverts else "kill"  # as much
        self._see(b"kill" + disk.image(IDLE), disk.kill, ledger, died, None)
        cut = disk.cut(IDLE)
        seed = call.serial + 1000 * self.salt
        for fate, image in cut.fates(most=self.most, chances=self.chances, seed=seed):
            self._see(image, lambda fate=fate: disk.crash(fate, cut), ledger, "power", fate)

    def _see(
        self, image: bytes, make: Callable[[], SimulatedDisk], ledger: Ledger, death: Death,
        fate: Fate | None,
    ) -> None:  # fmt: skip
        judged, strength = self._judged.get(image), ledger.strength()
        if judged == strength:
            return
        self._judged[image] = strength
        self._deaths[-1]["fate"] = told(fate)
        if image in self._found:
            self.also["promises"] += 1
            self._hold(self._found[image], ledger, death)
            return
        disk = make()
        if judged is None:
            self.states += 1
            if self.nested and self.states % self.nested == 0:
                self._die_again(disk.kill() if death == "kill" else disk, ledger, death)
                disk = make()
        thorough = self.thorough and judged is None and self.states % self.thorough == 0
        self._found[image] = self.judge(disk, ledger, death, thorough=bool(thorough))
        _take_apart(disk._root)

    # -- one state --

    def judge(
        self, disk: SimulatedDisk, ledger: Ledger, death: Death, *, thorough: bool = False,
        reported: bool = True,
    ) -> Outcome:  # fmt: skip
        """Open a state and hold it against the ledger."""
        if self.profile.lies:
            return self._judge_lies(disk, ledger)
        checked = fsck.judge(disk)  # knows nothing of the engine
        assert not checked.problems, f"no crash leaves this: {checked.problems}"
        self._look_only(disk, ledger)
        driver = Driver(disk, seed=1, mark="later ")
        try:
            outcome = look_at(driver.open(), self._read)
            _agree(outcome, checked)
            self._hold(outcome, ledger, death, reported=reported)
            if thorough:
                self.also["thoroughly"] += 1
                driver.ledger = ledger.copy()
                driver.ledger.settle(driver._store, outcome)
                self._go_on(driver, outcome, death)
        finally:
            driver.abandon()
        return outcome

    def _look_only(self, disk: SimulatedDisk, ledger: Ledger) -> None:
        """Whoever only reads, and recovers nothing, is shown nothing that was deleted by tag."""
        pages = [page for page in ledger.pages.values() if page.erased or page.erasing]
        self._skipped += 1
        if not pages or self._skipped % READ_ONLY:
            return
        self.also["read only"] += 1
        store = esker.open(ROOT, "r", files=disk.kill(), clock=ManualClock())
        try:
            for page in pages:
                if page.name in store and not page.dropping:  # its directory may be gone already
                    found = read_around(store, page.name)
                    check_erased(page, without_evicted(page, found)[1])
        finally:
            abandon(store)

    def _read(self, store: esker.Store, name: str) -> Found:
        """A topic, read; or remembered, if the same bytes were read before."""
        disk, entry = store._context.files, store._lookup(name)
        assert isinstance(disk, SimulatedDisk)
        assert entry is not None
        image = disk.image(IDLE, join(store.path, names.TOPICS, names.topic(entry.id)))
        found = self._topics.get(image)
        if found is None:
            found = self._topics[image] = read(store, name)
        return found

    def _hold(
        self, outcome: Outcome, ledger: Ledger, death: Death, *, reported: bool = True
    ) -> None:
        if self.profile.lies:
            ledger.judge_weakly(outcome)
        else:
            ledger.judge(outcome, death, reported=reported)

    def _judge_lies(self, disk: SimulatedDisk, ledger: Ledger) -> Outcome:
        """On a disk that lied anything may be missing; what is there must be right."""
        driver = Driver(disk)
        try:
            outcome = look_at(driver.open(), read_around)
        except (esker.Corruption, esker.NotAStore) as problem:
            self.also["refused"] += 1
            return Outcome(frozenset({"refused"}), str(problem), frozenset(), {})
        finally:
            driver.abandon()
        ledger.judge_weakly(outcome)
        return outcome

    def _go_on(self, driver: Driver, outcome: Outcome, death: Death) -> None:
        """What is there survives; it is written to, closed, and opened again."""
        ledger = driver.ledger
        again = Driver(driver.disk.crash(LOST))
        try:
            found = look_at(again.open())
            ledger.judge(found, "power", reported=False)
            killed = bool(self._deaths) and self._deaths[-1]["fate"] is None
            if death == "power" and not killed:  # else a close cut short may be undone now
                assert found.found == outcome.found, "I12: recovering twice is not the same"
                left = found.labels - COMES_BACK
                assert not left, f"I12: the recovery left something to do: {found.report}"
        finally:
            again.abandon()
        if not any(page.created for page in ledger.pages.values()):
            driver.create("first", "fsync")
        for page in list(ledger.pages.values()):
            if page.created:
                reached = page.reached
                driver.wait(page.name)
                first = page.written[0][0]
                strict = page.durability in ("disk", "ephemeral")
                assert first >= reached or not strict, f"I6 {page.name}: {first}"
        driver.sync_all()
        driver.reopen()  # demands a clean recovery and the same data
        driver.close()

    # -- deaths inside of a recovery --

    def _die_again(
        self, disk: SimulatedDisk, ledger: Ledger, death: Death, *, deeper: int = 1
    ) -> None:
        """Recovery itself dies around each of its changes, and is done again."""
        last = [-1]
        place: dict[str, Any] = {}
        self._deaths.append(place)

        def watch(call: Call, when: str) -> None:
            moment = call.serial - (when == "before")
            if moment == last[0]:
                return
            last[0] = moment
            self.also["points inside"] += 1
            place.update(call=call.serial, when=when, fate=None)
            self._see_double(b"kill" + disk.image(IDLE), disk.kill, ledger, death)
            cut = disk.cut(IDLE)
            for fate, image in cut.fates(most=12, chances=1, seed=call.serial):
                place["fate"] = told(fate)
                self._see_double(
                    image, lambda fate=fate: disk.crash(fate, cut), ledger, "power", deeper
                )

        disk.watch = watch
        driver = Driver(disk)
        try:
            driver.open()
        finally:
            disk.watch = None
            driver.abandon()
        self._deaths.pop()

    def _see_double(
        self, image: bytes, make: Callable[[], SimulatedDisk], ledger: Ledger, death: Death,
        deeper: int = 0,
    ) -> None:  # fmt: skip
        strength = ledger.strength()
        if self._judged.get(image) == strength:
            return
        self._judged[image] = strength
        self.double += 1
        if deeper and self.double % 50 == 0:  # and a third time
            self.also["a third time"] += 1
            self._die_again(make(), ledger, death, deeper=deeper - 1)
        disk = make()
        self.judge(disk, ledger, death, reported=False)
        _take_apart(disk._root)

    # -- many lives --

    def live(self, seed: int, lives: int = 6) -> None:
        """One store, many deaths: each at a random change, also in the middle of a recovery."""
        chance = random.Random(f"lives {seed}")
        disk, ledger, serial = SimulatedDisk(seed, self.profile), Ledger(), 0
        worst: Death = "kill"
        story: list[Any] = []
        for life in range(lives):
            driver = Driver(disk, ledger, seed=seed * 100 + life)
            driver.serial = serial
            steps = [] if life + 1 == lives else mixed(chance, wide=seed % 2 == 1)
            if steps:
                disk.stop_at(
                    chance.choice((5, 20, 60, 150, 400)), chance.choice(("before", "after"))
                )
            story.append(steps)
            try:
                store = driver.open()
                ledger.settle(store, ledger.check(store, worst))
                self.states += 1
                worst = "kill"
                driver.run(steps)
                driver.close()
            except Crash as crash:
                story.append(str(crash))
            except BaseException as problem:
                problem.add_note(f"seed {seed}: {story}")
                raise
            driver.abandon()
            serial = driver.serial
            if chance.random() < 0.3:
                disk = disk.kill()
            else:
                disk = disk.crash(chance.choice((*CORNERS, Fate(chance.randrange(1 << 30)))))
                worst = "power"


def _agree(outcome: Outcome, checked: fsck.Judge) -> None:
    """What the engine reads is what the independent checker reads."""
    for name, found in outcome.found.items():
        shard = checked.shards.get((name, 0))
        there = [(record.offset, record.value) for record in shard.records] if shard else []
        told = f"{name}: fsck finds {[offset for offset, _ in there]}"
        assert found.records[: len(there)] == there, told
        rest = [value for _, value in found.records[len(there) :]]
        assert rest == checked.pending.get((name, 0), []), told


def _take_apart(folder: Folder) -> None:
    """Of a disk that is done with: names and directories hold each other, see `abandon`."""
    folder.pending.clear()
    for node in folder.entries.values():
        if isinstance(node, Folder):
            _take_apart(node)


def told(fate: Fate | None) -> Any:
    """A fate as JSON; None is a kill."""
    if fate is None:
        return None
    taken = getattr(fate, "taken", None)
    return repr(fate) if taken is None else {"outcomes": list(taken), "filling": fate.filling}
