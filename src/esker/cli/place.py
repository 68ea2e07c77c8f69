"""Which store a command is about: a directory or a server, and who says so.

    esker read orders --data shop            the flag
    ESKER_DATA=shop esker read orders        the environment
    [profile.default]                        a profile of esker.toml, or of what ESKER_CONFIG names
    data = "shop"

The first of these that is given counts, in this order: `--data` or `--url`, `--profile`,
`ESKER_DATA` or `ESKER_URL`, `ESKER_PROFILE`, the profile `default`. If none is: the working
directory where it is a store itself, else `data` below it.

A profile has `data` or `url`, and with a url a `key` if it likes; else the key is `ESKER_KEY`.
There is no flag for a key: what is typed can be read in the list of processes.

Both kinds of store have the same verbs, so a command is written once. What only a directory can do
asks for `place.directory`, which says so.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NamedTuple

from cyclopts import Group, Parameter

from esker.cli.failing import Usage
from esker.errors import InvalidOption, NotAStore, NotRemote, nearest
from esker.storage.files import SYSTEM_FILES, absolute, join

if TYPE_CHECKING:
    from esker.engine.store import Store

CONFIG: Final = "esker.toml"
DEFAULT: Final = "data"
WHICH: Final = Group("Which store", sort_key=8)
_NAMES: Final = {"data", "url", "key"}


class Settled(NamedTuple):
    """A store by its directory or its URL, and who said so."""

    kind: Literal["data", "url"]
    where: str
    source: str
    key: str | None = None


@Parameter(name="*", group=WHICH)
@dataclass(frozen=True)
class Place:
    """The options that every command has which is about a store."""

    data: Annotated[
        str | None, Parameter(help="The directory of the store; or ESKER_DATA. Default: ./data.")
    ] = None
    url: Annotated[
        str | None, Parameter(help="A server, http://host:4117; or ESKER_URL. Its key: ESKER_KEY.")
    ] = None
    profile: Annotated[str | None, Parameter(help="A profile of esker.toml; or ESKER_PROFILE.")] = (
        None
    )

    def settled(self, environment: Mapping[str, str] | None = None) -> Settled:
        """Which store it is, and who said so."""
        return settle(self.data, self.url, self.profile, environment or os.environ)

    def directory(self, verb: str) -> str:
        """The directory, for what cannot be done over a URL."""
        found = self.settled()
        if found.kind == "url":
            raise NotRemote(
                f"`esker {verb}` works on the files of a store, and {found.where} is a server: "
                "run it on the server's machine, with --data DIR"
            )
        return found.where

    def open(self, mode: Literal["r", "rw"] = "r", *, make: bool = False, **options: Any) -> Store:
        """The store. Nothing is made unless the command is one that makes: `make`."""
        import esker

        found = self.settled()
        if found.kind == "url":
            more: dict[str, Any] = {} if found.key is None else {"key": found.key}
            return esker.open(found.where, mode, **more)
        if not found.where.startswith("kin+"):
            if not make and not is_store(found.where):
                raise missing(found)
            if mode == "rw":
                options = {"routes": False, "handover": True, **options}
        return esker.open(found.where, mode, **options)


HERE: Final = Place()  # where nothing is said


def is_store(path: str) -> bool:
    """Whether a directory has the identity of a store."""
    return SYSTEM_FILES.kind(join(absolute(path), "esker.store")) == "file"


def missing(found: Settled) -> NotAStore:
    """No store there: say who said that there would be one."""
    where = absolute(found.where)
    if SYSTEM_FILES.kind(where) not in ("", "dir", "link"):
        return NotAStore(f"{where} ({found.source}) is not a directory; give that of a store")
    return NotAStore(
        f"there is no Esker store at {where} ({found.source}); say where it is "
        "with --data DIR or --url URL, or append to a topic there to make one"
    )


def settle(
    data: str | None, url: str | None, profile: str | None, environment: Mapping[str, str]
) -> Settled:
    """The store that flags, environment and file name together."""
    if (data is not None) + (url is not None) + (profile is not None) > 1:
        raise Usage("--data, --url and --profile exclude each other: give one of them")
    if profile is not None:
        return _of_profile(profile, environment, "--profile")
    if data is not None or url is not None:
        return _one(data, url, "--data", "--url")
    data, url = environment.get("ESKER_DATA"), environment.get("ESKER_URL")
    if data is not None and url is not None:
        raise InvalidOption("ESKER_DATA and ESKER_URL are both set: unset one of them")
    if data is not None or url is not None:
        return _one(data, url, "ESKER_DATA", "ESKER_URL")
    profile = environment.get("ESKER_PROFILE")
    if profile is not None:
        return _of_profile(profile, environment, "ESKER_PROFILE")
    if "default" in profiles(environment)[0]:
        return _of_profile("default", environment, "")
    if is_store("."):
        return Settled("data", ".", "the working directory is one")
    return Settled("data", DEFAULT, "the default")


def _one(data: str | None, url: str | None, of_data: str, of_url: str) -> Settled:
    given, source = (data, of_data) if data is not None else (url or "", of_url)
    if not given:
        raise InvalidOption(f"{source} is empty")
    if data is not None:
        remote = "://" in data and not data.startswith("kin+")
        if remote:
            raise InvalidOption(f"{source}={data}: this is a URL; give it as {of_url}")
        return Settled("data", data, source)
    if "://" not in given:
        raise InvalidOption(f"{source}={given}: a URL begins with http:// or https://")
    return Settled("url", given, source)


def _of_profile(name: str, environment: Mapping[str, str], source: str) -> Settled:
    found, path = profiles(environment)
    if name not in found:
        raise InvalidOption(
            f"{source}: no profile {name!r} in {path or CONFIG}; {nearest(name, found)}"
        )
    given = found[name]
    told = f"[profile.{name}] of {path}" + (f", by {source}" if source else "")
    for key, value in given.items():
        if key not in _NAMES or not isinstance(value, str):
            raise InvalidOption(f"{told}: {key}={value!r}; a profile has text: data, url, key")
    if ("data" in given) == ("url" in given):
        raise InvalidOption(f"{told}: a profile has either data or url")
    one = _one(given.get("data"), given.get("url"), told, told)
    return one._replace(key=given.get("key"))


def profiles(environment: Mapping[str, str]) -> tuple[dict[str, Any], str]:
    """All profiles, and the file that they are from; none if there is no file."""
    path = environment.get("ESKER_CONFIG", "")
    if not path and not SYSTEM_FILES.kind(CONFIG):
        return {}, ""
    from esker.server.settings import file_profiles

    path = path or CONFIG
    return file_profiles(path), path
