"""Groups and the Kafka face over a log, without the sockets: what answers clients' requests."""

from penstock.agent.company import Company
from penstock.agent.foundation import Foundation
from penstock.agent.ports import AgentPorts
from penstock.agent.settings import AgentSettings
from penstock.groups.coordinator import GroupCoordinator
from penstock.kafka.broker import Broker
from penstock.kafka.instruments import NoInstruments
from penstock.kafka.record_checks import RecordChecks
from penstock.system.turns import Turns


def join_clients(
    foundation: Foundation,
    company: Company | None,
    settings: AgentSettings,
    ports: AgentPorts,
) -> tuple[GroupCoordinator, Broker]:
    """Join groups and broker; nothing listens yet."""
    turns = Turns()
    groups = GroupCoordinator(
        committer=foundation.order,
        view=foundation.view,
        queries=foundation.queries(),
        clock=ports.clock,
        random=ports.random,
        settings=settings.groups,
        ownership=None if company is None else company.shards,
        shows_answers=foundation.shows_answers,
        now_ms=foundation.ages.now_ms,
        turns=turns,
    )
    foundation.log.following.on_offsets_settled = groups.offsets_settled
    broker = Broker(
        view=foundation.view,
        committer=foundation.order,
        log=foundation.log,
        groups=groups,
        clock=ports.clock,
        random=ports.random,
        cluster_id=foundation.cluster_id,
        node_id=foundation.agent_id,
        advertised_host=settings.advertised_host,
        advertised_port=settings.advertised_port,
        settings=settings.kafka,
        instruments=ports.kafka_instruments or NoInstruments(),
        turns=turns,
        position=lambda: foundation.order.position,
        heads=foundation.heads,
        cluster=None if company is None else company.nodes,
        record_checks=RecordChecks(ports.checks_pool),
    )
    return groups, broker
