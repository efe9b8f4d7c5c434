"""The worker processes of one host get their settings and restart delays from here. Pure.

Worker 0 writes the journal. All workers serve clients, each on ports of its own: the settings'
ports plus the worker's index.
"""

from dataclasses import dataclass
from typing import Final

import msgspec

from penstock.config.addresses import Address, parse_address
from penstock.config.settings import ServerSettings
from penstock.model.errors import InvalidRequestError
from penstock.system.backoff import Backoff

JOURNAL_WRITER: Final = 0
RESTART: Final = Backoff(first_s=0.1, most_s=5.0)
SETTLED_AFTER_S: Final = 10.0
"""After a worker has run for this long, its next restart waits only for the first delay again."""


@dataclass(frozen=True, slots=True)
class WorkerPlace:
    """A process's index among the workers, and the descriptor of its socket to the parent.

    The worker writes a line to the socket when it is ready; the socket's end means that the parent
    has ended.
    """

    index: int
    descriptor: int

    def __str__(self) -> str:
        return f"{self.index}:{self.descriptor}"

    @classmethod
    def parse(cls, text: str) -> "WorkerPlace":
        """Read what `str` has written. Raises: InvalidRequestError."""
        index, colon, descriptor = text.partition(":")
        if not (colon and index.isdigit() and descriptor.isdigit()):
            raise InvalidRequestError("start worker", text, "not INDEX:DESCRIPTOR")
        return cls(int(index), int(descriptor))


def worker_settings(settings: ServerSettings, index: int) -> ServerSettings:
    """Return the settings of worker `index`: its ports are the settings' ports plus the index. A
    port 0, which means any free port, stays 0.

    Raises:
        InvalidRequestError: a port would be above 65535.
    """
    return msgspec.structs.replace(
        settings,
        kafka=_shifted(settings.kafka, index, setting="kafka"),
        http=_shifted(settings.http, index, setting="http"),
        advertised=_shifted(settings.advertised, index, setting="advertised"),
        listeners=_shifted_all(settings.listeners, index, setting="listeners"),
        advertised_listeners=_shifted_all(
            settings.advertised_listeners, index, setting="advertised_listeners"
        ),
    )


def _shifted_all(text: str, index: int, *, setting: str) -> str:
    """Shift the ports of NAME://HOST:PORT, several separated by commas."""
    shifted = []
    for part in text.split(",") if text.strip() else ():
        name, _, address = part.strip().partition("://")
        shifted.append(f"{name}://{_shifted(address, index, setting=setting)}")
    return ",".join(shifted)


def _shifted(text: str, index: int, *, setting: str) -> str:
    if not text:
        return text
    address = parse_address(text, setting=setting)
    if address.port == 0:
        return text
    if address.port + index > 65535:
        raise InvalidRequestError(
            "start workers", setting, f"{text} plus {index} is above 65535", "take a lower port"
        )
    return str(Address(address.host, address.port + index))


class RestartDelays:
    """Gives the pause before a worker that ended is started again, which grows with each end until
    the worker has run for `SETTLED_AFTER_S`. Times are seconds of a monotonic clock."""

    def __init__(self) -> None:
        self._ends_in_a_row = 0

    def next_delay_s(self, *, ran_s: float) -> float:
        """Return the pause before the next start, after the worker ran for `ran_s`."""
        if ran_s >= SETTLED_AFTER_S:
            self._ends_in_a_row = 0
        self._ends_in_a_row += 1
        return RESTART.after(self._ends_in_a_row)
