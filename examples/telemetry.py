"""Telemetry: buffer readings on this machine, ship them to a collector that is not always there.

    python examples/telemetry.py [directory]

Readings go to a topic that keeps 64 MiB, shipped or not: whatever happens upstream, the disk does
not fill up. A group ships them in batches and acks a batch when the collector has it. What was not
acked is sent again, after an error, a restart or a crash; the collector tells repeats by the
batch's id. It is a small web server in a thread here, and every third request to it fails.
"""

from __future__ import annotations

import json
import sys
import threading
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import esker

received: dict[str, list[dict]] = {}  # by the id of the batch: a repeat changes nothing
requests = 0


class Collector(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        global requests
        requests += 1
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if requests % 3:
            received[self.headers["Batch-Id"]] = [json.loads(line) for line in body.splitlines()]
        self.send_response(204 if requests % 3 else 503)
        self.end_headers()

    def log_message(self, *_: object) -> None: ...


def measure(readings: esker.Topic, count: int) -> None:
    for number in range(count):
        readings.append({"sensor": number % 8, "celsius": 20 + number % 50 / 10})  # buffered
    readings.sync()  # from here on they survive a power cut


def ship(readings: esker.Topic, url: str) -> None:
    def send(batch: esker.GroupBatch) -> None:
        """An exception has the batch tried again; returning acks it."""
        name = f"{batch.topic}/{batch.shard}/{batch.first}"
        body = b"\n".join(batch.values)
        request = urllib.request.Request(url, data=body, headers={"Batch-Id": name})
        urllib.request.urlopen(request, timeout=10).close()

    def told(batch: esker.GroupBatch, problem: BaseException) -> str:
        print(f"collector: {problem}; offsets {batch.first}..{batch.last} are sent again")
        return "retry"

    with readings.group("shipper") as group:
        group.process(send, retries=0, delay=0.05, on_error=told, max_records=500, idle=0.2)
        print(f"left to ship: {group.lag().records}")


def main(data: str) -> None:
    collector = ThreadingHTTPServer(("127.0.0.1", 0), Collector)
    threading.Thread(target=collector.serve_forever, daemon=True).start()
    with esker.open(data) as store:
        readings = store.create(
            "readings", exist_ok=True, cap_bytes="64MiB", protect_unconsumed=False
        )
        measure(readings, 4_000)
        ship(readings, f"http://127.0.0.1:{collector.server_port}/")
    collector.shutdown()
    collector.server_close()
    print(f"collector: {sum(map(len, received.values()))} readings in {requests} requests")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "data")
