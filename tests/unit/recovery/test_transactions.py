"""Transactions outlive verifying, backups and restores; what was open at the moment is aborted."""

from pathlib import Path

import pytest

from penstock.model.ids import PartitionKey, partition_key
from penstock.objects.origins import OriginStore, origin_digest
from penstock.records.batch import CONTROL, stored_header
from penstock.recovery.point_in_time import Moment
from penstock.recovery.verify import FindingKind
from penstock.state.answers import Refusal, Refused
from penstock.state.transaction_commands import EndTransaction
from penstock.state.transactions import TransactionState, is_marker
from support.archives import archiver_of
from support.backups import copy_to, memory_store, restore_to
from support.cluster_rig import Cluster, passing
from support.log_contents import verify_path
from support.log_rig import Rig, run_rig
from support.restored_clusters import URL, another_cluster, kill, restored
from support.transactional_producer import TransactionalProducer, fill, read_batches
from unit.recovery.test_verify import change


async def fill_and_leave_open(rig: Rig) -> None:
    """Committed and aborted records, and an open transaction at offset 7."""
    (key,) = await rig.topic("t")
    await fill(rig, key)
    producer = TransactionalProducer(rig, "open")
    await producer.begin()
    await producer.write(key, b"open")
    assert rig.log.last_stable_offset(key) == 7


def key_of(rig: Rig) -> PartitionKey:
    topic = rig.view.topic("t")
    assert topic is not None
    return partition_key(topic.topic_key, 0)


def controls(batches: list[bytes]) -> list[int]:
    """Offsets of markers."""
    headers = [stored_header(batch, 0) for batch in batches]
    return [header.base_offset for header in headers if header.attributes & CONTROL]


@pytest.mark.parametrize("drain", [False, True])
def test_a_log_with_transactions_of_every_state_is_clean(tmp_path: Path, *, drain: bool) -> None:
    run_rig(tmp_path, fill_and_leave_open, drain=drain)
    report = verify_path(tmp_path)
    assert not report.findings
    assert (report.unread_runs, report.batches) == (0, 8)


def test_a_row_that_is_not_its_marker_is_damage(tmp_path: Path) -> None:
    run_rig(tmp_path, fill_and_leave_open)
    change(tmp_path, "UPDATE wal_runs SET position = position + 1 WHERE generation < 0")
    findings = verify_path(tmp_path).findings
    assert [finding.kind for finding in findings] == [FindingKind.DAMAGED] * 2
    assert "offsets 3 to 3 in a marker's row" in findings[0].subject


@pytest.mark.slow
@pytest.mark.parametrize("drain", [False, True])
def test_a_restored_backup_has_no_open_transaction(tmp_path: Path, *, drain: bool) -> None:
    source, there = tmp_path / "source", tmp_path / "there"
    run_rig(source, fill_and_leave_open, drain=drain)
    before: list[bytes] = []

    async def read(rig: Rig) -> None:
        before.extend(await read_batches(rig, key_of(rig)))

    run_rig(source, read)
    to = memory_store(tmp_path)
    copy_to(source, to)
    restore_to(there, to)
    assert not verify_path(there).findings

    async def goes_on(rig: Rig) -> None:
        key = key_of(rig)
        assert rig.log.last_stable_offset(key) == rig.log.high_watermark(key) == 9
        batches = await read_batches(rig, key)
        assert batches[:8] == before
        assert controls(batches) == [3, 5, 8]
        header = stored_header(batches[8], 0)
        assert header.leader_epoch == rig.view.leader_epoch > 0
        row = rig.queries().transaction("open")
        assert row is not None
        assert (row.state, row.since) == (TransactionState.ABORTED, 0)
        assert [found.first_offset for found in rig.queries().aborted_from(key, 0, limit=9)] == [
            2,
            7,
        ]
        end = EndTransaction(
            transactional_id="open",
            producer_id=row.producer_id,
            epoch=row.epoch - 1,
            commits=True,
            bumps=True,
        )
        (answer,) = await rig.log.commit([end])
        assert isinstance(answer, Refused)
        assert answer.reason is Refusal.FENCED_PRODUCER
        # Markers of the parent's epoch and of this one become bytes of a segment.
        await rig.append(key, b"new")
        await rig.drain()
        await rig.log.waiting_markers.run_once()
        assert not rig.queries().markers_page((-1, -1), limit=9)
        rig.forget_memory()
        assert (await read_batches(rig, key))[:9] == batches

    run_rig(there, goes_on)
    assert not verify_path(there).findings


@pytest.mark.slow
async def test_a_restore_to_a_moment_aborts_what_was_open_then(cluster: Cluster) -> None:
    agent = await cluster.agent(1)
    archiver = archiver_of(agent)
    (key,) = await agent.topic("t")
    await archiver.snapshot()
    await agent.append(key, b"plain")
    done, left = TransactionalProducer(agent, "done"), TransactionalProducer(agent, "left")
    await done.begin()
    await left.begin()
    await done.write(key, b"a")
    await left.write(key, b"b")
    await done.end(commits=True)
    position = agent.order.position
    before = await read_batches(agent, key)
    assert agent.log.last_stable_offset(key) == 2
    await left.end(commits=True)
    assert await agent.log.waiting_markers.run_once() == 2
    assert agent.log.last_stable_offset(key) == 5
    await passing(20)
    await archiver.run_once()
    await kill(cluster)
    state = await restored(cluster, Moment(position=position), name="restored")
    assert not state.lost
    other = await another_cluster(cluster, state, "r")
    again = await other.agent(
        1, store=OriginStore(other.store, {origin_digest(URL): cluster.store})
    )
    assert again.log.last_stable_offset(key) == again.log.high_watermark(key) == 5
    batches = await read_batches(again, key)
    assert batches[:4] == before
    assert controls(batches) == [3, 4]
    assert [
        (found.producer_id, found.first_offset, found.marker_offset)
        for found in again.queries.aborted_from(key, 0, limit=9)
    ] == [(left.producer_id, 2, 4)]
    runs = again.queries.runs_from(key, 0, limit=9)
    assert is_marker(runs[-1].generation)
    assert await again.log.waiting_markers.run_once() == sum(
        is_marker(run.generation) for run in runs
    )
    again.forget_memory()
    assert await read_batches(again, key) == batches
