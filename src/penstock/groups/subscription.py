"""Reads the topics that a member subscribes to from the metadata of its JoinGroup. Pure.

The consumer protocol's subscription, of which every version begins as version 0 does:

| size | field |
| --- | --- |
| 2 | version, not negative |
| 4 | topic count |
| 2 + n each | topic name: length, UTF-8 |
| 4 + n | user data (bytes; not looked at), and what later versions add |

Source: ConsumerProtocolSubscription.json of Kafka; KIP-429 for the rule that versions only append.
"""

import struct
from typing import Final

CONSUMER_PROTOCOL_TYPE: Final = "consumer"


def subscribed_topics(metadata: bytes) -> frozenset[str] | None:
    """The topics' names; None when the bytes are not a consumer's subscription."""
    try:
        version, count = struct.unpack_from(">hi", metadata)
        if version < 0 or count < 0:
            return None
        position = 6
        names = set()
        for _ in range(count):
            (length,) = struct.unpack_from(">h", metadata, position)
            position += 2
            end = position + length
            if length < 0 or end > len(metadata):
                return None
            names.add(metadata[position:end].decode())
            position = end
    except (struct.error, UnicodeDecodeError):
        return None
    return frozenset(names)
