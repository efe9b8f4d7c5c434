"""Members of groups: a command changes a bounded number of them, from its level on."""

from contextlib import closing
from pathlib import Path

from penstock.state.answers import AnyAnswer, Done, Refusal, Refused
from penstock.state.commands import MEMBERS_MAX, SaveMembers
from penstock.state.orders import LocalJournal
from penstock.state.rows import GroupKind
from penstock.state.schema import MEMBERS_LEVEL
from unit.state.orders import open_order


def save(*member_ids: str, removed: tuple[str, ...] = ()) -> SaveMembers:
    return SaveMembers(
        group_id="g",
        generation=1,
        protocol_type="consumer",
        kind=GroupKind.CONSUMER,
        empty=not member_ids,
        state=b"",
        rows=[(member_id, b"row") for member_id in member_ids],
        removed=list(removed),
    )


def answer_to(order: LocalJournal, command: SaveMembers) -> AnyAnswer:
    (answer,) = order.append([command]).outcome.answers
    return answer


def test_one_command_changes_a_bounded_number(tmp_path: Path) -> None:
    with closing(open_order(tmp_path)) as order:
        most = [f"m{number}" for number in range(MEMBERS_MAX)]
        assert answer_to(order, save(*most)) == Done()
        answer = answer_to(order, save(*most, removed=("gone",)))
        assert isinstance(answer, Refused)
        assert answer.reason is Refusal.MALFORMED
        assert answer.detail == "1001 members change, 1000 may"


def test_a_group_has_no_members_below_the_level(tmp_path: Path) -> None:
    with closing(open_order(tmp_path, level=MEMBERS_LEVEL - 1)) as order:
        answer = answer_to(order, save("m"))
        assert isinstance(answer, Refused)
        assert answer.reason is Refusal.LEVEL_NOT_ON
