"""A save is cut into commands of bounded size; all but the last say that further ones follow."""

from __future__ import annotations

import pytest

from penstock.groups.consumer.durable import commands_of, decode_group
from penstock.groups.consumer.messages import SaveMembers
from penstock.groups.member_saves import BYTES_AT_ONCE, ROWS_AT_ONCE
from penstock.model.errors import CorruptDataError
from penstock.state import commands
from penstock.state.rows import GroupKind


def cut(
    rows: dict[str, bytes], removed: tuple[str, ...] = (), *, is_empty: bool = False
) -> list[commands.SaveMembers]:
    save = SaveMembers(
        save=1,
        epoch=7,
        target_epoch=6,
        counts={b"t": 3},
        is_empty=is_empty,
        rows=rows,
        removed=removed,
    )
    return commands_of(save, group_id="g", shard_epoch=5)


def test_a_small_save_is_one_command() -> None:
    (command,) = cut({"one": b"row"}, ("two",))
    assert (command.group_id, command.generation, command.shard_epoch) == ("g", 7, 5)
    assert (command.kind, command.empty) == (GroupKind.CONSUMER, False)
    assert (command.rows, command.removed) == ([("one", b"row")], ["two"])
    group = decode_group(command.state, group_id="g")
    assert (group.target_epoch, group.counts, group.is_partial) == (6, [(b"t", 3)], False)


@pytest.mark.parametrize(
    ("rows", "removed"), [(0, 0), (1, 0), (ROWS_AT_ONCE + 1, 0), (3, 2 * ROWS_AT_ONCE + 1)]
)
def test_a_large_one_is_several_of_which_the_last_is_whole(rows: int, removed: int) -> None:
    members = {f"m{number}": b"row" for number in range(rows)}
    gone = tuple(f"g{number}" for number in range(removed))
    found = cut(members, gone, is_empty=not rows)
    assert [row for one in found for row in one.rows] == list(members.items())
    assert [member_id for one in found for member_id in one.removed] == list(gone)
    partial = [decode_group(one.state, group_id="g").is_partial for one in found]
    assert partial == [True] * (len(found) - 1) + [False]
    assert all(len(one.rows) + len(one.removed) <= commands.MEMBERS_MAX for one in found)
    assert [one.empty for one in found] == [False] * (len(found) - 1) + [not rows]


def test_long_rows_go_by_their_bytes() -> None:
    found = cut({f"m{number}": bytes(BYTES_AT_ONCE) for number in range(3)})
    assert [len(one.rows) for one in found] == [1, 1, 1]


@pytest.mark.parametrize("state", [b"", b"\x09", b"\x01\xc1"])
def test_damage_is_named(state: bytes) -> None:
    with pytest.raises(CorruptDataError, match="read group"):
        decode_group(state, group_id="g")
