"""The identity file and the catalog of topics on disk.

Several processes may create topics: a change is made under the catalog's lock, from the newest
generation, and replaces it as a whole. The generation before it is kept, so that a damaged newest
one costs the last change and not the store; and should both be gone, `recovery` reads names and
options back from the segments.

A generation is seen as soon as it is renamed and durable only when the directory is synced, by
whoever renamed it; and he may have died between. So a process that means to write syncs the
directory itself before it relies on a generation: no record may be durable in a topic that is not.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from esker.errors import FormatTooNew, NotAStore, StorageError
from esker.format import catalog as fmt
from esker.format import names
from esker.format.catalog import Catalog, TopicEntry
from esker.storage.files import Files, Holder, join, replace_file

KEPT_GENERATIONS = 2


def unfinished(root: str) -> NotAStore | None:
    """What is wrong with a directory without an identity, if its name says so."""
    if not root.endswith(names.PARTIAL):
        return None
    return NotAStore(
        f"{root} is a copy that was never finished, and no store; make it again: whoever does "
        "throws away what is there"
    )


def load_identity(files: Files, root: str) -> tuple[bytes, int] | None:
    """Store id and creation time; None when there is no store."""
    path = join(root, names.IDENTITY)
    if not files.kind(path):
        _refuse_archive(files, root)
        return None
    file = files.open(path, "r")
    try:
        found = fmt.decode_identity(file.read(0, fmt.IDENTITY_SIZE))
    finally:
        file.close()
    if isinstance(found, str):
        if found.startswith("version"):
            raise FormatTooNew(
                f"{root} was written by a later Esker (store format {found}); nothing was "
                "touched. Install a newer esker to open it."
            )
        raise NotAStore(
            f"{path}: {found}. If this is an Esker store, restore that file from a backup, or "
            f"run esker.repair({root!r}), which finds the store's id in its segments."
        )
    return found


def _refuse_archive(files: Files, root: str) -> None:
    """Whoever opens an archive as a store is told what reads it."""
    for name in files.list(root):
        if name.startswith("topic=") and files.kind(join(root, name, names.MANIFEST)):
            raise NotAStore(
                f"{root} is an archive, not a store; esker.open_archive({root!r}, topic) reads it"
            )


def create_identity(files: Files, root: str, created: int, note: str = "") -> bytes:
    """Make an empty directory a store; returns its id. If two processes try, one of them does."""
    lock = files.lock(join(root, names.CATALOG_LOCK), note, wait=True)
    try:
        found = load_identity(files, root)
        if found is not None:
            return found[0]
        store = files.random(16)
        for folder in (names.TOPICS, names.JOURNALS):
            files.make_dir(join(root, folder))
        files.sync_dir(root)  # an identity says that the rest is there too
        replace_file(files, join(root, names.IDENTITY), fmt.encode_identity(store, created))
        return store
    finally:
        if not isinstance(lock, Holder):
            lock.release()


class CatalogFile:
    """The list of topics, as this process last saw it."""

    def __init__(self, files: Files, root: str, store: bytes) -> None:
        self._files = files
        self._root = root
        self._store = store
        self.generation = 0
        self.catalog = Catalog()
        self.damage: list[tuple[str, str]] = []
        self.settles = False  # sync what is found before it is used; set by those who write

    def generations(self) -> list[int]:
        """The generations that lie on disk, newest first."""
        found = (names.parse_catalog(name) for name in self._files.list(self._root))
        return sorted((number for number in found if number is not None), reverse=True)

    def load(self) -> bool:
        """Read the newest whole generation. False when generations are there but none is whole."""
        self.damage = []
        found = self.generations()
        for generation in found:
            if generation <= self.generation:
                return True
            path = join(self._root, names.catalog(generation))
            try:
                file = self._files.open(path, "r")
            except StorageError:
                if self._files.kind(path):
                    raise
                return self.load()  # replaced by a newer one between listing and opening
            try:
                data = file.read(0, min(file.size(), fmt.CATALOG_BYTES_MAX))
            finally:
                file.close()
            decoded = fmt.decode_catalog(data, self._store)
            if isinstance(decoded, tuple) and decoded[1] != generation:
                decoded = f"generation {decoded[1]} under the name of another"
            if isinstance(decoded, str):
                if decoded.startswith("version"):
                    raise FormatTooNew(f"{path} was written by a later Esker ({decoded})")
                self.damage.append((path, decoded))
                continue
            if self.settles:
                self._files.sync_dir(self._root)
            self.catalog, self.generation = decoded[0], generation
            return True
        return not found

    def refresh(self) -> bool:
        """Look for a newer generation written by another process; True when there was one."""
        found = self.generations()
        if not found or found[0] <= self.generation:
            return False
        before = self.generation
        self.load()
        return self.generation != before

    def change(self, edit: Callable[[Catalog], Catalog], note: str) -> Catalog:
        """Replace the catalog by an edited one, under the lock that all processes share."""
        lock = self._files.lock(join(self._root, names.CATALOG_LOCK), note, wait=True)
        try:
            self.refresh()
            edited = edit(self.catalog)
            if edited != self.catalog:
                self.store(edited)
            return self.catalog
        finally:
            if not isinstance(lock, Holder):
                lock.release()

    def store(self, catalog: Catalog) -> None:
        """Write the next generation. The caller holds the lock."""
        known = self.generations()
        generation = max([self.generation, *known]) + 1
        data = fmt.encode_catalog(catalog, generation, self._store)
        replace_file(self._files, join(self._root, names.catalog(generation)), data)
        self.catalog, self.generation = catalog, generation
        for old in known[KEPT_GENERATIONS - 1 :]:
            with suppress(StorageError):  # the change is made; an old generation does no harm
                self._files.unlink(join(self._root, names.catalog(old)))

    def find(self, name: str) -> TopicEntry | None:
        return next((entry for entry in self.catalog.topics if entry.name == name), None)

    def by_id(self, topic_id: int) -> TopicEntry | None:
        return next((entry for entry in self.catalog.topics if entry.id == topic_id), None)
