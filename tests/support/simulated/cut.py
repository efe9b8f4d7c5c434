"""Cutting the power of a simulated device, and of what must stop with it, at a chosen moment.

One `PowerSwitch` stands before every call of a device, and before whatever else shall be in step
with it (the commits of a journal that lies on a real disk). Calls pass one at a time, so that the
moment of the cut is the same for all of them; after it each call raises `PowerCutError`.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from typing_extensions import Buffer

from support.simulated.device import SimulatedDevice, SimulatedFile, SimulatedStatus


class PowerCutError(Exception):
    """The power is gone: nothing that runs now has any effect."""


class PowerSwitch:
    """Counts calls, and cuts the power before the one that was chosen.

    Args:
        on_cut: called once, at the moment of the cut, while no call is under way.
    """

    def __init__(self, on_cut: Callable[[], None]) -> None:
        self._on_cut = on_cut
        self._lock = threading.RLock()
        self.calls_left: int | None = None
        """Calls that still pass; None: all."""
        self.is_cut = False
        self.last_call = ""
        """The one that the cut came before."""

    @contextmanager
    def call(self, description: str) -> Iterator[None]:
        """One call. Raises: PowerCutError: it has not taken place."""
        with self._lock:
            if self.calls_left is not None and not self.is_cut:
                if not self.calls_left:
                    self.cut(description)
                else:
                    self.calls_left -= 1
            if self.is_cut:
                raise PowerCutError(description)
            yield

    def cut(self, description: str = "now") -> None:
        """Cut the power now; once is enough."""
        with self._lock:
            if not self.is_cut:
                self.is_cut = True
                self.last_call = description
                self._on_cut()


class SwitchedDevice:
    """A simulated device behind a switch. Implements the same ports; reads always pass."""

    def __init__(self, device: SimulatedDevice, switch: PowerSwitch, *, folder: str = "") -> None:
        """
        Args:
            folder: the part of the device that this is, with a slash at its end.
        """
        self.inner = device
        self.switch = switch
        self._folder = folder

    def open(self, name: str, *, create: bool = False) -> "SwitchedFile":
        """See the port."""
        name = self._folder + name
        if not create:
            return SwitchedFile(self.inner.open(name), name, self.switch)
        with self.switch.call(f"create {name}"):
            return SwitchedFile(self.inner.open(name, create=True), name, self.switch)

    def rename(self, old: str, new: str) -> None:
        """See the port."""
        with self.switch.call(f"rename {old} to {new}"):
            self.inner.rename(self._folder + old, self._folder + new)

    def remove(self, name: str) -> None:
        """See the port."""
        with self.switch.call(f"remove {name}"):
            self.inner.remove(self._folder + name)

    def list(self, folder: str) -> list[str]:
        """See the port."""
        return self.inner.list(self._inside(folder))

    def sync_directory(self, folder: str) -> None:
        """See the port."""
        with self.switch.call(f"sync folder {folder}"):
            self.inner.sync_directory(self._inside(folder))

    def link(self, old: str, new: str) -> None:
        """See the port."""
        with self.switch.call(f"link {old} to {new}"):
            self.inner.link(self._folder + old, self._folder + new)

    def make_folder(self, folder: str) -> None:
        """See the port."""
        with self.switch.call(f"make folder {folder}"):
            self.inner.make_folder(self._inside(folder))

    def stat(self, name: str) -> SimulatedStatus:
        """See the port."""
        return self.inner.stat(self._folder + name)

    def has(self, name: str, file: object) -> bool:
        """See the port."""
        assert isinstance(file, SwitchedFile), file
        return self.inner.has(self._folder + name, file.inner)

    def folders(self, folder: str) -> Sequence[str]:
        """See the port."""
        return self.inner.folders(self._inside(folder))

    def _inside(self, folder: str) -> str:
        return (self._folder + folder).rstrip("/")


class SwitchedFile:
    """A file of a `SwitchedDevice`."""

    def __init__(self, file: SimulatedFile, name: str, switch: PowerSwitch) -> None:
        self.inner = file
        self._name = name
        self._switch = switch

    def write_at(self, position: int, buffers: Sequence[Buffer]) -> None:
        """See the port."""
        with self._switch.call(f"write {self._name} at {position}"):
            self.inner.write_at(position, buffers)

    def write_synced(self, position: int, buffers: Sequence[Buffer]) -> None:
        """See the port. Two calls: the power may go in between."""
        self.write_at(position, buffers)
        self.sync()

    def read_at(self, position: int, length: int) -> bytes:
        """See the port."""
        return self.inner.read_at(position, length)

    def view_at(self, position: int, length: int) -> memoryview:
        """See the port."""
        return self.inner.view_at(position, length)

    def sync(self) -> None:
        """See the port."""
        with self._switch.call(f"sync {self._name}"):
            self.inner.sync()

    def size(self) -> int:
        """See the port."""
        return self.inner.size()

    def close(self) -> None:
        """See the port."""
        self.inner.close()
