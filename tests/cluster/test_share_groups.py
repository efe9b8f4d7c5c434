"""Share groups where agents are several: one of them owns a group's partitions, the others name it;
and when it dies, the next one begins with what the journal has."""

from __future__ import annotations

import signal
import time
from pathlib import Path

from confluent_kafka import Producer, ShareConsumer
from confluent_kafka.admin import AdminClient, NewTopic

from support.share_client import ACCEPT, RELEASE, ShareMember, led_elsewhere, owner_of
from support.waiting import eventually
from support.workers import WorkersHost, workers_host

NOT_LEADER = 6


def fill(host: WorkersHost, topic: str, count: int) -> None:
    producer = Producer({"bootstrap.servers": host.bootstrap})
    for number in range(count):
        producer.produce(topic, value=b"%d" % number)
    assert producer.flush(60) == 0


def owned_by_another(host: WorkersHost) -> tuple[int, str] | tuple[()]:
    """The index of a worker that is not the first, and a group of its; empty: there is none yet."""
    for number in range(10):
        _, address = owner_of(host.address(0), f"g{number}")
        if address != host.address(0):
            return [host.address(index) for index in range(3)].index(address), f"g{number}"
    return ()


def test_another_agent_names_the_owner(tmp_path: Path) -> None:
    with workers_host(tmp_path, 2) as host:
        admin = AdminClient({"bootstrap.servers": host.bootstrap})
        admin.create_topics([NewTopic("t", 1, 1)])["t"].result(60)
        owner, address = owner_of(host.address(0), "g")
        (other,) = {host.address(0), host.address(1)} - {address}
        member = ShareMember(address, "g", "t")
        member.beat()
        stranger = ShareMember(other, "g", "t", member_id=member.member_id)
        reply = eventually(
            lambda: stranger.fetch_reply([0], epoch=0, wait_s=0.1),
            lambda reply: bool(reply.node_endpoints),
        )
        (partition,) = reply.responses[0].partitions
        assert partition.error_code.value == NOT_LEADER
        assert partition.current_leader.leader_id == owner
        assert partition.current_leader.leader_epoch >= 1
        (endpoint,) = reply.node_endpoints
        assert (endpoint.node_id, f"{endpoint.host}:{endpoint.port}") == (owner, address)
        said = stranger.acknowledge({0: [(0, 0, [ACCEPT])]})
        assert said == ("none", {0: "not_leader_or_follower"})
        assert stranger.acknowledge({}, epoch=-1) == ("none", {})
        assert stranger.acknowledge({}, epoch=-1)[0] == "share_session_not_found"
        member.close()
        stranger.close()
        assert host.stop() == 0


def test_a_group_goes_on_at_another_agent(tmp_path: Path) -> None:
    with workers_host(tmp_path, 3) as host:
        admin = AdminClient({"bootstrap.servers": host.bootstrap})
        admin.create_topics([NewTopic("t", 1, 1)])["t"].result(60)
        # Worker 0 writes the journal of all; one of the others is to die.
        found_group = eventually(lambda: owned_by_another(host), bool)
        assert found_group
        index, group_id = found_group
        member = ShareMember(host.address(index), group_id, "t")
        member.beat()
        assert member.fetch([0], wait_s=0) == {}
        fill(host, "t", 10)
        got = 0
        while got < 10:
            got = member.fetch()[0].acquired[-1][1] + 1
        assert member.acknowledge({0: [(0, 4, [ACCEPT]), (7, 7, [RELEASE])]})[0] == "none"
        # Its host starts a dead worker again, on a quiet machine before others take its groups.
        host.signal(index, signal.SIGSTOP)
        member.close()
        _, address = eventually(
            lambda: owner_of(host.address(0), group_id),
            lambda found: found[1] != host.address(index),
            timeout_seconds=60,
        )
        host.signal(index, signal.SIGKILL)
        again = ShareMember(address, group_id, "t", member_id=member.member_id)
        reply = eventually(
            lambda: again.beat(epoch=member.epoch),
            lambda reply: reply.error_code.value == 0,
            timeout_seconds=60,
        )
        assert reply.member_epoch == member.epoch
        found: dict[int, int] = {}
        given = again.fetch([0])
        while given:
            for first, last, count in given[0].acquired:
                found |= dict.fromkeys(range(first, last + 1), count)
            given = again.fetch(wait_s=0.5)
        assert found == {offset: 2 if offset == 7 else 1 for offset in range(5, 10)}
        again.close()
        host.wait_serving()
        assert host.stop() == 0


def test_librdkafka_finds_the_owner(tmp_path: Path) -> None:
    with workers_host(tmp_path, 2) as host:
        topic = led_elsewhere(host.bootstrap, "t")
        group_id = f"{topic}-readers"
        consumer = ShareConsumer({"bootstrap.servers": host.bootstrap, "group.id": group_id})
        consumer.subscribe([topic])
        observer = ShareMember(owner_of(host.address(0), group_id)[1], group_id, topic)
        until_s = time.monotonic() + 60
        while time.monotonic() < until_s:
            consumer.poll(0.2)
            if observer.start(0) == 0:
                break
        fill(host, topic, 20)
        found: list[bytes] = []
        while len(found) < 20 and time.monotonic() < until_s + 60:
            found += [message.value() or b"" for message in consumer.poll(0.5)]
        committed = consumer.commit_sync(30.0)
        assert list(committed.values()) == [None], committed
        consumer.close()
        assert sorted(found, key=int) == [b"%d" % number for number in range(20)]
        assert observer.offsets(0) == {0: (20, 0)}
        observer.close()
        assert host.stop() == 0
