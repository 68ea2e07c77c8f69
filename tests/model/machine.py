"""The state machine: what may happen to a store, in any order.

Two sides do every step: the engine as it is shipped, and one with optimisations switched off (see
switches.py). Each is compared with its own list after the step; and as long as the two lists are
the same, so is what the sides return.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from esker.testing import KEPT, LOST, NAMES_ONLY, UNNAMED, ManualClock
from tests.model.events import hit
from tests.model.plain import PlainShard, Row
from tests.model.sides import Place, Side
from tests.model.switches import ALL_OFF, AS_SHIPPED, Switches

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
NAMES = ("t0", "t1", "t2")
LIFE_MIN = 5  # steps, at the least: something is to happen in a life
CORNERS = {"lost": LOST, "kept": KEPT, "names": NAMES_ONLY, "unnamed": UNNAMED}

pick = st.sampled_from
INDEX = st.integers(0, 255)
SIZES = pick([0, 1, 7, 8, 9, 40, 64, 65, 200, 511, 512, 513])
KEYS = pick([None, None, None, b"", b"k", b"key-2", b"a", b"zz"])
TEXTS = pick([None, None, None, "", "t", "tag", "äöü"])
PAIRS = pick([None, None, None, (), (("h", b""),), (("", b"1"), ("b", b"22"))])
STAMPS = pick(["none", "none", "none", "none", "now", "past", "future", "before 1970", "same"])
ROWS = st.tuples(SIZES, KEYS, TEXTS, TEXTS, PAIRS, STAMPS)
PLAIN = st.tuples(SIZES, *[st.none()] * 4, st.just("none"))
BATCHES = st.lists(ROWS, max_size=5) | st.lists(PLAIN, max_size=6) | st.just([])
KINDS = pick(
    [
        "earliest", "latest", "at the start", "at the start", "at the floor", "below the floor",
        "at the end", "behind the end", "offset", "text offset", "back", "back by 0", "back all",
        "back beyond", "time of a row", "time of a frame", "time of a frame", "time behind all",
        "time before all", "ago", "datetime",
    ]
)  # fmt: skip
PLACES = st.tuples(KINDS, INDEX)
GAPS = pick(["yield", "skip", "raise", "raise"])
OPTIONS = st.fixed_dictionaries(
    {
        "durability": pick(["disk", "disk", "fsync", "fsync", "memory", "ephemeral"]),
        "shards": pick([1, 1, 1, 1, 2, 6, 6]),
        "segment_bytes": pick([4096, 8192, 8192, 16384]),
        "segment_records": pick([0, 0, 0, 3, 7]),
        "segment_age": pick([0, 1.0]),
        "compression": pick(["none", "none", "zstd"]),
        "compress_at": pick(["seal", "commit"]),
    },
    optional={"max_record_bytes": pick([300, 1024]), "compress_min_bytes": pick([0, 64])},
)
FATES = pick([*CORNERS]) | st.integers(0, 1 << 20) | st.integers(0, 1 << 20)


class Machine(RuleBasedStateMachine):
    """One store, twice."""

    def __init__(self, others: list[Switches], count: Callable[[], None]) -> None:
        super().__init__()
        self.ending: tuple[str, str | int | None] = ("", None)
        self._others = others
        self._count = count
        self.clock = ManualClock(1_000_000_000)
        self.sides: list[Side] = []
        self.serial = 0
        self.steps = 0  # of this life

    @initialize(
        other=INDEX,
        options=OPTIONS,
        tour=pick(["", "", "shards", "writer", "age", "clock", "frame", "tags"]),
        ending=pick(["", "kill", "crash"]),
        fate=FATES,
    )
    def begin(
        self, other: int, options: dict[str, Any], tour: str, ending: str, fate: str | int
    ) -> None:
        self.ending = (ending, fate if ending == "crash" else None)
        switches = self._others[other % len(self._others)]
        self.sides = [Side(AS_SHIPPED, self.clock, other), Side(switches, self.clock, other)]
        self.create(options)
        self.tour(tour)

    def tour(self, where: str) -> None:
        """Some go first where chance seldom comes (whole examples do without some rules)."""
        row = (7, None, None, None, None, "none")
        if where == "shards":
            self.create({"shards": 3, "segment_bytes": 8192})
            self.scatter(1, 0, "many", "sync")
        elif where == "writer":
            self.append(0, row, True)
            self.beside(0, ("earliest", 0), "write")
        elif where == "age":
            self.create({"segment_age": 1.0, "segment_bytes": 8192})
            self.append(1, row, True)
            self.time("sleep", 1)
            self.append(1, row, True)
        elif where == "clock":
            self.time("set", 0)
            self.time("set", 3)
        elif where == "frame":
            self.append_many(0, [(513, *row[1:])] * 5, False, "many")
        elif where == "tags":
            self.beside(0, ("earliest", 0), "read")
            for tag in ("t", "tag", "t", "äöü", "t", "tag"):
                self.append_many(0, [row, (9, None, tag, *row[3:])] * 2, False, "many")
                self.append(0, (9, None, tag, *row[3:]), True)
                self.erase(0, 0, ("tag_prefix", tag[0]), None)
                self.beside(0, ("earliest", 0), "read")
                self.reclaim(0)
            self.append_many(0, [row, (9, None, "t", *row[3:])] * 2, True, "many")
            self.erase(0, 0, ("tag", "t"), ("at the end", 0))

    # -- both sides --

    def both(self, step: Callable[[Side], Any], name: str | None = None) -> Any:
        """One step on each side; compared where the lists are the same. Returns the first's."""
        self._count()
        self.steps += 1
        alike = self._alike(name)
        told = []
        for side in self.sides:
            with side.switches:
                told.append(step(side))
                if name is not None:
                    side.ends(name, self.steps)
                else:
                    for each in side.topics:
                        side.ends(each)
        if alike and self._alike(name):
            assert told[0] == told[1], f"{self.sides[1].switches.name}: {told[1]}, not {told[0]}"
        return told[0]

    def _alike(self, name: str | None) -> bool:
        one, two = (side.topics for side in self.sides)
        names = [name] if name in one else one
        return all(one[each].shards == two[each].shards for each in names)

    def same_bytes(self) -> None:
        """Where only reading differs, the disks must not."""
        one, two = (side.disk for side in self.sides)
        if self.sides[1].switches.name == ALL_OFF.name:
            return
        assert one.changes == two.changes
        assert self.sides[0].labels == self.sides[1].labels, "found by recovery"
        left, right = one.contents(), two.contents()
        assert left.keys() == right.keys(), left.keys() ^ right.keys()
        different = [path for path in left if left[path] != right[path]]
        assert not [path for path in different if not path.endswith("/counters")], different

    def name_of(self, index: int) -> str:
        names = [*self.sides[0].topics]
        return names[index % len(names)]

    def shard_of(self, name: str, index: int) -> tuple[int, PlainShard]:
        shards = self.sides[0].topics[name].shards
        return index % len(shards), shards[index % len(shards)]

    # -- what is drawn, made concrete --

    def row(self, drawn: tuple[Any, ...]) -> Row:
        size, key, tag, node, headers, when = drawn
        self.serial += 1
        value = (b"%d." % self.serial + b"abcdefgh" * 64)[:size]
        now = self.clock.now_us()
        times = {"none": None, "now": now, "same": 5, "past": now - 7_000_000,
                 "future": now + 90_000_000, "before 1970": -12}  # fmt: skip
        if not size:
            hit("zero-length value")
        if when in ("past", "before 1970"):
            hit("timestamp in the past" if when == "past" else "timestamp before 1970")
        return Row(value, key, tag, node, headers, times[when])

    def place(self, name: str, drawn: tuple[str, int], index: int = 0) -> Place:
        """A position: one that is a boundary for one of the shards, or any."""
        kind, number = drawn
        _, shard = self.shard_of(name, index)
        seen, now = shard.seen, self.clock.now_us()
        offsets = {"at the floor": shard.earliest, "below the floor": max(shard.earliest - 1, 0),
                   "at the end": shard.visible, "behind the end": shard.visible + 1,
                   "at the start": 0}  # fmt: skip
        if kind in offsets:
            hit(f"read {kind}")
            return Place(offsets[kind], "offset", offsets[kind])
        match kind:
            case "earliest" | "latest":
                return Place(kind, kind)
            case "offset" | "text offset":
                at = seen[number % len(seen)][0] if seen else number
                return Place(str(at) if kind == "text offset" else at, "offset", at)
            case "back":
                count = 1 + number % (len(seen) + 1)
                return Place(-count, "back", count)
            case "back by 0":
                hit("back by 0")
                return Place("-0", "back", 0)
            case "back all":
                return Place(str(-len(seen)) if seen else "-1", "back", len(seen) or 1)
            case "back beyond":
                hit("back beyond the start")
                return Place(-len(seen) - 1 - number, "back", len(seen) + 1 + number)
            case "ago":
                text, micros = [("15m", 900_000_000), ("0.5s", 500_000), ("20ms", 20_000),
                                ("0us", 0), ("1w", 604_800_000_000)][number % 5]  # fmt: skip
                return Place(f"@-{text}", "time", now - micros)
        return self.moment(name, kind, number, index)

    def moment(self, name: str, kind: str, number: int, index: int) -> Place:
        at, shard = self.shard_of(name, index)
        seen = shard.seen
        if kind == "time behind all":
            hit(kind)
            time = max((row.timestamp or 0 for _, row in seen), default=0) + 1
        elif kind == "time before all":
            hit(kind)
            time = min((row.timestamp or 0 for _, row in seen), default=0) - number % 2
        elif kind == "time of a frame":
            time = self.frame_time(name, at, number)
        else:
            time = seen[number % len(seen)][1].timestamp or 0 if seen else number
            time += number % 3 - 1
        moment = EPOCH + timedelta(microseconds=time)
        given = moment if kind == "datetime" else f"@{moment.replace(tzinfo=None).isoformat()}"
        return Place(given, "time", time)

    def frame_time(self, name: str, shard: int, number: int) -> int:
        """The smallest or largest time of a frame, which is where a search may go astray."""
        topic = self.sides[0].store[name]
        segments = topic._view(shard).segments
        indexes = [getattr(segment, "directory", None) or segment.footer for segment in segments]  # type: ignore[union-attr]
        lows = [time for index in indexes for time in index.min_timestamps]
        highs = [time for index in indexes for time in index.max_timestamps]
        times = lows if number % 2 else highs
        if not times:
            return 0
        hit("time of a frame's smallest" if number % 2 else "time of a frame's largest")
        return int(times[number // 2 % len(times)])

    # -- topics and appending --

    @precondition(lambda self: len(self.sides[0].topics) < len(NAMES))
    @rule(options=OPTIONS)
    def create(self, options: dict[str, Any]) -> None:
        name = next(name for name in NAMES if name not in self.sides[0].topics)
        self.both(lambda side: side.create(name, options))

    @rule(topic=INDEX, drawn=ROWS, wait=st.booleans())
    def append(self, topic: int, drawn: tuple[Any, ...], wait: bool) -> None:
        name, row = self.name_of(topic), self.row(drawn)
        row = row._replace(value=row.value[: self.limit(name)])
        self.both(lambda side: side.append(name, row, wait), name)

    @rule(
        topic=INDEX, drawn=PLAIN, count=pick([1, 2, 3, 12, 13]), linger=pick([False, False, True])
    )
    def burst(self, topic: int, drawn: tuple[Any, ...], count: int, linger: bool) -> None:
        """Several lone appends, one behind the other: the way that takes no lock."""
        name = self.name_of(topic)
        rows = [Row(self.row(drawn).value[: self.limit(name)]) for _ in range(count)]
        self.both(lambda side: [side.append(name, row) for row in rows], name)
        if linger:
            self.clock.forward(0.02)
            self.both(lambda side: side.tick())

    @rule(topic=INDEX, drawn=BATCHES, wait=st.booleans(), how=pick(["many", "batch", "arrow"]))
    def append_many(self, topic: int, drawn: list[Any], wait: bool, how: str) -> None:
        name = self.name_of(topic)
        rows = [self.row(each) for each in drawn]
        rows = [row._replace(value=row.value[: self.limit(name)]) for row in rows]
        size = sum(len(row.value) for row in rows)
        told = self.both(lambda side: side.append_many(name, rows, wait, how), name)
        if isinstance(told, list) and len(told) > 1:
            hit("batch over several shards")
        if size > 1024:
            hit("frame split in two")

    @rule(topic=INDEX, more=pick([-1, 0, 1]), how=pick(["many", "arrow"]), count=pick([2, 4, 40]))
    def append_a_frame(self, topic: int, more: int, how: str, count: int) -> None:
        """A batch as large as one frame may be where limits are small, or a byte more or less."""
        name = self.name_of(topic)
        total = 1024 + more
        each = min(total // count, self.limit(name))
        rows = [Row(b"f" * each)] * (count - 1)
        rows.append(Row(b"l" * min(total - each * (count - 1), self.limit(name))))
        if sum(len(row.value) for row in rows) == 1024:
            hit("batch of the largest single frame")
        self.both(lambda side: side.append_many(name, rows, False, how), name)

    @rule(topic=INDEX, more=pick([0, 0, 1, -8]))
    def fill(self, topic: int, more: int) -> None:
        """Append what just fits into the active segment, or one word less or more."""
        name = self.name_of(topic)
        if len(self.sides[0].topics[name].shards) > 1:
            return
        shard, limit = self.sides[0].store[name]._shards[0], self.limit(name)

        def room() -> int:
            return shard.entry.options.segment_bytes - shard.active.end - 72 if shard.active else 0

        for _ in range(6):
            if 0 < room() + more <= limit:
                break
            row = self.noise(limit)
            self.both(lambda side, row=row: side.append(name, row, True), name)  # type: ignore[misc]
        else:
            return
        if more == 1:
            hit("segment one word too small")
        row = self.noise(room() + more)
        self.both(lambda side: side.append(name, row, True), name)

    def noise(self, size: int) -> Row:
        """A row that no compression makes smaller."""
        self.serial += 1
        return Row(Random(self.serial).randbytes(size))

    @rule(topic=INDEX, kind=pick(["largest", "largest", "too large", "batch"]), wait=st.booleans())
    def largest(self, topic: int, kind: str, wait: bool) -> None:
        """A record of the largest size, or a byte more, or more of them than a segment holds."""
        name = self.name_of(topic)
        row = Row(b"M" * (self.limit(name) + (kind == "too large")))
        if kind == "batch":
            self.both(lambda side: side.append_many(name, [row] * 4, wait, "many"), name)
        elif kind == "too large":
            hit("record above the maximum size")
            self.both(lambda side: side.refuse(name, row), name)
        else:
            hit("record of the maximum size")
            self.both(lambda side: side.append(name, row, wait), name)

    def limit(self, name: str) -> int:
        return self.sides[0].topics[name].options.max_record_bytes

    @rule(
        topic=INDEX,
        first=INDEX,
        how=pick(["one by one", "many", "arrow"]),
        then=pick(["", "", "sync", "sync", "die"]),
    )
    def scatter(self, topic: int, first: int, how: str, then: str) -> None:
        """A record for every shard; then much is dirty at once, and goes through a journal."""
        name = self.name_of(topic)
        keys = [b"%d" % ((first + n) % 10) for n in range(8)]
        rows = [Row(b"for " + key, key) for key in keys]
        if how == "one by one":
            self.both(lambda side: [side.append(name, row) for row in rows], name)
        else:
            told = self.both(lambda side: side.append_many(name, rows, False, how), name)
            if isinstance(told, list) and len(told) > 1:
                hit("batch over several shards")
        if then:
            self.both(lambda side: side.sync_all())
        if then == "die":
            self.die_once("kill", None)

    @rule(topic=INDEX, number=INDEX, how=pick(["flush", "sync", "all", "all", "offset"]))
    def make_sure(self, topic: int, number: int, how: str) -> None:
        """Write or sync: one topic, all of them, or up to one offset."""
        name = self.name_of(topic)
        at, shard = self.shard_of(name, number)
        offset = number % (shard.next + len(shard.pending) + 2)
        if how == "flush":
            self.both(lambda side: side.flush(name), name)
        elif how == "sync":
            self.both(lambda side: side.sync(name), name)
        elif how == "all":
            self.both(lambda side: side.sync_all())
        else:
            self.both(lambda side: side.wait_durable(name, at, offset), name)

    @rule(topic=INDEX, before=PLACES, index=INDEX)
    def delete(self, topic: int, before: Any, index: int) -> None:
        name = self.name_of(topic)
        place = self.place(name, before, index)
        shard, _ = self.shard_of(name, index)
        everywhere = place.kind != "offset" and bool(index & 1)
        self.both(lambda side: side.delete(name, place, None if everywhere else shard), name)

    @rule(
        topic=INDEX,
        index=INDEX,
        what=pick([("tag", "t"), ("tag", "tag"), ("tag", "none"), ("tag_prefix", "t"),
                   ("tag_prefix", "ä"), ("tag_prefix", "tags")]),
        before=st.none() | PLACES,
    )  # fmt: skip
    def erase(self, topic: int, index: int, what: tuple[str, str], before: Any) -> None:
        """Delete by tag; then a record that is gone, or one that is not, is asked for."""
        name = self.name_of(topic)
        place = None if before is None else self.place(name, before, index)
        at, shard = self.shard_of(name, index)
        several = len(self.sides[0].topics[name].shards) > 1
        one = (several and place is not None and place.kind == "offset") or bool(index & 1)
        self.both(lambda side: side.erase(name, *what, place, at if one else None), name)
        if shard.erased:
            offset = [*shard.erased][index % len(shard.erased)]
            self.both(lambda side: side.get(name, at, offset), name)

    @rule(topic=INDEX)
    def reclaim(self, topic: int) -> None:
        """Take what was deleted by tag off the disk: nobody sees a difference."""
        name = self.name_of(topic)
        self.both(lambda side: side.reclaim(name), name)

    @precondition(lambda self: len(self.sides[0].topics) > 1)
    @rule(topic=INDEX, again=OPTIONS)
    def drop(self, topic: int, again: dict[str, Any]) -> None:
        """Delete a topic; a new one of the same name knows nothing of it."""
        name = self.name_of(topic)
        hit("topic deleted")
        self.both(lambda side: side.drop(name))
        self.create(again)

    # -- time --

    @rule(how=pick(["tick", "tick", "sleep", "sleep", "set"]), index=INDEX)
    def time(self, how: str, index: int) -> None:
        """Time passes and the background does what is due (it also seals); or it passes and
        nobody looks; or somebody sets the wall clock, forward or back."""
        if how == "tick":
            self.clock.forward((0.0, 0.001, 0.02, 0.05, 0.3, 1.0)[index % 6])
            self.both(lambda side: side.tick())
            return
        if how == "sleep":
            shards = [each for each in self.sides[0].store._context.shards if each.writing]
            if any(each.entry.options.segment_age_us and each.active for each in shards):
                hit("age while asleep")
            self.clock.forward((1.0, 5.0)[index % 2])
        else:
            seconds = (-86_400, -3, -1, 1, 3, 86_400)[index % 6]
            hit("clock set back" if seconds < 0 else "clock set forward")
            self.clock.set_wall(self.clock.now_us() + seconds * 1_000_000)
        self.both(lambda side: None, self.name_of(index))

    # -- reading --

    @rule(topic=INDEX, start=PLACES, stop=st.none() | PLACES, index=INDEX, gaps=GAPS,
          how=pick(["read", "read", "slice", "follow", "strong"]))  # fmt: skip
    def read(self, topic: int, start: Any, stop: Any, index: int, gaps: str, how: str) -> None:
        name = self.name_of(topic)
        shards = len(self.sides[0].topics[name].shards)
        shard = None if index & 1 else index % shards
        limit = index % 9 if index > 200 and how == "read" else None
        begin = self.place(name, start, index)
        finish = None if stop is None or how == "follow" else self.place(name, stop, index)
        found = self.both(
            lambda side: side.read(
                name, begin, finish, shard=shard, gaps=gaps, how=how.replace("strong", "read"),
                strong=how == "strong", limit=limit,
            ),
            name,
        )  # fmt: skip
        if not found:
            hit("nothing to read")

    @rule(topic=INDEX, start=PLACES, stop=st.none() | PLACES, most=pick([1, 8, 100, 2000, 1 << 20]),
          count=pick([0, 0, 1, 3]))  # fmt: skip
    def batches(self, topic: int, start: Any, stop: Any, most: int, count: int) -> None:
        name = self.name_of(topic)
        begin = self.place(name, start)
        finish = None if stop is None else self.place(name, stop)
        self.both(lambda side: side.batches(name, begin, finish, most, count), name)

    @rule(topic=INDEX, index=INDEX,
          kind=pick(["any", "any", "last", "end", "before", "back", "numbers"]))  # fmt: skip
    def look(self, topic: int, index: int, kind: str) -> None:
        """One record by its offset; or the numbers of everything."""
        name = self.name_of(topic)
        at, shard = self.shard_of(name, index)
        seen = shard.seen
        if kind == "numbers":
            self.both(lambda side: side.numbers())
            return
        places = {"any": seen[index % len(seen)][0] if seen else 0, "last": -1,
                  "end": shard.visible, "before": max(shard.earliest - 1, 0),
                  "back": -(index % (len(seen) + 2)) - 1}  # fmt: skip
        self.both(lambda side: side.get(name, at, places[kind]), name)

    @rule(topic=INDEX, start=st.none() | st.none() | PLACES)
    def follow(self, topic: int, start: Any) -> None:
        name = self.name_of(topic)
        begin = None if start is None else self.place(name, start)
        self.both(lambda side: side.follow(name, begin), name)

    @rule(topic=INDEX, start=PLACES, how=pick(["read", "read", "slice", "follow", "write"]))
    def beside(self, topic: int, start: Any, how: str) -> None:
        """Through a second handle: reading works, writing does not."""
        name, begin = self.name_of(topic), self.place(self.name_of(topic), start)
        if how == "write":
            self.both(lambda side: side.second_writer(name), name)
            return
        if any(shard.writing for shard in self.sides[0].store[name]._shards):
            hit("reader beside a writer")
        self.both(lambda side: side.through_reader(name, begin, how), name)

    # -- the end of a life --

    @precondition(lambda self: self.steps >= LIFE_MIN)
    @rule(thorough=st.booleans(), twice=pick([False, False, True]))
    def restart(self, thorough: bool, twice: bool) -> None:
        self.close_and_open(thorough)
        if twice:
            self.close_and_open(False)

    @precondition(lambda self: self.steps >= LIFE_MIN)
    @rule(
        topic=INDEX,
        last=pick(["", "append", "batch", "batch"]),
        how=pick(["kill", "crash", "crash"]),
        again=pick(["", "", "", "close", "kill", "crash"]),
        fate=FATES,
    )
    def die(self, topic: int, last: str, how: str, again: str, fate: str | int) -> None:
        """After a last write, which nobody has synced, or after none."""
        name = self.name_of(topic)
        row = Row(b"last" * 50)  # six of them are several frames where limits are small
        if last == "append":
            self.both(lambda side: side.append(name, row), name)
        elif last == "batch":
            self.both(lambda side: side.append_many(name, [row] * 6, False, "many"), name)
        self.die_once(how, fate if how == "crash" else None)
        if again == "close":
            self.close_and_open(False)
        elif again:
            hit("two deaths in a row")
            self.die_once(again, fate if again == "crash" else None)

    def close_and_open(self, thorough: bool) -> None:
        shards = self.sides[0]._shards()
        hit("restart")
        if any(shard.pending for shard in shards):
            hit("restart with a buffer")
        if any(not shard.next for shard in shards):
            hit("restart of an empty topic")
        if not any(shard.writing for shard in self.sides[0].store._context.shards):
            hit("restart with nothing new")

        self.close(verify=thorough)
        self.both(lambda side: side.reopen())
        self.same_bytes()
        self.steps = 0

    def close(self, *, verify: bool) -> None:
        for side in self.sides:
            with side.switches:
                side.last_look()
                side.close()
        self.same_bytes()
        if verify:
            exact = self.sides[1].switches.name != ALL_OFF.name
            for side in self.sides[:1] if exact else self.sides:  # the same bytes need it once
                side.verify()

    def die_once(self, how: str, drawn: str | int | None) -> None:
        side = self.sides[0]
        before = [len(shard.rows) for shard in side._shards() if shard.durability != "ephemeral"]
        hit(how)
        if any(shard.pending for shard in side._shards()):
            hit("death with a buffer")
            if drawn is None:
                hit("records lost to a kill: buffered")
        if any(path.endswith(".journal") for path in side.disk.contents()):
            hit("death with a journal pending")
        if any(shard.rolled for shard in side.store._context.shards):
            hit("death between roll and seal")
        self.same_bytes()
        self.both(lambda side: side.last_look())
        self.both(lambda side: side.die(CORNERS.get(drawn, drawn)))  # type: ignore[call-overload]
        self.same_bytes()
        self.steps = 0
        after = [len(shard.rows) for shard in side._shards() if shard.durability != "ephemeral"]
        if drawn is not None:
            hit("crash that lost records" if after != before else "crash that lost nothing")

    def teardown(self) -> None:
        if not self.sides:
            return
        if self.ending[0]:
            self.die_once(*self.ending)
            for name in self.sides[0].topics:
                self.both(lambda side, name=name: side.append(name, Row(b"on"), True), name)  # type: ignore[misc]
        self.both(lambda side: side.everything("yield", "slice"))
        self.both(lambda side: side.everything("raise"))
        self.both(lambda side: side.numbers())
        self.close(verify=True)
