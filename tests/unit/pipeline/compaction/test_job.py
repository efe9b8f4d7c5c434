"""The compaction job against a whole embedded server: records stay what they are, whoever else is
at work, and what isn't committed is nothing."""

from __future__ import annotations

import dataclasses
import pickle
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from penstock.model.errors import (
    FencedError,
    InvalidRequestError,
    NotFoundError,
    RetryableError,
)
from penstock.pipeline.api_messages import RUN_FIELDS
from penstock.pipeline.client import PipelineClient, RefusedError
from penstock.pipeline.compaction import job as compaction
from penstock.pipeline.compaction.commit import Committer
from penstock.pipeline.compaction.items import CompactionSettings, ItemDone, JoinItem
from penstock.pipeline.compaction.job import compact, plan_compaction
from penstock.pipeline.compaction.task import ACCESSES, CompactionTask
from penstock.pipeline.engine import LocalEngine
from penstock.pipeline.lease import JobLease
from penstock.records.decode import Record
from penstock.segment import parse_job_key
from support.api_server import ApiServer, serve_in_thread
from support.compaction import records_of
from support.pipeline_tasks import always_dies

SETTINGS = CompactionSettings()
MANY = CompactionSettings(item_partitions_max=1)
"""An item per partition."""


@pytest.fixture
def api(tmp_path: Path) -> Iterator[ApiServer]:
    with serve_in_thread(tmp_path / "data", segment_age_ms=3_600_000) as api:
        yield api


def fill(api: ApiServer, topic: str, partitions: int, *, objects: int = 6, count: int = 3) -> str:
    """A topic whose every partition has a run in each of so many objects."""
    topic_id = api.create(topic, partitions)
    for number in range(objects):
        for partition in range(partitions):
            api.produce(topic, partition, count=count, value=b"%d-%d" % (number, partition))
        api.drain()
    return topic_id


def contents(api: ApiServer, topic_id: str) -> list[list[tuple[int, Record]]]:
    """The records of all partitions from their logs' start on, whatever batches they are in."""
    (topic,) = api.client.topics(topic_ids=[topic_id]).topics
    return [
        [
            (offset, dataclasses.replace(record, offset_delta=0))
            for offset, record in records_of(
                api.read(topic_id, number, state.log_start, state.high_watermark)
            )
        ]
        for number, state in enumerate(topic.partitions)
    ]


def run_counts(api: ApiServer) -> dict[tuple[str, int], int]:
    """Runs in objects by partition."""
    counts: dict[tuple[str, int], int] = {}
    for page in api.client.runs(with_wal=False):
        for index in page.rows[0::RUN_FIELDS]:
            place = tuple(page.partitions[index])
            counts[place] = counts.get(place, 0) + 1
    return counts


def job_objects(tmp_path: Path) -> list[str]:
    """Keys of all objects that jobs have put."""
    root = tmp_path / "data" / "objects"
    keys = [path.relative_to(root).as_posix() for path in root.rglob("*.seg")]
    return sorted(key for key in keys if parse_job_key(key) is not None)


def named_objects(api: ApiServer) -> set[str]:
    """Keys that runs lie in."""
    return {key for page in api.client.runs(with_wal=False) for key in page.object_keys}


@dataclass
class Between:
    """The local engine, with something happening after each item and before its commit."""

    then: Callable[[int], None]
    name: str = "local"
    parallelism: int = 1
    done: list[Any] = field(default_factory=list)

    def run(self, task, items, *, attempts=3):
        for index, outcome in LocalEngine(1).run(task, items, attempts=attempts):
            self.done.append(outcome)
            self.then(index)
            yield index, outcome


@pytest.mark.slow
@pytest.mark.parametrize("engine", [LocalEngine(2), LocalEngine(2, processes=True)])
def test_records_stay_and_runs_become_few(api: ApiServer, engine: LocalEngine) -> None:
    first, second = fill(api, "a", 3), fill(api, "b", 1)
    api.produce("a", 0, count=5)  # stays in the WAL
    before = contents(api, first), contents(api, second)
    seen: list[tuple[int, int, int]] = []
    summary = compact(api.client, engine, SETTINGS, watch=lambda *progress: seen.append(progress))
    assert (contents(api, first), contents(api, second)) == before
    assert run_counts(api) == {(first, 0): 1, (first, 1): 1, (first, 2): 1, (second, 0): 1}
    assert (summary.items, summary.left_items, summary.rounds) == (1, 0, 2)
    assert (summary.partitions, summary.runs_before, summary.runs_after) == (4, 24, 4)
    assert 0 < summary.written_bytes < summary.read_bytes, "small batches were merged"
    assert not summary.refused
    assert not summary.failures
    assert seen[-1][0] == seen[-1][1] == summary.read_bytes
    again = compact(api.client, engine, SETTINGS)
    assert (again.planned_items, again.rounds) == (0, 1)


def test_only_named_topics_are_compacted(api: ApiServer) -> None:
    first, second = fill(api, "a", 1), fill(api, "b", 1)
    compact(api.client, LocalEngine(1), SETTINGS, names=["b"])
    assert run_counts(api) == {(first, 0): 6, (second, 0): 1}
    with pytest.raises(NotFoundError, match="c"):
        compact(api.client, LocalEngine(1), SETTINGS, names=["b", "c"])
    api.create("empty")
    summary = compact(api.client, LocalEngine(1), SETTINGS, names=["empty"])
    assert summary.planned_items == 0
    assert run_counts(api) == {(first, 0): 6, (second, 0): 1}


@pytest.mark.slow
def test_what_changed_meanwhile_is_refused_and_planned_again(api: ApiServer) -> None:
    """A partition is trimmed and a topic deleted between reading and committing."""
    trimmed, deleted, other = fill(api, "t", 2), fill(api, "d", 1), fill(api, "o", 1)
    before = contents(api, trimmed), contents(api, other)
    happened = threading.Event()

    def change(_: int) -> None:
        if not happened.is_set():
            happened.set()
            api.trim("t", 0, 7)
            api.delete("d")

    summary = compact(api.client, Between(change), SETTINGS)
    codes = {(one.topic, one.partition): one.code for one in summary.refused}
    assert codes == {("t", 0): "input_changed", ("d", 0): "unknown_partition"}
    # The first round replaced the other two, and the second what was left of the trimmed one.
    assert summary.items == 2
    assert run_counts(api) == {(trimmed, 0): 1, (trimmed, 1): 1, (other, 0): 1}
    after = contents(api, trimmed), contents(api, other)
    assert after[0][0] == before[0][0][-len(after[0][0]) :]
    assert (after[0][1], after[1]) == (before[0][1], before[1])
    (topic,) = api.client.topics(["t"]).topics
    assert topic.partitions[0].log_start == 7
    assert deleted not in {place[0] for place in run_counts(api)}


@pytest.mark.slow
def test_agents_go_on_storing_segments_meanwhile(api: ApiServer) -> None:
    topic_id = fill(api, "t", 3)
    expected = contents(api, topic_id)

    def store(_: int) -> None:
        for partition in range(3):
            api.produce("t", partition, count=2)
        api.drain()

    summary = compact(api.client, Between(store), MANY)
    assert not summary.refused
    found = contents(api, topic_id)
    assert all(new[: len(old)] == old for new, old in zip(found, expected, strict=True))
    (topic,) = api.client.topics(["t"]).topics
    assert len({state.high_watermark for state in topic.partitions}) == 1


@pytest.mark.slow
def test_two_drivers_at_once_do_no_harm(api: ApiServer) -> None:
    """Each plans before the other commits, so for each item one of the two is refused."""
    topic_id = fill(api, "t", 4)
    before = contents(api, topic_id)
    planned = threading.Barrier(2)
    met: set[int] = set()

    def meet(_: int) -> None:
        if threading.get_ident() not in met:
            met.add(threading.get_ident())
            planned.wait(300)

    summaries: list[Any] = []

    def drive() -> None:
        with PipelineClient(api.client.options) as client:
            summaries.append(compact(client, Between(meet), MANY, rounds_max=1))

    threads = [threading.Thread(target=drive) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
    assert len(summaries) == 2
    assert sum(summary.partitions for summary in summaries) == 4
    assert sum(len(summary.refused) for summary in summaries) == 4
    assert run_counts(api) == {(topic_id, number): 1 for number in range(4)}
    assert contents(api, topic_id) == before


@pytest.mark.slow
def test_a_twin_of_an_item_leaves_an_orphan_alone(api: ApiServer, tmp_path: Path) -> None:
    """A speculative task is the same item run twice: both put, one is committed."""
    topic_id = fill(api, "t", 1)
    before = contents(api, topic_id)
    with (
        ACCESSES.held(api.client.options),
        JobLease(api.client, kind="compaction", name="test") as lease,
    ):
        plan, _ = plan_compaction(api.client, SETTINGS)
        task = CompactionTask(api.client.options, lease.job)
        first, twin = task(plan.items[0]), task(plan.items[0])
        assert isinstance(first, ItemDone)
        assert isinstance(twin, ItemDone)
        committer = Committer(api.client, lease.job)
        assert committer.commit(first).codes == [""]
        assert committer.commit(twin).codes == ["input_changed"]
    assert len(job_objects(tmp_path)) == 2
    assert named_objects(api) == {first.objects[0].key}
    assert contents(api, topic_id) == before


@pytest.mark.slow
def test_a_zombie_cannot_commit(api: ApiServer, tmp_path: Path) -> None:
    """Its job is closed by somebody else between its work and its commit."""
    topic_id = fill(api, "t", 2)
    before, counts = contents(api, topic_id), run_counts(api)

    def close(_: int) -> None:
        for job in range(1, 10):
            api.client.close_job(job)

    with pytest.raises(FencedError):
        compact(api.client, Between(close), SETTINGS)
    assert run_counts(api) == counts
    assert contents(api, topic_id) == before
    assert len(job_objects(tmp_path)) == 1
    assert not named_objects(api) & set(job_objects(tmp_path))


@pytest.mark.slow
def test_damage_fails_its_item_alone(api: ApiServer, tmp_path: Path) -> None:
    damaged, whole = fill(api, "a", 1), fill(api, "b", 1)
    (page,) = api.client.runs()
    rows = [page.rows[at : at + RUN_FIELDS] for at in range(0, len(page.rows), RUN_FIELDS)]
    row = next(row for row in rows if page.partitions[row[0]][0] == damaged)
    path = tmp_path / "data" / "objects" / page.object_keys[row[3]]
    body = bytearray(path.read_bytes())
    body[row[4] + 70] ^= 1
    path.chmod(0o600)
    path.write_bytes(body)
    summary = compact(api.client, LocalEngine(1), MANY)
    assert len(summary.failures) >= 1
    assert damaged in summary.failures[0]
    assert "CRC" in summary.failures[0]
    assert run_counts(api) == {(damaged, 0): 6, (whole, 0): 1}


def test_a_missing_object_is_told_and_the_rest_goes_on(api: ApiServer, tmp_path: Path) -> None:
    missing, whole = fill(api, "a", 1), fill(api, "b", 1)
    (page,) = api.client.runs()
    rows = [page.rows[at : at + RUN_FIELDS] for at in range(0, len(page.rows), RUN_FIELDS)]
    row = next(row for row in rows if page.partitions[row[0]][0] == missing)
    (tmp_path / "data" / "objects" / page.object_keys[row[3]]).unlink()
    summary = compact(api.client, LocalEngine(1), MANY, rounds_max=1)
    assert summary.gone_items == 1
    assert run_counts(api) == {(missing, 0): 6, (whole, 0): 1}


@pytest.mark.slow
def test_it_ends_where_it_is_told_to(api: ApiServer) -> None:
    topic_id = fill(api, "t", 4)
    stopping = threading.Event()
    summary = compact(api.client, Between(lambda _: stopping.set()), MANY, stopping=stopping)
    assert (summary.items, summary.left_items, summary.rounds) == (1, 3, 1)
    assert sorted(run_counts(api).values()) == [1, 6, 6, 6]
    assert contents(api, topic_id)


@pytest.mark.slow
def test_a_lost_engine_ends_the_job_and_keeps_what_was_committed(
    api: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic_id = fill(api, "t", 2)
    before = contents(api, topic_id)
    monkeypatch.setattr(compaction, "CompactionTask", lambda *_: always_dies)
    with pytest.raises(RetryableError, match="its worker ended each time"):
        compact(api.client, LocalEngine(1, processes=True), MANY)
    monkeypatch.undo()
    assert compact(api.client, LocalEngine(1), MANY).items == 2
    assert contents(api, topic_id) == before


def test_numbers_of_refused_commits_are_never_used_for_others(api: ApiServer) -> None:
    """A commit that the agent refuses before it is journaled has not used up its number, and one
    that apply refuses has."""
    topic_id = fill(api, "t", 1)
    with (
        ACCESSES.held(api.client.options),
        JobLease(api.client, kind="compaction", name="test") as lease,
    ):
        plan, _ = plan_compaction(api.client, SETTINGS)
        item = plan.items[0]
        assert isinstance(item, JoinItem)
        task = CompactionTask(api.client.options, lease.job)
        done, twin = task(item), task(item)
        assert isinstance(done, ItemDone)
        assert isinstance(twin, ItemDone)
        committer = Committer(api.client, lease.job)
        for _ in range(2):
            missing = replace(done.objects[0], key=done.objects[0].key[:-10] + "0123456.seg")
            with pytest.raises((RefusedError, InvalidRequestError)):
                committer.commit(replace(done, objects=[missing]))
        assert committer.commit(done).codes == [""]
        with pytest.raises(RefusedError, match="was named before"):
            committer.commit(done)
        assert committer.commit(twin).codes == ["input_changed"]
    assert run_counts(api) == {(topic_id, 0): 1}


@pytest.mark.slow
def test_compacted_topics_are_cleaned_by_key(api: ApiServer) -> None:
    """All records have one key: its newest stays, at its offset."""
    topic_id = api.create("t", configs={"cleanup.policy": "compact"})
    for number in range(5):
        api.produce("t", 0, count=3, value=b"%d" % number)
        api.drain()
    api.produce("t", 0, count=1, value=b"in the WAL")
    summary = compact(api.client, LocalEngine(1), SETTINGS)
    assert not summary.failures
    assert (summary.partitions, summary.runs_before, summary.runs_after) == (1, 5, 1)
    assert summary.dropped_records == 14
    (found,) = contents(api, topic_id)
    kept = [(offset, record.value) for offset, record in found]
    assert kept == [(14, b"4"), (15, b"in the WAL")]
    (topic,) = api.client.topics(["t"]).topics
    assert topic.partitions[0].clean_end == 15
    assert compact(api.client, LocalEngine(1), SETTINGS).planned_items == 0
    api.drain()
    again = compact(api.client, LocalEngine(1), SETTINGS)
    # Only one of two runs is dirty, and it is as long as what stayed of the other.
    assert again.dropped_records in {0, 1}
    (found,) = contents(api, topic_id)
    assert found[-1][1].value == b"in the WAL"


def values(api: ApiServer, topic_id: str) -> list[tuple[int, bytes | None]]:
    (found,) = contents(api, topic_id)
    return [(offset, record.value) for offset, record in found]


@pytest.mark.slow
def test_a_cleaning_whose_runs_were_joined_first_is_refused(api: ApiServer) -> None:
    """Between its work and its commit the topic is one that others join, and join at once."""
    topic_id = fill(api, "t", 1, objects=6, count=3)
    api.alter("t", {"cleanup.policy": "compact"})
    before = contents(api, topic_id)
    joined: list[compaction.Summary] = []

    def join(_: int) -> None:
        if not joined:
            api.alter("t", {"cleanup.policy": "delete"})
            joined.append(compact(api.client, LocalEngine(1), SETTINGS))
            assert contents(api, topic_id) == before
            api.alter("t", {"cleanup.policy": "compact"})

    refused = compact(api.client, Between(join), SETTINGS)
    assert ([one.code for one in refused.refused], refused.partitions) == (["input_changed"], 0)
    assert (joined[0].runs_before, joined[0].runs_after) == (6, 1)
    assert contents(api, topic_id) == before
    again = compact(api.client, Between(join), SETTINGS)
    assert (again.refused, again.runs_before, again.dropped_records) == ([], 1, 17)
    assert values(api, topic_id) == [(17, b"5-0")]


@pytest.mark.slow
def test_joining_what_was_cleaned_first_is_refused(api: ApiServer) -> None:
    """Or superseded records would be back."""
    topic_id = fill(api, "t", 1, objects=6, count=3)
    cleaned: list[compaction.Summary] = []

    def clean(_: int) -> None:
        if not cleaned:
            api.alter("t", {"cleanup.policy": "compact"})
            cleaned.append(compact(api.client, LocalEngine(1), SETTINGS))
            api.alter("t", {"cleanup.policy": "delete"})

    refused = compact(api.client, Between(clean), SETTINGS)
    assert cleaned[0].dropped_records == 17
    assert ([one.code for one in refused.refused], refused.partitions) == (["input_changed"], 0)
    assert values(api, topic_id) == [(17, b"5-0")]


def test_agents_go_on_storing_what_comes_behind_a_cleaning(api: ApiServer) -> None:
    """The agents join what was in the WAL when it was planned, right behind its inputs."""
    topic_id = api.create("t", configs={"cleanup.policy": "compact"})
    for number in range(3):
        api.produce("t", 0, count=3, value=b"%d" % number)
        api.drain()
    for number in range(3, 6):
        api.produce("t", 0, count=3, value=b"%d" % number)

    def store(_: int) -> None:
        api.produce("t", 0, count=1, value=b"6")
        api.drain()
        assert run_counts(api) == {(topic_id, 0): 4}

    summary = compact(api.client, Between(store), SETTINGS, rounds_max=1)
    assert (summary.refused, summary.runs_before, summary.dropped_records) == ([], 3, 8)
    rest = [(number, b"%d" % (number // 3)) for number in range(9, 18)]
    assert values(api, topic_id) == [(8, b"2"), *rest, (18, b"6")]
    assert run_counts(api) == {(topic_id, 0): 2}


def test_connections_stay_open_until_the_last_driver_ends(api: ApiServer) -> None:
    options = api.client.options
    with ACCESSES.held(options):
        with ACCESSES.held(options):
            first = ACCESSES.get(options)
        assert ACCESSES.get(options) is first
    with ACCESSES.held(options):
        assert ACCESSES.get(options) is not first


def test_tasks_hold_no_secret(api: ApiServer) -> None:
    task = CompactionTask(api.client.options, 7)
    assert pickle.loads(pickle.dumps(task)) == task
    assert set(CompactionTask.__slots__) == {"options", "job"}
