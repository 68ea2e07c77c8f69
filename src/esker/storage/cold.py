"""Cold stores: where sealed segments lie that need not be near. The second door to the outside.

A cold store keeps bytes under keys (see names.py), and is asked for whole segments only:

    put      durable when it returns; under a key that was never used before
    get      the bytes, or ColdUnavailable
    delete   gone when it returns; no complaint when there is nothing
    list     the keys that begin like this, also of what is half written
    folders  what comes next in such keys, up to a slash

There are two: a directory, by way of files.py like all other files, so that a test can take the
power away at each call; and an object store by its URL (`s3://bucket/folder`), by way of
pyarrow.fs, which is imported when it is first needed. Neither is asked when a store is opened.
Secrets may be in the URL that a store is opened with; they are neither written down nor told.

Whatever goes wrong is told as ColdUnavailable, with root and key. Nothing that was fetched is
believed: `fetch` holds size and hash against what the stub says. A cold store may be slow or gone;
so nobody may call it who holds a lock that a writer needs.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol
from urllib.parse import parse_qsl, urlencode, urlsplit

from esker.errors import ColdUnavailable, Corruption, InvalidOption, StorageError
from esker.format import names
from esker.format import segment as fmt
from esker.format.checksum import checksum
from esker.format.place import Place
from esker.storage.files import Files, absolute, join, parent
from esker.storage.objects import is_url, system_at

ROOT_BYTES_MAX = 1024  # a stub begins with it, see sealed.py
TOLD = frozenset(
    {"region", "scheme", "endpoint_override"}
)  # of a URL's parameters, to all who read
ADVICE = "what was moved there stays there: try again when it answers"


class ColdStore(Protocol):
    """Bytes under keys, somewhere else."""

    root: str

    def put(self, key: str, data: Any) -> None: ...
    def get(self, key: str) -> Any: ...
    def delete(self, key: str) -> None: ...
    def folders(self, prefix: str) -> list[str]: ...
    def list(self, prefix: str) -> list[str]: ...


def cold_place(given: str) -> str:
    """Where a cold store is, from what a user gave: an absolute path, or a URL."""
    if "\0" in given or len(given.encode()) > ROOT_BYTES_MAX:
        raise InvalidOption(f"cold={given[:20]!r}… is neither a directory nor a URL")
    return given if is_url(given) else absolute(given.removeprefix("file://"))


def cold_root(place: str) -> str:
    """The same as it is written into stubs, and told: a URL without user, password and tokens."""
    if not is_url(place):
        return place
    parts = urlsplit(place)
    kept = urlencode([each for each in parse_qsl(parts.query) if each[0] in TOLD])
    user = parts.netloc.rpartition("@")[2]
    return parts._replace(netloc=user, path=parts.path.rstrip("/"), query=kept).geturl()


def cold_store(files: Files, place: str) -> ColdStore:
    """The cold store at a place. Asks nothing of it."""
    return ColdObjects(place) if is_url(place) else ColdFolder(files, place)


def fetch(store: ColdStore, place: Place) -> Any:
    """The whole segment that a stub speaks of; Corruption if it is another."""
    data = store.get(place.key)
    view = memoryview(data)
    trailer = fmt.decode_trailer(bytes(view[-fmt.TRAILER_SIZE :]))
    if len(view) != place.size:
        wrong = f"{len(view)} bytes were fetched, {place.size} were moved"
    elif isinstance(trailer, str):
        wrong = trailer
    elif not trailer[1] == place.hash == checksum(view[: -fmt.TRAILER_SIZE]):
        wrong = "what was fetched does not have the hash of what was moved"
    else:
        return data
    raise Corruption(wrong, path=f"{store.root}/{place.key}")


def _unavailable(problem: Exception, doing: str, root: str, key: str) -> ColdUnavailable:
    missing = getattr(problem, "errno", None) == errno.ENOENT
    return ColdUnavailable(
        f"cannot {doing} in the cold store {root}: {problem} ({ADVICE})",
        root=root, key=key, missing=missing,
    )  # fmt: skip


# ---- a directory -----------------------------------------------------------------------------


class ColdFolder:
    """A cold store in a directory, which has to be there."""

    def __init__(self, files: Files, root: str) -> None:
        self.root = root
        self._files = files
        self._named: set[str] = set()  # directories whose names are durable

    def put(self, key: str, data: Any) -> None:
        path = join(self.root, key)
        with self._told("write", key):
            self._make(parent(path))
            temporary = path + names.TEMPORARY
            file = self._files.open(temporary, "create")
            try:
                file.write(0, [data])
                file.sync()
            finally:
                file.close()
            self._files.rename(temporary, path)
            self._files.sync_dir(parent(path))

    def _make(self, folder: str) -> None:
        """The directories below the root. Their names are synced once by everybody who writes."""
        if folder in self._named or folder == self.root:
            return
        self._make(parent(folder))
        self._files.make_dir(folder)
        self._files.sync_dir(parent(folder))
        self._named.add(folder)

    def get(self, key: str) -> Any:
        with self._told("read", key):
            file = self._files.open(join(self.root, key), "r")
            try:
                return file.read(0, file.size())
            finally:
                file.close()

    def delete(self, key: str) -> None:
        with self._told("delete", key):
            path = join(self.root, key)
            if self._files.kind(path):
                self._files.unlink(path)

    def folders(self, prefix: str) -> list[str]:
        with self._told("list", prefix):
            self._require()
            inside = join(self.root, prefix.rstrip("/"))
            found = self._files.list(inside)
            return sorted(name for name in found if self._files.kind(join(inside, name)) == "dir")

    def list(self, prefix: str) -> list[str]:
        with self._told("list", prefix):
            self._require()
            return sorted(self._below(prefix.rstrip("/")))

    def _require(self) -> None:
        if self._files.kind(self.root) != "dir":
            raise StorageError(f"{self.root} is not there")

    def _below(self, folder: str) -> Iterator[str]:
        for name in self._files.list(join(self.root, folder)):
            inside = f"{folder}/{name}"
            if self._files.kind(join(self.root, inside)) == "dir":
                yield from self._below(inside)
            else:
                yield inside

    @contextmanager
    def _told(self, doing: str, key: str) -> Iterator[None]:
        try:
            yield
        except StorageError as problem:
            raise _unavailable(problem, doing, self.root, key) from problem


# ---- an object store -------------------------------------------------------------------------


class ColdObjects:
    """A cold store behind a URL that pyarrow understands: `s3://bucket/folder`."""

    def __init__(self, url: str) -> None:
        self.root = cold_root(url)
        self._url = url  # which may have secrets in it
        self._found: tuple[Any, str] | None = None

    def _at(self, key: str) -> tuple[Any, str]:
        """The file system, and a key's path in it. Who asks first may have to wait for it."""
        if self._found is None:
            self._found = system_at(self._url)
        system, base = self._found
        return system, f"{base.rstrip('/')}/{key}" if base else key

    def put(self, key: str, data: Any) -> None:
        with self._told("write", key):
            system, path = self._at(key)
            with system.open_output_stream(path) as out:
                out.write(data)

    def get(self, key: str) -> Any:
        with self._told("read", key):
            system, path = self._at(key)
            with system.open_input_file(path) as file:
                return file.read_buffer()

    def delete(self, key: str) -> None:
        with self._told("delete", key):
            system, path = self._at(key)
            if system.get_file_info(path).is_file:
                system.delete_file(path)

    def folders(self, prefix: str) -> list[str]:
        found, _ = self._infos(prefix, recursive=False)
        return sorted(each.base_name for each in found if not each.is_file)

    def list(self, prefix: str) -> list[str]:
        found, path = self._infos(prefix, recursive=True)
        cut = len(path) - len(prefix.rstrip("/"))
        return sorted(each.path[cut:] for each in found if each.is_file)

    def _infos(self, prefix: str, *, recursive: bool) -> tuple[Sequence[Any], str]:
        with self._told("list", prefix):
            from pyarrow import fs

            system, path = self._at(prefix.rstrip("/"))
            wanted = fs.FileSelector(path, allow_not_found=True, recursive=recursive)
            return system.get_file_info(wanted), path

    @contextmanager
    def _told(self, doing: str, key: str) -> Iterator[None]:
        try:
            yield
        except (OSError, ValueError, NotImplementedError) as problem:  # as pyarrow's errors are
            raise _unavailable(problem, doing, self.root, key) from problem
