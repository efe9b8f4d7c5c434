"""Reading runs back from WAL files, while the writer goes on and recycles others."""

import threading
from dataclasses import dataclass

from penstock.model.errors import CorruptDataError, RetryableError
from penstock.ports.device import Device, File
from penstock.wal.format import FILE_HEADER_BYTES, FRAMES_START, generation_of
from penstock.wal.recovery import find_files


@dataclass(frozen=True, slots=True)
class _OpenFile:
    name: str
    file: File


class WalReader:
    """Reads by (generation, position). Any thread; calls may overlap."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._lock = threading.Lock()
        self._by_generation: dict[int, _OpenFile] = {}

    def read(self, generation: int, position: int, length: int) -> bytes:
        """Bytes of a run.

        Args:
            generation: of the file, as the journal names it.
            position: byte position in the file.
            length: in bytes.

        Raises:
            RetryableError: the file is of another generation by now: the run has moved, look it
                up again. Or the system refused: too many open files, a failed read.
            CorruptDataError: the file is shorter than the run; names file and position.
        """
        opened: _OpenFile | None = None
        # Before, since the file may have been recycled since it was opened; after, since it may
        # be while it is read. The writer changes the header before any frame.
        try:
            opened = self._by_generation.get(generation) or self._find(generation)
            self._check(opened, generation)
            data = opened.file.read_at(position, length)
            self._check(opened, generation)
        except OSError as error:
            name = opened.name if opened is not None else f"generation {generation}"
            raise RetryableError("read WAL", f"{name} at byte {position}", str(error)) from error
        if len(data) < length or position < FRAMES_START:
            raise CorruptDataError(
                "read WAL",
                f"{opened.name} at byte {position}",
                f"{len(data)} bytes are there, the run has {length}",
            )
        return data

    def close(self) -> None:
        """Forget all files; those being read are closed when their reads end."""
        with self._lock:
            self._by_generation.clear()

    def _check(self, opened: _OpenFile, generation: int) -> None:
        if generation_of(opened.file.read_at(0, FILE_HEADER_BYTES)) == generation:
            return
        with self._lock:
            if self._by_generation.get(generation) is opened:
                del self._by_generation[generation]
        raise _recycled(generation)

    def _find(self, generation: int) -> _OpenFile:
        with self._lock:
            opened = self._by_generation.get(generation)
            if opened is not None:
                return opened
            # Generations come and go once per file's worth of data, so a look at every header
            # is cheap; files are few.
            try:
                found = find_files(self._device)
                self._by_generation = {
                    number: known
                    for number, known in self._by_generation.items()
                    if any(file.header and file.header.generation == number for file in found)
                }
                for file in found:
                    if file.header is not None and file.header.generation == generation:
                        opened = _OpenFile(file.name, self._device.open(file.name))
                        self._by_generation[generation] = opened
                        return opened
            except FileNotFoundError as error:
                raise _recycled(generation) from error
        raise _recycled(generation)


def _recycled(generation: int) -> RetryableError:
    return RetryableError(
        "read WAL", f"generation {generation}", "recycled", "look the run up again"
    )
