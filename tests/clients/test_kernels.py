"""Batches as real producers make them are decoded by kernels to what was written."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from random import Random

import numpy as np
import pytest
from crc32c import crc32c

from penstock.kernels.decode import decode
from penstock.kernels.keys import key_chunks, retain
from penstock.model.errors import CorruptDataError
from penstock.records.batch import CRC_FROM, HEADER_BYTES, batch_bounds
from support.adapters import ADAPTERS, ClientAdapter
from support.raw_fetch import fetch_bytes
from support.records import NewRecord

BASE_MS = 1_700_000_000_000
DAMAGED = 40
WRITERS = [
    pytest.param(adapter, codec, id=f"{adapter.name}-{codec}")
    for adapter in ADAPTERS
    for codec in adapter.codecs
]


def all_batches(bootstrap: str, topic: str, end: int) -> bytes:
    """The partition's batches as they are stored."""
    data = b""
    offset = 0
    while offset < end:
        _, code, part = fetch_bytes(bootstrap, topic, 0, offset, wait_ms=10_000)
        assert code == 0
        assert part, f"nothing at offset {offset} of {end}"
        offset = decode(part).next_offset
        data += part
    return data


def refuses_damage(data: bytes) -> None:
    """Whatever becomes of them: nothing but our error comes out, also behind a right CRC."""
    chance = Random(len(data))
    for _ in range(DAMAGED):
        damaged = bytearray(data)
        for _ in range(chance.randint(1, 4)):
            damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        position = 0
        while chance.random() < 0.9 and len(damaged) - position >= HEADER_BYTES:
            size = batch_bounds(damaged, position)[1]
            if not HEADER_BYTES <= size <= len(damaged) - position:
                break
            crc = crc32c(bytes(damaged[position + CRC_FROM : position + size]))
            damaged[position + 17 : position + 21] = crc.to_bytes(4, "big")
            position += size
        with contextlib.suppress(CorruptDataError):
            for chunk in decode(damaged).chunks:
                chunk.validate(full=True)
        with contextlib.suppress(CorruptDataError):
            for keyed in key_chunks(damaged, (1, 2)):
                retain(keyed, np.arange(keyed.record_count) % 2, keep_empty=True)


@pytest.mark.parametrize(("writer", "codec"), WRITERS)
@pytest.mark.parametrize("kind", ["CreateTime", "LogAppendTime"])
def test_batches_of_real_producers(
    bootstrap: str,
    new_topic: Callable[..., str],
    writer: ClientAdapter,
    codec: str,
    kind: str,
) -> None:
    topic = new_topic(1, message_timestamp_type=kind)
    null = None if writer.null_headers else b""
    records = [
        NewRecord(
            partition=0,
            key=None if number % 5 == 0 else b"" if number % 5 == 1 else b"key-%d" % number,
            value=None if number % 35 == 3 else bytes([number % 256]) * (number * 37 % 3000),
            timestamp_ms=BASE_MS + (number * 7919) % 1000,
            headers=(("a", b"%d" % number), ("ü", null), ("a", b"")) if number % 3 == 0 else (),
        )
        for number in range(300)
    ]
    places = writer.write(bootstrap, topic, records, codec=codec)
    data = all_batches(bootstrap, topic, len(records))
    refuses_damage(data)
    table = decode(data).table()
    rows = {row["offset"]: row for row in table.to_pylist()}
    assert sorted(rows) == list(range(len(records)))
    stamped = kind == "LogAppendTime"
    for record, (_, offset) in zip(records, places, strict=True):
        row = rows[offset]
        headers = [{"key": name, "value": value} for name, value in record.headers]
        assert (row["key"], row["value"], row["headers"]) == (record.key, record.value, headers)
        assert row["timestamp_type"] == int(stamped)
        if stamped:
            assert row["timestamp"] > BASE_MS + 1000
        else:
            assert row["timestamp"] == record.timestamp_ms
