"""What the worker processes of one host are told. Pure.

Worker 0 writes the journal; all serve clients, each on ports of its own, counted up from the
settings'.
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
"""A worker that has run so long begins with the first delay again."""


@dataclass(frozen=True, slots=True)
class WorkerPlace:
    """Which worker a process is, and the descriptor of the socket that ties it to its parent:
    it writes a line there when it is ready, and reads the end of the parent's life there."""

    index: int
    descriptor: int

    def __str__(self) -> str:
        return f"{self.index}:{self.descriptor}"

    @classmethod
    def parse(cls, text: str) -> "WorkerPlace":
        """The inverse of `str`. Raises: InvalidRequestError."""
        index, colon, descriptor = text.partition(":")
        if not (colon and index.isdigit() and descriptor.isdigit()):
            raise InvalidRequestError("start worker", text, "not INDEX:DESCRIPTOR")
        return cls(int(index), int(descriptor))


def worker_settings(settings: ServerSettings, index: int) -> ServerSettings:
    """The settings of worker `index`: its ports are the settings' plus its index; a port 0, which
    takes a free one, stays.

    Raises:
        InvalidRequestError: there are not so many ports.
    """
    return msgspec.structs.replace(
        settings,
        kafka=_shifted(settings.kafka, index, setting="kafka"),
        http=_shifted(settings.http, index, setting="http"),
        advertised=_shifted(settings.advertised, index, setting="advertised"),
    )


def _shifted(text: str, index: int, *, setting: str) -> str:
    if not text:
        return text
    address = parse_address(text, setting=setting)
    if address.port == 0:
        return text
    if address.port + index > 65535:
        raise InvalidRequestError(
            "start workers", setting, f"{text} plus {index} is no port", "take a lower base port"
        )
    return str(Address(address.host, address.port + index))


class RestartDelays:
    """How long to wait before a worker that ended is started again: longer each time, until one
    has run for `SETTLED_AFTER_S`. All times in seconds of a monotonic clock."""

    def __init__(self) -> None:
        self._ends_in_a_row = 0

    def next_delay_s(self, *, ran_s: float) -> float:
        """Return the pause before the next start, after the worker ran for `ran_s`."""
        if ran_s >= SETTLED_AFTER_S:
            self._ends_in_a_row = 0
        self._ends_in_a_row += 1
        return RESTART.after(self._ends_in_a_row)
