"""Kinds of disks and file systems: how kind each is to what was not synced.

    STRICT          whatever is legal anywhere: sectors, sizes and names survive each by itself
    EXT4_ORDERED    names and sizes survive in the order in which they were changed, and a size
                    never before the data it was grown for; a sync takes all earlier names along
    SECTORS_4K      as STRICT, and a disk that writes 4 KiB as a whole
    BTRFS_EIO       as STRICT, and a file shows its old content after a sync that failed
    LYING           as STRICT, and a sync that succeeds has done nothing at all

STRICT is the default: what holds there holds on the second and third, whose states are some of its
own. The others are for looking where real machines go.
"""

from __future__ import annotations

from typing import Final, NamedTuple


class Profile(NamedTuple):
    """What a disk does with what was not synced, and what its syncs are worth."""

    name: str
    sector: int = 512  # bytes that are written as a whole
    ordered: bool = False  # names and sizes in their order, and data before its size
    reverts: bool = False  # a file shows its old content after a failed sync
    lies: bool = False  # a sync that succeeds does nothing


STRICT: Final = Profile("strict")
EXT4_ORDERED: Final = Profile("ext4-ordered", ordered=True)
SECTORS_4K: Final = Profile("4K-sector", sector=4096)
BTRFS_EIO: Final = Profile("btrfs-eio", reverts=True)
LYING: Final = Profile("lying", lies=True)

PROFILES: Final[dict[str, Profile]] = {
    profile.name: profile for profile in (STRICT, EXT4_ORDERED, SECTORS_4K, BTRFS_EIO, LYING)
}
