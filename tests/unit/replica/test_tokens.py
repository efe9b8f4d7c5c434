"""Tokens of positions: opaque, checked, and never an error."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.replica.tokens import decode, encode

LOG = b"12345678"


@given(st.integers(0, 2**63 - 1))
def test_a_token_gives_its_position_to_its_own_history(position):
    token = encode(LOG, position)
    assert token.isascii()
    assert token.isprintable()
    assert decode(token, LOG) == position
    assert decode(token, b"other...") == 0


@given(st.text(max_size=80))
def test_no_text_is_an_error(text):
    assert decode(text, LOG) == 0


@given(st.integers(0, 27), st.characters(codec="ascii"))
def test_a_changed_character_asks_for_nothing(place, character):
    token = encode(LOG, 5)
    changed = token[:place] + character + token[place + 1 :]
    # The last character has bits that no byte needs.
    assert decode(changed, LOG) in ((5,) if changed == token else (0, 5) if place == 27 else (0,))
