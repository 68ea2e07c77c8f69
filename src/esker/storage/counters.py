"""A shard's counters page: mapped, shared, told to anyone who looks."""

from __future__ import annotations

from typing import Any, NamedTuple

from esker.errors import StorageError
from esker.format import counters as fmt
from esker.format import names
from esker.format.counters import WORD
from esker.storage.files import Files, join

_OFFSET_MAX = 1 << 62
_SEQUENCE_MAX = (1 << 62) - 2  # even; a damaged page may hold any number
_SEQUENCE = WORD["sequence"]
_VISIBLE = WORD["next_visible"]
_SEGMENT = WORD["visible_segment"]
_POSITION = WORD["visible_position"]
_DURABLE = WORD["durable"]
_GENERATION = WORD["segments_generation"]


class Published(NamedTuple):
    """What a writer tells readers in other processes."""

    visible: int
    segment: int
    position: int
    durable: int
    generation: int


class Counters:
    """One page. `words` may be written directly by its one writer."""

    __slots__ = ("damaged", "words")

    def __init__(self, words: Any, damaged: bool = False) -> None:
        self.words = words
        self.damaged = damaged

    @classmethod
    def open(cls, files: Files, folder: str, *, writable: bool) -> Counters | None:
        """Map the page; a damaged one starts from zero when writable, else there is none."""
        path = join(folder, names.COUNTERS)
        try:
            words = files.page(path, fmt.PAGE_SIZE, writable=writable)
        except StorageError:
            if writable:
                raise
            return None
        magic, version = words[WORD["magic"]], words[WORD["version"]]
        fresh = magic == 0 and version == 0
        whole = magic == fmt.MAGIC and version == fmt.VERSION
        if not whole:
            if not writable:
                return None
            for word in range(fmt.PAGE_SIZE // 8):
                words[word] = 0
            words[WORD["magic"]] = fmt.MAGIC
            words[WORD["version"]] = fmt.VERSION
        return cls(words, damaged=not whole and not fresh)

    def publish(self, visible: int, segment: int, position: int, durable: int) -> None:
        """Let readers in other processes see up to here."""
        words = self.words
        sequence = words[_SEQUENCE] & _SEQUENCE_MAX
        words[_SEQUENCE] = sequence + 1
        words[_VISIBLE] = visible
        words[_SEGMENT] = segment
        words[_POSITION] = position
        words[_DURABLE] = durable
        words[_SEQUENCE] = sequence + 2

    def published(self) -> Published | None:
        """A consistent reading, or None when the writer was writing all the time."""
        words = self.words
        for _ in range(1000):
            before = words[_SEQUENCE]
            found = Published(
                words[_VISIBLE], words[_SEGMENT], words[_POSITION], words[_DURABLE],
                words[_GENERATION],
            )  # fmt: skip
            if not before & 1 and words[_SEQUENCE] == before:
                return found
        return None

    def belongs_to(self, topic: int, shard: int) -> Any:
        """Say whose page it is, so that one that was exchanged is not believed."""
        self.words[WORD["topic"]], self.words[WORD["shard"]] = topic, shard
        return self.words

    def proven(self, topic: int, shard: int) -> int:
        """The offset below which the page says that all was durable; 0 where it cannot be believed.

        A page has no checksum. But no writer ever lets `durable` pass `visible`, and a flipped bit
        in the one is not one in the other.
        """
        words, found = self.words, self.published()
        if found is None or (words[WORD["topic"]], words[WORD["shard"]]) != (topic, shard):
            return 0
        return found.durable if found.durable <= found.visible < _OFFSET_MAX else 0

    @property
    def visible(self) -> int:
        return int(self.words[_VISIBLE])

    def add(self, name: str, amount: int = 1) -> None:
        word = WORD[name]
        self.words[word] = (self.words[word] + amount) & (2**64 - 1)

    def set(self, name: str, value: int) -> None:
        self.words[WORD[name]] = value & (2**64 - 1)

    def as_dict(self) -> dict[str, int]:
        """Every counter by name."""
        return {name: int(self.words[word]) for name, word in WORD.items()}
