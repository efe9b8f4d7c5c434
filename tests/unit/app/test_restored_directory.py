"""An embedded server's directory that is made of a cluster's bucket."""

import asyncio
from contextlib import closing
from pathlib import Path

from penstock.app import recovery
from penstock.app.layout import DataLayout
from penstock.log.opening import open_order
from penstock.log.point_in_time import Moment
from penstock.log.verify_journal import verify_journal
from penstock.log.verify_report import VerifyReport
from penstock.metadata.commands import CreateTopic
from penstock.metadata.queries import Queries
from penstock.system.clock import SystemClock
from penstock.system.files import PosixDevice
from penstock.system.randomness import SystemRandom
from support.cluster_rig import Cluster, run_cluster
from unit.log.test_point_in_time import history_of, kill


def topics_of(data: Path) -> list[str]:
    with closing(Queries(data / "metadata.sqlite")) as queries:
        return [name for _, _, name, _, _ in queries.topic_rows()]


def serve(data: Path, *, topic: str = "") -> list[str]:
    """Start on a directory, and end at once, leaving it as a crash would. Returns its topics."""
    order = open_order(
        data / "metadata.sqlite", PosixDevice(data), clock=SystemClock(), random=SystemRandom()
    )
    if topic:
        order.append([CreateTopic(name=topic, topic_id=b"%16d" % 7, partitions=1)])
    order.close()
    (data / "metadata.sqlite.left").unlink(missing_ok=True)
    return topics_of(data)


def test_what_it_began_with_outlives_a_crash_and_the_loss_of_the_database(tmp_path: Path) -> None:
    bucket, data = tmp_path / "bucket", tmp_path / "data"

    async def test(cluster: Cluster) -> None:
        await history_of(cluster)
        await kill(cluster)
        for key, (stored, _) in cluster.store.objects.items():
            path = bucket / key
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(stored)

    run_cluster(tmp_path / "cluster", test)
    data.mkdir()
    asyncio.run(
        recovery.restore_cluster(
            str(bucket),
            DataLayout(data),
            moment=Moment(),
            allow_loss=True,
            clock=SystemClock(),
            random=SystemRandom(),
        )
    )
    inherited = topics_of(data)
    assert inherited
    everything = sorted([*inherited, "later"])
    assert sorted(serve(data, topic="later")) == everything
    # As after a crash: the state is compared with what the journal gives.
    assert sorted(serve(data)) == everything
    assert not list(data.glob("metadata.sqlite.damaged-*"))
    report = VerifyReport()
    assert verify_journal(report, data / "metadata.sqlite", PosixDevice(data)), report.findings
    for suffix in ("", "-wal", "-shm"):
        (data / f"metadata.sqlite{suffix}").unlink(missing_ok=True)
    assert sorted(serve(data)) == everything
