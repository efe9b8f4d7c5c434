"""ApiVersions 0 to 4: which APIs this server has. Encoded by struct: it is the first request of
every connection, and answering it must not import kio.

Features are finalized once the feature level of transactions is on: with `transaction.version` 2
Java's producers use protocol V2 (KIP-890). Below that level the APIs of transactions aren't named.

A version that is not served is answered as version 0 with UNSUPPORTED_VERSION and the whole list,
so that a newer client can ask again in one that is (KIP-511).
"""

import struct
from functools import cache
from typing import Final

from penstock.kafka.context import RequestContext
from penstock.kafka.errors import ErrorCode
from penstock.kafka.registry import APIS
from penstock.kafka.replies import Reply
from penstock.kafka.wire.decode import Cursor
from penstock.kafka.wire.primitives import uvarint
from penstock.state.schema import TRANSACTIONS_LEVEL

RAW: Final = True

FLEXIBLE_FROM: Final = 3
THROTTLE_FROM: Final = 1
LEAST_LEVEL_0_FROM: Final = 4
FEATURES: Final = {
    "group.version": (0, 1),
    "metadata.version": (7, 30),
    "share.version": (0, 1),
    "streams.version": (0, 1),
    "transaction.version": (0, 2),
}
"""The features of Kafka 4.3.1 that come on with the feature level of transactions, which is that of
share and streams groups: by their names the least level that is supported, and the greatest, which
is finalized. 7 is 3.3-IV3, 30 is 4.3-IV0. `kraft.version` and `eligible.leader.replicas.version`
are at 0, as there is neither a quorum nor a replica."""


def serve(context: RequestContext, body: memoryview) -> Reply:
    """Answer with the table.

    Raises:
        MalformedRequestError: the body is not such a request.
    """
    cursor = Cursor(body)
    if context.api_version >= FLEXIBLE_FROM:
        # Client software's name and version: not used yet, but a body without them is malformed.
        for _ in range(2):
            cursor.skip(cursor.uvarint() - 1)
        for _ in range(cursor.uvarint()):
            cursor.uvarint()
            cursor.skip(cursor.uvarint())
    level = context.broker.view.feature_level
    return [_response(context.api_version, ErrorCode.NONE, level)]


def unsupported_version(context: RequestContext) -> Reply:
    """Answer a request of a version that is not served."""
    return [_response(0, ErrorCode.UNSUPPORTED_VERSION, context.broker.view.feature_level)]


@cache
def _response(version: int, error: ErrorCode, level: int) -> bytes:
    flexible = version >= FLEXIBLE_FROM
    rows = [
        struct.pack(">hhh", api.key, api.advertised_min, api.versions_max)
        + (b"\0" if flexible else b"")
        for api in APIS.values()
        if api.level <= level
    ]
    count = uvarint(len(rows) + 1) if flexible else struct.pack(">i", len(rows))
    parts = [struct.pack(">h", error), count, *rows]
    if version >= THROTTLE_FROM:
        parts.append(struct.pack(">i", 0))
    if flexible:
        parts.append(_features(version, level) if level >= TRANSACTIONS_LEVEL else b"\0")
    return b"".join(parts)


def finalized_features(feature_level: int) -> dict[str, int]:
    """Return the levels of features that are on."""
    if feature_level < TRANSACTIONS_LEVEL:
        return {}
    return {name: level for name, (_, level) in FEATURES.items()}


def _features(version: int, level: int) -> bytes:
    """The tagged fields: supported features (tag 0), finalized features' epoch (1) and levels (2).
    The epoch is the feature level, which rises with what is finalized."""
    supported = [(name, *levels) for name, levels in FEATURES.items()]
    if version < LEAST_LEVEL_0_FROM:
        # Clients of version 3 can't read a least level of 0 (KAFKA-17011).
        supported = [row for row in supported if row[1]]
    finalized = [(name, level, level) for name, level in finalized_features(level).items()]
    fields = [(0, _levels(supported)), (1, struct.pack(">q", level)), (2, _levels(finalized))]
    return bytes([len(fields)]) + b"".join(
        bytes([tag]) + uvarint(len(field)) + field for tag, field in fields
    )


def _levels(rows: list[tuple[str, int, int]]) -> bytes:
    """An array of features; of a finalized one both levels are the same."""
    return bytes([len(rows) + 1]) + b"".join(
        bytes([len(name) + 1]) + name.encode() + struct.pack(">hh", least, greatest) + b"\0"
        for name, least, greatest in rows
    )
