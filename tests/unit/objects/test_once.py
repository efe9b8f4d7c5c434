"""What is put once is never written over; a caller's own lost answer is no conflict."""

import errno
from collections.abc import Sequence
from pathlib import Path

import pytest
from typing_extensions import Buffer

from penstock.model.errors import ConflictError, RetryableError
from penstock.objects.local import LocalStore
from penstock.objects.once import holds, put_once
from penstock.ports.objects import ObjectStore
from penstock.system.files import PosixDevice
from penstock.testing.conformance import ObjectStoreSuite
from support.simulated.device import SimulatedDevice


class WithoutLinks(PosixDevice):
    """exFAT, and many network and container mounts."""

    def link(self, old: str, new: str) -> None:
        raise OSError(errno.EPERM, "Operation not permitted", new)


class TestWithoutLinks(ObjectStoreSuite):
    def make_store(self, folder: Path) -> ObjectStore:
        return LocalStore(WithoutLinks(folder))

    @pytest.mark.skip(reason="of two processes the later one's bytes stay: keys are given out once")
    def test_of_racing_puts_if_absent_one_wins(self, tmp_path: Path) -> None:
        pass


class Losing(LocalStore):
    """Loses the answers of the first puts, which took effect."""

    def __init__(self, count: int) -> None:
        super().__init__(SimulatedDevice())
        self.left = count

    async def put(self, key: str, parts: Sequence[Buffer], *, if_absent: bool = False) -> None:
        await super().put(key, parts, if_absent=if_absent)
        if self.left:
            self.left -= 1
            raise RetryableError("put", key, "the reply was lost")


async def test_a_lost_answer_is_no_conflict() -> None:
    store = Losing(1)
    with pytest.raises(RetryableError):
        await put_once(store, "k", [b"mine"])
    await put_once(store, "k", [b"mi", b"ne"])
    with pytest.raises(ConflictError, match="4 bytes"):
        await put_once(store, "k", [b"MINE"])
    assert bytes(await store.get_range("k", 0, 4)) == b"mine"


async def test_what_goes_while_it_is_compared_is_tried_again() -> None:
    class Going(LocalStore):
        async def size(self, key: str) -> int:
            await self.delete([key])
            return await super().size(key)

    store = Going(SimulatedDevice())
    await store.put("k", [b"mine"])
    with pytest.raises(RetryableError, match="gone"):
        await put_once(store, "k", [b"mine"])
    await put_once(store, "k", [b"mine"])


@pytest.mark.slow
@pytest.mark.parametrize("changed", [0, 1, (8 << 20) - 1, 8 << 20, (9 << 20) - 1])
async def test_every_byte_is_compared(changed: int) -> None:
    store = LocalStore(SimulatedDevice())
    data = bytearray(9 << 20)
    await store.put("k", [data])
    parts = [memoryview(data)[:7], memoryview(data)[7:]]
    assert await holds(store, "k", parts)
    data[changed] ^= 1
    assert not await holds(store, "k", parts)
    assert not await holds(store, "k", parts[:1])
