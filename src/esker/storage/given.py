"""A file that is no part of a store, as pyarrow and others want one to read from."""

from __future__ import annotations

from esker.storage.files import SYSTEM_FILES


class Given:
    """Reads through the one door, from any place on."""

    closed = False  # pyarrow asks

    def __init__(self, path: str) -> None:
        self._file = SYSTEM_FILES.open(path, "r")
        self.size = self._file.size()
        self._at = 0

    def read(self, size: int | None = -1) -> bytes:
        left = max(0, self.size - self._at)
        data = self._file.read(self._at, left if size is None or size < 0 else min(size, left))
        self._at += len(data)
        return data

    def seek(self, place: int, whence: int = 0) -> int:
        self._at = place + (0, self._at, self.size)[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def flush(self) -> None:
        """Nothing is held back."""

    def readable(self) -> bool:
        return True

    def writable(self) -> bool:
        return False

    def seekable(self) -> bool:
        return True

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._file.close()
