"""No command is submitted below its feature level: what older agents can't decode stops them."""

import typing
from collections.abc import Collection
from typing import Any

import msgspec
import pytest

from penstock.model.errors import RetryableError
from penstock.state.apply.machine import HANDLERS
from penstock.state.changes import AgentChanged, AgentRemoved, AgentSeen, LevelChanged
from penstock.state.commands import (
    EPOCH_MAX,
    TRANSACTIONAL,
    AnyCommand,
    CommitRuns,
    Heartbeat,
    Noop,
    Relay,
    RunCommit,
)
from penstock.state.levels import LEVEL_OF, KnownLevels, level_needed, refuse_below_level
from penstock.state.pipeline_commands import OpenJob, ReplacedPartition, ReplaceRuns
from penstock.state.rows import Agent, AgentStatus
from penstock.state.schema import (
    CLUSTER_LEVEL,
    FEATURE_LEVEL_MAX,
    MERGING_LEVEL,
    PIPELINE_LEVEL,
    TRANSACTIONS_LEVEL,
)

COMMANDS: list[Any] = list(typing.get_args(AnyCommand))


def sample(kind: Any) -> Any:
    """A command with its fields at their defaults, or nothing in them."""
    fields = msgspec.structs.fields(kind)
    return kind(
        **{
            field.name: empty(field.type)
            for field in fields
            if field.default is msgspec.NODEFAULT and field.default_factory is msgspec.NODEFAULT
        }
    )


def empty(kind: Any) -> Any:
    plain = typing.get_origin(kind) or kind
    return sample(plain) if issubclass(plain, msgspec.Struct) else plain()


def agent(agent_id: int, level_max: int, *, fenced: bool = False) -> Agent:
    status = AgentStatus.FENCED if fenced else AgentStatus.LIVE
    return Agent(
        agent_id=agent_id,
        epoch=1,
        status=status,
        labels={},
        software="",
        endpoint="",
        peer="",
        level_max=level_max,
    )


def known(level: int, *agents: Agent) -> KnownLevels:
    levels = KnownLevels()
    levels.load(level, agents)
    return levels


def test_every_command_has_a_level() -> None:
    assert set(LEVEL_OF) == set(COMMANDS) == set(HANDLERS)
    assert set(LEVEL_OF.values()) <= set(range(1, FEATURE_LEVEL_MAX + 1))


@pytest.mark.parametrize("level", range(1, FEATURE_LEVEL_MAX + 1))
@pytest.mark.parametrize("kind", COMMANDS)
def test_a_command_above_the_level_is_refused_and_no_other(kind: Any, level: int) -> None:
    command = sample(kind)
    refusal = refuse_below_level(known(level), [Noop(), command])
    if LEVEL_OF[kind] <= level:
        assert refusal is None
    else:
        assert isinstance(refusal, RetryableError)
        assert kind.__name__ in str(refusal)
        assert f"feature level {LEVEL_OF[kind]} is needed, {level} is on" in str(refusal)


def test_a_relay_needs_what_its_entry_needs() -> None:
    inner = [Noop(), sample(OpenJob)]
    relay = Relay(agent=2, epoch=1, n=0, commands=inner)
    assert level_needed(relay) == PIPELINE_LEVEL
    assert level_needed(sample(Relay)) == CLUSTER_LEVEL


def test_fields_of_a_later_level_count() -> None:
    assert level_needed(CommitRuns(runs=[])) == 1
    assert level_needed(CommitRuns(runs=[], raw=True)) == CLUSTER_LEVEL


def test_a_batch_of_a_transaction_counts() -> None:
    def commit(epoch: int) -> CommitRuns:
        batches = [100, 1, 0, -1, -1, -1, 100, 1, 0, 7, epoch, 0]
        return CommitRuns(runs=[RunCommit(partition_key=1, position=0, batches=batches)], raw=True)

    assert level_needed(commit(EPOCH_MAX)) == CLUSTER_LEVEL
    assert level_needed(commit(TRANSACTIONAL)) == TRANSACTIONS_LEVEL


def test_a_replacement_that_merges_counts() -> None:
    plain = ReplacedPartition(partition_key=1, inputs=[], outputs=[])
    merged = msgspec.structs.replace(plain, merged=True)
    for partitions, level in (([plain], PIPELINE_LEVEL), ([plain, merged], MERGING_LEVEL)):
        command = ReplaceRuns(job=1, n=1, input_keys=[], objects=[], partitions=partitions)
        assert level_needed(command) == level


def test_the_agents_that_keep_the_level_low_are_named() -> None:
    levels = known(
        1, agent(3, 4), agent(5, 1), agent(7, 1, fenced=True), *(agent(n, 1) for n in range(8, 14))
    )
    text = str(refuse_below_level(levels, [Heartbeat()]))
    assert "5 (level 1), 8 (level 1), 9 (level 1), 10 (level 1), 11 (level 1) and 2 more" in text
    assert " 3 (level" not in text
    assert " 7 (level" not in text
    assert "upgrade them" in text
    nobody = str(refuse_below_level(known(1, agent(3, 4)), [Heartbeat()]))
    assert "the level is being raised" in nobody


def test_what_is_known_follows_what_is_applied() -> None:
    levels = KnownLevels()
    assert refuse_below_level(levels, [Heartbeat()]) is not None
    levels.load(0, [agent(1, 4)])
    assert levels.feature_level == 1
    levels.follow([AgentSeen(1, 5), AgentChanged(agent=agent(2, 1))])
    assert ids(levels.agents()) == [1, 2]
    levels.follow([AgentRemoved(agent_id=2), LevelChanged(level=CLUSTER_LEVEL)])
    assert ids(levels.agents()) == [1]
    assert refuse_below_level(levels, [Heartbeat()]) is None
    assert not levels.is_highest
    levels.follow([LevelChanged(level=FEATURE_LEVEL_MAX)])
    assert levels.is_highest


def ids(agents: Collection[Agent]) -> list[int]:
    return [found.agent_id for found in agents]
