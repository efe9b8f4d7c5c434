"""Nothing is old by one clock alone."""

from dataclasses import dataclass

from penstock.state.ages import Ages


@dataclass
class Clock:
    """Implements `penstock.ports.clock.AgeClock`."""

    believed: int | None = 1_000
    least: int = 900

    def believed_ms(self) -> int | None:
        return self.believed

    def least_ms(self) -> int:
        return self.least


def test_ages_go_by_the_lesser_of_journal_time_and_the_believed_clock() -> None:
    for journal_ms, now_ms in ((2_000, 1_000), (500, 500)):
        ages = Ages(Clock(), journal_ms=lambda found=journal_ms: found)  # type: ignore[misc]
        assert ages.now_ms() == now_ms
        assert ages.believed_ms() == 1_000
    # An embedded journal's time stands still while nothing is written.
    assert Ages(Clock()).now_ms() == 1_000


def test_a_doubt_of_the_clock_or_of_anything_else_lets_nothing_be_old() -> None:
    assert Ages(Clock(believed=None), journal_ms=lambda: 5).now_ms() is None
    doubted = Ages(Clock(), journal_ms=lambda: 5, is_doubted=lambda: True)
    assert doubted.now_ms() is None
    assert doubted.believed_ms() is None


def test_the_least_time_is_that_of_the_clock_and_of_a_shared_journal() -> None:
    shared = Ages(Clock(), journal_ms=lambda: 5)
    assert (shared.least_ms(100), shared.least_ms(2_000)) == (100, 900)
    assert Ages(Clock()).least_ms(100) == 900
