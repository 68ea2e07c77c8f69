"""An event log for a web app: orders come in by POST, browsers watch them as they come.

    python examples/event_log.py [directory]        then open the address that it prints
    python examples/event_log.py [directory] --try  plays a browser that loses its connection

Every order is an event with an offset. The stream sends the offset as the event's id, so a browser
that was away says where it was (Last-Event-ID, which EventSource does by itself) and gets what it
missed, in order and once, also after a restart of this program.
"""

from __future__ import annotations

import json
import sys
import threading
import urllib.request
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import esker

PAGE = b"""<!doctype html><title>Orders</title><pre id=list></pre><script>
new EventSource("/events").onmessage = event =>
  document.getElementById("list").append(event.lastEventId + ": " + event.data + "\\n");
</script>"""


def handler(orders: esker.Topic) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def answer(self, status: int, media: str, body: bytes = b"") -> None:
            self.send_response(status)
            self.send_header("Content-Type", media)
            self.end_headers()
            self.wfile.write(body)

        def do_POST(self) -> None:
            order = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            offset = orders.append(order, wait=True)  # as safe as the topic's class promises
            self.answer(201, "application/json", b'{"offset": %d}' % offset)

        def do_GET(self) -> None:
            if self.path != "/events":
                return self.answer(200, "text/html", PAGE)
            self.answer(200, "text/event-stream")
            start = int(self.headers.get("Last-Event-ID", "-1")) + 1
            with suppress(ConnectionError):  # the browser went away
                for record in orders.follow(start):  # what is there, then what comes
                    self.wfile.write(b"id: %d\ndata: %s\n\n" % (record.offset, record.value))

        def log_message(self, *_: object) -> None: ...

    return Handler


def events(url: str, after: int, count: int) -> list[str]:
    request = urllib.request.Request(f"{url}/events", headers={"Last-Event-ID": str(after)})
    with urllib.request.urlopen(request, timeout=30) as stream:
        lines = (line.decode().strip() for line in stream)
        return [next(line for line in lines if line.startswith("data: "))[6:] for _ in range(count)]


def main(data: str, trying: bool) -> None:
    with esker.open(data) as store:
        orders = store.create("orders", exist_ok=True, durability="fsync")
        server = ThreadingHTTPServer(("127.0.0.1", 0), handler(orders))
        server.daemon_threads, server.block_on_close = True, False  # streams end with the program
        url = f"http://127.0.0.1:{server.server_port}"
        print(url, flush=True)
        if not trying:
            server.serve_forever()
        threading.Thread(target=server.serve_forever, daemon=True).start()
        for product in ("tea", "milk", "scones"):
            urllib.request.urlopen(url, json.dumps({"product": product}).encode()).close()
        print("first connection:", events(url, -1, 1))
        print("and when it is back:", events(url, 0, 2))
        server.server_close()


if __name__ == "__main__":
    main(*[word for word in sys.argv[1:] if word != "--try"][:1] or ["data"], "--try" in sys.argv)
