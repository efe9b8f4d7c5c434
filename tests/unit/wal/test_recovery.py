"""What the journal names is there whole after any crash, or the start is refused by name."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.model.errors import CorruptDataError, StorageFullError
from penstock.testing import SeededRandom, SimulatedDevice
from penstock.wal import WalReader, WalWriter
from support.wal_frames import append

FILE_BYTES = 16 * 1024


def _open(
    device: SimulatedDevice,
    named: dict[int, int],
    *,
    file_bytes: int = FILE_BYTES,
    bytes_max: int = 4 * FILE_BYTES,
    last_generation: int = 0,
) -> WalWriter:
    return WalWriter.open(
        device,
        file_bytes=file_bytes,
        bytes_max=bytes_max,
        named=named,
        last_generation=last_generation,
    )


def _append(writer: WalWriter, payload: bytes) -> tuple[int, int]:
    place = append(writer, [payload], length=len(payload))
    return place.position, place.position + len(payload)


def _three_frames() -> tuple[SimulatedDevice, list[tuple[int, int]]]:
    device = SimulatedDevice()
    writer = _open(device, {})
    return device, [_append(writer, payload) for payload in (b"a" * 100, b"b" * 900, b"c" * 77)]


def _copy(device: SimulatedDevice) -> SimulatedDevice:
    """Everything is synced, so what a power loss leaves is an exact copy."""
    return device.power_loss(SeededRandom(0))


def _cut(device: SimulatedDevice, position: int, length: int) -> SimulatedDevice:
    """As if a write had ended there: what was in the file before it is still behind."""
    copied = _copy(device)
    file = copied.open("wal/00000001.wal")
    file.write_at(position, [bytes(length)])
    file.sync()
    return copied


def test_the_last_frame_cut_at_every_byte_is_dropped_if_it_was_never_named() -> None:
    device, places = _three_frames()
    last_start, last_end = places[-1][0] - 56, places[-1][1]
    for cut in range(last_start, last_end + 1):
        damaged = _cut(device, cut, last_end - cut)
        writer = _open(damaged, {1: places[1][1]})
        assert writer.recovery.named_frames == 2
        assert _append(writer, b"next")[0] == 4152
        assert writer.active_generation == 2
        reader = WalReader(damaged)
        assert reader.read(1, places[0][0], 100) == b"a" * 100
        assert reader.read(1, places[1][0], 900) == b"b" * 900


def test_the_last_frame_cut_at_every_byte_is_an_error_if_it_was_named() -> None:
    device, places = _three_frames()
    last_start, last_end = places[-1][0] - 56, places[-1][1]
    for cut in range(last_start, last_end):
        with pytest.raises(CorruptDataError, match=rf"wal/00000001.wal at byte {last_start}"):
            _open(_cut(device, cut, last_end - cut), {1: last_end})


def test_a_flipped_bit_anywhere_in_a_named_frame_is_named() -> None:
    device, places = _three_frames()
    device = _copy(device)
    starts = [start - 56 for start, _ in places]
    ends = [*starts[1:], starts[-1] + 512]
    for start, end in zip(starts, ends, strict=True):
        for position in range(start, end):
            bit = position % 8
            device.flip_bit("wal/00000001.wal", position, bit)
            with pytest.raises(CorruptDataError, match=r"wal/00000001.wal at byte \d+") as caught:
                _open(device, {1: places[-1][1]})
            named_at = int(str(caught.value).split("at byte ")[1].split(":")[0])
            assert start <= named_at < end
            device.flip_bit("wal/00000001.wal", position, bit)
    _open(device, {1: places[-1][1]})


def test_a_flipped_bit_past_the_named_frames_is_harmless() -> None:
    device, places = _three_frames()
    device = _copy(device)
    for position in range(places[2][0] - 56, FILE_BYTES, 7):
        device.flip_bit("wal/00000001.wal", position, position % 8)
    assert _open(device, {1: places[1][1]}).recovery.named_frames == 2


def test_a_flipped_bit_in_the_header_of_a_named_file_is_told() -> None:
    device, places = _three_frames()
    device = _copy(device)
    for position in range(36):
        device.flip_bit("wal/00000001.wal", position, position % 8)
        with pytest.raises(CorruptDataError, match=r"generation 1.*00000001.wal"):
            _open(device, {1: places[-1][1]})
        device.flip_bit("wal/00000001.wal", position, position % 8)


def test_recovery_reports_frames_that_it_cuts() -> None:
    device, places = _three_frames()
    report = _open(device, {1: places[0][1]}).recovery
    assert (report.named_frames, report.cut_frames) == (1, 2)
    assert _open(device, {1: places[2][1]}).recovery.cut_frames == 0


def test_a_run_named_inside_a_frame_needs_the_whole_frame() -> None:
    device, places = _three_frames()
    device.flip_bit("wal/00000001.wal", places[1][1] - 1, 0)
    with pytest.raises(CorruptDataError):
        _open(device, {1: places[1][0] + 1})
    _open(device, {1: places[0][1]})


def test_a_named_generation_that_no_file_has_is_an_error() -> None:
    device, places = _three_frames()
    with pytest.raises(CorruptDataError, match="generation 9"):
        _open(device, {1: places[0][1], 9: 5000})


def test_names_past_the_last_frame_are_an_error() -> None:
    device, places = _three_frames()
    with pytest.raises(CorruptDataError, match=r"wal/00000001.wal at byte"):
        _open(device, {1: places[2][1] + 1})
    with pytest.raises(CorruptDataError, match=r"wal/00000001.wal at byte"):
        _open(device, {1: places[2][1] + 4096})


def test_a_file_that_was_cut_short_is_an_error_if_its_end_is_named() -> None:
    device, places = _three_frames()
    short = SimulatedDevice()
    file = short.open("wal/00000001.wal", create=True)
    file.write_at(0, [device.open("wal/00000001.wal").read_at(0, places[2][1] - 1)])
    _open(short, {1: places[1][1]})
    with pytest.raises(CorruptDataError, match=r"wal/00000001.wal at byte"):
        _open(short, {1: places[2][1]})


def test_stale_frames_of_a_recycled_file_are_not_taken_for_new_ones() -> None:
    """The new generation's frames have the sizes of the old one's, so that old frames lie exactly
    where new ones would follow, with the numbers that would be next."""
    device = SimulatedDevice()
    writer = _open(device, {}, bytes_max=FILE_BYTES)
    for _ in range(20):
        _append(writer, b"old" * 10)
    writer.release(1)
    writer = _open(device, {}, bytes_max=FILE_BYTES, last_generation=1)
    _, end = _append(writer, b"new" * 10)
    report = _open(device, {2: end}, bytes_max=FILE_BYTES).recovery
    assert (report.named_frames, report.cut_frames) == (1, 0)
    with pytest.raises(CorruptDataError):
        _open(device, {2: end + 512}, bytes_max=FILE_BYTES)


def test_files_in_the_making_are_removed() -> None:
    device = SimulatedDevice()
    device.open("wal/00000007.wal.new", create=True).write_at(0, [b"half"])
    device.open("wal/notes.txt", create=True).close()
    writer = _open(device, {})
    assert device.list("wal") == ["notes.txt"]
    _append(writer, b"x")


def test_other_sizes_and_fewer_files_take_effect_when_files_are_free() -> None:
    device = SimulatedDevice()
    writer = _open(device, {})
    size = writer.frame_bytes_max
    ends = [_append(writer, bytes([n]) * size)[1] for n in range(3)]
    # A smaller size: free files of the old one go at once, named ones when they are released.
    smaller = _open(device, {2: ends[1]}, file_bytes=8192, bytes_max=16384)
    assert device.list("wal") == ["00000002.wal"]
    _append(smaller, b"x")
    smaller.release(2)
    sizes = {device.stat(f"wal/{name}").size_bytes for name in device.list("wal")}
    assert sizes == {8192}


def test_a_lower_bound_removes_free_files() -> None:
    device = SimulatedDevice()
    writer = _open(device, {})
    for n in range(3):
        _append(writer, bytes([n]) * writer.frame_bytes_max)
    _open(device, {}, bytes_max=FILE_BYTES)
    assert len(device.list("wal")) == 1


def test_restarts_that_commit_nothing_do_not_use_up_files() -> None:
    device, places = _three_frames()
    for _ in range(10):
        _append(_open(device, {1: places[2][1]}), b"x")
    assert len(device.list("wal")) == 2


# -- power losses, by seed ------------------------------------------------------------------------


@dataclass
class _Journal:
    """What a journal would hold: each commit's place and bytes; `released` ones are forgotten."""

    runs: list[tuple[int, int, bytes]] = field(default_factory=list)
    last_generation: int = 0

    def named(self) -> dict[int, int]:
        ends: dict[int, int] = {}
        for generation, position, payload in self.runs:
            ends[generation] = max(ends.get(generation, 0), position + len(payload))
        return ends


def _some_commits(
    writer: WalWriter, journal: _Journal, random: SeededRandom, count: int, label: int
) -> None:
    for n in range(count):
        choice = random.below(10)
        payload = bytes([label, n % 256]) * (1 + random.below(3000))
        if choice == 0 and journal.runs:
            # The uploader moved the oldest generation's runs to an object.
            oldest = journal.runs[0][0]
            journal.runs = [run for run in journal.runs if run[0] != oldest]
            if oldest < writer.active_generation:
                writer.release(oldest)
            continue
        try:
            place = append(writer, [payload], length=len(payload))
        except StorageFullError:
            continue
        if choice == 2:
            continue  # durable, and named by nothing
        journal.runs.append((place.generation, place.position, payload))
        journal.last_generation = place.generation


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32), lives=st.integers(1, 4), count=st.integers(0, 40))
def test_what_is_named_survives_power_losses(seed: int, lives: int, count: int) -> None:
    random = SeededRandom(seed)
    device, journal = SimulatedDevice(), _Journal()
    for life in range(lives):
        writer = _open(device, journal.named(), last_generation=journal.last_generation)
        _some_commits(writer, journal, random, count, life)
        device = device.power_loss(random)
    writer = _open(device, journal.named(), last_generation=journal.last_generation)
    reader = WalReader(device)
    for generation, position, payload in journal.runs:
        assert reader.read(generation, position, len(payload)) == payload
    # And the log goes on, in a generation that was never there.
    seen = {generation for generation, _, _ in journal.runs}
    try:
        place = append(writer, [b"next"], length=4)
    except StorageFullError:
        return
    assert place.generation not in seen
    assert reader.read(place.generation, place.position, 4) == b"next"
    for generation, position, payload in journal.runs:
        assert reader.read(generation, position, len(payload)) == payload
