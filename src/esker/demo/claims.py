"""The checker: what the demo claims, and how each claim is counted.

It knows nothing of how the store works, and trusts nobody who runs it. On one side are the lists
that the shop's processes wrote when they were told something (notes.py), on the other a fresh read
of the store with the public API. A claim holds if the two agree, and not otherwise.

    lost       acknowledged, and not there
    altered    acknowledged, there, and not byte for byte the same
    phantom    there under a producer's name, and never made by it; or there twice
    evicted    acknowledged, and older than what the topic's cap keeps: the Gap must say so
    kept       there, not acknowledged before its producer was killed: neither wrong nor promised
    stranger   appended by somebody else, perhaps by way of the console: told, and no fault
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import msgspec

import esker
from esker.demo import answers, goods, notes
from esker.demo.evidence import Ack, Claim, Place, Values, read_acks, read_values
from esker.demo.goods import CLICKS, DEAD, ORDERS, PAYMENTS
from esker.demo.jobs import Jobs, dead_letters, poisoned, worked


class Tally(msgspec.Struct):
    """What comparing acks with records gave."""

    acknowledged: int = 0
    lost: int = 0
    altered: int = 0
    phantom: int = 0
    evicted: int = 0
    kept: int = 0
    strangers: int = 0
    bytes: int = 0

    @property
    def holds(self) -> bool:
        return not (self.lost or self.altered or self.phantom)

    def __str__(self) -> str:
        return (
            f"{self.acknowledged:,} acknowledged: {self.lost} lost, {self.altered} altered, "
            f"{self.phantom} phantom"
        )


# ---- acknowledged is there -------------------------------------------------------------------


def tally(acks: list[Ack], values: Values, earliest: int, seen: set[goods.Maker]) -> Tally:
    """Compare what was acknowledged in a shard with what is in it."""
    found = Tally()
    promised = 0
    for ack in acks:
        found.acknowledged += ack.records
        if ack.first + ack.records <= earliest:
            found.evicted += ack.records
            continue
        there = range(ack.first, ack.first + ack.records)
        held = [values[offset] for offset in there if offset in values]
        promised += len(held)
        if len(held) < ack.records:
            found.lost += ack.records - len(held)
        elif goods.digest(held) != ack.hash:
            found.altered += ack.records
    for value in values.values():
        found.bytes += len(value)
        said = goods.maker(value)
        if said is None:
            found.strangers += 1
        elif said in seen or not goods.authentic(value, said):
            found.phantom += 1
        else:
            seen.add(said)
    found.kept = max(0, len(values) - promised - found.strangers)
    return found


def added(one: Tally, other: Tally) -> Tally:
    """Both together."""
    names = Tally.__struct_fields__
    return Tally(*(getattr(one, name) + getattr(other, name) for name in names))


def tallies(
    store: esker.Store, acks: dict[Place, list[Ack]], values: dict[str, dict[int, Values]]
) -> dict[str, Tally]:
    """By topic, for all that has producers."""
    found: dict[str, Tally] = {}
    for topic, shards in values.items():
        seen: set[goods.Maker] = set()
        whole = Tally()
        named = {shard for name, shard in acks if name == topic}
        for shard in sorted(named | set(shards)):
            # Orders are never evicted, so whatever is missing there is lost.
            earliest = store[topic].earliest(shard) if topic == CLICKS and shard in shards else 0
            mine = acks.get((topic, shard), [])
            whole = added(whole, tally(mine, shards.get(shard, {}), earliest, seen))
        found[topic] = whole
    return found


def safe(found: dict[str, Tally]) -> list[Claim]:
    """The claim that all this is about."""
    total = Tally()
    for each in found.values():
        total = added(total, each)
    also = f"; {total.kept:,} more were on their way, and are there" if total.kept else ""
    return [
        Claim(
            "acknowledged lost",
            "0",
            f"{total.lost:,} of {total.acknowledged:,} that producers were told are safe, "
            f"{total.evicted:,} clicks evicted by their cap{also}",
            total.lost == 0 and total.acknowledged > 0,
        ),
        Claim(
            "altered or made up",
            "0",
            f"{total.altered:,} altered, {total.phantom:,} that no producer made or that are there "
            "twice",
            total.altered == 0 and total.phantom == 0,
        ),
    ]


# ---- the route -------------------------------------------------------------------------------


def routed(orders: dict[int, Values], payments: dict[int, Values]) -> Claim:
    """Every paid order is in `payments` once, and nothing else is."""
    wanted: Counter[bytes] = Counter()
    for values in orders.values():
        for value in values.values():
            order = goods.order_of(value)
            if order is not None and order.paid:
                wanted[value] += 1
    got = Counter(value for values in payments.values() for value in values.values())
    strangers = sum(count for value, count in got.items() if goods.maker(value) is None)
    missing, more = (wanted - got).total(), (got - wanted).total() - strangers
    return Claim(
        "route orders -> payments",
        "every paid order, once",
        f"{wanted.total():,} orders are paid: {missing:,} missing, {more:,} too many",
        not missing and not more and bool(wanted),
    )


# ---- the group -------------------------------------------------------------------------------


def billed(folder: str, orders: dict[int, Values]) -> Claim:
    """Every order is on one bill, and the bills are right."""
    times: Counter[tuple[int, int]] = Counter()
    cents_wrong = 0
    bills = [tuple(map(int, words)) for _, words in notes.all_lines(folder, "bills")]
    for shard, first, count, cents in bills:
        values = orders.get(shard, {})
        counted = 0
        for offset in range(first, first + count):
            times[shard, offset] += 1
            order = goods.order_of(values.get(offset, b""))
            counted += order.cents if order else 0
        cents_wrong += counted != cents
    there = {(shard, offset) for shard, values in orders.items() for offset in values}
    unbilled = len(there - times.keys())
    twice = sum(count > 1 for count in times.values())
    made_up = len(times.keys() - there)
    return Claim(
        "group billing",
        "every order on one bill",
        f"{len(bills):,} bills for {len(there):,} orders: {unbilled:,} unbilled, {twice:,} twice, "
        f"{made_up:,} made up, {cents_wrong:,} bills with a wrong sum",
        not (unbilled or twice or made_up or cents_wrong) and bool(bills),
    )


# ---- the gap ---------------------------------------------------------------------------------


def gaps(folder: str, clicks: dict[int, Values], earliest: int) -> Claim:
    """Who slept was told exactly what it has missed."""
    wrong: list[str] = []
    told = 0
    names = notes.lists(folder, "gap")
    for name in names:
        said = {words[0]: words[1:] for words in notes.lines(folder, name)}
        if not {"slept", "gap", "woke"} <= said.keys():
            continue  # that run did not come so far
        slept, woke = int(said["slept"][1]), int(said["woke"][1])
        first, last = int(said["gap"][1]), int(said["gap"][2])
        told += last - first + 1
        newest = name == names[-1]
        there = goods.maker(clicks.get(0, {}).get(woke, b""))
        id = f"{there.run}-{there.thread}-{there.number}" if there else ""
        if first != slept + 1:
            wrong.append(f"it begins at {first}, and the reader was at {slept}")
        elif last + 1 != woke:
            wrong.append(f"it ends at {last}, and the reader went on at {woke}")
        elif last >= earliest:
            wrong.append(f"offsets {max(first, earliest)}..{last} are still there")
        elif newest and woke != earliest:
            wrong.append(f"offsets {woke}..{earliest - 1} are gone, too")
        elif newest and id != said["woke"][2]:
            wrong.append(f"at {woke} is {id or 'nothing'}, and not {said['woke'][2]}")
    return Claim(
        "gap of the sleeping reader",
        "exactly what is gone",
        f"{told:,} offsets were told as gone, the first one there is {earliest:,}"
        + "".join(f"; {each}" for each in wrong),
        not wrong and told > 0,
    )


# ---- all of it -------------------------------------------------------------------------------


class Verdict(msgspec.Struct):
    """All claims, and the numbers that are worth telling."""

    claims: list[Claim]
    topics: dict[str, Tally]
    redelivered: int
    dead: int

    @property
    def holds(self) -> bool:
        return all(claim.holds for claim in self.claims)

    @property
    def acknowledged(self) -> int:
        return sum(each.acknowledged for each in self.topics.values())

    @property
    def lost(self) -> int:
        return sum(each.lost for each in self.topics.values())

    @property
    def strangers(self) -> int:
        return sum(each.strangers for each in self.topics.values())


def still_there(
    store: esker.Store, acks: dict[Place, list[Ack]], step: Callable[[], object]
) -> Tally:
    """The orders of these acks, looked for while the shop goes on; `step` is called meanwhile."""
    whole, seen = Tally(), set[goods.Maker]()
    for shard, values in read_values(store, ORDERS, step).items():
        step()
        whole = added(whole, tally(acks.get((ORDERS, shard), []), values, 0, seen))
    return whole


def check(data: str, folder: str, tell: Callable[[str], None] = lambda text: None) -> Verdict:
    """Count everything that the demo claims, on a store that nobody writes at the moment."""
    with esker.open(data, "r") as store:
        tell("what was acknowledged is looked for")
        acks = read_acks(folder)
        there = {topic: read_values(store, topic) for topic in (ORDERS, CLICKS)}
        found = tallies(store, acks, there)
        orders, clicks = there[ORDERS], there[CLICKS]
        tell("jobs, bills and payments are counted")
        jobs = Jobs(folder)
        dead, wrong = dead_letters(read_values(store, DEAD))
        claims = [
            *safe(found),
            routed(orders, read_values(store, PAYMENTS)),
            *worked(jobs, dead),
            poisoned(jobs, dead, wrong),
            billed(folder, orders),
            gaps(folder, clicks, store[CLICKS].earliest(0) if CLICKS in store else 0),
            *answers.check(store, data, folder, orders),
        ]
    tell("every byte is checked")
    claims.append(verified(data))
    return Verdict(claims, found, jobs.redelivered, dead.total())


def verified(data: str) -> Claim:
    """Every byte of the store is what it should be, by code that shares none with who wrote it."""
    found = esker.verify(data)
    return Claim(
        "damage",
        "none",
        f"{len(found.errors)} errors in {found.files:,} files with {found.records:,} records",
        found.ok,
    )
