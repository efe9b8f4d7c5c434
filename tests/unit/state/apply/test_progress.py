"""SaveTable and DropTable: how far tables are, replaced as a whole."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.state.answers import Done, Refusal
from penstock.state.apply.progress import TABLES_PER_TOPIC_MAX
from penstock.state.commands import DeleteTopic
from penstock.state.pipeline_commands import DropTable, SaveTable
from penstock.state.rows import TableRow
from unit.state.orders import TOPIC_ID
from unit.state.pipelines import Pipeline, reason


@pytest.fixture
def pipeline(tmp_path: Path) -> Iterator[Pipeline]:
    found = Pipeline(tmp_path)
    yield found
    found.close()


def save(table: str = "db.t", **fields: Any) -> SaveTable:
    command: dict[str, Any] = {"topic_id": TOPIC_ID, "table": table, "offsets": [0, 5]}
    return SaveTable(**(command | fields))


def test_progress_is_replaced_as_a_whole(pipeline: Pipeline) -> None:
    assert pipeline.one(save(offsets=[1, 9, 0, 5], snapshot_id=-3, state="{}")) == Done()
    pipeline.time_ms = 2_000
    assert pipeline.one(save("db.u", state="x")) == Done()
    first = TableRow(
        topic_id=TOPIC_ID,
        table="db.t",
        offsets={0: 5, 1: 9},
        snapshot_id=-3,
        state="{}",
        time_ms=1_000,
    )
    assert pipeline.queries.table_rows()[0] == first
    assert [row.table for row in pipeline.queries.table_rows(TOPIC_ID)] == ["db.t", "db.u"]
    pipeline.one(save(offsets=[1, 10]))
    row = pipeline.queries.table_rows()[0]
    assert (row.offsets, row.snapshot_id, row.time_ms) == ({1: 10}, -1, 2_000)


def test_it_goes_with_its_topic_or_by_command(pipeline: Pipeline) -> None:
    pipeline.send(save(), save("db.u"))
    assert pipeline.one(DropTable(topic_id=TOPIC_ID, table="db.t")) == Done()
    assert [row.table for row in pipeline.queries.table_rows()] == ["db.u"]
    pipeline.one(DeleteTopic(topic_id=TOPIC_ID))
    assert pipeline.queries.table_rows() == []
    assert reason(pipeline.one(save())) is Refusal.UNKNOWN_TOPIC


@pytest.mark.parametrize(
    "fields",
    [
        {"offsets": [0]},
        {"offsets": [2, 5]},
        {"offsets": [-1, 5]},
        {"offsets": [0, -1]},
        {"offsets": [0, 1 << 63]},
        {"offsets": [1 << 63, 0]},
        {"snapshot_id": (1 << 64) - 1},
        {"table": ""},
        {"table": "x" * 1001},
    ],
)
def test_what_is_no_progress_is_refused(pipeline: Pipeline, fields: dict[str, Any]) -> None:
    assert reason(pipeline.one(save(**fields))) is Refusal.MALFORMED
    assert pipeline.queries.table_rows() == []


def test_tables_of_a_topic_are_bounded(pipeline: Pipeline) -> None:
    for number in range(TABLES_PER_TOPIC_MAX):
        assert pipeline.one(save(f"t{number}")) == Done()
    assert reason(pipeline.one(save("one too many"))) is Refusal.MALFORMED
    assert pipeline.one(save("t7", offsets=[0, 8])) == Done()
