"""Run the benchmark: every operation, every column, one table, one file.

    python -m bench.run                        everything; some minutes, and 25 GB of disk
    python -m bench.run --only append lookup   some operations
    python -m bench.run --smoke                tiny sizes: does it work at all?

The table goes to standard output, what is being done meanwhile to standard error.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import esker
from bench import append, cold, durable, groups, kin, life, queues, read, recovery, routes, scale
from bench.measure import RESULTS, Row, table, write_results
from bench.peers import PEERS, installed, version
from bench.setting import Setting
from bench.subject import STORES, VALUE_BYTES, Esker

FAILED = "failed"

# In this order: `lookup` ends with the stores that `recovery` began with.
OPERATIONS: dict[str, Callable[[Setting], Iterator[Row]]] = {
    "append": append.one_by_one,
    "append_many": append.many,
    "once": append.once,
    "append_arrow": append.arrow,
    "read": read.read,
    "disk": durable.lone_disk,
    "fsync": durable.lone_fsync,
    "threads": durable.threads,
    "topics": durable.topics,
    "recovery": recovery.recovery,
    "lookup": recovery.lookup,
    "open": recovery.clean_open,
    "growth": scale.growth,
    "memory": scale.memory,
    "zstd": append.compressed,
    "delete": life.delete_by_tag,
    "evict": life.evict,
    "archive": life.archive,
    "cold": cold.cold,
    "groups": groups.groups,
    "queues": queues.queues,
    "routes": routes.routes,
    "kin": kin.kin,
    "import": kin.importing,
}


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    chosen = [name for name in OPERATIONS if name in (options.only or OPERATIONS)]
    start = time.perf_counter()

    def say(text: str) -> None:
        print(f"{time.perf_counter() - start:6.1f} s  {text}", file=sys.stderr, flush=True)

    options.dir.mkdir(parents=True, exist_ok=True)
    directory = Path(tempfile.mkdtemp(prefix=".bench-", dir=options.dir.resolve()))
    setting = Setting(directory, smoke=options.smoke, say=say)
    rows: list[Row] = []
    try:
        for number, name in enumerate(chosen, 1):
            say(f"{name} ({number} of {len(chosen)})")
            rows += _measured(name, setting)
    except KeyboardInterrupt:
        say("interrupted")
        return 130
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    seconds = time.perf_counter() - start
    print(table(rows))
    if options.smoke:
        say("a smoke run: the sizes are far too small for these figures to mean anything")
    kind = "smoke" if options.smoke else "part" if len(chosen) < len(OPERATIONS) else ""
    path = write_results(
        rows, options.results, kind_of_run=kind, seconds=round(seconds, 1), **_about()
    )
    say(f"written to {path}")
    return any(FAILED in row.figures.values() for row in rows)


def _measured(name: str, setting: Setting) -> list[Row]:
    """The rows of an operation. One that fails says so and costs nobody else's figures."""
    try:
        return list(OPERATIONS[name](setting))
    except Exception as problem:
        traceback.print_exc()
        return [Row(name, {Esker.name: FAILED}, details={"error": type(problem).__name__})]


def _about() -> dict[str, Any]:
    return {
        "value_bytes": VALUE_BYTES,
        "esker": esker.__version__,
        "peers": {name: version(name) for name in PEERS if installed(name)},
        "configurations": {name: store.configuration for name, store in STORES.items()},
    }


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.run", description="Run the benchmark.")
    parser.add_argument("--smoke", action="store_true", help="tiny sizes, for a test of the code")
    parser.add_argument(
        "--only", nargs="+", choices=OPERATIONS, metavar="NAME",
        help=f"run only these: {', '.join(OPERATIONS)}",
    )  # fmt: skip
    parser.add_argument(
        "--dir", type=Path, default=Path(), metavar="DIR",
        help="where to work; what is made there is removed again (default: here)",
    )  # fmt: skip
    parser.add_argument(
        "--results", type=Path, default=RESULTS, metavar="DIR", help="where the file goes"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
