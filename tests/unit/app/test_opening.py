"""What a server opens is closed in an order that no thread notices."""

import threading
from contextlib import ExitStack
from pathlib import Path

from penstock.agent.own import OwnJournal
from penstock.app.opening import Opening
from penstock.app.parts import Environment
from penstock.config.addresses import Address
from penstock.config.settings import ServerSettings
from penstock.log.layout import DataLayout
from penstock.log.opening.embedded import open_journal
from penstock.objects import open_store
from penstock.system.believed_clock import BelievedClock
from penstock.system.clock import SystemClock
from penstock.system.files import PosixDevice
from penstock.system.randomness import SystemRandom


def test_connections_are_closed_after_the_threads_that_use_them_have_ended(
    tmp_path: Path,
) -> None:
    """A connection that is closed while a thread uses it ends the process."""
    layout = DataLayout.of(str(tmp_path))
    order = open_journal(
        layout.metadata, PosixDevice(tmp_path), clock=SystemClock(), random=SystemRandom()
    )
    order.close()
    environment = Environment(
        clock=BelievedClock(SystemClock(), after_ms=0),
        random=SystemRandom(),
        on_fatal=lambda error: None,
        advertised=Address("h", 9092),
        peer=None,
    )
    closing = ExitStack()
    opening = Opening(ServerSettings(data=str(tmp_path)), environment, layout, closing)
    ports = opening.ports(
        OwnJournal(database=layout.metadata), lambda: open_store(str(layout.objects))
    )
    queries = ports.open_queries(layout.metadata, None)
    uses, is_closing = threading.Event(), threading.Event()

    def use() -> int:
        mine = queries()
        uses.set()
        is_closing.wait(10)
        return mine.position()

    ports.on_close(is_closing.set)
    position = opening.pool.submit(use)
    uses.wait(10)
    closer = threading.Thread(target=closing.close)
    closer.start()
    closer.join(0.05)
    assert closer.is_alive(), "it waits for the thread"
    is_closing.set()
    closer.join(10)
    assert position.result() >= 0
