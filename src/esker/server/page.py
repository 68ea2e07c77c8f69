"""The console: a page for browsers at `/`, and the files that it loads; see esker/console.

They are the same for everybody and hold no data: whatever the page shows it asks of the routes that
everybody else uses, with the key of whoever sits before it. What the page may do is told to the
browser in `Content-Security-Policy`: load from here and from nowhere else, run no script that is
not a file of ours, be in no frame, and never turn text into markup (Trusted Types without a
policy). Each file has an ETag and is asked for again each time, which costs a 304.
"""

from __future__ import annotations

from typing import Final

from esker.console import Asset, asset, import_map_hash
from esker.server.http.call import Call, Reply
from esker.server.http.faults import Fault

POLICY: Final = "; ".join(
    (
        "default-src 'self'",
        "script-src 'self' '{map}'",  # the import map, which browsers take inline only
        "base-uri 'none'",
        "object-src 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)


async def page(call: Call) -> Reply:
    """The page itself."""
    return _reply(call, "index.html")


async def file(call: Call) -> Reply:
    """What the page loads."""
    name = call.params["file"]
    if name == "index.html":
        raise _absent()
    return _reply(call, name)


def _reply(call: Call, name: str) -> Reply:
    found: Asset | None = asset(name) if call.app.settings.console else None
    if found is None:
        raise _absent()
    headers: tuple[tuple[str, str], ...] = (
        ("etag", found.etag), ("cache-control", "no-cache"),
        ("content-security-policy", POLICY.format(map=import_map_hash())),
        ("cross-origin-opener-policy", "same-origin"),
    )  # fmt: skip
    media = f"{found.media}; charset=utf-8"
    if call.has(found.etag):
        return Reply(b"", 304, media=media, headers=headers)
    return Reply(found.body, media=media, headers=headers)


def _absent() -> Fault:
    return Fault("not_found", "there is no such file in the console")
