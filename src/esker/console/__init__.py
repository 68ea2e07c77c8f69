"""The console: one page for browsers, served by `esker serve` at `/`.

It is plain files: HTML, CSS and modules of JavaScript, written by hand and loaded as they are. No
build step, no CDN, nothing from elsewhere; the four libraries it stands on lie in vendor/ as they
were published, each with its licence, and VENDOR.toml has their versions and hashes.

    index.html, console.css, icon.svg
    app.js          the frame: pages by the part of the URL behind #, keys on the keyboard, log-in
    api.js          calls, the key of this tab, streams by ticket
    ui.js           what all pages share: numbers and times as text, values, dialogs
    charts.js       lines that move: rates, lag
    overview.js     all topics, and how fast they grow
    topic.js        a topic: its tabs, settings, forms to append, export, import
    records.js      records as a list: follow, pause, seek, filter; one record by its permalink
    segments.js     where a topic lies: a map of its segments, what was lost, what is to go
    groups.js, queues.js, routes.js, store.js

Two rules hold everywhere. Whatever comes from a store is put on the page as text: the browser is
told to refuse anything else (see server/page.py), bytes that are no text are shown as hex. And a
list is a window: however many records a topic has, the page holds a few hundred of them.

The page is read once, here; who serves it says so with its ETag.
"""

from __future__ import annotations

import base64
import hashlib
import re
from functools import cache
from importlib.resources import files
from typing import Final, NamedTuple

OWN: Final = (
    "index.html", "console.css", "icon.svg", "api.js", "app.js", "charts.js", "groups.js",
    "overview.js", "queues.js", "records.js", "routes.js", "segments.js", "store.js", "topic.js",
    "ui.js",
)  # fmt: skip
VENDORED: Final = (
    "htm.mjs", "hooks.mjs", "preact.mjs", "signals-core.mjs", "signals.mjs", "uplot.css",
    "uplot.js",
)  # fmt: skip
_MEDIA: Final = {
    "html": "text/html", "css": "text/css", "js": "text/javascript", "mjs": "text/javascript",
    "svg": "image/svg+xml",
}  # fmt: skip
_IMPORT_MAP: Final = re.compile(rb'<script type="importmap">(.*?)</script>', re.S)


class Asset(NamedTuple):
    """A file as it is served."""

    body: bytes
    media: str
    etag: str


def asset(name: str) -> Asset | None:
    """The file of that name; None if the console has none."""
    return _read(name) if name in OWN or name in VENDORED else None


@cache
def _read(name: str) -> Asset:
    room = files("esker.console.vendor" if name in VENDORED else "esker.console")
    body = (room / name).read_bytes()
    etag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
    return Asset(body, _MEDIA[name.rpartition(".")[2]], etag)


@cache
def import_map_hash() -> str:
    """The hash under which a browser may use the page's import map, the one script in it."""
    page = asset("index.html")
    assert page is not None
    found = _IMPORT_MAP.search(page.body)
    assert found is not None
    digest = hashlib.sha256(found[1]).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"
