"""Share partitions of groups: a bounded number per command, of groups and partitions that exist."""

from contextlib import closing
from pathlib import Path

from penstock.state.answers import AnyAnswer, Done, Refusal, Refused
from penstock.state.commands import (
    SHARES_MAX,
    AnyCommand,
    CreateTopic,
    DeleteGroups,
    DeleteTopic,
    SaveMembers,
    SaveShares,
)
from penstock.state.orders import LocalJournal
from penstock.state.read.queries import Queries
from penstock.state.rows import GroupKind, ShareRow
from penstock.state.schema import SHARES_LEVEL
from unit.state.orders import open_order

TOPIC_ID = b"t" * 16
GROUP = SaveMembers(
    group_id="g",
    generation=1,
    protocol_type="share",
    kind=GroupKind.SHARE,
    empty=True,
    state=b"",
    rows=[],
    removed=[],
)
ROW = (TOPIC_ID, 1, 5, b"state")


def answer_to(order: LocalJournal, command: AnyCommand) -> AnyAnswer:
    (answer,) = order.append([command]).outcome.answers
    return answer


def refused(answer: AnyAnswer) -> Refusal:
    assert isinstance(answer, Refused)
    return answer.reason


def make(order: LocalJournal) -> None:
    order.append([CreateTopic(name="t", topic_id=TOPIC_ID, partitions=2), GROUP])


def stored(tmp_path: Path) -> list[ShareRow]:
    with closing(Queries(tmp_path / "metadata.sqlite")) as queries:
        return queries.share_partitions("g")


def test_a_row_is_replaced_and_removed(tmp_path: Path) -> None:
    with closing(open_order(tmp_path)) as order:
        make(order)
        assert answer_to(order, SaveShares(group_id="g", rows=[ROW])) == Done()
        later = (TOPIC_ID, 1, 9, b"later")
        assert answer_to(order, SaveShares(group_id="g", rows=[later])) == Done()
        assert stored(tmp_path) == [ShareRow(*later)]
        gone = SaveShares(group_id="g", rows=[], removed=[(TOPIC_ID, 1)])
        assert answer_to(order, gone) == Done()
        assert stored(tmp_path) == []


def test_a_partition_that_is_not_there_is_left_out(tmp_path: Path) -> None:
    with closing(open_order(tmp_path)) as order:
        make(order)
        rows = [(TOPIC_ID, 2, 0, b""), (b"x" * 16, 0, 0, b""), ROW]
        assert answer_to(order, SaveShares(group_id="g", rows=rows)) == Done()
        assert stored(tmp_path) == [ShareRow(*ROW)]


def test_a_group_must_be_there(tmp_path: Path) -> None:
    with closing(open_order(tmp_path)) as order:
        answer = answer_to(order, SaveShares(group_id="g", rows=[ROW]))
        assert refused(answer) is Refusal.UNKNOWN_GROUP


def test_one_command_changes_a_bounded_number(tmp_path: Path) -> None:
    with closing(open_order(tmp_path)) as order:
        make(order)
        answer = answer_to(order, SaveShares(group_id="g", rows=[ROW] * (SHARES_MAX + 1)))
        assert refused(answer) is Refusal.MALFORMED


def test_states_go_with_their_group_and_with_their_topic(tmp_path: Path) -> None:
    with closing(open_order(tmp_path)) as order:
        make(order)
        order.append([SaveShares(group_id="g", rows=[ROW]), DeleteGroups(group_ids=["g"])])
        assert stored(tmp_path) == []
        order.append([GROUP, SaveShares(group_id="g", rows=[ROW])])
        assert stored(tmp_path) == [ShareRow(*ROW)]
        order.append([DeleteTopic(topic_id=TOPIC_ID)])
        assert stored(tmp_path) == []


def test_there_are_none_below_the_level(tmp_path: Path) -> None:
    with closing(open_order(tmp_path, level=SHARES_LEVEL - 1)) as order:
        answer = answer_to(order, SaveShares(group_id="g", rows=[ROW]))
        assert refused(answer) is Refusal.LEVEL_NOT_ON
