"""The settings of a queue are there as a whole, and of this queue, or they are not believed."""

from __future__ import annotations

import struct

import msgspec
import pytest

from esker.format import queue as fmt
from esker.format.checksum import checksum
from esker.format.queue import QueueOptions

STORE = bytes(range(16))
OPTIONS = QueueOptions(lease_us=5_000_000, max_deliveries=3, dead_letter="dead", priorities=4)


def test_settings_come_back_as_they_were_written() -> None:
    assert fmt.decode(fmt.encode(OPTIONS, STORE, 7), STORE, 7) == OPTIONS


def test_no_bit_of_them_can_turn_unnoticed() -> None:
    data = fmt.encode(OPTIONS, STORE, 7)
    for place in range(len(data)):
        changed = bytearray(data)
        changed[place] ^= 1
        assert isinstance(fmt.decode(bytes(changed), STORE, 7), str)


@pytest.mark.parametrize("size", [0, 63, 64, 65, -1])
def test_settings_that_were_cut_are_none(size: int) -> None:
    assert isinstance(fmt.decode(fmt.encode(OPTIONS, STORE, 7)[:size], STORE, 7), str)


def test_settings_of_another_store_or_topic_are_not_believed() -> None:
    data = fmt.encode(OPTIONS, STORE, 7)
    assert fmt.decode(data, bytes(16), 7) == "the settings of another queue"
    assert fmt.decode(data, STORE, 8) == "the settings of another queue"


def _forged(body: bytes, version: int = 1) -> bytes:
    packed = struct.pack(
        "<4sHHQII16sQQ", b"ESKQ", version, 0, 7, len(body), 0, STORE, checksum(body), 0
    )
    return packed + struct.pack("<Q", checksum(packed)) + body


def test_a_later_version_is_told_as_such_and_nonsense_as_nonsense() -> None:
    assert fmt.decode(_forged(b"{}", 2), STORE, 7) == "version 2"
    found = fmt.decode(_forged(msgspec.json.encode({"lease_us": "long"})), STORE, 7)
    assert isinstance(found, str)
    assert found.startswith("settings that nobody writes")
