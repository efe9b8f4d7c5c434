"""What a restore does with the pipeline's state: no job goes on, every writer does."""

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from penstock.model.ids import PartitionKey
from penstock.records.sums import crcs_of
from penstock.recovery.point_in_time import Moment
from penstock.segment import job_object_key
from penstock.state.answers import JobOpened, Refusal, Refused, RunsReplaced, WriteCommitted
from penstock.state.pipeline_commands import (
    CommitWrite,
    OpenJob,
    OutputObject,
    ReplacedPartition,
    ReplaceRuns,
    SaveTable,
    WriteRun,
)
from penstock.state.read.queries import Queries
from support.archives import archiver_of
from support.backups import copy_to, memory_store, restore_to
from support.batches import make_batch
from support.cluster_rig import Cluster
from support.log_rig import NOW, Rig, run_rig
from support.restored_clusters import another_cluster, kill, restored

SIZE = 500
BATCH = bytes(make_batch(b"v", time=NOW))


def write(job: int, key: PartitionKey, *, number: int, batch_id: int) -> CommitWrite:
    batches = [len(BATCH), 1, NOW, -1, -1, -1]
    return CommitWrite(
        job=job,
        writer_id="stream",
        batch_id=batch_id,
        incarnation="c",
        objects=[OutputObject(key=name_of(job, number), size_bytes=SIZE)],
        runs=[
            WriteRun(
                partition_key=key, object=0, position=16, batches=batches, crcs=crcs_of([BATCH])
            )
        ],
    )


def name_of(job: int, number: int) -> str:
    return job_object_key(job=job, name=f"{number:032x}")


async def open_job(log: Any) -> int:
    opened = OpenJob(kind="k", name="n", lease_ms=3_600_000, age_max_ms=86_400_000)
    (answer,) = await log.commit([opened])
    assert isinstance(answer, JobOpened), answer
    return answer.job


async def fill(log: Any, store: Any, key: PartitionKey, topic_id: bytes) -> int:
    """A written batch, what is clean, a table; the job, which stays open."""
    job = await open_job(log)
    await store.put(name_of(job, 0), [bytes(16) + BATCH + bytes(SIZE - 16 - len(BATCH))])
    (answer,) = await log.commit([write(job, key, number=0, batch_id=7)])
    assert isinstance(answer, WriteCommitted), answer
    note = ReplacedPartition(partition_key=key, inputs=[], outputs=[], clean_end=1)
    noted = ReplaceRuns(job=job, n=1, input_keys=[], objects=[], partitions=[note])
    assert await log.commit([noted]) == [RunsReplaced([0])]
    await log.commit([SaveTable(topic_id=topic_id, table="t", offsets=[0, 1])])
    return job


async def check(log: Any, queries: Queries, key: PartitionKey, job: int) -> None:
    """The state goes on without the job."""
    assert queries.pipeline_jobs() == []
    assert queries.clean_rows([key])[key].clean_end == 1
    assert [row.offsets for row in queries.table_rows()] == [{0: 1}]
    # The parent's driver finds no job, and can't come to take another's for its own.
    (answer,) = await log.commit([write(job, key, number=1, batch_id=8)])
    assert isinstance(answer, Refused)
    assert answer.reason is Refusal.UNKNOWN_JOB
    opened = await open_job(log)
    assert opened > job + (1 << 40)
    # What was committed before the moment isn't stored again.
    (repeated,) = await log.commit([write(opened, key, number=2, batch_id=7)])
    assert isinstance(repeated, WriteCommitted)
    assert repeated.repeated


async def test_a_cluster_of_a_moment(cluster: Cluster) -> None:
    agent = await cluster.agent(1)
    (key,) = await agent.topic("t")
    (topic,) = agent.queries.topic_rows()
    job = await fill(agent.log, cluster.store, key, topic[1])
    await archiver_of(agent).snapshot()
    await kill(cluster)
    state = await restored(cluster, Moment())
    other = await another_cluster(cluster, state, "new")
    again = await other.agent(1)
    await check(again.log, again.queries, key, job)
    (run,) = again.queries.runs_from(key, 0, limit=9)
    assert run.origin, "the parent's object"


@pytest.mark.slow
def test_a_directory_of_a_backup(tmp_path: Path) -> None:
    job = 0

    async def before(rig: Rig) -> None:
        nonlocal job
        (key,) = await rig.topic("t", retention_ms="-1")
        (topic,) = rig.view.topics()
        job = await fill(rig.log, rig.store, key, topic.topic_id)

    async def after(rig: Rig) -> None:
        (topic,) = rig.view.topics()
        await check(rig.log, rig.queries(), PartitionKey(topic.topic_key << 20), job)

    run_rig(tmp_path / "source", before)
    backup = memory_store(tmp_path)
    copy_to(tmp_path / "source", backup)
    restore_to(tmp_path / "target", backup)
    with closing(Queries(tmp_path / "target" / "metadata.sqlite")) as queries:
        assert queries.pipeline_jobs() == []
    run_rig(tmp_path / "target", after)
