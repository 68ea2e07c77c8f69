"""The place for what cannot be used and must not be lost.

Esker puts files here and never deletes one: whoever recovers or repairs a store may be wrong about
what a file was worth.
"""

from __future__ import annotations

from esker.engine.context import Context
from esker.format import names
from esker.storage.files import base_name, join


def quarantine(context: Context, path: str, why: str) -> str:
    """Move something out of the way without deleting it."""
    files = context.files
    folder = join(context.root, names.QUARANTINE)
    files.make_dir(folder)
    files.sync_dir(context.root)
    inside = path[len(context.root) :].strip("/").replace("/", "-") or base_name(path)
    target = join(folder, f"{inside}.{why}")
    serial = 1
    while files.kind(target):
        serial += 1
        target = join(folder, f"{inside}.{why}.{serial}")
    files.rename(path, target)
    files.sync_dir(folder)
    files.sync_dir(path.rpartition("/")[0])
    return target
