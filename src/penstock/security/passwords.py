"""Passwords are checked in threads of their own: one check takes milliseconds.

The hash lets go of the interpreter's lock, so that the event loop goes on. Checks are bounded per
address and in all: one that guesses passwords fills neither the queue nor the processors of others.
"""

import asyncio
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from penstock.model.errors import OverloadedError
from penstock.security.scram.credential import (
    ITERATIONS_MIN,
    ScramCredential,
    ScramMechanism,
    has_password,
)

THREADS: Final = 1
CHECKS_PER_ADDRESS_MAX: Final = 16
CHECKS_MAX: Final = 256
_NOBODY: Final = ScramCredential(
    mechanism=ScramMechanism.SHA_512,
    iterations=ITERATIONS_MIN,
    salt=bytes(16),
    stored_key=bytes(64),
    server_key=bytes(64),
)
"""Checked where there is no credential, so that it takes as long; no password has such keys."""


class PasswordChecks:
    """Checks passwords. Event loop only; `close` it in the end."""

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._by_address: Counter[str] = Counter()
        self._count = 0

    async def check(
        self, credential: ScramCredential | None, password: bytes, address: str
    ) -> bool:
        """Whether the password is the credential's.

        Args:
            credential: the user's; None if the user doesn't exist.

        Raises:
            OverloadedError: too many checks wait, of this address or in all.
        """
        if self._by_address[address] >= CHECKS_PER_ADDRESS_MAX or self._count >= CHECKS_MAX:
            waiting = self._by_address[address]
            raise OverloadedError(
                "check a password",
                f"client at {address}",
                f"{waiting} of this address wait, {self._count} in all",
                "use SCRAM, which costs the server little, or connect more slowly",
            )
        if self._pool is None:
            # Most servers never need it.
            self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="passwords")
        self._by_address[address] += 1
        self._count += 1
        try:
            is_right = await asyncio.get_running_loop().run_in_executor(
                self._pool, has_password, credential or _NOBODY, password
            )
        finally:
            self._count -= 1
            self._by_address[address] -= 1
            if not self._by_address[address]:
                del self._by_address[address]
        return is_right and credential is not None

    def close(self) -> None:
        """Take no more; a check under way ends by itself."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
