"""aiokafka learns about damage from a batch that has a wrong CRC on purpose.

Among the errors that a fetch may answer for a partition, aiokafka (0.14) raises only two: that a
topic may not be read, and that an offset is out of range. After any other error, CORRUPT_MESSAGE
too, it logs a line and tries again for ever. But it raises a batch whose CRC-32C differs. So it
gets
such a batch: a header without records at the damaged offset, with a CRC that is not the header's. A
client that didn't compare the CRC would find no records and stay at its offset.
"""

from typing import Final

from crc32c import crc32c

from penstock.records.batch import CRC_FROM, HEADER, HEADER_BYTES, LENGTH_END, MAGIC

VERSION_MAX: Final = 11
"""The highest version of Fetch that aiokafka knows."""
_NAME: Final = "aiokafka"
_NONE: Final = (-1, -1, -1, -1, -1)
"""Two timestamps, producer id and epoch, sequence."""


def wants_damaged_batch(client_id: str | None, version: int) -> bool:
    """Whether a fetch is of aiokafka: clients name themselves nowhere else in these versions."""
    return version <= VERSION_MAX and client_id is not None and client_id.startswith(_NAME)


def damaged_batch(offset: int) -> memoryview:
    """A batch without records that ends where it begins, at `offset`, and whose CRC differs."""
    batch = bytearray(HEADER.pack(offset, HEADER_BYTES - LENGTH_END, 0, MAGIC, 0, 0, -1, *_NONE, 0))
    wrong = crc32c(memoryview(batch)[CRC_FROM:]) ^ 0xFFFFFFFF
    batch[CRC_FROM - 4 : CRC_FROM] = wrong.to_bytes(4, "big")
    return memoryview(bytes(batch))
