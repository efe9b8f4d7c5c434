"""One member of a group, as the coordinator sees it. Pure."""

from collections.abc import Container
from dataclasses import dataclass
from typing import Self

from penstock.groups.durable import DurableMember
from penstock.groups.messages import Protocol


@dataclass(slots=True, kw_only=True)
class Member:
    """A member. `join_request` and `sync_request` are those of its requests that wait, or None."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: tuple[Protocol, ...]
    assignment: bytes = b""
    is_new: bool = False
    """Its first join waits: it has no session that could be kept up, so it may expire."""
    is_doubted: bool = False
    """Its session's time has passed while no member could be heard, and it has sent no heartbeat,
    join or sync since: its client may have given the membership up."""
    join_request: int | None = None
    sync_request: int | None = None

    @property
    def waits(self) -> bool:
        """A member whose request waits here is not expected to send heartbeats."""
        return not self.is_new and (self.join_request is not None or self.sync_request is not None)

    def metadata(self, protocol_name: str) -> bytes:
        """Return the metadata that the member sent for a protocol."""
        return next((p.metadata for p in self.protocols if p.name == protocol_name), b"")

    def vote(self, candidates: Container[str]) -> str:
        """The first of its protocols that is a candidate; members list them by preference."""
        return next(p.name for p in self.protocols if p.name in candidates)

    def durable(self, assignment: bytes) -> DurableMember:
        """Return what the journal keeps of the member, with that share."""
        return DurableMember(
            self.member_id,
            self.instance_id,
            self.client_id,
            self.client_host,
            self.session_timeout_ms,
            self.rebalance_timeout_ms,
            list(self.protocols),
            assignment,
        )

    @classmethod
    def restored(cls, durable: DurableMember) -> Self:
        """The member as it was journaled."""
        return cls(
            member_id=durable.member_id,
            instance_id=durable.instance_id,
            client_id=durable.client_id,
            client_host=durable.client_host,
            session_timeout_ms=durable.session_timeout_ms,
            rebalance_timeout_ms=durable.rebalance_timeout_ms,
            protocols=tuple(Protocol(*protocol) for protocol in durable.protocols),
            assignment=durable.assignment,
        )
