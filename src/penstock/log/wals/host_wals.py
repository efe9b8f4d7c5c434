"""Find the WALs of the workers of one host in the data directory."""

from collections.abc import Callable

from penstock.log.layout import DataLayout
from penstock.log.wals.names import read_wal_id
from penstock.ports.device import Device
from penstock.state.read.queries import Queries
from penstock.system.files import PosixDevice


class HostWals:
    """The WAL directories of one host, by the keys that the journal gave them."""

    def __init__(self, layout: DataLayout, queries: Callable[[], Queries]) -> None:
        """
        Args:
            layout: of the shared directory.
        """
        self._layout = layout
        self._queries = queries
        self._known: dict[int, Device] = {0: PosixDevice(layout.root)}

    def __call__(self, wal_key: int) -> Device | None:
        """The device that holds a WAL's folder. Blocking."""
        if wal_key not in self._known:
            self._look()
        return self._known.get(wal_key)

    def _look(self) -> None:
        keys = {wal.wal_id: wal.wal_key for wal in self._queries().wals()}
        for folder in self._layout.workers():
            device = PosixDevice(folder)
            wal_id = read_wal_id(device)
            if wal_id in keys:
                self._known[keys[wal_id]] = device
