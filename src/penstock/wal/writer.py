"""The WAL's writer: frames into the active file, one file after the other."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from crc32c import crc32c
from typing_extensions import Buffer

from penstock.model.errors import FatalStorageError, InvalidRequestError, StorageFullError
from penstock.ports.device import Device, File
from penstock.wal.format import (
    FRAME_HEADER_BYTES,
    FRAMES_START,
    PAGE_BYTES,
    align_frame,
    encode_file_header,
    encode_frame_header,
    frame_bytes_max,
)
from penstock.wal.pool import FilePool, out_of_room
from penstock.wal.recovery import FOLDER, Recovered, RecoveryReport, recover

_JOIN_BUFFER_BYTES: Final = 1024
"""Below this average, a copy costs less than a CRC call and a vector entry per buffer: 50 buffers
of 150 bytes took 41 us one by one, and a third of it joined."""
_PAGE_OF_ZEROS: Final = bytes(PAGE_BYTES)


@dataclass(frozen=True, slots=True)
class WalPlace:
    """A place in the WAL: a file's generation and the byte position in it."""

    generation: int
    position: int


class WalWriter:
    """Writes frames. Used by one thread (the commit lane), except where a method says otherwise."""

    def __init__(
        self,
        device: Device,
        *,
        recovered: Recovered,
        file_bytes: int,
        bytes_max: int,
        last_generation: int,
        fsync: bool,
    ) -> None:
        """Use `open`."""
        self._device = device
        self._file_bytes = file_bytes
        self.frame_bytes_max = frame_bytes_max(file_bytes)
        """The longest payload of one frame."""
        self._fsync = fsync
        self._pool = FilePool(
            device,
            file_bytes=file_bytes,
            bytes_max=bytes_max,
            recovered=recovered,
            fsync=fsync,
        )
        # The generation of the active file, or of the next one while there is none: the file is
        # taken with the first frame, so that a start makes and writes nothing.
        self._generation = max(recovered.generation_max, last_generation) + 1
        self._file: File | None = None
        self._file_name = ""
        self._position = file_bytes
        self._frame_number = 0
        self._failure: FatalStorageError | None = None
        self.recovery: RecoveryReport = recovered.report

    @classmethod
    def open(
        cls,
        device: Device,
        *,
        file_bytes: int,
        bytes_max: int,
        named: Mapping[int, int],
        last_generation: int,
        fsync: bool = True,
    ) -> "WalWriter":
        """Recover, then be ready to write in a new generation.

        What the journal names and is damaged or missing is in `recovery`; its file stays until it
        is released.

        Args:
            file_bytes: size of each file, a multiple of 4,096.
            bytes_max: all files together take at most this.
            named: generation -> end (exclusive, byte position in the file) of the last run that
                the journal names in it; files of other generations are free.
            last_generation: the highest generation that the state has ever seen.
            fsync: false skips every fdatasync, and nothing else.

        Raises:
            OtherWalVersionError: what is there is of another version.
            InvalidRequestError: sizes that can't be.
        """
        if file_bytes % PAGE_BYTES or file_bytes < 2 * PAGE_BYTES or bytes_max < file_bytes:
            raise InvalidRequestError(
                "open WAL",
                FOLDER,
                f"files of {file_bytes} bytes within {bytes_max} bytes in total",
                f"a file is a multiple of {PAGE_BYTES} bytes and at least one must fit",
            )
        return cls(
            device,
            recovered=recover(device, named=named, file_bytes=file_bytes),
            file_bytes=file_bytes,
            bytes_max=bytes_max,
            last_generation=last_generation,
            fsync=fsync,
        )

    @property
    def active_generation(self) -> int:
        """The generation that the next frame is written in, or a lower one. Lower generations get
        no more frames. Any thread."""
        return self._generation

    @property
    def room(self) -> int:
        """The longest payload that fits behind the last frame of the active file; 0: there is
        none."""
        return max(0, self._file_bytes - self._position - FRAME_HEADER_BYTES)

    @property
    def free_bytes(self) -> int:
        """Bytes that can be written before a file must be released; a moment's value. Any
        thread."""
        in_files = self._pool.obtainable_count * (self._file_bytes - FRAMES_START)
        return in_files + max(0, self._file_bytes - self._position)

    def place(self, length: int, *, position: int = 0) -> WalPlace:
        """Find where the next frame's payload will begin, in a file with room for `length` bytes.

        The entry in a frame names its batches, so their place must be known before it is written.

        Args:
            length: 1 to `frame_bytes_max`.
            position: the journal position that is due next; the header of a new file holds it.

        Raises:
            StorageFullError: no file is free, the disk is full, or too many files are open.
                The writer stays usable.
            FatalStorageError: a write or sync failed in another way, now or before.
        """
        if self._failure is not None:
            raise self._failure
        if not 0 < length <= self.frame_bytes_max:
            raise InvalidRequestError(
                "append", FOLDER, f"a frame of {length} bytes, at most {self.frame_bytes_max} fit"
            )
        if self._position + FRAME_HEADER_BYTES + length > self._file_bytes:
            self._close_active()
        if self._file is None:
            self._next_file(position)
        return WalPlace(self._generation, self._position + FRAME_HEADER_BYTES)

    def write(
        self,
        buffers: Sequence[Buffer],
        *,
        length: int,
        entry: bytes = b"",
        position: int = 0,
        time_ms: int = 0,
    ) -> WalPlace:
        """Write one frame where `place` said; durable when this returns.

        Args:
            buffers: the batches' parts.
            length: their bytes in all; with the entry 1 to `room`.
            entry: the journal's entry that names them, or nothing.
            position: the entry's; `time_ms`: journal time there.

        Raises:
            StorageFullError: the disk is full. Nothing was appended, and the writer stays usable.
            FatalStorageError: a write or sync failed in another way, now or before; what is
                durable is unknown, and everything after is refused.
        """
        if self._failure is not None:
            raise self._failure
        file = self._file
        assert file is not None, "no place was taken"
        payload_bytes = length + len(entry)
        assert 0 < payload_bytes <= self.room, (payload_bytes, self.room)
        parts: list[Buffer] = [*buffers, entry] if entry else list(buffers)
        if len(parts) > 1 and payload_bytes < len(parts) * _JOIN_BUFFER_BYTES:
            parts = [b"".join(parts)]
        payload_crc = found_bytes = 0
        for buffer in parts:
            payload_crc = crc32c(buffer, payload_crc)
            found_bytes += len(buffer) if isinstance(buffer, bytes) else memoryview(buffer).nbytes
        assert found_bytes == payload_bytes, (found_bytes, payload_bytes)
        header = encode_frame_header(
            generation=self._generation,
            number=self._frame_number,
            length=payload_bytes,
            payload_crc=payload_crc,
            entry_length=len(entry),
            position=position,
            time_ms=time_ms,
        )
        start = self._position + FRAME_HEADER_BYTES
        end = start + payload_bytes
        # Zeros up to the page's end, so that the kernel needn't read the page before it writes.
        # File sizes are multiples of a page, so this stays inside the file.
        padding = memoryview(_PAGE_OF_ZEROS)[: -end % PAGE_BYTES]
        frame = [header, *parts, padding]
        try:
            if self._fsync:
                file.write_synced(self._position, frame)
            else:
                file.write_at(self._position, frame)
        except OSError as error:
            # The torn frame stays; the next one is written over it, or begins a file whose header
            # says that its position never counted here.
            raise self._translated("append", error) from error
        self._position = align_frame(end)
        self._frame_number += 1
        return WalPlace(self._generation, start)

    def release(self, generation: int) -> None:
        """Let a file be recycled: no run names that generation any more and no read of it is
        open. Any thread; idempotent.

        Ignored for `active_generation`: a frame may be on its way that no run names yet, so
        the question has no answer before the generation is over. Ask again then.
        """
        self._pool.release(generation)

    def needs_spare(self) -> bool:
        """Whether `prepare_spare` has something to do. Any thread; costs nothing."""
        return self._pool.needs_spare()

    def prepare_spare(self) -> None:
        """Make the file that will be needed next. Any thread; takes as long as writing a file.

        Raises:
            StorageFullError: the disk is full, or too many files are open; nothing is left
                behind.
        """
        self._pool.prepare_spare()

    def close(self) -> None:
        """Close the active file, without a sync. Idempotent."""
        file, self._file = self._file, None
        if file is not None:
            file.close()
        if self._failure is None:
            self._failure = FatalStorageError("append", FOLDER, "the WAL is closed")

    # -- files ---------------------------------------------------------------------------------

    def _close_active(self) -> None:
        """End the active generation, also when there is no file to go on in: only lower generations
        are looked at when files are freed."""
        if self._file is None:
            return
        self._file.close()
        self._file = None
        self._position = self._file_bytes
        # First, since another thread that sees the next generation may release this one at once.
        self._pool.closed(self._generation, self._file_name)
        self._generation += 1

    def _next_file(self, position: int) -> None:
        try:
            name = self._pool.take()
        except FatalStorageError as error:
            self._failure = error
            raise
        file: File | None = None
        try:
            file = self._device.open(name)
            header = encode_file_header(
                generation=self._generation,
                file_bytes=self._file_bytes,
                first_position=position,
            )
            file.write_at(0, [header])
        except OSError as error:
            if file is not None:
                file.close()
                # A header of this generation may have been written: no other file may have it.
                self._generation += 1
            self._pool.put_back(name)
            raise self._translated("begin WAL file", error) from error
        # Before any frame: then a generation whose header a power cut took has no frames either,
        # and can't be met again in a file that is used with the same number.
        self._sync(file, "begin WAL file")
        self._file, self._file_name = file, name
        self._position = FRAMES_START
        self._frame_number = 0

    def _sync(self, file: File, operation: str) -> None:
        if not self._fsync:
            return
        try:
            file.sync()
        except OSError as error:
            self._failure = FatalStorageError(operation, self._file_name or FOLDER, str(error))
            raise self._failure from error

    def _translated(self, operation: str, error: OSError) -> StorageFullError | FatalStorageError:
        full = out_of_room(operation, FOLDER, error)
        if full is not None:
            return full
        self._failure = FatalStorageError(operation, self._file_name or FOLDER, str(error))
        return self._failure
