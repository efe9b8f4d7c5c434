"""The audit log's entries: who, from where, did what to which resource, allowed or not.

Entries wait in memory, bounded, until a file takes them (`penstock.app.audit_file`): the event loop
pays for a tuple and no more. What finds no room is counted. Pure.
"""

from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

from penstock.security.acl import Operation, ResourceType

ENTRIES_MAX: Final = 20_000
"""Entries that wait at one time: some 10 MB."""
TEXT_LENGTH_MAX: Final = 500
"""An entry has at most this many characters of each text that a client gives."""
AUTHENTICATE: Final = "AUTHENTICATE"
"""The operation of a client that failed to say who it is."""
SAMPLED: Final = frozenset(
    {
        Operation.READ,
        Operation.WRITE,
        Operation.DESCRIBE,
        Operation.DESCRIBE_CONFIGS,
        Operation.IDEMPOTENT_WRITE,
        Operation.DESCRIBE_TOKENS,
    }
)
"""Operations of which only some are entered where they are allowed: they change no set-up."""
_SAMPLED_BITS: Final = sum(1 << operation for operation in SAMPLED)
"""The same as bits: a set would hash an enum's member, which takes a microsecond."""


class AuditEntry(NamedTuple):
    """One decision. `call`: the API of Kafka, or method and path. `time_ms`: wall clock."""

    time_ms: int
    port: str
    principal: str
    host: str
    call: str
    client_id: str
    operation: str
    resource_type: str
    resource: str
    allowed: bool


class Audit:
    """Gathers entries. Event loop only, but for `take` and `lose`.

    Args:
        now_ms: returns the time of the wall clock.
        sample_every: of allowed operations of `SAMPLED` one in so many is entered; 0: none.
    """

    def __init__(self, *, now_ms: Callable[[], int], sample_every: int) -> None:
        self._now_ms = now_ms
        self._sample_every = sample_every
        self._passed = 0
        self._waiting: deque[AuditEntry] = deque()
        self.lost_count = 0
        """Entries that found no room, or could not be written."""

    def decided(
        self,
        port: str,
        principal: str,
        host: str,
        call: str,
        client_id: str,
        operation: Operation,
        kind: ResourceType,
        resource: str,
        *,
        allowed: bool,
    ) -> None:
        """Enter a decision about an operation on a resource."""
        if allowed and _SAMPLED_BITS >> operation & 1:
            self._passed += 1
            if not self._sample_every or self._passed % self._sample_every:
                return
        self._enter(
            AuditEntry(
                self._now_ms(),
                port,
                principal,
                host,
                call,
                client_id[:TEXT_LENGTH_MAX],
                operation.name,
                kind.name,
                resource[:TEXT_LENGTH_MAX],
                allowed,
            )
        )

    def refused(self, port: str, host: str, call: str) -> None:
        """Enter a client that failed to say who it is."""
        text = call[:TEXT_LENGTH_MAX]
        now_ms = self._now_ms()
        self._enter(
            AuditEntry(now_ms, port, "", host, text, "", AUTHENTICATE, "", "", allowed=False)
        )

    def take(self, count_max: int) -> list[AuditEntry]:
        """Remove and return the oldest entries."""
        return [self._waiting.popleft() for _ in range(min(count_max, len(self._waiting)))]

    def lose(self, count: int) -> None:
        """Count entries that could not be written."""
        self.lost_count += count

    def _enter(self, entry: AuditEntry) -> None:
        if len(self._waiting) >= ENTRIES_MAX:
            self.lost_count += 1
            return
        self._waiting.append(entry)
