"""Streams of decompressed records: whole, in pieces of any size, or refused."""

import gzip
import os
import subprocess
import sys

import lz4.frame
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.records.batch import BatchError, BatchFault
from penstock.records.streams import open_stream, zstd
from support.raw_batches import NUMBERS, PACKERS

BODIES = st.binary(max_size=300) | st.integers(1, 200_000).map(lambda size: b"ab" * size)


def read_all(codec: str, packed: bytes, size: int = 1000) -> bytes:
    stream = open_stream(NUMBERS[codec], memoryview(packed))
    pieces = []
    while piece := stream.read(size):
        assert len(piece) <= size
        pieces.append(piece)
    assert stream.read(size) == b""
    return b"".join(pieces)


@pytest.mark.parametrize("codec", list(PACKERS))
@given(body=BODIES, size=st.integers(1, 100_000))
def test_pieces_of_any_size_give_the_whole(codec: str, body: bytes, size: int) -> None:
    size = max(size, len(body) // 50)
    packed = PACKERS[codec](body)
    if codec == "xerial" and not body:
        assert read_all(codec, packed, size) == b""
    else:
        assert read_all(codec, packed, size) == body


@pytest.mark.parametrize("codec", [name for name in PACKERS if name != "none"])
@given(body=st.binary(min_size=1, max_size=300), data=st.data())
def test_cut_bytes_are_refused_wherever_they_are_cut(
    codec: str, body: bytes, data: st.DataObject
) -> None:
    packed = PACKERS[codec](body)
    # Of Xerial's framing a cut between two blocks is another whole one; there is one block here.
    end = data.draw(st.integers(17 if codec == "xerial" else 0, len(packed) - 1))
    with pytest.raises(BatchError) as caught:
        read_all(codec, packed[:end])
    assert caught.value.fault is BatchFault.INVALID


@pytest.mark.parametrize("codec", [name for name in PACKERS if name != "none"])
@pytest.mark.parametrize("size", [5, 70_000])
@pytest.mark.parametrize("more", [b"\0", b"more", b"again"])
def test_bytes_after_the_end_are_refused(codec: str, size: int, more: bytes) -> None:
    packed = PACKERS[codec](os.urandom(size))
    with pytest.raises(BatchError):
        read_all(codec, packed + (packed if more == b"again" and codec != "xerial" else more))


@pytest.mark.parametrize("codec", [name for name in PACKERS if name != "none"])
@given(garbage=st.binary(max_size=200))
def test_garbage_is_refused_by_our_error_alone(codec: str, garbage: bytes) -> None:
    packed = PACKERS[codec](b"some body" * 9)
    for hostile in (garbage, packed[: len(packed) // 2] + garbage):
        try:
            read_all(codec, hostile)
        except BatchError as error:
            assert error.fault is BatchFault.INVALID


def test_checksums_inside_are_looked_at() -> None:
    body = os.urandom(1000)
    frames = {
        "gzip": gzip.compress(body),
        "lz4": lz4.frame.compress(body, block_linked=False, content_checksum=True),
        "zstd": zstd.compress(body, options={zstd.CompressionParameter.checksum_flag: 1}),
    }
    for codec, frame in frames.items():
        assert read_all(codec, frame) == body
        damaged = bytearray(frame)
        damaged[len(damaged) // 2] ^= 1
        with pytest.raises(BatchError):
            read_all(codec, bytes(damaged))
    # The LZ4 frame's header has one of its own, which the Java client looks at.
    damaged = bytearray(frames["lz4"])
    damaged[6] ^= 1
    with pytest.raises(BatchError):
        read_all("lz4", bytes(damaged))


def test_lz4_blocks_that_depend_on_one_another_are_refused() -> None:
    """The Java client says "Dependent block stream is unsupported"."""
    body = os.urandom(1000) * 200
    with pytest.raises(BatchError, match="independent"):
        read_all("lz4", lz4.frame.compress(body, block_linked=True))


@pytest.mark.parametrize("codec", [5, 6, 7])
def test_an_unknown_codec_is_refused(codec: int) -> None:
    with pytest.raises(BatchError, match="unknown"):
        open_stream(codec, memoryview(b""))


def test_a_snappy_block_that_announces_much_costs_nothing() -> None:
    with pytest.raises(BatchError, match="announces 4294967295"):
        read_all("snappy", b"\xff\xff\xff\xff\x0f" + bytes(100))


@pytest.mark.slow
def test_a_bomb_takes_the_memory_of_a_piece() -> None:
    """In a process that has no room for what it gives: 256 MiB of each codec."""
    script = """
import sys, resource
from support.raw_batches import NUMBERS, PACKERS
import lz4.frame, zlib
from penstock.records.streams import open_stream, zstd
SIZE = 256 << 20
def packed(compressor, flush):
    return b"".join([compressor(bytes(1 << 20)) for _ in range(SIZE >> 20)]) + flush()
z = zstd.ZstdCompressor()
g = zlib.compressobj(wbits=31)
l = lz4.frame.LZ4FrameCompressor(block_linked=False)
head = l.begin()
bombs = {"zstd": packed(z.compress, z.flush), "gzip": packed(g.compress, g.flush),
         "lz4": head + packed(l.compress, l.flush)}
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for codec, bomb in bombs.items():
    stream, length = open_stream(NUMBERS[codec], memoryview(bomb)), 0
    while piece := stream.read(65536):
        length += len(piece)
    assert length == SIZE, (codec, length)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    unit = 1 if sys.platform == "darwin" else 1024
    assert int(done.stdout) * unit < 24 << 20
