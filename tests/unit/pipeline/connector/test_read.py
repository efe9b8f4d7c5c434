import pickle

from pyspark import cloudpickle
from pyspark.sql.datasource import EqualTo, InputPartition
from pytest import MonkeyPatch

from penstock.pipeline.connector.offsets_wanted import TopicRange
from penstock.pipeline.connector.options import parse
from penstock.pipeline.connector.read import (
    FilteringReader,
    PenstockReader,
    ReadPartition,
    batch_reader,
    read_partition,
)
from penstock.pipeline.connector.stream import stream_reader

OPTIONS = parse({"url": "http://a:1,http://b:2", "subscribe": "t"}, mode="batch")
SECRET = "a-secret-that-must-not-travel"


def a_partition() -> ReadPartition:
    one = TopicRange(topic="t", topic_id="1" * 32, partition=0, start=0, end=9, size_bytes=100)
    return ReadPartition([one], OPTIONS.api)


def test_a_partition_travels_without_secrets(monkeypatch: MonkeyPatch):
    monkeypatch.setenv("PENSTOCK_CLUSTER_SECRET", SECRET)
    data = pickle.dumps(a_partition())
    assert SECRET.encode() not in data
    assert b"X-Amz" not in data
    there = pickle.loads(data)
    assert there.ranges == a_partition().ranges
    assert there.api == OPTIONS.api
    assert len(data) < 1000


def test_readers_travel_without_what_they_learnt(monkeypatch: MonkeyPatch):
    monkeypatch.setenv("PENSTOCK_CLUSTER_SECRET", SECRET)
    batch = FilteringReader(OPTIONS, ("value",))
    assert list(batch.pushFilters([EqualTo(("partition",), 1)])) == []
    for reader in (batch, stream_reader(OPTIONS, ("value",))):
        data = cloudpickle.dumps(reader)
        assert SECRET.encode() not in data
        there = pickle.loads(data)
        assert list(there.read(InputPartition(None))) == []


def test_filters_are_heeded_only_where_the_user_says_so():
    """Spark mixes up the filters of two uses of one DataFrame: see `FilteringReader`."""
    assert type(batch_reader(OPTIONS, ("value",))) is PenstockReader
    asked = parse({"url": "http://a:1", "subscribe": "t", "filterPushdown": "true"}, mode="batch")
    assert type(batch_reader(asked, ("value",))) is FilteringReader


def test_spark_s_own_partition_stands_for_nothing():
    assert list(read_partition(InputPartition(None), OPTIONS, ("value",))) == []
