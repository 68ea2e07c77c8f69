"""`esker keys …`: who may ask a server for what. The server notices what is changed by itself."""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Final

from cyclopts import Parameter

from esker.cli.failing import say
from esker.cli.shown import USUAL, Column, Shown, answer, tell
from esker.clock import SYSTEM_CLOCK
from esker.errors import EskerError, InvalidOption

if TYPE_CHECKING:
    from esker.server.access.keys import Key

KEYS: Final = "esker.keys"
_ROW: Final = (
    Column("ID", lambda row: row["id"]),
    Column("STATE", lambda row: row["state"]),
    Column("NAME", lambda row: row["name"], wide=True),
    Column("SCOPES", lambda row: ",".join(row["scopes"]), wide=True),
    Column("TOPICS", lambda row: " ".join(row["prefixes"]), wide=True),
    Column("CREATED", lambda row: row["created"]),
    Column("EXPIRES", lambda row: row.get("expires", "")),
)


@Parameter(name="*")
@dataclass(frozen=True)
class KeyFile:
    """Where the keys are."""

    keys: Annotated[
        str | None, Parameter(help="The file of keys; or ESKER_KEYS. Default: ./esker.keys.")
    ] = None

    @property
    def path(self) -> str:
        return self.keys or os.environ.get("ESKER_KEYS") or KEYS


KEY_FILE: Final = KeyFile()


def new(
    *, scopes: str = "read",
    prefix: Annotated[tuple[str, ...], Parameter(negative="")] = (),
    name: str = "",
    expires: str | None = None,
    file: KeyFile = KEY_FILE, shown: Shown = USUAL,
) -> int:  # fmt: skip
    """Make a key. It is shown this once.

    Parameters
    ----------
    scopes
        Some of read,write,consume,delete,admin, joined by commas; or all.
    prefix
        A topic and those below it; may be given again. Default: all topics.
    name
        For whom it is.
    expires
        For how long it is good: 30d, 12h.
    """
    from esker.options import duration_us
    from esker.server.access import keyfile
    from esker.server.access.keys import SCOPES

    wanted = SCOPES if scopes == "all" else scopes.split(",")
    length = None if expires is None else duration_us(expires, "expires") / 1e6
    made, text = keyfile.new(file.path, wanted, prefix, name=name, seconds=length)
    if shown.output is None and not shown.json:  # to be put into a variable, also by a pipe
        print(text)
        say(_line(made))
        say("this is the only time that it is shown")
        return 0
    tell(shown, {**_told(made), "key": text}, text)
    return 0


def ls(*, file: KeyFile = KEY_FILE, shown: Shown = USUAL) -> int:
    """Show the keys, not their secrets."""
    from esker.server.access import keyfile
    from esker.storage.files import SYSTEM_FILES, absolute

    if not SYSTEM_FILES.kind(absolute(file.path)):
        raise InvalidOption(f"there is no file of keys {file.path}; `esker keys new` makes one")
    rows = [_told(each) for each in keyfile.load(file.path)]
    answer(shown, {"keys": rows}, rows, _ROW, empty="no keys")
    return 0


def revoke(id: str, /, *, file: KeyFile = KEY_FILE, shown: Shown = USUAL) -> int:
    """End a key, at once; open streams of it are closed.

    Parameters
    ----------
    id
        As `esker keys ls` shows it.
    """
    from esker.server.access import keyfile

    done = keyfile.revoke(file.path, _id(id))
    tell(shown, _told(done), _line(done))
    return 0


def forget(id: str, /, *, file: KeyFile = KEY_FILE, shown: Shown = USUAL) -> int:
    """Take a key out of the file.

    Parameters
    ----------
    id
        As `esker keys ls` shows it.
    """
    from esker.server.access import keyfile

    done = keyfile.forget(file.path, _id(id))
    tell(shown, _told(done), _line(done))
    return 0


def _id(text: str) -> str:
    if text.startswith("esk_"):
        raise EskerError("give the id of the key, not the key: it is in your shell's history now")
    return text


def _told(key: Key) -> dict[str, Any]:
    now = SYSTEM_CLOCK.now_us()
    found: dict[str, Any] = {
        "id": key.id, "name": key.name, "state": key.state(now), "scopes": key.scopes,
        "prefixes": key.prefixes, "created": _when(key.created),
    }  # fmt: skip
    if key.expires is not None:
        found["expires"] = _when(key.expires)
    if key.revoked is not None:
        found["revoked"] = _when(key.revoked)
    return found


def _line(key: Key) -> str:
    told = _told(key)
    ends = f"  expires {told['expires']}" if "expires" in told else ""
    return (
        f"{key.id}  {told['state']:<7}  {','.join(key.scopes)}  {' '.join(key.prefixes)}  "
        f"created {told['created']}{ends}  {key.name}"
    ).rstrip()


def _when(time_us: int) -> str:
    return datetime.fromtimestamp(time_us / 1e6, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
