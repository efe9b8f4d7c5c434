"""Decompression takes memory for what is allowed and for no more, whatever the bytes promise."""

import subprocess
import sys
import textwrap

import cramjam
import pytest

from penstock.records import decode
from penstock.records.batch import BatchError, BatchFault
from penstock.records.decode import CODECS, DECOMPRESSED_BYTES_MAX, decompress

XERIAL = b"\x82SNAPPY\x00" + bytes(8)


def compress(codec: str, data: bytes) -> bytes:
    return bytes(
        cramjam.snappy.compress_raw(data)
        if codec == "snappy"
        else getattr(cramjam, codec).compress(data)
    )


def framed(*blocks: bytes) -> bytes:
    return XERIAL + b"".join(len(block).to_bytes(4, "big") + block for block in blocks)


@pytest.mark.parametrize("codec", CODECS[1:])
def test_what_grows_a_thousandfold_is_decompressed_whole(codec: str) -> None:
    data = bytes(5 << 20)
    assert decompress(CODECS.index(codec), memoryview(compress(codec, data))) == data


@pytest.mark.parametrize("codec", CODECS[1:])
def test_the_bound_is_exact(codec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode, "DECOMPRESSED_BYTES_MAX", 300_000)
    number = CODECS.index(codec)
    assert len(decompress(number, memoryview(compress(codec, bytes(300_000))))) == 300_000
    with pytest.raises(BatchError) as caught:
        decompress(number, memoryview(compress(codec, bytes(300_001))))
    assert caught.value.fault is BatchFault.TOO_LARGE


def test_the_blocks_of_a_framed_snappy_batch_share_the_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(decode, "DECOMPRESSED_BYTES_MAX", 300_000)
    block = compress("snappy", bytes(100_000))
    assert len(decompress(2, memoryview(framed(block, block, block)))) == 300_000
    with pytest.raises(BatchError) as caught:
        decompress(2, memoryview(framed(block, block, block, compress("snappy", b"x"))))
    assert caught.value.fault is BatchFault.TOO_LARGE


@pytest.mark.parametrize("codec", CODECS[1:])
@pytest.mark.parametrize("length", [0, 1, 5, 20])
def test_cut_bytes_are_invalid(codec: str, length: int) -> None:
    data = compress(codec, bytes(range(256)) * 40)[:length]
    with pytest.raises(BatchError) as caught:
        decompress(CODECS.index(codec), memoryview(data))
    assert caught.value.fault is BatchFault.INVALID


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere RLIMIT_AS bounds nothing")
def test_bombs_fail_in_a_process_that_could_not_hold_them() -> None:
    """Each is 4 GiB of zeros, the process may have 1 GiB."""
    code = f"""
        import resource
        import cramjam
        from penstock.records.batch import BatchError
        from penstock.records.decode import CODECS, decompress

        resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
        piece = bytes(1 << 20)
        announced = bytes([0xFF, 0xFF, 0xFF, 0xFF, 0x0F])  # 2^32 - 1, a varint
        bombs = [(n, bytes(getattr(cramjam, CODECS[n]).compress(piece)) * 4096) for n in (1, 3, 4)]
        block = bytes(cramjam.snappy.compress_raw(piece))
        frames = len(block).to_bytes(4, "big") + block
        bombs += [(2, announced + block[3:]), (2, {XERIAL!r} + frames * 4096)]
        for codec, bomb in bombs:
            try:
                print(CODECS[codec], len(decompress(codec, memoryview(bomb))))
            except BatchError as error:
                print(CODECS[codec], error.fault.name)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.stdout.split("\n")[:-1] == [
        f"{codec} TOO_LARGE" for codec in ("gzip", "lz4", "zstd", "snappy", "snappy")
    ], done.stderr
    assert DECOMPRESSED_BYTES_MAX < 1 << 28
