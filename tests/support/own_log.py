"""A log on a journal of its own, joined as `penstock.agent.own` does."""

from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import suppress
from typing import Any

from penstock.log import Log, LogSettings
from penstock.log.append.lane import CommitLane
from penstock.log.state_queries import OwnQueries
from penstock.log.wals.lane_wal import LaneWal
from penstock.log.wals.parts import LogParts
from penstock.ports.clock import Clock
from penstock.ports.objects import ObjectStore
from penstock.state.ages import Ages
from penstock.state.orders import LocalOrder
from penstock.state.read.queries import Queries
from penstock.state.read.view import StateView
from penstock.wal import WalReader, WalWriter


def own_log(
    *,
    journal: Any,
    view: StateView,
    queries: Callable[[], Queries],
    wal_writer: WalWriter,
    wal_reader: WalReader,
    store: ObjectStore,
    clock: Clock,
    ages: Ages,
    limits: LogSettings,
    pool: Executor,
    on_fatal: Callable[[BaseException], None],
) -> tuple[LaneWal, LocalOrder, Log]:
    """`journal`: a `LocalJournal`, or what stands in front of one."""
    lane = CommitLane(
        wal=wal_writer,
        journal=journal,
        known_producer=lambda key, producer_id: queries().producer(key, producer_id),
        clock=clock,
        levels=view,
        limits=limits,
        on_fatal=on_fatal,
    )
    order = LocalOrder(journal, lane, clock=clock)

    def make_wal(parts: LogParts) -> LaneWal:
        return LaneWal(parts, lane=lane, order=order, writer=wal_writer, reader=wal_reader)

    log = Log(
        order=order,
        own_wal=make_wal,
        view=view,
        queries=OwnQueries(queries, journal, pool),
        store=store,
        clock=clock,
        ages=ages,
        limits=limits,
        agent_id=journal.agent_id,
        pool=pool,
        on_fatal=on_fatal,
        database=journal,
    )
    assert isinstance(log.own_wal, LaneWal)
    return log.own_wal, order, log


def start_own_log(order: LocalOrder, log: Log) -> None:
    """At once: the start of a log whose WAL is open waits for nothing."""
    order.start(on_applied=log.on_applied, on_answered=log.on_answered)
    with suppress(StopIteration):
        log.start(epoch=order.epoch).send(None)
