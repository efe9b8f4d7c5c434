"""What is entered into the audit log, what is passed over, and what finds no room."""

from __future__ import annotations

import pytest

from penstock.security.acl import Operation, ResourceType
from penstock.security.audit import ENTRIES_MAX, SAMPLED, TEXT_LENGTH_MAX, Audit

CHANGES = sorted(set(Operation) - SAMPLED - {Operation.UNKNOWN, Operation.ANY, Operation.ALL})


def decide(audit: Audit, operation: Operation, *, allowed: bool = True, name: str = "t") -> None:
    audit.decided(
        "kafka",
        "User:alice",
        "10.0.0.1",
        "Fetch",
        "c",
        operation,
        ResourceType.TOPIC,
        name,
        allowed=allowed,
    )


def test_one_read_in_so_many_is_entered() -> None:
    audit = Audit(now_ms=lambda: 5, sample_every=10)
    for _ in range(95):
        decide(audit, Operation.READ)
    (first, *rest) = audit.take(100)
    assert len(rest) == 8
    assert first == (
        5,
        "kafka",
        "User:alice",
        "10.0.0.1",
        "Fetch",
        "c",
        "READ",
        "TOPIC",
        "t",
        True,
    )


@pytest.mark.parametrize("sample_every", [0, 1, 1000])
def test_changes_and_what_is_denied_are_always_entered(sample_every: int) -> None:
    audit = Audit(now_ms=lambda: 5, sample_every=sample_every)
    for operation in CHANGES:
        decide(audit, operation)
    for operation in SAMPLED:
        decide(audit, operation, allowed=False)
    audit.refused("http", "10.0.0.1", "GET /v1/status")
    assert len(audit.take(100)) == len(CHANGES) + len(SAMPLED) + 1
    decide(audit, Operation.READ)
    assert len(audit.take(100)) == (sample_every == 1)


def test_changes_are_those_that_change() -> None:
    assert {Operation.CREATE, Operation.DELETE, Operation.ALTER} <= set(CHANGES)
    assert {Operation.ALTER_CONFIGS, Operation.CLUSTER_ACTION} <= set(CHANGES)
    assert not {Operation.READ, Operation.WRITE, Operation.DESCRIBE} & set(CHANGES)


def test_what_finds_no_room_is_counted() -> None:
    audit = Audit(now_ms=lambda: 5, sample_every=1)
    for _ in range(ENTRIES_MAX + 3):
        audit.refused("kafka", "10.0.0.1", "SaslAuthenticate")
    assert audit.lost_count == 3
    assert len(audit.take(ENTRIES_MAX + 3)) == ENTRIES_MAX


def test_long_texts_of_clients_are_cut() -> None:
    audit = Audit(now_ms=lambda: 5, sample_every=1)
    decide(audit, Operation.DELETE, name="n" * 100_000)
    audit.refused("http", "10.0.0.1", "x" * 100_000)
    assert [len(each.resource or each.call) for each in audit.take(2)] == [TEXT_LENGTH_MAX] * 2
