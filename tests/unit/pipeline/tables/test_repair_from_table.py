"""Lost records are encoded again from a raw table, at the same offsets, and never silently."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from penstock.cli.main import root
from penstock.state.read.loss_queries import NotedKind
from support.api_server import NOW_MS, ApiServer
from support.tables import Lake, follow, new_record, produce, records_of

RECORDS = [
    new_record(b"k1", b"v1", timestamp_ms=NOW_MS - 5, headers=[("h", b"x"), ("h", None)]),
    new_record(None, b"", timestamp_ms=NOW_MS),
    new_record(b"", None, timestamp_ms=-1),
    new_record(b"k4", b"v4" * 500, timestamp_ms=NOW_MS - 9),
]


@pytest.fixture
def lost(api: ApiServer, lake: Lake, topic: str) -> Iterator[str]:
    """A topic whose table is whole, and whose first partition's one run is damaged."""
    name = f"{topic}lost"
    before = set(objects(api))
    api.create(name, 2, {"penstock.durability": "object"})
    produce(api, name, 0, RECORDS)
    produce(api, name, 1, [new_record(b"other", b"partition")])
    follow(api, lake, name)
    # Other tests' topics have the same records in objects of their own.
    new = set(objects(api)) - before
    kept = [path for path in sorted(new) if b"v4v4v4" in path.read_bytes()]
    assert kept
    for path in kept:
        # In place: the server may have the file open.
        with path.open("r+b") as file:
            file.seek(path.read_bytes().index(b"v4v4v4"))
            file.write(b"V")
    forget_memory(api)
    scanned = repair(api, "--scan")
    assert scanned.exit_code == 1, scanned.output
    yield name
    # The server is other tests', too.
    repair(api, "--accept-loss")


def objects(api: ApiServer) -> list[Path]:
    return sorted((api.server.parts.layout.root / "objects/segments").rglob("*.seg"))


def forget_memory(api: ApiServer) -> None:
    async def forget() -> None:
        log = api.server.parts.log
        for key in list(log.tail.partitions()):
            log.tail.forget(key)
        for block in list(log.blocks._blocks):
            log.blocks.drop(block)

    api.on_loop(forget())


def repair(api: ApiServer, *arguments: str) -> Result:
    assert api.server.http_address is not None
    host, port = api.server.http_address
    return CliRunner().invoke(root, ["repair", "--http", f"{host}:{port}", *arguments])


def from_table(api: ApiServer, lake: Lake, name: str, *arguments: str, table: str = "") -> Result:
    return repair(
        api,
        "--from-table",
        table or f"penstock.{name}",
        "--topic",
        name,
        "--warehouse",
        str(lake.folder),
        *arguments,
    )


def status(api: ApiServer, what: NotedKind, name: str) -> list[tuple[int, int]]:
    log = api.server.parts.log
    queries = log.reader._queries
    rows = queries.noted_ranges(what, 100)
    return [(start, end) for key, start, end, _ in rows if log.partition_name(key) == f"{name}-0"]


@pytest.mark.slow
def test_a_lost_run_comes_back_from_the_table(
    api: ApiServer, lake: Lake, lost: str, caplog: pytest.LogCaptureFixture
) -> None:
    lists = from_table(api, lake, lost)
    assert lists.exit_code == 1
    assert f"{lost}-0 offsets 0 to 3 (damaged): from penstock.{lost}" in lists.stderr
    assert "a table does not have: producer ids" in lists.stderr
    assert "nothing was done: give --yes to do it" in lists.stderr
    assert status(api, "rebuilt_ranges", lost) == []
    done = from_table(api, lake, lost, "--yes", "--json")
    assert done.exit_code == 0, done.output
    assert "a table does not have" in done.stderr, "also where nothing is asked"
    (rebuilt,) = json.loads(done.stdout)["rebuilt"]
    assert (rebuilt["filled"], rebuilt["lost"]) == ([[0, 4]], [])
    forget_memory(api)
    found = records_of(api, lost)
    assert [(one.key, one.value, one.headers, one.timestamp) for one in found] == [
        (one.key, one.value, one.headers, one.timestamp) for one in RECORDS
    ]
    assert status(api, "rebuilt_ranges", lost) == [(0, 4)]
    assert status(api, "lost_ranges", lost) == []
    assert f"{lost}-0 offsets 0 to 3 were encoded again from a table" in caplog.text
    again = from_table(api, lake, lost, "--yes")
    assert again.exit_code == 0
    assert f"{lost} has no lost record without a copy" in again.stderr


def test_a_loss_that_was_accepted_is_filled(api: ApiServer, lake: Lake, lost: str) -> None:
    assert repair(api, "--accept-loss").exit_code == 0
    assert status(api, "lost_ranges", lost) == [(0, 4)]
    assert from_table(api, lake, lost, "--yes").exit_code == 0
    assert status(api, "lost_ranges", lost) == []
    assert status(api, "rebuilt_ranges", lost) == [(0, 4)]
    forget_memory(api)
    assert [one.value for one in records_of(api, lost)] == [one.value for one in RECORDS]


@pytest.mark.slow
def test_what_the_table_lacks_is_given_up_only_when_that_is_said(
    api: ApiServer, lake: Lake, lost: str
) -> None:
    lake.table(lost).delete("partition == 0 and offset == 1")
    refused = from_table(api, lake, lost, "--yes")
    assert refused.exit_code == 1
    assert "1 lost offsets are not among the records, the first of them 1" in str(refused.exception)
    assert status(api, "rebuilt_ranges", lost) == []
    done = from_table(api, lake, lost, "--yes", "--accept-loss")
    assert done.exit_code == 0, done.output
    assert status(api, "rebuilt_ranges", lost) == [(0, 1), (2, 4)]
    assert status(api, "lost_ranges", lost) == [(1, 2)]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["upsert", "other", "missing", "twice"])
def test_a_table_that_does_not_hold_what_was_sent_is_refused(
    api: ApiServer, lake: Lake, lost: str, kind: str
) -> None:
    table = lake.table(lost)
    if kind == "upsert":
        with table.transaction() as transaction:
            transaction.set_properties({"penstock.mode": "upsert"})
    elif kind == "other":
        with table.transaction() as transaction:
            transaction.set_properties({"penstock.topic-id": "00" * 16})
    elif kind == "twice":
        table.append(table.scan(row_filter="partition == 0 and offset == 3").to_arrow())
    else:
        with table.update_schema() as update:
            update.rename_column("value", "decoded")
    refused = from_table(api, lake, lost, "--yes")
    assert refused.exit_code == 1
    expected = {
        "upsert": "the newest row of each key",
        "other": f"not {api.topics[lost][0]}",
        "missing": "decoded columns, and not keys and values as they were sent",
        "twice": "offset 3 is there twice",
    }
    assert expected[kind] in str(refused.exception)
    assert status(api, "rebuilt_ranges", lost) == []
    assert "there is no such table" in str(
        from_table(api, lake, lost, "--yes", table="penstock.nothing").exception
    )
