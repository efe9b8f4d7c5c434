"""What of stored bytes is known to be right, against a set of bytes that says the same slowly."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.log.fetch.checked import CheckedRanges

AGAIN_S = 100.0
PLACES = ("a", "b", "c")
bounds = st.tuples(st.integers(0, 30), st.integers(1, 9)).map(lambda one: [one[0], sum(one)])
events = st.lists(
    st.tuples(
        st.sampled_from(("add", "add", "add", "forget", "forget_range", "wait")),
        st.sampled_from(PLACES),
        bounds,
        st.sampled_from((1, 1, 1, 2)),
    ),
    max_size=40,
)


@given(events)
def test_ranges_are_those_of_a_set_of_bytes(steps: list[tuple[str, str, list[int], int]]) -> None:
    ranges = CheckedRanges(again_s=AGAIN_S)
    right: dict[str, set[int]] = {place: set() for place in PLACES}
    identities: dict[str, int] = {}
    began: dict[str, float] = {}
    now_s = 0.0
    for event, place, (start, end), identity in steps:
        match event:
            case "add":
                # As a read does: it looks first.
                ranges.end_of(place, start, now_s, identity)
                if now_s >= began.get(place, now_s) + AGAIN_S:
                    right[place] = set()
                if identities.get(place) != identity or not right[place]:
                    right[place], identities[place], began[place] = set(), identity, now_s
                right[place] |= set(range(start, end))
                ranges.add(place, start, end, now_s, identity)
            case "forget":
                right[place] = set()
                ranges.forget(place)
            case "forget_range":
                right[place] -= set(range(start, end))
                ranges.forget_range(place, start, end)
            case "wait":
                now_s += 40
        for name in PLACES:
            known = right[name] if now_s < began.get(name, now_s) + AGAIN_S else set()
            for position in range(0, 31, 3):
                end_of = ranges.end_of(name, position, now_s, identities.get(name))
                expected = position
                while expected in known:
                    expected += 1
                assert end_of == expected, (name, position)
    pieces = [
        position
        for name in PLACES
        for position in right[name]
        if position - 1 not in right[name] and now_s < began[name] + AGAIN_S
    ]
    assert ranges.range_count == len(pieces)


def test_ranges_are_bounded_and_the_place_that_was_not_added_to_longest_goes_first() -> None:
    ranges = CheckedRanges(again_s=AGAIN_S, ranges_max=10)
    for number in range(50):
        ranges.add(f"place-{number}", 0, 1, 0.0)
        ranges.add("kept", 2 * number, 2 * number + 2, 0.0)
        assert ranges.range_count <= 10
    assert ranges.end_of("kept", 0, 0.0) == 100
    assert ranges.end_of("place-0", 0, 0.0) == 0
    # One place alone may have more: what is being read must be found.
    for number in range(50):
        ranges.add("wide", 3 * number, 3 * number + 1, 0.0)
    assert ranges.end_of("wide", 147, 0.0) == 148
    assert ranges.end_of("kept", 0, 0.0) == 0
