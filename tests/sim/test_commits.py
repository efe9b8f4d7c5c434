"""Committed offsets go back only to a commit that nobody answered."""

from __future__ import annotations

from sim.commits import Commit, CommittedOffset

PLACE = ("topic", 0)


class _Group:
    """A second passes between one event and the next."""

    def __init__(self) -> None:
        self.offset = CommittedOffset()
        self.now_s = 0.0

    def begin(self, offset: int, generation: int = -1) -> Commit:
        self.now_s += 1
        commit = Commit("group", PLACE, offset, generation, self.now_s)
        self.offset.begin(commit)
        return commit

    def done(self, commit: Commit) -> None:
        self.now_s += 1
        self.offset.done(commit, self.now_s)

    def commit(self, offset: int, generation: int = -1) -> None:
        self.done(self.begin(offset, generation))

    def told(self, offset: int, began_s: float | None = None) -> str | None:
        began_s = self.now_s + 0.5 if began_s is None else began_s
        self.now_s += 1
        return self.offset.told(offset, began_s, self.now_s, "c")


def test_an_unanswered_commit_may_be_carried_out_after_an_acknowledged_one() -> None:
    group = _Group()
    group.begin(43)
    group.commit(47)
    assert group.told(47) is None
    assert group.told(43) is None
    assert group.told(43) is None


def test_no_other_offset_is_excused_by_it() -> None:
    group = _Group()
    group.commit(39)
    group.begin(43)
    group.commit(47)
    assert group.told(39) == "told 39 after 47, commit"
    assert group.told(45) == "told 45 after 47, commit"


def test_it_is_carried_out_once() -> None:
    group = _Group()
    group.begin(43)
    group.commit(47)
    assert group.told(43) is None
    group.commit(50)
    assert group.told(43) == "told 43 after 50, commit"


def test_one_that_was_seen_in_time_comes_no_more() -> None:
    group = _Group()
    group.begin(43)
    assert group.told(43) is None
    group.commit(47)
    assert group.told(43) == "told 43 after 47, commit"


def test_an_offset_that_was_acknowledged_does_not_show_the_unanswered_one_of_the_same() -> None:
    group = _Group()
    group.commit(43)
    group.begin(43)
    assert group.told(43) is None
    group.commit(47)
    assert group.told(43) is None


def test_a_refused_commit_excuses_nothing() -> None:
    group = _Group()
    group.offset.refused(group.begin(43))
    group.commit(47)
    assert group.told(43) == "told 43 after 47, commit"


def test_one_of_an_earlier_generation_is_refused() -> None:
    group = _Group()
    late = group.begin(43, generation=1)
    group.commit(47, generation=1)
    group.commit(50, generation=2)
    assert group.told(43) == "told 43 after 50, commit"
    group.offset.refused(late)


def test_a_group_goes_on_from_where_it_went_back_to() -> None:
    group = _Group()
    group.begin(43)
    group.commit(47)
    asked_s = group.now_s
    assert group.told(43) is None
    # Asked before it went back, and answered late.
    assert group.told(47, began_s=asked_s) is None
    group.commit(45)
    assert group.told(45) is None
    assert group.told(44) == "told 44 after 45, commit"
