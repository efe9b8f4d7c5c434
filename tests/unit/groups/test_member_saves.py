"""Answers wait for what they are made of; one save is under way at a time."""

from __future__ import annotations

from penstock.groups.member_saves import MemberSaves
from penstock.groups.messages import Reply


def test_an_answer_waits_for_the_save_that_it_may_be_made_of() -> None:
    saves = MemberSaves()
    assert saves.reply(Reply(1, "first")) == (Reply(1, "first"),)
    saves.put("m")
    assert saves.reply(Reply(2, "second")) == ()
    begun = saves.begin()
    assert begun is not None
    assert (begun.dirty, begun.removed) == (("m",), ())
    assert saves.reply(Reply(3, "third")) == ()
    saves.remove("m")
    assert saves.reply(Reply(4, "fourth")) == ()
    assert saves.begin() is None
    assert saves.saved() == [Reply(2, "second"), Reply(3, "third")]
    begun = saves.begin()
    assert begun is not None
    assert (begun.dirty, begun.removed) == ((), ("m",))
    assert not saves.is_settled
    assert saves.saved() == [Reply(4, "fourth")]
    assert saves.is_settled


def test_what_is_given_up_is_answered_at_once() -> None:
    saves = MemberSaves()
    saves.put("m")
    saves.reply(Reply(1, "first"))
    saves.begin()
    saves.put("n")
    saves.reply(Reply(2, "second"))
    assert saves.give_up() == [Reply(1, "first"), Reply(2, "second")]
    assert saves.is_settled
