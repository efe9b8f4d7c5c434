"""Offsets, epochs, deletion of records, sizes and producer ids: every version."""

from datetime import timedelta
from typing import Any

import pytest

from penstock.kafka.registry import BY_MODULE
from penstock.model.errors import CorruptDataError, OverloadedError
from penstock.model.ids import partition_key
from penstock.state.schema import TRANSACTIONS_LEVEL

TIMEOUT = timedelta(seconds=5)


def versions(api: str) -> range:
    entry = BY_MODULE[api]
    return range(entry.versions_min, entry.versions_max + 1)


@pytest.fixture
def flights(add_topic: Any, broker: Any) -> Any:
    """A topic of two partitions; the first holds offsets 10 to 99."""
    topic = add_topic("flights", 2)
    key = partition_key(topic.topic_key, 0)
    broker.log.starts[key] = 10
    broker.log.ends[key] = 100
    broker.log.times[key] = [(10, 1000), (50, 5000), (60, 4000)]
    return topic


@pytest.fixture
def list_offsets(call: Any, request_of: Any, part_of: Any) -> Any:
    """(error, timestamp, offset) per asked (partition, timestamp)."""
    api = "list_offsets"

    def run(
        version: int, *asked: tuple[int, int], name: str = "flights", epoch: int = -1
    ) -> list[tuple[int, int, int]]:
        partitions = tuple(
            part_of(
                api,
                version,
                "ListOffsetsPartition",
                partition_index=partition,
                current_leader_epoch=epoch,
                timestamp=timestamp,
            )
            for partition, timestamp in asked
        )
        topic = part_of(api, version, "ListOffsetsTopic", name=name, partitions=partitions)
        ask = request_of(
            api, version, replica_id=-1, isolation_level=0, topics=(topic,), timeout=TIMEOUT
        )
        (answer,) = call(api, version, ask).topics
        if version >= 4:
            for one in answer.partitions:
                assert one.leader_epoch == (0 if one.offset >= 0 else -1)
        return [(one.error_code, one.timestamp, one.offset) for one in answer.partitions]

    return run


@pytest.mark.parametrize("version", versions("list_offsets"))
def test_offsets_earliest_latest_and_by_time(list_offsets: Any, flights: Any, version: int) -> None:
    def ask(timestamp: int) -> tuple[int, int, int]:
        (answer,) = list_offsets(version, (0, timestamp))
        return answer  # type: ignore[no-any-return]

    assert ask(-1) == (0, -1, 100)
    assert ask(-2) == (0, -1, 10)
    assert ask(0) == (0, 1000, 10)
    assert ask(1001) == (0, 5000, 50)
    assert ask(9999) == (0, -1, -1)
    unsupported = (35, -1, -1)
    assert ask(-3) == ((0, 5000, 50) if version >= 7 else unsupported)
    assert ask(-4) == ((0, -1, 10) if version >= 8 else unsupported)
    assert ask(-5) == ((0, -1, -1) if version >= 9 else unsupported)
    assert ask(-6) == ((0, -1, -1) if version >= 11 else unsupported)
    assert ask(-7) == unsupported


def test_an_empty_partition_has_no_greatest_timestamp(list_offsets: Any, flights: Any) -> None:
    assert list_offsets(11, (1, -3), (1, -1), (1, 5)) == [(42, -1, -1)] * 3
    assert list_offsets(11, (1, -3)) == [(0, -1, -1)]
    assert list_offsets(11, (1, -1)) == [(0, -1, 0)]


def test_unknown_partitions_and_epochs(list_offsets: Any, flights: Any) -> None:
    assert list_offsets(11, (2, -1), (-1, -1), (0, -1)) == [
        (3, -1, -1),
        (3, -1, -1),
        (0, -1, 100),
    ]
    assert list_offsets(11, (0, -1), name="missing") == [(3, -1, -1)]
    assert list_offsets(11, (0, -1), epoch=0) == [(0, -1, 100)]
    assert list_offsets(11, (0, -1), epoch=1) == [(75, -1, -1)]


def test_a_lookup_that_fails_is_that_partitions_error(
    list_offsets: Any, flights: Any, broker: Any
) -> None:
    broker.log.failure = CorruptDataError("read", "segment", "a CRC differs")
    assert list_offsets(11, (0, 5), (1, -1)) == [(2, -1, -1), (0, -1, 0)]
    assert len(broker.log.failed) == 1


def test_offsets_behind_the_readers_end_are_not_told(
    list_offsets: Any, flights: Any, broker: Any
) -> None:
    broker.log.ends[partition_key(flights.topic_key, 0)] = 50
    assert list_offsets(11, (0, 1001)) == [(0, -1, -1)]


def test_an_offset_is_of_the_epoch_that_it_was_given_in(
    call: Any, request_of: Any, part_of: Any, flights: Any, broker: Any
) -> None:
    broker.view.leader_epoch = 3
    broker.view._epoch_starts[partition_key(flights.topic_key, 0)] = ((0, 0), (1, 50), (3, 60))
    broker.log.times[partition_key(flights.topic_key, 0)] = [(10, 10), (50, 50), (99, 99)]

    def epoch_at(timestamp: int) -> int:
        one = part_of(
            "list_offsets",
            11,
            "ListOffsetsPartition",
            partition_index=0,
            current_leader_epoch=3,
            timestamp=timestamp,
        )
        topic = part_of("list_offsets", 11, "ListOffsetsTopic", name="flights", partitions=(one,))
        ask = request_of(
            "list_offsets", 11, replica_id=-1, isolation_level=0, topics=(topic,), timeout=TIMEOUT
        )
        (answer,) = call("list_offsets", 11, ask).topics
        return int(answer.partitions[0].leader_epoch)

    assert [epoch_at(at) for at in (-2, -1, 10, 11, 51, -3, 100)] == [0, 3, 0, 1, 3, 3, -1]


# -- OffsetForLeaderEpoch ----------------------------------------------------------------------


@pytest.mark.parametrize("version", versions("offset_for_leader_epoch"))
def test_an_epoch_ends_at_the_high_watermark_or_where_a_restore_began(
    call: Any, request_of: Any, part_of: Any, flights: Any, broker: Any, version: int
) -> None:
    api = "offset_for_leader_epoch"
    broker.view.leader_epoch = 2
    key = partition_key(flights.topic_key, 0)
    broker.view._epoch_starts[key] = ((0, 0), (2, 70))

    def ask(partition: int, current: int, epoch: int) -> tuple[int, int, int]:
        one = part_of(
            api,
            version,
            "OffsetForLeaderPartition",
            partition=partition,
            current_leader_epoch=current,
            leader_epoch=epoch,
        )
        topic = part_of(api, version, "OffsetForLeaderTopic", topic="flights", partitions=(one,))
        (answer,) = call(api, version, request_of(api, version, topics=(topic,))).topics
        (end,) = answer.partitions
        return end.error_code, end.leader_epoch, end.end_offset

    assert ask(0, -1, 2) == (0, 2, 100)
    assert ask(0, 2, 1) == (0, 0, 70)
    assert ask(0, 2, 0) == (0, 0, 70)
    assert ask(0, 2, 3) == (0, -1, -1)
    assert ask(0, 2, -1) == (0, -1, -1)
    assert ask(0, 1, 1) == (74, -1, -1)
    assert ask(0, 3, 1) == (75, -1, -1)
    assert ask(9, -1, 0) == (3, -1, -1)


# -- DeleteRecords -----------------------------------------------------------------------------


@pytest.mark.parametrize("version", versions("delete_records"))
def test_records_are_deleted_below_an_offset(
    call: Any, request_of: Any, part_of: Any, add_topic: Any, flights: Any, version: int
) -> None:
    api = "delete_records"
    add_topic("kept", cleanup_policy="compact")

    def ask(name: str, *asked: tuple[int, int]) -> list[tuple[int, int]]:
        partitions = tuple(
            part_of(api, version, "DeleteRecordsPartition", partition_index=index, offset=offset)
            for index, offset in asked
        )
        topic = part_of(api, version, "DeleteRecordsTopic", name=name, partitions=partitions)
        ask = request_of(api, version, topics=(topic,), timeout=TIMEOUT)
        (answer,) = call(api, version, ask).topics
        return [(one.error_code, one.low_watermark) for one in answer.partitions]

    assert ask("flights", (0, 40), (1, -1), (2, 0)) == [(0, 40), (0, 0), (3, -1)]
    assert ask("flights", (0, 20)) == [(0, 40)]
    assert ask("flights", (0, 101)) == [(1, -1)]
    assert ask("flights", (0, -2)) == [(1, -1)]
    assert ask("flights", (0, -1)) == [(0, 100)]
    assert ask("flights", (0, 1), (0, 2)) == [(42, -1)] * 2
    assert ask("missing", (0, 1)) == [(3, -1)]
    assert ask("kept", (0, 0)) == [(44, -1)]


# -- DescribeLogDirs ---------------------------------------------------------------------------


@pytest.mark.parametrize("version", versions("describe_log_dirs"))
def test_sizes_of_partitions(
    call: Any, request_of: Any, part_of: Any, flights: Any, version: int
) -> None:
    api = "describe_log_dirs"

    def ask(topics: Any) -> dict[tuple[str, int], int]:
        answer = call(api, version, request_of(api, version, topics=topics))
        (result,) = answer.results
        assert (result.error_code, result.log_dir) == (0, "penstock")
        return {
            (topic.name, one.partition_index): one.partition_size
            for topic in result.topics
            for one in topic.partitions
        }

    assert ask(None) == {("flights", 0): 10_000, ("flights", 1): 0}
    some = part_of(api, version, "DescribableLogDirTopic", topic="flights", partitions=(1, 5))
    gone = part_of(api, version, "DescribableLogDirTopic", topic="missing", partitions=(0,))
    assert ask((some, gone)) == {("flights", 1): 0}


# -- InitProducerId ----------------------------------------------------------------------------


@pytest.mark.parametrize("version", versions("init_producer_id"))
def test_producer_ids_are_fresh_each_time(
    call: Any, request_of: Any, broker: Any, version: int
) -> None:
    api = "init_producer_id"

    def ask(transactional_id: str | None = None) -> tuple[int, int, int]:
        request = request_of(
            api,
            version,
            transactional_id=transactional_id,
            transaction_timeout=TIMEOUT,
            producer_id=5,
            producer_epoch=1,
        )
        answer = call(api, version, request)
        return answer.error_code, answer.producer_id, answer.producer_epoch

    assert ask() == (0, 1001, 0)
    assert ask() == (0, 1002, 0)
    assert ask("payments") == (53, -1, -1)
    assert ask("") == (42, -1, -1)
    broker.log.failure = OverloadedError("commit", "journal", "it is full")
    assert ask() == (14, -1, -1)


# -- ApiVersions -------------------------------------------------------------------------------


@pytest.mark.parametrize("version", versions("api_versions"))
@pytest.mark.parametrize("level", [TRANSACTIONS_LEVEL - 1, TRANSACTIONS_LEVEL])
def test_all_apis_of_the_level_are_advertised_and_produce_from_0(
    call: Any, request_of: Any, broker: Any, version: int, level: int
) -> None:
    broker.view.feature_level = level
    request = request_of(
        "api_versions", version, client_software_name="test", client_software_version="1"
    )
    answer = call("api_versions", version, request)
    assert answer.error_code == 0
    ranges = {row.api_key: (row.min_version, row.max_version) for row in answer.api_keys}
    assert ranges.pop(0) == (0, 13)
    expected = {
        api.key: (api.versions_min, api.versions_max)
        for api in BY_MODULE.values()
        if api.level <= level
    }
    assert (26 in expected) == (level >= TRANSACTIONS_LEVEL)
    expected.pop(0)
    assert ranges == expected
    if version >= 3:
        finalized = [
            (one.name, one.min_version_level, one.max_version_level)
            for one in answer.finalized_features
        ]
        supported = [
            (one.name, one.min_version, one.max_version) for one in answer.supported_features
        ]
        if level < TRANSACTIONS_LEVEL:
            assert (finalized, supported, answer.finalized_features_epoch) == ([], [], -1)
        else:
            assert finalized == [
                ("group.version", 1, 1),
                ("metadata.version", 30, 30),
                ("share.version", 1, 1),
                ("streams.version", 1, 1),
                ("transaction.version", 2, 2),
            ]
            known = [
                ("group.version", 0, 1),
                ("metadata.version", 7, 30),
                ("share.version", 0, 1),
                ("streams.version", 0, 1),
                ("transaction.version", 0, 2),
            ]
            # Clients of version 3 can't read a least level of 0.
            assert supported == (known if version >= 4 else [("metadata.version", 7, 30)])
            assert answer.finalized_features_epoch == level
