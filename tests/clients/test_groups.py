"""Consumer groups of real clients: members join, leave, crash, return, and nothing is skipped."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from support.adapters import ADAPTERS
from support.member import Member
from support.records import NewRecord
from support.waiting import eventually

CLIENTS = [adapter.name for adapter in ADAPTERS]
PARTITIONS = 4


def fill(bootstrap: str, topic: str, per_partition: int, *, start: int = 0) -> None:
    """Write so many records to each partition; the key says partition and number."""
    records = [
        NewRecord(partition, f"{partition}/{start + index}".encode(), b"v", 1_700_000_000_000)
        for index in range(per_partition)
        for partition in range(PARTITIONS)
    ]
    ADAPTERS[0].write(bootstrap, topic, records)


def wait_read(members: list[Member], per_partition: int) -> None:
    """Wait until the members together have read so many records of each partition."""

    def all_read() -> set[tuple[int, int]]:
        return {(p, offset) for member in members for p, offset, _ in member.read}

    wanted = {(p, offset) for p in range(PARTITIONS) for offset in range(per_partition)}
    eventually(all_read, lambda read: read >= wanted, timeout_seconds=90)


@pytest.mark.parametrize("client", CLIENTS)
def test_partitions_are_shared_and_given_back(
    bootstrap: str, new_topic: Callable[..., str], name: Callable[[str], str], client: str
) -> None:
    """A second member takes half; when it leaves, the first has all again and reads on."""
    topic, group = new_topic(PARTITIONS), name("group")
    fill(bootstrap, topic, 10)
    with Member(client, bootstrap, group, topic) as first:
        assert first.wait_assigned(PARTITIONS) == [0, 1, 2, 3]
        wait_read([first], 10)
        # What is read and not committed when partitions move is read again.
        eventually(lambda: first.committed, lambda done: sum(done.values()) == 10 * PARTITIONS)
        with Member(client, bootstrap, group, topic) as second:
            held = second.wait_assigned(2)
            kept = first.wait_assigned(2)
            assert sorted(held + kept) == [0, 1, 2, 3]
            fill(bootstrap, topic, 10, start=10)
            wait_read([first, second], 20)
            # Nothing was handed over with work undone, so no record was read twice.
            eventually(
                lambda: {**first.committed, **second.committed},
                lambda done: sum(done.values()) == 20 * PARTITIONS,
            )
            second.leave()
        first.wait_assigned(PARTITIONS)
        fill(bootstrap, topic, 5, start=20)
        wait_read([first, second], 25)
        first.leave()
    counts = Counter((p, offset) for m in (first, second) for p, offset, _ in m.read)
    assert set(counts.values()) == {1}
    assert not first.errors
    assert not second.errors


@pytest.mark.parametrize("client", CLIENTS)
def test_a_crashed_members_partitions_go_to_the_others(
    bootstrap: str, new_topic: Callable[..., str], name: Callable[[str], str], client: str
) -> None:
    """A member that is killed says nothing: after its session's time the other one reads on from
    what it had committed."""
    topic, group = new_topic(PARTITIONS), name("group")
    fill(bootstrap, topic, 5)
    with (
        Member(client, bootstrap, group, topic, session_ms=6_000) as first,
        Member(client, bootstrap, group, topic, session_ms=6_000) as second,
    ):
        first.wait_assigned(2)
        second.wait_assigned(2)
        wait_read([first, second], 5)
        second.crash()
        fill(bootstrap, topic, 5, start=5)
        first.wait_assigned(PARTITIONS)
        wait_read([first, second], 10)
        first.leave()


@pytest.mark.parametrize("client", CLIENTS)
def test_commits_outlive_the_group(
    bootstrap: str, new_topic: Callable[..., str], name: Callable[[str], str], client: str
) -> None:
    """A member that comes after all have left starts where they had committed."""
    topic, group = new_topic(PARTITIONS), name("group")
    fill(bootstrap, topic, 8)
    with Member(client, bootstrap, group, topic) as first:
        wait_read([first], 8)
        eventually(lambda: first.committed, lambda done: sum(done.values()) == 8 * PARTITIONS)
        first.leave()
    fill(bootstrap, topic, 3, start=8)
    with Member(client, bootstrap, group, topic) as later:
        eventually(lambda: len(later.read), lambda count: count >= 3 * PARTITIONS)
        later.leave()
    assert {(p, offset) for p, offset, _ in later.read} == {
        (p, offset) for p in range(PARTITIONS) for offset in range(8, 11)
    }


@pytest.mark.parametrize("client", CLIENTS)
def test_a_static_member_returns_without_a_rebalance(
    bootstrap: str, new_topic: Callable[..., str], name: Callable[[str], str], client: str
) -> None:
    """KIP-345: a member with an instance id that restarts within its session's time gets its
    partitions back, and the other member never notices."""
    topic, group = new_topic(PARTITIONS), name("group")
    fill(bootstrap, topic, 2)

    def member(instance: str) -> Member:
        # However long a process takes to start.
        return Member(client, bootstrap, group, topic, instance=instance, session_ms=90_000)

    with member("one") as first:
        first.wait_assigned(PARTITIONS)
        with member("two") as second:
            first.wait_assigned(2)
            held = second.wait_assigned(2)
            wait_read([first, second], 2)
            seen = first.rebalances
            second.crash()
        with member("two") as returned:
            assert returned.wait_assigned(2) == held
            fill(bootstrap, topic, 2, start=2)
            wait_read([first, second, returned], 4)
            assert first.rebalances == seen
            assert first.wait_assigned(2) == sorted(set(range(PARTITIONS)) - set(held))


def test_three_libraries_share_one_group(
    bootstrap: str, new_topic: Callable[..., str], name: Callable[[str], str]
) -> None:
    """Members of different clients agree on a strategy that all know, and the leader of any of
    them assigns for all."""
    topic, group = new_topic(PARTITIONS), name("group")
    fill(bootstrap, topic, 10)
    members = [Member(client, bootstrap, group, topic, strategy="range") for client in CLIENTS]
    try:
        eventually(
            lambda: [m.assigned for m in members],
            lambda held: all(held) and sum(len(h or ()) for h in held) == PARTITIONS,
            timeout_seconds=90,
        )
        wait_read(members, 10)
        assert sorted(p for m in members for p in m.assigned or ()) == [0, 1, 2, 3]
        members[0].leave()
        eventually(
            lambda: [m.assigned or [] for m in members[1:]],
            lambda held: [len(h) for h in held] == [2, 2],
            timeout_seconds=90,
        )
        fill(bootstrap, topic, 5, start=10)
        wait_read(members, 15)
    finally:
        for member in members:
            with member:
                pass
