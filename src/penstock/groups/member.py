"""One member of a group, as the coordinator sees it. Pure."""

from collections.abc import Container
from dataclasses import dataclass

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
    join_request: int | None = None
    sync_request: int | None = None

    @property
    def waits(self) -> bool:
        """A member whose request waits here is not expected to send heartbeats."""
        return not self.is_new and (self.join_request is not None or self.sync_request is not None)

    def metadata(self, protocol_name: str) -> bytes:
        """What it says about itself under that protocol."""
        return next((p.metadata for p in self.protocols if p.name == protocol_name), b"")

    def vote(self, candidates: Container[str]) -> str:
        """The first of its protocols that is a candidate; members list them by preference."""
        return next(p.name for p in self.protocols if p.name in candidates)
