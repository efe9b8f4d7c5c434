"""ApiVersions 0 to 4: which APIs this server has. Encoded by struct: it is the first request of
every connection, and answering it must not import kio.

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

RAW: Final = True

FLEXIBLE_FROM: Final = 3
THROTTLE_FROM: Final = 1


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
    return [_response(context.api_version, ErrorCode.NONE)]


def unsupported_version() -> Reply:
    """Answer a request of a version that is not served."""
    return [_response(0, ErrorCode.UNSUPPORTED_VERSION)]


@cache
def _response(version: int, error: ErrorCode) -> bytes:
    flexible = version >= FLEXIBLE_FROM
    rows = [
        struct.pack(">hhh", api.key, api.advertised_min, api.versions_max)
        + (b"\0" if flexible else b"")
        for api in APIS.values()
    ]
    count = uvarint(len(rows) + 1) if flexible else struct.pack(">i", len(rows))
    parts = [struct.pack(">h", error), count, *rows]
    if version >= THROTTLE_FROM:
        parts.append(struct.pack(">i", 0))
    if flexible:
        # Tagged fields: supported features (tag 0), finalized features' epoch (1) and levels (2)
        # come here once there is a feature to announce; absent means none, epoch unknown.
        parts.append(b"\0")
    return b"".join(parts)
