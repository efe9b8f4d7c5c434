"""Journal files give what was noted, in order, and say where it ends, whatever a crash left."""

import errno
from pathlib import Path
from typing import Any

import pytest
from crc32c import crc32c

from penstock.model.errors import (
    CorruptDataError,
    FatalStorageError,
    InvalidRequestError,
    StorageFullError,
)
from penstock.replica.journal_files import JournalFiles
from penstock.replica.journal_format import (
    ALIGNMENT,
    FileHeader,
    Row,
    decode_block_header,
    decode_file_header,
    decode_rows,
    encode_block,
    encode_file_header,
    file_name,
    first_of_name,
)
from penstock.system.files import PosixDevice
from support.simulated.device import SimulatedDevice
from support.simulated.randomness import SeededRandom


def rows(first: int, end: int) -> list[Row]:
    """Entries [first, end) of different lengths."""
    return [
        (number, 1000 + number, b"%d " % number * (number % 70)) for number in range(first, end)
    ]


def held(files: JournalFiles, after: int = 0) -> list[Row]:
    return [(entry.position, entry.time_ms, entry.body) for entry in files.entries(after)]


def written(device: SimulatedDevice, *stretches: tuple[int, int]) -> JournalFiles:
    """Files with a block per stretch."""
    files = JournalFiles.open(device)
    for first, end in stretches:
        files.note(rows(first, end))
        files.sync()
    return files


def test_what_is_encoded_is_decoded() -> None:
    header = FileHeader(first=7, chain=9, format_version=5, agent_id=77, cluster_id="cluster")
    raw = encode_file_header(header)
    assert len(raw) == ALIGNMENT
    assert decode_file_header(raw, subject="file") == header
    block, link = encode_block(rows(7, 30), 9)
    assert len(block) % ALIGNMENT == 0
    found = decode_block_header(block, subject="block")
    assert (found.first, found.count, found.chain, found.link) == (7, 23, 9, link)
    payload = block[32 : 32 + found.length]
    entries = decode_rows(payload, found, subject="block")
    assert [(e.position, e.time_ms, e.body) for e in entries] == rows(7, 30)


def test_names_sort_by_position_and_others_are_passed_over() -> None:
    assert first_of_name(file_name(12).removeprefix("journal/")) == 12
    for name in ("12.journal", "0" * 20, "x" * 20 + ".journal", "0" * 20 + ".journal.torn"):
        assert first_of_name(name) is None


def test_every_flipped_bit_of_headers_and_payload_is_found() -> None:
    header = encode_file_header(
        FileHeader(first=7, chain=9, format_version=5, agent_id=77, cluster_id="cluster")
    )
    block, _ = encode_block(rows(1, 4), 0)
    size = 32 + decode_block_header(block, subject="block").length
    for bit in range(8 * 76):
        flipped = bytearray(header)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptDataError):
            decode_file_header(flipped, subject="file")
    for bit in range(8 * size):
        flipped = bytearray(block)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptDataError):
            found = decode_block_header(flipped, subject="block")
            list(decode_rows(bytes(flipped[32 : 32 + found.length]), found, subject="block"))


def test_entries_come_back_in_order_from_any_position() -> None:
    device = SimulatedDevice()
    written(device, (1, 5), (5, 6), (6, 20)).close()
    files = written(device, (20, 30))
    assert (files.last, files.floor) == (29, 1)
    for after in (0, 1, 4, 5, 19, 28, 29, 40):
        assert held(files, after) == rows(after + 1, 30)
    assert len(device.list("journal")) == 2, "a start begins a file"


def test_what_is_known_is_not_noted_twice() -> None:
    files = written(SimulatedDevice(), (1, 5))
    files.note(rows(2, 8))
    assert held(files) == rows(1, 8)


@pytest.mark.slow
def test_a_power_cut_keeps_what_was_synced_and_ends_the_files_at_what_it_took() -> None:
    for seed in range(200):
        device = SimulatedDevice()
        files = written(device, (1, 10), (10, 12))
        if seed % 3 == 0:
            files.roll()
        for first in range(12, 30, 3):
            files.note(rows(first, first + 3))
            files.write()
        after = device.power_loss(SeededRandom(seed))
        again = JournalFiles.open(after)
        assert 11 <= again.last < 30
        assert held(again) == rows(1, again.last + 1)
        again.note(rows(again.last + 1, 40))
        again.sync()
        once_more = JournalFiles.open(after.power_loss(SeededRandom(seed + 1)))
        assert held(once_more) == rows(1, 40)


def test_an_unsynced_end_that_a_crash_left_is_made_durable_before_it_is_built_on() -> None:
    device = SimulatedDevice()
    files = written(device, (1, 5))
    files.note(rows(5, 9))
    files.write()
    again = JournalFiles.open(device)
    again.note(rows(9, 12))
    again.sync()
    for seed in range(40):
        assert held(JournalFiles.open(device.power_loss(SeededRandom(seed)))) == rows(1, 12)


def test_a_file_is_left_only_once_all_that_was_written_to_it_is_durable() -> None:
    """Appends go on while it is synced, and what they write then is not."""

    class Appending(SimulatedDevice):
        def sync(self, name: str, content: Any) -> None:
            super().sync(name, content)
            if files.last == 4:
                files.note(rows(5, 9))
                files.write()

    device = Appending()
    files = JournalFiles.open(device)
    files.note(rows(1, 5))
    files.roll()
    assert files.sync() == 4
    assert files.sync() == 8
    for seed in range(40):
        assert held(JournalFiles.open(device.power_loss(SeededRandom(seed)))) == rows(1, 9)


@pytest.mark.parametrize("position", [4, 100, 540, 600])
def test_damage_before_the_end_is_named(tmp_path: Path, position: int) -> None:
    device = PosixDevice(tmp_path)
    for first in (1, 10, 20):
        files = JournalFiles.open(device)
        files.note(rows(first, first + (9 if first == 1 else 10)))
        files.close()
    path = tmp_path / file_name(10)
    data = bytearray(path.read_bytes())
    data[position] ^= 4
    path.write_bytes(data)
    files = JournalFiles.open(device)
    assert files.last == 29
    if position == 100:
        assert held(files) == rows(1, 30), "a byte that nothing needs"
        return
    with pytest.raises(CorruptDataError, match="journal/"):
        held(files)
    assert held(files, 19) == rows(20, 30), "what follows is whole"


def test_a_missing_file_and_one_of_another_history_are_found(tmp_path: Path) -> None:
    for name in ("one", "other"):
        device = PosixDevice(tmp_path / name)
        for first in (1, 11, 21):
            files = JournalFiles.open(device)
            files.note(
                [(row[0], row[1], row[2] + name.encode()) for row in rows(first, first + 10)]
            )
            files.close()
    one = tmp_path / "one"
    target = one / file_name(11)
    kept = target.read_bytes()
    target.write_bytes((tmp_path / "other" / file_name(11)).read_bytes())
    with pytest.raises(CorruptDataError, match="does not follow"):
        held(JournalFiles.open(PosixDevice(one)))
    target.unlink()
    with pytest.raises(CorruptDataError, match=r"damaged or missing|does not follow"):
        held(JournalFiles.open(PosixDevice(one)))
    target.write_bytes(kept)
    assert len(held(JournalFiles.open(PosixDevice(one)))) == 30


def test_trimming_deletes_whole_files_and_keeps_the_last() -> None:
    device = SimulatedDevice()
    files = JournalFiles.open(device)
    for first in (1, 11, 21):
        files.note(rows(first, first + 10))
        files.roll()
        files.sync()
    assert files.trim(19) == 1
    assert (files.floor, files.last) == (11, 30)
    with pytest.raises(CorruptDataError, match="the first entry here is 11, 6 is due"):
        held(files, 5)
    assert held(files, 10) == rows(11, 31)
    assert files.trim(30) == 1
    assert (files.floor, files.last) == (21, 30)
    again = JournalFiles.open(device)
    assert (again.floor, again.last) == (21, 30)


def test_a_power_cut_brings_back_no_trimmed_file_without_those_after_it() -> None:
    for seed in range(50):
        device = SimulatedDevice()
        files = JournalFiles.open(device)
        for first in (1, 11, 21, 31):
            files.note(rows(first, first + 10))
            files.roll()
            files.sync()
        assert files.trim(30) == 3
        again = JournalFiles.open(device.power_loss(SeededRandom(seed)))
        assert held(again, again.floor - 1) == rows(again.floor, 41)


def test_a_power_cut_brings_back_no_file_that_an_earlier_trim_deleted() -> None:
    """Each trim deletes one file here, and the file that follows both was made durable before the
    first of them: nothing but the trim itself syncs the folder in between."""
    for seed in range(50):
        device = SimulatedDevice()
        files = JournalFiles.open(device)
        for first in (1, 11, 21):
            files.note(rows(first, first + 10))
            files.roll()
            files.sync()
        assert files.trim(10) == 1
        if seed % 2:
            # The process died in between, and the device lives on.
            files.close()
            files = JournalFiles.open(device)
        assert files.trim(20) == 1
        again = JournalFiles.open(device.power_loss(SeededRandom(seed)))
        assert held(again, again.floor - 1) == rows(again.floor, 31), seed


@pytest.mark.parametrize("removed", [0, 1, 2])
def test_a_trim_that_fails_goes_on_later(removed: int) -> None:
    """Wherever it failed: before the first file, or between two."""
    device = SimulatedDevice()
    files = JournalFiles.open(device)
    for first in (1, 11, 21, 31):
        files.note(rows(first, first + 10))
        files.roll()
        files.sync()
    device.fail("sync_directory", after=removed, error_number=errno.EMFILE)
    with pytest.raises(StorageFullError, match="Too many open files"):
        files.trim(30)
    assert files.floor == 1 + 10 * removed
    assert held(files, 10 * removed) == rows(files.floor, 41)
    assert files.trim(30) == 3 - removed
    assert held(files, 30) == rows(31, 41)


def test_a_gap_begins_a_stretch() -> None:
    device = SimulatedDevice()
    files = written(device, (1, 5))
    files.begin_at(100)
    files.note(rows(100, 103))
    files.sync()
    again = JournalFiles.open(device)
    assert (again.floor, again.last) == (100, 102)
    assert held(again, 99) == rows(100, 103)
    with pytest.raises(CorruptDataError):
        held(again)


def test_a_full_volume_keeps_what_was_noted_for_later() -> None:
    device = SimulatedDevice()
    files = written(device, (1, 5))
    files.note(rows(5, 8))
    device.fail("write", suffix=".journal", error_number=errno.ENOSPC)
    with pytest.raises(StorageFullError):
        files.sync()
    device.fail("write", suffix=".journal", error_number=errno.ENOSPC)
    with pytest.raises(StorageFullError):
        files.append_synced(rows(8, 9)[0])
    assert files.last == 7, "refused"
    files.append_synced((8, 1, b"another"))
    assert held(files) == [*rows(1, 8), (8, 1, b"another")]
    assert held(JournalFiles.open(device)) == [*rows(1, 8), (8, 1, b"another")]
    # Nothing waits: it is the refused entry itself that finds no room.
    device.fail("write", suffix=".journal", error_number=errno.ENOSPC)
    with pytest.raises(StorageFullError):
        files.append_synced((9, 1, b"refused"))
    assert files.last == 8
    files.append_synced((9, 1, b"taken"))
    assert held(JournalFiles.open(device), 8) == [(9, 1, b"taken")]


def test_a_block_that_does_not_follow_the_one_before_ends_the_file() -> None:
    """Its entry is the one that is due, and it was written after other entries."""
    for chain_matches in (True, False):
        device = SimulatedDevice()
        files = written(device, (1, 4))
        files.close()
        name = file_name(1)
        file = device.open(name)
        found = decode_block_header(file.read_at(ALIGNMENT, 32), subject="block")
        chain = found.link if chain_matches else found.link ^ 1
        block, _ = encode_block(rows(4, 6), chain)
        file.write_at(file.size(), [block])
        file.close()
        again = JournalFiles.open(device)
        assert again.last == (5 if chain_matches else 3)
        assert bool(again.faults) is not chain_matches


def test_a_failed_sync_ends_all_writing() -> None:
    device = SimulatedDevice()
    files = written(device, (1, 5))
    files.note(rows(5, 8))
    device.fail("sync", suffix=".journal")
    with pytest.raises(FatalStorageError):
        files.sync()
    with pytest.raises(FatalStorageError):
        files.sync()


def test_a_torn_first_block_is_kept_aside(tmp_path: Path) -> None:
    device = PosixDevice(tmp_path)
    files = JournalFiles.open(device)
    files.note(rows(1, 5))
    files.close()
    path = tmp_path / file_name(1)
    data = bytearray(path.read_bytes())
    data[ALIGNMENT] ^= 1
    path.write_bytes(data)
    again = JournalFiles.open(device)
    assert again.last == 0
    assert again.faults
    again.note(rows(1, 3))
    again.sync()
    assert path.with_name(path.name + ".torn").read_bytes() == data
    assert held(JournalFiles.open(device)) == rows(1, 3)
    again.trim(2)
    assert not path.with_name(path.name + ".torn").exists()


def test_a_newer_releases_file_is_refused(tmp_path: Path) -> None:
    device = PosixDevice(tmp_path)
    files = JournalFiles.open(device)
    files.note(rows(1, 5))
    files.close()
    path = tmp_path / file_name(1)
    data = bytearray(path.read_bytes())
    data[4] += 1
    data[72:76] = crc32c(bytes(data[:72])).to_bytes(4, "big")
    path.write_bytes(data)
    with pytest.raises(InvalidRequestError, match="version 2, this release knows 1"):
        JournalFiles.open(device)
