"""Putting a segment under an agent's next number."""

from collections.abc import Sequence

from typing_extensions import Buffer

from penstock.log.numbers import ObjectNumbers
from penstock.model.errors import ConflictError
from penstock.objects.once import put_once
from penstock.ports.objects import ObjectStore


async def put_numbered(store: ObjectStore, numbers: ObjectNumbers, parts: Sequence[Buffer]) -> int:
    """Put a segment under the next number that no object lies under yet.

    Returns:
        The number, which is in flight until the caller ends it.

    Raises:
        PenstockError: as the store's; the number is ended.
    """
    while True:
        number = numbers.begin()
        try:
            await put_once(store, numbers.key(number), parts)
        except ConflictError as error:
            numbers.skip(number, error)
        except BaseException:
            numbers.end(number, named=False)
            raise
        else:
            return number
