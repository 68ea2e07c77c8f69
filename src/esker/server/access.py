"""Tickets, for those who cannot send a key; see tickets.py."""

from __future__ import annotations

from esker.options import topic_name
from esker.server import wire
from esker.server.call import Call, Reply
from esker.server.faults import Fault
from esker.server.tickets import SECONDS


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
