"""What it takes to create a topic: its id, its partition count, its replicas. Pure."""

from typing import Final

from penstock.ports.random import Random

_RESERVED: Final = (bytes(16), bytes(15) + b"\x01")
"""Kafka's zero id ("none") and the id of its metadata topic."""


def new_topic_id(random: Random) -> bytes:
    """A random UUID of version 4, 16 bytes, that Kafka's clients can show.

    Kafka writes ids as base64 and avoids those that begin with '-', which command lines take for
    an option; so does this.
    """
    while True:
        raw = bytearray(random.token_bytes(16))
        raw[6] = raw[6] & 0x0F | 0x40
        raw[8] = raw[8] & 0x3F | 0x80
        # In URL-safe base64 '-' stands for 62: the first six bits.
        if raw[0] >> 2 != 62 and bytes(raw) not in _RESERVED:
            return bytes(raw)
