"""`penstock agent` lists, drains and removes a cluster's agents."""

import time
from typing import Final

import click

from penstock.cli.client.http import JsonObject, call, http_option
from penstock.cli.options import json_option, timeout_option
from penstock.cli.progress import Progress
from penstock.cli.tables import counted, print_json, print_table
from penstock.model.errors import NotFoundError, RetryableError

LOOK_S: Final = 0.5
_any_agent = http_option("HTTP port of any agent, or its URL.")


@click.group("agent", context_settings={"help_option_names": ["-h", "--help"]})
def command() -> None:
    """List, drain and remove the agents of a cluster.

    Each command asks one agent over HTTP. PENSTOCK_CLUSTER_SECRET must be the cluster's secret.
    """


@command.command("list")
@_any_agent
@json_option
@timeout_option
def list_(url: str, as_json: bool, timeout_s: float) -> None:
    """List all agents that the cluster knows."""
    agents = _agents(url, timeout_s)
    if as_json:
        print_json({"agents": agents})
        return
    print_table(
        ["ID", "STATUS", "KAFKA", "HTTP", "LABELS", "GROUP SHARDS", "WAL RUNS", "VERSION"],
        [
            [
                str(agent["id"]),
                agent["status"],
                agent["kafka"],
                agent["http"],
                ",".join(f"{name}={text}" for name, text in sorted(agent["labels"].items())),
                str(agent["shards"]),
                str(agent["wal_runs"]),
                agent["version"],
            ]
            for agent in agents
        ],
    )


@command.command("drain")
@click.argument("agent_id", metavar="ID", type=int)
@click.option("--undo", is_flag=True, help="Let the agent take clients and groups again.")
@click.option(
    "--wait/--no-wait", default=True, show_default=True, help="Wait until the agent holds nothing."
)
@click.option(
    "--deadline",
    "deadline_s",
    metavar="SECONDS",
    type=click.FloatRange(min=0),
    default=300.0,
    show_default=True,
    help="Longest time to wait.",
)
@_any_agent
@json_option
@timeout_option
def drain(
    agent_id: int,
    undo: bool,
    wait: bool,
    deadline_s: float,
    url: str,
    as_json: bool,
    timeout_s: float,
) -> None:
    """Give an agent no new clients, hand over its groups and empty its WAL.

    Connected clients are still served; they leave when they next refresh their metadata.
    """
    call(
        "drain agent",
        url,
        f"/v1/agents/{agent_id}/drain",
        method="POST",
        body={"draining": not undo},
        timeout_s=timeout_s,
    )
    agent = _agent(url, agent_id, timeout_s)
    if wait and not undo:
        agent = _wait_drained(url, agent_id, deadline_s=deadline_s, timeout_s=timeout_s)
    if as_json:
        print_json(agent)
    else:
        click.echo(f"agent {agent_id} is {agent['status']}, and holds {_held_text(agent)}")


@command.command("remove")
@click.argument("agent_id", metavar="ID", type=int)
@_any_agent
@timeout_option
def remove(agent_id: int, url: str, timeout_s: float) -> None:
    """Forget an agent that is gone.

    The cluster refuses while the agent lives, and while its WAL holds records that are in no
    segment: then an agent that reaches the WAL's directory must take it over first.
    """
    call("remove agent", url, f"/v1/agents/{agent_id}", method="DELETE", timeout_s=timeout_s)
    click.echo(f"agent {agent_id} is removed")


@command.command("takeover")
@click.argument("directory", metavar="DIR", type=click.Path(file_okay=False, exists=True))
@_any_agent
@timeout_option
def takeover(directory: str, url: str, timeout_s: float) -> None:
    """Let the agent at --http move the records in a dead agent's WAL to the bucket.

    DIR is the dead agent's data directory, as the agent at --http sees it.
    """
    answer = call(
        "take over",
        url,
        "/v1/takeover",
        method="POST",
        body={"directory": directory},
        timeout_s=max(timeout_s, 300.0),
    )
    click.echo(f"moved {counted(answer['bytes'], 'byte')} of {directory} to the bucket")


def _agents(url: str, timeout_s: float) -> list[JsonObject]:
    agents: list[JsonObject] = call("list agents", url, "/v1/agents", timeout_s=timeout_s)["agents"]
    return agents


def _agent(url: str, agent_id: int, timeout_s: float) -> JsonObject:
    for agent in _agents(url, timeout_s):
        if agent["id"] == agent_id:
            return agent
    raise NotFoundError(
        "look up agent",
        str(agent_id),
        "the cluster has no such agent",
        "penstock agent list shows its agents",
    )


def _held(agent: JsonObject) -> int:
    held: int = agent["shards"] + agent["wal_runs"]
    return held


def _held_text(agent: JsonObject) -> str:
    return f"{counted(agent['shards'], 'group shard')} and {counted(agent['wal_runs'], 'WAL run')}"


def _wait_drained(url: str, agent_id: int, *, deadline_s: float, timeout_s: float) -> JsonObject:
    until_s = time.monotonic() + deadline_s
    agent = _agent(url, agent_id, timeout_s)
    at_first = _held(agent)
    with Progress("group shards and WAL runs handed over", total=at_first or 1) as progress:
        while _held(agent):
            if time.monotonic() > until_s:
                raise RetryableError(
                    "drain agent",
                    str(agent_id),
                    f"it still holds {_held_text(agent)} after {deadline_s:g} s",
                    "draining goes on; see `penstock agent list`",
                )
            time.sleep(LOOK_S)
            agent = _agent(url, agent_id, timeout_s)
            done = max(0, at_first - _held(agent))
            progress.update(done, done)
    return agent
