# ruff: noqa: D102 (a test says what it states by its name)
"""Suites of the ports' rules, which an adapter's test subclasses.

class TestMyStore(ObjectStoreSuite):
    def make_store(self, folder: Path) -> ObjectStore:
        return MyStore(folder)
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from penstock.model.errors import (
    ConflictError,
    CorruptDataError,
    InvalidRequestError,
    NotFoundError,
)
from penstock.objects.once import put_once
from penstock.ports.device import Device
from penstock.ports.objects import ObjectInfo, ObjectStore, get_directly, get_versioned

_Scenario = Callable[[ObjectStore], Awaitable[None]]


class ObjectStoreSuite(ABC):
    """The contract of `penstock.ports.objects.ObjectStore`.

    `seconds_max`: for each test; only a store that hangs needs them all.
    """

    seconds_max = 120.0
    has_versions = True
    """Whether it says of which version the bytes are that it gives."""

    @abstractmethod
    def make_store(self, folder: Path) -> ObjectStore:
        """An empty store; `folder` is an empty directory for its use."""

    def _run(self, folder: Path, scenario: _Scenario) -> None:
        async def main() -> None:
            await asyncio.wait_for(scenario(self.make_store(folder)), self.seconds_max)

        asyncio.run(main())

    def test_parts_are_stored_one_behind_the_other(self, tmp_path: Path) -> None:
        async def scenario(store: ObjectStore) -> None:
            await store.put("a/b", [b"one", memoryview(b"-two-")[1:4], bytearray(b"three")])
            assert bytes(await store.get_range("a/b", 0, 11)) == b"onetwothree"
            assert await store.size("a/b") == 11

        self._run(tmp_path, scenario)

    def test_many_small_and_some_large_parts_keep_their_order(self, tmp_path: Path) -> None:
        async def scenario(store: ObjectStore) -> None:
            parts = [bytes([number % 251]) * (number % 7) for number in range(3000)]
            parts[1500] = bytes(range(256)) * 20_000
            expected = b"".join(parts)
            await store.put("k", parts)
            assert bytes(await store.get_range("k", 0, len(expected))) == expected

        self._run(tmp_path, scenario)

    def test_a_large_object_is_whole(self, tmp_path: Path) -> None:
        """Larger than what a bucket's adapter puts in one request."""

        async def scenario(store: ObjectStore) -> None:
            piece = bytes(range(256)) * 4096
            parts = [bytes([number]) + piece for number in range(65)]
            await store.put("k", parts)
            assert await store.size("k") == 65 * (len(piece) + 1)
            for number in (0, 16, 64):
                start = number * (len(piece) + 1)
                assert bytes(await store.get_range("k", start, start + 257)) == (
                    bytes([number]) + piece[:256]
                )
            with pytest.raises(ConflictError):
                await store.put("k", parts[::-1], if_absent=True)

        self._run(tmp_path, scenario)

    def test_an_object_may_be_empty(self, tmp_path: Path) -> None:
        async def scenario(store: ObjectStore) -> None:
            await store.put("empty", [])
            assert await store.size("empty") == 0
            assert bytes(await store.get_range("empty", 0, 0)) == b""

        self._run(tmp_path, scenario)

    def test_a_range_is_exact(self, tmp_path: Path) -> None:
        async def scenario(store: ObjectStore) -> None:
            await store.put("k", [b"0123456789"])
            for start, end in [(0, 1), (3, 7), (9, 10), (0, 10), (4, 4)]:
                assert bytes(await store.get_range("k", start, end)) == b"0123456789"[start:end]

        self._run(tmp_path, scenario)

    @pytest.mark.parametrize(("start", "end"), [(0, 11), (9, 12), (10, 11), (20, 30)])
    def test_a_range_past_the_end_is_an_error(self, tmp_path: Path, start: int, end: int) -> None:
        async def scenario(store: ObjectStore) -> None:
            await store.put("k", [b"0123456789"])
            with pytest.raises(CorruptDataError, match="k"):
                await store.get_range("k", start, end)

        self._run(tmp_path, scenario)

    def test_what_is_not_there_is_not_found(self, tmp_path: Path) -> None:
        async def scenario(store: ObjectStore) -> None:
            await store.put("a/b", [b"x"])
            for key in ("other", "a", "a/b/c", "a/bb"):
                with pytest.raises(NotFoundError):
                    await store.get_range(key, 0, 1)
                with pytest.raises(NotFoundError):
                    await store.size(key)

        self._run(tmp_path, scenario)

    def test_a_put_replaces(self, tmp_path: Path) -> None:
        async def scenario(store: ObjectStore) -> None:
            await store.put("k", [b"long value"])
            assert bytes(await store.get_range("k", 0, 4)) == b"long"
            await store.put("k", [b"short"])
            assert bytes(await store.get_range("k", 0, 5)) == b"short"
            assert await store.size("k") == 5

        self._run(tmp_path, scenario)

    def test_bytes_come_with_the_version_of_their_object(self, tmp_path: Path) -> None:
        """Each range of an object has one version, and an object of other bytes has another."""

        async def scenario(store: ObjectStore) -> None:
            await store.put("k", [b"0123456789"])
            await store.put("other", [b"0123456789"])
            found = [
                await get(store, "k", start, end)
                for get in (get_versioned, get_directly)
                for start, end in [(0, 10), (3, 7), (9, 10), (4, 4)]
            ]
            assert [bytes(one.data) for one in found] == 2 * [b"0123456789", b"3456", b"9", b""]
            (version,) = {one.version for one in found if memoryview(one.data)}
            assert (version is not None) is self.has_versions
            assert version or not self.has_versions
            for wrong, error in [(("k", 9, 12), CorruptDataError), (("no", 0, 1), NotFoundError)]:
                with pytest.raises(error):
                    await get_versioned(store, *wrong)
            await store.delete(["k"])
            await store.put("k", [b"9876543210"])
            replaced = await get_versioned(store, "k", 3, 7)
            assert bytes(replaced.data) == b"6543"
            assert (replaced.version != version) is self.has_versions

        self._run(tmp_path, scenario)

    def test_a_put_if_absent_leaves_what_is_there(self, tmp_path: Path) -> None:
        async def scenario(store: ObjectStore) -> None:
            await store.put("k", [b"first"], if_absent=True)
            with pytest.raises(ConflictError):
                await store.put("k", [b"second"], if_absent=True)
            assert bytes(await store.get_range("k", 0, 5)) == b"first"

        self._run(tmp_path, scenario)

    def test_what_is_put_once_stays(self, tmp_path: Path) -> None:
        """Segments are put so on every store: the same bytes again are fine, others are refused."""

        async def scenario(store: ObjectStore) -> None:
            for _ in range(2):
                await put_once(store, "k", [b"fi", memoryview(b"-rst-")[1:4]])
            for other in ([b"fi", b"rsT"], [b"first and more"], []):
                with pytest.raises(ConflictError, match="another object"):
                    await put_once(store, "k", other)
            assert bytes(await store.get_range("k", 0, 5)) == b"first"
            assert await store.size("k") == 5

        self._run(tmp_path, scenario)

    def test_of_racing_puts_if_absent_one_wins(self, tmp_path: Path) -> None:
        async def scenario(store: ObjectStore) -> None:
            outcomes = await asyncio.gather(
                *(store.put("k", [bytes([n])], if_absent=True) for n in range(8)),
                return_exceptions=True,
            )
            winners = [n for n, outcome in enumerate(outcomes) if outcome is None]
            assert len(winners) == 1
            assert all(isinstance(o, ConflictError) for o in outcomes if o is not None)
            assert bytes(await store.get_range("k", 0, 1)) == bytes(winners)

        self._run(tmp_path, scenario)

    def test_deleting_ignores_what_is_not_there(self, tmp_path: Path) -> None:
        async def scenario(store: ObjectStore) -> None:
            await store.put("a/1", [b"x"])
            await store.put("a/2", [b"x"])
            await store.put("a/3", [b"x"])
            await store.get_range("a/1", 0, 1)
            await store.delete(["nothing", "a/1", "b/c", "a/3"])
            await store.delete([])
            assert await _keys(store, "") == ["a/2"]
            with pytest.raises(NotFoundError):
                await store.get_range("a/1", 0, 1)

        self._run(tmp_path, scenario)

    def test_a_listing_is_in_key_order_with_sizes(self, tmp_path: Path) -> None:
        keys = ["a", "a-b/x", "a.b", "a0", "b/1/2", "b/1", "b/10", "c"]
        keys = [key for key in keys if key not in ("a", "b/1")]  # a name is a file or a folder

        async def scenario(store: ObjectStore) -> None:
            for size, key in enumerate(keys):
                await store.put(key, [bytes(size)])
            listed = [info async for info in store.list("")]
            assert [info.key for info in listed] == sorted(keys)
            assert {info.key: info.size_bytes for info in listed} == {
                key: size for size, key in enumerate(keys)
            }

        self._run(tmp_path, scenario)

    @pytest.mark.parametrize(
        ("prefix", "expected"),
        [
            ("", ["s/00/1", "s/00/2", "s/01/1", "t/1"]),
            ("s/", ["s/00/1", "s/00/2", "s/01/1"]),
            ("s/0", ["s/00/1", "s/00/2", "s/01/1"]),
            ("s/00/", ["s/00/1", "s/00/2"]),
            ("s/00/2", ["s/00/2"]),
            ("s/00/2/", []),
            ("x", []),
            ("s/02/", []),
        ],
    )
    def test_a_prefix_is_one_of_characters(
        self, tmp_path: Path, prefix: str, expected: list[str]
    ) -> None:
        async def scenario(store: ObjectStore) -> None:
            for key in ("t/1", "s/01/1", "s/00/2", "s/00/1"):
                await store.put(key, [b"x"])
            assert await _keys(store, prefix) == expected

        self._run(tmp_path, scenario)

    @pytest.mark.parametrize(
        ("prefix", "after", "expected"),
        [
            ("", "s/00/1", ["s/00/2", "s/01/1", "t/1"]),
            ("", "s/00", ["s/00/1", "s/00/2", "s/01/1", "t/1"]),
            ("s/", "s/00/15", ["s/00/2", "s/01/1"]),
            ("s/0", "a", ["s/00/1", "s/00/2", "s/01/1"]),
            ("s/00/", "s/00/2", []),
            ("s/01/", "s/00/9", ["s/01/1"]),
            ("s/", "t", []),
        ],
    )
    def test_a_listing_goes_on_past_a_key(
        self, tmp_path: Path, prefix: str, after: str, expected: list[str]
    ) -> None:
        async def scenario(store: ObjectStore) -> None:
            for key in ("t/1", "s/01/1", "s/00/2", "s/00/1"):
                await store.put(key, [b"x"])
            listed = [info.key async for info in store.list(prefix, after=after)]
            assert listed == expected

        self._run(tmp_path, scenario)

    @pytest.mark.parametrize("key", ["", "/a", "a//b", "a/", "../a", "a/../../b", ".x", "a\0b"])
    def test_keys_that_lead_elsewhere_are_refused(self, tmp_path: Path, key: str) -> None:
        async def scenario(store: ObjectStore) -> None:
            with pytest.raises(InvalidRequestError):
                await store.put(key, [b"x"])
            with pytest.raises(InvalidRequestError):
                await store.get_range(key, 0, 1)
            with pytest.raises(InvalidRequestError):
                await store.delete([key])
            assert await _keys(store, "") == []

        self._run(tmp_path, scenario)

    def test_calls_may_overlap(self, tmp_path: Path) -> None:
        async def scenario(store: ObjectStore) -> None:
            await asyncio.gather(*(store.put(f"k/{n}", [b"%d" % n]) for n in range(20)))
            values = await asyncio.gather(*(store.get_range(f"k/{n}", 0, 1) for n in range(10)))
            assert [bytes(value) for value in values] == [b"%d" % n for n in range(10)]

        self._run(tmp_path, scenario)


class DeviceSuite(ABC):
    """The contract of `penstock.ports.device.Device`."""

    @abstractmethod
    def make_device(self, folder: Path) -> Device:
        """An empty device; `folder` is an empty directory for its use."""

    def test_buffers_are_written_one_behind_the_other(self, tmp_path: Path) -> None:
        file = self.make_device(tmp_path).open("f", create=True)
        file.write_at(0, [b"one", memoryview(b"-two-")[1:4], b"", bytearray(b"three")])
        file.write_at(3, [b"TWO"])
        assert file.read_at(0, 100) == b"oneTWOthree"
        assert file.size() == 11
        file.close()

    def test_more_buffers_than_one_system_call_takes(self, tmp_path: Path) -> None:
        file = self.make_device(tmp_path).open("f", create=True)
        buffers = [b"%d," % number for number in range(5000)]
        file.write_at(2, buffers)
        assert file.read_at(0, 1 << 20) == bytes(2) + b"".join(buffers)
        file.close()

    def test_reads_end_where_the_file_does(self, tmp_path: Path) -> None:
        file = self.make_device(tmp_path).open("f", create=True)
        file.write_at(0, [b"0123456789"])
        assert file.read_at(8, 5) == b"89"
        assert file.read_at(10, 5) == b""
        assert file.read_at(50, 5) == b""
        file.close()

    def test_a_file_must_be_there_unless_it_is_created(self, tmp_path: Path) -> None:
        device = self.make_device(tmp_path)
        with pytest.raises(FileNotFoundError):
            device.open("a/f")
        device.open("a/f", create=True).close()
        device.open("a/f").close()

    def test_creating_keeps_what_is_there(self, tmp_path: Path) -> None:
        device = self.make_device(tmp_path)
        file = device.open("f", create=True)
        file.write_at(0, [b"kept"])
        file.close()
        file.close()
        again = device.open("f", create=True)
        assert again.read_at(0, 10) == b"kept"
        again.close()

    def test_a_rename_replaces(self, tmp_path: Path) -> None:
        device = self.make_device(tmp_path)
        for name in ("a/old", "a/new"):
            file = device.open(name, create=True)
            file.write_at(0, [name.encode()])
            file.close()
        device.rename("a/old", "a/new")
        assert device.list("a") == ["new"]
        file = device.open("a/new")
        assert file.read_at(0, 10) == b"a/old"
        file.close()

    def test_an_open_file_survives_its_removal(self, tmp_path: Path) -> None:
        device = self.make_device(tmp_path)
        file = device.open("f", create=True)
        file.write_at(0, [b"still here"])
        device.remove("f")
        assert device.list("") == []
        assert file.read_at(0, 5) == b"still"
        file.close()
        with pytest.raises(FileNotFoundError):
            device.remove("f")

    def test_a_listing_is_sorted_and_of_one_folder(self, tmp_path: Path) -> None:
        device = self.make_device(tmp_path)
        for name in ("a/2", "a/1", "a/b/3", "4"):
            device.open(name, create=True).close()
        assert device.list("a") == ["1", "2"]
        assert device.list("none") == []
        device.sync_directory("a")

    def test_a_sync_keeps_the_bytes(self, tmp_path: Path) -> None:
        device = self.make_device(tmp_path)
        file = device.open("f", create=True)
        file.write_at(0, [b"x" * 5000])
        file.sync()
        device.sync_directory("")
        assert file.read_at(0, 5000) == b"x" * 5000
        file.close()


async def _keys(store: ObjectStore, prefix: str) -> list[str]:
    listed: list[ObjectInfo] = [info async for info in store.list(prefix)]
    return [info.key for info in listed]
