"""The batch by which aiokafka is told of damage: wrong to whoever compares its CRC, else empty."""

from aiokafka.record.memory_records import MemoryRecords

from penstock.kafka.fetch.damaged_batch import damaged_batch, wants_damaged_batch
from penstock.records.batch import crc_is_right, stored_header


def test_it_holds_no_record_moves_nobody_on_and_has_a_wrong_crc() -> None:
    batch = damaged_batch(50)
    header = stored_header(batch, 0)
    assert header.length == len(batch)
    assert (header.base_offset, header.end_offset, header.record_count) == (50, 50, 0)
    assert not crc_is_right(batch)
    read = MemoryRecords(bytes(batch)).next_batch()
    assert read is not None
    assert not read.validate_crc()


def test_aiokafka_alone_gets_it() -> None:
    assert wants_damaged_batch("aiokafka-0.14.0", 11)
    assert not wants_damaged_batch("aiokafka-0.14.0", 12)
    assert not wants_damaged_batch("rdkafka", 11)
    assert not wants_damaged_batch(None, 4)
