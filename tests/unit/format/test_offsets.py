"""The page of group cursors: what it says, and that no turned bit makes it say something else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from esker.format import offsets as fmt
from esker.format.offsets import Owner, Slot, Term

OWNER = Owner(b"s" * 16, 3, 1)
SEED = OWNER.seed


def slot(term: Term, *, other: Term | None = None, name: str = "billing", delta: int = 0,
         number: int = 7) -> list[int]:  # fmt: skip
    words = [0] * fmt.SLOT_WORDS
    words[:6] = fmt.encode_name(name)
    for each in (other, term):
        if each is not None:
            turn = each.generation % 2
            words[fmt.BASE[turn]] = each.base
            words[fmt.HEAD[turn]] = fmt.encode_head(SEED, number, words[:6], each)
    seed = fmt.cell_seed(SEED, number, words[:6], term)
    words[fmt.CELL + term.generation % 4] = fmt.encode_cell(seed, delta)
    words[fmt.UPDATED], words[fmt.ACKS] = 11, 22
    return words


def test_the_sizes_are_those_of_the_documented_page() -> None:
    assert fmt.PAGE_SIZE == 128 + 512 * 128
    assert 512 % (fmt.SLOT_WORDS * 8) == 0  # no slot lies in two sectors
    assert fmt.HEADER_WORDS * 8 == 128


def test_a_header_says_whose_page_it_is() -> None:
    words = list(fmt.encode_header(OWNER))
    assert len(words) == fmt.HEADER_WORDS
    assert fmt.decode_header(words, OWNER) == ""
    assert fmt.decode_header(words, OWNER._replace(shard=2)) == "the page of another shard"
    assert fmt.decode_header([0] * 16, OWNER) == "no header"
    assert fmt.decode_header([0, *words[1:]], OWNER) == "no header"
    assert fmt.decode_header([1, *words[1:]], OWNER) == "not a page of offsets"
    assert "checksum" in fmt.decode_header([*words[:2], 9, *words[3:]], OWNER)
    assert fmt.decode_header([*words[:15], 9], OWNER) == "something behind the header"


def test_a_header_of_a_later_version_is_known_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fmt, "VERSION", 2)
    later = fmt.encode_header(OWNER)
    monkeypatch.undo()
    assert fmt.decode_header(later, OWNER) == "version 2"


@given(
    st.text(min_size=1).filter(lambda s: len(s.encode()) <= 48 and "\0" not in s),
    st.integers(0, fmt.CURSOR_MAX), st.integers(1, (1 << 20) - 1), st.integers(0, 512),
    st.integers(0, 3), st.integers(0, fmt.DELTA_MAX),
)  # fmt: skip
def test_a_slot_says_what_was_put_into_it(
    name: str, base: int, generation: int, owner: int, flags: int, delta: int
) -> None:
    term = Term(base, generation, owner, flags)
    found = fmt.decode_slot(SEED, 7, slot(term, name=name, delta=delta))
    assert found == Slot(7, name, term, base + delta, 11, 22)


def test_a_free_slot_has_no_head_whatever_else_is_in_it() -> None:
    assert fmt.decode_slot(SEED, 7, [0] * 16) is None
    words = slot(Term(5, 1))
    words[fmt.HEAD[1]] = 0
    assert fmt.decode_slot(SEED, 7, words) is None


def test_of_two_terms_the_newer_counts() -> None:
    for old, new in ((1, 2), (2, 3), ((1 << 20) - 1, 2), (2, (1 << 20) - 1)):
        terms = Term(10, old, 1), Term(20, new, 2)
        newer = terms[1] if fmt.is_newer(new, old) else terms[0]
        words = slot(newer, other=terms[0] if newer is terms[1] else terms[1])
        found = fmt.decode_slot(SEED, 7, words)
        assert isinstance(found, Slot)
        assert found.term == newer
    assert fmt.next_generation(1) == 2
    assert fmt.next_generation((1 << 20) - 1) == 2
    assert not fmt.is_newer(4, 4)


@pytest.mark.parametrize("generation", [6, 7])
def test_a_term_that_is_being_written_leaves_the_one_before_it(generation: int) -> None:
    """The base is there, the head is that of the term before the last."""
    words = slot(Term(20, generation, 2), other=Term(10, generation - 1, 1), delta=5)
    words[fmt.BASE[(generation - 1) % 2]] = 25
    found = fmt.decode_slot(SEED, 7, words)
    assert isinstance(found, Slot)
    assert (found.cursor, found.term.generation) == (25, generation)


def test_the_newest_term_damaged_is_not_the_one_before_it() -> None:
    """It may have been a step back: who goes on from the older one would leave records out."""
    words = slot(Term(20, 3, 2), other=Term(90, 2, 1))
    words[fmt.BASE[1]] ^= 4
    assert fmt.decode_slot(SEED, 7, words) == "the term of generation 3 does not match its checksum"


def test_a_slot_in_another_place_or_page_says_nothing() -> None:
    words = slot(Term(20, 3))
    assert isinstance(fmt.decode_slot(SEED, 8, words), str)
    assert isinstance(fmt.decode_slot(OWNER._replace(topic=4).seed, 7, words), str)


def test_a_name_that_is_no_text_is_refused() -> None:
    words = slot(Term(20, 1))
    words[0] = 0xFF
    term = Term(20, 1)
    words[fmt.HEAD[1]] = fmt.encode_head(SEED, 7, words[:6], term)
    assert fmt.decode_slot(SEED, 7, words) == "a name that nobody writes"


def test_every_turned_bit_is_noticed_or_costs_what_is_delivered_again() -> None:
    """Never a cursor that is further than it was."""
    whole, before = slot(Term(1000, 6, 2, 1), other=Term(900, 5, 1, 1), delta=50), Term(900, 5)
    seed = fmt.cell_seed(SEED, 7, whole[:6], before)
    whole[fmt.CELL + 1] = fmt.encode_cell(seed, 100)  # what the owner before had acked
    flaws = 0
    for bit in range(fmt.SLOT_WORDS * 64):
        words = list(whole)
        words[bit // 64] ^= 1 << bit % 64
        found = fmt.decode_slot(SEED, 7, words)
        if isinstance(found, Slot):
            assert found.cursor in (1050, 1000), bit
            assert found.cursor == 1000 or not found.flaw
            assert found.name == "billing"
            flaws += bool(found.flaw)
        else:
            assert isinstance(found, str)
    assert flaws == 64  # those of the one cell that counts
