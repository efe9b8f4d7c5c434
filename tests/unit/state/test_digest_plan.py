"""Who bootstraps, who goes on and who stops writing, by the digests of one position."""

import itertools

import pytest

from penstock.state.digest_plan import (
    DigestRound,
    Verdict,
    differing_tables,
    is_settled,
    judge,
    left_split,
)
from penstock.state.state_digest import StateDigest


def digest(objects: str = "a", *, level: int = 4, version: int = 1, form: int = 5) -> StateDigest:
    tables = [("objects", objects.encode() * 32), ("topics", b"t" * 32)]
    return StateDigest(
        digest_version=version, feature_level=level, format_version=form, tables=tables
    )


def asked(answers: dict[int, StateDigest | None]) -> DigestRound:
    """A round of agents of epoch 7; None: not answered."""
    return DigestRound(
        90,
        dict.fromkeys(answers, 7),
        {agent: found for agent, found in answers.items() if found is not None},
    )


def verdicts(found: DigestRound, live: dict[int, int] | None = None) -> dict[int, Verdict]:
    live = dict(found.epochs) if live is None else live
    return {agent: judge(found, me=agent, live=live).verdict for agent in found.epochs}


def test_three_that_are_equal_go_on() -> None:
    found = asked({1: digest(), 2: digest(), 3: digest()})
    assert set(verdicts(found).values()) == {Verdict.EQUAL}


def test_of_three_the_one_that_differs_stops_and_the_others_name_it() -> None:
    found = asked({1: digest(), 2: digest("b"), 3: digest()})
    assert verdicts(found) == {1: Verdict.MAJORITY, 2: Verdict.MINORITY, 3: Verdict.MAJORITY}
    for me in found.epochs:
        judged = judge(found, me=me, live=found.epochs)
        assert list(judged.tables) == ["objects"]
        assert list(judged.agents) == [2]


def test_of_two_that_differ_both_stop_writing_and_name_the_table() -> None:
    found = asked({1: digest(), 2: digest("b")})
    assert set(verdicts(found).values()) == {Verdict.SPLIT}
    judged = judge(found, me=1, live=found.epochs)
    assert (list(judged.tables), list(judged.agents)) == (["objects"], [1, 2])
    split = left_split(found)
    assert split is not None
    assert list(split.tables) == ["objects"]


def test_a_majority_of_all_that_were_asked_need_not_wait() -> None:
    found = asked({1: digest(), 2: digest(), 3: None})
    assert verdicts(found) == {1: Verdict.EQUAL, 2: Verdict.EQUAL, 3: Verdict.WAITING}
    assert list(judge(found, me=1, live=found.epochs).missing) == [3]


def test_a_slow_agent_is_waited_for_before_anybody_stops() -> None:
    found = asked({1: digest(), 2: digest("b"), 3: None})
    assert set(verdicts(found).values()) == {Verdict.WAITING}
    # It is fenced, or begins another epoch: nobody waits for it any more.
    for live in ({1: 7, 2: 7}, {1: 7, 2: 7, 3: 8}):
        assert verdicts(found, live) == {1: Verdict.SPLIT, 2: Verdict.SPLIT, 3: Verdict.NOT_ASKED}


@pytest.mark.parametrize("other", [digest("b", level=3), digest("b", version=2), digest(form=4)])
def test_only_digests_of_one_kind_are_compared(other: StateDigest) -> None:
    found = asked({1: digest(), 2: other})
    assert verdicts(found) == {1: Verdict.ALONE, 2: Verdict.ALONE}
    found = asked({1: digest(), 2: other, 3: digest("c"), 4: digest()})
    assert verdicts(found) == {
        1: Verdict.MAJORITY,
        2: Verdict.ALONE,
        3: Verdict.MINORITY,
        4: Verdict.MAJORITY,
    }


def test_nobody_was_asked() -> None:
    assert judge(DigestRound(), me=1, live={1: 7}).verdict is Verdict.NOT_ASKED
    assert judge(asked({2: digest()}), me=1, live={1: 7, 2: 7}).verdict is Verdict.NOT_ASKED
    assert left_split(DigestRound()) is None


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5])
def test_no_answers_let_a_bad_agent_stop_a_good_majority(count: int) -> None:
    """All rounds of up to five agents: whatever is missing, and in whatever order it comes."""
    for kinds in itertools.product("ab-", repeat=count):
        answers = {
            agent: None if kind == "-" else digest(kind) for agent, kind in enumerate(kinds, 1)
        }
        found = asked(answers)
        good = 2 * kinds.count("a") > count
        for agent, kind in enumerate(kinds, 1):
            judged = judge(found, me=agent, live=found.epochs)
            if good and kind == "a":
                assert judged.verdict in {Verdict.EQUAL, Verdict.MAJORITY, Verdict.ALONE}, kinds
            if good and kind == "b":
                assert judged.verdict is Verdict.MINORITY, kinds
            if judged.verdict is Verdict.MINORITY:
                # Whatever the missing ones say, it stays so.
                other = "a" if kind == "b" else "b"
                assert 2 * kinds.count(other) > count, kinds
            if judged.verdict is Verdict.SPLIT:
                assert "-" not in kinds
                assert kinds.count("a") == kinds.count("b"), kinds


def test_tables_that_only_one_has_differ() -> None:
    assert differing_tables({"a": b"1", "b": b"2"}, {"a": b"1", "c": b"3"}) == ["b", "c"]


def test_a_round_is_settled_once_two_or_more_were_asked_and_all_have_answered() -> None:
    assert is_settled(DigestRound())
    assert is_settled(asked({1: digest(), 2: digest("b")}))
    assert not is_settled(asked({1: digest()}))
    assert not is_settled(asked({1: digest(), 2: digest(), 3: None}))
