"""The cluster's commands one by one: each rule that keeps two writers apart."""

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.model.errors import InvalidRequestError
from penstock.order.outcome import Standing
from penstock.replica.replica import Replica
from penstock.state.answers import (
    AnyAnswer,
    BatchStatus,
    Condemned,
    Done,
    Refusal,
    Refused,
    Relayed,
    RunsCommitted,
    SegmentStored,
    ShardClaimed,
    WalClaimed,
)
from penstock.state.apply.machine import EntryOutcome, LogMachine
from penstock.state.cluster_tables import GROUP_SHARDS, group_shard
from penstock.state.command import OffsetWrite
from penstock.state.commands import (
    ClaimShard,
    ClaimWal,
    CommitOffsets,
    CommitRuns,
    CondemnObjects,
    DeleteGroups,
    DeleteOffsets,
    DrainAgent,
    Fence,
    Heartbeat,
    RegisterAgent,
    Relay,
    RemoveAgent,
    RunCommit,
    SaveGroup,
    SetFeatureLevel,
    StoreSegment,
    TrimLog,
)
from penstock.state.entries import Entry, encode_entry
from penstock.state.read.queries import Queries
from penstock.state.read.view import StateView
from penstock.state.rows import AgentStatus
from penstock.state.schema import FEATURE_LEVEL_MAX
from support.state_rows import condemned_objects, group_offsets
from unit.state.orders import KEY, TOPIC_ID, batch, store, topic

WAL_ID = b"sixteen bytes id"


class Cluster:
    """One replica, and the entries of agents 1 and 2 that it applies."""

    def __init__(self, directory: Path, *, level: int = 2) -> None:
        self.path = directory / "metadata.sqlite"
        self.replica = Replica.open(self.path, LogMachine(), fsync=False)
        self.view = StateView()
        self.numbers: dict[tuple[int, int], int] = {}
        register = [RegisterAgent(agent=1, level_max=2, endpoint="a:1"), topic()]
        assert self.send(1, *register)[0] == Done()
        self.send(2, RegisterAgent(agent=2, level_max=2))
        assert self.send(1, SetFeatureLevel(level=level)) == [Done()]
        self.queries = Queries(self.path)

    def outcome(
        self, agent: int, *commands: Any, epoch: int = 1, n: int | None = None
    ) -> EntryOutcome:
        if n is None:
            n = self.numbers.get((agent, epoch), 0)
            self.numbers[(agent, epoch)] = n + 1
        entry = Entry(agent=agent, epoch=epoch, n=n, stamp_ms=1, commands=list(commands))
        outcome = self.replica.append(encode_entry(entry), stamp_ms=1).outcome
        self.view.apply(outcome.changes)
        return outcome

    def send(self, agent: int, *commands: Any, epoch: int = 1) -> list[AnyAnswer]:
        outcome = self.outcome(agent, *commands, epoch=epoch)
        assert outcome.standing is Standing.APPLIED, outcome
        return outcome.answers

    def fence(self, agent: int, *, by: int) -> None:
        assert self.send(by, Fence(agent=agent, epoch=1, seen_position=self.replica.position)) == [
            Done()
        ]

    def close(self) -> None:
        self.queries.close()
        self.replica.close()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    found = Cluster(tmp_path)
    yield found
    found.close()


def to_wal(wal_key: int = 1, generation: int = 1, *, position: int = 0) -> CommitRuns:
    runs = [RunCommit(partition_key=KEY, position=position, batches=batch(2))]
    return CommitRuns(runs=runs, wal=wal_key << 32 | generation)


def to_object(key: str = "o", *, raw: bool = True) -> CommitRuns:
    runs = [RunCommit(partition_key=KEY, position=16, batches=batch(2))]
    return CommitRuns(runs=runs, object_key=key, object_bytes=200, raw=raw)


def reason(answer: AnyAnswer) -> Refusal:
    assert isinstance(answer, Refused), answer
    return answer.reason


def save(shard_epoch: int, group_id: str = "g") -> SaveGroup:
    return SaveGroup(
        group_id=group_id,
        generation=1,
        protocol_type="c",
        empty=False,
        state=b"",
        shard_epoch=shard_epoch,
    )


# -- fences ------------------------------------------------------------------------------------


def test_a_late_commit_of_a_fenced_epoch_is_refused(cluster: Cluster) -> None:
    cluster.fence(2, by=1)
    for late in (to_object(), to_wal(0), TrimLog(items=[KEY, -1])):
        outcome = cluster.outcome(2, late)
        assert outcome.standing is Standing.REFUSED
        assert reason(outcome.answers[0]) is Refusal.FENCED_AGENT
    assert cluster.queries.runs_from(KEY, 0, limit=9) == []
    agent = cluster.view.agent(2)
    assert agent is not None
    assert (agent.status, agent.live) == (AgentStatus.FENCED, False)


def test_it_stays_fenced_when_all_that_is_in_memory_is_gone(
    cluster: Cluster, tmp_path: Path
) -> None:
    cluster.fence(2, by=1)
    cluster.replica.close()
    cluster.replica = Replica.open(cluster.path, LogMachine(), fsync=False)
    assert cluster.outcome(2, to_object()).standing is Standing.REFUSED


def test_what_was_applied_before_the_fence_is_still_answered(cluster: Cluster) -> None:
    first = cluster.send(2, to_object())
    cluster.fence(2, by=1)
    again = cluster.outcome(2, to_object(), n=1)
    assert (again.standing, again.answers) == (Standing.REPEATED, first)


def test_a_fence_is_refused_when_the_agent_has_had_an_entry_since(cluster: Cluster) -> None:
    seen = cluster.replica.position
    cluster.send(2, Heartbeat())
    proposal = Fence(agent=2, epoch=1, seen_position=seen)
    assert reason(cluster.send(1, proposal)[0]) is Refusal.AGENT_IS_ALIVE
    assert cluster.send(2, to_object()) == [RunsCommitted([[BatchStatus.STORED, 0]])]


def test_a_fence_is_refused_for_another_epoch_or_agent(cluster: Cluster) -> None:
    here = cluster.replica.position
    for epoch in (0, 2):
        answer = cluster.send(1, Fence(agent=2, epoch=epoch, seen_position=here))[0]
        assert reason(answer) is Refusal.AGENT_IS_ALIVE
    answer = cluster.send(1, Fence(agent=9, epoch=1, seen_position=here))[0]
    assert reason(answer) is Refusal.UNKNOWN_AGENT


def test_an_agent_is_not_silent_at_its_own_entry(cluster: Cluster) -> None:
    # Whatever position it says that it saw: else it could be removed while its entry is applied.
    fence = Fence(agent=2, epoch=1, seen_position=1 << 40)
    assert reason(cluster.send(2, fence)[0]) is Refusal.AGENT_IS_ALIVE
    relay = Relay(agent=1, epoch=1, n=2, commands=[fence])
    (relayed,) = cluster.send(2, relay)
    assert isinstance(relayed, Relayed)
    assert reason(relayed.answers[0]) is Refusal.AGENT_IS_ALIVE


def test_an_agent_ends_its_own_epoch_from_level_4_on(cluster: Cluster) -> None:
    cluster.send(1, RegisterAgent(agent=1, level_max=4), epoch=2)
    cluster.send(2, RegisterAgent(agent=2, level_max=4), epoch=2)
    cluster.send(3, RegisterAgent(agent=3, level_max=4), epoch=2)
    own = Fence(agent=2, epoch=2, seen_position=0)
    assert reason(cluster.send(2, own, epoch=2)[0]) is Refusal.AGENT_IS_ALIVE
    (raised,) = cluster.send(1, SetFeatureLevel(level=4), epoch=2)
    assert raised == Done()
    cluster.send(2, ClaimShard(shard=3, shard_epoch=0), epoch=2)
    # Another agent's is still refused, and so is that of an older epoch.
    assert reason(cluster.send(1, own, epoch=2)[0]) is Refusal.AGENT_IS_ALIVE
    older = Fence(agent=2, epoch=1, seen_position=0)
    assert reason(cluster.send(2, older, epoch=2)[0]) is Refusal.AGENT_IS_ALIVE
    assert cluster.send(2, Heartbeat(), own, epoch=2) == [Done(), Done()]
    ended = cluster.view.agent(2)
    assert ended is not None
    assert ended.status is AgentStatus.FENCED
    assert cluster.view.shard_owner(3) is None
    assert reason(cluster.outcome(2, Heartbeat(), epoch=2).answers[0]) is Refusal.FENCED_AGENT
    assert cluster.outcome(2, own, epoch=2, n=4).standing is Standing.REPEATED
    cluster.send(2, RegisterAgent(agent=2, level_max=4), epoch=3)


def test_an_agent_that_ends_itself_is_not_forgotten_by_the_same_entry(cluster: Cluster) -> None:
    for agent in (1, 2, 3):
        cluster.send(agent, RegisterAgent(agent=agent, level_max=4), epoch=2)
    cluster.send(1, SetFeatureLevel(level=4), epoch=2)
    own = Fence(agent=2, epoch=2, seen_position=0)
    remove = RemoveAgent(agent=2)
    relay = Relay(agent=1, epoch=2, n=2, commands=[remove])
    done, removed, relayed = cluster.send(2, own, remove, relay, epoch=2)
    assert done == Done()
    assert reason(removed) is Refusal.AGENT_IS_ALIVE
    assert isinstance(relayed, Relayed)
    assert reason(relayed.answers[0]) is Refusal.AGENT_IS_ALIVE
    (removed,) = cluster.outcome(1, remove, epoch=2, n=3).answers
    assert removed == Done()


def test_two_proposals_of_one_fence_both_succeed(cluster: Cluster) -> None:
    cluster.fence(2, by=1)
    generation = cluster.view.agents_generation
    cluster.fence(2, by=1)
    assert cluster.view.agents_generation == generation


def test_a_fenced_agent_begins_anew_with_its_next_epoch(cluster: Cluster) -> None:
    cluster.fence(2, by=1)
    cluster.send(2, RegisterAgent(agent=2, level_max=2), epoch=2)
    assert cluster.send(2, to_object(), epoch=2) == [RunsCommitted([[BatchStatus.STORED, 0]])]
    assert reason(cluster.outcome(2, to_object("p")).answers[0]) is Refusal.FENCED_AGENT


# -- draining and removing ---------------------------------------------------------------------


def test_draining_is_taken_back_and_not_for_the_fenced(cluster: Cluster) -> None:
    cluster.send(1, DrainAgent(agent=2, draining=True))
    assert [agent.status for agent in cluster.view.agents()] == [0, AgentStatus.DRAINING]
    assert cluster.send(2, to_object()) == [RunsCommitted([[BatchStatus.STORED, 0]])]
    cluster.send(1, DrainAgent(agent=2, draining=False))
    assert [agent.status for agent in cluster.view.agents()] == [0, 0]
    cluster.fence(2, by=1)
    for draining in (True, False):
        answer = cluster.send(1, DrainAgent(agent=2, draining=draining))[0]
        assert reason(answer) is Refusal.FENCED_AGENT
    answer = cluster.send(1, DrainAgent(agent=9, draining=True))[0]
    assert reason(answer) is Refusal.UNKNOWN_AGENT


def test_an_agent_is_removed_once_it_is_fenced_and_its_wal_is_empty(cluster: Cluster) -> None:
    assert reason(cluster.send(1, RemoveAgent(agent=2))[0]) is Refusal.AGENT_IS_ALIVE
    cluster.send(2, ClaimWal(wal_id=WAL_ID), to_wal())
    cluster.fence(2, by=1)
    assert reason(cluster.send(1, RemoveAgent(agent=2))[0]) is Refusal.WAL_IN_USE
    cluster.send(1, store(cluster.queries.wal_runs(1)))
    assert cluster.send(1, RemoveAgent(agent=2)) == [Done()]
    assert [agent.agent_id for agent in cluster.view.agents()] == [1]
    assert cluster.queries.wals() == []
    assert reason(cluster.send(1, RemoveAgent(agent=2))[0]) is Refusal.UNKNOWN_AGENT


def test_no_entry_of_a_removed_agent_is_applied_a_second_time(cluster: Cluster) -> None:
    cluster.send(2, to_object())
    cluster.fence(2, by=1)
    cluster.send(1, RemoveAgent(agent=2))
    # All that it ever sent comes again, in order.
    for n, command in enumerate((RegisterAgent(agent=2, level_max=2), to_wal(0))):
        outcome = cluster.outcome(2, command, n=n)
        assert outcome.standing is Standing.REFUSED
    assert len(cluster.queries.runs_from(KEY, 0, limit=9)) == 1
    cluster.send(2, RegisterAgent(agent=2), epoch=2)


# -- WALs --------------------------------------------------------------------------------------


def test_only_the_owners_epoch_names_runs_in_a_wal(cluster: Cluster) -> None:
    assert reason(cluster.send(2, to_wal())[0]) is Refusal.WAL_NOT_OWNED
    assert cluster.send(2, ClaimWal(wal_id=WAL_ID)) == [WalClaimed(1, 0)]
    assert reason(cluster.send(1, to_wal())[0]) is Refusal.WAL_NOT_OWNED
    assert cluster.send(2, to_wal(generation=7)) == [RunsCommitted([[BatchStatus.STORED, 0]])]
    (run,) = cluster.queries.wal_runs(1)
    assert (run.wal_key, run.file_generation) == (1, 7)
    assert cluster.queries.wal_runs() == []
    # Its next epoch has to claim it first: files may have been cut in between.
    cluster.send(2, RegisterAgent(agent=2, level_max=2), epoch=2)
    assert reason(cluster.send(2, to_wal(generation=8), epoch=2)[0]) is Refusal.WAL_NOT_OWNED
    assert cluster.send(2, ClaimWal(wal_id=WAL_ID), epoch=2) == [WalClaimed(1, 7)]


def test_a_wal_is_taken_over_after_its_owner_was_fenced(cluster: Cluster) -> None:
    cluster.send(2, ClaimWal(wal_id=WAL_ID), to_wal(generation=3))
    assert reason(cluster.send(1, ClaimWal(wal_id=WAL_ID))[0]) is Refusal.AGENT_IS_ALIVE
    cluster.send(1, DrainAgent(agent=2, draining=True))
    assert reason(cluster.send(1, ClaimWal(wal_id=WAL_ID))[0]) is Refusal.AGENT_IS_ALIVE
    cluster.fence(2, by=1)
    assert cluster.send(1, ClaimWal(wal_id=WAL_ID)) == [WalClaimed(1, 3)]
    late = cluster.outcome(2, to_wal(generation=4))
    assert late.standing is Standing.REFUSED
    assert cluster.send(1, to_wal(generation=4)) == [RunsCommitted([[BatchStatus.STORED, 2]])]
    answers = cluster.send(1, store(cluster.queries.wal_runs(1)[:1]))
    assert answers == [SegmentStored(1)]


def test_a_wal_of_an_owners_older_epoch_is_free(cluster: Cluster) -> None:
    cluster.send(2, ClaimWal(wal_id=WAL_ID))
    cluster.send(2, RegisterAgent(agent=2, level_max=2), epoch=2)
    assert cluster.send(1, ClaimWal(wal_id=WAL_ID)) == [WalClaimed(1, 0)]
    assert reason(cluster.send(2, to_wal(), epoch=2)[0]) is Refusal.WAL_NOT_OWNED


def test_each_directory_has_a_key_and_no_key_is_given_twice(cluster: Cluster) -> None:
    assert cluster.send(2, ClaimWal(wal_id=WAL_ID)) == [WalClaimed(1, 0)]
    cluster.fence(2, by=1)
    cluster.send(1, RemoveAgent(agent=2))
    assert cluster.send(1, ClaimWal(wal_id=b"x" * 16)) == [WalClaimed(2, 0)]
    assert cluster.send(1, ClaimWal(wal_id=WAL_ID)) == [WalClaimed(3, 0)]


# -- shards ------------------------------------------------------------------------------------


def test_of_two_that_claim_a_shard_one_wins(cluster: Cluster) -> None:
    shard = group_shard("g")
    assert cluster.send(1, ClaimShard(shard=shard, shard_epoch=0)) == [ShardClaimed(1)]
    answer = cluster.send(2, ClaimShard(shard=shard, shard_epoch=0))[0]
    assert reason(answer) is Refusal.STALE_SHARD
    assert (cluster.view.shard_owner(shard), cluster.view.shard_epoch(shard)) == (1, 1)
    assert cluster.send(2, ClaimShard(shard=shard, shard_epoch=1)) == [ShardClaimed(2)]
    assert cluster.view.shard_owner(shard) == 2


def test_a_group_command_of_another_shard_epoch_changes_nothing(cluster: Cluster) -> None:
    write = OffsetWrite(topic_id=TOPIC_ID, partition=0, offset=1)
    cluster.send(1, ClaimShard(shard=group_shard("g"), shard_epoch=0), save(1))
    cluster.send(2, ClaimShard(shard=group_shard("g"), shard_epoch=1))
    for shard_epoch in (0, 1, 3):
        for command in (
            save(shard_epoch),
            CommitOffsets(group_id="g", offsets=[write], shard_epoch=shard_epoch),
            DeleteOffsets(group_id="g", items=[(TOPIC_ID, 0)], shard_epoch=shard_epoch),
            DeleteGroups(group_ids=["g"], shard_epoch=shard_epoch),
        ):
            assert reason(cluster.send(1, command)[0]) is Refusal.STALE_SHARD
    assert cluster.queries.group("g") is not None
    assert group_offsets(cluster.queries, "g") == {}
    assert cluster.send(2, save(2)) == [Done()]
    # A shard that nobody ever claimed is at epoch 0.
    other = next(name for name in "hijk" if group_shard(name) != group_shard("g"))
    assert cluster.send(2, save(0, other)) == [Done()]


def test_groups_of_several_shards_are_deleted_all_or_not(cluster: Cluster) -> None:
    other = next(name for name in "hijk" if group_shard(name) != group_shard("g"))
    cluster.send(1, save(0), save(0, other), ClaimShard(shard=group_shard("g"), shard_epoch=0))
    answer = cluster.send(1, DeleteGroups(group_ids=[other, "g"], shard_epoch=0))[0]
    assert reason(answer) is Refusal.STALE_SHARD
    assert len(cluster.queries.groups()) == 2


def test_shards_are_free_when_their_owners_epoch_is_over(cluster: Cluster) -> None:
    cluster.send(2, ClaimShard(shard=3, shard_epoch=0), ClaimShard(shard=5, shard_epoch=0))
    cluster.send(2, RegisterAgent(agent=2, level_max=2), epoch=2)
    assert cluster.view.shard_owner(3) is None
    cluster.send(2, ClaimShard(shard=3, shard_epoch=1), epoch=2)
    assert (cluster.view.shard_owner(3), cluster.view.shard_owner(5)) == (2, None)
    here = cluster.replica.position
    cluster.send(1, Fence(agent=2, epoch=2, seen_position=here))
    assert (cluster.view.shard_owner(3), cluster.view.shard_epoch(3)) == (None, 2)


def test_there_are_64_shards(cluster: Cluster) -> None:
    for shard in (-1, GROUP_SHARDS):
        answer = cluster.send(1, ClaimShard(shard=shard, shard_epoch=0))[0]
        assert reason(answer) is Refusal.STALE_SHARD
    # Fixed for ever: another hash would split groups between coordinators.
    assert [group_shard(name) for name in ("", "g", "readers")] == [0, 24, 39]


# -- objects -----------------------------------------------------------------------------------


def test_a_condemned_object_is_never_named(cluster: Cluster) -> None:
    cluster.send(2, ClaimWal(wal_id=WAL_ID), to_wal())
    assert cluster.send(1, CondemnObjects(keys=["o"])) == [Condemned(["o"])]
    assert reason(cluster.send(2, to_object("o"))[0]) is Refusal.OBJECT_CONDEMNED
    segment = store(cluster.queries.wal_runs(1), object_key="o")
    assert reason(cluster.send(2, segment)[0]) is Refusal.OBJECT_CONDEMNED
    assert len(cluster.queries.wal_runs(1)) == 1


def test_a_named_object_is_never_condemned(cluster: Cluster) -> None:
    cluster.send(2, to_object("o"))
    assert cluster.send(1, CondemnObjects(keys=["o"])) == [Condemned([])]
    (run,) = cluster.queries.runs_from(KEY, 0, limit=9)
    assert (run.object_key, run.raw) == ("o", 1)


def test_an_inherited_object_is_forgotten_and_never_condemned(cluster: Cluster) -> None:
    cluster.send(2, to_object("parents"), to_object("parents-too"))
    cluster.replica.close()
    cluster.queries._connection.close()
    connection = sqlite3.connect(cluster.path)
    connection.execute("UPDATE objects SET origin = 's3://bucket/parent'")
    connection.commit()
    connection.close()
    cluster.replica = Replica.open(cluster.path, LogMachine(), fsync=False)
    cluster.queries = Queries(cluster.path)
    assert {run.origin for run in cluster.queries.runs_from(KEY, 0, limit=9)} == {
        "s3://bucket/parent"
    }
    assert cluster.send(1, CondemnObjects(keys=["parents"])) == [Condemned([])]
    cluster.send(1, TrimLog(items=[KEY, 2]))
    assert cluster.queries.unreferenced_objects(limit=9) == ["parents"]
    assert cluster.send(1, CondemnObjects(keys=["parents", "parents-too"])) == [Condemned([])]
    assert [row.key for row in cluster.queries.objects("", 9)] == ["parents-too"]
    assert condemned_objects(cluster.queries) == []


# -- levels ------------------------------------------------------------------------------------


def test_below_its_level_no_command_of_the_cluster_is_applied(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, level=1)
    before = cluster.queries.agents()
    for command in (
        Heartbeat(),
        Fence(agent=2, epoch=1, seen_position=99),
        DrainAgent(agent=2, draining=True),
        RemoveAgent(agent=2),
        ClaimWal(wal_id=WAL_ID),
        ClaimShard(shard=0, shard_epoch=0),
        to_object(raw=True),
    ):
        assert reason(cluster.send(1, command)[0]) is Refusal.LEVEL_NOT_ON
    assert reason(cluster.send(1, to_wal())[0]) is Refusal.WAL_NOT_OWNED
    assert (cluster.queries.agents(), cluster.queries.shards(), cluster.queries.wals()) == (
        before,
        [],
        [],
    )
    # As the releases of level 1 do: there is one shard, and any epoch from 0 on is its.
    assert cluster.send(1, save(5)) == [Done()]
    assert reason(cluster.send(1, save(-1))[0]) is Refusal.STALE_SHARD
    cluster.close()


def test_the_level_rises_once_every_agent_knows_it_whose_epoch_is_not_over(
    tmp_path: Path,
) -> None:
    cluster = Cluster(tmp_path)
    cluster.send(1, RegisterAgent(agent=1, level_max=3), epoch=2)
    answer = cluster.send(1, SetFeatureLevel(level=3), epoch=2)[0]
    assert reason(answer) is Refusal.LEVEL_NOT_KNOWN
    assert cluster.queries.feature_level() == cluster.view.feature_level == 2
    assert cluster.send(1, SetFeatureLevel(level=1), epoch=2) == [Done()]
    assert cluster.queries.feature_level() == 2
    cluster.close()


def test_which_agent_a_refusal_names_does_not_go_by_what_is_in_memory(cluster: Cluster) -> None:
    """Below level 4 the sentence is state; agents in memory stand in the order of their coming."""
    for agent in (1, 2):
        cluster.send(agent, RegisterAgent(agent=agent, level_max=3), epoch=2)
    for agent in (9, 5):
        cluster.send(agent, RegisterAgent(agent=agent, level_max=2))
    (answer,) = cluster.send(1, SetFeatureLevel(level=3), epoch=2)
    assert isinstance(answer, Refused)
    assert answer.detail == "agent 5 knows feature level 2, not 3"


def test_a_state_of_a_later_level_is_refused_at_the_start(tmp_path: Path) -> None:
    # As a snapshot brings it, past the entry that switched the level on.
    Cluster(tmp_path).close()
    connection = sqlite3.connect(tmp_path / "metadata.sqlite")
    later = FEATURE_LEVEL_MAX + 1
    connection.execute("UPDATE meta SET value = ? WHERE name = 'feature_level'", (later,))
    connection.commit()
    connection.close()
    said = f"feature level {later} is on, this release knows {FEATURE_LEVEL_MAX}"
    with pytest.raises(InvalidRequestError, match=said):
        Replica.open(tmp_path / "metadata.sqlite", LogMachine(), fsync=False)


def test_a_segment_of_runs_of_any_wal(cluster: Cluster) -> None:
    cluster.send(2, ClaimWal(wal_id=WAL_ID))
    cluster.send(2, to_wal(), to_wal(position=500))
    runs = cluster.queries.wal_runs(1)
    wrong = store(runs)
    moved = wrong.runs[0]
    # The same generation of the embedded server's WAL is another file.
    numbers = [value & 0xFFFFFFFF for value in moved.runs]
    other = StoreSegment(
        object_key="x",
        object_bytes=1,
        runs=[type(moved)(partition_key=KEY, position=16, runs=numbers)],
    )
    assert cluster.send(2, other) == [SegmentStored(0)]
    assert cluster.send(2, wrong) == [SegmentStored(2)]


@pytest.mark.parametrize("level", [3, 4])
def test_what_expires_is_deleted_as_it_was_seen_from_level_4_on(tmp_path: Path, level: int) -> None:
    cluster = Cluster(tmp_path, level=2)
    for agent in (1, 2):
        cluster.send(agent, RegisterAgent(agent=agent, level_max=level), epoch=2)
    cluster.send(1, SetFeatureLevel(level=level), epoch=2)
    write = OffsetWrite(topic_id=TOPIC_ID, partition=0, offset=1)
    cluster.send(1, save(0, "g"), CommitOffsets(group_id="g", offsets=[write]), epoch=2)
    row = cluster.queries.group("g")
    assert row is not None
    since_ms = -1 if row.empty_since_ms is None else row.empty_since_ms
    (offset,) = group_offsets(cluster.queries, "g").values()
    others = [
        DeleteOffsets(group_id="g", items=[(TOPIC_ID, 0)], seen_ms=[offset.commit_ms - 1]),
        DeleteGroups(group_ids=["g"], seen=[(since_ms - 1, offset.commit_ms)]),
        DeleteGroups(group_ids=["g"], seen=[(since_ms, offset.commit_ms - 1)]),
    ]
    for command in others if level == 4 else others[:1]:
        assert cluster.send(1, command, epoch=2) == [Done()]
    assert len(group_offsets(cluster.queries, "g")) == (1 if level == 4 else 0)
    as_seen = [
        DeleteOffsets(group_id="g", items=[(TOPIC_ID, 0)], seen_ms=[offset.commit_ms]),
        DeleteGroups(group_ids=["g"], seen=[(since_ms, -1)]),
    ]
    for command in as_seen:
        assert cluster.send(1, command, epoch=2) == [Done()]
    assert cluster.queries.group("g") is None
    cluster.close()
