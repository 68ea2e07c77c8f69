"""What the shop sells, clicks and mails. Pure.

Every value is a JSON object whose first field names who made it: run, thread and number. The rest
follows from that. So whoever finds a value can make it again and compare, and a value that nobody
made is told from one that was made and changed.

    {"order":"1-0-17","sku":"tea","region":"north","quantity":2,"cents":998,"paid":true,"check":"…"}
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import msgspec

ORDERS: Final = "orders"  # class fsync, four shards
PAYMENTS: Final = "payments"  # what a route makes of it
CLICKS: Final = "clicks"  # class disk, evicted by size
EMAILS: Final = "emails"  # a queue
DEAD: Final = "emails.dead"  # and what was given up of it
REVENUE: Final = "revenue"  # what Spark makes of the orders
BILLING: Final = "billing"  # a group of readers of the orders
PAID: Final = "json.paid == true"  # the filter of the route
CUSTOMERS: Final = 97
TRIES: Final = 3  # of a job, before it is given up
POISON: Final = 25  # the job with this number fails, whoever tries it

_PRICES: Final = {"tea": 499, "coffee": 899, "scones": 350, "jam": 425, "kettle": 3490}
_SKUS: Final = tuple(_PRICES)
REGIONS: Final = ("north", "east", "south", "west")
_MAKER: Final = re.compile(rb'\{"(order|click|email)":"(\d{1,9})-(\d{1,9})-(\d{1,9})"')


class Order(msgspec.Struct):
    """What is read of an order; the rest of it is passed over."""

    order: str
    region: str
    cents: int
    paid: bool


class Email(msgspec.Struct):
    """What is read of a job."""

    email: str
    poison: bool


_ORDER: Final = msgspec.json.Decoder(Order)


def order(run: int, thread: int, number: int) -> bytes:
    """The order that this thread takes as its n-th."""
    name = f"{run}-{thread}-{number}"
    seed = _seed("order", name)
    sku = _SKUS[seed % len(_SKUS)]
    quantity = 1 + (seed >> 8) % 5
    return (
        f'{{"order":"{name}","sku":"{sku}","region":"{REGIONS[(seed >> 16) % 4]}",'
        f'"quantity":{quantity},"cents":{quantity * _PRICES[sku]},'
        f'"paid":{"true" if (seed >> 24) % 3 else "false"},"check":"{seed:024x}"}}'
    ).encode()


def click(run: int, thread: int, number: int) -> bytes:
    """Somebody looked at a page."""
    name = f"{run}-{thread}-{number}"
    seed = _seed("click", name)
    return f'{{"click":"{name}","page":"/{_SKUS[seed % 5]}","check":"{seed:024x}"}}'.encode()


def email(run: int, thread: int, number: int) -> bytes:
    """A mail to send; the one with the number POISON cannot be."""
    name = f"{run}-{thread}-{number}"
    seed = _seed("email", name)
    poison = "true" if number == POISON else "false"
    return (
        f'{{"email":"{name}","to":"customer-{seed % CUSTOMERS}","poison":{poison},'
        f'"check":"{seed:024x}"}}'
    ).encode()


def customer(number: int) -> bytes:
    """The key of an order."""
    return b"customer-%d" % (number % CUSTOMERS)


_KINDS: Final[dict[str, Callable[[int, int, int], bytes]]] = {
    "order": order, "click": click, "email": email,
}  # fmt: skip


class Maker(NamedTuple):
    """Who says to have made a value."""

    kind: str
    run: int
    thread: int
    number: int


def maker(value: bytes) -> Maker | None:
    """Who says to have made this value; None if it is not of the demo's at all."""
    found = _MAKER.match(value)
    if found is None:
        return None
    return Maker(found[1].decode(), int(found[2]), int(found[3]), int(found[4]))


def authentic(value: bytes, said: Maker) -> bool:
    """Whether this value is the one that its maker makes."""
    return _KINDS[said.kind](said.run, said.thread, said.number) == value


def order_of(value: bytes) -> Order | None:
    """What is read of an order; None for what somebody else has appended."""
    try:
        return _ORDER.decode(value)
    except msgspec.DecodeError:
        return None


def digest(values: Sequence[bytes]) -> str:
    """One hash for the values of a batch, in order."""
    hasher = hashlib.blake2b(digest_size=16)
    for value in values:
        hasher.update(len(value).to_bytes(4, "little"))
        hasher.update(value)
    return hasher.hexdigest()


def _seed(kind: str, name: str) -> int:
    return int.from_bytes(hashlib.blake2b(f"{kind} {name}".encode(), digest_size=12).digest())
