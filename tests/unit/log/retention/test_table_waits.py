"""How long retention waits for tables: as long as promised, no longer, and in whole runs."""

from msgspec.structs import replace

from penstock.log.retention.table_waits import TableWaits, Wanted
from penstock.model.ids import PartitionKey
from penstock.state.rows import StoredRun

NOW = 1_790_000_000_000
DAY = 86_400_000
WAIT = 7 * DAY
KEY = 1


def runs(*timestamps: int) -> list[StoredRun]:
    """One record each."""
    return [
        StoredRun(PartitionKey(KEY), offset, offset + 1, 0, "o", 100 * offset, 100, timestamp, 1)
        for offset, timestamp in enumerate(timestamps)
    ]


class Waiting:
    """Four runs of one record each, the first three of which have outlived their retention."""

    def __init__(self, *timestamps: int, retention_ms: int = DAY) -> None:
        self.waits = TableWaits()
        self.wanted = Wanted(
            partition_key=KEY,
            runs=runs(*(timestamps or (NOW, NOW, NOW, NOW))),
            log_start=3,
            retention_ms=retention_ms,
        )

    def start(
        self, followed: int, *, days: float = 0, newest_ms: int | None = None, wait_ms: int = WAIT
    ) -> int | None:
        return self.waits.new_log_start(
            self.wanted,
            followed=followed,
            newest_ms=newest_ms,
            now_ms=NOW + int(days * DAY),
            wait_ms=wait_ms,
        )


def test_what_tables_have_followed_goes_at_once() -> None:
    waiting = Waiting()
    assert waiting.start(0) is None
    assert waiting.start(2) == 2
    assert waiting.waits.partitions == 1
    assert waiting.start(3) == 3
    assert waiting.start(99) == 3
    assert waiting.waits.partitions == 0


def test_a_bound_of_nothing_waits_for_nobody() -> None:
    assert Waiting().start(0, wait_ms=0) == 3


def test_past_the_bound_it_goes_all_the_same() -> None:
    waiting = Waiting()
    assert waiting.start(1) == 1
    assert waiting.start(1, days=6.9) == 1
    assert waiting.start(1, days=7) == 3


def test_the_bound_counts_for_each_record_from_when_it_was_wanted() -> None:
    waiting = Waiting()
    wanted = waiting.wanted
    waiting.wanted = Wanted(
        partition_key=KEY, runs=wanted.runs, log_start=1, retention_ms=wanted.retention_ms
    )
    assert waiting.start(0) is None
    waiting.wanted = wanted
    assert waiting.start(0, days=3) is None
    assert waiting.start(0, days=7) == 1
    assert waiting.start(0, days=9.9) == 1
    assert waiting.start(0, days=10) == 3


def test_what_is_remembered_is_bounded() -> None:
    waiting = Waiting()
    rows = runs(*[NOW] * 2_000)
    for number in range(1_900):
        waiting.wanted = Wanted(
            partition_key=KEY, runs=rows, log_start=number + 1, retention_ms=DAY
        )
        waiting.start(0, days=number * 6 / 1_900)
    assert len(waiting.waits._marks[KEY]) <= 65
    waiting.waits.forget([KEY])
    assert waiting.waits.partitions == 1
    waiting.waits.forget([KEY + 1])
    assert waiting.waits.partitions == 0


def test_a_table_that_has_died_is_not_waited_for_anew_at_each_start() -> None:
    old = NOW - 8 * DAY - 1
    waiting = Waiting(old, old, old, NOW)
    # Nothing is remembered yet, as after a restart.
    assert waiting.start(0, newest_ms=old) == 3
    # One that tells of progress is waited for, however old the records say they are,
    assert Waiting(old, old, old, NOW).start(0, newest_ms=NOW - WAIT + 1) is None
    # and so is one that had nothing to follow for long,
    assert Waiting(NOW, NOW, NOW, NOW).start(0, newest_ms=old) is None
    # and one that never began, whose first records may be of any age.
    assert Waiting(old, old, old, NOW).start(0, newest_ms=None) is None
    # Without timestamps nobody knows how old they are.
    assert Waiting(-1, -1, -1, NOW).start(0, newest_ms=old) is None


def test_what_a_clock_that_was_ahead_noted_is_waited_for_from_now_on() -> None:
    waiting = Waiting()
    assert waiting.start(0, days=3_650) is None
    assert waiting.start(0, days=0) is None
    assert waiting.start(0, days=6.9) is None
    assert waiting.start(0, days=7) == 3


def test_what_was_followed_up_to_the_wanted_offset_is_waited_for_no_more() -> None:
    waiting = Waiting()
    assert waiting.start(0) is None
    assert waiting.start(3) == 3
    assert waiting.waits.partitions == 0
    waiting.start(2)
    assert waiting.start(2, wait_ms=-1) == 3


def test_nothing_past_what_is_wanted_leaves() -> None:
    """Within a run, where offsets leave by count."""
    waiting = Waiting()
    long = [replace(run, end_offset=run.base_offset + 1) for run in runs(NOW, NOW, NOW)]
    long[1] = replace(long[1], end_offset=5)
    waiting.wanted = Wanted(
        partition_key=KEY, runs=[*long[:2], *runs(*[NOW] * 9)[5:]], log_start=3, retention_ms=DAY
    )
    assert waiting.start(1) == 1
    assert waiting.start(1, days=7) == 3


def test_the_bound_is_over_when_a_record_has_been_past_its_retention_for_so_long() -> None:
    old = NOW - 8 * DAY
    assert Waiting(old, old, old, NOW).start(0, newest_ms=old) == 3
    assert Waiting(old + 1, old, old, NOW).start(0, newest_ms=old) is None
    at_first = NOW - 365 * 60 * DAY
    assert Waiting(0, 0, 0, NOW).start(0, newest_ms=at_first) == 3, "a timestamp as any other"
    by_size = Waiting(old + DAY, old + DAY, old + DAY, NOW, retention_ms=-1)
    assert by_size.start(0, newest_ms=old) == 3, "there is no retention by time to wait out"
    assert Waiting(old + DAY, old + DAY, old + DAY, NOW).start(0, newest_ms=old) is None
