"""Tasks that no caller waits for: their failures are counted and said, however they end."""

import ast
import asyncio
import logging
from pathlib import Path

import pytest

from penstock.system import background
from penstock.system.background import KINDS, Work, of_loop, start

SOURCE = Path(__file__).parents[3] / "src" / "penstock"
LASTING = Work(name="lasting", lasts=True, matters=True)
SHORT = Work(name="short", matters=True)
BEGIN = ("create_task", "ensure_future")
AWAITED = {
    "app/api/checks.py:check_objects": "gathered",
    "app/authz/connection.py:ApiConnection._begin": "its outcome is the answer",
    "authz/service/decisions.py:DecisionLog.follow": "its outcome is the answer",
    "authz/service/following.py:SharedDirectoryWriter.submit": "its outcome is the answer",
    "authz/service/following.py:StreamFollower.submit": "its outcome is the answer",
    "app/http/progress_lines.py:progress_lines": "gathered, and its error is a line of the answer",
    "agent/jobs.py:Jobs.start": "each round reports here by itself",
    "app/run.py:_unless": "waited for, and its result is taken",
    "app/host/supervisor.py:Supervisor.start": "gathered at the end; a parent serves no clients",
    "kafka/net/exchange.py:Exchange.start": "its error closes the connection, with a line",
    "kafka/handlers/sasl_token.py:serve": "its error ends the connection, with a line",
    "kafka/net/tls_acceptor.py:TlsAcceptor._begin": "its result is taken when it is over",
    "kafka/handlers/list_offsets.py:_look_all_up": "a task group",
    "kafka/produce/long_produce.py:LongProduce.begin": "its error ends the connection, with a line",
    "kafka/net/piece_sender.py:PieceSender.send": "its error closes the connection, with a line",
    "kafka/fetch/long_fetch.py:LongFetch.begin": "its error closes the connection, with a line",
    "kafka/fetch/long_fetch.py:LongFetch.resume": "its error closes the connection, with a line",
    "kafka/handlers/metadata.py:_later": "its error closes the connection, with a line",
    "log/fetch/blocks.py:BlockCache.load": "one load that all its readers await",
    "log/fetch/object_runs.py:ObjectRuns._begin": "one load that all its readers await",
    "log/fetch/regions.py:FileRuns.load": "one load that all its readers await",
    "order/cluster_order.py:ClusterOrder._catch_up": "waited for, and its result is taken",
    "objects/hedged.py:Hedged._first_of": "waited for, and its result is taken",
    "peers/blocks.py:OwnBlocks.read": "one load that all its readers await",
    "peers/serve.py:serve_blocks": "their outcomes are the answer",
    "peers/serve.py:serve_wal": "their outcomes are the answer",
    "peers/zone.py:ZoneStore._send": "one load that all its readers await",
    "replica/follower.py:Follower.run": "waited for, and its result is taken",
    "replica/follower.py:Follower._idle": "a hint: one that fails is none, and the poll comes",
    "replica/postgres/lane.py:Lane.connected": "awaited, and noted for those that come later",
    "system/background.py:start": "the helper",
}

"""Places that begin tasks by themselves, and who takes their errors."""


def places() -> set[str]:
    found = set()
    for path in SOURCE.rglob("*.py"):
        relative = path.relative_to(SOURCE).as_posix()
        if relative.startswith("testing/"):
            continue

        def look(node: ast.AST, names: tuple[str, ...], relative: str = relative) -> None:
            for child in ast.iter_child_nodes(node):
                inside = names
                if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                    inside = (*names, child.name)
                if isinstance(child, ast.Attribute) and child.attr in BEGIN:
                    found.add(f"{relative}:{'.'.join(inside)}")
                look(child, inside)

        source = path.read_text(encoding="utf-8")
        if any(name in source for name in BEGIN):
            look(ast.parse(source), ())
    return found


@pytest.mark.slow
def test_every_other_task_is_one_that_a_caller_awaits() -> None:
    assert places() == set(AWAITED)


def test_each_kind_of_work_is_listed_once_and_begun_somewhere() -> None:
    named = {value for value in vars(background).values() if isinstance(value, Work)}
    assert named == set(KINDS)
    assert len({work.name for work in KINDS}) == len(KINDS)
    source = "".join(path.read_text(encoding="utf-8") for path in SOURCE.rglob("*.py"))
    for name, value in vars(background).items():
        if isinstance(value, Work):
            assert f"background.{name}" in source, name


async def fail() -> None:
    raise ValueError("a bug")


async def succeed() -> None:
    pass


async def test_a_task_that_fails_is_told_and_takes_readiness_until_one_succeeds(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        with pytest.raises(ValueError, match="a bug"):
            await start(SHORT, fail)
        assert of_loop().counts["short"] == 1
        assert of_loop().not_ready() == "short failed: a bug"
        await start(SHORT, succeed)
        assert of_loop().not_ready() == ""

    with caplog.at_level(logging.ERROR):
        await main()
    assert "short failed: a bug" in caplog.text
    assert "Traceback" in caplog.text


async def test_a_task_that_should_last_and_ends_is_a_failure() -> None:
    await start(LASTING, succeed)
    assert of_loop().counts["lasting"] == 1
    assert of_loop().not_ready() == "lasting failed: it ended by itself"


async def test_a_task_that_its_owner_cancels_is_none() -> None:
    ended = 0

    async def last() -> None:
        nonlocal ended
        try:
            await asyncio.Event().wait()
        finally:
            ended += 1

    begun, unbegun = start(LASTING, last), start(LASTING, last)
    unbegun.cancel()
    await asyncio.sleep(0)
    begun.cancel()
    await asyncio.gather(begun, unbegun, return_exceptions=True)
    assert ended == 1
    assert of_loop().status() == {}
