"""The page of group cursors of a shard: what is wrong with it, and setting it right.

Every slot vouches for itself, so damage to one says nothing about the others. A damaged cell costs
nothing but records that come twice. Where a term or a name is damaged, nobody knows whose slot it
was and how far that group had come; a repair frees it, keeps the page as evidence, and says so: the
group begins anew, from the start that is named when it is next opened.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from contextlib import nullcontext
from typing import TYPE_CHECKING

from esker.errors import StorageError
from esker.format import names
from esker.format import offsets as fmt
from esker.format.offsets import Owner, Slot
from esker.storage.files import Files, content_of, join, replace_file
from esker.storage.offsets import OffsetsFile, place_of
from esker.upkeep.mend import Evidence
from esker.upkeep.report import Action

if TYPE_CHECKING:
    from esker.upkeep.inspection import Inspection


def look_at_cursors(files: Files, found: Inspection, store: bytes | None) -> None:
    """Say what is wrong with the page of a shard, if it has one."""
    path = join(found.folder, names.OFFSETS)
    kind = files.kind(path)
    if not kind:
        return
    if kind != "file":
        found.say("stranger", path, f"a {kind} where the page of offsets should be")
        return
    try:
        data = content_of(files, path, fmt.PAGE_SIZE + 1)
    except StorageError as problem:
        found.say("unreadable", path, str(problem))
        return
    found.files += 1
    found.bytes += len(data)
    if not any(data):
        return  # one that was being made
    if len(data) < fmt.PAGE_SIZE:
        found.say("cursors", path, "the page of offsets is cut short", len(data))
        return
    if len(data) > fmt.PAGE_SIZE:
        found.say("cursors", path, "something behind the page of offsets", fmt.PAGE_SIZE)
    words = struct.unpack(f"<{fmt.PAGE_SIZE // 8}Q", data[: fmt.PAGE_SIZE])
    owner = Owner(store or bytes(16), found.entry.id, found.number)
    wrong = fmt.decode_header(words, owner)
    if wrong.startswith("version"):
        found.say("newer", path, wrong, 8)
        return
    heads = [words[place_of(n) + head] for n in range(fmt.SLOTS) for head in fmt.HEAD]
    if wrong and (wrong != "no header" or any(heads)):  # else it was being made
        found.say("cursors", path, wrong, 0)
    for number in range(fmt.SLOTS):
        at = place_of(number)
        slot = fmt.decode_slot(owner.seed, number, words[at : at + fmt.SLOT_WORDS])
        if isinstance(slot, str):
            found.say("cursors", path, f"slot {number}: {slot}", at * 8)
        elif isinstance(slot, Slot) and slot.flaw:
            found.say(
                "cursors", path,
                f"slot {number}, group {slot.name!r}: {slot.flaw}; it goes on from {slot.cursor}",
                at * 8, severity="warning",
            )  # fmt: skip


def mend_cursors(
    files: Files, found: Inspection, store: bytes, evidence: Evidence,
    act: Callable[[Action], None], *, dry_run: bool,
) -> None:  # fmt: skip
    """Set the page of a shard right, with the page as it was in quarantine."""
    path = join(found.folder, names.OFFSETS)
    said = [problem for problem in found.problems if problem.kind == "cursors"]
    kept = ""
    if not dry_run:
        kept = evidence.copy(path, "offsets")
        replace_file(files, path, mended(files, found, store))
    for problem in said:
        act(
            Action(
                "cursors", path, problem.reason, kept, found.entry.name, found.number,
                problem.position,
            )
        )  # fmt: skip


def mended(files: Files, found: Inspection, store: bytes) -> bytes:
    """The page with what is whole of it; nothing, where it was cut, or is another shard's."""
    owner = Owner(store, found.entry.id, found.number)
    data = content_of(files, join(found.folder, names.OFFSETS), fmt.PAGE_SIZE)
    words = memoryview(bytearray(data.ljust(fmt.PAGE_SIZE, b"\0"))).cast("Q")
    page = OffsetsFile(files, found.folder, owner, nullcontext())
    page.words = words
    for at, word in enumerate(fmt.encode_header(owner)):
        words[at] = word
    for slot in list(page.slots()):
        if isinstance(slot, Slot):
            if slot.flaw:
                page.take(slot, 0, slot.cursor)
        else:
            at = place_of(slot[0])
            for word in range(at, at + fmt.SLOT_WORDS):
                words[word] = 0
    return bytes(words)
