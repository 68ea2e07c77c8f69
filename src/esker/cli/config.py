"""`esker config show`: what is set, and by whom: flag, environment, file, default."""

from __future__ import annotations

import os
from typing import Any, Final

from esker.cli.place import HERE, Place, profiles
from esker.cli.shown import USUAL, Column, Shown, answer

_ROW: Final = (
    Column("NAME", lambda row: row["name"]),
    Column("VALUE", lambda row: str(row["value"]), wide=True),
    Column("SOURCE", lambda row: row["source"], wide=True),
)


def show(*, place: Place = HERE, shown: Shown = USUAL) -> int:
    """Which store commands go to, the profiles there are, and every setting of the server."""
    from esker.cli.serve import settled

    found = place.settled()
    rows: list[dict[str, Any]] = [
        {"name": found.kind, "value": found.where, "source": found.source}
    ]
    if found.kind == "url":
        keyed = found.key is not None or "ESKER_KEY" in os.environ
        source = found.source if found.key is not None else "ESKER_KEY" if keyed else "default"
        rows.append({"name": "key", "value": "(set)" if keyed else "(none)", "source": source})
    named, path = profiles(os.environ)
    rows += [
        {
            "name": f"profile.{name}",
            "value": one.get("data") or one.get("url") or "",
            "source": path,
        }
        for name, one in named.items()
    ]
    _, sources = settled({}, None)
    rows += [
        {"name": name, "value": each.value, "source": each.source}
        for name, each in sorted(sources.items())
    ]
    answer(shown, {"settings": rows}, rows, _ROW)
    return 0
