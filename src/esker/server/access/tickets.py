"""One-time tickets: how a page opens a stream without a key in a URL.

The browser's EventSource and WebSocket cannot send a header, and what stands in a URL ends up in
logs and histories. So whoever has a key asks for a ticket (`POST /v1/tickets`) and opens the stream
with `?ticket=`. It is good once, for thirty seconds, for the topics that it was made for and for no
more than its key may do; it ends with its key. Only hashes are kept.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable
from typing import Final, NamedTuple

from esker.options import topic_name
from esker.server.access.keys import Principal, Scope, hash_of
from esker.server.bodies import wire
from esker.server.http.call import Call, Reply
from esker.server.http.faults import Fault, throttled

SECONDS: Final = 30.0
MOST: Final = 10_000  # at once, of all keys
MOST_OF_ONE: Final = 256  # at once, of one key
_FORM: Final = re.compile(r"tkt_[0-9a-f]{32}")


class Ticket(NamedTuple):
    """What a ticket is good for."""

    principal: Principal
    until: float


class Tickets:
    """The tickets that were given and not used."""

    def __init__(self) -> None:
        self._given: dict[bytes, Ticket] = {}  # in the order in which they end

    def __len__(self) -> int:
        return len(self._given)

    def give(
        self, principal: Principal, scopes: Iterable[Scope], topics: Iterable[str], now: float
    ) -> str:
        """A new ticket."""
        self._sweep(now)
        mine = sum(each.principal.account is principal.account for each in self._given.values())
        for count, most in ((mine, MOST_OF_ONE), (len(self._given), MOST)):
            if count >= most:
                told = f"{most} tickets are waiting to be used"
                raise throttled("tickets", most, int(SECONDS), told)
        text = f"tkt_{secrets.token_hex(16)}"
        self._given[hash_of(text)] = Ticket(principal.narrowed(scopes, topics), now + SECONDS)
        return text

    def take(self, text: str, now: float) -> Principal | None:
        """Who comes with this ticket, be the key good or not; it is used up by asking."""
        self._sweep(now)
        if not _FORM.fullmatch(text):
            return None
        found = self._given.pop(hash_of(text), None)
        return None if found is None else found.principal

    def _sweep(self, now: float) -> None:
        late = []
        for hashed, each in self._given.items():
            if each.until > now:
                break
            late.append(hashed)
        for hashed in late:
            del self._given[hashed]


async def ticket(call: Call) -> Reply:
    """A ticket for these topics, and for no more than the key itself may do with each of them."""
    asked: wire.TicketAsk = call.body
    topics = sorted({topic_name(name) for name in asked.topics})
    for scope in asked.scopes:
        if not all(call.principal.may(scope, name) for name in topics):
            raise Fault("forbidden", f"the key lacks the scope {scope!r} for these topics")
    app = call.app
    text = app.gate.tickets.give(call.principal, asked.scopes, topics, app.clock.monotonic())
    return Reply(wire.TicketGiven(text, SECONDS, topics, list(asked.scopes)), 201)
