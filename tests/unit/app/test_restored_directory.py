"""An embedded server's directory that is made of a cluster's bucket."""

import asyncio
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from penstock.app.server import Server
from penstock.config.settings import ServerSettings
from penstock.log.layout import DataLayout
from penstock.log.opening.embedded import open_journal
from penstock.model.errors import InvalidRequestError, NotFoundError
from penstock.objects.origins import inherited_key
from penstock.recovery import cluster
from penstock.recovery.point_in_time import Moment
from penstock.recovery.restore import refuse_unfinished
from penstock.recovery.verify_journal import verify_journal
from penstock.recovery.verify_report import VerifyReport
from penstock.state.commands import CreateTopic
from penstock.state.read.queries import Queries
from penstock.system.clock import SystemClock
from penstock.system.files import PosixDevice
from penstock.system.randomness import SystemRandom
from support.restored_clusters import bucket_on_disk


def topics_of(data: Path) -> list[str]:
    with closing(Queries(data / "metadata.sqlite")) as queries:
        return [topic.name for topic in queries.topic_rows()]


def serve(data: Path, *, topic: str = "") -> list[str]:
    """Start on a directory, and end at once, leaving it as a crash would. Returns its topics."""
    order = open_journal(
        data / "metadata.sqlite", PosixDevice(data), clock=SystemClock(), random=SystemRandom()
    )
    if topic:
        order.append([CreateTopic(name=topic, topic_id=b"%16d" % 7, partitions=1)])
    order.close()
    (data / "metadata.sqlite.left").unlink(missing_ok=True)
    return topics_of(data)


def restore(bucket: Path, data: Path, *, copies: bool = False) -> None:
    asyncio.run(
        cluster.restore_cluster(
            str(bucket),
            DataLayout(data),
            moment=Moment(),
            allow_loss=True,
            clock=SystemClock(),
            random=SystemRandom(),
            transfer=partial(copy, bucket, data) if copies else None,
            copies=copies,
        )
    )


def copy(bucket: Path, data: Path, _from: str, _to: str, listed: Any, _due: object) -> None:
    for key, _ in listed:
        path = data / "objects" / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes((bucket / key).read_bytes())


@pytest.mark.slow
@pytest.mark.parametrize("copies", [False, True], ids=["named", "copied"])
def test_a_restore_that_is_cut_before_its_database_is_there_begins_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, copies: bool
) -> None:
    """No server takes for a lost database what is a restore's first half."""
    bucket, data = bucket_on_disk(tmp_path), tmp_path / "data"
    data.mkdir()
    with monkeypatch.context() as patch:

        def die(*_: object) -> None:
            raise KeyboardInterrupt

        patch.setattr(cluster, "restore", die)
        with pytest.raises(KeyboardInterrupt):
            restore(bucket, data, copies=copies)
    (snapshot,) = (data / "objects/snapshots").iterdir()
    left = data / "objects/snapshots/00000000000000000009.sqlite"
    snapshot.rename(left)
    with pytest.raises(InvalidRequestError, match="run penstock restore again"):
        refuse_unfinished(data / "metadata.sqlite")
    settings = ServerSettings(data=str(data), kafka="127.0.0.1:0", http="")
    with pytest.raises(InvalidRequestError, match="run penstock restore again"):
        asyncio.run(start(settings))
    restore(bucket, data, copies=copies)
    assert not left.exists(), "another log's"
    assert topics_of(data)
    refuse_unfinished(data / "metadata.sqlite")
    assert sorted(serve(data)) == sorted(topics_of(data))
    with pytest.raises(InvalidRequestError, match="it is there already"):
        restore(bucket, data, copies=copies)


def test_a_restore_that_is_cut_while_it_copies_is_no_servers_directory(tmp_path: Path) -> None:
    bucket, data = bucket_on_disk(tmp_path), tmp_path / "data"
    data.mkdir()

    def die(*_: object) -> None:
        raise RuntimeError("cut")

    with pytest.raises(RuntimeError, match="cut"):
        asyncio.run(
            cluster.restore_cluster(
                str(bucket),
                DataLayout(data),
                moment=Moment(),
                allow_loss=True,
                clock=SystemClock(),
                random=SystemRandom(),
                transfer=die,
                copies=True,
            )
        )
    with pytest.raises(InvalidRequestError, match="run penstock restore again"):
        refuse_unfinished(data / "metadata.sqlite")
    # Without copying, this time: what was copied is nobody's.
    (data / "objects/segments").mkdir()
    (data / "objects/segments/left").write_bytes(b"copied")
    restore(bucket, data)
    assert not list((data / "objects").rglob("left"))
    assert not list((data / "objects").glob("*.json"))
    assert topics_of(data)


async def start(settings: ServerSettings) -> None:
    server = Server(
        settings, clock=SystemClock(), random=SystemRandom(), on_fatal=lambda error: None
    )
    await server.start()
    await server.stop()


@pytest.mark.slow
def test_what_it_began_with_outlives_a_crash_and_the_loss_of_the_database(tmp_path: Path) -> None:
    bucket, data = bucket_on_disk(tmp_path), tmp_path / "data"
    data.mkdir()
    restore(bucket, data)
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


@pytest.mark.slow
def test_each_worker_counts_what_it_asks_of_the_parents_store(tmp_path: Path) -> None:
    bucket, data = bucket_on_disk(tmp_path), tmp_path / "data"
    data.mkdir()
    restore(bucket, data)
    settings = ServerSettings(data=str(data), kafka="127.0.0.1:0", http="", workers=2)

    async def main() -> None:
        servers = [
            Server(
                settings,
                clock=SystemClock(),
                random=SystemRandom(),
                on_fatal=lambda error: None,
                worker=index,
            )
            for index in range(2)
        ]
        for server in servers:
            await server.start()
        for server in servers:
            parts = server.parts
            (url,) = parts.queries().origins()
            with pytest.raises(NotFoundError):
                await parts.store.size(inherited_key(url, "segments/none"))
            requests = parts.metrics.counts.get("penstock_store_requests_total", {})
            assert requests.get("size") == 1, server._worker
        for server in reversed(servers):
            await server.stop()

    asyncio.run(main())
