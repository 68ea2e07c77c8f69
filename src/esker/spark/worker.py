"""What is done once in each of Spark's Python workers.

After every task a worker has Python's garbage collector look at all that it holds, which is
modules, for the most part: PySpark, Arrow, NumPy, ours. That took some 45 ms a task, and a query
has four such tasks on two cores, and two more that plan it: as much as reading half a million
records. Modules are no garbage, so the collector is told to leave alone what is there by now.
"""

from __future__ import annotations

import gc
import sys

_MAIN = "pyspark.daemon"  # what every worker is a fork of
_settled = False  # the collector knows too, and counts for as long as it would look


def settle() -> None:
    """Have the garbage collector pass over what is loaded by now. Once, and in workers only."""
    global _settled
    if not _settled and is_worker():
        gc.freeze()
        _settled = True


def is_worker() -> bool:
    """Whether this process is one of Spark's workers, and not a program of somebody's."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return spec is not None and spec.name == _MAIN
