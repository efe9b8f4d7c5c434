"""A server is killed between the put of a segment and the journal entry that names it."""

from __future__ import annotations

import json
import signal
from contextlib import closing
from pathlib import Path
from typing import Any

from confluent_kafka.admin import AdminClient, NewTopic

from penstock.state.read.queries import Queries
from support.dying_server import LAUNCHER, dying
from support.enduring_load import PARTITIONS, TOPIC, EnduringLoad, read_all
from support.server import ServerProcess, run_penstock
from support.waiting import eventually

QUICK = {
    "SEGMENT_AGE_MS": "100",
    "RETENTION_CHECK_MS": "200",
    "DELETE_GRACE_MS": "1000",
}
DEATHS = [("after", 1), ("before", 1), ("after", 2), ("after", 1), ("after", 3)]
"""Of one server after the other: at which of its puts. One that dies at its first put dies again
with what the one before it had left."""


def stored(data: Path) -> set[str]:
    objects = data / "objects"
    return {
        str(path.relative_to(objects))
        for path in (objects / "segments").rglob("*")
        if path.is_file()
    }


def named(data: Path) -> set[str]:
    with closing(Queries(data / "metadata.sqlite")) as queries:
        return {row.key for row in queries.objects("", limit=100_000)}


def verified(data: Path) -> list[dict[str, Any]]:
    done = run_penstock("verify", "--data", str(data), "--json", timeout_seconds=300)
    assert done.returncode == 0, done.stdout + done.stderr
    findings: list[dict[str, Any]] = json.loads(done.stdout)["findings"]
    return findings


def test_what_was_acknowledged_stays_and_the_orphan_goes(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path / "data", tmp_path / "server.log", QUICK)
    server.start()
    load = EnduringLoad(server.bootstrap)
    admin = AdminClient({"bootstrap.servers": server.bootstrap})
    for future in admin.create_topics([NewTopic(TOPIC, PARTITIONS)]).values():
        future.result(60)
    load.send(2 * PARTITIONS)
    load.flush()
    assert server.stop() == 0
    launcher = server.launcher
    for when, number in DEATHS:
        before = stored(server.data)
        server.launcher, server.environment = LAUNCHER, dying(when, number)
        process = server.launch()

        def has_died() -> bool:
            load.send(PARTITIONS)
            return process.poll() is not None  # noqa: B023 - called in this turn alone

        eventually(has_died, bool, timeout_seconds=120)
        assert process.returncode == -signal.SIGKILL, server.tail()
        server.process = None
        if when == "after":
            assert stored(server.data) - before - named(server.data), "the journal knows it"
        assert {finding["kind"] for finding in verified(server.data)} <= {"orphan"}
    server.launcher, server.environment = launcher, {}
    server.start()
    load.send(2 * PARTITIONS)
    load.flush()
    assert not load.failures
    assert read_all(server.bootstrap, len(load.acked)) == load.acked
    eventually(
        lambda: stored(server.data) - named(server.data),
        lambda orphans: not orphans,
        timeout_seconds=120,
    )
    assert server.stop() == 0
    assert verified(server.data) == []
