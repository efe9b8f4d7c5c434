"""Groups and the Kafka face over a log, the same in every shape of a server."""

from collections.abc import Callable
from concurrent.futures import Executor
from typing import NamedTuple

from penstock.app.instruments import KafkaInstruments
from penstock.app.limits import group_settings, kafka_settings
from penstock.app.parts import Environment
from penstock.config.settings import ServerSettings
from penstock.groups.coordinator import GroupCoordinator
from penstock.groups.ownership import Ownership
from penstock.groups.settings import GroupSettings
from penstock.kafka.broker import Broker
from penstock.kafka.instruments import Instruments, NoInstruments
from penstock.kafka.net.server import KafkaServer
from penstock.kafka.nodes import Nodes
from penstock.kafka.record_checks import RecordChecks
from penstock.kafka.settings import KafkaSettings
from penstock.log.serving import ServingLog
from penstock.observability.metrics import Metrics
from penstock.order.committer import Committer
from penstock.order.heads import Heads
from penstock.state.read.queries import Queries
from penstock.state.read.view import StateView
from penstock.system.turns import Turns


class Face(NamedTuple):
    """What clients meet."""

    groups: GroupCoordinator
    broker: Broker
    kafka: KafkaServer


def open_face(
    settings: ServerSettings,
    environment: Environment,
    *,
    metrics: Metrics,
    view: StateView,
    queries: Queries,
    log: ServingLog,
    committer: Committer,
    cluster_id: str,
    node_id: int,
    shows_answers: Callable[[], bool],
    now_ms: Callable[[], int | None],
    ownership: Ownership | None = None,
    heads: Heads | None = None,
    cluster: Nodes | None = None,
) -> Face:
    """Put groups and face together; nothing listens yet.

    Args:
        queries: of the event loop's thread.
        shows_answers, ownership, now_ms: see `GroupCoordinator`; heads, cluster: see `Broker`.
    """
    groups, broker = open_clients(
        environment,
        group_settings=group_settings(settings),
        kafka_settings=kafka_settings(settings),
        instruments=KafkaInstruments(metrics),
        view=view,
        queries=queries,
        log=log,
        committer=committer,
        cluster_id=cluster_id,
        node_id=node_id,
        shows_answers=shows_answers,
        ownership=ownership,
        heads=heads,
        cluster=cluster,
        now_ms=now_ms,
    )
    return Face(groups, broker, KafkaServer(broker))


def open_clients(
    environment: Environment,
    *,
    group_settings: GroupSettings,
    kafka_settings: KafkaSettings,
    instruments: Instruments | None,
    view: StateView,
    queries: Queries,
    log: ServingLog,
    committer: Committer,
    cluster_id: str,
    node_id: int,
    shows_answers: Callable[[], bool],
    now_ms: Callable[[], int | None],
    ownership: Ownership | None = None,
    heads: Heads | None = None,
    cluster: Nodes | None = None,
    checks_pool: Executor | None = None,
) -> tuple[GroupCoordinator, Broker]:
    """Join what answers clients' requests, without the sockets. Arguments as of `open_face`.

    Args:
        checks_pool: see `RecordChecks`.
    """
    turns = Turns()
    groups = GroupCoordinator(
        committer=committer,
        view=view,
        queries=queries,
        clock=environment.clock,
        random=environment.random,
        settings=group_settings,
        ownership=ownership,
        shows_answers=shows_answers,
        now_ms=now_ms,
        turns=turns,
    )
    broker = Broker(
        view=view,
        committer=committer,
        log=log,
        groups=groups,
        clock=environment.clock,
        random=environment.random,
        cluster_id=cluster_id,
        node_id=node_id,
        advertised_host=environment.advertised.host,
        advertised_port=environment.advertised.port,
        settings=kafka_settings,
        instruments=instruments or NoInstruments(),
        turns=turns,
        heads=heads,
        cluster=cluster,
        record_checks=RecordChecks(checks_pool),
    )
    return groups, broker
