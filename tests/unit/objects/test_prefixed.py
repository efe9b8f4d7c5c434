"""A part of a store doesn't see the rest of it."""

from penstock.objects import LocalStore
from penstock.objects.prefixed import Prefixed
from support.simulated.device import SimulatedDevice


async def test_keys_begin_with_the_prefix() -> None:
    store = LocalStore(SimulatedDevice())
    one, other = Prefixed(store, "one/"), Prefixed(store, "other/")
    await one.put("a/k", [b"1"])
    await one.put("a/l", [b"2"])
    await other.put("a/k", [b"3"])
    assert [info.key async for info in store.list("")] == ["one/a/k", "one/a/l", "other/a/k"]
    assert [info.key async for info in one.list("a/")] == ["a/k", "a/l"]
    assert [info.key async for info in one.list("", after="a/k")] == ["a/l"]
    await one.delete(["a/k", "a/l"])
    assert bytes(await other.get_range("a/k", 0, 1)) == b"3"
    assert [info.key async for info in one.list("")] == []
