"""What the server vouches for, and what it keeps while it runs.

Tokens of jobs are sealed. The library's token says which worker and which of its claims has a job,
and to the library the whole server is one worker; whoever has one token could count on from it. So
a client gets it with a seal over queue, shard, offset and the key that claimed, made with a secret
that lives as long as the process. A token that was guessed, that belongs to another key, to another
queue or to another job is refused in the same words as one whose lease is lost.

Tickets of staged segments are sealed with a key made of the store's id, which is told to nobody:
a batch that was staged before a restart can be attached behind it.

The seats of groups (members.py), those who wait for jobs (jobs/claiming.py) and the jobs that each
key has (jobs/in_hand.py) are found here as well. None of it is on a disk: when the server ends,
however it does, the store's own locks let go, and shards and jobs are for others.
"""

from __future__ import annotations

import base64
import binascii
import hmac
from collections.abc import Callable, Iterable
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from esker.format.commit import Ticket
from esker.queues.claiming import weight
from esker.queues.job import DEAD, NOT_BEFORE
from esker.records import Record
from esker.server.bodies.codec import RecordOut, Values, header_out, text_of
from esker.server.http.faults import Fault
from esker.server.jobs.claiming import PAGE_BYTES, Desks
from esker.server.jobs.in_hand import Hands
from esker.server.members import Members

if TYPE_CHECKING:
    from esker.engine.store import Store
    from esker.server.settings import Settings

SEAL_BYTES: Final = 16
T = TypeVar("T")


class Rooms:
    """What lasts from call to call."""

    def __init__(self, settings: Settings, secret: bytes) -> None:
        self.members = Members(settings.members, settings.session_seconds)
        self.desks = Desks()
        self.hands = Hands(settings.key_jobs)
        self._secret = secret

    def sealed(self, key: str, queue: int, shard: int, offset: int, token: str) -> str:
        """A token as the holder of this key may have it."""
        return f"{token}-{self._seal(key, queue, shard, offset, token)}"

    def opened(self, key: str, queue: int, shard: int, offset: int, sealed: str) -> str | None:
        """The library's token; None if this is not one that we gave to this key for this job."""
        token, _, seal = sealed.rpartition("-")
        wanted = self._seal(key, queue, shard, offset, token)
        return token if hmac.compare_digest(seal.encode(), wanted.encode()) else None

    def _seal(self, key: str, queue: int, shard: int, offset: int, token: str) -> str:
        told = msgspec.json.encode([key, queue, shard, offset, token])
        return blake2b(told, digest_size=SEAL_BYTES, key=self._secret).hexdigest()


# ---- tickets ---------------------------------------------------------------------------------


def _ticket_key(store: Store) -> bytes:
    return blake2b(store._context.store, digest_size=32, person=b"esker.stage").digest()


def sealed_ticket(store: Store, ticket: Ticket) -> str:
    """A ticket as a client may have it: to be given back, and not to be changed."""
    body = msgspec.msgpack.encode(ticket)
    seal = blake2b(body, digest_size=SEAL_BYTES, key=_ticket_key(store)).digest()
    return base64.urlsafe_b64encode(seal + body).decode()


def opened_ticket(store: Store, sealed: str) -> Ticket:
    """The ticket; refused if it is not one that this store gave."""
    try:
        data = base64.b64decode(sealed, b"-_", validate=True)
    except (binascii.Error, ValueError):
        data = b""
    seal, body = data[:SEAL_BYTES], data[SEAL_BYTES:]
    wanted = blake2b(body, digest_size=SEAL_BYTES, key=_ticket_key(store)).digest()
    if not hmac.compare_digest(seal, wanted):
        raise Fault("invalid_option", "this is no ticket of this server; give them as they came")
    return msgspec.msgpack.decode(body, type=Ticket)


# ---- pages -----------------------------------------------------------------------------------


def page(found: Iterable[T], limit: int, record: Callable[[T], Record | None]) -> list[T]:
    """The first of what is found, lazily: up to `limit`, and up to about PAGE_BYTES."""
    some: list[T] = []
    left = PAGE_BYTES
    for each in found:
        some.append(each)
        shown = record(each)
        left -= weight(shown) if shown is not None else 0
        if len(some) >= limit or left <= 0:
            break
    return some


# ---- one record as JSON ----------------------------------------------------------------------


def record_fields(record: Record, values: Values, headers: bool) -> dict[str, Any]:
    """A record as RecordOut has it, for those that come one by one: jobs."""
    found: dict[str, Any] = {
        "offset": record.offset, "shard": record.shard, "timestamp": record.timestamp or 0,
        "tag": record.tag, "node": record.node,
    }  # fmt: skip
    value = text_of(record.value, values)
    if value is None:
        found["base64"] = base64.b64encode(record.value).decode()
    else:
        found["value"] = value
    if record.key is not None:
        key = text_of(record.key, "text")
        if key is None:
            found["key_base64"] = base64.b64encode(record.key).decode()
        else:
            found["key"] = key
    if headers and record.headers:
        found["headers"] = {
            name: header_out(cell)
            for name, cell in record.headers.items()
            if name not in (NOT_BEFORE, DEAD)  # ours, not the user's
        } or None
    return found


def record_out(record: Record, values: Values = "text", headers: bool = True) -> RecordOut:
    """One record as JSON has it."""
    return RecordOut(**record_fields(record, values, headers))
