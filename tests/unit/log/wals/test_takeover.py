"""Takeovers whose volume is lost, comes back elsewhere or is damaged; and those of a log's end."""

import asyncio
import errno
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest

from penstock.log.wals.claims import WalAwayError, take_over_wal
from penstock.log.wals.names import read_wal_id
from penstock.model.errors import CorruptDataError, RetryableError
from penstock.model.ids import PartitionKey
from penstock.ports.device import Device, File
from penstock.state.answers import Done
from penstock.state.commands import Fence
from penstock.system.files import PosixDevice
from support.cluster_rig import Cluster, ClusterAgent, passing
from support.simulated.inline_executor import InlineExecutor

AWAY = RetryableError("put", "store", "away")


class VolumeFile:
    """A file of a `Volume`."""

    def __init__(self, volume: "Volume", file: File) -> None:
        self._volume = volume
        self._file = file

    def read_at(self, position: int, length: int) -> bytes:
        self._volume.check()
        return self._file.read_at(position, length)

    def size(self) -> int:
        return self._file.size()

    def close(self) -> None:
        self._file.close()


class Volume:
    """A device for reading that can be lost: reads fail, or its folder is empty."""

    def __init__(self, folder: Path, *, vanishes: bool = False) -> None:
        self._inner: Device = PosixDevice(folder)
        self._vanishes = vanishes
        self.is_lost = False

    def check(self) -> None:
        if self.is_lost:
            raise OSError(errno.EIO, "Input/output error")

    def open(self, name: str, *, create: bool = False) -> VolumeFile:
        if self.is_lost and self._vanishes:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", name)
        self.check()
        return VolumeFile(self, self._inner.open(name, create=create))

    def list(self, folder: str) -> list[str]:
        if self.is_lost and self._vanishes:
            return []
        self.check()
        return self._inner.list(folder)


def device_of(volume: Volume) -> Device:
    """Takeovers only read."""
    return cast(Device, volume)


async def begin(
    cluster: Cluster, make: Callable[[Path], Volume]
) -> tuple[ClusterAgent, PartitionKey, Volume]:
    """An agent that has begun to take over another's WAL of one record, and can't store it yet."""
    one = await cluster.agent(1, wal=True, durability="wal")
    two = await cluster.agent(2)
    (key,) = await one.topic("t")
    await one.append(key, b"0")
    one.pause_heartbeats()
    await passing(0.1)
    await two.catch_up()
    (answer,) = await two.log.commit(
        [Fence(agent=1, epoch=one.order.epoch, seen_position=two.order.position)]
    )
    assert isinstance(answer, Done), answer
    cluster.store.away = AWAY
    volume = make(cluster.folder / "agent1")
    with pytest.raises(RetryableError, match="goes on"):
        await two.log.take_over(device_of(volume), deadline_s=2)
    return two, key, volume


@pytest.mark.slow
@pytest.mark.parametrize("vanishes", [False, True])
async def test_a_lost_volume_that_is_back_at_another_place_is_taken_over_from_there(
    cluster: Cluster, tmp_path: Path, *, vanishes: bool
) -> None:
    two, key, volume = await begin(cluster, lambda path: Volume(path, vanishes=vanishes))
    volume.is_lost = True
    cluster.store.away = None
    await passing(100)
    with pytest.raises(RetryableError):
        await two.read_all(key)
    shutil.copytree(tmp_path / "agent1", tmp_path / "there")
    assert await two.log.take_over(PosixDevice(tmp_path / "there"), deadline_s=20) > 0
    assert await two.read_all(key) == [(0, b"0")]
    assert len(cluster.store.objects) == 1


@pytest.mark.slow
@pytest.mark.parametrize("vanishes", [False, True])
async def test_a_lost_volume_that_is_back_needs_nobody_who_asks(
    cluster: Cluster, *, vanishes: bool
) -> None:
    _, key, volume = await begin(cluster, lambda path: Volume(path, vanishes=vanishes))
    volume.is_lost = True
    cluster.store.away = None
    await passing(100)
    volume.is_lost = False
    async with asyncio.timeout(60):
        while not cluster.store.objects:
            await passing(0.5)
    assert await (await cluster.agent(3)).read_all(key) == [(0, b"0")]


async def test_a_wal_that_is_damaged_meanwhile_is_told_to_who_asks(
    cluster: Cluster, tmp_path: Path
) -> None:
    two, key, volume = await begin(cluster, Volume)
    (run,) = two.queries.wal_runs(two.queries.wals()[0].wal_key)
    (file,) = [
        path for path in (tmp_path / "agent1/wal").glob("*.wal") if path.read_bytes()[:4] == b"PWAL"
    ]
    whole = file.read_bytes()
    file.write_bytes(whole[: run.position + 10])
    cluster.store.away = None
    with pytest.raises(CorruptDataError, match="10 bytes are there, the run has 69"):
        await two.log.take_over(device_of(volume), deadline_s=60)
    file.write_bytes(whole)
    assert await two.log.take_over(device_of(volume), deadline_s=5) > 0
    assert await two.read_all(key) == [(0, b"0")]


@pytest.mark.slow
async def test_one_that_only_the_store_holds_up_reads_the_wal_once(
    cluster: Cluster, tmp_path: Path
) -> None:
    two, key, _ = await begin(cluster, Volume)
    position = two.order.position
    await passing(100)
    await two.catch_up()
    claims = two.order.position - position
    cluster.store.away = None
    assert await two.log.take_over(PosixDevice(tmp_path / "agent1"), deadline_s=20) > 0
    assert await two.read_all(key) == [(0, b"0")]
    assert claims < 250, "heartbeats alone, two in a second"


class LeavingVolume(Volume):
    """A volume that is detached after its id was read."""

    def list(self, folder: str) -> list[str]:
        self.is_lost = True
        return super().list(folder)


@pytest.mark.parametrize("leaves", [False, True])
async def test_a_detached_volume_is_away_and_not_damaged(cluster: Cluster, *, leaves: bool) -> None:
    """Its folder is empty, as it would be if all files had been lost."""
    two, _, _ = await begin(cluster, Volume)
    folder = cluster.folder / "agent1"
    wal_id = read_wal_id(PosixDevice(folder))
    assert wal_id is not None
    volume = (LeavingVolume if leaves else Volume)(folder, vanishes=True)
    volume.is_lost = not leaves
    with pytest.raises(WalAwayError, match="isn't in its directory any more"):
        await take_over_wal(
            device_of(volume),
            wal_id,
            committer=two.order,
            queries=lambda: two.queries,
            pool=InlineExecutor(cluster.random, workers=1),
        )


@pytest.mark.slow
async def test_one_that_is_asked_for_while_the_log_ends_is_not_begun(cluster: Cluster) -> None:
    two, _, volume = await begin(cluster, Volume)
    pool = two.log._pool
    assert isinstance(pool, InlineExecutor)
    usual_s, pool.delay_s_max = pool.delay_s_max, 60.0
    asked = asyncio.ensure_future(two.log.take_over(device_of(volume)))
    await passing(0)
    pool.delay_s_max = usual_s
    await two.log.close(0)
    with pytest.raises(RetryableError, match="shutting down"):
        await asked
    assert "takeover of a WAL" not in {task.get_name() for task in asyncio.all_tasks()}
