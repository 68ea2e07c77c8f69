"""Who asks, and what they may do.

A key is `esk_<id>_<secret>`. The id finds it, the secret proves it: 256 bits from the machine's
random numbers, shown once when the key is made. The file of keys (keyfile.py) has the SHA-256 of
the secret; a fast hash is right for a secret that nobody can guess. Secrets are compared in
constant time, and an id that nobody has costs one comparison, too.

A key has scopes (read, write, consume, delete, admin) and prefixes. A prefix that ends with one of
the delimiters `.` and `:` is for every topic below it; any other is for the topic of that very name
and for those below it: `orders` is for `orders`, `orders.dead` and `orders:eu`, and neither for
`orders2` nor for `orders-eu`. `*` is for all topics.

What a key has under way in this server is its account. When the key is revoked, changed or past its
time, its account ends, and with it every call that is under way and every open stream (gate.py).
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import re
import secrets
from collections.abc import Iterable
from typing import Final, Literal

import msgspec

Scope = Literal["read", "write", "consume", "delete", "admin"]
SCOPES: Final[tuple[Scope, ...]] = ("read", "write", "consume", "delete", "admin")
ALL: Final = "*"
DELIMITERS: Final = (".", ":")
_FORM: Final = re.compile(r"esk_([0-9a-f]{12})_([0-9a-f]{64})")
_SECRET: Final = re.compile(r"(?<=esk_[0-9a-f]{12}_)[0-9A-Fa-f]+|(?<=tkt_)[0-9a-f]+")
# Names of topics, and patterns of them. A list of names that was not taken apart is no name.
_NAMES: Final = re.compile(r"[A-Za-z0-9._:*?\[\]!-]+")
_NOBODY: Final = secrets.token_bytes(32)  # what a secret is compared with if its id is unknown


class Key(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A key as the file has it. Times are microseconds since 1970."""

    id: str
    sha256: str
    name: str = ""
    scopes: tuple[Scope, ...]
    prefixes: tuple[str, ...]
    created: int
    expires: int | None = None
    revoked: int | None = None

    def state(self, now_us: int) -> str:
        """One of: good, expired, revoked."""
        if self.revoked is not None:
            return "revoked"
        return "expired" if self.expires is not None and self.expires <= now_us else "good"

    def __repr__(self) -> str:
        return f"<key {self.id}>"


def new_secret() -> tuple[str, str, str]:
    """An id, what its owner is given, and the hash that is kept."""
    id, secret = secrets.token_hex(6), secrets.token_hex(32)
    return id, f"esk_{id}_{secret}", hash_of(secret).hex()


def hash_of(secret: str) -> bytes:
    return hashlib.sha256(secret.encode()).digest()


def redacted(text: str) -> str:
    """The same text without the secrets of keys and tickets that may stand in it."""
    return _SECRET.sub("…", text) if "esk_" in text or "tkt_" in text else text


def id_of(presented: str) -> str:
    """The id that somebody claims; nothing of what is not a key at all."""
    found = _FORM.fullmatch(presented)
    return found[1] if found else ""


class Account:
    """What a key has under way here, and whether it is still good."""

    __slots__ = ("alive", "at", "calls", "ended", "id", "tokens")

    def __init__(self, id: str) -> None:
        self.id = id
        self.alive = True
        self.calls: dict[asyncio.Task[object], bool] = {}  # and whether it may end at once
        self.ended: set[asyncio.Task[object]] = set()  # those that its end has cancelled
        self.tokens = -1.0  # of the bucket that its rate fills; -1 is a bucket never looked at
        self.at = 0.0


class Principal:
    """Somebody who may do some things with some topics."""

    __slots__ = ("account", "everywhere", "prefixes", "scopes", "topics")

    def __init__(
        self, id: str, scopes: Iterable[Scope], prefixes: Iterable[str] = (ALL,), *,
        account: Account | None = None, topics: frozenset[str] | None = None,
    ) -> None:  # fmt: skip
        self.account = account or Account(id)
        self.scopes = frozenset(scopes)
        self.everywhere = ALL in (given := tuple(prefixes))
        self.prefixes = () if self.everywhere else given
        self.topics = topics  # these and no others, whatever the prefixes say

    @property
    def id(self) -> str:
        return self.account.id

    @property
    def alive(self) -> bool:
        """False from the moment on in which the key is revoked, changed or past its time."""
        return self.account.alive

    def may(self, scope: Scope, name: str | None = None) -> bool:
        """Whether this may be done; with a topic of this name, if one is given."""
        if scope not in self.scopes:
            return False
        if name is None:
            return True
        if self.topics is not None and name not in self.topics:
            return False
        return self.everywhere or (
            _NAMES.fullmatch(name) is not None
            and any(covers(prefix, name) for prefix in self.prefixes)
        )

    def narrowed(self, scopes: Iterable[Scope], topics: Iterable[str] | None = None) -> Principal:
        """The same somebody, who may do less."""
        prefixes = (ALL,) if self.everywhere else self.prefixes
        return Principal(
            self.id, self.scopes.intersection(scopes), prefixes,
            account=self.account,
            topics=self.topics if topics is None else frozenset(topics),
        )  # fmt: skip

    def __repr__(self) -> str:
        return f"<{self.id or 'anybody'}>"


def covers(prefix: str, name: str) -> bool:
    """Whether a prefix is for a topic of this name."""
    if prefix == ALL:
        return True
    if not name.startswith(prefix):
        return False
    return len(name) == len(prefix) or prefix.endswith(DELIMITERS) or name[len(prefix)] in ".:"


class Entry(msgspec.Struct, frozen=True):
    """A key of the ring, and who is meant by it."""

    key: Key
    hash: bytes
    principal: Principal


class Change(msgspec.Struct, frozen=True):
    """What became of a key when the file was read again."""

    event: str  # key_added, key_changed, key_revoked, key_expired, key_removed
    id: str
    account: Account | None = None  # whose calls are to end


class Keyring:
    """The keys that are good now."""

    def __init__(self) -> None:
        self._entries: dict[str, Entry] = {}
        self._seen: set[str] = set()

    def __len__(self) -> int:
        return len(self._entries)

    def find(self, presented: str, now_us: int) -> Principal | None:
        """Who presents this key; None if it is none, or none that is good."""
        found = _FORM.fullmatch(presented)
        id, secret = (found[1], found[2]) if found else ("", "")
        entry = self._entries.get(id)
        wanted = _NOBODY if entry is None else entry.hash
        same = hmac.compare_digest(hash_of(secret), wanted)
        if entry is None or not same or entry.key.state(now_us) != "good":
            return None
        return entry.principal

    def take(self, keys: Iterable[Key], now_us: int) -> list[Change]:
        """From now on these are the keys. Whoever was changed in any way begins anew."""
        changes: list[Change] = []
        given = {key.id: key for key in keys}
        for id, entry in list(self._entries.items()):
            key = given.get(id)
            if key == entry.key and key.state(now_us) == "good":
                continue
            event = "key_removed" if key is None else f"key_{key.state(now_us)}"
            event = "key_changed" if event == "key_good" else event
            changes.append(self._end(id, event))
        for id, key in given.items():
            if id in self._entries or key.state(now_us) != "good":
                continue
            principal = Principal(id, key.scopes, key.prefixes)
            self._entries[id] = Entry(key, bytes.fromhex(key.sha256), principal)
            if id not in self._seen:
                changes.append(Change("key_added", id))
        self._seen = set(given)
        return changes

    def expire(self, now_us: int) -> list[Change]:
        """End those whose time has come."""
        late = [id for id, each in self._entries.items() if each.key.state(now_us) != "good"]
        return [self._end(id, "key_expired") for id in late]

    def _end(self, id: str, event: str) -> Change:
        account = self._entries.pop(id).principal.account
        account.alive = False
        return Change(event, id, account)
