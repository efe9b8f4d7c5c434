"""What looks at one connection show: stalled, late, slow, and none of these."""

from penstock.kafka.net.movement import (
    READABLE_BYTES,
    SLOW_BYTES_PER_S,
    Ending,
    Movement,
    Patience,
    Sample,
)

PATIENCE = Patience(stall_s=30.0, request_s=60.0)


def sample(at_s: float, **changes: int) -> Sample:
    fields = {
        "request": 1,
        "received_bytes": 0,
        "missing_bytes": 0,
        "readable_bytes": 0,
        "unsent_bytes": 0,
        "left_bytes": 0,
        **changes,
    }
    return Sample(at_s=at_s, **fields)


def sending(at_s: float, received: int, *, size: int = 1 << 20, **changes: int) -> Sample:
    return sample(at_s, received_bytes=received, missing_bytes=size - received, **changes)


def reading(at_s: float, unsent: int, left: int) -> Sample:
    return sample(at_s, unsent_bytes=unsent, left_bytes=left)


def test_a_sender_that_stands_still_is_stalled() -> None:
    movement = Movement(sending(0, 100))
    assert movement.follow(sending(29, 100), PATIENCE) is None
    assert movement.follow(sending(30, 100), PATIENCE) is Ending.STALLED


def test_a_byte_each_second_is_no_stall_but_late() -> None:
    movement = Movement(sending(0, 100))
    for second in range(1, 60):
        assert movement.follow(sending(second, 100 + second), PATIENCE) is None
        assert movement.slow is Ending.SLOW_REQUEST
    assert movement.follow(sending(61, 161), PATIENCE) is Ending.LATE_REQUEST


def test_what_came_prolongs_the_time_of_a_request() -> None:
    """100 MiB over a line of 1 MB/s are no fault."""
    movement = Movement(sending(0, 1, size=100 << 20))
    for second in range(1, 101):
        now = sending(second, second << 20, size=(100 << 20) + 1)
        assert movement.follow(now, PATIENCE) is None
        assert movement.slow is None


def test_a_sender_is_not_blamed_while_its_bytes_wait_in_our_socket() -> None:
    """The connection isn't read from, since the budget is full: its clock stands."""
    movement = Movement(sending(0, 1000, readable_bytes=READABLE_BYTES))
    for second in range(1, 200):
        now = sending(second, 1000, readable_bytes=READABLE_BYTES)
        assert movement.follow(now, PATIENCE) is None
        assert movement.slow is None
    assert movement.owed_s == 0


def test_nor_where_the_rest_of_the_request_waits() -> None:
    movement = Movement(sending(0, 990, size=1000, readable_bytes=10))
    assert movement.follow(sending(100, 990, size=1000, readable_bytes=10), PATIENCE) is None


def test_one_that_owes_is_blamed_though_it_is_not_read_from() -> None:
    movement = Movement(sending(0, 1000, readable_bytes=5))
    assert movement.follow(sending(31, 1000, readable_bytes=5), PATIENCE) is Ending.STALLED


def test_each_request_has_a_time_of_its_own() -> None:
    movement = Movement(sending(0, 100))
    for second in range(1, 300):
        now = sending(second, 100 + second % 50, request=1 + second // 50)
        assert movement.follow(now, PATIENCE) is None


def test_a_reader_that_takes_nothing_is_stalled() -> None:
    movement = Movement(reading(0, 1000, 500))
    assert movement.follow(reading(29.5, 1000, 500), PATIENCE) is None
    assert movement.follow(reading(30, 1000, 500), PATIENCE) is Ending.STALLED


def test_a_reader_that_takes_a_little_is_slow_alone() -> None:
    movement = Movement(reading(0, 10_000, 0))
    for second in range(1, 100):
        assert movement.follow(reading(second, 10_000 - second, second), PATIENCE) is None
        assert movement.slow is Ending.SLOW_REPLY
        assert movement.bytes_per_s == 1


def test_a_reader_whose_reply_begins_in_the_span_is_not_slow_yet() -> None:
    movement = Movement(sending(0, 10))
    movement.follow(reading(1, 10_000, 0), PATIENCE)
    assert movement.slow is None
    movement.follow(reading(2, 10_000, 0), PATIENCE)
    assert movement.slow is Ending.SLOW_REPLY


def test_a_fast_reader_is_not_slow() -> None:
    movement = Movement(reading(0, 10_000, 0))
    assert movement.follow(reading(1, 10_000, SLOW_BYTES_PER_S), PATIENCE) is None
    assert movement.slow is None
