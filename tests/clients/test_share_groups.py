"""Share groups (KIP-932) by raw requests, and with librdkafka's share consumer."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from confluent_kafka import Producer, ShareConsumer

from support.share_client import ACCEPT, REJECT, RELEASE, RENEW, ShareMember

NewTopic = Callable[..., str]
Members = Callable[..., ShareMember]


def fill(bootstrap: str, topic: str, count: int, *, start: int = 0, partition: int = 0) -> None:
    """Write records, each a batch of its own, whose values are their numbers."""
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0})
    for number in range(start, start + count):
        producer.produce(topic, value=b"%d" % number, partition=partition)
        producer.flush()


@pytest.fixture
def members(bootstrap: str, name: Callable[[str], str]) -> Iterator[Members]:
    """Makes members of one group, and closes them."""
    group_id = name("group")
    with ExitStack() as stack:

        def make(topic: str) -> ShareMember:
            member = ShareMember(bootstrap, group_id, topic)
            stack.callback(member.close)
            return member

        yield make


def joined(members: Members, topic: str) -> ShareMember:
    """A member that has begun to read partition 0, whose next records it gets."""
    member = members(topic)
    member.beat()
    assert member.fetch([0], wait_s=0) == {}
    return member


def test_records_are_acquired_and_accepted(
    bootstrap: str, new_topic: NewTopic, members: Members
) -> None:
    topic = new_topic(2)
    member = joined(members, topic)
    fill(bootstrap, topic, 3)
    given = member.fetch()[0]
    assert given.acquired[0][0] == 0
    assert given.values == [b"0", b"1", b"2"][: len(given.values)]
    while len(given.values) < 3:
        more = member.fetch()[0]
        given.values.extend(more.values)
    assert member.fetch(wait_s=0.2) == {}, "a record is one member's at a time"
    assert member.acknowledge({0: [(0, 1, [ACCEPT]), (2, 2, [ACCEPT])]}) == ("none", {0: "none"})
    assert member.offsets(0, 1) == {0: (3, 0), 1: (-1, -1)}


def test_what_is_released_is_another_member_s(
    bootstrap: str, new_topic: NewTopic, members: Members
) -> None:
    topic = new_topic(1)
    one, two = joined(members, topic), joined(members, topic)
    fill(bootstrap, topic, 1)
    assert one.fetch()[0].acquired == [(0, 0, 1)]
    assert one.acknowledge({0: [(0, 0, [RELEASE])]}) == ("none", {0: "none"})
    assert two.fetch()[0].acquired == [(0, 0, 2)]
    assert two.fetch(acks={0: [(0, 0, [REJECT])]}, wait_s=0)[0].acknowledge_error == 0
    assert one.fetch(wait_s=0.2) == {}
    assert one.offsets(0) == {0: (1, 0)}


def test_a_waiting_fetch_gets_what_another_member_releases(
    bootstrap: str, new_topic: NewTopic, members: Members
) -> None:
    topic = new_topic(1)
    one, two = joined(members, topic), joined(members, topic)
    fill(bootstrap, topic, 1)
    assert one.fetch()[0].acquired == [(0, 0, 1)]
    one.close()
    began_s = time.monotonic()
    # This delivery does not count: nothing was said of it.
    assert two.fetch(wait_s=20)[0].acquired == [(0, 0, 1)]
    assert time.monotonic() - began_s < 10


def test_a_session_ends_by_its_final_epoch(
    bootstrap: str, new_topic: NewTopic, members: Members
) -> None:
    topic = new_topic(1)
    one, two = joined(members, topic), joined(members, topic)
    fill(bootstrap, topic, 2)
    while one.fetch()[0].acquired[-1][1] < 1:
        pass
    assert one.acknowledge({0: [(0, 0, [ACCEPT])]}, epoch=-1) == ("none", {0: "none"})
    assert two.fetch()[0].acquired == [(1, 1, 1)]
    assert one.acknowledge({}, epoch=5)[0] == "share_session_not_found"
    assert one.fetch_reply(epoch=-1).error_code.name.lower() == "share_session_not_found"


def test_requests_of_another_epoch_are_refused(
    bootstrap: str, new_topic: NewTopic, members: Members
) -> None:
    topic = new_topic(1)
    member = joined(members, topic)
    assert member.fetch_reply(epoch=7).error_code.name.lower() == "invalid_share_session_epoch"
    assert member.acknowledge({}, epoch=7)[0] == "invalid_share_session_epoch"
    assert member.acknowledge({}, epoch=0)[0] == "invalid_share_session_epoch"
    reply = member.fetch_reply(epoch=0, acks={0: [(0, 0, [ACCEPT])]})
    assert reply.error_code.name.lower() == "invalid_request"
    assert member.fetch(wait_s=0) == {}, "the session goes on"


def test_what_no_member_has_is_not_acknowledged(
    bootstrap: str, new_topic: NewTopic, members: Members
) -> None:
    topic = new_topic(1)
    one, two = joined(members, topic), joined(members, topic)
    fill(bootstrap, topic, 1)
    assert one.fetch()[0].acquired == [(0, 0, 1)]
    assert two.acknowledge({0: [(0, 0, [ACCEPT])]}) == ("none", {0: "invalid_record_state"})
    assert two.acknowledge({0: [(9, 9, [ACCEPT])]}) == ("none", {0: "invalid_record_state"})
    for wrong in ([(3, 1, [ACCEPT])], [(0, 4, [1, 1])], [(0, 0, [9])], [(0, 0, [RENEW])]):
        assert one.acknowledge({0: wrong}) == ("none", {0: "invalid_request"})
    assert one.fetch(acks={0: [(5, 5, [1])]}, wait_s=0)[0].acknowledge_error == 121


def test_an_acquisition_is_renewed(bootstrap: str, new_topic: NewTopic, members: Members) -> None:
    topic = new_topic(1)
    member = joined(members, topic)
    fill(bootstrap, topic, 1)
    assert member.fetch()[0].acquired == [(0, 0, 1)]
    assert member.acknowledge({0: [(0, 0, [RENEW])]}, renews=True) == ("none", {0: "none"})
    renewed = member.fetch(
        acks={0: [(0, 0, [RENEW])]}, renews=True, wait_s=0, max_bytes=0, max_records=0
    )
    assert renewed[0].acknowledge_error == 0
    refused = member.fetch_reply(acks={0: [(0, 0, [RENEW])]}, renews=True, wait_s=0)
    assert refused.error_code.name.lower() == "invalid_request"


def test_records_are_limited(bootstrap: str, new_topic: NewTopic, members: Members) -> None:
    topic = new_topic(1)
    member = joined(members, topic)
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 200})
    for number in range(10):
        producer.produce(topic, value=b"%d" % number)
    producer.flush()
    strict = member.fetch(max_records=3, strict=True)[0]
    assert strict.acquired == [(0, 2, 1)]
    assert strict.values == [b"0", b"1", b"2"]
    whole = member.fetch(max_records=3, batch_size=4)[0]
    assert whole.acquired == [(3, 6, 1), (7, 9, 1)], "a batch is given whole, in pieces"


def test_offsets_are_altered_and_deleted_where_there_is_no_member(
    bootstrap: str, new_topic: NewTopic, members: Members
) -> None:
    topic = new_topic(1)
    fill(bootstrap, topic, 5)
    member = joined(members, topic)
    assert member.offsets(0) == {0: (5, 0)}, "it began at the latest"
    assert member.alter({0: 2}) == ("non_empty_group", {})
    assert member.delete() == ("non_empty_group", [])
    member.beat(epoch=-1)
    assert member.alter({0: 2, 7: 1}) == ("none", {0: "none", 7: "unknown_topic_or_partition"})
    assert member.offsets(0) == {0: (2, 3)}
    assert member.delete() == ("none", ["none"])
    assert member.offsets(0) == {0: (-1, -1)}


def test_a_group_that_is_not_there(bootstrap: str, new_topic: NewTopic, members: Members) -> None:
    member = members(new_topic(1))
    assert member.fetch_reply([0]).error_code.name.lower() == "group_id_not_found"
    assert member.acknowledge({}, epoch=1)[0] == "group_id_not_found"
    assert member.alter({0: 1})[0] == "group_id_not_found"


def test_librdkafka_s_share_consumers_share_a_partition(
    bootstrap: str, new_topic: NewTopic, name: Callable[[str], str]
) -> None:
    topic, group_id = new_topic(1), name("group")
    settings = {"bootstrap.servers": bootstrap, "group.id": group_id}
    with ExitStack() as stack:
        one, two = ShareConsumer(settings), ShareConsumer(settings)
        for consumer in (one, two):
            stack.callback(consumer.close)
            consumer.subscribe([topic])
        observer = ShareMember(bootstrap, group_id, topic)
        stack.callback(observer.close)
        until_s = time.monotonic() + 60
        while time.monotonic() < until_s:
            for consumer in (one, two):
                consumer.poll(0.2)
            # Where it begins is known once a member has asked for records.
            if observer.start(0) == 0:
                break
        fill(bootstrap, topic, 20)
        found: list[bytes] = []
        while len(found) < 20 and time.monotonic() < until_s + 60:
            for consumer in (one, two):
                found += [message.value() or b"" for message in consumer.poll(0.5)]
        assert sorted(found, key=int) == [b"%d" % number for number in range(20)]
        for consumer in (one, two):
            consumer.commit_sync(30.0)
        assert observer.offsets(0) == {0: (20, 0)}


def test_a_group_s_own_configs_hold(bootstrap: str, new_topic: NewTopic, members: Members) -> None:
    """It begins at the earliest, gives up after two deliveries, and takes records back in time."""
    topic = new_topic(1)
    fill(bootstrap, topic, 2)
    member = members(topic)
    configured = member.configure(
        share_auto_offset_reset="earliest",
        share_delivery_count_limit="2",
        share_record_lock_duration_ms="15000",
    )
    assert configured == "none"
    member.beat()
    assert member.fetch([0], max_records=1, strict=True)[0].acquired == [(0, 0, 1)]
    began_s = time.monotonic()
    assert member.fetch(max_records=1, strict=True)[0].acquired == [(1, 1, 1)]
    assert member.acknowledge({0: [(1, 1, [ACCEPT])]})[0] == "none"
    assert member.fetch(wait_s=40)[0].acquired == [(0, 0, 2)]
    assert time.monotonic() - began_s > 14
    assert member.acknowledge({0: [(0, 0, [RELEASE])]})[0] == "none"
    assert member.fetch(wait_s=0.2) == {}
    assert member.offsets(0) == {0: (2, 0)}


def test_aborted_records_are_not_delivered_to_readers_of_committed_ones(
    bootstrap: str, new_topic: NewTopic, members: Members, name: Callable[[str], str]
) -> None:
    topic = new_topic(1)
    member = members(topic)
    configured = member.configure(
        share_auto_offset_reset="earliest", share_isolation_level="read_committed"
    )
    assert configured == "none"
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": name("txn")})
    producer.init_transactions(30)
    for value, ends in ((b"a", producer.abort_transaction), (b"b", producer.commit_transaction)):
        producer.begin_transaction()
        producer.produce(topic, value=value)
        producer.flush()
        ends(30)
    member.beat()
    assert member.fetch([0])[0].values == [b"b"]
    producer.begin_transaction()
    producer.produce(topic, value=b"open")
    producer.flush()
    assert member.fetch(wait_s=0.3) == {}
    producer.commit_transaction(30)
    assert member.fetch(wait_s=20)[0].values == [b"open"]
