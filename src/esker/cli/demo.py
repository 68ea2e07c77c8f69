"""`esker demo`: does it keep what it promises?

A producer writes as fast as it can, from several threads, and notes in its own ack lists what it
was told is safe. It is killed with SIGKILL in the middle of it, again and again. After each kill
the store is opened, recovery says what it found, and all that was acknowledged is looked for.

Everything happens in one directory: DIR/store and DIR/acks. Nothing goes over a network.
"""

from __future__ import annotations

import random
import shlex
import shutil
import signal
import subprocess
import sys
from typing import NamedTuple

import msgspec

import esker
from esker.cli.demo_check import Verdict, check, read_acks
from esker.cli.demo_producer import EVENTS, ORDERS
from esker.clock import SYSTEM_CLOCK
from esker.engine.recovery import CASES
from esker.errors import EskerError, NotAStore
from esker.storage.files import SYSTEM_FILES, absolute, join
from esker.upkeep.verify import shard_folders

MARK = "esker-demo.txt"
_TEXT = b"Made by `esker demo`: store/ is the store, acks/ is what its producer was told is safe.\n"
_CLASS = {ORDERS: "fsync", EVENTS: "disk"}


class Plan(NamedTuple):
    """How often to kill, and after how long at the least and at the most."""

    kills: int
    least: float
    most: float


PLAN = Plan(4, 0.8, 1.5)
FAST = Plan(2, 0.3, 0.6)
PATIENCE = 60.0  # seconds for a producer to begin


class DemoFailed(EskerError):
    """The demo could not be shown."""

    code = "demo"


class Rate(msgspec.Struct):
    """What a topic took while a producer was alive."""

    records: int = 0
    seconds: float = 0.0

    @property
    def per_second(self) -> float:
        return self.records / self.seconds if self.seconds else 0.0


def run(folder: str, *, keep: bool = False, fast: bool = False, check_only: bool = False) -> int:
    """Show it. Returns 0 when every promise was kept."""
    show = _Demo(absolute(folder), FAST if fast else PLAN)
    if check_only:
        return show.check_only()
    show.prepare(keep=keep)
    return show.run()


class _Demo:
    def __init__(self, folder: str, plan: Plan) -> None:
        self.folder = folder
        self.store = join(folder, "store")
        self.acks = join(folder, "acks")
        self.plan = plan
        self.rates = {ORDERS: Rate(), EVENTS: Rate()}
        self.slowest = 0.0
        self.verdict = Verdict()
        self.broken: list[str] = []  # promises that were not kept

    def prepare(self, *, keep: bool) -> None:
        """An empty directory, or what a former run left. Never somebody else's."""
        files = SYSTEM_FILES
        there = files.list(self.folder) if files.kind(self.folder) else []
        if there and MARK not in there:
            raise DemoFailed(
                f"{self.folder} is not empty and was not made by the demo; nothing was touched. "
                "Give another place with --dir."
            )
        if not keep:
            for part in (self.store, self.acks):
                if files.kind(part):
                    shutil.rmtree(part)
        for part in (self.folder, self.acks):
            files.make_dir(part)
        if MARK not in there:
            file = files.open(join(self.folder, MARK), "create")
            file.write(0, [_TEXT])
            file.close()

    def check_only(self) -> int:
        if not SYSTEM_FILES.kind(self.acks):
            raise NotAStore(f"{self.folder} holds no demo; run `esker demo` first")
        with esker.open(self.store) as store:
            self.verdict = check(store, self.acks)
        print(self.verdict)
        return self.conclude()

    def run(self) -> int:
        print("A producer writes from six threads, and notes on its own list what it was told is")
        print("safe. It is killed with SIGKILL while it writes; then all of it is looked for.")
        print(f"The store: {_shown(self.store)}    The list: {_shown(self.acks)}\n")
        first = 1 + max((int(n[:3]) for n in SYSTEM_FILES.list(self.acks) if n[:3].isdigit()),
                        default=0)  # fmt: skip
        for number in range(first, first + self.plan.kills):
            self.kill_one(number)
            if number == first + self.plan.kills - 1:
                self.tear()
            self.look(number)
        self.final()
        return self.conclude()

    # -- one run --

    def kill_one(self, number: int) -> None:
        """Start a producer, let it work for a while, kill it."""
        before = self.acknowledged()
        command = [sys.executable, "-m", "esker.cli.demo_producer", self.store, self.acks,
                   str(number)]  # fmt: skip
        producer = subprocess.Popen(command, start_new_session=True)  # Ctrl-C is for us alone
        try:
            started = self.wait_for_acks(producer, before)
            life = random.uniform(self.plan.least, self.plan.most)
            self.watch(producer, number, before, started, life)
            producer.send_signal(signal.SIGKILL)
            seconds = SYSTEM_CLOCK.monotonic() - started
            producer.wait()
        finally:
            if producer.poll() is None:
                producer.kill()
            producer.wait()
        if producer.returncode != -signal.SIGKILL:
            raise DemoFailed(f"the producer ended by itself with {producer.returncode}")
        after = self.acknowledged()
        for topic, rate in self.rates.items():
            rate.records += after.get(topic, 0) - before.get(topic, 0)
            rate.seconds += seconds
        count = sum(after.values()) - sum(before.values())
        _line(f"run {number}: {count:,} records acknowledged in {seconds:.1f} s, "
              f"then kill -9 {producer.pid}")  # fmt: skip

    def wait_for_acks(self, producer: subprocess.Popen[bytes], before: dict[str, int]) -> float:
        """Until both topics are being written. Returns when that was."""
        deadline = SYSTEM_CLOCK.monotonic() + PATIENCE
        while True:
            now = self.acknowledged()
            if all(now.get(topic, 0) > before.get(topic, 0) for topic in self.rates):
                return SYSTEM_CLOCK.monotonic()
            if not _still_runs(producer, 0.02) or SYSTEM_CLOCK.monotonic() > deadline:
                raise DemoFailed("the producer did not begin to write")

    def watch(
        self, producer: subprocess.Popen[bytes], number: int, before: dict[str, int],
        started: float, life: float,
    ) -> None:  # fmt: skip
        tty = sys.stdout.isatty()
        while (left := started + life - SYSTEM_CLOCK.monotonic()) > 0:
            if not _still_runs(producer, min(left, 0.1)):
                return
            if tty:
                count = sum(self.acknowledged().values()) - sum(before.values())
                sys.stdout.write(f"\rrun {number}: {count:,} records acknowledged …")
                sys.stdout.flush()

    def acknowledged(self) -> dict[str, int]:
        """How many records the ack lists name, by topic."""
        found: dict[str, int] = {}
        for (topic, _), acks in read_acks(self.acks).items():
            found[topic] = found.get(topic, 0) + sum(ack.records for ack in acks)
        return found

    def tear(self) -> None:
        """Half a frame at the end of a log: what a power cut leaves, and a kill hardly ever."""
        logs = [
            join(folder, name)
            for folder in shard_folders(SYSTEM_FILES, self.store)
            for name in sorted(SYSTEM_FILES.list(folder))
            if name.endswith(".log")
        ]
        file = SYSTEM_FILES.open(logs[-1], "rw")
        try:
            half = file.read(128, 100)  # of a frame that belongs elsewhere
            file.write(file.size(), [half])
        finally:
            file.close()
        print(f"  and {len(half)} bytes of a frame are left at the end of a log, as by a power cut")

    def look(self, number: int) -> None:
        """Open what the dead producer left, and compare."""
        open_store = esker.open  # imported before the clock starts
        started = SYSTEM_CLOCK.monotonic()
        with open_store(self.store) as store:
            seconds = SYSTEM_CLOCK.monotonic() - started
            self.slowest = max(self.slowest, seconds)
            print(f"  opened in {seconds:.3f} s; recovery: {_in_words(store.recovery)}")
            self.verdict = check(store, self.acks)
        print(f"  {self.verdict}")
        if not self.verdict.holds:
            self.broken.append(f"after run {number}: {self.verdict}")

    # -- the end --

    def final(self) -> None:
        found = esker.verify(self.store)
        if not found.ok:
            self.broken.append(f"verify: {found}")
        print("\nmeasured (making, hashing and noting each record included):")
        print(f"  {'topic':8} {'class':6} {'records':>10} {'MB':>8} {'records/s':>10}")
        for topic, rate in self.rates.items():
            size = self.verdict.bytes.get(topic, 0) / 1e6
            print(f"  {topic:8} {_CLASS[topic]:6} {self.verdict.records.get(topic, 0):>10,} "
                  f"{size:>8.1f} {rate.per_second:>10,.0f}")  # fmt: skip
        print(f"  slowest open after a kill: {self.slowest:.3f} s")
        print(f"  verify: {'ok' if found.ok else 'NOT OK'}, {found.records:,} records in "
              f"{found.files} files, {found.seconds:.2f} s")  # fmt: skip

    def conclude(self) -> int:
        verdict = self.verdict
        if not verdict.acknowledged:
            self.broken.append("nothing was acknowledged: the demo has shown nothing")
        if not verdict.holds and not self.broken:
            self.broken.append(str(verdict))
        print(f"\nacknowledged: {verdict.acknowledged:,}")
        print(f"acknowledged lost: {verdict.lost}")
        for promise in self.broken:
            print(f"esker: demo: broken promise: {promise}", file=sys.stderr)
        if not self.broken:
            _next_steps(_shown(self.store))
        return 1 if self.broken else 0


def _still_runs(producer: subprocess.Popen[bytes], seconds: float) -> bool:
    """Wait a little; False when the process ended meanwhile."""
    try:
        producer.wait(seconds)
    except subprocess.TimeoutExpired:
        return True
    return False


def _in_words(recovery: esker.Recovery) -> str:
    walked = f"{recovery.shards} shards looked through in {recovery.seconds:.3f} s"
    if recovery.clean:
        return f"{walked}, nothing was torn" if recovery.shards else "nothing to do"
    told = [
        f"{finding.label.replace('_', ' ')} in {finding.topic or 'a journal'}"
        + (f" shard {finding.shard}" if finding.topic else "")
        + f": {finding.reason}; {CASES[finding.label]}"
        for finding in recovery.findings
    ]
    more = f"\n    and {len(told) - 4} more" if len(told) > 4 else ""
    lines = "".join(f"\n    {line}" for line in told[:4])
    return walked + lines + more


def _line(text: str) -> None:
    """Print over the progress line, if there is one."""
    print(f"\r{text}   " if sys.stdout.isatty() else text)


def _shown(path: str) -> str:
    """A path as one would type it from here."""
    here = absolute(".") + "/"
    return path[len(here) :] if path.startswith(here) else path


def _next_steps(store: str) -> None:
    command = _shown(absolute(sys.argv[0])) if sys.argv[0].endswith("esker") else ""
    esker_ = shlex.quote(command) if command else f"{shlex.quote(sys.executable)} -m esker"
    store = shlex.quote(store)
    print("\nnext:")
    print(f"  {esker_} info --data {store}")
    print(f"  {esker_} read {ORDERS} -n 3 --data {store}")
    print(f"  {esker_} verify {store}")
    at = f"--data {store}"
    print(f'  {esker_} append hello "a first record" {at} && {esker_} read hello {at}')
