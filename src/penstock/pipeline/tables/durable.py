"""Files of a warehouse that is a local directory, on the disk before anything names them.

A commit says which offsets a table holds, retention frees them, and the log forgets them: a data
file, a manifest or metadata that a power loss then took would take records along. Object stores
promise this for what they have accepted. Of the catalog SQLite takes care, or its server.
"""

from pathlib import Path
from types import TracebackType
from typing import Self

from pyiceberg.io import OutputStream
from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO

from penstock.pipeline.tables.files import is_local
from penstock.system.files import make_folder, settle


class DurableFileIO(PyArrowFileIO):
    """PyIceberg's own, whose local files are durable once they are closed. By this name a catalog's
    property `py-io-impl` finds it."""

    def new_output(self, location: str) -> PyArrowFile:
        """A file that PyIceberg is about to write: a manifest, a list of them, a table's state."""
        if not is_local(location):
            return super().new_output(location)
        scheme, netloc, path = self.parse_location(location, self.properties)
        return _DurableFile(location, path, self.fs_by_scheme(scheme, netloc))


class _DurableFile(PyArrowFile):
    def create(self, overwrite: bool = False) -> OutputStream:  # noqa: FBT001, FBT002 - PyIceberg's
        path = Path(self._path)
        make_folder(path.parent)
        return _SettledStream(super().create(overwrite), path)


class _SettledStream(OutputStream):
    """A stream that settles its file when it is closed, but by an error."""

    def __init__(self, stream: OutputStream, path: Path) -> None:
        self._stream = stream
        self._path = path
        self._is_open = True

    def write(self, b: bytes) -> int:
        return self._stream.write(b)

    def tell(self) -> int:
        found: int = self._stream.tell()  # manifests ask for it
        return found

    def close(self) -> None:
        if self._is_open:
            self._is_open = False
            self._stream.close()
            settle(self._path)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()
        elif self._is_open:
            self._is_open = False
            self._stream.close()
