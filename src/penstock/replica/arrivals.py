"""Readers that wait until a position is applied."""

import asyncio


class Arrivals:
    """Event loop only."""

    def __init__(self) -> None:
        self._waiting: dict[asyncio.Future[None], int] = {}

    async def wait(self, position: int, seconds: float) -> None:
        """Wait for a position that isn't applied yet. Raises: TimeoutError."""
        arrival: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[arrival] = position
        try:
            async with asyncio.timeout(seconds):
                await arrival
        finally:
            self._waiting.pop(arrival, None)

    def moved(self, position: int) -> None:
        """It is applied up to a position."""
        if not self._waiting:
            return
        for arrival, wanted in list(self._waiting.items()):
            if wanted <= position and not arrival.done():
                arrival.set_result(None)

    def fail(self, error: Exception) -> None:
        """Nothing more is going to be applied."""
        for arrival in self._waiting:
            if not arrival.done():
                arrival.set_exception(error)
