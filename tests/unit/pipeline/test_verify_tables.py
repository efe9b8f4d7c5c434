"""`penstock verify` names what is damaged of tables."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.pipeline.engine import LocalEngine
from penstock.pipeline.verify_tables import verify_tables
from penstock.recovery.verify_report import VerifyReport
from support.api_server import ApiServer, serve_in_thread
from support.tables import Lake, follow, produce_values

pytestmark = pytest.mark.slow


@pytest.fixture
def api(tmp_path: Path) -> Iterator[ApiServer]:
    with serve_in_thread(tmp_path / "server") as found:
        yield found


def findings(api: ApiServer, lake: Lake) -> list[tuple[str, str]]:
    report = VerifyReport()
    done = verify_tables(api.client, LocalEngine(1), lake.catalog_settings, report)
    assert done == ["penstock.gone", "penstock.kept", "penstock.typed"]
    assert report.ok == (not report.findings)
    return [(finding.kind.value, finding.subject) for finding in report.findings]


def test_damaged_and_missing_files_and_tables_are_findings(api: ApiServer, tmp_path: Path) -> None:
    lake = Lake(tmp_path / "warehouse")
    for topic in ("gone", "kept", "typed"):
        api.create(topic)
        api.create(f"{topic}.dlq")
        produce_values(api, topic, [b"v" * 200])
        follow(api, lake, topic)
    # Its values have a registry's schemas: nothing is asked of that here.
    api.alter("typed", {"penstock.table.schema": "registry"})
    assert findings(api, lake) == []
    (path,) = lake.files("kept")
    Path(path).write_bytes(Path(path).read_bytes()[:-1])
    lake.catalog().drop_table(("penstock", "gone"))
    assert findings(api, lake) == [("damaged", f"file://{path}")], "it was given up"
    api.alter("gone", {"penstock.table": "iceberg"})
    assert findings(api, lake) == [
        ("missing", "table penstock.gone"),
        ("damaged", f"file://{path}"),
    ]
