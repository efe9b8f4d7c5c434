"""Of an object that is replaced under its key while agents run, no batch of another is served."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from typing_extensions import Buffer

from penstock.log.checking import OTHERS
from penstock.log.fetch import examine
from penstock.log.fetch.blocks import BlockKey
from penstock.log.findings import DamagedError
from penstock.model.ids import PartitionKey
from penstock.ports.objects import Versioned
from penstock.state.rows import StoredRun
from support.cluster_rig import Cluster, ScriptedStore, passing, run_cluster
from support.log_rig import Rig, run_rig
from support.rot import Read, consume, flip, object_path, read_parts, read_views, runs_of, values_of

BLOCK_BYTES = 16 << 10


def values(letter: bytes, *sizes: int) -> list[bytes]:
    return [letter * size for size in sizes]


async def two_objects(
    rig: Rig, first: list[bytes], second: list[bytes]
) -> tuple[PartitionKey, StoredRun, StoredRun]:
    """A partition, its run, and the run of another one that lies in another object."""
    key, other = await rig.topic("t", 2)
    runs = []
    for one, appended in ((key, first), (other, second)):
        for value in appended:
            await rig.append(one, value)
        await rig.drain()
        runs += runs_of(rig, one)
    rig.forget_memory()
    mine, theirs = runs
    assert mine.object_key != theirs.object_key
    assert mine.position == theirs.position
    return key, mine, theirs


async def assert_nothing_is_served(rig: Rig, key: PartitionKey, read: Read) -> DamagedError:
    found, error = await consume(rig, key, read)
    assert not found
    assert isinstance(error, DamagedError)
    assert error.damage.start == 0
    return error


@pytest.mark.parametrize("read", [read_parts, read_views])
@pytest.mark.parametrize("sizes", [(100, 100, 100), (100, 150, 90)], ids=["named", "unreadable"])
@pytest.mark.parametrize("times", [1, 300], ids=["short", "long"])
@pytest.mark.options(block_bytes=BLOCK_BYTES, block_cache_bytes=1 << 20)
async def test_batches_before_a_fault_are_served_if_the_objects_index_names_the_run(
    rig: Rig, read: Read, sizes: tuple[int, ...], times: int
) -> None:
    """The first batches of the other object fit, and the last doesn't: their CRCs are right, and
    their offsets. The index of the other object names another partition, or lies elsewhere than
    the state says."""
    mine = [value * times for value in values(b"m", 100, 100, 100)]
    key, run, other = await two_objects(
        rig, mine, [value * times for value in values(b"o", *sizes)]
    )
    path = object_path(rig, run)
    right = path.read_bytes()
    path.write_bytes(object_path(rig, other).read_bytes())
    flip(path, run.position + run.length - 1)
    error = await assert_nothing_is_served(rig, key, read)
    assert error.damage.end == run.end_offset
    # Nor is anything of it kept by a repair.
    (report,) = await rig.log.damage_repair.look()
    assert (report.state, report.kept_batches, report.lost) == ("damaged", 0, [(0, 3)])
    path.write_bytes(right)
    rig.clock.advance(1.5)
    assert await consume(rig, key, read) == (list(enumerate(mine)), None)
    # Of the right object, all before a fault is served, and kept.
    flip(path, run.position + run.length - 1)
    rig.forget_memory()
    for number in range(run.position // BLOCK_BYTES, 10):
        rig.log.blocks.drop(BlockKey(run.object_key, number))
    rig.clock.advance(1.5)
    found, last = await consume(rig, key, read)
    assert found == list(enumerate(mine))[:2]
    assert isinstance(last, DamagedError)
    assert last.damage.start == 2
    (report,) = await rig.log.damage_repair.look()
    assert (report.kept_batches, report.lost) == (2, [(2, 3)])


def test_an_oversize_batch_is_the_runs_or_it_is_not_served(tmp_path: Path) -> None:
    """All batches of the other object fit, one by one; a batch is loaded alone."""

    async def test(rig: Rig) -> None:
        mine = values(b"m", *[20_000] * 3)
        key, run, other = await two_objects(rig, mine, values(b"o", *[20_000] * 3))
        loaded: list[BlockKey] = []
        load = rig.log.blocks.load
        rig.log.blocks.load = lambda block, read: loaded.append(block) or load(block, read)  # type: ignore[func-returns-value,method-assign]
        assert await consume(rig, key, read_views, 1) == (list(enumerate(mine)), None)
        assert any(block.number < 0 for block in loaded), "an oversize batch"
        path = object_path(rig, run)
        right = path.read_bytes()
        path.write_bytes(object_path(rig, other).read_bytes())
        for block in set(loaded):
            rig.log.blocks.drop(block)
        error = await assert_nothing_is_served(rig, key, read_views)
        assert OTHERS in str(error)
        path.write_bytes(right)
        rig.clock.advance(1.5)
        assert await consume(rig, key, read_views, 1) == (list(enumerate(mine)), None)

    limits = {"block_bytes": BLOCK_BYTES, "block_cache_bytes": 2 * BLOCK_BYTES}
    run_rig(tmp_path, test, **limits, prefetch_blocks=0)


@pytest.mark.parametrize("read", [read_parts, read_views])
@pytest.mark.options(block_bytes=BLOCK_BYTES, block_cache_bytes=8 * BLOCK_BYTES)
async def test_an_index_that_is_known_proves_the_object_that_it_was_read_of(
    rig: Rig, read: Read
) -> None:
    mine = values(b"m", *[5_000] * 20)
    key, run, other = await two_objects(rig, mine, values(b"o", *[5_000] * 20))
    first = values_of(await read(rig, key, 0, 5_000))
    assert first == [(0, mine[0])]
    object_path(rig, run).write_bytes(object_path(rig, other).read_bytes())
    rig.clock.advance(1.5)
    offset, error = 1, None
    while offset < 20 and error is None:
        try:
            got = values_of(await read(rig, key, offset, 5_000))
        except DamagedError as raised:
            error = raised
        else:
            assert got == [(offset, mine[offset])], "read before it was replaced"
            offset += 1
    assert error is not None
    assert error.damage.start == 0


class VersionedStore(ScriptedStore):
    """The cluster's bucket with ETags. Of keys in `stale`, caches and peers give another object.
    Of those in `changing`, each answer is of another version; every second one has the bytes in
    `others`."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(cluster.loop)
        self.objects = cluster.store.objects
        self.stale: dict[str, bytes] = {}
        self.changing: set[str] = set()
        self.others: dict[str, bytes] = {}
        self.direct: list[str] = []

    async def get_versioned(self, key: str, start: int, end: int) -> Versioned:
        if key in self.stale and start % BLOCK_BYTES == 0:
            return Versioned(self.stale[key][start:end], "stale")
        return await self.get_directly(key, start, end)

    async def get_directly(self, key: str, start: int, end: int) -> Versioned:
        self.direct.append(key)
        number = len(self.direct)
        data: Buffer = await super().get_range(key, start, end)
        if number % 2 and key in self.others:
            data = self.others[key][start:end]
        return Versioned(data, str(number) if key in self.changing else "right")


async def _stored(cluster: Cluster) -> tuple[PartitionKey, list[bytes], str, bytes]:
    """A partition, its values, the key of its object, and the bytes of another one."""
    one = await cluster.agent(1, wal=True, durability="wal")
    key, other = await one.topic("t", 2)
    mine = values(b"m", *[20_000] * 3)
    for one_key, appended in ((key, mine), (other, values(b"o", *[20_000] * 3))):
        for value in appended:
            await one.append(one_key, value)
        assert await one.log.uploader.drain(5)  # type: ignore[union-attr]
    (run,) = one.queries.runs_from(key, 0, limit=9)
    (theirs,) = one.queries.runs_from(other, 0, limit=9)
    return key, mine, run.object_key, cluster.store.objects[theirs.object_key][0]


@pytest.mark.parametrize("cache_blocks", [2, 50], ids=["oversize", "blocks"])
async def test_blocks_of_a_peer_that_kept_another_object_are_read_from_the_store(
    cluster: Cluster, cache_blocks: int
) -> None:
    key, mine, object_key, theirs = await _stored(cluster)
    store = VersionedStore(cluster)
    store.stale[object_key] = theirs
    two = await cluster.agent(
        2,
        store=store,
        block_bytes=BLOCK_BYTES,
        block_cache_bytes=cache_blocks * BLOCK_BYTES,
        prefetch_blocks=0,
    )
    assert await two.read_all(key) == list(enumerate(mine))
    assert not two.log.damages.known()


async def test_an_object_that_is_replaced_all_the_time_is_damage_and_not_waited_for(
    cluster: Cluster,
) -> None:
    key, mine, object_key, theirs = await _stored(cluster)
    store = VersionedStore(cluster)
    store.changing.add(object_key)
    store.others[object_key] = theirs
    two = await cluster.agent(2, store=store, block_bytes=BLOCK_BYTES)
    with pytest.raises(DamagedError, match="again and again"):
        await two.read_all(key)
    assert len(store.direct) < 40
    store.others.clear()
    store.changing.clear()
    await passing(1.5)
    assert await two.read_all(key) == list(enumerate(mine))


@pytest.mark.slow
@pytest.mark.parametrize("cache_blocks", [2, 50], ids=["oversize", "blocks"])
def test_an_object_whose_version_changes_from_answer_to_answer_is_served_by_its_sum(
    tmp_path: Path,
    cache_blocks: int,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As of a store behind a load balancer that gives each answer another ETag; also where the
    cache can't hold the run, so that its blocks are read many times."""
    monkeypatch.setattr(examine, "PIECE_BYTES", BLOCK_BYTES)

    async def test(cluster: Cluster) -> None:
        key, mine, object_key, theirs = await _stored(cluster)
        store = VersionedStore(cluster)
        store.changing.add(object_key)
        two = await cluster.agent(
            2,
            store=store,
            block_bytes=BLOCK_BYTES,
            block_cache_bytes=cache_blocks * BLOCK_BYTES,
            prefetch_blocks=0,
            check_again_after_ms=60_000,  # each second that passes has beats and turns
        )
        (run,) = two.queries.runs_from(key, 0, limit=9)
        await two.log.reader.examiner.examine(run)
        assert await two.read_all(key) == list(enumerate(mine))
        assert not two.log.damages.known()
        assert len(store.direct) < 60
        # Once known, nothing is asked twice for it.
        store.direct.clear()
        for number in range(4):
            two.log.blocks.drop(BlockKey(object_key, number))
        assert await two.read_all(key) == list(enumerate(mine))
        assert len(store.direct) < 12
        # Other bytes are found by the sum all the same, once the versions count again.
        await passing(2 * two.log.reader.checks.again_s)
        store.others[object_key] = theirs
        for number in range(4):
            two.log.blocks.drop(BlockKey(object_key, number))
        with pytest.raises(DamagedError):
            await two.read_all(key)
        with pytest.raises(DamagedError):
            await two.log.reader.examiner.examine(run)

    with caplog.at_level(logging.WARNING, logger="penstock.log.fetch.object_reads"):
        run_cluster(tmp_path, test)
    assert "another version (ETag) of segments/" in caplog.text


async def test_a_right_object_is_proven_without_a_further_request(cluster: Cluster) -> None:
    """A short run by its sum; a long one by its index, which is read once."""
    key, mine, _, _ = await _stored(cluster)
    for block_bytes, gets in ((1 << 20, 1), (BLOCK_BYTES, 5)):
        store = VersionedStore(cluster)
        two = await cluster.agent(gets + 1, store=store, block_bytes=block_bytes)
        assert await two.read_all(key) == list(enumerate(mine))
        assert len(store.direct) == gets
