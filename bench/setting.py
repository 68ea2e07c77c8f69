"""What all operations share: where they work, how large, how often, and the round of columns."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.measure import COLUMNS, NOT_INSTALLED, Contender, Figure, round_robin
from bench.peers import Tally
from bench.subject import STORES, VALUE_BYTES, available

SEED = 20_240_229


def random_values(count: int, size_bytes: int = VALUE_BYTES) -> list[bytes]:
    """Distinct values that do not compress; the same ones in every run."""
    data = random.Random(SEED).randbytes(count * size_bytes)
    return [data[at : at + size_bytes] for at in range(0, len(data), size_bytes)]


def in_batches(values: Sequence[bytes], size: int) -> list[Sequence[bytes]]:
    return [values[at : at + size] for at in range(0, len(values), size)]


@dataclass
class Setting:
    """One run of the benchmark."""

    directory: Path  # everything is made below it
    smoke: bool = False  # sizes at which only correctness can be seen
    say: Callable[[str], None] = lambda text: None
    kept: dict[str, Path] = field(default_factory=dict)  # stores that two operations share
    _made: int = 0

    def size(self, full: int, smoke: int) -> int:
        return smoke if self.smoke else full

    def fresh(self, label: str) -> Path:
        """A path that nothing has used yet."""
        self._made += 1
        return self.directory / f"{self._made:04}-{label}"

    def drop(self, path: Path) -> None:
        shutil.rmtree(path, ignore_errors=True)

    def contender(
        self,
        name: str,
        run: Callable[[Any], object],
        *,
        open_store: Callable[[Path], Any] | None = None,
        filled: Path | None = None,
    ) -> Contender[Any]:
        """A column: opened in a fresh directory, or in one that was filled before and is kept."""
        where = [filled] if filled is not None else []

        def prepare() -> Any:
            if filled is None:
                where[:] = [self.fresh(name)]
            return (open_store or STORES[name])(where[0])

        def clean(store: Any) -> None:
            store.close()
            if filled is None:
                self.drop(where[0])

        return Contender(prepare, run, clean)

    def compare(
        self,
        run: Callable[[Any], object],
        *,
        repeats: int,
        columns: Iterable[str] = COLUMNS,
        filled: Mapping[str, Path] | None = None,
        also: Mapping[str, Contender[Any]] | None = None,
    ) -> dict[str, Figure]:
        """Seconds for each column that is installed, by turns. `also` joins in under own names."""
        present = [name for name in columns if available(name)]
        contenders = {
            name: self.contender(name, run, filled=(filled or {}).get(name)) for name in present
        }
        best = round_robin(2 if self.smoke else repeats, {**contenders, **(also or {})})
        return {**dict.fromkeys(columns, NOT_INSTALLED), **best}


def per(count: int, figures: Mapping[str, Figure], unit: float) -> dict[str, Figure]:
    """Seconds for `count` operations, as what one costs in units of `unit` seconds."""
    return {
        name: figure / count / unit if isinstance(figure, float) else figure
        for name, figure in figures.items()
    }


NS, US, MS = 1e-9, 1e-6, 1e-3
MB = 10**6


def expect(found: Tally, records: int, size_bytes: int = VALUE_BYTES) -> None:
    """A fast read that returns too little is not fast."""
    if found != (records, records * size_bytes):
        raise RuntimeError(f"read {found}, expected {records:,} records of {size_bytes} bytes")
