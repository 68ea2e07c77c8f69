"""Which kind of place a path names, and who reads it."""

from __future__ import annotations

from esker.spark import kin, local, remote
from esker.spark.history import History
from esker.spark.origin import Origin, Where


def at(where: Where) -> Origin:
    """What a path leads to."""
    if remote.is_server(where.path):
        return remote.Server(where.path, where.access)
    if kin.is_kin(where.path):
        return kin.Kin(where.path)
    if where.archived:
        return History(where.path)
    return local.Directory(where.path, where.cold)


def let_go() -> None:
    """Close what this process reads."""
    for each in (local, remote, kin):
        each.let_go()
