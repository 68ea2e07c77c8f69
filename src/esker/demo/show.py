"""The acts, in order: the shop opens, two processes are killed, Spark comes, everything is counted.

Nothing here is waited for by sleeping: an act ends when the lists say that it has happened, and
after PATIENCE the demo gives up and says what it waited for.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import esker
from esker.clock import SYSTEM_CLOCK
from esker.demo import DemoFailed, bench, claims, commands, evidence, goods, notes, report
from esker.demo.bell import Bell, hearing
from esker.demo.crew import Child, Crew
from esker.demo.goods import BILLING, CLICKS, DEAD, EMAILS, ORDERS, PAYMENTS, TRIES
from esker.demo.meter import Meter
from esker.demo.notes import Notes
from esker.demo.screen import Screen
from esker.demo.shop import MAILING, MAILS
from esker.demo.sleeper import FEW, Sleeper
from esker.demo.worker import HELD
from esker.errors import NotAStore
from esker.storage.files import SYSTEM_FILES, absolute, join, replace_file

MARK: Final = "esker-demo.txt"
PATIENCE: Final = 90.0  # seconds for something to happen that must
LOOK: Final = 0.1  # seconds between looks at the lists
_TEXT: Final = b"""Made by `esker demo`. data/ is the store, notes/ what its processes were told,
report.html what came of it. `esker demo --check` counts everything again.
"""


class Plan(NamedTuple):
    """How long the shop is open before and after each of its misfortunes, in seconds."""

    opening: float
    between: float
    writer_kills: int
    workers: int
    pause: float  # of billing, after each batch
    bench: float  # for each way to append


PLAN: Final = Plan(5.0, 4.0, 2, 3, 0.08, 0.4)
FAST: Final = Plan(1.0, 0.5, 1, 2, 0.05, 0.1)


def run(directory: str, *, keep: bool, fast: bool, spark: bool, serve: bool) -> int:
    """Show it. Returns the exit code."""
    folder = absolute(directory)
    screen = Screen()
    prepare(folder, keep=keep)
    try:
        with hearing() as bell, Crew() as crew:
            show = Show(folder, FAST if fast else PLAN, screen, crew, bell)
            code = show.run(spark=spark)
            if serve:
                show.serve()
            crew.end_all()
            show.close()
            return code
    except KeyboardInterrupt:
        screen.settle()
        screen.say()
        screen.say("interrupted: all processes of the demo have ended", "bold")
        screen.say(f"what was written is in {commands.shown(folder)}; start again at any time")
        return 130
    finally:
        screen.settle()


def check_again(directory: str) -> int:
    """Count again what a former run left."""
    folder = absolute(directory)
    screen = Screen()
    if not SYSTEM_FILES.kind(join(folder, "notes")):
        raise NotAStore(f"{folder} holds no demo; run `esker demo` first")
    verdict = claims.check(join(folder, "data"), join(folder, "notes"))
    return conclude(screen, verdict)


def prepare(folder: str, *, keep: bool) -> None:
    """An empty directory, or what a former run left. Never somebody else's."""
    files = SYSTEM_FILES
    there = files.list(folder) if files.kind(folder) else []
    if there and MARK not in there:
        raise DemoFailed(
            f"{folder} is not empty and was not made by the demo; nothing was touched. "
            "Give another place with --dir."
        )
    files.make_dir(folder)
    replace_file(files, join(folder, MARK), _TEXT)
    for name in ("data", "notes", "bench"):
        path = join(folder, name)
        if files.kind(path) and (name == "bench" or not keep):
            shutil.rmtree(path)
    files.make_dir(join(folder, "notes"))


class Show:
    """One run of the demo."""

    def __init__(
        self, folder: str, plan: Plan, screen: Screen, crew: Crew, bell: Bell
    ) -> None:  # fmt: skip
        self.folder = folder
        self.data, self.notes = join(folder, "data"), join(folder, "notes")
        self.plan, self.screen, self.crew = plan, screen, crew
        self.first = self.last = 1 + max(notes.runs(self.notes), default=0)
        self.url = ""
        self.cells: list[bench.Cell] = []
        self.sync_ms = 0.0
        self.story: list[tuple[float, str, str]] = []  # when, what kind, what happened
        self.bell = bell
        self.make_topics()
        self.store = esker.open(self.data, "r")
        self.meter = Meter(self.store, self.notes)
        self.kills = Notes(self.notes, self.first, "kills")
        self.planned = plan.opening + plan.between * (plan.writer_kills + 1)

    def close(self) -> None:
        self.kills.close()
        self.meter.close()
        self.store.close()

    def make_topics(self) -> None:
        """What the shop needs, before anybody is there."""
        with esker.open(self.data) as store:
            store.create(
                ORDERS, exist_ok=True, shards=4, durability="fsync", segment_bytes="256KiB"
            )
            store.create(CLICKS, exist_ok=True, segment_bytes="128KiB", cap_bytes="512KiB")
            store.create(PAYMENTS, exist_ok=True, durability="fsync", segment_bytes="1MiB")
            store.route(ORDERS, PAYMENTS, where=goods.PAID, exactly_once=True)
            store.queue(EMAILS, lease="30s", max_deliveries=TRIES, dead_letter=DEAD)
            store[ORDERS].group(BILLING).close()

    # ---- telling -----------------------------------------------------------------------------

    def tell(self, text: str, kind: str = "act", style: str = "") -> None:
        self.story.append((self.meter.now(), kind, text))
        self.screen.event(self.meter.now(), text, style)

    def until(self, what: str, true: Callable[[], bool], *leaving: Child, shown: str = "") -> None:
        """Look at the lists until this is so."""
        deadline = SYSTEM_CLOCK.monotonic() + PATIENCE
        while True:
            sample = self.meter.look()
            if shown:
                self.screen.wait(shown)
            else:
                part = min(1.0, self.meter.now() / self.planned)
                self.screen.show(self.meter, sample, part)
            if true():
                return
            self.crew.check(*leaving)
            if SYSTEM_CLOCK.monotonic() > deadline:
                raise DemoFailed(f"waited for {PATIENCE:.0f} s, in vain, until {what}")
            self.bell.wait(LOOK)

    def glance(self) -> None:
        """Look at the lists once, in the middle of something else."""
        self.bell.check()
        self.screen.show(self.meter, self.meter.look(), min(1.0, self.meter.now() / self.planned))

    def let_pass(self, seconds: float) -> None:
        """Watch for so long."""
        end = SYSTEM_CLOCK.monotonic() + seconds
        self.until("time has passed", lambda: SYSTEM_CLOCK.monotonic() >= end)

    def noted(self, run: int, what: str, actor: str = "") -> list[list[str]]:
        """A list; empty if it is not there yet."""
        name = notes.name_of(run, what, actor)
        return notes.lines(self.notes, name) if name in notes.lists(self.notes, what) else []

    # ---- the acts ----------------------------------------------------------------------------

    def run(self, *, spark: bool) -> int:
        self.open_house()
        self.screen.act("The shop opens")
        shop = self.open_shop()
        workers, slow = self.hire()
        sleeper = self.sleeper()
        self.let_pass(self.plan.opening)
        shop = self.kill_the_writer(shop)
        self.let_pass(self.plan.between)
        self.kill_a_worker()
        for _ in range(self.plan.writer_kills - 1):
            self.let_pass(self.plan.between)
            shop = self.kill_the_writer(shop)
        self.let_pass(self.plan.between)
        self.until("something is evicted", sleeper.missed_something)
        self.close_shop(shop, workers, slow)
        self.wake_up(sleeper)
        shopping = list(self.meter.samples)
        self.screen.settle()
        self.measure()
        if spark:
            self.spark()
        return self.finish(shopping)

    def open_house(self) -> None:
        self.crew.start("the server", "house", self.data, self.notes, self.first)
        found = "the server is there"
        self.until(found, lambda: bool(self.noted(self.first, "house")), shown="the server starts")
        self.screen.settle()
        self.url = self.noted(self.first, "house")[0][0]
        self.screen.say(f"Console: {self.url}/", "bold")
        self.screen.say(f"Store:   {commands.shown(self.data)}    (Ctrl-C ends all of it)", "dim")

    def open_shop(self) -> Child:
        """Start the writer, and wait until all of it writes."""
        self.last = run = max(notes.runs(self.notes)) + 1
        shop = self.crew.start("the shop", "shop", self.data, self.notes, run)

        def selling() -> bool:
            acks = [self.noted(run, "acks", f"{thread:02d}") for thread in range(MAILING)]
            mails = self.noted(run, "puts", f"{MAILING:02d}")
            return all(acks) and len(mails) * MAILS > goods.POISON

        self.until("the shop sells", selling)
        return shop

    def hire(self) -> tuple[list[Child], Child]:
        workers = [self.worker(number) for number in range(1, self.plan.workers + 1)]
        slow = self.crew.start(
            "billing", "billing", self.data, self.notes, self.first, 1, self.plan.pause
        )
        self.tell(
            f"6 producers in one process, orders in 4 shards with fsync; a route to payments; "
            f"{self.plan.workers} workers on {EMAILS}; a group billing that is slow on purpose"
        )
        return workers, slow

    def worker(self, number: int, *how: str) -> Child:
        return self.crew.start(
            f"worker {number}", "worker", self.data, self.notes, self.first, number, *how
        )

    def sleeper(self) -> Sleeper:
        sleeper = Sleeper(self.store, Notes(self.notes, self.first, "gap"))
        topic = self.store[CLICKS]
        self.until("there are clicks", lambda: topic.end(0) - topic.earliest(0) >= FEW)
        sleeper.fall_asleep()
        self.tell(f"a reader of {CLICKS} falls asleep at offset {sleeper.last:,}")
        return sleeper

    def kill_the_writer(self, shop: Child) -> Child:
        """kill -9 in the middle of it; then the next one opens what was left."""
        at = self.crew.kill(shop)
        self.kills.add("writer", shop.pid, self.last)
        acks = evidence.read_acks(self.notes)
        count = sum(ack.records for (topic, _), each in acks.items() if topic == ORDERS
                    for ack in each)  # fmt: skip
        self.meter.mark("kill", "writer", at)
        self.tell(f"kill -9 {shop.pid}: the writer, after {count:,} orders", "kill", "bold red")
        again = self.open_shop()
        seconds, shards, findings = self.noted(self.last, "open")[0]
        found = claims.still_there(self.store, acks, self.glance)
        recovered = f", {shards} shards recovered, {findings} findings" if int(shards) else ""
        self.tell(
            f"opened again in {float(seconds):.3f} s{recovered}; {found}",
            "back",
            "green" if found.holds else "bold red",
        )
        return again

    def kill_a_worker(self) -> None:
        """One that has its hands full; others must do what it had."""
        number = self.plan.workers + 1
        victim = self.worker(number, "hold")
        name = notes.name_of(self.first, "work", f"w{number}")
        self.until(
            "a worker has its hands full",
            lambda: len(self.noted(self.first, "work", f"w{number}")) >= HELD,
        )
        held = {words[1] for words in notes.lines(self.notes, name)}
        poison = {job for job in held if job.endswith(f"-{goods.POISON}")}
        at = self.crew.kill(victim)
        self.kills.add("worker", victim.pid, name)
        self.meter.mark("kill", "worker", at)
        self.tell(f"kill -9 {victim.pid}: a worker that holds {len(held)} jobs", "kill", "bold red")
        self.until("its jobs are done by others", lambda: held - poison <= self.settled(name))
        seconds = SYSTEM_CLOCK.monotonic() - at
        self.tell(f"all {len(held)} were done by others within {seconds:.2f} s", "back", "green")

    def settled(self, but: str) -> set[str]:
        """Jobs that were done by other workers than this one."""
        return {
            words[1]
            for name, words in notes.all_lines(self.notes, "work")
            if name != but and words[0] == "done"
        }

    def close_shop(self, shop: Child, workers: list[Child], slow: Child) -> None:
        """Everybody goes home, and what is under way is done first."""
        self.crew.end(shop)
        behind = self.behind()
        self.tell(f"the shop closes; billing is {behind:,} orders behind")
        self.crew.end(slow)
        hurried = self.crew.start("billing", "billing", self.data, self.notes, self.first, 2, 0)
        self.until("billing has caught up", lambda: not hurried.running, hurried)
        self.crew.wait(hurried)
        self.tell("billing, without its pauses, has caught up from where it was", "back", "green")
        self.until("the route has caught up", self.route_is_through)
        self.until("the queue is empty", self.queue_is_empty)
        self.crew.end(*workers)
        dead = self.store[DEAD].end(0) if DEAD in self.store else 0
        self.tell(f"the queue is empty; {dead} poison jobs are dead letters after {TRIES} tries")

    def behind(self) -> int:
        """Orders that are there and not billed."""
        topic = self.store[ORDERS]
        return sum(topic.end(shard) for shard in range(topic.shards)) - self.meter.look().billed

    def route_is_through(self) -> bool:
        return all(status.records == 0 for status in self.store.routes())

    def queue_is_empty(self) -> bool:
        stats = self.store.queue(EMAILS).stats()
        return stats.unfinished + stats.moving == 0

    def wake_up(self, sleeper: Sleeper) -> None:
        """Evict what there is to evict, so that it stays as it is told."""
        with esker.open(self.data, routes=False, background=False) as store:
            store.tick()
        gap = sleeper.wake_up()
        self.tell(
            f"the reader of {CLICKS} wakes up. Gap: offsets {gap.first:,}..{gap.last:,} are gone "
            f"({gap.reason})",
            "act",
            "yellow",
        )

    def measure(self) -> None:
        """The user's own disk."""
        self.screen.act("This disk, by commit class (records a second, one thread)")
        folder = join(self.folder, "bench")

        self.cells = bench.measure(folder, self.plan.bench, self.step)
        self.sync_ms = bench.bare_sync(self.folder)
        self.screen.settle()
        rows: list[tuple[str, ...]] = [
            ("class", *(f"{batch:,} at a time" for batch in bench.BATCHES))
        ]
        for name in bench.CLASSES:
            mine = [cell for cell in self.cells if cell.durability == name]
            rows.append((name, *(f"{cell.per_second:,.0f}" for cell in mine)))
        self.screen.table(rows, "lrrr")
        self.screen.say(f"a bare write and fdatasync here: {self.sync_ms:.2f} ms", "dim")

    def step(self, text: str) -> None:
        """A small step of something longer."""
        self.bell.check()
        if self.screen.pretty:
            self.screen.wait(text)

    # ---- Spark -------------------------------------------------------------------------------

    def spark(self) -> None:
        self.screen.act("Spark, over what was written (its JVM takes 10 to 20 s to start)")
        began = SYSTEM_CLOCK.monotonic()
        child = self.crew.start("Spark", "pipeline", self.data, self.notes, self.first)
        while child.running:
            self.show_step(SYSTEM_CLOCK.monotonic() - began)
            self.crew.check(child)
            self.bell.wait(LOOK)
        self.screen.settle()
        self.crew.wait(child)
        for words in self.noted(self.first, "spark"):
            if words[0] == "revenue":
                self.tell(f"revenue: {int(words[1]):,} orders in {words[2]} sums, "
                          f"by window and region, in the topic {goods.REVENUE}")  # fmt: skip
            elif words[0] == "archive":
                self.tell(f"archive: {int(words[1]):,} orders of sealed segments as {words[2]} "
                          "Parquet files")  # fmt: skip
            elif words[0] == "missing":
                self.tell(f"left out: {' '.join(words[1:])}", "act", "yellow")
        self.screen.say(f"  {SYSTEM_CLOCK.monotonic() - began:.0f} s in all", "dim")

    def show_step(self, seconds: float) -> None:
        steps = self.noted(self.first, "spark")
        match steps[-1] if steps else ["starting"]:
            case ["aggregating" | "archiving" as what, done, total]:
                part = int(done) / int(total) if int(total) else None
                self.screen.wait(f"{what}: {int(done):,} records, {seconds:.0f} s", part)
            case ["starting" | "upto", *_]:
                text = "the JVM starts" if len(steps) < 2 else "the orders are added up"
                self.screen.wait(f"{text}, {seconds:.0f} s")
            case _:
                self.screen.wait(f"at work, {seconds:.0f} s")

    # ---- the end -----------------------------------------------------------------------------

    def finish(self, samples: list[Any]) -> int:
        screen = self.screen
        screen.act("Orders a second, over time")
        screen.plot(self.meter, samples)
        verdict = claims.check(self.data, self.notes, self.step)
        screen.settle()
        page = report.Page(
            verdict=verdict, samples=samples, marks=self.meter.marks, cells=self.cells,
            story=self.story, sync_ms=self.sync_ms, p50=self.meter.percentile(0.5),
            p99=self.meter.percentile(0.99), data=self.data, folder=self.folder,
        )  # fmt: skip
        path = join(self.folder, "report.html")
        replace_file(SYSTEM_FILES, path, report.render(page).encode())
        screen.say(f"durable appends, one order each: p50 {self.meter.percentile(0.5):.2f} ms, "
                   f"p99 {self.meter.percentile(0.99):.2f} ms", "dim")  # fmt: skip
        screen.act("Next")
        for text, command in commands.next_steps(self.data):
            screen.say(f"  # {text}", "dim")
            screen.say(f"  {command}", whole=True)
        screen.say(f"\nThe console again:  {commands.serve_again(self.data)}", "dim", whole=True)
        screen.say(f"The report:         {commands.shown(path)}", "dim")
        return conclude(screen, verdict)

    def serve(self) -> None:
        """The server stays until Ctrl-C."""
        self.screen.say(f"\nConsole: {self.url}/    Ctrl-C ends it", "bold")
        try:
            while True:
                self.crew.check()
                self.bell.wait(LOOK)
        except KeyboardInterrupt:
            self.screen.say("\nthe server ends", "dim")


def conclude(screen: Screen, verdict: claims.Verdict) -> int:
    """Say what was counted; the exit code follows from it."""
    screen.act("Counted, by who was not there: their lists, and a fresh read")
    for claim in verdict.claims:
        sign, style = ("✓", "green") if claim.holds else ("✗ FALSE:", "bold red")
        screen.say(f"  {sign} {claim.name}: {claim.said}", style)
        screen.say(f"      {claim.counted}", "dim")
    if verdict.strangers:
        screen.say(f"  {verdict.strangers:,} records were appended by somebody else", "yellow")
    screen.say(f"\nacknowledged: {verdict.acknowledged:,}")
    screen.say(f"acknowledged lost: {verdict.lost}", "bold green" if verdict.holds else "bold red")
    for claim in verdict.claims:
        if not claim.holds:
            sys.stderr.write(
                f"esker: demo: false claim: {claim.name}: {claim.said}; counted: {claim.counted}\n"
            )
    return 0 if verdict.holds else 1
