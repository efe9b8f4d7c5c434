"""Markers: the bytes that Kafka's clients know as the end of a transaction."""

import struct

from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from penstock.model.ids import PartitionKey
from penstock.records.batch import CONTROL, TRANSACTIONAL
from penstock.records.markers import MARKER_BYTES, marker_batch, marker_crc
from penstock.state.rows import StoredRun
from penstock.state.transactions import Marker, is_marker, marker_of_run

int64 = st.integers(0, (1 << 63) - 1)
epochs = st.integers(0, (1 << 15) - 1)


def test_the_bytes_are_those_of_the_page() -> None:
    """Written out by hand from docs/formats/journal.md."""
    written = marker_batch(
        base_offset=0x0102,
        leader_epoch=3,
        producer_id=0x0405,
        producer_epoch=6,
        commits=True,
        time_ms=0x0708,
    )
    time_ms = "0000000000000708"
    checked = f"0030 00000000 {time_ms} {time_ms} 0000000000000405 0006 ffffffff 00000001"
    record = "20 00 00 00 08 0000 0001 0c 0000 00000000 00"
    body = bytes.fromhex(checked + record)
    head = bytes.fromhex("0000000000000102 00000042 00000003 02") + struct.pack(">I", crc32c(body))
    assert written == head + body
    assert len(written) == MARKER_BYTES == 78


def test_an_abort_is_another_type() -> None:
    commit, abort = (
        Marker(1, 2, commits, 3).batch(base_offset=0, leader_epoch=0) for commits in (True, False)
    )
    assert (commit[69], abort[69]) == (1, 0)
    assert commit[70:] == abort[70:]


@given(int64, st.integers(0, 1 << 30), int64, epochs, st.booleans(), int64)
def test_a_row_gives_the_marker_back(
    offset: int, leader_epoch: int, producer_id: int, epoch: int, commits: bool, time_ms: int
) -> None:
    marker = Marker(producer_id, epoch, commits, time_ms)
    assert is_marker(marker.generation)
    assert not is_marker(0)
    run = StoredRun(
        PartitionKey(1), offset, offset + 1, marker.generation, "", producer_id, 78, time_ms, 1
    )
    assert marker_of_run(run) == marker
    written = marker.batch(base_offset=offset, leader_epoch=leader_epoch)
    assert struct.unpack_from(">I", written, 17)[0] == marker.crc == crc32c(written[21:])
    assert marker.crc == marker_crc(
        producer_id=producer_id, producer_epoch=epoch, commits=commits, time_ms=time_ms
    )
    assert struct.unpack_from(">h", written, 21)[0] == TRANSACTIONAL | CONTROL
