"""Power cuts: what one decides, what it may leave, and which of all that to look at.

A `Cut` is the power going at one moment. It lists everything that is then undecided (`choices`):

    a name        each creation, deletion or renaming since its directory was synced happened or
                  did not; a renaming as a whole
    a size        the file has any of the sizes it had since its last sync
    a sector      it holds any of the contents it had since the last sync, independently of others;
                  one within the size whose content was lost holds zeros, junk, or what a deleted
                  file had there
    a page        a mapped page is old, new, or between: empty if it was never synced, else every
                  other sector of each

So data may survive without its size, size without data, later writes without earlier ones, a file
without a name, a name without content, and a deleted file may be back. All of it is legal on some
file system; code that holds here holds on the kinder ones. Where names and sizes keep their order
(see profiles.py), one choice, how much of the file system's own journal survived, stands for both.

A `Fate` decides: by a seed, by a rule (`LOST`, `KEPT`, …) or choice by choice (`Fate.exact`).
`Cut.fates` proposes those that are worth a look: all there are where these are few, else the
telling ones (each moment up to which all survives, each thing that alone is lost or alone
survives, pairs of names) and some left to chance. `Cut.image` tells equal states from different
ones before any of them is made.
"""

from __future__ import annotations

import itertools
import math
import random
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, Literal, NamedTuple

from esker.testing.inodes import Folder, Inode, Move, Node, content_digest, put

Filling = Literal["zeros", "junk", "stale"]
FILLINGS: Final[tuple[Filling, ...]] = ("zeros", "junk", "stale")
Kind = Literal["name", "size", "sector", "page", "journal"]

_JUNK: Final = random.Random("junk").randbytes(1 << 14)


class Choice(NamedTuple):
    """One thing that a power cut decides. Outcome 0 is what was synced, the last is the newest."""

    kind: Kind
    place: str
    times: tuple[int, ...]  # when each outcome but the first came about
    idle: bool = False  # of a file that makes no difference

    @property
    def outcomes(self) -> int:
        return len(self.times) + 1


# ---- fates -----------------------------------------------------------------------------------


class Fate:
    """Decides what a power cut leaves; this one by a seed."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        chance = random.Random(f"fate {seed}")
        self._names = chance.choice((0.15, 0.5, 0.85))
        self._newest = chance.choice((0.1, 0.5, 0.9))
        self.filling: Filling = chance.choice(FILLINGS)

    def __repr__(self) -> str:
        return f"Fate({self.seed})"

    def outcomes(self, choices: Sequence[Choice]) -> list[int]:
        """The outcome of each choice."""
        chance = random.Random(f"fate {self.seed} of {len(choices)}")
        taken = []
        for choice in choices:
            if choice.kind == "name":
                taken.append(int(chance.random() < self._names))
            elif chance.random() < self._newest:
                taken.append(len(choice.times))
            else:
                taken.append(chance.randrange(choice.outcomes))
        return taken

    @staticmethod
    def exact(outcomes: Sequence[int], filling: Filling = "zeros") -> Fate:
        """The outcome of each choice, one by one; for the rest, whatever is newest."""
        return _Exact(tuple(outcomes), filling)


class _Exact(Fate):
    def __init__(self, taken: tuple[int, ...], filling: Filling) -> None:
        self.seed = 0
        self.taken = taken
        self.filling = filling

    def __repr__(self) -> str:
        return f"Fate.exact({list(self.taken)}, {self.filling!r})"

    def outcomes(self, choices: Sequence[Choice]) -> list[int]:
        taken = [min(own, len(c.times)) for own, c in zip(self.taken, choices, strict=False)]
        return taken + [len(choice.times) for choice in choices[len(taken) :]]


class _Rule(Fate):
    """The same for all choices of a kind: the corners that chance seldom finds."""

    def __init__(self, name: str, kinds: Iterable[Kind]) -> None:
        self.seed = 0
        self.name = name
        self.kinds = frozenset(kinds)  # of these the newest survives, of others what was synced
        self.filling = "zeros"

    def __repr__(self) -> str:
        return self.name

    def outcomes(self, choices: Sequence[Choice]) -> list[int]:
        return [len(choice.times) if choice.kind in self.kinds else 0 for choice in choices]


LOST: Final[Fate] = _Rule("LOST", ())
"""Nothing survives that was not synced."""
KEPT: Final[Fate] = _Rule("KEPT", ("name", "size", "sector", "page", "journal"))
"""Everything survives, synced or not."""
NAMES_ONLY: Final[Fate] = _Rule("NAMES_ONLY", ("name", "size", "journal"))
"""Names and sizes survive, and what was not synced reads as zeros."""
UNNAMED: Final[Fate] = _Rule("UNNAMED", ("size", "sector", "page"))
"""All data survives, and no name that was not synced."""
CORNERS: Final = (LOST, KEPT, NAMES_ONLY, UNNAMED)


# ---- what is undecided -----------------------------------------------------------------------


class Grave(NamedTuple):
    """A file that was deleted, and whose bytes may still lie on the platter."""

    path: str
    content: bytes


def _half(inode: Inode) -> bytes:
    """A mapped page between old and new: empty if it was never synced, else every other sector."""
    old, new, step = inode.durable, bytes(inode.cache), inode.sector
    if len(old) < len(new):
        return bytes(len(new))
    sectors = range(0, len(new), step)
    return b"".join((old if at // step % 2 else new)[at : at + step] for at in sectors)


class _File:
    """What is undecided about one file."""

    __slots__ = ("idle", "inode", "kind", "made", "page_at", "path", "sectors", "size_at", "sizes")

    def __init__(self, inode: Inode, path: str, *, idle: bool) -> None:
        self.inode = inode
        self.path = path
        self.kind = path.rpartition(".")[2]
        self.idle = idle
        self.page_at = self.size_at = -1  # which choice it is
        self.sizes: list[tuple[int, int]] = [(0, len(inode.durable))]  # when, how large
        self.sectors: list[tuple[int, int, list[bytes]]] = []  # which, its choice, its contents
        self.made: dict[tuple[object, ...], tuple[bytes, bytes, bool]] = {}

    @property
    def decided(self) -> bool:
        """Whether it is what is on the platter, whatever happens."""
        return self.page_at < 0 and not self.sectors and len(self.sizes) == 1

    def choices(self, first: int) -> Iterator[Choice]:
        """Everything to be decided about this file; `first` is the number of the next choice."""
        inode, path, idle = self.inode, self.path, self.idle
        if inode.page is not None:
            self.page_at = first
            yield Choice("page", path, (0, 0), idle)
            return
        durable, step = inode.durable, inode.sector
        history: dict[int, tuple[list[int], list[bytes]]] = {}
        for change in inode.pending:
            if change.size != self.sizes[-1][1]:
                self.sizes.append((change.time, change.size))
            for sector, content in change.sectors.items():
                known = history.get(sector)
                if known is None:
                    if content and durable[sector * step : (sector + 1) * step] == content:
                        continue  # the same bytes once more
                    history[sector] = ([change.time], [content])
                elif known[1][-1] != content:
                    known[0].append(change.time)
                    known[1].append(content)
        if len(self.sizes) > 1:
            self.size_at = first
            first += 1
            yield Choice("size", path, tuple(time for time, _ in self.sizes[1:]), idle)
        for sector, (times, contents) in sorted(history.items()):
            self.sectors.append((sector, first, contents))
            first += 1
            yield Choice("sector", f"{path} {sector}", tuple(times), idle)

    def content(
        self, taken: Sequence[int], filling: Filling, graves: Sequence[Grave], upto: int | None
    ) -> tuple[bytes, bytes, bool]:
        """What is left, its digest, and whether a filling is part of it.

        `upto` is the time up to which sizes survived, where those are not decided one by one.
        """
        inode = self.inode
        if self.page_at >= 0:
            which = taken[self.page_at]
            known = self.made.get((which,))
            if known is None:
                page = inode.durable if not which else _half(inode) if which == 1 else None
                page = bytes(inode.cache) if page is None else page
                known = self.made[which,] = (page, content_digest(page), False)
            return known
        if self.decided:
            return inode.durable, inode.digest(), False
        if upto is None:
            size_at = taken[self.size_at] if self.size_at >= 0 else 0
        else:
            size_at = bisect_right(self.sizes, (upto, 1 << 62)) - 1
        key = (size_at, upto, filling, *[taken[choice] for _, choice, _ in self.sectors])
        known = self.made.get(key)
        if known is None:
            after, filled = self._made(taken, filling, graves, self.sizes[size_at][1], upto)
            known = self.made[key] = (after, content_digest(after), filled)
        return known

    def _made(
        self, taken: Sequence[int], filling: Filling, graves: Sequence[Grave], size: int,
        upto: int | None,
    ) -> tuple[bytes, bool]:  # fmt: skip
        durable, step, filled = self.inode.durable, self.inode.sector, False
        after = bytearray(durable[:size])
        after.extend(bytes(size - len(after)))
        for sector, choice, contents in self.sectors:
            begin = sector * step
            if begin >= size:
                continue
            which = taken[choice]
            if upto is not None and begin >= len(durable):
                which = max(which, self._written(sector, upto))
            if which:
                survives = contents[which - 1]
            elif begin < len(durable) or upto is not None:
                continue
            else:
                filled = True
                if filling == "zeros":
                    continue
                survives = self._stale(begin, graves) if filling == "stale" else _junk(begin, step)
            end = min(begin + len(survives), size)
            if begin < end:
                after[begin:end] = survives[: end - begin]
        return bytes(after), filled

    def _written(self, sector: int, upto: int) -> int:
        """How many of a sector's contents had been written at a time."""
        known: bytes | None = None
        count = 0
        for change in self.inode.pending:
            if change.time > upto:
                break
            content = change.sectors.get(sector)
            if content is not None and content != known:
                known, count = content, count + 1
        return count

    def _stale(self, begin: int, graves: Sequence[Grave]) -> bytes:
        """Bytes of the file of this kind that was deleted last, from the same place in it."""
        for alike in (True, False):
            for path, content in reversed(graves):
                if len(content) > begin and (not alike or path.rpartition(".")[2] == self.kind):
                    return content[begin : begin + self.inode.sector]
        return b""


def _junk(begin: int, size: int) -> bytes:
    at = begin * 7 % (len(_JUNK) - size)
    return _JUNK[at : at + size]


# ---- the cut ---------------------------------------------------------------------------------


class Cut:
    """The power going at one moment. Good until the disk changes.

    `ignore` names files that make no difference to the tester: what is undecided about them alone
    is not looked at in all its combinations, and does not make two states different.
    """

    def __init__(
        self, root: Folder, graves: Sequence[Grave] = (), *, ordered: bool = False,
        ignore: frozenset[str] = frozenset(),
    ) -> None:  # fmt: skip
        self._root = root
        self._graves = graves
        self._ordered = ordered
        self._ignore = ignore
        self._moves: list[Move] = []
        self._files: dict[Inode, _File] = {}
        self._names: dict[tuple[bool, ...], list[tuple[str, Node]]] = {}
        self._parts: dict[int, list[tuple[bytes, _File | None]]] = {}  # by a list in `_names`
        self.choices: list[Choice] = []
        places: dict[Move, str] = {}
        self._walk(root, "", set(), places)
        self._moves = sorted(places, key=lambda move: move.time)
        if not ordered:
            for move in self._moves:
                idle = all(name in ignore for _, name, _ in move.parts)
                self.choices.append(Choice("name", places[move], (move.time,), idle))
        of_files: list[Choice] = []
        for inode, file in self._files.items():
            if inode.pending or inode.page is not None:
                of_files += file.choices(len(self.choices) + len(of_files))
        self.choices += of_files
        if ordered:
            times = {move.time for move in self._moves}
            for file in self._files.values():
                times.update(time for time, _ in file.sizes[1:])
            self.choices.append(Choice("journal", "/", tuple(sorted(times))))

    def _walk(self, folder: Folder, path: str, seen: set[Node], places: dict[Move, str]) -> None:
        """Find every file that may have a name, and every name that is undecided."""
        seen.add(folder)
        nodes = {**folder.durable, **folder.entries}
        waiting = list(nodes.items())
        for move in folder.pending:
            if move not in places:
                places[move] = " ".join(
                    f"{path}/{name}" + ("" if node else " gone") for _, name, node in move.parts
                )
            for _, name, node in move.parts:
                if node is not None:
                    waiting.append((name, node))
        waiting += folder.durable.items()
        for name, node in waiting:
            if node in seen:
                continue
            if isinstance(node, Folder):
                self._walk(node, f"{path}/{name}", seen, places)
            else:
                seen.add(node)
                self._files[node] = _File(node, f"{path}/{name}", idle=name in self._ignore)

    # -- what is left --

    def image(self, fate: Fate) -> bytes:
        """Tells what this fate leaves from what others leave, here and at other moments."""
        return self._image(fate.outcomes(self.choices), fate.filling)[0]

    def tree(self, fate: Fate) -> tuple[Folder, dict[str, Node]]:
        """What this fate leaves, and all of it by its path."""
        taken, filling = fate.outcomes(self.choices), fate.filling
        upto = self._upto(taken)
        root = Folder()
        folders = {"": root}
        paths: dict[str, Node] = {}
        copies: dict[Inode, Inode] = {}
        for path, node in self._named(taken, upto):
            above, _, name = path.rpartition("/")
            after: Node
            if isinstance(node, Folder):
                after = folders[path] = Folder()
            else:
                if node not in copies:
                    file = self._files[node]
                    content = file.content(taken, filling, self._graves, upto)[0]
                    copies[node] = Inode(content, node.sector)
                    if content is node.durable:
                        copies[node]._digest = node._digest
                after = copies[node]
            folders[above].entries[name] = folders[above].durable[name] = paths[path] = after
        return root, paths

    def _image(self, taken: Sequence[int], filling: Filling) -> tuple[bytes, bool]:
        upto = self._upto(taken)
        parts: list[bytes] = []
        filled = False
        for part, file in self._parts_of(taken, upto):
            if file is not None:
                _, digest, more = file.content(taken, filling, self._graves, upto)
                filled = filled or more
                part += digest
            parts.append(part)
        return content_digest(b"\n".join(parts)), filled

    def _parts_of(
        self, taken: Sequence[int], upto: int | None
    ) -> list[tuple[bytes, _File | None]]:  # fmt: skip
        """What tells an image from others: of most files all is decided, of the rest the path."""
        named = self._named(taken, upto)
        known = self._parts.get(id(named))
        if known is None:
            known = self._parts[id(named)] = []
            for path, node in named:
                if isinstance(node, Folder):
                    known.append((path.encode(), None))
                    continue
                file = self._files[node]
                if not file.idle:
                    head = path.encode()
                    known.append((head + node.digest(), None) if file.decided else (head, file))
        return known

    def _upto(self, taken: Sequence[int]) -> int | None:
        if not self._ordered:
            return None
        return (0, *self.choices[-1].times)[taken[-1]]

    def _named(self, taken: Sequence[int], upto: int | None) -> list[tuple[str, Node]]:
        """Every path that is left and what it names, directories before what is in them."""
        if upto is None:
            kept = tuple(bool(outcome) for outcome in taken[: len(self._moves)])
        else:
            kept = tuple(move.time <= upto for move in self._moves)
        known = self._names.get(kept)
        if known is None:
            known = self._names[kept] = []
            happened = {m for m, keeps in zip(self._moves, kept, strict=True) if keeps}
            waiting: list[tuple[str, Folder]] = [("", self._root)]
            while waiting:
                above, folder = waiting.pop()
                left = dict(folder.durable)
                for move in folder.pending:
                    if move in happened:
                        for where, name, node in move.parts:
                            if where is folder:
                                put(left, name, node)
                for name, node in sorted(left.items()):
                    path = f"{above}/{name}"
                    known.append((path, node))
                    if isinstance(node, Folder):
                        waiting.append((path, node))
        return known

    # -- what to look at --

    def fates(
        self, *, most: int = 64, chances: int = 4, seed: int = 0
    ) -> Iterator[tuple[Fate, bytes]]:
        """Fates that are worth a look, each with its image; the same ones for the same seed.

        All combinations where there are no more than `most`, with each of the three fillings where
        one is part of what is left. Else as many of the telling ones, and `chances` more, each
        with a filling that is left to chance.
        """
        real = [at for at, choice in enumerate(self.choices) if not choice.idle]
        if math.prod(self.choices[at].outcomes for at in real) <= most:
            for vector in self._all(real):
                taken = self._with_idle(vector, seed)
                image, filled = self._image(taken, "zeros")
                yield Fate.exact(taken), image
                for filling in FILLINGS[1:] if filled else ():
                    yield Fate.exact(taken, filling), self._image(taken, filling)[0]
            return
        chance = random.Random(f"telling {seed}")
        telling = self._telling(real)
        if len(telling) > most:
            telling = chance.sample(telling, most)
        vectors = [make(of) for make, of in telling]
        vectors += [Fate(seed * 1000 + number).outcomes(self.choices) for number in range(chances)]
        for vector in vectors:
            taken, filling = self._with_idle(vector, seed), chance.choice(FILLINGS)
            yield Fate.exact(taken, filling), self._image(taken, filling)[0]

    def _with_idle(self, vector: Sequence[int], seed: int) -> list[int]:
        """Outcomes of a fate, with others for what makes no difference."""
        taken = list(vector)
        for at, choice in enumerate(self.choices):
            if choice.idle:
                taken[at] = (seed + sum(taken[:at]) + at) % choice.outcomes
        return taken

    def _all(self, real: list[int]) -> Iterator[list[int]]:
        taken = [0] * len(self.choices)
        for outcomes in itertools.product(*(range(self.choices[at].outcomes) for at in real)):
            for at, outcome in zip(real, outcomes, strict=True):
                taken[at] = outcome
            yield taken

    def _telling(self, real: list[int]) -> list[tuple[Callable[[Any], list[int]], Any]]:
        """How to make each vector that tells something: there are many, and few are made."""
        choices = self.choices
        newest = [len(choice.times) for choice in choices]

        def until(time: int) -> list[int]:
            return [bisect_right(choice.times, time) for choice in choices]

        def alone(at: int) -> list[int]:  # a sector alone is not seen without its name and size
            rule = NAMES_ONLY if choices[at].kind == "sector" else LOST
            vector = rule.outcomes(choices)
            vector[at] = newest[at]
            return vector

        def only(these: tuple[int, ...]) -> list[int]:
            vector = [0] * len(choices)
            for at in these:
                vector[at] = newest[at]
            return vector

        def without(these: tuple[int, ...]) -> list[int]:
            vector = list(newest)
            for at in these:
                vector[at] = 0
            return vector

        telling: list[tuple[Callable[[Any], list[int]], Any]]
        telling = [(corner.outcomes, choices) for corner in CORNERS]
        times = sorted({time for at in real for time in choices[at].times})
        telling += [(until, time) for time in times]
        for at in real:
            telling += [(alone, at), (without, (at,))]
        names = [at for at in real if choices[at].kind == "name"]
        for pair in itertools.combinations(names, 2):
            telling += [(only, pair), (without, pair)]
        return telling
