"""An order submits nothing of a level that isn't on: the journal never holds what stops others."""

import typing
from typing import Any

import pytest

from penstock.state.commands import AnyCommand, RegisterAgent, SetFeatureLevel
from penstock.state.entries import decode_entry
from penstock.state.levels import LEVEL_OF, LevelNotOnError
from penstock.state.schema import CLUSTER_LEVEL, FEATURE_LEVEL_MAX
from support.cluster_orders import outcome
from unit.state.test_levels import sample
from unit.state.worlds import ONE, World

COMMANDS: list[Any] = list(typing.get_args(AnyCommand))


async def test_a_cluster_s_order_sends_no_command_of_a_level_that_is_off(world: World) -> None:
    one, two = await world.started(1), await world.started(2)
    levels = [1, CLUSTER_LEVEL]
    for level in levels:
        if level > 1:
            # By the other agent: the level is followed, not only remembered.
            await two.order.commit([SetFeatureLevel(level=level)])
            await one.order.confirm_head()
        above = [kind for kind in COMMANDS if LEVEL_OF[kind] > level]
        assert above or level == FEATURE_LEVEL_MAX
        row_count = len(world.journal.rows())
        for kind in above:
            error = await outcome(one.order.commit([sample(kind)]))
            assert isinstance(error, LevelNotOnError), kind
            with pytest.raises(LevelNotOnError):
                await one.order.submit([*ONE, sample(kind)])
        assert "agents know less: 1 (level 2), 2 (level 2)" in str(error)
        assert len(world.journal.rows()) == row_count
    assert one.stopped is None
    await one.order.commit(ONE)


async def test_an_agent_registers_and_waits_before_it_knows_the_level(world: World) -> None:
    # A journal without a level: only what level 1 has is sent by a start.
    await world.started(1)
    kinds = {type(command) for command in commands_of(world)}
    assert RegisterAgent in kinds
    assert all(LEVEL_OF[kind] == 1 for kind in kinds)


def commands_of(world: World) -> list[AnyCommand]:
    return [
        command
        for row in world.journal.rows()
        if row.body
        for command in decode_entry(row.body, position=row.position).commands
    ]
