"""Known places of runs: found as a list would find them, and bounded by runs in total."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.log.fetch.windows import RunWindows
from penstock.model.ids import PartitionKey
from penstock.state.rows import StoredRun

KEY = PartitionKey(1)


def window(*bounds: tuple[int, int]) -> list[StoredRun]:
    return [StoredRun(KEY, start, end, 0, "o", 0, 1, 0, 1) for start, end in bounds]


def test_a_run_is_found_by_any_of_its_offsets_and_gaps_lead_to_the_next() -> None:
    windows = RunWindows()
    first, second = rows = window((10, 12), (15, 20))
    windows.put(KEY, rows)
    found = [windows.find(KEY, offset) for offset in (9, 10, 11, 12, 14, 15, 19, 20)]
    assert found == [None, first, first, second, second, second, second, None]
    windows.forget(KEY)
    assert windows.find(KEY, 10) is None


STEPS = st.tuples(st.sampled_from(("put", "find", "forget")), st.integers(0, 5), st.integers(0, 4))


@given(st.lists(STEPS, max_size=60))
def test_runs_are_bounded_in_total_and_the_least_recently_used_leave(
    steps: list[tuple[str, int, int]],
) -> None:
    windows = RunWindows(runs_max=8)
    model: dict[int, int] = {}  # partition -> runs; the most recently used is the last
    for step, number, count in steps:
        key = PartitionKey(number)
        if step == "put":
            windows.put(key, window(*((at, at + 1) for at in range(count))))
            model.pop(number, None)
            if count:
                model[number] = count
            while sum(model.values()) > 8:
                del model[next(iter(model))]
        elif step == "forget":
            windows.forget(key)
            model.pop(number, None)
        else:
            assert (windows.find(key, 0) is not None) == (number in model)
            if number in model:
                model[number] = model.pop(number)
        assert windows.run_count == sum(model.values()) <= 8
