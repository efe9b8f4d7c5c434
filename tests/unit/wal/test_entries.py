"""Entries past the state's position: all that are durable, in order, or an error by name."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.model.errors import CorruptDataError, StorageFullError
from penstock.wal import WalEntry, WalWriter, entries_after
from support.simulated.device import SimulatedDevice
from support.simulated.randomness import SeededRandom
from support.wal_frames import append

FILE_BYTES = 16 * 1024
HEADER = 56
FILE = "wal/00000001.wal"


def _open(device: SimulatedDevice, *, files: int = 8) -> WalWriter:
    return WalWriter.open(
        device,
        file_bytes=FILE_BYTES,
        bytes_max=files * FILE_BYTES,
        named={},
        last_generation=0,
    )


def _body(position: int) -> bytes:
    return b"entry %d" % position


def _write(writer: WalWriter, position: int, *, batch: bytes = b"") -> int:
    """One frame; where its header begins."""
    place = append(
        writer,
        [batch],
        length=len(batch),
        entry=_body(position),
        position=position,
        time_ms=position * 10,
    )
    return place.position - HEADER


def _expected(first: int, last: int) -> list[WalEntry]:
    return [WalEntry(n, n * 10, _body(n)) for n in range(first, last + 1)]


def _entries(device: SimulatedDevice, after: int) -> list[WalEntry]:
    return list(entries_after(device, after, sync=False))


def _log(frames: int, *, size: int = 3000) -> tuple[SimulatedDevice, list[int]]:
    """Frames over several files."""
    device = SimulatedDevice()
    writer = _open(device)
    starts = [_write(writer, n + 1, batch=bytes([n]) * size) for n in range(frames)]
    return device, starts


def _copy(device: SimulatedDevice) -> SimulatedDevice:
    return device.power_loss(SeededRandom(0))


def _change(device: SimulatedDevice, name: str, position: int, data: bytes) -> SimulatedDevice:
    copied = _copy(device)
    file = copied.open(name)
    file.write_at(position, [data])
    file.sync()
    return copied


def test_entries_past_any_position_are_given_in_order() -> None:
    device, _ = _log(20)
    assert len(device.list("wal")) == 5
    for after in range(21):
        assert _entries(device, after) == _expected(after + 1, 20)


def test_an_empty_folder_has_none() -> None:
    assert _entries(SimulatedDevice(), 0) == []


def test_frames_without_entries_are_passed_over() -> None:
    device = SimulatedDevice()
    writer = _open(device)
    _write(writer, 1, batch=b"a")
    append(writer, [b"records alone"], length=13)
    _write(writer, 2)
    assert _entries(device, 0) == _expected(1, 2)


def test_what_the_database_alone_holds_is_no_gap() -> None:
    """Entries 3 and 4 were made durable there, while the WAL was full."""
    device = SimulatedDevice()
    writer = _open(device)
    for position in (1, 2, 5):
        _write(writer, position)
    assert _entries(device, 4) == _expected(5, 5)
    with pytest.raises(CorruptDataError, match="entry 5 where entry 3 is due"):
        _entries(device, 2)


def test_the_last_frame_cut_at_every_byte_ends_the_entries() -> None:
    device, starts = _log(3, size=700)
    end = starts[2] + HEADER + 700 + len(_body(3))
    for cut in range(starts[2], end):
        damaged = _change(device, FILE, cut, bytes(end - cut))
        assert _entries(damaged, 0) == _expected(1, 2)
    assert _entries(_change(device, FILE, end, b""), 0) == _expected(1, 3)


def test_a_flipped_bit_in_a_frame_before_the_last_is_named() -> None:
    device, starts = _log(3, size=700)
    device = _copy(device)
    for start, end in ((starts[0], starts[1]), (starts[1], starts[2])):
        for position in range(start, end - (end - start - HEADER - 700 - len(_body(1)))):
            device.flip_bit(FILE, position, position % 8)
            with pytest.raises(CorruptDataError, match=rf"{FILE} at byte {start}"):
                _entries(device, 0)
            device.flip_bit(FILE, position, position % 8)
    assert _entries(device, 0) == _expected(1, 3)


def test_a_damaged_last_frame_of_a_file_that_another_follows_is_named() -> None:
    device, _ = _log(20)
    last = next(n for n in range(1, 20) if _first_of(device, "wal/00000002.wal") == n + 1)
    start = 4096 + 3072 * (last - 1)
    damaged = _copy(device)
    damaged.flip_bit(FILE, start + 2000, 3)
    with pytest.raises(CorruptDataError, match=rf"{FILE} at byte {start}"):
        _entries(damaged, 0)
    assert _entries(damaged, last) == _expected(last + 1, 20), "it is not needed any more"


def _first_of(device: SimulatedDevice, name: str) -> int:
    return int.from_bytes(device.open(name).read_at(24, 8), "big")


def test_a_missing_file_is_named_by_what_it_held() -> None:
    device, _ = _log(20)
    following = _first_of(device, "wal/00000003.wal")
    device.remove("wal/00000002.wal")
    with pytest.raises(CorruptDataError, match=f"{FILE} .*entries up to {following - 1} are due"):
        _entries(device, 0)
    assert _entries(device, following - 1) == _expected(following, 20)


@pytest.mark.slow
def test_entries_of_a_file_with_a_damaged_header_are_given() -> None:
    """Its first frame says where they begin."""
    device, _ = _log(20)
    names = [f"wal/{name}" for name in device.list("wal")]
    for name in names:
        for position in range(36):
            damaged = _copy(device)
            damaged.flip_bit(name, position, position % 8)
            assert _entries(damaged, 0) == _expected(1, 20)
            assert _entries(damaged, 20) == []


def test_a_file_whose_header_and_first_frame_are_damaged_is_named_if_its_entries_are_due() -> None:
    """Nothing says where they begin, so a refused one of the file before could be taken for one."""
    device, _ = _log(20)
    first = _first_of(device, "wal/00000003.wal")
    damaged = _change(device, "wal/00000003.wal", 0, b"junk" * 1050)
    with pytest.raises(CorruptDataError, match=r"wal/00000003.wal at byte 0"):
        _entries(damaged, first)
    with pytest.raises(
        CorruptDataError, match=rf"wal/00000002.wal .*entries up to {first} are due"
    ):
        _entries(damaged, 0)
    assert _entries(damaged, 20) == []


def test_damaged_frames_whose_entries_are_elsewhere_end_nothing() -> None:
    """A header of theirs says no more where the next frame begins: it is looked for."""
    device, starts = _log(3, size=700)
    device = _copy(device)
    for frame, (start, end) in enumerate(zip(starts, [*starts[1:], starts[2] + 56], strict=True)):
        for position in range(start, min(start + HEADER + 8, end)):
            device.flip_bit(FILE, position, position % 8)
            for after in range(frame + 1, 4):
                assert _entries(device, after) == _expected(after + 1, 3)
            device.flip_bit(FILE, position, position % 8)
    # Two in a row, and what lies behind them.
    damaged = _change(device, FILE, starts[0], bytes(starts[1] + 10 - starts[0]))
    assert _entries(damaged, 2) == _expected(3, 3)
    with pytest.raises(CorruptDataError, match=rf"{FILE} at byte {starts[0]}"):
        _entries(damaged, 1)


def test_a_damaged_frame_behind_which_no_entry_lies_may_have_held_one() -> None:
    device = SimulatedDevice()
    writer = _open(device)
    _write(writer, 1, batch=b"a")
    start = _write(writer, 2, batch=b"b")
    append(writer, [b"records alone"], length=13)
    device.flip_bit(FILE, start, 0)
    with pytest.raises(CorruptDataError, match=rf"{FILE} at byte {start}: a later frame is whole"):
        _entries(device, 1)


def test_a_refused_frame_whose_place_went_to_another_file_never_counted() -> None:
    """A write that failed may have reached the disk whole; what is written next takes its place."""
    device = SimulatedDevice()
    writer = _open(device)
    _write(writer, 1, batch=bytes(9000))
    # As if the write of this one had failed behind its last byte.
    place = writer.place(100, position=2)
    before = (writer._position, writer._frame_number)
    writer.write([b"refused"], length=7, entry=b"refused", position=2, time_ms=7)
    writer._position, writer._frame_number = before
    assert [e.body for e in _entries(device, 0)] == [_body(1), b"refused"]
    assert _write(writer, 2, batch=bytes(9000)) == 4096
    assert writer.active_generation == place.generation + 1
    assert _entries(device, 0) == _expected(1, 2)


def test_after_a_restart_entries_go_on_in_another_file_behind_a_torn_frame() -> None:
    device, starts = _log(2, size=700)
    torn = _change(device, FILE, starts[1] + 600, bytes(200))
    # Named, as long as the state may need it.
    writer = WalWriter.open(
        torn, file_bytes=FILE_BYTES, bytes_max=8 * FILE_BYTES, named={1: 4200}, last_generation=1
    )
    _write(writer, 2)
    _write(writer, 3)
    assert _entries(torn, 0) == _expected(1, 3)


def test_what_a_dead_process_only_wrote_is_made_durable_before_it_is_built_on() -> None:
    def crashed() -> SimulatedDevice:
        device = SimulatedDevice()
        writer = _open(device)
        _write(writer, 1)
        writer._fsync = False  # it died between the write and the sync
        _write(writer, 2, batch=bytes(3000))
        return device

    device = crashed()
    assert list(entries_after(device, 0)) == _expected(1, 2)
    for seed in range(8):
        assert _entries(device.power_loss(SeededRandom(seed)), 0) == _expected(1, 2)
    unsynced = crashed()
    assert _entries(unsynced, 0) == _expected(1, 2)
    found = [_entries(unsynced.power_loss(SeededRandom(seed)), 0) for seed in range(8)]
    assert _expected(1, 1) in found, "else this test shows nothing"


def _some_life(
    device: SimulatedDevice, random: SeededRandom, position: int, count: int
) -> tuple[int, int]:
    """Write and release at random; the last acknowledged position, and the durable state's."""
    writer = _open(device, files=4)
    state = position
    firsts: dict[int, int] = {}
    for _ in range(count):
        choice = random.below(8)
        if choice == 0:
            state = position  # a synced checkpoint of the database
            for generation, following in zip(sorted(firsts), sorted(firsts)[1:], strict=False):
                if firsts[following] <= state + 1:
                    writer.release(generation)
            continue
        if choice == 1:
            device.fail("write", error_number=28)
        try:
            _write(writer, position + 1, batch=bytes([position % 256]) * random.below(4000))
        except StorageFullError:
            continue
        finally:
            device._faults.clear()
        position += 1
        firsts.setdefault(writer.active_generation, position)
    return position, state


@given(seed=st.integers(0, 2**32), counts=st.lists(st.integers(0, 30), min_size=1, max_size=4))
def test_acknowledged_entries_survive_power_losses(seed: int, counts: Sequence[int]) -> None:
    random = SeededRandom(seed)
    device = SimulatedDevice()
    position = 0
    for count in counts:
        acknowledged, state = _some_life(device, random, position, count)
        device = device.power_loss(random)
        found = list(entries_after(device, state))
        # A refused one may turn out to be there: whoever sent it was told nothing for sure.
        assert found[: acknowledged - state] == _expected(state + 1, acknowledged)
        assert len(found) <= acknowledged - state + 1
        position = state + len(found)
