"""Reading runs back from WAL files, while the writer goes on and recycles others."""

import threading
from collections.abc import Collection
from dataclasses import dataclass

from penstock.model.errors import CorruptDataError, RetryableError
from penstock.ports.device import Device, File
from penstock.wal.format import FILE_HEADER_BYTES, FRAMES_START, generation_of
from penstock.wal.recovery import find_files


@dataclass(frozen=True, slots=True)
class _OpenFile:
    """`is_named`: the header says the generation; else the frames do, as the header is damaged."""

    name: str
    file: File
    is_named: bool


class RecycledError(RetryableError):
    """No file has the generation any more: what lay there has moved, or its file is missing."""


class WalReader:
    """Reads by (generation, position). Any thread; calls may overlap.

    Args:
        lost: generations that the state named when the WAL was opened, and no file had. To be
            without a file isn't to be recycled, for these.
    """

    def __init__(self, device: Device, *, lost: Collection[int] = ()) -> None:
        self.device = device
        self._lost = lost
        self._lock = threading.Lock()
        self._by_generation: dict[int, _OpenFile] = {}

    def read(self, generation: int, position: int, length: int) -> bytes:
        """Bytes of a run.

        Args:
            generation: of the file, as the journal names it.
            position: byte position in the file.
            length: in bytes.

        Raises:
            RecycledError: the file is of another generation by now: the run has moved, look it
                up again.
            RetryableError: the system refused: too many open files, a failed read.
            CorruptDataError: the file is shorter than the run, or lost; names file and position.
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
        found = generation_of(opened.file.read_at(0, FILE_HEADER_BYTES))
        # A damaged header becomes one of a greater generation when the file is used again, before
        # any frame.
        if found == generation or (not opened.is_named and (found or 0) < generation):
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
                found = find_files(self.device)
                self._by_generation = {
                    number: known
                    for number, known in self._by_generation.items()
                    if any(file.generation == number for file in found)
                }
                for file in found:
                    if file.generation == generation:
                        is_named = file.header is not None
                        opened = _OpenFile(file.name, self.device.open(file.name), is_named)
                        self._by_generation[generation] = opened
                        return opened
            except FileNotFoundError as error:
                raise _recycled(generation) from error
        if generation in self._lost:
            raise CorruptDataError(
                "read WAL",
                f"generation {generation}",
                "no WAL file has this generation",
                "if the journal came back older, penstock repair --history; else restore the file",
            )
        raise _recycled(generation)


def _recycled(generation: int) -> RecycledError:
    return RecycledError(
        "read WAL", f"generation {generation}", "recycled", "look the run up again"
    )
