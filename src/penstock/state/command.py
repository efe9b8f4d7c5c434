"""The base of all commands of the journal. Pure."""

from msgspec import Struct


class Command(Struct, frozen=True, array_like=True, tag=True, kw_only=True):
    """Base of all commands: on the wire an array whose first item is the tag."""
