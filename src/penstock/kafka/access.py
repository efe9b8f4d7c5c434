"""The authorizer says what clients may do, and each connection keeps what it said (docs/acls.md).

Handlers ask `context.access`, in one place each, and get the error that Kafka answers; NONE: the
operation is allowed. Without an authorizer everything is, and nothing is looked up. A decision is
kept with its connection until an access rule changes.

In a cluster an agent that hasn't confirmed the journal's head for a while may not know of a rule
that was taken back. What its rules allow it then answers with errors that clients try again, with
other agents; super users are served.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock.kafka.errors import ErrorCode
from penstock.order.port import Heads
from penstock.ports.clock import Clock
from penstock.security.acl import CLUSTER_NAME, SUPPORTED, Operation, ResourceType, plain_host
from penstock.security.acl_index import Decision
from penstock.security.audit import Audit

if TYPE_CHECKING:
    from penstock.state.read.view import StateView

UNKNOWN_OPERATIONS: Final = -(1 << 31)
"""The operations of an answer whose request didn't ask for them."""
DECISIONS_MAX: Final = 10_000
"""Decisions that a connection keeps."""

REFUSED: Final = {
    ResourceType.TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ResourceType.GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ResourceType.CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ResourceType.TRANSACTIONAL_ID: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    ResourceType.DELEGATION_TOKEN: ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
    ResourceType.USER: ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
}
"""The errors of what isn't allowed."""
_STALE: Final = {
    ResourceType.TOPIC: ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ResourceType.GROUP: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ResourceType.CLUSTER: ErrorCode.REQUEST_TIMED_OUT,
    ResourceType.TRANSACTIONAL_ID: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ResourceType.DELEGATION_TOKEN: ErrorCode.REQUEST_TIMED_OUT,
    ResourceType.USER: ErrorCode.REQUEST_TIMED_OUT,
}
"""The errors of what was allowed when this agent last knew: clients look elsewhere, or wait."""
TEXTS: Final = {
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "Topic authorization failed.",
    ErrorCode.GROUP_AUTHORIZATION_FAILED: "Group authorization failed.",
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: "Cluster authorization failed.",
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "Transactional Id authorization failed.",
    ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED: "Delegation Token authorization failed.",
}
_STALE_TEXT: Final = (
    "this agent hasn't reached the journal for too long to know what is allowed; try again"
)


def refusal_text(error: ErrorCode) -> str:
    """Say why something isn't allowed: the message that goes with an error of `Access`."""
    return TEXTS.get(error, _STALE_TEXT)


@dataclass(frozen=True, slots=True, kw_only=True)
class AclSettings:
    """Settings of the authorizer."""

    super_users: frozenset[str] = frozenset()
    """Principals that may do everything."""
    allow_if_no_acl: bool = False
    """Kafka's allow.everyone.if.no.acl.found: what no rule is about is everybody's."""
    stale_max_s: float = 10.0
    """Without a confirmed head for longer, what rules allow is refused."""


class Authority:
    """The authorizer of one agent."""

    def __init__(
        self, view: "StateView", settings: AclSettings, clock: Clock, heads: Heads | None
    ) -> None:
        self.view = view
        self.settings = settings
        self._clock = clock
        self._heads = heads

    def is_stale(self) -> bool:
        """Whether this agent may not know of a rule's end."""
        heads = self._heads
        if heads is None:
            return False
        return self._clock.monotonic_s() - heads.head_confirmed_s > self.settings.stale_max_s

    def generation(self) -> int:
        """A number that is another one once the view's topics, or a decision, may be others."""
        return self.view.generation << 1 | self.is_stale()


class Access:
    """Says what one principal may do, from one host. The open one allows everything.

    Args:
        authority: None: there is no authorizer.
    """

    __slots__ = ("_authority", "_decisions", "_host", "_is_super", "_version", "principal")

    def __init__(self, authority: Authority | None, principal: str = "", host: str = "") -> None:
        self._authority = authority
        self.principal = principal
        self._host = plain_host(host)
        self._is_super = authority is None or principal in authority.settings.super_users
        self._version = -1
        self._decisions: dict[tuple[int, int, str], bool] = {}

    @property
    def is_unbounded(self) -> bool:
        """Whether everything is allowed: no authorizer, or a super user."""
        return self._is_super

    def error(self, operation: Operation, kind: ResourceType, name: str) -> ErrorCode:
        """The error of an operation on a resource; NONE: it is allowed."""
        if self._is_super:
            return ErrorCode.NONE
        authority = self._authority
        assert authority is not None
        index = authority.view.acls
        decisions = self._decisions
        if self._version != index.version or len(decisions) > DECISIONS_MAX:
            decisions.clear()
            self._version = index.version
        key = (operation, kind, name)
        allowed = decisions.get(key)
        if allowed is None:
            decision = index.decide(self.principal, self._host, operation, kind, name)
            allowed = decisions[key] = self._allows(authority, decision)
        if not allowed:
            return REFUSED[kind]
        return _STALE[kind] if authority.is_stale() else ErrorCode.NONE

    def topic(self, operation: Operation, name: str) -> ErrorCode:
        """The error of an operation on a topic."""
        return self.error(operation, ResourceType.TOPIC, name)

    def group(self, operation: Operation, group_id: str) -> ErrorCode:
        """The error of an operation on a group."""
        return self.error(operation, ResourceType.GROUP, group_id)

    def transaction(self, operation: Operation, transactional_id: str) -> ErrorCode:
        """The error of an operation on a transactional id."""
        return self.error(operation, ResourceType.TRANSACTIONAL_ID, transactional_id)

    def cluster(self, operation: Operation) -> ErrorCode:
        """The error of an operation on the cluster."""
        return self.error(operation, ResourceType.CLUSTER, CLUSTER_NAME)

    def some_topic(self, operation: Operation) -> ErrorCode:
        """The error of an operation that must be allowed on some topic, whichever."""
        if self._is_super:
            return ErrorCode.NONE
        authority = self._authority
        assert authority is not None
        decision = authority.view.acls.decide_by_type(
            self.principal, self._host, operation, ResourceType.TOPIC
        )
        if not self._allows(authority, decision):
            return REFUSED[ResourceType.TOPIC]
        return _STALE[ResourceType.TOPIC] if authority.is_stale() else ErrorCode.NONE

    def operations(self, kind: ResourceType, name: str) -> int:
        """The operations that are allowed on a resource, as bits of a describe answer."""
        found = 0
        for operation in SUPPORTED[kind]:
            if not self.error(operation, kind, name):
                found |= 1 << operation
        return found

    def cluster_operations(self) -> int:
        """The same of the cluster: none for who may not describe it."""
        if self.cluster(Operation.DESCRIBE):
            return 0
        return self.operations(ResourceType.CLUSTER, CLUSTER_NAME)

    @staticmethod
    def _allows(authority: Authority, decision: Decision) -> bool:
        if decision is Decision.NO_ACL:
            return authority.settings.allow_if_no_acl
        return decision is Decision.ALLOWED


class AuditedAccess(Access):
    """An access whose decisions are entered into the audit log, for one request.

    Args:
        inner: decides, and keeps its decisions with the connection.
    """

    __slots__ = ("_audit", "_call", "_client_id", "_inner")

    def __init__(
        self, inner: Access, audit: Audit, principal: str, host: str, call: str, client_id: str
    ) -> None:
        # Made for each request: the base's own start, which reads the host as an address, isn't
        # needed, since `inner` decides.
        self.principal = principal
        self._host = host
        self._inner = inner
        self._audit = audit
        self._call = call
        self._client_id = client_id

    @property
    def is_unbounded(self) -> bool:
        """See `Access`."""
        return self._inner.is_unbounded

    def error(self, operation: Operation, kind: ResourceType, name: str) -> ErrorCode:
        """See `Access`."""
        error = self._inner.error(operation, kind, name)
        self._enter(operation, kind, name, error)
        return error

    def some_topic(self, operation: Operation) -> ErrorCode:
        """See `Access`."""
        error = self._inner.some_topic(operation)
        self._enter(operation, ResourceType.TOPIC, "", error)
        return error

    def operations(self, kind: ResourceType, name: str) -> int:
        """See `Access`: a describe answer's list, which no operation is done by."""
        return self._inner.operations(kind, name)

    def cluster_operations(self) -> int:
        """See `Access`."""
        return self._inner.cluster_operations()

    def _enter(self, operation: Operation, kind: ResourceType, name: str, error: ErrorCode) -> None:
        self._audit.decided(
            "kafka",
            self.principal,
            self._host,
            self._call,
            self._client_id,
            operation,
            kind,
            name,
            allowed=not error,
        )


OPEN: Final = Access(None)
"""The access of all clients where there is no authorizer."""
