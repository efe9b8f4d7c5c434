"""Bindings that can't be, and what filters find, as Kafka's do."""

import pytest

from penstock.security.acl import (
    SUPPORTED,
    AclBinding,
    AclFilter,
    Operation,
    PatternType,
    Permission,
    ResourceType,
    binding_problem,
    filter_problem,
    plain_host,
)
from support.acls import acl


def test_a_valid_binding_has_no_problem() -> None:
    assert binding_problem(acl()) is None
    assert binding_problem(acl(kind=ResourceType.CLUSTER, name="kafka-cluster")) is None
    for host in ("*", "10.0.0.1", "10.0.0.0/8", "fd00::/8", "client.example"):
        assert binding_problem(acl(host=host)) is None


@pytest.mark.parametrize(
    "binding",
    [
        acl(kind=ResourceType.UNKNOWN),
        acl(kind=ResourceType.ANY),
        acl(kind=99),
        acl(kind=ResourceType.CLUSTER, name="other"),
        acl(pattern=PatternType.ANY),
        acl(pattern=PatternType.MATCH),
        acl(operation=Operation.ANY),
        acl(operation=99),
        acl(permission=Permission.ANY),
        acl(name=""),
        acl(principal="alice"),
        acl(host=""),
        acl(host="10.0.0.0/99"),
        acl(host="example/8"),
        acl(name="n" * 2_001),
    ],
)
def test_what_is_not_valid_is_refused(binding: AclBinding) -> None:
    assert binding_problem(binding)


FOUND = {
    "literal": acl(name="foo"),
    "other": acl(name="bar"),
    "wildcard": acl(name="*"),
    "prefix": acl(name="fo", pattern=PatternType.PREFIXED),
    "longer": acl(name="foobar", pattern=PatternType.PREFIXED),
}


@pytest.mark.parametrize(
    ("pattern", "name", "found"),
    [
        (PatternType.LITERAL, "foo", {"literal"}),
        (PatternType.LITERAL, "*", {"wildcard"}),
        (PatternType.LITERAL, None, {"literal", "other", "wildcard"}),
        (PatternType.PREFIXED, "fo", {"prefix"}),
        (PatternType.PREFIXED, None, {"prefix", "longer"}),
        (PatternType.ANY, "foo", {"literal"}),
        (PatternType.ANY, None, set(FOUND)),
        (PatternType.MATCH, "foo", {"literal", "wildcard", "prefix"}),
        (PatternType.MATCH, None, set(FOUND)),
    ],
)
def test_a_filter_finds_patterns(pattern: PatternType, name: str | None, found: set[str]) -> None:
    wanted = AclFilter(pattern_type=pattern, name=name)
    assert {key for key, binding in FOUND.items() if wanted.finds(binding)} == found


def test_each_field_of_a_filter_narrows_it() -> None:
    binding = acl(principal="User:a", host="10.0.0.1", operation=Operation.READ)
    assert AclFilter().finds(binding)
    same = AclFilter(
        resource_type=ResourceType.TOPIC,
        principal="User:a",
        host="10.0.0.1",
        operation=Operation.READ,
        permission=Permission.ALLOW,
    )
    assert same.finds(binding)
    for other in (
        AclFilter(resource_type=ResourceType.GROUP),
        AclFilter(principal="User:b"),
        AclFilter(host="*"),
        AclFilter(operation=Operation.ALL),
        AclFilter(permission=Permission.DENY),
    ):
        assert not other.finds(binding)


def test_a_filter_with_unknown_numbers_is_refused() -> None:
    assert filter_problem(AclFilter()) is None
    assert filter_problem(AclFilter(resource_type=0))
    assert filter_problem(AclFilter(pattern_type=9))
    assert filter_problem(AclFilter(operation=0))
    assert filter_problem(AclFilter(permission=77))


def test_addresses_are_compared_however_they_are_written() -> None:
    assert plain_host("0:0:0:0:0:0:0:1") == plain_host("::1")
    assert plain_host("::ffff:10.0.0.1") == "10.0.0.1"
    assert plain_host("client.example") == "client.example"


def test_each_kind_of_resource_has_operations() -> None:
    assert set(SUPPORTED) == set(ResourceType) - {ResourceType.UNKNOWN, ResourceType.ANY}
