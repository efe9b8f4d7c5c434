"""What the log says of groups' commands that the journal refused."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import pytest

from penstock.groups.errors import GroupError
from penstock.groups.journal import GroupJournal
from penstock.state.answers import AnyAnswer, Refusal, Refused
from penstock.state.commands import AnyCommand, DeleteGroups


class Refusing:
    """A committer that answers everything alike."""

    def __init__(self, reason: Refusal) -> None:
        self.refused = Refused(reason, "shard 3: epoch 1, it is at 2")

    async def commit(self, commands: Sequence[AnyCommand]) -> list[AnyAnswer]:
        return [self.refused for _ in commands]


@pytest.mark.parametrize(
    ("reason", "level", "told"),
    [
        (Refusal.STALE_SHARD, logging.INFO, GroupError.NOT_COORDINATOR),
        (Refusal.GROUP_NOT_EMPTY, logging.WARNING, GroupError.UNKNOWN_SERVER_ERROR),
    ],
)
async def test_a_command_that_comes_after_its_shard_has_moved_is_no_cause_for_a_warning(
    caplog: pytest.LogCaptureFixture, reason: Refusal, level: int, told: GroupError
) -> None:
    """Each planned hand-over meets some."""
    journal = GroupJournal(Refusing(reason))
    with caplog.at_level(logging.DEBUG):
        answer = await journal.commit(DeleteGroups(group_ids=["g"], shard_epoch=1))
    assert answer is told
    (line,) = [one for one in caplog.records if one.name == "penstock.groups.journal"]
    assert line.levelno == level
    assert "shard 3: epoch 1, it is at 2" in line.getMessage()
