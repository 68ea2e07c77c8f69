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
from esker.errors import InvalidOption
from esker.server import settings
from esker.storage.files import SYSTEM_FILES

_SETTINGS: Final = Group("Settings; also ESKER_NAME, or a line of esker.toml", sort_key=6)


_TOLD: Final = {
    "host": "The address to listen on; others than loopback need keys.",
    "port": "0: any that is free.",
    "unix": "A socket in the file system, instead of host and port.",
    "tls_cert": "The certificate, as PEM; with it, the server speaks TLS.",
    "tls_key": "Its private key.",
    "tls_ca": "Clients must have a certificate of this authority.",
    "hosts": "Names it may be called by, besides those of loopback; joined by commas.",
    "origins": "Web pages of other origins that may call it; joined by commas.",
    "insecure": "Allow plain HTTP on an address that others can reach.",
    "keys": "The file of keys, see `esker keys`. Without it nobody needs one.",
    "probe_auth": "/healthz and /readyz need a key, too.",
    "audit": "The file of the audit log. Else: standard error.",
    "read_only": "Nothing is changed by a call, whatever its key may do.",
    "console": "The page for browsers at /.",
    "header_bytes": "Bytes of all headers of a request.",
    "header_count": "Headers of a request.",
    "line_bytes": "Bytes of its first line.",
    "body_bytes": "Bytes of its body.",
    "stage_bytes": "Bytes of a staged stream.",
    "batch_records": "Records of one append.",
    "json_depth": "Levels of a body.",
    "header_seconds": "For the headers to come in.",
    "body_seconds": "For a body to come in.",
    "body_rate": "Bytes a second of a body, at the least.",
    "answer_bytes": "Of all answers that clients are slow to take.",
    "idle_seconds": "For which a connection may rest between two calls.",
    "connections": "Calls under way, of all keys.",
    "streams": "Streams that are open, of all keys.",
    "key_calls": "Calls under way, of each key.",
    "key_rate": "Calls a second of each key. Default: no limit.",
    "key_jobs": "Jobs in hand, of each key.",
    "topics": "Topics, whoever makes them.",
    "wait_seconds": "The longest wait of a long poll.",
    "members": "Members of groups, at the other end of a wire.",
    "session_seconds": "A member that is silent for so long has lost its shards.",
    "grace": "Seconds from a signal to the end.",
    "log": "text or json, on standard error.",
    "log_level": "debug, info, warning or error.",
    "access_log": "A line for each call.",
    "priorities": "Of topics: PATTERN=NUMBER, from -1000 to 1000; joined by commas.",
    "append_queue": "Appends under way, beyond which a saturated server refuses more.",
    "heartbeat_seconds": "Between two signs of life on a stream.",
    "stall_seconds": "For which a client of a stream may take nothing.",
    "linger": "Seconds a record waits for company. See docs/options.md.",
    "sync_interval": "Seconds between two syncs of class disk.",
    "commit_window": "Seconds a sync of class fsync waits for company.",
    "max_unflushed_bytes": "Written and not synced; beyond it, appends wait.",
    "journal_bytes": "The size of a journal.",
    "mapped_bytes": "Segments that are mapped at once.",
    "budget_bytes": "All topics together. Default: no limit.",
    "cold": "Where sealed segments may be moved: a directory, s3://bucket/folder.",
    "cold_cache_bytes": "What is kept here of the cold store.",
    "handover": "Appends to what another process writes are handed to it.",
}  # of each setting, in a line


def _fields() -> list[tuple[str, Any, Any]]:
    made = []
    for field in msgspec.structs.fields(settings.Settings):
        kind = bool if field.type is bool else str
        default = field.default
        shown = "" if default in ("", (), 0.0) or kind is bool else f" Default: {default}."
        shown = _TOLD[field.name] + shown
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
    from esker.server import logs, run
    from esker.server.http import exposure, listen

    root = directory(path, place, "serve")
    exposure.check_settings(made)
    logs.set_up(made)
    for stray in settings.strays(os.environ):
        logs.LOG.warning("%s", stray)
    try:
        run.main(root, made, lambda server: print(f"esker: {root} at {server.url}", flush=True))
    except listen.CannotListen as problem:
        raise InvalidOption(problem.strerror) from None
    return 0
