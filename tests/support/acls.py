"""Access rules of tests, and an authorizer for a broker that was made without one."""

from __future__ import annotations

from typing import Any

from penstock.kafka.access import AclSettings, Authority
from penstock.kafka.broker import Broker
from penstock.security.acl import (
    AclBinding,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)
from penstock.state.acl_commands import CreateAcls, DeleteAcls
from penstock.state.answers import Done

ALICE = "User:alice"
ROOT = "User:root"


def acl(
    operation: int = Operation.READ,
    kind: int = ResourceType.TOPIC,
    name: str = "t",
    *,
    pattern: int = PatternType.LITERAL,
    principal: str = ALICE,
    host: str = "*",
    permission: int = Permission.ALLOW,
) -> AclBinding:
    """A rule, by what differs from "alice may read the topic t"."""
    return AclBinding(kind, name, pattern, principal, host, operation, permission)


def authorize(broker: Broker, **settings: Any) -> None:
    """Give a broker an authorizer, whose super user is ROOT."""
    found = AclSettings(**({"super_users": frozenset({ROOT})} | settings))
    broker.authority = Authority(broker.view, found, broker.clock, broker.heads)


async def allow(broker: Broker, *bindings: AclBinding) -> None:
    """Create rules."""
    assert await broker.committer.commit([CreateAcls(bindings=list(bindings))]) == [Done()]


async def take_back(broker: Broker, *bindings: AclBinding) -> None:
    """Delete rules."""
    assert await broker.committer.commit([DeleteAcls(bindings=list(bindings))]) == [Done()]
