"""An agent's own WAL, as its log sees it."""

from collections.abc import Callable
from typing import Protocol

from penstock.log.append.paths import AppendPath
from penstock.log.upload.uploader import Uploader


class OwnWal(AppendPath, Protocol):
    """The agent's own WAL, which is the append path `Path.WAL`. Event loop only."""

    @property
    def append_bytes_max(self) -> int:
        """The largest total of one `append` call, in bytes."""
        ...

    @property
    def uploader(self) -> Uploader | None:
        """Moves the own WAL to segment objects; None while there is none."""
        ...

    @property
    def free_bytes(self) -> int:
        """Bytes that the own WAL can still take; 0 while there is none."""
        ...

    async def start(self, *, is_default: bool) -> None:
        """Serve what lies in the own WAL.

        Args:
            is_default: topics go to it unless their configs say otherwise.

        Raises: as the implementation says.
        """
        ...

    def hold(self) -> None:
        """See `Log.hold`."""
        ...

    def settle(self, *, all_came: bool) -> None:
        """See `Log.settle`."""
        ...

    def hurry(self, *, hurries: bool) -> None:
        """Keep the own WAL empty, since this agent is being drained; or no more."""
        ...

    async def drain(self, left_s: Callable[[], float]) -> bool:
        """Answer what is under way and move what is in the WAL to objects; whether all was."""
        ...

    async def close(self) -> None:
        """Stop everything and close the files."""
        ...
