"""Workers of one host: entries of one are ordered by another, and each sees what all do."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvloop
from hypothesis import given
from hypothesis import strategies as st

from penstock.model.epochs import epoch_floor
from penstock.model.errors import ConflictError, FencedError, PenstockError, RetryableError
from penstock.model.ids import PartitionKey
from penstock.order.host.streams import socket_path
from penstock.order.outcome import Standing
from penstock.order.protocol import AgentIdentity
from penstock.ports.clock import Clock
from penstock.replica.applied import Applied
from penstock.state.answers import AnyAnswer, JobOpened, Refused, TopicCreated
from penstock.state.apply.machine import EntryOutcome
from penstock.state.changes import AgentSeen, Change, HeadMoved
from penstock.state.commands import AnyCommand, CreateTopic, Noop
from penstock.state.levels import LevelNotOnError
from penstock.state.orders import (
    host_order,
    open_local_journal,
    worker_hub,
)
from penstock.state.packed_changes import pack_changes, unpack_changes
from penstock.state.pipeline_commands import OpenJob
from penstock.state.read.queries import Queries
from penstock.state.read.view import StateView
from penstock.state.rows import Shard
from penstock.state.schema import CLUSTER_LEVEL, PIPELINE_LEVEL
from penstock.system.clock import SystemClock
from support.simulated.clock import ManualClock
from support.simulated.randomness import SeededRandom
from support.waiting import until

WRITER, WORKER = 1, 2


class Writer:
    """The journal's writer, as worker 0 has it: an order, and the hub over it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.lost_replies = 0
        self.refusals = 0
        self.level = CLUSTER_LEVEL
        self.doubts = False

    async def start(self) -> None:
        self.order = open_local_journal(
            self.folder / "metadata.sqlite",
            clock=SystemClock(),
            random=SeededRandom(1),
            agent_id=WRITER,
            fsync=False,
            level=self.level,
        )
        self.hub = worker_hub(
            path=socket_path(self.folder),
            cluster_id=self.order.cluster_id,
            committer=self,
            position=lambda: self.order.position,
            flush=self.flush,
            is_clock_doubted=lambda: self.doubts,
        )
        await self.hub.start()

    async def commit(self, commands: Sequence[AnyCommand]) -> list[AnyAnswer]:
        if self.refusals:
            self.refusals -= 1
            raise RetryableError("append", "log", "the disk is full")
        applied = self.order.append(commands)
        self.hub.publish(applied)
        if self.lost_replies:
            self.lost_replies -= 1
            await self.die()
            await self.start()
            raise asyncio.CancelledError
        return applied.outcome.answers

    async def flush(self) -> int:
        return self.order.commit()

    async def die(self) -> None:
        """End without a word, as a crash does."""
        task = asyncio.current_task()
        self.hub._tasks.discard(task)  # type: ignore[arg-type]
        await self.hub.close()
        self.order.close()


class Worker:
    """A worker with its view."""

    def __init__(self, folder: Path, agent_id: int = WORKER, *, clock: Clock | None = None) -> None:
        self.queries = Queries(folder / "metadata.sqlite")
        self.view = StateView()
        self.resets = 0
        self.stopped: list[PenstockError] = []
        self.order = host_order(
            path=socket_path(folder),
            queries=lambda: self.queries,
            identity=AgentIdentity(
                agent_id=agent_id, endpoint=f"host:{agent_id}", level_max=PIPELINE_LEVEL
            ),
            clock=clock or SystemClock(),
            random=SeededRandom(agent_id),
        )

    async def start(self) -> None:
        await self.order.open()
        await self.order.start(
            on_applied=lambda applied: [self.view.apply(one.outcome.changes) for one in applied],
            on_reset=self.reset,
            on_stopped=self.stopped.append,
        )

    def reset(self) -> int:
        self.resets += 1
        self.view = StateView.load(self.queries)
        return self.view.loaded_position

    async def close(self) -> None:
        await self.order.close()
        self.queries.close()


@asynccontextmanager
async def host(
    folder: Path, workers: int = 1, *, clock: Clock | None = None
) -> AsyncIterator[tuple[Writer, list[Worker]]]:
    async with AsyncExitStack() as stack:
        writer = Writer(folder)
        await writer.start()
        stack.push_async_callback(writer.die)
        found = []
        for number in range(workers):
            worker = Worker(folder, WORKER + number, clock=clock)
            await worker.start()
            stack.push_async_callback(worker.close)
            found.append(worker)
        yield writer, found


def topic(name: str) -> CreateTopic:
    return CreateTopic(name=name, topic_id=name.encode().ljust(16, b"."), partitions=1)


async def test_a_worker_hands_over_no_command_of_a_level_that_is_off(tmp_path: Path) -> None:
    job = OpenJob(kind="k", name="n", lease_ms=1, age_max_ms=1)
    async with host(tmp_path) as (writer, (worker,)):
        position = writer.order.position
        with pytest.raises(LevelNotOnError, match="level 3 is needed, 2 is on"):
            await worker.order.commit([job])
        assert writer.order.position == position
        # A writer of a later release raises the level; the worker connects to that one.
        await writer.die()
        writer.level = PIPELINE_LEVEL
        await writer.start()
        while worker.resets < 2:
            await asyncio.sleep(0.01)
        (answer,) = await worker.order.commit([job])
        assert isinstance(answer, JobOpened)


async def test_a_worker_knows_whether_the_writer_doubts_its_clock(tmp_path: Path) -> None:
    async with host(tmp_path) as (writer, (worker,)):
        for doubts in (True, False):
            writer.doubts = doubts
            await worker.order.commit([Noop()])
            assert worker.order.is_clock_doubted is doubts


async def test_epochs_are_at_least_the_seconds_since_2020(tmp_path: Path) -> None:
    """So that neither a restore nor an older journal gives one out twice."""
    before = epoch_floor(SystemClock().now_ms())
    async with host(tmp_path) as (writer, (worker,)):
        assert writer.order.epoch >= before
        assert worker.order.epoch >= before


async def test_each_worker_s_commands_are_ordered_and_seen_by_all(tmp_path: Path) -> None:
    async with host(tmp_path, workers=2) as (writer, (first, second)):
        answers = await asyncio.gather(
            *(
                worker.order.commit([topic(f"t-{n}-{worker.order.agent_id}")])
                for n in range(20)
                for worker in (first, second)
            )
        )
        assert all(isinstance(answer, TopicCreated) for (answer,) in answers)
        await first.order.confirm_head()
        await second.order.confirm_head()
        names = {found.name for found in first.view.topics()}
        assert len(names) == 40
        assert names == {found.name for found in second.view.topics()}
        assert first.order.position == second.order.position == writer.order.position
        assert await first.order.flush() == writer.order.position


async def test_a_view_holds_what_its_own_answer_tells_of(tmp_path: Path) -> None:
    async with host(tmp_path) as (_, (worker,)):
        for number in range(10):
            await worker.order.commit([topic(f"t{number}")])
            assert worker.view.topic(f"t{number}") is not None


async def test_a_confirmed_head_is_no_older_than_what_another_worker_was_answered(
    tmp_path: Path,
) -> None:
    async with host(tmp_path, workers=2) as (_, (first, second)):
        for number in range(20):
            await first.order.commit([topic(f"t{number}")])
            await second.order.confirm_head()
            assert second.view.topic(f"t{number}") is not None


async def test_a_confirmed_head_counts_from_when_it_was_asked_for(tmp_path: Path) -> None:
    """What is served meanwhile is as old as the question, however late the answer comes."""
    clock = ManualClock()
    asked_s: list[float] = []
    async with host(tmp_path, clock=clock) as (writer, (worker,)):

        def answer_late() -> int:
            asked_s.append(clock.monotonic_s())
            clock.advance(10)
            return writer.order.position

        writer.hub._position = answer_late
        await worker.order.confirm_head()
        assert worker.order.head_confirmed_s <= max(asked_s)


async def test_a_worker_that_missed_an_entry_begins_again(tmp_path: Path) -> None:
    async with host(tmp_path) as (writer, (worker,)):
        writer.order.append([topic("missed")])  # and not published
        await writer.commit([topic("next")])
        await until(lambda: worker.resets == 2)
        assert worker.view.topic("missed") is not None
        assert worker.view.topic("next") is not None


async def test_what_is_applied_while_a_worker_connects_reaches_it(tmp_path: Path) -> None:
    """The file that the worker loads lacks it, and it comes before the worker is welcome."""
    async with host(tmp_path) as (writer, (worker,)):

        async def flush_for_long() -> int:
            writer.hub._flush = writer.flush
            position = writer.order.commit()
            entry = writer.order.prepare([topic("meanwhile")])
            writer.hub.publish(writer.order.append_written(entry, lambda *_: None))
            return position

        writer.hub._flush = flush_for_long
        await writer.hub.close()
        await writer.hub.start()
        await until(lambda: worker.resets == 2)
        await worker.order.confirm_head()
        assert worker.view.topic("meanwhile") is not None


async def test_an_entry_whose_reply_died_with_the_writer_is_applied_once(tmp_path: Path) -> None:
    async with host(tmp_path) as (writer, (worker,)):
        await worker.order.commit([topic("before")])
        writer.lost_replies = 1
        (answer,) = await worker.order.commit([topic("once")])
        # A second application would refuse it: the topic is there.
        assert isinstance(answer, TopicCreated), answer
        (answer,) = await worker.order.commit([topic("once")])
        assert isinstance(answer, Refused)
        assert worker.resets == 2
        assert worker.view.topic("once") is not None


async def test_what_a_full_disk_refused_is_sent_again(tmp_path: Path) -> None:
    async with host(tmp_path) as (writer, (worker,)):
        writer.refusals = 2
        answers = await asyncio.gather(
            *(worker.order.commit([topic(f"t{number}")]) for number in range(5))
        )
        assert all(isinstance(answer, TopicCreated) for (answer,) in answers)


async def test_without_a_writer_heads_are_not_confirmed(tmp_path: Path) -> None:
    async with host(tmp_path) as (writer, (worker,)):
        await writer.hub.close()
        for _ in range(200):
            if worker.order.answering_since_s is None:
                break
            await asyncio.sleep(0.01)
        with pytest.raises(RetryableError, match="away"):
            await worker.order.confirm_head()
        await writer.hub.start()


async def test_a_second_process_of_a_worker_ends_the_first(tmp_path: Path) -> None:
    async with host(tmp_path) as (writer, (worker,)):
        await writer.flush()
        again = Worker(tmp_path)
        await again.start()
        with pytest.raises(FencedError):
            await worker.order.commit([topic("late")])
        assert len(worker.stopped) == 1
        await again.order.commit([topic("mine")])
        await again.close()


@given(
    st.lists(
        st.one_of(
            st.builds(HeadMoved, st.integers(0, 1 << 60), st.integers(0, 99), st.integers(0, 99)),
            st.builds(AgentSeen, st.integers(1, 1 << 30), st.integers(0, 1 << 60)),
        )
    )
)
def test_changes_survive_their_bytes(found: list[Change]) -> None:
    assert unpack_changes(pack_changes(found)) == found


def test_every_kind_of_change_survives_its_bytes() -> None:
    from penstock.model.ids import TopicId, TopicKey
    from penstock.security.acl import AclBinding
    from penstock.security.api_key import ApiKey
    from penstock.security.quota import QuotaChange, QuotaEntity
    from penstock.security.scram.credential import ScramCredential, ScramMechanism
    from penstock.state import changes
    from penstock.state.rows import (
        Agent,
        AgentStatus,
        HistoryOutcome,
        LostHistory,
        LostReason,
    )
    from penstock.state.state_digest import StateDigest

    agent = Agent(
        agent_id=3,
        epoch=4,
        status=AgentStatus.DRAINING,
        labels={"zone": "a"},
        software="1",
        endpoint="h:1",
        peer="h:2",
        level_max=2,
    )
    digest = StateDigest(
        digest_version=1, feature_level=4, format_version=5, tables=[("topics", b"\xff" * 32)]
    )
    history = LostHistory(
        history=1,
        start=2,
        end=3,
        stamp_ms=4,
        crc=5,
        reason=LostReason.REPLICA,
        agent=6,
        noted_position=7,
        noted_ms=8,
        closed_ms=None,
        outcome=HistoryOutcome.OPEN,
        records=0,
    )
    key = ApiKey(key_id="0" * 16, digest=bytes(32), principal="User:u", expires_ms=1 << 41)
    rule = AclBinding(2, "t", 3, "User:alice", "*", 3, 3)
    credential = ScramCredential(
        mechanism=ScramMechanism.SHA_256,
        iterations=4_096,
        salt=b"salt",
        stored_key=bytes(range(32)),
        server_key=bytes(32),
    )
    every: list[Change] = [
        changes.HeadMoved(PartitionKey(1), 2, 3),
        changes.OpenMoved(PartitionKey(1), -1),
        changes.AgentSeen(1, 2),
        changes.OffsetsSettled(groups=["g", "h"]),
        changes.OpenMoved(PartitionKey(1), 2),
        changes.MarkersWritten(
            producer_id=1,
            producer_epoch=2,
            commits=True,
            time_ms=3,
            places=[(PartitionKey(4), 5), (PartitionKey(6), 7)],
        ),
        changes.RunsMoved(partition_key=PartitionKey(1), start=2, end=3),
        changes.TopicChanged(
            topic_key=TopicKey(1),
            topic_id=TopicId(b"x" * 16),
            name="t",
            partitions=3,
            configs={"a": "b"},
            replication_factor=3,
        ),
        changes.TopicDeleted(topic_key=TopicKey(1), topic_id=TopicId(b"x" * 16), name="t"),
        changes.ClusterConfigsChanged(configs={"a": "b"}),
        changes.AclsChanged(added=[rule], removed=[]),
        changes.CredentialChanged(user="u", mechanism=credential.mechanism, credential=credential),
        changes.CredentialChanged(user="u", mechanism=credential.mechanism, credential=None),
        changes.ApiKeyChanged(key_id=key.key_id, key=key),
        changes.ApiKeyChanged(key_id=key.key_id, key=None),
        changes.QuotasChanged(changes=[QuotaChange(QuotaEntity("u"), "producer_byte_rate", 1.0)]),
        changes.GroupConfigsChanged(group_id="g", configs={"a": "b"}),
        changes.AgentChanged(agent=agent),
        changes.AgentRemoved(agent_id=7),
        changes.ShardMoved(shard=Shard(1, 2, 3, 4)),
        changes.LevelChanged(level=2),
        changes.HistoryChanged(history=history),
        changes.DigestAsked(position=9, agents=[(1, 2), (3, 4)]),
        changes.DigestTold(agent_id=1, digest=digest),
    ]
    assert {type(change) for change in every} == set(changes.Change.__args__)  # type: ignore[attr-defined]
    import msgspec

    packed = msgspec.msgpack.decode(msgspec.msgpack.encode(pack_changes(every)))
    assert unpack_changes(packed) == every


def test_a_path_that_is_too_long_for_a_socket_gets_a_short_one() -> None:
    with tempfile.TemporaryDirectory() as folder:
        deep = Path(folder) / ("d" * 120)
        assert len(str(socket_path(deep))) <= 100
        assert socket_path(deep) == socket_path(deep)
        assert socket_path(deep) != socket_path(Path(folder) / ("e" * 120))


async def test_a_socket_of_another_user_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with host(tmp_path, workers=0):
        mine = os.geteuid()
        monkeypatch.setattr(os, "geteuid", lambda: mine + 1)
        worker = Worker(tmp_path)
        with pytest.raises(ConflictError, match="user"):
            await worker.start()
        await worker.close()


async def test_a_worker_that_cannot_follow_says_that_it_is_over(tmp_path: Path) -> None:
    async with host(tmp_path, workers=1) as (writer, (worker,)):
        worker.view = None  # type: ignore[assignment] # whatever comes can't be applied
        outcome = EntryOutcome(Standing.APPLIED, [], [HeadMoved(PartitionKey(1), 0, 1)])
        writer.hub.publish(Applied(writer.order.position + 1, 1, outcome))
        for _ in range(500):
            if worker.stopped:
                break
            await asyncio.sleep(0.01)
        assert len(worker.stopped) == 1


@pytest.mark.parametrize("runner", [asyncio.run, uvloop.run])
def test_a_worker_that_died_keeps_nothing_from_the_others(
    tmp_path: Path, runner: Callable[[Any], None]
) -> None:
    async def run() -> None:
        async with host(tmp_path, workers=2) as (writer, (first, second)):
            # Dead, and not known to be: the hub meets it before or after the living one.
            dead, living = list(writer.hub._followers)
            dead.transport.abort()
            await asyncio.sleep(0.05)
            writer.hub._followers |= {dead, living}
            applied = writer.order.append([topic("told")])
            writer.hub.publish(applied)
            for worker in (first, second):
                await worker.order.commit([topic(f"mine-{worker.order.agent_id}")])
                await worker.order.confirm_head()
                assert worker.order.position == writer.order.position
                assert {found.name for found in worker.view.topics()} >= {"told"}

    runner(run())
