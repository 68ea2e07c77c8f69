"""What a URL names, and what can be set about a client.

    http://host:4117          a server
    https://host              one behind TLS; its certificate is checked
    http+unix:///run/esker    a socket in the file system

A URL holds no secret: the key is an option, or comes from the environment (ESKER_KEY).
"""

from __future__ import annotations

import os
from typing import Any, Final, NamedTuple
from urllib.parse import unquote, urlsplit

from esker.errors import InvalidOption, nearest
from esker.options import StoreOptions, duration_us

KEY_VARIABLE: Final = "ESKER_KEY"
SCHEMES: Final = ("http", "https", "http+unix")
RETRIES_MAX: Final = 100


class Address(NamedTuple):
    """Where a server listens. With a socket in the file system, `unix` is its path."""

    url: str
    secure: bool
    host: str
    port: int
    unix: str = ""


class ClientOptions(NamedTuple):
    """What can be set."""

    key: str = ""
    timeout: float = 30.0  # seconds that an answer may take, waits that were asked for left out
    retries: int = 0  # how often a call is sent again that may have been done already
    tls: Any = None  # an ssl.SSLContext; the system's authorities are trusted if there is none


def parse(url: str) -> Address:
    """The place that a URL names."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as problem:
        raise InvalidOption(f"{_shown(url)!r} is not a URL: {problem}") from None
    if parts.scheme not in SCHEMES:
        raise InvalidOption(
            f"{_shown(url)!r}: a store is opened by its path, which is that of a directory, or by "
            f"a URL that begins with one of {_told()}"
        )
    if parts.username is not None or parts.password is not None:
        raise InvalidOption("a URL holds no secret; give key=..., or set ESKER_KEY")
    if parts.query or parts.fragment:
        raise InvalidOption(f"{_shown(url)!r}: a store's URL has neither query nor fragment")
    if parts.scheme == "http+unix":
        path = unquote(parts.netloc + parts.path)
        if not path.startswith("/") or "\0" in path:
            raise InvalidOption(f"{url!r}: give the path of a socket, http+unix:///run/esker.sock")
        return Address(f"http+unix://{path}", False, "localhost", 0, path)
    if parts.path not in ("", "/"):
        raise InvalidOption(f"{_shown(url)!r}: a store's URL ends behind its port")
    if not parts.hostname or any(ord(letter) <= 32 for letter in parts.netloc):
        raise InvalidOption(f"{_shown(url)!r} names no host")
    secure = parts.scheme == "https"
    host = parts.hostname
    shown = f"[{host}]" if ":" in host else host
    number = port or (443 if secure else 80)
    return Address(f"{parts.scheme}://{shown}:{number}", secure, host, number)


def _told() -> str:
    return ", ".join(f"{scheme}://" for scheme in SCHEMES)


def _shown(url: str) -> str:
    """A URL without what may be a secret in it."""
    head, mark, rest = url.partition("://")
    return f"{head}{mark}{rest.rpartition('@')[2]}"[:200]


def options(given: dict[str, Any]) -> ClientOptions:
    """Check and complete the options of `esker.open` for a URL."""
    for name in given:
        if name in ClientOptions._fields:
            continue
        if name in StoreOptions.__struct_fields__ or f"{name}_us" in StoreOptions.__struct_fields__:
            raise InvalidOption(f"{name!r} is an option of a store in a directory; set it there")
        raise InvalidOption(f"unknown option {name!r}; {nearest(name, ClientOptions._fields)}")
    key = given.get("key") or os.environ.get(KEY_VARIABLE, "")
    if not isinstance(key, str) or not key.isascii() or not (not key or key.isprintable()):
        raise InvalidOption("key: the text of a key, in printable ASCII")
    retries = given.get("retries", 0)
    if type(retries) is not int or not 0 <= retries <= RETRIES_MAX:
        raise InvalidOption(f"retries={retries!r}: a whole number, 0 to {RETRIES_MAX}")
    timeout = duration_us(given.get("timeout", 30.0), "timeout") / 1e6
    if not timeout > 0:
        raise InvalidOption("timeout=0: an answer takes some time")
    return ClientOptions(key.strip(), timeout, retries, given.get("tls"))
