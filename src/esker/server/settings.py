"""What can be set about a server, and from where each setting came: flag > environment > file.

    esker serve data --port 4118            the flag
    ESKER_PORT=4118 esker serve data        the environment: ESKER_ and the name
    port = 4118                             esker.toml, or whatever --config names

Unknown names are refused, with the nearest known one. The limits are here, too: each of them has
a test on either side of its edge.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, NamedTuple, get_args, get_origin

import msgspec
from msgspec import Meta

from esker.errors import InvalidOption, nearest
from esker.options import COLD_CACHE_BYTES, duration_us, size_bytes
from esker.storage.files import SYSTEM_FILES, content_of, real_path

PREFIX: Final = "ESKER_"
PORT: Final = 4117
FILE_MAX: Final = 1 << 20  # bytes of the file of settings
Some = Annotated[int, Meta(ge=1)]
Seconds = Annotated[float, Meta(gt=0)]
OTHERS: Final = {PREFIX + name for name in ("CONFIG", "DATA", "KEY", "PROFILE", "URL")}  # not ours
PROFILES: Final = "profile"  # tables of the same file, which are for the command line


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything that can be set. Sizes are bytes, times are seconds."""

    # where it listens
    host: str = "127.0.0.1"
    port: int = PORT
    unix: str = ""  # a socket in the file system, instead of host and port
    tls_cert: str = ""
    tls_key: str = ""
    tls_ca: str = ""  # clients must have a certificate of this authority
    hosts: tuple[str, ...] = ()  # names under which it may be called, besides those of loopback
    origins: tuple[str, ...] = ()  # web pages of other origins that may call it
    insecure: bool = False  # plain HTTP on an address that others can reach
    # who may do what
    keys: str = ""  # the file of keys; without it nobody needs one, on loopback only
    probe_auth: bool = False  # whether /healthz and /readyz need a key
    audit: str = ""  # the audit log; standard error if it is not set
    read_only: bool = False  # nothing is changed by a call, whatever its key may do
    console: bool = True  # whether there is a page for browsers at /
    # limits
    header_bytes: Some = 16 << 10
    header_count: Some = 64
    line_bytes: Some = 8 << 10
    body_bytes: Some = 8 << 20
    stage_bytes: Some = 1 << 30  # of a staged stream, which is not held in memory
    batch_records: Some = 10_000
    json_depth: Some = 32  # levels of a body
    header_seconds: Seconds = 10.0
    body_seconds: Seconds = 30.0
    body_rate: int = 1 << 10  # bytes a second, at the least
    answer_bytes: Some = 256 << 20  # of all answers that clients are slow to take
    idle_seconds: Seconds = 15.0
    connections: Some = 1_000
    streams: Some = 200
    key_calls: Some = 64  # under way at once, for each key
    key_rate: Annotated[float, Meta(ge=0)] = 0.0  # calls a second for each key; 0 is no limit
    key_jobs: Some = 10_000  # in hand at once, for each key; who needs none is one
    topics: Some = 10_000
    wait_seconds: float = 30.0  # the longest wait of a long poll
    members: Some = 1_000  # of groups, at the other end of a wire
    session_seconds: Seconds = (
        60.0  # a member that was not heard of for so long has lost its shards
    )
    grace: float = 5.0  # from a signal to the end
    # what it says
    log: Literal["text", "json"] = "text"  # on standard error
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    access_log: bool = False  # a line for each call
    # delivery
    priorities: tuple[str, ...] = ()  # of topics: pattern=number, from -1000 to 1000
    append_queue: Some = 256  # appends under way, beyond which a saturated server refuses more
    heartbeat_seconds: Seconds = 15.0  # between two signs of life on a stream
    stall_seconds: Seconds = 30.0  # for which a client of a stream may take nothing at all

    # the store: see docs/options.md
    linger: float = 0.02
    sync_interval: float = 0.2
    commit_window: float = 0.001
    max_unflushed_bytes: int = 256 << 20
    journal_bytes: int = 16 << 20
    mapped_bytes: int = 8 << 30
    budget_bytes: int = 0  # all topics together; 0 is no budget
    cold: str = ""  # where sealed segments may be moved to: a directory, or s3://bucket/folder
    cold_cache_bytes: int = COLD_CACHE_BYTES
    handover: bool = False  # appends to what another process writes are handed to it

    def of_store(self) -> dict[str, Any]:
        """The options with which the store is opened."""
        return {
            "linger_us": round(self.linger * 1e6),
            "sync_interval_us": round(self.sync_interval * 1e6),
            "commit_window_us": round(self.commit_window * 1e6),
            **{name: getattr(self, name) for name in _OF_STORE},
        }


_OF_STORE: Final = (
    "max_unflushed_bytes", "journal_bytes", "mapped_bytes", "budget_bytes", "cold",
    "cold_cache_bytes", "handover",
)  # fmt: skip


class Given(NamedTuple):
    """A setting, and where it came from."""

    value: Any
    source: str


_BYTES: Final = {
    "header_bytes", "line_bytes", "body_bytes", "body_rate", "stage_bytes", "answer_bytes",
    "max_unflushed_bytes", "journal_bytes", "mapped_bytes", "budget_bytes", "cold_cache_bytes",
}  # fmt: skip
_SECONDS: Final = {
    "header_seconds", "body_seconds", "idle_seconds", "wait_seconds", "session_seconds", "grace",
    "heartbeat_seconds", "stall_seconds", "linger", "sync_interval", "commit_window",
}  # fmt: skip


def settle(
    flags: Mapping[str, Any], environment: Mapping[str, str], file: Mapping[str, Any], path: str
) -> tuple[Settings, dict[str, Given]]:
    """The settings from all sources, and the source of each."""
    known = {field.name: field for field in msgspec.structs.fields(Settings)}
    given: dict[str, Given] = {
        name: Given(field.default, "default") for name, field in known.items()
    }
    for name, value in file.items():
        _take(given, name, value, path)
    for name in known:
        text = environment.get(PREFIX + name.upper())
        if text is not None:
            given[name] = Given(_parse(name, text, PREFIX + name.upper()), PREFIX + name.upper())
    for name, value in flags.items():
        if value is not None:
            _take(given, name, value, f"--{name.replace('_', '-')}")
    values = {name: each.value for name, each in given.items()}
    try:
        return msgspec.convert(values, Settings), given
    except msgspec.ValidationError as problem:
        raise InvalidOption(f"{problem}") from None


def _take(given: dict[str, Given], name: str, value: Any, source: str) -> None:
    if name not in given:
        raise InvalidOption(f"{source}: no setting {name!r}; {nearest(name, list(given))}")
    given[name] = Given(_parse(name, value, source), source)


def _parse(name: str, value: Any, source: str) -> Any:
    """A setting of a file or of the environment as what it is: "8MiB", "30s", "a,b"."""
    kind = {field.name: field.type for field in msgspec.structs.fields(Settings)}[name]
    meant = value
    try:
        if name in _BYTES and isinstance(value, str):
            meant = size_bytes(value, name)
        elif name in _SECONDS and isinstance(value, str):
            meant = duration_us(value, name) / 1e6
        elif kind == tuple[str, ...]:
            parts = value.split(",") if isinstance(value, str) else value
            meant = tuple(str(part).strip() for part in parts if str(part).strip())
        return msgspec.convert(meant, kind, strict=False)
    except InvalidOption as problem:
        raise InvalidOption(f"{source}: {problem}") from None
    except (msgspec.ValidationError, TypeError, ValueError) as problem:
        words = get_args(kind) if get_origin(kind) is Literal else ()
        told = nearest(str(value), words) if words else problem
        raise InvalidOption(f"{source}: {name}={value!r}: {told}") from None


def strays(environment: Mapping[str, str]) -> list[str]:
    """Variables that look like settings and are none: a slip of the pen, which changes nothing."""
    known = [PREFIX + field.name.upper() for field in msgspec.structs.fields(Settings)]
    found = []
    for name in sorted(environment):
        if name.startswith(PREFIX) and name not in known and name not in OTHERS:
            meant = difflib.get_close_matches(name, known, n=1, cutoff=0.9)
            found += [f"{name} is no setting; {each} is one" for each in meant]
    return found


def file_settings(path: str) -> dict[str, Any]:
    """The settings of a TOML file."""
    return {name: value for name, value in _loaded(path).items() if name != PROFILES}


def file_profiles(path: str) -> dict[str, Any]:
    """The stores that a TOML file names for the command line, `[profile.NAME]`, which has them."""
    found = _loaded(path).get(PROFILES, {})
    if not isinstance(found, dict) or not all(isinstance(each, dict) for each in found.values()):
        raise InvalidOption(f"{path}: a profile is a table, as in [profile.default]")
    return found


def _loaded(path: str) -> dict[str, Any]:
    try:
        text = content_of(SYSTEM_FILES, real_path(path), FILE_MAX).decode()
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as problem:
        raise InvalidOption(f"{path} is not TOML: {problem}") from None


def shown(given: Mapping[str, Given]) -> str:
    """Every setting, its value and its source, for people."""
    width = max(map(len, given))
    return "\n".join(
        f"{name:<{width}}  {each.value!r}  ({each.source})" for name, each in sorted(given.items())
    )
