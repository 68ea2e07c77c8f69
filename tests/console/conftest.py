"""The console in a real Chromium: one browser for each worker, a fresh context for each test.

Where there is no Chromium these tests are skipped, and say so; `make browser` installs it on
Debian. What a test saw is kept as a picture in tests/console/shots (git ignores it), for whoever
wants to look. A page that writes an error to its console, breaks its own policy, or asks another
host for anything fails the test that opened it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from esker.server.run import Server, serving
from esker.server.settings import Settings
from tests.server.conftest import Client

SHOTS = Path(__file__).resolve().parent / "shots"
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-dev-shm-usage", "--force-color-profile=srgb", "--font-render-hinting=none",
]  # fmt: skip
PATIENCE = 30_000  # milliseconds that a page has for what it is to show


def chromium() -> str | None:
    """Where this machine's Chromium is."""
    given = os.environ.get("ESKER_CHROMIUM")
    found = [given] if given else [shutil.which(name) for name in NAMES]
    return next((path for path in found if path), None)


@pytest.fixture(scope="module")  # while it lives there is an event loop, in the way of other tests
def browser() -> Iterator[Any]:
    path = chromium()
    if path is None:
        pytest.skip("no Chromium on this machine: make browser (Debian, as root), or apt-get it")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        made = playwright.chromium.launch(executable_path=path, args=FLAGS, headless=True)
        yield made
        made.close()


class Visit:
    """A page, and what went wrong on it."""

    def __init__(self, page: Any, url: str) -> None:
        self.page = page
        self.url = url
        self.wrong: list[str] = []
        self.asked: list[str] = []
        self.allowed: tuple[str, ...] = ()  # parts of errors that a test means to cause
        page.set_default_timeout(PATIENCE)
        page.on("console", self._said)
        page.on("pageerror", lambda problem: self.wrong.append(f"pageerror: {problem}"))
        page.on("dialog", self._dialog)
        page.on("request", lambda request: self.asked.append(request.url))

    def _said(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.wrong.append(f"{message.type}: {message.text} {message.location}")

    def _dialog(self, dialog: Any) -> None:
        self.wrong.append(f"a dialog of the browser: {dialog.message}")
        dialog.dismiss()

    def go(self, place: str = "") -> Any:
        self.page.goto(f"{self.url}/#/{place}")
        return self.page

    def shot(self, name: str, **how: Any) -> None:
        SHOTS.mkdir(exist_ok=True)
        self.page.screenshot(path=SHOTS / f"{name}.png", **how)

    def check(self) -> None:
        """No errors, and nobody else was asked for anything."""
        wrong = [each for each in self.wrong if not any(part in each for part in self.allowed)]
        assert wrong == []
        home = urlsplit(self.url).netloc
        others = [url for url in self.asked if urlsplit(url).netloc != home]
        assert others == []


@pytest.fixture
def visit(browser: Any) -> Iterator[Callable[..., Visit]]:
    """Opens a page of a server in a context of its own, and checks it at the end."""
    contexts: list[Any] = []
    visits: list[Visit] = []

    def make(url: str, **how: Any) -> Visit:
        given = {"viewport": {"width": 1280, "height": 800}, "color_scheme": "light", **how}
        context = browser.new_context(**given)
        contexts.append(context)
        visits.append(Visit(context.new_page(), url))
        return visits[-1]

    yield make
    for context in contexts:
        context.close()
    for each in visits:
        each.check()


class House:
    """A server, and hands to fill its store."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.url = server.url
        self.client = Client(server)

    def do(self, method: str, path: str, body: Any = None, **headers: str) -> Any:
        answer = self.client.call(method, path, body, headers)
        assert answer.status < 300, answer.body
        return answer.json()

    def append(self, topic: str, *records: Any) -> Any:
        made = [each if isinstance(each, dict) else {"value": each} for each in records]
        return self.do("POST", f"/v1/topics/{topic}/records", {"records": made})

    def evicted(self, topic: str) -> int:
        """A topic of which the beginning was evicted; the first offset that is there."""
        self.do("PUT", f"/v1/topics/{topic}", {"segment_records": 10, "cap_records": 20})
        for n in range(8):
            self.append(topic, *(f"{n}-{m}" for m in range(10)))
        store = self.server.app.store._store
        store.tick()
        store.retain()
        first = self.do("GET", f"/v1/topics/{topic}")["shards"][0]["earliest"]
        assert first > 0
        return int(first)


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    with serving(tmp_path / "data", Settings(port=0)) as server:
        made = House(server)
        yield made
        made.client.close()


@pytest.fixture
def client(house: House) -> Client:
    return house.client
