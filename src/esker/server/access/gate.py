"""Who comes in, how many at once, and how they are put out.

`who` finds out who asks: by a key in `Authorization: Bearer`, or on a route that streams by a
ticket. A visit counts a call in, and out again:

    with gate.visit() as visit:
        visit.enter(principal, stream=False, safe=True)
        ...

A key has so many calls under way and so many calls a second; all streams together are bounded, too.
All of it happens on the loop, without a pause between looking and counting, so that no number of
callers at once gets past a limit.

When a key ends (revoked, changed, removed, or its time is over), its streams and its reads are
cancelled at once, and its other calls half a second later: most of them are done by then, and who
appends should be told the truth about it. What is cancelled leaves its visit as `Ended`, for HTTP,
SSE and WebSocket alike. The file of keys is looked at twice a second, so that `esker keys revoke`
is enough; a SIGHUP only makes it sooner.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Mapping
from types import TracebackType
from typing import Final, Self
from urllib.parse import parse_qsl

from esker.clock import Clock
from esker.errors import EskerError
from esker.server.access import keyfile
from esker.server.access.audit import Audit
from esker.server.access.keys import SCOPES, Account, Change, Keyring, Principal, id_of
from esker.server.access.tickets import Tickets
from esker.server.http.faults import Fault, throttled
from esker.server.settings import Settings

LOG: Final = logging.getLogger("esker.server")
LOOK_SECONDS: Final = 0.5  # between two looks at the file of keys
PATIENCE: Final = 0.5  # for calls of a key that has ended, and which are not reads
_CHALLENGE: Final = (("www-authenticate", 'Bearer realm="esker"'),)


class Ended(Exception):
    """The key of this call is no longer good, and the call was cancelled for it."""


class Visit:
    """A call that is under way: from `enter`, if it comes to that, to the end of the block."""

    __slots__ = ("_account", "_gate", "_stream", "_task")

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self._account: Account | None = None
        self._stream = False

    def __enter__(self) -> Self:
        return self

    def enter(self, principal: Principal, *, stream: bool = False, safe: bool = True) -> None:
        """Count it in; refuses one too many."""
        task, account = asyncio.current_task(), principal.account
        assert task is not None
        self._gate._count(account, stream)
        self._task, self._account, self._stream = task, account, stream
        account.calls[task] = safe
        self._gate.streams += stream

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        account = self._account
        if account is None:
            return
        task = self._task
        account.calls.pop(task, None)
        self._gate.streams -= self._stream
        if task in account.ended:
            account.ended.discard(task)
            if kind is asyncio.CancelledError and task.uncancel() == 0:
                raise Ended from None


class Gate:
    """The keys of a server, and what is under way for each."""

    def __init__(self, settings: Settings, clock: Clock, audit: Audit) -> None:
        self.settings = settings
        self.anybody = Principal("", SCOPES)
        self.keyring = Keyring()
        self.tickets = Tickets()
        self.streams = 0
        self._clock = clock
        self._audit = audit
        self._content = b""
        self._complaint = ""
        self._reading = asyncio.Lock()
        if settings.keys:
            self._content = keyfile.content(settings.keys)
            self.keyring.take(keyfile.keys_in(self._content), clock.now_us())

    @property
    def warning(self) -> str:
        """What everybody may know of keys that could not be read again; nothing if they could."""
        if not self._complaint:
            return ""
        return "the file of keys cannot be read or understood: the former keys stay in force"

    # ---- who asks ------------------------------------------------------------------------

    def who(self, headers: Mapping[str, str], ticket: str | None = None) -> Principal:
        """Who asks; refuses who does not say, or says what is not so."""
        given = headers.get("authorization")
        if ticket is not None:
            if given is not None:
                raise Fault("invalid_request", "a key and a ticket: one of them is enough")
            return self._bearer_of(ticket)
        if not self.settings.keys:
            return self.anybody
        if given is None:
            raise _unauthorized("send a key: Authorization: Bearer esk_…")
        scheme, _, presented = given.partition(" ")
        if scheme.lower() != "bearer":
            raise _unauthorized("a key is sent as Authorization: Bearer esk_…, not in another way")
        found = self.keyring.find(presented.strip(" "), self._clock.now_us())
        if found is None:
            raise _unauthorized("this key is not known, or no longer good")
        return found

    def _bearer_of(self, ticket: str) -> Principal:
        found = self.tickets.take(ticket, self._clock.monotonic())
        if found is None:
            raise _unauthorized("this ticket is not known, was used, or is too old")
        return found

    # ---- how many at once ----------------------------------------------------------------

    def visit(self) -> Visit:
        """A call, which is counted from its `enter` to the end of the block."""
        return Visit(self)

    def _count(self, account: Account, stream: bool) -> None:
        settings = self.settings
        if not account.alive:
            raise _unauthorized("this key is no longer good")
        if stream and self.streams >= settings.streams:
            most = settings.streams
            raise throttled("streams", most, 5, f"there are {most} streams already")
        if not account.id:
            return  # nobody in particular has no limits of his own
        if not stream and len(account.calls) >= settings.key_calls:
            most = settings.key_calls
            raise throttled("key_calls", most, 1, f"this key has {most} calls under way")
        self.charge(account)

    def charge(self, account: Account) -> None:
        """Have a key pay for a call, or for a message of a WebSocket, which is as good as one."""
        if account.id and self.settings.key_rate:
            self._pay(account)

    def _pay(self, account: Account) -> None:
        """A token for a call, out of a bucket that holds those of one second."""
        rate = self.settings.key_rate
        self._fill(account)
        if account.tokens < 1.0:
            wait = max(1, math.ceil((1.0 - account.tokens) / rate))
            raise throttled("key_rate", rate, wait, f"this key may make {rate:g} calls a second")
        account.tokens -= 1.0

    def _fill(self, account: Account) -> None:
        rate, now = self.settings.key_rate, self._clock.monotonic()
        most = max(1.0, rate)
        if account.tokens < 0.0:
            account.tokens = most
        else:
            account.tokens = min(most, account.tokens + (now - account.at) * rate)
        account.at = now

    def rate_headers(self, principal: Principal) -> tuple[tuple[str, str], ...]:
        """What a client is told about its rate; nothing if there is none."""
        rate, account = self.settings.key_rate, principal.account
        if not rate or not account.id:
            return ()
        self._fill(account)
        most = max(1.0, rate)
        return (
            ("ratelimit-limit", str(int(most))),
            ("ratelimit-remaining", str(int(account.tokens))),
            ("ratelimit-reset", str(math.ceil((most - account.tokens) / rate))),
        )

    # ---- the end of keys -----------------------------------------------------------------

    async def watch(self) -> None:
        """Look at the keys, again and again, until cancelled."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            try:
                self._told(self.keyring.expire(self._clock.now_us()))
                await self.reload()
            except Exception:  # or no key would ever end again
                LOG.exception("the keys could not be looked at")

    async def reload(self) -> None:
        """Read the file of keys again. If it cannot be read, the former keys stay, and it is said.

        Who wants to be rid of all keys revokes them, or stops the server; a file that is broken
        or gone for a moment is more often a mistake than a wish.
        """
        path = self.settings.keys
        if not path:
            return
        async with self._reading:  # or what was read first might be taken last
            await self._read_again(path)

    async def _read_again(self, path: str) -> None:
        loop = asyncio.get_running_loop()
        try:
            content = await loop.run_in_executor(None, keyfile.content, path)
            if content == self._content:
                self._complaint = ""
                return
            keys = keyfile.keys_in(content)
        except EskerError as problem:
            if str(problem) != self._complaint:
                self._complaint = str(problem)
                LOG.error("the keys were not read again, the former ones stay: %s", problem)
                self._audit.tell("keys_not_read", problem=problem.code)
            return
        self._content, self._complaint = content, ""
        self._told(self.keyring.take(keys, self._clock.now_us()))

    def _told(self, changes: list[Change]) -> None:
        for change in changes:
            self._audit.tell(change.event, key=change.id)
            if change.account is not None:
                end(change.account)


def end(account: Account) -> None:
    """Put out what an account has under way: reads and streams now, the rest a little later."""
    account.alive = False
    loop = asyncio.get_running_loop()
    for task, safe in list(account.calls.items()):
        if safe:
            _cancel(account, task)
        else:
            loop.call_later(PATIENCE, _cancel, account, task)


def _cancel(account: Account, task: asyncio.Task[object]) -> None:
    if task in account.calls and task not in account.ended:
        account.ended.add(task)
        task.cancel()


def ticket_in(query: bytes) -> tuple[str | None, bytes]:
    """The ticket of a query, and the query without it."""
    if b"ticket=" not in query:
        return None, query
    parts = query.split(b"&")
    found = [part for part in parts if part.startswith(b"ticket=")]
    rest = b"&".join(part for part in parts if not part.startswith(b"ticket="))
    if len(found) > 1:
        raise Fault("invalid_request", "the query has a name twice")
    pairs = parse_qsl(found[0].decode("latin-1"), keep_blank_values=True) if found else []
    return (pairs[0][1] if pairs else None), rest


def claimed(headers: Mapping[str, str]) -> str:
    """The id that a call claims, for the audit log; never more of what it sent."""
    return id_of(headers.get("authorization", "").partition(" ")[2].strip(" "))


def _unauthorized(message: str) -> Fault:
    return Fault("unauthorized", message, headers=_CHALLENGE)
