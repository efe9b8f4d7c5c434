"""Arrays of long answers that take less memory than a tuple of entities.

`ArrayWriter` encodes its items as they are looked up: the right one where an item is made of
numbers and names. `MadeItems` keeps what its items are made of and makes them when they are
written: where that is there anyway, and long (a member's metadata).
"""

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar, overload

from penstock.kafka.wire.encode import (
    LONG_PART_BYTES,
    EncodedParts,
    Entity,
    PartsBuffer,
    entity_writer,
)
from penstock.kafka.wire.primitives import count_bytes
from penstock.kafka.wire.schema import build


class ArrayWriter:
    """Encodes an array item by item. Entities of a hundred thousand items would take ten times as
    much memory as their bytes.

    Args:
        item_type: a class of `response_types`.
    """

    __slots__ = ("_count", "_item_type", "_out", "_write")

    def __init__(self, item_type: type[Entity]) -> None:
        self._item_type = item_type
        self._write = entity_writer(item_type)
        self._count = 0
        self._out = PartsBuffer()

    def add(self, **fields: object) -> None:
        """Add an item; its arrays may be `EncodedParts`. As `schema.build`, fields that its version
        does not have are left out."""
        out = self._out
        self._write(out, build(self._item_type, **fields))
        self._count += 1
        if len(out) >= LONG_PART_BYTES:
            out.cut()

    def encoded(self) -> EncodedParts:
        """The array, once all items are added."""
        self._out.cut()
        length = count_bytes(self._count, flexible=self._item_type.__flexible__)
        return EncodedParts((length, *self._out.parts))


_Source = TypeVar("_Source")


class MadeItems(Sequence[Entity], Generic[_Source]):
    """An array whose items are made when they are written, some at a time.

    Args:
        sources: what the items are made of. They don't change until the answer has left.
        make: the entity of one.
    """

    __slots__ = ("_make", "_sources")

    def __init__(self, sources: Sequence[_Source], make: Callable[[_Source], Entity]) -> None:
        self._sources = sources
        self._make = make

    def __len__(self) -> int:
        return len(self._sources)

    @overload
    def __getitem__(self, place: int) -> Entity: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[Entity]: ...
    def __getitem__(self, place: int | slice) -> Entity | Sequence[Entity]:
        if isinstance(place, slice):
            return MadeItems(self._sources[place], self._make)
        return self._make(self._sources[place])
