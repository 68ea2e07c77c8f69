"""A real process, a real kill, a real disk: what it said was acknowledged is there.

The child appends as fast as it can and writes every acknowledgement to a pipe, which outlives it.
The parent kills it after a random moment, opens the store, and looks for each of them. Then the
next child goes on in the same store. What a kill cannot show, the loss of the page cache, is what
test_power_loss.py is for.
"""

from __future__ import annotations

import random
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

import esker

pytestmark = [pytest.mark.crash, pytest.mark.slow]

KILLS = 15
TOPICS = {"f": "fsync", "d": "disk", "j0": "fsync", "j1": "fsync", "j2": "fsync", "j3": "fsync"}

PROGRAM = """
    import sys, esker

    path, life = sys.argv[1], int(sys.argv[2])
    topics = {name: durability for name, _, durability in (t.partition("=") for t in sys.argv[3:])}
    out = sys.stdout.buffer
    store = esker.open(path, journal_bytes="64KiB")
    for name, durability in topics.items():
        store.create(name, durability=durability, segment_bytes="16KiB", exist_ok=True)

    def tell(topic, first, values):
        for offset, value in enumerate(values, first):
            out.write(b"%s %d %s\\n" % (topic.encode(), offset, value))
        out.flush()

    tell("-", 0, [b"ready"])
    pad = b"." * 150
    for turn in range(1_000_000):
        for name, durability in topics.items():
            values = [b"%s/%d/%d/%d/%s" % (name.encode(), life, turn, n, pad) for n in range(3)]
            if turn % 3 == 0:
                span = store[name].append_many(values, wait=True)
                tell(name, span.first, values)
            elif turn % 3 == 1:
                tell(name, store[name].append(values[0], wait=True), values[:1])
            else:
                offset = store[name].append(values[0])
                store[name].append(values[1])
                store[name].append(values[2])
                if turn % 2:
                    store[name].sync()
                    tell(name, offset, values)
        if turn % 5 == 4:  # all at once, through the journal
            given = {name: [b"%s/%d/%d/all" % (name.encode(), life, turn)] for name in topics}
            firsts = {name: store[name].append(values[0]) for name, values in given.items()}
            store.sync()
            for name, values in given.items():
                tell(name, firsts[name], values)
"""


def acknowledged(said: bytes) -> list[tuple[str, int, bytes]]:
    """The lines that came through whole."""
    lines = said.split(b"\n")[:-1]
    parts = (line.split(b" ", 2) for line in lines)
    return [(topic.decode(), int(offset), value) for topic, offset, value in parts]


@pytest.mark.timeout(180)
def test_what_a_killed_process_had_acknowledged_is_there(tmp_path: Path) -> None:
    chance = random.Random(20)
    promised: dict[str, dict[int, bytes]] = {topic: {} for topic in TOPICS}
    path = tmp_path / "data"
    for life in range(KILLS):
        with subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(PROGRAM), str(path), str(life),
             *(f"{name}={durability}" for name, durability in TOPICS.items())],
            stdout=subprocess.PIPE,
        ) as process:  # fmt: skip
            pipe = process.stdout
            assert pipe is not None
            said = [pipe.readline()]  # it is up, and has recovered what was left
            assert said[0], "the child did not start"
            listener = threading.Thread(target=said.extend, args=(pipe,))  # never full
            listener.start()
            time.sleep(chance.uniform(0.0, 0.12))
            process.kill()
            listener.join()
        for topic, offset, value in acknowledged(b"".join(said)):
            if topic != "-":
                assert offset not in promised[topic], "an offset was given out twice"
                promised[topic][offset] = value
        if life % 3 == 2:  # the others are recovered by the next child
            look(path, promised)
    look(path, promised)
    assert sum(map(len, promised.values())) >= 20 * KILLS


def look(path: Path, promised: dict[str, dict[int, bytes]]) -> None:
    with esker.open(path) as store:
        bad = [finding for finding in store.recovery.findings if "corrupt" in finding.label]
        assert not bad, str(store.recovery)
        for topic, expected in promised.items():
            records = list(store[topic].read(0))  # a gap would raise
            assert [record.offset for record in records] == list(range(len(records)))
            found = {record.offset: record.value for record in records}
            lost = expected.items() - found.items()
            assert not lost, f"{topic}: {len(lost)} acknowledged records are gone, {min(lost)}"
            values = [record.value for record in records]
            assert len(values) == len(set(values)), f"{topic}: a record is there twice"
    with esker.open(path) as store:
        assert store.recovery.clean, str(store.recovery)
