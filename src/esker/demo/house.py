"""The server of the demo: what `esker serve` would do, on a free port of loopback.

    python -m esker.demo.house DATA NOTES RUN

It has the store open for writing, so it is the one that runs the route from orders to payments.
"""

from __future__ import annotations

import sys
from threading import Event

from esker.demo import child
from esker.demo.notes import Notes
from esker.server.run import serving
from esker.server.settings import Settings


def main() -> None:
    data, notes, run = sys.argv[1:4]

    def work(stop: Event) -> None:
        with serving(data, Settings(port=0, log_level="warning", grace=1.0)) as server:
            Notes(notes, int(run), "house").add(server.url)
            stop.wait()

    child.live(work)


if __name__ == "__main__":
    main()
