"""WALs in a cluster: claimed, read by others, taken over; late writes of a fenced owner."""

import asyncio
from pathlib import Path

import pytest
from typing_extensions import Buffer

from penstock.log.fetch.remote_wal import DirectoryWals
from penstock.log.wals.names import ID_FILE, WalName, new_wal_name, read_wal_id, read_wal_name
from penstock.model.errors import (
    ConflictError,
    CorruptDataError,
    FencedError,
    InDoubtError,
    InvalidRequestError,
    NotFoundError,
    RetryableError,
)
from penstock.state.answers import AnyAnswer, BatchStatus, Done, Refusal, Refused
from penstock.state.commands import (
    AnyCommand,
    CommitRuns,
    DrainAgent,
    Fence,
    RunCommit,
)
from penstock.system.files import PosixDevice
from support.agent_ports import FILE_BYTES
from support.cluster_rig import Cluster, ClusterAgent, passing
from support.simulated.device import SimulatedDevice
from support.simulated.inline_executor import InlineExecutor
from support.simulated.randomness import SeededRandom

STORED = BatchStatus.STORED


async def fence(cluster: Cluster, by: ClusterAgent, victim: ClusterAgent) -> None:
    victim.pause_heartbeats()
    await passing(0.1)
    await by.catch_up()
    (answer,) = await by.log.commit(
        [Fence(agent=victim.agent_id, epoch=victim.order.epoch, seen_position=by.order.position)]
    )
    assert isinstance(answer, Done), answer


class PeerCalls:
    """Asks the owner's log directly, as a peer call does."""

    def __init__(self) -> None:
        self.agents: dict[int, ClusterAgent] = {}
        self.away = False
        self.calls = 0

    async def read(
        self, agent: int, wal_key: int, generation: int, position: int, length: int
    ) -> Buffer:
        self.calls += 1
        await passing(0.01)
        if self.away:
            raise RetryableError("read WAL", f"agent {agent}", "it doesn't answer")
        return await self.agents[agent].log.read_own_wal(wal_key, generation, position, length)


async def test_an_append_that_no_wal_file_holds_is_refused_at_once(cluster: Cluster) -> None:
    """No room that is made would be enough for it, and its producer would try for ever. What goes
    to an object is as long as it likes."""
    agent = await cluster.agent(1, wal=True)
    (in_wal,) = await agent.topic("w", penstock__durability="wal")
    (in_object,) = await agent.topic("o")
    for offset in range(2):  # before the WAL is open, and once it is
        began_s = cluster.loop.time()
        with pytest.raises(InvalidRequestError, match=r"takes \d+ .*wal_file_bytes"):
            await agent.append(in_wal, bytes(FILE_BYTES))
        assert cluster.loop.time() == began_s
        assert await agent.append(in_object, bytes(FILE_BYTES)) == (STORED, offset)
        await agent.append(in_wal, b"short")
    parts = await agent.send((in_wal, bytes(FILE_BYTES)), (in_object, b"beside it"))
    assert isinstance(parts[0].error, InvalidRequestError)
    assert (parts[1].status, parts[1].base_offset) == (STORED, 2)


async def test_runs_in_another_agents_wal_are_asked_of_it(cluster: Cluster) -> None:
    peers = PeerCalls()
    one = await cluster.agent(1, wal=True, durability="wal")
    two = await cluster.agent(2, remote_wal=peers)
    peers.agents[1] = one
    (key,) = await one.topic("t")
    started_s = cluster.loop.time()
    for number in range(3):
        assert await one.append(key, b"%d" % number) == (STORED, number)
    assert cluster.loop.time() - started_s < 0.2, "no flush interval, no put"
    assert await two.read_all(key) == [(0, b"0"), (1, b"1"), (2, b"2")]
    assert cluster.store.gets == []
    assert peers.calls == 3
    await one.log.uploader.drain(5)  # type: ignore[union-attr]
    assert await two.read_all(key) == [(0, b"0"), (1, b"1"), (2, b"2")]


async def test_an_owner_that_is_away_fails_its_partitions_and_no_others(cluster: Cluster) -> None:
    peers = PeerCalls()
    one = await cluster.agent(1, wal=True, durability="wal")
    two = await cluster.agent(2, remote_wal=peers)
    peers.agents[1] = one
    (walled,) = await one.topic("w")
    (stored,) = await two.topic("o", penstock__durability="object")
    await one.append(walled, b"a")
    await two.append(stored, b"b")
    two.forget_memory()
    peers.away = True
    await two.catch_up()
    with pytest.raises(RetryableError, match="doesn't answer"):
        await two.log.reader.read_loaded(walled, 0, 1000)
    assert await two.read_all(stored) == [(0, b"b")]
    peers.away = False
    assert await two.read_all(walled) == [(0, b"a")]


async def test_a_directory_of_this_host_is_read_without_its_owner(
    cluster: Cluster, tmp_path: Path
) -> None:
    devices = {1: PosixDevice(tmp_path / "agent1")}
    same_host = DirectoryWals(find=devices.get, pool=InlineExecutor(SeededRandom(5), workers=2))
    one = await cluster.agent(1, wal=True, durability="wal")
    two = await cluster.agent(2, remote_wal=same_host)
    (key,) = await one.topic("t")
    await one.append(key, b"a")
    await one.close()
    assert await two.read_all(key) == [(0, b"a")]
    same_host.close()
    with pytest.raises(NotFoundError):
        await same_host.read(1, 9, 1, 4096, 10)


async def test_an_agent_serves_its_wal_again_after_a_restart(cluster: Cluster) -> None:
    one = await cluster.agent(1, wal=True, durability="wal")
    (key,) = await one.topic("t")
    for number in range(3):
        await one.append(key, bytes(20_000) + b"%d" % number)
    cluster.store.away = RetryableError("put", "store", "away")
    await one.close()
    cluster.store.away = None
    # Another machine with the same volume: an empty replica.
    again = await cluster.agent(1, wal=True, fresh=True, durability="wal")
    assert [offset for offset, _ in await again.read_all(key)] == [0, 1, 2]
    assert await again.append(key, b"3") == (STORED, 3)
    assert await again.log.uploader.drain(5)  # type: ignore[union-attr]
    reader = await cluster.agent(2)
    assert [offset for offset, _ in await reader.read_all(key)] == [0, 1, 2, 3]


async def test_a_fenced_agents_wal_is_taken_over_and_what_was_never_named_is_cut(
    cluster: Cluster, tmp_path: Path
) -> None:
    one = await cluster.agent(1, wal=True, durability="wal")
    two = await cluster.agent(2)
    (key,) = await one.topic("t")
    for number in range(5):
        await one.append(key, b"%d" % number, producer=(7, 0, number))
    # Its last frame is durable, but the order of it never reached the journal.
    one.journal.cut = True
    one.journal.break_off("cut")
    lost = one.send((key, b"5"), producer=(7, 0, 5), timeout_ms=500)
    with pytest.raises(RetryableError):
        await lost
    with pytest.raises(ConflictError, match="AGENT_IS_ALIVE"):
        await two.log.take_over(PosixDevice(tmp_path / "agent1"))
    await fence(cluster, two, one)
    assert await two.log.take_over(PosixDevice(tmp_path / "agent1")) > 0
    found = await two.read_all(key)
    assert found == [(number, b"%d" % number) for number in range(5)]
    assert await two.append(key, b"5", producer=(7, 0, 5)) == (STORED, 5)
    # The owner wakes: what it still had to order comes too late.
    one.journal.cut = False
    await passing(2)
    assert [type(error) for error in one.stopped] == [FencedError]
    assert await two.read_all(key) == [(number, b"%d" % number) for number in range(6)]


async def test_a_takeover_that_is_asked_for_twice_goes_on_once(
    cluster: Cluster, tmp_path: Path
) -> None:
    one = await cluster.agent(1, wal=True, durability="wal")
    two = await cluster.agent(2)
    (key,) = await one.topic("t")
    await one.append(key, b"0")
    await fence(cluster, two, one)
    device = PosixDevice(tmp_path / "agent1")
    before = len(cluster.store.puts)
    first, second = await asyncio.gather(two.log.take_over(device), two.log.take_over(device))
    assert first == second > 0
    assert len(cluster.store.puts) == before + 1
    assert await two.read_all(key) == [(0, b"0")]


async def test_a_takeover_whose_claim_was_in_doubt_is_gone_on_with(
    cluster: Cluster, tmp_path: Path
) -> None:
    """Nobody asks again, and the claim took place: its agent would be refused for ever."""
    one = await cluster.agent(1, wal=True, durability="wal")
    two = await cluster.agent(2)
    (key,) = await one.topic("t")
    await one.append(key, b"0")
    await fence(cluster, two, one)
    commit = two.order.commit
    in_doubt = InDoubtError("commit", "agent 2", "no answer in 4 s")

    async def lose_answer(commands: list[AnyCommand]) -> list[AnyAnswer]:
        two.order.commit = commit  # type: ignore[method-assign]
        await commit(commands)
        raise in_doubt

    two.order.commit = lose_answer  # type: ignore[assignment,method-assign]
    with pytest.raises(RetryableError, match="goes on"):
        await two.log.take_over(PosixDevice(tmp_path / "agent1"), deadline_s=0.2)
    again = await cluster.agent(1, wal=True, fresh=True, durability="wal")
    async with asyncio.timeout(30):
        while again.log.uploader is None:
            await passing(0.05)
    assert await again.read_all(key) == [(0, b"0")]
    assert await again.append(key, b"1") == (STORED, 1)


async def test_a_late_write_of_an_owner_whose_wal_was_taken_is_refused_by_apply(
    cluster: Cluster, tmp_path: Path
) -> None:
    """Also where its epoch is open again: the claim, not only the fence, keeps it out."""
    one = await cluster.agent(1, wal=True, durability="wal")
    two = await cluster.agent(2)
    (key,) = await one.topic("t")
    await one.append(key, b"0")
    (wal,) = one.queries.wals()
    await fence(cluster, two, one)
    await two.log.take_over(PosixDevice(tmp_path / "agent1"))
    again = await cluster.agent(1, fresh=True)
    batches = [100, 1, 0, -1, -1, -1]
    (answer,) = await again.log.commit(
        [
            CommitRuns(
                runs=[RunCommit(partition_key=key, position=8192, batches=batches)],
                wal=wal.wal_key << 32 | 9,
            )
        ]
    )
    assert isinstance(answer, Refused)
    assert answer.reason is Refusal.WAL_NOT_OWNED
    assert await again.read_all(key) == [(0, b"0")]


async def test_a_directory_that_was_taken_over_is_its_agents_again_as_another_wal(
    cluster: Cluster, tmp_path: Path
) -> None:
    """The taker owns the old id as long as it lives; without a new one the agent that starts
    again could never write."""
    one = await cluster.agent(1, wal=True, durability="wal")
    two = await cluster.agent(2)
    (key,) = await one.topic("t")
    await one.append(key, b"0")
    (before,) = one.queries.wals()
    await fence(cluster, two, one)
    await two.log.take_over(PosixDevice(tmp_path / "agent1"))
    again = await cluster.agent(1, wal=True, fresh=True, durability="wal")
    assert await again.append(key, b"1") == (STORED, 1)
    (run,) = [run for wal in again.queries.wals() for run in again.queries.wal_runs(wal.wal_key)]
    assert run.file_generation > before.last_generation
    assert await again.read_all(key) == [(0, b"0"), (1, b"1")]
    assert [wal.agent for wal in again.queries.wals()] == [2, 1]


async def test_a_damaged_wal_is_not_taken_over_in_silence(cluster: Cluster, tmp_path: Path) -> None:
    """What is whole in it is moved: nobody else may claim it while its new owner lives."""
    one = await cluster.agent(1, wal=True, durability="wal")
    two = await cluster.agent(2)
    (key,) = await one.topic("t")
    await one.append(key, bytes(1000))
    await one.append(key, b"whole")
    run, _ = one.queries.wal_runs(one.queries.wals()[0].wal_key)
    await fence(cluster, two, one)
    (file,) = [
        path for path in (tmp_path / "agent1/wal").glob("*.wal") if path.read_bytes()[:4] == b"PWAL"
    ]
    data = bytearray(file.read_bytes())
    data[run.position + 500] ^= 1
    file.write_bytes(data)
    with pytest.raises(CorruptDataError, match=r"1 damaged runs of .* CRC-32C differs"):
        await two.log.take_over(PosixDevice(tmp_path / "agent1"))
    assert [bool(run.object_key) for run in two.queries.runs_from(key, 0, limit=2)] == [
        False,
        True,
    ]
    data[run.position + 500] ^= 1
    file.write_bytes(data)
    await two.log.take_over(PosixDevice(tmp_path / "agent1"))
    assert await two.read_all(key) == [(0, bytes(1000)), (1, b"whole")]


async def test_a_power_cut_takes_nothing_that_was_acknowledged(cluster: Cluster) -> None:
    device = SimulatedDevice()
    one = await cluster.agent(1, wal=device, durability="wal")
    (key,) = await one.topic("t")
    acked = 0
    for number in range(20):
        assert await one.append(key, b"%d" % number + bytes(5_000)) == (STORED, number)
        acked += 1
    await fence(cluster, await cluster.agent(2), one)
    after = device.power_loss(SeededRandom(9))
    again = await cluster.agent(1, wal=after, fresh=True, durability="wal")
    found = await again.read_all(key)
    assert [offset for offset, _ in found] == list(range(acked))


def test_the_id_of_a_directory_stays_and_a_damaged_one_is_named(tmp_path: Path) -> None:
    device = PosixDevice(tmp_path)
    assert read_wal_id(device) is None
    wal_id = new_wal_name(device, "some-cluster", SeededRandom(1))
    assert read_wal_id(device) == wal_id
    assert read_wal_name(device) == WalName(wal_id, "some-cluster")
    (tmp_path / ID_FILE).write_bytes(wal_id)
    with pytest.raises(CorruptDataError, match="CRC"):
        read_wal_id(device)


async def test_small_producers_share_frames(cluster: Cluster) -> None:
    agent = await cluster.agent(1, wal=True, durability="wal")
    (key,) = await agent.topic("t")
    await agent.append(key, b"first")
    flusher = agent.log.own_wal.flusher
    assert flusher is not None
    before = flusher.flush_count
    answers = [agent.send((key, b"%d" % number)) for number in range(50)]
    await asyncio.gather(*answers)
    assert flusher.flush_count - before == 1, "what arrived together shares a frame"


async def test_a_full_wal_is_waited_for_and_appends_go_on_in_order(cluster: Cluster) -> None:
    agent = await cluster.agent(
        1, wal=True, durability="wal", segment_age_ms=100, wal_bytes_max=2 * 64 << 10
    )
    (key,) = await agent.topic("t")
    cluster.store.put_s = 1.0
    answers = [
        agent.send((key, bytes(20_000)), producer=(7, 0, number), timeout_ms=10_000)
        for number in range(12)
    ]
    found = [(await answer)[0] for answer in answers]
    assert [(one.status, one.base_offset) for one in found] == [
        (STORED, number) for number in range(12)
    ]
    assert cluster.loop.time() > 1, "it did get full"


async def test_an_agent_that_is_drained_keeps_nothing_in_its_wal(cluster: Cluster) -> None:
    """Neither what lies there nor what clients that stay bring; undone, it lies there again."""
    one = await cluster.agent(1, wal=True, durability="wal")
    other = await cluster.agent(2)
    (key,) = await one.topic("t")

    async def is_named_in_wal(number: int) -> bool:
        assert await one.append(key, b"%d" % number) == (STORED, number)
        await passing(1.0)
        assert one.log.uploader is not None
        return one.log.uploader.pending_bytes > 0

    async def drain(*, draining: bool) -> None:
        (answer,) = await other.log.commit([DrainAgent(agent=1, draining=draining)])
        assert isinstance(answer, Done), answer

    assert await is_named_in_wal(0)
    await drain(draining=True)
    await passing(1.0)
    assert one.log.uploader is not None
    assert one.log.uploader.pending_bytes == 0
    assert not await is_named_in_wal(1)
    await drain(draining=False)
    assert await is_named_in_wal(2)


async def test_a_wal_that_a_drained_agent_opens_is_kept_empty_too(cluster: Cluster) -> None:
    one = await cluster.agent(1, wal=True)
    (answer,) = await one.log.commit([DrainAgent(agent=1, draining=True)])
    assert isinstance(answer, Done), answer
    (key,) = await one.topic("t", penstock__durability="wal")
    assert one.log.uploader is None
    assert await one.append(key, b"0") == (STORED, 0)
    await passing(1.0)
    assert one.log.uploader is not None
    assert one.log.uploader.pending_bytes == 0


async def test_a_file_is_not_recycled_while_a_frame_in_it_waits_for_its_order(
    cluster: Cluster,
) -> None:
    agent = await cluster.agent(
        1,
        wal=True,
        durability="wal",
        wal_bytes_max=2 * FILE_BYTES,
        frame_bytes_max=60_000,
        segment_age_ms=1_000,
    )
    (key,) = await agent.topic("t")
    uploader = agent.log.uploader
    assert uploader is not None
    assert await agent.append(key, bytes(30_000)) == (STORED, 0)
    assert await uploader.drain(5)
    agent.journal.cut = True
    agent.journal.break_off("cut")
    # In the first file, behind what has moved; the next in the second file.
    answers = [agent.send((key, bytes(20_000)), timeout_ms=30_000)]
    await passing(0.5)
    answers.append(agent.send((key, bytes(40_000)), timeout_ms=30_000))
    await passing(0.5)
    uploader.look_again()
    await passing(0.5)
    # Were the first file free, this would be written over it.
    answers.append(agent.send((key, bytes(40_001)), timeout_ms=30_000))
    await passing(0.5)
    agent.journal.cut = False
    assert [(await answer)[0].base_offset for answer in answers] == [1, 2, 3]
    agent.forget_memory()
    found = await agent.read_all(key)
    assert [(offset, len(value)) for offset, value in found] == [
        (0, 30_000),
        (1, 20_000),
        (2, 40_000),
        (3, 40_001),
    ]


async def _puts_fail(key: str) -> None:
    # An agent without a replica looks for one in the archive, so that reads don't fail.
    raise RetryableError("put", key, "away")


async def test_an_agent_whose_wal_was_taken_over_goes_on_without_until_that_is_empty(
    cluster: Cluster, tmp_path: Path
) -> None:
    one = await cluster.agent(1, wal=True, durability="wal")
    two = await cluster.agent(2)
    (key,) = await one.topic("t")
    await one.append(key, b"0")
    await fence(cluster, two, one)
    cluster.store.before_put = _puts_fail
    with pytest.raises(RetryableError, match="are left"):
        await two.log.take_over(PosixDevice(tmp_path / "agent1"), deadline_s=1)
    again = await cluster.agent(1, wal=True, fresh=True, durability="wal")
    with pytest.raises(RetryableError, match="once it is empty"):
        await again.append(key, b"too soon")
    assert await two.read_all(key) == [(0, b"0")], "from the directory that it took over"
    cluster.store.before_put = None
    await two.log.take_over(PosixDevice(tmp_path / "agent1"))
    assert await again.append(key, b"1") == (STORED, 1)
    assert await again.read_all(key) == [(0, b"0"), (1, b"1")]
    assert len(again.queries.wals()) == 2


async def test_an_agent_claims_its_wal_again_when_who_took_it_over_is_dead(
    cluster: Cluster, tmp_path: Path
) -> None:
    """Nothing is appended, and nobody asks for another takeover: its records are served again."""
    one = await cluster.agent(1, wal=True, durability="wal")
    two = await cluster.agent(2)
    three = await cluster.agent(3)
    (key,) = await one.topic("t")
    await one.append(key, b"0")
    await fence(cluster, two, one)
    cluster.store.before_put = _puts_fail
    with pytest.raises(RetryableError, match="are left"):
        await two.log.take_over(PosixDevice(tmp_path / "agent1"), deadline_s=1)
    again = await cluster.agent(1, wal=True, fresh=True, durability="wal")
    await fence(cluster, three, two)
    async with asyncio.timeout(30):
        while again.log.uploader is None:
            await passing(0.05)
    assert await again.read_all(key) == [(0, b"0")]
