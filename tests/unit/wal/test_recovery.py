"""What the journal names is there whole after any crash. What was damaged or lost is named, kept
and never written over, and all else is served."""

from dataclasses import dataclass, field

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from penstock.model.errors import CorruptDataError, RetryableError, StorageFullError
from penstock.wal import WalReader, WalWriter
from penstock.wal.format import encode_file_header, encode_frame_header
from penstock.wal.recovery import find_files
from support.simulated.device import SimulatedDevice
from support.simulated.randomness import SeededRandom
from support.wal_frames import append

FILE_BYTES = 16 * 1024
FILE = "wal/00000001.wal"


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
    file = copied.open(FILE)
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


@pytest.mark.slow
def test_the_last_frame_cut_at_every_byte_is_named_if_it_was_named() -> None:
    device, places = _three_frames()
    last_start, last_end = places[-1][0] - 56, places[-1][1]
    for cut in range(last_start, last_end):
        damaged = _cut(device, cut, last_end - cut)
        writer = _open(damaged, {1: last_end})
        (stretch,) = writer.recovery.damaged
        assert (stretch.name, stretch.generation) == (FILE, 1)
        assert stretch.start == last_start
        assert last_end <= stretch.end <= last_start + 512
        # Writing goes on elsewhere, and what is named stays as it is until it is released.
        before = damaged.open(FILE).read_at(0, FILE_BYTES)
        for _ in range(40):
            assert append(writer, [b"next" * 100], length=400).generation > 1
        assert damaged.open(FILE).read_at(0, FILE_BYTES) == before
        assert WalReader(damaged).read(1, places[1][0], 900) == b"b" * 900


@pytest.mark.slow
def test_a_flipped_bit_anywhere_in_a_named_frame_is_named_and_all_others_are_found() -> None:
    device, places = _three_frames()
    device = _copy(device)
    starts = [start - 56 for start, _ in places]
    ends = [*starts[1:], starts[-1] + 512]
    for start, end in zip(starts, ends, strict=True):
        for position in range(start, end):
            bit = position % 8
            device.flip_bit(FILE, position, bit)
            report = _open(device, {1: places[-1][1]}).recovery
            (stretch,) = report.damaged
            assert (stretch.name, stretch.generation) == (FILE, 1)
            assert start <= stretch.start <= position < max(stretch.end, end)
            assert stretch.end <= end
            # The zeros after a frame are no part of it.
            assert report.named_frames == (3 if stretch.start > start else 2)
            reader = WalReader(device)
            for (other, _), body in zip(places, (b"a" * 100, b"b" * 900, b"c" * 77), strict=True):
                if not start <= other < end:
                    assert reader.read(1, other, len(body)) == body
            device.flip_bit(FILE, position, bit)
    assert not _open(device, {1: places[-1][1]}).recovery.damaged


def test_a_flipped_bit_past_the_named_frames_is_harmless() -> None:
    device, places = _three_frames()
    device = _copy(device)
    for position in range(places[2][0] - 56, FILE_BYTES, 7):
        device.flip_bit(FILE, position, position % 8)
    assert _open(device, {1: places[1][1]}).recovery.named_frames == 2


def test_a_file_with_a_damaged_header_is_known_by_its_frames() -> None:
    device, places = _three_frames()
    device = _copy(device)
    for position in range(36):
        device.flip_bit(FILE, position, position % 8)
        writer = _open(device, {1: places[-1][1]}, bytes_max=2 * FILE_BYTES)
        assert (writer.recovery.named_frames, writer.recovery.damaged) == (3, ())
        reader = WalReader(device)
        for (start, _), body in zip(places, (b"a" * 100, b"b" * 900, b"c" * 77), strict=True):
            assert reader.read(1, start, len(body)) == body
        device.flip_bit(FILE, position, position % 8)


def test_a_file_with_a_damaged_header_is_used_again_once_it_is_released() -> None:
    device, places = _three_frames()
    device = _copy(device)
    device.flip_bit(FILE, 9, 1)
    writer = _open(device, {1: places[-1][1]}, bytes_max=2 * FILE_BYTES)
    reader = WalReader(device)
    assert reader.read(1, places[0][0], 3) == b"aaa"
    size = writer.frame_bytes_max
    _append(writer, b"x" * size)
    with pytest.raises(StorageFullError):
        _append(writer, b"y" * size)
    writer.release(1)
    _append(writer, b"y" * size)
    assert find_files(device)[0].generation == 3
    with pytest.raises(RetryableError, match="recycled"):
        reader.read(1, places[0][0], 3)


@pytest.mark.parametrize("generation", [0, 1])
def test_a_header_that_is_older_than_the_frames_is_a_damaged_one(generation: int) -> None:
    """A sector that was never written, or was lost with an older one in its place."""
    device = SimulatedDevice()
    writer = _open(device, {}, last_generation=4)
    _, end = _append(writer, b"a" * 100)
    older = encode_file_header(generation=generation, file_bytes=FILE_BYTES, first_position=0)
    device.open(FILE).write_at(0, [older if generation else bytes(4096)])
    writer = _open(device, {5: end})
    assert (writer.recovery.named_frames, writer.recovery.damaged) == (1, ())
    assert _append(writer, b"b")[0] == 4152
    assert WalReader(device).read(5, 4152, 100) == b"a" * 100


def test_frames_of_an_earlier_use_do_not_make_a_file_theirs() -> None:
    """Its header is damaged, and the file that was begun after it has the generation of its own."""
    device = SimulatedDevice()
    writer = _open(device, {})
    size = writer.frame_bytes_max
    first, second = (_append(writer, letter * size)[1] for letter in (b"a", b"b"))
    header = device.open(FILE).read_at(0, 4096)
    device.open("wal/00000002.wal").write_at(0, [b"junk"])
    writer = _open(device, {1: first, 2: second})
    assert not writer.recovery.damaged
    # A copy of the first in its place: two files have generation 1, and none has 2.
    device.open("wal/00000002.wal").write_at(0, [header])
    report = _open(device, {1: first}).recovery
    assert (report.named_frames, report.damaged) == (1, ())


def test_recovery_reports_frames_that_it_cuts() -> None:
    device, places = _three_frames()
    report = _open(device, {1: places[0][1]}).recovery
    assert (report.named_frames, report.cut_frames) == (1, 2)
    assert _open(device, {1: places[2][1]}).recovery.cut_frames == 0


def test_a_run_named_inside_a_frame_needs_the_whole_frame() -> None:
    device, places = _three_frames()
    device.flip_bit(FILE, places[1][1] - 1, 0)
    (stretch,) = _open(device, {1: places[1][0] + 1}).recovery.damaged
    assert stretch.start == places[1][0] - 56
    assert not _open(device, {1: places[0][1]}).recovery.damaged


def test_damaged_headers_of_adjacent_frames_are_one_stretch() -> None:
    device, places = _three_frames()
    device.open(FILE).write_at(4096, [bytes(600)])
    report = _open(device, {1: places[2][1]}).recovery
    (stretch,) = report.damaged
    assert (stretch.start, stretch.end) == (4096, places[2][0] - 56)
    assert report.named_frames == 1


def test_a_record_that_looks_like_a_frame_hides_none_behind_it() -> None:
    """The header before it is damaged, and it carries a number that is already gone by."""
    forged = encode_frame_header(generation=1, number=0, length=10, payload_crc=crc32c(bytes(10)))
    device = SimulatedDevice()
    writer = _open(device, {})
    _append(writer, b"a" * 100)
    start, _ = _append(writer, bytes(512 - 56) + forged + bytes(1000))
    last = _append(writer, b"c" * 77)
    device.flip_bit(FILE, start - 56, 0)
    report = _open(device, {1: last[1]}).recovery
    (stretch,) = report.damaged
    assert (stretch.start, stretch.end) == (start - 56, last[0] - 56)
    assert report.named_frames == 2


def test_a_named_generation_that_no_file_has_is_lost_and_the_others_are_served() -> None:
    device, places = _three_frames()
    writer = _open(device, {1: places[0][1], 9: 5000})
    (stretch,) = writer.recovery.damaged
    assert (stretch.name, stretch.generation, stretch.start, stretch.end) == ("wal", 9, 4096, 5000)
    assert writer.recovery.lost == {9}
    reader = WalReader(device, lost=writer.recovery.lost)
    with pytest.raises(CorruptDataError, match="generation 9"):
        reader.read(9, 4200, 10)
    with pytest.raises(RetryableError, match="recycled"):
        reader.read(8, 4200, 10)
    assert reader.read(1, places[0][0], 3) == b"aaa"
    # What is put back must not meet a newer file of its name.
    assert _append(writer, b"x")[0] == 4152
    assert device.list("wal") == ["00000001.wal", "00001002.wal"]
    assert writer.active_generation == 10


def test_a_lost_file_that_is_put_back_is_read_again() -> None:
    device, places = _three_frames()
    whole = device.open(FILE).read_at(0, FILE_BYTES)
    device.remove(FILE)
    writer = _open(device, {1: places[2][1]})
    reader = WalReader(device, lost=writer.recovery.lost)
    with pytest.raises(CorruptDataError):
        reader.read(1, places[0][0], 3)
    _append(writer, b"x")
    device.open(FILE, create=True).write_at(0, [whole])
    assert reader.read(1, places[0][0], 3) == b"aaa"


def test_files_that_may_hold_a_lost_generation_are_neither_used_nor_removed() -> None:
    """What says whose they are is damaged, the first frame too; the rest may be brought back."""
    device = SimulatedDevice()
    writer = _open(device, {})
    size = writer.frame_bytes_max
    for letter in (b"a", b"b"):
        _append(writer, letter * size)
    device.open(FILE).write_at(0, [b"junk" * 1500])
    # Blank, as a file that was never used, with a frame of generation 2 further on.
    _append(_open(device, {1: 5000, 2: 5000}), b"z")
    frame = encode_frame_header(generation=2, number=7, length=10, payload_crc=0)
    device.open("wal/00000002.wal").write_at(0, [bytes(FILE_BYTES)])
    device.open("wal/00000002.wal").write_at(8192, [frame])
    held = [device.open(name).read_at(0, FILE_BYTES) for name in (FILE, "wal/00000002.wal")]
    for sizes in (FILE_BYTES, 2 * FILE_BYTES):
        writer = _open(
            device, {1: 5000, 2: 5000}, file_bytes=sizes, bytes_max=6 * sizes, last_generation=9
        )
        assert writer.recovery.lost == {1, 2}
        for _ in range(3):
            _append(writer, b"c" * writer.frame_bytes_max)
        found = [device.open(name).read_at(0, FILE_BYTES) for name in (FILE, "wal/00000002.wal")]
        assert found == held
    # They count in what all files together may take.
    writer = _open(device, {1: 5000, 2: 5000}, bytes_max=2 * FILE_BYTES, last_generation=20)
    with pytest.raises(StorageFullError):
        _append(writer, b"d")
    # Given up or moved: nothing is named there any more.
    writer = _open(device, {}, last_generation=20)
    for _ in range(4):
        _append(writer, b"e" * size)


def test_a_second_file_of_a_named_generation_is_kept_too() -> None:
    device, places = _three_frames()
    copy = device.open("wal/00000002.wal", create=True)
    copy.write_at(0, [device.open(FILE).read_at(0, FILE_BYTES)])
    writer = _open(device, {1: places[2][1]})
    for _ in range(2):
        _append(writer, b"x" * writer.frame_bytes_max)
    assert {found.name for found in find_files(device) if found.generation == 1} == {
        FILE,
        "wal/00000002.wal",
    }


def test_names_past_the_last_frame_are_damage() -> None:
    device, places = _three_frames()
    end = places[2][1]
    (stretch,) = _open(device, {1: end + 1}).recovery.damaged
    assert (stretch.start, stretch.end) == (end, end + 1)
    (stretch,) = _open(device, {1: end + 4096}).recovery.damaged
    assert stretch.start == places[2][0] - 56 + 512
    assert stretch.end == end + 4096


@pytest.mark.slow
def test_a_file_that_was_cut_short_is_damaged_from_the_cut_on() -> None:
    device, places = _three_frames()
    whole = device.open(FILE).read_at(0, FILE_BYTES)
    for size in range(places[2][1]):
        short = SimulatedDevice()
        short.open(FILE, create=True).write_at(0, [whole[:size]])
        ends = [end for _, end in places if end <= size]
        if ends:
            report = _open(short, {1: ends[-1]}).recovery
            assert all(stretch.start == ends[-1] for stretch in report.damaged), "its padding alone"
        writer = _open(short, {1: places[2][1]})
        assert writer.recovery.damaged[-1].end >= places[2][1]
        assert bool(writer.recovery.lost) == (size < 4096 + 56 and size < 36)
        reader = WalReader(short, lost=writer.recovery.lost)
        for start, end in places:
            if end <= size:
                assert reader.read(1, start, end - start) == whole[start:end]
            else:
                with pytest.raises(CorruptDataError):
                    reader.read(1, start, end - start)
        _append(writer, b"x")
        assert short.open(FILE).read_at(0, FILE_BYTES) == whole[:size]


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
    (stretch,) = _open(device, {2: end + 512}, bytes_max=FILE_BYTES).recovery.damaged
    assert stretch.start == 4096 + 512


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
