"""What is known of damage is bounded, and what is said of it too."""

import pytest

from penstock.log import findings as damage
from penstock.log.findings import Damage, DamageKind, Damages, Troubles
from penstock.model.errors import RetryableError
from penstock.model.ids import PartitionKey
from support.simulated.clock import ManualClock

KEY = PartitionKey(1)


def found(start: int, key: PartitionKey = KEY) -> Damage:
    return Damage(
        kind=DamageKind.DAMAGED_OBJECT,
        partition_key=key,
        start=start,
        end=start + 1,
        place="o",
        position=100 * start,
        detail="CRC-32C differs",
    )


def test_of_more_than_are_kept_the_oldest_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(damage, "KEPT_MAX", 5)
    monkeypatch.setattr(damage, "SHOWN_MAX", 2)
    damages = Damages(clock=ManualClock(), partition_name=str, log_start=lambda _: 0)
    for start in range(100):
        damages.found("read", found(start))
    assert [one.start for one in damages.known()] == [95, 96, 97, 98, 99]
    status = damages.status()
    assert status["known"] == 5
    assert [row["start"] for row in status["ranges"]] == [98, 99]


def test_what_was_trimmed_is_damaged_no_more() -> None:
    starts = {KEY: 0, PartitionKey(2): 0}
    damages = Damages(clock=ManualClock(), partition_name=str, log_start=starts.get)
    for start in range(3):
        damages.found("read", found(start))
    damages.found("read", found(0, PartitionKey(2)))
    starts[KEY] = 2
    assert [(one.partition_key, one.start) for one in damages.known()] == [(1, 2), (2, 0)]
    del starts[PartitionKey(2)]
    assert damages.status()["known"] == 1, "its topic is gone"


def test_a_cause_of_failed_reads_is_a_line_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    troubles = Troubles(clock)
    for second in range(150):
        troubles.met(RetryableError("read", "k", "the store is away"), "t-0")
        if second == 30:
            troubles.met(RetryableError("read", "k", "another cause"), "t-0")
        clock.advance(1)
    lines = [text for text in caplog.messages if "the store is away" in text]
    assert len(lines) == 3
    assert "(59 more since the last line)" in lines[1]
    assert sum("another cause" in text for text in caplog.messages) == 1
