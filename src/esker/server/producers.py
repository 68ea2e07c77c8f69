"""Appends of a producer who numbers his batches: a number that came before is appended once.

    Esker-Producer: sensor-7        who
    Esker-Sequence: 42              0, 1, 2 ... none left out

The same in the query, or in the body of a JSON append: `producer` and `sequence`. The number is
always given: who sends it again after a lost answer gets the offsets of the first time, and who
leaves one out is told which is expected (409 `sequence_gap`).
`GET /v1/topics/{topic}/producers/{producer}` says where to go on. All that a producer appends goes
to one shard: the one of its name, or `?shard=`.
"""

from __future__ import annotations

from typing import NamedTuple

from esker.server.bodies import wire
from esker.server.http.call import Call
from esker.server.http.faults import Fault


class Numbered(NamedTuple):
    """Who appends, and the number of his batch."""

    producer: str
    sequence: int


def producing(call: Call) -> Numbered | None:
    """What the headers say; none if there are none."""
    name, number = call.headers.get("esker-producer"), call.headers.get("esker-sequence")
    if number is not None and (len(number) > 19 or not number.isascii() or not number.isdigit()):
        raise Fault("invalid_request", "Esker-Sequence: a whole number, from 0 on")
    if name is not None:
        try:
            name = name.encode("latin-1").decode()
        except UnicodeDecodeError:
            raise Fault("invalid_request", "Esker-Producer is not UTF-8") from None
    told = _both(name, None if number is None else int(number))
    return _same(_both(call.query.producer, call.query.sequence), told)


def either(given: Numbered | None, body: wire.Append) -> Numbered | None:
    """What headers, query and body say; they must not differ."""
    return _same(given, _both(body.producer, body.sequence))


def _same(given: Numbered | None, told: Numbered | None) -> Numbered | None:
    if given is not None and told is not None and given != told:
        raise Fault("invalid_request", "two different batches of a producer are named")
    return given or told


def _both(name: str | None, number: int | None) -> Numbered | None:
    if name is None and number is None:
        return None
    if name is None or number is None:
        raise Fault("invalid_request", "a producer and its sequence number go together")
    return Numbered(name, number)
