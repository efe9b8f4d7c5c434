"""Upserted tables: one row per key, the newest; tombstones delete; exactly once."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest

from penstock.model.errors import InvalidRequestError
from penstock.pipeline.engine import LocalEngine
from penstock.pipeline.tables import job, upsert
from penstock.pipeline.tables.maintenance import Maintenance, maintain_table
from support.api_server import NOW_MS, ApiServer
from support.tables import (
    KilledError,
    Lake,
    follow,
    new_record,
    produce,
    records_of,
    spoil,
)

Change = tuple[bytes | None, bytes | None]


def write(api: ApiServer, topic: str, changes: Sequence[Change], partition: int = 0) -> None:
    produce(api, topic, partition, [new_record(key, value) for key, value in changes])


def upserted(api: ApiServer, lake: Lake, topic: str, **changes: Any) -> Any:
    return follow(api, lake, topic, mode="upsert", **({"buckets": 4} | changes))


def held(lake: Lake, topic: str) -> dict[bytes, bytes]:
    rows = lake.rows(topic, "key", "value")
    found = dict(rows)
    assert len(found) == len(rows), "a key twice"
    return found


def test_the_newest_record_of_a_key_is_its_row(api: ApiServer, lake: Lake, topic: str) -> None:
    write(api, topic, [(b"a", b"1"), (b"b", b"1"), (b"a", b"2")])
    assert upserted(api, lake, topic).rows == 2
    write(api, topic, [(b"b", None), (b"c", b"1"), (b"never", None), (b"d", b"1"), (b"d", None)])
    upserted(api, lake, topic)
    assert held(lake, topic) == {b"a": b"2", b"c": b"1"}
    write(api, topic, [(b"b", b"again"), (b"a", b"3")])
    upserted(api, lake, topic)
    assert held(lake, topic) == {b"a": b"3", b"b": b"again", b"c": b"1"}


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_it_is_what_a_dictionary_would_hold(
    api: ApiServer, lake: Lake, topic: str, seed: int
) -> None:
    chance = random.Random(seed)
    model: dict[bytes, bytes] = {}
    for _ in range(5):
        for _ in range(chance.randrange(1, 4)):
            changes: list[Change] = []
            partition = chance.randrange(2)
            for _ in range(chance.randrange(1, 30)):
                # A key has its partition, as a producer's partitioner sees to.
                key = b"%d-%d" % (partition, chance.randrange(25))
                value = None if chance.random() < 0.3 else b"%d" % chance.randrange(1000)
                changes.append((key, value))
                model.pop(key, None)
                if value is not None:
                    model[key] = value
            write(api, topic, changes, partition)
        upserted(api, lake, topic, target_file_bytes=chance.choice([400, 1 << 20]))
        assert held(lake, topic) == model


@pytest.mark.slow
def test_between_partitions_the_later_timestamp_counts(
    api: ApiServer, lake: Lake, topic: str
) -> None:
    write(api, topic, [(b"x", b"filler")] * 5 + [(b"k", b"old")])
    upserted(api, lake, topic)
    # Partitions were added and the key moved: its offsets begin at 0 again.
    produce(api, topic, 1, [new_record(b"k", b"new", timestamp_ms=NOW_MS + 1)])
    upserted(api, lake, topic)
    assert held(lake, topic)[b"k"] == b"new"
    produce(api, topic, 0, [new_record(b"k", b"late", timestamp_ms=NOW_MS - 5)])
    upserted(api, lake, topic)
    assert held(lake, topic)[b"k"] == b"new"


@pytest.mark.slow
def test_records_without_a_key_are_set_aside(api: ApiServer, lake: Lake, topic: str) -> None:
    write(api, topic, [(b"a", b"1"), (None, b"keyless"), (b"b", b"1")])
    assert upserted(api, lake, topic).bad_records == 1
    assert held(lake, topic) == {b"a": b"1", b"b": b"1"}
    (letter,) = records_of(api, f"{topic}.dlq")
    assert (letter.key, letter.value) == (None, b"keyless")
    assert dict(letter.headers)["penstock.reason"] == b"no key"


@pytest.mark.slow
def test_only_touched_files_are_rewritten(api: ApiServer, lake: Lake, topic: str) -> None:
    write(api, topic, [(b"%d" % n, b"old") for n in range(200)])
    upserted(api, lake, topic, buckets=8)
    before = {task.file.file_path for task in lake.table(topic).scan().plan_files()}
    assert len(before) == 8
    write(api, topic, [(b"7", b"new")])
    upserted(api, lake, topic, buckets=8)
    after = {task.file.file_path for task in lake.table(topic).scan().plan_files()}
    assert len(before & after) == 7
    # A new key touches nothing that is stored.
    write(api, topic, [(b"another", b"new")])
    upserted(api, lake, topic, buckets=8)
    last = {task.file.file_path for task in lake.table(topic).scan().plan_files()}
    assert after < last
    assert len(held(lake, topic)) == 201


@pytest.mark.slow
@pytest.mark.parametrize(
    "step", ["before_commit", "after_commit", "before_letters", "before_save", "after_save"]
)
def test_killed_at_any_step(
    api: ApiServer, lake: Lake, topic: str, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    write(api, topic, [(b"a", b"1"), (b"b", b"1")])
    upserted(api, lake, topic)
    write(api, topic, [(b"a", b"2"), (None, b"bad"), (b"b", None), (b"c", b"1")])

    def end() -> None:
        raise KilledError

    with monkeypatch.context() as patched:
        spoil(patched.setattr, step, end)
        with pytest.raises(KilledError):
            upserted(api, lake, topic)
    upserted(api, lake, topic)
    upserted(api, lake, topic)
    assert held(lake, topic) == {b"a": b"2", b"c": b"1"}
    assert [record.value for record in records_of(api, f"{topic}.dlq")] == [b"bad"]


@pytest.mark.slow
@pytest.mark.parametrize("task", ["stage_changes", "merge_bucket"])
def test_an_executor_is_lost(
    api: ApiServer, lake: Lake, topic: str, monkeypatch: pytest.MonkeyPatch, task: str
) -> None:
    write(api, topic, [(b"a", b"1"), (b"b", b"1")])
    upserted(api, lake, topic)
    write(api, topic, [(b"a", b"2"), (b"c", b"1")])
    real = getattr(upsert, task)

    def end(item: Any) -> Any:
        real(item)
        raise KilledError

    with monkeypatch.context() as patched:
        patched.setattr(upsert, task, end)
        with pytest.raises(KilledError):
            upserted(api, lake, topic)
    upserted(api, lake, topic)
    assert held(lake, topic) == {b"a": b"2", b"b": b"1", b"c": b"1"}


@pytest.mark.slow
@pytest.mark.parametrize("joins", [False, True])
def test_somebody_who_was_faster_is_never_overwritten(
    api: ApiServer, lake: Lake, topic: str, monkeypatch: pytest.MonkeyPatch, joins: bool
) -> None:
    """Another driver, or a compaction, between the rewritten files and their commit."""
    for number in range(4):
        write(api, topic, [(b"%d" % n, b"%d" % number) for n in range(number, 20)])
        upserted(api, lake, topic, buckets=1)
        write(api, topic, [(b"new-%d" % number, b"1")])
        upserted(api, lake, topic, buckets=1)
    write(api, topic, [(b"5", b"newest"), (b"6", None)])
    real = job.commit_change
    faster: list[int] = []

    def commit(table: Any, change: Any) -> int:
        if not faster:
            faster.append(1)
            if joins:
                settings = lake.settings(topic, mode="upsert")
                upkeep = Maintenance(files_min=2)
                done = maintain_table(api.client, LocalEngine(1), settings, upkeep)
                assert done.files_joined >= 2
            else:
                upserted(api, lake, topic)
        return real(table, change)

    monkeypatch.setattr(job, "commit_change", commit)
    upserted(api, lake, topic)
    found = held(lake, topic)
    assert found[b"5"] == b"newest"
    assert b"6" not in found
    assert len(found) == 23


def test_changes_leave_no_files_behind(api: ApiServer, lake: Lake, topic: str) -> None:
    write(api, topic, [(b"a", b"1")])
    upserted(api, lake, topic)
    assert all("/data/" in path for path in lake.files(topic))


def test_a_table_s_mode_is_for_life(api: ApiServer, lake: Lake, topic: str) -> None:
    write(api, topic, [(b"a", b"1")])
    follow(api, lake, topic)
    with pytest.raises(InvalidRequestError, match="was made for append"):
        upserted(api, lake, topic)


@pytest.mark.slow
@pytest.mark.parametrize("told", ["upsert", "append"])
def test_a_table_of_one_row_per_key_is_not_adopted(
    api: ApiServer, lake: Lake, topic: str, told: str
) -> None:
    """Its rows would be told older and newer than the new topic's by the old one's offsets."""
    write(api, topic, [(b"x", b"filler")] * 5 + [(b"k", b"old")])
    upserted(api, lake, topic)
    api.delete(topic)
    api.create(topic, 2)
    write(api, topic, [(b"k", b"new")])
    with pytest.raises(InvalidRequestError, match=r"one row per key|was made for upsert"):
        follow(api, lake, topic, mode=told, adopt=True)
    # Refused means untouched: without --adopt it is still another topic's.
    with pytest.raises(InvalidRequestError, match="holds rows of topic"):
        upserted(api, lake, topic)
    assert held(lake, topic)[b"k"] == b"old"
    assert upserted(api, lake, topic, table="anew").rows == 1


def test_the_mode_may_be_the_topic_s(api: ApiServer, lake: Lake) -> None:
    api.create("by-config", configs={"penstock.table.mode": "upsert", "penstock.table.name": "x"})
    write(api, "by-config", [(b"a", b"1"), (b"a", b"2")])
    assert follow(api, lake, "by-config").table == "penstock.x"
    assert held(lake, "x") == {b"a": b"2"}
