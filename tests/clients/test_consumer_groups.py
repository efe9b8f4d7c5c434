"""Consumer groups of KIP-848 with a real client: librdkafka with `group.protocol=consumer`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from confluent_kafka import Consumer, ConsumerGroupState, ConsumerGroupType
from confluent_kafka.admin import AdminClient, NewTopic

from support.adapters import ADAPTERS
from support.member import CONSUMER_PROTOCOL, Member
from support.records import NewRecord
from support.server import ServerProcess
from support.waiting import eventually

PARTITIONS = 4
SETTINGS = {
    "GROUP_CONSUMER_SESSION_TIMEOUT_MS": "10000",
    "GROUP_CONSUMER_HEARTBEAT_INTERVAL_MS": "300",
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """One for the whole file: sessions are a setting of the server."""
    folder = tmp_path_factory.mktemp("server")
    server = ServerProcess(folder / "data", folder / "server.log", SETTINGS)
    server.start()
    try:
        yield server
    finally:
        status = server.stop()
    assert status == 0, server.tail()


@pytest.fixture
def topic(server: ServerProcess, name: Callable[[str], str]) -> str:
    made = name("topic")
    create(server, made)
    return made


def create(server: ServerProcess, topic: str, partitions: int = PARTITIONS) -> None:
    admin = AdminClient({"bootstrap.servers": server.bootstrap})
    for done in admin.create_topics([NewTopic(topic, partitions, 1)]).values():
        done.result()


def fill(server: ServerProcess, topic: str, per_partition: int, *, start: int = 0) -> None:
    """Write so many records to each partition; the key says partition and number."""
    records = [
        NewRecord(partition, f"{partition}/{start + index}".encode(), b"v", 1_700_000_000_000)
        for index in range(per_partition)
        for partition in range(PARTITIONS)
    ]
    ADAPTERS[0].write(server.bootstrap, topic, records)


def member(server: ServerProcess, group: str, topic: str, instance: str = "") -> Member:
    return Member(CONSUMER_PROTOCOL, server.bootstrap, group, topic, instance=instance)


def wait_read(members: list[Member], per_partition: int) -> None:
    """Wait until the members together have read so many records of each partition."""

    def all_read() -> set[tuple[int, int]]:
        return {(p, offset) for one in members for p, offset, _ in one.read}

    wanted = {(p, offset) for p in range(PARTITIONS) for offset in range(per_partition)}
    eventually(all_read, lambda read: read >= wanted, timeout_seconds=90)


def committed(members: list[Member]) -> Counter[int]:
    """How far the group is, by partition: a partition may have been several members'."""
    found: Counter[int] = Counter()
    for one in members:
        found |= Counter(one.committed)
    return found


def test_partitions_are_shared_and_given_back(
    server: ServerProcess, topic: str, name: Callable[[str], str]
) -> None:
    group = name("group")
    fill(server, topic, 10)
    with member(server, group, topic) as first:
        assert first.wait_assigned(PARTITIONS) == [0, 1, 2, 3]
        wait_read([first], 10)
        eventually(lambda: first.committed, lambda done: sum(done.values()) == 10 * PARTITIONS)
        with member(server, group, topic) as second:
            held = second.wait_assigned(2)
            kept = first.wait_assigned(2)
            assert sorted(held + kept) == [0, 1, 2, 3]
            described = describe(server, group)
            assert described.state is ConsumerGroupState.STABLE
            assert described.type is ConsumerGroupType.CONSUMER
            shares = [
                sorted(place.partition for place in one.assignment.topic_partitions)
                for one in described.members
            ]
            assert sorted(shares) == sorted([held, kept])
            fill(server, topic, 10, start=10)
            wait_read([first, second], 20)
            eventually(
                lambda: committed([first, second]),
                lambda done: sum(done.values()) == 20 * PARTITIONS,
            )
            second.leave()
        first.wait_assigned(PARTITIONS)
        fill(server, topic, 5, start=20)
        wait_read([first, second], 25)
        first.leave()
    counts = Counter((p, offset) for one in (first, second) for p, offset, _ in one.read)
    assert set(counts.values()) == {1}, "nothing was handed over with work undone"
    assert not first.errors
    assert not second.errors


def test_the_partitions_of_a_crashed_member_go_to_the_others(
    server: ServerProcess, topic: str, name: Callable[[str], str]
) -> None:
    group = name("group")
    fill(server, topic, 5)
    with member(server, group, topic) as first, member(server, group, topic) as second:
        first.wait_assigned(2)
        second.wait_assigned(2)
        wait_read([first, second], 5)
        second.crash()
        fill(server, topic, 5, start=5)
        first.wait_assigned(PARTITIONS)
        wait_read([first, second], 10)
        first.leave()


def test_members_go_on_with_what_they_have_after_their_coordinator_was_killed(
    server: ServerProcess, topic: str, name: Callable[[str], str]
) -> None:
    group = name("group")
    fill(server, topic, 5)
    with member(server, group, topic) as first, member(server, group, topic) as second:
        shares = [first.wait_assigned(2), second.wait_assigned(2)]
        wait_read([first, second], 5)
        rebalances = [first.rebalances, second.rebalances]
        server.kill()
        server.start()
        fill(server, topic, 5, start=5)
        wait_read([first, second], 10)
        assert [first.assigned, second.assigned] == shares
        assert [first.rebalances, second.rebalances] == rebalances
        # A commit that met the restart failed; those of the next records are of the same members.
        fill(server, topic, 5, start=10)
        wait_read([first, second], 15)
        eventually(
            lambda: committed([first, second]),
            lambda done: sum(done.values()) == 15 * PARTITIONS,
        )
        first.leave()
        second.leave()


def test_a_static_member_returns_to_its_partitions(
    server: ServerProcess, topic: str, name: Callable[[str], str]
) -> None:
    group = name("group")
    with member(server, group, topic, "one") as first:
        first.wait_assigned(PARTITIONS)
        with member(server, group, topic, "two") as second:
            held = second.wait_assigned(2)
            first.wait_assigned(2)
            rebalances = first.rebalances
            second.leave()
            with member(server, group, topic, "two") as again:
                assert again.wait_assigned(2) == held
                assert first.rebalances == rebalances
                again.leave()
        first.leave()


def test_an_expression_takes_in_a_topic_that_comes_later(
    server: ServerProcess, name: Callable[[str], str]
) -> None:
    group, prefix = name("group"), name("some")
    consumer = Consumer(
        {
            "bootstrap.servers": server.bootstrap,
            "group.id": group,
            "group.protocol": "consumer",
        }
    )

    def topics() -> set[str]:
        consumer.poll(0.1)
        return {place.topic for place in consumer.assignment()}

    try:
        create(server, f"{prefix}-a")
        consumer.subscribe([f"^{prefix}-.*"])
        eventually(topics, lambda found: found == {f"{prefix}-a"})
        create(server, f"{prefix}-b")
        eventually(topics, lambda found: found == {f"{prefix}-a", f"{prefix}-b"})
    finally:
        consumer.close()


def test_an_expression_that_can_not_be_read_ends_its_consumer(
    server: ServerProcess, name: Callable[[str], str]
) -> None:
    consumer = Consumer(
        {
            "bootstrap.servers": server.bootstrap,
            "group.id": name("group"),
            "group.protocol": "consumer",
        }
    )

    def said() -> str:
        message = consumer.poll(0.2)
        return "" if message is None else str(message.error())

    try:
        # RE2 has no back references, whose matching takes exponential time.
        consumer.subscribe([r"^(a)\1"])
        eventually(said, lambda text: "regular expression is not valid" in text)
    finally:
        consumer.close()


def test_a_group_without_members_changes_its_protocol_and_keeps_its_offsets(
    server: ServerProcess, topic: str, name: Callable[[str], str]
) -> None:
    group = name("group")
    fill(server, topic, 5)
    read: list[Member] = []
    for number, client in enumerate(["confluent-kafka", CONSUMER_PROTOCOL, "confluent-kafka"]):
        with Member(client, server.bootstrap, group, topic) as one:
            read.append(one)
            one.wait_assigned(PARTITIONS)
            fill(server, topic, 1, start=5 + number)
            wait_read(read, 6 + number)
            eventually(
                lambda one=one: set(one.committed.values()),  # type: ignore[misc]
                lambda done, number=number: done == {6 + number},  # type: ignore[misc]
            )
            one.leave()
    counts = Counter((p, offset) for one in read for p, offset, _ in one.read)
    assert set(counts.values()) == {1}


def describe(server: ServerProcess, group: str):  # type: ignore[no-untyped-def]
    admin = AdminClient({"bootstrap.servers": server.bootstrap})
    return admin.describe_consumer_groups([group])[group].result()


def kind_of(server: ServerProcess, group: str) -> ConsumerGroupType:
    admin = AdminClient({"bootstrap.servers": server.bootstrap})
    listed = admin.list_consumer_groups().result().valid
    (found,) = [one.type for one in listed if one.group_id == group]
    return found


def test_a_group_is_rolled_to_the_other_protocol_and_back_member_by_member(
    server: ServerProcess, topic: str, name: Callable[[str], str]
) -> None:
    """With a server that is killed while both protocols are in the group."""
    group = name("group")
    classic, consumer = "confluent-kafka", CONSUMER_PROTOCOL
    everybody: list[Member] = []
    count = 0

    def start(client: str) -> Member:
        everybody.append(members.enter_context(Member(client, server.bootstrap, group, topic)))
        return everybody[-1]

    def go_on(*living: Member) -> None:
        """Each has its half, and what is written now is read."""
        nonlocal count
        for one in living:
            one.wait_assigned(PARTITIONS // len(living))
        fill(server, topic, 3, start=count)
        count += 3
        wait_read(everybody, count)
        eventually(
            lambda: committed(everybody), lambda done: sum(done.values()) == count * PARTITIONS
        )

    with ExitStack() as members:
        first, second = start(classic), start(classic)
        go_on(first, second)
        assert kind_of(server, group) is ConsumerGroupType.CLASSIC
        first.leave()
        third = start(consumer)
        go_on(second, third)
        assert kind_of(server, group) is ConsumerGroupType.CONSUMER
        server.kill()
        server.start()
        go_on(second, third)
        second.leave()
        fourth = start(consumer)
        go_on(third, fourth)
        third.leave()
        fifth = start(classic)
        go_on(fourth, fifth)
        assert kind_of(server, group) is ConsumerGroupType.CONSUMER
        fourth.leave()
        go_on(fifth)
        assert kind_of(server, group) is ConsumerGroupType.CLASSIC
        fifth.leave()
