"""The index against a naive model, which looks at all bindings each time; and Kafka's examples."""

from __future__ import annotations

import ipaddress
from collections.abc import Collection

from hypothesis import given
from hypothesis import strategies as st

from penstock.security.acl import (
    ANYONE,
    WILDCARD,
    AclBinding,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)
from penstock.security.acl_index import AclIndex, Decision
from support.acls import ALICE, acl

NAMES = ["a", "ab", "abc", "b", "*", "hardcode", "hard"]
PRINCIPALS = [ALICE, "User:bob", ANYONE]
HOSTS = ["*", "10.0.0.1", "10.0.0.0/8", "192.168.0.0/16", "fd00::/8", "name"]
CLIENTS = ["10.0.0.1", "10.9.0.1", "192.168.7.7", "fd00::1", "name"]
OPERATIONS = [
    Operation.ALL,
    Operation.READ,
    Operation.WRITE,
    Operation.DELETE,
    Operation.ALTER,
    Operation.CREATE,
    Operation.DESCRIBE,
    Operation.DESCRIBE_CONFIGS,
    Operation.ALTER_CONFIGS,
]
KINDS = [ResourceType.TOPIC, ResourceType.GROUP]

bindings = st.builds(
    AclBinding,
    resource_type=st.sampled_from(KINDS),
    name=st.sampled_from(NAMES),
    pattern_type=st.sampled_from([PatternType.LITERAL, PatternType.PREFIXED]),
    principal=st.sampled_from(PRINCIPALS),
    host=st.sampled_from(HOSTS),
    operation=st.sampled_from(OPERATIONS),
    permission=st.sampled_from([Permission.ALLOW, Permission.ALLOW, Permission.DENY]),
)
changes = st.lists(st.tuples(st.booleans(), st.lists(bindings, max_size=4)), max_size=8)
questions = st.tuples(
    st.sampled_from(PRINCIPALS[:2]),
    st.sampled_from(CLIENTS),
    st.sampled_from(OPERATIONS[1:]),
    st.sampled_from(KINDS),
    st.sampled_from(NAMES),
)


def is_from(binding: AclBinding, host: str) -> bool:
    if "/" not in binding.host:
        return binding.host in (WILDCARD, host)
    try:
        return ipaddress.ip_address(host) in ipaddress.ip_network(binding.host)
    except ValueError:
        return False


def model(
    every: Collection[AclBinding],
    principal: str,
    host: str,
    operation: Operation,
    kind: ResourceType,
    name: str,
) -> Decision:
    about = [
        one
        for one in every
        if one.resource_type == kind
        and (
            name.startswith(one.name)
            if one.pattern_type == PatternType.PREFIXED
            else one.name in (name, "*")
        )
    ]
    applying = [one for one in about if one.principal in (principal, ANYONE) and is_from(one, host)]
    exactly = {Operation.ALL, operation}
    if any(one.permission == Permission.DENY and one.operation in exactly for one in applying):
        return Decision.DENIED
    enough = set(exactly)
    if operation is Operation.DESCRIBE:
        enough |= {Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER}
    if operation is Operation.DESCRIBE_CONFIGS:
        enough |= {Operation.ALTER_CONFIGS}
    if any(one.permission == Permission.ALLOW and one.operation in enough for one in applying):
        return Decision.ALLOWED
    return Decision.DENIED if about else Decision.NO_ACL


def model_by_type(
    every: Collection[AclBinding],
    principal: str,
    host: str,
    operation: Operation,
    kind: ResourceType,
) -> bool:
    """Kafka's Authorizer.authorizeByResourceType, line by line."""
    if model(every, principal, host, operation, kind, "hardcode") is Decision.ALLOWED:
        return True
    deny: dict[int, set[str]] = {PatternType.LITERAL: set(), PatternType.PREFIXED: set()}
    allow: dict[int, set[str]] = {PatternType.LITERAL: set(), PatternType.PREFIXED: set()}
    has_wildcard_allow = False
    for one in every:
        if one.resource_type != kind or not is_from(one, host):
            continue
        if one.principal not in (principal, ANYONE) or one.operation not in (operation, 2):
            continue
        is_wildcard = one.pattern_type == PatternType.LITERAL and one.name == "*"
        if one.permission == Permission.DENY:
            if is_wildcard:
                return False
            deny[one.pattern_type].add(one.name)
        elif is_wildcard:
            has_wildcard_allow = True
        else:
            allow[one.pattern_type].add(one.name)
    if has_wildcard_allow:
        return True
    for pattern, names in allow.items():
        for name in names:
            if pattern == PatternType.LITERAL and name in deny[PatternType.LITERAL]:
                continue
            if not any(name[:end] in deny[PatternType.PREFIXED] for end in range(1, len(name) + 1)):
                return True
    return False


@given(changes, st.lists(questions, min_size=1, max_size=8))
def test_decisions_are_those_of_the_model(
    steps: list[tuple[bool, list[AclBinding]]],
    asked: list[tuple[str, str, Operation, ResourceType, str]],
) -> None:
    index, every = AclIndex(), set[AclBinding]()
    for adds, some in steps:
        index.change(added=some if adds else (), removed=() if adds else some)
        every = every | set(some) if adds else every - set(some)
    assert set(index.bindings()) == every
    for principal, host, operation, kind, name in asked:
        expected = model(every, principal, host, operation, kind, name)
        assert index.decide(principal, host, operation, kind, name) is expected
        by_type = index.decide_by_type(principal, host, operation, kind)
        may = model_by_type(every, principal, host, operation, kind)
        assert (by_type is Decision.ALLOWED) == may


@given(st.lists(bindings, max_size=6), st.lists(bindings, max_size=6))
def test_replacing_all_bindings_leaves_nothing_behind(
    before: list[AclBinding], after: list[AclBinding]
) -> None:
    index, fresh = AclIndex(before), AclIndex(after)
    index.replace(after)
    assert set(index.bindings()) == set(after)
    for name in NAMES:
        for operation in OPERATIONS[1:]:
            question = (ALICE, "10.0.0.1", operation, ResourceType.TOPIC, name)
            assert index.decide(*question) is fresh.decide(*question)


def test_denying_an_operation_denies_nothing_that_it_implies() -> None:
    index = AclIndex([acl(Operation.READ, permission=Permission.DENY), acl(Operation.WRITE)])
    topic = (ResourceType.TOPIC, "t")
    assert index.decide(ALICE, "h", Operation.READ, *topic) is Decision.DENIED
    assert index.decide(ALICE, "h", Operation.DESCRIBE, *topic) is Decision.ALLOWED


def test_rules_of_others_make_a_resource_known() -> None:
    index = AclIndex([acl(principal="User:bob")])
    assert index.decide(ALICE, "h", Operation.READ, ResourceType.TOPIC, "t") is Decision.DENIED
    assert index.decide(ALICE, "h", Operation.READ, ResourceType.TOPIC, "u") is Decision.NO_ACL


def test_a_change_is_a_new_version() -> None:
    index = AclIndex()
    version = index.version
    index.change(added=[acl(), acl(), acl(name="u")], removed=[])
    assert index.version > version
    assert len(index) == 2
    index.change(added=[], removed=[acl(), acl(name="v")])
    assert acl() not in index
    assert acl(name="u") in index
