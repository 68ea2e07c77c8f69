"""Verbs of a store and of its topics that rooms above the engine speak.

`topic.group(...)` belongs on the topic, and the room that knows how lies above it. So that room's
openers are entered here by the package's front door (`esker/__init__.py`), which may import every
room, and found when a verb is first used. Here stands what the verbs are called and what they take,
so that users find them where they look and type checkers know them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from esker.engine.reader import Consistency, Gaps
    from esker.engine.store import Store
    from esker.engine.topic import Topic
    from esker.groups.describe import GroupStatus
    from esker.groups.group import Group
    from esker.groups.pattern import PatternGroup
    from esker.queues.queue import Queue
    from esker.routes.route import Route
    from esker.routes.status import RouteStatus

OPENERS: dict[str, Callable[[], Callable[..., Any]]] = {}
"""Who does it, by the name of the verb: a function that imports the function to call."""


class TopicVerbs:
    """Verbs of a topic."""

    def __bool__(self) -> bool:
        return True  # also while it is empty

    def _repr_html_(self) -> str:
        from esker.engine.notebook import topic_html  # for who looks at it in a notebook

        return topic_html(self)

    def group(
        self, name: str, start: Any = "earliest", *, member: tuple[int, int] | None = None,
        gaps: Gaps = "raise", consistency: Consistency = "eventual",
        skip_node: str | None = None, session: float | str = 60.0, dedupe: int = 0,
    ) -> Group:  # fmt: skip
        """A group of readers that share the topic, and remember how far they have come.

        A group that is new begins at `start`, durably; one that is there goes on where it is. Its
        shards are divided among its members, whichever processes they are in; `member=(i, n)`
        fixes what this one reads instead. Who has not been seen for `session` has lost its shards.
        With `dedupe`, batches with an idempotency key that are among so many records for a second
        time are left out, and counted in `group.duplicates`.
        """
        with cast("Topic", self)._told_if_deleted():
            made = OPENERS["group"]()(
                self, name, start, member=member, gaps=gaps, consistency=consistency,
                skip_node=skip_node, session=session, dedupe=dedupe,
            )  # fmt: skip
        return cast("Group", made)

    def groups(self) -> list[GroupStatus]:
        """All groups of the topic: where they are, how far behind, who reads."""
        topic = cast("Topic", self)
        return cast("list[GroupStatus]", OPENERS["groups"]()([topic]))

    def forget_group(self, name: str) -> None:
        """Forget a group for good, in every shard; nobody may be reading in it (MemberBusy)."""
        OPENERS["forget_group"]()(self, name)


class StoreVerbs:
    """Verbs of a store."""

    def __bool__(self) -> bool:
        return True  # also while it is empty

    def _repr_html_(self) -> str:
        from esker.engine.notebook import store_html  # for who looks at it in a notebook

        return store_html(self)

    def group(
        self, name: str, pattern: str | Sequence[str], start: Any = "earliest", **how: Any
    ) -> PatternGroup:
        """A group that reads all topics of a pattern such as "events:*", also those to come.

        `how` is as in `Topic.group`. A topic that is made later is read from its beginning.
        """
        return cast("PatternGroup", OPENERS["pattern"]()(self, name, pattern, start, **how))

    def groups(self) -> list[GroupStatus]:
        """All groups of all topics."""
        store = cast("Store", self)
        return cast("list[GroupStatus]", OPENERS["groups"]()([store[name] for name in store]))

    def queue(self, name: str, **options: Any) -> Queue:
        """The queue of that name: a topic whose records are claimed under leases, then acked.

        It is made if need be, with the options that are given; see docs/queues.md. Options that
        differ from those it has are changed, for everybody who opens it from then on.
        """
        return cast("Queue", OPENERS["queue"]()(self, name, **options))

    def route(
        self, source: str = "", destination: str = "", *, where: str = "", name: str | None = None,
        start: Any = "earliest", exactly_once: bool = False, merge: bool = False,
        allow_cycles: bool = False, hops: int = 8,
    ) -> Route:  # fmt: skip
        """Have records of one topic appended to another one, from now on and in the background.

        `where` is a filter (docs/filters.md); without one, all go. When this returns the route is
        durable, with the place where it starts. The same call again gives the same route, and
        `store.route(name="...")` one that is there.
        """
        made = OPENERS["route"]()(
            self, source, destination, where=where, name=name, start=start,
            exactly_once=exactly_once, merge=merge, allow_cycles=allow_cycles, hops=hops,
        )  # fmt: skip
        return cast("Route", made)

    def routes(self) -> list[RouteStatus]:
        """All routes: whether they run, how far behind they are, what they did, what stops them."""
        return cast("list[RouteStatus]", OPENERS["routes"]()(self))
