"""Where a server may listen, and whose calls it takes at all.

An address that other machines can reach needs keys, and TLS or the word that plain HTTP is meant
(`--insecure`: behind a proxy that does TLS, in a network that nobody else is in). There is no word
for doing without keys there.

A page in a browser can make its owner's browser call a server of this machine. Three things keep it
out: the name under which the server was called must be one of its own (a page may give its own name
the address 127.0.0.1, but not another name), the origin of a page must be the server's own or one
that was allowed, and the browser's own word for a call that comes from another site is believed.
`check_place` is the same for HTTP and for the handshake of a WebSocket. One thing others may do:
link to the console. Its page is the same for everybody, and no page can have it in a frame.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from ipaddress import IPv6Address, ip_address
from typing import Final

from esker.errors import InvalidOption
from esker.server.access.keys import redacted
from esker.server.http.faults import Fault
from esker.server.settings import Settings

LOOPBACK: Final = ("localhost", "127.0.0.1", "[::1]")
_HOST: Final = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::[0-9]{1,5})?")
_ORIGIN: Final = re.compile(r"[a-z][a-z0-9+.-]*://[^A-Z/?#@*\s]+")
_OWN: Final = ("same-origin", "none")  # "none": somebody typed the address
# What a browser says when somebody follows a link, and the whole window goes there.
_FOLLOWED: Final = {"sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address; a name but `localhost` is not believed."""
    if host == "localhost":
        return True
    try:
        address = ip_address(host)
    except ValueError:
        return False
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped.is_loopback
    return address.is_loopback


def check_settings(settings: Settings) -> None:
    """Refuse to start where others could do what they should not."""
    if not 0 <= settings.port < 1 << 16:
        raise InvalidOption(f"port={settings.port}: must lie in 0..65535")
    if bool(settings.tls_cert) != bool(settings.tls_key):
        raise InvalidOption("TLS needs both tls_cert and tls_key")
    if settings.tls_ca and not settings.tls_cert:
        raise InvalidOption("tls_ca asks clients for certificates, and needs tls_cert and tls_key")
    for name in settings.hosts:
        found = _HOST.fullmatch(name)
        if found is None or found[1] != name:
            raise InvalidOption(f"hosts: {name!r} is not a name as in shop.example, without a port")
    for origin in settings.origins:
        if not _ORIGIN.fullmatch(origin):
            raise InvalidOption(
                f"origins: {origin!r} is not what a browser sends: https://shop.example, in small "
                "letters, with nothing behind the name or its port"
            )
    if settings.unix or is_loopback(settings.host):
        return
    where = settings.host or "all addresses"
    if not settings.keys:
        raise InvalidOption(
            f"others can reach {where}, and nobody would need a key: make one with `esker keys "
            "new` and name its file with --keys, or listen on 127.0.0.1"
        )
    if not settings.tls_cert and not settings.insecure:
        raise InvalidOption(
            f"others can reach {where}, and keys would go there in plain text: give --tls-cert and "
            "--tls-key, or --insecure if something else does TLS"
        )


@lru_cache(maxsize=64)
def own_names(host: str, hosts: tuple[str, ...]) -> frozenset[str]:
    """The names and addresses under which a server may be called."""
    own = f"[{host}]" if ":" in host else host
    return frozenset(name.lower() for name in (*LOOPBACK, *hosts, own) if name)


@lru_cache(maxsize=64)
def _is_own(called: str, host: str, hosts: tuple[str, ...]) -> bool:
    found = _HOST.fullmatch(called)
    return found is not None and found[1].lower() in own_names(host, hosts)


def check_place(headers: Mapping[str, str], settings: Settings, *, page: bool = False) -> None:
    """Refuse a call that was meant for another server, or that a foreign page makes.

    `page`: it is for the console's page, which a link of another site may lead to.
    """
    host = headers.get("host")
    if host is None:
        raise Fault("invalid_request", "the header Host is missing: say whom this is for")
    if not _is_own(host, settings.host, settings.hosts):
        raise Fault(
            "misdirected",
            f"this server is not called {redacted(host[:100])!r}; the setting `hosts` gives it "
            "more names",
        )
    origin = headers.get("origin")
    if origin is None and "sec-fetch-site" not in headers:
        return  # no browser
    if origin is not None and origin in settings.origins:
        return
    if origin is not None:
        schemes = ("https",) if settings.tls_cert else ("http", "https")
        if origin.lower() not in [f"{scheme}://{host.lower()}" for scheme in schemes]:
            raise Fault("forbidden", "pages of this origin may not call this server")
    followed = page and origin is None and all(headers.get(n) == v for n, v in _FOLLOWED.items())
    if headers.get("sec-fetch-site", "none").lower() not in _OWN and not followed:
        raise Fault("forbidden", "pages of other sites may not call this server")


def for_pages(headers: Mapping[str, str], settings: Settings) -> tuple[tuple[str, str], ...]:
    """What lets pages of an allowed origin, and of no other, have an answer (CORS)."""
    origin = headers.get("origin", "")
    if origin not in settings.origins:
        return (("vary", "origin"),)
    told = (("access-control-allow-origin", origin), ("vary", "origin"))
    if "access-control-request-method" not in headers:
        return (*told, ("access-control-expose-headers", "*"))
    return (
        *told,
        ("access-control-allow-methods", "GET, PUT, POST, PATCH, DELETE"),
        ("access-control-allow-headers", headers.get("access-control-request-headers", "")),
        ("access-control-max-age", "600"),
    )
