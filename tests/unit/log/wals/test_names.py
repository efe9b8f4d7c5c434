"""A WAL directory names its cluster: another one's, with records in it, is left alone."""

import asyncio
import shutil
from contextlib import closing
from pathlib import Path

import pytest
from crc32c import crc32c

from penstock.log.opening.cluster import open_cluster_order
from penstock.log.opening.embedded import open_journal
from penstock.log.wals.names import (
    CLUSTER_FILE,
    ID_FILE,
    WalName,
    new_wal_name,
    read_wal_name,
    write_wal_name,
)
from penstock.model.errors import CorruptDataError, NotFoundError, OtherClusterError
from penstock.model.ids import PartitionKey
from penstock.order.protocol import AgentIdentity
from penstock.ports.device import Device
from penstock.recovery.verify_journal import verify_journal
from penstock.recovery.verify_report import FindingKind, VerifyReport
from penstock.state.answers import BatchStatus
from penstock.state.orders import ClusterOrder
from penstock.system.files import PosixDevice
from penstock.system.randomness import SystemRandom
from penstock.wal.recovery import FOLDER, holds_frames
from support.archives import archive_of
from support.cluster_rig import Cluster, ClusterAgent
from support.log_contents import contents
from support.log_rig import Rig, run_rig
from support.simulated.clock import ManualClock
from support.simulated.inline_executor import InlineExecutor
from support.simulated.journal import SimulatedJournal
from support.simulated.randomness import SeededRandom

OTHER = "another-cluster-000002"
WAL = {"wal": True, "durability": "wal", "segment_age_ms": 600_000}


def make_older(device: Device) -> None:
    """Take away what a release that did not name the cluster doesn't write."""
    name = read_wal_name(device)
    assert name is not None
    device.remove(CLUSTER_FILE)
    assert read_wal_name(device) == WalName(name.wal_id, "")


def files_in(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((folder / FOLDER).iterdir())}


async def with_records(cluster: Cluster) -> PartitionKey:
    """An agent that was killed: five acknowledged records lie in its WAL alone."""
    agent = await cluster.agent(1, **WAL)
    (key,) = await agent.topic("t")
    for number in range(5):
        await agent.append(key, b"acked %d" % number)
    await agent.close(0)
    cluster.agents.clear()
    return key


def other_journal(cluster: Cluster) -> SimulatedJournal:
    return SimulatedJournal(random=cluster.random, clock=cluster.clock, cluster_id=OTHER)


async def check_records(agent: ClusterAgent, key: PartitionKey) -> None:
    agent.forget_memory()
    assert await agent.read_all(key) == [(number, b"acked %d" % number) for number in range(5)]


@pytest.mark.parametrize("older", [False, True])
async def test_an_agent_of_another_cluster_leaves_it_alone(
    cluster: Cluster, tmp_path: Path, older: bool
) -> None:
    """A wrong URL, or a restore under a new name on the same hosts."""
    key = await with_records(cluster)
    folder = tmp_path / "agent1"
    if older:
        make_older(PosixDevice(folder))
    before = files_in(folder)
    parent, cluster.journal = cluster.journal, other_journal(cluster)
    said = "not known" if older else parent.cluster_id
    with pytest.raises(OtherClusterError, match=f"records of.*{said}.*follows.*{OTHER}"):
        await cluster.agent(1, fresh=True, **WAL)
    assert files_in(folder) == before
    cluster.journal = parent
    await check_records(await cluster.agent(1, **WAL), key)


async def open_on(cluster: Cluster, folder: Path) -> ClusterOrder:
    return await open_cluster_order(
        cluster.journal.connect(),
        archive_of(cluster, "scratch"),
        folder / "replica.sqlite",
        identity=AgentIdentity(agent_id=1, level_max=2),
        cluster_id=cluster.journal.cluster_id,
        clock=cluster.clock,
        random=cluster.random,
        executor=InlineExecutor(cluster.random, workers=1),
        wal=PosixDevice(folder),
    )


@pytest.mark.parametrize("older", [False, True])
async def test_the_replica_beside_it_is_not_dropped(
    cluster: Cluster, tmp_path: Path, older: bool
) -> None:
    """Not even where it alone says which cluster an older release's WAL is of."""
    key = await with_records(cluster)
    folder = tmp_path / "agent1"
    if older:
        make_older(PosixDevice(folder))
    parent, cluster.journal = cluster.journal, other_journal(cluster)
    before = files_in(folder)
    with pytest.raises(OtherClusterError, match=parent.cluster_id):
        await open_on(cluster, folder)
    assert files_in(folder) == before
    assert not cluster.journal.rows(), "nothing was said to the other cluster"
    # Nor by a journal that is longer, whose rows could be applied to the replica.
    for position in range(1, 1_000):
        cluster.journal.show_seal(position)
    with pytest.raises(OtherClusterError, match=parent.cluster_id):
        await open_on(cluster, folder)
    cluster.journal = parent
    await check_records(await cluster.agent(1, **WAL), key)


async def test_a_replica_without_a_wal_is_dropped_as_ever(cluster: Cluster, tmp_path: Path) -> None:
    agent = await cluster.agent(1)
    await agent.topic("t")
    await agent.close()
    cluster.agents.clear()
    cluster.journal = other_journal(cluster)
    order = await open_on(cluster, tmp_path / "agent1")
    assert order.position == 0
    await order.close()


async def test_a_directory_without_records_becomes_this_clusters(
    cluster: Cluster, tmp_path: Path
) -> None:
    agent = await cluster.agent(1, **WAL)
    await agent.close(0)
    cluster.agents.clear()
    device = PosixDevice(tmp_path / "agent1")
    before = read_wal_name(device)
    assert before is not None
    assert not holds_frames(device)
    cluster.journal = other_journal(cluster)
    again = await cluster.agent(1, fresh=True, **WAL)
    (key,) = await again.topic("t")
    assert await again.append(key, b"x") == (BatchStatus.STORED, 0)
    after = read_wal_name(device)
    assert after is not None
    assert after.cluster_id == OTHER
    assert after.wal_id != before.wal_id
    assert holds_frames(device)


async def test_an_older_directory_is_named_once_its_journal_has_it(
    cluster: Cluster, tmp_path: Path
) -> None:
    key = await with_records(cluster)
    device = PosixDevice(tmp_path / "agent1")
    make_older(device)
    await check_records(await cluster.agent(1, **WAL), key)
    name = read_wal_name(device)
    assert name is not None
    assert name.cluster_id == cluster.journal.cluster_id


async def test_frames_without_an_id_are_not_written_over(cluster: Cluster, tmp_path: Path) -> None:
    """Somebody has removed the file: it is the one thing that says whose the records are."""
    key = await with_records(cluster)
    folder = tmp_path / "agent1"
    kept = (folder / ID_FILE).read_bytes()
    (folder / ID_FILE).unlink()
    with pytest.raises(OtherClusterError, match="not known"):
        await cluster.agent(1, **WAL)
    (folder / ID_FILE).write_bytes(kept)
    await check_records(await cluster.agent(1, **WAL), key)


@pytest.mark.parametrize("older", [False, True])
async def test_another_clusters_wal_is_not_taken_over(
    cluster: Cluster, tmp_path: Path, older: bool
) -> None:
    """It would be claimed, found to be empty here, and its directory given up."""
    await with_records(cluster)
    device = PosixDevice(tmp_path / "agent1")
    if older:
        make_older(device)
    cluster.journal = other_journal(cluster)
    agent = await cluster.agent(2)
    with pytest.raises(NotFoundError, match="ask an agent of that cluster"):
        await agent.log.take_over(device)
    assert agent.queries.wals() == []


def fill(path: Path) -> None:
    async def test(rig: Rig) -> None:
        (key,) = await rig.topic("t")
        for number in range(3):
            await rig.append(key, b"%d" % number)

    run_rig(path, test, drain=False)


def open_embedded(path: Path) -> None:
    open_journal(
        path / "metadata.sqlite", PosixDevice(path), clock=ManualClock(), random=SystemRandom()
    ).close()


@pytest.mark.slow
def test_an_embedded_server_refuses_anothers_wal(tmp_path: Path) -> None:
    for name in ("one", "two"):
        fill(tmp_path / name)
    whole = contents(tmp_path / "one")
    shutil.move(tmp_path / "one" / FOLDER, tmp_path / "kept")
    shutil.copytree(tmp_path / "two" / FOLDER, tmp_path / "one" / FOLDER)
    before = files_in(tmp_path / "one")
    with pytest.raises(OtherClusterError):
        open_embedded(tmp_path / "one")
    assert files_in(tmp_path / "one") == before
    report = VerifyReport()
    device = PosixDevice(tmp_path / "one")
    assert verify_journal(report, tmp_path / "one" / "metadata.sqlite", device)
    (finding,) = report.findings
    assert (finding.kind, finding.subject) == (FindingKind.DAMAGED, "wal/cluster")
    assert "it holds records of cluster" in finding.detail
    shutil.rmtree(tmp_path / "one" / FOLDER)
    shutil.move(tmp_path / "kept", tmp_path / "one" / FOLDER)
    open_embedded(tmp_path / "one")
    assert contents(tmp_path / "one") == whole


@pytest.mark.parametrize("named", [False, True])
async def test_an_embedded_server_does_not_begin_on_an_agents_wal(
    cluster: Cluster, tmp_path: Path, named: bool
) -> None:
    await with_records(cluster)
    folder = tmp_path / "agent1"
    if not named:
        make_older(PosixDevice(folder))
    before = files_in(folder)
    names = sorted(path.name for path in folder.iterdir())
    for _ in range(2):
        with pytest.raises(OtherClusterError):
            await asyncio.to_thread(open_embedded, folder)
    assert files_in(folder) == before
    assert sorted(path.name for path in folder.iterdir()) == names


def test_an_embedded_servers_wal_is_named_at_its_first_open(tmp_path: Path) -> None:
    """That of an older release is brought along by the database beside it."""
    fill(tmp_path)
    (tmp_path / ID_FILE).unlink()
    whole = contents(tmp_path)
    order = open_journal(
        tmp_path / "metadata.sqlite",
        PosixDevice(tmp_path),
        clock=ManualClock(),
        random=SystemRandom(),
    )
    with closing(order):
        name = read_wal_name(PosixDevice(tmp_path))
        assert name is not None
        assert name.cluster_id == order.cluster_id
    assert contents(tmp_path) == whole


def test_the_file_of_a_newer_release_is_named(tmp_path: Path) -> None:
    device = PosixDevice(tmp_path)
    new_wal_name(device, "c" * 40, SeededRandom(1))
    name = read_wal_name(device)
    assert name is not None
    assert name.cluster_id == "c" * 40
    write_wal_name(device, name)
    data = bytearray((tmp_path / CLUSTER_FILE).read_bytes())
    assert len(data) == 68
    data[4] = 2
    (tmp_path / CLUSTER_FILE).write_bytes(checked(bytes(data[:-4])))
    with pytest.raises(CorruptDataError, match="version 2"):
        read_wal_name(device)
    (tmp_path / CLUSTER_FILE).write_bytes(bytes(data))
    with pytest.raises(CorruptDataError, match=f"{CLUSTER_FILE}.*CRC"):
        read_wal_name(device)
    (tmp_path / ID_FILE).write_bytes(checked(bytes(64)))
    with pytest.raises(CorruptDataError, match=f"{ID_FILE}: 64 bytes"):
        read_wal_name(device)
    (tmp_path / ID_FILE).write_bytes(b"")
    with pytest.raises(CorruptDataError, match=f"{ID_FILE}: 0 bytes without"):
        read_wal_name(device)


def checked(fields: bytes) -> bytes:
    return fields + crc32c(fields).to_bytes(4, "big")


def test_an_older_release_reads_the_id(tmp_path: Path) -> None:
    """Until the level rises an agent may go back, and that release takes 20 bytes alone."""
    device = PosixDevice(tmp_path)
    wal_id = new_wal_name(device, "cluster", SeededRandom(1))
    assert (tmp_path / ID_FILE).read_bytes() == checked(wal_id)


def test_a_cluster_is_not_that_of_an_id_that_an_older_release_wrote_since(tmp_path: Path) -> None:
    device = PosixDevice(tmp_path)
    new_wal_name(device, "cluster", SeededRandom(1))
    later = bytes(range(16))
    (tmp_path / ID_FILE).write_bytes(checked(later))
    assert read_wal_name(device) == WalName(later, "")


def test_an_id_is_never_there_without_its_cluster(tmp_path: Path) -> None:
    """A process ends between the two files: the directory has no name yet, or the old one."""
    device = PosixDevice(tmp_path)
    old = new_wal_name(device, "old", SeededRandom(1))

    class Cut(Exception):
        pass

    class CutDevice(PosixDevice):
        def rename(self, old: str, new: str) -> None:
            if new == ID_FILE:
                raise Cut
            super().rename(old, new)

    with pytest.raises(Cut):
        new_wal_name(CutDevice(tmp_path), "new", SeededRandom(2))
    assert read_wal_name(device) == WalName(old, "")
