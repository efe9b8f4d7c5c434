"""librdkafka is imported here; its clients share these settings, and their log is kept here.

confluent-kafka, which contains librdkafka, has wheels for glibc, macOS and Windows. On other
platforms all commands that don't need it still run: it is imported only when one that does is
called.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from penstock.cli.client.errors import translated
from penstock.model.errors import NotFoundError, PenstockError, RetryableError

if TYPE_CHECKING:
    from penstock.cli.client.security import ClientSecurity
    from penstock.config.addresses import Address

CLIENT_ID: Final = "penstock"
RECONNECT_MS_MAX: Final = 1000
SOCKET_TIMEOUT_MS: Final = (10, 300_000)
"""The least and the greatest socket time-out that librdkafka accepts."""
_FAILURE: Final = re.compile(
    r"(?:\[thrd:[^\]]*\]: )?(?:GroupCoordinator: )?(?P<node>\S+?)(?:/\w+)?: "
    r"(?:Connect to \S+ failed: )?(?P<why>.*?)(?: \(after .*)?$"
)
_DOUBTS: Final = frozenset({"FAIL", "PARTCNT"})
_SLICE_S: Final = 0.1


def confluent_kafka() -> ModuleType:
    """Import the package. Raises: NotFoundError: it is not installed or does not load."""
    try:
        import confluent_kafka
        import confluent_kafka.admin
    except ImportError as error:
        raise NotFoundError(
            "import",
            "confluent-kafka",
            f"this command needs the package to speak to servers: {error}",
            "pip install confluent-kafka; where it has no wheel (musl), build it with "
            "librdkafka's headers or run the command elsewhere",
        ) from error
    return confluent_kafka


class Log:
    """Takes librdkafka's log lines: prints none, and keeps why the last connection failed.

    `doubt_count` counts events after which servers or topics may have gone: connections that
    failed, and topics whose number of partitions changed (0: the topic was deleted).
    """

    def __init__(self) -> None:
        self.failure = ""
        self.failure_count = 0
        self.doubt_count = 0

    def log(self, _level: int, _form: str, facility: str, _name: str, text: str) -> None:
        """Take a line. librdkafka calls this while the client's owner polls."""
        if facility in _DOUBTS:
            self.doubt_count += 1
        if facility == "FAIL":
            self.failure_count += 1
            found = _FAILURE.match(text)
            self.failure = f"{found['node']}: {found['why']}" if found else text


def settings(
    bootstrap: Address, timeout_s: float, log: Log, security: ClientSecurity | None = None
) -> dict[str, Any]:
    """Return the settings that every client of librdkafka is made with.

    Args:
        timeout_s: the longest time that one request may take.
    """
    least, most = SOCKET_TIMEOUT_MS
    timeout_ms = min(max(int(timeout_s * 1000), least), most)
    return {
        "bootstrap.servers": str(bootstrap),
        "client.id": CLIENT_ID,
        "logger": log,
        "reconnect.backoff.max.ms": RECONNECT_MS_MAX,
        "socket.timeout.ms": timeout_ms,
        "socket.connection.setup.timeout.ms": max(timeout_ms, 1000),
        **({} if security is None else security.librdkafka()),
    }


def within(wait_s: float, operation: str, subject: str, call: Callable[[], None], log: Log) -> None:
    """Give a deadline to a blocking call of librdkafka that has none, and that Ctrl-C doesn't end.

    Raises:
        RetryableError: the call didn't return in time; it goes on in its thread.
        PenstockError: librdkafka's error, translated.
    """
    kafka = confluent_kafka()
    raised: list[Exception] = []

    def run() -> None:
        try:
            call()
        except (kafka.KafkaException, PenstockError, RuntimeError) as error:
            raised.append(error)

    thread = threading.Thread(target=run, name=operation, daemon=True)
    thread.start()
    for _ in range(int(wait_s / _SLICE_S)):
        thread.join(_SLICE_S)
        if not thread.is_alive():
            break
    else:
        raise RetryableError(operation, subject, f"no answer in {wait_s:g} s", log.failure)
    for error in raised:
        if isinstance(error, kafka.KafkaException):
            raise translated(error.args[0], operation, subject, failure=log.failure) from error
        raise error
