"""The base of all commands of the journal, and what several of them carry. Pure."""

from msgspec import Struct


class Command(Struct, frozen=True, array_like=True, tag=True, kw_only=True):
    """Base of all commands: on the wire an array whose first item is the tag."""


class OffsetWrite(Struct, frozen=True, array_like=True, kw_only=True):
    """One committed offset of a group."""

    topic_id: bytes
    partition: int
    offset: int
    leader_epoch: int = -1
    metadata: str = ""
