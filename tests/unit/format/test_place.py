"""A stub says what its segment says, and where the rest is."""

from __future__ import annotations

import pytest

from esker.format import frame
from esker.format import segment as fmt
from esker.format.checksum import checksum
from esker.format.place import Place, encode_place, find_place, stub_of
from tests.unit.storage.made import disk, filled, log_on, sealed_on

PLACE = Place("s3://bucket/folder", "some/key", 12345, (1 << 64) - 1)
SALT = 0x0123456789ABCDEF


def whole() -> bytes:
    files = disk()
    return bytes(sealed_on(files, filled(files, size=200)).data())


def test_a_stub_has_header_config_and_footer_of_its_segment_and_names_the_place() -> None:
    data = whole()
    stub = stub_of(data, PLACE)
    assert len(stub) < len(data)
    assert find_place(stub, SALT) == PLACE
    assert find_place(data, SALT) is None
    config = frame.decode_header(data, 128, 128, SALT)
    assert isinstance(config, frame.Header)
    assert stub[: 128 + config.size] == data[: 128 + config.size]
    (at, kept), (was, _) = (fmt.decode_trailer(each[-32:]) for each in (stub, data))
    assert kept == checksum(stub[:-32])
    head, old = (frame.decode_header(d, p, p, SALT) for d, p in ((stub, at), (data, was)))
    assert isinstance(head, frame.Header)
    assert isinstance(old, frame.Header)
    assert (head.kind, head.first_row, head.synced) == (frame.FOOTER, old.first_row, at)
    assert stub[at + 64 : at + 64 + head.body_size] == data[was + 64 : was + 64 + old.body_size]


def test_a_segment_without_a_config_has_a_stub_without_one() -> None:
    files = disk()
    data = bytearray(sealed_on(files, log_on(files)).data())
    data[130] ^= 1
    stub = stub_of(bytes(data), PLACE)
    assert frame.decode_header(stub, 128, 128, SALT).kind == frame.PLACE  # type: ignore[union-attr]
    assert find_place(stub, SALT) == PLACE


@pytest.mark.parametrize("body", [b"not JSON", b'{"root": 7}'])
def test_a_place_that_nobody_wrote_is_none(body: bytes) -> None:
    head, _ = frame.encode_header(
        kind=frame.PLACE, position=128, salt=SALT, body_size=len(body), raw_size=len(body),
        body_checksum=checksum(body, SALT),
    )  # fmt: skip
    assert find_place(bytes(128) + head + body, SALT) is None


def test_a_damaged_place_is_none() -> None:
    made = bytes(128) + encode_place(PLACE, 128, SALT)
    assert find_place(made, SALT) == PLACE
    assert find_place(made, SALT + 1) is None
    assert find_place(made[:-30], SALT) is None
    assert find_place(made[:150], SALT) is None
