"""The checker, on a small scale: it is content with the truth, and every lie is caught."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import esker
from esker.demo import answers, claims, goods
from esker.demo.goods import CLICKS, DEAD, EMAILS, ORDERS, PAYMENTS, POISON
from esker.demo.notes import Notes, Tail, lines, lists
from esker.demo.shop import Acks

ORDERS_PUT = 40
MAILS = 30


class Small:
    """A shop that has sold, mailed, billed and slept, without any process of its own."""

    def __init__(self, folder: Path) -> None:
        self.data, self.notes = str(folder / "data"), str(folder / "notes")

    def make(self) -> None:
        Path(self.notes).mkdir()
        with esker.open(self.data) as store:
            self._sell(store)
            self._mail(store)
            self._click(store)

    def _sell(self, store: esker.Store) -> None:
        orders = store.create(ORDERS, shards=2, durability="fsync")
        payments = store.create(PAYMENTS)
        acks, bills = Acks(self.notes, 1, 0), Notes(self.notes, 1, "bills", "b1")
        for shard in range(2):
            numbers = range(shard * ORDERS_PUT, (shard + 1) * ORDERS_PUT)
            values = [goods.order(1, 0, number) for number in numbers]
            keys = [k for n in range(99) if orders.shard_of(k := goods.customer(n)) == shard]
            orders.append_many([esker.Record(value, key=keys[0]) for value in values], wait=True)
            acks.add(ORDERS, shard, 0, values)
            decoded = [goods.order_of(value) for value in values]
            payments.append_many([v for v, o in zip(values, decoded, strict=True) if o.paid])
            bills.add(shard, 0, len(values), sum(order.cents for order in decoded))

    def _mail(self, store: esker.Store) -> None:
        """Job 3 is in the hands of a worker that dies, and is done by the other one."""
        store.queue(EMAILS)
        Notes(self.notes, 1, "puts", "05").add(*(f"1-5-{n}" for n in range(MAILS)))
        dying, work = Notes(self.notes, 1, "work", "w2"), Notes(self.notes, 1, "work", "w1")
        dying.add("claim", "1-5-3", 1)
        Notes(self.notes, 1, "kills").add("worker", 77, "001-w2.work")
        for number in range(MAILS):
            delivery = 2 if number == 3 else 1
            if number == POISON:
                for each in (1, 2, 3):
                    work.add("claim", f"1-5-{number}", each)
                    work.add("fail", f"1-5-{number}", each)
                store[DEAD].append(goods.email(1, 5, number), wait=True)
                continue
            work.add("claim", f"1-5-{number}", delivery)
            work.add("done", f"1-5-{number}", delivery)

    def _click(self, store: esker.Store) -> None:
        topic = store.create(CLICKS, segment_bytes="4KiB", cap_bytes="8KiB")
        acks = Acks(self.notes, 1, 4)
        for batch in range(20):
            values = [goods.click(1, 4, batch * 20 + n) for n in range(20)]
            topic.append_many(values, wait=True)
            acks.add(CLICKS, 0, batch * 20, values)
        store.tick()
        first = topic.earliest()
        assert first > 10
        gap = Notes(self.notes, 1, "gap")
        gap.add("slept", 0, 4)
        gap.add("gap", 0, 5, first - 1, "evicted")
        gap.add("woke", 0, first, f"1-4-{first}")

    def verdict(self) -> claims.Verdict:
        return claims.check(self.data, self.notes)

    def false(self) -> list[str]:
        """The names of the claims that do not hold."""
        return [claim.name for claim in self.verdict().claims if not claim.holds]

    def edit(self, name: str, change: Callable[[str], str]) -> None:
        """Change what a list says."""
        path = Path(self.notes, name)
        before = path.read_text()
        after = change(before)
        assert after != before
        path.write_text(after)

    def append(self, topic: str, *values: bytes) -> None:
        with esker.open(self.data) as store:
            store[topic].append_many(list(values), wait=True)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("small")
    Small(folder).make()
    return folder


@pytest.fixture
def small(template: Path, tmp_path: Path) -> Small:
    shutil.copytree(template, tmp_path, dirs_exist_ok=True)
    return Small(tmp_path)


def test_the_checker_is_content_with_the_truth(small: Small) -> None:
    verdict = small.verdict()
    assert [claim.name for claim in verdict.claims if not claim.holds] == []
    assert (verdict.acknowledged, verdict.lost, verdict.strangers) == (480, 0, 0)
    assert (verdict.redelivered, verdict.dead) == (3, 1)  # one by a kill, two by failing


# ---- what was acknowledged -------------------------------------------------------------------


def test_an_acknowledged_order_that_is_not_there_is_lost(small: Small) -> None:
    more = [goods.order(1, 1, 0), goods.order(1, 1, 1)]
    Acks(small.notes, 1, 1).add(ORDERS, 0, ORDERS_PUT, more)
    assert small.verdict().lost == 2
    assert small.false() == ["acknowledged lost"]


def test_orders_of_a_topic_that_is_gone_are_lost(small: Small) -> None:
    with esker.open(small.data) as store:
        store.delete(ORDERS)
    assert small.verdict().lost == 80
    assert "acknowledged lost" in small.false()


def test_an_order_that_is_not_the_one_that_was_acknowledged_is_altered(small: Small) -> None:
    acks = Acks(small.notes, 1, 1)
    small.append(CLICKS, goods.click(1, 1, 0))
    acks.add(CLICKS, 0, 400, [goods.click(1, 1, 1)])
    assert small.verdict().topics[CLICKS].altered == 1
    assert small.false() == ["altered or made up"]


@pytest.mark.parametrize(
    "value",
    [
        goods.click(1, 4, 399),  # there already
        goods.click(9, 9, 9).replace(b"/", b"/x"),  # not what that producer makes
    ],
)
def test_what_nobody_made_and_what_is_there_twice_are_phantoms(small: Small, value: bytes) -> None:
    small.append(CLICKS, value)
    assert small.verdict().topics[CLICKS].phantom == 1
    assert small.false() == ["altered or made up"]


def test_what_was_on_its_way_is_kept_and_what_somebody_else_appended_is_told(small: Small) -> None:
    small.append(CLICKS, goods.click(2, 4, 0), b"hello from the console")
    verdict = small.verdict()
    assert verdict.holds
    assert (verdict.topics[CLICKS].kept, verdict.strangers) == (1, 1)


def test_an_ack_that_was_not_finished_counts_for_nothing(small: Small) -> None:
    Path(small.notes, "002-00.acks").write_bytes(b"orders 0 4000 1 0123")
    assert small.verdict().holds


def test_a_run_that_acknowledged_nothing_proves_nothing(small: Small) -> None:
    for name in lists(small.notes, "acks"):
        Path(small.notes, name).unlink()
    assert "acknowledged lost" in small.false()


# ---- everything else -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "change", "claim"),
    [
        ("001-w1.work", lambda text: text.replace("done 1-5-7 1\n", ""), "jobs forgotten"),
        ("001-w1.work", lambda text: text + "claim 1-5-7 2\n", "jobs forgotten"),
        ("001-w1.work", lambda text: text + "done 1-5-7 1\n", "jobs forgotten"),
        ("001-05.puts", lambda text: text.replace("\n", " 1-5-99\n"), "jobs forgotten"),
        (
            "001-w2.work",
            lambda text: text + "claim 1-5-98 1\n",
            "jobs of the killed worker",
        ),
        ("001-w1.work", lambda text: text.replace("claim 1-5-25 2\n", ""), "dead letters"),
        ("001-b1.bills", lambda text: text.replace("0 0 40", "0 0 39", 1), "group billing"),
        ("001-b1.bills", lambda text: text + text, "group billing"),
        ("001-b1.bills", lambda text: text + "0 4000 1 0\n", "group billing"),
        (
            "001-b1.bills",
            lambda text: (
                re.sub(r"(\d+)$", lambda found: str(int(found[1]) + 1), text.rstrip()) + "\n"
            ),
            "group billing",
        ),
        ("001.gap", lambda text: text.replace("slept 0 4", "slept 0 3"), "gap of the sleeping"),
        (
            "001.gap",
            lambda text: re.sub(r"gap 0 5 (\d+)", lambda m: f"gap 0 5 {int(m[1]) - 1}", text),
            "gap of the sleeping",
        ),
        (
            "001.gap",  # too long, and consistent in itself: it covers clicks that are there
            lambda text: re.sub(
                r"gap 0 5 (\d+) evicted\nwoke 0 (\d+)",
                lambda m: f"gap 0 5 {int(m[1]) + 1} evicted\nwoke 0 {int(m[2]) + 1}",
                text,
            ),
            "gap of the sleeping",
        ),
        (
            "001.gap",  # too short, and consistent in itself: more is gone than was told
            lambda text: re.sub(
                r"gap 0 5 (\d+) evicted\nwoke 0 (\d+)",
                lambda m: f"gap 0 5 {int(m[1]) - 1} evicted\nwoke 0 {int(m[2]) - 1}",
                text,
            ),
            "gap of the sleeping",
        ),
        ("001.gap", lambda text: text.replace("1-4-", "1-3-"), "gap of the sleeping"),
    ],
)
def test_a_list_that_does_not_agree_with_the_store_is_caught(
    small: Small, name: str, change: Callable[[str], str], claim: str
) -> None:
    small.edit(name, change)
    (found,) = small.false()
    assert found.startswith(claim)


def test_a_payment_that_is_missing_or_too_many_is_caught(small: Small) -> None:
    with esker.open(small.data, "r") as store:
        paid = store[PAYMENTS].get(0).value
    small.append(PAYMENTS, paid)
    assert small.false() == ["route orders -> payments"]


def test_an_order_that_was_not_paid_and_was_forwarded_is_caught(small: Small) -> None:
    unpaid = next(
        value for n in range(99) if not goods.order_of(value := goods.order(1, 0, n)).paid
    )
    small.append(PAYMENTS, unpaid)
    assert small.false() == ["route orders -> payments"]


def test_a_payment_that_was_never_forwarded_is_caught(small: Small) -> None:
    with esker.open(small.data) as store:
        store.delete(PAYMENTS)
    assert small.false() == ["route orders -> payments"]


@pytest.mark.parametrize("number", [7, POISON])
def test_a_dead_letter_that_should_not_be_there_is_caught(small: Small, number: int) -> None:
    small.append(DEAD, goods.email(1, 5, number))
    assert small.false() == ["dead letters"]


def test_a_poison_job_that_is_not_among_the_dead_is_caught(small: Small) -> None:
    with esker.open(small.data) as store:
        store.delete(DEAD)
    assert small.false() == ["jobs forgotten", "dead letters"]


@pytest.mark.damages
def test_damage_is_caught(small: Small) -> None:
    log = next(Path(small.data, "topics").rglob("*.log"))
    content = bytearray(log.read_bytes())
    content[200] ^= 1
    log.write_bytes(content)
    assert "damage" in small.false()


# ---- what Spark made -------------------------------------------------------------------------


def test_sums_that_are_not_the_orders_sums_are_caught(small: Small) -> None:
    steps = Notes(small.notes, 1, "spark")
    steps.add("upto", ORDERS_PUT, ORDERS_PUT)
    steps.add("revenue", 80, 4)
    assert small.false() == ["revenue by Spark"]  # there are none
    with esker.open(small.data) as store:
        sums = answers.summed(store, [ORDERS_PUT, ORDERS_PUT])
        for (window, region), (orders, cents) in sums.items():
            store[goods.REVENUE].append(
                b'{"window_start":"%s","region":"%s","orders":%d,"cents":%d}'
                % (_iso(window), region.encode(), orders, cents),
                wait=True,
            )
    assert small.false() == []
    with esker.open(small.data) as store:  # a newer answer, and it is wrong
        store[goods.REVENUE].append(
            b'{"window_start":"%s","region":"%s","orders":%d,"cents":%d}'
            % (_iso(window), region.encode(), orders, cents + 1),
            wait=True,
        )
    assert small.false() == ["revenue by Spark"]


def _iso(seconds: int) -> bytes:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ").encode()


def test_an_archive_that_is_not_the_log_is_caught(small: Small) -> None:
    steps = Notes(small.notes, 1, "spark")
    with esker.open(small.data) as store:
        store.alter(ORDERS, segment_records=10)
        for number in range(3):  # the second and third time small files are merged
            store[ORDERS].append_many(
                [esker.Record(goods.order(2, number, n), key=b"a") for n in range(12)], wait=True
            )
            store.tick()
            done = store[ORDERS].archive()
            steps.add("archive", done.rows, done.files)
    verdict = small.verdict()
    assert [claim.holds for claim in verdict.claims if claim.name.startswith("archive")] == [True]
    steps.add("archive", 1, 1)  # one more than there is
    assert "archive by Spark" in small.false()


# ---- lists and goods -------------------------------------------------------------------------


def test_a_list_is_read_as_it_grows_and_only_whole_lines(tmp_path: Path) -> None:
    tail, written = Tail(str(tmp_path)), Notes(str(tmp_path), 1, "acks", "00")
    assert list(tail.new("acks")) == []
    written.add("a", 1)
    written.add("b", 2)
    assert list(tail.new("acks")) == [("001-00.acks", ["a", "1"]), ("001-00.acks", ["b", "2"])]
    path = tmp_path / "001-00.acks"
    path.write_bytes(path.read_bytes() + b"c 3")
    assert list(tail.new("acks")) == []
    path.write_bytes(path.read_bytes() + b"3\n")
    assert list(tail.new("acks")) == [("001-00.acks", ["c", "33"])]
    assert lines(str(tmp_path), "001-00.acks")[-1] == ["c", "33"]
    tail.close()
    written.close()


@pytest.mark.parametrize("make", [goods.order, goods.click, goods.email])
def test_a_value_tells_who_made_it(make: Callable[[int, int, int], bytes]) -> None:
    value = make(3, 1, 77)
    said = goods.maker(value)
    assert said is not None
    assert said[1:] == (3, 1, 77)
    assert goods.authentic(value, said)
    assert not goods.authentic(value + b" ", said)
    assert goods.maker(b"not one of ours") is None


def test_some_orders_are_paid_and_some_are_not() -> None:
    paid = [goods.order_of(goods.order(1, 0, number)).paid for number in range(300)]
    assert 100 < sum(paid) < 299
