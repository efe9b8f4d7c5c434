"""Repair gives up nothing that lies with others: another cluster's object, another agent's WAL."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from penstock.model.ids import PartitionKey
from penstock.state.rows import StoredRun
from support.log_rig import Rig
from support.rot import consume, read_views
from unit.log.damage.test_repair import STILL, damaged_run


@pytest.mark.parametrize(
    ("where", "note"),
    [
        ("object", "the object is another cluster's: repair it there"),
        ("wal", "the run lies in another agent's WAL: ask that agent"),
    ],
)
@pytest.mark.options(segment_age_ms=STILL)
async def test_what_lies_with_others_is_not_given_up(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, where: str, note: str
) -> None:
    key, _ = await damaged_run(rig, where)
    await consume(rig, key, read_views)
    assert rig.log.damages.known()
    repair = rig.log.damage_repair
    runs = repair._runs

    def runs_of_others(key: PartitionKey, offset: int) -> list[StoredRun]:
        (run,) = runs(key, offset)
        if where == "object":
            return [replace(run, origin="parent")]
        return [replace(run, generation=run.generation | 7 << 40)]

    monkeypatch.setattr(repair, "_runs", runs_of_others)
    for reports in (await repair.look(), await repair.accept_loss()):
        assert [(one.state, one.note, one.lost) for one in reports] == [("unknown", note, [])]
    assert rig.log.damages.known(), "it is still damaged"
    assert rig.log.lost_ranges.status()["known"] == 0
