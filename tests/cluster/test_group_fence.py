"""A coordinator that has not heard that its groups are another's by now: its commit is in the
journal, behind the other's claim, and apply refuses it there."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest

from support.agents import Agent, Agents, run_cli
from support.committer import Committer, committed
from support.links import Link, Links
from support.probe import create_topic
from support.waiting import eventually

TOPIC = "t"
UNGUARDED = str(Path(__file__).parents[1] / "support" / "unguarded.py")
SETTINGS = {
    # Nobody is fenced as an agent: its entries are taken, and what refuses one is its shard.
    "AGENT_TIMEOUT_MS": "300000",
    "ARCHIVE_INTERVAL_MS": "3600000",
}


@pytest.fixture
def agents(
    tmp_path: Path, postgres_url: str, journal_name: str
) -> Iterator[tuple[Agent, Agent, Link]]:
    """One without the guard that is before apply, another, and the first's link to the journal."""
    found = urlsplit(postgres_url)
    assert found.hostname is not None
    with Links() as links:
        link = links.open(found.hostname, found.port or 5432)
        by_link = found._replace(netloc=f"{found.username}@127.0.0.1:{link.port}").geturl()
        with Agents(
            tmp_path,
            journal=[by_link, postgres_url],
            objects=f"file://{tmp_path}/bucket",
            settings={"CLUSTER_NAME": journal_name, **SETTINGS},
        ) as made:
            believer = made.prepare()
            believer.server.launcher = (UNGUARDED,)
            believer.server.start()
            other = made.add()
            made.wait_live()
            yield believer, other, link
            link.heal()


def shards(agent: Agent) -> list[int]:
    """How many each agent has."""
    return [known["shards"] for known in agent.known_agents().values()]


def wait_settled(agent: Agent) -> None:
    """Until each agent has shards, and they move no more."""

    def moves() -> bool:
        before = shards(agent)
        time.sleep(1.5)
        return not (all(before) and sum(before) == 64 and shards(agent) == before)

    eventually(moves, lambda found: not found)


def coordinated_by(agent: Agent) -> str:
    """A group that an agent coordinates, with 5 committed."""
    for number in range(200):
        group_id = f"believed-{number}"
        with contextlib.closing(Committer(agent.address, group_id, TOPIC)) as committer:
            if committer.commit(5) == "NONE":
                return group_id
    raise AssertionError("it coordinates nothing")


def entries_about(postgres_url: str, journal: str, text: str) -> int:
    """How many of the journal's entries hold a text."""
    with psycopg.connect(postgres_url) as connection:
        row = connection.execute(
            f"SELECT count(*) FROM {journal}_journal"  # type: ignore[arg-type]
            " WHERE position(convert_to(%s, 'UTF8') IN body) > 0",
            (text,),
        ).fetchone()
    assert row is not None
    return int(row[0])


def test_a_commit_that_is_journaled_behind_anothers_claim_is_refused_by_apply(
    agents: tuple[Agent, Agent, Link], postgres_url: str, journal_name: str
) -> None:
    believer, other, link = agents
    create_topic(other.address, TOPIC, 1)
    wait_settled(other)
    group_id = coordinated_by(believer)
    assert committed(other.address, group_id, TOPIC, 1) == {0: 5}
    # From here on it hears of nothing, and what it says is heard.
    link.deafen()
    drained = run_cli("agent", "drain", str(believer.agent_id), "--http", other.http)
    assert drained.returncode == 0, drained.stderr
    with contextlib.closing(Committer(other.address, group_id, TOPIC)) as now:
        eventually(lambda: now.commit(9), lambda error: error == "NONE")
    before = entries_about(postgres_url, journal_name, group_id)
    late = Committer(believer.address, group_id, TOPIC)
    late.begin(1)
    eventually(
        lambda: entries_about(postgres_url, journal_name, group_id), lambda count: count > before
    )
    link.heal()
    assert late.end() == "NOT_COORDINATOR"
    assert "a group's command came after its shard had moved" in believer.server.tail()
    assert committed(other.address, group_id, TOPIC, 1) == {0: 9}
