"""Dead letters become rows once they can be, each once, whatever else goes on."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from penstock.model.errors import InDoubtError, InvalidRequestError, NotFoundError
from penstock.pipeline.tables import topic_table
from penstock.pipeline.tables.replay import ReplaySummary, replay_dead_letters
from support.api_server import NOW_MS, ApiServer
from support.registry import Registry
from support.tables import (
    KilledError,
    Lake,
    follow,
    new_record,
    produce,
    produce_values,
    records_of,
)
from support.typed import avro, record, typed

pytestmark = pytest.mark.slow

UNKNOWN = "penstock.table.schema.unknown"


def replayed(api: ApiServer, lake: Lake, topic: str, **changes: Any) -> ReplaySummary:
    return replay_dead_letters(api.client, lake.settings(topic, **changes))


def counts(summary: ReplaySummary) -> tuple[int, int, int, int, int]:
    return summary.rows, summary.known, summary.bad, summary.ahead, summary.others


def schema_of(**properties: str) -> dict[str, str]:
    fields = {name: {"type": kind} for name, kind in properties.items()}
    schema = {"type": "object", "properties": fields, "required": ["a"]}
    return {
        "penstock.table.schema": "text",
        "penstock.table.schema.text": json.dumps(schema),
    }


@pytest.fixture
def lettered(api: ApiServer, lake: Lake, topic: str) -> str:
    """A topic with rows 0, 2 and 4 of partition 0, and letters 1, 3 and 5; 1 and 3 may be rows."""
    api.alter(topic, schema_of(a="integer"))
    values = [b'{"a":0}', b'{"a":1,"x":1}', b'{"a":2}', b'{"a":3,"x":1}', b'{"a":4}', b"bad"]
    produce(
        api,
        topic,
        0,
        [
            new_record(b"%d" % n, value, timestamp_ms=NOW_MS + n, headers=[("h", b"%d" % n)])
            for n, value in enumerate(values)
        ],
    )
    assert follow(api, lake, topic).bad_records == 3
    api.alter(topic, {UNKNOWN: "ignore"})
    return topic


def all_rows(lake: Lake, topic: str) -> list[tuple[int, int]]:
    return lake.rows(topic, "kafka_offset", "a")


ALL = [(n, n) for n in range(5)]


def test_letters_become_rows_with_their_places_and_times_once(
    api: ApiServer, lake: Lake, lettered: str
) -> None:
    assert counts(replayed(api, lake, lettered)) == (2, 0, 1, 0, 0)
    assert all_rows(lake, lettered) == ALL
    columns = ("kafka_partition", "kafka_offset", "kafka_timestamp", "kafka_headers", "kafka_key")
    for partition, offset, time, headers, key in lake.rows(lettered, *columns):
        assert partition == 0
        assert round(time.timestamp() * 1000) == NOW_MS + offset
        assert headers == [{"key": "h", "value": b"%d" % offset}]
        assert key == b"%d" % offset
    assert counts(replayed(api, lake, lettered)) == (0, 2, 1, 0, 0)
    # The table goes on where it was.
    produce_values(api, lettered, [b'{"a":6}'])
    summary = follow(api, lake, lettered)
    assert (summary.rows, summary.offsets) == (1, {0: 7})
    assert all_rows(lake, lettered) == [*ALL, (6, 6)]


def test_a_letter_that_is_there_twice_is_one_row(api: ApiServer, lake: Lake, lettered: str) -> None:
    """A table that was rolled back sets its bad records aside a second time."""
    letters = records_of(api, f"{lettered}.dlq")
    produce(api, f"{lettered}.dlq", 0, letters)
    assert counts(replayed(api, lake, lettered)) == (2, 0, 1, 0, 0)
    assert all_rows(lake, lettered) == ALL


@pytest.mark.parametrize("step", ["before", "after"])
@pytest.mark.parametrize("what", ["killed", "in doubt", "another replay", "the table goes on"])
def test_kills_and_other_drivers_double_and_lose_nothing(
    api: ApiServer, lake: Lake, lettered: str, monkeypatch: pytest.MonkeyPatch, what: str, step: str
) -> None:
    real: Callable[..., int] = topic_table.commit_change
    produce_values(api, lettered, [b'{"a":6}'])
    met: list[None] = []

    def meanwhile() -> None:
        if met:
            return
        met.append(None)
        if what == "killed":
            raise KilledError
        if what == "in doubt":
            raise InDoubtError("commit", lettered, "the reply was lost")
        if what == "another replay":
            replayed(api, lake, lettered)
        else:
            follow(api, lake, lettered)

    def commit(*arguments: Any) -> int:
        if step == "before":
            meanwhile()
        answer = real(*arguments)
        if step == "after":
            meanwhile()
        return answer

    monkeypatch.setattr(topic_table, "commit_change", commit)
    if what == "killed":
        with pytest.raises(KilledError):
            replayed(api, lake, lettered)
    summary = replayed(api, lake, lettered)
    assert summary.rows + summary.known == 2
    follow(api, lake, lettered)
    assert all_rows(lake, lettered) == [*ALL, (6, 6)]


def test_letters_of_several_topics_and_of_records_that_the_table_lacks(
    api: ApiServer, lake: Lake, lettered: str
) -> None:
    other = f"{lettered}other"
    api.create(other, 1, {**schema_of(a="integer"), "penstock.table.dlq": f"{lettered}.dlq"})
    produce_values(api, other, [b'{"a":7,"x":1}', b'{"a":8}'])
    follow(api, lake, other)
    api.alter(other, {UNKNOWN: "ignore"})
    assert counts(replayed(api, lake, other)) == (1, 0, 0, 0, 3)
    assert lake.rows(other, "kafka_offset", "a") == [(0, 7), (1, 8)]
    # After a rollback the table comes to the records itself.
    first = lake.table(lettered).metadata.snapshots[0].snapshot_id
    produce_values(api, lettered, [b'{"a":6,"y":1}', b"bad too"])
    follow(api, lake, lettered)
    with lake.table(lettered).manage_snapshots() as snapshots:
        snapshots.rollback_to_snapshot(first)
    assert counts(replayed(api, lake, lettered)) == (2, 0, 1, 1, 1)


def test_a_schema_that_came_later_makes_rows(
    api: ApiServer, lake: Lake, topic: str, registry: Registry
) -> None:
    one, two = record(("a", "long")), record(("a", "string"))
    three = record(("a", "long"), ("b", ["null", "long"]))
    ids = [registry.register(f"{topic}-value", schema) for schema in (one, two, three)]
    known = registry.schemas.pop(ids[2])
    api.alter(topic, {"penstock.table.schema.incompatible": "dead-letter"})
    produce_values(api, topic, avro(ids[0], one, {"a": 1}))
    typed(api, lake, topic, registry)
    produce_values(api, topic, avro(ids[1], two, {"a": "x"}))
    produce_values(api, topic, avro(ids[2], three, {"a": 3, "b": 4}))
    assert typed(api, lake, topic, registry).bad_records == 2
    registry.schemas[ids[2]] = known
    api.alter(topic, {"penstock.table.schema.incompatible": "stop"})
    found = replayed(api, lake, topic, schema="registry", registry=registry.url)
    assert counts(found) == (1, 0, 1, 0, 0)
    assert lake.rows(topic, "a", "b", "kafka_offset") == [(1, None, 0), (3, 4, 2)]


def test_what_cannot_be_done_exactly_is_refused(
    api: ApiServer, lake: Lake, topic: str, lettered: str
) -> None:
    with pytest.raises(NotFoundError, match="there is no such topic"):
        replayed(api, lake, "nowhere")
    with pytest.raises(NotFoundError, match="there is no such topic"):
        replayed(api, lake, lettered, dead_letters="nowhere")
    api.create("bykey")
    api.create("bykey.dlq")
    with pytest.raises(NotFoundError, match="there is no such table"):
        replayed(api, lake, "bykey")
    produce(api, "bykey", 0, [new_record(b"k", b"v")])
    follow(api, lake, "bykey", mode="upsert", buckets=2)
    with pytest.raises(InvalidRequestError, match="it has one row per key"):
        replayed(api, lake, "bykey")
    with pytest.raises(InvalidRequestError, match="it holds rows of topic"):
        replayed(api, lake, "bykey", table=f"penstock.{lettered}")
    api.delete(lettered)
    api.create(lettered, 2, {**schema_of(a="integer"), UNKNOWN: "ignore"})
    produce_values(api, lettered, [b'{"a":1}'])
    follow(api, lake, lettered, adopt=True)
    with pytest.raises(InvalidRequestError, match="it holds rows of a deleted topic too"):
        replayed(api, lake, lettered)
