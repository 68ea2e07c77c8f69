"""`esker serve`: the store over HTTP.

Every setting of the server is a flag, a variable of the environment and a name in a TOML file, in
this order; `esker serve --show-settings` and `esker config show` show each with where it came from.
"""

from __future__ import annotations

import os
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
from cyclopts import Group, Parameter

from esker.cli.checking import directory
from esker.cli.place import CONFIG, HERE, Place
from esker.cli.shown import Flag
from esker.cli.topic_options import flags
from esker.server import settings
from esker.storage.files import SYSTEM_FILES

_SETTINGS: Final = Group("Settings; also ESKER_NAME, or a line of esker.toml", sort_key=6)


def _fields() -> list[tuple[str, Any, Any]]:
    made = []
    for field in msgspec.structs.fields(settings.Settings):
        kind = bool if field.type is bool else str
        default = field.default
        shown = "" if default in ("", (), 0.0) or kind is bool else f"Default: {default}."
        made.append((field.name, Annotated[kind | None, Parameter(help=shown)], None))
    return made


if TYPE_CHECKING:
    from dataclasses import dataclass

    @dataclass(frozen=True)
    class SettingFlags:
        """The settings of a server."""
else:
    SettingFlags = flags("SettingFlags", _fields(), _SETTINGS)


NO_FLAGS: Final = SettingFlags()


def settled(flags: dict[str, Any], config: str | None) -> tuple[Any, dict[str, Any]]:
    """The settings from all sources, and the source of each."""
    path = config or os.environ.get("ESKER_CONFIG", "")
    if not path and SYSTEM_FILES.kind(CONFIG):
        path = CONFIG
    file = settings.file_settings(path) if path else {}
    return settings.settle(flags, os.environ, file, path)


def serve(
    path: str | None = None, /, *,
    config: str | None = None,
    show_settings: Flag = False,
    flags: SettingFlags = NO_FLAGS, place: Place = HERE,
) -> int:  # fmt: skip
    """The store over HTTP, until Ctrl-C or SIGTERM. Made if need be. See docs/server.md.

    Parameters
    ----------
    path
        The directory of the store; the same as --data.
    config
        A file of settings, as TOML. Default: ESKER_CONFIG, or ./esker.toml.
    show_settings
        Show them with their sources, and end.
    """
    made, sources = settled(asdict(flags), config)
    if show_settings:
        print(settings.shown(sources))
        return 0
    from esker.server import exposure, logs, run

    root = directory(path, place, "serve")
    exposure.check_settings(made)
    logs.set_up(made)
    run.main(root, made, lambda server: print(f"esker: {root} at {server.url}", flush=True))
    return 0
