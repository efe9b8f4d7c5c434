"""Commands and answers: every one survives its bytes, and apply knows every one."""

import types
import typing
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.model.errors import CorruptDataError, InvalidRequestError
from penstock.state.answers import AnyAnswer, Refusal, Relayed, decode_answers, encode_answers
from penstock.state.apply.machine import HANDLERS
from penstock.state.commands import AnyCommand, Relay
from penstock.state.entries import Entry, decode_entry, encode_entry

COMMANDS: list[Any] = list(typing.get_args(AnyCommand))
ANSWERS: list[Any] = list(typing.get_args(AnyAnswer))
int64 = st.integers(-(1 << 63), (1 << 63) - 1)


def values(kind: Any) -> st.SearchStrategy[Any]:
    """Any value of a field's type."""
    if kind is int:
        return int64
    if kind is str:
        return st.text(max_size=8)
    if kind is float:
        return st.floats(allow_nan=False)
    if kind is type(None):
        return st.none()
    if kind is bytes:
        return st.binary(max_size=16)
    if kind is bool:
        return st.booleans()
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return structs(kind)
    if isinstance(kind, type) and issubclass(kind, Refusal):
        return st.sampled_from(list(Refusal))
    if kind in {AnyCommand, AnyAnswer}:
        # Inside a relayed entry: any other, no relay again.
        return st.one_of(
            *(structs(one) for one in typing.get_args(kind) if one not in {Relay, Relayed})
        )
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is list:
        return st.lists(values(arguments[0]), max_size=3)
    if origin is dict:
        return st.dictionaries(values(arguments[0]), values(arguments[1]), max_size=2)
    if origin is types.UnionType:
        return st.one_of(*(values(argument) for argument in arguments))
    if origin is tuple:
        return st.tuples(*(values(argument) for argument in arguments))
    raise AssertionError(kind)


def structs(kind: Any) -> st.SearchStrategy[Any]:
    hints = typing.get_type_hints(kind)
    return st.builds(kind, **{name: values(hints[name]) for name in kind.__struct_fields__})


@pytest.mark.parametrize("kind", COMMANDS)
@given(data=st.data())
def test_every_command_survives_its_bytes(kind: Any, data: st.DataObject) -> None:
    entry = Entry(agent=1, epoch=2, n=3, stamp_ms=4, commands=[data.draw(structs(kind))])
    assert decode_entry(encode_entry(entry), position=1) == entry


@pytest.mark.parametrize("kind", ANSWERS)
@given(data=st.data())
def test_every_answer_survives_its_bytes(kind: Any, data: st.DataObject) -> None:
    answers = [data.draw(structs(kind))]
    assert decode_answers(encode_answers(answers)) == answers


def test_apply_knows_every_command() -> None:
    assert set(HANDLERS) == set(COMMANDS)


@example(b"\xff\x02")
@given(st.binary(max_size=64))
def test_any_bytes_are_an_entry_or_a_named_error(body: bytes) -> None:
    try:
        decode_entry(body, position=7)
    except (CorruptDataError, InvalidRequestError) as error:
        # The latter where a restored journal begins as only a newer release knows.
        assert "position 7" in str(error)
