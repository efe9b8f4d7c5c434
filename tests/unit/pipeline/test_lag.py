"""How far a table is behind, in records and in seconds of the process that looks."""

from penstock.pipeline.lag import MARKS_MAX, Behind, Lags


def look(
    lags: Lags, now_s: float, ends: list[int], held: list[int], *, held_for_s: float | None = None
) -> Behind:
    return lags.look(
        "t",
        now_s=now_s,
        starts=[0] * len(ends),
        ends=ends,
        held=dict(enumerate(held)),
        held_for_s=held_for_s,
    )


def test_a_table_that_has_all_is_not_behind() -> None:
    lags = Lags()
    assert look(lags, 0, [5, 7], [5, 7]) == Behind(0, 0.0)
    assert look(lags, 9, [5, 7], [5, 7]) == Behind(0, 0.0)


def test_seconds_are_those_since_the_oldest_missing_record_was_seen() -> None:
    lags = Lags()
    look(lags, 0, [5, 7], [5, 7])
    assert look(lags, 10, [6, 7], [5, 7]) == Behind(1, 0.0)
    assert look(lags, 20, [9, 7], [5, 7]) == Behind(4, 10.0)
    # What was there at 10 s is in it now; what came until 20 s isn't.
    assert look(lags, 30, [9, 7], [6, 7]) == Behind(3, 10.0)
    assert look(lags, 40, [9, 7], [9, 7]) == Behind(0, 0.0)


def test_one_partition_that_stands_still_counts_though_others_go_on() -> None:
    lags = Lags()
    look(lags, 0, [5, 5], [5, 5])
    look(lags, 10, [6, 6], [5, 5])
    assert look(lags, 20, [6, 900], [5, 900]) == Behind(1, 10.0)


def test_at_the_first_look_records_are_as_old_as_the_tables_place() -> None:
    assert look(Lags(), 100, [5], [3], held_for_s=60.0) == Behind(2, 60.0)
    assert look(Lags(), 100, [5], [3]) == Behind(2, 0.0)


def test_what_retention_took_is_not_waited_for() -> None:
    found = Lags().look("t", now_s=0, starts=[4], ends=[6], held={0: 1}, held_for_s=None)
    assert found == Behind(2, 0.0)


def test_a_long_lag_takes_bounded_memory_and_stays_as_long() -> None:
    lags = Lags()
    look(lags, 0, [0], [0])
    for second in range(1, 50 * MARKS_MAX):
        found = look(lags, second, [second], [0])
    assert found == Behind(50 * MARKS_MAX - 1, 50 * MARKS_MAX - 2)
    assert len(lags._tables["t"].marks) <= MARKS_MAX + 1


def test_a_table_that_is_gone_is_forgotten() -> None:
    lags = Lags()
    look(lags, 0, [5], [3])
    lags.keep([])
    assert look(lags, 50, [5], [3]) == Behind(2, 0.0)
