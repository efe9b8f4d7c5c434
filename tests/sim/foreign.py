"""An object as another cluster would have put it under the same key: whole, with other records.

Its runs lie where those of the right object do, at the same offsets, and each batch has a right
CRC; its index names other topics, and other letters begin the values.
"""

from __future__ import annotations

import re
from struct import Struct

from crc32c import crc32c

from penstock.records.batch import CRC_FROM, HEADER, HEADER_BYTES, LENGTH_END
from penstock.segment import FOOTER_BYTES, parse_footer, parse_index

_CRC = Struct(">I")
_BATCH_CRC_AT = 17
_INDEX_CRC_AT = 16
_FOOTER_CRC_AT = FOOTER_BYTES - 8
_COUNTS_BYTES, _ROW_BYTES, _TOPIC_ID_BYTES = 8, 80, 16
_VALUE = re.compile(rb"([pk])(?=[0-9]+/[0-9]+/)")
_OTHERS = {b"p": b"q", b"k": b"j"}


def foreign(right: bytes) -> bytes:
    """Another cluster's object of the same layout; `docs/formats/segment.md` has the tables."""
    data = bytearray(right)
    footer = parse_footer(right[-FOOTER_BYTES:], size_bytes=len(right), subject="an object")
    index_end = footer.index_position + footer.index_length
    rows = parse_index(right[footer.index_position : index_end], footer, subject="an object")
    for number, row in enumerate(rows):
        _change_batches(data, row.position, row.position + row.length)
        at = footer.index_position + _COUNTS_BYTES + number * _ROW_BYTES
        # One more: so they stay in order. No id that is drawn at random is the greatest.
        topic_id = int.from_bytes(row.topic_id, "big") + 1
        data[at : at + _TOPIC_ID_BYTES] = topic_id.to_bytes(_TOPIC_ID_BYTES, "big")
    foot = len(data) - FOOTER_BYTES
    index_crc = crc32c(bytes(data[footer.index_position : index_end]))
    _CRC.pack_into(data, foot + _INDEX_CRC_AT, index_crc)
    footer_crc = crc32c(bytes(data[foot : foot + _FOOTER_CRC_AT]))
    _CRC.pack_into(data, foot + _FOOTER_CRC_AT, footer_crc)
    return bytes(data)


def _change_batches(data: bytearray, start: int, end: int) -> None:
    while start < end:
        following = start + LENGTH_END + HEADER.unpack_from(data, start)[1]
        records = bytes(data[start + HEADER_BYTES : following])
        data[start + HEADER_BYTES : following] = _VALUE.sub(lambda m: _OTHERS[m[1]], records)
        crc = crc32c(bytes(data[start + CRC_FROM : following]))
        _CRC.pack_into(data, start + _BATCH_CRC_AT, crc)
        start = following
