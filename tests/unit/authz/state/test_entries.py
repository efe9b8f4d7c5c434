"""Entries come back as they were, and anything else is one of our errors."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.authz.state.entries import (
    AddKey,
    Begin,
    Clear,
    CreateEnvironment,
    Entry,
    RevokeKey,
    decode,
    encode,
)
from penstock.model.errors import CorruptDataError
from support.authz import POLICY, delete, insert, set_policy, write

ENTRY = Entry(
    "default",
    (
        Begin(b"12345678"),
        write(insert("has_role", "User:a", "admin", "Organization:o"), request=b"k" * 16),
        write(delete("has_role", "User:*", "*", "Organization:o")),
        Clear(b""),
        set_policy(POLICY, 3),
        CreateEnvironment("other"),
        AddKey("n", "other", b"h" * 32, "read", "of a test"),
        RevokeKey("n"),
    ),
)


def test_an_entry_comes_back_as_it_was():
    assert decode(encode(ENTRY)) == ENTRY


@given(st.integers(0, len(encode(ENTRY)) - 1))
def test_a_cut_entry_is_refused(length):
    with pytest.raises(CorruptDataError):
        decode(encode(ENTRY)[:length])


@given(st.integers(0, len(encode(ENTRY)) - 1), st.integers(1, 255))
def test_a_changed_byte_gives_an_entry_or_our_error(place, change):
    body = bytearray(encode(ENTRY))
    body[place] ^= change
    try:
        decode(bytes(body))
    except CorruptDataError:
        pass


@given(st.binary(max_size=200))
def test_no_bytes_give_another_error(body):
    try:
        decode(body)
    except CorruptDataError:
        pass
