"""Whatever one client writes, each of the three reads back the same, in each codec."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from support.adapters import ADAPTERS, ClientAdapter
from support.records import NewRecord

PARTITIONS = 3
BASE_MS = 1_700_000_000_000


def sample_records(count: int = 60, *, null_headers: bool = True) -> list[NewRecord]:
    """Null and empty keys and values, repeated and null headers, timestamps out of order.

    No record has both key and value null: kafka-python refuses to write one.
    """
    records = []
    for index in range(count):
        headers: tuple[tuple[str, bytes | None], ...] = ()
        if index % 3 == 0:
            headers = (("trace", b"\x00\xff" + str(index).encode()), ("trace", b""), ("näme", b"x"))
        if null_headers and index % 7 == 0:
            headers = (*headers, ("absent", None))
        records.append(
            NewRecord(
                partition=index % PARTITIONS,
                key=None if index % 4 == 0 else b"" if index % 4 == 1 else f"k{index}".encode(),
                value=None
                if index % 4 and index % 5 == 0
                else b""
                if index % 5 == 1
                else b"v" * (index * 37),
                timestamp_ms=BASE_MS + (index * 7919) % 1000,
                headers=headers,
            )
        )
    return records


WRITERS = [
    pytest.param(writer, codec, idempotent, id=f"{writer.name}-{codec}-{kind}")
    for writer in ADAPTERS
    for codec in writer.codecs
    for idempotent, kind in ((False, "plain"), (True, "idempotent"))
    # Idempotence doesn't depend on the codec: each client shows it on two.
    if not idempotent or codec in ("none", "zstd")
]


@pytest.mark.parametrize(("writer", "codec", "idempotent"), WRITERS)
def test_every_reader_gets_what_was_written(
    bootstrap: str,
    new_topic: Callable[..., str],
    writer: ClientAdapter,
    codec: str,
    idempotent: bool,
) -> None:
    """Keys, values, headers and timestamps are the same, at the offsets that were acknowledged."""
    topic = new_topic(PARTITIONS)
    records = sample_records(null_headers=writer.null_headers)
    acknowledged = writer.write(bootstrap, topic, records, codec=codec, idempotent=idempotent)
    expected = dict(zip(acknowledged, records, strict=True))
    assert len(expected) == len(records)
    for partition in range(PARTITIONS):
        offsets = [offset for place, offset in acknowledged if place == partition]
        assert offsets == list(range(len(offsets)))
    for reader in ADAPTERS:
        read = reader.read(bootstrap, topic, PARTITIONS, len(records))
        assert {(r.partition, r.offset): r.without_offset() for r in read} == expected, reader.name
        assert len(read) == len(records), reader.name
        for partition in range(PARTITIONS):
            offsets = [r.offset for r in read if r.partition == partition]
            assert offsets == sorted(offsets), reader.name


@pytest.mark.parametrize("acks", ["0", "1", "all"])
@pytest.mark.parametrize("writer", ADAPTERS, ids=lambda adapter: adapter.name)
def test_records_arrive_with_any_acks(
    bootstrap: str, new_topic: Callable[..., str], writer: ClientAdapter, acks: str
) -> None:
    """A producer that waits for no answer is served too: nothing else comes on its connection."""
    topic = new_topic(1)
    records = [NewRecord(0, None, str(index).encode(), BASE_MS + index) for index in range(20)]
    writer.write(bootstrap, topic, records, acks=acks)
    read = ADAPTERS[0].read(bootstrap, topic, 1, len(records))
    assert [r.value for r in read] == [r.value for r in records]


@pytest.mark.parametrize("reader", ADAPTERS, ids=lambda adapter: adapter.name)
def test_log_append_time_is_the_servers(
    bootstrap: str, new_topic: Callable[..., str], reader: ClientAdapter
) -> None:
    """With LogAppendTime the producer's timestamp is replaced, and each reader's check of the
    CRC passes on the batch that the server changed."""
    topic = new_topic(1, message_timestamp_type="LogAppendTime")
    old = NewRecord(0, b"k", b"v", timestamp_ms=1_000)
    ADAPTERS[0].write(bootstrap, topic, [old, old], codec="zstd")
    read = reader.read(bootstrap, topic, 1, 2)
    assert [r.value for r in read] == [b"v", b"v"]
    assert all(r.timestamp_ms > BASE_MS for r in read)


def test_a_large_batch_comes_back_whole(bootstrap: str, new_topic: Callable[..., str]) -> None:
    """A record near the limit of 1 MiB is returned even to readers that ask for less at once."""
    topic = new_topic(1)
    large = NewRecord(0, b"k", bytes(range(256)) * 3900, BASE_MS)
    ADAPTERS[0].write(bootstrap, topic, [large, large])
    for reader in ADAPTERS:
        assert [r.value for r in reader.read(bootstrap, topic, 1, 2)] == [large.value] * 2
