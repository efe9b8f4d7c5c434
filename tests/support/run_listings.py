"""Listings of runs as the API pages them, for tests of plans."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.pipeline.api_messages import RUN_FIELDS, PartitionState, RunPage, TopicState
from penstock.pipeline.compaction.items import JoinItem, KeyedItem
from penstock.segment import Mark, SegmentRun, build_segment

NOW_MS = 1_000_000_000


@dataclass(frozen=True)
class Run:
    """One run of a listing; `key` "": in a WAL."""

    topic: int
    partition: int
    base: int
    end: int
    key: str
    position: int
    length: int
    newest: int = 0


def topic_id(number: int) -> str:
    return f"{number:032x}"


def topics(count: int, partitions: int, **configs: str) -> dict[str, TopicState]:
    return {
        topic_id(number): TopicState(
            name=f"t{number}",
            topic_id=topic_id(number),
            configs={"cleanup.policy": "delete", **configs},
            partitions=[
                PartitionState(log_start=0, high_watermark=1 << 40, size_bytes=0)
                for _ in range(partitions)
            ],
        )
        for number in range(count)
    }


def pages(runs: list[Run], page_runs: int, sizes: dict[str, int] | None = None) -> list[RunPage]:
    found = []
    for start in range(0, max(1, len(runs)), page_runs):
        places: list[tuple[str, int]] = []
        keys: list[str] = []
        rows: list[int] = []
        for run in runs[start : start + page_runs]:
            place = topic_id(run.topic), run.partition
            if place not in places:
                places.append(place)
            if run.key and run.key not in keys:
                keys.append(run.key)
            rows += [
                places.index(place),
                run.base,
                run.end,
                keys.index(run.key) if run.key else -1,
                run.position,
                run.length,
                run.newest,
                1,
            ]
        assert len(rows) % RUN_FIELDS == 0
        found.append(
            RunPage(
                position=1,
                partitions=places,
                object_keys=keys,
                object_bytes=[(sizes or {}).get(key, 0) for key in keys],
                object_raw=[0] * len(keys),
                object_origins=[""] * len(keys),
                rows=rows,
            )
        )
    return found


def rows_of(item: JoinItem | KeyedItem) -> list[tuple[str, int, int, int, str, int, int]]:
    partitions = item.partitions if isinstance(item, JoinItem) else [item.partition]
    found = []
    for each in partitions:
        for at in range(0, len(each.inputs), 5):
            base, end, index, position, length = each.inputs[at : at + 5]
            key = item.objects[index].key
            found.append((each.topic_id, each.partition, base, end, key, position, length))
    return found


def object_bytes(runs: list[Run], key: str) -> int:
    """The size of the segment that holds these runs of a listing, and nothing else."""
    described = [
        SegmentRun(
            topic_id=bytes.fromhex(topic_id(run.topic)),
            partition=run.partition,
            base_offset=run.base,
            end_offset=run.end,
            record_count=1,
            batch_count=1,
            max_timestamp=0,
            parts=[bytes(run.length)],
            length=run.length,
            marks=[Mark(base_offset=run.base, position=0, max_timestamp=-1)],
        )
        for run in runs
        if run.key == key
    ]
    return build_segment(described).size_bytes
