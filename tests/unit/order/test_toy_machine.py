"""A machine that shares no type with the log runs on the local, the cluster's and the host's order.

What is held here is the order's own promise: commits are answered by applying, in order; an entry
that is sent again is applied once; a command above the level isn't sent; an epoch that is over
stops its agent.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from penstock.model.errors import FencedError, PenstockError, RetryableError
from penstock.order.cluster_order import ClusterOrder
from penstock.order.host.hub import WorkerHub
from penstock.order.host.order import HostOrder
from penstock.order.host.streams import socket_path
from penstock.order.local_journal import LocalJournal
from penstock.order.local_order import LocalOrder
from penstock.order.port import AppliedEntries, Order
from penstock.order.protocol import AgentIdentity, EntryKey
from penstock.replica.database import connect_reader
from penstock.replica.replica import Replica
from support.simulated.clock import ManualClock
from support.simulated.journal import JournalFaults, SimulatedJournal
from support.simulated.randomness import SeededRandom
from support.simulated.virtual_loop import VirtualClock, VirtualLoop
from unit.order.toy import PROTOCOL, RELAYING, Answer, Change, Command, Toy, ToyState

NOW_MS = 1_600_000_000_000
LOSSY = JournalFaults(
    delay_ms=(0, 8),
    commit_ms=(0, 12),
    lost_request_permille=100,
    lost_reply_permille=200,
    doubled_permille=200,
    gap_permille=50,
)
SUMS = [number * (number + 1) // 2 for number in range(1, 31)]
"""The answers to adding 1, 2, 3, ... to a sum that was 0."""


class Seen:
    """What an order has said of its entries, and how it ended."""

    def __init__(self) -> None:
        self.answers: list[Answer] = []
        self.positions: list[int] = []
        self.stopped: list[PenstockError] = []

    def applied(self, entries: AppliedEntries[Answer, Change]) -> None:
        self.positions += [entry.position for entry in entries]
        self.answers += [answer for entry in entries for answer in entry.outcome.answers]


async def add_up(order: Order[Command, Answer]) -> list[Answer]:
    """Add 1, 2, 3, ... in calls that overlap; the answers in the order of the calls."""
    calls = [order.submit([["add", number]]) for number in range(1, 31)]
    return [answer for (answer,) in await asyncio.wait_for(asyncio.gather(*calls), 600)]


# -- its own journal ---------------------------------------------------------------------------


class Lane:
    """Journals one call as one entry."""

    hidden_position = 0

    def __init__(self, journal: LocalJournal[Command, Answer, Change]) -> None:
        self.journal = journal
        self.order = LocalOrder(journal, self, clock=ManualClock(now_ms=NOW_MS))
        self.publish = self.order.applied

    def submit_commands(self, commands: Sequence[Command]) -> asyncio.Future[list[Answer]]:
        future: asyncio.Future[list[Answer]] = asyncio.get_running_loop().create_future()
        entry = self.journal.append(commands)
        self.publish(entry)
        future.set_result(entry.outcome.answers)
        self.order.answered(entry, has_commands=True)
        return future


def open_journal(path: Path, *, level: int = 1) -> LocalJournal[Command, Answer, Change]:
    toy = Toy()
    return LocalJournal.open(
        Replica.open(path, toy, fsync=False),
        ToyState(toy),
        PROTOCOL,
        clock=ManualClock(now_ms=NOW_MS),
        random=SeededRandom(1),
        agent_id=1,
        level=level,
    )


async def test_on_an_own_journal(tmp_path: Path) -> None:
    seen, journal = Seen(), open_journal(tmp_path / "toy.sqlite")
    lane = Lane(journal)
    lane.order.start(on_applied=seen.applied)
    assert await add_up(lane.order) == SUMS == seen.answers
    assert seen.positions == [*range(2, 32)]
    assert await lane.order.commit([["add", 1], ["add", 1]]) == [SUMS[-1] + 1, SUMS[-1] + 2]
    cluster_id, epoch = journal.cluster_id, journal.epoch
    journal.close()
    again = open_journal(tmp_path / "toy.sqlite", level=2)
    assert (again.cluster_id, again.epoch) == (cluster_id, epoch + 1)
    assert again.append([["add twice", 1]]).outcome.answers == [SUMS[-1] + 4]
    later = EntryKey(1, again.epoch + 1, 0)
    again._replica.append(PROTOCOL.encode(later, NOW_MS, [["add", 1]]), stamp_ms=NOW_MS)
    with pytest.raises(FencedError, match=f"{later.epoch} is open"):
        again.append([["add", 1]])
    again.close()


# -- a cluster's journal -----------------------------------------------------------------------


class Cluster:
    """One journal and the agents on it."""

    def __init__(self, loop: VirtualLoop, folder: Path) -> None:
        self.folder = folder
        self.clock = VirtualClock(loop)
        self.random = SeededRandom(7)
        self.journal = SimulatedJournal(random=self.random, clock=self.clock)
        self.orders: list[ClusterOrder[Command, Answer, Change]] = []

    async def start(
        self, agent_id: int, seen: Seen | None = None
    ) -> ClusterOrder[Command, Answer, Change]:
        seen = seen or Seen()
        toy = Toy()
        state = ToyState(toy)
        path = self.folder / f"{len(self.orders)}.sqlite"
        order = await ClusterOrder.open(
            self.journal.connect(),
            Replica.open(path, toy, fsync=False, keeps_journal=False),
            state,
            state,
            PROTOCOL,
            identity=AgentIdentity(agent_id=agent_id),
            cluster_id=self.journal.cluster_id,
            clock=self.clock,
            random=self.random,
        )
        self.orders.append(order)
        await order.start(on_applied=seen.applied, on_stopped=seen.stopped.append)
        return order


@pytest.fixture
async def cluster(virtual_loop: VirtualLoop, tmp_path: Path) -> AsyncIterator[Cluster]:
    cluster = Cluster(virtual_loop, tmp_path)
    yield cluster
    for order in cluster.orders:
        await order.close()


@pytest.mark.parametrize("faults", [JournalFaults(), LOSSY], ids=["sound", "lossy"])
async def test_on_a_clusters_journal(cluster: Cluster, faults: JournalFaults) -> None:
    seen, other_seen = Seen(), Seen()
    one = await cluster.start(1, seen)
    other = await cluster.start(2, other_seen)
    cluster.journal.faults = faults
    assert await add_up(one) == SUMS
    cluster.journal.faults = JournalFaults()
    assert await other.commit([["add", 1]]) == [SUMS[-1] + 1]
    await one.confirm_head()
    sums = [answer for answer in seen.answers if isinstance(answer, int) and answer]
    assert list(dict.fromkeys(sums)) == [*SUMS, SUMS[-1] + 1]
    assert one.position == other.position
    assert one.digest() == other.digest()


async def test_a_command_above_the_level_is_not_sent(cluster: Cluster) -> None:
    one, other = await cluster.start(1), await cluster.start(2)
    head = cluster.journal.head
    with pytest.raises(RetryableError, match="level 2 is needed, 1 is on"):
        await one.commit([["add twice", 1]])
    assert cluster.journal.head == head
    await other.commit([["level", 2]])
    await one.confirm_head()
    assert await one.commit([["add twice", 1]]) == [2]


async def test_an_epoch_that_is_over_stops_its_agent(cluster: Cluster) -> None:
    seen = Seen()
    first = await cluster.start(1, seen)
    await first.commit([["add", 1]])
    second = await cluster.start(1)
    assert second.epoch == first.epoch + 1
    with pytest.raises(FencedError, match=f"{second.epoch} is open"):
        await first.commit([["add", 1]])
    assert [type(error) for error in seen.stopped] == [FencedError]
    assert await second.commit([["add", 1]]) == [2]
    await second.end_epoch(5)
    with pytest.raises(PenstockError, match="ending"):
        await second.commit([["add", 1]])


async def test_only_some_commands_go_on_while_replicas_differ(cluster: Cluster) -> None:
    one = await cluster.start(1)
    one.write_stop.error = RetryableError("commit", "agent 1", "replicas differ")
    with pytest.raises(RetryableError, match="replicas differ"):
        await one.commit([["add", 1]])
    assert await one.commit([["level", 2]]) == [0]


# -- a host's writer ---------------------------------------------------------------------------


class Writer(Lane):
    """The journal's writer and its hub."""

    def __init__(self, folder: Path) -> None:
        super().__init__(open_journal(folder / "toy.sqlite"))
        self.refusals = 0
        self.lost_replies = 0
        self.hub: WorkerHub[Command, Answer, Change] = WorkerHub(
            path=socket_path(folder),
            cluster_id=self.journal.cluster_id,
            committer=self,
            relaying=RELAYING,
            position=lambda: self.journal.position,
            flush=self.flush,
        )
        self.publish = self.hub.publish

    async def commit(self, commands: Sequence[Command]) -> list[Answer]:
        if self.refusals:
            self.refusals -= 1
            raise RetryableError("append", "journal", "no space")
        answers = await self.submit_commands(commands)
        if self.lost_replies:
            self.lost_replies -= 1
            for follower in self.hub._followers:
                follower.transport.abort()
        return answers

    async def flush(self) -> int:
        return self.journal.commit()


@asynccontextmanager
async def host(folder: Path) -> AsyncIterator[Writer]:
    writer = Writer(folder)
    await writer.hub.start()
    yield writer
    await writer.hub.close()
    writer.journal.close()


@asynccontextmanager
async def worker(
    folder: Path, seen: Seen, agent_id: int = 2
) -> AsyncIterator[HostOrder[Command, Answer, Change]]:
    toy = Toy()
    state = ToyState(toy)
    order = HostOrder(
        path=socket_path(folder),
        state=state,
        levels=state,
        protocol=PROTOCOL,
        relaying=RELAYING,
        identity=AgentIdentity(agent_id=agent_id),
        clock=ManualClock(now_ms=NOW_MS),
        random=SeededRandom(agent_id),
    )
    await order.open()
    connection = connect_reader(folder / "toy.sqlite")
    toy.bind(connection)
    try:
        await order.start(
            on_applied=seen.applied, on_reset=state.position, on_stopped=seen.stopped.append
        )
        yield order
    finally:
        await order.close()
        connection.close()


@pytest.mark.parametrize(("refusals", "lost_replies"), [(0, 0), (5, 0), (0, 5), (3, 3)])
async def test_on_a_hosts_writer(tmp_path: Path, refusals: int, lost_replies: int) -> None:
    async with AsyncExitStack() as stack:
        writer, seen = await stack.enter_async_context(host(tmp_path)), Seen()
        order = await stack.enter_async_context(worker(tmp_path, seen))
        writer.refusals, writer.lost_replies = refusals, lost_replies
        assert await add_up(order) == SUMS
        assert order.position == writer.journal.position
        assert writer.refusals == writer.lost_replies == 0
        assert seen.positions == sorted(set(seen.positions))
        assert not seen.stopped


async def test_a_worker_follows_the_level_and_ends_with_its_epoch(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        writer, seen = await stack.enter_async_context(host(tmp_path)), Seen()
        order = await stack.enter_async_context(worker(tmp_path, seen))
        with pytest.raises(RetryableError, match="level 2 is needed, 1 is on"):
            await order.commit([["add twice", 1]])
        await writer.commit([["level", 2]])
        await order.confirm_head()
        assert await order.commit([["add twice", 1]]) == [2]
        await order.flush()
        second = await stack.enter_async_context(worker(tmp_path, Seen()))
        assert second.epoch == order.epoch + 1
        with pytest.raises(FencedError, match=f"{second.epoch} is open"):
            await order.commit([["add", 1]])
        assert [type(error) for error in seen.stopped] == [FencedError]
        assert await second.commit([["add", 1]]) == [3]
