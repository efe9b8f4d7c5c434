"""A connection's access: decisions are kept until a rule changes, and given up where the agent
can't know of a change."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from penstock.kafka.access import OPEN, UNKNOWN_OPERATIONS, Access, AclSettings, Authority
from penstock.kafka.broker import Broker
from penstock.kafka.connection_state import ConnectionState
from penstock.kafka.context import RequestContext
from penstock.kafka.errors import ErrorCode
from penstock.security.acl import CLUSTER_NAME, SUPPORTED, Operation, ResourceType
from penstock.security.audit import Audit
from penstock.state.changes import AclsChanged
from penstock.state.read.view import StateView
from support.acls import ALICE, ROOT, acl, authorize
from support.simulated.clock import ManualClock
from unit.kafka.conftest import NoSink


class Rules:
    """A view with rules, and an authority whose head may be old."""

    def __init__(self) -> None:
        self.view = StateView()
        self.clock = ManualClock(now_ms=0)
        self.heads: Any = SimpleNamespace(head_confirmed_s=self.clock.monotonic_s())
        settings = AclSettings(super_users=frozenset({ROOT}), stale_max_s=10)
        self.authority = Authority(self.view, settings, self.clock, self.heads)

    def change(self, *, added: Any = (), removed: Any = ()) -> None:
        self.view.apply([AclsChanged(added=list(added), removed=list(removed))])


def test_a_decision_lasts_until_a_rule_changes() -> None:
    rules = Rules()
    alice = Access(rules.authority, ALICE, "127.0.0.1")
    refused = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert alice.topic(Operation.READ, "t") is refused
    generation = rules.authority.generation()
    rules.change(added=[acl()])
    assert alice.topic(Operation.READ, "t") is ErrorCode.NONE
    assert rules.authority.generation() != generation
    rules.change(removed=[acl()])
    assert alice.topic(Operation.READ, "t") is refused


def test_each_kind_of_resource_has_its_error() -> None:
    rules = Rules()
    alice = Access(rules.authority, ALICE, "h")
    assert alice.group(Operation.READ, "g") is ErrorCode.GROUP_AUTHORIZATION_FAILED
    assert alice.cluster(Operation.ALTER) is ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    expected = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert alice.transaction(Operation.WRITE, "x") is expected
    for kind in SUPPORTED:
        assert alice.error(Operation.DESCRIBE, kind, "any")


def test_an_agent_that_can_not_know_refuses_what_rules_allow() -> None:
    rules = Rules()
    rules.change(added=[acl(), acl(Operation.READ, ResourceType.GROUP, "g")])
    alice = Access(rules.authority, ALICE, "h")
    root = Access(rules.authority, ROOT, "h")
    generation = rules.authority.generation()
    rules.clock.advance(9.9)
    assert not rules.authority.is_stale()
    rules.clock.advance(0.2)
    assert rules.authority.is_stale()
    # A fetch that waits looks again.
    assert rules.authority.generation() != generation
    assert alice.topic(Operation.READ, "t") is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert alice.group(Operation.READ, "g") is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert alice.topic(Operation.WRITE, "t") is ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert root.topic(Operation.READ, "t") is ErrorCode.NONE
    rules.heads.head_confirmed_s = rules.clock.monotonic_s()
    assert alice.topic(Operation.READ, "t") is ErrorCode.NONE


def test_operations_are_the_bits_of_what_is_allowed() -> None:
    rules = Rules()
    rules.change(added=[acl(Operation.ALTER_CONFIGS)])
    alice = Access(rules.authority, ALICE, "h")
    bits = 1 << Operation.ALTER_CONFIGS | 1 << Operation.DESCRIBE_CONFIGS
    assert alice.operations(ResourceType.TOPIC, "t") == bits
    assert alice.cluster_operations() == 0
    assert OPEN.operations(ResourceType.TOPIC, "t") == 0b1101_1111_1000
    assert OPEN.operations(ResourceType.GROUP, "g") == 0b1101_0100_1000
    assert OPEN.operations(ResourceType.CLUSTER, CLUSTER_NAME) == OPEN.cluster_operations()
    assert UNKNOWN_OPERATIONS < 0


def test_a_connection_keeps_its_access_until_it_is_another_principals(broker: Any) -> None:
    connection = ConnectionState(1, NoSink())
    context = RequestContext(0, 9, 1, "c", "10.0.0.1", broker, connection)
    assert context.access is OPEN
    authorize(broker)
    access = context.access
    assert context.access is access
    assert access.principal == "User:ANONYMOUS"
    connection.principal = ALICE
    assert context.access is not access
    assert context.access.principal == ALICE


def test_decisions_are_entered_where_there_is_an_audit_log(broker: Broker) -> None:
    audit = Audit(now_ms=lambda: 7, sample_every=0)
    connection = ConnectionState(1, NoSink())
    connection.principal = ALICE
    context = RequestContext(20, 6, 1, "tool", "10.0.0.1", broker, connection)
    assert context.access is OPEN
    broker.audit = audit
    # Without an authorizer everything is allowed, and changes are entered.
    assert context.access.topic(Operation.DELETE, "t") is ErrorCode.NONE
    assert context.access.topic(Operation.READ, "t") is ErrorCode.NONE
    authorize(broker)
    assert context.access.topic(Operation.READ, "t") is ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert context.access.some_topic(Operation.WRITE) is ErrorCode.TOPIC_AUTHORIZATION_FAILED
    connection.principal = ROOT
    assert context.access.is_unbounded
    assert context.access.cluster(Operation.ALTER) is ErrorCode.NONE
    # A list of what is allowed is not something that was done.
    context.access.operations(ResourceType.TOPIC, "t")
    context.access.cluster_operations()
    found = [
        (each.principal, each.call, each.client_id, each.operation, each.resource, each.allowed)
        for each in audit.take(100)
    ]
    assert found == [
        (ALICE, "DeleteTopics", "tool", "DELETE", "t", True),
        (ALICE, "DeleteTopics", "tool", "READ", "t", False),
        (ALICE, "DeleteTopics", "tool", "WRITE", "", False),
        (ROOT, "DeleteTopics", "tool", "ALTER", CLUSTER_NAME, True),
    ]
