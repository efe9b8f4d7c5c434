"""Writes throttle_time_ms into an answer that is encoded already. Pure.

For how long a client must wait is known only once its answer is made: by the answer's bytes. In
nearly all answers the field is the first one.
Source: Kafka's message files, 4.3.1.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from typing_extensions import Buffer

from penstock.kafka.registry import Api
from penstock.kafka.replies import Piece, PiecedReply
from penstock.kafka.wire.primitives import INT32
from penstock.log.fetch.regions import FileRegion

WAIT_MAX_MS: Final = (1 << 31) - 1

ABSENT_UNTIL: Final = {
    "ListOffsets": 1,
    "Metadata": 2,
    "OffsetCommit": 2,
    "OffsetFetch": 2,
    "FindCoordinator": 0,
    "JoinGroup": 1,
    "Heartbeat": 0,
    "LeaveGroup": 0,
    "SyncGroup": 0,
    "DescribeGroups": 0,
    "ListGroups": 0,
    "WriteTxnMarkers": 2,
    "SaslHandshake": 1,
    "SaslAuthenticate": 2,
    "SaslToken": 0,
    "DescribeQuorum": 2,
    # It comes after the array of APIs; clients heed no throttling before they know the versions.
    "ApiVersions": 4,
}
"""The last version of an API's answer that has no such field, or none that is written here."""
AT_END: Final = frozenset(
    {
        "Produce",
        "CreateDelegationToken",
        "RenewDelegationToken",
        "ExpireDelegationToken",
        "DescribeDelegationToken",
    }
)
"""APIs in whose answers it is the last field, before the tagged ones, of which there are none."""
AFTER_ERROR: Final = frozenset({"OffsetDelete"})
"""APIs in whose answers it comes after the error code."""


def place_of(api: Api, version: int) -> int | None:
    """Return where the field begins in an answer, below 0 from its end; None: there is none."""
    if version <= ABSENT_UNTIL.get(api.name, -1):
        return None
    if api.name in AT_END:
        return -5 if version >= api.flexible_from else -4
    return 2 if api.name in AFTER_ERROR else 0


def throttled(
    api: Api, version: int, reply: Sequence[Buffer | FileRegion] | PiecedReply, wait_s: float
) -> Sequence[Buffer | FileRegion] | PiecedReply:
    """Return the answer with the time for which the client must wait, in place of 0."""
    place = place_of(api, version)
    if place is None:
        return reply
    wait_ms = min(WAIT_MAX_MS, max(1, round(1000 * wait_s)))
    if isinstance(reply, PiecedReply):
        return _pieced(reply, place, wait_ms)
    written = list(reply)
    which = 0 if place >= 0 else -1
    part = written[which]
    assert not isinstance(part, FileRegion)
    written[which] = _written(part, place, wait_ms)
    return written


def _pieced(reply: PiecedReply, place: int, wait_ms: int) -> PiecedReply:
    def pieces() -> Iterator[Piece]:
        first, items = next(reply_pieces)
        yield _written(first, place, wait_ms), items
        yield from reply_pieces

    assert place >= 0, "the answers of these APIs are short"
    reply_pieces = reply.pieces
    return PiecedReply(pieces(), byte_count=reply.byte_count, held_bytes=reply.held_bytes)


def _written(part: Buffer, place: int, wait_ms: int) -> bytearray:
    # A copy: the bytes may be another client's answer, too.
    written = bytearray(part)
    start = place if place >= 0 else len(written) + place
    INT32.pack_into(written, start, wait_ms)
    return written
