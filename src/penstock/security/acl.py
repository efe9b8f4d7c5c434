"""Access rules, one by one: what a binding says, what a filter finds, and how Kafka numbers both.

A binding allows or denies a principal, from a host, an operation on what a resource pattern names.
docs/acls.md says what follows from many of them; `penstock.security.acl_index` decides. Pure.
Source: Kafka's AclBinding, AclBindingFilter, ResourcePatternFilter and AclControlManager, 4.3.1.
"""

import enum
import ipaddress
from typing import Final

from msgspec import Struct


class ResourceType(enum.IntEnum):
    """The kinds of things that access is given to."""

    UNKNOWN = 0
    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class PatternType(enum.IntEnum):
    """The ways in which a pattern's name stands for names. Filters have ANY and MATCH."""

    UNKNOWN = 0
    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class Operation(enum.IntEnum):
    """The things that clients do. Filters have ANY, bindings ALL."""

    UNKNOWN = 0
    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class Permission(enum.IntEnum):
    """The two effects of bindings. Filters have ANY."""

    UNKNOWN = 0
    ANY = 1
    DENY = 2
    ALLOW = 3


WILDCARD: Final = "*"
"""Stands for every name where it is a literal name, and for every host."""
ANYONE: Final = "User:*"
"""Stands for every principal of a client, in a binding."""
CLUSTER_NAME: Final = "kafka-cluster"
"""The only name of a resource of type CLUSTER."""
TEXT_LENGTH_MAX: Final = 2_000
"""Characters of a binding's name, principal or host."""

_RESOURCE_TYPES: Final = frozenset(ResourceType) - {ResourceType.UNKNOWN, ResourceType.ANY}
_PATTERNS: Final = frozenset({PatternType.LITERAL, PatternType.PREFIXED})
_OPERATIONS: Final = frozenset(Operation) - {Operation.UNKNOWN, Operation.ANY}
_PERMISSIONS: Final = frozenset({Permission.DENY, Permission.ALLOW})

SUPPORTED: Final[dict[ResourceType, tuple[Operation, ...]]] = {
    ResourceType.TOPIC: (
        Operation.READ,
        Operation.WRITE,
        Operation.CREATE,
        Operation.DELETE,
        Operation.ALTER,
        Operation.DESCRIBE,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    ),
    ResourceType.GROUP: (
        Operation.READ,
        Operation.DELETE,
        Operation.DESCRIBE,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    ),
    ResourceType.CLUSTER: (
        Operation.CREATE,
        Operation.ALTER,
        Operation.DESCRIBE,
        Operation.CLUSTER_ACTION,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
        Operation.IDEMPOTENT_WRITE,
    ),
    ResourceType.TRANSACTIONAL_ID: (
        Operation.WRITE,
        Operation.DESCRIBE,
        Operation.TWO_PHASE_COMMIT,
    ),
    ResourceType.DELEGATION_TOKEN: (Operation.DESCRIBE,),
    ResourceType.USER: (Operation.CREATE_TOKENS, Operation.DESCRIBE_TOKENS),
}
"""The operations that there are on each kind of resource (Kafka: AclEntry.supportedOperations)."""


class AclBinding(Struct, frozen=True, array_like=True, order=True):
    """One rule, by Kafka's numbers, as the journal and the state hold it."""

    resource_type: int
    name: str
    pattern_type: int
    principal: str
    host: str
    operation: int
    permission: int


class AclFilter(Struct, frozen=True, kw_only=True):
    """Finds bindings; None and ANY match everything."""

    resource_type: int = ResourceType.ANY
    name: str | None = None
    pattern_type: int = PatternType.ANY
    principal: str | None = None
    host: str | None = None
    operation: int = Operation.ANY
    permission: int = Permission.ANY

    def finds(self, binding: AclBinding) -> bool:
        """Whether it matches a binding."""
        return (
            self.resource_type in (ResourceType.ANY, binding.resource_type)
            and self.permission in (Permission.ANY, binding.permission)
            and self.operation in (Operation.ANY, binding.operation)
            and self.principal in (None, binding.principal)
            and self.host in (None, binding.host)
            and self._finds_pattern(binding)
        )

    def _finds_pattern(self, binding: AclBinding) -> bool:
        any_kind = self.pattern_type in (PatternType.ANY, PatternType.MATCH)
        if not any_kind and self.pattern_type != binding.pattern_type:
            return False
        if self.name is None:
            return True
        if self.pattern_type != PatternType.MATCH:
            return self.name == binding.name
        if binding.pattern_type == PatternType.PREFIXED:
            return self.name.startswith(binding.name)
        return binding.name in (self.name, WILDCARD)


def filter_problem(wanted: AclFilter) -> str | None:
    """Say why a filter is refused; None: it can be used."""
    kinds: tuple[tuple[str, int, type[enum.IntEnum]], ...] = (
        ("resource type", wanted.resource_type, ResourceType),
        ("pattern type", wanted.pattern_type, PatternType),
        ("operation", wanted.operation, Operation),
        ("permission type", wanted.permission, Permission),
    )
    for what, number, kind in kinds:
        if number == 0 or number not in kind._value2member_map_:
            return f"the filter has an unknown {what}: {number}"
    return None


def binding_problem(binding: AclBinding) -> str | None:
    """Say why a binding can't be created; None: it can."""
    if binding.resource_type not in _RESOURCE_TYPES:
        return f"Invalid resourceType {binding.resource_type}"
    if binding.resource_type == ResourceType.CLUSTER and binding.name != CLUSTER_NAME:
        return f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}"
    if binding.pattern_type not in _PATTERNS:
        return f"Invalid patternType {binding.pattern_type}"
    if binding.operation not in _OPERATIONS:
        return f"Invalid operation {binding.operation}"
    if binding.permission not in _PERMISSIONS:
        return f"Invalid permissionType {binding.permission}"
    if not binding.name:
        return "Resource name should not be empty"
    if ":" not in binding.principal:
        return (
            f"Could not parse principal from `{binding.principal}` (no colon is present separating"
            " the principal type from the principal name)"
        )
    for text in (binding.name, binding.principal, binding.host):
        if len(text) > TEXT_LENGTH_MAX:
            return f"a text of {len(text)} characters, {TEXT_LENGTH_MAX} are allowed"
    return _host_problem(binding.host)


def _host_problem(host: str) -> str | None:
    if not host:
        return "the host is empty: give an address, a network such as 10.0.0.0/8, or *"
    if "/" in host and network_of(host) is None:
        return f"the host {host!r} is not a network in CIDR notation, such as 10.0.0.0/8"
    return None


Network = ipaddress.IPv4Network | ipaddress.IPv6Network


def network_of(host: str) -> Network | None:
    """Return the network that a host in CIDR notation stands for; None: it stands for none."""
    if "/" not in host:
        return None
    try:
        return ipaddress.ip_network(host, strict=False)
    except ValueError:
        return None


def plain_host(host: str) -> str:
    """Return an address as it is compared: IPv6 is written in many ways. A name stays as it is."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    mapped = getattr(address, "ipv4_mapped", None)
    return str(mapped or address)
