"""What other people do to a topic, a table or its catalog, and upkeep of a table."""

from __future__ import annotations

import datetime as dt
import os
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.model.errors import InDoubtError, InvalidRequestError, NotFoundError
from penstock.pipeline.engine import LocalEngine
from penstock.pipeline.tables import catalog as catalog_module
from penstock.pipeline.tables.catalog import ancestry, open_catalog, summary_of
from penstock.pipeline.tables.job import run_table_once
from penstock.pipeline.tables.maintenance import Maintenance, MaintenanceSummary, maintain_table
from penstock.pipeline.tables.offsets import OFFSETS_PROPERTY
from penstock.pipeline.tables.settings import CatalogSettings, TableSettings
from penstock.system import SystemClock
from support.api_server import ApiServer
from support.simulated.clock import ManualClock
from support.tables import Lake, follow, new_record, produce, produce_values, records_of

HOUR_MS = 3_600_000


def values(lake: Lake, topic: str) -> list[bytes]:
    return [value for (value,) in lake.rows(topic, "value")]


def foreign_rows(lake: Lake, topic: str, count: int = 1) -> pa.Table:
    row = {
        "key": None,
        "value": b"foreign",
        "partition": 1000,
        "offset": 0,
        "timestamp": None,
        "headers": [],
    }
    return pa.Table.from_pylist([row] * count, schema=lake.table(topic).schema().as_arrow())


def maintain(api: ApiServer, lake: Lake, topic: str, **changes: Any) -> MaintenanceSummary:
    upkeep = Maintenance(**changes)
    return maintain_table(api.client, LocalEngine(2), lake.settings(topic), upkeep)


def test_a_deleted_topic_leaves_its_table(api: ApiServer, lake: Lake, topic: str) -> None:
    produce_values(api, topic, [b"a"])
    follow(api, lake, topic)
    api.delete(topic)
    with pytest.raises(NotFoundError, match="its table stays as it is"):
        follow(api, lake, topic)
    assert values(lake, topic) == [b"a"]


@pytest.mark.slow
def test_a_topic_that_was_made_anew_is_never_taken_for_the_old_one(
    api: ApiServer, lake: Lake, topic: str
) -> None:
    produce_values(api, topic, [b"old"] * 3)
    follow(api, lake, topic)
    api.delete(topic)
    api.create(topic, 1)
    produce_values(api, topic, [b"new"] * 4)
    with pytest.raises(InvalidRequestError, match="holds rows of topic"):
        follow(api, lake, topic)
    (progress,) = api.client.tables(api.topics[topic][0])
    assert '"status":"stopped"' in progress.state
    assert follow(api, lake, topic, adopt=True).rows == 4
    assert follow(api, lake, topic).rows == 0
    assert sorted(values(lake, topic)) == [b"new"] * 4 + [b"old"] * 3


@pytest.mark.slow
def test_a_dropped_table_is_not_silently_made_anew(api: ApiServer, lake: Lake, topic: str) -> None:
    produce_values(api, topic, [b"a", b"b"])
    follow(api, lake, topic)
    lake.catalog().drop_table(("penstock", topic))
    produce_values(api, topic, [b"c"])
    with pytest.raises(InvalidRequestError, match="is gone, though it held partition 0 up to 2"):
        follow(api, lake, topic)
    (progress,) = api.client.tables(api.topics[topic][0])
    assert progress.offsets == [(0, 2)]
    assert follow(api, lake, topic, restart=True).rows == 3
    assert values(lake, topic) == [b"a", b"b", b"c"]


@pytest.mark.slow
def test_foreign_rows_change_no_offsets(api: ApiServer, lake: Lake, topic: str) -> None:
    produce_values(api, topic, [b"a"])
    follow(api, lake, topic)
    for _ in range(3):
        lake.table(topic).append(foreign_rows(lake, topic))
    produce_values(api, topic, [b"b"])
    assert follow(api, lake, topic).rows == 1
    assert values(lake, topic) == [b"a", b"b"] + [b"foreign"] * 3


@pytest.mark.slow
def test_foreign_deletes_stay_deleted(api: ApiServer, lake: Lake, topic: str) -> None:
    produce_values(api, topic, [b"a", b"b", b"c"])
    follow(api, lake, topic)
    lake.table(topic).delete("offset == 1")
    produce_values(api, topic, [b"d"])
    follow(api, lake, topic)
    assert values(lake, topic) == [b"a", b"c", b"d"]


@pytest.mark.slow
def test_offsets_are_found_where_others_expired_all_snapshots_that_say_them(
    api: ApiServer, lake: Lake, topic: str
) -> None:
    """And the API's progress is behind, as after a kill between commit and saving."""
    produce_values(api, topic, [b"a"])
    follow(api, lake, topic)
    (before,) = api.client.tables(api.topics[topic][0])
    produce_values(api, topic, [b"b"])
    follow(api, lake, topic)
    api.client.save_table(before)
    table = lake.table(topic)
    table.append(foreign_rows(lake, topic))
    current = table.current_snapshot()
    assert current is not None
    old = [s.snapshot_id for s in table.metadata.snapshots if s.snapshot_id != current.snapshot_id]
    table.maintenance.expire_snapshots().by_ids(old).commit()
    assert all(OFFSETS_PROPERTY not in summary_of(s) for s in ancestry(lake.table(topic)))
    produce_values(api, topic, [b"c"])
    assert follow(api, lake, topic).rows == 1
    assert values(lake, topic) == [b"a", b"b", b"c", b"foreign"]


@pytest.mark.slow
def test_after_a_rollback_what_it_took_is_written_again(
    api: ApiServer, lake: Lake, topic: str
) -> None:
    produce_values(api, topic, [b"a"])
    first = follow(api, lake, topic).snapshot_id
    produce_values(api, topic, [b"b"])
    follow(api, lake, topic)
    lake.table(topic).manage_snapshots().rollback_to_snapshot(first).commit()
    produce_values(api, topic, [b"c"])
    assert follow(api, lake, topic).rows == 2
    assert values(lake, topic) == [b"a", b"b", b"c"]


def expire_all_but_current(lake: Lake, topic: str) -> None:
    """As Iceberg's own procedure does, which knows of no offsets."""
    table = lake.table(topic)
    current = table.current_snapshot()
    assert current is not None
    old = [s.snapshot_id for s in table.metadata.snapshots if s.snapshot_id != current.snapshot_id]
    table.maintenance.expire_snapshots().by_ids(old).commit()


@pytest.mark.slow
@pytest.mark.parametrize("expires_before", [True, False])
@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_after_a_rollback_to_anothers_snapshot_what_it_took_is_written_again(
    api: ApiServer, lake: Lake, topic: str, mode: str, expires_before: bool
) -> None:
    """It says no offsets, and what said them is expired, before our next commit or after."""
    produce(api, topic, 0, [new_record(b"a", b"a")])
    follow(api, lake, topic, mode=mode)
    table = lake.table(topic)
    table.overwrite(table.scan().to_arrow())
    theirs = lake.table(topic).current_snapshot()
    assert theirs is not None
    if expires_before:
        expire_all_but_current(lake, topic)
    for value in (b"b", b"c"):
        produce(api, topic, 0, [new_record(value, value)])
        follow(api, lake, topic, mode=mode)
    if not expires_before:
        table = lake.table(topic)
        old = [
            snapshot.snapshot_id
            for snapshot in table.metadata.snapshots
            if snapshot.sequence_number < theirs.sequence_number
        ]
        table.maintenance.expire_snapshots().by_ids(old).commit()
    lake.table(topic).manage_snapshots().rollback_to_snapshot(theirs.snapshot_id).commit()
    assert values(lake, topic) == [b"a"]
    assert follow(api, lake, topic, mode=mode).rows == 2
    assert values(lake, topic) == [b"a", b"b", b"c"]
    # And again, with somebody's next snapshot on top, and all others gone.
    lake.table(topic).manage_snapshots().rollback_to_snapshot(theirs.snapshot_id).commit()
    expire_all_but_current(lake, topic)
    table = lake.table(topic)
    table.overwrite(table.scan().to_arrow())
    produce(api, topic, 0, [new_record(b"d", b"d")])
    assert follow(api, lake, topic, mode=mode).rows == 3
    assert values(lake, topic) == [b"a", b"b", b"c", b"d"]


@pytest.mark.slow
@pytest.mark.parametrize("change", ["drop", "retype", "require"])
def test_a_changed_column_of_ours_stops_the_table(
    api: ApiServer, lake: Lake, topic: str, change: str
) -> None:
    produce_values(api, topic, [b"a"])
    follow(api, lake, topic)
    with lake.table(topic).update_schema(allow_incompatible_changes=True) as update:
        if change == "drop":
            update.delete_column("value")
        elif change == "retype":
            update.rename_column("value", "payload")
        else:
            update.update_column("key", required=True)
    produce_values(api, topic, [b"b"])
    with pytest.raises(InvalidRequestError, match=r"column (value|key)"):
        follow(api, lake, topic)


@pytest.mark.slow
def test_columns_of_others_are_null_in_our_rows(api: ApiServer, lake: Lake, topic: str) -> None:
    from pyiceberg.types import StringType

    produce_values(api, topic, [b"a"])
    follow(api, lake, topic)
    with lake.table(topic).update_schema() as update:
        update.add_column("note", StringType())
    produce_values(api, topic, [b"b"])
    follow(api, lake, topic)
    assert lake.rows(topic, "value", "note") == [(b"a", None), (b"b", None)]


@pytest.mark.slow
def test_a_changed_partition_spec_is_followed(api: ApiServer, lake: Lake, topic: str) -> None:
    produce_values(api, topic, [b"a"])
    follow(api, lake, topic)
    with lake.table(topic).update_spec() as update:
        update.add_identity("partition")
    produce_values(api, topic, [b"b"])
    produce_values(api, topic, [b"c"], partition=1)
    assert follow(api, lake, topic).files == 2
    assert values(lake, topic) == [b"a", b"b", b"c"]


def test_somebody_s_table_is_not_written_into(api: ApiServer, lake: Lake, topic: str) -> None:
    other = f"{topic}-x"
    api.create(other)
    produce_values(api, topic, [b"a"])
    produce_values(api, other, [b"x"])
    follow(api, lake, topic)
    with pytest.raises(InvalidRequestError, match="holds rows of topic"):
        follow(api, lake, other, table=f"penstock.{topic}")


@pytest.mark.slow
def test_a_new_partition_starts_at_its_first_record(api: ApiServer, lake: Lake, topic: str) -> None:
    produce_values(api, topic, [b"a"])
    follow(api, lake, topic)
    produce_values(api, topic, [b"b"], partition=1)
    assert follow(api, lake, topic).offsets == {0: 1, 1: 1}


@pytest.mark.slow
def test_small_files_are_joined_and_rows_stay(api: ApiServer, lake: Lake, topic: str) -> None:
    for number in range(6):
        produce_values(api, topic, [b"%d" % number])
        follow(api, lake, topic)
    done = maintain(api, lake, topic)
    assert (done.files_joined, done.files_written) == (6, 1)
    assert len(list(lake.table(topic).scan().plan_files())) == 1
    assert values(lake, topic) == [b"%d" % number for number in range(6)]
    assert maintain(api, lake, topic).files_joined == 0
    produce_values(api, topic, [b"more"])
    assert follow(api, lake, topic).rows == 1


@pytest.mark.slow
def test_joining_leaves_a_column_that_was_renamed_in_place(
    api: ApiServer, lake: Lake, topic: str
) -> None:
    from pyiceberg.types import StringType

    produce_values(api, topic, [b"a"])
    follow(api, lake, topic)
    with lake.table(topic).update_schema() as update:
        update.add_column("note", StringType())
    rows = foreign_rows(lake, topic).drop_columns(["note"]).append_column("note", pa.array(["n"]))
    lake.table(topic).append(rows)
    with lake.table(topic).update_schema() as update:
        update.rename_column("note", "remark")
    assert maintain(api, lake, topic, files_min=1).files_joined == 2
    assert lake.rows(topic, "value", "remark") == [(b"a", None), (b"foreign", "n")]


@pytest.mark.slow
def test_rows_that_others_deleted_by_position_do_not_come_back(
    api: ApiServer, lake: Lake, topic: str
) -> None:
    """PyIceberg rewrites files; so what another engine would write is made by hand."""
    from pyiceberg.manifest import DataFileContent

    from penstock.pipeline.tables import join

    for value in (b"a", b"b", b"c", b"d"):
        produce_values(api, topic, [value])
        follow(api, lake, topic)
    real = join.live_files

    def with_deletes(table: Any) -> Any:
        for file in real(table):
            file[0] = DataFileContent.POSITION_DELETES
            yield file

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(join, "live_files", with_deletes)
        assert maintain(api, lake, topic).files_joined == 0


@pytest.mark.slow
def test_old_snapshots_expire_and_their_files_go(api: ApiServer, lake: Lake, topic: str) -> None:
    for number in range(5):
        produce_values(api, topic, [b"%d" % number])
        follow(api, lake, topic)
    orphan = lake.folder / "penstock" / topic / "data" / "killed.parquet"
    orphan.write_bytes(b"an attempt that was killed")
    recent = lake.folder / "penstock" / topic / "data" / "now.parquet"
    recent.write_bytes(b"of a commit that is about to name it")
    long_ago = time.time() - 100 * 3600
    for path in (lake.folder / "penstock" / topic).rglob("*"):
        if path.is_file() and path != recent:
            os.utime(path, (long_ago, long_ago))
    # What maintenance writes itself is new, and what it replaces is old.
    done = maintain(api, lake, topic, snapshot_age_ms=-HOUR_MS, orphan_age_ms=HOUR_MS)
    assert done.snapshots_expired == 5
    assert done.orphans_deleted >= 6, "five small files and the orphan"
    assert not orphan.exists()
    assert recent.exists()
    assert values(lake, topic) == [b"%d" % number for number in range(5)]
    produce_values(api, topic, [b"more"])
    assert follow(api, lake, topic).rows == 1
    assert len(values(lake, topic)) == 6


@pytest.mark.slow
def test_the_newest_snapshot_with_offsets_never_expires(
    api: ApiServer, lake: Lake, topic: str
) -> None:
    produce_values(api, topic, [b"a"])
    follow(api, lake, topic)
    for _ in range(2):
        lake.table(topic).append(foreign_rows(lake, topic))
    maintain(api, lake, topic, snapshot_age_ms=-HOUR_MS)
    properties = lake.table(topic)
    with properties.transaction() as transaction:
        transaction.remove_properties(OFFSETS_PROPERTY)
    api.client.drop_table(api.topics[topic][0], f"penstock.{topic}")
    assert follow(api, lake, topic).rows == 0
    assert len(values(lake, topic)) == 3


@pytest.mark.slow
def test_dead_letters_that_wait_are_no_orphans(
    api: ApiServer, lake: Lake, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from penstock.pipeline.client import PipelineClient
    from support.tables import KilledError

    produce(api, topic, 0, [new_record(b"bad", b"", timestamp_ms=2**62)])

    def killed(*_: Any) -> None:
        raise KilledError

    with monkeypatch.context() as patched:
        patched.setattr(PipelineClient, "write", killed)
        with pytest.raises(KilledError):
            follow(api, lake, topic)
    long_ago = dt.datetime(2020, 1, 1, tzinfo=dt.UTC).timestamp()
    for path in lake.files(topic):
        os.utime(path, (long_ago, long_ago))
    maintain(api, lake, topic)
    follow(api, lake, topic)
    assert [record.key for record in records_of(api, f"{topic}.dlq")] == [b"bad"]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("s3.secret-access-key", "hidden"),
        ("token", "hidden"),
        ("credential", "me:hidden"),
        ("uri", "postgresql+psycopg2://me:hidden@host/catalog"),
        ("uri", "postgresql+psycopg2://me:hid/den-hidden@host/catalog"),
        ("uri", "postgresql+psycopg2://:hidden@host/catalog"),
        ("uri", "postgresql://me@host/catalog?password=hidden"),
        ("uri", "postgresql://me@host/catalog?sslmode=require&sslpassword=hidden"),
        ("uri", "mssql+pyodbc:///?odbc_connect=SERVER%3Dhost%3BUID%3Dme%3BPWD%3Dhidden"),
        ("uri", "https://host/catalog?access_token=hidden"),
        ("adls.connection-string", "AccountName=me;AccountKey=hidden"),
        ("anything", "host=h user=me password = hidden"),
        ("header.Authorization", "Bearer hidden"),
        ("header.x_api_key", "hidden"),
    ],
)
def test_secrets_are_refused_as_properties(
    api: ApiServer, topic: str, tmp_path: Path, key: str, value: str
) -> None:
    catalog = CatalogSettings(warehouse=str(tmp_path), properties={key: value})
    with pytest.raises(InvalidRequestError, match=r"is a secret|holds a password") as caught:
        run_table_once(api.client, LocalEngine(1), TableSettings(topic=topic, catalog=catalog))
    assert "hidden" not in str(caught.value)


@pytest.mark.parametrize(
    "uri",
    [
        "postgresql+psycopg2://me@host:5432/catalog?sslmode=require",
        "http://127.0.0.1:8181/catalog",
        "sqlite:////srv/a:b@c/catalog.db",
        "s3://bucket/password=x/pre:fix@x",
        "sqlite:///file:catalog.db?mode=ro&uri=true",
    ],
)
def test_a_property_that_is_no_secret(tmp_path: Path, uri: str) -> None:
    CatalogSettings(warehouse=str(tmp_path / "a=b:c@d"), properties={"uri": uri}).check()


def test_a_secret_in_the_warehouse_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="holds a password") as caught:
        CatalogSettings(warehouse="s3://me:hidden@bucket/lake").check()
    assert "hidden" not in str(caught.value)


def test_a_warehouse_s_name_that_pyiceberg_would_cut(
    api: ApiServer, topic: str, tmp_path: Path
) -> None:
    catalog = CatalogSettings(warehouse=str(tmp_path / "a#b"))
    with pytest.raises(InvalidRequestError, match="has a # or"):
        run_table_once(api.client, LocalEngine(1), TableSettings(topic=topic, catalog=catalog))


def test_a_catalog_whose_tables_can_t_be_made_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "catalog.db"
    path.touch()
    opened: list[Any] = []
    real = catalog_module.load_catalog

    def noted(*arguments: Any, **properties: Any) -> Any:
        opened.append(real(*arguments, **properties))
        return opened[-1]

    monkeypatch.setattr(catalog_module, "load_catalog", noted)
    uri = f"sqlite:///file:{path}?mode=ro&uri=true"
    settings = CatalogSettings(warehouse=str(tmp_path), properties={"type": "sql", "uri": uri})
    with pytest.raises(InDoubtError, match="readonly"), open_catalog(settings):
        pass
    (catalog,) = opened
    assert catalog.engine.pool.checkedin() == 0, "a connection is left"


def test_a_catalog_that_somebody_else_makes_the_tables_of(tmp_path: Path) -> None:
    properties = {"uri": f"sqlite:///{tmp_path / 'catalog.db'}", "init_catalog_tables": "false"}
    settings = CatalogSettings(warehouse=str(tmp_path), properties=properties)
    with open_catalog(settings) as catalog, pytest.raises(Exception, match="no such table"):
        catalog.list_namespaces()


@pytest.mark.slow
def test_upkeep_by_a_clock_that_is_ahead_takes_nothing(
    api: ApiServer, lake: Lake, topic: str
) -> None:
    """A driver's clock alone: the server's says that all is young."""
    for value in (b"a", b"b"):
        produce_values(api, topic, [value])
        follow(api, lake, topic)
    orphan = lake.folder / "penstock" / topic / "data" / "of-another-driver.parquet"
    orphan.write_bytes(b"just written, and not committed yet")
    ahead = ManualClock(now_ms=SystemClock().now_ms() + 365 * 24 * HOUR_MS)
    done = maintain_table(
        api.client, LocalEngine(2), lake.settings(topic), Maintenance(), clock=ahead
    )
    assert (done.snapshots_expired, done.orphans_deleted) == (0, 0)
    assert orphan.exists()


@pytest.mark.slow
def test_offsets_of_many_partitions_lie_in_files_that_upkeep_keeps(
    api: ApiServer, lake: Lake, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each commit repeats all snapshots' summaries: 62 MB of metadata at 1,000 partitions."""
    monkeypatch.setattr("penstock.pipeline.tables.commit.INLINE_BYTES_MAX", 10)
    for number in range(5):
        produce_values(api, topic, [b"%d" % number])
        follow(api, lake, topic)
    said = [summary_of(snapshot)[OFFSETS_PROPERTY] for snapshot in ancestry(lake.table(topic))]
    assert len(set(said)) == 5
    assert all(text.startswith('{"version":2,"topics":{},"file":') for text in said)
    folder = lake.folder / "penstock" / topic / "penstock-offsets"
    assert len(list(folder.iterdir())) == 5
    long_ago = time.time() - 100 * 3600
    for path in (lake.folder / "penstock" / topic).rglob("*"):
        if path.is_file():
            os.utime(path, (long_ago, long_ago))
    # A join says what the snapshot before it said, and what names no snapshot goes.
    done = maintain(api, lake, topic, snapshot_age_ms=-HOUR_MS, orphan_age_ms=HOUR_MS)
    assert (done.files_joined, done.snapshots_expired) == (5, 5)
    assert len(list(folder.iterdir())) == 1
    produce_values(api, topic, [b"more"])
    assert follow(api, lake, topic).rows == 1
    assert values(lake, topic) == [*(b"%d" % number for number in range(5)), b"more"]


@pytest.mark.slow
def test_offsets_whose_file_is_gone_stop_the_table(
    api: ApiServer, lake: Lake, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.pipeline.tables.commit.INLINE_BYTES_MAX", 10)
    produce_values(api, topic, [b"a"])
    follow(api, lake, topic)
    (file,) = (lake.folder / "penstock" / topic / "penstock-offsets").iterdir()
    content = file.read_bytes()
    file.unlink()
    produce_values(api, topic, [b"b"])
    with pytest.raises(NotFoundError, match=file.name):
        follow(api, lake, topic)
    file.write_bytes(content)
    assert follow(api, lake, topic).rows == 1


def test_configs_say_what_upkeep_keeps_unless_it_is_told() -> None:
    configs = {
        "penstock.table.snapshot.retention.ms": "5",
        "penstock.table.orphan.retention.ms": "7",
    }
    assert Maintenance().ages_ms(configs) == (5, 7)
    assert Maintenance(snapshot_age_ms=0, orphan_age_ms=1).ages_ms(configs) == (0, 1)
    assert Maintenance().ages_ms({}) == (24 * HOUR_MS, 72 * HOUR_MS)


@pytest.mark.slow
def test_snapshots_expire_as_the_topics_config_says(api: ApiServer, lake: Lake, topic: str) -> None:
    for number in range(3):
        produce_values(api, topic, [b"%d" % number])
        follow(api, lake, topic)
    assert maintain(api, lake, topic).snapshots_expired == 0
    api.alter(topic, {"penstock.table.snapshot.retention.ms": "0"})
    assert maintain(api, lake, topic).snapshots_expired == 2
