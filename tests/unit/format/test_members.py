"""The page of group members."""

from __future__ import annotations

from esker.format import members as fmt
from esker.format.members import Member

ONE = Member(3, "billing", 77, 4711, 1_000, 2_000, 500)


def test_a_member_is_read_as_it_was_written() -> None:
    for member in (ONE, ONE._replace(static=(2, 5)), ONE._replace(static=(0, 1))):
        words = fmt.encode_member(member)
        assert len(words) == fmt.SLOT_WORDS
        assert words[fmt.TOKEN] == 77
        assert words[fmt.SEEN] == 2_000
        assert fmt.decode_member(3, words) == member


def test_a_free_slot_and_one_that_nobody_wrote_have_no_member() -> None:
    assert fmt.decode_member(3, [0] * 16) is None
    assert fmt.decode_member(3, [0xFF, *fmt.encode_member(ONE)[1:]]) is None


def test_a_page_of_another_boot_is_not_believed() -> None:
    words = fmt.encode_header(b"b" * 16, 5)
    assert len(words) == fmt.HEADER_WORDS
    assert words[fmt.GENERATION] == 5
    assert fmt.is_current(words, b"b" * 16)
    assert not fmt.is_current(words, b"c" * 16)
    assert not fmt.is_current([0, *words[1:]], b"b" * 16)


def test_who_was_not_seen_for_longer_than_its_session_is_late() -> None:
    assert not ONE.is_late(2_500)
    assert ONE.is_late(2_501)
