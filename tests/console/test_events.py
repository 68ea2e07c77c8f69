"""A stream in a browser's own EventSource, with the lines of the documentation."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from esker.server.run import Server, serving
from esker.server.settings import Settings
from tests.console.conftest import PATIENCE
from tests.server.conftest import Client
from tests.server.test_watch import on_loop, until

HOWTO = Path(__file__).resolve().parents[2] / "docs/howto/events.md"
SHOWN = "window.shown = []; const show = (offset, value) => window.shown.push([offset, value.n]);"


class Page(BaseHTTPRequestHandler):
    """A page of somebody else."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(b"<!doctype html><title>shop</title>")

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def shop() -> Iterator[str]:
    """Another origin, on the same machine: browsers let no other page reach a server of it."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Page) as made:
        thread = threading.Thread(target=made.serve_forever, args=(0.05,))
        thread.start()
        yield f"http://127.0.0.1:{made.server_address[1]}"
        made.shutdown()
        thread.join()


def lines(server: Server) -> str:
    """The example of the documentation, for this server."""
    (found,) = re.findall(r"```js\n(.*?)```", HOWTO.read_text(), re.DOTALL)
    assert "http://127.0.0.1:4117" in found
    return found.replace("http://127.0.0.1:4117", server.url)


def append(client: Client, *numbers: int) -> None:
    client.append("orders", *({"n": number} for number in numbers))


def connected(server: Server) -> bool:
    """Whether the page is at the end of the log."""
    streams = on_loop(server, lambda: [*server.app.hub.streams])
    return [[each.caught for each in stream.interests] for stream in streams] == [[True]]


@pytest.mark.parametrize("foreign", [False, True])
def test_an_eventsource_comes_back_by_itself_and_misses_nothing(
    browser: Any, tmp_path: Path, shop: str, foreign: bool
) -> None:
    with serving(tmp_path / "data", Settings(port=0, origins=(shop,) * foreign)) as server:
        client = Client(server)
        append(client, 0)
        context = browser.new_context()
        page = context.new_page()
        page.set_default_timeout(PATIENCE)
        page.goto(f"{shop}/" if foreign else f"{server.url}/healthz")
        page.evaluate(f"() => {{ {SHOWN} {lines(server)} window.source = source; }}")
        until(lambda: connected(server))
        for number in (1, 4):
            append(client, number)
            page.wait_for_function(f"window.shown.length === {number}")
            on_loop(server, lambda: [each.abort() for each in [*server.app.hub.streams]])
            append(client, number + 1, number + 2)  # while it is away
            page.wait_for_function(f"window.shown.length === {number + 2}")
            until(lambda: connected(server))
        assert page.evaluate("window.shown") == [[n, n] for n in range(1, 7)]
        page.evaluate("window.source.close()")
        until(lambda: not server.app.hub.streams)
        context.close()
        client.close()


def test_a_page_of_an_origin_that_is_not_listed_gets_no_stream(
    browser: Any, tmp_path: Path, shop: str
) -> None:
    with serving(tmp_path / "data", Settings(port=0)) as server:
        client = Client(server)
        append(client, 0)
        context = browser.new_context()
        page = context.new_page()
        page.goto(f"{shop}/")
        page.evaluate(f"() => {{ {SHOWN} {lines(server)} window.source = source; }}")
        page.wait_for_function("window.source.readyState === EventSource.CLOSED")
        assert not server.app.hub.streams
        context.close()
        client.close()
