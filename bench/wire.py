"""A few Kafka requests as bytes, for benchmarks whose client must cost nearly nothing.

Only what the raw-socket benchmarks need, in one old version each: Metadata 1, Produce 3, Fetch 4,
InitProducerId 0.
Source: Kafka's protocol guide.
"""

from __future__ import annotations

import socket
import struct

from crc32c import crc32c

CLIENT_ID = b"bench"


def request(api_key: int, version: int, correlation_id: int, body: bytes) -> bytes:
    """One framed request with header version 1."""
    header = struct.pack(">hhih", api_key, version, correlation_id, len(CLIENT_ID)) + CLIENT_ID
    return struct.pack(">i", len(header) + len(body)) + header + body


def string(text: str) -> bytes:
    """A string with an int16 length."""
    raw = text.encode()
    return struct.pack(">h", len(raw)) + raw


def record_batch(value: bytes, *, producer_id: int = -1) -> bytes:
    """A batch (magic 2) of one record with a null key, uncompressed.

    Args:
        value: at most 8191 bytes, so that its lengths fit in two bytes of a varint.
        producer_id: of an idempotent producer, whose first batch it is.
    """
    # attributes, timestamp delta, offset delta, key length -1 as varint, value, no headers
    body = b"\x00\x00\x00\x01" + varint(len(value)) + value + b"\x00"
    record = varint(len(body)) + body
    # attributes, last offset delta, two timestamps, producer, one record
    producer = (-1, -1, -1) if producer_id < 0 else (producer_id, 0, 0)
    checked = struct.pack(">hiqqqhii", 0, 0, 0, 0, *producer, 1) + record
    tail = struct.pack(">ibI", 0, 2, crc32c(checked)) + checked
    return struct.pack(">qi", 0, len(tail)) + tail


def varint(number: int) -> bytes:
    """A zigzag varint of a number that isn't negative."""
    number <<= 1
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def metadata(topic: str, correlation_id: int = 1) -> bytes:
    """Metadata 1 of one topic."""
    return request(3, 1, correlation_id, struct.pack(">i", 1) + string(topic))


def produce(topic: str, partition: int, batch: bytes, correlation_id: int = 1) -> bytes:
    """Produce 3, acks=all, one batch."""
    body = struct.pack(">hhi", -1, -1, 10_000) + struct.pack(">i", 1) + string(topic)
    body += struct.pack(">iii", 1, partition, len(batch)) + batch
    return request(0, 3, correlation_id, body)


def init_producer_id() -> bytes:
    """InitProducerId 0 without a transactional id."""
    return request(22, 0, 1, struct.pack(">hi", -1, 60_000))


def fetch(topic: str, partition: int, offset: int, *, max_wait_ms: int = 30_000) -> bytes:
    """Fetch 4 of one partition: waits until one byte is there."""
    body = struct.pack(">iiiib", -1, max_wait_ms, 1, 1 << 20, 0)
    body += struct.pack(">i", 1) + string(topic)
    body += struct.pack(">iiqi", 1, partition, offset, 1 << 20)
    return request(1, 4, 1, body)


def fetched_batch(answer: bytes, topic: str) -> tuple[int, int] | None:
    """(base offset, last offset) of the only batch in a Fetch 4 answer; None when it is empty.

    Args:
        answer: the whole frame with its length.
    Raises: ValueError for an error code.
    """
    # length, correlation id, throttle, topics, name, partitions, partition
    at = 4 + 4 + 4 + 4 + 2 + len(topic.encode()) + 4 + 4
    (error,) = struct.unpack_from(">h", answer, at)
    if error:
        raise ValueError(f"fetch error {error}")
    at += 2 + 8 + 8
    (aborted,) = struct.unpack_from(">i", answer, at)
    at += 4 + max(0, aborted) * 16
    (size,) = struct.unpack_from(">i", answer, at)
    if size <= 0:
        return None
    (base,) = struct.unpack_from(">q", answer, at + 4)
    (last_delta,) = struct.unpack_from(">i", answer, at + 4 + 23)
    return base, base + last_delta


def ask(connection: socket.socket, message: bytes) -> bytes:
    """Send one request on a blocking socket and read its answer whole."""
    connection.sendall(message)
    return read_frame(connection)


def read_frame(connection: socket.socket) -> bytes:
    """One whole frame with its length."""
    return read_frames(connection, 1)[0]


def read_frames(connection: socket.socket, count: int) -> list[bytes]:
    """So many whole frames with their lengths, which must be all that comes."""
    buffered = bytearray()
    found: list[bytes] = []
    while len(found) < count:
        chunk = connection.recv(1 << 20)
        if not chunk:
            raise ConnectionError("the server closed the connection")
        buffered += chunk
        while len(buffered) >= 4:
            size = 4 + struct.unpack_from(">i", buffered)[0]
            if len(buffered) < size:
                break
            found.append(bytes(buffered[:size]))
            del buffered[:size]
    return found
