"""Files that are no part of a store, read and written through the one door (storage/files.py)."""

from __future__ import annotations

from types import TracebackType
from typing import Any

from esker.errors import InvalidOption
from esker.storage.files import SYSTEM_FILES, absolute, parent


class Written:
    """A file that is written from its beginning, and has its name when it is complete."""

    def __init__(self, path: str, *, replace: bool = False) -> None:
        self._path = absolute(path)
        if SYSTEM_FILES.kind(self._path) and not replace:
            raise InvalidOption(f"{path} is there; say --force to replace it")
        self._temporary = f"{self._path}.{SYSTEM_FILES.pid()}.tmp"
        self._file = SYSTEM_FILES.open(self._temporary, "create")
        self._size = 0

    def write(self, data: Any) -> int:
        size = memoryview(data).nbytes
        self._file.write(self._size, [data])
        self._size += size
        return size

    def flush(self) -> None:
        """Nothing is held back."""

    def __enter__(self) -> Written:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        if kind is None:
            self._file.sync()
        self._file.close()
        if kind is not None:
            SYSTEM_FILES.unlink(self._temporary)
            return
        SYSTEM_FILES.rename(self._temporary, self._path)
        SYSTEM_FILES.sync_dir(parent(self._path))
