"""Which jobs topics ask for."""

from penstock.pipeline.api_messages import TopicState
from penstock.pipeline.jobs import Intervals, find_jobs

TOPICS = [
    TopicState(
        name="flights", topic_id="a" * 32, configs={"penstock.table": "iceberg"}, partitions=[]
    ),
    TopicState(name="plain", topic_id="b" * 32, configs={}, partitions=[]),
]


def names(intervals: Intervals) -> list[tuple[str, float, bool]]:
    return [(job.name, rest, job.is_bulk) for job, rest in find_jobs(TOPICS, intervals)]


def test_each_topic_with_a_table_has_two_and_compaction_is_one() -> None:
    assert names(Intervals(compaction_s=1, table_s=2, maintenance_s=3)) == [
        ("compaction", 1, True),
        ("table of flights", 2, False),
        ("maintenance of the table of flights", 3, True),
    ]


def test_an_interval_of_0_is_never() -> None:
    assert names(Intervals(compaction_s=0, maintenance_s=0)) == [("table of flights", 30.0, False)]
    assert names(Intervals(compaction_s=0, table_s=0)) == []
