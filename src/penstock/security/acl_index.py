"""All bindings of a cluster, indexed so that a decision looks at few of them. Pure.

Bindings with a literal name are found by the name, those with a prefix by the lengths of prefixes
that there are; within a resource by principal. So a decision takes no longer with 100,000 bindings
than with ten, unless they are of one resource and principal.
Source: Kafka's StandardAuthorizer, and Authorizer.authorizeByResourceType, 4.3.1. docs/acls.md.
"""

import enum
import ipaddress
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from typing import Final, TypeVar

from penstock.security.acl import (
    ANYONE,
    WILDCARD,
    AclBinding,
    Network,
    Operation,
    PatternType,
    Permission,
    network_of,
    plain_host,
)


class Decision(enum.Enum):
    """The bindings' answer about one operation on one resource."""

    ALLOWED = enum.auto()
    DENIED = enum.auto()
    NO_ACL = enum.auto()
    """No binding of any principal is about the resource."""


IMPLIED_BY: Final[dict[int, frozenset[int]]] = {
    Operation.DESCRIBE: frozenset(
        {
            Operation.ALL,
            Operation.DESCRIBE,
            Operation.READ,
            Operation.WRITE,
            Operation.DELETE,
            Operation.ALTER,
        }
    ),
    Operation.DESCRIBE_CONFIGS: frozenset(
        {Operation.ALL, Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS}
    ),
}
"""The operations whose permission allows another one, too. What is denied implies nothing."""

_PROBE: Final = "hardcode"
"""The name by which Kafka asks whether a principal may do anything to any resource of a type."""


class _Rule:
    """One binding of a resource and principal, as decisions ask it."""

    __slots__ = ("allows", "binding", "host", "network", "operation")

    def __init__(self, binding: AclBinding) -> None:
        self.binding = binding
        self.host = plain_host(binding.host)
        self.network: Network | None = network_of(binding.host)
        self.operation = binding.operation
        self.allows = binding.permission == Permission.ALLOW

    def is_from(self, host: str) -> bool:
        """Whether it is about a client at this address."""
        if self.host in (WILDCARD, host):
            return True
        return self.network is not None and _is_within(host, self.network)


_Resource = dict[str, dict[AclBinding, _Rule]]
"""The rules of one resource pattern, by principal."""


class AclIndex:
    """The bindings, each once. `version` grows with each change."""

    def __init__(self, bindings: Iterable[AclBinding] = ()) -> None:
        self.version = 0
        self._all: dict[AclBinding, None] = {}
        self._literal: dict[tuple[int, str], _Resource] = {}
        self._prefixed: dict[tuple[int, str], _Resource] = {}
        self._lengths: dict[int, Counter[int]] = {}
        """How many prefixes of each length a type has patterns of."""
        self._of_principal: dict[tuple[int, str], dict[AclBinding, _Rule]] = {}
        self.change(added=bindings, removed=())

    def __len__(self) -> int:
        return len(self._all)

    def __contains__(self, binding: AclBinding) -> bool:
        return binding in self._all

    def bindings(self) -> Collection[AclBinding]:
        """All bindings."""
        return self._all.keys()

    def change(self, *, added: Iterable[AclBinding], removed: Iterable[AclBinding]) -> None:
        """Take bindings in and out. Those that are there, or aren't, already are passed over."""
        for binding in removed:
            if binding in self._all:
                self._remove(binding)
        for binding in added:
            if binding not in self._all:
                self._add(binding)
        self.version += 1

    def replace(self, bindings: Iterable[AclBinding]) -> None:
        """Take these for all that there are."""
        wanted = set(bindings)
        removed = [binding for binding in self._all if binding not in wanted]
        self.change(added=wanted, removed=removed)

    def decide(
        self, principal: str, host: str, operation: int, resource_type: int, name: str
    ) -> Decision:
        """Decide about one operation on one resource.

        Args:
            host: the client's address, as `plain_host` gives it.
        """
        implying = IMPLIED_BY.get(operation)
        is_known = is_allowed = False
        for resource in self._matching(resource_type, name):
            is_known = True
            for who in (principal, ANYONE):
                for rule in resource.get(who, _NO_RULES).values():
                    if rule.allows:
                        if is_allowed:
                            continue
                        wanted = rule.operation
                        if (
                            wanted in implying
                            if implying is not None
                            else wanted in (operation, Operation.ALL)
                        ):
                            is_allowed = rule.is_from(host)
                    elif rule.operation in (operation, Operation.ALL) and rule.is_from(host):
                        return Decision.DENIED
        if is_allowed:
            return Decision.ALLOWED
        return Decision.DENIED if is_known else Decision.NO_ACL

    def decide_by_type(
        self, principal: str, host: str, operation: int, resource_type: int
    ) -> Decision:
        """Decide whether there can be a resource of the type on which the operation is allowed.

        NO_ACL: nothing says so, and a resource that no binding is about may exist.
        """
        probe = self.decide(principal, host, operation, resource_type, _PROBE)
        if probe is Decision.ALLOWED:
            return probe
        denied: dict[int, set[str]] = {PatternType.LITERAL: set(), PatternType.PREFIXED: set()}
        allowed: list[AclBinding] = []
        for who in (principal, ANYONE):
            for rule in self._of_principal.get((resource_type, who), _NO_RULES).values():
                # No operation implies another one here, as in Kafka.
                if rule.operation not in (operation, Operation.ALL) or not rule.is_from(host):
                    continue
                if rule.allows:
                    allowed.append(rule.binding)
                elif _is_wildcard(rule.binding):
                    return Decision.DENIED
                else:
                    denied[rule.binding.pattern_type].add(rule.binding.name)
        if any(_is_wildcard(binding) or not _is_denied(binding, denied) for binding in allowed):
            return Decision.ALLOWED
        return probe

    # -- inside ----------------------------------------------------------------------------------

    def _matching(self, resource_type: int, name: str) -> Iterator[_Resource]:
        """The resource patterns that match a resource."""
        found = self._literal.get((resource_type, name))
        if found is not None:
            yield found
        if name != WILDCARD:
            found = self._literal.get((resource_type, WILDCARD))
            if found is not None:
                yield found
        lengths = self._lengths.get(resource_type)
        if lengths:
            for length in lengths:
                if length <= len(name):
                    found = self._prefixed.get((resource_type, name[:length]))
                    if found is not None:
                        yield found

    def _add(self, binding: AclBinding) -> None:
        rule = _Rule(binding)
        self._all[binding] = None
        key = (binding.resource_type, binding.name)
        is_prefix = binding.pattern_type == PatternType.PREFIXED
        resources = self._prefixed if is_prefix else self._literal
        if key not in resources:
            resources[key] = {}
            if is_prefix:
                lengths = self._lengths.setdefault(binding.resource_type, Counter())
                lengths[len(binding.name)] += 1
        resources[key].setdefault(binding.principal, {})[binding] = rule
        of_type = (binding.resource_type, binding.principal)
        self._of_principal.setdefault(of_type, {})[binding] = rule

    def _remove(self, binding: AclBinding) -> None:
        del self._all[binding]
        key = (binding.resource_type, binding.name)
        is_prefix = binding.pattern_type == PatternType.PREFIXED
        resources = self._prefixed if is_prefix else self._literal
        resource = resources[key]
        _drop(resource, binding.principal, binding)
        if not resource:
            del resources[key]
            if is_prefix:
                lengths = self._lengths[binding.resource_type]
                lengths[len(binding.name)] -= 1
                if not lengths[len(binding.name)]:
                    del lengths[len(binding.name)]
        _drop(self._of_principal, (binding.resource_type, binding.principal), binding)


_NO_RULES: Final[dict[AclBinding, _Rule]] = {}


_Key = TypeVar("_Key")


def _drop(rules: dict[_Key, dict[AclBinding, _Rule]], key: _Key, binding: AclBinding) -> None:
    del rules[key][binding]
    if not rules[key]:
        del rules[key]


def _is_within(host: str, network: Network) -> bool:
    try:
        return ipaddress.ip_address(host) in network
    except ValueError:
        return False


def _is_wildcard(binding: AclBinding) -> bool:
    return binding.name == WILDCARD and binding.pattern_type == PatternType.LITERAL


def _is_denied(allowed: AclBinding, denied: dict[int, set[str]]) -> bool:
    """Whether all that an allowed pattern stands for is denied by another pattern."""
    name, prefixes = allowed.name, denied[PatternType.PREFIXED]
    if allowed.pattern_type == PatternType.LITERAL and name in denied[PatternType.LITERAL]:
        return True
    return any(name[:length] in prefixes for length in range(1, len(name) + 1))
