"""What a store on a server lacks of one in a directory, name by name; docs/client.md says why.

A verb that is added to the one and not to the other fails here, and so does one that has other
parameters: then it is either added there, or named here and on that page.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import esker

Make = Callable[[Any], Any]
MISSING = {
    "Store": {
        "group", "maintenance", "pause_maintenance", "process_slot", "processes", "recovery",
        "resume_maintenance", "retain", "retention_plan", "statistics", "tick", "tier",
    },
    "Topic": {"append_nowait", "archive", "reclaim", "tier"},
    "Queue": {"announce", "claim_together", "findings"},
    "Route": {"run_once"},
}  # fmt: skip
# Not for users: what a store asks of what is open in it, and writers of other rooms.
INNER = {
    "Topic": {"ready"}, "Tail": {"moved", "patience", "watch", "unwatch"}, "Route": {"id"},
    "Stage": {"append_bodies"},
    "Queue": {"close", "let_go", "priority_of", "tend"},
}  # fmt: skip
MORE = {  # what is there besides, because something of the client's own asks for it
    "Store": {"closed", "require_open"}, "Job": {"rank", "seal"}, "Stage": {"probe"},
    "GroupBatch": {"generation"}, "Route": {"where"},
}  # fmt: skip
# Of each kind one, from a store of any kind with the topic "t" and a job in the queue "q".
KINDS: dict[str, Make] = {
    "Store": lambda store: store,
    "Topic": lambda store: store["t"],
    "Slice": lambda store: store["t"][:],
    "Tail": lambda store: store["t"].tail(),
    "Batch": lambda store: next(iter(store["t"].batches())),
    "BatchWriter": lambda store: store["t"].batch(),
    "Producer": lambda store: store["t"].producer("p"),
    "Group": lambda store: store["t"].group("g"),
    "GroupBatch": lambda store: next(iter(store["t"].group("h").poll())),
    "Queue": lambda store: store.queue("q"),
    "Job": lambda store: store.queue("q").claim()[0],
    "Dead": lambda store: store.queue("q").dead,
    "Route": lambda store: store.route("t", "u"),
    "Stage": lambda store: store.stage("t", 0),
}


def names(thing: Any) -> set[str]:
    """The public names of an object: those of its class, and what it carries."""
    carried = getattr(thing, "__dict__", ())
    return {name for name in {*dir(type(thing)), *carried} if not name.startswith("_")}


def parameters(thing: Any, name: str) -> list[tuple[str, Any, Any]] | None:
    """How a method is called; None if it is none."""
    method = inspect.getattr_static(type(thing), name, None)
    if not inspect.isfunction(method):
        return None
    found = inspect.signature(method).parameters.values()
    return [(each.name, each.kind, each.default) for each in found]


@pytest.fixture
def here() -> Any:
    with esker.open(":memory:") as opened:
        yield opened


@pytest.mark.parametrize("kind", KINDS)
def test_a_store_on_a_server_has_the_verbs_of_one_in_a_directory(
    kind: str, store: Any, here: Any
) -> None:
    for each in (store, here):
        each["t"].append(b"x", wait=True)
        each.queue("q").put(b"job")
    far, near = KINDS[kind](store), KINDS[kind](here)
    missing, more = MISSING.get(kind, set()), MORE.get(kind, set())
    assert names(near) - names(far) == missing | INNER.get(kind, set())
    assert names(far) - names(near) == more
    for name in names(near) & names(far):
        assert parameters(near, name) == parameters(far, name), name
    page = (Path(__file__).parents[2] / "docs" / "client.md").read_text()
    for name in missing:
        with pytest.raises(esker.NotRemote, match="done where the store is"):
            getattr(far, name)
        assert re.search(rf"[`.]{name}\b", page), f"docs/client.md says nothing of {name}"


def three_shards(each: Any) -> None:
    each.create("t", shards=3)
    for number in range(30):
        each["t"].append(f"{number}", key=f"k{number}", wait=True)


def test_a_poll_that_is_left_early_loses_nothing(store: Any, here: Any) -> None:
    for each in (store, here):
        three_shards(each)
        with each["t"].group("g") as group:
            seen: list[bytes] = []
            for _ in range(5):
                for batch in group.poll():
                    seen += batch.values
                    batch.ack()
                    break
            assert len(seen) == len(set(seen)) == 30, f"of {each!r}"
            group.sync()
            assert group.lag().records == 0


def test_what_a_poll_did_not_hand_out_is_forgotten_by_a_seek(store: Any, here: Any) -> None:
    for each in (store, here):
        three_shards(each)
        with each["t"].group("g") as group:
            first = next(iter(group.poll()))
            group.seek("earliest")
            seen: list[bytes] = []
            for batch in group.poll():
                seen += batch.values
                batch.ack()
            assert len(seen) == len(set(seen)) == 30, f"of {each!r}"
            with pytest.raises(esker.Fenced):
                first.ack()


@pytest.mark.parametrize("shard", [float("nan"), 0.0, "0", True])
def test_a_seek_of_what_is_no_shard_moves_none(store: Any, here: Any, shard: Any) -> None:
    for each in (store, here):
        three_shards(each)
        with each["t"].group("g") as group:
            before = group.cursors()
            with pytest.raises(esker.InvalidOption, match="shard="):
                group.seek("latest", shard)
            assert group.cursors() == before


def test_what_a_poll_did_not_hand_out_is_forgotten_by_a_rewind(store: Any, here: Any) -> None:
    for each in (store, here):
        three_shards(each)
        with each["t"].group("g") as group:
            next(iter(group.poll())).ack()
            group.sync()
            group.rewind()
            left = [value for batch in group.poll() for value in batch.values]
            assert len(left) == len(set(left)) == group.lag().records < 30
