"""What the keeper owes the pipeline: open jobs read on, closed ones leave nothing, tables follow.

Each test fails without the rule that it names.
"""

from pathlib import Path
from typing import Any

import pytest

from penstock.app.api.status import PipelineStatus
from penstock.log.retention.keeper import ONCE_PREFIX
from penstock.model.ids import PartitionKey
from penstock.model.table_names import PIN_JOB, TABLE_WRITER_PREFIX
from penstock.segment import job_object_key
from penstock.state.answers import JobOpened, Refusal, Refused, RunsReplaced, WriteCommitted
from penstock.state.commands import AlterTopicConfigs, CondemnObjects, DeleteTopic
from penstock.state.pipeline_commands import (
    CloseJob,
    CommitWrite,
    OpenJob,
    OutputObject,
    RenewJob,
    ReplacedPartition,
    ReplaceRuns,
    SaveTable,
    WriteRun,
)
from support.cluster_rig import Cluster, passing
from support.log_rig import NOW, Rig, run_rig

DAY_S = 86_400
GRACE_S = 60
WAIT_S = 3 * DAY_S


async def open_job(log: Any, *, lease_s: int = 3_600, age_s: int = 86_400) -> int:
    opened = OpenJob(kind="test", name="t", lease_ms=lease_s * 1000, age_max_ms=age_s * 1000)
    (answer,) = await log.commit([opened])
    assert isinstance(answer, JobOpened), answer
    return answer.job


async def stored(rig: Rig) -> list[str]:
    return sorted([info.key async for info in rig.store.list("segments/")])


async def stored_topic(rig: Rig, **configs: str) -> PartitionKey:
    """A topic with one record in a segment object."""
    (key,) = await rig.topic("t", **configs)
    await rig.append(key, b"a")
    await rig.drain()
    return key


# -- deletion ------------------------------------------------------------------------------------


async def test_what_an_open_job_may_read_is_not_deleted(rig: Rig) -> None:
    key = await stored_topic(rig)
    job = await open_job(rig.log)
    await rig.log.delete_records([(key, -1)])
    assert await rig.log.keeper.condemn_unreferenced() == 1
    rig.clock.advance(10 * GRACE_S)
    assert await rig.log.keeper.delete_condemned() == 0
    assert len(await stored(rig)) == 1
    await rig.log.commit([CloseJob(job=job)])
    assert await rig.log.keeper.delete_condemned() == 1
    assert await stored(rig) == []


async def test_what_was_condemned_before_a_job_began_does_not_wait_for_it(rig: Rig) -> None:
    key = await stored_topic(rig)
    await rig.log.delete_records([(key, -1)])
    assert await rig.log.keeper.condemn_unreferenced() == 1
    await open_job(rig.log)
    rig.clock.advance(GRACE_S + 1)
    assert await rig.log.keeper.delete_condemned() == 1


async def test_a_job_that_falls_silent_or_grows_old_is_closed(rig: Rig) -> None:
    silent = await open_job(rig.log, lease_s=100)
    kept = await open_job(rig.log, lease_s=100, age_s=250)
    for _ in range(2):
        rig.clock.advance(60)
        await rig.log.commit([RenewJob(job=kept)])
    assert await rig.log.keeper.close_silent_jobs() == 1
    assert [job.job for job in rig.queries().pipeline_jobs()] == [kept]
    assert silent != kept
    rig.clock.advance(60)
    await rig.log.commit([RenewJob(job=kept)])
    assert await rig.log.keeper.close_silent_jobs() == 0
    rig.clock.advance(71)
    # Its lease goes on, its age doesn't: nobody holds deletion back for ever.
    assert await rig.log.keeper.close_silent_jobs() == 1
    assert rig.queries().pipeline_jobs() == []


async def test_a_pass_closes_jobs_before_it_deletes(rig: Rig) -> None:
    key = await stored_topic(rig)
    await open_job(rig.log, lease_s=10)
    await rig.log.delete_records([(key, -1)])
    await rig.log.keeper.run_once()
    rig.clock.advance(GRACE_S + 1)
    await rig.log.keeper.run_once()
    assert await stored(rig) == []


# -- orphans -------------------------------------------------------------------------------------


async def test_what_an_open_job_has_put_is_left_alone_and_what_a_closed_one_left_is_deleted(
    rig: Rig,
) -> None:
    one, two = await open_job(rig.log), await open_job(rig.log)
    keys = [job_object_key(job=job, name=f"{job:032x}") for job in (one, two, 99)]
    for key in [*keys, "segments/00/job-1-short.seg"]:
        await rig.store.put(key, [b"x"])
    await rig.log.commit([CloseJob(job=one)])
    assert await rig.log.keeper.condemn_orphans() == 0, "younger than the grace"
    rig.clock.advance((1 << 40) / 1000)  # the files are of the system's clock
    assert await rig.log.keeper.condemn_orphans() == 2
    rig.clock.advance(GRACE_S + 1)
    # The open job holds deletion back, too: it is renewed, as its owner does.
    assert await rig.log.keeper.delete_condemned() == 0
    await rig.log.commit([CloseJob(job=two)])
    assert await rig.log.keeper.delete_condemned() == 2
    assert await stored(rig) == sorted([keys[1], "segments/00/job-1-short.seg"])
    assert await rig.log.keeper.condemn_orphans() == 1


@pytest.mark.slow
async def test_in_a_cluster_the_keeper_asks_for_the_head_before_it_takes_a_job_for_closed(
    cluster: Cluster,
) -> None:
    one, two = await cluster.agent(1), await cluster.agent(2)
    confirmed: list[int] = []
    confirm = two.log.keeper._orphans._confirm_head
    assert confirm is not None

    async def noted() -> None:
        await confirm()
        confirmed.append(two.order.position)

    two.log.keeper._orphans._confirm_head = noted
    job = await open_job(one.log)
    key = job_object_key(job=job, name="0" * 32)
    await cluster.store.put(key, [b"x"])
    await passing(GRACE_S + 1)
    assert await two.log.keeper.condemn_orphans() == 0
    assert confirmed
    await one.log.commit([CloseJob(job=job)])
    assert await two.log.keeper.condemn_orphans() == 1


async def test_a_zombie_names_nothing_that_the_keeper_took_for_an_orphan(rig: Rig) -> None:
    key = await stored_topic(rig, retention_ms="-1")
    (segment,) = await stored(rig)
    (run,) = rig.queries().runs_from(key, 0, limit=9)
    job = await open_job(rig.log, lease_s=10)
    output = job_object_key(job=job, name="0" * 32)
    await rig.store.put(output, [b"x" * 500])
    rig.clock.advance((1 << 40) / 1000)
    await rig.log.keeper.run_once()
    rig.clock.advance(GRACE_S + 1)
    await rig.log.keeper.run_once()
    assert await stored(rig) == [segment]
    # Forgotten, so that by its key alone nothing speaks against it: its job does.
    assert not rig.queries().object_known(output)
    listed = ReplacedPartition(
        partition_key=key,
        inputs=[0, 1, 0, run.position, run.length],
        outputs=[0, 1, 0, 16, run.length, run.max_timestamp, 1],
    )
    replace = ReplaceRuns(
        job=job,
        n=1,
        input_keys=[segment],
        objects=[OutputObject(key=output, size_bytes=500)],
        partitions=[listed],
    )
    (answer,) = await rig.log.commit([replace])
    assert isinstance(answer, Refused)
    assert answer.reason is Refusal.UNKNOWN_JOB
    rig.forget_memory()
    assert await rig.read_all(key) == [(0, b"a")]


async def test_replaced_objects_go_their_way_and_readers_read_on(rig: Rig) -> None:
    """The whole way of a compaction, with bytes that are copied by hand."""
    (key,) = await rig.topic("t")
    for value in (b"a", b"b"):
        await rig.append(key, value)
        await rig.drain()
    old = await stored(rig)
    runs = rig.queries().runs_from(key, 0, limit=9)
    assert len(runs) == 2
    parts = [
        bytes(await rig.store.get_range(run.object_key, run.position, run.position + run.length))
        for run in runs
    ]
    job = await open_job(rig.log)
    output = job_object_key(job=job, name="0" * 32)
    await rig.store.put(output, [b"-" * 16, *parts])
    size = 16 + sum(len(part) for part in parts)
    inputs: list[int] = []
    for index, run in enumerate(runs):
        inputs += (run.base_offset, run.end_offset, index, run.position, run.length)
    listed = ReplacedPartition(
        partition_key=key,
        inputs=inputs,
        outputs=[0, 2, 0, 16, size - 16, runs[-1].max_timestamp, 2],
    )
    replace = ReplaceRuns(
        job=job,
        n=1,
        input_keys=[run.object_key for run in runs],
        objects=[OutputObject(key=output, size_bytes=size)],
        partitions=[listed],
    )
    assert await rig.log.commit([replace]) == [RunsReplaced([0])]
    rig.forget_memory()
    assert await rig.read_all(key) == [(0, b"a"), (1, b"b")]
    await rig.log.commit([CloseJob(job=job)])
    assert await rig.log.keeper.condemn_unreferenced() == 2
    rig.clock.advance(GRACE_S + 1)
    assert await rig.log.keeper.delete_condemned() == 2
    assert await stored(rig) == [output]
    assert output not in old
    assert await rig.read_all(key) == [(0, b"a"), (1, b"b")]


# -- writers -------------------------------------------------------------------------------------


async def test_silent_writers_are_forgotten_those_of_one_write_after_a_day(rig: Rig) -> None:
    (key,) = await rig.topic("t")
    job = await open_job(rig.log)

    async def write(writer_id: str, number: int) -> None:
        run = WriteRun(partition_key=key, object=0, position=16, batches=[70, 1, NOW, -1, -1, -1])
        output = OutputObject(key=job_object_key(job=job, name=f"{number:032x}"), size_bytes=500)
        (answer,) = await rig.log.commit(
            [
                CommitWrite(
                    job=job,
                    writer_id=writer_id,
                    batch_id=number,
                    incarnation="c",
                    objects=[output],
                    runs=[run],
                )
            ]
        )
        assert isinstance(answer, WriteCommitted), answer

    def known() -> list[str]:
        return [writer_id for writer_id, _ in rig.queries().writers_page("", limit=9)]

    await write(ONCE_PREFIX + "x", 0)
    await write("stream", 1)
    await write("other", 2)
    await write(TABLE_WRITER_PREFIX + "x", 3)
    rig.clock.advance(DAY_S)
    assert await rig.log.keeper.expire_writers() == 0
    rig.clock.advance(1)
    assert await rig.log.keeper.expire_writers() == 1
    assert known() == ["other", "stream", "table:x"]
    rig.clock.advance(20 * DAY_S)
    await write("stream", 4)
    rig.clock.advance(10 * DAY_S)
    assert await rig.log.keeper.expire_writers() == 1
    # A table names its last dead letters for ever: were they written?
    assert known() == ["stream", "table:x"]


# -- tables --------------------------------------------------------------------------------------


async def save(rig: Rig, offset: int, table: str = "penstock.t") -> None:
    (topic,) = rig.view.topics()
    saved = SaveTable(topic_id=topic.topic_id, table=table, offsets=[0, offset])
    await rig.log.commit([saved])


async def test_retention_waits_for_an_enabled_table_and_for_no_other(rig: Rig) -> None:
    configs = {"retention_ms": "1000", "penstock_table": "iceberg"}
    (key,) = await rig.topic("t", **configs)
    for value in (b"a", b"b"):
        await rig.append(key, value)
        await rig.drain()
    rig.clock.advance(10)
    keeper = rig.log.keeper
    # None has told of progress yet: it may be about to begin.
    assert await keeper.trim_expired() == 0
    assert keeper.partitions_kept_for_tables == 1
    await save(rig, 1)
    assert await keeper.trim_expired() == 1
    assert rig.log.log_start(key) == 1
    await save(rig, 2)
    assert await keeper.trim_expired() == 1
    assert rig.log.log_start(key) == 2
    assert keeper.lost_to_tables == {}
    assert keeper.partitions_kept_for_tables == 0
    await rig.append(key, b"c")
    rig.clock.advance(10)
    assert await keeper.trim_expired() == 0
    # Once nothing is to follow it, nothing is waited for.
    (topic,) = rig.view.topics()
    disabled = AlterTopicConfigs(topic_id=topic.topic_id, unset=["penstock.table"])
    await rig.log.commit([disabled])
    assert await keeper.trim_expired() == 1
    assert keeper.partitions_kept_for_tables == 0


@pytest.mark.parametrize("configs", [{"retention_ms": "1000"}, {"retention_bytes": "1"}])
async def test_retention_leaves_a_pinned_topic_alone_and_no_other(
    rig: Rig, configs: dict[str, str]
) -> None:
    keys = [(await rig.topic(name, **configs))[0] for name in ("pinned", "other")]
    for value in (b"a", b"b"):
        for key in keys:
            await rig.append(key, value)
        await rig.drain()
    rig.clock.advance(10)
    topic = rig.view.topic("pinned")
    assert topic is not None
    pin = OpenJob(kind=PIN_JOB, name=topic.topic_id.hex(), lease_ms=60_000, age_max_ms=60_000)
    (opened,) = await rig.log.commit([pin])
    assert isinstance(opened, JobOpened)
    assert await rig.log.keeper.trim_expired() == 1
    assert rig.log.log_start(keys[0]) == 0
    assert rig.log.log_start(keys[1]) > 0
    # Nothing closes the pin of a query of Spark: its lease does.
    rig.clock.advance(61)
    assert await rig.log.keeper.close_silent_jobs() == 1
    assert await rig.log.keeper.trim_expired() == 1
    assert rig.log.log_start(keys[0]) > 0


@pytest.mark.parametrize(
    ("configured", "name"), [("", "penstock.t"), ("now", "penstock.now"), ("lake.now", "lake.now")]
)
async def test_retention_waits_for_the_table_that_the_topic_names_alone(
    rig: Rig, configured: str, name: str
) -> None:
    """Not for one that was run once by hand, or before the name was changed: it may never go on."""
    (key,) = await rig.topic(
        "t",
        retention_bytes="1",
        penstock_table="iceberg",
        penstock_table_name=configured,
        penstock_table_retention_wait_ms=str(WAIT_S * 1000),
    )
    for value in (b"a", b"b", b"c"):
        await rig.append(key, value)
        await rig.drain()
    keeper = rig.log.keeper
    await save(rig, 3, "penstock.by_hand")
    await save(rig, 3, "penstock.before")
    assert await keeper.trim_expired() == 0, "of the enabled one nothing is known yet"
    await save(rig, 0, "penstock.by_hand")
    await save(rig, 2, name)
    assert await keeper.trim_expired() == 1
    assert rig.log.log_start(key) == 2
    assert keeper.lost_to_tables == {}
    assert keeper.partitions_kept_for_tables == 0


async def test_retention_by_count_waits_for_the_table_too(rig: Rig) -> None:
    configs = {"penstock_table": "iceberg", "penstock_retention_messages": "3"}
    (key,) = await rig.topic("t", **configs)
    await rig.append(key, *[b"%d" % number for number in range(10)])
    await rig.drain()
    keeper = rig.log.keeper
    assert await keeper.trim_expired() == 0
    await save(rig, 6)
    assert await keeper.trim_expired() == 0, "the wanted part of the run isn't followed whole"
    await save(rig, 7)
    assert await keeper.trim_expired() == 1
    assert rig.log.log_start(key) == 7
    assert keeper.lost_to_tables == {}


async def test_past_the_bound_retention_takes_it_and_says_so(rig: Rig) -> None:
    (key,) = await rig.topic(
        "t",
        retention_bytes="1",
        penstock_table="iceberg",
        penstock_table_retention_wait_ms=str(WAIT_S * 1000),
    )
    for value in (b"a", b"b", b"c"):
        await rig.append(key, value)
        await rig.drain()
    await save(rig, 1)
    keeper = rig.log.keeper
    assert await keeper.trim_expired() == 1
    assert rig.log.log_start(key) == 1
    rig.clock.advance(WAIT_S - 1)
    assert await keeper.trim_expired() == 0
    rig.clock.advance(1)
    assert await keeper.trim_expired() == 1
    assert rig.log.log_start(key) == 2
    assert keeper.lost_to_tables == {("t", 0): (1, 2)}
    status = PipelineStatus(rig.queries, rig.pool, rig.view, keeper).status()
    assert status["retention"] == {"partitions_waiting": 1, "lost_to_tables": {"t-0": [1, 2]}}
    (topic,) = rig.view.topics()
    await rig.log.commit([DeleteTopic(topic_id=topic.topic_id)])
    await keeper.trim_expired()
    assert keeper.lost_to_tables == {}
    assert keeper.partitions_kept_for_tables == 0


def test_a_condemned_object_of_a_restarted_server_still_waits_for_the_job(tmp_path: Path) -> None:
    async def before(rig: Rig) -> None:
        key = await stored_topic(rig)
        await open_job(rig.log)
        (segment,) = await stored(rig)
        await rig.log.delete_records([(key, -1)])
        await rig.log.commit([CondemnObjects(keys=[segment])])

    async def after(rig: Rig) -> None:
        rig.clock.advance(GRACE_S + 1)
        assert await rig.log.keeper.delete_condemned() == 0

    run_rig(tmp_path, before)
    run_rig(tmp_path, after)
